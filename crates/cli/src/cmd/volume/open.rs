//! Opens volumes, and supplies times and random numbers.

use super::failure::{At, Failure, Result};
use super::live::mount_point;
use crate::advice;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tuff_iplfs::{BlockDevice, Error, MountOptions, Time, Volume, backend};
use tuff_open::ImageRef;

/// Volume, and the branch that a verb needs.
#[derive(clap::Args)]
pub(super) struct VolumeArgs {
    /// Directory, file or block device of the volume
    pub(super) path: PathBuf,
    /// Branch of the volume, as made by tuff volume fork [default: main]
    #[arg(long, value_name = "NAME")]
    pub(super) branch: Option<String>,
}

impl VolumeArgs {
    /// Source of the mount, which names the branch and the snapshot: `/path`, `/path@branch` or `/path@branch:snapshot`.
    pub(super) fn source(&self, snapshot: Option<&str>) -> PathBuf {
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let branch = self.branch.as_deref().unwrap_or(backend::MAIN);
        let mut source = path.into_os_string();
        if branch != backend::MAIN || snapshot.is_some() {
            source.push(format!("@{branch}"));
        }
        if let Some(name) = snapshot {
            source.push(format!(":{name}"));
        }
        source.into()
    }
}

/// Opens the backing device of a branch of a volume.
pub(super) fn device(volume: &VolumeArgs, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
    branch_device(&volume.path, volume.branch.as_deref(), read_only)
}

/// Opens the backing device of the branch of this name, `main` without a name.
pub(super) fn branch_device(
    path: &Path,
    branch: Option<&str>,
    read_only: bool,
) -> Result<Arc<dyn BlockDevice>> {
    require_path(path)?;
    let place = path.display();
    let device = match backend::open_branch(path, branch, read_only) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && mount_point(path).is_some() => {
            Err(Failure::Usage(format!(
                "{place}: a mount point; this verb needs the volume, unmounted: see /proc/mounts"
            )))
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err(Error::Corrupt(e.to_string())).at(place)
        }
        Err(e) if branch.is_some() && is_wrong_branch(&e, path) => {
            Err(Failure::Usage(format!("{place}: {e}")))
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

/// Returns true if a volume is there, but not the branch.
fn is_wrong_branch(e: &io::Error, path: &Path) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput
    ) && path.exists()
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
pub(super) fn mount(volume: &VolumeArgs, read_only: bool) -> Result<Volume> {
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    Volume::mount(device(volume, read_only)?, options).at(volume.path.display())
}

/// Returns how many more forks a volume allows. `None` for one that cannot be forked.
pub(super) fn forks_left(path: &Path) -> Result<Option<u64>> {
    match path.is_dir() {
        true => tuff_iplfs::forks_left(path).at(path.display()).map(Some),
        false => Ok(None),
    }
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
