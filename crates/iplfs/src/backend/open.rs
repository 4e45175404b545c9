//! Opening the device at a path.

use super::host::retry;
use super::host_file::FileDevice;
use super::zone_dir::ZoneDir;
use crate::device::BlockDevice;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Opens a directory of zone files, a file or a block device. `ResourceBusy` if it is already open.
pub fn open(path: &Path, read_only: bool) -> io::Result<Arc<dyn BlockDevice>> {
    Ok(if retry(|| std::fs::metadata(path))?.is_dir() {
        Arc::new(ZoneDir::open(path, read_only)?)
    } else {
        Arc::new(FileDevice::open(path, read_only)?)
    })
}
