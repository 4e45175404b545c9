//! The ustar header of 512 bytes, and PAX records.
//!
//! ```text
//! name(100) mode(8) uid(8) gid(8) size(12) mtime(12) sum(8) type link(100) "ustar\0" "00" uname(32) gname(32)
//! major(8) minor(8) prefix(155) -(12)
//! ```
//! Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header".

/// Block size of a tar stream, in bytes.
pub(super) const BLOCK: usize = 512;
/// Size of the fields for a name and for a link target, in bytes.
pub(super) const NAME_LEN: usize = 100;
/// Largest number in a field of 8 bytes: 7 octal digits.
const MAX_8: u64 = 0o777_7777;
/// Largest number in a field of 12 bytes: 11 octal digits.
const MAX_12: u64 = 0o777_7777_7777;

/// Type flag of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file with data.
    File = b'0' as isize,
    /// Hard link to an earlier member.
    HardLink = b'1' as isize,
    /// Symbolic link to a path.
    Symlink = b'2' as isize,
    /// Character device with its number.
    Char = b'3' as isize,
    /// Block device with its number.
    Block = b'4' as isize,
    /// Directory. Its member has no data.
    Dir = b'5' as isize,
    /// Named pipe, also called fifo.
    Fifo = b'6' as isize,
    /// PAX extended header: records for the next member.
    Records = b'x' as isize,
}

/// Metadata of a member.
#[derive(Clone, Debug)]
pub struct Header<'a> {
    /// Path of the member. The path of a directory ends in a slash.
    pub name: &'a [u8],
    /// Type of the member.
    pub kind: Kind,
    /// Permission bits. Only the lowest twelve are written.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the owner.
    pub gid: u32,
    /// Size of the data that follows, in bytes.
    pub size: u64,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Target of a hard or symbolic link. Empty for other members.
    pub link: &'a [u8],
    /// Major and minor device number. Zero for other members.
    pub device: (u32, u32),
}

impl Header<'_> {
    /// Appends PAX records for values that the header cannot represent.
    pub(super) fn records(&self, out: &mut Vec<u8>) {
        if self.name.len() > NAME_LEN {
            record(b"path", self.name, out);
        }
        if self.link.len() > NAME_LEN {
            record(b"linkpath", self.link, out);
        }
        if self.size > MAX_12 {
            record(b"size", self.size.to_string().as_bytes(), out);
        }
        if u64::from(self.uid) > MAX_8 {
            record(b"uid", self.uid.to_string().as_bytes(), out);
        }
        if u64::from(self.gid) > MAX_8 {
            record(b"gid", self.gid.to_string().as_bytes(), out);
        }
        if self.mtime.1 != 0 || !(0..=MAX_12 as i64).contains(&self.mtime.0) {
            record(b"mtime", decimal(self.mtime).as_bytes(), out);
        }
    }

    /// Encodes the header. Values that do not fit are truncated: PAX records contain them in full.
    pub(super) fn encode(&self) -> [u8; BLOCK] {
        let mut out = [0; BLOCK];
        text(&mut out[..NAME_LEN], self.name);
        octal(&mut out[100..108], u64::from(self.mode & 0o7777), MAX_8);
        octal(&mut out[108..116], self.uid.into(), MAX_8);
        octal(&mut out[116..124], self.gid.into(), MAX_8);
        octal(&mut out[124..136], self.size, MAX_12);
        octal(
            &mut out[136..148],
            u64::try_from(self.mtime.0).unwrap_or(0),
            MAX_12,
        );
        out[156] = self.kind as u8;
        text(&mut out[157..257], self.link);
        out[257..265].copy_from_slice(b"ustar\x0000");
        octal(&mut out[329..337], self.device.0.into(), MAX_8);
        octal(&mut out[337..345], self.device.1.into(), MAX_8);
        // The checksum treats its own field as spaces.
        out[148..156].fill(b' ');
        let sum = out.iter().map(|b| u64::from(*b)).sum();
        octal(&mut out[148..155], sum, 0o77_7777);
        out
    }
}

fn text(field: &mut [u8], value: &[u8]) {
    let n = value.len().min(field.len());
    field[..n].copy_from_slice(&value[..n]);
}

/// Writes octal digits and a NUL. A number above `max` is written as 0, because a PAX record contains it.
fn octal(field: &mut [u8], value: u64, max: u64) {
    let mut value = if value > max { 0 } else { value };
    let digits = field.len() - 1;
    for digit in field[..digits].iter_mut().rev() {
        *digit = b'0' + (value & 7) as u8;
        value >>= 3;
    }
    field[digits] = 0;
}

/// Appends a record: its own total length in decimal, a space, the key, "=", the value and a newline.
pub(super) fn record(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    // At most two iterations: the digits of the length can extend it by one digit.
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    out.extend_from_slice(len.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Formats a time as a decimal fraction, exact to the nanosecond, without trailing zeros.
fn decimal((seconds, nanos): (i64, u32)) -> String {
    // Nanoseconds are added to the seconds, while the fraction of a negative decimal is subtracted.
    let (sign, whole, fraction) = match (seconds < 0, nanos) {
        (false, n) => ("", seconds.unsigned_abs(), n),
        (true, 0) => ("-", seconds.unsigned_abs(), 0),
        (true, n) => (
            "-",
            seconds.unsigned_abs() - 1,
            1_000_000_000u32.saturating_sub(n),
        ),
    };
    if fraction == 0 {
        return format!("{sign}{whole}");
    }
    let digits = format!("{fraction:09}");
    format!("{sign}{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for (value_len, expected) in [(1, 8), (2, 9), (3, 11), (91, 99), (92, 101), (93, 102)] {
            let mut out = Vec::new();
            record(b"abc", &vec![b'v'; value_len], &mut out);
            // Length, space, key of 3 bytes, "=", value, newline.
            assert_eq!(out.len(), expected, "value of {value_len} bytes");
            assert!(out.starts_with(format!("{expected} abc=").as_bytes()));
        }
    }

    #[test]
    fn times_are_exact_on_both_sides_of_1970() {
        assert_eq!(decimal((0, 0)), "0");
        assert_eq!(decimal((1_700_000_000, 120_000_000)), "1700000000.12");
        assert_eq!(decimal((-5, 0)), "-5");
        assert_eq!(decimal((-5, 999_999_999)), "-4.000000001");
        assert_eq!(decimal((-1, 500_000_000)), "-0.5");
        assert_eq!(decimal((i64::MIN, 0)), "-9223372036854775808");
    }

    #[test]
    fn the_header_is_the_documented_one() {
        let header = Header {
            name: b"a/b",
            kind: Kind::File,
            mode: 0o100644,
            uid: 1000,
            gid: 3_000_000,
            size: 5,
            mtime: (1, 0),
            link: b"",
            device: (0, 0),
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..4], b"a/b\0");
        assert_eq!(&bytes[100..108], b"0000644\0");
        assert_eq!(&bytes[108..116], b"0001750\0");
        assert_eq!(&bytes[116..124], b"0000000\0", "too large: in a record");
        assert_eq!(&bytes[124..136], b"00000000005\0");
        assert_eq!(bytes[156], b'0');
        let mut unsummed = bytes;
        unsummed[148..156].fill(b' ');
        let sum: u32 = unsummed.iter().map(|b| u32::from(*b)).sum();
        assert_eq!(&bytes[148..156], format!("{sum:06o}\0 ").as_bytes());
        let mut records = Vec::new();
        header.records(&mut records);
        assert_eq!(records, b"15 gid=3000000\n");
    }
}
