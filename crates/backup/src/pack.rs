//! Packs: files of clusters, a row of segments.
//!
//! ```text
//! header │ clusters … │ directory │ trailer │ clusters … │ directory │ trailer
//!  block │ ───────────── segment ────────── │ ───────────── segment ────────── │
//! ```
//!
//! A segment counts when its trailer is complete. What follows the last one is of a run that ended early, and the next run
//! writes over it. Everything starts at a block.

use crate::cluster::{BLOCK, Cluster};
use crate::digest::Digest;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tuff_mkfs::{Error, Place, Result};

const MAGIC: [u8; 8] = *b"TUFFPACK";
const END: [u8; 8] = *b"TUFFSEGM";
const VERSION: u32 = 1;
/// Length of the header. The superblock of an image follows it. Unit: bytes.
pub(crate) const HEADER_LEN: usize = 1024;
/// Longest segment. Unit: bytes.
pub(crate) const SEGMENT_MAX: u64 = 256 << 20;
/// Longest pack, so that 63 of them and the metadata of a snapshot have addresses in one image. Unit: bytes.
pub(crate) const PACK_MAX: u64 = 128 << 30;
/// Most packs of a store.
pub(crate) const PACKS_MAX: u16 = 63;
/// Longest directory of a segment: each range has a block at least, or is a part of a group. Unit: bytes.
const DIRECTORY_MAX: u64 = 1 << 30;

/// Entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Range with clusters of its own. A group of small files is one, too.
    Range {
        digest: Digest,
        /// First block in the pack.
        block: u32,
        clusters: Vec<Cluster>,
    },
    /// Range that is a part of the group before it in the directory.
    Member {
        digest: Digest,
        /// Position in the group. Unit: bytes.
        offset: u32,
        len: u32,
    },
}

impl Entry {
    pub(crate) fn digest(&self) -> Digest {
        match self {
            Self::Range { digest, .. } | Self::Member { digest, .. } => *digest,
        }
    }

    /// Appends the bytes of the entry.
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Range {
                digest,
                block,
                clusters,
            } => {
                out.push(1);
                out.extend_from_slice(&digest.0);
                out.extend_from_slice(&block.to_le_bytes());
                out.extend_from_slice(&(clusters.len() as u32).to_le_bytes());
                for cluster in clusters {
                    out.extend_from_slice(&cluster.content.to_le_bytes());
                    out.extend_from_slice(&cluster.blocks.to_le_bytes());
                    out.push(u8::from(cluster.is_stored));
                }
            }
            Self::Member {
                digest,
                offset,
                len,
            } => {
                out.push(2);
                out.extend_from_slice(&digest.0);
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
            }
        }
    }

    /// Takes an entry from the start of bytes.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let kind = take::<1>(bytes)?[0];
        let digest = Digest(take(bytes)?);
        let first = u32::from_le_bytes(take(bytes)?);
        let second = u32::from_le_bytes(take(bytes)?);
        match kind {
            1 => {
                let mut clusters = Vec::new();
                for _ in 0..second {
                    let content = u32::from_le_bytes(take(bytes)?);
                    let blocks = u16::from_le_bytes(take(bytes)?);
                    let [flags] = take(bytes)?;
                    clusters.push(Cluster {
                        content,
                        blocks,
                        is_stored: flags & 1 != 0,
                    });
                }
                Some(Self::Range {
                    digest,
                    block: first,
                    clusters,
                })
            }
            2 => Some(Self::Member {
                digest,
                offset: first,
                len: second,
            }),
            _ => None,
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (now, later) = bytes.split_first_chunk()?;
    *bytes = later;
    Some(*now)
}

/// End of a segment.
struct Trailer {
    /// First block of the segment.
    start: u32,
    /// First block of the directory.
    directory: u32,
    /// Length of the directory. Unit: bytes.
    len: u64,
    /// Digest of the directory.
    digest: Digest,
}

impl Trailer {
    fn encode(&self, store: &[u8; 16]) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(&END);
        block[8..24].copy_from_slice(store);
        block[24..28].copy_from_slice(&self.start.to_le_bytes());
        block[28..32].copy_from_slice(&self.directory.to_le_bytes());
        block[32..40].copy_from_slice(&self.len.to_le_bytes());
        block[40..72].copy_from_slice(&self.digest.0);
        seal(&mut block);
        block
    }

    fn decode(block: &[u8; BLOCK], store: &[u8; 16]) -> Option<Self> {
        if block[..8] != END || block[8..24] != *store || !is_sealed(block) {
            return None;
        }
        let mut bytes = &block[24..];
        Some(Self {
            start: u32::from_le_bytes(take(&mut bytes)?),
            directory: u32::from_le_bytes(take(&mut bytes)?),
            len: u64::from_le_bytes(take(&mut bytes)?),
            digest: Digest(take(&mut bytes)?),
        })
    }
}

/// Sets the digest at the end of a header or trailer.
fn seal(bytes: &mut [u8]) {
    let (content, end) = bytes.split_at_mut(bytes.len() - 32);
    end.copy_from_slice(&Digest::of_bytes(content).0);
}

fn is_sealed(bytes: &[u8]) -> bool {
    let (content, end) = bytes.split_at(bytes.len() - 32);
    Digest::of_bytes(content).0 == *end
}

/// Pack that is open for reading.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) path: PathBuf,
    file: File,
    store: [u8; 16],
    /// End of the last segment that is complete. Unit: blocks.
    end: u32,
    /// Start and end of each directory that is whole. Unit: bytes.
    pub(crate) directories: Vec<(u64, u64)>,
    /// Directories that are damaged.
    pub(crate) damaged: Vec<String>,
}

impl Pack {
    /// First block of a pack. `image` is an empty EROFS image of one block, whose first KiB is free for the header: readers of images
    /// know the pack as a device by its UUID.
    fn first_block(store: [u8; 16], number: u16, mut image: [u8; BLOCK]) -> [u8; BLOCK] {
        let header = &mut image[..HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..14].copy_from_slice(&number.to_le_bytes());
        header[16..32].copy_from_slice(&store);
        seal(header);
        image
    }

    /// Makes an empty pack; see [`open`](Self::open).
    pub(crate) fn create(
        path: &Path,
        store: [u8; 16],
        number: u16,
        image: [u8; BLOCK],
    ) -> Result<()> {
        crate::files::create(path, &Self::first_block(store, number, image))
    }

    /// Opens a pack and finds its segments. `image` is the empty image in its first block.
    pub(crate) fn open(
        path: PathBuf,
        store: [u8; 16],
        number: u16,
        image: [u8; BLOCK],
    ) -> Result<Self> {
        let failed = |e| Error::io(Place::file(path.display()), "cannot read", e);
        let broken = |what: &str| Error::corrupt(Place::file(path.display()), what);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.or_else(|_| File::open(&path)).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut block = [0; BLOCK];
        file.read_exact_at(&mut block, 0).map_err(failed)?;
        let header = &block[..HEADER_LEN];
        if header[..8] != MAGIC || !is_sealed(header) {
            return Err(broken("no pack of a backup store"));
        }
        if header[8..12] != VERSION.to_le_bytes() {
            return Err(broken("a pack of a newer version of Tuff"));
        }
        if header[16..32] != store || header[12..14] != number.to_le_bytes() {
            return Err(broken("a pack of another store, or with another number"));
        }
        let mut pack = Self {
            file,
            store,
            end: 1,
            directories: Vec::new(),
            damaged: Vec::new(),
            path,
        };
        if block != Self::first_block(store, number, image) {
            pack.damaged.push("the first block".to_owned());
        }
        pack.find_segments(len.min(PACK_MAX))?;
        Ok(pack)
    }

    fn error(&self, what: &str, e: io::Error) -> Error {
        Error::io(Place::file(self.path.display()), what, e)
    }

    /// Finds the segments, from the last one back. Behind the last one there may be as much as a run leaves that ends early.
    fn find_segments(&mut self, len: u64) -> Result<()> {
        // Fits: compared with the longest pack.
        let blocks = (len / BLOCK as u64) as u32;
        let mut at = blocks;
        while at > 1 {
            let Some(trailer) = self.trailer(at - 1)? else {
                at -= 1;
                continue;
            };
            let start = u64::from(trailer.directory) * BLOCK as u64;
            // Content of a file may be a copy of a trailer, but not at the same block.
            let end = start
                + trailer
                    .len
                    .min(DIRECTORY_MAX)
                    .next_multiple_of(BLOCK as u64);
            let fits = trailer.start >= 1
                && trailer.start <= trailer.directory
                && trailer.len <= DIRECTORY_MAX
                && end == u64::from(at - 1) * BLOCK as u64;
            if !fits {
                at -= 1;
                continue;
            }
            self.end = self.end.max(at);
            match self.digest(start, trailer.len)? == trailer.digest {
                true => self.directories.push((start, start + trailer.len)),
                false => self.damaged.push(format!(
                    "the directory of the segment that ends at block {at}"
                )),
            }
            at = trailer.start;
        }
        self.directories.reverse();
        Ok(())
    }

    fn trailer(&self, block: u32) -> Result<Option<Trailer>> {
        let mut bytes = [0; BLOCK];
        let read = self
            .file
            .read_exact_at(&mut bytes[..], u64::from(block) * BLOCK as u64);
        read.map_err(|e| self.error("cannot read", e))?;
        Ok(Trailer::decode(&bytes, &self.store))
    }

    fn digest(&self, start: u64, len: u64) -> Result<Digest> {
        Ok(Digest::of_bytes(&self.read(start, len)?))
    }

    /// Reads `len` bytes from `start` on.
    pub(crate) fn read(&self, start: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(|e| self.error("cannot read", e))?;
        Ok(bytes)
    }

    /// Entry of a directory at a position.
    pub(crate) fn entry(&self, position: u64) -> Result<Entry> {
        // Most entries are short.
        let end = self
            .directories
            .iter()
            .find(|(start, end)| (*start..*end).contains(&position));
        let left = end.map_or(0, |(_, end)| end - position);
        let mut len = left.min(4096);
        loop {
            let bytes = self.read(position, len)?;
            match Entry::decode(&mut &bytes[..]) {
                Some(entry) => return Ok(entry),
                None if len < left => len = (4 * len).min(left),
                None => {
                    let place = Place::file(self.path.display());
                    return Err(Error::corrupt(place, "an entry of a directory is damaged"));
                }
            }
        }
    }

    /// Length up to which the pack is in use. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.end) * BLOCK as u64
    }

    /// Starts a segment behind the last one.
    pub(crate) fn begin(&self) -> Segment {
        Segment {
            start: self.end,
            next: self.end,
            entries: Vec::new(),
        }
    }

    /// Appends the clusters of a range to a segment, with the members of the range if it is a group.
    pub(crate) fn append(&self, segment: &mut Segment, new: &NewRange) -> Result<()> {
        let at = u64::from(segment.next) * BLOCK as u64;
        let written = self.file.write_all_at(&new.bytes, at);
        written.map_err(|e| self.error("cannot write", e))?;
        let range = Entry::Range {
            digest: new.digest,
            block: segment.next,
            clusters: new.clusters.clone(),
        };
        range.encode(&mut segment.entries);
        for (digest, offset, len) in &new.members {
            let member = Entry::Member {
                digest: *digest,
                offset: *offset,
                len: *len,
            };
            member.encode(&mut segment.entries);
        }
        segment.next += (new.bytes.len() / BLOCK) as u32;
        Ok(())
    }

    /// Ends a segment: its data is durable before its trailer is written, and the trailer when this returns.
    pub(crate) fn finish(&mut self, segment: Segment) -> Result<()> {
        if segment.entries.is_empty() {
            return Ok(());
        }
        let blocks = segment.entries.len().div_ceil(BLOCK) as u32;
        let trailer = Trailer {
            start: segment.start,
            directory: segment.next,
            len: segment.entries.len() as u64,
            digest: Digest::of_bytes(&segment.entries),
        };
        let start = u64::from(segment.next) * BLOCK as u64;
        let end = segment.next + blocks;
        let write = || {
            self.file.write_all_at(&segment.entries, start)?;
            self.file.sync_data()?;
            let trailer = trailer.encode(&self.store);
            self.file
                .write_all_at(&trailer, u64::from(end) * BLOCK as u64)?;
            self.file.set_len(u64::from(end + 1) * BLOCK as u64)?;
            self.file.sync_all()
        };
        write().map_err(|e| self.error("cannot write", e))?;
        self.directories.push((start, start + trailer.len));
        self.end = end + 1;
        Ok(())
    }
}

/// Range that a pack does not have yet.
#[derive(Debug)]
pub(crate) struct NewRange {
    pub(crate) digest: Digest,
    pub(crate) clusters: Vec<Cluster>,
    /// The clusters, whole blocks.
    pub(crate) bytes: Vec<u8>,
    /// Parts of a group: digest, position and length.
    pub(crate) members: Vec<(Digest, u32, u32)>,
}

/// Segment that is being written.
#[derive(Debug)]
pub(crate) struct Segment {
    start: u32,
    next: u32,
    /// Directory of the segment so far.
    entries: Vec<u8>,
}

impl Segment {
    /// Length of the segment. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        u64::from(self.next - self.start) * BLOCK as u64 + self.entries.len() as u64
    }

    /// Length that the pack will have. Unit: bytes.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.next) * BLOCK as u64 + self.entries.len() as u64 + 2 * BLOCK as u64
    }
}
