//! What a mount shows: the trait between the protocol and a filesystem.

use crate::protocol::{Attr, StatfsOut};
use rustix::io::Errno;

/// Result of everything a filesystem is asked: an error is what the asking program sees.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// A node as the kernel names it: [`ROOT`](crate::protocol::ROOT), or what a filesystem says in [`LookupResult`]. Never 0.
pub type Node = u64;

/// A read-only filesystem that can be mounted. All threads of a transport share one.
///
/// Names and attributes must not change while it is mounted: the kernel is told to keep them for ever.
pub trait Filesystem: Send + Sync {
    /// The node behind a name. `None`: there is none, which the kernel remembers.
    ///
    /// "." and ".." may be asked for, by those who export the mount to others; "." even of a file.
    fn lookup(&self, dir: Node, name: &[u8]) -> Result<Option<LookupResult>>;

    /// Attributes of a node.
    fn attr(&self, node: Node) -> Result<Attr>;

    /// Target of a symlink.
    fn readlink(&self, node: Node) -> Result<Vec<u8>>;

    /// What one more thread reads files with.
    fn reader(&self) -> Box<dyn Reader>;

    /// Calls `each` with the entries of a directory from `offset` on (0, or an entry's [`next`](Entry::next)), "." and
    /// ".." among them, until it returns false.
    fn readdir(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()>;

    /// As [`readdir`](Self::readdir), with the attributes of each entry, which "." and ".." do not need; `None`: they
    /// cannot be read.
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

    /// The value of an extended attribute.
    fn getxattr(&self, node: Node, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of all extended attributes, each with a NUL behind it. `privileged`: also those that only an
    /// administrator may see.
    fn listxattr(&self, node: Node, privileged: bool) -> Result<Vec<u8>>;

    /// Size of it all.
    fn statfs(&self) -> Result<StatfsOut>;

    /// Where the next data or hole is from `offset` on.
    fn seek(&self, node: Node, offset: u64, what: Seek) -> Result<u64>;

    /// Lines for the counters: name and value.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Reads files for one thread.
pub trait Reader: Send {
    /// As many bytes at `offset` as `buf` is long, fewer only at the end of the file; at the start of `buf`, or, if the
    /// reader may `lend`, in runs that it holds anyway.
    fn read<'a>(
        &'a mut self,
        node: Node,
        offset: u64,
        buf: &'a mut [u8],
        lend: bool,
    ) -> Result<Parts<'a>>;

    /// The part of a file that the last answer is a piece of, if the kernel should have all of it.
    fn take_push(&mut self) -> Option<PushRange> {
        None
    }

    /// Reads what [`rest`](Self::rest) of this reader, or of another, said: where it starts in the file, and its bytes,
    /// which are whole pages, or all up to the end of the file.
    fn read_pushed<'a>(
        &mut self,
        rest: &PushRange,
        buf: &'a mut Vec<u8>,
    ) -> Result<(u64, &'a [u8])> {
        let _ = (rest, buf);
        Err(Errno::NOSYS)
    }
}

/// A part of a file that the kernel did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushRange {
    /// The file.
    pub node: Node,
    /// Unit: bytes.
    pub offset: u64,
    /// Unit: bytes.
    pub len: usize,
    /// It was asked for; what will be, by a reader who goes ahead in steps of so many bytes, are parts as long as this
    /// one further on. Unit: bytes.
    pub step: Option<u64>,
}

/// Bytes in order, wherever they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts<'a> {
    /// In one place.
    One(&'a [u8]),
    /// In several, none of them empty, at most 1000.
    Many(Vec<&'a [u8]>),
}

impl Default for Parts<'_> {
    fn default() -> Self {
        Self::One(&[])
    }
}

impl Parts<'_> {
    /// Unit: bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::One(bytes) => bytes.len(),
            Self::Many(runs) => runs.iter().map(|run| run.len()).sum(),
        }
    }

    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A node that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// The node.
    pub node: Node,
    /// Its attributes.
    pub attr: Attr,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// 1 to 255 bytes.
    pub name: &'a [u8],
    /// The node it leads to.
    pub node: Node,
    /// Number that `readdir` shows.
    pub ino: u64,
    /// Type as in `d_type`, 0 for unknown.
    pub kind: u32,
    /// Where a listing goes on behind it.
    pub next: u64,
}

impl Entry<'_> {
    /// True for "." and "..".
    pub fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// What [`Filesystem::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// A byte that is stored.
    Data,
    /// A byte that is not, or the end.
    Hole,
}
