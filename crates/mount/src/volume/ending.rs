//! End of a volume: after its session, or while a copied mount namespace or an open file keeps the filesystem.

use super::server::VolumeServer;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tuff_iplfs::{Error, Nid, Result};

/// Time that the end of a session may take to pass free space to the host.
const RELEASE_TIME: Duration = Duration::from_secs(5);

/// Time that the kernel gets to write back dirty pages before a volume in use is closed.
const DRAIN_TIME: Duration = Duration::from_secs(10);

impl VolumeServer {
    /// Unmounts the volume after the end of the session, unless `end_session` has. Returns its result.
    ///
    /// # Errors
    /// Fails if a change was lost.
    pub fn unmount(&self) -> Result<()> {
        let done = self.close().or_else(|| self.ended().take());
        done.unwrap_or(Ok(()))
    }

    /// Unmounts the volume while the kernel waits for the end of the session. Another process can open it at once.
    pub(super) fn end_session(&self) {
        let Some(done) = self.close_now() else {
            return;
        };
        *self.ended() = Some(done);
        let start = Instant::now();
        while start.elapsed() < RELEASE_TIME && self.device.release_free_space() {}
        self.device.unlock();
    }

    /// Returns true if the volume is unmounted.
    pub(super) fn is_closed(&self) -> bool {
        self.core.lock().is_ok_and(|core| core.volume.is_none())
    }

    fn ended(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all changes durable and unmounts the volume, although the session lives. All requests fail afterwards.
    /// Returns None if the volume is unmounted already.
    ///
    /// # Errors
    /// Fails if a change was lost.
    pub fn end_early(&self) -> Option<Result<()>> {
        // Data that programs have written is in pages of the kernel, which it loses.
        self.drain_for(DRAIN_TIME);
        self.close_now()
    }

    fn close_now(&self) -> Option<Result<()>> {
        // A checkpoint under way ends first, and none begins meanwhile.
        let _turn = self.lock_checkpoint();
        self.close()
    }

    fn close(&self) -> Option<Result<()>> {
        let poisoned = || Error::Limit("a bug ended the service early; mount again".to_owned());
        let mut core = match self.core.lock() {
            Ok(core) => core,
            Err(_) => return Some(Err(poisoned())),
        };
        let known: Vec<Nid> = core.known.drain().map(|(ino, _)| ino).collect();
        let mut volume = core.volume.take()?;
        known.into_iter().for_each(|ino| volume.release(ino));
        // Blocks of recent deletions are discarded before the next mount. The checkpoint counts even if this fails.
        if !volume.is_read_only()
            && let Err(e) = volume.drain()
        {
            let log = &self.log;
            log.line(format_args!("cannot give everything back: {e}"));
        }
        Some(volume.unmount())
    }
}
