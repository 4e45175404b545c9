//! Copies snapshots into another store, as their clusters are: nothing is compressed again but parts of groups.

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::encode::{RangeEncoder, decode};
use crate::live::Marks;
use crate::prune::group_of;
use crate::run::{GROUP_LEN, append};
use crate::segment::{Directory, NewRange};
use crate::snapshot::Snapshot;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use tuff_codec::Decoder;
use tuff_mkfs::{Error, Place, Progress, Result};

/// Result of copying snapshots.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    /// Snapshots that were copied: their numbers in both stores.
    pub snapshots: Vec<(u32, u32)>,
    /// Snapshots that the other store had.
    pub had: u64,
    /// Clusters that it got. Unit: bytes.
    pub stored_bytes: u64,
}

/// Groups that are being made of members of others.
#[derive(Default)]
struct Open {
    segment: Option<Directory>,
    content: Vec<u8>,
    members: Vec<(Digest, u32, u32)>,
}

impl Store {
    /// Copies snapshots, or all without `numbers`, into a store that is open for writing. Snapshots keep their numbers where those are
    /// free.
    ///
    /// # Errors
    /// `Usage` for stores of different compression, or an unknown number; `Corrupt` if a part of a snapshot is lost or damaged, after
    /// which the other store has no new snapshot; `Io` of both.
    pub fn copy_to(
        &self,
        target: &mut Self,
        numbers: &[u32],
        threads: usize,
        progress: &Progress,
    ) -> Result<Copied> {
        if self.compression != target.compression {
            return Err(Error::usage(format_args!(
                "{}: has another compression than {}; copy into a new store",
                target.path.display(),
                self.path.display()
            )));
        }
        let mut copied = Copied::default();
        let present: Vec<Snapshot> = target.snapshots()?.into_iter().flatten().collect();
        let mut new_snapshots = Vec::new();
        let mut new_numbers = BTreeMap::new();
        for snapshot in self.snapshots()? {
            let snapshot = snapshot?;
            let is_same = |other: &&Snapshot| {
                other.series == snapshot.series
                    && other.time == snapshot.time
                    && other.tree == snapshot.tree
            };
            let other = present.iter().find(is_same);
            new_numbers.extend(other.map(|other| (snapshot.number, other.number)));
            if numbers.is_empty() || numbers.contains(&snapshot.number) {
                match other {
                    Some(_) => copied.had += 1,
                    None => new_snapshots.push(snapshot),
                }
            }
        }
        let known: BTreeSet<u32> = self.numbers("snapshots", ".json")?.into_iter().collect();
        if let Some(number) = numbers.iter().find(|number| !known.contains(number)) {
            // The error names it.
            self.snapshot(*number)?;
        }
        let mut marks = Marks::default();
        for snapshot in &new_snapshots {
            marks.add_snapshot(self, snapshot, progress)?;
        }
        if marks.has_lost {
            return Err(Error::corrupt(
                Place::file(self.path.display()),
                "parts of the snapshots are in no pack; `tuff store check` names the files",
            ));
        }
        let before = target.stored_bytes();
        self.copy_ranges(target, &marks, threads, progress)?;
        copied.stored_bytes = target.stored_bytes() - before;
        target.is_in_time()?;
        for mut snapshot in new_snapshots {
            let number = snapshot.number;
            let parent = snapshot.parent.and_then(|parent| new_numbers.get(&parent));
            snapshot.parent = parent.copied();
            target.write_snapshot_as(&mut snapshot, number)?;
            new_numbers.insert(number, snapshot.number);
            copied.snapshots.push((number, snapshot.number));
        }
        Ok(copied)
    }

    fn copy_ranges(
        &self,
        target: &mut Self,
        marks: &Marks,
        threads: usize,
        progress: &Progress,
    ) -> Result<()> {
        let mut open = Open::default();
        let mut encoder = RangeEncoder::new(&self.compression.group_spec())?;
        for (number, segment) in &self.segments {
            let live = marks.segment(*number);
            let directory = self.directory(segment)?;
            let mut members: BTreeMap<u32, Vec<(Digest, u32, u32)>> = BTreeMap::new();
            let mut counts = vec![0_usize; directory.ranges.len()];
            for (i, member) in (0..).zip(&directory.members) {
                counts[member.group as usize] += 1;
                if live.has_member(i) && !target.has(member.digest, false)? {
                    let part = (member.digest, member.offset, member.len);
                    members.entry(member.group).or_default().push(part);
                }
            }
            for (i, range) in (0..).zip(&directory.ranges) {
                progress.check()?;
                let parts = members.remove(&i).unwrap_or_default();
                let is_alone = live.has_range(i) && !target.has(range.digest, true)?;
                if !is_alone && parts.is_empty() {
                    continue;
                }
                let (bytes, content) = self.range_bytes(&directory, i)?;
                progress.add_bytes(content.len() as u64);
                if is_alone || parts.len() == counts[i as usize] {
                    let new = NewRange {
                        digest: range.digest,
                        clusters: directory.clusters_of(range).unwrap_or_default().to_vec(),
                        bytes,
                        members: parts,
                    };
                    append(target, &mut open.segment, threads, &new)?;
                    continue;
                }
                for (digest, offset, len) in parts {
                    let part = content
                        .get(offset as usize..)
                        .and_then(|c| c.get(..len as usize));
                    let part = part.filter(|part| Digest::of_bytes(part) == digest);
                    let part = part.ok_or_else(|| self.damaged(&directory))?;
                    // Fits: a group is a few MiB.
                    open.members.push((digest, open.content.len() as u32, len));
                    open.content.extend_from_slice(part);
                }
                if open.content.len() >= GROUP_LEN {
                    open.end_group(target, &mut encoder, threads)?;
                }
            }
        }
        if !open.content.is_empty() {
            open.end_group(target, &mut encoder, threads)?;
        }
        match open.segment {
            Some(segment) => target.commit(&segment, threads),
            None => Ok(()),
        }
    }

    fn damaged(&self, directory: &Directory) -> Error {
        let what = format_args!(
            "segment {} is damaged; `tuff store check --read-data 100%` names the files",
            directory.number
        );
        Error::corrupt(Place::file(self.path.display()), what)
    }

    /// Clusters of a range, and its content, which has its digest.
    fn range_bytes(&self, directory: &Directory, i: u32) -> Result<(Vec<u8>, Vec<u8>)> {
        let range = &directory.ranges[i as usize];
        let found = directory.blocks_of(range).zip(directory.clusters_of(range));
        let (blocks, clusters) = found.ok_or_else(|| self.damaged(directory))?;
        let len = u64::from(blocks.end - blocks.start) * BLOCK as u64;
        let pack = &self.packs[usize::from(directory.pack)];
        let bytes = pack.read_stored(u64::from(blocks.start) * BLOCK as u64, len)?;
        let mut content = Vec::new();
        let algorithm = self.compression.algorithm();
        let mut decoder = Decoder::default();
        let decoded = decode(&mut decoder, algorithm, clusters, &bytes, &mut content);
        match decoded.is_ok() && Digest::of_bytes(&content) == range.digest {
            true => Ok((bytes, content)),
            false => Err(self.damaged(directory)),
        }
    }
}

impl Open {
    fn end_group(
        &mut self,
        target: &mut Store,
        encoder: &mut RangeEncoder,
        threads: usize,
    ) -> Result<()> {
        let new = group_of(encoder, &mut self.content, &mut self.members)?;
        append(target, &mut self.segment, threads, &new).map(drop)
    }
}
