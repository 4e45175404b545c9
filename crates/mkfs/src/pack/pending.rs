//! Encoded blocks that wait until all other data is placed: in memory up to a budget, then in an unnamed file.

use super::worker::PartOut;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Digest and parts of some blocks.
pub(crate) type Parts = (u128, Vec<PartOut>);

/// Queue of encoded blocks.
pub(crate) struct PendingBlocks {
    /// Entries in order: place of the bytes, and their parts.
    queue: VecDeque<(Place, Parts)>,
    /// Number of bytes in memory.
    in_memory: usize,
    budget: usize,
    file: Option<File>,
    /// Bytes in the file.
    flushed: u64,
    dir: PathBuf,
}

enum Place {
    Memory(Vec<u8>),
    /// Position and length in the file.
    File(u64, usize),
}

impl PendingBlocks {
    /// Returns a queue that keeps `budget` bytes in memory and the rest in a file in `dir`.
    pub(crate) fn new(budget: usize, dir: PathBuf) -> Self {
        Self {
            queue: VecDeque::new(),
            in_memory: 0,
            budget,
            file: None,
            flushed: 0,
            dir,
        }
    }

    /// Appends blocks to the queue.
    pub(crate) fn put(&mut self, bytes: &[u8], parts: Parts) -> Result<()> {
        let place = if self.in_memory + bytes.len() <= self.budget {
            self.in_memory += bytes.len();
            Place::Memory(bytes.to_vec())
        } else {
            let fail = |e| Error::io(self.dir.display(), "cannot write temporary data", e);
            let file = match &self.file {
                Some(file) => file,
                None => self
                    .file
                    .insert(tuff_store::anonymous(&self.dir).map_err(fail)?),
            };
            file.write_all_at(bytes, self.flushed).map_err(fail)?;
            self.flushed += bytes.len() as u64;
            Place::File(self.flushed - bytes.len() as u64, bytes.len())
        };
        self.queue.push_back((place, parts));
        Ok(())
    }

    /// Takes the first blocks of the queue.
    pub(crate) fn next(&mut self) -> Result<Option<(Vec<u8>, Parts)>> {
        let Some((place, parts)) = self.queue.pop_front() else {
            return Ok(None);
        };
        let bytes = match place {
            Place::Memory(bytes) => {
                self.in_memory -= bytes.len();
                bytes
            }
            Place::File(at, len) => {
                let Some(file) = &self.file else {
                    unreachable!("bytes were flushed, so there is a file")
                };
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, at)
                    .map_err(|e| Error::io(self.dir.display(), "cannot read temporary data", e))?;
                bytes
            }
        };
        Ok(Some((bytes, parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_in_order_from_memory_and_from_the_file() {
        let mut pending = PendingBlocks::new(100, std::env::temp_dir());
        for i in 0..20u8 {
            pending
                .put(&vec![i; usize::from(i) + 1], (i.into(), Vec::new()))
                .unwrap();
        }
        for i in 0..20u8 {
            let (bytes, (digest, _)) = pending.next().unwrap().unwrap();
            assert_eq!(bytes, vec![i; usize::from(i) + 1]);
            assert_eq!(digest, i.into());
        }
        assert!(pending.next().unwrap().is_none());
    }
}
