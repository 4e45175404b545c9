//! One file or block device: the whole address space if it is sparse, or the medium of a block map.
//!
//! As the whole address space, it must reach 7 · 2^area_bits blocks: with 29 bits that is 14 TiB, which even ext4 can.
//! A block device with as many addresses is thinly provisioned. Its discards are hole punches, which Linux passes on
//! as discards.

use super::host::{
    self, BS, data_runs, lock, punch, read_sparse, reserve, retry, write_in_place, write_zeros,
};
use crate::device::BlockDevice;
use crate::disk::address::BlockAddr;
use rustix::fs::{Advice, OFlags, fadvise, fstatvfs};
use rustix::io::retry_on_intr;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// File or block device that stores a volume.
pub struct FileDevice {
    file: File,
    /// Number of blocks of a block device. `None` for a file, which grows.
    size: Option<u64>,
    /// File of a loop device, whose lock excludes its other users.
    backing: Option<File>,
    /// Second descriptor of a block device, which claims it for this process.
    claim: Mutex<Option<File>>,
    /// Set after a failed flush. Hosts report a loss only once.
    failed: AtomicBool,
}

impl FileDevice {
    /// Creates an empty file, which must not exist.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        lock(&file, false)?;
        write_in_place(&file);
        Ok(Self {
            file,
            size: None,
            backing: None,
            claim: Mutex::default(),
            failed: AtomicBool::new(false),
        })
    }

    /// Opens a file or block device. `ResourceBusy` if it is open as a volume or mounted.
    pub fn open(path: &Path, read_only: bool) -> io::Result<Self> {
        let metadata = retry(|| std::fs::metadata(path))?;
        let kind = metadata.file_type();
        let is_device = kind.is_block_device();
        // Opening a pipe would block until it has a writer.
        if !is_device && !kind.is_file() {
            let what = "neither a regular file nor a block device";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        // It opens for writing, and each write to it fails.
        if is_device && !read_only && is_read_only(metadata.rdev()) {
            let what = "the block device is read-only";
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, what));
        }
        let mut file = OpenOptions::new().read(true).write(!read_only).open(path)?;
        lock(&file, read_only)?;
        let claim = match is_device && !read_only {
            true => Some(claim(&file)?),
            false => None,
        };
        let backing = match is_device {
            true => backing_file(metadata.rdev()),
            false => None,
        };
        backing
            .as_ref()
            .map_or(Ok(()), |file| lock(file, read_only))?;
        let size = if is_device {
            Some(retry(|| file.seek(SeekFrom::End(0)))? / BS)
        } else {
            None
        };
        Ok(Self {
            file,
            size,
            backing,
            claim: Mutex::new(claim),
            failed: AtomicBool::new(false),
        })
    }

    /// Size of the block device, or length of the file. Unit: blocks.
    pub fn blocks(&self) -> io::Result<u64> {
        match self.size {
            Some(size) => Ok(size),
            None => Ok(retry(|| self.file.metadata())?.len() / BS),
        }
    }

    /// Maximum number of area bits that fit here, at most 48. A volume needs at least 29: a block device must be
    /// thinly provisioned.
    pub fn area_bits_max(&self) -> io::Result<u8> {
        if let Some(size) = self.size {
            return Ok((0..=48).rev().find(|bits| 7 << bits < size).unwrap_or(0));
        }
        let len = retry(|| self.file.metadata())?.len();
        let mut bits = 48;
        // The maximum file size can only be found by trying.
        while bits > 0 && self.file.set_len(((7 << bits) + 1) * BS).is_err() {
            bits -= 1;
        }
        self.file.set_len(len)?;
        Ok(bits)
    }
}

/// Claims a block device. Fails with `ResourceBusy` while it is mounted, or another process claims it.
fn claim(device: &File) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::EXCL.bits() as i32);
    retry(|| options.open(format!("/proc/self/fd/{}", device.as_raw_fd())))
}

/// Opens the file that a loop device shows as a whole. None for other devices, and if it cannot be opened here: then the
/// checkpoints tell that another program has written.
fn backing_file(device: u64) -> Option<File> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let attribute = |name: &str| {
        let path = format!("/sys/dev/block/{major}:{minor}/loop/{name}");
        let text = retry(|| std::fs::read(&path)).ok()?;
        Some(text.strip_suffix(b"\n").unwrap_or(&text).to_vec())
    };
    // Parts of a file may be volumes of their own.
    if attribute("offset")? != b"0" || attribute("sizelimit")? != b"0" {
        return None;
    }
    let path = PathBuf::from(OsString::from_vec(attribute("backing_file")?));
    let is_file = retry(|| std::fs::metadata(&path)).is_ok_and(|m| m.is_file());
    is_file.then(|| retry(|| File::open(&path)).ok())?
}

/// Returns whether the kernel refuses writes to a block device.
fn is_read_only(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let state = retry(|| std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro")));
    state.is_ok_and(|state| state.starts_with(b"1"))
}

impl BlockDevice for FileDevice {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        if addr.0 >= i64::MAX as u64 / BS {
            let what = "exceeds the maximum file size";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        read_sparse(&self.file, addr.0, buf)
    }

    fn read_uncached(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        if self.size.is_some() {
            let len = NonZeroU64::new(buf.len() as u64);
            // Advice: an error leaves a read of the cache.
            let _ = fadvise(&self.file, addr.0 * BS, len, Advice::DontNeed);
        }
        self.read(addr, buf)
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, addr.0 * BS)
    }

    fn flush(&self) -> io::Result<()> {
        if self.failed.load(Relaxed) {
            return Err(io::Error::other("an earlier flush failed"));
        }
        self.file
            .sync_data()
            .inspect_err(|_| self.failed.store(true, Relaxed))
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        punch(&self.file, blocks)
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        match self.size {
            None => data_runs(&self.file, blocks),
            Some(size) => Ok(std::iter::once(blocks.start..blocks.end.min(size))
                .filter(|r| r.start < r.end)
                .collect()),
        }
    }

    fn knows_allocated(&self) -> bool {
        self.size.is_none()
    }

    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        match self.size {
            None => reserve(&self.file, blocks),
            Some(_) => Ok(()),
        }
    }

    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        match self.size {
            None => host::release_preallocated(&self.file, blocks),
            Some(_) => Ok(()),
        }
    }

    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        if self.size.is_some() {
            return Ok(false);
        }
        write_zeros(&self.file, blocks)?;
        Ok(true)
    }

    fn claim(&self, exclusive: bool) -> io::Result<()> {
        let mut held = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        *held = match exclusive && self.size.is_some() {
            true => Some(claim(&self.file)?),
            false => None,
        };
        Ok(())
    }

    fn unlock(&self) {
        [Some(&self.file), self.backing.as_ref()]
            .into_iter()
            .flatten()
            .for_each(host::unlock);
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        if self.size.is_some() {
            return Ok(None);
        }
        let host = retry_on_intr(|| fstatvfs(&self.file))?;
        Ok(Some(host.f_bavail.saturating_mul(host.f_frsize) / BS))
    }
}
