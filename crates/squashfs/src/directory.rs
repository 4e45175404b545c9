//! Entries of directories: runs of up to 256 entries, each with a header.

use crate::blocks::BlockReader;
use crate::cursor::{Cursor, Position};
use crate::error::{Error, Result};
use crate::inode::Listing;

/// Longest name. Unit: bytes.
const NAME_MAX: usize = 255;

/// Most entries behind one header.
const RUN_MAX: u32 = 256;

/// Entry of a directory.
pub(crate) struct Dirent {
    pub(crate) name: Vec<u8>,
    /// Reference of its inode.
    pub(crate) inode: u64,
    /// Number of its type.
    pub(crate) kind: u16,
}

/// State of reading a directory, without the image.
pub(crate) struct DirState {
    position: Position,
    /// Bytes that are left.
    left: u32,
    /// Entries that are left of the run, and the block of their inodes.
    run: (u32, u32),
    last: Vec<u8>,
}

impl DirState {
    pub(crate) fn new(listing: &Listing) -> Self {
        Self {
            position: listing.start,
            left: listing.len,
            run: (0, 0),
            last: Vec::new(),
        }
    }

    /// Reads the next entry. `None` at the end.
    pub(crate) fn next(&mut self, reader: &BlockReader) -> Result<Option<Dirent>> {
        let mut cursor = Cursor::new(reader, self.position);
        if self.run.0 == 0 {
            if self.left == 0 {
                return Ok(None);
            }
            self.count(&cursor, 12)?;
            let f = cursor.fields::<12>()?;
            let entries = f.u32(0).saturating_add(1);
            if entries > RUN_MAX {
                let what = format_args!("{entries} entries behind one header, at most {RUN_MAX}");
                return Err(Error::corrupt(cursor.place(), what));
            }
            self.run = (entries, f.u32(4));
        }
        self.count(&cursor, 8)?;
        let f = cursor.fields::<8>()?;
        let len = usize::from(f.u16(6)) + 1;
        if len > NAME_MAX {
            let what = format_args!("a name of {len} bytes, at most {NAME_MAX}");
            return Err(Error::corrupt(cursor.place(), what));
        }
        // Fits: at most 255.
        self.count(&cursor, len as u32)?;
        let name = cursor.bytes(len)?;
        let is_name = !matches!(&name[..], b"." | b"..")
            && !name.contains(&b'/')
            && !name.contains(&0)
            && name > self.last;
        if !is_name {
            let shown = name.escape_ascii();
            let what =
                format_args!("the name \"{shown}\" is invalid, or not behind the one before it");
            return Err(Error::corrupt(cursor.place(), what));
        }
        self.last.clone_from(&name);
        self.run.0 -= 1;
        self.position = cursor.position();
        Ok(Some(Dirent {
            name,
            inode: u64::from(self.run.1) << 16 | u64::from(f.u16(0)),
            kind: f.u16(4),
        }))
    }

    /// Deducts bytes from those that are left.
    fn count(&mut self, cursor: &Cursor<'_>, n: u32) -> Result<()> {
        let left = self.left.checked_sub(n);
        self.left = left.ok_or_else(|| {
            Error::corrupt(cursor.place(), "a directory ends within one of its entries")
        })?;
        Ok(())
    }
}
