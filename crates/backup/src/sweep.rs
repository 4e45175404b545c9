//! Frees what no snapshot and no pin names in a bucket, or in a directory of an encrypted store. In a bucket it takes two runs: the
//! first one marks, and one that comes [`GRACE`] later removes what is still without use. No run that writes needs to be excluded: a
//! new one stores marked ranges again, and those that had begun before are over.

use crate::bucket::{Blocks, GRACE, RUN_MAX};
use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::encode::decode;
use crate::marked::{Marked, NAME};
use crate::pack::Clusters;
use crate::prune::{Pruned, SHARE, blocks};
use crate::segment::{DIRECTORY_MAX, Directory, RangeEntry};
use crate::slots::SegmentMarks;
use crate::store::Store;
use rustix::fs::{Mode, OFlags, open};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::SystemTime;
use tuff_codec::Decoder;
use tuff_mkfs::{Error, Place, Progress, Result};

/// Most bytes of one request.
const STEP: usize = 8 << 20;
/// Object that tells the time of the bucket.
const CLOCK: &str = "pruning";

impl Store {
    /// Fails for a run that has taken so long that what it counts on may be removed.
    pub(crate) fn is_in_time(&self) -> Result<()> {
        // A clock that was set back proves nothing.
        let taken = SystemTime::now().duration_since(self.opened);
        match self.objects.is_none() || taken.is_ok_and(|taken| taken <= RUN_MAX) {
            true => Ok(()),
            false => Err(Error::usage(format_args!(
                "{}: the run took more than {} days; run the command again, which continues it",
                self.path.display(),
                RUN_MAX.as_secs() / 86_400
            ))),
        }
    }

    /// Frees what no snapshot and no pin names in the bucket, and marks what a later run may free.
    pub(crate) fn sweep(&mut self, pruned: &mut Pruned, progress: &Progress) -> Result<()> {
        let Some(objects) = self.objects.clone() else {
            return Ok(());
        };
        let now = match &self.excluded {
            Some(_) => {
                objects.sync(&self.path)?;
                SystemTime::now()
            }
            None => self.bucket_time()?,
        };
        // As the list says: conditions hold for that state.
        self.load_all()?;
        self.remove_leftovers(pruned)?;
        let (marks, _) = self.marks(pruned, progress)?;
        // Nobody writes or reads meanwhile, so nothing needs to wait.
        let is_alone = self.excluded.is_some() && pruned.pins.is_empty();
        let marked = self.read_marked()?.unwrap_or_default();
        let age = |time| now.duration_since(time).unwrap_or_default();
        let age = marked.time.map(age);
        let is_due = age.is_none_or(|age| age >= GRACE);
        let mut next = Marked {
            last: self.next_segment() - 1,
            ..Marked::default()
        };
        let (mut known, mut rewrites) = (HashSet::new(), Vec::new());
        let numbers: Vec<u32> = self.segments.keys().copied().collect();
        for number in numbers {
            progress.check()?;
            let directory = self.directory(&self.segments[&number])?;
            let digest = directory.digest(&self.id);
            let live = marks.segment(number);
            let (now_dead, unused) = dead(&directory, live);
            let old = marked.segments.get(&number);
            let old = old.filter(|(of, _)| is_due && *of == digest);
            let due = match is_alone {
                true => Some(&now_dead),
                false => old.map(|(_, dead)| dead),
            };
            if let Some(dead) = due {
                let kept = kept(&directory, live, dead);
                let freed = blocks(&kept.gaps()) - blocks(&directory.gaps());
                if kept.ranges.is_empty() {
                    self.remove(&format!("segments/{number:08}.dir"))?;
                    pruned.removed_segments += 1;
                    continue;
                }
                if freed > directory.blocks / SHARE {
                    known.insert(objects.data_name(number, kept.digest(&self.id)));
                    if is_alone {
                        known.insert(objects.data_name(number, digest));
                    }
                    rewrites.push(number);
                    continue;
                }
            }
            known.insert(objects.data_name(number, digest));
            if unused > 0 && !is_alone {
                pruned.marked_bytes += u64::from(unused) * BLOCK as u64;
                next.segments.insert(number, (digest, now_dead));
            }
        }
        for name in objects.data_names() {
            if known.contains(&name) {
                continue;
            }
            let len = objects.object(&name).map_or(0, |object| object.len);
            match is_alone || is_due && marked.names.contains(&name) {
                true => {
                    self.remove(&name)?;
                    pruned.freed_bytes = pruned.freed_bytes.saturating_add(len);
                }
                false => {
                    pruned.marked_bytes = pruned.marked_bytes.saturating_add(len);
                    next.names.push(name);
                }
            }
        }
        // After what they need no room for.
        for number in rewrites {
            progress.check()?;
            let old = self.directory(&self.segments[&number])?;
            let live = marks.segment(number);
            let kept = match marked.segments.get(&number) {
                Some((_, dead)) if !is_alone => kept(&old, live, dead),
                _ => kept(&old, live, &dead(&old, live).0),
            };
            self.rewrite(&old, &kept)?;
            pruned.renewed_segments += 1;
            if is_alone {
                let name = objects.data_name(old.number, old.digest(&self.id));
                let len = objects.object(&name).map_or(0, |object| object.len);
                self.remove(&name)?;
                let new = objects.data_name(kept.number, kept.digest(&self.id));
                let left = objects.object(&new).map_or(0, |object| object.len);
                pruned.freed_bytes += len.saturating_sub(left);
            }
        }
        if is_alone {
            if marked.time.is_some() {
                self.remove(NAME)?;
            }
            return self.load();
        }
        if !is_due {
            pruned.wait = age.map(|age| GRACE.saturating_sub(age));
        } else if next.segments.is_empty() && next.names.is_empty() {
            if marked.time.is_some() {
                self.remove(NAME)?;
            }
        } else {
            self.replace(NAME, &next.encode(&self.id))?;
            pruned.wait = Some(GRACE);
        }
        self.load()
    }

    /// Marks of the bucket. `None` if there are none.
    pub(crate) fn read_marked(&self) -> Result<Option<Marked>> {
        let Some(objects) = &self.objects else {
            return Ok(None);
        };
        let Some(object) = objects.object(NAME) else {
            return Ok(None);
        };
        let path = self.path.join(NAME);
        let place = || Place::file(path.display());
        let bytes = crate::files::read(&path, DIRECTORY_MAX);
        let bytes = bytes.map_err(|e| Error::io(place(), "cannot read", e))?;
        let marked = Marked::decode(&bytes, &self.id);
        let broken = || Error::corrupt(place(), "damaged; remove this object from the bucket");
        let mut marked = marked.ok_or_else(broken)?;
        marked.time = Some(object.modified);
        // Directories that were written anew have other entries.
        let (segments, newer) = (&self.segments, &mut marked.newer);
        for (number, segment) in segments {
            let directory = self.directory(segment)?;
            if *number > marked.last {
                let ranges = directory.ranges.iter().map(|range| (range.digest, true));
                let members = directory.members.iter();
                newer.extend(ranges.chain(members.map(|member| (member.digest, false))));
            } else if let Some((digest, _)) = marked.segments.get(number)
                && *digest != directory.digest(&self.id)
            {
                marked.segments.remove(number);
            }
        }
        Ok(Some(marked))
    }

    /// True if the store has a range that a new snapshot may name; see [`slot`](Self::slot).
    pub(crate) fn has(&self, digest: Digest, alone: bool) -> Result<bool> {
        let Some(found) = self.slot(digest, alone)? else {
            return Ok(false);
        };
        let Some(marked) = &self.marked else {
            return Ok(true);
        };
        if !marked.has(found) {
            return Ok(true);
        }
        // The other kind of copy, or one that was stored since.
        let other = self.slot(digest, true)?.filter(|found| !marked.has(*found));
        Ok(other.is_some()
            || marked.newer.contains(&(digest, true))
            || (!alone && marked.newer.contains(&(digest, false))))
    }

    /// Time of the bucket, whatever the clock of this host says.
    fn bucket_time(&self) -> Result<SystemTime> {
        let Some(objects) = &self.objects else {
            return Ok(SystemTime::now());
        };
        objects.replace(CLOCK, format!("{}\n", crate::run::host()).as_bytes())?;
        objects.sync(&self.path)?;
        let clock = objects.object(CLOCK).map(|object| object.modified);
        clock.ok_or_else(|| objects.changed())
    }

    /// Writes the data that a smaller directory names as a new object, and then that directory.
    pub(crate) fn rewrite(&mut self, old: &Directory, kept: &Directory) -> Result<()> {
        let Some(objects) = self.objects.clone() else {
            return Ok(());
        };
        let failed = |e: io::Error| Error::io(Place::file(self.path.display()), "cannot write", e);
        let mode = Mode::RUSR | Mode::WUSR;
        let file = open(&self.path, OFlags::TMPFILE | OFlags::RDWR, mode);
        let file = File::from(file.map_err(|e| failed(e.into()))?);
        let mut len = 0;
        for part in Blocks::new(kept, file.try_clone().map_err(failed)?).parts {
            for at in (part.start..part.end).step_by(STEP) {
                let step = (part.end - at).min(STEP as u64);
                let read = objects.read(old.pack, at, step);
                let bytes = read.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
                let bytes = bytes.map_err(|e| objects.error("segments", "cannot read", e))?;
                file.write_all_at(&bytes, len).map_err(failed)?;
                len += step;
            }
        }
        self.compare(kept, &file)?;
        let content = Blocks {
            file,
            parts: std::iter::once(0..len).collect(),
        };
        objects.upload(kept.number, kept.digest(&self.id), Arc::new(content))?;
        self.replace_directory(kept)
    }

    /// Compares what a file has of a segment with the digests of its ranges. The blocks follow each other in their order.
    fn compare(&self, directory: &Directory, file: &File) -> Result<()> {
        let mut ranges: Vec<&RangeEntry> = directory.ranges.iter().collect();
        ranges.sort_unstable_by_key(|range| range.block);
        let (mut decoder, mut at, mut end) = (Decoder::default(), 0, 0);
        for range in ranges {
            let found = directory.blocks_of(range).zip(directory.clusters_of(range));
            let Some((blocks, clusters)) = found else {
                continue;
            };
            // Ranges with the same content may share their clusters.
            if blocks.end <= end {
                continue;
            }
            end = blocks.end;
            let mut bytes = vec![0; (blocks.end - blocks.start) as usize * BLOCK];
            let read = file.read_exact_at(&mut bytes, at);
            read.map_err(|e| Error::io(Place::file(self.path.display()), "cannot read", e))?;
            at += bytes.len() as u64;
            let mut content = Vec::new();
            let algorithm = self.compression.algorithm();
            let decoded = decode(&mut decoder, algorithm, clusters, &bytes, &mut content);
            if decoded.is_err() || Digest::of_bytes(&content) != range.digest {
                let what = format_args!(
                    "segment {} is damaged; `tuff store repair` drops what is lost",
                    directory.number
                );
                return Err(Error::corrupt(Place::file(self.path.display()), what));
            }
        }
        Ok(())
    }
}

/// Which ranges of a directory are in use: groups are, if one of their members is.
fn uses(
    directory: &Directory,
    keeps: &dyn Fn(u32) -> bool,
    keeps_member: &dyn Fn(u32) -> bool,
) -> Vec<bool> {
    // Fits: a directory has less than 2^32 entries.
    let mut uses: Vec<bool> = (0..directory.ranges.len() as u32).map(keeps).collect();
    for (i, member) in (0..).zip(&directory.members) {
        uses[member.group as usize] |= keeps_member(i);
    }
    uses
}

/// The directory without what is due to be freed.
fn kept(directory: &Directory, live: &SegmentMarks, due: &SegmentMarks) -> Directory {
    let keeps = |i: u32| live.has_range(i) || !due.has_range(i);
    let keeps_member = |i: u32| live.has_member(i) || !due.has_member(i);
    let uses = uses(directory, &keeps, &keeps_member);
    directory.clone().keep(&|i| uses[i as usize], &keeps_member)
}

/// Entries of a directory without use, and the number of blocks of such ranges.
fn dead(directory: &Directory, live: &SegmentMarks) -> (SegmentMarks, u32) {
    let uses = uses(directory, &|i| live.has_range(i), &|i| live.has_member(i));
    let mut marks = SegmentMarks::default();
    let mut unused = 0;
    for ((i, range), used) in (0..).zip(&directory.ranges).zip(uses) {
        if !used {
            marks.add_range(i);
            unused += directory
                .blocks_of(range)
                .map_or(0, |blocks| blocks.end - blocks.start);
        }
    }
    // Fits, as above.
    for i in 0..directory.members.len() as u32 {
        if !live.has_member(i) {
            marks.add_member(i);
        }
    }
    (marks, unused)
}
