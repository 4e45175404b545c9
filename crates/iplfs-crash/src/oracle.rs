//! What may be seen after a crash, and the loop that looks.
//!
//! The promise: after a crash the volume is as it was between two operations, no earlier than the last completed sync (or fsync of a directory, or
//! of a file whose names changed), with the files that were fsynced since as they were then. Nothing else: no operation half-done, no other file's bytes, no
//! leak.
//!
//! So with `S(k)` the model after `k` operations, what is seen must equal `S(k)` overlaid with every completed fsync after `k`, for
//! some `k` not before the last completed sync; an fsync that was under way may or may not be part of it.

use crate::disk::{CrashDisk, Event, Written};
use crate::model::{Id, Model, Tree, difference, tree_of};
use crate::states::states;
use crate::workload::{Op, PERSISTS, Persist, Step, alphabet, at, base, tricky};
use std::sync::Arc;
use tuff_iplfs::backend::Blocks;
use tuff_iplfs::{
    BlockDevice, CheckOptions, Checkpoint, Discards, Error, FormatOptions, Geometry, MountOptions,
    Result as VolumeResult, Rules, Volume, check, mode,
};
use tuff_testkit::Rng;

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sequences of operations.
    pub workloads: u64,
    /// States after a crash.
    pub states: u64,
    /// States after a crash in the recovery of another one.
    pub nested: u64,
    /// Groups that roll-forward adopted.
    pub adopted: u64,
}

/// Everything needed to run workloads: the base volume and how hard to look.
pub struct Campaign {
    blocks: Blocks,
    written: Arc<Written>,
    model: Model,
    geometry: Geometry,
    options: MountOptions,
    /// Sampled states per flush epoch.
    pub samples: usize,
    /// One in this many states also gets crashes in its recovery; 0 for none.
    pub nested_every: u64,
    /// What was looked at so far.
    pub tally: Tally,
    rng: Rng,
}

/// A failure, with all that is needed to see it again.
pub type Failure = String;

/// What one workload did, seen from the record.
struct Run {
    events: Vec<Event>,
    /// The model after each number of operations.
    models: Vec<Model>,
    /// Per step: position in the record when its operation began, and when its persistence was complete.
    marks: Vec<(usize, usize)>,
    /// Per step: the file that its persistence promises.
    files: Vec<Option<Id>>,
    /// Positions in the record from which on so many steps are promised.
    kept: Vec<(usize, usize)>,
}

/// What goes on beside the operations.
#[derive(Default)]
struct Beside {
    /// A checkpoint, and the steps in it.
    checkpoint: Option<(Checkpoint, usize)>,
    sealed: bool,
    /// What the one before it let go.
    discards: Option<Discards>,
    /// How many have ended.
    ended: usize,
}

impl Beside {
    /// Does the next part. Returns how many steps are durable by it.
    fn go_on(&mut self, volume: &mut Volume, disk: &CrashDisk, step: usize) -> VolumeResult<usize> {
        let flush = || {
            disk.flush()
                .map_err(|e| Error::Io(e, "flushing".to_owned()))
        };
        let Some((checkpoint, steps)) = self.checkpoint else {
            let begun = volume.begin_checkpoint()?;
            self.checkpoint = begun.map(|checkpoint| (checkpoint, step));
            return Ok(0);
        };
        flush()?;
        self.tell(volume)?;
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

    /// Tells the device of a discard. False after the last.
    fn tell(&mut self, volume: &mut Volume) -> VolumeResult<bool> {
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
    /// A campaign on a small volume, with the given rules in force.
    pub fn new(rules: Rules, seed: u64) -> Result<Self, Failure> {
        Self::with(rules, seed, 6, 0, false)
    }

    /// A campaign on a volume whose discard log does not fit its pack.
    pub fn with_long_log(rules: Rules, seed: u64) -> Result<Self, Failure> {
        Self::with(rules, seed, 5, 820, false)
    }

    /// A campaign on a volume with a snapshot that differs from its present.
    pub fn with_snapshot(rules: Rules, seed: u64) -> Result<Self, Failure> {
        Self::with(rules, seed, 6, 0, true)
    }

    /// `holes`: dead blocks, none beside another, in the discard log from the start.
    fn with(
        rules: Rules,
        seed: u64,
        pack_blocks: u32,
        holes: u64,
        snapshot: bool,
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
            ..FormatOptions::new([3; 16], [5; 16], 4096)
        };
        let disk = Arc::new(CrashDisk::new(
            Blocks::new(),
            Arc::default(),
            geometry.fixed_end(),
        ));
        let window_blocks = 256 + 4 * holes;
        let options = MountOptions {
            window_blocks,
            journal_max: 12,
            prepare_blocks: 2,
            rules,
            ..MountOptions::default()
        };
        let mut model = Model::default();
        let mut run = || {
            Volume::format(disk.clone(), &format)?;
            let sound = MountOptions {
                rules: Rules::default(),
                ..options.clone()
            };
            let mut volume = Volume::mount(disk.clone(), sound)?;
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
            samples: 6,
            nested_every: 16,
            tally: Tally::default(),
            rng: Rng::new(seed),
        })
    }

    /// Runs one workload and looks at every state. Sequences in which an operation cannot be done are left out.
    pub fn workload(&mut self, steps: &[Step]) -> Result<(), Failure> {
        let told = |e: String| format!("{steps:?}: {e}");
        let Some(run) = self.record(steps).map_err(told)? else {
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
                    allowed(&run, from),
                    written_by(&base_written, &run.events, from),
                ));
            }
            let Some((_, allowed, written)) = &epoch else {
                return Ok(());
            };
            self.look(allowed, blocks, written, nested)
                .map_err(|e| format!("crash after event {from} of {}{e}", run.events.len()))
        })
        .map_err(told)
    }

    fn record(&mut self, steps: &[Step]) -> Result<Option<Run>, Failure> {
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
            self.geometry.fixed_end(),
        ));
        let failed = |e: Error| format!("running it: {e}");
        let mut options = self.options.clone();
        if steps.iter().any(|(_, p)| *p == Persist::Beside)
            && self.tally.workloads.is_multiple_of(2)
        {
            // Else nothing is appended beside a checkpoint.
            options.write_behind_pages = 0;
        }
        let mut volume = Volume::mount(disk.clone(), options).map_err(failed)?;
        let (mut marks, mut files, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut beside = Beside::default();
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
                Persist::Beside => {
                    durable = beside.go_on(&mut volume, &disk, i + 1).map_err(failed)?;
                }
            }
            // Making and deleting a snapshot is a checkpoint of its own.
            if matches!(op, Op::Snapshot(_) | Op::DeleteSnapshot(_)) {
                durable = i + 1;
            }
            marks.push((begin, disk.position()));
            files.push(file);
            kept.push((disk.position(), durable));
        }
        // The discards of the first one, while a second one is under way.
        let begun = beside.checkpoint.is_some() || beside.ended > 0;
        while begun && (beside.checkpoint.is_some() || beside.ended < 2) {
            let durable = beside
                .go_on(&mut volume, &disk, steps.len())
                .map_err(failed)?;
            kept.push((disk.position(), durable));
            if beside.checkpoint.is_none() && !volume.checkpoint_frees_blocks() {
                break;
            }
        }
        while beside.tell(&mut volume).map_err(failed)? {}
        let seen = tree_of(&mut volume).map_err(failed)?;
        if let Some(what) = difference(&models[steps.len()].tree(), &seen) {
            return Err(format!("without a crash: {what}"));
        }
        if let Some(what) = disk.violations().first() {
            return Err(format!("without a crash: {what}"));
        }
        Ok(Some(Run {
            events: disk.events(),
            models,
            marks,
            files,
            kept,
        }))
    }

    /// Looks at one state after a crash.
    fn look(
        &mut self,
        allowed: &[Tree],
        blocks: Blocks,
        written: &Arc<Written>,
        nested: bool,
    ) -> Result<(), Failure> {
        let events = self
            .survive(allowed, blocks.clone(), written)
            .map_err(|e| format!(": {e}"))?;
        if !nested {
            return Ok(());
        }
        let mut rng = Rng::new(self.rng.draw());
        states(&blocks, &events, 2, &mut rng, |blocks, again| {
            self.tally.nested += 1;
            let written = written_by(written, &events, again);
            self.survive(allowed, blocks, &written)
                .map(drop)
                .map_err(|e| {
                    format!(
                        ", then in its recovery after event {again} of {}: {e}",
                        events.len()
                    )
                })
        })
    }

    /// Mounts a state and holds it to everything. Returns the events of the mount.
    fn survive(
        &mut self,
        allowed: &[Tree],
        blocks: Blocks,
        written: &Arc<Written>,
    ) -> Result<Vec<Event>, Failure> {
        let disk = Arc::new(CrashDisk::new(
            blocks,
            written.clone(),
            self.geometry.fixed_end(),
        ));
        let dev: Arc<dyn BlockDevice> = disk.clone();
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
            return Err(format!("shows what it may not: {nearest}"));
        }
        self.sound(&dev, written, "after the mount", false)?;
        volume.drain().map_err(|e| format!("does not drain: {e}"))?;
        self.sound(&dev, written, "after the drain", true)?;
        drop(volume);
        if let Some(what) = disk.violations().first() {
            return Err(what.clone());
        }
        Ok(events)
    }

    /// Checks the volume; after a drain the device must hold exactly what is reachable. What it may lack is a block of zeros whose write was lost: a
    /// recovery cannot tell it from one that arrived, nor can anybody who reads it.
    fn sound(
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
            lost.retain(|addr| !written.only_zeros(*addr));
            if !(extra.is_empty() && lost.is_empty()) {
                return Err(format!(
                    "{when}: the device holds {extra:x?}, which cannot be reached, and not {lost:x?}, which can, of {} reachable blocks",
                    report.reachable.len()
                ));
            }
        }
        Ok(())
    }

    /// Every sequence of one operation with every persistence.
    pub fn all_of_one(&mut self) -> Result<(), Failure> {
        for op in alphabet() {
            for persist in PERSISTS {
                self.workload(&[(op.clone(), persist)])?;
            }
        }
        Ok(())
    }

    /// Sequences of two operations with every pair of persistences; `stride` n takes every n-th, starting with `first`.
    pub fn all_of_two(&mut self, stride: usize, first: usize) -> Result<(), Failure> {
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

    /// Sequences of two operations, the second while a checkpoint of the first is under way, with every persistence; `stride` n takes every n-th, starting with `first`.
    pub fn all_of_two_beside(&mut self, stride: usize, first: usize) -> Result<(), Failure> {
        let ops = alphabet();
        let mut count = 0usize;
        for a in &ops {
            for b in &ops {
                for persist in PERSISTS.into_iter().chain([Persist::Beside]) {
                    count += 1;
                    if count % stride == first % stride {
                        self.workload(&[(a.clone(), Persist::Beside), (b.clone(), persist)])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Every tricky sequence, with each persistence at its end and each before it.
    pub fn all_tricky(&mut self) -> Result<(), Failure> {
        for ops in tricky() {
            for last in PERSISTS.into_iter().chain([Persist::Beside]) {
                for between in PERSISTS.into_iter().chain([Persist::Beside]) {
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

    /// Random sequences of `len` operations that can all be done.
    pub fn sampled(&mut self, len: usize, count: usize) -> Result<(), Failure> {
        let ops = alphabet();
        for _ in 0..count {
            let mut model = self.model.clone();
            let mut steps: Vec<Step> = Vec::new();
            while steps.len() < len {
                let op: Op = ops[self.rng.below(ops.len())].clone();
                if op.model(&mut model, 0) {
                    let whole = PERSISTS;
                    // Half of what makes long sequences last goes on beside them.
                    let of = if len > 3 {
                        2 * whole.len()
                    } else {
                        whole.len()
                    };
                    let persist = whole.get(self.rng.below(of)).copied();
                    steps.push((op, persist.unwrap_or(Persist::Beside)));
                }
            }
            self.workload(&steps)?;
        }
        Ok(())
    }
}

/// Every address written before a crash that came at or after event `from` and before the next flush returned, whether or not it lasted.
fn written_by(before: &Written, events: &[Event], from: usize) -> Arc<Written> {
    Arc::new(before.with(&events[..epoch_end(events, from)]))
}

/// What `all` has and `but` has not; both ascend.
fn difference_of(all: &[u64], but: &[u64]) -> Vec<u64> {
    all.iter()
        .filter(|addr| but.binary_search(addr).is_err())
        .copied()
        .collect()
}

/// The flush that ends the epoch which begins at `from`, or the end of the record.
fn epoch_end(events: &[Event], from: usize) -> usize {
    let from = from.min(events.len());
    events[from..]
        .iter()
        .position(|e| matches!(e, Event::Flush))
        .map_or(events.len(), |n| from + n)
}

/// Everything that may be seen if the crash came at or after event `from` and before the next flush returned.
fn allowed(run: &Run, from: usize) -> Vec<Tree> {
    let end = epoch_end(&run.events, from);
    let begun = run
        .marks
        .iter()
        .take_while(|(begin, _)| *begin <= end)
        .count();
    let done = |step: usize| run.marks[step].1 <= from;
    let kept = run.kept.iter().filter(|(position, _)| *position <= from);
    let floor = kept.map(|(_, steps)| *steps).max().unwrap_or(0);
    let mut trees = Vec::new();
    for k in floor..=begun {
        let fsyncs: Vec<(usize, Id)> = (k..begun)
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

/// Puts a file as it was at its fsync into an older state. False if that state cannot take it: then a sound volume made a checkpoint instead.
fn overlay(old: &mut Model, then: &Model, id: Id) -> bool {
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
