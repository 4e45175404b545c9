//! Where each range of a store is: made from the directories of all segments.

use crate::digest::Digest;
use crate::segment::Directory;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Vacancy;

/// Entry of a directory: a range, or a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    /// Number of the segment.
    pub(crate) segment: u32,
    /// Number among the ranges or among the members of the directory.
    pub(crate) entry: u32,
}

/// Index of a store's ranges. 24 bytes of memory for each, and those of the table.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Ranges with clusters of their own, by the first half of the digest. Entries state the whole.
    ranges: HashMap<[u8; 16], Slot>,
    /// Ranges that are parts of groups.
    members: HashMap<[u8; 16], Slot>,
}

impl Index {
    /// Adds a directory. The copy of a range in the first segment is used.
    pub(crate) fn add(&mut self, directory: &Directory) {
        let ranges = directory.ranges.iter().map(|range| range.digest);
        fill(&mut self.ranges, directory.number, ranges);
        let members = directory.members.iter().map(|member| member.digest);
        fill(&mut self.members, directory.number, members);
    }

    /// True if the store has the range. `alone`: with clusters of its own, as a range between others needs them.
    pub(crate) fn has(&self, digest: Digest, alone: bool) -> bool {
        let key = key(digest);
        self.ranges.contains_key(&key) || (!alone && self.members.contains_key(&key))
    }

    /// Finds a range: its slot, and whether that is one of a member; see [`has`](Self::has).
    pub(crate) fn find(&self, digest: Digest, alone: bool) -> Option<(Slot, bool)> {
        let key = key(digest);
        let member = self.members.get(&key).filter(|_| !alone);
        let range = || self.ranges.get(&key).map(|slot| (*slot, false));
        member.map(|slot| (*slot, true)).or_else(range)
    }
}

fn fill(
    table: &mut HashMap<[u8; 16], Slot>,
    segment: u32,
    digests: impl ExactSizeIterator<Item = Digest>,
) {
    for (entry, digest) in (0..).zip(digests) {
        let slot = Slot { segment, entry };
        match table.entry(key(digest)) {
            Vacancy::Occupied(mut found) if found.get().segment > segment => {
                found.insert(slot);
            }
            Vacancy::Occupied(_) => {}
            Vacancy::Vacant(place) => {
                place.insert(slot);
            }
        }
    }
}

fn key(digest: Digest) -> [u8; 16] {
    let (first, _) = digest.0.split_at(16);
    first.try_into().expect("16 of 32 bytes")
}
