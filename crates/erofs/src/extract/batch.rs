//! Pieces of files, sorted by where their bytes lie, and the queue that hands them to the workers.

use super::Shared;
use super::target::{Dir, stage_name};
use super::write::Writer;
use crate::read::fetch::Space;
use crate::read::map::Cluster;
use crate::read::{Inode, Nid};
use crate::threads;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    fn key(&self) -> (u16, u64, u64) {
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
/// What one worker takes at once: about so many decoded bytes. Unit: bytes.
const ITEM: u64 = 2 << 20;
/// What making a file costs, as bytes that could be decoded meanwhile. Unit: bytes.
const FILE: u64 = 16 << 10;
/// Pieces that wait. More, and the walk does some of the work itself.
const WAITING: usize = 4 * BATCH;

/// Items of work, and who waits for them.
pub(super) struct Queue<'a> {
    shared: &'a Shared<'a>,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    items: VecDeque<Vec<Piece>>,
    /// Pieces in the items.
    waiting: usize,
    /// Items taken and not yet done.
    running: usize,
    closed: bool,
}

impl QueueState {
    fn take(&mut self) -> Option<Vec<Piece>> {
        let item = self.items.pop_front()?;
        self.waiting -= item.len();
        Some(item)
    }
}

/// Runs `walk` beside up to `threads - 1` workers, and lets it work, too, when it waits.
pub(super) fn run<T>(shared: &Shared<'_>, threads: usize, walk: impl FnOnce(&Queue<'_>) -> T) -> T {
    let queue = Queue {
        shared,
        state: Mutex::default(),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        // Also when `walk` panics: the workers wait for this.
        let _close = Close(&queue);
        threads::start(scope, "extract", threads - 1, || queue.work());
        walk(&queue)
    })
}

struct Close<'a, 'b>(&'a Queue<'b>);

impl Drop for Close<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue<'_> {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut writer = Writer::new(self.shared);
        let mut state = self.lock();
        loop {
            if let Some(item) = state.take() {
                state.running += 1;
                drop(state);
                writer.run(item);
                state = self.lock();
                state.running -= 1;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sorts pieces and hands them out, all of a cluster together. Works itself while too much waits.
    pub(super) fn add(&self, pieces: &mut Vec<Piece>, writer: &mut Writer<'_>) {
        pieces.sort_by_key(Piece::key);
        let mut item: Vec<Piece> = Vec::new();
        let mut weight = 0;
        for piece in pieces.drain(..) {
            let last = item.last();
            let same_cluster = last.is_some_and(|l| {
                l.cluster().is_some() && l.key().0 == piece.key().0 && l.key().1 == piece.key().1
            });
            if weight >= ITEM && !same_cluster {
                self.push(std::mem::take(&mut item));
                weight = 0;
            }
            if !last_is(item.last(), &piece) {
                weight += FILE;
            }
            weight += piece.len;
            item.push(piece);
        }
        if !item.is_empty() {
            self.push(item);
        }
        while self.lock().waiting > WAITING {
            self.help(writer);
        }
    }

    fn push(&self, item: Vec<Piece>) {
        let mut state = self.lock();
        state.waiting += item.len();
        state.items.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    fn help(&self, writer: &mut Writer<'_>) {
        let item = self.lock().take();
        if let Some(item) = item {
            writer.run(item);
        }
    }

    /// Works until nothing is left, and waits for what others have.
    pub(super) fn drain(&self, writer: &mut Writer<'_>) {
        loop {
            let mut state = self.lock();
            if state.items.is_empty() {
                while state.running > 0 {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                return;
            }
            drop(state);
            self.help(writer);
        }
    }
}

fn last_is(last: Option<&Piece>, piece: &Piece) -> bool {
    last.is_some_and(|l| Arc::ptr_eq(&l.task, &piece.task))
}

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
