//! Lookup of inodes by number.

use super::fetch::{Bytes, Space, WINDOW};
use super::image::Image;
use super::inode::Inode;
use crate::{Error, Place, Result};
use tuff_format::Nid;
use tuff_format::inode::{self};

/// Metadata window that held the most recent inode, with its space and window number.
pub(crate) struct Near {
    at: (Space, u64),
    bytes: Bytes,
}

impl Image {
    /// Returns the inode with this number.
    ///
    /// # Errors
    /// `Corrupt` if it does not fit inside the image (or the metabox), or violates the format. `Unsupported`
    /// for an unknown inode format or data layout.
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        if let Some(root) = self.root.get().filter(|root| root.nid() == nid) {
            return Ok(*root);
        }
        let (space, pos) = self.inode_position(nid)?;
        let bytes = self
            .bytes_up_to(space, pos, inode::EXTENDED_LEN)
            .map_err(|e| e.within(Place::inode(nid, pos)))?;
        self.inode_from(nid, pos, &bytes)
    }

    /// As [`inode`](Self::inode), for a sequence of neighbouring inodes: `near` keeps the metadata window of
    /// the previous call.
    pub(crate) fn inode_near(&self, nid: Nid, near: &mut Option<Near>) -> Result<Inode> {
        let (space, pos) = self.inode_position(nid)?;
        // Fits: below WINDOW.
        let (n, from) = (pos / WINDOW, (pos % WINDOW) as usize);
        if near.as_ref().is_none_or(|near| near.at != (space, n)) {
            let piece = self.window_of(space, n).ok();
            *near = piece.map(|bytes| Near {
                at: (space, n),
                bytes,
            });
        }
        let bytes = near.as_ref().map(|near| &*near.bytes);
        match bytes.and_then(|b| b.get(from..from + inode::EXTENDED_LEN)) {
            Some(bytes) => self.inode_from(nid, pos, bytes),
            // The inode crosses the end of the window or of the image, or the window cannot be read because
            // of another part of it.
            None => self.inode(nid),
        }
    }

    /// Returns the address space and the position of an inode.
    pub(crate) fn inode_position(&self, nid: Nid) -> Result<(Space, u64)> {
        let sb = self.superblock();
        let pos = nid.position(sb.block_bits, sb.meta_blkaddr);
        let pos =
            pos.ok_or_else(|| Error::corrupt(Place::nid(nid), "position does not fit in 64 bits"))?;
        let space = if nid.in_metabox() {
            Space::Metabox
        } else {
            Space::Image
        };
        Ok((space, pos))
    }

    /// Decodes an inode from the bytes at its position; `bytes` may end early at the end of the space.
    pub(crate) fn inode_from(&self, nid: Nid, pos: u64, bytes: &[u8]) -> Result<Inode> {
        let sb = self.superblock();
        let len = match bytes {
            &[a, b, ..] => inode::Inode::len_of(u16::from_le_bytes([a, b])),
            _ => inode::COMPACT_LEN,
        };
        if bytes.len() < len {
            let end = pos.saturating_add(bytes.len() as u64);
            let what = format_args!("{len} bytes reach past the end, byte {end}");
            return Err(Error::corrupt(Place::inode(nid, pos), what));
        }
        let raw = inode::Inode::decode(bytes)
            .map_err(|e| Error::format("", e).within(Place::inode(nid, pos)))?;
        let mtime = if raw.extended {
            (raw.mtime, raw.mtime_nsec)
        } else {
            (sb.epoch.wrapping_add(raw.mtime), sb.fixed_nsec)
        };
        Ok(Inode {
            nid,
            pos,
            raw,
            mtime,
        })
    }
}
