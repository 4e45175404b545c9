//! Inodes: compact (32 bytes) and extended (64 bytes).
//!
//! ```text
//! compact   format icount mode nlink  size      mtime     u         ino    uid gid  reserved
//! extended  format icount mode hi     size(8)             u         ino    uid gid  mtime(8) nsec nlink reserved(16)
//! ```
//! Source: `docs/reference/format/inode.md`.

use crate::{Error, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a compact inode. Unit: bytes.
pub const COMPACT_LEN: usize = 32;
/// Length of an extended inode. Unit: bytes.
pub const EXTENDED_LEN: usize = 64;
/// Alignment of inodes. Unit: bytes.
pub const ALIGN: u64 = 32;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Compact {
    format: U16,
    xattr_icount: U16,
    mode: U16,
    nlink_or_hi: U16,
    size: U32,
    mtime_delta: U32,
    u: U32,
    ino: U32,
    uid: U16,
    gid: U16,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Extended {
    format: U16,
    xattr_icount: U16,
    mode: U16,
    hi: U16,
    size: U64,
    u: U32,
    ino: U32,
    uid: U32,
    gid: U32,
    mtime: U64,
    mtime_nsec: U32,
    nlink: U32,
    reserved: [u8; 16],
}

const _: () = assert!(size_of::<Compact>() == COMPACT_LEN && size_of::<Extended>() == EXTENDED_LEN);

/// Data layout of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Consecutive blocks without compression.
    FlatPlain = 0,
    /// Compressed with an index of 8-byte entries or encoded extents; or a fragment.
    CompressedFull = 1,
    /// Consecutive uncompressed blocks, with the last partial block inline after the inode.
    FlatInline = 2,
    /// Compressed with a compacted index.
    CompressedCompact = 3,
    /// Table of chunk locations.
    ChunkBased = 4,
}

/// Type of a file, from its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// Regular file, `S_IFREG` in a mode.
    File,
    /// Directory, `S_IFDIR` in a mode.
    Dir,
    /// Symbolic link, `S_IFLNK` in a mode.
    Symlink,
    /// Character device, `S_IFCHR` in a mode.
    Char,
    /// Block device, `S_IFBLK` in a mode.
    Block,
    /// Named pipe, `S_IFIFO` in a mode.
    Fifo,
    /// Unix domain socket, `S_IFSOCK` in a mode.
    Socket,
}

impl FileType {
    /// Extracts the type from `st_mode`. `None` for undefined type bits.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & 0xF000 {
            0x8000 => Self::File,
            0x4000 => Self::Dir,
            0xA000 => Self::Symlink,
            0x2000 => Self::Char,
            0x6000 => Self::Block,
            0x1000 => Self::Fifo,
            0xC000 => Self::Socket,
            _ => return None,
        })
    }

    /// Type bits for `st_mode`.
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::File => 0x8000,
            Self::Dir => 0x4000,
            Self::Symlink => 0xA000,
            Self::Char => 0x2000,
            Self::Block => 0x6000,
            Self::Fifo => 0x1000,
            Self::Socket => 0xC000,
        }
    }

    /// Type number for directory entries.
    pub fn dirent_code(self) -> u8 {
        match self {
            Self::File => 1,
            Self::Dir => 2,
            Self::Char => 3,
            Self::Block => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// Name of the type in English.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "directory",
            Self::Symlink => "symlink",
            Self::Char => "char device",
            Self::Block => "block device",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
        }
    }
}

/// Decoded inode of either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// True for the extended form.
    pub extended: bool,
    /// Layout of the data.
    pub layout: Layout,
    /// For a directory: "." is omitted. For other compact inodes: the link count is 1 and the high half of the
    /// address is valid.
    pub flag4: bool,
    /// Encoded length of the xattr body: see [`xattr_len`](Self::xattr_len).
    pub xattr_icount: u16,
    /// Mode with type and permission bits, as in `st_mode`.
    pub mode: u16,
    /// Number of hard links.
    pub nlink: u32,
    /// File size. Unit: bytes.
    pub size: u64,
    /// Modification time. Unit: seconds, since the superblock's epoch for a compact inode.
    pub mtime: i64,
    /// Nanoseconds of the modification time. Not stored in a compact inode.
    pub mtime_nsec: u32,
    /// Start block, block count, chunk format or device number, depending on type and layout. 48 bits with a high
    /// half.
    pub u: u64,
    /// Serial number, for information only.
    pub ino: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// True if all bits of the start block are set: the file has no data blocks.
    pub no_start: bool,
}

impl Inode {
    /// Length of the inode, from its first two bytes. Unit: bytes.
    pub fn len_of(format: u16) -> usize {
        if format & 1 != 0 {
            EXTENDED_LEN
        } else {
            COMPACT_LEN
        }
    }

    /// Decodes the inode at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let format = crate::wire::u16_at(bytes, 0, "inode")?;
        if format & !0x1F != 0 {
            return Err(Error::unsupported(
                "inode format bit",
                (format & !0x1F).into(),
            ));
        }
        let layout = match format >> 1 & 7 {
            0 => Layout::FlatPlain,
            1 => Layout::CompressedFull,
            2 => Layout::FlatInline,
            3 => Layout::CompressedCompact,
            4 => Layout::ChunkBased,
            other => return Err(Error::unsupported("inode data layout", other.into())),
        };
        let flag4 = format & 0x10 != 0;
        let inode = if format & 1 == 0 {
            let (raw, _) = Compact::read_from_prefix(bytes).map_err(|_| Error::corrupt("inode"))?;
            let dir = raw.mode.get() & 0xF000 == 0x4000;
            let wide = flag4 && !dir;
            let hi = if wide {
                u64::from(raw.nlink_or_hi.get())
            } else {
                0
            };
            let u = u64::from(raw.u.get()) | hi << 32;
            Self {
                extended: false,
                layout,
                flag4,
                xattr_icount: raw.xattr_icount.get(),
                mode: raw.mode.get(),
                nlink: if wide {
                    1
                } else {
                    raw.nlink_or_hi.get().into()
                },
                size: raw.size.get().into(),
                mtime: raw.mtime_delta.get().into(),
                mtime_nsec: 0,
                u,
                ino: raw.ino.get(),
                uid: raw.uid.get().into(),
                gid: raw.gid.get().into(),
                no_start: if wide {
                    u == (1 << 48) - 1
                } else {
                    u == u64::from(u32::MAX)
                },
            }
        } else {
            let (raw, _) =
                Extended::read_from_prefix(bytes).map_err(|_| Error::corrupt("inode"))?;
            let u = u64::from(raw.u.get()) | u64::from(raw.hi.get()) << 32;
            Self {
                extended: true,
                layout,
                flag4,
                xattr_icount: raw.xattr_icount.get(),
                mode: raw.mode.get(),
                nlink: raw.nlink.get(),
                size: raw.size.get(),
                mtime: raw.mtime.get().cast_signed(),
                mtime_nsec: raw.mtime_nsec.get(),
                u,
                ino: raw.ino.get(),
                uid: raw.uid.get(),
                gid: raw.gid.get(),
                no_start: u == (1 << 48) - 1,
            }
        };
        if inode.size >> 63 != 0 {
            return Err(Error::bad("file size", inode.size, "below 2^63"));
        }
        if FileType::from_mode(inode.mode).is_none() {
            return Err(Error::bad(
                "mode",
                inode.mode.into(),
                "the type bits of a known file type",
            ));
        }
        Ok(inode)
    }

    /// Encodes the inode as 32 or 64 bytes.
    pub fn encode(&self, out: &mut alloc::vec::Vec<u8>) {
        let format =
            u16::from(self.extended) | (self.layout as u16) << 1 | u16::from(self.flag4) << 4;
        let [u0, u1, u2, u3, h0, h1, ..] = self.u.to_le_bytes();
        let hi = U16::from_bytes([h0, h1]);
        let dir = self.mode & 0xF000 == 0x4000;
        if self.extended {
            let raw = Extended {
                format: U16::new(format),
                xattr_icount: U16::new(self.xattr_icount),
                mode: U16::new(self.mode),
                hi,
                size: U64::new(self.size),
                u: U32::from_bytes([u0, u1, u2, u3]),
                ino: U32::new(self.ino),
                uid: U32::new(self.uid),
                gid: U32::new(self.gid),
                mtime: U64::new(self.mtime.cast_unsigned()),
                mtime_nsec: U32::new(self.mtime_nsec),
                nlink: U32::new(self.nlink),
                reserved: [0; 16],
            };
            out.extend_from_slice(raw.as_bytes());
        } else {
            debug_assert!(self.size <= u32::MAX.into() && self.uid <= 0xFFFF && self.gid <= 0xFFFF);
            debug_assert!(self.nlink <= 0xFFFF && (0..=i64::from(u32::MAX)).contains(&self.mtime));
            let raw = Compact {
                format: U16::new(format),
                xattr_icount: U16::new(self.xattr_icount),
                mode: U16::new(self.mode),
                nlink_or_hi: if self.flag4 && !dir {
                    hi
                } else {
                    U16::new(self.nlink as u16)
                },
                size: U32::new(self.size as u32),
                mtime_delta: U32::new(self.mtime as u32),
                u: U32::from_bytes([u0, u1, u2, u3]),
                ino: U32::new(self.ino),
                uid: U16::new(self.uid as u16),
                gid: U16::new(self.gid as u16),
                reserved: U32::new(0),
            };
            out.extend_from_slice(raw.as_bytes());
        }
    }

    /// Length of the inode without xattrs and data. Unit: bytes.
    #[expect(clippy::len_without_is_empty, reason = "an inode is never empty")]
    pub fn len(&self) -> usize {
        if self.extended {
            EXTENDED_LEN
        } else {
            COMPACT_LEN
        }
    }

    /// Length of the xattr body after the inode. Unit: bytes.
    pub fn xattr_len(&self) -> usize {
        match self.xattr_icount {
            0 => 0,
            n => 12 + 4 * (usize::from(n) - 1),
        }
    }

    /// File type. Decoding has checked that the mode has one.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::File)
    }

    /// True for a directory without a "." entry.
    pub fn dot_omitted(&self) -> bool {
        self.flag4 && self.file_type() == FileType::Dir
    }
}

/// Encodes a device number for `i_u`: the major number has 12 bits, the minor number 20.
pub fn encode_device(major: u32, minor: u32) -> u32 {
    debug_assert!(major >> 12 == 0 && minor >> 20 == 0);
    minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12
}

/// Decodes major and minor number from `i_u`.
pub fn decode_device(u: u32) -> (u32, u32) {
    (u >> 8 & 0xFFF, u & 0xFF | u >> 12 & 0xF_FF00)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn sample(extended: bool) -> Inode {
        Inode {
            extended,
            layout: Layout::FlatInline,
            flag4: false,
            xattr_icount: 3,
            mode: 0o100644,
            nlink: 2,
            size: 98500,
            mtime: if extended { -5 } else { 0 },
            mtime_nsec: if extended { 999_999_999 } else { 0 },
            u: 7,
            ino: 4,
            uid: 1000,
            gid: 65535,
            no_start: false,
        }
    }

    #[test]
    fn both_forms_survive_a_round_trip() {
        for extended in [false, true] {
            let mut bytes = Vec::new();
            sample(extended).encode(&mut bytes);
            assert_eq!(bytes.len(), sample(extended).len());
            assert_eq!(Inode::decode(&bytes).unwrap(), sample(extended));
            for n in 0..bytes.len() {
                assert!(Inode::decode(&bytes[..n]).is_err());
            }
        }
    }

    #[test]
    fn an_absent_start_block_sets_all_bits_of_its_form() {
        let mut bytes = Vec::new();
        let mut inode = Inode {
            u: u32::MAX.into(),
            ..sample(true)
        };
        inode.encode(&mut bytes);
        assert!(!Inode::decode(&bytes).unwrap().no_start);
        inode.u = (1 << 48) - 1;
        bytes.clear();
        inode.encode(&mut bytes);
        assert!(Inode::decode(&bytes).unwrap().no_start);
        bytes.clear();
        Inode {
            u: u32::MAX.into(),
            ..sample(false)
        }
        .encode(&mut bytes);
        assert!(Inode::decode(&bytes).unwrap().no_start);
    }

    #[test]
    fn device_numbers_keep_twelve_and_twenty_bits() {
        for (major, minor) in [(0, 0), (8, 1), (4095, 0xF_FFFF), (259, 0x12345)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
        assert_eq!(encode_device(8, 1), 0x801);
    }

    #[test]
    fn foreign_modes_layouts_and_sizes_are_rejected() {
        let mut bytes = Vec::new();
        sample(true).encode(&mut bytes);
        for (at, value) in [(0, 0x0B), (1, 1), (5, 0x00), (15, 0x80)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert!(Inode::decode(&bad).is_err(), "byte {at}");
        }
    }
}
