//! Recognises the format of a file or device by its first bytes.

use tuff_format::superblock;

/// Length of the examined head: every signature lies in it. Unit: bytes.
pub(crate) const HEAD: usize = 1 << 20;

/// Format of a file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Filesystem image of EROFS.
    Image,
    /// Image of SquashFS 4.
    SquashFs,
    /// Another filesystem, by its name with an article.
    Filesystem(&'static str),
    /// Partition table or boot sector.
    Partitions(&'static str),
    /// Writable volume of IPLFS.
    Volume,
    /// Stream of a snapshot of a volume.
    Stream,
    /// Profile of a mount.
    Profile,
    /// Hash tree of dm-verity.
    HashTree,
    /// Tar archive that is not compressed.
    Tar,
    /// Cpio archive in the newc format.
    Cpio,
    /// Image in the sparse format of Android, which lists the ranges that hold data.
    AndroidSparse,
    /// Compressed file of any content.
    Compressed(&'static str),
    /// Archive that is not a source of images.
    Archive(&'static str),
    /// Manifest in the form of mtree.
    Manifest,
    /// Text without a signature.
    Text,
    /// Any other known format.
    Other(&'static str),
}

impl FileKind {
    /// Name with an article: "a tar".
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Image => "an EROFS image",
            Self::SquashFs => "a SquashFS image",
            Self::Volume => "an IPLFS volume",
            Self::Stream => "a stream of a snapshot",
            Self::Profile => "a profile",
            Self::HashTree => "a dm-verity hash tree",
            Self::AndroidSparse => "an Android sparse image",
            Self::Tar => "a tar",
            Self::Cpio => "a cpio archive",
            Self::Manifest => "an mtree manifest",
            Self::Text => "a text file",
            Self::Filesystem(name)
            | Self::Partitions(name)
            | Self::Compressed(name)
            | Self::Archive(name)
            | Self::Other(name) => name,
        }
    }

    /// Format of a file that begins with `head`, if it is known.
    pub(crate) fn detect(head: &[u8]) -> Option<Self> {
        if is_image(head) {
            return Some(Self::Image);
        }
        let known = SIGNATURES
            .iter()
            .find(|(offset, magic, _)| has(head, *offset, magic));
        known.map(|(.., kind)| *kind).or_else(|| match () {
            () if is_tar(head) => Some(Self::Tar),
            () if is_text(head) => Some(Self::Text),
            () => None,
        })
    }
}

/// Returns true for the superblock of an EROFS image.
pub(crate) fn is_image(head: &[u8]) -> bool {
    has(
        head,
        superblock::OFFSET as usize,
        &superblock::MAGIC.to_le_bytes(),
    )
}

/// Returns true for a SquashFS image of version 4.
pub(crate) fn is_squashfs(head: &[u8]) -> bool {
    has(head, 0, b"hsqs")
}

/// Returns true for a GPT partition table that is not a file in a tar.
pub(crate) fn is_disk(head: &[u8]) -> bool {
    let has_table = [0x200, 0x1000].iter().any(|at| has(head, *at, b"EFI PART"));
    has_table && !is_tar(head)
}

/// Returns true for the first header of a tar, by its checksum.
pub(crate) fn is_tar(head: &[u8]) -> bool {
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

/// Returns true if the first bytes are printable UTF-8.
fn is_text(head: &[u8]) -> bool {
    let start = &head[..head.len().min(4096)];
    let printable = |b: &u8| !matches!(b, 0..=8 | 14..=26 | 28..=31 | 127);
    // The last character may be cut.
    let utf8 = std::str::from_utf8(start).map_or_else(|e| e.error_len().is_none(), |_| true);
    utf8 && !start.is_empty() && start.iter().all(printable)
}

/// Offset, signature and format. The boot sector comes last: filesystems have its signature too.
const SIGNATURES: &[(usize, &[u8], FileKind)] = &[
    (
        0x438,
        b"\x53\xef",
        FileKind::Filesystem("an ext2, ext3 or ext4 filesystem"),
    ),
    (0, b"XFSB", FileKind::Filesystem("an XFS filesystem")),
    (
        0x10040,
        b"_BHRfS_M",
        FileKind::Filesystem("a Btrfs filesystem"),
    ),
    (
        0x400,
        b"\x10\x20\xf5\xf2",
        FileKind::Filesystem("an F2FS filesystem"),
    ),
    (3, b"NTFS    ", FileKind::Filesystem("an NTFS filesystem")),
    (3, b"EXFAT   ", FileKind::Filesystem("an exFAT filesystem")),
    (54, b"FAT1", FileKind::Filesystem("a FAT filesystem")),
    (82, b"FAT32", FileKind::Filesystem("a FAT filesystem")),
    (
        0x8001,
        b"CD001",
        FileKind::Filesystem("an ISO 9660 filesystem"),
    ),
    (0xff6, b"SWAPSPACE2", FileKind::Other("swap space")),
    (0xfff6, b"SWAPSPACE2", FileKind::Other("swap space")),
    (0, b"LUKS\xba\xbe", FileKind::Other("a LUKS volume")),
    (
        0x200,
        b"LABELONE",
        FileKind::Other("an LVM physical volume"),
    ),
    (
        0,
        b"\xfc\x4e\x2b\xa9",
        FileKind::Other("a member of a RAID array"),
    ),
    (
        0x1000,
        b"\xfc\x4e\x2b\xa9",
        FileKind::Other("a member of a RAID array"),
    ),
    (0, b"\x3a\xff\x26\xed", FileKind::AndroidSparse),
    (0, b"hsqs", FileKind::SquashFs),
    (0, b"TUFFIPLF", FileKind::Volume),
    (0, b"TUFF-MAP", FileKind::Volume),
    (0, b"TUFFSEND", FileKind::Stream),
    (0, b"tuff profile 1\n", FileKind::Profile),
    (0, b"verity\0\0", FileKind::HashTree),
    (
        0x200,
        b"EFI PART",
        FileKind::Partitions("a GPT partition table"),
    ),
    (
        0x1000,
        b"EFI PART",
        FileKind::Partitions("a GPT partition table"),
    ),
    (0x101, b"ustar", FileKind::Tar),
    (0, b"070701", FileKind::Cpio),
    (0, b"\x1f\x8b", FileKind::Compressed("a gzip file")),
    (0, b"\xfd7zXZ\0", FileKind::Compressed("an xz file")),
    (
        0,
        b"\x28\xb5\x2f\xfd",
        FileKind::Compressed("a Zstandard file"),
    ),
    (0, b"BZh", FileKind::Compressed("a bzip2 file")),
    (0, b"PK\x03\x04", FileKind::Archive("a zip archive")),
    (
        0,
        b"7z\xbc\xaf\x27\x1c",
        FileKind::Archive("a 7-Zip archive"),
    ),
    (0, b"#mtree", FileKind::Manifest),
    (0, b"\x7fELF", FileKind::Other("an ELF file")),
    (0, b"%PDF", FileKind::Other("a PDF document")),
    (
        510,
        b"\x55\xaa",
        FileKind::Partitions("an MBR partition table or a boot sector"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_where_they_lie() {
        for (offset, magic, kind) in SIGNATURES {
            let mut head = vec![0; HEAD];
            head[*offset..offset + magic.len()].copy_from_slice(magic);
            assert_eq!(FileKind::detect(&head), Some(*kind));
            // A file that ends within the signature is something else.
            let cut = &head[..offset + magic.len() - 1];
            assert_ne!(FileKind::detect(cut), Some(*kind));
        }
    }

    #[test]
    fn a_tar_is_recognised_by_its_checksum() {
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
