//! Blocks that died since the last checkpoint: one container per section, in a hash table.

use crate::disk::address::BlockAddr;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Number of offsets that a section keeps in a tree before it gets a bitmap. The tree is then about as large as the
/// bitmap of 32 KiB.
const SPARSE_MAX: usize = 1024;

/// Set of dead blocks, by section.
#[derive(Default)]
pub(crate) struct DeadBlocks {
    sections: HashMap<u64, Section>,
    blocks: u64,
    section_bits: u8,
}

enum Section {
    Sparse(BTreeSet<u32>),
    Bitmap(Box<[u64]>),
}

impl DeadBlocks {
    pub(crate) fn new(section_bits: u8) -> Self {
        Self {
            section_bits,
            ..Self::default()
        }
    }

    /// Marks a block as dead. Returns false if it already was.
    pub(crate) fn insert(&mut self, addr: BlockAddr) -> bool {
        let section = self
            .sections
            .entry(addr.0 >> self.section_bits)
            .or_insert(Section::Sparse(BTreeSet::new()));
        let offset = (addr.0 & ((1 << self.section_bits) - 1)) as u32;
        let new = match section {
            Section::Sparse(set) => {
                let new = set.insert(offset);
                if set.len() > SPARSE_MAX {
                    let mut bits =
                        vec![0u64; (1usize << self.section_bits) / 64].into_boxed_slice();
                    for offset in set.iter() {
                        bits[*offset as usize / 64] |= 1 << (offset % 64);
                    }
                    *section = Section::Bitmap(bits);
                }
                new
            }
            Section::Bitmap(bits) => {
                let word = &mut bits[offset as usize / 64];
                let new = *word >> (offset % 64) & 1 == 0;
                *word |= 1 << (offset % 64);
                new
            }
        };
        self.blocks += u64::from(new);
        new
    }

    /// Marks a run of blocks as dead.
    pub(crate) fn insert_range(&mut self, run: Range<u64>) {
        for addr in run {
            self.insert(BlockAddr(addr));
        }
    }

    /// Marks all blocks of another set as dead.
    pub(crate) fn absorb(&mut self, other: &Self) {
        other
            .runs()
            .into_iter()
            .for_each(|run| self.insert_range(run));
    }

    /// Number of dead blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the dead blocks as merged runs, ascending.
    pub(crate) fn runs(&self) -> Vec<Range<u64>> {
        let mut sections: Vec<_> = self.sections.iter().collect();
        sections.sort_unstable_by_key(|(number, _)| **number);
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut push = |addr: u64| match runs.last_mut() {
            Some(run) if run.end == addr => run.end += 1,
            _ => runs.push(addr..addr + 1),
        };
        for (number, section) in sections {
            let base = number << self.section_bits;
            match section {
                Section::Sparse(set) => set
                    .iter()
                    .for_each(|offset| push(base + u64::from(*offset))),
                Section::Bitmap(bits) => {
                    for (i, word) in bits.iter().enumerate() {
                        let mut rest = *word;
                        while rest != 0 {
                            push(base + i as u64 * 64 + u64::from(rest.trailing_zeros()));
                            rest &= rest - 1;
                        }
                    }
                }
            }
        }
        runs
    }

    /// Returns whether a block is dead.
    #[cfg(test)]
    pub(crate) fn contains(&self, addr: u64) -> bool {
        self.runs().iter().any(|run| run.contains(&addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_merged_in_order_from_both_containers() {
        let mut map = DeadBlocks::new(12);
        for addr in (4096..8192).rev() {
            assert!(map.insert(BlockAddr(addr)));
        }
        map.insert_range(8190..8195);
        assert!(!map.insert(BlockAddr(5000)));
        map.insert(BlockAddr(1 << 50));
        assert_eq!(map.runs(), vec![4096..8195, (1 << 50)..(1 << 50) + 1]);
        assert_eq!(map.blocks(), 4100);
        assert!(map.contains(8194));
    }
}
