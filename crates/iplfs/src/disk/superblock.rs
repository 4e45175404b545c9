//! Superblock: properties that are fixed when the volume is formatted. It has three copies: at blocks 0 and 1, and at
//! the first block of area 7.
//!
//! ```text
//!  0 magic 8 │ 8 version 4 │ 12 incompat 4 │ 16 ro_compat 4 │ 20 compat 4 │ 24 uuid 16 │ 40 hash_key 16
//!  56 area_bits 1 │ 57 section_bits 1 │ 58 zone_bits 1 │ 59 zero 1 │ 60 pack_blocks 4
//!  64 quota_blocks 8 │ 72 reserve_blocks 8 │ 80 generation 8 │ 88 label 64 │ 152 zero … │ 4092 crc 4
//! ```
//!
//! Two adjacent copies survive one bad sector. The third lies far away, in another zone file, and survives the loss
//! of a file. An update writes the copies one after the other, with a flush after each.

use super::wire::{Get, Put, seal, sealed};
use crate::disk::address::{AREA_BITS, BLOCK_SIZE, Block, Geometry};
use crate::error::{Error, Result};

/// First eight bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"TUFFIPLF";
const VERSION: u32 = 1;

/// Incompatible feature: an `fsync` may put the data of its file after its nodes, into the warm node log.
pub const GROUPS_WITH_DATA: u32 = 1;
/// Incompatible feature: the volume has, or had, branches. Regions of the address space belong to them.
pub const BRANCHES: u32 = 2;
/// Incompatible features that this version supports.
const KNOWN: u32 = GROUPS_WITH_DATA | BRANCHES;

/// Properties that are fixed when the volume is formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Incompatible features, one bit each.
    pub incompat: u32,
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Key of the hash that places directory entries.
    pub hash_key: [u8; 16],
    /// Division of the address space.
    pub geometry: Geometry,
    /// Maximum number of blocks of live data, and of dead data that is not discarded yet.
    pub quota_blocks: u64,
    /// Part of the quota that only deletes and checkpoints may use.
    pub reserve_blocks: u64,
    /// Incremented by every rewrite. Of two sound copies the higher one is valid.
    pub generation: u64,
    /// Free text, UTF-8 padded with zeros.
    pub label: [u8; 64],
}

impl Superblock {
    /// Encodes the superblock as a block.
    pub fn encode(&self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut put = Put::new(&mut block);
        put.bytes(&MAGIC);
        put.u32(VERSION);
        put.u32(self.incompat);
        put.u32(0);
        put.u32(0);
        put.bytes(&self.uuid);
        put.bytes(&self.hash_key);
        put.u8(self.geometry.area_bits);
        put.u8(self.geometry.section_bits);
        put.u8(self.geometry.zone_bits);
        put.u8(0);
        put.u32(self.geometry.pack_blocks);
        put.u64(self.quota_blocks);
        put.u64(self.reserve_blocks);
        put.u64(self.generation);
        put.bytes(&self.label);
        seal(&mut block);
        block
    }

    /// Decodes and verifies one copy.
    pub fn decode(block: &Block) -> Result<Self> {
        let mut get = Get::new(block);
        if get.array() != MAGIC {
            return Err(Error::corrupt("superblock", "magic is not TUFFIPLF"));
        }
        if !sealed(block) {
            return Err(Error::corrupt("superblock", "checksum does not match"));
        }
        let version = get.u32();
        let incompat = get.u32();
        if version != VERSION || incompat & !KNOWN != 0 {
            return Err(Error::Unsupported(format!(
                "version {version}, incompatible features {incompat:#x}"
            )));
        }
        let (_ro_compat, _compat) = (get.u32(), get.u32());
        let (uuid, hash_key) = (get.array(), get.array());
        let (area_bits, section_bits, zone_bits, _) = (get.u8(), get.u8(), get.u8(), get.u8());
        let geometry = Geometry {
            area_bits,
            section_bits,
            zone_bits,
            pack_blocks: get.u32(),
        };
        let sb = Self {
            incompat,
            uuid,
            hash_key,
            geometry,
            quota_blocks: get.u64(),
            reserve_blocks: get.u64(),
            generation: get.u64(),
            label: get.array(),
        };
        sb.verify()?;
        Ok(sb)
    }

    /// Verifies the rules that hold for the fields together.
    pub fn verify(&self) -> Result<()> {
        let g = &self.geometry;
        let bad = |what: String| Err(Error::corrupt("superblock", what));
        if !AREA_BITS.contains(&g.area_bits) {
            return bad(format!("area_bits {}, expected 29 to 58", g.area_bits));
        }
        if !(6..=24).contains(&g.section_bits) {
            return bad(format!("section_bits {}, expected 6 to 24", g.section_bits));
        }
        if !(4..=24).contains(&g.zone_bits) {
            return bad(format!("zone_bits {}, expected 4 to 24", g.zone_bits));
        }
        if !(3..=65536).contains(&g.pack_blocks) {
            return bad(format!(
                "pack_blocks {}, expected 3 to 65536",
                g.pack_blocks
            ));
        }
        if self.reserve_blocks >= self.quota_blocks || self.quota_blocks > 1 << 51 {
            return bad(format!(
                "quota {} with reserve {}",
                self.quota_blocks, self.reserve_blocks
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            incompat: GROUPS_WITH_DATA,
            uuid: [7; 16],
            hash_key: [9; 16],
            geometry: Geometry {
                area_bits: 48,
                section_bits: 18,
                zone_bits: 18,
                pack_blocks: 256,
            },
            quota_blocks: 1 << 20,
            reserve_blocks: 8192,
            generation: 3,
            label: [0; 64],
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Superblock::decode(&sample().encode()).unwrap(), sample());
    }

    #[test]
    fn every_flipped_byte_is_detected() {
        let good = sample().encode();
        for at in 0..BLOCK_SIZE {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn unknown_features_are_rejected() {
        let mut sb = sample();
        sb.incompat = 1 << 7;
        assert!(matches!(
            Superblock::decode(&sb.encode()),
            Err(Error::Unsupported(_))
        ));
    }

    #[test]
    fn impossible_geometry_is_rejected_despite_a_correct_checksum() {
        let mut sb = sample();
        sb.geometry.area_bits = 60;
        assert!(Superblock::decode(&sb.encode()).is_err());
        let mut sb = sample();
        sb.reserve_blocks = sb.quota_blocks;
        assert!(Superblock::decode(&sb.encode()).is_err());
    }
}
