//! Finds damaged blocks and repairs them.

use crate::Verified;
use crate::parity::{CoveredPlace, Encoder, ParityLayout};
use crate::threads::{each, lock};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use tuff_store::ReadAt;

/// Amount of data that a thread reads at once. Unit: bytes.
const UNIT: u64 = 512 << 10;

/// Number of codewords whose parity a thread computes at once.
const CODEWORDS: u64 = 64 << 10;

/// Damaged byte ranges, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Data that does not match the root hash, or cannot be read.
    pub data: Vec<Range<u64>>,
    /// Data that cannot be verified, because its part of the tree is damaged.
    pub unknown: Vec<Range<u64>>,
    /// Hash blocks that do not match the root hash, or cannot be read, in the store that holds the tree.
    pub tree: Vec<Range<u64>>,
    /// Parity that does not match data and tree, or cannot be read, in the same store. Excludes the parity of
    /// rounds with damage that it cannot correct.
    pub parity: Vec<Range<u64>>,
}

impl Damage {
    /// True if there is no damage.
    pub fn is_none(&self) -> bool {
        self.is_content_sound() && self.parity.is_empty()
    }

    /// True if data and tree have no damage. The parity may have some.
    pub fn is_content_sound(&self) -> bool {
        self.data.is_empty() && self.unknown.is_empty() && self.tree.is_empty()
    }
}

/// Block that [`Verified::repair`] writes: position and bytes.
pub enum RepairedBlock<'a> {
    /// Data block. Unit: bytes.
    Data(u64, &'a [u8]),
    /// Block in the store that holds the tree. Unit: bytes.
    Tree(u64, &'a [u8]),
    /// Parity block in the same store. Unit: bytes.
    Parity(u64, &'a [u8]),
}

impl Verified {
    /// Reads all data and the tree and returns the damage, correctable or not. If there is parity, reads everything
    /// a second time to check it. `step` receives the number of data bytes read and stops the scan by an error.
    ///
    /// # Errors
    /// Errors of `step`. Unreadable blocks are damage, not an error.
    pub fn scan(
        &self,
        threads: usize,
        step: &(dyn Fn(u64) -> io::Result<()> + Sync),
    ) -> io::Result<Damage> {
        let size = u64::from(self.header.data_block);
        let blocks = self.header.data_blocks;
        let group = (UNIT / size).max(1);
        let found = Mutex::new(Damage {
            tree: self.scan_tree(),
            ..Damage::default()
        });
        each(blocks.div_ceil(group), threads, &|n, buffers| {
            let first = n * group;
            // Fits: a group.
            let len = ((blocks.min(first + group) - first) * size) as usize;
            buffers.input.resize(len, 0);
            let damage = self.scan_blocks(first, &mut buffers.input);
            if !damage.is_none() {
                let mut found = lock(&found);
                found.data.extend(damage.data);
                found.unknown.extend(damage.unknown);
            }
            step(len as u64)
        })?;
        let mut damage = std::mem::take(&mut *lock(&found));
        let end = self.header.data_len().min(self.data.size());
        for ranges in [&mut damage.data, &mut damage.unknown] {
            join(ranges, end);
        }
        join(&mut damage.tree, self.shape.end);
        if let Some(spread) = &self.parity {
            damage.parity = self.scan_parity(spread, threads, step)?;
        }
        Ok(damage)
    }

    fn scan_blocks(&self, first: u64, buf: &mut [u8]) -> Damage {
        let size = self.header.data_block as usize;
        let start = first * size as u64;
        let mut damage = Damage::default();
        let available = self.data.size().saturating_sub(start).min(buf.len() as u64) as usize;
        buf[available..].fill(0);
        let whole = self.data.read_exact_at(&mut buf[..available], start);
        for (number, block) in (first..).zip(buf.chunks_exact_mut(size)) {
            let at = number * size as u64;
            let available = available.saturating_sub((at - start) as usize).min(size);
            // One unreadable block must not affect its neighbours.
            let read = match whole {
                Ok(()) => Ok(()),
                Err(_) => self.data.read_exact_at(&mut block[..available], at),
            };
            let expected = self.is_expected(0, number, &self.hasher.digest(block), false);
            match (read, expected) {
                (Ok(()), Ok(true)) => {}
                (Err(_), _) | (_, Ok(false)) => damage.data.push(at..at + size as u64),
                (_, Err(_)) => damage.unknown.push(at..at + size as u64),
            }
        }
        damage
    }

    /// Finds damaged parity blocks by computing the parity again.
    fn scan_parity(
        &self,
        spread: &ParityLayout,
        threads: usize,
        step: &(dyn Fn(u64) -> io::Result<()> + Sync),
    ) -> io::Result<Vec<Range<u64>>> {
        let (covered, encoder) = (self.parity_input(spread), Encoder::new(spread.roots));
        let data = self.header.data_len();
        let group = (CODEWORDS / spread.block).max(1);
        let found: Mutex<Vec<Range<u64>>> = Mutex::default();
        let groups = spread.rounds.div_ceil(group);
        each(groups, threads, &|n, buffers| {
            let rounds = n * group..spread.rounds.min((n + 1) * group);
            // Fits: at most CODEWORDS.
            let count = ((rounds.end - rounds.start) * spread.block) as usize;
            let from = rounds.start * spread.block;
            let made = encoder.encode(&covered, from, count, &mut buffers.output);
            let at = spread.at + rounds.start * spread.round_len();
            buffers.input.resize(count * spread.roots, 0);
            let read = self.tree.read_exact_at(&mut buffers.input, at);
            if made.is_err() || read.is_err() || buffers.input != buffers.output {
                for round in rounds {
                    let differs = self.parity_differs(spread, round);
                    lock(&found).extend(differs.into_iter().map(|(range, _)| range));
                }
            }
            // Together, the steps of all groups add up to the length of the data.
            step(data * (n + 1) / groups - data * n / groups)
        })?;
        let mut found = found.into_inner().unwrap_or_else(|e| e.into_inner());
        join(&mut found, spread.end());
        Ok(found)
    }

    /// Returns the parity blocks of a round that differ from the computed ones: range and computed bytes. Empty if
    /// the round has damage that cannot be corrected.
    fn parity_differs(&self, spread: &ParityLayout, round: u64) -> Vec<(Range<u64>, Vec<u8>)> {
        let Some(rows) = self.sound_rows(spread, round) else {
            return Vec::new();
        };
        let mut made = Vec::new();
        let read = |row: usize, buf: &mut [u8]| {
            buf.copy_from_slice(&rows[row]);
            Ok(())
        };
        // Fits: a block.
        let size = spread.block as usize;
        let encoded = Encoder::new(spread.roots).encode_rows(&read, size, &mut made);
        debug_assert!(encoded.is_ok(), "rows in memory are read");
        let at = spread.at + round * spread.round_len();
        let mut differs = Vec::new();
        let mut found = vec![0; size];
        for (at, requested) in (at..).step_by(size).zip(made.chunks_exact(size)) {
            if self.tree.read_exact_at(&mut found, at).is_err() || found != requested {
                differs.push((at..at + spread.block, requested.to_vec()));
            }
        }
        differs
    }

    /// Finds damaged hash blocks.
    fn scan_tree(&self) -> Vec<Range<u64>> {
        let size = u64::from(self.header.hash_block);
        let mut damaged = Vec::new();
        let mut block = vec![0; size as usize];
        for (level, blocks) in self.shape.levels.iter().enumerate().rev() {
            for number in 0..blocks.blocks {
                let at = blocks.at + number * size;
                let read = self.tree.read_exact_at(&mut block, at);
                let digest = self.hasher.digest(&block);
                let expected = self.is_expected(level + 1, number, &digest, false);
                if read.is_err() || matches!(expected, Ok(false)) {
                    damaged.push(at..at + size);
                }
            }
        }
        damaged
    }

    /// Corrects damage with the parity. `write` must put each block in its place, so that later reads see it.
    /// Returns the remaining damage.
    ///
    /// # Errors
    /// Errors of `write` and `step`.
    pub fn repair(
        &self,
        threads: usize,
        step: &(dyn Fn(u64) -> io::Result<()> + Sync),
        write: &mut dyn FnMut(RepairedBlock<'_>) -> io::Result<()>,
    ) -> io::Result<Damage> {
        let mut before = None;
        loop {
            let damage = self.scan(threads, step)?;
            if damage.is_none() {
                return Ok(damage);
            }
            // Nothing is correctable, or writes have no effect.
            if before.as_ref() == Some(&damage) {
                return Ok(damage);
            }
            let Some(spread) = &self.parity else {
                return Ok(damage);
            };
            let blocks = |ranges: &[Range<u64>]| -> Vec<u64> {
                let blocks = ranges
                    .iter()
                    .flat_map(|r| r.clone().step_by(spread.block as usize));
                blocks.collect()
            };
            let data = blocks(&damage.data).into_iter().map(|at| at / spread.block);
            let tree = blocks(&damage.tree);
            let tree = tree.into_iter().map(|at| spread.of_tree(at));
            let rounds: BTreeSet<u64> = data.chain(tree).map(|n| n % spread.rounds).collect();
            for round in rounds {
                for (number, bytes) in self.correct_round(round) {
                    match spread.place(number) {
                        CoveredPlace::Data(at) => {
                            let available = self.data.size().saturating_sub(at);
                            let available = available.min(bytes.len() as u64) as usize;
                            write(RepairedBlock::Data(at, &bytes[..available]))?;
                        }
                        CoveredPlace::Tree(at) => write(RepairedBlock::Tree(at, &bytes))?,
                    }
                }
                step(0)?;
            }
            let parity = blocks(&damage.parity).into_iter();
            let rounds: BTreeSet<u64> = parity
                .map(|at| (at - spread.at) / spread.round_len())
                .collect();
            for round in rounds {
                for (range, bytes) in self.parity_differs(spread, round) {
                    write(RepairedBlock::Parity(range.start, &bytes))?;
                }
                step(0)?;
            }
            before = Some(damage);
        }
    }
}

/// Sorts ranges, joins adjacent ones, and cuts the last at `end`.
fn join(ranges: &mut Vec<Range<u64>>, end: u64) {
    ranges.sort_unstable_by_key(|r| r.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges.drain(..) {
        let range = range.start..range.end.min(end).max(range.start);
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}
