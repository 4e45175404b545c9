//! Search for data and holes in the volume, and write-back of the kernel's pages over a range.

use super::fields::{errno_of, nid};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::IoSlice;
use std::ops::Range;
use tuff_fuse::fields::Fields;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{self, InHeader, NotifyInvalInode, OutHeader};
use tuff_fuse::transport::replies::PendingReply;
use tuff_iplfs::{Nid, Volume};
use zerocopy::IntoBytes;

/// First minor version whose kernel waits for all pages under write-back.
pub(super) const MINOR_MIN: u32 = 44;

/// End of a hole without data after it.
const NO_END: u64 = u64::MAX;

/// LSEEK request on a file.
#[derive(Clone, Copy)]
pub(super) struct Seek {
    pub(super) node: Nid,
    pub(super) offset: u64,
    /// True for SEEK_HOLE, false for SEEK_DATA.
    pub(super) hole: bool,
}

/// Search that waits for write-back by the kernel.
pub(super) struct PendingSeek {
    pub(super) seek: Seek,
    /// Range of the file that may contain data only in the kernel. Unit: bytes.
    pub(super) unsure: Range<u64>,
    pub(super) pending: PendingReply,
}

impl Seek {
    pub(super) fn new(header: &InHeader, mut f: Fields<'_>) -> Result<Self> {
        let (_, offset, whence) = (f.u64()?, f.u64()?, f.u32()?);
        let hole = match whence {
            protocol::SEEK_DATA => false,
            protocol::SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        Ok(Self {
            node: nid(header.node)?,
            offset,
            hole,
        })
    }

    /// Searches the volume without the kernel's pages.
    pub(super) fn run(&self, volume: &mut Volume) -> Result<u64> {
        if self.hole {
            volume.seek_hole(self.node, self.offset).map_err(errno_of)
        } else {
            volume.seek_data(self.node, self.offset).map_err(errno_of)
        }
    }

    /// Returns the range that may change the result `found`: the skipped hole, or everything from the first hole on.
    pub(super) fn unsure(&self, found: Result<u64>) -> Result<Range<u64>> {
        let found = match found {
            // The kernel's end of the file may lie after the volume's.
            Err(Errno::NXIO) => None,
            found => Some(found?),
        };
        Ok(match self.hole {
            true => found.unwrap_or(self.offset)..NO_END,
            false => self.offset..found.unwrap_or(NO_END),
        })
    }
}

/// Makes the kernel write back and drop the pages of a range, and waits for it.
pub(super) fn write_back(fuse: &impl AsFd, node: Nid, range: Range<u64>) -> Result<()> {
    let notice = NotifyInvalInode {
        node: u64::from(node.0),
        offset: range.start,
        len: match range.end {
            NO_END => 0,
            end => end - range.start,
        },
    };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + size_of::<NotifyInvalInode>()) as u32, // fits: both are short
        error: protocol::NOTIFY_INVAL_INODE,
        unique: 0,
    };
    let parts = [header.as_bytes(), notice.as_bytes()].map(IoSlice::new);
    match rustix::io::retry_on_intr(|| rustix::io::writev(fuse, &parts)) {
        // The kernel has forgotten the inode and its pages.
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        // The kernel does not support this notification, so holes are unknown.
        Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::NOSYS),
        Err(e) => Err(e),
    }
}
