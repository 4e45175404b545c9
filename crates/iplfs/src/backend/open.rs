//! Opening the device at a path.

use super::host::retry;
use super::host_file::FileDevice;
use super::mapped::MappedDevice;
use super::zone_dir::ZoneDir;
use crate::device::BlockDevice;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Opens a directory of zone files, a file or a block device, with or without a block map. `ResourceBusy` if it is
/// already open.
pub fn open(path: &Path, read_only: bool) -> io::Result<Arc<dyn BlockDevice>> {
    if retry(|| std::fs::metadata(path))?.is_dir() {
        return Ok(Arc::new(ZoneDir::open(path, read_only)?));
    }
    let file = FileDevice::open(path, read_only)?;
    let blocks = file.blocks()?;
    let file: Arc<dyn BlockDevice> = Arc::new(file);
    Ok(match MappedDevice::open(file.clone(), blocks)? {
        Some(mapped) => Arc::new(mapped),
        None => file,
    })
}
