//! Compressed files: mapping from file offsets to physical clusters (pclusters), in three index forms.
//!
//! ```text
//! inode | xattrs     | [align 8] map header (8) | index ...            | inline pcluster
//!                                 FULL:    8 unused, then 8 bytes per lcluster
//!                                 COMPACT: packs of 2 or 16 lclusters
//!                                 EXTENTS: records of 4, 8, 16 or 32 bytes per extent
//! ```
//!
//! Invariants:
//!
//! * Extents ascend without gaps and cover `[0, size)`. At most one extent starts in a logical cluster (lcluster).
//! * [`Map`] needs only the map header. All other methods take the bytes of the index, which the caller loads once.
//!
//! Source: `docs/reference/format/cluster.md`.

pub mod compact;
pub mod extent;
pub mod full;
pub mod header;
mod lookup;
pub mod write;

pub use header::MapHeader;
pub use lookup::{Extents, Form, Map};

use crate::{Error, Result};

/// Length of the largest pcluster. Unit: bytes.
pub const PCLUSTER_MAX: u64 = 1 << 20;
/// Length of the largest decoded extent. Unit: bytes.
pub const DECODED_MAX: u64 = 12 << 20;

/// Extent: consecutive bytes of a file with one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position in the file. Unit: bytes.
    pub la: u64,
    /// Length in the file. Unit: bytes.
    pub len: u64,
    /// Source of the bytes.
    pub data: Data,
}

impl Extent {
    /// End of the extent in the file. Unit: bytes.
    pub fn end(&self) -> u64 {
        self.la.saturating_add(self.len)
    }
}

/// Source of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Pcluster in the image.
    Cluster {
        /// Position in the unified address space of the primary device. Unit: bytes.
        pa: u64,
        /// Length of the pcluster, at most [`PCLUSTER_MAX`]. Unit: bytes.
        plen: u32,
        /// Encoding of the pcluster.
        coding: Coding,
        /// True if the extent is a prefix of the decoded pcluster.
        partial: bool,
    },
    /// Inline pcluster after the index, at [`Map::inline_pos`].
    Inline {
        /// Length of the pcluster. Unit: bytes.
        len: u32,
        /// Encoding of the pcluster.
        coding: Coding,
    },
    /// Fragment in the packed inode.
    Fragment {
        /// Position in the packed inode's data. Unit: bytes.
        offset: u64,
    },
    /// Hole, which reads as zeros.
    Hole,
}

/// Encoding of a pcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Uncompressed, from the first byte of the pcluster on.
    Stored,
    /// Uncompressed and rotated: the byte of file offset `x` is at `x % block size` of its block, so that the head
    /// of the extent is in the last block.
    Interlaced,
    /// Compressed with the algorithm of this id, 0 to 3.
    Compressed(u8),
}

/// Decoded index entry of an lcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lcluster {
    /// An extent starts in the lcluster.
    Head {
        /// Encoding of the extent's pcluster.
        kind: HeadKind,
        /// Start of the extent in the lcluster. Unit: bytes.
        ofs: u16,
        /// First block of the pcluster.
        block: u32,
        /// True if the extent is a prefix of the decoded pcluster.
        partial: bool,
    },
    /// No extent starts in the lcluster.
    Nonhead {
        /// Distance back towards the head, at least 1. Unit: lclusters.
        back: u16,
        /// Distance ahead to the next head. Unit: lclusters; 0 if unknown.
        ahead: u16,
        /// Number of blocks of the pcluster, only in the entry that follows the head.
        blocks: Option<u16>,
    },
}

/// Type of a head entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Pcluster without compression (`PLAIN`).
    Plain = 0,
    /// Pcluster compressed with the first algorithm.
    Head1 = 1,
    /// Pcluster compressed with the second algorithm.
    Head2 = 3,
}

impl HeadKind {
    fn from_bits(bits: u16) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Plain),
            1 => Some(Self::Head1),
            3 => Some(Self::Head2),
            _ => None,
        }
    }
}

/// Flag in a distance field: the low bits are a number of blocks.
const CBLKCNT: u16 = 0x800;
/// Largest distance that fits its field.
const DISTANCE_MAX: u64 = 0x7FF;

fn check_head(ofs: u16, lcluster_bits: u8) -> Result<()> {
    if u64::from(ofs) >> lcluster_bits != 0 {
        return Err(Error::bad(
            "index entry: cluster offset",
            ofs.into(),
            "less than the lcluster size",
        ));
    }
    Ok(())
}
