//! Workers that decode clusters, combine adjacent pieces and write them.

use super::piece::{FileState, Piece, PieceSource, Task};
use super::shared::Shared;
use super::target::{
    Handles, create_file, give_name, is_there, remove_file, reopen_file, stage_file,
};
use crate::read::DeviceId;
use crate::read::decode::{DecodeScope, Worker};
use crate::read::fetch::FETCH_MAX;
use crate::read::map::{Cluster, Extent, Location};
use crate::{Error, Result};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

/// Maximum length of a combined write, in bytes.
const WRITE: usize = 512 << 10;
/// Maximum length of a single read of uncompressed data, in bytes.
const READ: u64 = 256 << 10;

/// Buffers and handles that one thread uses for writing.
pub(super) struct Writer<'a> {
    shared: &'a Shared<'a>,
    pub(super) handles: Handles,
    worker: Worker,
    /// Decoded cluster, if it has several pieces.
    decoded: Vec<u8>,
    out: Out,
}

/// Write buffer for consecutive bytes of one file.
#[derive(Default)]
struct Out {
    task: Option<Arc<Task>>,
    at: u64,
    bytes: Vec<u8>,
    len: usize,
    /// Number of pieces that are complete once the buffer is written.
    pieces: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Self {
        Self {
            shared,
            handles: Handles::default(),
            worker: Worker::default(),
            decoded: Vec::new(),
            out: Out::default(),
        }
    }

    /// Writes all pieces of an item. The pieces are sorted.
    pub(super) fn run(&mut self, pieces: Vec<Piece>) {
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            if self.shared.stopped() {
                return self.abandon_all(rest);
            }
            let n = match first.cluster() {
                None => 1,
                Some(c) => {
                    let same = |p: &&Piece| {
                        p.cluster()
                            .is_some_and(|d| (d.pos, d.len, d.coding) == (c.pos, c.len, c.coding))
                    };
                    rest.iter().take_while(same).count()
                }
            };
            let (now, later) = rest.split_at(n);
            match now {
                [one] => self.single(one, later),
                several => self.several(several, later),
            }
            rest = later;
        }
        self.flush();
    }

    /// Processes a piece that is the only one of its cluster in this item.
    fn single(&mut self, piece: &Piece, later: &[Piece]) {
        let result = match piece.source {
            PieceSource::Nothing => {
                self.flush();
                self.complete(&piece.task, 1);
                return;
            }
            PieceSource::Raw { device, pos } => self.raw(piece, device, pos),
            PieceSource::Inline { .. } => self.inline(piece),
            PieceSource::Cluster {
                cluster,
                extent_len,
                skip,
            } => {
                if skip > 0 || piece.len != extent_len {
                    return self.several(std::slice::from_ref(piece), later);
                }
                self.reserve(piece).and_then(|at| {
                    let extent = extent_of(piece, cluster, extent_len);
                    let run = || run_from(cluster, later);
                    let Self {
                        shared,
                        worker,
                        out,
                        ..
                    } = self;
                    let dst = &mut out.bytes[at..out.len];
                    let all = 0..dst.len();
                    shared.totals.clusters.fetch_add(1, Relaxed);
                    shared
                        .image
                        .decode_cluster(worker, &extent, cluster, run, all, dst)
                })
            }
        };
        self.end_piece(piece, result);
    }

    /// Processes the pieces of one cluster. The cluster is decoded once, up to the length of the longest piece.
    fn several(&mut self, pieces: &[Piece], later: &[Piece]) {
        let longest = pieces.iter().filter_map(|p| match p.source {
            PieceSource::Cluster {
                cluster,
                extent_len,
                ..
            } => Some((extent_len, !cluster.partial, cluster, p)),
            _ => None,
        });
        let Some((extent_len, _, cluster, piece)) =
            longest.max_by_key(|(len, whole, ..)| (*len, *whole))
        else {
            return;
        };
        let extent = extent_of(piece, cluster, extent_len);
        let decoded = self.shared.image.decoded_len(&extent).and_then(|len| {
            if self.decoded.len() < len {
                self.decoded.resize(len, 0);
            }
            let run = || run_from(cluster, later);
            self.shared.totals.clusters.fetch_add(1, Relaxed);
            let dst = &mut self.decoded[..len];
            let used = match pieces {
                [only] => only.part(),
                _ => 0..len,
            };
            self.shared
                .image
                .decode_cluster(&mut self.worker, &extent, cluster, run, used, dst)
        });
        if let Err(e) = decoded {
            // A store that compares contents tells which of them are damaged.
            let devices = &self.shared.image.devices;
            let decodes = || devices.content(cluster.pos, cluster.len, 0..0, &mut []);
            if pieces.len() > 1 && decodes().is_some() {
                for piece in pieces {
                    self.several(std::slice::from_ref(piece), later);
                }
                return;
            }
            for piece in pieces {
                self.end_piece(piece, Err(e.again()));
            }
            return;
        }
        for piece in pieces {
            let PieceSource::Cluster { skip, .. } = piece.source else {
                continue;
            };
            let result = self.reserve(piece).map(|at| {
                // In bounds: a piece is inside its extent, and the longest extent was decoded.
                let src = &self.decoded[skip as usize..][..piece.len as usize];
                self.out.bytes[at..self.out.len].copy_from_slice(src);
            });
            self.end_piece(piece, result);
        }
    }

    fn raw(&mut self, piece: &Piece, device: DeviceId, pos: u64) -> Result<()> {
        let mut done = 0;
        while done < piece.len {
            let n = (piece.len - done).min(READ);
            let part = (piece.to + done, n);
            let at = self.reserve_part(piece, part)?;
            let dst = &mut self.out.bytes[at..self.out.len];
            self.shared.image.devices.read(device, pos + done, dst)?;
            done += n;
        }
        Ok(())
    }

    fn inline(&mut self, piece: &Piece) -> Result<()> {
        let PieceSource::Inline {
            space,
            pos,
            src_len,
            coding,
            extent: (offset, len),
            skip,
        } = piece.source
        else {
            return Ok(());
        };
        let image = self.shared.image;
        let src = image.bytes(space, pos, src_len as usize)?;
        let extent = Extent {
            offset,
            len,
            location: Location::Hole,
        };
        let whole = image.decoded_len(&extent)?;
        if self.decoded.len() < whole {
            self.decoded.resize(whole, 0);
        }
        let dst = &mut self.decoded[..whole];
        image
            .decode(
                &mut self.worker,
                coding,
                &src,
                &extent,
                DecodeScope::All,
                dst,
            )
            .map_err(|e| Error::corrupt(format_args!("inline data at byte {pos:#x}"), e))?;
        let at = self.reserve(piece)?;
        let src = &self.decoded[skip as usize..][..piece.len as usize];
        self.out.bytes[at..self.out.len].copy_from_slice(src);
        Ok(())
    }

    /// Counts a piece as complete once the buffer is written, or as failed.
    fn end_piece(&mut self, piece: &Piece, result: Result<()>) {
        match result {
            Ok(()) => {
                self.out.pieces += 1;
                if self.out.len >= WRITE {
                    self.flush();
                }
            }
            Err(e) => {
                // Discard the space reserved for the failed piece.
                self.out.len = self.out.len.min(self.out_len_before(piece));
                self.flush();
                let e = e.within(format_args!("nid {}", piece.task.nid()));
                self.fail(&piece.task, e);
                self.complete(&piece.task, 1);
            }
        }
    }

    /// Returns the number of buffered bytes that precede `piece`.
    fn out_len_before(&self, piece: &Piece) -> usize {
        match &self.out.task {
            Some(task) if Arc::ptr_eq(task, &piece.task) => {
                usize::try_from(piece.to.saturating_sub(self.out.at)).unwrap_or(usize::MAX)
            }
            _ => usize::MAX,
        }
    }

    fn reserve(&mut self, piece: &Piece) -> Result<usize> {
        self.reserve_part(piece, (piece.to, piece.len))
    }

    /// Reserves buffer space for a range of a file. The range is appended if it is adjacent to the buffered bytes;
    /// otherwise they are written first. Returns the start of the reserved space.
    fn reserve_part(&mut self, piece: &Piece, (to, len): (u64, u64)) -> Result<usize> {
        let follows = |task: &Arc<Task>| Arc::ptr_eq(task, &piece.task);
        let fits = self.out.task.as_ref().is_some_and(follows)
            && self.out.at + self.out.len as u64 == to
            && self.out.len < WRITE;
        if !fits {
            self.flush();
            self.out.task = Some(piece.task.clone());
            self.out.at = to;
        }
        let at = self.out.len;
        let len = usize::try_from(len).map_err(|_| {
            Error::limit(
                "",
                format_args!("a piece of {len} bytes exceeds the address space"),
            )
        })?;
        if self.out.bytes.len() < at + len {
            self.out.bytes.resize(at + len, 0);
        }
        self.out.len = at + len;
        Ok(at)
    }

    /// Writes the buffered bytes.
    fn flush(&mut self) {
        let Some(task) = self.out.task.take() else {
            return;
        };
        let (len, pieces) = (self.out.len, std::mem::take(&mut self.out.pieces));
        self.out.len = 0;
        if let Err(e) = self.write(&task, len) {
            self.fail(&task, e);
        }
        if pieces > 0 {
            self.complete(&task, pieces);
        }
    }

    fn write(&mut self, task: &Arc<Task>, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let Some(file) = self.open(task)? else {
            return Ok(());
        };
        file.write_all_at(&self.out.bytes[..len], self.out.at)
            .map_err(|e| Error::io("", format_args!("writing {len} bytes"), e))?;
        self.shared.totals.bytes.fetch_add(len as u64, Relaxed);
        Ok(())
    }

    /// Returns the open file, and creates it if necessary. `None` if creating it failed before.
    fn open(&mut self, task: &Arc<Task>) -> Result<Option<Arc<File>>> {
        let shared = self.shared;
        let mut state = task.state.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &*state {
            FileState::Open(file) => return Ok(Some(file.clone())),
            FileState::Finished => return Ok(None),
            FileState::New => {
                let above = self.handles.get(&shared.root, &task.dir);
                let overwrite = shared.options.overwrite;
                above.and_then(|above| match &task.temporary {
                    Some(temporary) => stage_file(&shared.root, &*above, temporary),
                    None => create_file(&*above, &task.name, overwrite),
                })
            }
            FileState::Closed => {
                let above = self.handles.get(&shared.root, &task.dir);
                above.and_then(|above| reopen_file(&*above, task.name_now()))
            }
        };
        match file {
            Ok(file) => {
                let file = Arc::new(file);
                shared.open.fetch_add(1, Relaxed);
                *state = FileState::Open(file.clone());
                Ok(Some(file))
            }
            Err(e) => {
                *state = FileState::Finished;
                Err(e)
            }
        }
    }

    /// Counts pieces of a file as complete. The last one completes the file.
    pub(super) fn complete(&mut self, task: &Arc<Task>, pieces: u32) {
        let shared = self.shared;
        if task.left.fetch_sub(pieces, AcqRel) == pieces {
            if let Err(e) = self.finish(task) {
                self.fail(task, e);
                self.abandon(task);
            }
            return;
        }
        if shared.open.load(Relaxed) > shared.open_max {
            let mut state = task.state.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*state, FileState::Open(_)) {
                *state = FileState::Closed;
                shared.open.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Records why a file is incomplete, once for each file. If this ends the extraction, the partial file is removed.
    fn fail(&mut self, task: &Arc<Task>, error: Error) {
        let is_listed = task.damaged.swap(true, AcqRel);
        if is_listed && !self.shared.ends(&error) {
            return;
        }
        if self.shared.ends(&error) {
            task.failed.store(true, Release);
        }
        self.shared.fail_later(task.path(), error);
    }

    /// Abandons the files of the remaining pieces and the buffered bytes.
    pub(super) fn abandon_all(&mut self, pieces: &[Piece]) {
        if let Some(task) = self.out.task.take() {
            self.abandon(&task);
        }
        self.out.len = 0;
        self.out.pieces = 0;
        for piece in pieces {
            self.abandon(&piece.task);
        }
    }

    /// Removes a file that will not be completed. Complete files remain.
    pub(super) fn abandon(&mut self, task: &Arc<Task>) {
        let shared = self.shared;
        let mut state = task.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, FileState::Finished) {
            FileState::Open(_) => _ = shared.open.fetch_sub(1, Relaxed),
            FileState::Closed => {}
            FileState::New | FileState::Finished => return,
        }
        let above = self.handles.get(&shared.root, &task.dir);
        if let Err(e) = above.and_then(|above| remove_file(&*above, task.name_now())) {
            shared.fail_later(task.path(), e);
        }
    }

    fn finish(&mut self, task: &Arc<Task>) -> Result<()> {
        let shared = self.shared;
        if task.failed.load(Acquire) {
            self.abandon(task);
            return Ok(());
        }
        let Some(file) = self.open(task)? else {
            return Ok(());
        };
        if task.damaged.load(Acquire) && task.temporary.is_some() {
            let above = self.handles.get(&shared.root, &task.dir)?;
            if is_there(&*above, &task.name).unwrap_or(true) {
                self.abandon(task);
                return Ok(());
            }
        }
        if task.ends_in_hole.load(Relaxed) {
            let size = task.inode.size();
            file.set_len(size).map_err(|e| {
                Error::io("", format_args!("setting its length to {size} bytes"), e)
            })?;
        }
        shared.set_open(file.as_fd(), &task.inode, &task.dir, &task.name);
        if let Some(temporary) = &task.temporary {
            let above = self.handles.get(&shared.root, &task.dir)?;
            give_name(&*above, temporary, &task.name, shared.options.overwrite)?;
        }
        *task.state.lock().unwrap_or_else(PoisonError::into_inner) = FileState::Finished;
        shared.open.fetch_sub(1, Relaxed);
        shared.totals.files.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Returns the extent of a piece for the decoder. Its file offset is only used in messages, because the cluster is
/// compressed.
fn extent_of(piece: &Piece, cluster: Cluster, len: u64) -> Extent {
    Extent {
        offset: piece.to,
        len,
        location: Location::Cluster(cluster),
    }
}

/// Returns the number of bytes from `cluster` on to fetch in one read, over adjacent clusters.
fn run_from(cluster: Cluster, later: &[Piece]) -> u64 {
    let mut end = cluster.pos + u64::from(cluster.len);
    for piece in later {
        match piece.cluster() {
            Some(c) if c.pos + u64::from(c.len) == end => {}
            Some(c) if c.pos == end && end - cluster.pos <= FETCH_MAX => {
                end = c.pos + u64::from(c.len);
            }
            _ => break,
        }
    }
    end - cluster.pos
}
