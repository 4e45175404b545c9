//! Making a tree: level by level, each on all threads; then its parity.

use crate::header::{Broken, Header};
use crate::parity::{Covered, Encoder, Spread};
use crate::shape::Level;
use crate::work::{Buffers, each};
use crate::{Hasher, Root};
use std::io;
use tuff_store::{FileStore, Output, ReadAt};

/// What a thread reads at once, at least. Unit: bytes.
const UNIT: u64 = 512 << 10;

/// Codewords that a thread makes parity of at once.
const CODEWORDS: u64 = 64 << 10;

/// A tree that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The root hash.
    pub root: Root,
    /// Where the tree ends, with its parity. Unit: bytes.
    pub end: u64,
}

/// Where a tree ends whose header lies at `hash_offset`, with parity of so many roots if there is any. Unit: bytes.
///
/// # Errors
/// For a number of roots that there cannot be.
pub fn tree_end(header: &Header, roots: Option<u32>, hash_offset: u64) -> Result<u64, Broken> {
    let shape = header.shape(hash_offset);
    Ok(match roots {
        None => shape.end,
        Some(roots) => Spread::new(header, &shape, roots)?.end(),
    })
}

/// Writes header and tree of `data` to `output`, from `hash_offset` on, and parity behind it if `roots` says how much. Where
/// `data` ends early it counts as zeros. `step` is told of bytes that were read, and stops the work by an error.
///
/// # Errors
/// What reading, writing and `step` give; `InvalidData` with a [`Broken`] inside for a number of roots that there cannot be.
pub fn make(
    data: &dyn ReadAt,
    header: &Header,
    roots: Option<u32>,
    output: &Output,
    hash_offset: u64,
    threads: usize,
    step: &(dyn Fn(u64) -> io::Result<()> + Sync),
) -> io::Result<Made> {
    let shape = header.shape(hash_offset);
    let hasher = Hasher::new(&header.salt);
    // A hash block of its own, with zeros behind the header.
    let mut front = header.encode().to_vec();
    // Fits: less than a block and a header.
    front.resize((shape.body() - hash_offset) as usize, 0);
    output.write_at(&front, hash_offset)?;
    let tree = FileStore::new(output.file().try_clone()?)?;
    let mut below = Below {
        store: data,
        at: 0,
        end: data.size(),
        size: header.data_block.into(),
        blocks: header.data_blocks,
    };
    for level in &shape.levels {
        let above = Above {
            level: *level,
            size: header.hash_block.into(),
            per: shape.per,
            output,
        };
        let group = (UNIT / (shape.per * below.size)).max(1);
        each(level.blocks.div_ceil(group), threads, &|n, buffers| {
            let blocks = n * group..level.blocks.min((n + 1) * group);
            step(above.make(blocks, &below, &hasher, buffers)?)
        })?;
        below = Below {
            store: &tree,
            at: level.at,
            // It was written since the file was opened.
            end: u64::MAX,
            size: header.hash_block.into(),
            blocks: level.blocks,
        };
    }
    // One block is left.
    let mut top = Vec::new();
    below.read(0..1, &mut top)?;
    let mut end = shape.end;
    if let Some(roots) = roots {
        let spread = Spread::new(header, &shape, roots);
        let spread = spread.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let covered = Covered {
            data,
            tree: &tree,
            spread: &spread,
        };
        let encoder = Encoder::new(spread.roots);
        each(spread.row().div_ceil(CODEWORDS), threads, &|n, buffers| {
            let from = n * CODEWORDS;
            let count = CODEWORDS.min(spread.row() - from);
            // Fits: at most CODEWORDS.
            encoder.encode(&covered, from, count as usize, &mut buffers.output)?;
            output.write_at(&buffers.output, spread.at + from * spread.roots as u64)?;
            step(count * spread.rows() as u64)
        })?;
        end = spread.end();
    }
    Ok(Made {
        root: hasher.digest(&top),
        end,
    })
}

/// A level that is being made.
struct Above<'a> {
    level: Level,
    /// Of a hash block. Unit: bytes.
    size: u64,
    /// Digests in one.
    per: u64,
    output: &'a Output,
}

impl Above<'_> {
    /// Makes some of its blocks. Returns how many bytes they are digests of.
    fn make(
        &self,
        blocks: std::ops::Range<u64>,
        below: &Below<'_>,
        hasher: &Hasher,
        buffers: &mut Buffers,
    ) -> io::Result<u64> {
        let Buffers { input, output } = buffers;
        let from = blocks.start * self.per;
        let to = below.blocks.min(blocks.end * self.per);
        below.read(from..to, input)?;
        output.clear();
        // Fits: a block.
        for block in input.chunks_exact(below.size as usize) {
            output.extend_from_slice(&hasher.digest(block));
        }
        // Fits: as many hash blocks as a thread makes at once.
        output.resize(((blocks.end - blocks.start) * self.size) as usize, 0);
        let at = self.level.at + blocks.start * self.size;
        self.output.write_at(output, at)?;
        Ok((to - from) * below.size)
    }
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
