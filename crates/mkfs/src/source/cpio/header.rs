//! Header of a member: a magic and 13 numbers of 8 hexadecimal digits.
//!
//! ```text
//! 0 magic[6]   6 inode   14 mode   22 uid   30 gid   38 nlink   46 mtime   54 size
//! 62 major  70 minor   78 rmajor  86 rminor   94 name length, with its zero byte   102 sum of the data's bytes (070702)
//! 110 name, zeros up to a multiple of 4, data, zeros up to a multiple of 4
//! ```

use super::super::error::SourceError;

/// Length of a header. Unit: bytes.
pub const HEADER_LEN: usize = 110;

/// Name that marks the end of an archive.
pub(super) const TRAILER: &[u8] = b"TRAILER!!!";

/// Key shared by all names of a file: inode number and device.
pub(super) type Inode = (u32, u32, u32);

pub(super) struct Header {
    pub(super) inode: Inode,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    /// Modification time. Unit: seconds since 1970.
    pub(super) mtime: u32,
    /// Length of the data. Unit: bytes.
    pub(super) size: u32,
    pub(super) rdev: (u32, u32),
    /// Length of the name with its zero byte. Unit: bytes.
    pub(super) name_len: u32,
    /// Sum of the data's bytes, in crc archives.
    pub(super) sum: Option<u32>,
}

impl Header {
    /// True for a regular file.
    pub(super) fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub(super) fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, SourceError> {
        let (magic, numbers) = bytes.split_at(6);
        let has_sum = match magic {
            b"070701" => false,
            b"070702" => true,
            b"070707" => {
                let what =
                    "a cpio with POSIX headers (odc) cannot be read; create it with cpio -H newc";
                return Err(SourceError::unsupported(what));
            }
            [0xc7, 0x71, ..] => {
                let what = "a cpio with binary headers cannot be read; create it with cpio -H newc";
                return Err(SourceError::unsupported(what));
            }
            _ => {
                let what = format!("not a cpio header, found \"{}\"", magic.escape_ascii());
                return Err(SourceError::corrupt(what));
            }
        };
        let mut fields = [0; 13];
        for (field, digits) in fields.iter_mut().zip(numbers.chunks_exact(8)) {
            *field = parse_hex(digits).ok_or_else(|| {
                let what = "header has an invalid hexadecimal number";
                SourceError::corrupt(format!("{what}, found \"{}\"", digits.escape_ascii()))
            })?;
        }
        let [
            ino,
            mode,
            uid,
            gid,
            nlink,
            mtime,
            size,
            major,
            minor,
            rmajor,
            rminor,
            name_len,
            sum,
        ] = fields;
        Ok(Self {
            inode: (ino, major, minor),
            mode,
            uid,
            gid,
            nlink,
            mtime,
            size,
            rdev: (rmajor, rminor),
            name_len,
            sum: has_sum.then_some(sum),
        })
    }
}

fn parse_hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |value, c| {
        // Fits: eight digits of 4 bits.
        Some(value << 4 | char::from(*c).to_digit(16)?)
    })
}

/// True if bytes begin with a cpio header, including unsupported variants, which are reported by
/// name later. No tar does, because the mode of its first member ends with a zero byte or a space
/// here.
pub(super) fn is_header(bytes: &[u8]) -> bool {
    bytes
        .first_chunk()
        .is_some_and(|bytes| is_posix(bytes) || is_binary(bytes) || Header::parse(bytes).is_ok())
}

/// True for octal digits up to the name at byte 76.
fn is_posix(bytes: &[u8; HEADER_LEN]) -> bool {
    bytes.starts_with(b"070707") && bytes[..76].iter().all(|b| (b'0'..=b'7').contains(b))
}

/// True for a binary header: the name length is at byte 20, and the name begins at byte 26. In a
/// tar, a name of 22 bytes or more would mean a length of thousands, and a shorter one is followed
/// by zeros.
fn is_binary(bytes: &[u8; HEADER_LEN]) -> bool {
    let name_len = u16::from_le_bytes([bytes[20], bytes[21]]);
    bytes.starts_with(&[0xc7, 0x71]) && (2..0x400).contains(&name_len) && bytes[26] != 0
}
