//! Packs as devices of an image, which compare what they read with its digests: ranges are read when they are needed, and decoded once.

use crate::cluster::BLOCK;
use crate::store::Store;
use crate::unit::{Ranges, Unit};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tuff_codec::Decoder;
use tuff_store::ReadAt;

/// Bytes of ranges that are kept, encoded and decoded. Unit: bytes.
const KEPT: usize = 64 << 20;
/// Directories that are kept.
const DIRECTORIES: usize = 8;
/// Most bytes of one request.
const REQUEST_MAX: usize = 8 << 20;

/// Pack and block.
type At = (u16, u32);

/// Ranges that the devices of one image have read.
pub(crate) struct Comparing {
    store: Arc<Store>,
    /// Number and end of the segments of a directory, by their starts. A bucket knows its own.
    segments: BTreeMap<At, (u32, u32)>,
    state: Mutex<State>,
    /// A range has been read.
    ready: Condvar,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<u32, Arc<Ranges>>,
    kept: Kept,
    /// Ranges that other threads read.
    reading: BTreeSet<At>,
    /// Place behind what was read last from a bucket, and length of the next request if that goes on.
    next: (At, usize),
    decoders: Vec<Decoder>,
}

/// Ranges that were used lately: those of the last half of the memory, and those before.
#[derive(Default)]
struct Kept {
    young: HashMap<At, Arc<Unit>>,
    old: HashMap<At, Arc<Unit>>,
    bytes: usize,
}

impl Kept {
    fn get(&mut self, at: At) -> Option<Arc<Unit>> {
        if let Some(unit) = self.young.get(&at) {
            return Some(Arc::clone(unit));
        }
        let unit = self.old.remove(&at)?;
        self.put(at, Arc::clone(&unit));
        Some(unit)
    }

    fn put(&mut self, at: At, unit: Arc<Unit>) {
        self.bytes += unit.len();
        self.young.insert(at, unit);
        if self.bytes > KEPT / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }
}

impl Comparing {
    pub(crate) fn new(store: Arc<Store>) -> Arc<Self> {
        let headers = store.segments.values().map(|segment| &segment.header);
        let segments = headers.map(|h| ((h.pack, h.start), (h.number, h.start + h.blocks)));
        Arc::new(Self {
            segments: segments.collect(),
            store,
            state: Mutex::default(),
            ready: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the segment that has a block.
    fn segment(&self, at: At) -> Option<u32> {
        if let Some(objects) = &self.store.objects {
            return objects.segment_at(at.0, at.1);
        }
        let (start, (number, end)) = self.segments.range(..=at).next_back()?;
        (start.0 == at.0 && at.1 < *end).then_some(*number)
    }

    /// Ranges of the segment that has a block.
    fn ranges(&self, at: At) -> io::Result<Arc<Ranges>> {
        let number = self.segment(at).ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(ranges) = self.state().directories.get(&number) {
            return Ok(Arc::clone(ranges));
        }
        let segment = self.store.segments.get(&number);
        let segment = segment.ok_or(io::ErrorKind::UnexpectedEof)?;
        let directory = self.store.directory(segment).map_err(io::Error::other)?;
        let ranges = Arc::new(Ranges::new(directory));
        let mut state = self.state();
        if state.directories.len() >= DIRECTORIES {
            state.directories.clear();
        }
        state.directories.insert(number, Arc::clone(&ranges));
        Ok(ranges)
    }

    /// First block and content of the range that has a block.
    fn unit(&self, at: At) -> io::Result<(u32, Arc<Unit>)> {
        let ranges = self.ranges(at)?;
        let blocks = ranges.at(at.1).ok_or_else(|| damaged(&ranges))?;
        let key = (at.0, blocks.start);
        let mut state = self.state();
        loop {
            if let Some(unit) = state.kept.get(key) {
                return Ok((blocks.start, unit));
            }
            if state.reading.insert(key) {
                break;
            }
            let waited = self.ready.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let len = match state.next.0 == key {
            true => state.next.1,
            false => 0,
        };
        let mut decoder = state.decoders.pop().unwrap_or_default();
        drop(state);
        let _reading = Reading(self, key);
        let read = self.read(&mut decoder, &ranges, at.0, blocks.clone(), len);
        self.state().decoders.push(decoder);
        Ok((blocks.start, read?))
    }

    /// Reads a range, and of those behind it as many as one request to a bucket may have.
    fn read(
        &self,
        decoder: &mut Decoder,
        ranges: &Ranges,
        pack: u16,
        blocks: Range<u32>,
        len: usize,
    ) -> io::Result<Arc<Unit>> {
        let mut read = vec![blocks.clone()];
        let mut end = blocks.end;
        while let Some(next) = ranges.at(end).filter(|next| next.start == end) {
            if next.is_empty() || (next.end - blocks.start) as usize * BLOCK > len {
                break;
            }
            end = next.end;
            read.push(next);
        }
        let byte = |block: u32| u64::from(block) * BLOCK as u64;
        let pack_of = &self.store.packs[usize::from(pack)];
        let bytes = pack_of.read_stored(byte(blocks.start), byte(end) - byte(blocks.start));
        let bytes = bytes.map_err(io::Error::other)?;
        let algorithm = self.store.compression.algorithm();
        let mut found = None;
        for part in read {
            let from = (part.start - blocks.start) as usize * BLOCK;
            let to = (part.end - blocks.start) as usize * BLOCK;
            let bytes = bytes.get(from..to).ok_or(io::ErrorKind::UnexpectedEof)?;
            let unit = ranges.unit(decoder, algorithm, part.start, bytes.to_vec());
            let unit = Arc::new(unit);
            found.get_or_insert_with(|| Arc::clone(&unit));
            self.state().kept.put((pack, part.start), unit);
        }
        if self.store.objects.is_some() {
            let next = (2 * bytes.len()).clamp(1 << 20, REQUEST_MAX);
            self.state().next = ((pack, end), next);
        }
        found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// A range that a thread reads. The others wait until it is dropped.
struct Reading<'a>(&'a Comparing, At);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.state().reading.remove(&self.1);
        self.0.ready.notify_all();
    }
}

fn damaged(ranges: &Ranges) -> io::Error {
    let number = ranges.directory.number;
    let what =
        format!("segment {number}: a range is damaged; `tuff store repair` corrects what it can");
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Pack as a device.
pub(crate) struct PackDevice {
    comparing: Arc<Comparing>,
    pack: u16,
}

impl PackDevice {
    pub(crate) fn new(comparing: &Arc<Comparing>, pack: u16) -> Self {
        Self {
            comparing: Arc::clone(comparing),
            pack,
        }
    }

    /// Block of an offset. Fits: a pack has less than 2^25 blocks.
    fn at(&self, offset: u64) -> At {
        (self.pack, (offset / BLOCK as u64) as u32)
    }

    /// Content of the range at an offset, and the offset in it.
    fn unit(&self, offset: u64) -> io::Result<(usize, Arc<Unit>)> {
        let (first, unit) = self.comparing.unit(self.at(offset))?;
        Ok(((offset - u64::from(first) * BLOCK as u64) as usize, unit))
    }

    fn damaged(&self, offset: u64) -> io::Error {
        match self.comparing.ranges(self.at(offset)) {
            Ok(ranges) => damaged(&ranges),
            Err(e) => e,
        }
    }
}

impl ReadAt for PackDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < BLOCK as u64 {
            let front = self.comparing.store.packs[usize::from(self.pack)].front();
            let part = &front[offset as usize..];
            let n = part.len().min(buf.len());
            buf[..n].copy_from_slice(&part[..n]);
            return Ok(n);
        }
        if offset >= self.size() || buf.is_empty() {
            return Ok(0);
        }
        let (at, unit) = self.unit(offset)?;
        match unit.read(at, buf) {
            0 => Err(self.damaged(offset)),
            n => Ok(n),
        }
    }

    fn size(&self) -> u64 {
        self.comparing.store.packs[usize::from(self.pack)].len()
    }

    fn content_at(
        &self,
        offset: u64,
        len: u32,
        used: Range<usize>,
        dst: &mut [u8],
    ) -> Option<io::Result<()>> {
        if offset < BLOCK as u64 || offset >= self.size() {
            return None;
        }
        let (at, unit) = match self.unit(offset) {
            Ok(found) => found,
            Err(e) => return Some(Err(e)),
        };
        match unit.content_at(at, len as usize, used, dst)? {
            true => Some(Ok(())),
            false => Some(Err(self.damaged(offset))),
        }
    }
}
