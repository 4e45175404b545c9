//! Repairs a store with its parity, and drops what cannot be repaired, so that a later run stores it anew.

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::encode::{RangeEncoder, decode};
use crate::faults::is_lost;
use crate::files::{self, step};
use crate::pack::Pack;
use crate::prune::group_of;
use crate::run::append;
use crate::segment::Directory;
use crate::store::Store;
use crate::unit::{by_group, of_group};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_codec::Decoder;
use tuff_mkfs::{Error, Place, Progress, Result};
use tuff_store::retry;
use tuff_verity::{RepairedBlock, Root, block_digest};

/// Longest shift that is found. Unit: bytes.
const SHIFT_MAX: i64 = 32 << 10;

/// Result of a repair.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// Blocks of packs, directories, trees and parity that were written anew.
    pub blocks: u64,
    /// Blocks that were found at another place, because bytes had been removed or inserted before them.
    pub shifted_blocks: u64,
    /// Segments that got a new tree and parity.
    pub renewed_segments: u64,
    /// True if something is lost.
    pub has_losses: bool,
    /// Ranges that are lost, by their digests.
    pub lost: Vec<Digest>,
    /// Repairs and losses, a sentence for each.
    pub findings: Vec<String>,
}

/// Damage of a segment that is left after a repair.
#[derive(Default)]
pub(crate) struct SegmentRepair {
    pub(crate) blocks: u64,
    /// True if some blocks could not be corrected, or if there is no tree that tells.
    pub(crate) is_open: bool,
}

impl Store {
    /// Repairs what the parity of each segment can, in place, and writes tree and parity where they are missing. What is lost is
    /// removed from the directories: the next run stores it again, if a source has it. The store must be open for writing.
    ///
    /// # Errors
    /// `Io` of the host. Damage is in the result.
    pub fn repair(&mut self, threads: usize, progress: &Progress) -> Result<Repaired> {
        let mut repaired = Repaired::default();
        if let Some(objects) = &self.objects {
            let done = objects.bucket.repair(threads);
            let (blocks, findings) = done.map_err(|e| objects.error("", "cannot repair", e))?;
            objects.sync(&self.path)?;
            repaired.blocks += blocks;
            repaired.findings.extend(findings);
        }
        // Directories may be damaged without other times.
        self.load_all()?;
        self.repair_packs(&mut repaired)?;
        self.repair_directories(&mut repaired)?;
        self.load()?;
        self.realign(&mut repaired, progress)?;
        let numbers: Vec<u32> = self.segments.keys().copied().collect();
        for number in numbers {
            progress.check()?;
            let Some(segment) = self.segments.get(&number) else {
                continue;
            };
            let directory = self.directory(segment)?;
            let done = self.repair_segment(&directory, threads)?;
            repaired.blocks += done.blocks;
            if done.blocks > 0 {
                let blocks = done.blocks;
                let what = format!("segment {number}: corrected blocks: {blocks}");
                repaired.findings.push(what);
            }
            // A tree that was made from damaged clusters agrees with them. Ranges do not.
            let state = self.examine(&directory, threads);
            if let Some(e) = &state.unread {
                repaired.has_losses = true;
                repaired.findings.push(format!(
                    "segment {number}: cannot be read, and stays as it is: {e}. Repair it again, or a copy of the store on another disk"
                ));
                continue;
            }
            if done.is_open || !state.is_whole() {
                // Without room, they are lost.
                let rescued = self.rescue(&directory, &state, threads).unwrap_or_default();
                self.drop_lost(&directory, &state, &rescued, (threads, &mut repaired))?;
            }
            progress.add_bytes(u64::from(directory.blocks) * BLOCK as u64);
        }
        self.load()?;
        // Without it, the next run reads every directory.
        let _ = self.save_index();
        Ok(repaired)
    }

    /// Writes the first blocks of packs.
    fn repair_packs(&mut self, repaired: &mut Repaired) -> Result<()> {
        for number in 0..self.packs.len() {
            let pack = &mut self.packs[number];
            if pack.is_missing() {
                let what = format!("{}: was missing; what it held is lost", pack.path.display());
                repaired.findings.push(what);
                repaired.has_losses = true;
                // Fits: at most 63.
                self.create_pack(number as u16)?;
            } else if !pack.has_front {
                pack.write_front()?;
                repaired.blocks += 1;
                let what = format!("{}: the first block was written anew", pack.path.display());
                repaired.findings.push(what);
            }
        }
        Ok(())
    }

    /// Writes directories that the parity gives.
    fn repair_directories(&mut self, repaired: &mut Repaired) -> Result<()> {
        let corrected: Vec<_> = self.segments.values().cloned().collect();
        for segment in corrected {
            if segment.corrected.is_none() {
                continue;
            }
            let directory = self.directory(&segment)?;
            self.replace_directory(&directory)?;
            repaired.blocks += segment.header.len().div_ceil(BLOCK as u64);
            let what = format!("{}: was written anew", segment.path.display());
            repaired.findings.push(what);
        }
        let known: HashSet<u32> = self.segments.keys().copied().collect();
        let mut numbers = self.numbers("segments", ".dir")?;
        numbers.extend(self.numbers("segments", ".tree")?);
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            if known.contains(&number) {
                continue;
            }
            let path = self.directory_path(number);
            self.load_segment(number)?;
            if self.segments.contains_key(&number) {
                continue;
            }
            let files = [self.directory_path(number), self.tree_path(number)];
            let failed = files.iter().find_map(|path| files::read(path, 1).err());
            if let Some(e) = failed.filter(|e| !is_known_damage(e)) {
                let what = format!(
                    "{}: cannot be read, and stays as it is: {e}. Repair it again, or a copy of the store on another disk",
                    path.display()
                );
                repaired.has_losses = true;
                repaired.findings.push(what);
                continue;
            }
            // The last tree alone is of a run that ended early.
            if path.exists() || number + 1 != self.next_segment() {
                let what = format!("{}: is lost, with its segment", path.display());
                repaired.has_losses = true;
                repaired.findings.push(what);
            }
            self.remove(&format!("segments/{number:08}.dir"))?;
            files::remove(&self.tree_path(number))?;
        }
        Ok(())
    }

    /// Repairs the data, directory, tree and parity of a segment in place.
    pub(crate) fn repair_segment(
        &self,
        directory: &Directory,
        threads: usize,
    ) -> Result<SegmentRepair> {
        let path = self.tree_path(directory.number);
        let failed = |e| Error::io(Place::file(path.display()), "cannot repair", e);
        let Some(tree) = self.tree(directory)? else {
            return Ok(SegmentRepair {
                blocks: 0,
                is_open: true,
            });
        };
        let mut done = SegmentRepair::default();
        let pack = &self.packs[usize::from(directory.pack)];
        let scanned = tree.verified.scan(threads, &|_| Ok(())).map_err(failed)?;
        if scanned.is_none() && tree.has_fronts {
            return Ok(done);
        }
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(failed)?;
        if !tree.has_fronts {
            tree.write_fronts(&file).map_err(failed)?;
            done.blocks += 1;
        }
        let (start, len) = (u64::from(directory.start) * BLOCK as u64, tree.data_len());
        let mut has_changed = false;
        let left = tree.verified.repair(threads, &|_| Ok(()), &mut |block| {
            done.blocks += 1;
            match block {
                RepairedBlock::Data(at, bytes) if at < len => pack.write_at(bytes, start + at),
                RepairedBlock::Data(at, bytes) => {
                    let at = (at - len) as usize;
                    tree.covered.directory()[at..at + bytes.len()].copy_from_slice(bytes);
                    has_changed = true;
                    Ok(())
                }
                RepairedBlock::Tree(at, bytes) | RepairedBlock::Parity(at, bytes) => {
                    step()?;
                    match is_lost() {
                        true => Ok(()),
                        false => file.write_all_at(bytes, at),
                    }
                }
            }
        });
        let left = left.map_err(failed)?;
        if has_changed {
            let mut bytes = tree.covered.directory().clone();
            bytes.truncate(tree.front.directory_len as usize);
            files::replace(&self.directory_path(directory.number), &bytes)?;
        }
        file.sync_all().map_err(failed)?;
        pack.sync()?;
        done.is_open = !left.is_none();
        Ok(done)
    }

    /// Removes ranges that cannot be read from a directory, and renews tree and parity.
    fn drop_lost(
        &mut self,
        directory: &Directory,
        state: &Examined,
        rescued: &HashSet<Digest>,
        (threads, repaired): (usize, &mut Repaired),
    ) -> Result<()> {
        let keeps_range = |i: u32| state.ranges[i as usize];
        let keeps_member = |i: u32| state.members[i as usize];
        let kept = directory.clone().keep(&keeps_range, &keeps_member);
        let ranges = directory.ranges.iter().zip(&state.ranges);
        let lost = ranges
            .filter(|(_, good)| !**good)
            .map(|(range, _)| range.digest);
        let members = directory.members.iter().zip(&state.members);
        let lost_members = members
            .filter(|(_, good)| !**good)
            .map(|(member, _)| member.digest);
        let lost = lost.chain(lost_members);
        let lost: Vec<Digest> = lost.filter(|digest| !rescued.contains(digest)).collect();
        if !lost.is_empty() {
            repaired.findings.push(format!(
                "segment {}: {} of {} ranges are lost; a run of `tuff backup` stores those again that a source has",
                directory.number,
                lost.len(),
                directory.ranges.len() + directory.members.len()
            ));
            repaired.lost.extend(lost);
            repaired.has_losses = true;
            match self.objects.is_some() {
                false => self.replace_directory(&kept)?,
                true if kept.ranges.is_empty() => {
                    self.remove(&format!("segments/{:08}.dir", directory.number))?;
                }
                true => self.rewrite(directory, &kept)?,
            }
        }
        if self.objects.is_some() {
            return Ok(());
        }
        self.write_tree(&kept, threads)?;
        repaired.renewed_segments += 1;
        Ok(())
    }

    /// Stores members of groups anew whose other members cannot be read. Returns their digests.
    fn rescue(
        &mut self,
        directory: &Directory,
        state: &Examined,
        threads: usize,
    ) -> Result<HashSet<Digest>> {
        let mut rescued = HashSet::new();
        if self.objects.is_some() {
            return Ok(rescued);
        }
        let mut encoder = RangeEncoder::new(&self.compression.group_spec())?;
        let mut segment = None;
        for i in (0..directory.ranges.len()).filter(|i| !state.ranges[*i]) {
            let Some(old) = self.readable(directory, i) else {
                continue;
            };
            let (mut content, mut members) = (Vec::new(), Vec::new());
            for member in directory.members.iter().filter(|m| m.group as usize == i) {
                let end = (member.offset as usize).saturating_add(member.len as usize);
                let part = old.get(member.offset as usize..end);
                let part = part.filter(|part| Digest::of_bytes(part) == member.digest);
                if let Some(part) = part {
                    // Fits: a group is a few MiB.
                    members.push((member.digest, content.len() as u32, member.len));
                    content.extend_from_slice(part);
                }
            }
            if !members.is_empty() {
                rescued.extend(members.iter().map(|(digest, ..)| *digest));
                let new = group_of(&mut encoder, &mut content, &mut members)?;
                append(self, &mut segment, threads, &new)?;
            }
        }
        if let Some(segment) = segment {
            self.commit(&segment, threads)?;
        }
        Ok(rescued)
    }

    /// Content of a group, with zeros in place of clusters that cannot be decoded.
    fn readable(&self, directory: &Directory, range: usize) -> Option<Vec<u8>> {
        let range = &directory.ranges[range];
        let start = u64::from(directory.blocks_of(range)?.start) * BLOCK as u64;
        let pack = &self.packs[usize::from(directory.pack)];
        let algorithm = self.compression.algorithm();
        let (mut content, mut at) = (Vec::new(), start);
        for cluster in directory.clusters_of(range)? {
            let len = u64::from(cluster.blocks) * BLOCK as u64;
            let end = content.len() + cluster.content as usize;
            let mut decoder = Decoder::default();
            let read = pack.read_stored(at, len).and_then(|bytes| {
                let clusters = std::slice::from_ref(cluster);
                decode(&mut decoder, algorithm, clusters, &bytes, &mut content)
            });
            if read.is_err() {
                content.truncate(end - cluster.content as usize);
            }
            content.resize(end, 0);
            at += len;
        }
        Some(content)
    }

    /// Reads every range of a segment. A group counts as good if one of its members is.
    pub(crate) fn examine(&self, directory: &Directory, threads: usize) -> Examined {
        let state = Mutex::new(Examined {
            ranges: vec![false; directory.ranges.len()],
            members: vec![false; directory.members.len()],
            bytes: 0,
            unread: None,
        });
        let members = by_group(directory);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut decoder = Decoder::default();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(range) = directory.ranges.get(i) else {
                    return;
                };
                let read = self.content(&mut decoder, directory, i);
                let content = match read {
                    Ok(content) => content.unwrap_or_default(),
                    Err(e) => {
                        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        state.unread.get_or_insert(e);
                        continue;
                    }
                };
                let mut is_good = Digest::of_bytes(&content) == range.digest;
                // Fits: a directory has less than 2^32 entries.
                let members = of_group(directory, &members, i as u32);
                let good = members.iter().copied().filter(|number| {
                    let member = &directory.members[*number as usize];
                    let end = (member.offset as usize).saturating_add(member.len as usize);
                    let part = content.get(member.offset as usize..end);
                    part.is_some_and(|part| Digest::of_bytes(part) == member.digest)
                });
                let good: Vec<u32> = good.collect();
                is_good |= !good.is_empty();
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.bytes += content.len() as u64;
                state.ranges[i] = is_good;
                for number in good {
                    state.members[number as usize] = true;
                }
            }
        };
        std::thread::scope(|scope| {
            tuff_erofs::threads::start(scope, "examine", threads.saturating_sub(1), work);
            work();
        });
        state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Content of a range. `None` if it is damaged.
    ///
    /// # Errors
    /// `Io` if it cannot be read, which says nothing about its content.
    fn content(
        &self,
        decoder: &mut Decoder,
        directory: &Directory,
        range: usize,
    ) -> Result<Option<Vec<u8>>> {
        let range = &directory.ranges[range];
        let found = directory.blocks_of(range).zip(directory.clusters_of(range));
        let Some((blocks, clusters)) = found else {
            return Ok(None);
        };
        let pack = &self.packs[usize::from(directory.pack)];
        let len = u64::from(blocks.end - blocks.start) * BLOCK as u64;
        let bytes = match pack.read_stored(u64::from(blocks.start) * BLOCK as u64, len) {
            Ok(bytes) => bytes,
            Err(Error::Io(place, e)) if !is_known_damage(&e) => return Err(Error::Io(place, e)),
            Err(_) => return Ok(None),
        };
        let mut content = Vec::new();
        let algorithm = self.compression.algorithm();
        let decoded = decode(decoder, algorithm, clusters, &bytes, &mut content);
        Ok(decoded.ok().map(|()| content))
    }

    /// Moves blocks back to their places where bytes were removed from a pack or inserted into it.
    fn realign(&self, repaired: &mut Repaired, progress: &Progress) -> Result<()> {
        let mut shifts = Vec::new();
        for segment in self.segments.values() {
            let directory = self.directory(segment)?;
            if let Some(shift) = self.shift_of(&directory)? {
                shifts.push((directory.number, shift));
            }
        }
        // Blocks that move to higher places do so from the end.
        let (mut down, up): (Vec<_>, Vec<_>) =
            shifts.into_iter().partition(|(_, shift)| *shift < 0);
        down.reverse();
        for (number, shift) in down.into_iter().chain(up) {
            progress.check()?;
            let directory = self.directory(&self.segments[&number])?;
            let moved = self.realign_segment(&directory, shift)?;
            repaired.shifted_blocks += moved;
            repaired.findings.push(format!(
                "segment {number}: blocks that were {} bytes from their places, and were moved back: {moved}",
                shift.abs(),
            ));
        }
        Ok(())
    }

    /// Distance of the end of a segment from its place. `None` if it is there, or is not found.
    fn shift_of(&self, directory: &Directory) -> Result<Option<i64>> {
        let Some(tree) = self.tree(directory)? else {
            return Ok(None);
        };
        let pack = &self.packs[usize::from(directory.pack)];
        let gaps = directory.gaps();
        let in_gap = |block: u32| gaps.iter().any(|gap| gap.contains(&block));
        let end = directory.start + directory.blocks;
        let is_good = |block: u32| {
            let at = u64::from(block) * BLOCK as u64;
            let digest = tree.verified.digest(u64::from(block - directory.start));
            digest.is_ok_and(|digest| {
                pack.read(at, BLOCK as u64)
                    .is_ok_and(|bytes| block_digest(&[], &bytes) == digest)
            })
        };
        let last = (directory.start..end).rev().filter(|block| !in_gap(*block));
        // The very last ones may be cut off.
        for block in last.skip(1).step_by(16).take(4) {
            if is_good(block) {
                return Ok(None);
            }
            let Ok(digest) = tree.verified.digest(u64::from(block - directory.start)) else {
                continue;
            };
            let at = i64::from(block) * BLOCK as i64;
            let from = (at - SHIFT_MAX).max(0);
            let Ok(file) = pack.file() else {
                return Ok(None);
            };
            let window = read_some(file, from as u64, 2 * SHIFT_MAX as usize + BLOCK);
            let found = window
                .windows(BLOCK)
                .position(|bytes| block_digest(&[], bytes) == digest);
            if let Some(found) = found {
                let shift = from + found as i64 - at;
                return Ok((shift != 0).then_some(shift));
            }
        }
        Ok(None)
    }

    fn realign_segment(&self, directory: &Directory, shift: i64) -> Result<u64> {
        let Some(tree) = self.tree(directory)? else {
            return Ok(0);
        };
        let pack = &self.packs[usize::from(directory.pack)];
        let failed = |e: io::Error| Error::io(Place::file(pack.path.display()), "cannot write", e);
        let mut moved = 0;
        let mut move_block = |block: u32| -> Result<()> {
            let Ok(digest) = tree.verified.digest(u64::from(block - directory.start)) else {
                return Ok(());
            };
            let at = i64::from(block) * BLOCK as i64;
            if is_at(pack, at, &digest).is_some() {
                return Ok(());
            }
            if let Some(bytes) = is_at(pack, at + shift, &digest) {
                pack.write_at(&bytes, at as u64).map_err(failed)?;
                moved += 1;
            }
            Ok(())
        };
        let blocks = directory.start..directory.start + directory.blocks;
        match shift < 0 {
            true => blocks.rev().try_for_each(&mut move_block)?,
            false => blocks.into_iter().try_for_each(&mut move_block)?,
        }
        pack.sync()?;
        Ok(moved)
    }
}

/// True for errors that will be the same whenever a file is read.
fn is_known_damage(e: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    [NotFound, InvalidData, UnexpectedEof].contains(&e.kind())
}

/// State of each range and member of a segment: true if it can be read.
pub(crate) struct Examined {
    pub(crate) ranges: Vec<bool>,
    pub(crate) members: Vec<bool>,
    /// Content that was read. Unit: bytes.
    pub(crate) bytes: u64,
    /// First error of reading that may be another one, or none, at the next attempt.
    pub(crate) unread: Option<Error>,
}

impl Examined {
    fn is_whole(&self) -> bool {
        self.ranges.iter().chain(&self.members).all(|good| *good)
    }
}

/// Block at a position, if it has this digest.
fn is_at(pack: &Pack, at: i64, digest: &Root) -> Option<Vec<u8>> {
    let bytes = pack.read(u64::try_from(at).ok()?, BLOCK as u64).ok()?;
    (block_digest(&[], &bytes) == *digest).then_some(bytes)
}

/// Reads as many bytes as there are.
fn read_some(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while let Ok(n @ 1..) = retry(|| file.read_at(&mut bytes[done..], at + done as u64)) {
        done += n;
    }
    bytes.truncate(done);
    bytes
}
