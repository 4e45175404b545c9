//! System calls of the host: what a signal interrupted is repeated, and nothing that could block is opened.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// An error that may say that a signal came.
pub trait Interruptible {
    /// True for EINTR.
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

/// Repeats a system call for as long as it ends with EINTR. Loops around it look whether to stop.
pub fn retry<T, E: Interruptible>(mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    loop {
        match call() {
            Err(e) if e.is_interrupted() => {}
            done => return done,
        }
    }
}

/// Opens a regular file. Anything else is refused, and nothing waits: a pipe or a device is not opened at all.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_if(path, &|meta| meta.is_file())
}

/// Opens a file of which bytes are read in order: a regular one, a block device, the end of a pipe that another program holds (`<(command)` of a
/// shell), or `/dev/null`. A pipe with a name is refused: it may have no writer.
pub fn open_text(path: &Path) -> io::Result<File> {
    let null = || std::fs::metadata("/dev/null").map(|m| m.rdev());
    let file = open_if(path, &|meta| {
        let kind = meta.file_type();
        meta.is_file()
            || kind.is_block_device()
            || kind.is_fifo() && !has_name(path, meta)
            || kind.is_char_device() && null().is_ok_and(|null| null == meta.rdev())
    })?;
    // A pipe is waited for.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Opens what may be read as an image or a stream without waiting: a regular file, a block device, or a pipe, which stays
/// non-blocking.
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
    // Opening a device may do something to it.
    check(retry(|| std::fs::metadata(path))?)?;
    let file = retry(|| {
        let mut options = OpenOptions::new();
        // Fits: a flag of `open`, which takes an int.
        options
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32);
        match options.open(path) {
            // Another program has a lease on the file and is asked to give it back.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => File::open(path),
            opened => opened,
        }
    })?;
    check(retry(|| file.metadata())?)?;
    Ok(file)
}

/// True for a pipe in a directory. The others are in a filesystem of the kernel.
fn has_name(path: &Path, meta: &Metadata) -> bool {
    const PIPE_FS: u64 = 0x5049_5045;
    let own = |file: &Path| rustix::fs::statfs(file).is_ok_and(|fs| fs.f_type as u64 == PIPE_FS);
    meta.file_type().is_fifo() && !own(path)
}

/// Error for a kind of file that cannot be read at any position.
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

/// True if reading ends at once where there is nothing, as of a pipe of [`open_stream`].
pub fn is_nonblocking(file: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_repeated_until_no_signal_interrupts_it() {
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
    fn what_could_block_is_not_opened() {
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
