//! Device table: slots of 128 bytes.
//!
//! Source: `docs/reference/format/device.md`.

use crate::{BlockAddr, Error, Result};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a slot. Unit: bytes.
pub const SLOT_LEN: usize = 128;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    tag: [u8; 64],
    blocks_lo: U32,
    uniaddr_lo: U32,
    blocks_hi: U16,
    uniaddr_hi: U16,
    reserved: [u8; 52],
}

const _: () = assert!(size_of::<Raw>() == SLOT_LEN);

/// Slot of the device table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Identifier of the device: a digest or a path, padded with NUL.
    pub tag: [u8; 64],
    /// Size of the device. Unit: blocks.
    pub blocks: u64,
    /// First block of the device in the unified address space. 0 if it is not mapped there.
    pub uniaddr: BlockAddr,
}

impl Slot {
    /// Decodes a slot. `bit48`: the high halves of addresses are valid.
    pub fn decode(bytes: &[u8], bit48: bool) -> Result<Self> {
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Error::corrupt("device slot"))?;
        let hi = |v: U16| if bit48 { u64::from(v.get()) << 32 } else { 0 };
        Ok(Self {
            tag: raw.tag,
            blocks: u64::from(raw.blocks_lo.get()) | hi(raw.blocks_hi),
            uniaddr: BlockAddr(u64::from(raw.uniaddr_lo.get()) | hi(raw.uniaddr_hi)),
        })
    }

    /// Encodes the slot as its 128 bytes.
    pub fn encode(&self) -> [u8; SLOT_LEN] {
        let [b0, b1, b2, b3, b4, b5, ..] = self.blocks.to_le_bytes();
        let [u0, u1, u2, u3, u4, u5, ..] = self.uniaddr.0.to_le_bytes();
        zerocopy::transmute!(Raw {
            tag: self.tag,
            blocks_lo: U32::from_bytes([b0, b1, b2, b3]),
            uniaddr_lo: U32::from_bytes([u0, u1, u2, u3]),
            blocks_hi: U16::from_bytes([b4, b5]),
            uniaddr_hi: U16::from_bytes([u4, u5]),
            reserved: [0; 52],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_survive_a_round_trip_and_high_halves_need_48_bits() {
        let slot = Slot {
            tag: [7; 64],
            blocks: 0x1_0000_01b7,
            uniaddr: BlockAddr(0x2_0000_000d),
        };
        assert_eq!(Slot::decode(&slot.encode(), true).unwrap(), slot);
        let low = Slot::decode(&slot.encode(), false).unwrap();
        assert_eq!((low.blocks, low.uniaddr), (0x1b7, BlockAddr(0xd)));
        assert!(Slot::decode(&slot.encode()[..127], true).is_err());
    }
}
