//! Check of a store.

use crate::cluster::BLOCK;
use crate::files;
use crate::index::Slot;
use crate::live::Marks;
use crate::read::RangeReader;
use crate::record::are_alone;
use crate::segment::Directory;
use crate::slots::SlotSet;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::TreeReader;
use std::collections::{BTreeMap, HashSet};
use tuff_erofs::walk::shown;
use tuff_mkfs::source::Kind;
use tuff_mkfs::{Progress, Result};

/// File that has the number of the segment from which the next check of a part goes on.
const POSITION: &str = "checked";

/// Most damaged files that are listed.
const FILES_MAX: usize = 10_000;

/// Amount of a store that is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Depth {
    /// The trees of all snapshots, and whether their ranges exist.
    Trees,
    /// As well all clusters, trees and parity of this part of the segments, from where the last such check ended. Unit: 1.
    Part(f64),
    /// The same of all segments.
    Data,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Snapshots that were read.
    pub snapshots: u64,
    /// Ranges that they name, each once.
    pub ranges: u64,
    /// Content that was read and compared. Unit: bytes.
    pub read_bytes: u64,
    /// Longest run of damage that is corrected wherever it is, in the segment in which that is shortest. Unit: bytes.
    pub longest_run: Option<u64>,
    /// Damage and losses, a sentence for each.
    pub findings: Vec<String>,
}

impl Store {
    /// Checks the store: every manifest, directory and tree, and the content of every range with [`Depth::Data`].
    ///
    /// # Errors
    /// `Io` if the store cannot be listed. Damage is in the result.
    pub fn check(&self, depth: Depth, threads: usize, progress: &Progress) -> Result<Checked> {
        let mut checked = Checked {
            findings: self.damage.clone(),
            ..Checked::default()
        };
        let mut marks = Marks::default();
        let mut snapshots = Vec::new();
        for snapshot in self.snapshots()? {
            checked.snapshots += 1;
            let read = snapshot.and_then(|snapshot| {
                marks.add_snapshot(self, &snapshot, progress)?;
                snapshots.push(snapshot);
                Ok(())
            });
            if let Err(e) = read {
                progress.check()?;
                checked.findings.push(e.to_string());
            }
        }
        for number in self.missing_manifests()? {
            let path = self.snapshot_path(number);
            let what = format!("{}: the manifest is missing", path.display());
            checked.findings.push(what);
        }
        let Marks {
            slots, has_lost, ..
        } = marks;
        checked.ranges = slots.count();
        drop(slots);
        let numbers = self.numbers_to_read(depth, &mut checked)?;
        for (number, segment) in &self.segments {
            progress.check()?;
            // The others are read below.
            if !numbers.contains(number)
                && let Err(e) = self.directory(segment)
            {
                checked.findings.push(e.to_string());
            }
        }
        let mut damaged = SlotSet::default();
        for number in numbers {
            progress.check()?;
            let directory = match self.directory(&self.segments[&number]) {
                Ok(directory) => directory,
                Err(e) => {
                    checked.findings.push(e.to_string());
                    continue;
                }
            };
            self.check_segment(&directory, threads, &mut damaged, &mut checked);
            progress.add_bytes(u64::from(directory.blocks) * BLOCK as u64);
        }
        if has_lost || !damaged.is_empty() {
            self.name_files(&snapshots, &damaged, &mut checked, progress)?;
        }
        Ok(checked)
    }

    /// Segments that a check reads. Those of a part follow those of the last one.
    fn numbers_to_read(&self, depth: Depth, checked: &mut Checked) -> Result<Vec<u32>> {
        let part = match depth {
            Depth::Trees => return Ok(Vec::new()),
            Depth::Data => return Ok(self.segments.keys().copied().collect()),
            Depth::Part(part) => part,
        };
        let path = self.path.join(POSITION);
        let text = files::read(&path, 32).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let next: u32 = text.trim().parse().unwrap_or(0);
        let all = self
            .segments
            .values()
            .map(|segment| u64::from(segment.header.blocks));
        let needed = (all.sum::<u64>() as f64 * part).ceil() as u64;
        let (mut numbers, mut blocks) = (Vec::new(), 0);
        let later = self
            .segments
            .range(next..)
            .chain(self.segments.range(..next));
        for (number, segment) in later {
            if blocks >= needed {
                break;
            }
            blocks += u64::from(segment.header.blocks);
            numbers.push(*number);
        }
        let end = numbers.last().map_or(0, |last| last + 1);
        if let Err(e) = files::replace(&path, format!("{end}\n").as_bytes()) {
            let what = format!("the next check will read the same part: {e}");
            checked.findings.push(what);
        }
        Ok(numbers)
    }

    /// Reads clusters, tree and parity of a segment.
    fn check_segment(
        &self,
        directory: &Directory,
        threads: usize,
        damaged: &mut SlotSet,
        checked: &mut Checked,
    ) {
        let number = directory.number;
        let examined = self.examine(directory, threads);
        checked.read_bytes += examined.bytes;
        let mut count = 0;
        for (states, is_member) in [(&examined.ranges, false), (&examined.members, true)] {
            let bad = (0..).zip(states).filter(|(_, good)| !**good);
            for (entry, _) in bad {
                let segment = number;
                damaged.insert((Slot { segment, entry }, is_member));
                count += 1;
            }
        }
        if count > 0 {
            let what = format!("segment {number}: damaged ranges: {count}");
            checked.findings.push(what);
        }
        // That is named already, or of a run that ended early. Buckets keep copies of their own.
        if self.objects.is_some() || self.segments[&number].corrected.is_some() {
            return;
        }
        let advice = "`tuff store repair`";
        match self.tree(directory) {
            Err(e) => checked.findings.push(e.to_string()),
            Ok(None) => checked.findings.push(format!(
                "segment {number}: has no parity; {advice} writes it"
            )),
            Ok(Some(tree)) => {
                let run = tree.front.longest_run();
                checked.longest_run = Some(checked.longest_run.map_or(run, |old| old.min(run)));
                let damage = tree.verified.scan(threads, &|_| Ok(()));
                let len = |ranges: &[std::ops::Range<u64>]| -> u64 {
                    ranges.iter().map(|range| range.end - range.start).sum()
                };
                let damaged = damage.map_or(1, |damage| {
                    [damage.data, damage.unknown, damage.tree, damage.parity]
                        .iter()
                        .map(|ranges| len(ranges).div_ceil(BLOCK as u64))
                        .sum()
                });
                let damaged = damaged + u64::from(!tree.has_fronts);
                if damaged > 0 {
                    checked.findings.push(format!(
                        "segment {number}: damaged blocks: {damaged}; {advice} corrects what it can"
                    ));
                }
            }
        }
    }

    /// Names the files that have damaged or lost ranges, each path once.
    fn name_files(
        &self,
        snapshots: &[Snapshot],
        damaged: &SlotSet,
        checked: &mut Checked,
        progress: &Progress,
    ) -> Result<()> {
        // Last snapshot with the file, and how many have it.
        let mut files: BTreeMap<Vec<u8>, (u32, u32)> = BTreeMap::new();
        let mut others = 0u64;
        for snapshot in snapshots {
            let mut tree = TreeReader::new(self, snapshot);
            // First names of files that have others.
            let mut linked = HashSet::new();
            // Trees that cannot be read are named already.
            while let Ok(Some((path, record))) = tree.next() {
                progress.check()?;
                let mut is_whole = match &record.kind {
                    Kind::Hardlink(first) => !linked.contains(first),
                    _ => true,
                };
                for (range, alone) in are_alone(&record.ranges) {
                    let slot = self.slot(range.digest, alone)?;
                    is_whole &= slot.is_some_and(|slot| !damaged.has(slot));
                }
                if !is_whole {
                    if files.len() >= FILES_MAX && !files.contains_key(&path) {
                        others += 1;
                        continue;
                    }
                    linked.insert(path.clone());
                    let found = files.entry(path).or_default();
                    *found = (snapshot.number, found.1 + 1);
                }
            }
        }
        for (path, (last, count)) in files {
            let others = match count {
                1 => String::new(),
                _ => format!(" and {} before it", count - 1),
            };
            let path = shown(&path);
            checked.findings.push(format!(
                "snapshot {last}{others}: {path}: a part of the file is damaged or in no pack"
            ));
        }
        if others > 0 {
            checked.findings.push(format!(
                "files of snapshots that are damaged as well, and not listed: {others}"
            ));
        }
        Ok(())
    }

    /// Reads the content of a snapshot's files at and below `paths`, or of all, and compares it with its digests. The findings name
    /// the files.
    ///
    /// # Errors
    /// `Corrupt` and `Io` if the tree of the snapshot cannot be read.
    pub fn check_files(
        &self,
        snapshot: &Snapshot,
        paths: &[Vec<u8>],
        progress: &Progress,
    ) -> Result<Checked> {
        let mut checked = Checked {
            snapshots: 1,
            ..Checked::default()
        };
        let is_wanted = |path: &[u8]| {
            let is_below = |dir: &Vec<u8>| {
                let rest = path.strip_prefix(&dir[..]);
                rest.is_some_and(|rest| dir.is_empty() || rest.is_empty() || rest[0] == b'/')
            };
            paths.is_empty() || paths.iter().any(is_below)
        };
        let (mut reader, mut good) = (RangeReader::default(), SlotSet::default());
        // First names of files of which another one is wanted: records of the others have no content.
        let mut first_names = HashSet::new();
        let mut tree = TreeReader::new(self, snapshot);
        while let Some((path, record)) = tree.next()? {
            if let Kind::Hardlink(first) = record.kind
                && is_wanted(&path)
                && !is_wanted(&first)
            {
                first_names.insert(first);
            }
        }
        let mut tree = TreeReader::new(self, snapshot);
        while let Some((path, record)) = tree.next()? {
            progress.check()?;
            let is_read = is_wanted(&path) || first_names.contains(&path);
            for (range, alone) in are_alone(&record.ranges) {
                if !is_read {
                    continue;
                }
                let slot = self.slot(range.digest, alone)?;
                if slot.is_some_and(|slot| good.has(slot)) {
                    continue;
                }
                match self.read(&mut reader, range.digest, alone) {
                    Ok(content) => {
                        slot.into_iter().for_each(|slot| good.insert(slot));
                        checked.read_bytes += content.len() as u64;
                        progress.add_bytes(content.len() as u64);
                    }
                    Err(e) => checked.findings.push(format!("{}: {e}", shown(&path))),
                }
            }
        }
        checked.ranges = good.count();
        Ok(checked)
    }
}
