//! Extended attributes of inodes.

use crate::blocks::BlockReader;
use crate::cursor::{Cursor, Position};
use crate::error::{Error, Result};
use crate::tables::XattrList;

/// Longest name without its prefix, and longest value, as Linux has them. Unit: bytes.
const NAME_MAX: u16 = 255;
const VALUE_MAX: u32 = 64 << 10;

/// Bit of the type of an attribute whose value is that of another one, to which it refers.
const ELSEWHERE: u16 = 0x100;

/// Full name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Reads the attributes of a list, ascending by name.
pub(crate) fn read(reader: &BlockReader, list: &XattrList) -> Result<Vec<Xattr>> {
    let start = Position::of_reference(list.table, list.reference)?;
    let mut cursor = Cursor::new(reader, start);
    let mut xattrs = Vec::new();
    for _ in 0..list.count {
        let f = cursor.fields::<4>()?;
        let (kind, len) = (f.u16(0), f.u16(2));
        let prefix = match kind & !ELSEWHERE {
            0 => &b"user."[..],
            1 => b"trusted.",
            2 => b"security.",
            other => {
                let what = format_args!("an attribute with prefix {other}, expected 0 to 2");
                return Err(Error::corrupt(cursor.place(), what));
            }
        };
        if !(1..=NAME_MAX).contains(&len) {
            let what = format_args!("the name of an attribute has {len} bytes");
            return Err(Error::corrupt(cursor.place(), what));
        }
        let mut name = prefix.to_vec();
        name.extend(cursor.bytes(len.into())?);
        if name.contains(&0) {
            let what = "the name of an attribute contains a zero byte";
            return Err(Error::corrupt(cursor.place(), what));
        }
        let value = value(reader, list.table, &mut cursor, kind & ELSEWHERE != 0)?;
        // 64 bytes for what holds both.
        reader
            .metadata_budget
            .take((name.len() + value.len() + 64) as u64)?;
        xattrs.push((name, value));
    }
    xattrs.sort_unstable();
    if xattrs.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        let what = "an attribute has two values";
        return Err(Error::corrupt(start.block, what));
    }
    Ok(xattrs)
}

fn value(
    reader: &BlockReader,
    table: u64,
    cursor: &mut Cursor<'_>,
    is_elsewhere: bool,
) -> Result<Vec<u8>> {
    let len = cursor.fields::<4>()?.u32(0);
    if !is_elsewhere {
        return bounded(cursor, len);
    }
    if len != 8 {
        let what = format_args!("a reference to a value has {len} bytes, expected 8");
        return Err(Error::corrupt(cursor.place(), what));
    }
    let reference = cursor.fields::<8>()?.u64(0);
    let mut other = Cursor::new(reader, Position::of_reference(table, reference)?);
    let len = other.fields::<4>()?.u32(0);
    bounded(&mut other, len)
}

fn bounded(cursor: &mut Cursor<'_>, len: u32) -> Result<Vec<u8>> {
    if len > VALUE_MAX {
        let what = format_args!("the value of an attribute has {len} bytes, at most {VALUE_MAX}");
        return Err(Error::corrupt(cursor.place(), what));
    }
    cursor.bytes(len as usize)
}
