//! Tables of IDs, fragments and attributes: lists of the positions of blocks of metadata, which hold the entries.

use crate::blocks::{BlockReader, METADATA_LEN, StoredSize};
use crate::bytes::Fields;
use crate::cursor::{Cursor, Position};
use crate::error::{Error, Result};
use crate::superblock::Superblock;

/// Returns a cursor at an entry of `len` bytes in the table whose list begins at byte `list`.
fn entry<'a>(
    reader: &'a BlockReader,
    list: u64,
    index: u32,
    len: usize,
    what: &str,
) -> Result<Cursor<'a>> {
    // Fits: an index has 32 bits.
    let at = u64::from(index) * len as u64;
    let per_block = METADATA_LEN as u64;
    let field = list.saturating_add(at / per_block * 8);
    let mut position = Fields([0; 8]);
    reader.read(what, field, &mut position.0)?;
    let position = Position {
        block: position.u64(0),
        // Fits: less than the length of a block.
        offset: (at % per_block) as usize,
    };
    Ok(Cursor::new(reader, position))
}

/// Reads all user and group IDs.
pub(crate) fn ids(reader: &BlockReader, superblock: &Superblock) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let mut cursor = None;
    for index in 0..u32::from(superblock.ids) {
        // Each block of the table has a position of its own.
        if index.is_multiple_of(METADATA_LEN as u32 / 4) {
            let list = superblock.id_table;
            cursor = Some(entry(reader, list, index, 4, "the ID table")?);
        }
        if let Some(cursor) = &mut cursor {
            ids.push(cursor.fields::<4>()?.u32(0));
        }
    }
    Ok(ids)
}

/// Returns the position and stored size of a block of fragments.
pub(crate) fn fragment(
    reader: &BlockReader,
    superblock: &Superblock,
    index: u32,
) -> Result<(u64, StoredSize)> {
    if index >= superblock.fragments {
        return Err(Error::corrupt(
            superblock.fragment_table,
            format_args!("fragment {index} of {}", superblock.fragments),
        ));
    }
    let list = superblock.fragment_table;
    let mut cursor = entry(reader, list, index, 16, "the fragment table")?;
    let f = cursor.fields::<16>()?;
    let size = reader.stored_size(cursor.place(), f.u32(8))?;
    if size.len == 0 {
        return Err(Error::corrupt(cursor.place(), "an empty fragment"));
    }
    Ok((f.u64(0), size))
}

/// Attributes of an inode: where they are.
pub(crate) struct XattrList {
    /// First byte of all names and values, to which references count.
    pub(crate) table: u64,
    pub(crate) reference: u64,
    pub(crate) count: u32,
}

/// Returns the list of attributes with an index.
pub(crate) fn xattrs(
    reader: &BlockReader,
    superblock: &Superblock,
    index: u32,
) -> Result<XattrList> {
    let Some(at) = superblock.xattr_table else {
        return Err(Error::corrupt(
            superblock.inode_table,
            format_args!("an inode with attributes {index}, and no table of them"),
        ));
    };
    let mut header = Fields([0; 16]);
    reader.read("the xattr table", at, &mut header.0)?;
    let (table, count) = (header.u64(0), header.u32(8));
    if index >= count {
        return Err(Error::corrupt(
            at,
            format_args!("attributes {index} of {count}"),
        ));
    }
    let list = at.saturating_add(16);
    let f = entry(reader, list, index, 16, "the xattr table")?.fields::<16>()?;
    Ok(XattrList {
        table,
        reference: f.u64(0),
        count: f.u32(8),
    })
}
