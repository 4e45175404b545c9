//! Devices on a host: a directory of sparse zone files, or one sparse file or thin block device.
//!
//! Both keep an exclusive lock for as long as they are open, so that a volume is never mounted twice.

mod single;
mod zone_dir;

pub use single::FileDevice;
pub use zone_dir::ZoneDir;

use crate::areas::BLOCK_SIZE;
use crate::device::BlockDevice;
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, seek};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const BS: u64 = BLOCK_SIZE as u64;

/// Opens what holds a volume: a directory of zone files, or a file or block device. `ResourceBusy` if it is open.
pub fn open(path: &Path, read_only: bool) -> io::Result<Arc<dyn BlockDevice>> {
    Ok(if path.is_dir() {
        Arc::new(ZoneDir::open(path, read_only)?)
    } else {
        Arc::new(FileDevice::open(path, read_only)?)
    })
}

/// Takes the lock that says the volume is open; `ResourceBusy` if somebody else holds it.
fn lock(file: &File, read_only: bool) -> io::Result<()> {
    let how = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    flock(file, how).map_err(|e| match e {
        rustix::io::Errno::WOULDBLOCK => {
            io::Error::new(io::ErrorKind::ResourceBusy, "the volume is in use")
        }
        other => other.into(),
    })
}

/// Reads blocks of a sparse file; what lies past its end is zeros.
fn read_sparse(file: &File, block: u64, buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], block * BS + done as u64) {
            Ok(0) => {
                buf[done..].fill(0);
                return Ok(());
            }
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes zeros, so that the host has nothing to note when the blocks are written again but their bytes.
fn write_zeros(file: &File, blocks: Range<u64>) -> io::Result<()> {
    let zeros = vec![0; ((blocks.end - blocks.start) * BS) as usize];
    file.write_all_at(&zeros, blocks.start * BS)
}

/// Gives the space of blocks back without changing the length of the file.
fn punch(file: &File, blocks: Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(
        file,
        flags,
        blocks.start * BS,
        (blocks.end - blocks.start) * BS,
    )?)
}

/// Runs of blocks of a file that hold data, inside `blocks`.
fn data_runs(file: &File, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = blocks.start * BS;
    while at < blocks.end * BS {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        if data >= blocks.end * BS {
            break;
        }
        let hole = seek(file, SeekFrom::Hole(data))?;
        runs.push(data / BS..hole.div_ceil(BS).min(blocks.end));
        at = hole;
    }
    Ok(runs)
}
