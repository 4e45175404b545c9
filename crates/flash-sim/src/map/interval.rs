//! Interval mapping: a tree of height three for each part of the address space, allocated only for
//! the addresses in use.
//!
//! ```text
//!  address = [tree: 3 bits][zone][segment: 10 bits][block: 12 bits]
//!
//!  root: array of zones from `base` on ──► zone of 16 GiB: 1024 segments ──► segment of 16 MiB: entries
//!        slides as zones at its start die, grows as zones are written past its end
//! ```
//!
//! A look-up is three index computations at any size. Empty zones and segments below the highest
//! written block of their tree are freed. A segment below it is queued for compaction once half of
//! the entries that were valid at its last examination are discarded. One compaction is bounded by
//! one node; the total work is a few entries for each discarded block.

use super::Map;
use super::segment::{Segment, Shape};
use crate::units::{Lba, Slot};
use std::collections::VecDeque;
use std::ops::Range;

pub use super::segment::Region;

/// Number of trees, one for each value of the top address bits.
const TREES: usize = 8;
/// Segments of a zone, as a power of two.
const ZONE_BITS: u32 = 10;
/// Blocks of a segment, as a power of two.
const SEGMENT_BITS: u32 = 12;
/// Largest span of a root: 16 PiB. Unit: zones. A limit prevents allocations of a size that an
/// arbitrary address dictates.
const ROOT_MAX: u64 = 1 << 20;
/// Zones of a new root.
const ROOT_START: u64 = 16;
/// Number of active zones below which a full root doubles. A larger root grows by `ROOT_STEP`.
const ROOT_DOUBLES: u64 = 1024;
const ROOT_STEP: u64 = 16;

/// Policy for the compaction of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compaction {
    /// Nodes are never compacted.
    Off,
    /// One node at a time. Each command pays for this many entries of work, accumulated up to one
    /// node.
    Incremental(u32),
    /// All queued nodes at a time chosen by the device, as published. Other commands wait
    /// meanwhile.
    AtOnce,
}

impl Compaction {
    /// The slowest incremental compaction that keeps up with discards. A node is examined each time
    /// half of its entries are discarded. With single-block discards that is twelve times and about
    /// fourteen entries of work per block. A higher rate only makes bursts of discards more
    /// expensive.
    pub const STEADY: Self = Self::Incremental(16);
}

/// Settings of an interval map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Blocks of a tree, as a power of two; the bits above select the tree.
    pub offset_bits: u32,
    /// Blocks of an entry, as a power of two: 0 for 4 KiB, 2 for 16 KiB.
    pub unit_bits: u32,
    /// Policy for the compaction of nodes.
    pub compaction: Compaction,
    /// Encoding of a compacted node.
    pub region: Region,
}

impl Interval {
    /// Returns settings with 4 KiB entries, incremental compaction and the smallest encoding.
    pub fn new(offset_bits: u32) -> Self {
        Self {
            offset_bits,
            unit_bits: 0,
            compaction: Compaction::STEADY,
            region: Region::Smallest,
        }
    }
}

struct Zone {
    segments: Box<[Option<Box<Segment>>]>,
    used: u32,
}

struct Tree {
    /// Number of the first zone of the root.
    base: u64,
    root: VecDeque<Option<Box<Zone>>>,
    /// Highest written block plus one.
    head: u64,
}

/// Map from logical blocks to slots in one tree per part of the address space.
pub struct IntervalMap {
    how: Interval,
    shape: Shape,
    trees: Vec<Tree>,
    /// Nodes to examine, as tree and segment number.
    queue: VecDeque<(usize, u64)>,
    credit: u64,
    mapped: u64,
    bytes: u64,
}

impl IntervalMap {
    /// Creates an empty map.
    pub fn new(how: Interval) -> Self {
        let tree = || Tree {
            base: 0,
            root: VecDeque::new(),
            head: 0,
        };
        Self {
            how,
            shape: Shape {
                segment_bits: SEGMENT_BITS,
                unit_bits: how.unit_bits,
            },
            trees: (0..TREES).map(|_| tree()).collect(),
            queue: VecDeque::new(),
            credit: 0,
            mapped: 0,
            bytes: 0,
        }
    }

    /// Number of zones from the first to the last one in use, summed over all trees: the active
    /// intervals.
    pub fn active_zones(&self) -> u64 {
        let active = |t: &Tree| {
            let first = t.root.iter().position(Option::is_some);
            let last = t.root.iter().rposition(Option::is_some);
            first.zip(last).map_or(0, |(a, b)| (b - a + 1) as u64)
        };
        self.trees.iter().map(active).sum()
    }

    /// Number of allocated map nodes.
    pub fn nodes(&self) -> u64 {
        let zones = self.trees.iter().flat_map(|t| t.root.iter().flatten());
        zones.map(|z| u64::from(z.used)).sum()
    }

    fn split(&self, lba: Lba) -> Option<(usize, u64)> {
        let tree = usize::try_from(lba.0 >> self.how.offset_bits).ok()?;
        (tree < TREES).then_some((tree, lba.0 & ((1 << self.how.offset_bits) - 1)))
    }

    fn segment(&self, tree: usize, number: u64) -> Option<&Segment> {
        let t = &self.trees[tree];
        let zone = (number >> ZONE_BITS).checked_sub(t.base)?;
        let zone = t.root.get(zone as usize)?.as_deref()?;
        zone.segments[(number & ((1 << ZONE_BITS) - 1)) as usize].as_deref()
    }

    fn segment_mut(&mut self, tree: usize, number: u64) -> Option<&mut Segment> {
        let t = &mut self.trees[tree];
        let zone = (number >> ZONE_BITS).checked_sub(t.base)?;
        let zone = t.root.get_mut(zone as usize)?.as_deref_mut()?;
        zone.segments[(number & ((1 << ZONE_BITS) - 1)) as usize].as_deref_mut()
    }

    /// Extends the root to cover zone `number`. On an error the root is unchanged.
    fn reach(&mut self, tree: usize, number: u64) -> Result<(), &'static str> {
        let t = &mut self.trees[tree];
        if t.root.is_empty() {
            t.base = number;
        }
        let past = t.base + t.root.len() as u64;
        if number >= t.base && number < past {
            return Ok(());
        }
        // Freed zones at the start are dropped before the root grows.
        let first = t.root.iter().position(Option::is_some);
        let (base, kept) = match first {
            Some(first) => (t.base + first as u64, t.root.len() - first),
            None => (number, 0),
        };
        let start = base.min(number);
        let end = (base + kept as u64).max(number + 1);
        if end - start > ROOT_MAX {
            return Err("farther from the other blocks of its tree than a root spans");
        }
        let before = t.root.len() as u64;
        t.root.drain(..t.root.len() - kept);
        (start..base).for_each(|_| t.root.push_front(None));
        t.base = start;
        let active = end - start;
        let room = if number >= base && active < ROOT_DOUBLES {
            active.next_power_of_two().max(ROOT_START)
        } else {
            active + ROOT_STEP
        };
        while (t.root.len() as u64) < room {
            t.root.push_back(None);
        }
        self.bytes = self.bytes + 8 * t.root.len() as u64 - 8 * before;
        Ok(())
    }

    /// Allocates the node of a segment.
    fn make(&mut self, tree: usize, number: u64) -> Result<(), &'static str> {
        self.reach(tree, number >> ZONE_BITS)?;
        let t = &mut self.trees[tree];
        let index = ((number >> ZONE_BITS) - t.base) as usize;
        let zone = t.root[index].get_or_insert_with(|| {
            self.bytes += zone_bytes();
            Box::new(Zone {
                segments: (0..1 << ZONE_BITS).map(|_| None).collect(),
                used: 0,
            })
        });
        let segment = Segment::new(self.shape);
        self.bytes += segment.bytes;
        zone.used += 1;
        zone.segments[(number & ((1 << ZONE_BITS) - 1)) as usize] = Some(Box::new(segment));
        Ok(())
    }

    /// Frees an empty node and then its empty zone, if the head has passed them.
    fn free_if_dead(&mut self, tree: usize, number: u64) {
        let t = &mut self.trees[tree];
        if t.head < (number + 1) << SEGMENT_BITS {
            return;
        }
        let Some(index) = (number >> ZONE_BITS).checked_sub(t.base) else {
            return;
        };
        let Some(slot) = t.root.get_mut(index as usize) else {
            return;
        };
        let Some(zone) = slot.as_deref_mut() else {
            return;
        };
        let node = &mut zone.segments[(number & ((1 << ZONE_BITS) - 1)) as usize];
        if node.as_ref().is_some_and(|s| s.mapped == 0) {
            self.bytes -= node.as_ref().map_or(0, |s| s.bytes);
            *node = None;
            zone.used -= 1;
        }
        let passed = t.head >= ((number >> ZONE_BITS) + 1) << (ZONE_BITS + SEGMENT_BITS);
        if zone.used == 0 && passed {
            *slot = None;
            self.bytes -= zone_bytes();
        }
    }

    /// Queues a node if enough of its entries were discarded and the head has passed it.
    fn consider(&mut self, tree: usize, number: u64) {
        if self.how.compaction == Compaction::Off {
            return;
        }
        let passed = self.trees[tree].head >= (number + 1) << SEGMENT_BITS;
        if let Some(s) = self.segment_mut(tree, number)
            && passed
            && !s.queued
            && s.valid <= s.look_at
        {
            s.queued = true;
            self.queue.push_back((tree, number));
        }
    }

    fn compact_one(&mut self) -> u64 {
        let region = self.how.region;
        while let Some((tree, number)) = self.queue.pop_front() {
            // The node may have been freed since it was queued.
            if let Some(s) = self.segment_mut(tree, number) {
                s.queued = false;
                let before = s.bytes;
                let work = s.compact(region);
                let after = s.bytes;
                self.bytes = self.bytes - before + after;
                return work;
            }
        }
        0
    }
}

/// Memory use of a zone: pointers of eight bytes and two counters.
fn zone_bytes() -> u64 {
    8 * (1 << ZONE_BITS) + 8
}

impl Map for IntervalMap {
    fn get(&self, lba: Lba) -> Option<Slot> {
        let (tree, offset) = self.split(lba)?;
        let segment = self.segment(tree, offset >> SEGMENT_BITS)?;
        segment
            .get((offset & ((1 << SEGMENT_BITS) - 1)) as usize)
            .map(Slot)
    }

    fn set(&mut self, lba: Lba, slot: Slot) -> Result<Option<Slot>, &'static str> {
        let (tree, offset) = self.split(lba).ok_or("past the last tree")?;
        let number = offset >> SEGMENT_BITS;
        if self.segment(tree, number).is_none() {
            self.make(tree, number)?;
        }
        let head = self.trees[tree].head;
        self.trees[tree].head = head.max(offset + 1);
        let Some(segment) = self.segment_mut(tree, number) else {
            return Err("its node vanished");
        };
        let before = segment.bytes;
        let old = segment.set((offset & ((1 << SEGMENT_BITS) - 1)) as usize, slot.0)?;
        let after = segment.bytes;
        self.bytes = self.bytes - before + after;
        self.mapped += u64::from(old.is_none());
        // The head has left a segment, which makes its earlier discards eligible for compaction.
        if head > 0 && (head - 1) >> SEGMENT_BITS < number && offset >= head {
            let left = (head - 1) >> SEGMENT_BITS;
            self.consider(tree, left);
            self.free_if_dead(tree, left);
        } else if offset + 1 == (number + 1) << SEGMENT_BITS {
            self.consider(tree, number);
        }
        Ok(old.map(Slot))
    }

    fn clear(&mut self, range: Range<u64>, freed: &mut dyn FnMut(Slot)) {
        let mut at = range.start;
        while at < range.end {
            let Some((tree, offset)) = self.split(Lba(at)) else {
                return;
            };
            let tree_end = (tree as u64 + 1) << self.how.offset_bits;
            let number = offset >> SEGMENT_BITS;
            let (base, len) = (self.trees[tree].base, self.trees[tree].root.len() as u64);
            let zone = number >> ZONE_BITS;
            // Skip unallocated parts: the rest of the tree, the gap before the root, a zone, a
            // segment.
            let here = tree_end - (1 << self.how.offset_bits);
            if zone >= base + len {
                at = tree_end;
                continue;
            }
            if zone < base {
                at = here + (base << (ZONE_BITS + SEGMENT_BITS));
                continue;
            }
            if self.trees[tree].root[(zone - base) as usize].is_none() {
                at = here + ((zone + 1) << (ZONE_BITS + SEGMENT_BITS));
                continue;
            }
            let next = here + ((number + 1) << SEGMENT_BITS);
            let end = range.end.min(next);
            if let Some(segment) = self.segment_mut(tree, number) {
                let mut count = 0;
                for block in at..end {
                    let block = (block & ((1 << SEGMENT_BITS) - 1)) as usize;
                    if let Some(slot) = segment.clear(block) {
                        freed(Slot(slot));
                        count += 1;
                    }
                }
                self.mapped -= count;
                self.consider(tree, number);
                self.free_if_dead(tree, number);
            }
            at = end;
        }
    }

    fn mapped(&self) -> u64 {
        self.mapped
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn maintain(&mut self) -> u64 {
        let Compaction::Incremental(earned) = self.how.compaction else {
            return 0;
        };
        let node = 2 * self.shape.units() as u64;
        self.credit = (self.credit + u64::from(earned)).min(node);
        if self.queue.is_empty() || self.credit < node {
            return 0;
        }
        let work = self.compact_one();
        self.credit -= work.min(self.credit);
        work
    }

    fn maintain_all(&mut self) -> u64 {
        let mut work = 0;
        while !self.queue.is_empty() {
            work += self.compact_one();
        }
        work
    }

    fn each(&self, visit: &mut dyn FnMut(Lba, Slot)) {
        for (tree, t) in self.trees.iter().enumerate() {
            for (z, zone) in t.root.iter().enumerate() {
                let Some(zone) = zone else { continue };
                for (s, segment) in zone.segments.iter().enumerate() {
                    let Some(segment) = segment else { continue };
                    let number = ((t.base + z as u64) << ZONE_BITS) + s as u64;
                    let start = ((tree as u64) << self.how.offset_bits) + (number << SEGMENT_BITS);
                    segment.each(&mut |block, slot| visit(Lba(start + block as u64), Slot(slot)));
                }
            }
        }
    }

    fn assert_sound(&self) {
        let (mut bytes, mut mapped) = (0, 0);
        for t in &self.trees {
            bytes += 8 * t.root.len() as u64;
            for zone in t.root.iter().flatten() {
                bytes += zone_bytes();
                let segments = || zone.segments.iter().flatten();
                segments().for_each(|s| s.assert_sound());
                bytes += segments().map(|s| s.bytes).sum::<u64>();
                let inside: u64 = segments().map(|s| u64::from(s.mapped)).sum();
                assert_eq!(segments().count(), zone.used as usize, "nodes of a zone");
                mapped += inside;
            }
        }
        assert_eq!(mapped, self.mapped, "mapped blocks of the interval map");
        assert_eq!(bytes, self.bytes, "bytes of the interval map");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << SEGMENT_BITS;
    const ZONE: u64 = 1 << (SEGMENT_BITS + ZONE_BITS);

    fn map(compaction: Compaction) -> IntervalMap {
        IntervalMap::new(Interval {
            compaction,
            ..Interval::new(48)
        })
    }

    fn append(m: &mut IntervalMap, lbas: Range<u64>) {
        for lba in lbas {
            assert_eq!(m.set(Lba(lba), Slot((lba & 0xff_ffff) as u32)), Ok(None));
            m.maintain();
        }
    }

    #[test]
    fn trees_do_not_share_addresses() {
        let mut m = map(Compaction::Off);
        for tree in 0..8 {
            assert_eq!(m.set(Lba((tree << 48) + 5), Slot(tree as u32)), Ok(None));
        }
        for tree in 0..8 {
            assert_eq!(m.get(Lba((tree << 48) + 5)), Some(Slot(tree as u32)));
        }
        assert_eq!(m.set(Lba(8 << 48), Slot(1)), Err("past the last tree"));
        assert_eq!(m.get(Lba(u64::MAX)), None);
        m.assert_sound();
    }

    #[test]
    fn memory_is_constant_while_the_interval_slides() {
        let mut m = map(Compaction::Off);
        let mut peak = 0;
        // One segment in every zone is written. It is discarded two zones later.
        for zone in 0..200 {
            append(&mut m, zone * ZONE..zone * ZONE + SEGMENT);
            if zone >= 2 {
                let old = (zone - 2) * ZONE;
                let mut freed = 0;
                m.clear(old..old + SEGMENT, &mut |_| freed += 1);
                assert_eq!(freed, SEGMENT);
            }
            peak = peak.max(m.bytes());
            assert!(
                m.active_zones() <= 3,
                "{} zones at {zone}",
                m.active_zones()
            );
        }
        m.assert_sound();
        assert!(peak < 4 * (16_400 + 8200) + 64 * 8, "{peak} bytes");
    }

    #[test]
    fn an_address_beyond_the_root_limit_is_rejected_without_changes() {
        let mut m = map(Compaction::Off);
        append(&mut m, 0..10);
        let before = m.bytes();
        assert!(m.set(Lba(ROOT_MAX * ZONE), Slot(1)).is_err());
        assert_eq!((m.bytes(), m.mapped()), (before, 10));
        m.assert_sound();
    }

    #[test]
    fn a_root_grows_in_both_directions() {
        let mut m = map(Compaction::Off);
        append(&mut m, 50 * ZONE..50 * ZONE + 4);
        append(&mut m, 3 * ZONE..3 * ZONE + 4);
        append(&mut m, 1500 * ZONE..1500 * ZONE + 4);
        assert_eq!(
            m.get(Lba(50 * ZONE + 3)),
            Some(Slot(((50 * ZONE + 3) & 0xff_ffff) as u32))
        );
        assert_eq!((m.mapped(), m.nodes(), m.active_zones()), (12, 3, 1498));
        m.assert_sound();
    }

    #[test]
    fn a_discard_of_all_addresses_frees_all_nodes_but_the_heads() {
        let mut m = map(Compaction::Off);
        append(&mut m, 0..3 * SEGMENT + 7);
        append(&mut m, (4 << 48) + 9 * ZONE..(4 << 48) + 9 * ZONE + 5);
        let mut freed = 0;
        m.clear(0..u64::MAX, &mut |_| freed += 1);
        assert_eq!((freed, m.mapped(), m.nodes()), (3 * SEGMENT + 7 + 5, 0, 2));
        m.assert_sound();
    }

    #[test]
    fn memory_follows_the_live_blocks_under_random_discards() {
        let run = |compaction, region| {
            let mut m = IntervalMap::new(Interval {
                compaction,
                region,
                ..Interval::new(48)
            });
            append(&mut m, 0..64 * SEGMENT);
            for lba in (0..64 * SEGMENT).filter(|lba| lba * 2_654_435_761 % 97 < 90) {
                m.clear(lba..lba + 1, &mut |_| ());
                m.maintain();
            }
            m.assert_sound();
            m.bytes() as f64 / m.mapped() as f64
        };
        let off = run(Compaction::Off, Region::Smallest);
        let published = run(Compaction::Incremental(64), Region::Adaptive);
        let ours = run(Compaction::Incremental(64), Region::Smallest);
        assert!(
            off > 50.0,
            "{off} bytes for a live block without compaction"
        );
        assert!(published > ours, "{published} and {ours}");
        assert!(ours < 16.0, "{ours} bytes for a live block");
    }

    #[test]
    fn one_command_compacts_at_most_one_node() {
        let mut m = map(Compaction::Incremental(64));
        append(&mut m, 0..32 * SEGMENT);
        m.clear(0..31 * SEGMENT, &mut |_| ());
        append(&mut m, 32 * SEGMENT..64 * SEGMENT);
        let mut commands = 0;
        let mut total = 0;
        for lba in (0..64 * SEGMENT).filter(|l| l % 5 != 0) {
            m.clear(lba..lba + 1, &mut |_| ());
            let work = m.maintain();
            assert!(work <= 2 * SEGMENT, "{work} entries in one command");
            commands += 1;
            total += work;
        }
        assert!(total > 0 && total <= 64 * commands + 2 * SEGMENT);
    }
}
