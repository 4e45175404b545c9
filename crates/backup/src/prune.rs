//! Frees what no snapshot and no pin names.
//!
//! A segment is renewed in an order that leaves no trace of what is freed in any directory before it is freed, at a full disk too:
//!
//! ```text
//! tree and parity for the new directory ──► new directory ──► holes
//!        └─ no room: removed ─────────────────► new directory ──► holes ──► tree and parity
//! ```

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::encode::RangeEncoder;
use crate::files;
use crate::live::Marks;
use crate::pin::Pin;
use crate::read::RangeReader;
use crate::run::{GROUP_LEN, append};
use crate::segment::{Directory, NewRange, RangeEntry, SegmentHeader};
use crate::store::Store;
use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;
use tuff_mkfs::{Error, Place, Progress, Result};

/// Least share of a segment that is worth its renewal, as a divisor of its length.
pub(crate) const SHARE: u32 = 20;
/// Least amount that is saved where members of groups move. Unit: bytes.
const MOVED_MIN: u64 = 1 << 20;

/// Result of pruning a store.
#[derive(Clone, Debug, Default)]
pub struct Pruned {
    /// Bytes of packs that were freed.
    pub freed_bytes: u64,
    /// Bytes that were written anew, because most of what lay beside them is not needed.
    pub moved_bytes: u64,
    /// Segments that were removed.
    pub removed_segments: u64,
    /// Segments whose directory, tree and parity were renewed.
    pub renewed_segments: u64,
    /// Bytes in a bucket that a later run may free.
    pub marked_bytes: u64,
    /// Time after which such a run frees them.
    pub wait: Option<Duration>,
    /// Pins that were respected.
    pub pins: Vec<Pin>,
    /// Things that could not be done, with the reason of each.
    pub warnings: Vec<String>,
}

/// Group of which less than half is in use: its segment and its digest.
type SparseGroup = (u32, Digest);

impl Store {
    /// Frees what no snapshot and no pin names. The store must be open for writing.
    ///
    /// # Errors
    /// `Corrupt` if a manifest, a pin or the tree of a snapshot cannot be read, because what it names is unknown; `Io` of the host.
    /// Nothing that a snapshot names is lost, wherever it ends.
    pub fn prune(&mut self, threads: usize, progress: &Progress) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        if self.objects.is_some() {
            self.sweep(&mut pruned, progress)?;
            return Ok(pruned);
        }
        // Directories that are damaged without other times are read with the parity.
        self.load_all()?;
        self.remove_leftovers(&mut pruned)?;
        let (marks, pinned) = self.marks(&mut pruned, progress)?;
        let mut sparse = Vec::new();
        let (mut unused, mut renewals) = (Vec::new(), Vec::new());
        for (number, segment) in &self.segments {
            progress.check()?;
            let live = marks.segment(*number);
            let directory = self.directory(segment)?;
            let has_tree = self.tree(&directory)?.is_some();
            let pinned = pinned.segment(*number);
            let is_pinned = (0..)
                .zip(&directory.members)
                .any(|(i, _)| pinned.has_member(i));
            let is_open = |gap: Range<u32>| self.packs[usize::from(directory.pack)].has_data(gap);
            // A run that ended early has left them.
            let gaps = directory.gaps();
            let is_left = gaps.iter().cloned().any(is_open);
            let kept = live.kept(directory);
            if !is_pinned {
                let groups = sparse_groups(&kept).into_iter();
                sparse.extend(groups.map(|group| (*number, group)));
            }
            let dead = blocks(&kept.gaps()) - blocks(&gaps);
            if kept.ranges.is_empty() {
                unused.push(*number);
            } else if dead > kept.blocks / SHARE || !has_tree || is_left {
                renewals.push(*number);
            }
        }
        let renewed: HashSet<u32> = renewals.iter().copied().collect();
        self.renew_all(
            (unused, renewals),
            &|old: Directory| marks.segment(old.number).kept(old),
            threads,
            &mut pruned,
            progress,
        )?;
        self.load()?;
        if !marks.has_lost {
            self.free_unclaimed(&mut pruned)?;
        }
        let is_live = |segment: u32, member: u32| {
            renewed.contains(&segment) || marks.segment(segment).has_member(member)
        };
        if let Err(e) = self.move_members(&sparse, &is_live, threads, &mut pruned, progress) {
            progress.check()?;
            let why = format!("parts of groups were not moved: {e}");
            pruned.warnings.push(why);
        }
        self.load()?;
        self.packs.iter().try_for_each(|pack| pack.cut())?;
        if let Err(e) = self.save_index() {
            let why = format!("the next run will read every directory of the store: {e}");
            pruned.warnings.push(why);
        }
        Ok(pruned)
    }

    /// Removes files of runs that ended early.
    pub(crate) fn remove_leftovers(&mut self, pruned: &mut Pruned) -> Result<()> {
        for dir in ["packs", "segments", "snapshots", "seen", "pins"] {
            let dir = self.path.join(dir);
            let failed = |e| Error::io(Place::file(dir.display()), "cannot list", e);
            for path in files::list(&dir).map_err(failed)? {
                if path
                    .as_os_str()
                    .as_encoded_bytes()
                    .ends_with(files::NEW.as_bytes())
                {
                    files::remove(&path)?;
                }
            }
        }
        let directories = self.numbers("segments", ".dir")?;
        let mut has_removed = false;
        for number in self.numbers("segments", ".tree")? {
            if directories.binary_search(&number).is_ok() {
                continue;
            }
            match self.segments.get(&number).cloned() {
                // The parity has its directory, too.
                Some(segment) => {
                    let directory = self.directory(&segment)?;
                    self.replace_directory(&directory)?;
                }
                None if self.segments.keys().all(|last| *last < number) => {
                    files::remove(&self.tree_path(number))?;
                }
                None => {
                    let path = self.directory_path(number);
                    let what = format!(
                        "{}: is missing; its segment is left as it is",
                        path.display()
                    );
                    pruned.warnings.push(what);
                }
            }
            has_removed = true;
        }
        if has_removed {
            self.load()?;
        }
        Ok(())
    }

    /// Marks of everything that snapshots and pins name, and of what pins name.
    pub(crate) fn marks(&self, pruned: &mut Pruned, progress: &Progress) -> Result<(Marks, Marks)> {
        let (mut marks, mut pinned) = (Marks::default(), Marks::default());
        let unknown = |e: Error| match &e {
            Error::Corrupt(_) => {
                let advice = "repair the store, or forget the snapshot; nothing was pruned";
                Error::corrupt(e.place().clone(), format_args!("{}; {advice}", e.what()))
            }
            _ => e,
        };
        pruned.pins = self.pins()?;
        for pin in &pruned.pins {
            let Some(snapshot) = &pin.snapshot else {
                return Err(Error::corrupt(
                    Place::file(self.path.display()),
                    format_args!(
                        "the pin {} is damaged; remove it with `tuff store unpin`, nothing was pruned",
                        pin.name
                    ),
                ));
            };
            for marks in [&mut marks, &mut pinned] {
                let added = marks.add_snapshot(self, snapshot, progress);
                added.map_err(unknown)?;
            }
        }
        if let Some(number) = self.missing_manifests()?.first() {
            let place = Place::file(self.snapshot_path(*number).display());
            return Err(unknown(Error::corrupt(place, "the manifest is missing")));
        }
        for snapshot in self.snapshots()? {
            let snapshot = snapshot.map_err(unknown)?;
            let added = marks.add_snapshot(self, &snapshot, progress);
            added.map_err(unknown)?;
        }
        Ok((marks, pinned))
    }

    /// Removes segments without any use, which free most and need no room, and renews others. `kept` returns what a directory is
    /// to have. Those for which there is no room wait until others are done.
    fn renew_all(
        &mut self,
        (unused, mut rest): (Vec<u32>, Vec<u32>),
        kept: &dyn Fn(Directory) -> Directory,
        threads: usize,
        pruned: &mut Pruned,
        progress: &Progress,
    ) -> Result<()> {
        for number in unused {
            progress.check()?;
            if let Some(segment) = self.segments.get(&number) {
                let header = segment.header;
                self.remove_segment(&header, pruned)?;
            }
        }
        loop {
            let before = rest.len();
            let (mut waiting, mut failed) = (Vec::new(), None);
            for number in rest {
                progress.check()?;
                let Some(segment) = self.segments.get(&number) else {
                    continue;
                };
                let old = self.directory(segment)?;
                // A first attempt may have replaced it before it failed.
                let renewed = match old.header() == segment.header {
                    true => self.renew(old, kept, threads, pruned),
                    false => self.renew(old, &|old| old, threads, pruned),
                };
                match renewed {
                    Err(e) if is_full(&e) => {
                        waiting.push(number);
                        failed = Some(e);
                    }
                    renewed => renewed?,
                }
            }
            match failed {
                None => return Ok(()),
                Some(e) if waiting.len() == before => return Err(e),
                Some(_) => rest = waiting,
            }
        }
    }

    fn remove_segment(&mut self, directory: &SegmentHeader, pruned: &mut Pruned) -> Result<()> {
        files::remove(&self.tree_path(directory.number))?;
        files::remove(&self.directory_path(directory.number))?;
        pruned.removed_segments += 1;
        let blocks = directory.start..directory.start + directory.blocks;
        self.punch(directory.pack, &[blocks], pruned)
    }

    /// Frees blocks of packs that are of no segment: a run has ended between the removal of a directory and this, or directory and
    /// tree are lost.
    fn free_unclaimed(&self, pruned: &mut Pruned) -> Result<()> {
        // A directory that cannot be read may be one that claims them.
        if !self.damage.is_empty() {
            return Ok(());
        }
        for (number, pack) in (0..).zip(&self.packs) {
            let headers = self.segments.values().map(|segment| segment.header);
            let mut claimed: Vec<Range<u32>> = headers
                .filter(|header| header.pack == number)
                .map(|header| header.start..header.start + header.blocks)
                .collect();
            claimed.sort_unstable_by_key(|blocks| blocks.start);
            let mut at = 1;
            for blocks in claimed {
                if at < blocks.start && pack.has_data(at..blocks.start) {
                    let gap = at..blocks.start;
                    self.punch(number, std::slice::from_ref(&gap), pruned)?;
                }
                at = at.max(blocks.end);
            }
        }
        Ok(())
    }

    fn punch(&self, pack: u16, gaps: &[Range<u32>], pruned: &mut Pruned) -> Result<()> {
        let pack = &self.packs[usize::from(pack)];
        if pack.is_missing() {
            return Ok(());
        }
        for gap in gaps {
            let has_data = pack.has_data(gap.clone());
            if !pack.punch(gap.clone())? {
                let why = format!(
                    "{}: the filesystem cannot free parts of files; back up into a new store, and delete this one",
                    pack.path.display()
                );
                if !pruned.warnings.contains(&why) {
                    pruned.warnings.push(why);
                }
                return Ok(());
            }
            if has_data {
                pruned.freed_bytes += u64::from(gap.end - gap.start) * BLOCK as u64;
            }
        }
        Ok(())
    }

    /// Replaces the directory of a segment by what `kept` returns for it, and frees the rest.
    fn renew(
        &mut self,
        old: Directory,
        kept: &dyn Fn(Directory) -> Directory,
        threads: usize,
        pruned: &mut Pruned,
    ) -> Result<()> {
        // Damage cannot be told from content once the tree is of the new directory.
        self.repair_segment(&old, threads)?;
        let directory = &kept(old);
        let tree = self.tree_path(directory.number);
        let mut has_tree = false;
        match self.write_tree(directory, threads) {
            Ok(()) => has_tree = true,
            Err(e) if is_full(&e) => files::remove(&tree)?,
            Err(e) => return Err(e),
        }
        match self.replace_directory(directory) {
            Err(e) if is_full(&e) && has_tree => {
                files::remove(&tree)?;
                has_tree = false;
                self.replace_directory(directory)?;
            }
            replaced => replaced?,
        }
        self.punch(directory.pack, &directory.gaps(), pruned)?;
        if !has_tree {
            match self.write_tree(directory, threads) {
                Err(e) if is_full(&e) => pruned.warnings.push(format!(
                    "segment {} is without parity, because the disk is full; prune again when there is room",
                    directory.number
                )),
                written => written?,
            }
        }
        pruned.renewed_segments += 1;
        Ok(())
    }

    /// Writes members of sparse groups into new groups, and frees the old ones.
    fn move_members(
        &mut self,
        sparse: &[SparseGroup],
        is_live: &dyn Fn(u32, u32) -> bool,
        threads: usize,
        pruned: &mut Pruned,
        progress: &Progress,
    ) -> Result<()> {
        let mut reader = RangeReader::default();
        let mut encoder = RangeEncoder::new(&self.compression.group_spec())?;
        let mut segment = None;
        let mut content = Vec::new();
        let mut members: Vec<(Digest, u32, u32)> = Vec::new();
        let mut moved = HashSet::new();
        let groups = sparse.iter().filter_map(|group| {
            let found = self.find(group.1, true).ok()?;
            let clusters = found.clusters.iter().map(|c| u64::from(c.blocks));
            Some((*group, clusters.sum::<u64>() * BLOCK as u64))
        });
        let groups: Vec<(SparseGroup, u64)> = groups.collect();
        if groups.iter().map(|(_, len)| len / 2).sum::<u64>() < MOVED_MIN {
            return Ok(());
        }
        // Groups of a segment follow each other.
        let mut open: Option<Directory> = None;
        for ((number, group), _) in groups {
            progress.check()?;
            if open.as_ref().is_none_or(|open| open.number != number) {
                let found = self.segments.get(&number);
                open = found.and_then(|segment| self.directory(segment).ok());
            }
            let Some(directory) = &open else {
                continue;
            };
            let of_group = members_of(directory, group, &|member| is_live(number, member));
            let start = (content.len(), members.len());
            let mut read_all = || {
                for digest in &of_group {
                    let bytes = self.read(&mut reader, *digest, false)?;
                    // Fits: a group is a few MiB.
                    members.push((*digest, content.len() as u32, bytes.len() as u32));
                    content.extend_from_slice(&bytes);
                }
                Ok::<(), Error>(())
            };
            if read_all().is_err() {
                // A damaged group stays for `repair`.
                content.truncate(start.0);
                members.truncate(start.1);
                continue;
            }
            moved.insert((number, group));
            if content.len() >= GROUP_LEN {
                let new = group_of(&mut encoder, &mut content, &mut members)?;
                pruned.moved_bytes += new.bytes.len() as u64;
                append(self, &mut segment, threads, &new)?;
            }
        }
        if !content.is_empty() {
            let new = group_of(&mut encoder, &mut content, &mut members)?;
            pruned.moved_bytes += new.bytes.len() as u64;
            append(self, &mut segment, threads, &new)?;
        }
        if let Some(segment) = segment {
            self.commit(&segment, threads)?;
        }
        // All copies are durable.
        let mut renewals: Vec<u32> = moved.iter().map(|(segment, _)| *segment).collect();
        renewals.sort_unstable();
        renewals.dedup();
        let kept = |old: Directory| {
            let is_kept = |range: &RangeEntry| !moved.contains(&(old.number, range.digest));
            let keeps: Vec<bool> = old.ranges.iter().map(is_kept).collect();
            old.keep(&|i| keeps[i as usize], &|_| true)
        };
        self.renew_all((Vec::new(), renewals), &kept, threads, pruned, progress)
    }
}

/// Encodes a group, and empties its parts.
pub(crate) fn group_of(
    encoder: &mut RangeEncoder,
    content: &mut Vec<u8>,
    members: &mut Vec<(Digest, u32, u32)>,
) -> Result<NewRange> {
    let mut content = std::mem::take(content);
    content.resize(content.len().next_multiple_of(BLOCK), 0);
    let (clusters, bytes) = encoder.encode(&content, None)?;
    Ok(NewRange {
        digest: Digest::of_bytes(&content),
        clusters,
        bytes,
        members: std::mem::take(members),
    })
}

/// Groups of a directory that have less than half of their members, but some.
fn sparse_groups(kept: &Directory) -> Vec<Digest> {
    let mut lens = vec![0; kept.ranges.len()];
    for member in &kept.members {
        lens[member.group as usize] += u64::from(member.len);
    }
    let has_members = |group: usize| lens[group] > 0;
    let sparse = (kept.ranges.iter().enumerate()).filter_map(|(i, range)| {
        let clusters = kept.clusters_of(range)?.iter();
        let all: u64 = clusters.map(|cluster| u64::from(cluster.content)).sum();
        (has_members(i) && 2 * lens[i] < all).then_some(range.digest)
    });
    sparse.collect()
}

/// Members of a group that are in use.
fn members_of(directory: &Directory, group: Digest, is_live: &dyn Fn(u32) -> bool) -> Vec<Digest> {
    let position = |range: &RangeEntry| range.digest == group;
    let Some(group) = directory.ranges.iter().position(position) else {
        return Vec::new();
    };
    let members = (0..).zip(&directory.members);
    let members = members.filter(|(i, member)| member.group as usize == group && is_live(*i));
    members.map(|(_, member)| member.digest).collect()
}

/// Number of blocks in gaps.
pub(crate) fn blocks(gaps: &[Range<u32>]) -> u32 {
    gaps.iter().map(|gap| gap.end - gap.start).sum()
}

/// True if there was no room.
fn is_full(e: &Error) -> bool {
    let full = [
        std::io::ErrorKind::StorageFull,
        std::io::ErrorKind::QuotaExceeded,
    ];
    matches!(e, Error::Io(_, e) if full.contains(&e.kind()))
}
