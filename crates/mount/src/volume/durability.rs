//! Durability: fsync, checkpoints and discards.
//!
//! ```text
//!  fsync ─► a group of nodes ─► shared flush (group_flush.rs)
//!        └► checkpoint:  begin ─► flush ─► seal ─► flush ─► end        periodic, or when much is pending
//!                        └──── under the volume's lock, except for flushes ────┘ ─► discards in batches
//! ```
//!
//! During a checkpoint an fsync waits for its end. All other operations continue.

use super::discard_policy::DiscardPolicy;
use super::idle::{IdleWatch, TICK};
use super::server::{KeeperState, VolumeServer};
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use tuff_fuse::filesystem;
use tuff_iplfs::{Discards, Error, Fsync, Nid, Release, Result, Volume};

/// Discards between two accesses to the volume and the clock.
const EAGER_BATCH: usize = 64;
/// Time between two rounds of discards, and without requests after which the device counts as idle.
const DISCARD_ROUND: Duration = Duration::from_millis(50);

/// Held by the thread that writes a checkpoint.
pub(super) struct CheckpointGuard<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, ()>);

/// Held by the thread that makes or releases a snapshot or fork point.
pub(super) struct LineageGuard<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, ()>);

impl VolumeServer {
    /// Waits until no snapshot or fork point is being made or released. Before [`lock_checkpoint`](Self::lock_checkpoint).
    pub(super) fn lock_lineage(&self) -> LineageGuard<'_> {
        LineageGuard(self.lineage.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no checkpoint is under way.
    pub(super) fn lock_checkpoint(&self) -> CheckpointGuard<'_> {
        CheckpointGuard(self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a part of the server's own work, which does not count as a request.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Volume) -> Result<T>) -> Result<T> {
        let ended = || {
            let what = "making changes durable".to_owned();
            Error::Io(io::Error::other("the volume is not served any more"), what)
        };
        let mut core = self.core.lock().map_err(|_| ended())?;
        f(core.volume.as_mut().ok_or_else(ended)?)
    }

    /// Makes all previous changes durable.
    pub(super) fn checkpoint(&self, _turn: &CheckpointGuard<'_>) -> Result<()> {
        let begin = |volume: &mut Volume| match volume.is_read_only() {
            true => Ok(None),
            false => volume.begin_checkpoint(),
        };
        match self.with(begin)? {
            Some(checkpoint) => self.complete(checkpoint),
            None => Ok(()),
        }
    }

    pub(super) fn flush_device(&self) -> Result<()> {
        self.device.flush().map_err(|e| {
            self.flush_failed(&e);
            Error::Io(e, "flushing the device".to_owned())
        })
    }

    /// Makes a file durable for which a flush is not enough. Returns true if a flush has to follow.
    pub(super) fn fsync_with_checkpoint(&self, node: Nid) -> filesystem::Result<bool> {
        let turn = self.lock_checkpoint();
        let needs = self.with(|volume| volume.begin_fsync(node));
        match needs? {
            Fsync::Durable => Ok(false),
            Fsync::Flush => Ok(true),
            Fsync::Checkpoint => {
                self.checkpoint(&turn)?;
                Ok(false)
            }
        }
    }

    /// Makes all changes durable.
    pub(super) fn sync(&self) -> filesystem::Result<()> {
        Ok(self.checkpoint(&self.lock_checkpoint())?)
    }

    /// Discards blocks that the last checkpoints released, or wakes the thread that does. Remaining discards follow
    /// after the next checkpoint.
    pub(super) fn send_discards(&self) -> Result<()> {
        if self.discards != DiscardPolicy::Eager {
            self.keep_state().may_discard = true;
            self.wake.notify_all();
            return Ok(());
        }
        let _only = match self.giving.try_lock() {
            Ok(only) => only,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let Some(mut discards) = self.allowed_discards()? else {
            return Ok(());
        };
        let started = Instant::now();
        while started.elapsed() < self.every && self.issue(&mut discards, EAGER_BATCH)? {}
        self.release_zones(discards)
    }

    /// Returns the discards that the volume allows. None if it is read-only.
    fn allowed_discards(&self) -> Result<Option<Discards>> {
        self.with(|volume| Ok((!volume.is_read_only()).then(|| volume.discards())))
    }

    /// Issues at most `max` discards. Returns false after the last.
    fn issue(&self, discards: &mut Discards, max: usize) -> Result<bool> {
        let Some(done) = discards.issue(max) else {
            return Ok(false);
        };
        self.with(|volume| {
            volume.discarded(done);
            Ok(true)
        })
    }

    fn release_zones(&self, discards: Discards) -> Result<()> {
        let released = discards.release_zones()?;
        self.with(|volume| {
            volume.discarded(released);
            Ok(())
        })
    }

    /// Issues discards in rounds, until the mount ends.
    pub(super) fn dispatch_discards(&self) {
        let Some((batch, only_idle)) = self.discards.round() else {
            return;
        };
        let mut discards: Option<Discards> = None;
        loop {
            let mut keep = self.keep_state();
            if discards.is_none() {
                let nothing = |keep: &mut KeeperState| !keep.may_discard && !keep.ended;
                let waited = self.wake.wait_while(keep, nothing);
                keep = waited.unwrap_or_else(PoisonError::into_inner);
                keep.may_discard = false;
                drop(keep);
                discards = self.allowed_discards().ok().flatten();
                keep = self.keep_state();
            }
            let seen = self.requests.load(Relaxed);
            let waited = self
                .wake
                .wait_timeout_while(keep, DISCARD_ROUND, |keep| !keep.ended);
            if waited.unwrap_or_else(PoisonError::into_inner).0.ended {
                return;
            }
            let is_busy = only_idle && self.requests.load(Relaxed) != seen;
            let Some(mut round) = discards.take_if(|_| !is_busy) else {
                continue;
            };
            match self.issue(&mut round, batch) {
                Ok(true) => discards = Some(round),
                // The next checkpoint, or a trim, issues discards that fail here.
                _ => _ = self.release_zones(round),
            }
        }
    }

    /// Notifies the keeper thread if the volume needs a checkpoint.
    pub(super) fn notice_pressure(&self, volume: &Volume) {
        if volume.wants_checkpoint() {
            self.keep_state().wants_checkpoint = true;
            self.wake.notify_all();
        }
    }

    pub(super) fn keep_state(&self) -> MutexGuard<'_, KeeperState> {
        self.keep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a checkpoint at each interval, and releases space while the volume is idle, until the mount ends.
    pub(super) fn keep(&self) {
        let mut watch = IdleWatch::new();
        let mut due = Instant::now() + self.every;
        loop {
            // Without requests there is nothing to look for. The first one wakes this thread.
            self.is_keeper_asleep.store(true, SeqCst);
            let asleep = !watch.is_awake(self.requests.load(SeqCst));
            self.is_keeper_asleep.store(asleep, SeqCst);
            let mut wait = due.saturating_duration_since(Instant::now());
            if !asleep {
                wait = wait.min(TICK);
            }
            let waits = |keep: &mut KeeperState| {
                let is_woken = asleep && keep.has_requests;
                !(keep.wants_checkpoint || keep.ended || is_woken)
            };
            let (mut keep, _) = self
                .wake
                .wait_timeout_while(self.keep_state(), wait, waits)
                .unwrap_or_else(PoisonError::into_inner);
            if keep.ended {
                return;
            }
            let is_due = std::mem::take(&mut keep.wants_checkpoint) || Instant::now() >= due;
            keep.has_requests = false;
            drop(keep);
            let requests = self.requests.load(Relaxed);
            let may_release = watch.observe(requests, || self.waiting_blocks());
            let done = if is_due {
                due = Instant::now() + self.every;
                watch.checkpointed(requests);
                let done = self.checkpoint(&self.lock_checkpoint());
                done.and_then(|()| self.release_deleted_forks())
                    .and_then(|()| self.send_discards())
            } else if may_release {
                let released = self.release_while_idle(&watch);
                watch.end(!matches!(released, Ok(false)));
                released.map(drop)
            } else {
                Ok(())
            };
            // A second signal, or DESTROY, unmounts the volume while the session lives.
            if let Err(e) = done
                && !self.is_closed()
            {
                self.log
                    .line(format_args!("cannot make changes durable: {e}"));
            }
        }
    }

    /// Releases what only forks needed that other processes have deleted.
    fn release_deleted_forks(&self) -> Result<()> {
        let only = self.lock_lineage();
        let begin = |volume: &mut Volume| match volume.is_read_only() {
            true => Ok(None),
            false => volume.begin_release_fork(),
        };
        while self.release(&only, begin)? {}
        Ok(())
    }

    /// Releases what a snapshot or fork point holds. Other operations and checkpoints go on during the comparison. Returns
    /// false if there is nothing to release.
    pub(super) fn release(
        &self,
        _only: &LineageGuard<'_>,
        begin: impl FnOnce(&mut Volume) -> Result<Option<Release>>,
    ) -> Result<bool> {
        let turn = self.lock_checkpoint();
        let Some(mut release) = self.with(begin)? else {
            return Ok(false);
        };
        let completed = match release.checkpoint() {
            Some(checkpoint) => self.complete(checkpoint),
            None => Ok(()),
        };
        drop(turn);
        let compared = completed.and_then(|()| release.compare());
        let turn = self.lock_checkpoint();
        // In any case: the volume lists blocks for it.
        let released = self.with(|volume| volume.end_release(release))?;
        compared?;
        self.checkpoint(&turn)?;
        if let Some(released) = released {
            self.with(|volume| released.finish(volume))?;
        }
        Ok(true)
    }

    /// Wakes the keeper thread at the first request after a rest.
    pub(super) fn wake_keeper(&self) {
        self.keep_state().has_requests = true;
        self.wake.notify_all();
    }
}
