//! Content of a folder: what each path is.

use crate::{At, Result};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Content of a path: a type with its bytes or target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Directory,
    /// Length and digest of a regular file.
    File(u64, blake3::Hash),
    Link(PathBuf),
    /// Mode of anything else.
    Other(u32),
}

/// Paths below a folder, relative to it.
pub(super) type Snapshot = BTreeMap<PathBuf, Content>;

/// Reads a folder without the names in `except`, which are directly below it.
pub(super) fn read(folder: &Path, except: &[&str]) -> Result<Snapshot> {
    let mut snapshot = Snapshot::new();
    list(folder, Path::new(""), &mut snapshot)?;
    snapshot.retain(|path, _| !except.iter().any(|name| path.starts_with(name)));
    Ok(snapshot)
}

fn list(folder: &Path, below: &Path, snapshot: &mut Snapshot) -> Result<()> {
    let full = folder.join(below);
    for entry in fs::read_dir(&full).at("list", &full)? {
        let path = below.join(entry.at("list", &full)?.file_name());
        let full = folder.join(&path);
        let metadata = fs::symlink_metadata(&full).at("stat", &full)?;
        let kind = metadata.file_type();
        let content = if kind.is_dir() {
            list(folder, &path, snapshot)?;
            Content::Directory
        } else if kind.is_symlink() {
            Content::Link(fs::read_link(&full).at("read", &full)?)
        } else if kind.is_file() {
            let bytes = fs::read(&full).at("read", &full)?;
            Content::File(bytes.len() as u64, blake3::hash(&bytes))
        } else {
            Content::Other(metadata.mode())
        };
        snapshot.insert(path, content);
    }
    Ok(())
}

/// Returns the first path that differs, with both contents.
pub(super) fn difference(found: &Snapshot, expected: &Snapshot) -> Option<String> {
    let mut paths = found.keys().chain(expected.keys());
    let path = paths.find(|path| found.get(*path) != expected.get(*path))?;
    let (found, expected) = (found.get(path), expected.get(path));
    Some(format!(
        "{}: found {found:?}, expected {expected:?}",
        path.display()
    ))
}
