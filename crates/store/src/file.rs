//! Store over a file or block device.

use crate::ReadAt;
use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use portable as system;

/// Open file or block device, read at positions without a shared cursor. Block devices are supported on Linux.
///
/// Not a memory map: a bad sector or a truncated file raises SIGBUS in a map, but returns an error from a read.
pub struct FileStore {
    file: File,
    size: u64,
    hints: system::Hints,
}

impl FileStore {
    /// Opens `path` for reading. Pipes and character devices are refused without opening them, because that may
    /// block.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(system::open(path)?)
    }

    /// Wraps an open file or block device.
    pub fn new(mut file: File) -> io::Result<Self> {
        let size = system::size(&mut file)?;
        let hints = system::Hints::default();
        Ok(Self { file, size, hints })
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
        system::read_at(&self.file, buf, offset)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.hints.touch(self, offset, len)
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.hints.will_need(&self.file, offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        self.hints.done_with(&self.file, offset, len);
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

/// System calls of Linux: `pread`, `sendfile` and `fadvise`.
#[cfg(target_os = "linux")]
mod linux {
    use super::{CopyingStore, FileStore, unsupported_type};
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

    /// Number of bytes per `sendfile` call of [`ReadAt::touch`]. A signal waits for the end of a call. Unit: bytes.
    const TOUCHED: u64 = 16 << 20;

    /// `/dev/null`, the target of [`ReadAt::touch`], opened on first use. `None` if it cannot be opened.
    #[derive(Default)]
    pub(super) struct Hints(OnceLock<Option<File>>);

    pub(super) fn open(path: &Path) -> io::Result<File> {
        open_if(path, &|meta| {
            meta.is_file() || meta.file_type().is_block_device()
        })
    }

    pub(super) fn size(file: &mut File) -> io::Result<u64> {
        let meta = retry(|| file.metadata())?;
        if meta.file_type().is_block_device() {
            retry(|| file.seek(SeekFrom::End(0)))
        } else if meta.is_file() {
            Ok(meta.len())
        } else {
            Err(unsupported_type())
        }
    }

    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        retry(|| file.read_at(buf, offset))
    }

    impl Hints {
        /// Sends the pages to `/dev/null`, which discards them. They are read and errors are detected, but nothing is
        /// copied.
        pub(super) fn touch(&self, store: &FileStore, offset: u64, len: u64) -> io::Result<()> {
            let sink = || File::options().write(true).open("/dev/null").ok();
            let Some(sink) = self.0.get_or_init(sink) else {
                return CopyingStore(store).touch(offset, len);
            };
            let (mut at, end) = (offset, offset.saturating_add(len));
            while at < end {
                // Fits: at most TOUCHED. `sendfile` advances `at`.
                let n = (end - at).min(TOUCHED) as usize;
                match sendfile(sink, &store.file, Some(&mut at), n) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) | Err(Errno::INTR) => {}
                    // Some filesystems do not support `sendfile`.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        return CopyingStore(store).touch(at, end - at);
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(())
        }

        pub(super) fn will_need(&self, file: &File, offset: u64, len: u64) {
            // Only a hint: errors have no effect on later reads.
            if let Some(len) = NonZeroU64::new(len) {
                let _ = fadvise(file, offset, Some(len), Advice::WillNeed);
            }
        }

        pub(super) fn done_with(&self, file: &File, offset: u64, len: u64) {
            // Only a hint, too.
            if let Some(len) = NonZeroU64::new(len) {
                let _ = fadvise(file, offset, Some(len), Advice::DontNeed);
            }
        }
    }
}

/// Other systems: regular files, positional reads of std, no hints.
#[cfg(not(target_os = "linux"))]
mod portable {
    use super::{CopyingStore, FileStore, unsupported_type};
    use crate::ReadAt;
    use std::fs::File;
    use std::io;
    use std::path::Path;

    #[derive(Default)]
    pub(super) struct Hints;

    pub(super) fn open(path: &Path) -> io::Result<File> {
        match std::fs::metadata(path)?.is_file() {
            true => File::open(path),
            false => Err(unsupported_type()),
        }
    }

    pub(super) fn size(file: &mut File) -> io::Result<u64> {
        let meta = file.metadata()?;
        match meta.is_file() {
            true => Ok(meta.len()),
            false => Err(unsupported_type()),
        }
    }

    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            #[cfg(unix)]
            let read = std::os::unix::fs::FileExt::read_at(file, buf, offset);
            #[cfg(windows)]
            let read = std::os::windows::fs::FileExt::seek_read(file, buf, offset);
            #[cfg(not(any(unix, windows)))]
            let read = unsupported(file, buf, offset);
            match read {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Fails: the target, such as WebAssembly, has no files that could have been opened.
    #[cfg(not(any(unix, windows)))]
    fn unsupported(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    impl Hints {
        pub(super) fn touch(&self, store: &FileStore, offset: u64, len: u64) -> io::Result<()> {
            CopyingStore(store).touch(offset, len)
        }

        pub(super) fn will_need(&self, _file: &File, _offset: u64, _len: u64) {}

        pub(super) fn done_with(&self, _file: &File, _offset: u64, _len: u64) {}
    }
}

#[cfg(all(test, target_os = "linux"))]
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
        for (offset, len, is_readable) in [
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
                let expected = (!is_readable).then_some(io::ErrorKind::UnexpectedEof);
                assert_eq!(kind, expected, "{len} bytes at {offset}");
            }
        }
    }
}
