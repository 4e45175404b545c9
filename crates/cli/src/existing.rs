//! Refuses outputs that would destroy data: a file of another kind than the verb writes, a device with a filesystem or a
//! partition table, and binary output to a terminal.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use tuff_erofs::serve::Profile;
use tuff_erofs::{Error, Result};
use tuff_format::superblock;
use tuff_store::retry;

/// Bytes that are examined. The signatures of all filesystems below lie there. Unit: bytes.
const HEAD: usize = 1 << 20;
/// Bytes that tell every format that is written. Unit: bytes.
const START: usize = 4096;

/// Format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// An EROFS image.
    Image,
    /// A tar.
    Tar,
    /// A profile of a mount.
    Profile,
    /// A snapshot of a volume as a stream.
    Stream,
    /// A hash tree of dm-verity.
    HashTree,
    /// Chunks of files without any header.
    Blob,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Image => "an EROFS image",
            Self::Tar => "a tar",
            Self::Profile => "a profile",
            Self::Stream => "a stream of a snapshot",
            Self::HashTree => "a hash tree",
            Self::Blob => "a file of chunks",
        }
    }

    /// True if a file or device that begins with `head` is of this format.
    fn matches(self, head: &[u8]) -> bool {
        match self {
            Self::Image => is_image(head),
            Self::Tar => is_tar(head),
            Self::Profile => Profile::is_profile(head),
            Self::Stream => head.starts_with(b"TUFFSEND"),
            Self::HashTree => head.starts_with(b"verity\0\0"),
            // Chunks have nothing to be recognised by.
            Self::Blob => false,
        }
    }

    /// Advice at the end of a refusal.
    fn remedy(self) -> &'static str {
        match self {
            Self::Profile => "name another output, or delete it first",
            Self::Image => "name another output (-o IMAGE), or replace it with --force",
            _ => "name another output, or replace it with --force",
        }
    }
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
    // If it cannot be examined, opening it for writing fails and says why.
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
        signature(&head).unwrap_or("data of another kind"),
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
    match signature(&head).filter(|_| !is_image(&head)) {
        Some(what) => Err(Error::usage(format_args!(
            "{}: holds {what}: name another output, or overwrite it with --force",
            path.display()
        ))),
        None => Ok(()),
    }
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

/// The bytes at `offset`, at most `max`.
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

fn is_image(head: &[u8]) -> bool {
    has(
        head,
        superblock::OFFSET as usize,
        &superblock::MAGIC.to_le_bytes(),
    )
}

/// True for the first header of a tar, by its checksum.
fn is_tar(head: &[u8]) -> bool {
    let Some(header) = head.get(..512) else {
        return false;
    };
    let (before, sum, after) = (&header[..148], &header[148..156], &header[156..]);
    let digits = sum.trim_ascii_start().split(|b| matches!(b, 0 | b' '));
    let stated = digits.into_iter().next().and_then(|digits| {
        let text = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(text, 8).ok()
    });
    let bytes = before.iter().chain(&[b' '; 8]).chain(after);
    stated == Some(bytes.map(|b| u32::from(*b)).sum())
}

fn has(head: &[u8], offset: usize, magic: &[u8]) -> bool {
    head.get(offset..)
        .is_some_and(|rest| rest.starts_with(magic))
}

/// Offset, bytes, and what has them there. A partition table of a PC comes last: filesystems have its mark, too.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 filesystem"),
    (0, b"XFSB", "an XFS filesystem"),
    (0x10040, b"_BHRfS_M", "a Btrfs filesystem"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (3, b"EXFAT   ", "an exFAT filesystem"),
    (54, b"FAT1", "a FAT filesystem"),
    (82, b"FAT32", "a FAT filesystem"),
    (0x8001, b"CD001", "an ISO 9660 filesystem"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0xfff6, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (0x200, b"LABELONE", "an LVM physical volume"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a member of a RAID array"),
    (0, b"hsqs", "a SquashFS image"),
    (0, b"TUFFIPLF", "an IPLFS volume"),
    (0, b"TUFFSEND", "a stream of a snapshot"),
    (0, b"tuff profile 1\n", "a profile"),
    (0, b"verity\0\0", "a dm-verity hash tree"),
    (0x200, b"EFI PART", "a GPT partition table"),
    (0x1000, b"EFI PART", "a GPT partition table"),
    (0x101, b"ustar", "a tar"),
    (0, b"070701", "a cpio archive"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"\xfd7zXZ\0", "an xz file"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x7fELF", "an ELF file"),
    (0, b"%PDF", "a PDF document"),
    (510, b"\x55\xaa", "an MBR partition table or a boot sector"),
];

/// Names the format of a file or device by its first bytes.
fn signature(head: &[u8]) -> Option<&'static str> {
    if is_image(head) {
        return Some("an EROFS image");
    }
    let known = SIGNATURES
        .iter()
        .find(|(offset, magic, _)| has(head, *offset, magic));
    known.map(|(.., name)| *name).or_else(|| {
        let start = &head[..head.len().min(4096)];
        let printable = |b: &u8| !matches!(b, 0..=8 | 14..=26 | 28..=31 | 127);
        // The last character may be cut.
        let utf8 = std::str::from_utf8(start).map_or_else(|e| e.error_len().is_none(), |_| true);
        let is_text = utf8 && !start.is_empty() && start.iter().all(printable);
        match () {
            () if is_tar(head) => Some("a tar"),
            () if is_text => Some("a text file"),
            () => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_where_they_lie() {
        for (offset, magic, name) in SIGNATURES {
            let mut head = vec![0; HEAD];
            head[*offset..offset + magic.len()].copy_from_slice(magic);
            assert_eq!(signature(&head), Some(*name));
            // A file that ends within it is something else, and no panic.
            assert_ne!(signature(&head[..offset + magic.len() - 1]), Some(*name));
        }
    }

    #[test]
    fn a_tar_is_told_by_its_checksum() {
        let mut tar = vec![0; 512];
        tar[..4].copy_from_slice(b"name");
        tar[148..156].fill(b' ');
        let sum: u32 = tar.iter().map(|b| u32::from(*b)).sum();
        tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(is_tar(&tar));
        tar[0] = b'm';
        assert!(!is_tar(&tar));
        assert!(!is_tar(&[]) && !is_tar(&[0; 512]));
    }
}
