//! The 512-byte header block.
//!
//! ```text
//!   0 name[100]  100 mode[8]  108 uid[8]  116 gid[8]  124 size[12]  136 mtime[12]  148 checksum[8]
//! 156 type       157 link[100]  257 magic[6]  263 version[2]  265 user[32]  297 group[32]
//! 329 devmajor[8]  337 devminor[8]
//! ustar: 345 prefix[155]                      star: 345 prefix[131] .. 508 "tar\0"
//! GNU:   386 sparse[4][24]  482 extended  483 realsize[12]
//! GNU, extension block of a sparse header: 0 sparse[21][24]  504 extended
//! ```
//!
//! Numbers are octal text that ends at a space, a zero byte or the end of the field. If the first
//! bit is set, they are two's complement big-endian ("base-256").
//!
//! Sources: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format";
//! star(5).

use super::super::error::SourceError;
use super::sparse::SparseRun;
use std::ops::Range;

/// Block size of a tar. Unit: bytes.
pub(super) const BLOCK: usize = 512;

/// Raw block of a tar.
pub(super) type Block = [u8; BLOCK];

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPE: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const DEV_MAJOR: Range<usize> = 329..337;
const DEV_MINOR: Range<usize> = 337..345;
const PREFIX_USTAR: Range<usize> = 345..500;
const PREFIX_STAR: Range<usize> = 345..476;
const STAR_TRAILER: Range<usize> = 508..512;
const SPARSE: Range<usize> = 386..482;
const SPARSE_EXTENDED: usize = 482;
const SPARSE_REAL_SIZE: Range<usize> = 483..495;
const EXTENSION_SPARSE: Range<usize> = 0..504;
const EXTENSION_EXTENDED: usize = 504;
const SPARSE_ENTRY: usize = 24;

/// Format of the bytes after the link name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// No magic: the bytes are undefined.
    V7,
    /// POSIX ustar, also used with PAX.
    Ustar,
    /// Jörg Schilling's star, with a shorter prefix.
    Star,
    /// GNU tar's own format, without a prefix.
    Gnu,
}

/// Header with a valid checksum.
pub(super) struct Header {
    block: Block,
    dialect: Dialect,
}

impl Header {
    /// Verifies the checksum.
    ///
    /// Some old systems added the bytes as signed numbers; their sum is accepted, too.
    pub(super) fn verify(block: Block) -> Result<Self, SourceError> {
        let found = octal(&block[CHECKSUM]).ok_or_else(|| {
            SourceError::corrupt(format!(
                "header checksum is not a number, found \"{}\"",
                block[CHECKSUM].escape_ascii()
            ))
        })?;
        let mut unsigned = 0i64;
        let mut signed = 0i64;
        for (at, &byte) in block.iter().enumerate() {
            let byte = if CHECKSUM.contains(&at) { b' ' } else { byte };
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        if found != unsigned && found != signed {
            return Err(SourceError::corrupt(format!(
                "header checksum is wrong, expected {unsigned:o}, found {found:o} (octal)"
            )));
        }
        let dialect = match &block[MAGIC] {
            b"ustar  \0" => Dialect::Gnu,
            [b'u', b's', b't', b'a', b'r', 0, ..] if &block[STAR_TRAILER] == b"tar\0" => {
                Dialect::Star
            }
            [b'u', b's', b't', b'a', b'r', 0, ..] => Dialect::Ustar,
            _ => Dialect::V7,
        };
        Ok(Self { block, dialect })
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Type flag of the member.
    pub(super) fn flag(&self) -> u8 {
        self.block[TYPE]
    }

    /// Prefix and name, not normalised.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.block[NAME]);
        let prefix = match self.dialect {
            Dialect::Ustar => text(&self.block[PREFIX_USTAR]),
            Dialect::Star => text(&self.block[PREFIX_STAR]),
            Dialect::V7 | Dialect::Gnu => b"",
        };
        if prefix.is_empty() {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(&self.block[LINK]).to_vec()
    }

    /// Permission bits. The file type, which some writers store above them, is cut off.
    pub(super) fn mode(&self) -> Result<u16, SourceError> {
        let mode = number(&self.block[MODE], "mode")?;
        Ok((mode & 0o7777) as u16)
    }

    pub(super) fn uid(&self) -> Result<i64, SourceError> {
        number(&self.block[UID], "uid")
    }

    pub(super) fn gid(&self) -> Result<i64, SourceError> {
        number(&self.block[GID], "gid")
    }

    /// Size of the data. Unit: bytes.
    pub(super) fn size(&self) -> Result<u64, SourceError> {
        unsigned_number(&self.block[SIZE], "size")
    }

    /// Modification time. Unit: seconds since 1970.
    pub(super) fn mtime(&self) -> Result<i64, SourceError> {
        number(&self.block[MTIME], "mtime")
    }

    /// Major and minor device number. Zero in the V7 format.
    pub(super) fn device(&self) -> Result<(i64, i64), SourceError> {
        match self.dialect {
            Dialect::V7 => Ok((0, 0)),
            _ => Ok((
                number(&self.block[DEV_MAJOR], "device major")?,
                number(&self.block[DEV_MINOR], "device minor")?,
            )),
        }
    }

    /// File size including holes, for a GNU sparse member (type `S`). Unit: bytes.
    pub(super) fn sparse_real_size(&self) -> Result<u64, SourceError> {
        unsigned_number(&self.block[SPARSE_REAL_SIZE], "real size")
    }

    /// Appends the runs in the header. Returns true if an extension block follows.
    pub(super) fn sparse_runs(&self, runs: &mut Vec<SparseRun>) -> Result<bool, SourceError> {
        old_sparse_runs(&self.block[SPARSE], self.block[SPARSE_EXTENDED], runs)
    }
}

/// Appends the runs in an extension block. Returns true if another one follows.
pub(super) fn extension_sparse_runs(
    block: &Block,
    runs: &mut Vec<SparseRun>,
) -> Result<bool, SourceError> {
    old_sparse_runs(&block[EXTENSION_SPARSE], block[EXTENSION_EXTENDED], runs)
}

fn old_sparse_runs(
    table: &[u8],
    extended: u8,
    runs: &mut Vec<SparseRun>,
) -> Result<bool, SourceError> {
    let extended = extended != 0;
    for entry in table.chunks_exact(SPARSE_ENTRY) {
        let (offset, len) = entry.split_at(SPARSE_ENTRY / 2);
        if len[0] == 0 {
            // An empty entry ends the map. Readers disagree about entries after it, so there must
            // be none.
            if extended {
                return Err(SourceError::corrupt(
                    "sparse map has an empty entry before an extension block",
                ));
            }
            break;
        }
        runs.push(SparseRun {
            offset: unsigned_number(offset, "sparse offset")?,
            len: unsigned_number(len, "sparse length")?,
        });
    }
    Ok(extended)
}

/// True for a block with a valid header checksum.
pub(super) fn is_header(block: &Block) -> bool {
    Header::verify(*block).is_ok()
}

/// Text of a field up to its first zero byte.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&c| c == 0).unwrap_or(field.len());
    &field[..end]
}

fn unsigned_number(field: &[u8], what: &str) -> Result<u64, SourceError> {
    let value = number(field, what)?;
    u64::try_from(value).map_err(|_| SourceError::corrupt(format!("{what} is negative: {value}")))
}

fn number(field: &[u8], what: &str) -> Result<i64, SourceError> {
    let value = match field.first() {
        Some(first) if first & 0x80 != 0 => base256(field),
        _ => octal(field),
    };
    value.ok_or_else(|| {
        SourceError::corrupt(format!(
            "{what} is not a number of at most 63 bits, found \"{}\"",
            field.escape_ascii()
        ))
    })
}

/// Parses octal text. An empty field is zero.
fn octal(field: &[u8]) -> Option<i64> {
    let start = field.iter().position(|&c| c != b' ').unwrap_or(field.len());
    let mut value = 0i64;
    for &c in &field[start..] {
        match c {
            // Cannot overflow: a field has at most 12 digits of 3 bits.
            b'0'..=b'7' => value = value << 3 | i64::from(c - b'0'),
            0 | b' ' => break,
            _ => return None,
        }
    }
    Some(value)
}

/// Two's complement, big-endian. The highest bit marks the encoding, and the next one is the sign.
fn base256(field: &[u8]) -> Option<i64> {
    let (&first, rest) = field.split_first()?;
    let negative = first & 0x40 != 0;
    // Fits: at most 12 bytes, which are 95 bits.
    let mut value = i128::from(first & 0x7f) - if negative { 0x80 } else { 0 };
    for &byte in rest {
        value = value << 8 | i128::from(byte);
    }
    i64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_fields_end_at_space_zero_or_the_edge() {
        for (field, value) in [
            (&b"0000644\0"[..], 0o644),
            (b"   644 \0", 0o644),
            (b"77777777", 0o7777_7777),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"        ", 0),
            (b"12 9999\0", 0o12),
        ] {
            assert_eq!(octal(field), Some(value));
        }
        assert_eq!(octal(b"0000689\0"), None);
        assert_eq!(octal(b"-1\0"), None);
    }

    #[test]
    fn base_256_is_signed() {
        for (field, value) in [
            (&[0x80, 0, 0, 0, 0, 0, 0x01, 0x02][..], 258),
            (&[0xff; 8][..], -1),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe][..], -2),
            (
                &[
                    0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                ][..],
                i64::MAX,
            ),
            (
                &[0xff, 0xff, 0xff, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0][..],
                i64::MIN,
            ),
        ] {
            assert_eq!(base256(field), Some(value), "{field:x?}");
        }
        assert_eq!(
            base256(&[0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]),
            None,
            "2^63 does not fit"
        );
    }
}
