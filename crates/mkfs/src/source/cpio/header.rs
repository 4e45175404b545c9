//! The header of a member: a magic and 13 numbers of 8 hexadecimal digits.
//!
//! ```text
//!   0 magic[6]   6 inode   14 mode   22 uid   30 gid   38 nlink   46 mtime   54 size
//!  62 major  70 minor   78 rmajor  86 rminor   94 name length, with its zero byte   102 sum of the data's bytes (070702)
//! 110 name, zeros up to a multiple of 4, data, zeros up to a multiple of 4
//! ```

use super::super::error::SourceError;

/// Unit: bytes.
pub const HEADER_LEN: usize = 110;

/// The name behind the last member.
pub(super) const TRAILER: &[u8] = b"TRAILER!!!";

/// What two names of one file have in common: number and device.
pub(super) type Inode = (u32, u32, u32);

pub(super) struct Header {
    pub(super) inode: Inode,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u32,
    /// Unit: seconds since 1970.
    pub(super) mtime: u32,
    /// Unit: bytes.
    pub(super) size: u32,
    pub(super) rdev: (u32, u32),
    /// Unit: bytes.
    pub(super) name_len: u32,
    /// Of the data's bytes, in the dialect that has one.
    pub(super) sum: Option<u32>,
}

impl Header {
    /// Whether it is a regular file's.
    pub(super) fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub(super) fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, SourceError> {
        let (magic, numbers) = bytes.split_at(6);
        let has_sum = match magic {
            b"070701" => false,
            b"070702" => true,
            b"070707" => {
                let what = "a cpio with headers of POSIX (odc); cpio -H newc writes what is read";
                return Err(SourceError::unsupported(what));
            }
            [0xc7, 0x71, ..] => {
                let what = "a cpio with binary headers; cpio -H newc writes what is read";
                return Err(SourceError::unsupported(what));
            }
            _ => {
                let what = format!("no header of cpio, found \"{}\"", magic.escape_ascii());
                return Err(SourceError::corrupt(what));
            }
        };
        let mut fields = [0; 13];
        for (field, digits) in fields.iter_mut().zip(numbers.chunks_exact(8)) {
            *field = number(digits).ok_or_else(|| {
                let what = "header has what is no hexadecimal number";
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

fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |value, c| {
        // Eight digits of 4 bits: none is lost.
        Some(value << 4 | char::from(*c).to_digit(16)?)
    })
}

/// Whether bytes begin with a header. No tar does: a zero byte or a space is where the mode of its first member ends.
/// Headers that are not read are such, too, so that it is said what they are.
pub(super) fn is_header(bytes: &[u8]) -> bool {
    bytes
        .first_chunk()
        .is_some_and(|bytes| is_posix(bytes) || is_binary(bytes) || Header::parse(bytes).is_ok())
}

/// Octal digits up to the name at byte 76.
fn is_posix(bytes: &[u8; HEADER_LEN]) -> bool {
    bytes.starts_with(b"070707") && bytes[..76].iter().all(|b| (b'0'..=b'7').contains(b))
}

/// Its name begins at byte 26, and its length is at byte 20. In a tar with a name of 22 bytes and more that would be a
/// length of thousands; behind a shorter one are zeros.
fn is_binary(bytes: &[u8; HEADER_LEN]) -> bool {
    let name_len = u16::from_le_bytes([bytes[20], bytes[21]]);
    bytes.starts_with(&[0xc7, 0x71]) && (2..0x400).contains(&name_len) && bytes[26] != 0
}
