//! Work of one thread: reads parts of files, encodes them and concatenates the blocks.

use super::block_buffer::BlockBuffer;
use super::checksums::sum;
use super::content::{FileContent, Item};
use super::grain::Grain;
use super::piece::{SegmentShape, ShortPiece, TailPolicy};
use super::segment::{self, Encoders, Tail};
use super::shared_clusters::{ClusterBoard, PartKey, PartPlan};
use crate::Result;
use crate::pack::encoder::new_encoder;
use crate::source::readahead::{PrefetchRange, Readahead};
use crate::tree::InodeId;
use crate::tree::order::{ContentKey, PolicyId, content_key};
use hashbrown::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tuff_codec::{Encoder, EncoderSpec};
use tuff_format::BlockBits;
use tuff_format::cluster::HeadKind;
use xxhash_rust::xxh3::xxh3_128;

/// A file of at most this number of bytes stays inline even if small files go into the packed inode.
pub(crate) const TINY: usize = 64;

/// Storage of the data of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Encoder of the file. `None` stores it.
    pub(crate) spec: Option<EncoderSpec>,
    /// Treatment of the tail of a compressed file.
    pub(crate) tail: TailPolicy,
    /// A file of at most this number of bytes goes into the packed inode as a whole.
    pub(crate) whole_max: u64,
    /// The last partial block of a stored file becomes inline data if it has at most this number of bytes.
    pub(crate) inline_max: usize,
    /// A file that saves less than this, in thousandths of its size, is stored.
    pub(crate) min_saving: u32,
    /// Chunk size of stored files in bytes; equal chunks are stored once.
    pub(crate) chunk: Option<usize>,
}

impl Policy {
    /// Returns true if a file of `size` bytes goes into the packed inode as a whole.
    pub(crate) fn packs_whole(&self, size: u64) -> bool {
        self.spec.is_some() && size > TINY as u64 && size <= self.whole_max
    }
}

/// A file, or a segment of a large one.
pub(crate) struct Part {
    /// File that the bytes belong to.
    pub(crate) file: InodeId,
    /// Content of the file.
    pub(crate) content: FileContent,
    /// Position in the content in bytes.
    pub(crate) offset: u64,
    /// Length in bytes, at least 1.
    pub(crate) len: usize,
    /// The content begins with this part.
    pub(crate) first: bool,
    /// The content ends with this part.
    pub(crate) last: bool,
    /// The file is stored, whatever the policy states.
    pub(crate) store: bool,
    /// Storage policy of the file.
    pub(crate) policy: Arc<Policy>,
    /// Policy for the content key, if another file may have the same content.
    pub(crate) duplicate_key: Option<PolicyId>,
    /// Ranges that it shares with other files.
    pub(crate) plan: Option<Box<PartPlan>>,
    /// Bytes that follow and are added to the packed inode later.
    pub(crate) end_len: usize,
    /// Start in the part of a tail that stays where the patched image has it.
    pub(crate) kept_tail: Option<usize>,
    /// Ranges with larger clusters.
    pub(crate) large: Option<Box<LargeClusters>>,
}

/// Larger clusters for ranges of the packed inode with similar files, which share matches within a cluster.
pub(crate) struct LargeClusters {
    spec: EncoderSpec,
    /// Ascending ranges in bytes of the part.
    stretches: Vec<Range<usize>>,
}

/// A larger cluster is used if at least this number of bytes of the range follow.
const LARGE_MIN: usize = 32 << 10;

impl LargeClusters {
    /// Returns the ranges of a part with these items, if there are any.
    pub(crate) fn new(spec: EncoderSpec, items: &[Item]) -> Option<Self> {
        let (mut at, mut stretches) = (0, Vec::new());
        for same in items.chunk_by(|a, b| a.similar == b.similar) {
            let len: usize = same.iter().map(|item| item.len).sum();
            if same[0].similar && len > LARGE_MIN {
                stretches.push(at..at + len - LARGE_MIN);
            }
            at += len;
        }
        (!stretches.is_empty()).then_some(Self { spec, stretches })
    }
}

impl Part {
    /// Returns the key under which later parts find its clusters.
    fn post(&self) -> Option<PartKey> {
        self.plan.as_ref().and_then(|p| p.post)
    }
}

/// Posts an empty list for parts that failed before they posted.
struct Posts {
    board: Arc<ClusterBoard>,
    keys: Vec<PartKey>,
}

impl Drop for Posts {
    fn drop(&mut self) {
        for key in &self.keys {
            self.board.post(*key, &[]);
        }
    }
}

/// Work for one worker.
pub(crate) struct Job {
    /// Number of the result.
    pub(crate) id: u64,
    /// Memory in bytes that it needs while it runs.
    pub(crate) cost: u64,
    /// Parts in the order of their blocks.
    pub(crate) parts: Vec<Part>,
    /// True if readahead was issued for its content.
    pub(crate) advised: bool,
}

impl Job {
    /// Returns the content for readahead, once.
    pub(super) fn take_ranges(&mut self) -> impl Iterator<Item = PrefetchRange> {
        let parts = if std::mem::replace(&mut self.advised, true) {
            &[]
        } else {
            &self.parts[..]
        };
        let range = |part: &Part| PrefetchRange::new(part.content.clone(), part.offset, part.len);
        parts.iter().map(range)
    }
}

/// Result of a job.
#[derive(Debug)]
pub(crate) struct JobOut {
    /// Encoded data in whole blocks.
    pub(crate) data: BlockBuffer,
    /// Digest of the bytes in `data`.
    pub(crate) digest: u128,
    /// Parts in the order of their blocks.
    pub(crate) parts: Vec<PartOut>,
}

impl JobOut {
    /// Returns the memory in bytes that the result holds until it is placed.
    pub(crate) fn footprint(&self) -> u64 {
        let of = |part: &PartOut| match &part.body {
            Body::Flat { tail, .. } => tail.as_ref().map_or(0, Vec::len),
            Body::Chunks(chunks) => size_of_val(&chunks[..]),
            Body::Encoded { pieces, tail, .. } => {
                let tail = match tail {
                    Tail::Cluster | Tail::Later(_) | Tail::Kept(_) => 0,
                    Tail::Inline(bytes) | Tail::Fragment(bytes) => bytes.len(),
                };
                size_of_val(&pieces[..]) + tail
            }
        };
        let parts: usize = self.parts.iter().map(of).sum();
        (self.data.len() + parts + size_of_val(&self.parts[..])) as u64
    }
}

/// Result of a part.
#[derive(Debug)]
pub(crate) struct PartOut {
    /// File that the part belongs to.
    pub(crate) file: InodeId,
    /// True for the first part of its file.
    pub(crate) first: bool,
    /// Number of bytes of content.
    pub(crate) len: usize,
    /// Items of a segment of the packed inode that holds whole files.
    pub(crate) items: Option<Arc<[Item]>>,
    /// Key of its clusters, if later parts may use them.
    pub(crate) post: Option<PartKey>,
    /// Key of the content, if another file may have the same.
    pub(crate) key: Option<ContentKey>,
    /// Checksum of the content or of each item. Empty if none are taken.
    pub(crate) sums: Vec<u64>,
    /// Encoded data of the part.
    pub(crate) body: Body,
}

/// Chunk that holds data.
#[derive(Debug)]
pub(crate) struct ChunkPart {
    /// Digest of the bytes of its blocks.
    pub(crate) key: [u8; 32],
    /// Number of blocks in the job's data.
    pub(crate) blocks: u32,
}

/// Data of a part.
#[derive(Debug)]
pub(crate) enum Body {
    /// Data that is stored as it is.
    Flat {
        /// Number of blocks in the job's data.
        blocks: u32,
        /// Last partial block, for inline data.
        tail: Option<Vec<u8>>,
    },
    /// Chunks, those with data back to back.
    Chunks(Vec<Option<ChunkPart>>),
    /// Data in compressed clusters.
    Encoded {
        /// Number of the algorithm.
        algorithm: u8,
        /// Extents in order of the file.
        pieces: Vec<ShortPiece>,
        /// Clusters of the shared extents, in order.
        homes: Vec<(PartKey, u32)>,
        /// Tail of the file.
        tail: Tail,
        /// LZ4 clusters that were tried for in-place decoding, and how many succeeded.
        in_place: (u32, u32),
    },
}

impl Body {
    /// Returns a whole file for the packed inode.
    fn fragment(algorithm: u8, content: &[u8]) -> Self {
        Self::Encoded {
            algorithm,
            pieces: vec![ShortPiece::own(content.len(), 0, HeadKind::Head1)],
            homes: Vec::new(),
            tail: Tail::Fragment(content.to_vec()),
            in_place: (0, 0),
        }
    }

    /// Returns true if its data has to start a block.
    pub(crate) fn begins_at_block(&self) -> bool {
        matches!(self, Self::Flat { blocks: 1.., .. })
    }

    /// Returns its length in bytes in the job's data.
    pub(crate) fn len(&self, bits: BlockBits, grain: Grain) -> usize {
        let of_blocks = |blocks: u32| blocks as usize * bits.size_usize();
        match self {
            Self::Flat { blocks, .. } => of_blocks(*blocks),
            Self::Chunks(chunks) => of_blocks(chunks.iter().flatten().map(|c| c.blocks).sum()),
            Self::Encoded { pieces, .. } => own_grains(pieces) * grain.size(),
        }
    }
}

/// Returns the grains that the pieces add to their part.
fn own_grains(pieces: &[ShortPiece]) -> usize {
    pieces.iter().map(ShortPiece::own_grains).sum()
}

/// Worker with its buffer and encoders.
pub(crate) struct Worker {
    block: usize,
    grain: Grain,
    sums: bool,
    board: Arc<ClusterBoard>,
    input: Vec<u8>,
    encoders: HashMap<EncoderSpec, Box<dyn Encoder>>,
    readahead: Readahead,
    /// Number of LZ4 clusters of this job: the sample must depend on the job alone.
    lz4_clusters: usize,
}

/// Returns the checksums of the items of a part, or of the part.
fn sums_of(content: &FileContent, bytes: &[u8]) -> Vec<u64> {
    let of = |bytes: &[u8]| {
        let mut sum = sum();
        sum.update(bytes);
        sum.digest()
    };
    let FileContent::Packed(items) = content else {
        return vec![of(bytes)];
    };
    let mut rest = bytes;
    let next = |item: &Item| {
        let (now, later) = rest.split_at(item.len);
        rest = later;
        of(now)
    };
    items.iter().map(next).collect()
}

/// One of this number of LZ4 clusters is tried for in-place decoding: a sample, because it decodes the cluster.
const IN_PLACE_SAMPLE: usize = 16;
/// Number of encoders that a worker keeps.
const ENCODERS_MAX: usize = 8;
/// Where clusters start anywhere, a shorter file in bytes that does not shrink becomes one stored cluster. Stored in
/// blocks it would have to start a block.
const STORED_MAX: usize = 256 << 10;
/// Rough size in bytes of a map header and a short index.
const INDEX_COST: usize = 24;

impl Worker {
    /// Returns a worker for this block size and grain. `sums` enables checksums of all contents.
    pub(crate) fn new(
        (bits, grain): (BlockBits, Grain),
        board: Arc<ClusterBoard>,
        sums: bool,
    ) -> Self {
        Self {
            block: bits.size_usize(),
            grain,
            sums,
            board,
            input: Vec::new(),
            encoders: HashMap::new(),
            readahead: Readahead::default(),
            lz4_clusters: 0,
        }
    }

    /// Returns true if readahead pays for the content.
    pub(crate) fn is_cold(&self) -> bool {
        self.readahead.is_cold()
    }

    /// Issues readahead for content that will be read soon.
    pub(super) fn advise(&mut self, ranges: &[PrefetchRange]) {
        self.readahead.issue(ranges);
    }

    /// Runs a job. `data` is an empty buffer to fill.
    pub(crate) fn run(&mut self, job: Job, mut data: BlockBuffer) -> Result<JobOut> {
        self.lz4_clusters = 0;
        // However this job ends, no later job waits forever.
        let _posts = Posts {
            board: Arc::clone(&self.board),
            keys: job.parts.iter().filter_map(Part::post).collect(),
        };
        let mut parts = Vec::with_capacity(job.parts.len());
        for part in job.parts {
            let mut input = std::mem::take(&mut self.input);
            if input.len() < part.len {
                input.resize(part.len, 0);
            }
            let start = Instant::now();
            let reader = part.content.open()?;
            reader.read_exact(&mut input[..part.len], part.offset)?;
            self.readahead.record_read(part.len, start.elapsed());
            let content = &input[..part.len];
            let key = part.duplicate_key.map(|policy| {
                content_key(
                    part.len as u64,
                    policy,
                    blake3::Hasher::new().update(content),
                )
            });
            let sums = if self.sums {
                sums_of(&part.content, content)
            } else {
                Vec::new()
            };
            let body = self.encode(&part, content, &mut data);
            self.input = input;
            let body = body?;
            parts.push(PartOut {
                post: part.post(),
                file: part.file,
                first: part.first,
                len: part.len,
                items: match part.content {
                    FileContent::Packed(items) => Some(items),
                    _ => None,
                },
                key,
                sums,
                body,
            });
        }
        let digest = xxh3_128(data.bytes());
        Ok(JobOut {
            data,
            digest,
            parts,
        })
    }

    /// Takes an encoder, to be returned later.
    fn encoder(&mut self, spec: EncoderSpec) -> Result<Box<dyn Encoder>> {
        if self.encoders.len() >= ENCODERS_MAX && !self.encoders.contains_key(&spec) {
            self.encoders.clear();
        }
        match self.encoders.remove(&spec) {
            Some(encoder) => Ok(encoder),
            None => new_encoder(&spec),
        }
    }

    fn encode(&mut self, part: &Part, input: &[u8], data: &mut BlockBuffer) -> Result<Body> {
        let policy = &part.policy;
        let whole = part.first && part.last;
        let start = data.len();
        let Some(spec) = policy.spec.filter(|_| !part.store) else {
            return Ok(self.flat(part, input, data));
        };
        if whole && policy.packs_whole(part.len as u64) {
            return Ok(Body::fragment(spec.method.algorithm() as u8, input));
        }
        if whole && policy.whole_max > 0 && part.len <= TINY {
            return Ok(self.flat(part, input, data));
        }
        let mut encoder = self.encoder(spec)?;
        let large_spec = part.large.as_ref().map(|w| w.spec).filter(|s| *s != spec);
        let mut large_encoder = large_spec.map(|s| self.encoder(s)).transpose()?;
        let shape = SegmentShape {
            block: self.block,
            grain: self.grain,
            cluster: spec.cluster,
            tail: policy.tail,
        };
        let none = PartPlan::default();
        let plan = part.plan.as_deref().unwrap_or(&none);
        let board = &*self.board;
        let mut encode = |input: &[u8], shape: &SegmentShape, data: &mut BlockBuffer| {
            let large = large_encoder.as_mut().zip(part.large.as_ref());
            let encoders = Encoders {
                usual: encoder.as_mut(),
                large: large.map(|(e, w)| (e.as_mut(), w.spec.cluster, &w.stretches[..])),
            };
            segment::encode(input, part.last, encoders, shape, (plan, board), data)
        };
        let mut front = None;
        if let Some(at) = part.kept_tail {
            let clusters = SegmentShape {
                tail: TailPolicy::Cluster,
                ..shape
            };
            let mut segment = encode(&input[..at], &clusters, data);
            if segment.can_continue(at, &shape) {
                let len = input.len() - at;
                segment
                    .pieces
                    .push(ShortPiece::own(len, 0, HeadKind::Head1));
                segment.tail = Tail::Kept(len);
                front = Some(segment);
            } else {
                data.truncate(start);
            }
        }
        let mut segment = front.unwrap_or_else(|| encode(input, &shape, data));
        self.encoders.insert(spec, encoder);
        self.encoders.extend(large_spec.zip(large_encoder));
        if part.end_len > 0 {
            let end = ShortPiece::own(part.end_len, 0, HeadKind::Head1);
            segment.pieces.push(end);
            segment.tail = Tail::Later(part.end_len);
        }
        // Clusters that other parts were promised must stay.
        let kept = plan.post.is_some();
        if whole && !kept && !self.pays(part, &segment.pieces, &segment.tail) {
            data.truncate(start);
            if shape.unaligned() && (self.block..STORED_MAX).contains(&part.len) {
                return Ok(Body::Encoded {
                    algorithm: spec.method.algorithm() as u8,
                    pieces: vec![segment::stored(input, self.grain, data)],
                    homes: Vec::new(),
                    tail: Tail::Cluster,
                    in_place: (0, 0),
                });
            }
            return Ok(self.flat(part, input, data));
        }
        let in_place = match spec.method.algorithm() {
            tuff_codec::Algorithm::Lz4 => {
                self.sample_in_place(&segment.pieces, &data.bytes()[start..])
            }
            _ => (0, 0),
        };
        let algorithm = spec.method.algorithm() as u8;
        Ok(Body::Encoded {
            algorithm,
            pieces: segment.pieces,
            homes: segment.homes,
            tail: segment.tail,
            in_place,
        })
    }

    /// Returns true if the encoded file is enough smaller than the stored one. Fragments are compressed elsewhere and
    /// not considered.
    fn pays(&self, part: &Part, pieces: &[ShortPiece], tail: &Tail) -> bool {
        let raw_tail = part.len % self.block;
        let flat = if raw_tail <= part.policy.inline_max {
            part.len
        } else {
            part.len.next_multiple_of(self.block)
        };
        let own = own_grains(pieces) * self.grain.size();
        let (skipped, inline) = match tail {
            Tail::Cluster => (0, 0),
            Tail::Inline(bytes) => (0, bytes.len()),
            Tail::Fragment(raw) => (raw.len(), 0),
            Tail::Later(len) | Tail::Kept(len) => (*len, 0),
        };
        if skipped == part.len {
            return true;
        }
        let index = INDEX_COST + 2 * (part.len / self.block);
        let encoded = own + inline + index;
        let limit =
            (flat - skipped) as u64 * u64::from(1000 - part.policy.min_saving.min(1000)) / 1000;
        (encoded as u64) < limit
    }

    fn flat(&self, part: &Part, input: &[u8], data: &mut BlockBuffer) -> Body {
        if let Some(chunk) = part.policy.chunk {
            return self.chunks(chunk, input, data);
        }
        let tail_len = input.len() % self.block;
        let inline = part.last && tail_len > 0 && tail_len <= part.policy.inline_max;
        let stored = if inline {
            input.len() - tail_len
        } else {
            input.len()
        };
        data.extend_padded(&input[..stored], self.block);
        let tail = inline.then(|| input[stored..].to_vec());
        Body::Flat {
            blocks: stored.div_ceil(self.block) as u32,
            tail,
        }
    }

    fn chunks(&self, chunk: usize, input: &[u8], data: &mut BlockBuffer) -> Body {
        let store = |bytes: &[u8]| {
            if bytes.iter().all(|b| *b == 0) {
                return None;
            }
            let start = data.len();
            data.extend_padded(bytes, self.block);
            let stored = &data.bytes()[start..];
            Some(ChunkPart {
                key: *blake3::hash(stored).as_bytes(),
                // Fits: a chunk is a few MiB.
                blocks: (stored.len() / self.block) as u32,
            })
        };
        Body::Chunks(input.chunks(chunk).map(store).collect())
    }

    fn sample_in_place(&mut self, pieces: &[ShortPiece], data: &[u8]) -> (u32, u32) {
        let (mut tried, mut fit, mut at) = (0, 0, 0usize);
        for piece in pieces.iter().filter(|p| p.own_grains() > 0) {
            let end = at + usize::from(piece.grains) * self.grain.size();
            if piece.kind == HeadKind::Head1 {
                self.lz4_clusters += 1;
                if self.lz4_clusters.is_multiple_of(IN_PLACE_SAMPLE) {
                    let cluster = &data[at..end];
                    let zeros = cluster.iter().take_while(|b| **b == 0).count();
                    tried += 1;
                    fit += u32::from(tuff_codec::lz4_decodes_in_place(
                        &cluster[zeros..],
                        piece.len as usize,
                    ));
                }
            }
            at = end;
        }
        (tried, fit)
    }
}
/// Files up to this number of bytes are not split into segments.
const SEGMENT_MIN: u64 = 8 << 20;

/// Returns the length in bytes of the segments of larger files, a multiple of every block size.
pub(crate) fn segment_size(policy: &Policy) -> u64 {
    segment_for(policy.spec.map_or(0, |s| s.cluster))
}

/// Returns the length in bytes of segments for a cluster size.
pub(crate) fn segment_for(cluster: usize) -> u64 {
    match cluster {
        0..=0x2_0000 => SEGMENT_MIN,
        0x2_0001..=0x8_0000 => 16 << 20,
        _ => 32 << 20,
    }
}

/// Returns the memory in bytes of a job with `bytes` of input: input, output and overhead.
pub(crate) fn job_cost(bytes: u64) -> u64 {
    2 * bytes + (64 << 10)
}
