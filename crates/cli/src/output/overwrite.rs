//! Refuses outputs that would destroy data: a file of another format than the verb writes, a device with a filesystem
//! or a partition table, and binary output to a terminal.

use crate::file_kind::{FileKind, HEAD, is_image, is_tar};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use tuff_disk::is_sealed;
use tuff_erofs::serve::Profile;
use tuff_erofs::{Error, Result};
use tuff_store::retry;

/// Length of a head that identifies every format that is written. Unit: bytes.
const START: usize = 16 << 10;

/// First bytes of a page of `tuff report`.
#[cfg(feature = "report")]
pub(crate) const REPORT_START: &str = "<!doctype html>\n<html lang=\"en\" class=\"tuff-report\">";

/// Format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Filesystem image of EROFS.
    Image,
    /// Disk with an image and its hash tree.
    Disk,
    /// Tar archive that is not compressed.
    Tar,
    /// Access profile of a mount.
    Profile,
    /// Trace of the requests of a mount.
    Trace,
    /// Stream of a snapshot of a volume.
    Stream,
    /// Hash tree of dm-verity.
    HashTree,
    /// Chunks of files without any header.
    Blob,
    /// Page of `tuff report`.
    #[cfg(feature = "report")]
    Report,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Image => "an EROFS image",
            Self::Disk => "a disk of tuff disk",
            Self::Tar => "a tar",
            Self::Profile => "a profile",
            Self::Trace => "a trace",
            Self::Stream => "a stream of a snapshot",
            Self::HashTree => "a hash tree",
            Self::Blob => "a file of chunks",
            #[cfg(feature = "report")]
            Self::Report => "a report",
        }
    }

    /// Returns true if a file or device that begins with `head` is of this format.
    fn matches(self, head: &[u8]) -> bool {
        match self {
            Self::Image => is_image(head),
            Self::Disk => is_sealed(head),
            Self::Tar => is_tar(head),
            Self::Profile => Profile::is_profile(head),
            Self::Trace => is_trace(head),
            Self::Stream => head.starts_with(b"TUFFSEND"),
            Self::HashTree => head.starts_with(b"verity\0\0"),
            // Chunks have no signature.
            Self::Blob => false,
            #[cfg(feature = "report")]
            Self::Report => head.starts_with(REPORT_START.as_bytes()),
        }
    }

    /// Advice at the end of a refusal.
    fn remedy(self) -> &'static str {
        match self {
            Self::Profile | Self::Trace => "name another output, or delete it first",
            Self::Image => "name another output (-o IMAGE), or replace it with --force",
            _ => "name another output, or replace it with --force",
        }
    }
}

/// Returns true for a line of a trace: a request, or the sums.
fn is_trace(head: &[u8]) -> bool {
    [&br#"{"start_ms":"#[..], br#"{"requests":"#]
        .iter()
        .any(|start| head.starts_with(start))
}

/// Fails if writing `format` to `path` would destroy something else. `-` is standard output.
///
/// # Errors
/// `Usage` for a file, device or terminal as described above; `Io` for an output that exists and cannot be read.
pub(crate) fn check(path: &Path, format: Format) -> Result<()> {
    if path == Path::new("-") {
        return match io::stdout().is_terminal() {
            true => Err(terminal("standard output", format)),
            false => Ok(()),
        };
    }
    // If metadata cannot be read, opening the file for writing reports the error.
    let Ok(meta) = retry(|| std::fs::metadata(path)) else {
        return Ok(());
    };
    let kind = meta.file_type();
    if kind.is_char_device() {
        return match is_terminal(path) {
            true => Err(terminal(&path.display().to_string(), format)),
            false => Ok(()),
        };
    }
    if !(kind.is_file() || kind.is_block_device()) {
        return Ok(());
    }
    if format.matches(&head(path, 0, START)?) {
        return Ok(());
    }
    let head = head(path, 0, HEAD)?;
    if head.iter().all(|b| *b == 0) {
        return Ok(());
    }
    let holds = if kind.is_file() { "is" } else { "holds" };
    Err(Error::usage(format_args!(
        "{}: {holds} {}, not {}: {}",
        path.display(),
        FileKind::detect(&head).map_or("data of another kind", FileKind::name),
        format.name(),
        format.remedy()
    )))
}

/// Fails if the part of the block device `path` that begins at byte `offset` holds a known filesystem, partition table or
/// the like, but no EROFS image; or if `path` is a terminal.
///
/// # Errors
/// `Usage` for such a device; `Io` for one that cannot be read.
pub(crate) fn check_device(path: &Path, offset: u64) -> Result<()> {
    let kind = retry(|| std::fs::metadata(path)).map(|m| m.file_type());
    if kind.as_ref().is_ok_and(FileTypeExt::is_char_device) {
        return check(path, Format::Image);
    }
    if !kind.is_ok_and(|kind| kind.is_block_device()) {
        return Ok(());
    }
    let head = head(path, offset, HEAD)?;
    match FileKind::detect(&head).filter(|kind| *kind != FileKind::Image) {
        Some(kind) => Err(Error::usage(format_args!(
            "{}: holds {}: name another output, or overwrite it with --force",
            path.display(),
            kind.name()
        ))),
        None => Ok(()),
    }
}

/// Fails if a file or block device begins with data, which a volume would replace.
///
/// # Errors
/// `Usage` for such a file or device; `Io` for one that cannot be read.
pub(crate) fn check_blank(path: &Path) -> Result<()> {
    let head = head(path, 0, HEAD)?;
    if head.iter().all(|b| *b == 0) {
        return Ok(());
    }
    Err(Error::usage(format_args!(
        "{}: holds {}; --force creates a volume on it and destroys its content",
        path.display(),
        FileKind::detect(&head).map_or("data", FileKind::name)
    )))
}

fn terminal(place: &str, format: Format) -> Error {
    Error::usage(format_args!(
        "{place} is a terminal, and {} is binary: redirect it, or write it there with --force",
        format.name()
    ))
}

fn is_terminal(path: &Path) -> bool {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).is_ok_and(|fd| fd.is_terminal())
}

/// Reads at most `max` bytes at `offset`.
fn head(path: &Path, offset: u64, max: usize) -> Result<Vec<u8>> {
    let failed = |e| Error::io(path.display(), "cannot read what the output has", e);
    let file = File::open(path).map_err(failed)?;
    let (mut head, mut len) = (vec![0; max], 0);
    while len < max {
        match file.read_at(&mut head[len..], offset + len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    head.truncate(len);
    Ok(head)
}
