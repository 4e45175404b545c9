//! An IPLFS volume under a directory: the operations of a writable filesystem.
//!
//! ```text
//!  kernel ──► serve.rs    a ring of its processor, or /dev/fuse; what waits for the device goes to a thread of its own
//!               └► answer.rs   what is asked, what is said                          request.rs: field by field
//!                    └► the volume, under one lock                                  durable.rs: checkpoints; flushes.rs: one flush for all who wait
//!                                                                                    seek.rs: SEEK_DATA and SEEK_HOLE
//! ```
//!
//! * The kernel is the only writer besides us, so it keeps names for ever and writes back its page cache when it likes.
//! * An inode is held for as long as the kernel knows its number; so open files without a name live on, and no OPEN is needed.
//! * One lock guards the volume. Data is read outside it, the device is flushed and told of discards outside it, and several `fsync` share one flush.
//! * A panic below ends as EIO, and so does everything after it: what the volume has in memory is then not to be trusted.

mod answer;
mod durable;
mod flushes;
mod live;
mod project;
mod request;
mod seek;
mod serve;

pub use live::VolumeMount;

use durable::Keep;
use flushes::Flushes;
use request::{entry_of, failed, nid};
use rustix::io::Errno;
use seek::PendingSeek;
use serve::Asker;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tuff_fuse::filesystem::Result;
use tuff_fuse::log::Log;
use tuff_fuse::protocol::EntryOut;
use tuff_iplfs::{BlockDevice, Nid, Volume};

/// Names never change behind the kernel's back. Unit: seconds.
const FOR_EVER: u64 = i64::MAX as u64;
/// Attributes change when dirty pages are written: the space taken. Unit: seconds.
const ATTR_VALID: u64 = 1;
/// Blocks appended after which the device is to begin writing: 32 MiB.
const BEGIN_BLOCKS: u64 = 8192;

/// How often everything is made durable without being asked, as after a `sync`, of which the kernel says nothing.
pub const SYNC_EVERY: Duration = Duration::from_secs(5);

/// The volume and what the kernel knows of it.
struct Core {
    /// `None` when it was unmounted.
    volume: Option<Volume>,
    /// How often the kernel was given each number.
    known: HashMap<Nid, u64>,
    /// Blocks appended when the device was last asked to begin writing.
    begun_blocks: u64,
}

/// Serves a volume.
pub struct VolumeServer {
    core: Mutex<Core>,
    device: Arc<dyn BlockDevice>,
    flushes: Flushes<Asker>,
    log: Log,
    /// Features that both sides have, as agreed at the start; 0 before.
    features: AtomicU64,
    /// How many threads serve.
    threads: AtomicUsize,
    /// Whether rings of io_uring are offered.
    rings: AtomicBool,
    /// Holes are reported. Otherwise LSEEK is refused, and the kernel takes every file for data from front to back.
    reports_holes: AtomicBool,
    /// Searches that wait for the kernel to write pages back. `None` when the mount ends.
    seeks: Mutex<Option<Sender<PendingSeek>>>,
    /// Inodes are being forgotten.
    forgetting: AtomicBool,
    /// Held by who makes a checkpoint.
    turn: Mutex<()>,
    /// Held by who tells the device of discards.
    giving: Mutex<()>,
    keep: Mutex<Keep>,
    wake: Condvar,
    /// How often that is.
    every: Duration,
    /// Whether much was appended since the last flush, or the mount ends.
    behind: Mutex<Behind>,
    much: Condvar,
}

#[derive(Default)]
struct Behind {
    much: bool,
    ended: bool,
}

impl Core {
    fn volume(&mut self) -> Result<&mut Volume> {
        self.volume.as_mut().ok_or(Errno::IO)
    }

    /// The kernel is told of an inode once more.
    fn tell(&mut self, attr: &tuff_iplfs::Attr) -> Result<EntryOut> {
        if attr.ino != Nid::ROOT {
            let known = self.known.entry(attr.ino).or_default();
            *known += 1;
            if *known == 1 {
                self.volume()?.hold(attr.ino).map_err(failed)?;
            }
        }
        Ok(entry_of(attr))
    }

    /// The kernel forgot an inode so many times.
    fn forget(&mut self, node: u64, times: u64) {
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
            core: Mutex::new(Core {
                volume: Some(volume),
                known: HashMap::new(),
                begun_blocks: 0,
            }),
            flushes: Flushes::default(),
            log,
            features: AtomicU64::new(0),
            threads: AtomicUsize::new(1),
            rings: AtomicBool::new(false),
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

    fn lock(&self) -> Result<MutexGuard<'_, Core>> {
        // Somebody panicked half-way through a change.
        self.core.lock().map_err(|_| Errno::IO)
    }

    /// Nobody knows what the device still has: the volume takes no more changes.
    fn flush_failed(&self, e: &io::Error) {
        self.log.line(format_args!("a flush failed: {e}"));
        if let Ok(mut core) = self.lock()
            && let Some(volume) = &mut core.volume
        {
            volume.flush_failed(e);
        }
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the device write while more comes in, so that the next checkpoint finds little to wait for.
    fn begin_writing(&self) {
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
