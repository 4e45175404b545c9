//! Look-up of inodes by number.

use super::fetch::{Bytes, Space, WINDOW};
use super::image::Image;
use super::inode::Inode;
use crate::{Error, Result};
use tuff_format::Nid;
use tuff_format::inode::{self};

/// A piece of metadata, and which one it is.
pub(crate) struct Near {
    at: (Space, u64),
    bytes: Bytes,
}

impl Image {
    /// The inode with this number.
    ///
    /// # Errors
    /// `Corrupt` if it does not lie inside the image (or the metabox), or breaks a rule; `Unsupported` for a format or
    /// layout of the future.
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        let (space, pos) = self.inode_position(nid)?;
        let bytes = self
            .bytes_up_to(space, pos, inode::EXTENDED_LEN)
            .map_err(|e| e.within(inode_place(nid, pos)))?;
        self.inode_from(nid, pos, &bytes)
    }

    /// As [`inode`](Self::inode), for many that mostly lie close to each other: `near` is the piece of metadata that the
    /// last one was in.
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
            // At the end of a piece, or of the image; or the piece cannot be read, perhaps for another inode's sake.
            None => self.inode(nid),
        }
    }

    /// Where an inode lies.
    pub(crate) fn inode_position(&self, nid: Nid) -> Result<(Space, u64)> {
        let sb = self.superblock();
        let pos = nid.position(sb.block_bits, sb.meta_blkaddr);
        let pos = pos.ok_or_else(|| {
            Error::corrupt(
                format_args!("nid {nid}"),
                "position does not fit in 64 bits",
            )
        })?;
        let space = if nid.in_metabox() {
            Space::Metabox
        } else {
            Space::Image
        };
        Ok((space, pos))
    }

    /// The inode whose bytes, or those up to the end of its space, these are.
    pub(crate) fn inode_from(&self, nid: Nid, pos: u64, bytes: &[u8]) -> Result<Inode> {
        let sb = self.superblock();
        let raw = inode::Inode::decode(bytes)
            .map_err(|e| Error::format("", e).within(inode_place(nid, pos)))?;
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

fn inode_place(nid: Nid, pos: u64) -> String {
    format!("nid {nid} (byte {pos:#x})")
}
