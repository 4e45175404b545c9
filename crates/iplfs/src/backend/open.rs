//! Opening the device at a path.

use super::branch::MAIN;
use super::host::retry;
use super::host_file::FileDevice;
use super::mapped::MappedDevice;
use super::zone_dir::ZoneDir;
use crate::device::BlockDevice;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Opens a directory of zone files, a file or a block device, with or without a block map. `ResourceBusy` if it is
/// already open. Of a directory with branches, `main` is opened.
pub fn open(path: &Path, read_only: bool) -> io::Result<Arc<dyn BlockDevice>> {
    open_branch(path, None, read_only)
}

/// Opens a branch of a volume, `main` without a name. Only a directory of zone files has others.
///
/// # Errors
/// `ResourceBusy` if the branch is open, `NotFound` if there is none of the name, `Unsupported` for a name where the
/// volume is no directory. The texts say what to do.
pub fn open_branch(
    path: &Path,
    branch: Option<&str>,
    read_only: bool,
) -> io::Result<Arc<dyn BlockDevice>> {
    if retry(|| std::fs::metadata(path))?.is_dir() {
        return Ok(Arc::new(ZoneDir::open_branch(path, branch, read_only)?));
    }
    if branch.is_some_and(|name| name != MAIN) {
        let what =
            "only a volume in a directory has branches: copy this one with `send` and `receive`";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let file = FileDevice::open(path, read_only)?;
    let blocks = file.blocks()?;
    let file: Arc<dyn BlockDevice> = Arc::new(file);
    Ok(match MappedDevice::open(file.clone(), blocks)? {
        Some(mapped) => Arc::new(mapped),
        None => file,
    })
}
