//! Converts the files of a volume to a tar stream.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::vec;
use tuff_erofs::tar::{Header, Kind, Stream, xattr_records};
use tuff_iplfs::{Attr, DirEntry, Errno, Error, Nid, Volume, mode};

/// Size of a read. Unit: bytes.
const STEP: u64 = 1 << 20;

/// Error of the volume or of the output.
pub(super) enum Failed {
    Volume(Error),
    Out(io::Error),
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        Self::Volume(e)
    }
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Self {
        Self::Out(e)
    }
}

/// Tar writer that visits entries in the order of their names.
pub(super) struct TarWriter<W: Write> {
    out: Stream<W>,
    /// First path of every inode with several links.
    names: HashMap<Nid, Vec<u8>>,
    sockets: Vec<Vec<u8>>,
}

impl<W: Write> TarWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out: Stream::new(out),
            names: HashMap::new(),
            sockets: Vec::new(),
        }
    }

    /// Writes every file of a volume, the root first. All of a directory follows it before its next sibling: tar sets
    /// mode and times of a directory when a member outside of it follows, and extracts nothing into it afterwards.
    pub(super) fn volume(&mut self, volume: &mut Volume) -> Result<(), Failed> {
        self.member(volume, Nid::ROOT, b"./")?;
        // Directories from the root down, each with the entries that are left.
        let mut open = vec![(b".".to_vec(), sorted(volume, Nid::ROOT)?)];
        while let Some((dir, left)) = open.last_mut() {
            let Some(entry) = left.next() else {
                open.pop();
                continue;
            };
            let mut path = [&dir[..], b"/", &entry.name].concat();
            if u32::from(entry.kind) << 12 == mode::DIR {
                open.push((path.clone(), sorted(volume, entry.ino)?));
                path.push(b'/');
            }
            self.member(volume, entry.ino, &path)?;
        }
        Ok(())
    }

    /// Writes the end of the stream. Returns the paths of sockets, which are not in it.
    pub(super) fn finish(self) -> Result<Vec<Vec<u8>>, Failed> {
        self.out.finish()?;
        Ok(self.sockets)
    }

    fn member(&mut self, volume: &mut Volume, ino: Nid, path: &[u8]) -> Result<(), Failed> {
        let attr = volume.attr(ino)?;
        let mut header = Header {
            name: path,
            kind: Kind::Fifo,
            mode: (attr.mode & 0o7777) as u16,
            uid: attr.uid,
            gid: attr.gid,
            size: 0,
            mtime: (attr.mtime.sec, attr.mtime.nsec),
            link: b"",
            // Linux encodes device numbers in 32 bits: minor 8, major 12, minor 12.
            device: (
                attr.rdev >> 8 & 0xfff,
                attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00,
            ),
        };
        let kind = attr.mode & mode::TYPE;
        if kind == mode::SOCKET {
            self.sockets.push(path.to_vec());
            return Ok(());
        }
        if kind != mode::DIR && attr.nlink > 1 {
            if let Some(first) = self.names.get(&ino).cloned() {
                header.kind = Kind::HardLink;
                header.link = &first;
                return Ok(self.out.head(&header, &[])?);
            }
            self.names.insert(ino, path.to_vec());
        }
        let mut records = Vec::new();
        for (name, value) in volume.xattrs(ino)? {
            xattr_records(&name, &value, &mut records);
        }
        let target;
        header.kind = match kind {
            mode::FILE => return self.file(volume, &attr, header, &records),
            mode::LINK => {
                target = volume.read_link(ino)?;
                header.link = &target;
                Kind::Symlink
            }
            mode::CHAR => Kind::Char,
            mode::BLOCK => Kind::Block,
            mode::DIR => Kind::Dir,
            _ => Kind::Fifo,
        };
        Ok(self.out.head(&header, &records)?)
    }

    fn file(
        &mut self,
        volume: &mut Volume,
        attr: &Attr,
        mut header: Header<'_>,
        records: &[u8],
    ) -> Result<(), Failed> {
        header.kind = Kind::File;
        header.size = attr.size;
        let runs = data_runs(volume, attr)?;
        let stored: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if stored == attr.size {
            self.out.head(&header, records)?;
        } else {
            self.out.sparse_head(&header, &runs, records)?;
        }
        for run in runs {
            self.data(volume, attr.ino, run)?;
        }
        Ok(self.out.pad()?)
    }

    fn data(&mut self, volume: &mut Volume, ino: Nid, run: Range<u64>) -> Result<(), Failed> {
        let mut at = run.start;
        while at < run.end {
            let bytes = volume.read(ino, at, (run.end - at).min(STEP) as usize)?;
            if bytes.is_empty() {
                let what = format!(
                    "inode {ino}: the data ends at byte {at}, expected {}",
                    run.end
                );
                return Err(Error::Corrupt(what).into());
            }
            self.out.put(&bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }
}

/// Returns the entries of a directory in the order of their names.
fn sorted(volume: &mut Volume, dir: Nid) -> Result<vec::IntoIter<DirEntry>, Error> {
    let mut entries = volume.read_dir(dir, 2, usize::MAX)?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries.into_iter())
}

/// Returns the ranges of a file that have data.
fn data_runs(volume: &mut Volume, attr: &Attr) -> Result<Vec<Range<u64>>, Error> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < attr.size {
        let data = match volume.seek_data(attr.ino, at) {
            Ok(data) => data,
            Err(Error::Posix(Errno::NoSuchOffset)) => break,
            Err(e) => return Err(e),
        };
        let hole = volume.seek_hole(attr.ino, data)?;
        runs.push(data..hole);
        at = hole;
    }
    Ok(runs)
}
