//! Entries of an image to members of a tar.

use super::acl;
use super::header::{BLOCK, Header, Kind, record};
use super::sparse;
use crate::read::{FileType, Image, Inode, Nid};
use crate::walk::{Entry, shown};
use crate::{Error, Result};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// A tar is padded to a multiple of this, as tape drives once wanted it and GNU tar still does. Unit: bytes.
const RECORD: u64 = 10_240;
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
    out: W,
    options: Options,
    stats: Stats,
    /// First name of inodes that may have several.
    names: HashMap<Nid, Vec<u8>>,
    buf: Vec<u8>,
}

impl<'a, W: Write> TarWriter<'a, W> {
    /// A writer to `out`, which should be buffered.
    pub fn new(image: &'a Image, out: W, options: Options) -> Self {
        Self {
            image,
            out,
            options,
            stats: Stats::default(),
            names: HashMap::new(),
            buf: Vec::new(),
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
        let end = (self.stats.tar_bytes + 2 * BLOCK as u64).next_multiple_of(RECORD);
        // Fits: at most a record and two blocks.
        let zeros = vec![0; (end - self.stats.tar_bytes) as usize];
        self.put(&zeros)?;
        self.out.flush().map_err(failed)?;
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
                return self.head(&header, Vec::new());
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
        self.head(&header, xattrs)
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
            self.head(&header, xattrs)?;
            return self.data(inode, 0..size);
        };
        self.stats.sparse_files += 1;
        let map = sparse::map(&runs, size);
        header.size = map.len() as u64 + runs.iter().map(|r| r.end - r.start).sum::<u64>();
        let mut records = Vec::new();
        record(b"GNU.sparse.major", b"1", &mut records);
        record(b"GNU.sparse.minor", b"0", &mut records);
        record(b"GNU.sparse.name", header.name, &mut records);
        let real = size.to_string();
        record(b"GNU.sparse.realsize", real.as_bytes(), &mut records);
        records.extend_from_slice(&xattrs);
        // A reader that does not know the form finds map and data under this name.
        let stand_in = [b"GNUSparseFile.0/".as_slice(), file_name(header.name)].concat();
        let header = Header {
            name: &stand_in[..stand_in.len().min(100)],
            ..header
        };
        self.head(&header, records)?;
        self.put(&map)?;
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
            let acl = match &xattr.name[..] {
                b"system.posix_acl_access" => Some(&b"SCHILY.acl.access"[..]),
                b"system.posix_acl_default" => Some(&b"SCHILY.acl.default"[..]),
                _ => None,
            };
            if let (Some(key), Some(words)) = (acl, acl::words(&xattr.value)) {
                record(key, words.as_bytes(), &mut out);
            }
            let mut key = b"SCHILY.xattr.".to_vec();
            for b in xattr.name {
                // A key ends at its first equals sign: written as GNU tar writes it.
                match b {
                    b'=' => key.extend_from_slice(b"%3D"),
                    b'%' => key.extend_from_slice(b"%25"),
                    b => key.push(b),
                }
            }
            record(&key, &xattr.value, &mut out);
        }
        Ok(out)
    }

    /// Writes a header, and records in front of it if there are any.
    fn head(&mut self, header: &Header<'_>, more: Vec<u8>) -> Result<()> {
        let mut records = Vec::new();
        header.records(&mut records);
        records.extend_from_slice(&more);
        if !records.is_empty() {
            let name = [b"PaxHeaders/".as_slice(), file_name(header.name)].concat();
            let front = Header {
                name: &name[..name.len().min(100)],
                kind: Kind::Records,
                mode: 0o644,
                uid: 0,
                gid: 0,
                size: records.len() as u64,
                mtime: (0, 0),
                link: &[],
                device: (0, 0),
            };
            self.put(&front.encode())?;
            records.resize(records.len().next_multiple_of(BLOCK), 0);
            self.put(&records)?;
        }
        self.stats.members += 1;
        self.put(&header.encode())
    }

    /// Copies bytes of a file, zeros up to a multiple of a block behind them.
    fn data(&mut self, inode: &Inode, range: Range<u64>) -> Result<()> {
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
            self.put(&buf[..n])?;
            at += n as u64;
        }
        self.buf = buf;
        // Fits: less than a block.
        let rest = ((range.end - range.start).next_multiple_of(BLOCK as u64)
            - (range.end - range.start)) as usize;
        self.put(&[0; BLOCK][..rest])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(failed)?;
        self.stats.tar_bytes += bytes.len() as u64;
        Ok(())
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

fn file_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}
