//! End of a volume: after its session, or while a copied mount namespace or an open file keeps the filesystem.

use super::server::VolumeServer;
use tuff_iplfs::{Error, Nid, Result};

impl VolumeServer {
    /// Unmounts the volume after the end of the session.
    ///
    /// # Errors
    /// Fails if a change was lost.
    pub fn unmount(&self) -> Result<()> {
        self.close().unwrap_or(Ok(()))
    }

    /// Makes all changes durable and unmounts the volume, although the session lives. All requests fail afterwards.
    /// Returns None if the volume is unmounted already.
    ///
    /// # Errors
    /// Fails if a change was lost.
    pub fn end_early(&self) -> Option<Result<()>> {
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
