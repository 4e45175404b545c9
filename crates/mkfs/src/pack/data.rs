//! Where a file's data is, in few bytes: there may be millions of files.

use super::address::{DataBlock, FragmentAddr, GrainAddr};
use super::piece::ShortPiece;
use super::sparse::ChunkRun;
use crate::base::BaseChunks;
use crate::spill::SpillRef;
use crate::tree::InodeId;
use std::sync::Arc;
use tuff_format::cluster::HeadKind;
use tuff_format::{BlockBits, chunk};

/// Where a file's data is.
#[derive(Debug, Default)]
pub(crate) enum FileData {
    /// No data.
    #[default]
    None,
    /// Consecutive blocks, perhaps with the end behind the inode.
    Flat {
        /// First block.
        block: DataBlock,
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
        /// Grains.
        grains: u16,
        /// The first of them.
        place: GrainAddr,
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
        offset: FragmentAddr,
    },
    /// Chunks with holes between them.
    Chunked(Box<Chunked>),
    /// Consecutive blocks, as one chunk.
    OneChunk {
        /// They are those of the extra device.
        external: bool,
        /// The first of them.
        block: DataBlock,
    },
    /// Chunks wherever they lie.
    Table(Box<Table>),
    /// The same data as another file.
    Same(InodeId),
}

// One of these per inode, and there may be millions of files of one piece.
const _: () = assert!(size_of::<FileData>() == 16);

impl FileData {
    /// A compressed file, in as few bytes as will do.
    pub(super) fn encoded(runs: Vec<Run>, tail: FileTail, algorithm: u8) -> Self {
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
                        algorithm,
                        kind,
                        grains,
                        place: *place,
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
                grains,
                place,
                len,
            } => Some(Encoded {
                runs: &[],
                one: Some((place, ShortPiece::own(len as usize, grains.into(), kind))),
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
                one: Some((GrainAddr::NONE, ShortPiece::own(len as usize, 0, kind))),
                tail: FileTail::Inline(tail),
                algorithm,
            }),
            _ => None,
        }
    }

    /// The chunks of a file of `size` bytes, if it has a table of them.
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

    /// A compressed file to which more is to be added.
    pub(super) fn more(&mut self) -> Option<&mut Compressed> {
        if let Some(Encoded {
            one: Some((place, piece)),
            tail,
            algorithm,
            ..
        }) = self.compressed()
        {
            *self = Self::Compressed(Box::new(Compressed {
                runs: vec![Run {
                    place,
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

    /// Its position in the packed inode, if it has one.
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

    /// What it takes beside its place among the others. Unit: bytes.
    pub(super) fn footprint(&self) -> u64 {
        // What an allocation takes beside what is asked for, and for rounding.
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

/// A compressed file's data, as layout and output see it.
pub(crate) struct Encoded<'a> {
    runs: &'a [Run],
    one: Option<(GrainAddr, ShortPiece)>,
    /// The end of the file.
    pub(crate) tail: FileTail,
    /// Number of the algorithm.
    pub(crate) algorithm: u8,
}

impl Encoded<'_> {
    /// Pieces in order, with the first grain of each.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (GrainAddr, ShortPiece)> {
        self.runs.iter().flat_map(Run::placed).chain(self.one)
    }
}

/// Data of a compressed file.
#[derive(Debug)]
pub(crate) struct Compressed {
    /// Runs of pieces whose clusters are consecutive.
    pub(crate) runs: Vec<Run>,
    /// The end of the file.
    pub(crate) tail: FileTail,
    /// Number of the algorithm.
    pub(crate) algorithm: u8,
}

/// Pieces whose clusters lie back to back.
#[derive(Debug)]
pub(crate) struct Run {
    /// First grain of the first piece.
    pub(crate) place: GrainAddr,
    /// In order.
    pub(crate) pieces: Vec<ShortPiece>,
}

impl Run {
    /// The pieces with the first grain of each.
    pub(super) fn placed(&self) -> impl Iterator<Item = (GrainAddr, ShortPiece)> {
        let mut next = self.place;
        self.pieces.iter().map(move |piece| {
            let place = next;
            next = next.plus(piece.grains.into());
            (place, *piece)
        })
    }

    /// Pieces with these first grains as runs.
    pub(super) fn split(pieces: Vec<ShortPiece>, places: &[GrainAddr]) -> Vec<Self> {
        if !pieces.iter().any(|p| p.shared) {
            let place = places.first().copied().unwrap_or(GrainAddr::NONE);
            return vec![Self { place, pieces }];
        }
        Self::of(pieces, places)
    }

    /// Pieces with these first grains, wherever they lie, as runs.
    pub(super) fn of(pieces: Vec<ShortPiece>, places: &[GrainAddr]) -> Vec<Self> {
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

/// Continues the data of a packed inode.
pub(super) fn append_runs(data: &mut FileData, runs: Vec<Run>, algorithm: u8) {
    match data.more() {
        Some(data) => data.runs.extend(runs),
        None => *data = FileData::encoded(runs, FileTail::Cluster, algorithm),
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
    Fragment(FragmentAddr),
}

/// A table of chunks, as layout and output see it.
pub(crate) struct Chunks<'a> {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// Their blocks are those of the extra device.
    pub(crate) external: bool,
    runs: &'a [ChunkRun],
    /// First block.
    block: DataBlock,
    one: Option<ChunkRun>,
    placed: &'a [(ChunkRun, DataBlock)],
}

impl Chunks<'_> {
    /// How the table is written.
    pub(crate) fn format(&self) -> chunk::Format {
        chunk::Format {
            bits: self.bits,
            indexes: self.external,
            bit48: false,
        }
    }

    /// Runs of chunks that hold data, with the first block of each.
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

/// Chunks of a file wherever they lie, each with other blocks than the one before it.
#[derive(Debug)]
pub(crate) struct Table {
    /// log2 of the chunk size over the block size.
    pub(super) bits: u8,
    /// Its blocks are those of the extra device.
    pub(super) external: bool,
    /// Chunks that were read, and log2 of their size over the block size, if not all were.
    pub(super) read: Option<(Arc<[ChunkRun]>, u8)>,
    /// Chunks of the file, once it is known.
    pub(super) count: u64,
    /// Which of those that were read is placed next: its run, and its number there.
    pub(super) next: (usize, u64),
    /// Runs of chunks with data, each with its first block, ascending.
    pub(super) runs: Vec<(ChunkRun, DataBlock)>,
}

impl Table {
    /// Chunks of a base.
    pub(super) fn of_base(chunks: BaseChunks) -> Self {
        let BaseChunks { count, runs } = chunks;
        Self {
            bits: 0,
            external: false,
            read: None,
            count,
            next: (0, 0),
            runs,
        }
    }

    /// Notes where the next chunk is that was read. `None`: it is a hole.
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

    /// The same in as few entries as say it: neighbours that lie behind each other become one chunk.
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

    /// Chunks that were read, and log2 of their size over the block size, if not all were.
    pub(crate) fn read(&self) -> Option<(&[ChunkRun], u8)> {
        let (runs, bits) = self.read.as_ref()?;
        Some((runs, *bits))
    }
}

/// Data of a sparse file.
#[derive(Debug)]
pub(crate) struct Chunked {
    /// log2 of the chunk size over the block size.
    pub(crate) bits: u8,
    /// Its blocks are those of the extra device.
    pub(crate) external: bool,
    /// Chunks with data, in order; their blocks are consecutive.
    pub(crate) runs: Arc<[ChunkRun]>,
    /// First block.
    pub(crate) block: DataBlock,
}
