//! Shared state of a mounted volume.

use super::fields::{entry_of, errno_of, nid};
use super::group_flush::GroupFlush;
use super::reply::PendingReply;
use super::seek::PendingSeek;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tuff_fuse::filesystem::Result;
use tuff_fuse::log::Log;
use tuff_fuse::negotiation::Negotiation;
use tuff_fuse::protocol::EntryOut;
use tuff_iplfs::{BlockDevice, Nid, Volume};

/// How often everything is made durable without being asked, as after a `sync`, of which the kernel says nothing.
pub const SYNC_EVERY: Duration = Duration::from_secs(5);

/// The volume and what the kernel knows of it.
pub(super) struct ServerState {
    /// `None` when it was unmounted.
    pub(super) volume: Option<Volume>,
    /// How often the kernel was given each number.
    pub(super) known: HashMap<Nid, u64>,
    /// Blocks appended when the device was last asked to begin writing.
    pub(super) begun_blocks: u64,
}

/// Serves a volume.
pub struct VolumeServer {
    pub(super) core: Mutex<ServerState>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) flushes: GroupFlush<PendingReply>,
    pub(super) log: Log,
    /// Version and features that the kernel agreed on.
    pub(super) negotiation: Negotiation,
    /// How many threads serve.
    pub(super) threads: AtomicUsize,
    /// Holes are reported. Otherwise LSEEK is refused, and the kernel takes every file for data from front to back.
    pub(super) reports_holes: AtomicBool,
    /// Searches that wait for the kernel to write pages back. `None` when the mount ends.
    pub(super) seeks: Mutex<Option<Sender<PendingSeek>>>,
    /// Inodes are being forgotten.
    pub(super) forgetting: AtomicBool,
    /// Held by who makes a checkpoint.
    pub(super) turn: Mutex<()>,
    /// Held by who tells the device of discards.
    pub(super) giving: Mutex<()>,
    pub(super) keep: Mutex<KeeperState>,
    pub(super) wake: Condvar,
    /// How often that is.
    pub(super) every: Duration,
    /// Whether much was appended since the last flush, or the mount ends.
    pub(super) behind: Mutex<WriteBehindState>,
    pub(super) much: Condvar,
}

#[derive(Default)]
pub(super) struct WriteBehindState {
    pub(super) much: bool,
    pub(super) ended: bool,
}

/// What the keeper waits for.
#[derive(Default)]
pub(super) struct KeeperState {
    /// So much waits that an operation may soon have to make a checkpoint by itself.
    pub(super) much: bool,
    /// It is unmounted.
    pub(super) ended: bool,
}

impl ServerState {
    pub(super) fn volume(&mut self) -> Result<&mut Volume> {
        self.volume.as_mut().ok_or(Errno::IO)
    }

    /// The kernel is told of an inode once more.
    pub(super) fn tell(&mut self, attr: &tuff_iplfs::Attr) -> Result<EntryOut> {
        if attr.ino != Nid::ROOT {
            let known = self.known.entry(attr.ino).or_default();
            *known += 1;
            if *known == 1 {
                self.volume()?.hold(attr.ino).map_err(errno_of)?;
            }
        }
        Ok(entry_of(attr))
    }

    /// The kernel forgot an inode so many times.
    pub(super) fn forget(&mut self, node: u64, times: u64) {
        let Ok(ino) = nid(node) else { return };
        if let Some(known) = self.known.get_mut(&ino) {
            *known = known.saturating_sub(times);
            if *known == 0 {
                self.known.remove(&ino);
                if let Some(volume) = &mut self.volume {
                    volume.release(ino);
                }
            }
        }
    }
}

impl VolumeServer {
    /// A server of a volume.
    pub fn new(volume: Volume, log: Log) -> Self {
        Self {
            device: volume.device(),
            core: Mutex::new(ServerState {
                volume: Some(volume),
                known: HashMap::new(),
                begun_blocks: 0,
            }),
            flushes: GroupFlush::default(),
            log,
            negotiation: Negotiation::default(),
            threads: AtomicUsize::new(1),
            reports_holes: AtomicBool::new(false),
            seeks: Mutex::default(),
            forgetting: AtomicBool::new(false),
            turn: Mutex::default(),
            giving: Mutex::default(),
            keep: Mutex::default(),
            wake: Condvar::new(),
            every: SYNC_EVERY,
            behind: Mutex::default(),
            much: Condvar::new(),
        }
    }

    /// Makes everything durable so often.
    #[must_use]
    pub fn every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, ServerState>> {
        // Somebody panicked half-way through a change.
        self.core.lock().map_err(|_| Errno::IO)
    }

    /// Nobody knows what the device still has: the volume takes no more changes.
    pub(super) fn flush_failed(&self, e: &io::Error) {
        self.log.line(format_args!("a flush failed: {e}"));
        if let Ok(mut core) = self.lock()
            && let Some(volume) = &mut core.volume
        {
            volume.flush_failed(e);
        }
    }

    pub(super) fn behind(&self) -> MutexGuard<'_, WriteBehindState> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the device write while more comes in, so that the next checkpoint finds little to wait for.
    pub(super) fn begin_writing(&self) {
        loop {
            let mut behind = self.behind();
            while !behind.much && !behind.ended {
                behind = self
                    .much
                    .wait(behind)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if behind.ended {
                return;
            }
            behind.much = false;
            drop(behind);
            if let Err(e) = self.device.flush() {
                self.flush_failed(&e);
                return;
            }
        }
    }
}
