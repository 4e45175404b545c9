//! Packs: files of clusters, whose addresses never change.
//!
//! ```text
//! header │ clusters of segment 1 │ of segment 2 │ ...
//!  block │  and holes            │
//! ```
//!
//! [Directories](crate::segment) state which blocks belong to a segment. What follows the last one is of a run that ended early,
//! and the next run removes it.

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::faults::is_lost;
use crate::files::step;
use rustix::fs::{FallocateFlags, fallocate};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_mkfs::{Error, Place, Result};
use tuff_store::retry;

const MAGIC: [u8; 8] = *b"TUFFPACK";
const VERSION: u32 = 1;
/// Length of the header. The superblock of an image follows it. Unit: bytes.
pub(crate) const HEADER_LEN: usize = 1024;
/// Longest pack, so that 63 of them and the metadata of a snapshot have addresses in one image. Unit: bytes.
pub(crate) const PACK_MAX: u64 = 128 << 30;
/// Most packs of a store.
pub(crate) const PACKS_MAX: u16 = 63;

/// Clusters that are elsewhere.
pub(crate) trait Clusters: fmt::Debug + Send + Sync {
    /// Reads bytes of a pack. `None` if they belong to no segment that is elsewhere.
    fn read(&self, pack: u16, start: u64, len: u64) -> Option<io::Result<Vec<u8>>>;
}

/// Pack of a store that is open.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) path: PathBuf,
    /// `None` if it is missing.
    file: Option<File>,
    /// First block as it must be.
    front: Box<[u8; BLOCK]>,
    /// False if the first block is damaged.
    pub(crate) has_front: bool,
    /// End of the last segment. Unit: blocks.
    pub(crate) end: u32,
    number: u16,
    /// Objects of a store in a bucket, which have the clusters of all segments.
    pub(crate) objects: Option<Arc<dyn Clusters>>,
}

impl Pack {
    /// First block of a pack. `image` is an empty EROFS image of one block, whose first KiB is free for the header: readers of images
    /// know the pack as a device by its UUID.
    fn first_block(store: [u8; 16], number: u16, mut image: [u8; BLOCK]) -> Box<[u8; BLOCK]> {
        let header = &mut image[..HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..14].copy_from_slice(&number.to_le_bytes());
        header[16..32].copy_from_slice(&store);
        seal(header);
        Box::new(image)
    }

    /// Makes an empty pack; see [`open`](Self::open).
    pub(crate) fn create(
        path: &Path,
        store: [u8; 16],
        number: u16,
        image: [u8; BLOCK],
    ) -> Result<()> {
        crate::files::create(path, &Self::first_block(store, number, image)[..])
    }

    /// Opens a pack. `image` is the empty image in its first block.
    ///
    /// # Errors
    /// `Corrupt` for a pack of another store; `Io` if it cannot be opened. A pack that is missing can be opened, but not be read.
    pub(crate) fn open(
        path: PathBuf,
        store: [u8; 16],
        number: u16,
        image: [u8; BLOCK],
    ) -> Result<Self> {
        let failed = |e| Error::io(Place::file(path.display()), "cannot read", e);
        let broken = |what: &str| Error::corrupt(Place::file(path.display()), what);
        let front = Self::first_block(store, number, image);
        let file = File::options().read(true).write(true).open(&path);
        let file = match file.or_else(|_| File::open(&path)) {
            Ok(file) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(failed(e)),
        };
        let mut found = [0; BLOCK];
        let read = file.as_ref().map(|file| file.read_exact_at(&mut found, 0));
        let has_front = matches!(read, Some(Ok(()))) && found == *front;
        let header = &found[..HEADER_LEN];
        if !has_front && header[..8] == MAGIC && is_sealed(header) {
            if header[8..12] != VERSION.to_le_bytes() {
                return Err(broken("a pack of a newer version of Tuff"));
            }
            if header[..HEADER_LEN] != front[..HEADER_LEN] {
                return Err(broken("a pack of another store, or with another number"));
            }
        }
        Ok(Self {
            path,
            file,
            front,
            has_front,
            end: 1,
            number,
            objects: None,
        })
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.file.is_none()
    }

    /// First block as it must be.
    pub(crate) fn front(&self) -> &[u8; BLOCK] {
        &self.front
    }

    fn error(&self, what: &str, e: io::Error) -> Error {
        Error::io(Place::file(self.path.display()), what, e)
    }

    /// File of the pack.
    ///
    /// # Errors
    /// `NotFound` if it is missing.
    pub(crate) fn file(&self) -> io::Result<&File> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the pack is missing");
        self.file.as_ref().ok_or_else(missing)
    }

    /// Reads `len` bytes from `start` on, of one range.
    pub(crate) fn read(&self, start: u64, len: u64) -> Result<Vec<u8>> {
        match self.objects.is_some() && self.is_here(start, len) {
            true => self.read_file(start, len),
            false => self.read_stored(start, len),
        }
    }

    /// Reads `len` bytes from `start` on, of one range, also if this host has kept them from a bucket.
    pub(crate) fn read_stored(&self, start: u64, len: u64) -> Result<Vec<u8>> {
        if let Some(objects) = &self.objects
            && let Some(read) = objects.read(self.number, start, len)
        {
            return read.map_err(|e| self.error("cannot read", e));
        }
        self.read_file(start, len)
    }

    fn read_file(&self, start: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self
            .file()
            .and_then(|file| file.read_exact_at(&mut bytes, start));
        read.map_err(|e| self.error("cannot read", e))?;
        Ok(bytes)
    }

    /// True if the file has data at all of these addresses.
    fn is_here(&self, start: u64, len: u64) -> bool {
        let Ok(file) = self.file() else {
            return false;
        };
        let data = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(start));
        let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start));
        data == Ok(start) && hole.is_ok_and(|hole| hole >= start + len)
    }

    /// Keeps bytes of an object in the file, from where they are read next time. If that fails, they are read again.
    pub(crate) fn keep(&self, bytes: &[u8], start: u64) {
        if self.objects.is_some() && !self.is_here(start, bytes.len() as u64) {
            let _ = self.write_at(bytes, start);
        }
    }

    /// Removes bytes of an object from the file. Returns false if there are none.
    pub(crate) fn forget(&self, start: u64, len: u64) -> bool {
        let block = |at: u64| u32::try_from(at / BLOCK as u64).ok();
        let blocks = block(start).zip(block(start + len));
        self.objects.is_some()
            && self.is_here(start, len)
            && blocks.is_some_and(|(start, end)| self.punch(start..end).is_ok_and(|done| done))
    }

    /// Writes from `start` on.
    pub(crate) fn write_at(&self, bytes: &[u8], start: u64) -> io::Result<()> {
        step()?;
        let file = self.file()?;
        if is_lost() {
            return Ok(());
        }
        file.write_all_at(bytes, start)
    }

    /// Writes clusters of a new segment.
    pub(crate) fn write(&self, bytes: &[u8], block: u32) -> Result<()> {
        let written = self.write_at(bytes, u64::from(block) * BLOCK as u64);
        written.map_err(|e| self.error("cannot write", e))
    }

    /// Writes the first block anew.
    pub(crate) fn write_front(&mut self) -> Result<()> {
        let written = self.write_at(&self.front[..], 0);
        written.map_err(|e| self.error("cannot write", e))?;
        self.has_front = true;
        self.sync()
    }

    /// Waits until everything is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = self.file().and_then(File::sync_all);
        synced.map_err(|e| self.error("cannot write", e))
    }

    /// Removes what follows the last segment: a run that ended early has left it.
    pub(crate) fn cut(&self) -> Result<()> {
        let end = self.len();
        let cut = || {
            let file = self.file()?;
            if retry(|| file.metadata())?.len() > end {
                step()?;
                if !is_lost() {
                    file.set_len(end)?;
                }
            }
            Ok(())
        };
        cut().map_err(|e| self.error("cannot shorten", e))
    }

    /// Claims all addresses up to the end of the file.
    pub(crate) fn claim_all(&mut self) -> Result<()> {
        if self.objects.is_some() || self.is_missing() {
            return Ok(());
        }
        let len = self.file().and_then(File::metadata).map(|data| data.len());
        let len = len.map_err(|e| self.error("cannot examine", e))?;
        // Fits: a longer file is cut to the longest pack.
        let blocks = len.min(PACK_MAX).div_ceil(BLOCK as u64) as u32;
        self.end = self.end.max(blocks);
        Ok(())
    }

    /// Length up to which the pack is in use. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.end) * BLOCK as u64
    }

    /// Frees blocks: they are zeros afterwards. Returns false where the filesystem cannot do that.
    pub(crate) fn punch(&self, blocks: Range<u32>) -> Result<bool> {
        let start = u64::from(blocks.start) * BLOCK as u64;
        let len = u64::from(blocks.end - blocks.start) * BLOCK as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = || {
            step()?;
            if is_lost() {
                return Ok(true);
            }
            let file = self.file()?;
            match retry(|| fallocate(file, flags, start, len)) {
                Ok(()) => Ok(true),
                Err(e) if [rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::NOSYS].contains(&e) => {
                    Ok(false)
                }
                Err(e) => Err(e.into()),
            }
        };
        punch().map_err(|e| self.error("cannot free a part", e))
    }

    /// True if some of the blocks are not holes.
    pub(crate) fn has_data(&self, blocks: Range<u32>) -> bool {
        let start = u64::from(blocks.start) * BLOCK as u64;
        let end = u64::from(blocks.end) * BLOCK as u64;
        let Ok(file) = self.file() else {
            return false;
        };
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(start)) {
            Ok(found) => found < end,
            // Behind the last data, or no holes on this filesystem.
            Err(e) => e != rustix::io::Errno::NXIO,
        }
    }
}

/// Writes numbers one after the other.
pub(crate) fn put_fields(bytes: &mut [u8], fields: &[u32]) {
    for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
}

/// Reads the number at index `i`, of which there must be so many.
pub(crate) fn field(bytes: &[u8], i: usize) -> u32 {
    let field = bytes[4 * i..].first_chunk();
    u32::from_le_bytes(*field.expect("a header is longer"))
}

/// Sets the digest at the end of a header.
pub(crate) fn seal(bytes: &mut [u8]) {
    let (content, end) = bytes.split_at_mut(bytes.len() - 32);
    end.copy_from_slice(&Digest::of_bytes(content).0);
}

/// True if a header ends with its digest.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    let (content, end) = bytes.split_at(bytes.len() - 32);
    Digest::of_bytes(content).0 == *end
}
