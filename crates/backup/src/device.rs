//! Packs of a store in a bucket as devices of an image: ranges are read when they are needed, and compared with their digests.

use crate::bucket::Objects;
use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::encode::decode;
use crate::pack::Clusters;
use crate::segment::Directory;
use crate::store::Store;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_codec::Decoder;
use tuff_store::ReadAt;

/// Bytes of ranges that are kept. Unit: bytes.
const KEPT: usize = 64 << 20;
/// Directories that are kept.
const DIRECTORIES: usize = 8;
/// Most bytes of one request.
const REQUEST_MAX: usize = 8 << 20;

/// Pack as a device.
pub(crate) struct PackDevice {
    store: Arc<Store>,
    objects: Arc<Objects>,
    pack: u16,
    state: Mutex<State>,
}

/// Directory of a segment, and its ranges by their blocks.
struct Ranges {
    directory: Directory,
    order: Vec<u32>,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<u32, Arc<Ranges>>,
    /// Clusters of ranges by their first blocks, and the number of their last use.
    kept: HashMap<u32, (Arc<[u8]>, u64)>,
    bytes: usize,
    uses: u64,
    /// Block behind what was read last, and length of the next request if that goes on.
    next: (u32, usize),
}

impl State {
    fn keep(&mut self, block: u32, bytes: Arc<[u8]>) {
        self.uses += 1;
        self.bytes += bytes.len();
        if let Some((old, _)) = self.kept.insert(block, (bytes, self.uses)) {
            self.bytes -= old.len();
        }
        while self.bytes > KEPT && self.kept.len() > 1 {
            let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used);
            let Some(block) = oldest.map(|(block, _)| *block) else {
                break;
            };
            if let Some((old, _)) = self.kept.remove(&block) {
                self.bytes -= old.len();
            }
        }
    }
}

impl PackDevice {
    pub(crate) fn new(store: Arc<Store>, objects: Arc<Objects>, pack: u16) -> Self {
        Self {
            store,
            objects,
            pack,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranges of the segment that has a block.
    fn ranges(&self, block: u32) -> io::Result<Arc<Ranges>> {
        let number = self.objects.segment_at(self.pack, block);
        let number = number.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(ranges) = self.state().directories.get(&number) {
            return Ok(Arc::clone(ranges));
        }
        let segment = self.store.segments.get(&number);
        let segment = segment.ok_or(io::ErrorKind::UnexpectedEof)?;
        let directory = self.store.directory(segment).map_err(io::Error::other)?;
        // Fits: a directory has less than 2^32 entries.
        let mut order: Vec<u32> = (0..directory.ranges.len() as u32).collect();
        order.sort_unstable_by_key(|i| directory.ranges[*i as usize].block);
        let ranges = Arc::new(Ranges { directory, order });
        let mut state = self.state();
        if state.directories.len() >= DIRECTORIES {
            state.directories.clear();
        }
        state.directories.insert(number, Arc::clone(&ranges));
        Ok(ranges)
    }

    /// First block and clusters of the range that has a block.
    fn range(&self, block: u32) -> io::Result<(u32, Arc<[u8]>)> {
        let ranges = self.ranges(block)?;
        let directory = &ranges.directory;
        let blocks_of = |i: u32| directory.blocks_of(&directory.ranges[i as usize]);
        let end_of_order = ranges
            .order
            .partition_point(|i| directory.ranges[*i as usize].block <= block);
        let first = end_of_order
            .checked_sub(1)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let blocks = blocks_of(ranges.order[first]).filter(|blocks| blocks.contains(&block));
        let blocks = blocks.ok_or(io::ErrorKind::UnexpectedEof)?;
        let len = {
            let mut state = self.state();
            state.uses += 1;
            let uses = state.uses;
            if let Some((bytes, used)) = state.kept.get_mut(&blocks.start) {
                *used = uses;
                return Ok((blocks.start, Arc::clone(bytes)));
            }
            match state.next.0 == blocks.start {
                true => state.next.1,
                false => 0,
            }
        };
        // As many of the ranges behind it as one request may have.
        let mut read = vec![(ranges.order[first], blocks.clone())];
        let mut end = blocks.end;
        for i in &ranges.order[first + 1..] {
            let Some(next) = blocks_of(*i).filter(|next| next.start == end) else {
                break;
            };
            if (next.end - blocks.start) as usize * BLOCK > len {
                break;
            }
            end = next.end;
            read.push((*i, next));
        }
        let byte = |block: u32| u64::from(block) * BLOCK as u64;
        let bytes = self
            .objects
            .read(
                self.pack,
                byte(blocks.start),
                byte(end) - byte(blocks.start),
            )
            .ok_or(io::ErrorKind::UnexpectedEof)??;
        let mut found = None;
        let mut decoder = Decoder::default();
        for (i, part) in read {
            let at = (part.start - blocks.start) as usize * BLOCK;
            let bytes = &bytes[at..at + (part.end - part.start) as usize * BLOCK];
            self.compare(&mut decoder, directory, i, bytes)?;
            let bytes: Arc<[u8]> = bytes.into();
            found.get_or_insert_with(|| Arc::clone(&bytes));
            self.state().keep(part.start, bytes);
        }
        let next = (2 * bytes.len()).clamp(1 << 20, REQUEST_MAX);
        self.state().next = (end, next);
        Ok((blocks.start, found.ok_or(io::ErrorKind::UnexpectedEof)?))
    }

    fn compare(
        &self,
        decoder: &mut Decoder,
        directory: &Directory,
        i: u32,
        bytes: &[u8],
    ) -> io::Result<()> {
        let range = &directory.ranges[i as usize];
        let algorithm = self.store.compression.algorithm();
        let clusters = directory.clusters_of(range).unwrap_or_default();
        let mut content = Vec::new();
        let decoded = decode(decoder, algorithm, clusters, bytes, &mut content);
        match decoded.is_ok() && Digest::of_bytes(&content) == range.digest {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("segment {}: a range is damaged", directory.number),
            )),
        }
    }
}

impl ReadAt for PackDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < BLOCK as u64 {
            let front = self.store.packs[usize::from(self.pack)].front();
            let part = &front[offset as usize..];
            let n = part.len().min(buf.len());
            buf[..n].copy_from_slice(&part[..n]);
            return Ok(n);
        }
        if offset >= self.size() || buf.is_empty() {
            return Ok(0);
        }
        // Fits: a pack has less than 2^25 blocks.
        let (first, bytes) = self.range((offset / BLOCK as u64) as u32)?;
        let part = &bytes[(offset - u64::from(first) * BLOCK as u64) as usize..];
        let n = part.len().min(buf.len());
        buf[..n].copy_from_slice(&part[..n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.store.packs[usize::from(self.pack)].len()
    }
}
