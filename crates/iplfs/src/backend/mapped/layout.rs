//! Division of the medium, and its header.
//!
//! ```text
//!  header ×2 │ fixed blocks │ journal │ table │ data blocks │ table │ journal │ superblock │ header
//!            16                                └ second copies, at the other end ┘
//! ```

use super::table::PAGE_ENTRIES;
use crate::disk::address::{AREA_BITS, BLOCK_SIZE, Block, Geometry};
use crate::disk::wire::{Get, Put, seal, sealed};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"TUFF-MAP";
const VERSION: u32 = 1;
/// First physical block after the headers at the start.
const FIXED_START: u64 = 16;
/// Allowed number of blocks in each copy of the journal.
const JOURNAL_BLOCKS: std::ops::RangeInclusive<u64> = 8..=16384;
/// Smallest number of data blocks.
const DATA_BLOCKS_MIN: u64 = 256;

/// Positions of the structures on the medium. Unit: blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Identity. Batches of an earlier map on the same medium carry another.
    uuid: [u8; 16],
    /// Size of the medium.
    blocks: u64,
    /// Number of addresses from 0 on that are overwritten in place.
    fixed_blocks: u64,
    /// Size of each copy of the journal.
    journal_blocks: u64,
    /// Bits of an offset in an area, which give the address of the third superblock.
    area_bits: u8,
}

impl Layout {
    /// Divides a medium of `blocks` blocks. `None` if it is too small.
    pub(super) fn new(uuid: [u8; 16], blocks: u64, geometry: &Geometry) -> Option<Self> {
        let layout = Self {
            uuid,
            blocks,
            fixed_blocks: geometry.fixed_end(),
            journal_blocks: (blocks / 256).clamp(*JOURNAL_BLOCKS.start(), *JOURNAL_BLOCKS.end()),
            area_bits: geometry.area_bits,
        };
        layout.is_valid().then_some(layout)
    }

    fn is_valid(&self) -> bool {
        // The bounds keep all sums below far from overflow.
        self.blocks < 1 << 51
            && self.fixed_blocks < 1 << 20
            && JOURNAL_BLOCKS.contains(&self.journal_blocks)
            && AREA_BITS.contains(&self.area_bits)
            && self.blocks
                >= FIXED_START + self.fixed_blocks + 2 * self.journal_blocks + 2 + DATA_BLOCKS_MIN
    }

    /// Blocks for the table, both copies, and the data.
    fn table_and_data(&self) -> u64 {
        self.blocks - FIXED_START - self.fixed_blocks - 2 * self.journal_blocks - 2
    }

    /// Size of each copy of the table.
    pub(super) fn table_blocks(&self) -> u64 {
        self.table_and_data().div_ceil(PAGE_ENTRIES + 2)
    }

    /// First block of a copy of the journal.
    pub(super) fn journal(&self, copy: u64) -> u64 {
        match copy {
            0 => FIXED_START + self.fixed_blocks,
            _ => self.table(1) + self.table_blocks(),
        }
    }

    /// Size of each copy of the journal.
    pub(super) fn journal_blocks(&self) -> u64 {
        self.journal_blocks
    }

    /// First block of a copy of the table.
    pub(super) fn table(&self, copy: u64) -> u64 {
        match copy {
            0 => self.journal(0) + self.journal_blocks,
            _ => self.data().end,
        }
    }

    /// Blocks that are mapped.
    pub(super) fn data(&self) -> Range<u64> {
        let start = self.table(0) + self.table_blocks();
        start..start + self.table_and_data() - 2 * self.table_blocks()
    }

    /// Positions of the copies of the header.
    pub(super) fn headers(&self) -> [u64; 3] {
        [0, 1, self.blocks - 1]
    }

    /// Blocks outside headers and table that are cleared when the map is created.
    pub(super) fn cleared(&self) -> [Range<u64>; 2] {
        [2..self.table(0), self.journal(1)..self.blocks - 1]
    }

    /// Identity of this map in its batches.
    pub(super) fn id(&self) -> u64 {
        Get::new(&self.uuid).u64()
    }

    /// Address of the third superblock.
    fn spare_superblock(&self) -> u64 {
        7 << self.area_bits
    }

    /// Addresses at which a request has to be split: at each of them the placement changes.
    pub(super) fn boundaries(&self) -> [u64; 3] {
        let spare = self.spare_superblock();
        [self.fixed_blocks, spare, spare + 1]
    }

    /// Returns the physical block of an address that is overwritten in place, `None` for mapped addresses.
    pub(super) fn fixed_place(&self, addr: u64) -> Option<u64> {
        if addr < self.fixed_blocks {
            Some(FIXED_START + addr)
        } else {
            (addr == self.spare_superblock()).then_some(self.blocks - 2)
        }
    }

    /// Area of an address, 0 to 7.
    pub(super) fn area(&self, addr: u64) -> usize {
        (addr >> self.area_bits & 7) as usize
    }

    pub(super) fn encode(&self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut put = Put::new(&mut block);
        put.bytes(&MAGIC);
        put.u32(VERSION);
        put.u8(self.area_bits);
        put.bytes(&[0; 3]);
        put.bytes(&self.uuid);
        put.u64(self.blocks);
        put.u64(self.fixed_blocks);
        put.u64(self.journal_blocks);
        seal(&mut block);
        block
    }

    /// Decodes one copy of the header. `None` if the block is none.
    pub(super) fn decode(block: &Block) -> Option<Self> {
        let mut get = Get::new(block);
        if get.array() != MAGIC || !sealed(block) || get.u32() != VERSION {
            return None;
        }
        let area_bits = get.u8();
        get.bytes(3);
        let layout = Self {
            area_bits,
            uuid: get.array(),
            blocks: get.u64(),
            fixed_blocks: get.u64(),
            journal_blocks: get.u64(),
        };
        layout.is_valid().then_some(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        area_bits: 48,
        section_bits: 18,
        zone_bits: 18,
        pack_blocks: 256,
    };

    #[test]
    fn structures_follow_each_other_without_gaps_at_every_size() {
        for blocks in (1500..4000).chain([16384, 153_600, 1 << 28, 1 << 40]) {
            let layout = Layout::new([7; 16], blocks, &GEOMETRY).unwrap();
            let data = layout.data();
            assert!((data.end - data.start).div_ceil(PAGE_ENTRIES) <= layout.table_blocks());
            assert_eq!(layout.table(1), data.end);
            assert_eq!(
                layout.journal(1) + layout.journal_blocks,
                blocks - 2,
                "{blocks} blocks"
            );
            assert_eq!(Layout::decode(&layout.encode()), Some(layout));
        }
        assert_eq!(Layout::new([7; 16], 800, &GEOMETRY), None);
    }
}
