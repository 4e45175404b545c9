//! Oracle: states that are allowed after a crash, and campaigns that verify them.
//!
//! The guarantee: after a crash the volume is in a state between two operations. That state is no older than the last
//! completed sync, or fsync of a directory or of a renamed file. Files that were fsynced later are as they were at
//! their fsync. Nothing else is visible: no partial operation, no bytes of other files, no leak.
//!
//! Let `S(k)` be the model after `k` operations. The visible state must equal `S(k)` overlaid with every completed
//! fsync after `k`, for some `k` not before the last completed sync. An fsync in progress may or may not be included.

use crate::disk::{CrashDisk, Event, Written};
use crate::model::{Model, ObjectId, Tree, difference, tree_of};
use crate::states::states;
use crate::workload::{Op, PERSISTS, Persist, Step, alphabet, at, base, dependent};
use std::sync::Arc;
use tuff_iplfs::backend::{Blocks, MappedDevice};
use tuff_iplfs::{
    BlockDevice, CheckOptions, Checkpoint, DiscardRule, Discards, Error, FormatOptions, Geometry,
    MountOptions, Result as VolumeResult, Volume, check, mode,
};
use tuff_testkit::Rng;

/// Extent of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of sequences of operations.
    pub workloads: u64,
    /// Number of states after a crash.
    pub states: u64,
    /// Number of states after a crash during the recovery of another one.
    pub nested: u64,
    /// Number of groups that roll-forward adopted.
    pub adopted: u64,
}

/// Base volume of workloads, and the effort spent on each.
pub struct Campaign {
    blocks: Blocks,
    written: Arc<Written>,
    model: Model,
    geometry: Geometry,
    options: MountOptions,
    is_mapped: bool,
    /// Number of sampled states per flush epoch.
    pub samples: usize,
    /// One in this many states also gets crashes during its recovery; 0 for none.
    pub nested_every: u64,
    /// Extent of the campaign until this point.
    pub tally: Tally,
    rng: Rng,
}

/// Size of the medium of a block map. Its journal restarts often.
const MEDIUM_BLOCKS: u64 = 2048;

/// Description of a failure, sufficient to reproduce it.
pub type Failure = String;

/// Recorded execution of a workload.
struct RecordedRun {
    events: Vec<Event>,
    /// Model after each number of operations.
    models: Vec<Model>,
    /// Positions in the record at which each step began and its persistence completed.
    marks: Vec<(usize, usize)>,
    /// File that the persistence of each step guarantees.
    files: Vec<Option<ObjectId>>,
    /// Positions in the record from which on a number of steps is guaranteed.
    kept: Vec<(usize, usize)>,
}

/// Checkpoint that runs concurrently with operations.
#[derive(Default)]
struct ConcurrentCheckpoint {
    /// Checkpoint in progress, and the number of steps that it contains.
    checkpoint: Option<(Checkpoint, usize)>,
    sealed: bool,
    /// Discards that the previous checkpoint allowed.
    discards: Option<Discards>,
    /// Number of completed checkpoints.
    ended: usize,
}

impl ConcurrentCheckpoint {
    /// Performs the next part. Returns the number of steps that it made durable.
    fn advance(&mut self, volume: &mut Volume, step: usize) -> VolumeResult<usize> {
        let device = volume.device();
        let flush = || {
            device
                .flush()
                .map_err(|e| Error::Io(e, "flushing".to_owned()))
        };
        let Some((checkpoint, steps)) = self.checkpoint else {
            let started = volume.begin_checkpoint()?;
            self.checkpoint = started.map(|checkpoint| (checkpoint, step));
            return Ok(0);
        };
        flush()?;
        self.issue_discard(volume)?;
        if !self.sealed {
            self.sealed = volume.seal_checkpoint(checkpoint)?;
            if !self.sealed {
                self.checkpoint = None;
            }
            return Ok(0);
        }
        volume.end_checkpoint(checkpoint)?;
        (self.checkpoint, self.sealed) = (None, false);
        self.discards.get_or_insert_with(|| volume.discards());
        self.ended += 1;
        Ok(steps)
    }

    /// Issues one discard. Returns false after the last.
    fn issue_discard(&mut self, volume: &mut Volume) -> VolumeResult<bool> {
        let Some(mut discards) = self.discards.take() else {
            return Ok(false);
        };
        match discards.issue(1) {
            Some(done) => {
                volume.discarded(done);
                self.discards = Some(discards);
            }
            None => {
                let released = discards.release_zones()?;
                volume.discarded(released);
            }
        }
        Ok(self.discards.is_some())
    }
}

impl Campaign {
    /// Creates a campaign on a small volume, which may break a rule.
    pub fn new(broken_rule: Option<DiscardRule>, seed: u64) -> Result<Self, Failure> {
        Self::on_volume(broken_rule, seed, 6, 0, false, None)
    }

    /// Creates a campaign on a small volume over a block map. Events are those of the medium.
    pub fn with_block_map(seed: u64) -> Result<Self, Failure> {
        Self::on_volume(None, seed, 6, 0, false, Some(MEDIUM_BLOCKS))
    }

    /// Creates a campaign on a volume whose discard log does not fit its pack.
    pub fn with_long_log(broken_rule: Option<DiscardRule>, seed: u64) -> Result<Self, Failure> {
        Self::on_volume(broken_rule, seed, 5, 820, false, None)
    }

    /// Creates a campaign on a volume with a snapshot that differs from its current state.
    pub fn with_snapshot(broken_rule: Option<DiscardRule>, seed: u64) -> Result<Self, Failure> {
        Self::on_volume(broken_rule, seed, 6, 0, true, None)
    }

    /// Creates a campaign. `holes` is the number of separate dead blocks in the discard log at the start. With
    /// `medium_blocks`, the volume lies on a block map.
    fn on_volume(
        broken_rule: Option<DiscardRule>,
        seed: u64,
        pack_blocks: u32,
        holes: u64,
        snapshot: bool,
        medium_blocks: Option<u64>,
    ) -> Result<Self, Failure> {
        let geometry = Geometry {
            area_bits: 29,
            section_bits: 8,
            zone_bits: 4,
            pack_blocks,
        };
        let format = FormatOptions {
            geometry,
            reserve_blocks: 256,
            ..FormatOptions::new(
                [3; 16],
                [5; 16],
                medium_blocks.map_or(4096, |blocks| blocks / 2),
            )
        };
        let is_mapped = medium_blocks.is_some();
        let disk = Arc::new(CrashDisk::new(
            Blocks::new(),
            Arc::default(),
            overwritten_end(&geometry, is_mapped),
        ));
        if let Some(blocks) = medium_blocks {
            MappedDevice::create(disk.clone(), blocks, [9; 16], &geometry)
                .map_err(|e| format!("making the block map: {e}"))?;
        }
        let dev = device_on(&disk, is_mapped)?;
        let window_blocks = 256 + 4 * holes;
        let options = MountOptions {
            window_blocks,
            journal_max: 12,
            prepare_blocks: 2,
            broken_rule,
            ..MountOptions::default()
        };
        let mut model = Model::default();
        let mut run = || {
            Volume::format(dev.clone(), &format)?;
            let sound = MountOptions {
                broken_rule: None,
                ..options.clone()
            };
            let mut volume = Volume::mount(dev.clone(), sound)?;
            let mut ops = base();
            if snapshot {
                ops.insert(ops.len() - 2, Op::Snapshot("old"));
            }
            if holes > 0 {
                ops.push(Op::Create("/holes"));
                ops.push(Op::Write("/holes", 0, holes as usize * 8192));
            }
            let plain = ops.len();
            ops.extend((0..holes).map(|i| Op::Write("/holes", i * 8192, 4096)));
            for (now, op) in ops.iter().enumerate() {
                op.volume(&mut volume, now as i64)?;
                if now == 10 || now + 1 == plain {
                    volume.sync()?;
                }
                assert!(op.model(&mut model, now as i64), "{op:?} fits the base");
            }
            volume.unmount()
        };
        run().map_err(|e: Error| format!("making the base: {e}"))?;
        Ok(Self {
            blocks: disk.blocks(),
            written: Arc::new(disk.written()),
            model,
            geometry,
            options,
            is_mapped,
            samples: 6,
            nested_every: 16,
            tally: Tally::default(),
            rng: Rng::new(seed),
        })
    }

    /// Runs a workload and verifies every state. A sequence with an impossible operation is skipped.
    pub fn workload(&mut self, steps: &[Step]) -> Result<(), Failure> {
        let with_steps = |e: String| format!("{steps:?}: {e}");
        let Some(run) = self.record(steps).map_err(with_steps)? else {
            return Ok(());
        };
        self.tally.workloads += 1;
        let base = self.blocks.clone();
        let samples = self.samples;
        let mut rng = Rng::new(self.rng.draw());
        let base_written = self.written.clone();
        let mut epoch: Option<(usize, Vec<Tree>, Arc<Written>)> = None;
        states(&base, &run.events, samples, &mut rng, |blocks, from| {
            self.tally.states += 1;
            let nested =
                self.nested_every > 0 && self.tally.states.is_multiple_of(self.nested_every);
            if epoch.as_ref().is_none_or(|(at, ..)| *at != from) {
                epoch = Some((
                    from,
                    allowed_trees(&run, from),
                    written_by(&base_written, &run.events, from),
                ));
            }
            let Some((_, allowed, written)) = &epoch else {
                return Ok(());
            };
            self.examine(allowed, blocks, written, nested)
                .map_err(|e| format!("crash after event {from} of {}{e}", run.events.len()))
        })
        .map_err(with_steps)
    }

    fn record(&mut self, steps: &[Step]) -> Result<Option<RecordedRun>, Failure> {
        let mut models = vec![self.model.clone()];
        for (i, (op, _)) in steps.iter().enumerate() {
            let mut next = models[i].clone();
            if !op.model(&mut next, 100 + i as i64) {
                return Ok(None);
            }
            models.push(next);
        }
        let disk = Arc::new(CrashDisk::new(
            self.blocks.clone(),
            self.written.clone(),
            overwritten_end(&self.geometry, self.is_mapped),
        ));
        let dev = device_on(&disk, self.is_mapped)?;
        let failed = |e: Error| format!("running it: {e}");
        let mut options = self.options.clone();
        if steps.iter().any(|(_, p)| *p == Persist::Background)
            && self.tally.workloads.is_multiple_of(2)
        {
            // Without this, nothing is appended during a checkpoint.
            options.write_behind_pages = 0;
        }
        let mut volume = Volume::mount(dev, options).map_err(failed)?;
        let (mut marks, mut files, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut concurrent = ConcurrentCheckpoint::default();
        for (i, (op, persist)) in steps.iter().enumerate() {
            let begin = disk.position();
            op.volume(&mut volume, 100 + i as i64).map_err(failed)?;
            let target = op.target();
            let mut file = None;
            let mut durable = 0;
            match persist {
                Persist::None => {}
                Persist::Sync => {
                    volume.sync().map_err(failed)?;
                    durable = i + 1;
                }
                Persist::Fsync | Persist::Fdatasync => {
                    let ino = at(&mut volume, target).map_err(failed)?;
                    if *persist == Persist::Fsync {
                        volume.fsync(ino)
                    } else {
                        volume.fdatasync(ino)
                    }
                    .map_err(failed)?;
                    let model = &models[i + 1];
                    file = model.at(target).filter(|id| {
                        matches!(model.objects[id].mode & mode::TYPE, mode::FILE | mode::LINK)
                    });
                    if file.is_none() {
                        durable = i + 1;
                    }
                }
                Persist::Background => {
                    durable = concurrent.advance(&mut volume, i + 1).map_err(failed)?;
                }
            }
            // Creating or deleting a snapshot includes a checkpoint.
            if matches!(op, Op::Snapshot(_) | Op::DeleteSnapshot(_)) {
                durable = i + 1;
            }
            marks.push((begin, disk.position()));
            files.push(file);
            kept.push((disk.position(), durable));
        }
        // Issues the discards of the first checkpoint while a second one is in progress.
        let started = concurrent.checkpoint.is_some() || concurrent.ended > 0;
        while started && (concurrent.checkpoint.is_some() || concurrent.ended < 2) {
            let durable = concurrent
                .advance(&mut volume, steps.len())
                .map_err(failed)?;
            kept.push((disk.position(), durable));
            if concurrent.checkpoint.is_none() && !volume.checkpoint_frees_blocks() {
                break;
            }
        }
        while concurrent.issue_discard(&mut volume).map_err(failed)? {}
        let seen = tree_of(&mut volume).map_err(failed)?;
        if let Some(what) = difference(&models[steps.len()].tree(), &seen) {
            return Err(format!("without a crash: {what}"));
        }
        if let Some(what) = disk.violations().first() {
            return Err(format!("without a crash: {what}"));
        }
        Ok(Some(RecordedRun {
            events: disk.events(),
            models,
            marks,
            files,
            kept,
        }))
    }

    /// Verifies one state after a crash.
    fn examine(
        &mut self,
        allowed: &[Tree],
        blocks: Blocks,
        written: &Arc<Written>,
        nested: bool,
    ) -> Result<(), Failure> {
        let events = self
            .verify_recovery(allowed, blocks.clone(), written)
            .map_err(|e| format!(": {e}"))?;
        if !nested {
            return Ok(());
        }
        let mut rng = Rng::new(self.rng.draw());
        states(&blocks, &events, 2, &mut rng, |blocks, again| {
            self.tally.nested += 1;
            let written = written_by(written, &events, again);
            self.verify_recovery(allowed, blocks, &written)
                .map(drop)
                .map_err(|e| {
                    format!(
                        ", then in its recovery after event {again} of {}: {e}",
                        events.len()
                    )
                })
        })
    }

    /// Mounts a state and verifies it completely. Returns the events of the mount.
    fn verify_recovery(
        &mut self,
        allowed: &[Tree],
        blocks: Blocks,
        written: &Arc<Written>,
    ) -> Result<Vec<Event>, Failure> {
        let disk = Arc::new(CrashDisk::new(
            blocks,
            written.clone(),
            overwritten_end(&self.geometry, self.is_mapped),
        ));
        let dev = device_on(&disk, self.is_mapped)?;
        let mut volume = Volume::mount(dev.clone(), self.options.clone())
            .map_err(|e| format!("does not mount: {e}"))?;
        let events = disk.events();
        self.tally.adopted += volume.stats().adopted_groups;
        let seen = tree_of(&mut volume).map_err(|e| format!("cannot be read: {e}"))?;
        if !allowed.contains(&seen) {
            let nearest = allowed
                .iter()
                .filter_map(|want| difference(want, &seen))
                .collect::<Vec<_>>()
                .join(" | ");
            return Err(format!("shows a state that is not allowed: {nearest}"));
        }
        self.verify_consistency(&dev, written, "after the mount", false)?;
        volume.drain().map_err(|e| format!("does not drain: {e}"))?;
        self.verify_consistency(&dev, written, "after the drain", true)?;
        drop(volume);
        if let Some(what) = disk.violations().first() {
            return Err(what.clone());
        }
        if self.is_mapped {
            let again = device_on(&disk, true)?;
            self.verify_consistency(&again, written, "after opening it again", true)?;
        }
        Ok(events)
    }

    /// Checks the volume. After a drain the device must hold exactly the reachable blocks. Only a block of zeros may
    /// be missing, whose write was lost: neither a recovery nor a reader can tell it from one that survived.
    fn verify_consistency(
        &self,
        dev: &Arc<dyn BlockDevice>,
        written: &Written,
        when: &str,
        drained: bool,
    ) -> Result<(), Failure> {
        let report = check(
            dev,
            CheckOptions {
                data: drained,
                fallback: false,
            },
        )
        .map_err(|e| format!("{when}: {e}"))?;
        if let Some(finding) = report.findings.first() {
            return Err(format!("{when}: {finding}"));
        }
        if !report.leaked.is_empty() {
            return Err(format!("{when}: leaked {:x?}", report.leaked));
        }
        if drained {
            let all = self.geometry.fixed_end()..7 << self.geometry.area_bits;
            let held: Vec<u64> = dev
                .allocated(all)
                .map_err(|e| e.to_string())?
                .into_iter()
                .flatten()
                .collect();
            let extra = difference_of(&held, &report.reachable);
            let mut lost = difference_of(&report.reachable, &held);
            // The check has compared the checksums of these blocks, which a block map reads as zeros.
            lost.retain(|addr| !self.is_mapped && !written.only_zeros(*addr));
            if !(extra.is_empty() && lost.is_empty()) {
                return Err(format!(
                    "{when}: the device holds {extra:x?}, which cannot be reached, and not {lost:x?}, which can, of {} reachable blocks",
                    report.reachable.len()
                ));
            }
        }
        Ok(())
    }

    /// Runs every sequence of one operation with every persistence.
    pub fn single_operations(&mut self) -> Result<(), Failure> {
        for op in alphabet() {
            for persist in PERSISTS {
                self.workload(&[(op.clone(), persist)])?;
            }
        }
        Ok(())
    }

    /// Runs sequences of two operations with every pair of persistences. `stride` n selects every n-th, starting with
    /// `first`.
    pub fn pairs_of_operations(&mut self, stride: usize, first: usize) -> Result<(), Failure> {
        let ops = alphabet();
        let mut count = 0usize;
        for a in &ops {
            for b in &ops {
                for p in PERSISTS {
                    for q in PERSISTS {
                        count += 1;
                        if count % stride == first % stride {
                            self.workload(&[(a.clone(), p), (b.clone(), q)])?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs sequences of two operations, the second during a checkpoint of the first, with every persistence.
    /// `stride` n selects every n-th, starting with `first`.
    pub fn pairs_during_checkpoint(&mut self, stride: usize, first: usize) -> Result<(), Failure> {
        let ops = alphabet();
        let mut count = 0usize;
        for a in &ops {
            for b in &ops {
                for persist in PERSISTS.into_iter().chain([Persist::Background]) {
                    count += 1;
                    if count % stride == first % stride {
                        self.workload(&[(a.clone(), Persist::Background), (b.clone(), persist)])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs every [dependent sequence](crate::workload::dependent), with each persistence at its end and each before
    /// it.
    pub fn dependent_sequences(&mut self) -> Result<(), Failure> {
        for ops in dependent() {
            for last in PERSISTS.into_iter().chain([Persist::Background]) {
                for between in PERSISTS.into_iter().chain([Persist::Background]) {
                    let n = ops.len();
                    let persist = |i| if i + 1 == n { last } else { between };
                    let steps: Vec<Step> = ops
                        .iter()
                        .enumerate()
                        .map(|(i, op)| (op.clone(), persist(i)))
                        .collect();
                    let before = self.tally.workloads;
                    self.workload(&steps)?;
                    assert!(self.tally.workloads > before, "{ops:?} cannot be done");
                }
            }
        }
        Ok(())
    }

    /// Runs random sequences of `len` possible operations.
    pub fn sampled(&mut self, len: usize, count: usize) -> Result<(), Failure> {
        let ops = alphabet();
        for _ in 0..count {
            let mut model = self.model.clone();
            let mut steps: Vec<Step> = Vec::new();
            while steps.len() < len {
                let op: Op = ops[self.rng.below(ops.len())].clone();
                if op.model(&mut model, 0) {
                    let whole = PERSISTS;
                    // Half of the persistence in long sequences runs in the background.
                    let of = if len > 3 {
                        2 * whole.len()
                    } else {
                        whole.len()
                    };
                    let persist = whole.get(self.rng.below(of)).copied();
                    steps.push((op, persist.unwrap_or(Persist::Background)));
                }
            }
            self.workload(&steps)?;
        }
        Ok(())
    }
}

/// End of the addresses that may be written twice. A block map reuses all of them.
fn overwritten_end(geometry: &Geometry, is_mapped: bool) -> u64 {
    if is_mapped {
        u64::MAX
    } else {
        geometry.fixed_end()
    }
}

/// Opens the device of the volume on a disk.
fn device_on(disk: &Arc<CrashDisk>, is_mapped: bool) -> Result<Arc<dyn BlockDevice>, Failure> {
    if !is_mapped {
        return Ok(disk.clone());
    }
    match MappedDevice::open(disk.clone(), MEDIUM_BLOCKS) {
        Ok(Some(device)) => Ok(Arc::new(device)),
        Ok(None) => Err("the block map has no header".to_owned()),
        Err(e) => Err(format!("the block map does not open: {e}")),
    }
}

/// Every address written before a crash between event `from` and the next flush, whether or not the write survived.
fn written_by(before: &Written, events: &[Event], from: usize) -> Arc<Written> {
    Arc::new(before.with(&events[..epoch_end(events, from)]))
}

/// Elements of `all` that are not in `but`. Both ascend.
fn difference_of(all: &[u64], but: &[u64]) -> Vec<u64> {
    all.iter()
        .filter(|addr| but.binary_search(addr).is_err())
        .copied()
        .collect()
}

/// Position of the flush that ends the epoch beginning at `from`, or the end of the record.
fn epoch_end(events: &[Event], from: usize) -> usize {
    let from = from.min(events.len());
    events[from..]
        .iter()
        .position(|e| matches!(e, Event::Flush))
        .map_or(events.len(), |n| from + n)
}

/// States that are allowed after a crash between event `from` and the next flush.
fn allowed_trees(run: &RecordedRun, from: usize) -> Vec<Tree> {
    let end = epoch_end(&run.events, from);
    let started = run
        .marks
        .iter()
        .take_while(|(begin, _)| *begin <= end)
        .count();
    let done = |step: usize| run.marks[step].1 <= from;
    let kept = run.kept.iter().filter(|(position, _)| *position <= from);
    let floor = kept.map(|(_, steps)| *steps).max().unwrap_or(0);
    let mut trees = Vec::new();
    for k in floor..=started {
        let fsyncs: Vec<(usize, ObjectId)> = (k..started)
            .filter_map(|step| run.files[step].map(|id| (step, id)))
            .collect();
        let must = fsyncs.iter().filter(|(step, _)| done(*step)).count();
        for taken in must..=fsyncs.len() {
            let mut model = run.models[k].clone();
            if fsyncs[..taken]
                .iter()
                .all(|(step, id)| overlay(&mut model, &run.models[step + 1], *id))
            {
                trees.push(model.tree());
            }
        }
    }
    trees
}

/// Overlays an older state with a file as it was at its fsync. Returns false if that is impossible: then a correct
/// volume made a checkpoint instead.
fn overlay(old: &mut Model, then: &Model, id: ObjectId) -> bool {
    let Some(object) = then.objects.get(&id) else {
        return false;
    };
    let names = then.names(id);
    if old.objects.contains_key(&id) {
        if old.names(id) != names {
            return false;
        }
        *old.object(id) = object.clone();
        return true;
    }
    let [(dir, name)] = &names[..] else {
        return false;
    };
    if old
        .objects
        .get(dir)
        .is_none_or(|dir| dir.mode & mode::TYPE != mode::DIR)
    {
        return false;
    }
    if let Some(other) = old.objects[dir].entries.get(name)
        && then.objects.contains_key(other)
    {
        return false;
    }
    old.objects.insert(id, object.clone());
    old.next = old.next.max(id + 1);
    let parent = old.object(*dir);
    parent.entries.insert(name.clone(), id);
    parent.mtime = object.btime;
    old.sweep();
    true
}
