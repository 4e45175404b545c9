//! Making a tree: level by level, each on all threads.

use crate::header::{HEADER_LEN, Header};
use crate::{DIGEST_LEN, Hasher, Root};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_store::{FileStore, Output, ReadAt};

/// What a thread reads at once, at least. Unit: bytes.
const UNIT: u64 = 512 << 10;

/// A tree that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The root hash.
    pub root: Root,
    /// Where the tree ends. Unit: bytes.
    pub end: u64,
}

/// Where a tree ends whose header lies at `hash_offset`. Unit: bytes.
pub fn tree_end(header: &Header, hash_offset: u64) -> u64 {
    header.shape(hash_offset).end
}

/// Writes header and tree of `data` to `output`, from `hash_offset` on. Where `data` ends early it counts as zeros. `step` is told of bytes that
/// were read, and stops the work by an error.
///
/// # Errors
/// What reading, writing and `step` give.
pub fn make(
    data: &dyn ReadAt,
    header: &Header,
    output: &Output,
    hash_offset: u64,
    threads: usize,
    step: &(dyn Fn(u64) -> io::Result<()> + Sync),
) -> io::Result<Made> {
    let shape = header.shape(hash_offset);
    let hasher = Hasher::new(&header.salt);
    // A hash block of its own, with zeros behind the header.
    let body = shape.levels.last().map_or(shape.end, |top| top.at);
    let mut front = header.encode().to_vec();
    // Fits: less than a block and a header.
    front.resize((body - hash_offset) as usize, 0);
    output.write_at(&front, hash_offset)?;
    let tree = FileStore::new(output.file().try_clone()?)?;
    let data_block = u64::from(header.data_block);
    let hash_block = u64::from(header.hash_block);
    let mut below = Below {
        store: data,
        at: 0,
        end: data.size(),
        size: data_block,
        blocks: header.data_blocks,
    };
    for level in &shape.levels {
        let group = (UNIT / (shape.per * below.size)).max(1);
        let next = AtomicU64::new(0);
        let failed: Mutex<Option<io::Error>> = Mutex::default();
        let work = || {
            let (mut input, mut out) = (Vec::new(), Vec::new());
            loop {
                let first = next.fetch_add(group, Ordering::Relaxed);
                let last = level.blocks.min(first + group);
                if first >= last || lock(&failed).is_some() {
                    return;
                }
                let from = first * shape.per;
                let to = shape.covers(last - 1, below.blocks).end;
                let result = below.read(from..to, &mut input).and_then(|()| {
                    out.clear();
                    for block in input.chunks_exact(below.size as usize) {
                        out.extend_from_slice(&hasher.digest(block));
                    }
                    // Fits: a group.
                    out.resize(((last - first) * hash_block) as usize, 0);
                    output.write_at(&out, level.at + first * hash_block)?;
                    step((to - from) * below.size)
                });
                if let Err(e) = result {
                    lock(&failed).get_or_insert(e);
                    return;
                }
            }
        };
        let units = level.blocks.div_ceil(group);
        let helpers = threads.min(usize::try_from(units).unwrap_or(usize::MAX));
        in_parallel(helpers, &work);
        if let Some(e) = lock(&failed).take() {
            return Err(e);
        }
        below = Below {
            store: &tree,
            at: level.at,
            // It was written since the file was opened.
            end: u64::MAX,
            size: hash_block,
            blocks: level.blocks,
        };
    }
    // One block is left.
    let mut top = Vec::new();
    below.read(0..1, &mut top)?;
    Ok(Made {
        root: hasher.digest(&top),
        end: shape.end,
    })
}

/// Runs `work` on this thread and on up to `threads - 1` others; on fewer where the system allows no more.
pub(crate) fn in_parallel(threads: usize, work: &(dyn Fn() + Sync)) {
    std::thread::scope(|scope| {
        for n in 1..threads {
            let thread = std::thread::Builder::new().name(format!("verity-{n}"));
            if thread.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The blocks that a level has digests of.
struct Below<'a> {
    store: &'a dyn ReadAt,
    at: u64,
    /// Behind it the store has zeros, as far as anybody asks. Unit: bytes.
    end: u64,
    /// Of a block. Unit: bytes.
    size: u64,
    blocks: u64,
}

impl Below<'_> {
    /// Reads some blocks.
    fn read(&self, blocks: std::ops::Range<u64>, buf: &mut Vec<u8>) -> io::Result<()> {
        // Fits: a group of hash blocks, at most 16 MiB.
        let len = ((blocks.end - blocks.start) * self.size) as usize;
        buf.clear();
        buf.resize(len, 0);
        let from = self.at + blocks.start * self.size;
        let there = self.end.saturating_sub(from).min(len as u64) as usize;
        self.store.read_exact_at(&mut buf[..there], from)
    }
}

const _: () = assert!(DIGEST_LEN.is_power_of_two() && HEADER_LEN == 512);
