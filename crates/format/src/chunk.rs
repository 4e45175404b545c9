//! Chunk-based files: a table of block addresses, devices and holes.
//!
//! Source: `docs/reference/format/chunk.md`.

use crate::wire::{bytes, u16_at, u32_at};
use crate::{BlockAddr, BlockBits, ByteLen, DeviceId, Error, Result};

/// Chunk format, the `i_u` field of a chunk-based inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// log2 of the number of blocks in a chunk, 0 to 31.
    pub bits: u8,
    /// True for 8-byte entries with a device. False for 4-byte block addresses.
    pub indexes: bool,
    /// True if the high half of addresses in 8-byte entries is valid.
    pub bit48: bool,
}

/// Location of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The chunk is a hole and reads as zeros.
    Hole,
    /// The chunk is stored in consecutive blocks.
    Data {
        /// Device that holds the blocks.
        device: DeviceId,
        /// Address of the first block.
        block: BlockAddr,
    },
}

impl Format {
    /// Decodes the low 16 bits of `i_u`.
    pub fn decode(u: u64) -> Result<Self> {
        let u = u & 0xFFFF;
        if u & !0x7F != 0 {
            return Err(Error::unsupported("chunk format bit", u & !0x7F));
        }
        Ok(Self {
            bits: (u & 0x1F) as u8,
            indexes: u & 0x20 != 0,
            bit48: u & 0x40 != 0,
        })
    }

    /// Encodes the chunk format as `i_u`.
    pub fn encode(self) -> u32 {
        u32::from(self.bits) | u32::from(self.indexes) << 5 | u32::from(self.bit48) << 6
    }

    /// Length of every chunk but the last.
    pub fn chunk_size(self, bits: BlockBits) -> ByteLen {
        ByteLen(bits.size() << self.bits)
    }

    /// Number of chunks of a file, which is the number of table entries. `size`: unit bytes.
    pub fn chunk_count(self, size: u64, bits: BlockBits) -> u64 {
        size.div_ceil(self.chunk_size(bits).0)
    }

    /// Length of a table entry, which is also the table's alignment. Unit: bytes.
    pub fn entry_len(self) -> usize {
        if self.indexes { 8 } else { 4 }
    }

    /// Decodes entry `i` of the table.
    pub fn entry(self, table: &[u8], i: usize) -> Result<Chunk> {
        let at = i
            .checked_mul(self.entry_len())
            .ok_or(Error::corrupt("chunk table"))?;
        if !self.indexes {
            let block = u32_at(table, at, "chunk table")?;
            return Ok(if block == u32::MAX {
                Chunk::Hole
            } else {
                Chunk::Data {
                    device: DeviceId::PRIMARY,
                    block: block.into(),
                }
            });
        }
        bytes(table, at, 8, "chunk table")?;
        let lo = u64::from(u32_at(table, at + 4, "chunk table")?);
        let hi = u64::from(u16_at(table, at, "chunk table")?);
        let (block, ones) = if self.bit48 {
            (hi << 32 | lo, (1 << 48) - 1)
        } else {
            (lo, u64::from(u32::MAX))
        };
        if block == ones {
            return Ok(Chunk::Hole);
        }
        Ok(Chunk::Data {
            device: DeviceId(u16_at(table, at + 2, "chunk table")?),
            block: BlockAddr(block),
        })
    }

    /// Appends the table entry of `chunk` to `out`.
    pub fn encode_entry(self, chunk: Chunk, out: &mut alloc::vec::Vec<u8>) {
        let (device, block) = match chunk {
            Chunk::Hole => (
                0,
                if self.bit48 {
                    (1 << 48) - 1
                } else {
                    u64::from(u32::MAX)
                },
            ),
            Chunk::Data { device, block } => (device.0, block.0),
        };
        debug_assert!(self.indexes || device == 0);
        debug_assert!(self.bit48 || block <= u32::MAX.into());
        if self.indexes {
            out.extend_from_slice(&((block >> 32) as u16).to_le_bytes());
            out.extend_from_slice(&device.to_le_bytes());
        }
        out.extend_from_slice(&(block as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_documented_table_is_reproduced() {
        let format = Format::decode(0x23).unwrap();
        assert_eq!(format.chunk_size(BlockBits::B4K), ByteLen(32 << 10));
        let mut table = Vec::new();
        format.encode_entry(
            Chunk::Data {
                device: DeviceId(1),
                block: BlockAddr(0x74),
            },
            &mut table,
        );
        format.encode_entry(Chunk::Hole, &mut table);
        assert_eq!(
            table,
            [0, 0, 1, 0, 0x74, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]
        );
        assert_eq!(
            format.entry(&table, 0).unwrap(),
            Chunk::Data {
                device: DeviceId(1),
                block: BlockAddr(0x74)
            }
        );
        assert_eq!(format.entry(&table, 1).unwrap(), Chunk::Hole);
        assert!(format.entry(&table, 2).is_err());
    }

    #[test]
    fn entries_of_all_formats_survive_a_round_trip() {
        for (format, chunk) in [
            (
                Format {
                    bits: 0,
                    indexes: false,
                    bit48: false,
                },
                Chunk::Data {
                    device: DeviceId::PRIMARY,
                    block: BlockAddr(9),
                },
            ),
            (
                Format {
                    bits: 0,
                    indexes: false,
                    bit48: false,
                },
                Chunk::Hole,
            ),
            (
                Format {
                    bits: 31,
                    indexes: true,
                    bit48: true,
                },
                Chunk::Data {
                    device: DeviceId(65535),
                    block: BlockAddr(0x1234_5678_9ABC),
                },
            ),
            (
                Format {
                    bits: 3,
                    indexes: true,
                    bit48: true,
                },
                Chunk::Hole,
            ),
        ] {
            let mut table = Vec::new();
            format.encode_entry(chunk, &mut table);
            assert_eq!(Format::decode(format.encode().into()).unwrap(), format);
            assert_eq!(format.entry(&table, 0).unwrap(), chunk);
        }
        assert!(Format::decode(0x80).is_err());
    }
}
