//! System calls shared by the devices on a host.

use crate::disk::address::BLOCK_SIZE;
use rustix::fs::{Advice, AtFlags, fadvise, ioctl_getflags, ioctl_setflags};
use rustix::fs::{FallocateFlags, FlockOperation, IFlags, SeekFrom, fallocate, flock, seek};
use rustix::fs::{FileType, OFlags, StatxFlags, statx};
use rustix::io::retry_on_intr;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub(super) const BS: u64 = BLOCK_SIZE as u64;

/// Repeats a call of the standard library while a signal interrupts it.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Takes the lock of an open volume. `ResourceBusy` if another process holds it.
pub(super) fn lock(file: &File, read_only: bool) -> io::Result<()> {
    let how = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    retry_on_intr(|| flock(file, how)).map_err(|e| match e {
        rustix::io::Errno::WOULDBLOCK => {
            io::Error::new(io::ErrorKind::ResourceBusy, "the volume is in use")
        }
        other => other.into(),
    })
}

/// Gives up the lock of a volume, without waiting for the end of the process.
pub(super) fn unlock(file: &File) {
    let _ = retry_on_intr(|| flock(file, FlockOperation::Unlock));
}

/// Opens a regular file without blocking. `InvalidInput` if it is not a regular file. Timestamps are not queried, which
/// would give the next change a new one.
pub(super) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Fits: a flag of `open`, which takes an int.
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = match options.open(path) {
        // Another process holds a lease on the file: wait until it is released.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => options.custom_flags(0).open(path)?,
        file => file?,
    };
    let ask = || statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    let mode = u32::from(retry_on_intr(ask)?.stx_mode);
    if !FileType::from_raw_mode(mode).is_file() {
        let what = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(file)
}

/// Reads blocks of a sparse file. Blocks past its end read as zeros.
pub(super) fn read_sparse(file: &File, block: u64, buf: &mut [u8]) -> io::Result<()> {
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

/// Writes zeros, so that a later write to the same blocks changes no metadata of the host.
pub(super) fn write_zeros(file: &File, blocks: Range<u64>) -> io::Result<()> {
    let zeros = vec![0; ((blocks.end - blocks.start) * BS) as usize];
    file.write_all_at(&zeros, blocks.start * BS)
}

/// Reserves space without changing the length of the file.
pub(super) fn reserve(file: &File, blocks: Range<u64>) -> io::Result<()> {
    let (start, len) = (blocks.start * BS, (blocks.end - blocks.start) * BS);
    match retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, start, len)) {
        // A host that cannot reserve space is still usable: the reserve of the volume covers the packs.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Releases the space that was reserved in `blocks` and never written.
pub(super) fn release_preallocated(file: &File, blocks: Range<u64>) -> io::Result<()> {
    // Past the end of a file, ext4 and Btrfs punch nothing.
    if retry(|| file.metadata())?.len() < blocks.end * BS {
        file.set_len(blocks.end * BS)?;
    }
    // Blocks that were read there and are still in the page cache would count as data.
    let len = NonZeroU64::new((blocks.end - blocks.start) * BS);
    let _ = fadvise(file, blocks.start * BS, len, Advice::DontNeed);
    let mut at = blocks.start;
    for run in data_runs(file, blocks.clone())? {
        if at < run.start {
            punch(file, at..run.start)?;
        }
        at = run.end;
    }
    if at < blocks.end {
        punch(file, at..blocks.end)?;
    }
    Ok(())
}

/// Makes Btrfs overwrite in place, which takes no new space; other filesystems do so anyway. Applies to an empty
/// file, or to files created later in a directory.
pub(super) fn write_in_place(file: &File) {
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

/// Releases the space of blocks without changing the length of the file.
pub(super) fn punch(file: &File, blocks: Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (start, len) = (blocks.start * BS, (blocks.end - blocks.start) * BS);
    // Hosts may end a long hole punch early when a signal arrives.
    Ok(retry_on_intr(|| fallocate(file, flags, start, len))?)
}

/// Returns the runs of blocks inside `blocks` that hold data.
pub(super) fn data_runs(file: &File, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = blocks.start * BS;
    while at < blocks.end * BS {
        let data = match retry_on_intr(|| seek(file, SeekFrom::Data(at))) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        if data >= blocks.end * BS {
            break;
        }
        let hole = retry_on_intr(|| seek(file, SeekFrom::Hole(data)))?;
        runs.push(data / BS..hole.div_ceil(BS).min(blocks.end));
        at = hole;
    }
    Ok(runs)
}
