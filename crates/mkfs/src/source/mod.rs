//! Where trees come from: directories, tar streams, archives of cpio, manifests, images.
//!
//! A source turns its input into [`Entry`] values, one per path, in any order. What it means that two sources name the
//! same path is decided in the tree, not here.

pub mod compressed;
pub(crate) mod container;
pub mod cpio;
pub mod dir;
pub mod error;
pub(crate) mod image;
pub mod manifest;
mod member_path;
pub(crate) mod spec;
pub mod tar;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

/// One path with everything that an image stores of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Path below the root: components joined by `/`, no leading or trailing slash, no `.` or `..`. Empty: the root itself.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Owner, times and the rest. Ignored for [`Kind::Hardlink`].
    pub meta: Meta,
    /// Extended attributes, full names. Sorted by name; no name twice.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The bytes of a regular file.
    pub content: Content,
}

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file of so many bytes.
    File {
        /// Unit: bytes.
        size: u64,
    },
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A character device.
    Char(Device),
    /// A block device.
    Block(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// Another name of the entry at this path (same form as [`Entry::path`]), which came earlier; in a manifest, anywhere.
    Hardlink(Vec<u8>),
}

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// 12 bits in EROFS.
    pub major: u32,
    /// 20 bits in EROFS.
    pub minor: u32,
}

impl Device {
    /// A number that EROFS can hold.
    pub(super) fn new(major: u64, minor: u64) -> Option<Self> {
        let fits = |n: u64, bits: u32| u32::try_from(n).ok().filter(|n| n >> bits == 0);
        Some(Self {
            major: fits(major, 12)?,
            minor: fits(minor, 20)?,
        })
    }
}

/// Attributes that every inode has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits with set-id and sticky bits, 0..=0o7777. The type is in [`Kind`].
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time. Unit: seconds since 1970, may be negative.
    pub mtime: i64,
    /// Nanoseconds of the modification time, below 10^9.
    pub mtime_nsec: u32,
}

/// Where the bytes of a regular file are.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Not a regular file, or an empty one.
    None,
    /// The bytes themselves.
    Bytes(Arc<[u8]>),
    /// A file of the host.
    Path(PathBuf),
    /// A file of the host with holes.
    SparsePath(Arc<SparsePath>),
    /// The file at the entry's own path below a source directory. Used by the directory walk.
    InSource,
    /// A run of bytes of the source's own file (an uncompressed tar that can be read at any position), or a file of an image.
    Range {
        /// Byte position in the tar file, or the number of the inode in the image.
        offset: u64,
    },
    /// A run of bytes of the file that the source's data was copied to.
    Copied {
        /// Byte position there.
        offset: u64,
    },
    /// Like `Range` for a file with holes: the runs that hold data, ascending; everything between them is zero.
    Sparse(Arc<[DataRun]>),
    /// A file of an image, with holes.
    SparseInode {
        /// Its number there.
        nid: u64,
        /// As for `Sparse`.
        runs: Arc<[DataRun]>,
    },
    /// The bytes come next from the stream that the entry came from, and only now.
    Stream,
    /// Like `Stream`, for a file with holes: the stream gives the runs back to back.
    SparseStream(Arc<[DataRun]>),
}

impl Content {
    /// The same in a source's file that has so many bytes in front of it.
    pub(super) fn behind(self, start: u64) -> Self {
        match self {
            _ if start == 0 => self,
            Self::Range { offset } => Self::Range {
                offset: offset + start,
            },
            Self::Sparse(runs) => {
                let moved = |run: &DataRun| DataRun {
                    source_offset: run.source_offset + start,
                    ..*run
                };
                Self::Sparse(runs.iter().map(moved).collect())
            }
            other => other,
        }
    }
}

/// A file of the host with holes.
#[derive(Clone, Debug, PartialEq)]
pub struct SparsePath {
    /// Where it is.
    pub path: PathBuf,
    /// The runs that hold data, ascending; everything between them is zero.
    pub runs: Arc<[DataRun]>,
}

/// One run of data of a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRun {
    /// Position in the file. Unit: bytes.
    pub file_offset: u64,
    /// Position in the tar file, for [`Content::Sparse`]; 0 for a stream or an image.
    pub source_offset: u64,
    /// Unit: bytes.
    pub len: u64,
}
