//! Table of the data blocks: the address that each of them stores.

use crate::disk::address::{BLOCK_SIZE, Block};
use crate::disk::wire::{Get, Put, seal, sealed};

const MAGIC: u32 = 0x5041_4d54;
/// Data blocks that a page describes.
pub(super) const PAGE_ENTRIES: u64 = 509;

/// Page of the table. It is stored twice.
pub(super) struct Page {
    /// Number of the last batch that the page contains. Replay skips changes up to it.
    pub(super) seq: u64,
    /// Address stored in each block, 0 for a free block. Address 0 is a superblock, which is not mapped.
    pub(super) owners: Vec<u64>,
}

impl Page {
    /// Creates a page of free blocks.
    pub(super) fn empty() -> Self {
        Self {
            seq: 0,
            owners: vec![0; PAGE_ENTRIES as usize],
        }
    }

    pub(super) fn encode(&self, index: u64) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut put = Put::new(&mut block);
        put.u32(MAGIC);
        // Truncated: it only detects a displaced page.
        put.u32(index as u32);
        put.u64(self.seq);
        self.owners.iter().for_each(|owner| put.u64(*owner));
        seal(&mut block);
        block
    }

    /// Decodes a copy of page `index`. `None` if it is damaged.
    pub(super) fn decode(block: &Block, index: u64) -> Option<Self> {
        let mut get = Get::new(block);
        if get.u32() != MAGIC || get.u32() != index as u32 || !sealed(block) {
            return None;
        }
        Some(Self {
            seq: get.u64(),
            owners: (0..PAGE_ENTRIES).map(|_| get.u64()).collect(),
        })
    }
}
