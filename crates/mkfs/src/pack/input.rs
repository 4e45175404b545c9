//! Contents of files, as workers read them.

use super::sparse::ChunkRun;
use crate::base::{BaseInode, Bases};
use crate::source::DataRun;
use crate::source::dir::DirSource;
use crate::source::image::ImageSource;
use crate::tree::InodeId;
use crate::{Error, Result};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};
use tuff_format::Nid;

/// Content of one file. Cheap to clone: the segments of a large file share it.
#[derive(Clone)]
pub(crate) enum Input {
    /// File below a source directory.
    Host {
        /// Source directory that contains the file.
        source: Arc<DirSource>,
        /// Path below the directory.
        path: Arc<[u8]>,
        /// Size and modification time when the tree was walked: bytes, seconds, nanoseconds.
        seen: (u64, i64, u32),
    },
    /// File named by a manifest.
    Path {
        /// Path of the file.
        path: Arc<PathBuf>,
        /// Size in bytes when the manifest was read.
        size: u64,
    },
    /// Range of an open file.
    Range {
        /// File that holds the range.
        file: Arc<File>,
        /// Name of the file in messages.
        name: Arc<str>,
        /// Start of the content.
        offset: u64,
    },
    /// Content that is in memory.
    Bytes(Arc<[u8]>),
    /// Chunks with data of a sparse file, back to back.
    Sparse {
        /// Content of the whole file.
        whole: Box<Input>,
        /// Chunks that hold data.
        chunks: Arc<[ChunkRun]>,
        /// Size of a chunk in bytes.
        chunk_size: u64,
        /// Size of the whole file in bytes.
        size: u64,
    },
    /// Sparse member of a tar, which stores only the runs of data.
    Runs {
        /// Archive that holds the runs.
        file: Arc<File>,
        /// Name of the file in messages.
        name: Arc<str>,
        /// Runs in ascending order.
        runs: Arc<[DataRun]>,
    },
    /// Segment of the packed inode: files and parts of files back to back, then zeros.
    Packed(Arc<[Item]>),
    /// File of a base.
    Base(Arc<Bases>, BaseInode),
    /// File of a source that is an image.
    Image {
        /// Image that is the source.
        source: Arc<ImageSource>,
        /// Inode of the file.
        nid: Nid,
        /// Path of the file in messages.
        path: Arc<[u8]>,
    },
}

/// File, or part of one, that goes into the packed inode.
#[derive(Clone)]
pub(crate) struct Item {
    /// File that the bytes belong to.
    pub(crate) file: InodeId,
    /// Content of the file.
    pub(crate) input: Input,
    /// Start in the file, in bytes.
    pub(crate) offset: u64,
    /// Length of the range in bytes.
    pub(crate) len: usize,
    /// True for the first bytes of the file in the packed inode.
    pub(crate) first: bool,
    /// True if a neighbour in the packed inode is similar.
    pub(crate) similar: bool,
}

/// Content that is open for reading.
pub(crate) enum Reader<'a> {
    /// Open file with its name.
    File(File, Name<'a>),
    /// Open file that others share, with the start of the content.
    Shared(&'a File, &'a str, u64),
    /// Content that is in memory.
    Bytes(&'a [u8]),
    /// Chunks with data of a sparse file.
    Sparse(Box<Reader<'a>>, &'a [ChunkRun], u64, u64),
    /// Runs of a sparse member.
    Runs(&'a File, &'a str, &'a [DataRun]),
    /// Items, each opened when it is read.
    Packed(&'a [Item]),
    /// File of a base.
    Base(&'a Bases, BaseInode),
    /// File of a source that is an image.
    Image(&'a ImageSource, Nid, &'a [u8]),
}

/// Name of an open file, formatted only for messages.
#[derive(Clone, Copy)]
pub(crate) enum Name<'a> {
    /// Path below a source directory.
    Below(&'a DirSource, &'a [u8]),
    /// Path of the host.
    Path(&'a Path),
    /// Name without a path.
    Plain(&'a str),
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Below(source, path) => f.write_str(&source.display(path)),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Plain(name) => f.write_str(name),
        }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file, offset, len, ..
        } = self;
        write!(f, "{len} bytes of file {file} from {offset}")
    }
}

impl Input {
    /// Opens the content and verifies that it is unchanged since the tree was walked.
    pub(crate) fn open(&self) -> Result<Reader<'_>> {
        match self {
            Self::Host { source, path, seen } => {
                let name = Name::Below(source, path);
                let file = source
                    .open_file(path)
                    .map_err(|e| Error::io(name, "cannot open", e))?;
                let (size, sec, nsec) = *seen;
                let meta = unchanged(&file, name, size)?;
                if (meta.mtime(), meta.mtime_nsec()) != (sec, nsec.into()) {
                    return Err(changed(name, "its modification time is another"));
                }
                Ok(Reader::File(file, name))
            }
            Self::Path { path, size } => {
                let name = Name::Path(path);
                // The kind of the file is checked after the open.
                let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
                let mut options = File::options();
                let options = options.read(true).custom_flags(flags);
                let file = options.open(path.as_path());
                let file = file.map_err(|e| Error::io(name, "cannot open", e))?;
                unchanged(&file, name, *size)?;
                Ok(Reader::File(file, name))
            }
            Self::Range { file, name, offset } => Ok(Reader::Shared(file, name, *offset)),
            Self::Bytes(bytes) => Ok(Reader::Bytes(bytes)),
            Self::Packed(items) => Ok(Reader::Packed(items)),
            Self::Base(base, inode) => Ok(Reader::Base(base, *inode)),
            Self::Image { source, nid, path } => Ok(Reader::Image(source, *nid, path)),
            Self::Sparse {
                whole,
                chunks,
                chunk_size,
                size,
            } => Ok(Reader::Sparse(
                Box::new(whole.open()?),
                chunks,
                *chunk_size,
                *size,
            )),
            Self::Runs { file, name, runs } => Ok(Reader::Runs(file, name, runs)),
        }
    }
}

impl Reader<'_> {
    /// Fills `buf` from byte `offset` of the content.
    pub(crate) fn read_exact(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Self::File(file, name) => exact(file, buf, offset, *name),
            Self::Shared(file, name, start) => exact(file, buf, start + offset, Name::Plain(name)),
            Self::Bytes(bytes) => {
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let src = bytes
                    .get(from..from + buf.len())
                    .ok_or_else(|| Error::usage("content is shorter than its size"))?;
                buf.copy_from_slice(src);
                Ok(())
            }
            Self::Packed(items) => {
                // A segment is always read as a whole.
                debug_assert_eq!(offset, 0);
                let mut rest = buf;
                for item in *items {
                    let (now, later) = rest.split_at_mut(item.len);
                    item.input.open()?.read_exact(now, item.offset)?;
                    rest = later;
                }
                rest.fill(0);
                Ok(())
            }
            Self::Base(base, inode) => base.read_exact(*inode, buf, offset),
            Self::Image(source, nid, path) => source.read_exact(*nid, path, buf, offset),
            Self::Sparse(whole, chunks, chunk_size, size) => {
                // `offset` counts only chunks with data.
                let (mut skip, mut rest) = (offset, buf);
                for run in *chunks {
                    let start = run.first * chunk_size;
                    let len = (run.count * chunk_size).min(size - start);
                    if skip >= len {
                        skip -= len;
                        continue;
                    }
                    let n = rest
                        .len()
                        .min(usize::try_from(len - skip).unwrap_or(usize::MAX));
                    let (now, later) = rest.split_at_mut(n);
                    whole.read_exact(now, start + skip)?;
                    (rest, skip) = (later, 0);
                    if rest.is_empty() {
                        return Ok(());
                    }
                }
                Err(Error::usage("sparse content is shorter than its chunks"))
            }
            Self::Runs(file, name, runs) => {
                buf.fill(0);
                let end = offset + buf.len() as u64;
                let from = runs.partition_point(|r| r.file_offset + r.len <= offset);
                for run in runs[from..].iter().take_while(|r| r.file_offset < end) {
                    let lo = run.file_offset.max(offset);
                    let hi = (run.file_offset + run.len).min(end);
                    let part = &mut buf[(lo - offset) as usize..(hi - offset) as usize];
                    let from = run.source_offset + (lo - run.file_offset);
                    exact(file, part, from, Name::Plain(name))?;
                }
                Ok(())
            }
        }
    }
}

fn exact(file: &File, buf: &mut [u8], offset: u64, name: Name<'_>) -> Result<()> {
    file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => changed(name, "it became shorter"),
        _ => Error::io(name, format_args!("cannot read at byte {offset}"), e),
    })
}

/// Verifies that a file is regular and has the expected size.
fn unchanged(file: &File, name: Name<'_>, size: u64) -> Result<Metadata> {
    let meta =
        tuff_store::retry(|| file.metadata()).map_err(|e| Error::io(name, "cannot examine", e))?;
    if !meta.is_file() {
        return Err(changed(name, "it is no regular file any more"));
    }
    if meta.size() != size {
        let how = format!("its size was {size} bytes and is {}", meta.size());
        return Err(changed(name, &how));
    }
    Ok(meta)
}

fn changed(name: Name<'_>, how: &str) -> Error {
    let e = io::Error::other(format!("the file changed while the image was built: {how}"));
    Error::io(name, "cannot read", e)
}
