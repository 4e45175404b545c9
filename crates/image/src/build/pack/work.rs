//! What a worker does: read some parts of files, encode them, lay the blocks back to back.

use super::input::Input;
use super::segment::{self, Shape, ShortPiece, Tail, TailPolicy};
use crate::build::tree::InodeId;
use crate::{Error, Result};
use hashbrown::HashMap;
use std::sync::Arc;
use tuff_codec::{EncodeFit, EncoderSpec};
use tuff_format::cluster::HeadKind;
use xxhash_rust::xxh3::xxh3_128;

/// How the data of a file is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How to compress; `None` stores.
    pub spec: Option<EncoderSpec>,
    /// What becomes of the end of a compressed file.
    pub tail: TailPolicy,
    /// The last partial block of a stored file goes behind the inode, if it has at most so many bytes.
    pub inline_max: usize,
    /// A file that saves less than this is stored. Unit: thousandths of its size.
    pub min_saving: u32,
}

/// One file, or one segment of a large one.
pub struct Part {
    /// Which.
    pub file: InodeId,
    /// Where its bytes are.
    pub input: Input,
    /// Position in the content. Unit: bytes.
    pub offset: u64,
    /// Unit: bytes, at least 1.
    pub len: usize,
    /// The content begins with this part.
    pub first: bool,
    /// The content ends with this part.
    pub last: bool,
    /// Stored, whatever the policy says: decided for the whole file.
    pub store: bool,
    /// How.
    pub policy: Arc<Policy>,
}

/// Work for one worker.
pub struct Job {
    /// Names the result.
    pub id: u64,
    /// Memory that it takes while it runs. Unit: bytes.
    pub cost: u64,
    /// In the order of their blocks.
    pub parts: Vec<Part>,
}

/// What came of a job.
#[derive(Debug)]
pub struct JobOut {
    /// Whole blocks.
    pub data: Vec<u8>,
    /// Digest of `data`.
    pub digest: u128,
    /// In the order of their blocks.
    pub parts: Vec<PartOut>,
}

/// What came of a part.
#[derive(Debug)]
pub struct PartOut {
    /// Which file.
    pub file: InodeId,
    /// True for the first part of its file.
    pub first: bool,
    /// Bytes of content.
    pub len: usize,
    /// Its data.
    pub body: Body,
}

/// The data of a part.
#[derive(Debug)]
pub enum Body {
    /// As it is.
    Flat {
        /// Blocks in the job's data.
        blocks: u32,
        /// The last partial block, for behind the inode.
        tail: Option<Vec<u8>>,
    },
    /// Encoded.
    Encoded {
        /// Number of the algorithm.
        algorithm: u8,
        /// Extents.
        pieces: Vec<ShortPiece>,
        /// The end of the file.
        tail: Tail,
        /// LZ4 clusters that were tried for decoding in place, and how many can be.
        in_place: (u32, u32),
    },
}

/// A worker: its buffer and its encoders.
pub struct Worker {
    block: usize,
    input: Vec<u8>,
    encoders: HashMap<EncoderSpec, Box<dyn EncodeFit>>,
}

/// Of so many LZ4 clusters one is tried for decoding in place: a sample, since it costs a pass over the cluster.
const IN_PLACE_SAMPLE: usize = 16;
/// Encoders that a worker keeps.
const ENCODERS_MAX: usize = 8;
/// Rough cost of a map header and a short index. Unit: bytes.
const INDEX_COST: usize = 24;

impl Worker {
    /// A worker for images of this block size.
    pub fn new(block: usize) -> Self {
        Self { block, input: Vec::new(), encoders: HashMap::new() }
    }

    /// Does a job. `data` is an empty buffer to fill.
    pub fn run(&mut self, job: Job, mut data: Vec<u8>) -> Result<JobOut> {
        let mut parts = Vec::with_capacity(job.parts.len());
        for part in job.parts {
            let reader = part.input.open()?;
            self.input.clear();
            self.input.resize(part.len, 0);
            reader.read_exact(&mut self.input, part.offset)?;
            let body = self.encode(&part, &mut data)?;
            parts.push(PartOut { file: part.file, first: part.first, len: part.len, body });
        }
        let digest = xxh3_128(&data);
        Ok(JobOut { data, digest, parts })
    }

    fn encode(&mut self, part: &Part, data: &mut Vec<u8>) -> Result<Body> {
        let policy = &part.policy;
        let whole = part.first && part.last;
        let start = data.len();
        let Some(spec) = policy.spec.filter(|_| !part.store) else {
            return Ok(self.flat(part, data));
        };
        if let TailPolicy::Fragment(_) = policy.tail
            && whole
            && part.len <= super::TINY
        {
            return Ok(self.flat(part, data));
        }
        if self.encoders.len() >= ENCODERS_MAX && !self.encoders.contains_key(&spec) {
            self.encoders.clear();
        }
        let encoder = match self.encoders.entry(spec) {
            hashbrown::hash_map::Entry::Occupied(e) => e.into_mut(),
            hashbrown::hash_map::Entry::Vacant(e) => e.insert(spec.build().map_err(Error::usage)?),
        };
        let shape = Shape { block: self.block, cluster: spec.cluster, tail: policy.tail };
        let segment = segment::encode(&self.input, part.last, encoder.as_mut(), &shape, data);
        if whole && !self.pays(part, &segment.pieces, &segment.tail) {
            data.truncate(start);
            return Ok(self.flat(part, data));
        }
        let in_place = match spec.method.algorithm() {
            tuff_codec::Algorithm::Lz4 => sample_in_place(&segment.pieces, &data[start..], self.block),
            _ => (0, 0),
        };
        let algorithm = spec.method.algorithm() as u8;
        Ok(Body::Encoded { algorithm, pieces: segment.pieces, tail: segment.tail, in_place })
    }

    /// True if the encoded file is enough smaller than the stored one. A fragment is never looked at: it is compressed
    /// elsewhere.
    fn pays(&self, part: &Part, pieces: &[ShortPiece], tail: &Tail) -> bool {
        let raw_tail = part.len % self.block;
        let flat = if raw_tail <= part.policy.inline_max { part.len } else { part.len.next_multiple_of(self.block) };
        let blocks: usize = pieces.iter().map(|p| usize::from(p.blocks)).sum();
        let (skipped, inline) = match tail {
            Tail::Cluster => (0, 0),
            Tail::Inline(bytes) => (0, bytes.len()),
            Tail::Fragment(raw) => (raw.len(), 0),
        };
        if skipped == part.len {
            return true;
        }
        let index = INDEX_COST + 2 * (part.len / self.block);
        let encoded = blocks * self.block + inline + index;
        let limit = (flat - skipped) as u64 * u64::from(1000 - part.policy.min_saving.min(1000)) / 1000;
        (encoded as u64) < limit
    }

    fn flat(&self, part: &Part, data: &mut Vec<u8>) -> Body {
        let tail_len = self.input.len() % self.block;
        let inline = part.last && tail_len > 0 && tail_len <= part.policy.inline_max;
        let stored = if inline { self.input.len() - tail_len } else { self.input.len() };
        data.extend_from_slice(&self.input[..stored]);
        data.resize(data.len().next_multiple_of(self.block), 0);
        let tail = inline.then(|| self.input[stored..].to_vec());
        Body::Flat { blocks: stored.div_ceil(self.block) as u32, tail }
    }
}

fn sample_in_place(pieces: &[ShortPiece], data: &[u8], block: usize) -> (u32, u32) {
    let (mut tried, mut fit, mut at) = (0, 0, 0usize);
    for (i, piece) in pieces.iter().enumerate() {
        let end = at + usize::from(piece.blocks) * block;
        if piece.kind == HeadKind::Head1 && piece.blocks > 0 && i % IN_PLACE_SAMPLE == 0 {
            let cluster = &data[at..end];
            let zeros = cluster.iter().take_while(|b| **b == 0).count();
            tried += 1;
            fit += u32::from(tuff_codec::lz4_in_place(&cluster[zeros..], piece.len as usize));
        }
        at = end;
    }
    (tried, fit)
}
