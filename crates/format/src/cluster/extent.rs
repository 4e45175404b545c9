//! Encoded extents (48-bit images): one record per extent.
//!
//! ```text
//!  4  u32 plen                                   (first a u64 with the position of extent 0)
//!  8  u32 plen | u32 pstart
//! 16  u32 plen | u32 pstart lo | u32 pstart hi | u32 lstart lo
//! 32  the 16-byte record | u32 lstart hi | 12 reserved
//! ```

use super::{Coding, Data, Extent};
use crate::wire::u32_at;
use crate::{BlockBits, Error, Result};

/// Most 4-byte records that a table may have: each look-up adds up those before.
pub const ACCUMULATED_MAX: u64 = 1 << 17;

const PLEN: u32 = (1 << 21) - 1;
const PARTIAL_REF: u32 = 1 << 27;

/// The table of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Length of a record: 4, 8, 16 or 32. Unit: bytes.
    pub record: u8,
    /// Number of extents.
    pub count: u64,
    /// log2 of the decoded length of all extents but the last, for records of 4 and 8 bytes.
    pub extent_bits: u8,
    /// The last record describes a fragment.
    pub fragment: bool,
    /// Stored, block-aligned clusters are rotated.
    pub interlaced: bool,
}

impl Table {
    /// Length of the table. Unit: bytes. `None` if absurd.
    pub fn len(&self) -> Option<u64> {
        let head = if self.record == 4 { 8 } else { 0 };
        self.count
            .checked_mul(self.record.into())?
            .checked_add(head)
    }

    /// True for no extents at all.
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

    /// The extent that holds byte `offset`, which is below `size`.
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

    /// The last record that starts at or before `offset`.
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

#[cfg(test)]
mod tests {
    use super::super::{Map, header};
    use crate::features::incompat;
    use crate::inode::Layout;
    use crate::superblock::{MAGIC, Superblock};
    use alloc::vec::Vec;

    /// Seen: fuzzing found a table whose extents came twice. Cost: readers saw the same bytes of a file again. Cause: with
    /// records out of order the search for the next extent lands on one that covers the last. Cure: each extent begins
    /// where the one before ended, or is an error.
    #[test]
    fn records_out_of_order_are_an_error() {
        let mut bytes = [0; 128];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[12] = 12;
        let mut sb = Superblock::decode(&bytes).unwrap();
        sb.incompat = incompat::BIT48;
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
