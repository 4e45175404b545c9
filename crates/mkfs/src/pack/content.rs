//! Contents of files, as workers read them.

use super::sparse::ChunkRun;
use crate::base::{BaseInode, Bases};
use crate::source::DataRun;
use crate::source::file::{HostFile, SourceFile};
use crate::source::image::ImageFiles;
use crate::tree::InodeId;
use crate::{Error, Result};
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Content of one file. Cheap to clone: the segments of a large file share it.
#[derive(Clone)]
pub(crate) enum FileContent {
    /// File of the host.
    Host(Arc<HostFile>),
    /// Range of an open file.
    Range {
        /// File that holds the range.
        file: Arc<SourceFile>,
        /// Start of the content in the file. Unit: bytes.
        offset: u64,
    },
    /// Sparse member of a tar, which stores only the runs of data.
    Runs {
        /// Archive that holds the runs.
        file: Arc<SourceFile>,
        /// Runs in ascending order.
        runs: Arc<[DataRun]>,
    },
    /// Content that is in memory.
    Bytes(Arc<[u8]>),
    /// File of a source that is an image.
    Image {
        /// Image that is the source.
        source: Arc<dyn ImageFiles>,
        /// Inode of the file.
        key: u64,
        /// Path of the file in messages.
        path: Arc<[u8]>,
    },
    /// File of a base.
    Base {
        /// Bases that the build uses.
        bases: Arc<Bases>,
        /// Inode of the file in its base.
        inode: BaseInode,
    },
    /// Chunks with data of a sparse file, back to back.
    Chunks {
        /// Content of the whole file.
        whole: Box<FileContent>,
        /// Chunks that hold data.
        chunks: Arc<[ChunkRun]>,
        /// Size of a chunk in bytes.
        chunk_size: u64,
        /// Size of the whole file in bytes.
        size: u64,
    },
    /// Segment of the packed inode: files and parts of files back to back, then zeros.
    Packed(Arc<[Item]>),
}

/// File, or part of one, that goes into the packed inode.
#[derive(Clone)]
pub(crate) struct Item {
    /// File that the bytes belong to.
    pub(crate) file: InodeId,
    /// Content of the file.
    pub(crate) content: FileContent,
    /// Start in the file, in bytes.
    pub(crate) offset: u64,
    /// Length of the range in bytes.
    pub(crate) len: usize,
    /// True for the first bytes of the file in the packed inode.
    pub(crate) first: bool,
    /// True if a neighbour in the packed inode is similar.
    pub(crate) similar: bool,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file, offset, len, ..
        } = self;
        write!(f, "{len} bytes of file {file} from {offset}")
    }
}

/// Content that is open for reading.
pub(crate) struct OpenContent<'a> {
    content: &'a FileContent,
    /// File of the host that holds the content, if one does.
    file: Option<File>,
}

impl FileContent {
    /// Opens the content and verifies that it is unchanged since the source was read.
    pub(crate) fn open(&self) -> Result<OpenContent<'_>> {
        let file = match self {
            Self::Host(host) => Some(host.open()?),
            Self::Chunks { whole, .. } => whole.open()?.file,
            _ => None,
        };
        Ok(OpenContent {
            content: self,
            file,
        })
    }

    /// Opens a file of a source directory without comparing it with the tree. `None` for any other content.
    pub(crate) fn open_host(&self) -> Option<io::Result<File>> {
        match self {
            Self::Host(host) => Some(host.open_unverified()),
            Self::Chunks { whole, .. } => whole.open_host(),
            _ => None,
        }
    }

    fn read_exact(&self, open: Option<&File>, buf: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Self::Host(host) => {
                let file = open.expect("the content is open");
                host.read_exact(file, buf, offset)
            }
            Self::Range {
                file,
                offset: start,
            } => file.read_exact(buf, start + offset),
            Self::Runs { file, runs } => read_runs(file, runs, buf, offset),
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
            Self::Image { source, key, path } => source.read_exact(*key, path, buf, offset),
            Self::Base { bases, inode } => bases.read_exact(*inode, buf, offset),
            Self::Chunks {
                whole,
                chunks,
                chunk_size,
                size,
            } => {
                // `offset` counts only chunks with data.
                let (mut skip, mut rest) = (offset, buf);
                for run in &chunks[..] {
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
                    whole.read_exact(open, now, start + skip)?;
                    (rest, skip) = (later, 0);
                    if rest.is_empty() {
                        return Ok(());
                    }
                }
                Err(Error::usage("sparse content is shorter than its chunks"))
            }
            Self::Packed(items) => {
                // A segment is always read as a whole.
                debug_assert_eq!(offset, 0);
                let mut rest = buf;
                for item in &items[..] {
                    let (now, later) = rest.split_at_mut(item.len);
                    item.content.open()?.read_exact(now, item.offset)?;
                    rest = later;
                }
                rest.fill(0);
                Ok(())
            }
        }
    }
}

impl OpenContent<'_> {
    /// Fills `buf` from byte `offset` of the content.
    pub(crate) fn read_exact(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.content.read_exact(self.file.as_ref(), buf, offset)
    }
}

/// Fills `buf` from byte `offset` of a sparse member. Everything between its runs is zero.
fn read_runs(file: &SourceFile, runs: &[DataRun], buf: &mut [u8], offset: u64) -> Result<()> {
    buf.fill(0);
    let end = offset + buf.len() as u64;
    let from = runs.partition_point(|r| r.file_offset + r.len <= offset);
    for run in runs[from..].iter().take_while(|r| r.file_offset < end) {
        let lo = run.file_offset.max(offset);
        let hi = (run.file_offset + run.len).min(end);
        let part = &mut buf[(lo - offset) as usize..(hi - offset) as usize];
        file.read_exact(part, run.source_offset + (lo - run.file_offset))?;
    }
    Ok(())
}
