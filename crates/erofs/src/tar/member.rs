//! Entries of an image to members of a tar.

use super::header::{Header, Kind};
use super::stream::Stream;
use super::{sparse, xattr};
use crate::read::limits::WorkBudget;
use crate::read::{FileType, Image, Inode, Nid};
use crate::walk::{Entry, shown};
use crate::{Error, Result};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// Data is copied in steps of this. Unit: bytes.
const COPY: usize = 1 << 20;

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Files with holes as "GNU.sparse 1.0" members; otherwise holes become zeros. Default: true.
    pub sparse: bool,
    /// Extended attributes as SCHILY.xattr records. Default: true.
    pub xattrs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sparse: true,
            xattrs: true,
        }
    }
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Members, hard links among them.
    pub members: u64,
    /// Hard links.
    pub hard_links: u64,
    /// Files with holes.
    pub sparse_files: u64,
    /// Content of all files. Unit: bytes.
    pub content_bytes: u64,
    /// Length of the stream. Unit: bytes.
    pub tar_bytes: u64,
    /// Sockets left out, which a tar cannot hold: their paths.
    pub sockets: Vec<Vec<u8>>,
}

/// Writes entries of an image to a tar stream.
pub struct TarWriter<'a, W> {
    image: &'a Image,
    out: Stream<W>,
    options: Options,
    stats: Stats,
    /// First name of inodes that may have several.
    names: HashMap<Nid, Vec<u8>>,
    buf: Vec<u8>,
    content: WorkBudget,
}

impl<'a, W: Write> TarWriter<'a, W> {
    /// A writer to `out`, which should be buffered.
    pub fn new(image: &'a Image, out: W, options: Options) -> Self {
        Self {
            image,
            out: Stream::new(out),
            options,
            stats: Stats::default(),
            names: HashMap::new(),
            buf: Vec::new(),
            content: image.content_budget(),
        }
    }

    /// Adds an entry. The root becomes "./", another path stands as it is; entries come in the order they should have.
    ///
    /// # Errors
    /// Damage in the image, or a failed write. The stream is not usable any more after one.
    pub fn append(&mut self, entry: &Entry) -> Result<()> {
        let place = |e: Error| match e {
            Error::Io(..) => e,
            e if e.place().starts_with('/') => e,
            e => e.within(shown(&entry.path)),
        };
        self.member(entry).map_err(place)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// A failed write.
    pub fn finish(mut self) -> Result<Stats> {
        self.stats.members = self.out.members();
        self.stats.tar_bytes = self.out.finish().map_err(failed)?;
        Ok(self.stats)
    }

    fn member(&mut self, entry: &Entry) -> Result<()> {
        let inode = &entry.inode;
        let name = member_name(entry);
        let mut header = Header {
            name: &name,
            kind: Kind::File,
            mode: inode.mode(),
            uid: inode.uid(),
            gid: inode.gid(),
            size: 0,
            mtime: inode.mtime(),
            link: &[],
            device: inode.device().unwrap_or((0, 0)),
        };
        if !inode.is_dir() && inode.nlink() != 1 {
            if let Some(first) = self.names.get(&inode.nid()).cloned() {
                header.kind = Kind::HardLink;
                header.link = &first;
                self.stats.hard_links += 1;
                return self.out.head(&header, &[]).map_err(failed);
            }
            if inode.file_type() != FileType::Socket {
                self.names.insert(inode.nid(), name.clone());
            }
        }
        let target;
        header.kind = match inode.file_type() {
            FileType::File => return self.file(header, inode),
            FileType::Socket => {
                self.stats.sockets.push(entry.path.clone());
                return Ok(());
            }
            FileType::Dir => Kind::Dir,
            FileType::Symlink => {
                target = self.image.readlink(inode)?;
                header.link = &target;
                Kind::Symlink
            }
            FileType::Char => Kind::Char,
            FileType::Block => Kind::Block,
            FileType::Fifo => Kind::Fifo,
        };
        let xattrs = self.xattrs(inode)?;
        self.out.head(&header, &xattrs).map_err(failed)
    }

    fn file(&mut self, mut header: Header<'_>, inode: &Inode) -> Result<()> {
        let size = inode.size();
        let xattrs = self.xattrs(inode)?;
        self.stats.content_bytes += size;
        let runs = if self.options.sparse {
            sparse::runs(self.image, inode)?
        } else {
            None
        };
        let Some(runs) = runs else {
            header.size = size;
            self.out.head(&header, &xattrs).map_err(failed)?;
            return self.data(inode, 0..size);
        };
        self.stats.sparse_files += 1;
        header.size = size;
        self.out
            .sparse_head(&header, &runs, &xattrs)
            .map_err(failed)?;
        runs.into_iter().try_for_each(|run| self.data(inode, run))
    }

    /// Attributes as records, in the order of their names.
    fn xattrs(&self, inode: &Inode) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if !self.options.xattrs {
            return Ok(out);
        }
        let mut xattrs = self.image.xattrs(inode)?;
        xattrs.sort();
        for xattr in xattrs {
            xattr::records(&xattr.name, &xattr.value, &mut out);
        }
        Ok(out)
    }

    /// Copies bytes of a file, zeros up to a multiple of a block behind them.
    fn data(&mut self, inode: &Inode, range: Range<u64>) -> Result<()> {
        self.content.take(range.end - range.start)?;
        let mut buf = std::mem::take(&mut self.buf);
        buf.resize(COPY, 0);
        let mut at = range.start;
        while at < range.end {
            let want = usize::try_from(range.end - at).unwrap_or(COPY).min(COPY);
            let n = self.image.read_at(inode, &mut buf[..want], at)?;
            if n == 0 {
                return Err(Error::corrupt(
                    inode.place(),
                    format_args!("the data ends at byte {at}, expected {}", range.end),
                ));
            }
            self.out.put(&buf[..n]).map_err(failed)?;
            at += n as u64;
        }
        self.buf = buf;
        self.out.pad().map_err(failed)
    }
}

fn failed(e: std::io::Error) -> Error {
    Error::io("tar", "cannot write", e)
}

/// The path as members have it: with a slash behind a directory, and "./" for the root.
fn member_name(entry: &Entry) -> Vec<u8> {
    if entry.path.is_empty() {
        return b"./".to_vec();
    }
    let mut name = entry.path.clone();
    if entry.inode.is_dir() {
        name.push(b'/');
    }
    name
}
