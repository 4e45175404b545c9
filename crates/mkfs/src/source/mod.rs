//! Sources of a file tree: directories, tar streams, cpio archives, manifests, images and trees in memory.
//!
//! A source turns its input into [`Entry`] values, one per path, in any order. The tree decides how
//! entries of the same path combine.

pub mod compressed;
pub(crate) mod container;
pub mod cpio;
pub mod dir;
pub mod error;
pub(crate) mod expansion;
pub(crate) mod file;
pub(crate) mod image;
pub(crate) mod input_image;
pub(crate) mod left_out;
pub mod lists;
pub mod manifest;
mod member_path;
pub(crate) mod memory;
pub(crate) mod placed;
pub(crate) mod readahead;
pub(crate) mod spec;
pub(crate) mod squashfs;
pub(crate) mod stream;
pub(crate) mod tally;
pub mod tar;
mod text;

use std::path::PathBuf;
use std::sync::Arc;

/// One path with everything that an image stores about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path below the root: components joined by `/`, without leading or trailing slash, `.` or
    /// `..`. Empty for the root itself.
    pub path: Vec<u8>,
    /// Type of the entry.
    pub kind: Kind,
    /// Mode, owner and modification time. Ignored for [`Kind::Hardlink`].
    pub meta: Meta,
    /// Extended attributes with full names, sorted by name without duplicates.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Content of a regular file.
    pub content: Content,
}

/// Type of an entry, with the data of that type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file with its size.
    File {
        /// File size. Unit: bytes.
        size: u64,
    },
    /// Directory, whose entries follow separately.
    Dir,
    /// Symbolic link with its target.
    Symlink(Vec<u8>),
    /// Character device with its number.
    Char(Device),
    /// Block device with its number.
    Block(Device),
    /// Named pipe, also called FIFO.
    Fifo,
    /// Socket in the Unix domain.
    Socket,
    /// Hard link to the entry at this path, in the form of [`Entry::path`]. The entry comes
    /// earlier, except in a manifest, where it may be anywhere.
    Hardlink(Vec<u8>),
}

/// Device number of a special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Major number, 12 bits in EROFS.
    pub major: u32,
    /// Minor number, 20 bits in EROFS.
    pub minor: u32,
}

impl Device {
    /// Returns a device number, or `None` if EROFS cannot hold it.
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
    /// Permission, set-id and sticky bits, 0..=0o7777. The type is in [`Kind`].
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the owner.
    pub gid: u32,
    /// Modification time. Unit: seconds since 1970, may be negative.
    pub mtime: i64,
    /// Nanoseconds of the modification time, below 10^9.
    pub mtime_nsec: u32,
}

/// Location of a regular file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// No content: an empty file, or not a regular file.
    None,
    /// Content that is in memory.
    Bytes(Arc<[u8]>),
    /// File of the host.
    Path(PathBuf),
    /// File at the entry's own path below a source directory. Used by the directory walk.
    InSource,
    /// Range of the source's own file, an uncompressed tar that can be read at any position; or a
    /// file of an image.
    Range {
        /// Byte position in the tar file, or the inode in the image: its nid, or its reference in SquashFS.
        offset: u64,
    },
    /// Range of the file into which the source's data was copied.
    Copied {
        /// Byte position in the copy.
        offset: u64,
    },
    /// Next bytes of the stream that the entry came from; they must be read before the next entry.
    Stream,
    /// File with holes. A tar stores only its data runs, back to back.
    Sparse(Arc<SparseContent>),
}

impl Content {
    /// Returns the content of a file with holes from its location and its data runs.
    pub(crate) fn sparse(self, runs: impl Into<Arc<[DataRun]>>) -> Self {
        Self::Sparse(Arc::new(SparseContent {
            location: self,
            runs: runs.into(),
        }))
    }

    /// Returns the location, and the data runs of a file with holes.
    pub(crate) fn parts(&self) -> (&Self, Option<&Arc<[DataRun]>>) {
        match self {
            Self::Sparse(sparse) => (&sparse.location, Some(&sparse.runs)),
            location => (location, None),
        }
    }

    /// Shifts positions by `start` bytes, for a source that is a part of a file.
    pub(super) fn shifted_by(self, start: u64) -> Self {
        match self {
            _ if start == 0 => self,
            Self::Range { offset } => Self::Range {
                offset: offset + start,
            },
            Self::Sparse(sparse) => {
                let moved = |run: &DataRun| DataRun {
                    source_offset: run.source_offset + start,
                    ..*run
                };
                let runs: Arc<[DataRun]> = sparse.runs.iter().map(moved).collect();
                sparse.location.clone().shifted_by(start).sparse(runs)
            }
            other => other,
        }
    }
}

/// Content of a file with holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseContent {
    /// Location of the file or of its first data run, never sparse itself.
    pub location: Content,
    /// Ascending data runs; everything between them is zero.
    pub runs: Arc<[DataRun]>,
}

/// Data run of a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRun {
    /// Position in the file. Unit: bytes.
    pub file_offset: u64,
    /// Position in the tar file; 0 for a stream and for any other source.
    pub source_offset: u64,
    /// Length of the run. Unit: bytes.
    pub len: u64,
}
