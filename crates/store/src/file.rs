//! A file or block device as a store.

use crate::ReadAt;
use crate::host::{open_if, retry};
use rustix::fs::{Advice, fadvise, sendfile};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::OnceLock;

/// An open file or block device, read with `pread`.
///
/// Not a memory map: a map turns a bad sector or a truncated file into SIGBUS, a read turns it into an error.
pub struct FileStore {
    file: File,
    size: u64,
    /// Where bytes go that are only touched, opened when it is first needed. `None`: there is no such place.
    sink: OnceLock<Option<File>>,
}

/// Bytes that are touched with one call. A signal waits for the end of one. Unit: bytes.
const TOUCHED: u64 = 16 << 20;

impl FileStore {
    /// Opens `path` for reading. A pipe or character device is refused before it is opened, which might wait.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(open_if(path, &|meta| {
            meta.is_file() || meta.file_type().is_block_device()
        })?)
    }

    /// Takes an open file or block device.
    pub fn new(mut file: File) -> io::Result<Self> {
        let meta = retry(|| file.metadata())?;
        let size = if meta.file_type().is_block_device() {
            retry(|| file.seek(SeekFrom::End(0)))?
        } else if meta.is_file() {
            meta.len()
        } else {
            return Err(no_place());
        };
        Ok(Self {
            file,
            size,
            sink: OnceLock::new(),
        })
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn no_place() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "neither a regular file nor a block device",
    )
}

impl ReadAt for FileStore {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        retry(|| self.file.read_at(buf, offset))
    }

    fn size(&self) -> u64 {
        self.size
    }

    /// The kernel hands the pages from one file to another; the other one drops them. So they are read, and errors are
    /// found, but nothing is copied: a fifth of the time of `pread`.
    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        let sink = || File::options().write(true).open("/dev/null").ok();
        let Some(sink) = self.sink.get_or_init(sink) else {
            return Copying(self).touch(offset, len);
        };
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            // Fits: at most TOUCHED. `at` moves on with what was read.
            let n = (end - at).min(TOUCHED) as usize;
            match sendfile(sink, &self.file, Some(&mut at), n) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                // Not every file hands out pages.
                Err(Errno::INVAL | Errno::NOSYS) => return Copying(self).touch(at, end - at),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn will_need(&self, offset: u64, len: u64) {
        // A hint: a file system that does not take it is as good as before.
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn done_with(&self, offset: u64, len: u64) {
        // A hint, too.
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
    }
}

/// A file whose bytes are touched as any store's are: by copying them.
struct Copying<'a>(&'a FileStore);

impl ReadAt for Copying<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.0.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Window;
    use std::io::Write;

    #[test]
    fn touching_fails_where_reading_fails() {
        let mut file = crate::anonymous(&std::env::temp_dir()).unwrap();
        file.write_all(&vec![7; 300_000]).unwrap();
        let store = FileStore::new(file).unwrap();
        let window = Window::from(&store, 100_000);
        for (offset, len, there) in [
            (0, 0, true),
            (0, 200_000, true),
            (0, 200_001, false),
            (199_999, 1, true),
            (199_999, 2, false),
            (200_000, 0, true),
            (200_000, 1, false),
            (250_000, 1, false),
        ] {
            for result in [
                window.touch(offset, len),
                store.touch(100_000 + offset, len),
                Copying(&store).touch(100_000 + offset, len),
            ] {
                let kind = result.err().map(|e| e.kind());
                let wanted = (!there).then_some(io::ErrorKind::UnexpectedEof);
                assert_eq!(kind, wanted, "{len} bytes at {offset}");
            }
        }
    }
}
