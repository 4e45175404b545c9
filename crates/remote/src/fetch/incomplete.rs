//! Run of chunks whose bytes come from two places: other images in the cache, and the source.

use crate::cache::CHUNK;
use crate::fetch::shared::SharedChunk;
use std::collections::HashMap;
use std::ops::Range;

/// Run of chunks, some of which are missing.
pub(super) struct Incomplete {
    pub(super) first: u64,
    /// Length of the run. Unit: bytes.
    len: usize,
    /// Empty until bytes are copied or fetched: many runs wait for their answers at once.
    pub(super) bytes: Vec<u8>,
    /// Chunks that are missing, and those between them.
    pub(super) missing: Range<u64>,
    /// Places in other images of chunks that were copied, by their numbers.
    pub(super) places: HashMap<u64, (usize, u64)>,
}

impl Incomplete {
    /// Run of `len` bytes, all of which are missing.
    pub(super) fn new(run: &Range<u64>, len: u64) -> Self {
        Self {
            first: run.start,
            // Fits: at most a few MiB.
            len: len as usize,
            bytes: Vec::new(),
            missing: run.clone(),
            places: HashMap::new(),
        }
    }

    /// Position of the missing bytes in the run.
    fn place(&self) -> Range<usize> {
        // Fits: the run is in memory.
        let at = |chunk: u64| (((chunk - self.first) * CHUNK) as usize).min(self.len);
        at(self.missing.start)..at(self.missing.end)
    }

    pub(super) fn missing_bytes(&self) -> &[u8] {
        &self.bytes[self.place()]
    }

    pub(super) fn fill(&mut self, bytes: Vec<u8>) {
        let place = self.place();
        match place.len() == self.len {
            true => self.bytes = bytes,
            false => {
                self.bytes.resize(self.len, 0);
                self.bytes[place].copy_from_slice(&bytes);
            }
        }
    }

    /// Copies chunks from the start and the end of the run, as long as `find` has them. Returns the number of bytes.
    pub(super) fn copy(&mut self, find: impl Fn(u64) -> Option<SharedChunk>) -> u64 {
        let mut copied = 0;
        let (first, len, places) = (self.first, self.len, &mut self.places);
        let mut put = |bytes: &mut Vec<u8>, chunk: u64| {
            let Some(found) = find(chunk) else {
                return false;
            };
            let at = ((chunk - first) * CHUNK) as usize;
            bytes.resize(len, 0);
            bytes[at..at + found.bytes.len()].copy_from_slice(&found.bytes);
            copied += found.bytes.len() as u64;
            places.extend(found.place.map(|place| (chunk, place)));
            true
        };
        while !self.missing.is_empty() && put(&mut self.bytes, self.missing.start) {
            self.missing.start += 1;
        }
        while !self.missing.is_empty() && put(&mut self.bytes, self.missing.end - 1) {
            self.missing.end -= 1;
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_taken_from_both_ends() {
        let mut part = Incomplete::new(&(4..9), 4 * CHUNK + 10);
        let copied = part.copy(|chunk| {
            let has = [4, 6, 7].contains(&chunk);
            has.then(|| SharedChunk {
                bytes: vec![chunk as u8; CHUNK as usize],
                place: Some((0, chunk)),
            })
        });
        assert_eq!((copied, part.missing.clone()), (CHUNK, 5..9));
        assert_eq!(part.places, HashMap::from([(4, (0, 4))]));
        part.fill(vec![1; 3 * CHUNK as usize + 10]);
        assert!(part.bytes[..CHUNK as usize].iter().all(|b| *b == 4));
        assert!(part.bytes[CHUNK as usize..].iter().all(|b| *b == 1));
    }
}
