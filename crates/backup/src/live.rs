//! Entries of directories that snapshots name.

use crate::digest::Digest;
use crate::read::RangeReader;
use crate::record::{Record, are_alone};
use crate::slots::{SegmentMarks, SlotSet};
use crate::snapshot::Snapshot;
use crate::store::Store;
use std::collections::HashMap;
use tuff_mkfs::{Error, Place, Progress, Result};

/// Longest rest of a record that is remembered with its leaf. Unit: bytes.
const REST_MAX: usize = 4096;

/// Marks the ranges that snapshots name.
#[derive(Default)]
pub(crate) struct Marks {
    pub(crate) slots: SlotSet,
    /// Rest of a record behind each leaf that was read, by the leaf and the rest before it.
    leaves: HashMap<[u8; 16], Box<[u8]>>,
    /// True if some ranges are in no pack.
    pub(crate) has_lost: bool,
}

impl Marks {
    /// Marks of a segment.
    pub(crate) fn segment(&self, segment: u32) -> &SegmentMarks {
        self.slots.segment(segment)
    }

    /// Marks a range, if the store has it.
    fn add(&mut self, store: &Store, digest: Digest, alone: bool) -> Result<()> {
        match store.slot(digest, alone)? {
            Some(slot) => self.slots.insert(slot),
            None => self.has_lost = true,
        }
        Ok(())
    }

    /// Marks everything that a snapshot names. Leaves that were read for others are not read again.
    ///
    /// # Errors
    /// `Corrupt` if a part of the tree is lost or damaged.
    pub(crate) fn add_snapshot(
        &mut self,
        store: &Store,
        snapshot: &Snapshot,
        progress: &Progress,
    ) -> Result<()> {
        let added = self.add_tree(store, snapshot, progress);
        added.map_err(|e| {
            if progress.check().is_err() {
                return e;
            }
            let snapshot = format!("the tree of snapshot {}", snapshot.number);
            e.within(Place::file(snapshot))
        })
    }

    fn add_tree(&mut self, store: &Store, snapshot: &Snapshot, progress: &Progress) -> Result<()> {
        let broken = || Error::corrupt(Place::file(store.path.display()), "it cannot be read");
        let mut reader = RangeReader::of_trees();
        let mut rest: Vec<u8> = Vec::new();
        // A long record is not read again at each leaf.
        let mut needed = 0;
        let mut digests = Vec::new();
        for list in &snapshot.tree {
            self.add(store, *list, false)?;
            digests.extend_from_slice(&store.read(&mut reader, *list, false)?);
            // A digest may begin in one part of the list and end in the next.
            let next = digests.split_off(digests.len() - digests.len() % 32);
            let leaves = std::mem::replace(&mut digests, next);
            for leaf in leaves.as_chunks().0 {
                progress.check()?;
                let leaf = Digest(*leaf);
                let key = (rest.len() <= REST_MAX).then(|| {
                    let digest = Digest::of_bytes(&[&leaf.0[..], &rest].concat());
                    *digest.0.first_chunk().expect("a digest is longer")
                });
                if let Some(after) = key.and_then(|key| self.leaves.get(&key)) {
                    rest = after.to_vec();
                    continue;
                }
                self.add(store, leaf, false)?;
                rest.extend_from_slice(&store.read(&mut reader, leaf, false)?);
                if rest.len() < needed {
                    continue;
                }
                rest = self.add_records(store, &rest)?;
                needed = if rest.len() > REST_MAX {
                    2 * rest.len()
                } else {
                    0
                };
                if let Some(key) = key.filter(|_| rest.len() <= REST_MAX) {
                    self.leaves.insert(key, rest.clone().into());
                }
            }
        }
        match digests.is_empty() && self.add_records(store, &rest)?.is_empty() {
            true => Ok(()),
            false => Err(broken()),
        }
    }

    /// Marks what records name. Returns the rest, which is a part of a record.
    fn add_records(&mut self, store: &Store, mut bytes: &[u8]) -> Result<Vec<u8>> {
        let mut next = bytes;
        while let Some(record) = Record::decode(&mut next) {
            bytes = next;
            for (range, alone) in are_alone(&record.ranges) {
                self.add(store, range.digest, alone)?;
            }
        }
        Ok(bytes.to_vec())
    }
}
