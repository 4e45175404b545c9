//! Map from addresses to physical blocks, in memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Consecutive addresses in consecutive physical blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    physical: u64,
    blocks: u64,
}

/// Part of an address range. `physical` is `None` where nothing is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) physical: Option<u64>,
    pub(super) blocks: u64,
}

/// Mapped runs, by their first address. They never overlap.
#[derive(Default)]
pub(super) struct BlockMap {
    runs: BTreeMap<u64, Run>,
}

impl BlockMap {
    /// Maps addresses, none of which is mapped.
    pub(super) fn insert(&mut self, addr: u64, physical: u64, blocks: u64) {
        if let Some((start, run)) = self.runs.range_mut(..addr).next_back()
            && start + run.blocks == addr
            && run.physical + run.blocks == physical
        {
            run.blocks += blocks;
        } else {
            self.runs.insert(addr, Run { physical, blocks });
        }
    }

    /// Mapped runs that overlap a range, cut to it: first address and run.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Run)> + '_ {
        let first = self.runs.range(..=range.start).next_back();
        let first = first.map_or(range.start, |(start, _)| *start);
        self.runs
            .range(first..range.end.max(first))
            .filter_map(move |(start, run)| {
                let from = (*start).max(range.start);
                let end = (start + run.blocks).min(range.end);
                let cut = Run {
                    physical: run.physical + (from - start),
                    blocks: end.checked_sub(from).filter(|blocks| *blocks > 0)?,
                };
                Some((from, cut))
            })
    }

    /// Removes addresses from the map. Returns the physical blocks that stored them.
    pub(super) fn remove(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let removed: Vec<_> = self.overlapping(range).collect();
        for (addr, cut) in &removed {
            let Some((&start, &run)) = self.runs.range(..=*addr).next_back() else {
                continue;
            };
            self.runs.remove(&start);
            let (before, end) = (addr - start, addr + cut.blocks);
            if before > 0 {
                let head = Run {
                    blocks: before,
                    ..run
                };
                self.runs.insert(start, head);
            }
            let after = start + run.blocks - end;
            if after > 0 {
                let tail = Run {
                    physical: cut.physical + cut.blocks,
                    blocks: after,
                };
                self.runs.insert(end, tail);
            }
        }
        let physical = removed.into_iter().map(|(_, run)| run);
        physical
            .map(|run| run.physical..run.physical + run.blocks)
            .collect()
    }

    /// Splits a range into pieces that are stored in one place or nowhere.
    pub(super) fn resolve(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let hole = |blocks| Piece {
            physical: None,
            blocks,
        };
        for (addr, run) in self.overlapping(range.clone()) {
            if at < addr {
                pieces.push(hole(addr - at));
            }
            pieces.push(Piece {
                physical: Some(run.physical),
                blocks: run.blocks,
            });
            at = addr + run.blocks;
        }
        if at < range.end {
            pieces.push(hole(range.end - at));
        }
        pieces
    }

    /// Returns the mapped runs of addresses in a range, neighbours merged.
    pub(super) fn allocated(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (addr, run) in self.overlapping(range) {
            match runs.last_mut() {
                Some(last) if last.end == addr => last.end += run.blocks,
                _ => runs.push(addr..addr + run.blocks),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_the_middle_of_a_run_leaves_its_ends() {
        let mut map = BlockMap::default();
        map.insert(100, 10, 4);
        map.insert(104, 14, 4);
        map.insert(110, 30, 2);
        assert_eq!(map.runs.len(), 2);
        assert_eq!(map.allocated(0..200), [100..108, 110..112]);
        assert_eq!(map.remove(103..111), [13..18, 30..31]);
        assert_eq!(map.remove(103..111), []);
        assert_eq!(map.allocated(0..200), [100..103, 111..112]);
        let piece = |physical, blocks| Piece { physical, blocks };
        assert_eq!(
            map.resolve(101..113),
            [
                piece(Some(11), 2),
                piece(None, 8),
                piece(Some(31), 1),
                piece(None, 1)
            ]
        );
    }
}
