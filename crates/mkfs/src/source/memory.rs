//! File trees in memory as sources.

use super::manifest::regular_file_size;
use super::member_path::normalise;
use super::{Content, Device, Entry, Kind, Meta};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File tree without a directory on disk: the paths of an image, described one by one.
///
/// Paths start at the root of the image, with or without a leading slash, and come in any order. A path that is added
/// again is replaced. Directories above a path that are not added have mode 0755, owner 0 and time 0. An entry starts
/// with owner 0, time 0, no extended attributes, and mode 0644, 0755 for a directory, or 0777 for a symbolic link.
///
/// ```
/// use tuff_mkfs::{MemoryTree, Options, Progress, Source, build_to};
///
/// let mut tree = MemoryTree::new();
/// tree.add_file("etc/hostname", "box\n")?.set_owner(0, 4).set_mode(0o640);
/// tree.add_symlink("etc/mtab", "../proc/self/mounts")?;
/// tree.add_dir("var/log")?.set_mtime(1_700_000_000, 0);
/// tree.add_hard_link("etc/name", "etc/hostname")?;
/// let mut image = Vec::new();
/// build_to(&[Source::Memory(tree)], &Options::default(), &mut image, &Progress::default())?;
/// assert_eq!(image[1024..1028], 0xe0f5_e1e2_u32.to_le_bytes());
/// # Ok::<(), tuff_mkfs::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryTree {
    entries: BTreeMap<Vec<u8>, MemoryEntry>,
}

/// Entry of a [`MemoryTree`], with methods that set its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryEntry(Entry);

impl MemoryTree {
    /// Creates an empty tree: an image of it has a root directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a regular file with its content.
    ///
    /// # Errors
    /// `Source` for a path that is empty, names the root, or contains `..` or a NUL.
    pub fn add_file(
        &mut self,
        path: impl AsRef<[u8]>,
        content: impl Into<Vec<u8>>,
    ) -> Result<&mut MemoryEntry> {
        let content: Arc<[u8]> = content.into().into();
        let size = content.len() as u64;
        let content = match size {
            0 => Content::None,
            _ => Content::Bytes(content),
        };
        self.add(path.as_ref(), Kind::File { size }, content)
    }

    /// Adds a regular file whose content is that of a file of the host. The host's file is read during the build, and
    /// its attributes are not used.
    ///
    /// # Errors
    /// As for [`add_file`](Self::add_file), and `Io` if the host's file is not regular or cannot be examined.
    pub fn add_host_file(
        &mut self,
        path: impl AsRef<[u8]>,
        host_path: impl Into<PathBuf>,
    ) -> Result<&mut MemoryEntry> {
        let host_path: PathBuf = host_path.into();
        let size = size_of(&host_path)?;
        let content = match size {
            0 => Content::None,
            _ => Content::Path(host_path),
        };
        self.add(path.as_ref(), Kind::File { size }, content)
    }

    /// Adds a directory, or the root for the path `/`.
    ///
    /// # Errors
    /// `Source` for a path that is empty or contains `..` or a NUL.
    pub fn add_dir(&mut self, path: impl AsRef<[u8]>) -> Result<&mut MemoryEntry> {
        self.add(path.as_ref(), Kind::Dir, Content::None)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// As for [`add_file`](Self::add_file), and for a target that is empty or contains a NUL.
    pub fn add_symlink(
        &mut self,
        path: impl AsRef<[u8]>,
        target: impl Into<Vec<u8>>,
    ) -> Result<&mut MemoryEntry> {
        let target = target.into();
        if target.is_empty() || target.contains(&0) {
            return Err(Error::source(
                "the target of a symlink is empty or contains a NUL",
            ));
        }
        self.add(path.as_ref(), Kind::Symlink(target), Content::None)
    }

    /// Adds another name of the file at `target`, which may be added later. Attributes of the entry are not used.
    ///
    /// # Errors
    /// As for [`add_file`](Self::add_file). The build fails if nothing, or a directory, is at `target`.
    pub fn add_hard_link(
        &mut self,
        path: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
    ) -> Result<&mut MemoryEntry> {
        let target = normalise(target.as_ref(), "target of a hard link").map_err(Error::from)?;
        self.add(path.as_ref(), Kind::Hardlink(target), Content::None)
    }

    /// Adds a device, named pipe or socket.
    ///
    /// # Errors
    /// As for [`add_file`](Self::add_file). `Usage` for another kind, and for a major number of more than 12 bits or a
    /// minor number of more than 20 bits.
    pub fn add_special(&mut self, path: impl AsRef<[u8]>, kind: Kind) -> Result<&mut MemoryEntry> {
        match &kind {
            Kind::Char(device) | Kind::Block(device) => {
                let (major, minor) = (device.major, device.minor);
                if Device::new(major.into(), minor.into()).is_none() {
                    return Err(Error::usage(format_args!(
                        "device {major}:{minor}: expected a major number below 4096 and a minor below 1048576"
                    )));
                }
            }
            Kind::Fifo | Kind::Socket => {}
            Kind::File { .. } | Kind::Dir | Kind::Symlink(_) | Kind::Hardlink(_) => {
                return Err(Error::usage(
                    "a special file is a device, a named pipe or a socket",
                ));
            }
        }
        self.add(path.as_ref(), kind, Content::None)
    }

    /// Returns the entry at `path`, to change its attributes. `None` if none was added.
    pub fn entry(&mut self, path: impl AsRef<[u8]>) -> Option<&mut MemoryEntry> {
        let path = normalise(path.as_ref(), "path").ok()?;
        self.entries.get_mut(&path)
    }

    /// Returns the number of entries that were added.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if no entry was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Lists the entries in the order of their paths.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().map(|entry| &entry.0)
    }

    fn add(&mut self, path: &[u8], kind: Kind, content: Content) -> Result<&mut MemoryEntry> {
        let path = normalise(path, "path").map_err(Error::from)?;
        if path.is_empty() && kind != Kind::Dir {
            return Err(Error::source("the root is a directory, nothing else"));
        }
        let meta = Meta {
            mode: match kind {
                Kind::Dir => 0o755,
                Kind::Symlink(_) => 0o777,
                _ => 0o644,
            },
            uid: 0,
            gid: 0,
            mtime: 0,
            mtime_nsec: 0,
        };
        let entry = MemoryEntry(Entry {
            path: path.clone(),
            kind,
            meta,
            xattrs: Vec::new(),
            content,
        });
        match self.entries.entry(path) {
            Place::Vacant(place) => Ok(place.insert(entry)),
            Place::Occupied(mut place) => {
                place.insert(entry);
                Ok(place.into_mut())
            }
        }
    }
}

impl MemoryEntry {
    /// Sets permission, set-id and sticky bits. Other bits of `mode` are ignored.
    pub fn set_mode(&mut self, mode: u16) -> &mut Self {
        self.0.meta.mode = mode & 0o7777;
        self
    }

    /// Sets the owner and the group.
    pub fn set_owner(&mut self, uid: u32, gid: u32) -> &mut Self {
        (self.0.meta.uid, self.0.meta.gid) = (uid, gid);
        self
    }

    /// Sets the modification time: seconds since 1970, and nanoseconds, at most 999,999,999.
    pub fn set_mtime(&mut self, seconds: i64, nanoseconds: u32) -> &mut Self {
        let nanoseconds = nanoseconds.min(999_999_999);
        (self.0.meta.mtime, self.0.meta.mtime_nsec) = (seconds, nanoseconds);
        self
    }

    /// Sets an extended attribute. Its full name is, for example, `user.comment`.
    pub fn set_xattr(&mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> &mut Self {
        let (name, value) = (name.into(), value.into());
        let xattrs = &mut self.0.xattrs;
        match xattrs.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(i) => xattrs[i].1 = value,
            Err(i) => xattrs.insert(i, (name, value)),
        }
        self
    }
}

/// Size of a regular file of the host. Unit: bytes.
fn size_of(path: &Path) -> Result<u64> {
    regular_file_size(path).map_err(|e| Error::io(path.display(), "cannot examine", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_no_image_can_hold_are_refused() {
        let mut tree = MemoryTree::new();
        for path in ["", "/", "..", "a/../b", "a\0"] {
            assert!(tree.add_file(path, "").is_err(), "{path:?}");
        }
        assert!(tree.add_dir("/").is_ok());
        assert!(tree.add_symlink("link", "").is_err());
        let device = Device {
            major: 4096,
            minor: 0,
        };
        assert!(tree.add_special("null", Kind::Char(device)).is_err());
        assert!(tree.add_special("dir", Kind::Dir).is_err());
        assert_eq!(tree.len(), 1);
    }

    #[test]
    fn a_path_that_is_added_again_is_replaced() {
        let mut tree = MemoryTree::new();
        tree.add_file("/a/b", "one").unwrap().set_mode(0o600);
        tree.add_file("a//b/", "two").unwrap();
        let entries: Vec<&Entry> = tree.entries().collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].content, Content::Bytes(b"two"[..].into()));
        assert_eq!(entries[0].meta.mode, 0o644);
    }
}
