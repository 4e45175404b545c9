//! Places of files' data, compact because there may be millions of files.

use super::address::{DataBlock, FragmentAddr, GrainAddr};
use super::piece::ShortPiece;
use super::sparse::ChunkRun;
use crate::base::BaseChunks;
use crate::pack::spill::SpillRef;
use crate::tree::InodeId;
use std::sync::Arc;
use tuff_format::BlockBits;
use tuff_format::cluster::HeadKind;

/// Place of a file's data.
#[derive(Debug, Default)]
pub(crate) enum FileData {
    /// The file has no data.
    #[default]
    None,
    /// Consecutive blocks, and an inline tail if there is one.
    Flat {
        /// First block of the data.
        block: DataBlock,
        /// Inline tail, if the file has one.
        tail: Option<SpillRef>,
    },
    /// Compressed clusters in general.
    Compressed(Box<Compressed>),
    /// Compressed file of one piece in a cluster of its own.
    OnePiece {
        /// Numbers of the algorithms, as in [`Encoded`].
        algorithms: u8,
        /// Whether the cluster is stored or compressed.
        kind: HeadKind,
        /// Length of the cluster in grains.
        grains: u16,
        /// First grain of the cluster.
        place: GrainAddr,
        /// Length of the file in bytes.
        len: u32,
    },
    /// Compressed file of one inline piece.
    OneInline {
        /// Numbers of the algorithms, as in [`Encoded`].
        algorithms: u8,
        /// Whether the cluster is stored or compressed.
        kind: HeadKind,
        /// Length of the file in bytes.
        len: u32,
        /// Bytes of the encoded piece.
        tail: SpillRef,
    },
    /// The whole file is in the packed inode.
    WholeFragment {
        /// Position in the packed inode.
        offset: FragmentAddr,
    },
    /// Chunks with holes between them.
    Chunked(Box<Chunked>),
    /// Consecutive blocks in a single chunk.
    OneChunk {
        /// True if the blocks are on the extra device.
        external: bool,
        /// First block of the data.
        block: DataBlock,
    },
    /// Chunks in any order.
    Table(Box<Table>),
    /// The data of another file.
    Same(InodeId),
}

// There is one per inode, and millions of files may have one piece.
const _: () = assert!(size_of::<FileData>() == 16);

impl FileData {
    /// Returns the smallest form of a compressed file.
    pub(super) fn encoded(runs: Vec<Run>, tail: FileTail, algorithms: u8) -> Self {
        if let [Run { place, pieces }] = &runs[..]
            && let [piece] = &pieces[..]
            && *piece == ShortPiece::own(piece.len as usize, piece.grains.into(), piece.kind)
        {
            let ShortPiece {
                len, grains, kind, ..
            } = *piece;
            match tail {
                FileTail::Cluster => {
                    return Self::OnePiece {
                        algorithms,
                        kind,
                        grains,
                        place: *place,
                        len,
                    };
                }
                FileTail::Inline(tail) => {
                    return Self::OneInline {
                        algorithms,
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
            algorithms,
        }))
    }

    /// Returns the pieces of a compressed file, in any of its forms.
    pub(crate) fn compressed(&self) -> Option<Encoded<'_>> {
        match *self {
            Self::Compressed(ref data) => Some(Encoded {
                runs: &data.runs,
                one: None,
                tail: data.tail,
                algorithms: data.algorithms,
            }),
            Self::OnePiece {
                algorithms,
                kind,
                grains,
                place,
                len,
            } => Some(Encoded {
                runs: &[],
                one: Some((place, ShortPiece::own(len as usize, grains.into(), kind))),
                tail: FileTail::Cluster,
                algorithms,
            }),
            Self::OneInline {
                algorithms,
                kind,
                len,
                tail,
            } => Some(Encoded {
                runs: &[],
                one: Some((GrainAddr::NONE, ShortPiece::own(len as usize, 0, kind))),
                tail: FileTail::Inline(tail),
                algorithms,
            }),
            _ => None,
        }
    }

    /// Returns the chunks of a file of `size` bytes, if it has a chunk table.
    pub(crate) fn chunks(&self, size: u64, bits: BlockBits) -> Option<Chunks<'_>> {
        match *self {
            Self::Chunked(ref data) => Some(Chunks {
                bits: data.bits,
                external: data.external,
                runs: &data.runs,
                block: data.block,
                one: None,
                placed: &[],
            }),
            Self::OneChunk { external, block } => Some(Chunks {
                // Fits: a device has less than 2^31 blocks.
                bits: bits.count(size).next_power_of_two().trailing_zeros() as u8,
                external,
                runs: &[],
                block,
                one: Some(ChunkRun { first: 0, count: 1 }),
                placed: &[],
            }),
            Self::Table(ref table) => Some(Chunks {
                bits: table.bits,
                external: table.external,
                runs: &[],
                block: DataBlock::NONE,
                one: None,
                placed: &table.runs,
            }),
            _ => None,
        }
    }

    /// Adds chunks of a base to a file of `size` bytes, whose own chunks are placed.
    pub(super) fn with_base_chunks(
        self,
        size: u64,
        block: BlockBits,
        shared: Vec<(ChunkRun, DataBlock)>,
    ) -> Self {
        let Some(chunks) = self.chunks(size, block) else {
            return self;
        };
        let bits = chunks.bits;
        let read = match &self {
            Self::Chunked(data) => Some((Arc::clone(&data.runs), bits)),
            Self::Table(table) => table.read.clone(),
            _ => None,
        };
        let mut runs: Vec<(ChunkRun, DataBlock)> = chunks.runs().chain(shared).collect();
        runs.sort_unstable_by_key(|(run, _)| run.first);
        Self::Table(Box::new(Table {
            bits,
            external: false,
            read,
            count: block.count(size).div_ceil(1 << bits),
            next: (0, 0),
            runs,
        }))
    }

    /// Returns a compressed file in the form that can grow.
    pub(super) fn more(&mut self) -> Option<&mut Compressed> {
        if let Some(Encoded {
            one: Some((place, piece)),
            tail,
            algorithms,
            ..
        }) = self.compressed()
        {
            *self = Self::Compressed(Box::new(Compressed {
                runs: vec![Run {
                    place,
                    pieces: vec![piece],
                }],
                tail,
                algorithms,
            }));
        }
        match self {
            Self::Compressed(data) => Some(data),
            _ => None,
        }
    }

    /// Returns the position in the packed inode, if the file has one.
    pub(super) fn fragment(&mut self) -> Option<&mut FragmentAddr> {
        match self {
            Self::WholeFragment { offset } => Some(offset),
            Self::Compressed(data) => match &mut data.tail {
                FileTail::Fragment(offset) => Some(offset),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the heap memory of the entry in bytes.
    pub(super) fn footprint(&self) -> u64 {
        // Overhead of an allocation, with rounding.
        const EACH: usize = 24;
        match self {
            Self::Compressed(data) => {
                let of = |r: &Run| size_of::<Run>() + size_of_val(&r.pieces[..]) + EACH;
                let runs: usize = data.runs.iter().map(of).sum();
                (size_of::<Compressed>() + runs + 2 * EACH) as u64
            }
            Self::Chunked(data) => (size_of::<Chunked>() + size_of_val(&*data.runs) + EACH) as u64,
            Self::Table(table) => {
                (size_of::<Table>() + size_of_val(&table.runs[..]) + 2 * EACH) as u64
            }
            _ => 0,
        }
    }
}

/// Compressed file, as layout and emission see it.
pub(crate) struct Encoded<'a> {
    runs: &'a [Run],
    one: Option<(GrainAddr, ShortPiece)>,
    /// Tail of the file.
    pub(crate) tail: FileTail,
    /// Numbers of the algorithms, as in a map header: bits 0–3 for [`HeadKind::Head1`], bits 4–7 for [`HeadKind::Head2`].
    pub(crate) algorithms: u8,
}

impl Encoded<'_> {
    /// Returns the number of the algorithm of clusters. That of stored clusters is the first.
    pub(crate) fn algorithm_of(&self, kind: HeadKind) -> u8 {
        match kind {
            HeadKind::Head2 => self.algorithms >> 4,
            HeadKind::Plain | HeadKind::Head1 => self.algorithms & 15,
        }
    }

    /// Iterates over the pieces in order, with the first grain of each.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (GrainAddr, ShortPiece)> {
        self.runs.iter().flat_map(Run::placed).chain(self.one)
    }
}

/// Data of a compressed file.
#[derive(Debug)]
pub(crate) struct Compressed {
    /// Runs of pieces whose clusters are consecutive.
    pub(crate) runs: Vec<Run>,
    /// Tail of the file.
    pub(crate) tail: FileTail,
    /// Numbers of the algorithms, as in [`Encoded`].
    pub(crate) algorithms: u8,
}

/// Pieces whose clusters are back to back.
#[derive(Debug)]
pub(crate) struct Run {
    /// First grain of the first piece.
    pub(crate) place: GrainAddr,
    /// Pieces in order of the file.
    pub(crate) pieces: Vec<ShortPiece>,
}

impl Run {
    /// Iterates over the pieces, with the first grain of each.
    pub(super) fn placed(&self) -> impl Iterator<Item = (GrainAddr, ShortPiece)> {
        let mut next = self.place;
        self.pieces.iter().map(move |piece| {
            let place = next;
            next = next.plus(piece.grains.into());
            (place, *piece)
        })
    }

    /// Groups pieces with these first grains into runs.
    pub(super) fn split(pieces: Vec<ShortPiece>, places: &[GrainAddr]) -> Vec<Self> {
        if !pieces.iter().any(|p| p.shared) {
            let place = places.first().copied().unwrap_or(GrainAddr::NONE);
            return vec![Self { place, pieces }];
        }
        Self::group(pieces, places)
    }

    /// Groups pieces with these first grains, in any order, into runs.
    pub(super) fn group(pieces: Vec<ShortPiece>, places: &[GrainAddr]) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        let mut next = None;
        for (piece, place) in pieces.into_iter().zip(places) {
            match runs.last_mut() {
                Some(run) if next == Some(*place) => run.pieces.push(piece),
                _ => runs.push(Self {
                    place: *place,
                    pieces: vec![piece],
                }),
            }
            next = Some(place.plus(piece.grains.into()));
        }
        runs
    }
}

/// Continues the data of a packed inode, which has the same first algorithm and no second one of its own.
pub(super) fn append_runs(data: &mut FileData, runs: Vec<Run>, algorithms: u8) {
    match data.more() {
        Some(data) => {
            data.runs.extend(runs);
            data.algorithms |= algorithms;
        }
        None => *data = FileData::encoded(runs, FileTail::Cluster, algorithms),
    }
}

/// Place of the last piece of a compressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileTail {
    /// The piece is in a cluster.
    Cluster,
    /// The piece follows the index.
    Inline(SpillRef),
    /// The piece is in the packed inode.
    Fragment(FragmentAddr),
}

/// Chunk table, as layout and emission see it.
pub(crate) struct Chunks<'a> {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// True if the blocks are on the extra device.
    pub(crate) external: bool,
    runs: &'a [ChunkRun],
    /// First block of the data.
    block: DataBlock,
    one: Option<ChunkRun>,
    placed: &'a [(ChunkRun, DataBlock)],
}

impl Chunks<'_> {
    /// Iterates over runs of chunks with data, with the first block of each.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (ChunkRun, DataBlock)> {
        let mut next = self.block;
        let bits = self.bits;
        let consecutive = self.runs.iter().copied().chain(self.one).map(move |run| {
            let block = next;
            // Fits: a device has less than 2^31 blocks.
            next = next.plus((run.count << bits) as u32);
            (run, block)
        });
        consecutive.chain(self.placed.iter().copied())
    }
}

/// Chunks in any order; no two consecutive chunks have consecutive blocks.
#[derive(Debug)]
pub(crate) struct Table {
    /// log2 of the chunk size over the block size.
    pub(super) bits: u8,
    /// True if the blocks are on the extra device.
    pub(super) external: bool,
    /// Chunks that were read, and log2 of their size over the block size. `None` if all were read.
    pub(super) read: Option<(Arc<[ChunkRun]>, u8)>,
    /// Number of chunks in the file, once it is known.
    pub(super) count: u64,
    /// Next chunk to be placed of those that were read: run and number in the run.
    pub(super) next: (usize, u64),
    /// Runs of chunks with data, in ascending order, each with its first block.
    pub(super) runs: Vec<(ChunkRun, DataBlock)>,
}

impl Table {
    /// Returns a table of chunks of a base.
    pub(super) fn of_base(chunks: BaseChunks) -> Self {
        let BaseChunks { count, runs, .. } = chunks;
        Self {
            bits: 0,
            external: false,
            read: None,
            count,
            next: (0, 0),
            runs,
        }
    }

    /// Sets the block of the last chunk of a table of chunks of a base.
    pub(super) fn append(&mut self, block: DataBlock) {
        let last = ChunkRun {
            first: self.count - 1,
            count: 1,
        };
        self.runs.push((last, block));
    }

    /// Records the block of the next chunk that was read. `None` for a hole.
    pub(super) fn push(&mut self, block: Option<DataBlock>) {
        let (run, within) = self.next;
        self.next.1 += 1;
        let number = match &self.read {
            None => within,
            Some((runs, _)) => {
                let ChunkRun { first, count } = runs[run];
                if self.next.1 == count {
                    self.next = (run + 1, 0);
                }
                first + within
            }
        };
        self.count = self.count.max(number + 1);
        let Some(block) = block else {
            return;
        };
        match self.runs.last_mut() {
            Some((run, first))
                if run.first + run.count == number
                    && first.plus((run.count << self.bits) as u32) == block =>
            {
                run.count += 1;
            }
            _ => self.runs.push((
                ChunkRun {
                    first: number,
                    count: 1,
                },
                block,
            )),
        }
    }

    /// Returns the table with the fewest entries: consecutive neighbours become one chunk.
    pub(super) fn shortest(mut self) -> FileData {
        if let [(ChunkRun { first: 0, count }, block)] = self.runs[..]
            && count == self.count
            && self.read.is_none()
        {
            let external = self.external;
            return FileData::OneChunk { external, block };
        }
        let count = &mut self.count;
        let even = |(run, _): &(ChunkRun, DataBlock), count: u64| {
            run.first % 2 == 0 && (run.count % 2 == 0 || run.first + run.count == count)
        };
        while *count > 1 && self.bits < 31 && self.runs.iter().all(|r| even(r, *count)) {
            for (run, _) in &mut self.runs {
                (run.first, run.count) = (run.first / 2, run.count.div_ceil(2));
            }
            *count = count.div_ceil(2);
            self.bits += 1;
        }
        FileData::Table(Box::new(self))
    }

    /// Returns the chunks that were read, and log2 of their size over the block size. `None` if all were read.
    pub(crate) fn read(&self) -> Option<(&[ChunkRun], u8)> {
        let (runs, bits) = self.read.as_ref()?;
        Some((runs, *bits))
    }
}

/// Chunks of a sparse file.
#[derive(Debug)]
pub(crate) struct Chunked {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// True if the blocks are on the extra device.
    pub(crate) external: bool,
    /// Chunks with data in order. Their blocks are consecutive.
    pub(crate) runs: Arc<[ChunkRun]>,
    /// First block of the data.
    pub(crate) block: DataBlock,
}
