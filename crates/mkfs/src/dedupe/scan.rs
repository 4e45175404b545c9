//! Parallel reading of file contents.

use crate::Result;
use crate::dedupe::auto::Chooser;
use crate::environment::parallel;
use crate::options::Dedupe;
use crate::pack::checksums::sum;
use crate::pack::content::FileContent;
use crate::progress::Progress;
use crate::source::readahead::Readahead;
use crate::tree::InodeId;
use crate::tree::order::PolicyId;
use std::num::NonZeroU8;
use tuff_codec::{Algorithm, EncoderSpec};

/// File content to analyse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupeCandidate {
    /// Inode that owns the content.
    pub(crate) file: InodeId,
    /// Length. Unit: bytes, not 0.
    pub(crate) size: u64,
    /// Compression policy. Only contents with the same policy share data.
    pub(crate) policy: PolicyId,
    /// The whole file goes into the packed inode.
    pub(crate) packed: bool,
    /// The tail may go into the packed inode if it is similar to another.
    pub(crate) tail: bool,
    /// log2 of the segment size, for compressed contents whose parts may be shared.
    pub(crate) segment_bits: Option<NonZeroU8>,
    /// Hash of the file name. Versions of a file mostly have the same name.
    pub(crate) name: u16,
    /// A sample decides how the content is stored.
    pub(crate) auto: bool,
    /// The data lies with that of the other files that a start reads.
    pub(crate) listed: bool,
    /// Compression algorithm. `None` stores the content uncompressed.
    pub(crate) algorithm: Option<Algorithm>,
}

/// Settings of the analysis.
pub(crate) struct DedupeSettings<'a> {
    /// Granularity: whole files, parts, or off.
    pub(crate) dedupe: Dedupe,
    /// Minimum length of a tail that goes into the packed inode because it is similar to another.
    /// Unit: bytes.
    pub(crate) tail_len: u64,
    /// Average number of bytes between two cuts, if it is given.
    pub(crate) fragment_cut: Option<u64>,
    /// Cluster size of the packed inode. Unit: bytes.
    pub(crate) fragment_cluster: usize,
    /// Memory limit for chunks. Unit: bytes.
    pub(crate) memory: u64,
    /// Memory limit for the index of the base. Unit: bytes.
    pub(crate) base_memory: u64,
    /// Block size. Unit: bytes.
    pub(crate) block: u64,
    /// Number of worker threads.
    pub(crate) threads: usize,
    /// Dense and fast compression to choose from where a sample decides.
    pub(crate) dense_and_fast: Option<[EncoderSpec; 2]>,
    /// The default compression uses entropy coding.
    pub(crate) entropy_coding: bool,
    /// Ranges of stored files of the base may be shared as chunks.
    pub(crate) shares_stored: bool,
    /// Chunk size of stored files, if it is given. Unit: bytes.
    pub(crate) chunk: Option<usize>,
    /// Compute checksums of contents that are not read again for packing.
    pub(crate) sums: bool,
    /// Progress, checked for stop requests.
    pub(crate) progress: &'a Progress,
}

/// Buffers and encoders that a worker reuses.
#[derive(Default)]
pub(crate) struct WorkerContext {
    pub(crate) buf: Vec<u8>,
    pub(super) windows: [Vec<u8>; 2],
    pub(super) sampler: Option<Box<dyn tuff_codec::Encoder>>,
    pub(super) chooser: Option<Chooser>,
    pub(super) readahead: Readahead,
}

/// Compression ratio that LZ4 reaches on one block of `bytes`, in sixteenths. Incompressible data
/// gives 16.
pub(super) fn sample(sampler: &mut Option<Box<dyn tuff_codec::Encoder>>, bytes: &[u8]) -> u32 {
    const BLOCK: usize = 4096;
    let spec = tuff_codec::EncoderSpec::new(tuff_codec::Method::Lz4, BLOCK);
    if sampler.is_none() {
        *sampler = spec.build().ok();
    }
    let Some(encoder) = sampler else { return 16 };
    let mut out = [0; BLOCK];
    encoder.reset();
    let fit = encoder.fit(&bytes[..bytes.len().min(16 * BLOCK)], 0, &mut out);
    // Fits: at most 16 blocks are compressed into one.
    (fit.consumed * 16 / fit.written.max(1)).clamp(16, 256) as u32
}

/// Computes the checksums of contents, given with their sizes, in the same order.
pub(crate) fn sums(
    contents: &[(InodeId, u64)],
    settings: &DedupeSettings<'_>,
    content: &(dyn Fn(InodeId) -> Result<FileContent> + Sync),
) -> Result<Vec<u64>> {
    let work = |i: usize, context: &mut WorkerContext, out: &mut Vec<(usize, u64)>| {
        let (inode, size) = contents[i];
        let mut sum = sum();
        read_through(&content(inode)?, size, &mut context.buf, &mut |bytes| {
            sum.update(bytes);
            settings.progress.check()
        })?;
        out.push((i, sum.digest()));
        Ok(())
    };
    let mut all = parallel(contents.len(), settings.threads, settings.progress, &work)?.concat();
    all.sort_unstable();
    Ok(all.into_iter().map(|(_, sum)| sum).collect())
}

/// Reads a whole content and passes it to `take` in parts of at most 1 MiB.
pub(crate) fn read_through(
    content: &FileContent,
    size: u64,
    buf: &mut Vec<u8>,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let reader = content.open()?;
    let mut at = 0;
    while at < size {
        // Fits: at most 1 MiB.
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

/// File, or tail of a file, in the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedFile {
    /// Inode that owns the content.
    pub(crate) file: InodeId,
    /// Start of the packed part: 0 for a whole file. Unit: bytes.
    pub(crate) from: u32,
    /// A neighbour in the packed inode is similar.
    pub(crate) similar: bool,
    /// A cluster starts here, whatever the files before are.
    pub(crate) cut: bool,
}

impl PackedFile {
    /// Returns a whole file without similar neighbours.
    pub(crate) fn whole(file: InodeId) -> Self {
        Self {
            file,
            from: 0,
            similar: false,
            cut: false,
        }
    }
}

// Builds of millions of files keep one of these per file.
const _: () = assert!(size_of::<DedupeCandidate>() == 24);
