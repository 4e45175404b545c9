//! Encoded extents (48-bit layout): one record per extent.
//!
//! ```text
//!  4  u32 plen                                   (first a u64 with the position of extent 0)
//!  8  u32 plen | u32 pstart
//! 16  u32 plen | u32 pstart lo | u32 pstart hi | u32 lstart lo
//! 32  the 16-byte record | u32 lstart hi | 12 reserved
//! ```

use super::header::{EXTENTS, FRAGMENT, MapHeader};
use super::{Coding, Data, Extent};
use crate::units::round_up;
use crate::wire::u32_at;
use crate::{BlockBits, Error, Result};
use alloc::vec::Vec;

/// Largest number of 4-byte records in a table. A lookup adds up all preceding records.
pub const ACCUMULATED_MAX: u64 = 1 << 17;

const PLEN: u32 = (1 << 21) - 1;
const PARTIAL_REF: u32 = 1 << 27;

/// Table of extent records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Length of a record: 4, 8, 16 or 32. Unit: bytes.
    pub record: u8,
    /// Number of extents in the file.
    pub count: u64,
    /// log2 of the decoded length of all extents but the last. Only for records of 4 and 8 bytes.
    pub extent_bits: u8,
    /// True if the last record describes a fragment.
    pub fragment: bool,
    /// True if block-aligned uncompressed pclusters are interlaced.
    pub interlaced: bool,
}

impl Table {
    /// Length of the table. Unit: bytes. `None` if it does not fit in 64 bits.
    pub fn len(&self) -> Option<u64> {
        let head = if self.record == 4 { 8 } else { 0 };
        self.count
            .checked_mul(self.record.into())?
            .checked_add(head)
    }

    /// True if the table has no extents.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn at(&self, i: u64) -> Result<usize> {
        let head = if self.record == 4 { 8 } else { 0 };
        let at = i.checked_mul(self.record.into()).map(|at| at + head);
        at.and_then(|at| usize::try_from(at).ok())
            .ok_or(Error::corrupt("extent record number"))
    }

    fn lstart(&self, table: &[u8], i: u64) -> Result<u64> {
        if self.record < 16 {
            return i
                .checked_shl(self.extent_bits.into())
                .ok_or(Error::corrupt("extent number"));
        }
        let at = self.at(i)?;
        let lo = u64::from(u32_at(table, at + 12, "extent record")?);
        let hi = if self.record == 32 {
            u32_at(table, at + 16, "extent record")?
        } else {
            0
        };
        Ok(lo | u64::from(hi) << 32)
    }

    /// Finds the extent that contains byte `offset`, which is below `size`.
    pub fn extent_at(
        &self,
        table: &[u8],
        offset: u64,
        size: u64,
        bits: BlockBits,
    ) -> Result<Extent> {
        let i = if self.record < 16 {
            offset >> self.extent_bits
        } else {
            self.search(table, offset)?
        };
        if i >= self.count {
            return Err(Error::bad(
                "extent number",
                i,
                "below the number of extents",
            ));
        }
        let la = self.lstart(table, i)?;
        let end = if i + 1 < self.count {
            self.lstart(table, i + 1)?
        } else {
            size
        };
        if la > offset || end <= offset || end > size {
            return Err(Error::bad(
                "extent record: file offset",
                end,
                "ascending and inside the file",
            ));
        }
        let at = self.at(i)?;
        let word = u32_at(table, at, "extent record")?;
        let pa = self.pstart(table, i)?;
        let len = end - la;
        if self.fragment && i + 1 == self.count {
            let hi = if self.record > 4 { pa << 32 } else { 0 };
            return Ok(Extent {
                la,
                len,
                data: Data::Fragment {
                    offset: u64::from(word) | hi,
                },
            });
        }
        let plen = word & PLEN;
        if plen == 0 {
            return Ok(Extent {
                la,
                len,
                data: Data::Hole,
            });
        }
        let aligned = bits.within(pa) == 0 && bits.within(plen.into()) == 0;
        let coding = match word >> 28 {
            0 if self.interlaced && aligned => Coding::Interlaced,
            0 => Coding::Stored,
            id @ 1..=4 => Coding::Compressed((id - 1) as u8),
            id => return Err(Error::unsupported("extent format", id.into())),
        };
        Ok(Extent {
            la,
            len,
            data: Data::Cluster {
                pa,
                plen,
                coding,
                partial: word & PARTIAL_REF != 0,
            },
        })
    }

    /// Finds the last record that starts at or before `offset`.
    fn search(&self, table: &[u8], offset: u64) -> Result<u64> {
        let (mut lo, mut hi) = (0, self.count);
        while hi - lo > 1 {
            let mid = lo + (hi - lo) / 2;
            if self.lstart(table, mid)? <= offset {
                lo = mid
            } else {
                hi = mid
            }
        }
        Ok(lo)
    }

    fn pstart(&self, table: &[u8], i: u64) -> Result<u64> {
        let at = self.at(i)?;
        let what = "extent record";
        match self.record {
            4 => {
                let mut pa =
                    u64::from(u32_at(table, 0, what)?) | u64::from(u32_at(table, 4, what)?) << 32;
                for k in 0..i {
                    pa = pa.saturating_add(u64::from(u32_at(table, self.at(k)?, what)? & PLEN));
                }
                Ok(pa)
            }
            8 => Ok(u32_at(table, at + 4, what)?.into()),
            _ => Ok(u64::from(u32_at(table, at + 4, what)?)
                | u64::from(u32_at(table, at + 8, what)?) << 32),
        }
    }
}

/// Length of the result of [`encode`] for `count` extents and a header at `header_pos`. Unit: bytes.
pub fn encoded_len(
    size: u64,
    count: usize,
    fragment: bool,
    header_pos: u64,
    bits: BlockBits,
) -> u64 {
    let record = record_len(size, count, fragment, bits);
    let head = if record == 4 { 8 } else { 0 };
    table_pos(header_pos, record) - header_pos + head + record * count as u64
}

/// Encodes the map header at `header_pos` and the records. The extents must ascend from 0 without gaps. A fragment
/// must be the last of several. Uncompressed pclusters are not interlaced.
pub fn encode(extents: &[Extent], header_pos: u64, bits: BlockBits) -> Vec<u8> {
    let size = extents.last().map_or(0, Extent::end);
    let fragment =
        matches!(extents.last(), Some(last) if matches!(last.data, Data::Fragment { .. }));
    let record = record_len(size, extents.len(), fragment, bits);
    let header = MapHeader::Index {
        // A file has fewer extents than the upper half of the count could express.
        word: if record == 4 { 0 } else { extents.len() as u32 },
        advise: EXTENTS | (record.ilog2() as u16 - 2) << 1 | if fragment { FRAGMENT } else { 0 },
        algorithms: 0,
        cluster_bits: if record == 4 {
            span_bits(size, bits)
        } else {
            0
        },
    };
    let mut out = header.encode().to_vec();
    out.resize((table_pos(header_pos, record) - header_pos) as usize, 0);
    for extent in extents {
        let (pa, word) = words(extent);
        if record == 4 {
            out.extend_from_slice(&pa.to_le_bytes());
            out.extend_from_slice(&word.to_le_bytes());
            continue;
        }
        out.extend_from_slice(&word.to_le_bytes());
        out.extend_from_slice(&pa.to_le_bytes());
        let la = extent.la.to_le_bytes();
        if record == 32 {
            out.extend_from_slice(&la);
            out.extend_from_slice(&[0; 12]);
        } else {
            out.extend_from_slice(&la[..4]);
        }
    }
    out
}

/// Start of an extent's pcluster and the `plen` word of its record.
fn words(extent: &Extent) -> (u64, u32) {
    match extent.data {
        Data::Cluster {
            pa,
            plen,
            coding,
            partial,
        } => {
            let format = match coding {
                Coding::Compressed(id) => u32::from(id) + 1,
                Coding::Stored | Coding::Interlaced => 0,
            };
            let partial = if partial { PARTIAL_REF } else { 0 };
            (pa, plen | partial | format << 28)
        }
        Data::Fragment { offset } => (offset >> 32, offset as u32),
        Data::Inline { .. } | Data::Hole => (0, 0),
    }
}

/// Length of the shortest records that can describe the extents. A single extent needs no file offset. Unit: bytes.
fn record_len(size: u64, count: usize, fragment: bool, bits: BlockBits) -> u64 {
    if count == 1 && !fragment && size <= bits.size() << SPAN_BITS_MAX {
        4
    } else if size <= 1 << 32 {
        16
    } else {
        32
    }
}

/// log2 of the number of blocks in the longest extent of a table with 4-byte records.
const SPAN_BITS_MAX: u8 = 15;

/// log2 of the number of blocks that each extent covers.
fn span_bits(size: u64, bits: BlockBits) -> u8 {
    bits.count(size).next_power_of_two().ilog2() as u8
}

/// Position of the records, after the header. Unit: bytes.
fn table_pos(header_pos: u64, record: u64) -> u64 {
    round_up(header_pos + MapHeader::LEN as u64, record)
}

#[cfg(test)]
mod tests {
    use super::super::{Map, header};
    use super::*;
    use crate::features::incompat;
    use crate::inode::Layout;
    use crate::superblock::{MAGIC, Superblock};

    /// Superblock with blocks of 4 KiB and encoded extents.
    fn superblock() -> Superblock {
        let mut bytes = [0; 128];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[12] = 12;
        let mut sb = Superblock::decode(&bytes).unwrap();
        sb.incompat = incompat::BIT48 | incompat::FRAGMENTS | incompat::COMPR_CFGS;
        sb.algs_or_distance = 0b1001;
        sb.packed = Some(crate::Nid(5));
        sb
    }

    fn cluster(pa: u64, plen: u32, coding: Coding, partial: bool) -> Data {
        Data::Cluster {
            pa,
            plen,
            coding,
            partial,
        }
    }

    fn row(extents: &[(u64, Data)]) -> Vec<Extent> {
        let mut la = 0;
        let place = |&(len, data): &(u64, Data)| {
            la += len;
            Extent {
                la: la - len,
                len,
                data,
            }
        };
        extents.iter().map(place).collect()
    }

    #[test]
    fn extents_survive_a_round_trip() {
        let zstd = Coding::Compressed(3);
        let one = cluster(4128, 9000, zstd, false);
        let far = cluster(1 << 40, 1 << 20, Coding::Compressed(0), true);
        let stored = cluster(77, 5000, Coding::Stored, false);
        let fragment = Data::Fragment {
            offset: 0x12_3456_7890,
        };
        let cases = [
            row(&[(30_000, one)]),
            row(&[(4096, stored)]),
            row(&[(1, one)]),
            row(&[(10_000, one), (5000, stored), (3_000_000, far)]),
            row(&[(10_000, one), (17, fragment)]),
            row(&[(5 << 30, Data::Hole), (4095, stored), (1, one)]),
        ];
        for (extents, record) in cases.iter().zip([4, 4, 4, 16, 16, 32]) {
            for header_pos in [32, 40, 48, 56, 64] {
                let bytes = encode(extents, header_pos, BlockBits::B4K);
                let size = extents.last().unwrap().end();
                let fragment = extents.last().unwrap().data == fragment;
                assert_eq!(
                    bytes.len() as u64,
                    encoded_len(size, extents.len(), fragment, header_pos, BlockBits::B4K)
                );
                let sb = superblock();
                let layout = Layout::CompressedFull;
                let map = Map::new(&sb, layout, size, &bytes[..8], header_pos).unwrap();
                let at = map.index_pos();
                let table = &bytes[(at - header_pos) as usize..];
                assert_eq!(table.len() as u64, map.index_len());
                let read: Result<Vec<Extent>> = map.extents_from(table, 0).collect();
                assert_eq!(read.unwrap(), *extents, "header at {header_pos}");
                assert_eq!(at % record, 0);
            }
        }
    }

    /// Records out of order can lead the search for the next extent back to an earlier one, so that readers see its
    /// bytes twice. Each extent must begin where the one before ended. Found by fuzzing.
    #[test]
    fn records_out_of_order_are_rejected() {
        let sb = superblock();
        let header = header::MapHeader::Index {
            word: 3,
            advise: header::EXTENTS | 2 << 1,
            algorithms: 0,
            cluster_bits: 0,
        };
        let map = Map::new(&sb, Layout::CompressedFull, 100, &header.encode(), 64).unwrap();
        // Holes at 0, at 3 and again at 0.
        let table: Vec<u8> = [0u32, 3, 0]
            .iter()
            .flat_map(|la| [0, 0, 0, *la])
            .flat_map(u32::to_le_bytes)
            .collect();
        let mut extents = map.extents_from(&table, 0);
        assert_eq!(extents.next().unwrap().unwrap().end(), 3);
        assert!(extents.next().unwrap().is_err());
        assert!(extents.next().is_none());
    }
}
