//! Map node: the entries of one segment, 16 MiB of addresses.
//!
//! Encodings of a node and their memory use in firmware:
//!
//! ```text
//!  regions   10 B + 2 B for each region + for each region that holds something: 4 B + 4 B for each entry from the
//!            first to the last that is valid.  A new node is one region over the whole segment.
//!  packed    10 B + a bitmap of the entries + 2 B for each 64 of them + 4 B for each valid entry.
//! ```
//!
//! If an entry covers four blocks (a 16 KiB flash page), the node has an additional bitmap of valid
//! 4 KiB blocks. The encoding in regions is the published one. The packed encoding keeps memory
//! proportional to the live data if single blocks are discarded at random: no region becomes empty
//! then.

const NONE: u32 = u32::MAX;

/// Policy for the encoding of a compacted node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// Regions of `1 << bits` blocks.
    Fixed(u32),
    /// The region size with the least memory use for this node, at least 256 KiB.
    Adaptive,
    /// The smaller of the adaptive and the packed encoding.
    Smallest,
}

/// Dimensions common to all nodes of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Blocks of a segment, as a power of two.
    pub(super) segment_bits: u32,
    /// Blocks of an entry, as a power of two.
    pub(super) unit_bits: u32,
}

impl Shape {
    pub(super) fn units(self) -> usize {
        1 << (self.segment_bits - self.unit_bits)
    }

    fn bitmap_bytes(self) -> u64 {
        if self.unit_bits == 0 {
            0
        } else {
            (1 << self.segment_bits) / 8
        }
    }
}

/// Entries of one region, starting at index `start`.
struct Part {
    start: u16,
    entries: Vec<u32>,
}

enum Form {
    /// One region over the whole segment: the encoding of a new node and the fast path of writes.
    Flat(Box<[u32]>),
    Regions {
        /// Entries of a region, as a power of two.
        bits: u32,
        /// Index in `parts` for each region, `u16::MAX` if the region is empty.
        directory: Vec<u16>,
        parts: Vec<Part>,
    },
    Packed {
        present: Vec<u64>,
        /// Number of entries before each word of `present`.
        rank: Vec<u16>,
        entries: Vec<u32>,
    },
}

pub(super) struct Segment {
    shape: Shape,
    form: Form,
    /// Bitmap of valid blocks. `None` if an entry covers one block.
    blocks: Option<Box<[u64]>>,
    /// Number of valid entries.
    pub(super) valid: u32,
    /// Number of mapped blocks.
    pub(super) mapped: u32,
    /// Number of valid entries at or below which the node is examined again.
    pub(super) look_at: u32,
    pub(super) bytes: u64,
    /// The node is in the queue for compaction.
    pub(super) queued: bool,
}

impl Segment {
    pub(super) fn new(shape: Shape) -> Self {
        let units = shape.units();
        let mut segment = Self {
            shape,
            form: Form::Flat(vec![NONE; units].into()),
            blocks: (shape.unit_bits > 0).then(|| vec![0; (1 << shape.segment_bits) / 64].into()),
            valid: 0,
            mapped: 0,
            look_at: units as u32 / 2,
            bytes: 0,
            queued: false,
        };
        segment.bytes = segment.count_bytes();
        segment
    }

    /// Returns the stored entry of a unit, if the encoding has one.
    fn find(&self, unit: usize) -> Option<&u32> {
        match &self.form {
            Form::Flat(entries) => entries.get(unit),
            Form::Regions {
                bits,
                directory,
                parts,
            } => {
                let part = parts.get(usize::from(directory[unit >> bits]))?;
                let in_region = unit & ((1 << bits) - 1);
                part.entries.get(in_region.checked_sub(part.start.into())?)
            }
            Form::Packed {
                present,
                rank,
                entries,
            } => {
                let (word, bit) = (present[unit / 64], unit % 64);
                let below = (word & ((1 << bit) - 1)).count_ones() as usize;
                (word >> bit & 1 == 1).then(|| &entries[usize::from(rank[unit / 64]) + below])
            }
        }
    }

    fn find_mut(&mut self, unit: usize) -> Option<&mut u32> {
        match &mut self.form {
            Form::Flat(entries) => entries.get_mut(unit),
            Form::Regions {
                bits,
                directory,
                parts,
            } => {
                let part = parts.get_mut(usize::from(directory[unit >> *bits]))?;
                let in_region = unit & ((1 << *bits) - 1);
                part.entries
                    .get_mut(in_region.checked_sub(part.start.into())?)
            }
            Form::Packed {
                present,
                rank,
                entries,
            } => {
                let (word, bit) = (present[unit / 64], unit % 64);
                let below = (word & ((1 << bit) - 1)).count_ones() as usize;
                (word >> bit & 1 == 1).then(|| &mut entries[usize::from(rank[unit / 64]) + below])
            }
        }
    }

    /// Returns the slot of a block, counted inside the segment.
    pub(super) fn get(&self, block: usize) -> Option<u32> {
        let entry = *self.find(block >> self.shape.unit_bits)?;
        if entry == NONE {
            return None;
        }
        match &self.blocks {
            None => Some(entry),
            Some(map) if map[block / 64] >> (block % 64) & 1 == 1 => Some(
                entry << self.shape.unit_bits | (block as u32 & ((1 << self.shape.unit_bits) - 1)),
            ),
            Some(_) => None,
        }
    }

    /// Sets the slot of a block and returns the previous one.
    pub(super) fn set(&mut self, block: usize, slot: u32) -> Result<Option<u32>, &'static str> {
        if let Form::Flat(entries) = &mut self.form
            && self.shape.unit_bits == 0
        {
            let old = std::mem::replace(&mut entries[block], slot);
            let fresh = u32::from(old == NONE);
            self.valid += fresh;
            self.mapped += fresh;
            return Ok((old != NONE).then_some(old));
        }
        let (unit, unit_bits) = (block >> self.shape.unit_bits, self.shape.unit_bits);
        let old = self.get(block);
        if (slot ^ block as u32) & ((1 << unit_bits) - 1) != 0 {
            return Err("its slot has another place in the flash page than it has in its entry");
        }
        if self.find(unit).is_none() {
            self.widen();
        }
        let shared = unit_bits > 0 && self.others_valid(block);
        // Always present: a widened node has every entry.
        let Some(entry) = self.find_mut(unit) else {
            return Err("its node has no entry for it");
        };
        if shared && *entry != slot >> unit_bits {
            return Err("its neighbours are stored in another flash page");
        }
        let fresh = *entry == NONE;
        *entry = slot >> unit_bits;
        self.valid += u32::from(fresh);
        self.mapped += u32::from(old.is_none());
        if let Some(map) = &mut self.blocks {
            map[block / 64] |= 1 << (block % 64);
        }
        Ok(old)
    }

    /// True if other blocks of the same entry are valid.
    fn others_valid(&self, block: usize) -> bool {
        let first = block >> self.shape.unit_bits << self.shape.unit_bits;
        (first..first + (1 << self.shape.unit_bits)).any(|b| b != block && self.get(b).is_some())
    }

    /// Unmaps a block and returns its slot.
    pub(super) fn clear(&mut self, block: usize) -> Option<u32> {
        let old = self.get(block)?;
        if let Some(map) = &mut self.blocks {
            map[block / 64] &= !(1 << (block % 64));
        }
        self.mapped -= 1;
        if !(self.shape.unit_bits > 0 && self.others_valid(block)) {
            if let Some(entry) = self.find_mut(block >> self.shape.unit_bits) {
                *entry = NONE;
            }
            self.valid -= 1;
        }
        Some(old)
    }

    /// Calls `visit` with each mapped block and its slot.
    pub(super) fn each(&self, visit: &mut dyn FnMut(usize, u32)) {
        for block in 0..1 << self.shape.segment_bits {
            if let Some(slot) = self.get(block) {
                visit(block, slot);
            }
        }
    }

    /// Converts the node to one region, because its encoding has no entry for a written block.
    fn widen(&mut self) {
        let entries: Vec<u32> = (0..self.shape.units())
            .map(|unit| self.find(unit).copied().unwrap_or(NONE))
            .collect();
        self.form = Form::Flat(entries.into());
        self.look_at = self.shape.units() as u32 / 2;
        self.bytes = self.count_bytes();
    }

    /// Converts the node to the smallest encoding that `how` allows. Returns the number of entries
    /// examined or moved.
    pub(super) fn compact(&mut self, how: Region) -> u64 {
        // Examining the node after half of the valid entries were discarded limits the work to a
        // few entries per discard.
        self.look_at = self.valid / 2;
        let units = self.shape.units();
        let entries: Vec<u32> = (0..units)
            .map(|unit| self.find(unit).copied().unwrap_or(NONE))
            .collect();
        let whole = units.ilog2();
        let unit_bits = self.shape.unit_bits;
        let sizes = match how {
            Region::Fixed(bits) => {
                bits.saturating_sub(unit_bits).min(whole)
                    ..=bits.saturating_sub(unit_bits).min(whole)
            }
            // 256 KiB is 64 blocks.
            Region::Adaptive | Region::Smallest => {
                6_u32.saturating_sub(unit_bits).min(whole)..=whole
            }
        };
        let (bits, size) = sizes
            .map(|bits| (bits, regions_bytes(&entries, bits)))
            .min_by_key(|(_, size)| *size)
            .unwrap_or((whole, u64::MAX));
        let packed = packed_bytes(units, self.valid);
        let form = if how == Region::Smallest && packed < size {
            pack(&entries)
        } else {
            cut(&entries, bits)
        };
        let (old_form, old_bytes) = (std::mem::replace(&mut self.form, form), self.bytes);
        self.bytes = self.count_bytes();
        // The saving is too small, and the old encoding may have room for rewritten blocks.
        if self.bytes > old_bytes - old_bytes / 8 {
            self.form = old_form;
            self.bytes = old_bytes;
            return units as u64;
        }
        units as u64 + u64::from(self.valid)
    }

    fn count_bytes(&self) -> u64 {
        let form = match &self.form {
            Form::Flat(entries) => 2 + 4 + 4 * entries.len() as u64,
            Form::Regions {
                directory, parts, ..
            } => {
                2 * directory.len() as u64
                    + parts
                        .iter()
                        .map(|p| 4 + 4 * p.entries.len() as u64)
                        .sum::<u64>()
            }
            Form::Packed { entries, .. } => packed_bytes(self.shape.units(), entries.len() as u32),
        };
        10 + self.shape.bitmap_bytes() + form
    }

    /// Panics if the node is inconsistent.
    pub(super) fn assert_sound(&self) {
        let valid = (0..self.shape.units())
            .filter(|unit| self.find(*unit).is_some_and(|e| *e != NONE))
            .count();
        assert_eq!(valid, self.valid as usize, "valid entries of a node");
        let mut mapped = 0;
        self.each(&mut |_, _| mapped += 1);
        assert_eq!(mapped, self.mapped, "mapped blocks of a node");
        assert_eq!(self.bytes, self.count_bytes(), "bytes of a node");
    }
}

/// Indices of the first and last valid entry of a region.
fn extent(region: &[u32]) -> Option<(usize, usize)> {
    let first = region.iter().position(|e| *e != NONE)?;
    let last = region.iter().rposition(|e| *e != NONE)?;
    Some((first, last))
}

fn regions_bytes(entries: &[u32], bits: u32) -> u64 {
    let regions = entries.chunks(1 << bits);
    regions
        .map(|r| 2 + extent(r).map_or(0, |(first, last)| 4 + 4 * (last - first + 1) as u64))
        .sum()
}

fn packed_bytes(units: usize, valid: u32) -> u64 {
    (units / 8 + 2 * units.div_ceil(64)) as u64 + 4 * u64::from(valid)
}

fn cut(entries: &[u32], bits: u32) -> Form {
    let mut directory = Vec::new();
    let mut parts = Vec::new();
    for region in entries.chunks(1 << bits) {
        directory.push(match extent(region) {
            // fits: a node has at most 2^12 regions, an index in a region is below 2^12
            Some((first, last)) => {
                parts.push(Part {
                    start: first as u16,
                    entries: region[first..=last].to_vec(),
                });
                parts.len() as u16 - 1
            }
            None => u16::MAX,
        });
    }
    Form::Regions {
        bits,
        directory,
        parts,
    }
}

fn pack(entries: &[u32]) -> Form {
    let mut present = vec![0; entries.len().div_ceil(64)];
    let mut rank = Vec::with_capacity(present.len());
    let mut kept = Vec::new();
    for (word, chunk) in entries.chunks(64).enumerate() {
        rank.push(kept.len() as u16);
        for (bit, entry) in chunk.iter().enumerate() {
            if *entry != NONE {
                present[word] |= 1 << bit;
                kept.push(*entry);
            }
        }
    }
    Form::Packed {
        present,
        rank,
        entries: kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Shape = Shape {
        segment_bits: 12,
        unit_bits: 0,
    };
    const COARSE: Shape = Shape {
        segment_bits: 12,
        unit_bits: 2,
    };

    fn full(shape: Shape) -> Segment {
        let mut s = Segment::new(shape);
        (0..4096).for_each(|b| assert_eq!(s.set(b, 8192 + b as u32), Ok(None)));
        s
    }

    #[test]
    fn a_full_node_has_the_published_size() {
        assert_eq!(full(FINE).bytes, 16_400);
        assert_eq!(full(COARSE).bytes, 4_624);
    }

    #[test]
    fn every_encoding_gives_the_same_slots() {
        for how in [
            Region::Fixed(6),
            Region::Fixed(10),
            Region::Adaptive,
            Region::Smallest,
        ] {
            for shape in [FINE, COARSE] {
                let mut s = full(shape);
                for b in 0..4096 {
                    if b % 512 > 40 || b % 3 == 0 {
                        assert_eq!(s.clear(b), Some(8192 + b as u32));
                    }
                }
                let before = s.bytes;
                s.compact(how);
                assert!(s.bytes < before, "{how:?}: {} of {before} bytes", s.bytes);
                s.assert_sound();
                for b in 0..4096 {
                    let want = (b % 512 <= 40 && b % 3 != 0).then_some(8192 + b as u32);
                    assert_eq!(s.get(b), want, "block {b}, {how:?}");
                }
            }
        }
    }

    #[test]
    fn a_compacted_node_accepts_a_write_into_a_hole() {
        let mut s = full(FINE);
        (10..4096).for_each(|b| assert!(s.clear(b).is_some()));
        s.compact(Region::Smallest);
        assert_eq!(s.set(4000, 77), Ok(None));
        assert_eq!(
            (s.get(4000), s.get(3), s.get(11)),
            (Some(77), Some(8195), None)
        );
        s.assert_sound();
    }

    #[test]
    fn random_discards_shrink_only_the_packed_encoding() {
        let left = |how| {
            let mut s = full(FINE);
            (0..4096)
                .filter(|b| b % 4 != 0)
                .for_each(|b| assert!(s.clear(b).is_some()));
            s.compact(how);
            s.bytes
        };
        assert_eq!(left(Region::Adaptive), 16_400);
        assert_eq!(left(Region::Smallest), 10 + 512 + 128 + 4 * 1024);
    }

    #[test]
    fn blocks_of_one_entry_must_share_a_flash_page() {
        let mut s = Segment::new(COARSE);
        assert_eq!(s.set(5, 401), Ok(None));
        assert!(s.set(6, 502).is_err(), "another page");
        assert!(s.set(7, 402).is_err(), "another place");
        assert_eq!((s.get(4), s.get(5)), (None, Some(401)));
    }
}
