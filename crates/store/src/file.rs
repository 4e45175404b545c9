//! Store over a file or block device.

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

/// Open file or block device, read with `pread`.
///
/// Not a memory map: a bad sector or a truncated file raises SIGBUS in a map, but returns an error from a read.
pub struct FileStore {
    file: File,
    size: u64,
    /// `/dev/null`, the target of [`ReadAt::touch`], opened on first use. `None` if it cannot be opened.
    sink: OnceLock<Option<File>>,
}

/// Number of bytes per `sendfile` call of [`ReadAt::touch`]. A signal waits for the end of a call. Unit: bytes.
const TOUCHED: u64 = 16 << 20;

impl FileStore {
    /// Opens `path` for reading. Pipes and character devices are refused without opening them, because that may
    /// block.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(open_if(path, &|meta| {
            meta.is_file() || meta.file_type().is_block_device()
        })?)
    }

    /// Wraps an open file or block device.
    pub fn new(mut file: File) -> io::Result<Self> {
        let meta = retry(|| file.metadata())?;
        let size = if meta.file_type().is_block_device() {
            retry(|| file.seek(SeekFrom::End(0)))?
        } else if meta.is_file() {
            meta.len()
        } else {
            return Err(unsupported_type());
        };
        Ok(Self {
            file,
            size,
            sink: OnceLock::new(),
        })
    }

    /// Underlying file of the store.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn unsupported_type() -> io::Error {
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

    /// Sends the pages to `/dev/null`, which discards them. They are read and errors are detected, but nothing is
    /// copied.
    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        let sink = || File::options().write(true).open("/dev/null").ok();
        let Some(sink) = self.sink.get_or_init(sink) else {
            return CopyingStore(self).touch(offset, len);
        };
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            // Fits: at most TOUCHED. `sendfile` advances `at`.
            let n = (end - at).min(TOUCHED) as usize;
            match sendfile(sink, &self.file, Some(&mut at), n) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                // Some filesystems do not support `sendfile`.
                Err(Errno::INVAL | Errno::NOSYS) => return CopyingStore(self).touch(at, end - at),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn will_need(&self, offset: u64, len: u64) {
        // Only a hint: errors have no effect on later reads.
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn done_with(&self, offset: u64, len: u64) {
        // Only a hint, too.
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fadvise(&self.file, offset, Some(len), Advice::DontNeed);
        }
    }
}

/// Store that implements `touch` by copying, for files without `sendfile`.
struct CopyingStore<'a>(&'a FileStore);

impl ReadAt for CopyingStore<'_> {
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
    fn touch_fails_where_reads_fail() {
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
                CopyingStore(&store).touch(100_000 + offset, len),
            ] {
                let kind = result.err().map(|e| e.kind());
                let wanted = (!there).then_some(io::ErrorKind::UnexpectedEof);
                assert_eq!(kind, wanted, "{len} bytes at {offset}");
            }
        }
    }
}
