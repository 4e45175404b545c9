//! Hash blocks of a remote image, fetched by need.
//!
//! They lie in the file of the image in the cache, at their places in the object. A hash block is never all zeros, so zeros
//! there are a block that is absent. Each block is verified by the one above it when it is used, whoever wrote it.

use crate::error::{Error, Kind, Result};
use crate::runtime::runtime;
use crate::source::Object;
use crate::trace::Reason;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use tuff_store::ReadAt;

/// Unit of requests: the digests of 4 MiB, with blocks of 4096 bytes. Unit: bytes.
const UNIT: u64 = 32 << 10;

/// Memory for hash blocks that the cache cannot store: those of an image of 2 GiB. Unit: bytes.
const IN_MEMORY_MAX: usize = 17 << 20;

/// Bytes of an object at their positions.
pub(crate) type Parts = Vec<(u64, Vec<u8>)>;

/// Bytes of a range, if one of the parts has all of it.
pub(crate) fn part_of(parts: &[(u64, Vec<u8>)], start: u64, len: usize) -> Option<&[u8]> {
    parts.iter().find_map(|(at, bytes)| {
        let skip = usize::try_from(start.checked_sub(*at)?).ok()?;
        bytes.get(skip..skip.checked_add(len)?)
    })
}

/// Hash blocks of one object.
pub(crate) struct TreeBlocks {
    object: Arc<dyn Object>,
    /// File of the image in the cache, if it can be written.
    file: Option<File>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Parts of the object that were read when it was opened. They are not verified.
    first: Arc<Parts>,
    /// Blocks that the file could not take.
    kept: HashMap<u64, Vec<u8>>,
    /// Units that are being fetched.
    fetching: HashMap<u64, Arc<tokio::sync::Mutex<()>>>,
}

impl TreeBlocks {
    /// Hash blocks of an object. `first`: parts of it that were read already. `file`: that of the image in the cache.
    pub(crate) fn new(object: Arc<dyn Object>, file: Option<File>, first: Parts) -> Self {
        let state = State {
            first: Arc::new(first),
            ..State::default()
        };
        Self {
            object,
            file,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parts that were read when the object was opened.
    pub(crate) fn first(&self) -> Arc<Parts> {
        Arc::clone(&self.state().first)
    }

    /// Drops these parts.
    pub(crate) fn drop_first(&self) {
        self.state().first = Arc::default();
    }

    /// Reads what is there. False if it is absent.
    pub(crate) fn read_present(&self, buf: &mut [u8], at: u64) -> bool {
        let is_there = |buf: &[u8]| buf.iter().any(|byte| *byte != 0);
        let read = self.file.as_ref().map(|file| file.read_exact_at(buf, at));
        if matches!(read, Some(Ok(()))) && is_there(buf) {
            return true;
        }
        let state = self.state();
        let kept = state.kept.get(&at).filter(|kept| kept.len() == buf.len());
        let found = kept
            .map(Vec::as_slice)
            .or_else(|| part_of(&state.first, at, buf.len()));
        found.is_some_and(|found| {
            buf.copy_from_slice(found);
            is_there(found)
        })
    }

    /// Stores verified blocks of `size` bytes.
    pub(crate) fn put(&self, at: u64, blocks: &[u8], size: usize) -> Result<()> {
        let written = self.file.as_ref().map(|file| file.write_all_at(blocks, at));
        if matches!(written, Some(Ok(()))) {
            return Ok(());
        }
        // A full disk does not keep readers from an image.
        let mut state = self.state();
        for (at, block) in (at..).step_by(size).zip(blocks.chunks_exact(size)) {
            if state.kept.len() * size >= IN_MEMORY_MAX {
                let what =
                    "cannot keep the hash tree in the cache, and it is too large for the memory";
                return Err(Error::new(Kind::Unavailable, "the cache", what));
            }
            state.kept.insert(at, block.to_vec());
        }
        Ok(())
    }

    /// Forgets blocks of `size` bytes, which are damaged.
    pub(crate) fn forget(&self, range: Range<u64>, size: usize) {
        let zeros = vec![0; size];
        for at in range.step_by(size) {
            // A block that stays is found damaged again.
            let _ = self.file.as_ref().map(|file| file.write_all_at(&zeros, at));
            self.state().kept.remove(&at);
        }
    }

    /// Runs of absent blocks of `size` bytes in a range: whole units, as far as they are in the level `level`.
    pub(crate) fn absent(
        &self,
        range: Range<u64>,
        level: &Range<u64>,
        size: u64,
    ) -> Vec<Range<u64>> {
        let unit = UNIT.max(size);
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut block = vec![0; size as usize]; // fits: at most 64 KiB
        let mut at = range.start;
        while at < range.end {
            if self.read_present(&mut block, at) {
                at += size;
                continue;
            }
            let start = level.start + (at - level.start) / unit * unit;
            let end = (start + unit).min(level.end);
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
            at = end;
        }
        runs
    }

    /// Lock of a run of absent blocks: one task fetches it.
    pub(crate) fn fetching(&self, run: &Range<u64>) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.state();
        Arc::clone(state.fetching.entry(run.start).or_default())
    }

    /// Removes the lock of a run that no other task waits for.
    pub(crate) fn fetched(&self, run: &Range<u64>) {
        let mut state = self.state();
        let is_last = |lock: &Arc<_>| Arc::strong_count(lock) <= 2;
        if state.fetching.get(&run.start).is_some_and(is_last) {
            state.fetching.remove(&run.start);
        }
    }

    /// Reads a range of the object.
    pub(crate) async fn request(&self, range: Range<u64>) -> Result<Vec<u8>> {
        Reason::Tree.scope(self.object.read(range)).await
    }
}

impl ReadAt for TreeBlocks {
    /// Reads the header or one block. An absent one is fetched.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if buf.is_empty() || self.read_present(buf, offset) {
            return Ok(buf.len());
        }
        let end = offset.saturating_add(buf.len() as u64).min(self.size());
        if offset >= end {
            return Ok(0);
        }
        let (send, receive) = mpsc::channel();
        let object = Arc::clone(&self.object);
        // Works on threads of any other runtime, too.
        runtime()?.spawn(async move {
            // Nobody waits any more if the receiver is gone.
            let _ = send.send(Reason::Tree.scope(object.read(offset..end)).await);
        });
        let bytes = receive.recv().map_err(io::Error::other)??;
        let n = bytes.len().min(buf.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.object.identity().size
    }
}
