//! Files that are being extracted, and the pieces that they are made of.

use super::target::{Dir, stage_name};
use crate::read::fetch::Space;
use crate::read::map::Cluster;
use crate::read::{Inode, Nid};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tuff_format::cluster::Coding;

/// A file that is being made.
pub(super) struct Task {
    pub(super) dir: Arc<Dir>,
    pub(super) name: Box<[u8]>,
    /// Temporary name until the file is complete. `None` if it has its final name at once.
    pub(super) temporary: Option<Box<[u8]>>,
    pub(super) inode: Inode,
    /// Pieces not yet written, and one more as long as the walk may add some.
    pub(super) left: AtomicU32,
    /// Some piece was there.
    pub(super) has_pieces: AtomicBool,
    /// It ends in a hole.
    pub(super) ends_in_hole: AtomicBool,
    /// It will not be complete, and what there is of it is to go.
    pub(super) failed: AtomicBool,
    pub(super) state: Mutex<State>,
}

/// What there is of a file.
pub(super) enum State {
    /// Nothing.
    New,
    /// It is open.
    Open(Arc<File>),
    /// It was made, and closed for the time being.
    Closed,
    /// It could not be made, or is complete.
    Gone,
}

/// A run of a file's bytes that comes from one place.
pub(super) struct Piece {
    pub(super) task: Arc<Task>,
    /// Position in the file. Unit: bytes.
    pub(super) to: u64,
    /// Unit: bytes.
    pub(super) len: u64,
    pub(super) from: From,
}

/// Where a piece comes from.
#[derive(Clone, Copy)]
pub(super) enum From {
    /// Nowhere: the file is only made.
    Nothing,
    /// A device, as it is.
    Raw { device: u16, pos: u64 },
    /// Behind an inode.
    Inline {
        space: Space,
        pos: u64,
        src_len: u32,
        coding: Coding,
        /// File offset and length of the extent.
        extent: (u64, u64),
        /// Bytes of the extent before the piece. Unit: bytes.
        skip: u64,
    },
    /// A compressed cluster.
    Cluster {
        cluster: Cluster,
        /// What the extent decodes to. Unit: bytes.
        extent_len: u64,
        /// Bytes of it before the piece. Unit: bytes.
        skip: u64,
    },
}

impl Piece {
    /// Sorts what lies side by side, and what is in one cluster, together.
    pub(super) fn key(&self) -> (u16, u64, u64) {
        match self.from {
            From::Nothing => (0, 0, 0),
            From::Raw { device, pos } => (device, pos, 0),
            From::Cluster { cluster, skip, .. } => (0, cluster.pos, skip),
            From::Inline { space, pos, .. } => match space {
                Space::Image => (0, pos, 0),
                Space::Metabox => (u16::MAX, pos, 0),
            },
        }
    }

    pub(super) fn cluster(&self) -> Option<Cluster> {
        match self.from {
            From::Cluster { cluster, .. } => Some(cluster),
            _ => None,
        }
    }
}

/// Pieces that are sorted together.
pub(super) const BATCH: usize = 1 << 13;

impl Task {
    pub(super) fn new(dir: &Arc<Dir>, name: &[u8], inode: Inode) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.clone(),
            name: name.into(),
            temporary: stage_name(dir, name, inode.size()),
            inode,
            left: AtomicU32::new(1),
            has_pieces: AtomicBool::new(false),
            ends_in_hole: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            state: Mutex::new(State::New),
        })
    }

    /// Counts one more piece.
    pub(super) fn add_piece(&self) {
        self.left.fetch_add(1, Relaxed);
        self.has_pieces.store(true, Relaxed);
    }

    pub(super) fn path(&self) -> Vec<u8> {
        self.dir.path(&self.name)
    }

    /// The name that it has on the way.
    pub(super) fn name_now(&self) -> &[u8] {
        self.temporary.as_deref().unwrap_or(&self.name)
    }

    pub(super) fn nid(&self) -> Nid {
        self.inode.nid()
    }
}
