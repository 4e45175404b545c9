//! Shared state of a mounted volume.

use super::caller::WriteCall;
use super::control_request::Control;
use super::discard_policy::DiscardPolicy;
use super::fields::{entry_of, nid};
use super::group_flush::GroupFlush;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tuff_fuse::filesystem::{Result, Seek};
use tuff_fuse::log::Log;
use tuff_fuse::negotiation::Negotiation;
use tuff_fuse::protocol::{EntryOut, FOREVER};
use tuff_fuse::transport::replies::PendingReply;
use tuff_iplfs::{BlockDevice, Nid, Volume, mode};

/// Default interval of checkpoints. `sync` relies on it, because the kernel does not send it to servers.
pub const SYNC_EVERY: Duration = Duration::from_secs(5);

/// First minor version whose kernel waits for all pages under write-back.
pub(super) const SEEK_MINOR_MIN: u32 = 44;

/// Volume and the inodes that the kernel knows.
pub(super) struct ServerState {
    /// The mounted volume. None after unmount.
    pub(super) volume: Option<Volume>,
    /// Number of look-ups of each inode less its FORGETs.
    pub(super) known: HashMap<Nid, KnownInode>,
    /// Whether the kernel asks before it accepts data.
    pub(super) gate: Gate,
    /// Blocks appended at the last early flush.
    pub(super) begun_blocks: u64,
}

/// Inode that the kernel knows.
#[derive(Clone, Copy)]
pub(super) struct KnownInode {
    pub(super) lookups: u64,
    /// The kernel may have dirty pages of it.
    pub(super) is_file: bool,
    /// The kernel keeps its attributes until it is told that they are stale.
    pub(super) has_kept_attributes: bool,
}

/// Server of a mounted volume.
pub struct VolumeServer {
    pub(super) core: Mutex<ServerState>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) flushes: GroupFlush<PendingReply>,
    pub(super) log: Log,
    /// Version and features that the kernel agreed on.
    pub(super) negotiation: Negotiation,
    /// A write failed: the kernel has data that no search finds.
    pub(super) write_failed: AtomicBool,
    /// Queue of work that waits for write-back. None when the mount ends.
    pub(super) write_backs: Mutex<Option<Sender<PendingWriteBack>>>,
    pub(super) notifier: Mutex<Option<OwnedFd>>,
    /// Held by the thread that makes or releases a snapshot or fork point.
    pub(super) lineage: Mutex<()>,
    /// Held by the thread that writes a checkpoint.
    pub(super) turn: Mutex<()>,
    /// Held by the thread that sends discards.
    pub(super) giving: Mutex<()>,
    pub(super) keep: Mutex<KeeperState>,
    pub(super) wake: Condvar,
    /// The next request wakes the keeper thread.
    pub(super) is_keeper_asleep: AtomicBool,
    /// Interval between two checkpoints.
    pub(super) every: Duration,
    /// Time at which discards are issued.
    pub(super) discards: DiscardPolicy,
    /// Number of accesses to the volume.
    pub(super) requests: AtomicU64,
    /// Queue of drains. None when the mount ends.
    pub(super) drains: Mutex<Option<Sender<DrainReply>>>,
    /// Result of the unmount that the end of the session waited for.
    pub(super) ended: Mutex<Option<tuff_iplfs::Result<()>>>,
    /// State of the thread that flushes early.
    early_flush: Mutex<EarlyFlushState>,
    pub(super) early_flush_wake: Condvar,
}

/// Validity of attributes of a file that is about to be written. Unit: seconds.
pub(super) const ATTR_VALID: u64 = 1;

/// Node whose attributes become stale after the reply.
#[derive(Default)]
pub struct StaleNotice(pub(super) Option<Nid>);

/// State of the gate.
#[derive(Default)]
pub(super) struct Gate {
    /// The kernel asks before each write.
    pub(super) is_short: bool,
    /// Threads whose writes were promised space since the last settlement.
    pub(super) callers: HashMap<Nid, Vec<u32>>,
    /// Number of writes that wait for a settlement.
    pub(super) waiting: usize,
    /// A settlement that nothing waits for is under way.
    pub(super) is_settling: bool,
}

impl Gate {
    /// Returns the gate of a volume of which the kernel knows nothing yet.
    pub(super) fn new(volume: &mut Volume) -> Self {
        Self {
            is_short: !volume.is_read_only() && volume.is_short(false),
            ..Self::default()
        }
    }
}

/// Work for the thread that makes the kernel write pages back.
pub(super) enum PendingWriteBack {
    /// A search for data or holes.
    Seek(PendingSeek),
    /// A write that needs space.
    Write(PendingWrite),
    /// Promised space is to be released.
    Settle,
    /// All pages of all files.
    All,
    /// Attributes of a file have changed in a way that the kernel does not expect. The reply of the request that changed
    /// them follows.
    Changed(Nid, PendingReply, Vec<u8>),
}

/// Write that the kernel asks for.
pub(super) struct PendingWrite {
    pub(super) node: Nid,
    /// Thread whose system call writes.
    pub(super) tid: u32,
    pub(super) call: WriteCall,
    pub(super) pending: PendingReply,
}

/// Where the result of a drain goes.
pub(super) enum DrainReply {
    /// Pending SYNCFS, whose reply has no body.
    Kernel(PendingReply),
    /// Pending request of a client, and what follows the drain.
    Control(PendingReply, Control),
    Thread(Sender<()>),
}

/// LSEEK request on a file.
#[derive(Clone, Copy)]
pub(super) struct SeekRequest {
    pub(super) node: Nid,
    pub(super) offset: u64,
    pub(super) what: Seek,
}

/// Search that waits for write-back by the kernel.
pub(super) struct PendingSeek {
    pub(super) seek: SeekRequest,
    /// Range of the file that may contain data only in the kernel. Unit: bytes.
    pub(super) unsure: Range<u64>,
    pub(super) pending: PendingReply,
}

#[derive(Default)]
pub(super) struct EarlyFlushState {
    pub(super) is_due: bool,
    pub(super) ended: bool,
}

/// State of the keeper thread.
#[derive(Default)]
pub(super) struct KeeperState {
    /// The volume is so full of changes that an operation may soon need a checkpoint.
    pub(super) wants_checkpoint: bool,
    /// Requests came while the keeper thread was asleep.
    pub(super) has_requests: bool,
    /// Checkpoints may have allowed discards.
    pub(super) may_discard: bool,
    /// The filesystem is unmounted.
    pub(super) ended: bool,
}

impl ServerState {
    pub(super) fn volume(&mut self) -> Result<&mut Volume> {
        self.volume.as_mut().ok_or(Errno::IO)
    }

    /// Validity of attributes in replies that the kernel did not request for a write. Unit: seconds.
    ///
    /// The kernel changes all attributes itself but the space used, which changes when it writes pages back: see
    /// [`forget_attributes`](Self::forget_attributes).
    pub(super) fn attr_valid(&mut self, attr: &tuff_iplfs::Attr) -> u64 {
        if self.gate.is_short {
            return 0;
        }
        if attr.mode & mode::TYPE != mode::FILE {
            return FOREVER;
        }
        match self.known.get_mut(&attr.ino) {
            Some(known) => {
                known.has_kept_attributes = true;
                FOREVER
            }
            None => ATTR_VALID,
        }
    }

    /// Returns true if the kernel has to be told that the attributes of a file, whose space has changed, are stale.
    pub(super) fn forget_attributes(&mut self, node: Nid) -> bool {
        let known = self.known.get_mut(&node);
        known.is_some_and(|known| std::mem::take(&mut known.has_kept_attributes))
    }

    /// Counts a reply that gives the kernel this inode and its attributes.
    pub(super) fn count_lookup(&mut self, attr: &tuff_iplfs::Attr) -> Result<EntryOut> {
        self.count(attr)?;
        Ok(entry_of(attr, self.attr_valid(attr)))
    }

    /// Counts the reply to a request that made this inode. A file is written next.
    pub(super) fn count_new(&mut self, attr: &tuff_iplfs::Attr) -> Result<EntryOut> {
        self.count(attr)?;
        let valid = if self.gate.is_short { 0 } else { ATTR_VALID };
        Ok(entry_of(attr, valid))
    }

    fn count(&mut self, attr: &tuff_iplfs::Attr) -> Result<()> {
        if attr.ino != Nid::ROOT {
            let known = self.known.entry(attr.ino).or_insert(KnownInode {
                lookups: 0,
                is_file: attr.mode & mode::TYPE == mode::FILE,
                has_kept_attributes: false,
            });
            known.lookups += 1;
            if known.lookups == 1 {
                self.volume()?.hold(attr.ino)?;
            }
        }
        Ok(())
    }

    /// Counts FORGETs of an inode.
    pub(super) fn forget(&mut self, node: u64, times: u64) {
        let Ok(ino) = nid(node) else { return };
        if let Some(known) = self.known.get_mut(&ino) {
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 {
                self.known.remove(&ino);
                if let Some(volume) = &mut self.volume {
                    volume.release(ino);
                    // No pages are left in the kernel.
                    volume.begin_to_settle(ino);
                    volume.settle_promises(ino);
                }
                self.gate.callers.remove(&ino);
            }
        }
    }
}

impl VolumeServer {
    /// Creates a server of a volume.
    pub fn new(mut volume: Volume, log: Log) -> Self {
        let gate = Gate::new(&mut volume);
        Self {
            device: volume.device(),
            core: Mutex::new(ServerState {
                volume: Some(volume),
                known: HashMap::new(),
                gate,
                begun_blocks: 0,
            }),
            flushes: GroupFlush::default(),
            log,
            negotiation: Negotiation::default(),
            write_failed: AtomicBool::new(false),
            write_backs: Mutex::default(),
            notifier: Mutex::default(),
            lineage: Mutex::default(),
            turn: Mutex::default(),
            giving: Mutex::default(),
            keep: Mutex::default(),
            wake: Condvar::new(),
            is_keeper_asleep: AtomicBool::new(false),
            every: SYNC_EVERY,
            discards: DiscardPolicy::default(),
            requests: AtomicU64::new(0),
            drains: Mutex::default(),
            ended: Mutex::default(),
            early_flush: Mutex::default(),
            early_flush_wake: Condvar::new(),
        }
    }

    /// Sets the interval of checkpoints.
    #[must_use]
    pub fn every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// Sets the time at which discards are issued. The volume must be mounted with a matching
    /// [`DiscardMode`](tuff_iplfs::DiscardMode).
    #[must_use]
    pub fn discarding(self, discards: DiscardPolicy) -> Self {
        Self { discards, ..self }
    }

    /// Returns true if holes are reported. Otherwise LSEEK is unsupported, and the kernel treats every file as data.
    pub(super) fn reports_holes(&self) -> bool {
        self.negotiation.minor() >= SEEK_MINOR_MIN && !self.write_failed.load(Relaxed)
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, ServerState>> {
        self.requests.fetch_add(1, Relaxed);
        if self.is_keeper_asleep.load(Relaxed) && self.is_keeper_asleep.swap(false, Relaxed) {
            self.wake_keeper();
        }
        // Poisoned: a panic interrupted a change.
        self.core.lock().map_err(|_| Errno::IO)
    }

    /// The content of the device is unknown: the volume rejects further changes.
    pub(super) fn flush_failed(&self, e: &io::Error) {
        self.log.line(format_args!("a flush failed: {e}"));
        if let Ok(mut core) = self.lock()
            && let Some(volume) = &mut core.volume
        {
            volume.flush_failed(e);
        }
    }

    pub(super) fn early_flush(&self) -> MutexGuard<'_, EarlyFlushState> {
        let state = self.early_flush.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes early while data arrives, so that the next checkpoint has little to wait for.
    pub(super) fn flush_early(&self) {
        loop {
            let idle = |state: &mut EarlyFlushState| !state.is_due && !state.ended;
            let waited = self.early_flush_wake.wait_while(self.early_flush(), idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.ended {
                return;
            }
            state.is_due = false;
            drop(state);
            if let Err(e) = self.device.flush() {
                self.flush_failed(&e);
                return;
            }
        }
    }
}
