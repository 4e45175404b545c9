//! Resolves paths and patterns on the command line to entries of an image.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use tuff_erofs::read::Image;
use tuff_erofs::walk::{Entry, Walk};
use tuff_erofs::{Error, Remedy, Result};

/// Match of one argument.
pub(crate) enum Selected {
    /// Entry with exactly this path.
    Path(Entry),
    /// Entries that match a pattern, at least one, in tree order.
    Pattern(Vec<Entry>),
}

/// Finds the entry with the path `argument`, or all entries that match it as a pattern.
///
/// # Errors
///
/// `Usage` if nothing matches.
pub(crate) fn select(image: &Image, argument: &OsStr) -> Result<Selected> {
    let path = normal(argument.as_bytes());
    match image.resolve(&path) {
        Ok(inode) => return Ok(Selected::Path(Entry { path, inode })),
        Err(Error::Usage(_)) if is_pattern(&path) => {}
        Err(e) => return Err(e),
    }
    let set = pattern(argument, &path)?;
    let mut found = Vec::new();
    for entry in Walk::root(image)? {
        let entry = entry?;
        if set.is_match(OsStr::from_bytes(&entry.path)) {
            found.push(entry);
        }
    }
    if found.is_empty() {
        return Err(Error::usage(format_args!(
            "nothing in the image matches '{}'",
            argument.display()
        ))
        .with_remedy(Remedy::ExistingPath));
    }
    Ok(Selected::Pattern(found))
}

/// Resolves all arguments to trees without duplicates; to the whole image if there are none.
pub(crate) fn select_trees(image: &Image, arguments: &[OsString]) -> Result<Vec<Entry>> {
    if arguments.is_empty() {
        let inode = image.root()?;
        return Ok(vec![Entry {
            path: Vec::new(),
            inode,
        }]);
    }
    let mut all = Vec::new();
    for argument in arguments {
        match select(image, argument)? {
            Selected::Path(entry) => all.push(entry),
            Selected::Pattern(entries) => all.extend(entries),
        }
    }
    // Tree order: a slash sorts before every other byte.
    let key = |e: &Entry| {
        e.path
            .split(|b| *b == b'/')
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    all.sort_by_cached_key(key);
    let mut kept: Vec<Entry> = Vec::new();
    for entry in all {
        if !kept.last().is_some_and(|k| is_below(&k.path, &entry.path)) {
            kept.push(entry);
        }
    }
    Ok(kept)
}

/// Returns true if `path` is `tree` or lies below it.
pub(crate) fn is_below(tree: &[u8], path: &[u8]) -> bool {
    if tree.is_empty() || tree == path {
        return true;
    }
    path.strip_prefix(tree)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Normalizes a path: no slashes at its ends, no "." and no empty components.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|b| *b == b'/');
    let parts: Vec<&[u8]> = parts.filter(|p| !p.is_empty() && *p != b".").collect();
    parts.join(&b'/')
}

fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|b| matches!(b, b'*' | b'?' | b'[' | b'{'))
}

fn pattern(argument: &OsStr, path: &[u8]) -> Result<GlobSet> {
    let wrong = |what: &dyn std::fmt::Display| {
        Error::usage(format_args!("pattern '{}': {what}", argument.display()))
    };
    let text = OsString::from_vec(path.to_vec());
    let text = text.to_str().ok_or_else(|| wrong(&"patterns are UTF-8"))?;
    // Like all patterns of this program, one without a slash matches names anywhere.
    let anywhere = !argument.as_bytes().contains(&b'/');
    let text = if anywhere {
        format!("**/{text}")
    } else {
        text.to_owned()
    };
    let glob = GlobBuilder::new(&text)
        .literal_separator(true)
        .backslash_escape(true)
        .build();
    let glob = glob.map_err(|e| wrong(e.kind()))?;
    GlobSetBuilder::new()
        .add(glob)
        .build()
        .map_err(|e| wrong(&e))
}

/// Returns the entry at the path `argument`. Symlinks in the middle of the path are followed, one at its end only if
/// `follow` is set.
///
/// # Errors
///
/// `Usage` if there is no such path.
pub(crate) fn entry(image: &Image, argument: &OsStr, follow: bool) -> Result<Entry> {
    let path = normal(argument.as_bytes());
    if follow {
        let inode = image.resolve_following(&path)?;
        return Ok(Entry { path, inode });
    }
    let inode = match image.resolve(&path) {
        Err(Error::Usage(_)) => {
            let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
            let dir = image.resolve_following(&path[..cut])?;
            let name = path[cut..].strip_prefix(b"/").unwrap_or(&path[cut..]);
            let found = if dir.is_dir() {
                image.lookup(&dir, name)?
            } else {
                None
            };
            match found {
                Some(nid) => image.inode(nid)?,
                // Repeated for its error, which names the missing component.
                None => image.resolve(&path)?,
            }
        }
        other => other?,
    };
    Ok(Entry { path, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_form() {
        assert_eq!(normal(b"/a//b/./c/"), b"a/b/c");
        assert_eq!(normal(b"/"), b"");
        assert!(is_below(b"", b"a") && is_below(b"a", b"a/b") && !is_below(b"a", b"ab"));
    }
}
