//! Space that deletes made free goes to the host while the volume is idle.
//!
//! A dead block needs three checkpoints until the host has it. At the interval of checkpoints alone that would take 15 seconds.
//!
//! ```text
//!  requests ─► none for 300 ms ─► checkpoint, discards ─► again, until nothing waits ─► free space of the device
//!                                        └──── a request ends it ────┘
//! ```
//!
//! A steady workload is not slowed: the work begins while nothing happens, ends at the next request, and is not repeated soon.

use super::server::VolumeServer;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tuff_iplfs::{Result, Volume};

/// Time without requests after which the volume counts as idle.
const IDLE_TIME: Duration = Duration::from_millis(300);
/// Interval at which requests are looked for.
pub(super) const TICK: Duration = Duration::from_millis(150);
/// Maximum number of checkpoints in a row. Each moves dead blocks to their next state.
const ROUNDS: usize = 4;
/// Minimum time between two releases of few blocks. Checkpoints wear out the device.
const PAUSE_FEW: Duration = Duration::from_secs(5);
/// Minimum time between two releases of many blocks.
const PAUSE_MANY: Duration = Duration::from_secs(1);
/// Number of dead blocks that are many: 1 MiB.
const MANY_BLOCKS: u64 = 256;

/// Requests and releases that the keeper thread has seen.
pub(super) struct IdleWatch {
    /// Number of requests at the last look.
    seen: u64,
    /// Time of the first look that saw this number.
    since: Instant,
    /// Blocks may wait that no release has seen.
    is_awake: bool,
    /// Number of requests at the last checkpoint of the interval.
    checkpointed: u64,
    /// A request ended the last release, and the device may keep free space.
    is_interrupted: bool,
    /// Time of the end of the last release.
    ended: Option<Instant>,
}

impl IdleWatch {
    pub(super) fn new() -> Self {
        Self {
            seen: 0,
            since: Instant::now(),
            is_awake: false,
            checkpointed: 0,
            is_interrupted: false,
            ended: None,
        }
    }

    /// Returns true if blocks may wait for their release.
    pub(super) fn is_awake(&self, requests: u64) -> bool {
        self.is_awake || requests != self.seen
    }

    /// Notes the number of requests, and `blocks` that wait. Returns true if space may be released.
    pub(super) fn observe(&mut self, requests: u64, blocks: impl FnOnce() -> u64) -> bool {
        if requests != self.seen {
            (self.seen, self.since, self.is_awake) = (requests, Instant::now(), true);
        }
        if !self.is_awake || self.since.elapsed() < IDLE_TIME {
            return false;
        }
        let pause = match blocks() {
            0 => {
                self.is_awake = self.is_interrupted;
                return self.is_awake;
            }
            1..MANY_BLOCKS => PAUSE_FEW,
            _ => PAUSE_MANY,
        };
        self.ended.is_none_or(|ended| ended.elapsed() >= pause)
    }

    /// Notes a checkpoint of the interval. Blocks died in it if there were requests.
    pub(super) fn checkpointed(&mut self, requests: u64) {
        self.is_awake |= requests != self.checkpointed;
        self.checkpointed = requests;
    }

    /// Notes the end of a release. `is_complete` is false if requests ended it.
    pub(super) fn end(&mut self, is_complete: bool) {
        self.ended = Some(Instant::now());
        (self.is_awake, self.is_interrupted) = (!is_complete, !is_complete);
    }
}

impl VolumeServer {
    /// Number of blocks that wait for checkpoints or discards.
    pub(super) fn waiting_blocks(&self) -> u64 {
        let count = |volume: &mut Volume| {
            let space = volume.space();
            Ok(match volume.is_read_only() || volume.is_broken() {
                true => 0,
                false => space.dead + space.pending,
            })
        };
        self.with(count).unwrap_or(0)
    }

    /// Releases dead blocks to the host until a request comes. Returns true if nothing is left.
    pub(super) fn release_while_idle(&self, watch: &IdleWatch) -> Result<bool> {
        let is_idle = || self.requests.load(Relaxed) == watch.seen;
        for _ in 0..ROUNDS {
            if !is_idle() {
                return Ok(false);
            }
            self.checkpoint(&self.lock_checkpoint())?;
            self.send_discards()?;
            if self.waiting_blocks() == 0 {
                break;
            }
        }
        while self.device.release_free_space() {
            if !is_idle() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
