//! The plan becomes bytes.

mod head;
mod inode;

pub(crate) use head::first_data_block;

use super::layout::{Parts, Plan, SUPERBLOCK_END, dir_names};
use super::pack::PACKED;
use super::tree::{InodeId, NodeKind};
use crate::threads;
use crate::{Error, Result};
use head::emit_superblock;
use inode::emit_inode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_format::dirent::{self, Dirent, Fill};
use tuff_store::Output;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// What one thread makes at a time: at least so much, then up to the end of an inode or directory. Part of the format of
/// the UUID that is derived from the content. Unit: bytes.
const PIECE: u64 = 1 << 20;

/// One thing behind the data.
#[derive(Clone, Copy)]
enum Unit {
    /// Whole blocks of a directory or long link.
    Blocks(InodeId),
    /// Shared attributes and prefixes.
    Area,
    /// An inode with all that follows it.
    Inode(InodeId),
}

/// All that lies behind the data, in order: what a number stands for, and where it lies.
struct Zone<'a> {
    parts: &'a Parts<'a>,
    plan: &'a Plan,
    area: &'a [u8],
    /// Directories and long links with whole blocks.
    with_blocks: Vec<InodeId>,
    /// Inodes by position.
    inodes: Vec<InodeId>,
}

impl Zone<'_> {
    fn len(&self) -> usize {
        self.with_blocks.len() + 1 + self.inodes.len()
    }

    fn unit(&self, i: usize) -> Unit {
        match i.checked_sub(self.with_blocks.len()) {
            None => Unit::Blocks(self.with_blocks[i]),
            Some(0) => Unit::Area,
            Some(n) => Unit::Inode(self.inodes[n - 1]),
        }
    }

    /// Where a unit starts; for the number behind the last one, where all ends. Unit: bytes.
    fn start(&self, i: usize) -> u64 {
        let size = self.parts.options.block.size();
        let zone = u64::from(self.plan.zone_block) * size;
        if i == self.len() {
            return u64::from(self.plan.end_block) * size;
        }
        match self.unit(i) {
            Unit::Blocks(inode) => u64::from(self.plan.block_of[&inode]) * size,
            Unit::Area => u64::from(self.plan.xattr_block) * size,
            Unit::Inode(inode) => zone + position(self.plan, inode),
        }
    }

    /// Cuts everything into pieces: the numbers at which they start, and the one behind the last.
    fn pieces(&self) -> Vec<usize> {
        let mut starts = vec![0];
        let mut at = self.start(0);
        for i in 1..self.len() {
            let start = self.start(i);
            if start - at >= PIECE {
                starts.push(i);
                at = start;
            }
        }
        starts.push(self.len());
        starts
    }

    /// Makes the bytes of some units. `out` is empty and starts where they start.
    fn make(&self, units: std::ops::Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let start = self.start(units.start);
        let pad_to = |out: &mut Vec<u8>, offset: u64| {
            let at = start + out.len() as u64;
            assert!(offset >= at, "{offset} was promised to start after {at}");
            let n = usize::try_from(offset - at).expect("a gap is shorter than a block");
            out.resize(out.len() + n, 0);
        };
        for i in units.clone() {
            pad_to(out, self.start(i));
            match self.unit(i) {
                Unit::Blocks(inode) => emit_blocks(self.parts, self.plan, inode, out)?,
                Unit::Area => out.extend_from_slice(self.area),
                Unit::Inode(inode) => emit_inode(self.parts, self.plan, inode, out)?,
            }
        }
        pad_to(out, self.start(units.end));
        Ok(())
    }
}

/// Writes all metadata on so many threads, the superblock last. Returns the length of the image in bytes.
pub(crate) fn emit(
    parts: &Parts<'_>,
    plan: &Plan,
    area: &[u8],
    prefix_at: Option<(u64, u8)>,
    threads: usize,
    output: &Output,
) -> Result<u64> {
    let bits = parts.options.block;
    let order = parts.order.iter().copied();
    let mut inodes: Vec<InodeId> = order.clone().collect();
    inodes.extend(plan.packed_position.map(|_| PACKED));
    inodes.sort_unstable_by_key(|i| position(plan, *i));
    let mut front = Vec::new();
    if plan.zone_block == 0 {
        front = front_inodes(parts, plan, &std::mem::take(&mut inodes))?;
    }
    let zone = Zone {
        parts,
        plan,
        area,
        with_blocks: order.filter(|i| plan.block_of.contains_key(i)).collect(),
        inodes,
    };
    let digest = emit_zone(&zone, &front, threads, output)?;
    emit_superblock(parts, plan, prefix_at, digest, &front, output)?;
    Ok(u64::from(plan.end_block) * bits.size())
}

/// Makes the inodes that lie behind the superblock: the bytes of block 0 from [`SUPERBLOCK_END`] on.
fn front_inodes(parts: &Parts<'_>, plan: &Plan, inodes: &[InodeId]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for inode in inodes {
        // Fits: it lies in a block.
        let at = (position(plan, *inode) - SUPERBLOCK_END) as usize;
        assert!(at >= out.len(), "inodes do not overlap");
        out.resize(at, 0);
        emit_inode(parts, plan, *inode, &mut out)?;
    }
    Ok(out)
}

/// Where an inode or the packed one lies in the inode zone. Unit: bytes.
fn position(plan: &Plan, inode: InodeId) -> u64 {
    match inode {
        PACKED => plan.packed_position.unwrap_or_default(),
        inode => plan.position(inode),
    }
}

/// Makes and writes all pieces. Returns a digest over theirs and the inodes in front.
fn emit_zone(zone: &Zone<'_>, front: &[u8], threads: usize, output: &Output) -> Result<u128> {
    let starts = zone.pieces();
    let next = AtomicUsize::new(0);
    // By piece. The first error by position is the one to report, however many there are.
    let done: Mutex<Vec<(usize, Result<u128>)>> = Mutex::new(Vec::with_capacity(starts.len()));
    let work = || {
        let mut out = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some([from, to]) = starts.get(n..n + 2) else {
                return;
            };
            out.clear();
            let made = zone.make(*from..*to, &mut out).and_then(|()| {
                output
                    .write_at(&out, zone.start(*from))
                    .map_err(|e| Error::io("image", "cannot write", e))?;
                Ok(xxh3_128(&out))
            });
            if made.is_err() {
                next.store(starts.len(), Ordering::Relaxed);
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((n, made));
        }
    };
    std::thread::scope(|scope| {
        threads::start(
            scope,
            "emit",
            threads.min(starts.len()).saturating_sub(1),
            work,
        );
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(n, _)| *n);
    let mut digest = Xxh3::new();
    digest.update(front);
    for (_, piece) in done {
        digest.update(&piece?.to_le_bytes());
    }
    Ok(digest.digest128())
}

/// Appends the whole blocks of a directory or long link.
fn emit_blocks(parts: &Parts<'_>, plan: &Plan, id: InodeId, out: &mut Vec<u8>) -> Result<()> {
    let block = parts.options.block.size_usize();
    let form = parts.form(id, plan.epoch);
    let start = out.len();
    match parts.tree.kind(id) {
        NodeKind::Symlink(target) => {
            out.extend_from_slice(&target[..target.len() - form.tail as usize]);
        }
        _ => dir_blocks(parts, plan, id, &mut |bytes, more| {
            if more || form.tail == 0 {
                out.extend_from_slice(bytes);
                if more {
                    out.resize(start + (out.len() - start).next_multiple_of(block), 0);
                }
            }
            Ok(())
        })?,
    }
    assert_eq!(
        (out.len() - start) as u64,
        form.size - form.tail,
        "a directory has the size that was planned"
    );
    Ok(())
}

/// Calls `each` with the bytes of each directory block; the flag says that another block follows.
fn dir_blocks(
    parts: &Parts<'_>,
    plan: &Plan,
    dir: InodeId,
    each: &mut dyn FnMut(&[u8], bool) -> Result<()>,
) -> Result<()> {
    let bits = parts.options.block;
    let mut names: Vec<(&[u8], InodeId)> = Vec::new();
    let mut fill = Fill::new(bits.size_usize());
    let mut result = Ok(());
    let mut out = Vec::with_capacity(bits.size_usize());
    let mut write = |names: &mut Vec<(&[u8], InodeId)>, more: bool| -> Result<()> {
        out.clear();
        let entries: Vec<Dirent<'_>> = names
            .iter()
            .map(|(name, inode)| Dirent {
                nid: plan.nid(*inode, bits),
                file_type: parts.tree.file_type(*inode).dirent_code(),
                name,
            })
            .collect();
        dirent::encode(&entries, &mut out);
        names.clear();
        each(&out, more)
    };
    dir_names(parts.tree, dir, &mut |name, inode| {
        if fill.add(name.len()) && !names.is_empty() && result.is_ok() {
            result = write(&mut names, true);
        }
        names.push((name, inode));
    });
    result?;
    write(&mut names, false)
}
