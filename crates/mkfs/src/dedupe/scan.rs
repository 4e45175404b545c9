//! Reading of contents by several threads.

use crate::auto::Chooser;
use crate::options::Dedupe;
use crate::order::PolicyId;
use crate::pack::checksums::sum;
use crate::pack::input::Input;
use crate::progress::Progress;
use crate::readahead::Readahead;
use crate::tree::InodeId;
use crate::{Error, Result};
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_codec::{Algorithm, EncoderSpec};
use tuff_erofs::threads;

/// A content to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    /// Whose.
    pub(crate) file: InodeId,
    /// Unit: bytes, not 0.
    pub(crate) size: u64,
    /// Number of its policy: only contents with equal numbers are stored alike.
    pub(crate) policy: PolicyId,
    /// It goes into the packed inode as a whole.
    pub(crate) packed: bool,
    /// Its end may go there, if it is alike another.
    pub(crate) end: bool,
    /// Parts of it may be shared: it is compressed, in segments of two to so many bytes.
    pub(crate) segment_bits: Option<NonZeroU8>,
    /// Stands for its name: versions of a file mostly have the same.
    pub(crate) name: u16,
    /// How it is stored is decided from a sample.
    pub(crate) auto: bool,
    /// How it is compressed; `None`: it is to be stored as it is.
    pub(crate) algorithm: Option<Algorithm>,
}

/// How to look.
pub(crate) struct Settings<'a> {
    /// What is stored once.
    pub(crate) dedupe: Dedupe,
    /// Least length of an end that goes into the packed inode because it is alike another. Unit: bytes.
    pub(crate) end_len: u64,
    /// Memory for chunks. Unit: bytes.
    pub(crate) memory: u64,
    /// Memory for what tells files of the base. Unit: bytes.
    pub(crate) base_memory: u64,
    /// Block size. Unit: bytes.
    pub(crate) block: u64,
    /// Workers.
    pub(crate) threads: usize,
    /// Dense and fast compression for those whose storing is decided here.
    pub(crate) two: Option<[EncoderSpec; 2]>,
    /// The usual compression has fewer bits for frequent bytes.
    pub(crate) counts: bool,
    /// Sums are taken of contents that nobody reads again to pack them.
    pub(crate) sums: bool,
    /// Says whether to stop.
    pub(crate) progress: &'a Progress,
}

/// What a worker needs again and again.
pub(crate) struct Tools {
    pub(crate) buf: Vec<u8>,
    pub(super) windows: [Vec<u8>; 2],
    pub(super) sampler: Option<Box<dyn tuff_codec::EncodeFit>>,
    pub(super) chooser: Option<Chooser>,
    pub(super) ahead: Readahead,
}

/// How much of `bytes` LZ4 puts into a block: sixteenths of a byte per byte. What does not shrink counts as 16.
pub(super) fn sample(sampler: &mut Option<Box<dyn tuff_codec::EncodeFit>>, bytes: &[u8]) -> u32 {
    const BLOCK: usize = 4096;
    let spec = tuff_codec::EncoderSpec::new(tuff_codec::Method::Lz4, BLOCK);
    if sampler.is_none() {
        *sampler = spec.build().ok();
    }
    let Some(encoder) = sampler else { return 16 };
    let mut out = [0; BLOCK];
    encoder.reset();
    let fit = encoder.fit(&bytes[..bytes.len().min(16 * BLOCK)], 0, &mut out);
    // Fits: at most 16 blocks in one.
    (fit.consumed * 16 / fit.written.max(1)).clamp(16, 256) as u32
}

/// Runs `work` for every index below `count` on as many threads as the settings say. What each thread found, in no order.
pub(crate) fn parallel<T: Send + Default>(
    count: usize,
    settings: &Settings<'_>,
    work: &(dyn Fn(usize, &mut Tools, &mut T) -> Result<()> + Sync),
) -> Result<Vec<T>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done: Mutex<Vec<T>> = Mutex::default();
    let errors: Mutex<Vec<(usize, Error)>> = Mutex::default();
    let run = || {
        let mut tools = Tools {
            buf: Vec::new(),
            windows: [Vec::new(), Vec::new()],
            sampler: None,
            chooser: None,
            ahead: Readahead::default(),
        };
        let mut mine = T::default();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count || failed.load(Ordering::Relaxed) {
                break;
            }
            let stopped = settings.progress.check();
            if let Err(e) = stopped.and_then(|()| work(i, &mut tools, &mut mine)) {
                failed.store(true, Ordering::Relaxed);
                let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
                errors.push((i, e));
            }
        }
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(mine);
    };
    std::thread::scope(|scope| {
        threads::start(scope, "survey", settings.threads.saturating_sub(1), run);
        run();
    });
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    match errors.into_iter().min_by_key(|(i, _)| *i) {
        Some((_, e)) => Err(e),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Sums of contents, each with its size, in their order.
pub(crate) fn sums(
    contents: &[(InodeId, u64)],
    settings: &Settings<'_>,
    input: &(dyn Fn(InodeId) -> Result<Input> + Sync),
) -> Result<Vec<u64>> {
    let work = |i: usize, tools: &mut Tools, out: &mut Vec<(usize, u64)>| {
        let (inode, size) = contents[i];
        let mut sum = sum();
        read_through(&input(inode)?, size, &mut tools.buf, &mut |bytes| {
            sum.update(bytes);
            settings.progress.check()
        })?;
        out.push((i, sum.digest()));
        Ok(())
    };
    let mut all = parallel(contents.len(), settings, &work)?.concat();
    all.sort_unstable();
    Ok(all.into_iter().map(|(_, sum)| sum).collect())
}

/// Hands all of a content to `take`, piece by piece.
pub(super) fn read_through(
    input: &Input,
    size: u64,
    buf: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let reader = input.open()?;
    let mut at = 0;
    while at < size {
        // Fits: it is at most a MiB.
        let n = (size - at).min(PIECE) as usize;
        if buf.len() < n {
            buf.resize(n, 0);
        }
        reader.read_exact(&mut buf[..n], at)?;
        take(&buf[..n])?;
        at += n as u64;
    }
    Ok(())
}

/// An input that must be there: contents of streams are not surveyed.
pub(crate) fn readable(input: Option<Input>) -> Result<Input> {
    input.ok_or_else(|| Error::usage("content that cannot be read twice"))
}

/// A file of the packed inode, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedFile {
    /// Which.
    pub(crate) file: InodeId,
    /// Where the packed part starts: 0 for a whole file. Unit: bytes.
    pub(crate) from: u32,
    /// It lies next to one that it is alike.
    pub(crate) similar: bool,
}

// There may be millions of them.
const _: () = assert!(size_of::<Content>() == 24);
