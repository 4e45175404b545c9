//! Trait of a read-only filesystem, between the protocol and an implementation.

use crate::protocol::{Attr, MAX_PAGES, StatfsOut};
use rustix::io::Errno;

/// Result of an operation. The error number is passed to the calling process.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// Node number in the protocol: [`ROOT`](crate::protocol::ROOT), or the node of a [`LookupResult`]. Never 0.
pub type Node = u64;

/// Read-only filesystem. All threads of a session share one.
///
/// Names and attributes must not change during a mount: the kernel caches them forever.
pub trait Filesystem: Send + Sync {
    /// Looks up a name in a directory. The kernel caches the absence if this returns None.
    ///
    /// An NFS server may look up "." and "..", and "." even of a file.
    fn lookup(&self, dir: Node, name: &[u8]) -> Result<Option<LookupResult>>;

    /// Returns the attributes of a node.
    fn attr(&self, node: Node) -> Result<Attr>;

    /// Returns the target of a symlink.
    fn readlink(&self, node: Node) -> Result<Vec<u8>>;

    /// Maximum length of a read, at most [`MAX_PAGES`]. Each serving thread has memory for one. Unit: pages of 4 KiB.
    fn max_pages(&self) -> u16 {
        MAX_PAGES
    }

    /// Returns true if mounts of the filesystem may be idmapped (Linux 6.12): it shows owners of files, decides nothing by the user
    /// of a request, and is mounted with `default_permissions`, without which the kernel refuses the offer.
    fn allows_idmapped_mounts(&self) -> bool {
        false
    }

    /// Creates the state with which one more thread reads files.
    fn reader(&self) -> Box<dyn Reader>;

    /// Calls `each` with the entries of a directory, "." and ".." included, until it returns false. `offset` is 0 or
    /// the [`next`](Entry::next) of an entry.
    fn readdir(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()>;

    /// Lists entries with their attributes, except for "." and "..". The attributes are None if they cannot be read.
    fn readdir_plus(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>, Option<Attr>) -> bool,
    ) -> Result<()> {
        self.readdir(dir, offset, &mut |entry| {
            let attr = (!entry.is_dots())
                .then(|| self.attr(entry.node).ok())
                .flatten();
            each(entry, attr)
        })
    }

    /// Returns the value of an extended attribute.
    fn getxattr(&self, node: Node, name: &[u8]) -> Result<Vec<u8>>;

    /// Returns the names of all extended attributes, each followed by a NUL. `privileged` includes those that only
    /// an administrator may see.
    fn listxattr(&self, node: Node, privileged: bool) -> Result<Vec<u8>>;

    /// Returns the size of the filesystem.
    fn statfs(&self) -> Result<StatfsOut>;

    /// Returns the next offset with data or a hole, from `offset` on.
    fn seek(&self, node: Node, offset: u64, what: Seek) -> Result<u64>;

    /// Returns counters of the filesystem: name and value.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns the requests that its data caused: lines of JSON, at most `max` bytes.
    fn requests(&self, max: usize) -> String {
        let _ = max;
        String::new()
    }
}

/// Reads files for one thread.
pub trait Reader: Send {
    /// Reads `buf.len()` bytes at `offset`, fewer only at the end of the file.
    ///
    /// The bytes lie at the start of `buf`. With `lend` they may also lie in memory of the reader.
    fn read<'a>(
        &'a mut self,
        node: Node,
        offset: u64,
        buf: &'a mut [u8],
        lend: bool,
    ) -> Result<Parts<'a>>;

    /// Returns the range around the last read that is worth storing in the kernel's page cache.
    fn take_push(&mut self) -> Option<PushRange> {
        None
    }

    /// Reads a range that [`take_push`](Self::take_push) of this or another reader returned.
    ///
    /// Returns its offset in the file and its bytes: whole pages, or everything up to the end of the file.
    fn read_pushed<'a>(
        &mut self,
        rest: &PushRange,
        buf: &'a mut Vec<u8>,
    ) -> Result<(u64, &'a [u8])> {
        let _ = (rest, buf);
        Err(Errno::NOSYS)
    }
}

/// Range of a file that is pushed into the kernel's page cache without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushRange {
    /// Node of the file.
    pub node: Node,
    /// Start of the range. Unit: bytes.
    pub offset: u64,
    /// Length of the range. Unit: bytes.
    pub len: usize,
    /// Distance of the reads of a strided reader. Ranges of the same length follow at this distance. Unit: bytes.
    pub step: Option<u64>,
}

/// Content of a reply: bytes in order, in one buffer or in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts<'a> {
    /// Bytes in one buffer.
    One(&'a [u8]),
    /// Bytes in up to 1000 buffers, none of them empty.
    Many(Vec<&'a [u8]>),
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self::One(&[])
    }
}

impl Parts<'_> {
    /// Returns the total length. Unit: bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::One(bytes) => bytes.len(),
            Self::Many(runs) => runs.iter().map(|run| run.len()).sum(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Node that a look-up found, with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// Node number in the protocol.
    pub node: Node,
    /// Attributes of the node.
    pub attr: Attr,
}

/// Directory entry as listed by `readdir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name of 1 to 255 bytes.
    pub name: &'a [u8],
    /// Node that the entry refers to.
    pub node: Node,
    /// Inode number that `readdir` returns.
    pub ino: u64,
    /// File type as in `d_type`, 0 for unknown.
    pub kind: u32,
    /// Offset at which a listing continues after this entry.
    pub next: u64,
}

impl Entry<'_> {
    /// Returns true for "." and "..".
    pub fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Target of a search by [`Filesystem::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Stored data, as for SEEK_DATA.
    Data,
    /// Hole or the end of the file, as for SEEK_HOLE.
    Hole,
}
