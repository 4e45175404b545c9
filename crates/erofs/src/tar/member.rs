//! Conversion of image entries to members of a tar stream.

use super::header::{Header, Kind};
use super::stream::Stream;
use super::{sparse, xattr};
use crate::read::limits::WorkBudget;
use crate::read::{FileType, Image, Inode, Nid};
use crate::walk::{Entry, shown};
use crate::{Error, Place, Result};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// Buffer size for copying data, in bytes.
const COPY: usize = 1 << 20;

/// Options of the conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Writes files with holes as "GNU.sparse 1.0" members. Otherwise holes are written as zeros. Default: true.
    pub sparse: bool,
    /// Writes extended attributes as SCHILY.xattr records. Default: true.
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

/// Statistics of the tar stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of members, including hard links.
    pub members: u64,
    /// Number of members that are hard links.
    pub hard_links: u64,
    /// Number of files with holes.
    pub sparse_files: u64,
    /// Total content of all files, in bytes.
    pub content_bytes: u64,
    /// Length of the stream, in bytes.
    pub tar_bytes: u64,
    /// Paths of omitted sockets, which the tar format cannot represent.
    pub sockets: Vec<Vec<u8>>,
}

/// Writes entries of an image to a tar stream.
pub struct TarWriter<'a, W> {
    image: &'a Image,
    out: Stream<W>,
    options: Options,
    stats: Stats,
    /// Path of the first link of each inode that may have several.
    names: HashMap<Nid, Vec<u8>>,
    buf: Vec<u8>,
    content: WorkBudget,
}

impl<'a, W: Write> TarWriter<'a, W> {
    /// Creates a writer to `out`, which should be buffered.
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

    /// Appends an entry. The path of the root is written as "./", other paths unchanged. The order of the calls is the
    /// order of the members.
    ///
    /// # Errors
    /// Returns an error for damage in the image or a failed write. The stream is unusable afterwards.
    pub fn append(&mut self, entry: &Entry) -> Result<()> {
        let place = |e: Error| match e {
            Error::Io(..) => e,
            e if e.place().begins_with_path() => e,
            e => e.within(Place::path(shown(&entry.path))),
        };
        self.member(entry).map_err(place)
    }

    /// Ends the stream and returns its statistics.
    ///
    /// # Errors
    /// Returns an error if a write fails.
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

    /// Encodes the xattrs as records, sorted by name.
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

    /// Copies a range of a file, followed by zeros up to the next block boundary.
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
    Error::io(Place::tar(), "cannot write", e)
}

/// Returns the path for the member: with a trailing slash for a directory, and "./" for the root.
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
