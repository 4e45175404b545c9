//! Where each range of a store is: made from the directories of all packs.

use crate::cluster::Cluster;
use crate::digest::Digest;
use crate::pack::{Entry, Pack};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use tuff_mkfs::{Error, Place, Result};

/// Position of a directory's entry: pack and byte. 24 bytes of memory for each range, and those of the table.
#[derive(Clone, Copy, Debug)]
struct Position {
    pack: u16,
    /// In a directory of the pack. Below 2^48. Unit: bytes.
    at: [u8; 6],
}

/// Place of a range.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) pack: u16,
    /// First block of its clusters, or of those of its group.
    pub(crate) block: u32,
    pub(crate) clusters: Vec<Cluster>,
    /// Start and length of the range in its group. `None` for a range with clusters of its own.
    pub(crate) part: Option<(u32, u32)>,
}

/// Index of a store's ranges.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Ranges with clusters of their own, by the first half of the digest. Entries state the whole.
    ranges: HashMap<[u8; 16], Position>,
    /// Ranges that are parts of groups.
    members: HashMap<[u8; 16], Position>,
    /// Group before a member, by the position of the member's entry.
    groups: HashMap<(u16, u64), u64>,
}

impl Index {
    /// Adds the directories of a pack from `first` on.
    pub(crate) fn add(&mut self, number: u16, pack: &Pack, first: usize) -> Result<()> {
        for (start, end) in &pack.directories[first..] {
            let bytes = pack.read(*start, end - start)?;
            let (mut rest, mut group) = (&bytes[..], None);
            while !rest.is_empty() {
                let at = start + (bytes.len() - rest.len()) as u64;
                let broken = || {
                    let what = "an entry of a directory cannot be read";
                    Error::corrupt(Place::file(pack.path.display()), what)
                };
                let entry = Entry::decode(&mut rest).ok_or_else(broken)?;
                let table = match &entry {
                    Entry::Range { .. } => {
                        group = Some(at);
                        &mut self.ranges
                    }
                    Entry::Member { .. } => {
                        self.groups.insert((number, at), group.ok_or_else(broken)?);
                        &mut self.members
                    }
                };
                // The first copy of a range is used.
                if let Slot::Vacant(slot) = table.entry(key(entry.digest())) {
                    let bytes = at.to_le_bytes();
                    let mut position = Position {
                        pack: number,
                        at: [0; 6],
                    };
                    position.at.copy_from_slice(&bytes[..6]);
                    slot.insert(position);
                }
            }
        }
        Ok(())
    }

    /// True if the store has the range. `alone`: with clusters of its own, as a range between others needs them.
    pub(crate) fn has(&self, digest: Digest, alone: bool) -> bool {
        let key = key(digest);
        self.ranges.contains_key(&key) || (!alone && self.members.contains_key(&key))
    }

    /// Finds a range; see [`has`](Self::has).
    pub(crate) fn find(
        &self,
        packs: &[Pack],
        digest: Digest,
        alone: bool,
    ) -> Result<Option<Found>> {
        let key = key(digest);
        let member = self.members.get(&key).filter(|_| !alone);
        let Some(position) = member.or_else(|| self.ranges.get(&key)) else {
            return Ok(None);
        };
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&position.at);
        let at = u64::from_le_bytes(bytes);
        let number = position.pack;
        let pack = &packs[usize::from(number)];
        let broken = || {
            let what = "a directory that is not what it was";
            Error::corrupt(Place::file(pack.path.display()), what)
        };
        let entry = pack.entry(at)?;
        if entry.digest() != digest {
            return Err(broken());
        }
        let (range, part) = match entry {
            Entry::Range { .. } => (entry, None),
            Entry::Member { offset, len, .. } => {
                let group = self.groups.get(&(number, at)).ok_or_else(broken)?;
                (pack.entry(*group)?, Some((offset, len)))
            }
        };
        match range {
            Entry::Range {
                block, clusters, ..
            } => Ok(Some(Found {
                pack: number,
                block,
                clusters,
                part,
            })),
            Entry::Member { .. } => Err(broken()),
        }
    }
}

fn key(digest: Digest) -> [u8; 16] {
    let (first, _) = digest.0.split_at(16);
    first.try_into().expect("16 of 32 bytes")
}
