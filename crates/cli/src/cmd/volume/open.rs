//! Opens volumes, and supplies times and random numbers.

use super::failure::{At, Failure, Result};
use crate::advice;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tuff_iplfs::{BlockDevice, Error, MountOptions, Time, Volume, backend};
use tuff_open::ImageRef;

/// Opens the backing device of a volume.
pub(super) fn device(path: &Path, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
    require_path(path)?;
    let place = path.display();
    let device = match backend::open(path, read_only) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err(Error::Corrupt(e.to_string())).at(place)
        }
        other => other.at(place),
    }?;
    let has_superblock = tuff_iplfs::read_superblock(&*device).is_ok();
    match advice::not_a_volume(path, has_superblock) {
        Some(e) => Err(e.into()),
        // A damaged superblock is for the verb to judge.
        None => Ok(device),
    }
}

/// Refuses a URL, which as a path would be a directory named like its scheme.
pub(super) fn require_path(path: &Path) -> Result<()> {
    match ImageRef::from(path).url() {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(format!(
            "{0}: a volume is a directory, a file or a block device, not a URL; ./{0} is a path",
            path.display()
        ))),
    }
}

/// Opens a volume. Read-only, nothing is written, not even for recovery.
pub(super) fn mount(path: &Path, read_only: bool) -> Result<Volume> {
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    Volume::mount(device(path, read_only)?, options).at(path.display())
}

/// Returns the current time.
pub(super) fn now() -> Time {
    // A clock before 1970 counts as 1970.
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nsec: since.subsec_nanos(),
    }
}

/// Returns 16 random bytes.
pub(super) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns a random UUID.
pub(super) fn uuid() -> io::Result<[u8; 16]> {
    let mut uuid = random()?;
    // Version 4, variant 1: a random UUID.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Size of `blocks` blocks. Unit: bytes.
pub(super) fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(tuff_iplfs::BLOCK_SIZE as u64)
}
