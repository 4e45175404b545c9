//! Selection of the paths to extract.

use super::report::Options;
use crate::read::Image;
use crate::{Error, Result};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Compiled form of the paths and globs in [`Options`].
pub(super) struct Filter {
    /// Selected paths, without leading or trailing slashes.
    paths: Vec<Vec<u8>>,
    include: Option<GlobSet>,
    exclude: Option<GlobSet>,
}

/// Decision about one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Skip the path and everything below it.
    No,
    /// Skip the path itself, but descend: an entry below it may be selected.
    Inside,
    /// Extract the path and everything below it that is not excluded.
    Yes,
}

impl Filter {
    pub(super) fn new(image: &Image, options: &Options) -> Result<Self> {
        let mut paths = Vec::new();
        for path in &options.paths {
            image.resolve(path)?;
            let parts: Vec<&[u8]> = path
                .split(|b| *b == b'/')
                .filter(|p| !p.is_empty() && *p != b".")
                .collect();
            if parts.contains(&&b".."[..]) {
                let shown = String::from_utf8_lossy(path);
                return Err(Error::usage(format_args!(
                    "{shown}: the path contains \"..\""
                )));
            }
            paths.push(parts.join(&b'/'));
        }
        // Selecting the root selects everything.
        if paths.iter().any(Vec::is_empty) {
            paths.clear();
        }
        Ok(Self {
            paths,
            include: globs(&options.include)?,
            exclude: globs(&options.exclude)?,
        })
    }

    /// Selected paths without leading and trailing slashes. That of the root is empty.
    pub(super) fn paths(&self) -> &[Vec<u8>] {
        static ROOT: [Vec<u8>; 1] = [Vec::new()];
        match self.paths.is_empty() {
            true => &ROOT,
            false => &self.paths,
        }
    }

    /// Returns true if everything is selected.
    pub(super) fn is_all(&self) -> bool {
        self.paths.is_empty() && self.include.is_none() && self.exclude.is_none()
    }

    /// Returns the verdict for `path`, given the verdict `above` for its directory.
    pub(super) fn ask(&self, path: &[u8], above: Verdict) -> Verdict {
        let as_path = OsStr::from_bytes(path);
        if self.exclude.as_ref().is_some_and(|g| g.is_match(as_path)) {
            return Verdict::No;
        }
        if above == Verdict::Yes {
            return Verdict::Yes;
        }
        let by_path = if self.paths.is_empty() {
            Verdict::Yes
        } else {
            let verdicts = self.paths.iter().map(|requested| relation(requested, path));
            verdicts.fold(Verdict::No, best)
        };
        match &self.include {
            Some(globs) if by_path == Verdict::Yes && !globs.is_match(as_path) => Verdict::Inside,
            _ => by_path,
        }
    }

    /// Returns the verdict for the root directory.
    pub(super) fn root(&self) -> Verdict {
        if self.paths.is_empty() && self.include.is_none() {
            Verdict::Yes
        } else {
            Verdict::Inside
        }
    }
}

fn relation(requested: &[u8], path: &[u8]) -> Verdict {
    let below = |a: &[u8], b: &[u8]| b.starts_with(a) && (b.len() == a.len() || b[a.len()] == b'/');
    if below(requested, path) {
        Verdict::Yes
    } else if below(path, requested) {
        Verdict::Inside
    } else {
        Verdict::No
    }
}

fn best(a: Verdict, b: Verdict) -> Verdict {
    match (a, b) {
        (Verdict::Yes, _) | (_, Verdict::Yes) => Verdict::Yes,
        (Verdict::Inside, _) | (_, Verdict::Inside) => Verdict::Inside,
        _ => Verdict::No,
    }
}

/// Compiles globs. `*` does not match a slash, `**` does. A glob without a slash is matched against the last component
/// of a path.
fn globs(patterns: &[String]) -> Result<Option<GlobSet>> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    let bad = |e: globset::Error| Error::usage(e);
    for pattern in patterns {
        let trimmed = pattern.trim_start_matches('/').trim_end_matches('/');
        let whole = if pattern.trim_end_matches('/').contains('/') {
            trimmed.to_owned()
        } else {
            format!("**/{trimmed}")
        };
        let glob = GlobBuilder::new(&whole).literal_separator(true).build();
        set.add(glob.map_err(bad)?);
    }
    Ok(Some(set.build().map_err(bad)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(paths: &[&str], include: &[&str], exclude: &[&str]) -> Filter {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        Filter {
            paths: paths.iter().map(|p| p.as_bytes().to_vec()).collect(),
            include: globs(&owned(include)).unwrap(),
            exclude: globs(&owned(exclude)).unwrap(),
        }
    }

    #[test]
    fn paths_take_what_is_below_and_lead_there() {
        let f = filter(&["usr/lib"], &[], &[]);
        assert_eq!(f.root(), Verdict::Inside);
        assert_eq!(f.ask(b"usr", Verdict::Inside), Verdict::Inside);
        assert_eq!(f.ask(b"usr/lib", Verdict::Inside), Verdict::Yes);
        assert_eq!(f.ask(b"usr/lib/a", Verdict::Yes), Verdict::Yes);
        assert_eq!(f.ask(b"usr/libexec", Verdict::Inside), Verdict::No);
        assert_eq!(f.ask(b"var", Verdict::Inside), Verdict::No);
    }

    #[test]
    fn globs_without_a_slash_are_about_the_last_name() {
        let f = filter(&[], &["*.so"], &["/usr/*/tmp"]);
        assert_eq!(f.ask(b"usr/lib", f.root()), Verdict::Inside);
        assert_eq!(f.ask(b"usr/lib/a.so", Verdict::Inside), Verdict::Yes);
        assert_eq!(f.ask(b"usr/x/tmp", Verdict::Inside), Verdict::No);
        assert_eq!(f.ask(b"usr/x/y/tmp", Verdict::Inside), Verdict::Inside);
    }
}
