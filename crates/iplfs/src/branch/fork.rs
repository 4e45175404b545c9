//! Making a fork.
//!
//! ```text
//!  checkpoint v of the parent ► number from the counter ► record and first checkpoint of the child ► name
//!  └──── holds from here on, in memory ─────────────────┘└── pin is durable ───────────────────────┘
//! ```
//!
//! Nothing is copied. The child starts with the table root and the counts of the fork point, and with logs at the start
//! of a region of its own.

use crate::backend::MAIN;
use crate::backend::MemDevice;
use crate::backend::branch::{BranchSet, Entry, EntryState, check_name, regions_used};
use crate::checkpoint::pack::write_superblocks;
use crate::checkpoint::state::Checkpoint;
use crate::device::BlockDevice;
use crate::disk::address::{BLOCK_SIZE, BlockAddr};
use crate::disk::branch::{BranchRecord, ForkPoint, Layout, REGION_BITS};
use crate::disk::checkpoint::{LogMarks, Phase};
use crate::disk::inode::Time;
use crate::disk::superblock::{BRANCHES, Superblock};
use crate::error::{Errno, Error, Result};
use crate::log::dead_blocks::DeadBlocks;
use crate::nodes::nat::Nat;
use crate::options::MountOptions;
use crate::volume::fork_points::{PendingFork, PinFork};
use crate::volume::state::Volume;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fork of a mounted volume that is being made.
///
/// ```text
///  locked    fork = volume.begin_fork(name, snapshot, now)?
///  unlocked  if let Some(checkpoint) = fork.checkpoint():    flush the device
///  locked        volume.seal_checkpoint(checkpoint)?
///  unlocked                                                  flush the device
///  locked        volume.end_checkpoint(checkpoint)?
///  unlocked  made = fork.make()
///  locked    volume.end_fork(fork)?                          in any case
/// ```
pub struct Fork {
    plan: Arc<ForkPlan>,
    checkpoint: Option<Checkpoint>,
}

impl Fork {
    /// Returns the checkpoint that the caller must complete before [`make`](Self::make). `None` for a fork of a
    /// snapshot.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.checkpoint
    }

    /// Makes the files of the fork and gives it its name, durably. Needs no access to the volume, and waits for other
    /// changes of the set of branches. After an error there is no such branch.
    pub fn make(&self) -> Result<()> {
        self.plan.pin()?;
        self.plan.name()
    }
}

/// Progress of a fork.
enum Progress {
    Started,
    /// Its directory is durable. The file holds the lock of the branch.
    Pinned(Entry, File),
    Named,
    Failed,
}

/// All that is needed to make a fork.
pub(super) struct ForkPlan {
    pub(super) set: BranchSet,
    pub(super) dev: Arc<dyn BlockDevice>,
    pub(super) name: String,
    pub(super) parent: u64,
    pub(super) sb: Superblock,
    /// Division of the address space, if the volume has no branches yet.
    pub(super) layout: Layout,
    pub(super) point: ForkPoint,
    /// Set if the caller holds the lock of the set.
    pub(super) has_lock: bool,
    /// Highest number of the branches, if the caller has listed them.
    pub(super) newest: Option<u64>,
    progress: Mutex<Progress>,
    is_committed: AtomicBool,
}

impl ForkPlan {
    /// Plans a fork of an unmounted branch. The caller holds the lock of the set.
    pub(super) fn offline(
        dev: Arc<dyn BlockDevice>,
        sb: Superblock,
        name: &str,
        layout: Layout,
        point: ForkPoint,
    ) -> Result<Self> {
        let mut plan = Self::new(dev, sb, name, layout, point)?;
        plan.has_lock = true;
        plan.is_committed = AtomicBool::new(true);
        Ok(plan)
    }

    fn new(
        dev: Arc<dyn BlockDevice>,
        sb: Superblock,
        name: &str,
        layout: Layout,
        point: ForkPoint,
    ) -> Result<Self> {
        check_name(name)?;
        let branch = dev.branch().ok_or_else(no_branches)?;
        let (set, parent) = (BranchSet::at(branch.directory()), branch.number());
        require_sound(&sb, &point)?;
        Ok(Self {
            set,
            dev,
            name: name.to_owned(),
            parent,
            sb,
            layout,
            point,
            has_lock: false,
            newest: None,
            progress: Mutex::new(Progress::Started),
            is_committed: AtomicBool::new(false),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Every change is one assignment.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_set(&self) -> Result<Option<File>> {
        match self.has_lock {
            true => Ok(None),
            false => self.set.lock().map(Some),
        }
    }

    /// Gives a volume without branches its first one.
    fn prepare_volume(&self) -> Result<()> {
        let branch = self.dev.branch().ok_or_else(no_branches)?;
        if branch.layout().is_some() {
            return Ok(());
        }
        let _held = self.lock_set()?;
        if self.sb.incompat & BRANCHES == 0 {
            // Programs that know no branches must not open it from here on.
            let sb = Superblock {
                incompat: self.sb.incompat | BRANCHES,
                generation: self.sb.generation + 1,
                ..self.sb.clone()
            };
            let copies = [BlockAddr(0), BlockAddr(1), sb.geometry.spare_superblock()];
            write_superblocks(&*self.dev, &sb, &copies)?;
        }
        branch.divide(self.set.init(self.layout)?);
        Ok(())
    }

    fn create(&self) -> Result<(Entry, File)> {
        if !self.is_committed.load(SeqCst) {
            return Err(Error::Usage(
                "the checkpoint of the fork is not complete".to_owned(),
            ));
        }
        self.prepare_volume()?;
        let version = self.point.state.version;
        let origin = (self.parent, version);
        let created = self.set.create(origin, self.newest, |number, layout| {
            let record = BranchRecord {
                number,
                parent: self.parent,
                layout,
                regions: Vec::new(),
                origin: Some(self.point.clone()),
            };
            Ok((record, self.image(number)?))
        })?;
        if !self.has_lock {
            self.set.pin()?;
        }
        Ok(created)
    }

    /// Returns the superblocks and the first checkpoint of the child, as pieces of its file `fixed`.
    fn image(&self, number: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut sb = self.sb.clone();
        sb.incompat |= BRANCHES;
        let memory = Arc::new(MemDevice::new());
        let options = MountOptions {
            // Everything lies in the pack.
            overflow_blocks_max: 0,
            journal_max: usize::MAX,
            ..MountOptions::default()
        };
        let (window, state) = (options.window_blocks, &self.point.state);
        let mut child = Volume::empty(memory.clone(), sb.clone(), options);
        let head = number << REGION_BITS;
        child.logs.marks = [LogMarks {
            scan: head,
            head,
            limit: head + window,
            far: head + 2 * window,
        }; 7];
        child.checkpoint.version = state.version;
        child.checkpoint.pack = 1;
        child.roll_forward.next_seq = self.point.next_seq;
        child.next_generation = self.point.next_generation;
        child.nat = Nat::default();
        child.nat.height = state.nat_height;
        child.nat.root = state.nat_root;
        child.nat.blocks = state.nat_blocks;
        child.nat.next_nid = state.next_nid;
        child.nat.replay(self.point.journal.clone());
        child.orphans = self.point.orphans.iter().copied().collect();
        (child.live, child.inodes) = (state.live_blocks, state.inodes);
        child.fork_points.shared_blocks = state.live_blocks + state.nat_blocks;
        child.commit(Phase::Clean)?;
        let g = sb.geometry;
        let mut image = Vec::new();
        for addr in [0, 1, g.fixed_end()] {
            image.push((addr * BLOCK_SIZE as u64, sb.encode().to_vec()));
        }
        for (addr, block) in memory.blocks() {
            image.push((addr * BLOCK_SIZE as u64, block.to_vec()));
        }
        Ok(image)
    }

    /// Gives the fork its name.
    pub(super) fn name(&self) -> Result<()> {
        let _held = self.lock_set()?;
        let mut progress = self.progress();
        let Progress::Pinned(entry, _) = &*progress else {
            return match *progress {
                Progress::Named => Ok(()),
                _ => Err(Error::Usage("the fork was given up".to_owned())),
            };
        };
        let named = self.free_name().and_then(|()| {
            self.set
                .set_state(entry, EntryState::Named(self.name.clone()))
        });
        match named {
            Ok(_) => {
                *progress = Progress::Named;
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Fails if there is a branch of the name.
    pub(super) fn free_name(&self) -> Result<()> {
        if self.has_lock {
            // The caller has looked, and no other change came between.
            return Ok(());
        }
        match self.set.named(&self.name)? {
            None => Ok(()),
            Some(_) => Err(name_taken(&self.name)),
        }
    }

    /// Number and directory of the fork, once it is pinned. The caller takes over the lock of the branch.
    pub(super) fn take_pinned(&self) -> Option<(Entry, File)> {
        let mut progress = self.progress();
        match std::mem::replace(&mut *progress, Progress::Named) {
            Progress::Pinned(entry, file) => Some((entry, file)),
            other => {
                *progress = other;
                None
            }
        }
    }
}

impl PinFork for ForkPlan {
    fn pin(&self) -> Result<()> {
        let mut progress = self.progress();
        match *progress {
            Progress::Pinned(..) | Progress::Named => return Ok(()),
            Progress::Failed => return Err(Error::Usage("the fork was given up".to_owned())),
            Progress::Started => {}
        }
        match self.create() {
            Ok((entry, file)) => {
                *progress = Progress::Pinned(entry, file);
                Ok(())
            }
            Err(e) => {
                *progress = Progress::Failed;
                Err(e)
            }
        }
    }

    fn committed(&self) {
        self.is_committed.store(true, SeqCst);
    }

    fn abandon(&self) {
        let mut progress = self.progress();
        match &*progress {
            Progress::Started => *progress = Progress::Failed,
            Progress::Pinned(entry, _) => {
                // If this fails, the next change finds the leftover.
                let _ = self.set.set_state(entry, EntryState::Dead);
                *progress = Progress::Failed;
            }
            Progress::Named | Progress::Failed => {}
        }
    }
}

/// Fails for a snapshot in which a repair found damage: its table may lie past its heads.
fn require_sound(sb: &Superblock, point: &ForkPoint) -> Result<()> {
    let state = &point.state;
    let is_below = |addr| match sb.geometry.place(addr) {
        Some((log, offset)) => offset < state.heads[log.index()],
        None => state.nat_height == 0,
    };
    match state.lost_nodes == 0 && state.lost_data == 0 && is_below(state.nat_root.addr) {
        true => Ok(()),
        false => Err(Error::Unsupported(format!(
            "snapshot '{}' was damaged and repaired: fork a newer state",
            state.name
        ))),
    }
}

pub(super) fn no_branches() -> Error {
    Error::Unsupported(
        "only a volume in a directory can be forked: copy this one with `send` and `receive`"
            .to_owned(),
    )
}

pub(super) fn name_taken(name: &str) -> Error {
    Error::Usage(format!("there is a branch '{name}' already"))
}

/// Returns the division of the address space of a volume whose logs end at `far`. Regions up to there are those of its
/// first branch.
pub(super) fn layout(sb: &Superblock, far: u64, window: u64) -> Result<Layout> {
    let layout = Layout {
        area_bits: sb.geometry.area_bits,
        fixed_blocks: sb.geometry.fixed_end(),
        // A recovery and the next checkpoints stay inside.
        first: (far.saturating_add(4 * window) >> REGION_BITS) + 1,
    };
    match layout.first < layout.regions() {
        true => Ok(layout),
        false => Err(Error::Limit(format!(
            "no fork fits the address space of {} regions, {} of which are used: copy the volume to one with more `--area-bits` with `send` and `receive`",
            layout.regions(),
            layout.first
        ))),
    }
}

impl Volume {
    /// Begins a fork of the present state, or of a snapshot. The state of the fork is that of this moment. See [`Fork`]
    /// for the other steps.
    ///
    /// # Errors
    /// `Usage` if the name is taken or not valid. `Unsupported` if the volume is not a directory of zone files. `Limit` if
    /// the address space is used up. ENOENT if there is no such snapshot.
    pub fn begin_fork(&mut self, name: &str, snapshot: Option<&str>, now: Time) -> Result<Fork> {
        self.writable()?;
        let dev = self.dev.clone();
        let branch = dev.branch().ok_or_else(no_branches)?;
        check_name(name)?;
        let set = BranchSet::at(branch.directory());
        if set.named(name)?.is_some() || branch.layout().is_none() && name == MAIN {
            return Err(name_taken(name));
        }
        let find = |snapshot| self.snapshots.position(snapshot).ok_or(Errno::NotFound);
        let at = snapshot.map(find).transpose()?;
        let far = self.logs.marks.iter().map(|m| m.far).max().unwrap_or(0);
        let layout = match branch.layout() {
            Some(layout) => layout,
            None => layout(&self.sb, far, self.options.window_blocks)?,
        };
        if branch.layout().is_some() && set.regions_left()? == 0 {
            return Err(regions_used(&layout));
        }
        // The first of two forks in progress is pinned here.
        let (checkpoint, point) = match at {
            Some(at) => {
                self.complete_checkpoint()?;
                self.settle_fork();
                (None, self.point_of_snapshot(at))
            }
            None => {
                let (checkpoint, point) = self.begin_fork_point(now)?;
                (Some(checkpoint), point)
            }
        };
        let mut plan = ForkPlan::new(dev.clone(), self.sb.clone(), name, layout, point)?;
        plan.is_committed = AtomicBool::new(at.is_some());
        let plan = Arc::new(plan);
        self.fork_points.pending = Some(PendingFork {
            pin: plan.clone(),
            version: plan.point.state.version,
            heads: plan.point.state.heads,
            held: DeadBlocks::new(self.sb.geometry.section_bits),
        });
        Ok(Fork { plan, checkpoint })
    }

    /// Returns the fork point of a snapshot.
    fn point_of_snapshot(&self, at: usize) -> ForkPoint {
        ForkPoint {
            state: self.snapshots.records[at].clone(),
            of_snapshot: true,
            journal: Vec::new(),
            orphans: Vec::new(),
            next_seq: self.roll_forward.next_seq,
            next_generation: self.next_generation,
        }
    }

    /// Ends a fork, whether or not it was made. If it was not, the blocks that it held are released.
    pub fn end_fork(&mut self, fork: Fork) -> Result<()> {
        let ours: Arc<dyn PinFork> = fork.plan.clone();
        let pending = self.fork_points.pending.as_ref();
        if pending.is_some_and(|pending| Arc::ptr_eq(&pending.pin, &ours)) {
            self.complete_checkpoint()?;
            if matches!(*fork.plan.progress(), Progress::Started) {
                fork.plan.abandon();
            }
            // A pin that is durable counts before it is released.
            self.settle_fork();
        }
        if matches!(*fork.plan.progress(), Progress::Named) {
            return self.join_claims();
        }
        fork.plan.abandon();
        self.release_forks().map(drop)
    }

    /// Forks the present state, or a snapshot, in one call that waits for the device.
    pub fn fork(&mut self, name: &str, snapshot: Option<&str>, now: Time) -> Result<()> {
        let fork = self.begin_fork(name, snapshot, now)?;
        self.complete_checkpoint()?;
        let made = fork.make();
        self.end_fork(fork)?;
        made
    }
}
