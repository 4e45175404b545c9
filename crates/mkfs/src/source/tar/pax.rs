//! PAX extended headers: records of the form `LENGTH KEY=VALUE\n`, where LENGTH counts the whole
//! record.
//!
//! Values are read by length, so that they may contain any byte. Unknown keys are ignored.
//!
//! Sources: POSIX.1-2017, pax, "pax Extended Header"; star(5) for `SCHILY.*`; libarchive's tar(5)
//! for `LIBARCHIVE.*`.

use super::super::error::{Quoted, SourceError};
use super::super::text::{base64, decimal, percent, signed_decimal};
use super::sparse::SparseRecords;
use std::collections::BTreeMap;

/// Maximum size of an extended header. Unit: bytes.
///
/// Linux allows 64 KiB for one xattr value and about as much for all names of a file; maps of
/// sparse files are longer.
pub(super) const PAX_BYTES_MAX: u64 = 16 << 20;

/// Limit of the names and values of one member's xattrs. Unit: bytes.
const XATTR_BYTES_MAX: usize = 16 << 20;

/// Limit of the xattrs in global headers, which are copied to every entry. Unit: bytes.
const GLOBAL_XATTR_BYTES_MAX: usize = 64 << 10;

/// Maximum number of digits in a record length.
const LENGTH_DIGITS_MAX: usize = 19;

/// Record with the access ACL.
pub(super) const ACL_ACCESS: &str = "SCHILY.acl.access";
/// Record with the default ACL.
pub(super) const ACL_DEFAULT: &str = "SCHILY.acl.default";

/// Members that an extended header applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The next member only.
    Local,
    /// All members that follow.
    Global,
}

/// Value of one attribute in extended headers.
#[derive(Clone, Debug, Default)]
pub(super) enum Field<T> {
    /// There is no record.
    #[default]
    Absent,
    /// An empty value, which restores that of the plain header.
    Cleared,
    /// A record with this value.
    Set(T),
}

impl<T: Clone> Field<T> {
    /// Combines a member's own record with a global one, which has lower precedence. `None` selects
    /// the plain header.
    pub(super) fn resolve(&self, global: &Self) -> Option<T> {
        match (self, global) {
            (Self::Set(value), _) | (Self::Absent, Self::Set(value)) => Some(value.clone()),
            _ => None,
        }
    }
}

/// Seconds since 1970 and nanoseconds below 10^9, as in [`Meta`](super::super::Meta).
pub(super) type Time = (i64, u32);

/// Records of one or several extended headers.
#[derive(Clone, Debug, Default)]
pub(super) struct Pax {
    pub(super) path: Field<Vec<u8>>,
    pub(super) link: Field<Vec<u8>>,
    pub(super) size: Field<u64>,
    pub(super) uid: Field<i64>,
    pub(super) gid: Field<i64>,
    pub(super) mtime: Field<Time>,
    pub(super) dev_major: Field<i64>,
    pub(super) dev_minor: Field<i64>,
    /// Access ACL as text.
    pub(super) acl_access: Field<Vec<u8>>,
    /// Default ACL as text.
    pub(super) acl_default: Field<Vec<u8>>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) sparse: SparseRecords,
    xattr_bytes: usize,
    /// A global header has a name or a link target, which is ignored.
    has_name: bool,
}

impl Pax {
    /// Adds all records of `body`, which is at byte `at` of the tar. Later records replace earlier
    /// ones.
    pub(super) fn take(&mut self, body: &[u8], at: u64, scope: Scope) -> Result<(), SourceError> {
        let mut rest = body;
        while !rest.is_empty() {
            let place = at + (body.len() - rest.len()) as u64;
            let (key, value, after) = split_record(rest).map_err(|e| e.at_byte(place))?;
            self.record(key, value, scope)
                .map_err(|e| e.at_byte(place))?;
            rest = after;
        }
        Ok(())
    }

    /// True if a global header gives a name or a link target to every member.
    pub(super) fn has_name(&self) -> bool {
        self.has_name
    }

    fn record(&mut self, key: &[u8], value: &[u8], scope: Scope) -> Result<(), SourceError> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            // GNU tar escapes these two as %25 and %3D, because a key ends at the first equals
            // sign.
            let name = percent(name, |byte| matches!(byte, b'%' | b'='));
            return self.xattr(name, value.to_vec(), scope);
        }
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = base64(value)
                .ok_or_else(|| SourceError::corrupt(format!("{} is not base64", Quoted(key))))?;
            return self.xattr(percent(name, |_| true), value, scope);
        }
        let is_global = scope == Scope::Global;
        if is_global && matches!(key, b"path" | b"linkpath") {
            // One name for all members: GNU tar takes it, libarchive ignores all global records.
            self.has_name = true;
            return Ok(());
        }
        let one_member_only = key == b"size"
            || key.starts_with(b"SCHILY.acl.")
            || key.starts_with(b"GNU.sparse.")
            || key.starts_with(b"GNU.volume.");
        if is_global && one_member_only {
            return Err(SourceError::unsupported(format!(
                "global extended header gives {} to every member",
                Quoted(key)
            )));
        }
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.sparse.take(key, value);
        }
        match key {
            b"path" => self.path = field(value, |v| Some(v.to_vec()), "path")?,
            b"linkpath" => self.link = field(value, |v| Some(v.to_vec()), "linkpath")?,
            b"size" => self.size = field(value, decimal, "size")?,
            b"uid" => self.uid = field(value, signed_decimal, "uid")?,
            b"gid" => self.gid = field(value, signed_decimal, "gid")?,
            b"mtime" => self.mtime = field(value, parse_time, "mtime")?,
            b"SCHILY.devmajor" => self.dev_major = field(value, signed_decimal, "SCHILY.devmajor")?,
            b"SCHILY.devminor" => self.dev_minor = field(value, signed_decimal, "SCHILY.devminor")?,
            b"SCHILY.acl.access" => {
                self.acl_access = field(value, |v| Some(v.to_vec()), ACL_ACCESS)?
            }
            b"SCHILY.acl.default" => {
                self.acl_default = field(value, |v| Some(v.to_vec()), ACL_DEFAULT)?;
            }
            b"GNU.volume.offset" => {
                return Err(SourceError::unsupported(
                    "member continues from another volume; multi-volume archives are not read",
                ));
            }
            _ => {}
        }
        Ok(())
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>, scope: Scope) -> Result<(), SourceError> {
        if name.is_empty() || name.contains(&0) {
            return Err(SourceError::corrupt(format!(
                "xattr name {} is empty or contains a zero byte",
                Quoted(&name)
            )));
        }
        let added = name.len() + value.len();
        let name_len = name.len();
        if let Some(old) = self.xattrs.insert(name, value) {
            self.xattr_bytes -= name_len + old.len();
        }
        self.xattr_bytes += added;
        let limit = match scope {
            Scope::Local => XATTR_BYTES_MAX,
            Scope::Global => GLOBAL_XATTR_BYTES_MAX,
        };
        if self.xattr_bytes > limit {
            return Err(SourceError::limit(format!(
                "xattrs hold more than {limit} bytes"
            )));
        }
        Ok(())
    }
}

/// Key, value, and the data after the record.
type SplitRecord<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// Splits the first record off `body`.
fn split_record(body: &[u8]) -> Result<SplitRecord<'_>, SourceError> {
    let space = body
        .iter()
        .take(LENGTH_DIGITS_MAX + 1)
        .position(|&c| c == b' ');
    let len = space.and_then(|space| decimal(&body[..space]));
    let (Some(space), Some(len)) = (space, len) else {
        let shown = &body[..body.len().min(LENGTH_DIGITS_MAX + 1)];
        return Err(SourceError::corrupt(format!(
            "extended header record begins with {}, expected a decimal length and a space",
            Quoted(shown)
        )));
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > body.len() {
        return Err(SourceError::corrupt(format!(
            "extended header record of {len} bytes, but only {} are left",
            body.len()
        )));
    }
    let (record, after) = body.split_at(len);
    // At least the space, one byte of key, the equals sign and the newline.
    let Some((b'\n', pair)) = record.get(space + 1..).and_then(|text| text.split_last()) else {
        return Err(SourceError::corrupt(format!(
            "extended header record of {len} bytes does not end with a newline"
        )));
    };
    match pair.iter().position(|&c| c == b'=') {
        Some(equals) if equals > 0 => Ok((&pair[..equals], &pair[equals + 1..], after)),
        _ => Err(SourceError::corrupt(format!(
            "extended header record {} has no key",
            Quoted(pair)
        ))),
    }
}

fn field<T>(
    value: &[u8],
    parse: impl Fn(&[u8]) -> Option<T>,
    key: &str,
) -> Result<Field<T>, SourceError> {
    if value.is_empty() {
        return Ok(Field::Cleared);
    }
    parse(value).map(Field::Set).ok_or_else(|| {
        SourceError::corrupt(format!(
            "{key} is {}, expected a decimal number of at most 63 bits",
            Quoted(value)
        ))
    })
}

/// Parses `[-]SECONDS[.FRACTION]`, rounded down to nanoseconds.
fn parse_time(text: &[u8]) -> Option<Time> {
    let (negative, magnitude) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let dot = magnitude.iter().position(|&c| c == b'.');
    let (seconds, fraction) = match dot {
        Some(dot) => (&magnitude[..dot], &magnitude[dot + 1..]),
        None => (magnitude, &b""[..]),
    };
    let mut seconds = match (seconds, fraction) {
        (b"", b"") => return None,
        (b"", _) => 0,
        (digits, _) => i64::try_from(decimal(digits)?).ok()?,
    };
    let mut nanos = 0u32;
    for at in 0..9 {
        let digit = fraction.get(at).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return None;
        }
        nanos = nanos * 10 + u32::from(digit - b'0');
    }
    let dropped = fraction.get(9..).unwrap_or(b"");
    if !dropped.iter().all(u8::is_ascii_digit) {
        return None;
    }
    if !negative {
        return Some((seconds, nanos));
    }
    // For negative times, down means away from zero.
    nanos += u32::from(dropped.iter().any(|&c| c != b'0'));
    if nanos > 0 {
        seconds = seconds.checked_add(1)?;
        nanos = 1_000_000_000 - nanos;
    }
    Some((-seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_down() {
        for (text, time) in [
            ("0", (0, 0)),
            ("1700000000", (1_700_000_000, 0)),
            ("1700000000.5", (1_700_000_000, 500_000_000)),
            ("1.", (1, 0)),
            (".25", (0, 250_000_000)),
            ("1.1234567899", (1, 123_456_789)),
            ("-1", (-1, 0)),
            ("-1.5", (-2, 500_000_000)),
            ("-0.000000001", (-1, 999_999_999)),
            ("-1.0000000001", (-2, 999_999_999)),
            ("-0.9999999999", (-1, 0)),
            ("-5.000", (-5, 0)),
        ] {
            assert_eq!(parse_time(text.as_bytes()), Some(time), "{text}");
        }
        for text in [
            "",
            "-",
            ".",
            "-.",
            "1e3",
            "1.x",
            "1.1234567890x",
            "+1",
            "1,5",
        ] {
            assert_eq!(parse_time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn values_may_hold_any_byte() {
        let (key, value, after) = split_record(b"19 key=a\n9 b=\0\xff\n==\nrest").unwrap();
        assert_eq!(
            (key, value, after),
            (&b"key"[..], &b"a\n9 b=\0\xff\n=="[..], &b"rest"[..])
        );
    }

    #[test]
    fn records_with_a_wrong_length_are_rejected() {
        for record in [
            &b""[..],
            b"x",
            b"6 a=b",
            b"60 a=b\n",
            b"5 a=b\n",
            b"0 a=b\n",
            b"1 a=b\n",
            b"2 a=b\n",
            b"3 \n",
            b"4 =\n",
            b"5 ab\n",
            b"-6 a=b\n",
            b"99999999999999999999999 a=b\n",
        ] {
            assert!(split_record(record).is_err(), "{}", record.escape_ascii());
        }
    }

    #[test]
    fn an_empty_value_restores_that_of_the_plain_header() {
        let mut global = Pax::default();
        global.take(b"8 uid=5\n", 0, Scope::Global).unwrap();
        let mut local = Pax::default();
        assert_eq!(local.uid.resolve(&global.uid), Some(5));
        local.take(b"7 uid=\n", 0, Scope::Local).unwrap();
        assert_eq!(local.uid.resolve(&global.uid), None);
    }

    #[test]
    fn xattrs_are_bounded_in_sum() {
        let record = |name: u32, len: usize| {
            let value = "x".repeat(len);
            let text = format!(" SCHILY.xattr.user.{name:02}={value}\n");
            format!("{}{text}", text.len() + 5)
        };
        let step = record(0, 50_000).len();
        assert_eq!(step.to_string().len(), 5);

        let mut global = Pax::default();
        for _ in 0..10 {
            // Repeating a name needs no more memory.
            global
                .take(record(0, 50_000).as_bytes(), 0, Scope::Global)
                .unwrap();
        }
        let error = global
            .take(record(1, 50_000).as_bytes(), 4096, Scope::Global)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "byte 4096: xattrs hold more than 65536 bytes"
        );

        let mut local = Pax::default();
        for name in 0..99 {
            local
                .take(record(name, 50_000).as_bytes(), 0, Scope::Local)
                .unwrap();
        }
    }
}
