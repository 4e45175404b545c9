//! Paths and patterns on the command line: which entries of an image they mean.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use tuff_erofs::read::Image;
use tuff_erofs::walk::{Entry, Walk};
use tuff_erofs::{Error, Result};

/// What one argument means.
pub(crate) enum Selected {
    /// One entry, named exactly.
    Path(Entry),
    /// The entries that match a pattern, at least one, in tree order.
    Pattern(Vec<Entry>),
}

/// Finds what `argument` means: the path of that name, or else, if it looks like a pattern, all that match it.
///
/// # Errors
/// `Usage` if there is no such thing.
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
        )));
    }
    Ok(Selected::Pattern(found))
}

/// Everything that the arguments mean, each with all below it, as one list without anything twice; the whole image if
/// there are none.
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
    // In tree order: a slash sorts before every other byte.
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

/// True if `path` is `tree` or something below it.
fn is_below(tree: &[u8], path: &[u8]) -> bool {
    if tree.is_empty() || tree == path {
        return true;
    }
    path.strip_prefix(tree)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// A path without slashes at its ends, without "." and empty parts.
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
    // Without a slash it is about names anywhere, as everywhere in this program.
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

/// The entry that `argument` names. Symlinks on the way are followed, one at its end only if `follow` says so.
///
/// # Errors
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
                // For its message, which names the part that is missing.
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
