//! A file or block device as a store.

use crate::ReadAt;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// An open file or block device, read with `pread`.
///
/// Not a memory map: a map turns a bad sector or a truncated file into SIGBUS, a read turns it into an error.
pub struct FileStore {
    file: File,
    size: u64,
}

impl FileStore {
    /// Opens `path` for reading.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(File::open(path)?)
    }

    /// Takes an open file or block device.
    pub fn new(mut file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let size = if meta.file_type().is_block_device() {
            file.seek(SeekFrom::End(0))?
        } else if meta.is_file() {
            meta.len()
        } else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a regular file nor a block device",
            ));
        };
        Ok(Self { file, size })
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for FileStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn will_need(&self, offset: u64, len: u64) {
        // A hint: a file system that does not take it is as good as before.
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }
}
