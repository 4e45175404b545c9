//! Gate: while space is short, the kernel asks before each buffered write.
//!
//! The kernel collects written pages and sends them later, when a failure can only be reported to `fsync` and `close`.
//! A kernel that was told that attributes are stale requests them before it accepts a buffered write, with the handle of
//! the file, and returns an error of that request from `write`:
//!
//! ```text
//!  space is ample   attributes are valid for a second        writes are collected unasked
//!  short            all pages are written back once,         GETATTR with a handle ─► the space is promised, or
//!                   attributes are always stale                ENOSPC, EDQUOT from `write`
//! ```
//!
//! A reply that is older than the last notification leaves attributes stale, so a notification precedes the reply to a
//! write. Reads request attributes only after their time; their reply precedes the notification.
//!
//! Invariants:
//!
//! * The volume gives promised space to nothing else, so that what `write` accepted is kept.
//! * A promise ends when its pages arrive, or when all pages of the file were written back and no `write` that was
//!   promised space is under way.
//!
//! Stores to shared mappings are not asked for: `msync`, `fsync` and `close` report their errors.

use super::caller::WriteCall;
use super::fields::{attr_out, nid};
use super::server::{
    ATTR_VALID, PendingWrite, PendingWriteBack, ServerState, StaleNotice, VolumeServer,
};
use super::service::Work;
use super::write_back::write_back;
use rustix::io::Errno;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{InHeader, op};
use tuff_fuse::reply::Reply;
use tuff_fuse::transport::replies::{PendingReply, ReplySender};
use tuff_iplfs::{Nid, Volume};

/// Maximum number of writes that wait until pages are written back. Each may take a place of a queue, which has at least
/// four, and the pages need one.
const WAITING_MAX: usize = 2;

impl ServerState {
    /// Promises the space of a write.
    fn promise(&mut self, node: Nid, tid: u32, call: WriteCall) -> Result<()> {
        let volume = self.volume()?;
        // The position costs the volume a search: it matters where few blocks are left.
        if volume.promise(node, call.len, None).is_err() {
            volume.promise(node, call.len, call.offset)?;
        }
        let callers = self.gate.callers.entry(node).or_default();
        if !callers.contains(&tid) {
            callers.push(tid);
        }
        Ok(())
    }
}

impl VolumeServer {
    /// Answers GETATTR with a handle, which a buffered write sends: at once, or after pages were written back.
    pub(super) fn begin_write<'a>(
        &self,
        worker: &mut StaleNotice,
        header: &InHeader,
        pending: PendingReply,
        out: &'a mut [u8],
    ) -> Result<Reply<'a, Work>> {
        self.guarded(op::GETATTR, || {
            let node = nid(header.node)?;
            let mut core = self.lock()?;
            self.watch_space(&mut core)?;
            if !core.gate.is_short {
                let attr = core.volume()?.attr(node)?;
                return Reply::structure(out, &attr_out(&attr, core.attr_valid(&attr)));
            }
            drop(core);
            let Some(call) = WriteCall::of_thread(header.pid) else {
                // A read: it does not ask again for a second. Writes do.
                let attr = self.lock()?.volume()?.attr(node)?;
                let valid = u64::from(self.notifier().is_some());
                worker.0 = Some(node);
                return Reply::structure(out, &attr_out(&attr, valid * ATTR_VALID));
            };
            let waiting = PendingWrite {
                node,
                tid: header.pid,
                call,
                pending,
            };
            let mut core = self.lock()?;
            match core.promise(node, waiting.tid, waiting.call) {
                Ok(()) => self.settle_early(&mut core),
                // Pages under way may leave space.
                Err(Errno::NOSPC | Errno::DQUOT) if self.may_wait(&mut core, pending)? => {
                    self.send_write_back(PendingWriteBack::Write(waiting))?;
                    core.gate.waiting += 1;
                    return Ok(Reply::Later(None));
                }
                Err(e) => return Err(e),
            }
            let attr = core.volume()?.attr(node)?;
            drop(core);
            // The reply is then older than the notification: the next write asks again, a read does not.
            let valid = u64::from(self.attributes_are_stale(node));
            Reply::structure(out, &attr_out(&attr, valid * ATTR_VALID))
        })
    }

    /// Returns true if a settlement may release space for a write that waits.
    fn may_wait(
        &self,
        core: &mut MutexGuard<'_, ServerState>,
        pending: PendingReply,
    ) -> Result<bool> {
        let has_place = pending.slot.is_none() || core.gate.waiting < WAITING_MAX;
        Ok(has_place && core.volume()?.has_promises())
    }

    /// Settles promises before a write has to wait for it.
    fn settle_early(&self, core: &mut MutexGuard<'_, ServerState>) {
        let space = core.volume.as_ref().map(Volume::space);
        let is_due = space.is_some_and(|space| space.promised > space.available());
        if is_due && !core.gate.is_settling {
            core.gate.is_settling = self.send_write_back(PendingWriteBack::Settle).is_ok();
        }
    }

    /// Opens or closes the gate by the space that is left.
    pub(super) fn watch_space(&self, core: &mut MutexGuard<'_, ServerState>) -> Result<()> {
        let was = core.gate.is_short;
        let volume = core.volume()?;
        let is_short = !volume.is_read_only() && volume.is_short(was);
        if is_short && !was {
            volume.keep_for_unasked();
            // At the end of the session the kernel has no pages left.
            let _ = self.send_write_back(PendingWriteBack::All);
        }
        core.gate.is_short = is_short;
        Ok(())
    }

    /// Decides a write that waited.
    pub(super) fn finish_write(&self, replies: &ReplySender<'_>, waiting: PendingWrite) {
        let found = self.guarded(op::GETATTR, || {
            let result = self.settle(replies, Some(waiting.tid));
            let mut core = self.lock()?;
            core.gate.waiting -= 1;
            result?;
            core.promise(waiting.node, waiting.tid, waiting.call)?;
            let attr = core.volume()?.attr(waiting.node)?;
            drop(core);
            let valid = u64::from(self.attributes_are_stale(waiting.node));
            Ok(attr_out(&attr, valid * ATTR_VALID))
        });
        replies.send_structure(waiting.pending, found);
    }

    /// Settles promises that no write waits for.
    pub(super) fn finish_settlement(&self, replies: &ReplySender<'_>) {
        let result = self.settle(replies, None);
        if let Ok(mut core) = self.lock() {
            core.gate.is_settling = false;
        }
        if let Err(e) = result {
            self.log
                .line(format_args!("cannot release promised space: {e}"));
        }
    }

    /// Writes back the pages of all files with promises, and releases those of writes that have ended. The call before
    /// that of `waiter` has.
    fn settle(&self, replies: &ReplySender<'_>, waiter: Option<u32>) -> Result<()> {
        let promised: Vec<(Nid, Vec<u32>)> = {
            let mut core = self.lock()?;
            let promised = core.volume()?.promised();
            let with_callers = promised.into_iter().map(|node| {
                if let Some(volume) = &mut core.volume {
                    volume.begin_to_settle(node);
                }
                (node, core.gate.callers.remove(&node).unwrap_or_default())
            });
            with_callers.collect()
        };
        for (node, mut callers) in promised {
            callers.retain(|tid| Some(*tid) != waiter && WriteCall::is_under_way(*tid));
            write_back(replies, node, 0..u64::MAX)?;
            let mut core = self.lock()?;
            if callers.is_empty() {
                core.volume()?.settle_promises(node);
            }
            let known = core.gate.callers.entry(node).or_default();
            known.extend(callers);
            if known.is_empty() {
                core.gate.callers.remove(&node);
            }
        }
        Ok(())
    }

    /// Writes back all pages that were collected unasked.
    pub(super) fn finish_unasked(&self, replies: &ReplySender<'_>) {
        let done = self.write_back_all(replies).and_then(|()| {
            self.lock()?.volume()?.settle_unasked();
            Ok(())
        });
        if let Err(e) = done {
            self.write_failed.store(true, Relaxed);
            self.log.line(format_args!("cannot write pages back: {e}"));
        }
    }
}
