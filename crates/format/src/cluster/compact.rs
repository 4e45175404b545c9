//! Compacted index: packs of lclusters that share one block address.
//!
//! ```text
//! 4B pack  (8 bytes)   2 entries of 16 bits | u32 base
//! 2B pack (32 bytes)  16 entries of 14 bits | u32 base
//!
//! entry = type (2 bits) above lo (12 bits or more)
//!   HEAD, PLAIN   lo = offset in the lcluster
//!   NONHEAD       lo = distance back; in the last slot of a pack: distance ahead; with bit 11: block count
//! ```
//!
//! A first part of 4B packs aligns the 2B part to 32 bytes of the inode's space; a last part of 4B packs takes the rest.
//! A head's block is `base` plus the blocks of the heads before it in the pack.

use super::{CBLKCNT, DISTANCE_MAX, HeadKind, Lcluster, check_head};
use crate::{Error, Result};
use alloc::vec::Vec;
use core::ops::Range;

/// Layout of an index, derived from its position and the number of lclusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of lclusters in the file.
    pub total: u64,
    /// Number of entries in the first 4B part.
    first: u64,
    /// Number of entries in the 2B part.
    second: u64,
    /// Width of `lo`. Unit: bits.
    lo_bits: u8,
    /// True if pclusters may have several blocks.
    big: bool,
}

/// Position of an entry.
struct EntryPosition {
    /// Position of the pack in the index. Unit: bytes.
    pack: usize,
    /// Number of the entry in its pack.
    i: usize,
    /// Number of entries in the pack: 2 or 16.
    slots: usize,
    /// Width of an entry. Unit: bits.
    width: usize,
}

impl Geometry {
    /// `start` is the position of the index in the inode's space, 8 bytes after the map header. Unit: bytes.
    pub fn new(
        start: u64,
        total: u64,
        packs_2b: bool,
        lcluster_bits: u8,
        big: bool,
    ) -> Result<Self> {
        if lcluster_bits > 14 || packs_2b && lcluster_bits > 12 {
            return Err(Error::unsupported(
                "lcluster size of a compact index: log2",
                lcluster_bits.into(),
            ));
        }
        let align = ((32 - start % 32) / 4) & 7;
        let first = align.min(total);
        let second = if packs_2b && align < total {
            (total - align) / 16 * 16
        } else {
            0
        };
        // Without a 2B part, all packs are 4B packs, and the split between first and last part is irrelevant.
        Ok(Self {
            total,
            first,
            second,
            lo_bits: lcluster_bits.max(12),
            big,
        })
    }

    /// Length of the index. Unit: bytes.
    pub fn len(&self) -> u64 {
        let rest = self.total - self.first - self.second;
        4 * self.first.next_multiple_of(2) + 2 * self.second + 4 * rest.next_multiple_of(2)
    }

    /// True if the file has no lclusters.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    fn position(&self, n: u64) -> Result<EntryPosition> {
        if n >= self.total {
            return Err(Error::bad("lcluster number", n, "inside the file"));
        }
        let (pos, wide) = if n < self.first {
            (4 * n, false)
        } else if n < self.first + self.second {
            (4 * self.first + 2 * (n - self.first), true)
        } else {
            (
                4 * self.first + 2 * self.second + 4 * (n - self.first - self.second),
                false,
            )
        };
        // The 2B part follows an even number of 4-byte entries. Its packs have 32 bytes.
        let (pack_len, entry_len) = if wide { (32, 2) } else { (8, 4) };
        let origin = if wide { 4 * self.first } else { 0 };
        let pack = origin + (pos - origin) / pack_len * pack_len;
        let i = (pos - pack) / entry_len;
        Ok(EntryPosition {
            pack: usize::try_from(pack).map_err(|_| Error::corrupt("compact index"))?,
            i: i as usize,
            slots: if wide { 16 } else { 2 },
            width: if wide { 14 } else { 16 },
        })
    }

    /// Returns the lclusters in the pack of lcluster `n`. Their clusters are consecutive.
    pub fn pack(&self, n: u64) -> Result<Range<u64>> {
        let slot = self.position(n)?;
        let start = n - slot.i as u64;
        Ok(start..(start + slot.slots as u64).min(self.total))
    }

    /// Decodes the index entry of lcluster `n`.
    pub fn entry(&self, index: &[u8], n: u64) -> Result<Lcluster> {
        let slot = self.position(n)?;
        let pack = Pack::new(index, &slot, self.lo_bits)?;
        let (kind, lo) = pack.field(slot.i);
        if let Some(kind) = kind {
            check_head(lo, self.lo_bits)?;
            let block = pack.base().wrapping_add(self.blocks_before(&pack, slot.i)?);
            return Ok(Lcluster::Head {
                kind,
                ofs: lo,
                block,
                partial: false,
            });
        }
        if lo & CBLKCNT != 0 {
            return Ok(Lcluster::Nonhead {
                back: 1,
                ahead: 0,
                blocks: Some(lo & !CBLKCNT),
            });
        }
        if slot.i + 1 < slot.slots {
            if lo == 0 {
                return Err(Error::bad(
                    "index entry: distance back to its head",
                    0,
                    "at least 1",
                ));
            }
            return Ok(Lcluster::Nonhead {
                back: lo,
                ahead: 0,
                blocks: None,
            });
        }
        let back = match pack.field(slot.i - 1) {
            (Some(_), _) => 1,
            (None, prev) if prev & CBLKCNT != 0 => 2,
            (None, prev) => prev + 1,
        };
        Ok(Lcluster::Nonhead {
            back,
            ahead: lo,
            blocks: None,
        })
    }

    /// Counts the blocks from `base` to the head in slot `i`.
    fn blocks_before(&self, pack: &Pack<'_>, i: usize) -> Result<u32> {
        let mut i = i as i32;
        if !self.big {
            let mut blocks = 1;
            while i > 0 {
                i -= 1;
                if let (None, lo) = pack.field(i as usize) {
                    i -= i32::from(lo);
                }
                if i >= 0 {
                    blocks += 1;
                }
            }
            return Ok(blocks);
        }
        let mut blocks = 0;
        while i > 0 {
            i -= 1;
            match pack.field(i as usize) {
                (Some(_), _) => blocks += 1,
                // The count belongs to the head one slot earlier.
                (None, lo) if lo & CBLKCNT != 0 => {
                    blocks += u32::from(lo & !CBLKCNT);
                    i -= 1;
                }
                (None, lo) if lo <= 1 => {
                    return Err(Error::bad(
                        "index entry: distance back in a big pack",
                        lo.into(),
                        "at least 2",
                    ));
                }
                // Lands on the slot after the one with the block count.
                (None, lo) => i -= i32::from(lo) - 2,
            }
        }
        Ok(blocks)
    }

    /// Encodes an index. `None` if a pack has pclusters that are not contiguous, or an entry does not fit.
    pub fn encode(&self, entries: &[Lcluster]) -> Option<Vec<u8>> {
        debug_assert_eq!(self.total, entries.len() as u64);
        let mut out = alloc::vec![0u8; usize::try_from(self.len()).ok()?];
        let mut n = 0usize;
        while let Some(rest) = entries.get(n..).filter(|r| !r.is_empty()) {
            let slot = self.position(n as u64).ok()?;
            let in_pack = rest.get(..rest.len().min(slot.slots))?;
            let pack_len = slot.slots * slot.width / 8 + 4;
            let pack = out.get_mut(slot.pack..slot.pack + pack_len)?;
            let mut bits = [0u8; 32];
            for (i, entry) in in_pack.iter().enumerate() {
                let (kind, lo) = self.pack_entry(entry, i + 1 == slot.slots)?;
                put_bits(
                    &mut bits,
                    i * slot.width,
                    u32::from(kind) << self.lo_bits | u32::from(lo),
                );
            }
            pack.get_mut(..pack_len - 4)?
                .copy_from_slice(bits.get(..pack_len - 4)?);
            self.set_base(pack, &slot, in_pack)?;
            n += in_pack.len();
        }
        Some(out)
    }

    fn pack_entry(&self, entry: &Lcluster, last_slot: bool) -> Option<(u16, u16)> {
        match *entry {
            Lcluster::Head { partial: true, .. } => None,
            Lcluster::Head { kind, ofs, .. } => Some((kind as u16, ofs)),
            Lcluster::Nonhead {
                blocks: Some(blocks),
                ..
            } => (blocks < CBLKCNT).then_some((2, blocks | CBLKCNT)),
            Lcluster::Nonhead { ahead, .. } if last_slot => {
                Some((2, ahead.min(DISTANCE_MAX as u16)))
            }
            Lcluster::Nonhead { back, .. } => Some((2, back)),
        }
    }

    /// Chooses the base from the first head with a real block, then checks that it yields the blocks of all others.
    fn set_base(&self, pack: &mut [u8], slot: &EntryPosition, entries: &[Lcluster]) -> Option<()> {
        let mut base = None;
        for (i, entry) in entries.iter().enumerate() {
            let Lcluster::Head { block, .. } = *entry else {
                continue;
            };
            let before = {
                let view = Pack {
                    bytes: pack,
                    lo_bits: self.lo_bits,
                    width: slot.width,
                };
                self.blocks_before(&view, i).ok()?
            };
            match base {
                None => {
                    base = Some(block.wrapping_sub(before));
                    let at = pack.len() - 4;
                    pack.get_mut(at..)?
                        .copy_from_slice(&block.wrapping_sub(before).to_le_bytes());
                }
                Some(base) if block == u32::wrapping_add(base, before) => {}
                // The terminator and a tail without a block of its own have no address.
                Some(_) if block == NO_BLOCK => {}
                Some(_) => return None,
            }
        }
        Some(())
    }
}

/// Block of a head without an address: the terminator, or an inline or fragment tail.
pub const NO_BLOCK: u32 = 0;

struct Pack<'a> {
    bytes: &'a [u8],
    lo_bits: u8,
    width: usize,
}

impl<'a> Pack<'a> {
    fn new(index: &'a [u8], slot: &EntryPosition, lo_bits: u8) -> Result<Self> {
        let len = slot.slots * slot.width / 8 + 4;
        let bytes = crate::wire::bytes(index, slot.pack, len, "compact index")?;
        Ok(Self {
            bytes,
            lo_bits,
            width: slot.width,
        })
    }

    /// Returns the type (`None`: NONHEAD) and `lo` of slot `i`.
    fn field(&self, i: usize) -> (Option<HeadKind>, u16) {
        let bit = i * self.width;
        // In bounds: the last entry starts 6 or more bytes before the end of its pack.
        let word = match self.bytes.get(bit / 8..bit / 8 + 4) {
            Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]) >> (bit % 8),
            _ => 0,
        };
        let lo = word & ((1 << self.lo_bits) - 1);
        (
            HeadKind::from_bits((word >> self.lo_bits & 3) as u16),
            lo as u16,
        )
    }

    fn base(&self) -> u32 {
        match *self.bytes {
            [.., a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => 0,
        }
    }
}

fn put_bits(out: &mut [u8; 32], bit: usize, value: u32) {
    let shifted = u64::from(value) << (bit % 8);
    for (byte, v) in out
        .iter_mut()
        .skip(bit / 8)
        .zip(shifted.to_le_bytes().into_iter().take(4))
    {
        *byte |= v;
    }
}
