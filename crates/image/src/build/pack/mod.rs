//! From file contents to blocks and extents, on all cores, in one order.
//!
//! ```text
//!  add_file ────► batch ────► [workers] ──► collect, in ticket order ──► output, FileData
//!  add_packed ──► segment ──►     ▲                 │ ends of files          ▲
//!                                 └── packed inode ◄┴──► held until all else is placed
//! ```
//!
//! The packed inode lies behind all files: first whole files, in the order in which they were added, then ends of files. So
//! its clusters are consecutive, and its index can be COMPACT.
//!
//! Invariants:
//!
//! * Tickets are given in the order of `add_file`, and results are taken in that order: the bytes do not depend on the
//!   number of threads.
//! * The segments of a file lie back to back; those of the packed inode come last.
//! * All segments but a file's last have a multiple of the block size.

mod blocks;
mod held;
pub(crate) mod input;
mod pool;
pub(crate) mod segment;
pub(crate) mod spans;
pub(crate) mod sums;
pub(crate) mod work;

use crate::build::order::ContentKey;
use crate::build::progress::Progress;
use crate::build::source::DataRun;
use crate::build::spill::{Spill, SpillRef};
use crate::build::stats::Stats;
use crate::build::tree::InodeId;
use crate::{Error, Result};
use hashbrown::HashMap;
use held::Held;
use input::{ChunkRun, Input, Item};
use pool::Pool;
use segment::{ShortPiece, Tail};
use spans::{FilePlan, PartKey};
use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use sums::Sums;
use tuff_format::BlockBits;
use tuff_format::cluster::HeadKind;
use tuff_store::Output;
use work::{Body, Job, JobOut, Part, PartOut, Policy};

/// Number of the packed inode among files.
pub(crate) const PACKED: InodeId = InodeId::MAX - 1;
/// A file of at most so many bytes stays behind its inode even when small files go into the packed inode.
pub(crate) const TINY: usize = 64;
/// A job collects small files up to this. Unit: bytes.
const BATCH_BYTES: u64 = 256 << 10;
/// And up to so many.
const BATCH_FILES: usize = 64;
/// What it takes to know an end of a file again, in a table that doubles when it is full. Unit: bytes.
const KNOWN_COST: u64 = 50;
/// Tickets of segments of ends start here.
const ENDS_TICKETS: u64 = 1 << 63;
/// Marks a position in the packed inode that counts from where the ends of files begin.
const IN_ENDS: u64 = 1 << 63;

/// Where a file's data is.
#[derive(Debug, Default)]
pub(crate) enum FileData {
    /// No data.
    #[default]
    None,
    /// Consecutive blocks, perhaps with the end behind the inode.
    Flat {
        /// First block; meaningless if there is none.
        block: u32,
        /// The end.
        tail: Option<SpillRef>,
    },
    /// Compressed.
    Compressed(Box<Compressed>),
    /// Compressed, one piece in a cluster of its own.
    OnePiece {
        /// Number of the algorithm.
        algorithm: u8,
        /// Stored or compressed.
        kind: HeadKind,
        /// Blocks.
        blocks: u16,
        /// The first of them.
        block: u32,
        /// Length of the file. Unit: bytes.
        len: u32,
    },
    /// Compressed, one piece behind the index.
    OneInline {
        /// Number of the algorithm.
        algorithm: u8,
        /// Stored or compressed.
        kind: HeadKind,
        /// Length of the file. Unit: bytes.
        len: u32,
        /// The piece.
        tail: SpillRef,
    },
    /// In the packed inode.
    WholeFragment {
        /// Position there.
        offset: u64,
    },
    /// Chunks with holes between them.
    Chunked(Box<Chunked>),
    /// The same data as another file.
    Same(InodeId),
}

// One of these per inode, and there may be millions of files of one piece.
const _: () = assert!(size_of::<FileData>() == 16);

impl FileData {
    /// A compressed file, in as few bytes as will do.
    fn encoded(runs: Vec<Run>, tail: FileTail, algorithm: u8) -> Self {
        if let [Run { block, pieces }] = &runs[..]
            && let [piece] = &pieces[..]
            && *piece == ShortPiece::own(piece.len as usize, piece.blocks.into(), piece.kind)
        {
            let ShortPiece {
                len, blocks, kind, ..
            } = *piece;
            match tail {
                FileTail::Cluster => {
                    return Self::OnePiece {
                        algorithm,
                        kind,
                        blocks,
                        block: *block,
                        len,
                    };
                }
                FileTail::Inline(tail) => {
                    return Self::OneInline {
                        algorithm,
                        kind,
                        len,
                        tail,
                    };
                }
                FileTail::Fragment(_) => {}
            }
        }
        Self::Compressed(Box::new(Compressed {
            runs,
            tail,
            algorithm,
        }))
    }

    /// What a compressed file is made of, however it is kept.
    pub(crate) fn compressed(&self) -> Option<Encoded<'_>> {
        match *self {
            Self::Compressed(ref data) => Some(Encoded {
                runs: &data.runs,
                one: None,
                tail: data.tail,
                algorithm: data.algorithm,
            }),
            Self::OnePiece {
                algorithm,
                kind,
                blocks,
                block,
                len,
            } => Some(Encoded {
                runs: &[],
                one: Some((block, ShortPiece::own(len as usize, blocks.into(), kind))),
                tail: FileTail::Cluster,
                algorithm,
            }),
            Self::OneInline {
                algorithm,
                kind,
                len,
                tail,
            } => Some(Encoded {
                runs: &[],
                one: Some((0, ShortPiece::own(len as usize, 0, kind))),
                tail: FileTail::Inline(tail),
                algorithm,
            }),
            _ => None,
        }
    }

    /// A compressed file to which more is to be added.
    fn more(&mut self) -> Option<&mut Compressed> {
        if let Some(Encoded {
            one: Some((block, piece)),
            tail,
            algorithm,
            ..
        }) = self.compressed()
        {
            *self = Self::Compressed(Box::new(Compressed {
                runs: vec![Run {
                    block,
                    pieces: vec![piece],
                }],
                tail,
                algorithm,
            }));
        }
        match self {
            Self::Compressed(data) => Some(data),
            _ => None,
        }
    }

    /// What it takes beside its place among the others. Unit: bytes.
    fn footprint(&self) -> u64 {
        // What an allocation takes beside what is asked for, and for rounding.
        const EACH: usize = 24;
        match self {
            Self::Compressed(data) => {
                let of = |r: &Run| size_of::<Run>() + size_of_val(&r.pieces[..]) + EACH;
                let runs: usize = data.runs.iter().map(of).sum();
                (size_of::<Compressed>() + runs + 2 * EACH) as u64
            }
            Self::Chunked(data) => (size_of::<Chunked>() + size_of_val(&*data.runs) + EACH) as u64,
            _ => 0,
        }
    }
}

/// A compressed file's data, as layout and output see it.
pub(crate) struct Encoded<'a> {
    runs: &'a [Run],
    one: Option<(u32, ShortPiece)>,
    /// The end of the file.
    pub(crate) tail: FileTail,
    /// Number of the algorithm.
    pub(crate) algorithm: u8,
}

impl Encoded<'_> {
    /// Pieces in order, with the first block of each.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u32, ShortPiece)> {
        self.runs.iter().flat_map(Run::placed).chain(self.one)
    }
}

/// Data of a compressed file.
#[derive(Debug)]
pub(crate) struct Compressed {
    /// Runs of pieces whose blocks are consecutive.
    pub(crate) runs: Vec<Run>,
    /// The end of the file.
    pub(crate) tail: FileTail,
    /// Number of the algorithm.
    pub(crate) algorithm: u8,
}

/// Pieces whose clusters lie back to back.
#[derive(Debug)]
pub(crate) struct Run {
    /// Block of the first piece.
    pub(crate) block: u32,
    /// In order.
    pub(crate) pieces: Vec<ShortPiece>,
}

impl Run {
    /// The pieces with the first block of each.
    fn placed(&self) -> impl Iterator<Item = (u32, ShortPiece)> {
        let mut next = self.block;
        self.pieces.iter().map(move |piece| {
            let block = next;
            next += u32::from(piece.blocks);
            (block, *piece)
        })
    }

    /// Pieces with these first blocks as runs.
    fn split(pieces: Vec<ShortPiece>, blocks: &[u32]) -> Vec<Self> {
        if !pieces.iter().any(|p| p.shared) {
            let block = blocks.first().copied().unwrap_or(0);
            return vec![Self { block, pieces }];
        }
        let mut runs: Vec<Self> = Vec::new();
        let mut next = None;
        for (piece, block) in pieces.into_iter().zip(blocks) {
            match runs.last_mut() {
                Some(run) if next == Some(*block) => run.pieces.push(piece),
                _ => runs.push(Self {
                    block: *block,
                    pieces: vec![piece],
                }),
            }
            next = Some(block + u32::from(piece.blocks));
        }
        runs
    }
}

/// Where the last piece of a compressed file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileTail {
    /// In a cluster.
    Cluster,
    /// Behind the index.
    Inline(SpillRef),
    /// In the packed inode.
    Fragment(u64),
}

/// Data of a sparse file.
#[derive(Debug)]
pub(crate) struct Chunked {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// Chunks with data, in order; their blocks are consecutive.
    pub(crate) runs: Arc<[ChunkRun]>,
    /// First block.
    pub(crate) block: u32,
}

/// How the packer is set up.
pub(crate) struct PackOptions {
    /// Block size.
    pub(crate) bits: BlockBits,
    /// Workers.
    pub(crate) threads: usize,
    /// Bytes of jobs in flight.
    pub(crate) in_flight: u64,
    /// Bytes of tails kept in memory.
    pub(crate) spill: usize,
    /// Where to spill.
    pub(crate) temporary: std::path::PathBuf,
    /// First block for data.
    pub(crate) first_block: u32,
    /// How the packed inode is stored.
    pub(crate) packed: Arc<Policy>,
    /// Contents that are remembered for whole-file dedupe.
    pub(crate) known_max: usize,
    /// Sums of all contents are taken.
    pub(crate) sums: bool,
    /// The build fails when its blocks outgrow this. Unit: bytes.
    pub(crate) size_max: Option<u64>,
}

/// The packer.
pub(crate) struct Packer<'a> {
    options: PackOptions,
    output: &'a Output,
    progress: &'a Progress,
    pool: Pool,
    next_ticket: u64,
    next_collect: u64,
    batch: Vec<Part>,
    batch_bytes: u64,
    result: Packed,
    digest: xxhash_rust::xxh3::Xxh3,
    /// Whole files of the packed inode that wait for their segment to fill, and their bytes.
    stream: (Vec<Item>, usize),
    /// Submitted whole files of the packed inode, with padding. Unit: bytes.
    streamed: u64,
    /// The same, placed.
    stream_placed: u64,
    ends: Ends,
    /// First file of each content that another may have.
    known: HashMap<ContentKey, InodeId>,
    /// Blocks of the pieces of parts whose clusters others share.
    shared: HashMap<PartKey, Vec<u32>>,
    /// What the tables of compressed and sparse files take, and what tells ends of files. Unit: bytes.
    tables: u64,
}

/// All data, placed.
pub(crate) struct Packed {
    /// By inode.
    pub(crate) files: Vec<FileData>,
    /// Tails.
    pub(crate) spill: Spill,
    /// The packed inode's data.
    pub(crate) packed: FileData,
    /// The packed inode's size. Unit: bytes.
    pub(crate) packed_size: u64,
    /// First block behind the data.
    pub(crate) end_block: u32,
    /// Digest over all blocks.
    pub(crate) digest: u128,
    /// Sums of all contents, if they were to be taken.
    pub(crate) sums: Sums,
    /// What was done.
    pub(crate) stats: Stats,
}

/// Ends of files for the packed inode, and whole files of a stream. Positions count from the first of them.
struct Ends {
    /// Not yet submitted.
    buf: Vec<u8>,
    /// Submitted bytes.
    submitted: u64,
    segments: u64,
    /// Tickets of submitted segments that are not held yet.
    pending: VecDeque<u64>,
    /// Encoded.
    held: Held,
    /// By digest.
    known: HashMap<[u8; 16], u64>,
}

impl<'a> Packer<'a> {
    /// Starts the workers.
    pub(crate) fn new(
        options: PackOptions,
        output: &'a Output,
        progress: &'a Progress,
    ) -> Result<Self> {
        let pool = Pool::start(
            options.threads,
            options.in_flight,
            options.bits.size_usize(),
            options.sums,
        )?;
        let spill = Spill::new(options.spill, options.temporary.clone());
        let held = Held::new(options.spill, options.temporary.clone());
        let result = Packed {
            files: Vec::new(),
            spill,
            packed: FileData::None,
            packed_size: 0,
            end_block: options.first_block,
            digest: 0,
            sums: Sums::default(),
            stats: Stats::default(),
        };
        Ok(Self {
            options,
            output,
            progress,
            pool,
            next_ticket: 0,
            next_collect: 0,
            batch: Vec::new(),
            batch_bytes: 0,
            result,
            digest: xxhash_rust::xxh3::Xxh3::new(),
            stream: (Vec::new(), 0),
            streamed: 0,
            stream_placed: 0,
            ends: Ends {
                buf: Vec::new(),
                submitted: 0,
                segments: 0,
                pending: VecDeque::new(),
                held,
                known: HashMap::new(),
            },
            known: HashMap::new(),
            shared: HashMap::new(),
            tables: 0,
        })
    }

    /// From now on so many bytes of jobs may be in flight, less half of what tables take: the rest of it is for the buffers
    /// of workers. Which jobs that are does not show in the image.
    pub(crate) fn set_in_flight(&mut self, bytes: u64) {
        self.pool.set_budget(bytes);
    }

    /// Puts bytes at the start of the packed inode, before any file.
    pub(crate) fn start_packed(&mut self, bytes: &[u8]) -> Result<()> {
        debug_assert!(self.streamed == 0 && self.stream.0.is_empty());
        self.add_packed(PACKED, bytes.len() as u64, Input::Bytes(bytes.into()))
    }

    /// Adds a whole file of `size` bytes, not empty, to the packed inode, behind those that were added so before.
    pub(crate) fn add_packed(&mut self, file: InodeId, size: u64, input: Input) -> Result<()> {
        let segment = segment_size(&self.options.packed);
        let mut offset = 0;
        while offset < size {
            let room = segment - self.stream.1 as u64;
            // Fits: a segment is a few MiB.
            let len = room.min(size - offset) as usize;
            self.stream.0.push(Item {
                file,
                input: input.clone(),
                offset,
                len,
            });
            self.stream.1 += len;
            offset += len as u64;
            if self.stream.1 as u64 == segment {
                self.submit_stream()?;
            }
        }
        Ok(())
    }

    fn submit_stream(&mut self) -> Result<()> {
        let (items, len) = std::mem::take(&mut self.stream);
        if items.is_empty() {
            return Ok(());
        }
        self.submit_batch()?;
        let len = len.next_multiple_of(self.options.bits.size_usize());
        let part = Part {
            file: PACKED,
            input: Input::Packed(items.into()),
            offset: 0,
            len,
            first: self.streamed == 0,
            last: false,
            store: false,
            policy: Arc::clone(&self.options.packed),
            twin: None,
            plan: None,
        };
        self.streamed += len as u64;
        self.submit(vec![part], len as u64)
    }

    /// Adds a file of `size` bytes, not empty. Its data follows that of the files before it. With `twin`, the number of its
    /// policy, it shares the data of an earlier file with the same content, if that has one segment. `plan` says what parts it
    /// shares.
    pub(crate) fn add_file(
        &mut self,
        file: InodeId,
        size: u64,
        input: Input,
        policy: &Arc<Policy>,
        twin: Option<u32>,
        plan: Option<&FilePlan>,
    ) -> Result<()> {
        let segment = segment_size(policy);
        if size <= segment {
            // Fits: a segment is a few MiB.
            let part = Part {
                file,
                input,
                offset: 0,
                len: size as usize,
                first: true,
                last: true,
                store: false,
                policy: Arc::clone(policy),
                twin,
                plan: plan.map(|p| Box::new(p.part(file, 0, size, segment))),
            };
            self.batch.push(part);
            self.batch_bytes += size;
            if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_FILES {
                self.submit_batch()?;
            }
            return Ok(());
        }
        self.submit_batch()?;
        let store = policy.spec.is_some() && !worth_compressing(&input, size)?;
        self.add_segments(file, size, &input, policy, store, plan)
    }

    /// Adds a file of `size` bytes that are read from `reader` now.
    pub(crate) fn add_stream(
        &mut self,
        file: InodeId,
        size: u64,
        reader: &mut dyn Read,
        policy: &Arc<Policy>,
    ) -> Result<()> {
        self.submit_batch()?;
        let segment = segment_size(policy);
        let (mut at, mut store) = (0, false);
        while at < size {
            let len = segment.min(size - at) as usize;
            let mut bytes = vec![0; len];
            reader
                .read_exact(&mut bytes)
                .map_err(|e| Error::source(e.into()))?;
            let input = Input::Bytes(bytes.into());
            if at == 0 && policy.spec.is_some() {
                store = !worth_compressing(&input, len as u64)?;
            }
            let last = at + len as u64 == size;
            let policy = Arc::clone(policy);
            let part = Part {
                file,
                input,
                offset: 0,
                len,
                first: at == 0,
                last,
                store,
                policy,
                twin: None,
                plan: None,
            };
            self.submit(vec![part], len as u64)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Adds a file with holes: `runs` are the chunks that hold data.
    pub(crate) fn add_sparse(
        &mut self,
        file: InodeId,
        size: u64,
        input: Input,
        sparse: Sparse,
        policy: &Arc<Policy>,
    ) -> Result<()> {
        let chunk_size = self.options.bits.size() << sparse.bits;
        let data: u64 = sparse
            .runs
            .iter()
            .map(|r| (r.count * chunk_size).min(size - r.first * chunk_size))
            .sum();
        self.submit_batch()?;
        let runs = Arc::clone(&sparse.runs);
        let chunked = FileData::Chunked(Box::new(Chunked {
            bits: sparse.bits,
            runs: sparse.runs,
            block: 0,
        }));
        self.tables += chunked.footprint();
        self.set(file, chunked);
        self.result.stats.sparse_files += 1;
        self.result.stats.hole_bytes += size - data;
        if data > 0 {
            let whole = Box::new(input);
            let input = Input::Sparse {
                whole,
                chunks: runs,
                chunk_size,
                size,
            };
            // A chunk has its last, partial block among the others.
            let policy = Arc::new(Policy {
                spec: None,
                inline_max: 0,
                ..(**policy).clone()
            });
            self.add_segments(file, data, &input, &policy, true, None)?;
        }
        Ok(())
    }

    /// `file` has the same data as `first`, which was added before.
    pub(crate) fn add_same(&mut self, file: InodeId, first: InodeId, size: u64) {
        self.result.stats.dedupe_files += 1;
        self.result.stats.dedupe_bytes += size;
        self.set(file, FileData::Same(first));
    }

    fn add_segments(
        &mut self,
        file: InodeId,
        size: u64,
        input: &Input,
        policy: &Arc<Policy>,
        store: bool,
        plan: Option<&FilePlan>,
    ) -> Result<()> {
        let segment = segment_size(policy);
        let mut offset = 0;
        while offset < size {
            let len = segment.min(size - offset);
            let policy = Arc::clone(policy);
            let last = offset + len == size;
            let part = Part {
                file,
                input: input.clone(),
                offset,
                len: len as usize,
                first: offset == 0,
                last,
                store,
                policy,
                twin: None,
                plan: plan.map(|p| Box::new(p.part(file, offset, len, segment))),
            };
            self.submit(vec![part], len)?;
            offset += len;
        }
        Ok(())
    }

    fn submit_batch(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let parts = std::mem::take(&mut self.batch);
        let bytes = std::mem::take(&mut self.batch_bytes);
        self.submit(parts, bytes)
    }

    fn submit(&mut self, parts: Vec<Part>, bytes: u64) -> Result<()> {
        self.progress.check()?;
        let cost = 2 * bytes + (64 << 10);
        while self.next_collect < self.next_ticket && !self.pool.has_room(cost, self.tables / 2) {
            self.collect(true)?;
        }
        self.pool.submit(
            Job {
                id: self.next_ticket,
                cost,
                parts,
            },
            false,
        );
        self.next_ticket += 1;
        while self.next_collect < self.next_ticket && self.collect(false)? {}
        Ok(())
    }

    /// Takes the next result. False if it is not there and `wait` is not set.
    fn collect(&mut self, wait: bool) -> Result<bool> {
        let ticket = self.next_collect;
        let out = if wait {
            self.pool.take(ticket)?
        } else {
            match self.pool.try_take(ticket) {
                Some(out) => out?,
                None => return Ok(false),
            }
        };
        self.next_collect += 1;
        self.place(out)?;
        self.submit_ends(false);
        self.hold_ends(false)?;
        Ok(true)
    }

    /// Writes a result's blocks and notes where they are. Files that turn out to have the content of an earlier one leave
    /// no blocks.
    fn place(&mut self, out: JobOut) -> Result<()> {
        let block_size = self.options.bits.size_usize();
        self.digest.update(&out.digest.to_le_bytes());
        // Of the job's data: what waits to be written, and where the next part starts.
        let (mut start, mut at) = (0, 0);
        for part in out.parts {
            match &part.items {
                Some(items) => self.place_items(items, part.len, &part.sums),
                None if part.file != PACKED => {
                    self.progress.add_bytes(part.len as u64);
                    if let [sum] = part.sums[..] {
                        let sums = &mut self.result.sums;
                        sums.add(part.file, part.first, part.len, sum);
                    }
                }
                None => {}
            }
            let end = at + part.body.blocks() as usize * block_size;
            if let Some(first) = part.key.and_then(|key| self.twin_of(part.file, key)) {
                self.write(&out.data.bytes()[start..at])?;
                start = end;
                self.add_same(part.file, first, part.len as u64);
            } else {
                let block = u64::from(self.result.end_block) + ((at - start) / block_size) as u64;
                // A signed block address: readers treat it so.
                let block = u32::try_from(block).ok().filter(|b| *b < 1 << 31);
                let block =
                    block.ok_or_else(|| Error::limit("image", "larger than 2^31 blocks"))?;
                self.place_part(part, block)?;
            }
            at = end;
        }
        self.write(&out.data.bytes()[start..at])?;
        self.pool.recycle(out.data);
        Ok(())
    }

    /// Notes where the files of a segment of the packed inode are, and their sums. The segment has `len` bytes.
    fn place_items(&mut self, items: &[Item], len: usize, sums: &[u64]) {
        let mut offset = self.stream_placed;
        self.stream_placed += len as u64;
        for (i, item) in items.iter().enumerate() {
            if item.file != PACKED {
                if let Some(sum) = sums.get(i) {
                    let first = item.offset == 0;
                    self.result.sums.add(item.file, first, item.len, *sum);
                }
                if item.offset == 0 {
                    self.result.stats.fragments += 1;
                    self.set(item.file, FileData::WholeFragment { offset });
                }
                self.result.stats.fragment_bytes += item.len as u64;
                self.progress.add_bytes(item.len as u64);
            }
            offset += item.len as u64;
        }
    }

    /// The earlier file with this key. Remembers the file if there is none.
    fn twin_of(&mut self, file: InodeId, key: ContentKey) -> Option<InodeId> {
        if let Some(first) = self.known.get(&key) {
            return Some(*first);
        }
        // Beyond the limit later twins are missed, the same ones every time.
        if self.known.len() < self.options.known_max {
            self.known.insert(key, file);
        }
        None
    }

    /// Appends whole blocks to the image.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bits = self.options.bits;
        let end = u64::from(self.result.end_block) + bits.count(bytes.len() as u64);
        let end = u32::try_from(end).ok().filter(|b| *b < 1 << 31);
        let end = end.ok_or_else(|| Error::limit("image", "larger than 2^31 blocks"))?;
        if self
            .options
            .size_max
            .is_some_and(|max| u64::from(end) * bits.size() > max)
        {
            return Err(Error::limit("image", crate::build::OVER_BUDGET));
        }
        let at = u64::from(self.result.end_block) * bits.size();
        self.output
            .write_at(bytes, at)
            .map_err(|e| Error::io("image", "cannot write", e))?;
        self.result.end_block = end;
        Ok(())
    }

    fn place_part(&mut self, part: PartOut, block: u32) -> Result<()> {
        let PartOut {
            file,
            first,
            len,
            body,
            post,
            key: _,
            items: _,
            sums: _,
        } = part;
        match body {
            Body::Flat { blocks, tail } => {
                self.result
                    .stats
                    .add_flat(len as u64, blocks, tail.as_ref().map_or(0, Vec::len));
                let tail = tail.map(|t| self.result.spill.put(&t)).transpose()?;
                match self.slot(file) {
                    FileData::Chunked(chunked) if first => chunked.block = block,
                    FileData::Flat { tail: slot, .. } if !first => *slot = tail,
                    FileData::Chunked(_) => {}
                    slot => *slot = FileData::Flat { block, tail },
                }
            }
            Body::Encoded {
                algorithm,
                pieces,
                homes,
                tail,
                in_place,
            } => {
                self.result
                    .stats
                    .add_encoded(algorithm, &pieces, &tail, in_place);
                let tail = match tail {
                    Tail::Cluster => FileTail::Cluster,
                    Tail::Inline(bytes) => FileTail::Inline(self.result.spill.put(&bytes)?),
                    Tail::Fragment(bytes) => {
                        FileTail::Fragment(self.add_fragment(&bytes, first && pieces.len() == 1))
                    }
                };
                if let (FileTail::Fragment(offset), 1, true) = (tail, pieces.len(), first) {
                    *self.slot(file) = FileData::WholeFragment { offset };
                    return Ok(());
                }
                let blocks = self.blocks_of(&pieces, &homes, post, block);
                let runs = Run::split(pieces, &blocks);
                if let Some(key) = post {
                    self.shared.insert(key, blocks);
                }
                let slot = self.slot(file);
                let before = slot.footprint();
                match slot.more() {
                    Some(data) => {
                        data.runs.extend(runs);
                        data.tail = tail;
                    }
                    None => *slot = FileData::encoded(runs, tail, algorithm),
                }
                let after = slot.footprint();
                self.tables += after - before;
            }
        }
        Ok(())
    }

    /// First block of each piece of the part `own`: the next of the part's blocks, which start at `block`, or where the
    /// piece's home is.
    fn blocks_of(
        &self,
        pieces: &[ShortPiece],
        homes: &[(PartKey, u32)],
        own: Option<PartKey>,
        block: u32,
    ) -> Vec<u32> {
        let (mut next, mut homes) = (block, homes.iter());
        let mut blocks: Vec<u32> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let at = if piece.shared {
                let (key, i) = homes.next().expect("every shared piece has a home");
                let home = if Some(*key) == own {
                    &blocks
                } else {
                    &self.shared[key]
                };
                home[*i as usize]
            } else {
                next += u32::from(piece.blocks);
                next - u32::from(piece.blocks)
            };
            blocks.push(at);
        }
        blocks
    }

    fn slot(&mut self, file: InodeId) -> &mut FileData {
        if file == PACKED {
            return &mut self.result.packed;
        }
        let i = file as usize;
        if i >= self.result.files.len() {
            self.result.files.resize_with(i + 1, FileData::default);
        }
        &mut self.result.files[i]
    }

    fn set(&mut self, file: InodeId, data: FileData) {
        *self.slot(file) = data;
    }

    /// Position of these bytes among the ends. Ends of files are looked up among those before; whole files were compared
    /// already.
    fn add_fragment(&mut self, bytes: &[u8], whole: bool) -> u64 {
        let ends = &mut self.ends;
        let offset = IN_ENDS | (ends.submitted + ends.buf.len() as u64);
        if !whole {
            let mut key = [0; 16];
            key.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
            if let Some(known) = ends.known.get(&key) {
                self.result.stats.fragment_dedupe_bytes += bytes.len() as u64;
                return *known;
            }
            ends.known.insert(key, offset);
            self.tables += KNOWN_COST;
        }
        ends.buf.extend_from_slice(bytes);
        self.result.stats.fragments += 1;
        offset
    }

    /// Hands full segments of ends to the workers; at the end, what is left.
    fn submit_ends(&mut self, end: bool) {
        let policy = Arc::clone(&self.options.packed);
        let segment = segment_size(&policy) as usize;
        loop {
            let ends = &mut self.ends;
            let len = ends.buf.len().min(segment);
            if len == 0 || len < segment && !end {
                return;
            }
            let rest = ends.buf.split_off(len);
            let bytes: Arc<[u8]> = std::mem::replace(&mut ends.buf, rest).into();
            let id = ENDS_TICKETS + ends.segments;
            let part = Part {
                file: PACKED,
                input: Input::Bytes(bytes),
                offset: 0,
                len,
                first: ends.segments == 0 && self.streamed == 0,
                last: end && ends.buf.is_empty(),
                store: false,
                policy: Arc::clone(&policy),
                twin: None,
                plan: None,
            };
            ends.pending.push_back(id);
            ends.submitted += len as u64;
            ends.segments += 1;
            self.pool.submit(
                Job {
                    id,
                    cost: 2 * len as u64,
                    parts: vec![part],
                },
                true,
            );
        }
    }

    /// Takes the segments of ends that are encoded; with `wait`, all that were submitted.
    fn hold_ends(&mut self, wait: bool) -> Result<()> {
        while let Some(id) = self.ends.pending.front().copied() {
            let out = if wait {
                self.pool.take(id)?
            } else {
                match self.pool.try_take(id) {
                    Some(out) => out?,
                    None => break,
                }
            };
            self.ends.pending.pop_front();
            self.ends
                .held
                .put(out.data.bytes(), (out.digest, out.parts))?;
            self.pool.recycle(out.data);
        }
        Ok(())
    }

    /// Waits for everything and gives back where it is.
    pub(crate) fn finish(mut self) -> Result<Packed> {
        self.submit_batch()?;
        self.submit_stream()?;
        while self.next_collect < self.next_ticket {
            self.progress.check()?;
            self.collect(true)?;
        }
        self.submit_ends(true);
        self.hold_ends(true)?;
        while let Some((bytes, (digest, parts))) = self.ends.held.next()? {
            self.digest.update(&digest.to_le_bytes());
            let mut block = self.result.end_block;
            self.write(&bytes)?;
            for part in parts {
                let blocks = part.body.blocks();
                self.place_part(part, block)?;
                block += blocks;
            }
        }
        for data in &mut self.result.files {
            if let FileData::WholeFragment { offset } = data
                && *offset & IN_ENDS != 0
            {
                *offset = (*offset & !IN_ENDS) + self.streamed;
            }
            if let FileData::Compressed(data) = data
                && let FileTail::Fragment(offset) = &mut data.tail
            {
                *offset = (*offset & !IN_ENDS) + self.streamed;
            }
        }
        self.result.packed_size = self.streamed + self.ends.submitted;
        self.result.digest = self.digest.digest128();
        Ok(self.result)
    }
}

/// The chunks of a sparse file.
pub(crate) struct Sparse {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// Chunks that hold data.
    pub(crate) runs: Arc<[ChunkRun]>,
}

impl Sparse {
    /// Chooses a chunk size for a file of `size` bytes with data only in `runs`. Chunks are as large as the edges of the
    /// holes allow, and never so small that the table outgrows its limit.
    pub(crate) fn plan(size: u64, runs: &[DataRun], bits: BlockBits) -> Self {
        const ENTRIES_MAX: u64 = 1 << 20;
        let mut edges = 0;
        for run in runs {
            edges |= run.file_offset / bits.size();
            let end = run.file_offset + run.len;
            // The last chunk may be cut short by the end of the file.
            if end < size {
                edges |= bits.count(end);
            }
        }
        let whole = bits.count(size).next_power_of_two().trailing_zeros();
        let mut chunk = edges.trailing_zeros().min(whole).min(31);
        while bits.count(size) >> chunk > ENTRIES_MAX && chunk < 31 {
            chunk += 1;
        }
        let chunk_size = bits.size() << chunk;
        let mut chunks: Vec<ChunkRun> = Vec::new();
        for run in runs.iter().filter(|r| r.len > 0) {
            let first = run.file_offset / chunk_size;
            let end = (run.file_offset + run.len).div_ceil(chunk_size);
            match chunks.last_mut() {
                Some(last) if last.first + last.count >= first => {
                    last.count = last.count.max(end - last.first);
                }
                _ => chunks.push(ChunkRun {
                    first,
                    count: end - first,
                }),
            }
        }
        Self {
            bits: chunk as u8,
            runs: chunks.into(),
        }
    }
}

/// No file up to this length is cut into segments. Unit: bytes.
const SEGMENT_MIN: u64 = 8 << 20;

/// Files longer than this are encoded in segments. Unit: bytes; a multiple of every block size.
pub(crate) fn segment_size(policy: &Policy) -> u64 {
    match policy.spec.map_or(0, |s| s.cluster) {
        0..=0x2_0000 => SEGMENT_MIN,
        0x2_0001..=0x8_0000 => 16 << 20,
        _ => 32 << 20,
    }
}

/// Looks at a few places of a large file: false if none of them shrinks.
fn worth_compressing(input: &Input, size: u64) -> Result<bool> {
    const PROBES: u64 = 8;
    const PROBE: usize = 64 << 10;
    let reader = input.open()?;
    let spec = tuff_codec::EncoderSpec::new(tuff_codec::Method::Lz4, PROBE);
    let mut encoder = spec.build().map_err(Error::usage)?;
    let (mut raw, mut out) = (vec![0; PROBE], vec![0; PROBE]);
    for i in 0..PROBES {
        let at = (size - PROBE as u64) / (PROBES - 1) * i;
        reader.read_exact(&mut raw, at)?;
        encoder.reset();
        let fit = encoder.fit(&raw, 0, &mut out);
        if fit.consumed == PROBE && fit.written < PROBE - PROBE / 32 {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file_offset: u64, len: u64) -> DataRun {
        DataRun {
            file_offset,
            source_offset: 0,
            len,
        }
    }

    #[test]
    fn chunks_follow_the_edges_of_holes() {
        let plan = Sparse::plan(
            8 << 20,
            &[run(0, 4096), run(1 << 20, 1 << 20)],
            BlockBits::B4K,
        );
        assert_eq!(plan.bits, 0);
        assert_eq!(
            *plan.runs,
            [
                ChunkRun { first: 0, count: 1 },
                ChunkRun {
                    first: 256,
                    count: 256
                }
            ]
        );
        let plan = Sparse::plan(8 << 20, &[run(1 << 20, 1 << 20)], BlockBits::B4K);
        assert_eq!(
            (plan.bits, &*plan.runs),
            (8, &[ChunkRun { first: 1, count: 1 }][..])
        );
        let plan = Sparse::plan(1 << 40, &[], BlockBits::B4K);
        assert!(plan.runs.is_empty() && (1u64 << 28) >> plan.bits <= 1 << 20);
    }
}
