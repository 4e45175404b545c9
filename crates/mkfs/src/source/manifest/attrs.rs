//! Keywords of a line or of `/set`.

use super::super::Device;
use super::super::error::{Quoted, SourceError};
use super::super::text::{base64, decimal, signed_decimal};
use super::vis::unvis;
use std::collections::BTreeMap;

/// Limit of the names and values of xattrs in `/set`, which are copied to every entry. Unit: bytes.
const SET_XATTR_BYTES_MAX: usize = 64 << 10;

/// Position of a keyword.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// After a path, for that path.
    Line,
    /// After `/set`, for following paths.
    Set,
}

/// Values of the keyword `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    File,
    Dir,
    Link,
    Char,
    Block,
    Fifo,
    Socket,
}

impl Type {
    /// Name in the manifest.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "dir",
            Self::Link => "link",
            Self::Char => "char",
            Self::Block => "block",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
        }
    }
}

/// Values of keywords; `None` where there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Attrs {
    pub(super) kind: Option<Type>,
    pub(super) mode: Option<u16>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// Seconds since 1970, and nanoseconds.
    pub(super) time: Option<(i64, u32)>,
    /// File size. Unit: bytes.
    pub(super) size: Option<u64>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) device: Option<Device>,
    pub(super) contents: Option<Vec<u8>>,
    pub(super) hardlink: Option<Vec<u8>>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Attrs {
    /// Parses one word: `KEYWORD` or `KEYWORD=VALUE`. A repeated keyword replaces its value.
    pub(super) fn take(&mut self, word: &[u8], scope: Scope) -> Result<(), SourceError> {
        let (keyword, value) = match word.iter().position(|&c| c == b'=') {
            Some(equals) => (&word[..equals], Some(&word[equals + 1..])),
            None => (word, None),
        };
        if is_ignored(keyword) {
            return Ok(());
        }
        let of_one_path = matches!(
            keyword,
            b"size" | b"link" | b"device" | b"contents" | b"content" | b"hardlink"
        );
        if scope == Scope::Set && of_one_path {
            return Err(SourceError::corrupt(format!(
                "/set gives {} to every path; it belongs on the line of one",
                keyword.escape_ascii()
            )));
        }
        let Some(value) = value else {
            return Err(match is_known(keyword) {
                true => wrong(keyword, "a value after \"=\"", b""),
                false => unknown(keyword),
            });
        };
        if let Some(name) = keyword.strip_prefix(b"xattr.") {
            return self.xattr(keyword, name, value, scope);
        }
        let need = |what: &'static str| move || wrong(keyword, what, value);
        let id = "a decimal number below 4294967296";
        match keyword {
            b"type" => {
                let types = "file, dir, link, char, block, fifo or socket";
                self.kind = Some(parse_type(value).ok_or_else(need(types))?);
            }
            b"mode" => {
                let octal = "octal digits, at most 7777";
                self.mode = Some(parse_mode(value).ok_or_else(need(octal))?);
            }
            b"uid" => self.uid = Some(parse_id(value).ok_or_else(need(id))?),
            b"gid" => self.gid = Some(parse_id(value).ok_or_else(need(id))?),
            b"time" => {
                let time = "SECONDS or SECONDS.NANOSECONDS";
                self.time = Some(parse_time(value).ok_or_else(need(time))?);
            }
            b"size" => self.size = Some(decimal(value).ok_or_else(need("a decimal number"))?),
            b"device" => {
                let device = "MAJOR,MINOR or FORMAT,MAJOR,MINOR or one number";
                let (major, minor) = parse_device(value).ok_or_else(need(device))?;
                let fits = "a major number below 4096 and a minor below 1048576";
                self.device = Some(Device::new(major, minor).ok_or_else(need(fits))?);
            }
            b"link" => self.link = Some(text(keyword, value)?),
            b"contents" | b"content" => self.contents = Some(text(keyword, value)?),
            b"hardlink" => self.hardlink = Some(text(keyword, value)?),
            _ => return Err(unknown(keyword)),
        }
        Ok(())
    }

    /// Removes the value of a keyword.
    pub(super) fn forget(&mut self, keyword: &[u8]) -> Result<(), SourceError> {
        match keyword {
            b"all" => *self = Self::default(),
            b"type" => self.kind = None,
            b"mode" => self.mode = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"time" => self.time = None,
            _ => {
                if let Some(name) = keyword.strip_prefix(b"xattr.") {
                    self.xattrs.remove(&xattr_name(keyword, name)?);
                } else if !is_ignored(keyword) && !is_known(keyword) {
                    return Err(unknown(keyword));
                }
            }
        }
        Ok(())
    }

    fn xattr(
        &mut self,
        keyword: &[u8],
        name: &[u8],
        value: &[u8],
        scope: Scope,
    ) -> Result<(), SourceError> {
        let name = xattr_name(keyword, name)?;
        let value = match value {
            [b'0', b's' | b'S', encoded @ ..] => {
                base64(encoded).ok_or_else(|| wrong(keyword, "base64 after 0s", value))?
            }
            [b'0', b'x' | b'X', encoded @ ..] => hex::decode(encoded)
                .map_err(|_| wrong(keyword, "pairs of hexadecimal digits after 0x", value))?,
            plain => text(keyword, plain)?,
        };
        self.xattrs.insert(name, value);
        let bytes: usize = match scope {
            Scope::Line => 0,
            Scope::Set => self.xattrs.iter().map(|(n, v)| n.len() + v.len()).sum(),
        };
        if bytes > SET_XATTR_BYTES_MAX {
            return Err(SourceError::limit(format!(
                "/set gives more than {SET_XATTR_BYTES_MAX} bytes of xattrs to every path"
            )));
        }
        Ok(())
    }
}

/// Keywords of other programs that do not affect an image.
fn is_ignored(keyword: &[u8]) -> bool {
    matches!(
        keyword,
        b"cksum"
            | b"flags"
            | b"gname"
            | b"ignore"
            | b"inode"
            | b"md5"
            | b"md5digest"
            | b"nlink"
            | b"nochange"
            | b"optional"
            | b"resdevice"
            | b"ripemd160digest"
            | b"rmd160"
            | b"rmd160digest"
            | b"sha1"
            | b"sha1digest"
            | b"sha256"
            | b"sha256digest"
            | b"sha384"
            | b"sha384digest"
            | b"sha512"
            | b"sha512digest"
            | b"tags"
            | b"uname"
    )
}

fn is_known(keyword: &[u8]) -> bool {
    matches!(
        keyword,
        b"type"
            | b"mode"
            | b"uid"
            | b"gid"
            | b"time"
            | b"size"
            | b"link"
            | b"device"
            | b"contents"
            | b"content"
            | b"hardlink"
    ) || keyword.starts_with(b"xattr.")
}

fn unknown(keyword: &[u8]) -> SourceError {
    SourceError::unsupported(format!("keyword {} is not known", Quoted(keyword)))
}

fn wrong(keyword: &[u8], expected: &str, found: &[u8]) -> SourceError {
    let keyword = keyword.escape_ascii();
    SourceError::corrupt(match found {
        b"" => format!("{keyword}: expected {expected}, found nothing"),
        _ => format!("{keyword}: expected {expected}, found {}", Quoted(found)),
    })
}

fn text(keyword: &[u8], value: &[u8]) -> Result<Vec<u8>, SourceError> {
    unvis(value).map_err(|at| wrong(keyword, "an escape after the backslash", &value[at..]))
}

fn xattr_name(keyword: &[u8], name: &[u8]) -> Result<Vec<u8>, SourceError> {
    let name = text(keyword, name)?;
    if name.is_empty() || name.contains(&0) {
        return Err(wrong(
            keyword,
            "a name without zero bytes after \"xattr.\"",
            &name,
        ));
    }
    Ok(name)
}

fn parse_type(value: &[u8]) -> Option<Type> {
    Some(match value {
        b"file" => Type::File,
        b"dir" => Type::Dir,
        b"link" => Type::Link,
        b"char" => Type::Char,
        b"block" => Type::Block,
        b"fifo" => Type::Fifo,
        b"socket" => Type::Socket,
        _ => return None,
    })
}

fn parse_mode(value: &[u8]) -> Option<u16> {
    let mode = radix(value, 8)?;
    u16::try_from(mode).ok().filter(|&mode| mode <= 0o7777)
}

fn parse_id(value: &[u8]) -> Option<u32> {
    u32::try_from(decimal(value)?).ok()
}

/// The number after the point counts nanoseconds, as in every mtree: `1.5` is 5 ns after second 1.
fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let (seconds, nanos) = match value.iter().position(|&c| c == b'.') {
        Some(dot) => (&value[..dot], decimal(&value[dot + 1..])?),
        None => (value, 0),
    };
    let nanos = u32::try_from(nanos).ok().filter(|&n| n < 1_000_000_000)?;
    Some((signed_decimal(seconds)?, nanos))
}

/// Names of device number formats in mtree(5). Two numbers mean the same in all of them.
const DEVICE_FORMATS: [&[u8]; 16] = [
    b"native", b"386bsd", b"4bsd", b"bsdos", b"freebsd", b"hpux", b"isc", b"linux", b"netbsd",
    b"osf1", b"sco", b"solaris", b"sunos", b"svr3", b"svr4", b"ultrix",
];

/// Major and minor number, of any size.
fn parse_device(value: &[u8]) -> Option<(u64, u64)> {
    let parts: Vec<&[u8]> = value.split(|&c| c == b',').take(4).collect();
    let (major, minor) = match parts[..] {
        [packed] => return Some(unpack_device(c_number(packed)?)),
        [format, major, minor] if DEVICE_FORMATS.contains(&format) => (major, minor),
        [major, minor] => (major, minor),
        _ => return None,
    };
    Some((c_number(major)?, c_number(minor)?))
}

/// Decodes a `dev_t` of Linux: the low 8 bits of the minor, 12 of the major, then the rest of each.
fn unpack_device(packed: u64) -> (u64, u64) {
    let major = (packed >> 8 & 0xfff) | (packed >> 32 & 0xffff_f000);
    let minor = (packed & 0xff) | (packed >> 12 & 0xffff_ff00);
    (major, minor)
}

/// Parses a number in C notation: `0x` for hexadecimal, `0` for octal, otherwise decimal.
fn c_number(value: &[u8]) -> Option<u64> {
    match value {
        [b'0', b'x' | b'X', digits @ ..] => radix(digits, 16),
        [b'0', digits @ ..] if !digits.is_empty() => radix(digits, 8),
        digits => radix(digits, 10),
    }
}

fn radix(digits: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` would accept a sign.
    if !digits.first()?.is_ascii_alphanumeric() {
        return None;
    }
    u64::from_str_radix(str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_in_every_form() {
        let device = |major, minor| Some((major, minor));
        for (text, expected) in [
            ("native,8,17", device(8, 17)),
            ("linux,0x103,017", device(259, 15)),
            ("8,17", device(8, 17)),
            ("0x811", device(8, 17)),
            ("2065", device(8, 17)),
            ("0", device(0, 0)),
            ("0x12300345", device(3, 0x12345)),
            ("1,2,3", None),
            ("native,8", None),
            ("native,8,17,1", None),
            ("martian,8,17", None),
            ("", None),
            ("+8,17", None),
            ("8,4294967296", device(8, 1 << 32)),
            ("4294967296", device(0, 1 << 20)),
            (
                "0xffffffffffffffff",
                device(u32::MAX.into(), u32::MAX.into()),
            ),
        ] {
            assert_eq!(parse_device(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn times_count_nanoseconds_after_the_point() {
        for (text, expected) in [
            ("1700000000.000000000", Some((1_700_000_000, 0))),
            ("1.0", Some((1, 0))),
            ("1.5", Some((1, 5))),
            ("1.999999999", Some((1, 999_999_999))),
            ("-1.5", Some((-1, 5))),
            ("7", Some((7, 0))),
            ("1.1000000000", None),
            ("1.", None),
            (".5", None),
            ("now", None),
        ] {
            assert_eq!(parse_time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode(b"0755"), Some(0o755));
        assert_eq!(parse_mode(b"7777"), Some(0o7777));
        assert_eq!(parse_mode(b"10000"), None);
        assert_eq!(parse_mode(b"u=rwx"), None);
        assert_eq!(parse_mode(b""), None);
    }
}
