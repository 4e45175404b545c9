//! Files under extraction and the pieces that make them up.

use super::target::{Dir, stage_name};
use crate::read::fetch::Space;
use crate::read::map::Cluster;
use crate::read::{DeviceId, Inode, Nid};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tuff_format::cluster::Coding;

/// Regular file under extraction.
pub(super) struct Task {
    pub(super) dir: Arc<Dir>,
    pub(super) name: Box<[u8]>,
    /// Temporary name until the file is complete. `None` if the file is created under its final name.
    pub(super) temporary: Option<Box<[u8]>>,
    pub(super) inode: Inode,
    /// Number of pieces not yet written, plus one while the walk may add more.
    pub(super) left: AtomicU32,
    /// True once at least one piece was added.
    pub(super) has_pieces: AtomicBool,
    /// True if the file ends in a hole.
    pub(super) ends_in_hole: AtomicBool,
    /// True if the file cannot be completed, so that its partial content must be removed.
    pub(super) failed: AtomicBool,
    /// True if a part could not be restored. An existing file is not replaced by what is left.
    pub(super) damaged: AtomicBool,
    pub(super) state: Mutex<FileState>,
}

/// State of a file in the target.
pub(super) enum FileState {
    /// The file is not created yet.
    New,
    /// The file exists and is open.
    Open(Arc<File>),
    /// The file exists and is temporarily closed.
    Closed,
    /// The file is complete, or could not be created.
    Finished,
}

/// Contiguous range of a file that has a single source.
pub(super) struct Piece {
    pub(super) task: Arc<Task>,
    /// Start of the piece in the file, in bytes.
    pub(super) to: u64,
    /// Length of the piece, in bytes.
    pub(super) len: u64,
    pub(super) source: PieceSource,
}

/// Source of the data of a piece.
#[derive(Clone, Copy)]
pub(super) enum PieceSource {
    /// No data: the piece only creates the file.
    Nothing,
    /// Uncompressed data on a device.
    Raw { device: DeviceId, pos: u64 },
    /// Data stored inline after an inode.
    Inline {
        space: Space,
        pos: u64,
        src_len: u32,
        coding: Coding,
        /// File offset and length of the extent, in bytes.
        extent: (u64, u64),
        /// Offset of the piece in the extent, in bytes.
        skip: u64,
    },
    /// Data of a compressed cluster.
    Cluster {
        cluster: Cluster,
        /// Decoded length of the extent, in bytes.
        extent_len: u64,
        /// Offset of the piece in the extent, in bytes.
        skip: u64,
    },
}

impl Piece {
    /// Returns the sort key. It orders pieces by position, so that all pieces of a cluster are adjacent.
    pub(super) fn key(&self) -> (u16, u64, u64) {
        match self.source {
            PieceSource::Nothing => (0, 0, 0),
            PieceSource::Raw { device, pos } => (device.0, pos, 0),
            PieceSource::Cluster { cluster, skip, .. } => (0, cluster.pos, skip),
            PieceSource::Inline { space, pos, .. } => match space {
                Space::Image => (0, pos, 0),
                Space::Metabox => (u16::MAX, pos, 0),
            },
        }
    }

    /// Part of the decoded cluster that the piece has. Unit: bytes.
    pub(super) fn part(&self) -> Range<usize> {
        match self.source {
            // Fits: it is inside what one cluster holds.
            PieceSource::Cluster { skip, .. } => skip as usize..(skip + self.len) as usize,
            _ => 0..0,
        }
    }

    pub(super) fn cluster(&self) -> Option<Cluster> {
        match self.source {
            PieceSource::Cluster { cluster, .. } => Some(cluster),
            _ => None,
        }
    }
}

/// Number of pieces that are sorted together.
pub(super) const BATCH: usize = 1 << 13;

impl Task {
    pub(super) fn new(dir: &Arc<Dir>, name: &[u8], inode: Inode, overwrite: bool) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.clone(),
            name: name.into(),
            temporary: stage_name(dir, name, inode.size(), overwrite),
            inode,
            left: AtomicU32::new(1),
            has_pieces: AtomicBool::new(false),
            ends_in_hole: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
            state: Mutex::new(FileState::New),
        })
    }

    /// Counts one additional piece.
    pub(super) fn add_piece(&self) {
        self.left.fetch_add(1, Relaxed);
        self.has_pieces.store(true, Relaxed);
    }

    pub(super) fn path(&self) -> Vec<u8> {
        self.dir.path(&self.name)
    }

    /// Returns the name of the file while it is incomplete.
    pub(super) fn name_now(&self) -> &[u8] {
        self.temporary.as_deref().unwrap_or(&self.name)
    }

    pub(super) fn nid(&self) -> Nid {
        self.inode.nid()
    }
}
