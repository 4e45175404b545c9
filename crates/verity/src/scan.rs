//! Which blocks are damaged.

use crate::Verified;
use crate::make::{in_parallel, lock};
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread reads at once. Unit: bytes.
const UNIT: u64 = 512 << 10;

/// Ranges of bytes, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Data that is not what the root hash stands for, or cannot be read.
    pub data: Vec<Range<u64>>,
    /// Data about which nothing can be said, for a block of the tree is damaged.
    pub unknown: Vec<Range<u64>>,
}

impl Damage {
    /// All is what the root hash stands for.
    pub fn is_none(&self) -> bool {
        self.data.is_empty() && self.unknown.is_empty()
    }
}

impl Verified {
    /// Reads all data and says what is damaged of it. `step` is told of bytes that were read, and stops the work by an error.
    ///
    /// # Errors
    /// Those of `step`. What cannot be read is damage.
    pub fn scan(
        &self,
        threads: usize,
        step: &(dyn Fn(u64) -> io::Result<()> + Sync),
    ) -> io::Result<Damage> {
        let size = u64::from(self.header.data_block);
        let blocks = self.header.data_blocks;
        let group = (UNIT / size).max(1);
        let next = AtomicU64::new(0);
        let found: Mutex<Damage> = Mutex::default();
        let failed: Mutex<Option<io::Error>> = Mutex::default();
        let work = || {
            let mut buf = vec![0; (group * size) as usize];
            loop {
                let first = next.fetch_add(group, Ordering::Relaxed);
                let last = blocks.min(first + group);
                if first >= last || lock(&failed).is_some() {
                    return;
                }
                // Fits: a group.
                let buf = &mut buf[..((last - first) * size) as usize];
                let damage = self.scan_blocks(first, buf);
                if !damage.is_none() {
                    let mut found = lock(&found);
                    found.data.extend(damage.data);
                    found.unknown.extend(damage.unknown);
                }
                if let Err(e) = step(buf.len() as u64) {
                    lock(&failed).get_or_insert(e);
                    return;
                }
            }
        };
        let units = usize::try_from(blocks.div_ceil(group)).unwrap_or(usize::MAX);
        in_parallel(threads.min(units), &work);
        if let Some(e) = lock(&failed).take() {
            return Err(e);
        }
        let mut damage = std::mem::take(&mut *lock(&found));
        let end = self.header.data_len().min(self.data.size());
        for ranges in [&mut damage.data, &mut damage.unknown] {
            join(ranges, end);
        }
        Ok(damage)
    }

    fn scan_blocks(&self, first: u64, buf: &mut [u8]) -> Damage {
        let size = self.header.data_block as usize;
        let mut damage = Damage::default();
        let there = self.data.size().saturating_sub(first * size as u64);
        let there = there.min(buf.len() as u64) as usize;
        buf[there..].fill(0);
        let whole = self
            .data
            .read_exact_at(&mut buf[..there], first * size as u64);
        for (number, block) in (first..).zip(buf.chunks_exact_mut(size)) {
            let at = number * size as u64;
            let there = there
                .saturating_sub((at - first * size as u64) as usize)
                .min(size);
            // One block that cannot be read says nothing about its neighbours.
            let read = match whole {
                Ok(()) => Ok(()),
                Err(_) => self.data.read_exact_at(&mut block[..there], at),
            };
            let expected = self.is_expected(0, number, &self.hasher.digest(block));
            match (read, expected) {
                (Ok(()), Ok(true)) => {}
                (Err(_), _) | (_, Ok(false)) => damage.data.push(at..at + size as u64),
                (_, Err(_)) => damage.unknown.push(at..at + size as u64),
            }
        }
        damage
    }
}

/// Sorts ranges, joins those that touch, and ends the last at `end`.
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
