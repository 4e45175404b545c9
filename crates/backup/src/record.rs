//! Records of a snapshot's tree: its entries in order, as bytes that are cut into leaves.
//!
//! ```text
//! depth, name, type, mode, owner, group, time, attributes, and by type:
//!   file: size, digests and lengths of its ranges    link, device: target, number    another name: path of the first
//! ```
//!
//! Numbers are LEB128. Nothing volatile is in a record: no device, no inode number, no time of access or change.

use crate::digest::Digest;
use tuff_mkfs::source::{Device, Kind, Meta};

/// Range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeRef {
    /// Digest that names the range.
    pub(crate) digest: Digest,
    /// Length of the content. Unit: bytes.
    pub(crate) len: u32,
}

/// Returns for each range of a file whether it has clusters of its own. A small file is a part of a group, and so is the end of a
/// file that is shorter than a block.
pub(crate) fn are_alone(ranges: &[RangeRef]) -> impl Iterator<Item = (RangeRef, bool)> + '_ {
    ranges.iter().enumerate().map(|(i, range)| {
        let len = u64::from(range.len);
        let is_last = i + 1 == ranges.len();
        let is_part = is_last && (len < BLOCK_LEN || (i == 0 && len <= SMALL_MAX));
        (*range, !is_part)
    })
}

/// Longest file that is a part of a group. Unit: bytes.
pub(crate) const SMALL_MAX: u64 = 64 << 10;

const BLOCK_LEN: u64 = crate::cluster::BLOCK as u64;

/// Entry of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of directories above. 0 for the root, whose name is empty.
    pub(crate) depth: u32,
    /// Name in its directory.
    pub(crate) name: Vec<u8>,
    /// Type, with the data of that type. The target of a hard link is the path of the file's first name.
    pub(crate) kind: Kind,
    /// Mode, owner and modification time.
    pub(crate) meta: Meta,
    /// Extended attributes with full names, sorted by name.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Ranges of a file, in order.
    pub(crate) ranges: Vec<RangeRef>,
}

const FILE: u8 = 1;
const DIR: u8 = 2;
const SYMLINK: u8 = 3;
const CHAR: u8 = 4;
const BLOCK: u8 = 5;
const FIFO: u8 = 6;
const SOCKET: u8 = 7;
const HARD_LINK: u8 = 8;

impl Record {
    /// Appends the bytes of the record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        number(out, self.depth.into());
        bytes(out, &self.name);
        let kind = match self.kind {
            Kind::File { .. } => FILE,
            Kind::Dir => DIR,
            Kind::Symlink(_) => SYMLINK,
            Kind::Char(_) => CHAR,
            Kind::Block(_) => BLOCK,
            Kind::Fifo => FIFO,
            Kind::Socket => SOCKET,
            Kind::Hardlink(_) => HARD_LINK,
        };
        out.push(kind);
        if let Kind::Hardlink(target) = &self.kind {
            bytes(out, target);
            return;
        }
        number(out, self.meta.mode.into());
        number(out, self.meta.uid.into());
        number(out, self.meta.gid.into());
        // Times before 1970 have odd numbers.
        let mtime = self.meta.mtime;
        number(out, ((mtime << 1) ^ (mtime >> 63)).cast_unsigned());
        number(out, self.meta.mtime_nsec.into());
        number(out, self.xattrs.len() as u64);
        for (name, value) in &self.xattrs {
            bytes(out, name);
            bytes(out, value);
        }
        match &self.kind {
            Kind::File { size } => {
                number(out, *size);
                number(out, self.ranges.len() as u64);
                for range in &self.ranges {
                    out.extend_from_slice(&range.digest.0);
                    number(out, range.len.into());
                }
            }
            Kind::Symlink(target) => bytes(out, target),
            Kind::Char(device) | Kind::Block(device) => {
                number(out, device.major.into());
                number(out, device.minor.into());
            }
            _ => {}
        }
    }

    /// Takes a record from the start of bytes. `None` if there is no valid one.
    pub(crate) fn decode(input: &mut &[u8]) -> Option<Self> {
        let depth = u32::try_from(take_number(input)?).ok()?;
        let name = take_bytes(input)?;
        let is_name = !matches!(&name[..], b"" | b"." | b"..");
        if (depth > 0) != is_name || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return None;
        }
        let kind = take(input, 1)?[0];
        let mut record = Self {
            depth,
            name,
            kind: Kind::Dir,
            meta: Meta {
                mode: 0,
                uid: 0,
                gid: 0,
                mtime: 0,
                mtime_nsec: 0,
            },
            xattrs: Vec::new(),
            ranges: Vec::new(),
        };
        if kind == HARD_LINK {
            record.kind = Kind::Hardlink(take_bytes(input)?);
            return Some(record);
        }
        let mode = take_number(input)?;
        record.meta.mode = u16::try_from(mode).ok().filter(|mode| *mode <= 0o7777)?;
        record.meta.uid = u32::try_from(take_number(input)?).ok()?;
        record.meta.gid = u32::try_from(take_number(input)?).ok()?;
        let mtime = take_number(input)?;
        record.meta.mtime = (mtime >> 1).cast_signed() ^ -((mtime & 1).cast_signed());
        let nsec = u32::try_from(take_number(input)?).ok();
        record.meta.mtime_nsec = nsec.filter(|nsec| *nsec < 1_000_000_000)?;
        for _ in 0..take_number(input)? {
            record.xattrs.push((take_bytes(input)?, take_bytes(input)?));
        }
        record.kind = match kind {
            FILE => {
                let size = take_number(input)?;
                let mut left = size;
                for _ in 0..take_number(input)? {
                    let digest = Digest(take(input, 32)?.try_into().ok()?);
                    let len = u32::try_from(take_number(input)?).ok()?;
                    left = left.checked_sub(len.into()).filter(|_| len > 0)?;
                    record.ranges.push(RangeRef { digest, len });
                }
                (left == 0).then_some(Kind::File { size })?
            }
            DIR => Kind::Dir,
            SYMLINK => Kind::Symlink(take_bytes(input)?),
            CHAR | BLOCK => {
                let device = Device {
                    major: u32::try_from(take_number(input)?).ok()?,
                    minor: u32::try_from(take_number(input)?).ok()?,
                };
                match kind {
                    CHAR => Kind::Char(device),
                    _ => Kind::Block(device),
                }
            }
            FIFO => Kind::Fifo,
            SOCKET => Kind::Socket,
            _ => return None,
        };
        Some(record)
    }
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    number(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn take<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (now, later) = input.split_at_checked(len)?;
    *input = later;
    Some(now)
}

fn take_number(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(input, 1)?[0];
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return (shift < 63 || byte < 2).then_some(value);
        }
    }
    None
}

fn take_bytes(input: &mut &[u8]) -> Option<Vec<u8>> {
    let len = usize::try_from(take_number(input)?).ok()?;
    Some(take(input, len)?.to_vec())
}

/// Path of records in the order of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathOf(Vec<Vec<u8>>);

impl PathOf {
    /// Moves on to the next record and returns its path below the root. `None` if no directory is at its depth.
    pub(crate) fn next(&mut self, depth: u32, name: &[u8]) -> Option<Vec<u8>> {
        let depth = usize::try_from(depth).ok()?;
        match depth.checked_sub(1) {
            None => self.0.clear(),
            Some(above) if above <= self.0.len() => {
                self.0.truncate(above);
                self.0.push(name.to_vec());
            }
            Some(_) => return None,
        }
        Some(self.0.join(&b'/'))
    }
}

/// Order of two paths in a tree: a slash sorts before all bytes of names.
pub(crate) fn order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let key = |byte: &u8| match byte {
        b'/' => 0,
        byte => *byte,
    };
    a.iter().map(key).cmp(b.iter().map(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: Kind, ranges: &[u32]) -> Record {
        Record {
            depth: 3,
            name: b"\xff name\n".to_vec(),
            kind,
            meta: Meta {
                mode: 0o4755,
                uid: u32::MAX,
                gid: 7,
                mtime: i64::MIN,
                mtime_nsec: 999_999_999,
            },
            xattrs: vec![(b"user.a".to_vec(), b"\0".to_vec())],
            ranges: (ranges.iter())
                .map(|len| RangeRef {
                    digest: Digest::of_bytes(&len.to_le_bytes()),
                    len: *len,
                })
                .collect(),
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_and_damage_is_no_panic() {
        let device = Device { major: 8, minor: 1 };
        let mut bytes = Vec::new();
        let records = [
            record(Kind::File { size: 300_000 }, &[200_000, 100_000]),
            record(Kind::Dir, &[]),
            record(Kind::Symlink(b"../x".to_vec()), &[]),
            record(Kind::Block(device), &[]),
            record(Kind::Fifo, &[]),
        ];
        for record in &records {
            record.encode(&mut bytes);
        }
        let mut rest = &bytes[..];
        for record in &records {
            assert_eq!(Record::decode(&mut rest).as_ref(), Some(record));
        }
        assert!(rest.is_empty());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let mut rest = &damaged[..];
                while !rest.is_empty() && Record::decode(&mut rest).is_some() {}
            }
            let mut cut = &bytes[..at];
            while !cut.is_empty() && Record::decode(&mut cut).is_some() {}
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "/etc", "a\0"] {
            let mut bytes = Vec::new();
            let mut record = record(Kind::Dir, &[]);
            record.name = name.into();
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&mut &bytes[..]), None, "{name}");
        }
    }

    #[test]
    fn paths_follow_depths() {
        let mut path = PathOf::default();
        let mut next = |depth, name: &str| path.next(depth, name.as_bytes());
        assert_eq!(next(0, "").unwrap(), b"");
        assert_eq!(next(1, "a").unwrap(), b"a");
        assert_eq!(next(2, "b").unwrap(), b"a/b");
        assert_eq!(next(1, "c").unwrap(), b"c");
        assert_eq!(next(3, "d"), None);
        assert!(order(b"a/b", b"a.b").is_lt());
    }
}
