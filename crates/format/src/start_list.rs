//! Start list: ranges of data that the start of an image's command reads, in the order in which they are wanted.
//!
//! ```text
//! magic(8) version(2) flags(2) count(4) files(4) meta_blocks(4) meta_start(8) │ count entries of variable length
//! entry    length << 1 | other device, [device], start - end of the entry before: varints, the last one zigzag
//! ```
//!
//! The list is a hint. Its ranges are claims of the image's author: they may overlap, come in any order and lie outside the
//! image.
//!
//! Source: `docs/reference/format/start-list.md`.

use crate::inode::{ALIGN, FileType, Inode};
use crate::units::round_up;
use crate::{BlockAddr, DeviceId, Error, Nid, Result, wire};
use alloc::vec;
use alloc::vec::Vec;

/// First bytes of a list.
pub const MAGIC: [u8; 8] = *b"tuffstrt";
/// Version of the form that this module encodes and decodes.
pub const VERSION: u16 = 1;
/// Longest list that is written or read. Unit: bytes.
pub const LEN_MAX: usize = 256 << 10;
/// Number of entries that are written or read: the first ones.
pub const ENTRIES_MAX: u32 = 1 << 15;
/// Length of the head, before the entries. Unit: bytes.
pub const HEAD_LEN: usize = 32;
/// Bound of block numbers, so that the distance of any two fits in 64 bits.
const BLOCKS_MAX: u64 = 1 << 62;
/// Length of magic and version, which all versions have. Unit: bytes.
const VERSION_END: usize = 10;

/// Blocks of a device that a start reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block.
    pub start: BlockAddr,
    /// Number of blocks.
    pub blocks: u32,
    /// Device that holds the blocks, in the order of the device table.
    pub device: DeviceId,
}

/// Decoded start list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartList {
    /// Number of files whose data is listed.
    pub files: u32,
    /// First block of the metadata that the start reads, and the number of blocks: directories, attributes and inodes of the
    /// listed files, and this list. 0 blocks if it is not known.
    pub meta: (BlockAddr, u32),
    /// Ranges of data in the order in which they are wanted.
    pub ranges: Vec<Range>,
}

/// Result of decoding a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A list of the known version.
    List(StartList),
    /// A list of another version, which readers skip.
    Unknown {
        /// Version of the list.
        version: u16,
    },
}

/// Returns the number of the inode that holds the list, if the image has one: the one behind the root directory's inode. `len` is
/// the length of the root's inode in bytes with its attributes, its map header or index, and its inline data.
pub fn nid(root: Nid, len: u64) -> Option<Nid> {
    let slots = round_up(len, ALIGN) / ALIGN;
    root.0.checked_add(slots).map(Nid)
}

/// Returns true for an inode that may hold a list: a regular file that no directory names, of a length that a list can have.
pub fn may_hold(inode: &Inode) -> bool {
    inode.mode >> 12 == FileType::File.mode_bits() >> 12
        && inode.nlink == 0
        && (VERSION_END as u64..=LEN_MAX as u64).contains(&inode.size)
}

impl StartList {
    /// Decodes a list, of many entries the first [`ENTRIES_MAX`]. `None` for bytes that do not begin with the magic.
    ///
    /// # Errors
    /// `Corrupt` for a list of the known version that is too long, ends early or states values that no image can have.
    pub fn decode(bytes: &[u8]) -> Result<Option<Decoded>> {
        if !bytes.starts_with(&MAGIC) {
            return Ok(None);
        }
        if bytes.len() > LEN_MAX {
            return Err(Error::bad(
                "start list",
                bytes.len() as u64,
                "at most 256 KiB",
            ));
        }
        let version = wire::u16_at(bytes, 8, "start list: version")?;
        if version != VERSION {
            return Ok(Some(Decoded::Unknown { version }));
        }
        let word = |at| wire::u32_at(bytes, at, "start list: head");
        let count = word(12)?;
        let meta_start = u64::from(word(24)?) | u64::from(word(28)?) << 32;
        let mut rest = bytes.get(HEAD_LEN..).unwrap_or_default();
        // An entry has at least two bytes.
        if count as usize > rest.len() / 2 {
            return Err(Error::bad(
                "start list: entries",
                count.into(),
                "two bytes for each",
            ));
        }
        let count = count.min(ENTRIES_MAX);
        let mut ranges = Vec::with_capacity(count as usize);
        let (mut device, mut end) = (DeviceId::PRIMARY, 0u64);
        for _ in 0..count {
            let head = varint(&mut rest)?;
            if head & 1 != 0 {
                let number = varint(&mut rest)?;
                device = u16::try_from(number)
                    .map(DeviceId)
                    .map_err(|_| Error::bad("start list: device", number, "at most 65535"))?;
                end = 0;
            }
            let blocks = u32::try_from(head >> 1)
                .map_err(|_| Error::bad("start list: blocks", head >> 1, "below 2^32"))?;
            let start = end.checked_add_signed(signed(varint(&mut rest)?));
            let next = start.and_then(|start| start.checked_add(blocks.into()));
            let (Some(start), Some(next)) = (start, next.filter(|next| *next <= BLOCKS_MAX)) else {
                return Err(Error::corrupt(
                    "start list: an entry outside of 2^62 blocks",
                ));
            };
            end = next;
            ranges.push(Range {
                start: BlockAddr(start),
                blocks,
                device,
            });
        }
        Ok(Some(Decoded::List(Self {
            files: word(16)?,
            meta: (BlockAddr(meta_start), word(20)?),
            ranges,
        })))
    }

    /// Encodes the list. The last entries are left out if it would be longer than [`LEN_MAX`], or have more than [`ENTRIES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD_LEN];
        let (mut device, mut end, mut count) = (DeviceId::PRIMARY, 0u64, 0u32);
        for range in self.ranges.iter().take(ENTRIES_MAX as usize) {
            let before = out.len();
            let other = range.device != device;
            put_varint(&mut out, u64::from(range.blocks) << 1 | u64::from(other));
            if other {
                put_varint(&mut out, range.device.0.into());
                (device, end) = (range.device, 0);
            }
            put_varint(&mut out, unsigned(range.start.0.wrapping_sub(end) as i64));
            if out.len() > LEN_MAX {
                out.truncate(before);
                break;
            }
            end = range.start.0.wrapping_add(range.blocks.into());
            count += 1;
        }
        let mut head = Vec::with_capacity(HEAD_LEN);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&[0; 2]);
        head.extend_from_slice(&count.to_le_bytes());
        head.extend_from_slice(&self.files.to_le_bytes());
        head.extend_from_slice(&self.meta.1.to_le_bytes());
        head.extend_from_slice(&self.meta.0.0.to_le_bytes());
        for (to, from) in out.iter_mut().zip(head) {
            *to = from;
        }
        out
    }
}

/// Takes an integer in groups of seven bits, the lowest first.
fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let Some((byte, after)) = rest.split_first() else {
            return Err(Error::corrupt("start list: ends inside an entry"));
        };
        *rest = after;
        let group = u64::from(byte & 0x7F);
        if group << shift >> shift != group {
            break;
        }
        value |= group << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Error::corrupt("start list: a number of more than 64 bits"))
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn unsigned(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(device: u16, start: u64, blocks: u32) -> Range {
        Range {
            start: BlockAddr(start),
            blocks,
            device: DeviceId(device),
        }
    }

    fn list(ranges: Vec<Range>) -> StartList {
        StartList {
            files: 7,
            meta: (BlockAddr(0x1_0000_0005), 9),
            ranges,
        }
    }

    fn decoded(bytes: &[u8]) -> StartList {
        match StartList::decode(bytes).unwrap().unwrap() {
            Decoded::List(list) => list,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lists_survive_a_round_trip_in_any_order() {
        let ranges = vec![
            range(0, 100, 3),
            range(0, 103, 1),
            range(0, 7, 200),
            range(3, 5, 1),
            range(3, 4, 1),
            range(0, 1 << 47, u32::MAX),
            range(0, 0, 0),
        ];
        for ranges in [Vec::new(), ranges] {
            let list = list(ranges);
            let bytes = list.encode();
            assert_eq!(bytes[..10], *b"tuffstrt\x01\x00");
            assert_eq!(decoded(&bytes), list);
        }
    }

    #[test]
    fn an_entry_that_continues_the_one_before_takes_two_bytes() {
        let list = list(vec![range(0, 0, 5), range(0, 5, 63)]);
        assert_eq!(list.encode()[HEAD_LEN..], [10, 0, 126, 0]);
    }

    #[test]
    fn long_lists_keep_their_first_entries() {
        let short: Vec<Range> = (0..1_000_000).map(|i| range(0, i * 2, 1)).collect();
        let list = list(short);
        let bytes = list.encode();
        let read = decoded(&bytes);
        assert_eq!(read.ranges.len(), ENTRIES_MAX as usize);
        assert_eq!(read.ranges[..], list.ranges[..read.ranges.len()]);
        // The bound of memory at a reader.
        assert!(read.ranges.capacity() * size_of::<Range>() <= 1 << 20);
        // Another writer stated more.
        let mut more = bytes;
        more.extend_from_slice(&[2, 2]);
        more[12..16].copy_from_slice(&(ENTRIES_MAX + 1).to_le_bytes());
        assert_eq!(decoded(&more), read);
        let far = |i| range(i as u16, 1 << 40, 1 << 30);
        let long = StartList {
            ranges: (0..ENTRIES_MAX).map(far).collect(),
            ..StartList::default()
        };
        let bytes = long.encode();
        assert!(bytes.len() <= LEN_MAX && bytes.len() > LEN_MAX - 16);
    }

    #[test]
    fn other_versions_are_named_and_other_bytes_are_no_list() {
        let mut bytes = list(vec![range(0, 1, 1)]).encode();
        assert_eq!(StartList::decode(&bytes[1..]).unwrap(), None);
        assert_eq!(StartList::decode(b"").unwrap(), None);
        bytes[8] = 2;
        bytes.truncate(10);
        let unknown = Decoded::Unknown { version: 2 };
        assert_eq!(StartList::decode(&bytes).unwrap(), Some(unknown));
    }

    #[test]
    fn damaged_lists_are_errors() {
        let good = list(vec![range(0, 100, 3), range(2, 50, 70)]).encode();
        for len in 8..good.len() {
            assert!(StartList::decode(&good[..len]).is_err(), "{len}");
        }
        let mut many = good.clone();
        many[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(StartList::decode(&many).is_err());
        let with = |entries: &[u8]| {
            let mut bytes = good[..HEAD_LEN].to_vec();
            bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
            bytes.extend_from_slice(entries);
            StartList::decode(&bytes)
        };
        assert!(with(&[2, 2]).is_ok());
        // Before block 0, beyond all blocks, of too many blocks, on a device that cannot be.
        assert!(with(&[2, 1]).is_err());
        assert!(with(&[2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]).is_err());
        assert!(with(&[254, 255, 255, 255, 255, 1, 0]).is_err());
        assert!(with(&[3, 128, 128, 4, 0]).is_err());
        let mut long = good.clone();
        long.resize(LEN_MAX + 1, 0);
        assert!(StartList::decode(&long).is_err());
    }

    #[test]
    fn zigzag_numbers_survive_a_round_trip() {
        for value in [0, 1, -1, 64, -65, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_varint(&mut out, unsigned(value));
            assert_eq!(signed(varint(&mut &out[..]).unwrap()), value);
        }
    }
}
