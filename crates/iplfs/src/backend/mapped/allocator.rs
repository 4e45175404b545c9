//! Free physical blocks.

use std::collections::BTreeSet;
use std::ops::Range;

/// Blocks of a chunk, the unit in which logs avoid each other: 1 MiB.
const CHUNK: u64 = 256;
const WORDS: usize = CHUNK as usize / 64;

/// Bitmap of used blocks. Each log fills chunks of its own while there are empty ones, so that its blocks lie
/// together and die together.
pub(super) struct Allocator {
    data: Range<u64>,
    used: Vec<u64>,
    /// Number of free blocks in each chunk.
    free_in_chunk: Vec<u16>,
    free: u64,
    empty_chunks: usize,
    /// Chunk after the last one that was chosen.
    rotor: usize,
    /// Chunks that became empty, which the medium may discard.
    emptied: Vec<usize>,
    /// Chunks with blocks that became free since the medium discarded them.
    freed: BTreeSet<usize>,
    /// Next block of each area.
    next: [Option<u64>; 8],
}

impl Allocator {
    /// Creates an allocator of free blocks.
    pub(super) fn new(data: Range<u64>) -> Self {
        let blocks = data.end - data.start;
        let chunks = blocks.div_ceil(CHUNK) as usize;
        let mut allocator = Self {
            data,
            used: vec![0; chunks * WORDS],
            free_in_chunk: vec![CHUNK as u16; chunks],
            free: chunks as u64 * CHUNK,
            empty_chunks: chunks,
            rotor: 0,
            emptied: Vec::new(),
            freed: BTreeSet::new(),
            next: [None; 8],
        };
        for index in blocks..chunks as u64 * CHUNK {
            allocator.set_used(index);
        }
        allocator
    }

    /// Number of free blocks.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    fn is_used(&self, index: u64) -> bool {
        self.used[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    fn set_used(&mut self, index: u64) {
        debug_assert!(!self.is_used(index), "block {index} was allocated twice");
        self.used[(index / 64) as usize] |= 1 << (index % 64);
        let free = &mut self.free_in_chunk[(index / CHUNK) as usize];
        self.empty_chunks -= usize::from(u64::from(*free) == CHUNK);
        *free -= 1;
        self.free -= 1;
    }

    /// Marks a physical block as used.
    pub(super) fn take(&mut self, physical: u64) {
        self.set_used(physical - self.data.start);
    }

    /// Takes a chunk that became empty and still is. The caller discards its blocks and puts them back.
    pub(super) fn take_emptied(&mut self) -> Option<Range<u64>> {
        while let Some(chunk) = self.emptied.pop() {
            if u64::from(self.free_in_chunk[chunk]) == CHUNK {
                let start = chunk as u64 * CHUNK;
                (start..start + CHUNK).for_each(|index| self.set_used(index));
                return Some(self.data.start + start..self.data.start + start + CHUNK);
            }
        }
        None
    }

    /// Takes the free runs of a chunk in which blocks became free. The caller discards them and puts each back. None after the last
    /// chunk.
    pub(super) fn take_freed(&mut self) -> Option<Vec<Range<u64>>> {
        let chunk = self.freed.pop_first()? as u64 * CHUNK;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for index in chunk..chunk + CHUNK {
            if self.is_used(index) {
                continue;
            }
            self.set_used(index);
            let physical = self.data.start + index;
            match runs.last_mut() {
                Some(last) if last.end == physical => last.end += 1,
                _ => runs.push(physical..physical + 1),
            }
        }
        Some(runs)
    }

    /// Puts back blocks of [`take_emptied`](Self::take_emptied) or [`take_freed`](Self::take_freed), which are discarded.
    pub(super) fn put_back(&mut self, blocks: Range<u64>) {
        let chunk = ((blocks.start - self.data.start) / CHUNK) as usize;
        self.set_free(blocks);
        if u64::from(self.free_in_chunk[chunk]) == CHUNK {
            self.freed.remove(&chunk);
        }
    }

    /// Frees physical blocks.
    pub(super) fn release(&mut self, blocks: Range<u64>) {
        let chunks = (blocks.start - self.data.start) / CHUNK
            ..(blocks.end - self.data.start).div_ceil(CHUNK);
        self.set_free(blocks);
        for chunk in chunks.map(|chunk| chunk as usize) {
            self.freed.insert(chunk);
            if u64::from(self.free_in_chunk[chunk]) == CHUNK {
                self.emptied.push(chunk);
            }
        }
    }

    fn set_free(&mut self, blocks: Range<u64>) {
        for index in blocks.start - self.data.start..blocks.end - self.data.start {
            debug_assert!(self.is_used(index), "block {index} was freed twice");
            self.used[(index / 64) as usize] &= !(1 << (index % 64));
            let free = &mut self.free_in_chunk[(index / CHUNK) as usize];
            *free += 1;
            self.free += 1;
            self.empty_chunks += usize::from(u64::from(*free) == CHUNK);
        }
    }

    /// Allocates `want` blocks for an area, in as few runs as possible. `None` if fewer are free.
    pub(super) fn allocate(&mut self, area: usize, want: u64) -> Option<Vec<Range<u64>>> {
        if want > self.free {
            return None;
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for _ in 0..want {
            let index = self.next_free(area)?;
            self.set_used(index);
            self.next[area] = Some(index + 1);
            let physical = self.data.start + index;
            match runs.last_mut() {
                Some(last) if last.end == physical => last.end += 1,
                _ => runs.push(physical..physical + 1),
            }
        }
        Some(runs)
    }

    /// Next free block of an area: in its chunk, else in the following chunk if that is empty, else elsewhere.
    fn next_free(&mut self, area: usize) -> Option<u64> {
        let mut following = usize::MAX;
        if let Some(next) = self.next[area] {
            let chunk = (next / CHUNK) as usize;
            let is_inside = !next.is_multiple_of(CHUNK);
            if is_inside && let Some(index) = self.first_free(chunk, next) {
                return Some(index);
            }
            following = chunk + usize::from(is_inside);
        }
        let is_empty = |free: &u16| u64::from(*free) == CHUNK;
        let chunk = match self.free_in_chunk.get(following) {
            Some(free) if is_empty(free) => following,
            _ => self.choose_chunk()?,
        };
        self.first_free(chunk, chunk as u64 * CHUNK)
    }

    /// Chooses the next empty chunk. If there is none, the next one with at least the average number of free blocks.
    fn choose_chunk(&mut self) -> Option<usize> {
        let chunks = self.free_in_chunk.len();
        let enough = match self.empty_chunks {
            0 => (self.free / chunks as u64).max(1),
            _ => CHUNK,
        };
        let mut order = (self.rotor..chunks).chain(0..self.rotor);
        let chunk = order.find(|chunk| u64::from(self.free_in_chunk[*chunk]) >= enough)?;
        self.rotor = (chunk + 1) % chunks;
        Some(chunk)
    }

    /// First free block of a chunk from `start` on.
    fn first_free(&self, chunk: usize, start: u64) -> Option<u64> {
        let end = (chunk as u64 + 1) * CHUNK;
        let mut at = start;
        while at < end {
            let word = self.used.get((at / 64) as usize)? >> (at % 64);
            let free = u64::from((!word).trailing_zeros());
            // The shift filled the word with zeros, which are no free blocks.
            if free < 64 - at % 64 {
                return Some(at + free);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_fill_chunks_of_their_own_and_then_every_gap() {
        let mut space = Allocator::new(1000..1000 + 3 * CHUNK + 7);
        assert_eq!(space.free(), 3 * CHUNK + 7);
        assert_eq!(space.allocate(2, 10).unwrap(), vec![1000..1010; 1]);
        assert_eq!(space.allocate(5, 1).unwrap(), vec![1256..1257; 1]);
        // The next chunk belongs to another area.
        assert_eq!(space.allocate(2, 250).unwrap(), [1010..1256, 1512..1516]);
        let rest = space.free();
        let runs = space.allocate(3, rest).unwrap();
        assert_eq!(
            runs.iter().map(|run| run.end - run.start).sum::<u64>(),
            rest
        );
        assert_eq!((space.free(), space.allocate(0, 1)), (0, None));
        space.release(1300..1303);
        assert_eq!(space.allocate(1, 3).unwrap(), vec![1300..1303; 1]);
        assert_eq!(space.take_emptied(), None);
        space.release(1256..1512);
        assert_eq!(space.take_emptied(), Some(1256..1512));
        assert_eq!(space.free(), 0);
        space.put_back(1256..1512);
        assert_eq!((space.free(), space.take_emptied()), (CHUNK, None));
        assert_eq!(space.take_freed(), None);
        space.release(1020..1022);
        space.release(1100..1101);
        assert_eq!(space.take_freed(), Some(vec![1020..1022, 1100..1101]));
        assert_eq!((space.free(), space.take_freed()), (CHUNK, None));
        space.put_back(1020..1022);
        space.put_back(1100..1101);
        assert_eq!((space.free(), space.take_freed()), (CHUNK + 3, None));
    }
}
