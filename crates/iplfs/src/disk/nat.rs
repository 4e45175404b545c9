//! Blocks of the node address table (NAT): node number to block address.
//!
//! ```text
//!  leaf:   [level 0 │ index │ tag │ …64 bytes][336 × {addr 8, ino 4}]
//!  branch: [level n │ index │ tag │ …64 bytes][336 × {addr 8, crc 4}]
//! ```
//!
//! The table is a copy-on-write tree. A changed leaf and the branches above it go to new blocks of the metadata log,
//! at most once per checkpoint and only when the journal of the pack is full.
//!
//! Every pointer carries the checksum of its target, so a stale or damaged block cannot pass. An old root remains a
//! complete table until its blocks are discarded.

use super::wire::{Get, Put, seal, sealed};
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr, Nid};
use crate::error::{Error, Result};

const MAGIC: u32 = 0x544e_4154;
/// Number of entries of a block, leaf or branch.
pub const NAT_FANOUT: usize = 336;
/// Height of a tree that covers all 2^32 node numbers.
pub const NAT_HEIGHT_MAX: u32 = 4;

/// Address of a node, and the inode that owns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NatEntry {
    /// Block of the node; `HOLE` if the number is free.
    pub addr: BlockAddr,
    /// Inode that owns the node.
    pub ino: Nid,
}

/// Pointer to a block of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NatPointer {
    /// Address of the block; `HOLE` if nothing below was ever used.
    pub addr: BlockAddr,
    /// Checksum of the block.
    pub crc: u32,
}

/// A block of the tree: 336 pairs of a 64-bit and a 32-bit number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NatBlock {
    /// Level of the block, 0 for a leaf.
    pub level: u32,
    /// Index among the blocks of its level.
    pub index: u32,
    /// Pairs: {addr, ino} in a leaf, {addr, crc} in a branch.
    pub pairs: Box<[(u64, u32); NAT_FANOUT]>,
}

impl NatBlock {
    /// Creates a block without entries.
    pub fn empty(level: u32, index: u32) -> Self {
        Self {
            level,
            index,
            pairs: Box::new([(0, 0); NAT_FANOUT]),
        }
    }

    /// Encodes the block. Returns it with its checksum.
    pub fn encode(&self) -> (Block, u32) {
        let mut block = [0; BLOCK_SIZE];
        let mut put = Put::new(&mut block);
        put.u32(MAGIC);
        put.u32(self.level);
        put.u32(self.index);
        for (a, b) in self.pairs.iter() {
            put.u64(*a);
            put.u32(*b);
        }
        seal(&mut block);
        let crc = u32::from_le_bytes([block[4092], block[4093], block[4094], block[4095]]);
        (block, crc)
    }

    /// Decodes the target of a pointer with checksum `crc`.
    pub fn decode(block: &Block, level: u32, index: u32, crc: u32) -> Result<Self> {
        let place = || format!("node address table, level {level}, block {index}");
        if !sealed(block) || block[4092..] != crc.to_le_bytes() {
            return Err(Error::corrupt(
                place(),
                "checksum does not match its pointer",
            ));
        }
        let mut get = Get::new(block);
        let (magic, found_level, found_index) = (get.u32(), get.u32(), get.u32());
        if (magic, found_level, found_index) != (MAGIC, level, index) {
            return Err(Error::corrupt(
                place(),
                format_args!("holds level {found_level}, block {found_index}"),
            ));
        }
        let mut out = Self::empty(level, index);
        for pair in out.pairs.iter_mut() {
            *pair = (get.u64(), get.u32());
        }
        Ok(out)
    }
}

/// Height of a tree that covers all numbers below `next_nid`.
pub fn height_for(next_nid: u32) -> u32 {
    let mut height = 1;
    let mut reach = NAT_FANOUT as u64;
    while reach < u64::from(next_nid) {
        reach *= NAT_FANOUT as u64;
        height += 1;
    }
    height
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_flipped_byte() {
        let mut leaf = NatBlock::empty(0, 3);
        leaf.pairs[5] = (1 << 51, 9);
        leaf.pairs[335] = (1, 2);
        let (block, crc) = leaf.encode();
        assert_eq!(NatBlock::decode(&block, 0, 3, crc).unwrap(), leaf);
        assert!(NatBlock::decode(&block, 1, 3, crc).is_err());
        assert!(NatBlock::decode(&block, 0, 3, crc ^ 1).is_err());
        for at in 0..BLOCK_SIZE {
            let mut bad = block;
            bad[at] ^= 4;
            assert!(NatBlock::decode(&bad, 0, 3, crc).is_err());
        }
    }

    #[test]
    fn four_levels_reach_every_number() {
        assert_eq!(height_for(0), 1);
        assert_eq!(height_for(336), 1);
        assert_eq!(height_for(337), 2);
        assert_eq!(height_for(u32::MAX), NAT_HEIGHT_MAX);
    }
}
