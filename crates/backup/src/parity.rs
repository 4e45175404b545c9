//! Hash tree and parity of a segment, in the format of dm-verity: they tell which blocks are damaged, and correct them.
//!
//! ```text
//! covered:                 clusters of the segment │ its directory
//! segments/00000001.tree:  front │ header of dm-verity │ hash tree │ parity │ front
//! ```
//!
//! Blocks that no range has count as zeros, so that tree and parity stay right when holes take their place.

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::faults::is_lost;
use crate::files::step;
use crate::pack::{Pack, field, is_sealed, put_fields, seal};
use crate::segment::{self, DIRECTORY_MAX, SegmentHeader, is_segment};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tuff_store::{Output, ReadAt, Target, retry};
use tuff_verity::{HEADER_LEN, Header, Root, TreePlace, Verified, make, tree_end};

const MAGIC: [u8; 8] = *b"TUFFTREE";

/// Front of a tree's file, which is there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeFront {
    pub(crate) number: u32,
    pub(crate) pack: u16,
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    /// Length of the directory. Unit: bytes.
    pub(crate) directory_len: u64,
    /// Digest at the end of the directory that is covered.
    pub(crate) directory: Digest,
    roots: u32,
    root: Root,
}

impl TreeFront {
    fn encode(&self, store: &[u8; 16]) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(store);
        let fields = [
            self.number,
            self.pack.into(),
            self.start,
            self.blocks,
            self.roots,
        ];
        put_fields(&mut bytes[24..], &fields);
        bytes[48..56].copy_from_slice(&self.directory_len.to_le_bytes());
        bytes[56..88].copy_from_slice(&self.directory.0);
        bytes[88..120].copy_from_slice(&self.root);
        seal(&mut bytes);
        bytes
    }

    fn decode(bytes: &[u8], store: &[u8; 16]) -> Option<Self> {
        if bytes[..8] != MAGIC || bytes[8..24] != *store || !is_sealed(bytes) {
            return None;
        }
        let field = |i| field(&bytes[24..], i);
        let front = Self {
            number: field(0),
            pack: u16::try_from(field(1)).ok()?,
            start: field(2),
            blocks: field(3),
            roots: field(4),
            directory_len: u64::from_le_bytes(*bytes[48..].first_chunk()?),
            directory: Digest(*bytes[56..].first_chunk()?),
            root: *bytes[88..].first_chunk()?,
        };
        let is_placed = is_segment(front.pack, front.start, front.blocks);
        let is_bounded = is_placed && front.directory_len <= DIRECTORY_MAX;
        (is_bounded && front.end(store).is_ok()).then_some(front)
    }

    /// Length of what is covered. Unit: bytes.
    fn covered_len(&self) -> u64 {
        u64::from(self.blocks) * BLOCK as u64 + self.directory_len.next_multiple_of(BLOCK as u64)
    }

    fn header(&self, store: &[u8; 16]) -> io::Result<Header> {
        let mut uuid = *store;
        uuid[12..].copy_from_slice(&self.number.to_le_bytes());
        let header = Header::new(self.covered_len(), BLOCK as u32, Vec::new(), uuid);
        header.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// End of tree and parity, where the second front is. Unit: bytes.
    fn end(&self, store: &[u8; 16]) -> io::Result<u64> {
        let end = tree_end(&self.header(store)?, Some(self.roots), BLOCK as u64);
        end.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Longest run of the segment that is corrected wherever it is. Unit: bytes.
    pub(crate) fn longest_run(&self) -> u64 {
        let rows = 255 - u64::from(self.roots);
        let rounds = self.covered_len().div_ceil(BLOCK as u64).div_ceil(rows);
        // It may begin within a block.
        (rounds * u64::from(self.roots) - 1) * BLOCK as u64 + 1
    }
}

/// Number of roots for a segment: 2 % of parity, and at least two blocks.
pub(crate) fn roots(blocks: u64) -> u32 {
    // Fits: at most 5.
    (blocks / 50).clamp(2, 5) as u32
}

/// Bytes that the tree of a segment covers.
pub(crate) struct Covered {
    /// File of the pack. `None` if it is missing.
    pack: Option<File>,
    start: u64,
    len: u64,
    /// Directory, padded to whole blocks.
    directory: Mutex<Vec<u8>>,
    size: u64,
    /// Blocks of the pack that count as zeros.
    gaps: Vec<Range<u32>>,
}

impl Covered {
    fn new(
        pack: &Pack,
        (start, blocks): (u32, u32),
        mut directory: Vec<u8>,
        directory_len: u64,
        gaps: Vec<Range<u32>>,
    ) -> io::Result<Self> {
        let len = u64::from(blocks) * BLOCK as u64;
        // Fits: the directory is in memory.
        let padded = directory_len.next_multiple_of(BLOCK as u64) as usize;
        directory.reserve_exact(padded.saturating_sub(directory.len()));
        directory.resize(padded, 0);
        Ok(Self {
            pack: pack.file().ok().map(File::try_clone).transpose()?,
            start: u64::from(start) * BLOCK as u64,
            len,
            size: len + directory.len() as u64,
            directory: Mutex::new(directory),
            gaps,
        })
    }

    pub(crate) fn directory(&self) -> MutexGuard<'_, Vec<u8>> {
        self.directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads blocks of the pack. What the file does not have is zeros.
    fn read_pack(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(pack) = &self.pack else {
            buf.fill(0);
            return Ok(());
        };
        let mut done = 0;
        while done < buf.len() {
            match pack.read_at(&mut buf[done..], self.start + offset + done as u64) {
                Ok(0) => {
                    buf[done..].fill(0);
                    break;
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let first = self.start + offset;
        for gap in &self.gaps {
            let gap = u64::from(gap.start) * BLOCK as u64..u64::from(gap.end) * BLOCK as u64;
            let (from, to) = (gap.start.max(first), gap.end.min(first + buf.len() as u64));
            if from < to {
                buf[(from - first) as usize..(to - first) as usize].fill(0);
            }
        }
        Ok(())
    }
}

impl ReadAt for Covered {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < self.len {
            let n = (self.len - offset).min(buf.len() as u64) as usize;
            self.read_pack(&mut buf[..n], offset)?;
            return Ok(n);
        }
        let directory = self.directory();
        let rest = directory
            .get((offset - self.len) as usize..)
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.size
    }
}

/// File of which a length counts. What it does not have is zeros, and a part may be what it must be, whatever the file has there.
pub(crate) struct Padded {
    file: File,
    len: u64,
    fixed: Vec<u8>,
    fixed_at: u64,
}

impl Padded {
    pub(crate) fn new(file: File, len: u64) -> Self {
        Self {
            file,
            len,
            fixed: Vec::new(),
            fixed_at: 0,
        }
    }

    /// Sets the part that is known.
    pub(crate) fn with(self, at: u64, bytes: &[u8]) -> Self {
        Self {
            fixed: bytes.to_vec(),
            fixed_at: at,
            ..self
        }
    }
}

impl ReadAt for Padded {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..n];
        buf.fill(0);
        let mut done = 0;
        while done < n {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let fixed = self.fixed_at..self.fixed_at + self.fixed.len() as u64;
        let (from, to) = (fixed.start.max(offset), fixed.end.min(offset + n as u64));
        if from < to {
            let part = &self.fixed[(from - fixed.start) as usize..(to - fixed.start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.len
    }
}

/// Writes tree and parity of a segment, durably. `gaps`: blocks that count as zeros.
pub(crate) fn write(
    path: &Path,
    store: &[u8; 16],
    pack: &Pack,
    header: &SegmentHeader,
    directory: Vec<u8>,
    gaps: Vec<Range<u32>>,
    threads: usize,
) -> io::Result<()> {
    let mut front = TreeFront {
        number: header.number,
        pack: header.pack,
        start: header.start,
        blocks: header.blocks,
        directory_len: directory.len() as u64,
        directory: segment::digest(&directory),
        roots: 0,
        root: Root::default(),
    };
    front.roots = roots(front.covered_len() / BLOCK as u64);
    let place = (header.start, header.blocks);
    let covered = Covered::new(pack, place, directory, front.directory_len, gaps)?;
    pack.file()?;
    step()?;
    let output = Output::create(&Target::Path(path.to_owned()))?;
    let parameters = front.header(store)?;
    let roots = Some(front.roots);
    let at = BLOCK as u64;
    let built = make(&covered, &parameters, roots, &output, at, threads, &|_| {
        Ok(())
    })?;
    front.root = built.root;
    let bytes = front.encode(store);
    output.write_at(&bytes, 0)?;
    output.write_at(&bytes, built.end)?;
    step()?;
    if is_lost() {
        return Ok(());
    }
    output.finish(built.end + BLOCK as u64, true)
}

/// Tree of a segment that is open.
pub(crate) struct SegmentTree {
    pub(crate) front: TreeFront,
    pub(crate) verified: Verified,
    pub(crate) covered: Arc<Covered>,
    /// False if one of the fronts or the header is damaged.
    pub(crate) has_fronts: bool,
    store: [u8; 16],
}

impl SegmentTree {
    /// Opens the tree of a segment. `None` if there is none, or if both fronts are damaged. `directory`: bytes of the directory as
    /// they are in its file. `gaps`: blocks that count as zeros.
    pub(crate) fn open(
        path: &Path,
        store: &[u8; 16],
        packs: &[Pack],
        directory: Vec<u8>,
        gaps: Vec<Range<u32>>,
    ) -> io::Result<Option<Self>> {
        let Some(front) = front(path, store)? else {
            return Ok(None);
        };
        let Some(pack) = packs.get(usize::from(front.pack)) else {
            return Ok(None);
        };
        let file = crate::files::open(path)?;
        let (header, end) = (front.header(store)?, front.end(store)?);
        let place = (front.start, front.blocks);
        let covered = Covered::new(pack, place, directory, front.directory_len, gaps)?;
        let covered = Arc::new(covered);
        let mut block = [0; BLOCK];
        let is_whole = |at, expected: &[u8], block: &mut [u8]| {
            file.read_exact_at(&mut block[..expected.len()], at).is_ok()
                && block[..expected.len()] == *expected
        };
        let bytes = front.encode(store);
        let mut header_block = [0; BLOCK];
        header_block[..HEADER_LEN].copy_from_slice(&header.encode());
        let has_fronts = is_whole(0, &bytes, &mut block)
            && is_whole(BLOCK as u64, &header_block, &mut block)
            && is_whole(end, &bytes, &mut block);
        let tree = Padded::new(file, end).with(BLOCK as u64, &header.encode());
        let tree = TreePlace::separate(Arc::new(tree), BLOCK as u64);
        let data: Arc<dyn ReadAt> = Arc::clone(&covered) as _;
        let verified = Verified::open(data, tree, front.root, |_| Ok(front.covered_len()))?;
        Ok(Some(Self {
            front,
            verified,
            covered,
            has_fronts,
            store: *store,
        }))
    }

    /// Blocks of the pack that the tree covers.
    pub(crate) fn data_len(&self) -> u64 {
        self.covered.len
    }

    /// Writes the fronts and the header anew.
    pub(crate) fn write_fronts(&self, file: &File) -> io::Result<()> {
        let bytes = self.front.encode(&self.store);
        let mut header = [0; BLOCK];
        header[..HEADER_LEN].copy_from_slice(&self.front.header(&self.store)?.encode());
        for (bytes, at) in [
            (&bytes, 0),
            (&header, BLOCK as u64),
            (&bytes, self.front.end(&self.store)?),
        ] {
            step()?;
            file.write_all_at(bytes, at)?;
        }
        Ok(())
    }
}

/// Reads the front of a tree's file, or the second one. `None` without a file, or if both are damaged. One that cannot be read is an
/// error if the other one does not stand in for it: a tree in its place would take damage for content.
pub(crate) fn front(path: &Path, store: &[u8; 16]) -> io::Result<Option<TreeFront>> {
    let file = match crate::files::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let len = retry(|| file.metadata())?.len();
    two_fronts(&file, len, &|bytes| TreeFront::decode(bytes, store))
        .map(|[one, other]| one.or(other))
}

/// Reads the first and the last block of a file of `len` bytes.
///
/// # Errors
/// Those of reading one of them, if the other one is damaged.
pub(crate) fn two_fronts<T>(
    file: &File,
    len: u64,
    decode: &dyn Fn(&[u8; BLOCK]) -> Option<T>,
) -> io::Result<[Option<T>; 2]> {
    let mut failed = None;
    let mut bytes = [0; BLOCK];
    let mut read = |at| match file.read_exact_at(&mut bytes, at) {
        Ok(()) => decode(&bytes),
        Err(e) => {
            failed = Some(e).filter(|e| e.kind() != io::ErrorKind::UnexpectedEof);
            None
        }
    };
    let fronts = [read(0), read(len.saturating_sub(BLOCK as u64))];
    match failed {
        Some(e) if fronts.iter().all(Option::is_none) => Err(e),
        _ => Ok(fronts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fronts_that_claim_too_much_are_refused() {
        let store = [3; 16];
        let front = TreeFront {
            number: 1,
            pack: 0,
            start: 1,
            blocks: 100,
            directory_len: 5000,
            directory: Digest::of_bytes(b""),
            roots: 2,
            root: Root::default(),
        };
        let decode = |front: &TreeFront| TreeFront::decode(&front.encode(&store), &store);
        assert_eq!(decode(&front), Some(front));
        for roots in [0, 1, 25, u32::MAX] {
            assert_eq!(decode(&TreeFront { roots, ..front }), None, "{roots}");
        }
        for blocks in [u32::MAX, 1 << 20] {
            assert_eq!(decode(&TreeFront { blocks, ..front }), None, "{blocks}");
        }
        let directory_len = u64::MAX;
        let long = TreeFront {
            directory_len,
            ..front
        };
        assert_eq!(decode(&long), None);
    }
}
