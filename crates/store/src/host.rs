//! System calls that are retried after a signal, and opening of files without blocking.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Error of a system call that a signal may interrupt.
pub trait Interruptible {
    /// True if the error is EINTR.
    fn is_interrupted(&self) -> bool;
}

impl Interruptible for io::Error {
    fn is_interrupted(&self) -> bool {
        self.raw_os_error() == Some(Errno::INTR.raw_os_error())
    }
}

impl Interruptible for Errno {
    fn is_interrupted(&self) -> bool {
        *self == Errno::INTR
    }
}

/// Repeats a system call until it does not end with EINTR. Cancellation is the task of loops around it.
pub fn retry<T, E: Interruptible>(mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    loop {
        match call() {
            Err(e) if e.is_interrupted() => {}
            done => return done,
        }
    }
}

/// Opens a regular file. All other types are refused without opening them, so that the call cannot block.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_if(path, &|meta| meta.is_file())
}

/// Opens a file for sequential reading: a regular file, a block device, an anonymous pipe (`<(command)` of a
/// shell), or `/dev/null`. Named pipes are refused, because they may have no writer.
pub fn open_text(path: &Path) -> io::Result<File> {
    let null = || std::fs::metadata("/dev/null").map(|m| m.rdev());
    let file = open_if(path, &|meta| {
        let kind = meta.file_type();
        meta.is_file()
            || kind.is_block_device()
            || kind.is_fifo() && !has_name(path, meta)
            || kind.is_char_device() && null().is_ok_and(|null| null == meta.rdev())
    })?;
    // Reads of a pipe must wait for its writer.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Opens an image or stream without blocking: a regular file, a block device, or a pipe, which stays non-blocking.
pub fn open_stream(path: &Path) -> io::Result<File> {
    open_if(path, &|meta| {
        let kind = meta.file_type();
        meta.is_file() || kind.is_block_device() || kind.is_fifo()
    })
}

pub(crate) fn open_if(path: &Path, fits: &dyn Fn(&Metadata) -> bool) -> io::Result<File> {
    let check = |meta: Metadata| match fits(&meta) {
        true => Ok(()),
        false => Err(refused(meta.file_type())),
    };
    // Opening a device may have side effects.
    check(retry(|| std::fs::metadata(path))?)?;
    let file = retry(|| {
        let mut options = OpenOptions::new();
        // Fits: a flag of `open`, which takes an int.
        options
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32);
        match options.open(path) {
            // A lease holder must release the file first: wait for it.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => File::open(path),
            opened => opened,
        }
    })?;
    check(retry(|| file.metadata())?)?;
    Ok(file)
}

/// True for a named pipe. Anonymous pipes are in the kernel's pipefs.
fn has_name(path: &Path, meta: &Metadata) -> bool {
    const PIPE_FS: u64 = 0x5049_5045;
    let own = |file: &Path| rustix::fs::statfs(file).is_ok_and(|fs| fs.f_type as u64 == PIPE_FS);
    meta.file_type().is_fifo() && !own(path)
}

/// Error for a file type that does not support positional reads.
fn refused(kind: FileType) -> io::Error {
    let what = if kind.is_dir() {
        return Errno::ISDIR.into();
    } else if kind.is_fifo() {
        "a pipe, neither a regular file nor a block device"
    } else if kind.is_char_device() {
        "a character device, neither a regular file nor a block device"
    } else if kind.is_block_device() {
        "a block device, no regular file"
    } else {
        "neither a regular file nor a block device"
    };
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// True if reads return at once when no data is available, as those of a pipe from [`open_stream`].
pub fn is_nonblocking(file: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_calls_are_repeated() {
        let mut left = 3;
        let result = retry(|| {
            left -= 1;
            match left {
                0 => Err(Errno::NOENT),
                _ => Err::<(), _>(Errno::INTR),
            }
        });
        assert_eq!((result, left), (Err(Errno::NOENT), 0));
    }

    #[test]
    fn files_that_could_block_are_not_opened() {
        let dir = std::env::temp_dir().join(format!("tuff-host-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let pipe = dir.join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.join("zero")).unwrap();
        std::fs::write(dir.join("file"), "text").unwrap();
        type Door = fn(&Path) -> io::Result<File>;
        for (name, open, fits) in [
            ("pipe", open_regular as Door, false),
            ("pipe", open_text, false),
            ("pipe", open_stream, true),
            ("zero", open_regular, false),
            ("zero", open_text, false),
            ("zero", open_stream, false),
            ("file", open_regular, true),
            ("file", open_text, true),
            ("file", open_stream, true),
        ] {
            let opened = open(&dir.join(name));
            assert_eq!(opened.is_ok(), fits, "{name}: {opened:?}");
        }
        assert!(open_text(Path::new("/dev/null")).is_ok());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
