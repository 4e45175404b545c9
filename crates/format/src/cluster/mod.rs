//! Compressed files: from file offsets to extents, in three index forms.
//!
//! ```text
//! inode | attributes | [align 8] map header (8) | index ...            | inline cluster
//!                                 FULL:    8 unused, then 8 bytes per lcluster
//!                                 COMPACT: packs of 2 or 16 lclusters
//!                                 EXTENTS: records of 4, 8, 16 or 32 bytes per extent
//! ```
//!
//! Invariants:
//!
//! * Extents ascend, have no gaps and cover `[0, size)`; an lcluster holds the start of at most one.
//! * [`Map`] needs only the map header; everything else is asked of the index bytes, which the caller loads once.
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

/// Longest cluster on disk. Unit: bytes.
pub const PCLUSTER_MAX: u64 = 1 << 20;
/// Longest decoded extent. Unit: bytes.
pub const DECODED_MAX: u64 = 12 << 20;

/// A run of a file's bytes and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position in the file. Unit: bytes.
    pub la: u64,
    /// Length in the file. Unit: bytes.
    pub len: u64,
    /// Where the bytes are.
    pub data: Data,
}

impl Extent {
    /// Position behind the extent.
    pub fn end(&self) -> u64 {
        self.la.saturating_add(self.len)
    }
}

/// Where an extent's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// From a cluster in the image.
    Cluster {
        /// Byte position in the unified address space of the primary device.
        pa: u64,
        /// Unit: bytes, at most [`PCLUSTER_MAX`].
        plen: u32,
        /// How it is encoded.
        coding: Coding,
        /// The extent is a prefix of what the cluster decodes to.
        partial: bool,
    },
    /// From the bytes behind the index, at [`Map::inline_pos`].
    Inline {
        /// Unit: bytes.
        len: u32,
        /// How they are encoded.
        coding: Coding,
    },
    /// From the packed inode's data.
    Fragment {
        /// Position there. Unit: bytes.
        offset: u64,
    },
    /// Zeros.
    Hole,
}

/// How the bytes of a cluster stand for the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// As they are, from the cluster's first byte on.
    Stored,
    /// As they are, but the byte for file offset `x` lies at `x % block size` of its block: the head of the extent is in
    /// the last block.
    Interlaced,
    /// Compressed with this algorithm, 0 to 3.
    Compressed(u8),
}

/// What an index entry says of its lcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lcluster {
    /// An extent starts here.
    Head {
        /// Stored or which of the two algorithms.
        kind: HeadKind,
        /// Position in the lcluster. Unit: bytes.
        ofs: u16,
        /// First block of its cluster.
        block: u32,
        /// The extent is a prefix of what the cluster decodes to.
        partial: bool,
    },
    /// No extent starts here.
    Nonhead {
        /// Steps back towards the head, at least 1.
        back: u16,
        /// Steps forward towards the next head. 0: not known.
        ahead: u16,
        /// Blocks of the cluster, on the entry right behind its head.
        blocks: Option<u16>,
    },
}

/// The kind of an extent's first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Stored.
    Plain = 0,
    /// First algorithm.
    Head1 = 1,
    /// Second algorithm.
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

/// Flag in a distance: the rest is a block count.
const CBLKCNT: u16 = 0x800;
/// Largest distance that can be written.
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
