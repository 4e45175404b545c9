//! Temporary storage for small pieces of data that are written with the metadata: in memory up to a
//! budget, then in an anonymous file.

use crate::{Error, Result};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Append-only buffer that spills to a file.
pub(crate) struct Spill {
    memory: Vec<u8>,
    budget: usize,
    file: Option<File>,
    /// Number of bytes in the file.
    flushed: u64,
    dir: PathBuf,
}

/// Position and length of a stored piece, in one word because there may be millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpillRef(NonZeroU64);

impl SpillRef {
    fn new(at: u64, len: usize) -> Self {
        assert!(
            at < 1 << 48 && (1..1 << 16).contains(&len),
            "pieces are shorter than a block, and not empty"
        );
        Self(NonZeroU64::new(at << 16 | len as u64).expect("the length is not zero"))
    }

    fn at(self) -> u64 {
        self.0.get() >> 16
    }

    /// Length of the piece. Unit: bytes.
    pub(crate) fn len(self) -> usize {
        (self.0.get() & 0xFFFF) as usize
    }
}

impl Spill {
    /// Keeps up to `budget` bytes in memory. The file, if needed, is created in `dir`.
    pub(crate) fn new(budget: usize, dir: PathBuf) -> Self {
        Self {
            memory: Vec::new(),
            budget,
            file: None,
            flushed: 0,
            dir,
        }
    }

    /// Stores bytes and returns their position.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<SpillRef> {
        let fail = |dir: &PathBuf, e| Error::io(dir.display(), "cannot write temporary data", e);
        if self.memory.len() + bytes.len() > self.budget {
            if self.file.is_none() {
                self.file = Some(tuff_store::anonymous(&self.dir).map_err(|e| fail(&self.dir, e))?);
            }
            if let Some(file) = &self.file {
                file.write_all_at(&self.memory, self.flushed)
                    .map_err(|e| fail(&self.dir, e))?;
            }
            self.flushed += self.memory.len() as u64;
            self.memory.clear();
        }
        let at = self.flushed + self.memory.len() as u64;
        self.memory.extend_from_slice(bytes);
        Ok(SpillRef::new(at, bytes.len()))
    }

    /// Appends a piece to `out`.
    pub(crate) fn get(&self, piece: SpillRef, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + piece.len(), 0);
        let (in_file, mut dst) = (self.flushed.saturating_sub(piece.at()), &mut out[start..]);
        let from_file = dst
            .len()
            .min(usize::try_from(in_file).unwrap_or(usize::MAX));
        if from_file > 0 {
            let Some(file) = &self.file else {
                unreachable!("bytes were flushed, so there is a file")
            };
            let (head, tail) = dst.split_at_mut(from_file);
            file.read_exact_at(head, piece.at())
                .map_err(|e| Error::io(self.dir.display(), "cannot read temporary data", e))?;
            dst = tail;
        }
        let at = (piece.at() + from_file as u64).saturating_sub(self.flushed) as usize;
        dst.copy_from_slice(&self.memory[at..at + dst.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_back_from_memory_and_from_the_file() {
        let mut spill = Spill::new(100, std::env::temp_dir());
        let pieces: Vec<_> = (0..50u8)
            .map(|i| spill.put(&vec![i; usize::from(i) + 1]).unwrap())
            .collect();
        for (i, piece) in pieces.into_iter().enumerate() {
            let mut out = vec![9];
            spill.get(piece, &mut out).unwrap();
            assert_eq!(out[1..], vec![i as u8; i + 1]);
        }
    }
}
