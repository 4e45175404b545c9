//! Paths and contents of the files of an image, as its own programs would see them.
//!
//! Everything that is read here comes from the author of the image: links, paths and contents are followed and read within limits.

use crate::pack::contents::Contents;
use crate::tree::{InodeId, NodeKind, ROOT, Tree};
use crate::{Error, Result};
use std::cell::Cell;
use tuff_format::inode::FileType;

/// Symbolic links that one path may lead through, as in Linux.
const LINKS_MAX: usize = 40;
/// Longest path, as in Linux. Unit: bytes.
const PATH_MAX: usize = 4096;
/// Content that is read for all files together. Unit: bytes.
const READ_MAX: u64 = 256 << 20;
/// Names that are looked up for all paths together.
const STEPS_MAX: u64 = 8 << 20;

/// Inode of the image with the path that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) inode: InodeId,
    /// Path without symbolic links, and without `/` at its start.
    pub(super) path: Vec<u8>,
}

/// Finished tree with its contents.
pub(super) struct Files<'a> {
    pub(super) tree: &'a Tree,
    contents: &'a Contents,
    /// Content that may still be read. Unit: bytes.
    left: Cell<u64>,
    /// Names that may still be looked up.
    steps: Cell<u64>,
    /// A content was needed that cannot be read twice.
    unreadable: Cell<bool>,
}

impl<'a> Files<'a> {
    pub(super) fn new(tree: &'a Tree, contents: &'a Contents) -> Self {
        Self {
            tree,
            contents,
            left: Cell::new(READ_MAX),
            steps: Cell::new(STEPS_MAX),
            unreadable: Cell::new(false),
        }
    }

    /// Returns true if a content was needed that cannot be read twice.
    pub(super) fn has_unreadable(&self) -> bool {
        self.unreadable.get()
    }

    /// Finds the inode at a path. Symbolic links are followed within the root of the image; paths are relative to it.
    pub(super) fn find(&self, path: &[u8]) -> Option<Found> {
        let mut links = 0;
        // Components that are still to follow, the next one last.
        let mut pending = components(path)?;
        let mut at: Vec<(InodeId, Vec<u8>)> = Vec::new();
        while let Some(name) = pending.pop() {
            let dir = at.last().map_or(ROOT, |(inode, _)| *inode);
            if name == b".." {
                at.pop();
                continue;
            }
            let inode = self.child(dir, &name)?;
            let NodeKind::Symlink(target) = self.tree.kind(inode) else {
                at.push((inode, name));
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            if target.first() == Some(&b'/') {
                at.clear();
            }
            pending.extend(components(target)?);
        }
        let inode = at.last().map_or(ROOT, |(inode, _)| *inode);
        let names: Vec<&[u8]> = at.iter().map(|(_, name)| &name[..]).collect();
        Some(Found {
            inode,
            path: names.join(&b'/'),
        })
    }

    /// Finds the regular file at a path.
    pub(super) fn file(&self, path: &[u8]) -> Option<Found> {
        let found = self.find(path)?;
        self.is_file(found.inode).then_some(found)
    }

    /// Finds the directory at a path.
    pub(super) fn dir(&self, path: &[u8]) -> Option<Found> {
        let found = self.find(path)?;
        (self.tree.file_type(found.inode) == FileType::Dir).then_some(found)
    }

    pub(super) fn is_file(&self, inode: InodeId) -> bool {
        self.tree.file_type(inode) == FileType::File
    }

    /// Returns true if anybody may execute the file.
    pub(super) fn is_executable(&self, inode: InodeId) -> bool {
        self.is_file(inode) && self.tree.meta(inode).mode & 0o111 != 0
    }

    /// Finds a name in a directory. Symbolic links are not followed.
    pub(super) fn child(&self, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        self.steps.set(self.steps.get().checked_sub(1)?);
        let children = self.tree.children(dir);
        let at = children.binary_search_by(|d| self.tree.name(d).cmp(name));
        Some(children.get(at.ok()?)?.inode)
    }

    /// Reads at most `len` bytes from byte `offset` of a file: fewer at its end, and none where the limit of all reads is
    /// reached.
    pub(super) fn read(&self, inode: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        let rest = self.tree.size(inode).saturating_sub(offset);
        let len = rest.min(len as u64);
        if len == 0 || len > self.left.get() {
            return Ok(Vec::new());
        }
        self.left.set(self.left.get() - len);
        let content = match self.contents.get(self.tree, inode) {
            Ok(Some(content)) => content,
            Ok(None) | Err(Error::Usage(..)) => {
                self.unreadable.set(true);
                return Ok(Vec::new());
            }
            Err(e) => return Err(e),
        };
        // Fits: at most `len`.
        let mut bytes = vec![0; len as usize];
        content.open()?.read_exact(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Reads the first bytes of a file.
    pub(super) fn head(&self, inode: InodeId, len: usize) -> Result<Vec<u8>> {
        self.read(inode, 0, len)
    }

    /// Finds the inodes that a pattern names, in the order of their names. A `*` stands for any characters of one name.
    pub(super) fn matches(&self, pattern: &[u8], max: usize) -> Vec<Found> {
        let mut found = vec![Found {
            inode: ROOT,
            path: Vec::new(),
        }];
        for part in pattern.split(|byte| *byte == b'/') {
            if part.is_empty() || part == b"." {
                continue;
            }
            let mut next = Vec::new();
            for dir in &found {
                if !part.contains(&b'*') {
                    next.extend(self.find(&join(&dir.path, part)));
                    continue;
                }
                let children = self.tree.children(dir.inode);
                let seen = children.len().min(self.steps.get() as usize);
                self.steps.set(self.steps.get() - seen as u64);
                for entry in children.iter().take(seen) {
                    let name = self.tree.name(entry);
                    if wildcard(part, name) {
                        next.extend(self.find(&join(&dir.path, name)));
                    }
                    if next.len() >= max {
                        break;
                    }
                }
            }
            next.truncate(max);
            found = next;
        }
        found
    }
}

/// Components of a path, the first one last. `None` for a path that is too long.
fn components(path: &[u8]) -> Option<Vec<Vec<u8>>> {
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !matches!(name, [] | [b'.']));
    (path.len() <= PATH_MAX).then(|| names.rev().map(<[u8]>::to_vec).collect())
}

/// Path of a name in a directory.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, name].join(&b'/')
}

/// Path relative to a directory, unless it is absolute.
pub(super) fn within(dir: &[u8], path: &[u8]) -> Vec<u8> {
    match path.first() {
        Some(b'/') => path.to_vec(),
        _ => join(dir, path),
    }
}

/// Directory of a path; empty if the path has none.
pub(super) fn parent(path: &[u8]) -> &[u8] {
    let at = path.iter().rposition(|byte| *byte == b'/');
    path.get(..at.unwrap_or(0)).unwrap_or_default()
}

/// Last component of a path.
pub(super) fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns true if a pattern matches a whole name. A `*` stands for any characters.
pub(super) fn wildcard(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Place after the last `*`, and the place in the name that it was tried at.
    let mut star = None;
    loop {
        match (pattern.get(p), name.get(n)) {
            (Some(b'*'), _) => {
                p += 1;
                star = Some((p, n));
            }
            (Some(a), Some(b)) if a == b => (p, n) = (p + 1, n + 1),
            (None, None) => return true,
            _ => {
                let Some((after, tried)) = star.filter(|(_, tried)| *tried < name.len()) else {
                    return false;
                };
                star = Some((after, tried + 1));
                (p, n) = (after, tried + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Image;
    use super::*;

    #[test]
    fn links_are_followed_within_the_image_and_circles_end() {
        let mut image = Image::default();
        image.file("usr/lib/x", b"1");
        image.link("lib", "usr/lib");
        image.link("a", "/../../lib/./y");
        image.link("usr/lib/y", "x");
        image.link("up", "../../../usr");
        image.link("one", "two");
        image.link("two", "one");
        image.link("self", "self/self");
        image.with(|files| {
            for path in ["usr/lib/x", "/lib/y", "a", "./lib//x", "up/lib/../lib/x"] {
                let found = files.file(path.as_bytes());
                assert_eq!(found.unwrap().path, b"usr/lib/x", "{path}");
            }
            for path in ["one", "self", "lib/none", "usr/lib/x/y"] {
                assert_eq!(files.find(path.as_bytes()), None, "{path}");
            }
            let long = [b'/'].repeat(PATH_MAX + 1);
            assert_eq!(files.find(&long), None);
            assert_eq!(files.find(b"/").unwrap().path, b"");
            let all = files.matches(b"*/lib/*", 9);
            let all: Vec<_> = all.into_iter().map(|found| found.path).collect();
            assert_eq!(all, vec![b"usr/lib/x"; 4]);
        });
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, matches) in [
            ("python3.*", "python3.11", true),
            ("python3.*", "python3", false),
            ("*", "", true),
            ("*.so*", "libc.so.6", true),
            ("*.so", "libc.so.6", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("**a", "bba", true),
            ("x", "x", true),
            ("", "x", false),
        ] {
            let is = wildcard(pattern.as_bytes(), name.as_bytes());
            assert_eq!(is, matches, "{pattern} {name}");
        }
    }
}
