//! Builds a tree level by level, each on all threads, then its parity.

use crate::header::{Header, HeaderError};
use crate::layout::{Level, TreeLayout};
use crate::parity::{Covered, Encoder, ParityLayout};
use crate::threads::{Buffers, each};
use crate::{Hasher, Root};
use std::io;
use tuff_store::{FileStore, Output, ReadAt};

/// Least amount of data that a thread reads at once. Unit: bytes.
const UNIT: u64 = 512 << 10;

/// Number of codewords whose parity a thread computes at once.
const CODEWORDS: u64 = 64 << 10;

/// Root hash and end of a tree that [`make`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltTree {
    /// Root hash of the tree.
    pub root: Root,
    /// End of the tree and its parity. Unit: bytes.
    pub end: u64,
}

/// Returns the end of a tree whose header is at `hash_offset`, including parity with `roots` roots. Unit: bytes.
///
/// # Errors
/// Fails if dm-verity does not support this number of roots.
pub fn tree_end(header: &Header, roots: Option<u32>, hash_offset: u64) -> Result<u64, HeaderError> {
    let shape = TreeLayout::new(header, hash_offset);
    Ok(match roots {
        None => shape.end,
        Some(roots) => ParityLayout::new(header, &shape, roots)?.end(),
    })
}

/// Writes the header and tree of `data` to `output` from `hash_offset` on, then parity if `roots` is given. Data
/// past the end of `data` counts as zeros. `step` receives the number of bytes read and stops the build by an
/// error.
///
/// # Errors
/// Errors of reading, writing and `step`; `InvalidData` with a [`HeaderError`] for an unsupported number of roots.
pub fn make(
    data: &dyn ReadAt,
    header: &Header,
    roots: Option<u32>,
    output: &Output,
    hash_offset: u64,
    threads: usize,
    step: &(dyn Fn(u64) -> io::Result<()> + Sync),
) -> io::Result<BuiltTree> {
    let shape = TreeLayout::new(header, hash_offset);
    let hasher = Hasher::new(&header.salt);
    // The header has a hash block to itself, padded with zeros.
    let mut front = header.encode().to_vec();
    // Fits: at most a block and a header.
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
            // The file has grown since it was opened.
            end: u64::MAX,
            size: header.hash_block.into(),
            blocks: level.blocks,
        };
    }
    // Only the top block is left.
    let mut top = Vec::new();
    below.read(0..1, &mut top)?;
    let mut end = shape.end;
    if let Some(roots) = roots {
        let spread = ParityLayout::new(header, &shape, roots);
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
    Ok(BuiltTree {
        root: hasher.digest(&top),
        end,
    })
}

/// Level that is being built.
struct Above<'a> {
    level: Level,
    /// Size of a hash block. Unit: bytes.
    size: u64,
    /// Number of digests in a hash block.
    per: u64,
    output: &'a Output,
}

impl Above<'_> {
    /// Builds some blocks of the level. Returns the number of bytes that they cover.
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
        // Fits: one block.
        for block in input.chunks_exact(below.size as usize) {
            output.extend_from_slice(&hasher.digest(block));
        }
        // Fits: the hash blocks of one work item.
        output.resize(((blocks.end - blocks.start) * self.size) as usize, 0);
        let at = self.level.at + blocks.start * self.size;
        self.output.write_at(output, at)?;
        Ok((to - from) * below.size)
    }
}

/// Blocks that a level covers.
struct Below<'a> {
    store: &'a dyn ReadAt,
    at: u64,
    /// End of the store. Bytes past it count as zeros. Unit: bytes.
    end: u64,
    /// Size of a block. Unit: bytes.
    size: u64,
    blocks: u64,
}

impl Below<'_> {
    /// Reads a range of blocks.
    fn read(&self, blocks: std::ops::Range<u64>, buf: &mut Vec<u8>) -> io::Result<()> {
        // Fits: a group of hash blocks, at most 16 MiB.
        let len = ((blocks.end - blocks.start) * self.size) as usize;
        buf.clear();
        buf.resize(len, 0);
        let from = self.at + blocks.start * self.size;
        let available = self.end.saturating_sub(from).min(len as u64) as usize;
        self.store.read_exact_at(&mut buf[..available], from)
    }
}
