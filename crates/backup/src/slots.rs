//! Sets of entries of directories.

use crate::index::Slot;
use crate::segment::Directory;
use std::collections::HashMap;

/// A bit for each entry of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentMarks {
    pub(crate) ranges: Vec<u64>,
    pub(crate) members: Vec<u64>,
}

impl SegmentMarks {
    const NONE: &Self = &Self {
        ranges: Vec::new(),
        members: Vec::new(),
    };

    pub(crate) fn add_range(&mut self, number: u32) {
        add(&mut self.ranges, number);
    }

    pub(crate) fn add_member(&mut self, number: u32) {
        add(&mut self.members, number);
    }

    pub(crate) fn has_range(&self, number: u32) -> bool {
        has(&self.ranges, number)
    }

    pub(crate) fn has_member(&self, number: u32) -> bool {
        has(&self.members, number)
    }

    /// The directory with the entries that are marked, and the groups of members that are.
    pub(crate) fn kept(&self, directory: Directory) -> Directory {
        let mut uses = vec![false; directory.ranges.len()];
        for (i, used) in (0..).zip(&mut uses) {
            *used = self.has_range(i);
        }
        for (i, member) in (0..).zip(&directory.members) {
            uses[member.group as usize] |= self.has_member(i);
        }
        directory.keep(&|i| uses[i as usize], &|i| self.has_member(i))
    }
}

fn add(bits: &mut Vec<u64>, number: u32) {
    let word = number as usize / 64;
    if bits.len() <= word {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (number % 64);
}

fn has(bits: &[u64], number: u32) -> bool {
    let word = bits.get(number as usize / 64).copied().unwrap_or(0);
    word >> (number % 64) & 1 == 1
}

/// Set of entries of directories.
#[derive(Default)]
pub(crate) struct SlotSet {
    segments: HashMap<u32, SegmentMarks>,
}

impl SlotSet {
    /// Entries of a segment.
    pub(crate) fn segment(&self, segment: u32) -> &SegmentMarks {
        self.segments.get(&segment).unwrap_or(SegmentMarks::NONE)
    }

    /// Number of entries.
    pub(crate) fn count(&self) -> u64 {
        let bits = self.segments.values();
        let words = bits.flat_map(|marks| marks.ranges.iter().chain(&marks.members));
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn has(&self, (slot, is_member): (Slot, bool)) -> bool {
        let segment = self.segment(slot.segment);
        match is_member {
            true => segment.has_member(slot.entry),
            false => segment.has_range(slot.entry),
        }
    }

    pub(crate) fn insert(&mut self, (Slot { segment, entry }, is_member): (Slot, bool)) {
        let marks = self.segments.entry(segment).or_default();
        match is_member {
            true => marks.add_member(entry),
            false => marks.add_range(entry),
        }
    }
}
