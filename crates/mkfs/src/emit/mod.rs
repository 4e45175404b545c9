//! Writing of the planned metadata.

mod directory;
mod head;
mod inode;
pub(crate) mod metabox;
pub(crate) mod targets;

pub(crate) use head::{Head, first_data_block};

use super::base::Bases;
use super::environment::{Environment, parallel};
use super::layout::xattrs::PrefixTable;
use super::layout::{Parts, Plan, SUPERBLOCK_END, hidden};
use super::patch::unchanged::Unchanged;
use super::tree::{InodeId, NodeKind, START_LIST};
use crate::{Error, Place, Result};
use directory::dir_blocks;
use head::{Overwrites, make_head};
use inode::emit_inode;
use tuff_format::inode::COMPACT_LEN;
use tuff_store::Output;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Least number of bytes that a thread writes at a time; it continues to the end of an inode or directory. The UUID
/// derived from the content depends on it.
const PIECE: u64 = 1 << 20;

/// Unit of metadata that is written at once.
#[derive(Clone, Copy)]
enum Unit {
    /// Whole blocks of a directory or long link.
    Blocks(InodeId),
    /// Shared attributes and prefixes.
    Area,
    /// Inode with everything that follows it.
    Inode(InodeId),
}

/// Metadata in the order of positions.
struct Zone<'a> {
    parts: &'a Parts<'a>,
    plan: &'a Plan,
    /// Directories and long links with whole blocks.
    with_blocks: Vec<InodeId>,
    /// Shared attributes and prefixes, with their position in bytes.
    area: Option<(&'a [u8], u64)>,
    /// Inodes in the order of their positions.
    inodes: Vec<InodeId>,
    /// Position of the first inode in bytes.
    inodes_at: u64,
    /// End of all metadata in bytes.
    end: u64,
}

impl Zone<'_> {
    fn len(&self) -> usize {
        self.with_blocks.len() + usize::from(self.area.is_some()) + self.inodes.len()
    }

    fn unit(&self, i: usize) -> Unit {
        match i.checked_sub(self.with_blocks.len()) {
            None => Unit::Blocks(self.with_blocks[i]),
            Some(0) if self.area.is_some() => Unit::Area,
            Some(n) => Unit::Inode(self.inodes[n - usize::from(self.area.is_some())]),
        }
    }

    /// Returns the position of a unit in bytes; for the number after the last one, the end.
    fn start(&self, i: usize) -> u64 {
        if i == self.len() {
            return self.end;
        }
        match (self.unit(i), self.area) {
            (Unit::Blocks(inode), _) => {
                let size = self.parts.options.block.size();
                u64::from(self.plan.block_of[&inode]) * size
            }
            (Unit::Area, area) => area.map_or(0, |(_, at)| at),
            (Unit::Inode(inode), _) => self.inodes_at + self.plan.position(inode),
        }
    }

    /// Splits the units into pieces: the first unit of each piece, and the number after the last.
    fn pieces(&self) -> Vec<usize> {
        if self.len() == 0 {
            return Vec::new();
        }
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

    /// Appends the bytes of some units to `out`, which is empty and starts where they start.
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
                Unit::Area => out.extend_from_slice(self.area.map_or(&[], |(bytes, _)| bytes)),
                Unit::Inode(inode) => emit_inode(self.parts, self.plan, inode, out)?,
            }
        }
        pad_to(out, self.start(units.end));
        Ok(())
    }
}

/// Writes bytes at a position.
type Write<'a> = &'a (dyn Fn(&[u8], u64) -> Result<()> + Sync);

/// Writes the attribute area and the inodes of the tree. Positions count from the start of the area.
pub(crate) fn write_inodes(
    parts: &Parts<'_>,
    plan: &Plan,
    environment: &Environment<'_>,
    write: Write<'_>,
) -> Result<()> {
    let zone = Zone {
        parts,
        plan,
        with_blocks: Vec::new(),
        area: Some((parts.area, 0)),
        inodes: by_position(
            plan,
            parts
                .order
                .iter()
                .copied()
                .chain(start_list(plan))
                .collect(),
        ),
        inodes_at: 0,
        end: plan.metabox_size.unwrap_or_default(),
    };
    emit_zone(&zone, &[], environment, write).map(drop)
}

/// Writes all metadata outside the metabox, except block 0, which is returned.
pub(crate) fn emit(
    parts: &Parts<'_>,
    plan: &Plan,
    prefixes: &PrefixTable,
    environment: &Environment<'_>,
) -> Result<Head> {
    let output = environment.targets.image;
    let block = parts.options.block.size();
    let write = |bytes: &[u8], at| {
        let written = output.write_at(bytes, at);
        written.map_err(|e| Error::io(Place::image(), "cannot write", e))
    };
    // Readers of an unfinished image read to its end.
    if plan.len_blocks > plan.end_block {
        write(&[0], u64::from(plan.len_blocks) * block - 1)?;
    }
    let order = parts.order.iter().copied();
    let order = order.filter(|inode| !parts.is_unchanged(*inode));
    let has_new_blocks = |i: &InodeId| {
        let old = || parts.old_block(*i, &parts.form(*i, plan.epoch));
        plan.block_of.contains_key(i) && old().is_none()
    };
    let mut with_blocks: Vec<InodeId> = order.filter(has_new_blocks).collect();
    with_blocks.extend(start_list(plan).filter(|id| plan.block_of.contains_key(id)));
    with_blocks.sort_unstable_by_key(|id| plan.block_of[id]);
    let zone_at = u64::from(plan.zone_block) * block;
    let mut zone = Zone {
        parts,
        plan,
        with_blocks,
        area: None,
        inodes: hidden(parts).collect(),
        inodes_at: zone_at,
        end: u64::from(plan.end_block) * block,
    };
    let mut directories = 0;
    match parts.metabox {
        None => {
            let old_area = parts.unchanged.is_some();
            zone.area = (!old_area).then(|| (parts.area, u64::from(plan.xattr_block) * block));
            let order = parts.order.iter().copied();
            let placed = |i: &InodeId| !parts.is_unchanged(*i) && parts.place(*i).is_none();
            zone.inodes.extend(order.filter(placed));
            zone.inodes.extend(start_list(plan));
        }
        // The metabox is between the directories and the inodes.
        Some(_) => {
            let with_blocks = std::mem::take(&mut zone.with_blocks);
            directories = emit_directories(parts, plan, with_blocks, environment, &write)?;
        }
    }
    zone.inodes = by_position(plan, std::mem::take(&mut zone.inodes));
    let mut front = Vec::new();
    if plan.zone_block == 0 {
        front = front_inodes(parts, plan, &std::mem::take(&mut zone.inodes))?;
    }
    let mut digest = emit_zone(&zone, &front, environment, &write)?;
    let mut overwrites = Overwrites::default();
    if let Some(unchanged) = parts.unchanged {
        overwrites = overwritten(parts, plan, unchanged, output)?;
        // All else is as in the patched image.
        let all = [
            digest,
            overwrites.digest(),
            u128::from_le_bytes(unchanged.superblock.uuid),
        ];
        digest = xxh3_128(all.map(u128::to_le_bytes).as_flattened());
    }
    if let Some(metabox) = parts.metabox {
        let all = [directories, metabox.digest, digest].map(u128::to_le_bytes);
        digest = xxh3_128(all.as_flattened());
    }
    let uuid = (parts.unchanged)
        .filter(|_| {
            overwrites.is_empty() && Some(plan.end_block) == parts.base.map(Bases::first_free)
        })
        .map(|unchanged| unchanged.superblock.uuid);
    let mut head = make_head(parts, plan, prefixes, (uuid, digest), &front, output)?;
    head.set_overwrites(overwrites);
    Ok(head)
}

/// Returns the parts of old inodes and directories that change.
fn overwritten(
    parts: &Parts<'_>,
    plan: &Plan,
    unchanged: &Unchanged,
    output: &Output,
) -> Result<Overwrites> {
    let bits = parts.options.block;
    let mut all = Overwrites::default();
    let mut add = |bytes: &[u8], at| {
        let added = all.add(bytes, at, bits, output);
        added.map_err(|e| Error::io(Place::image(), "cannot read", e))
    };
    let mut out = Vec::new();
    for (inode, place) in unchanged.overwritten() {
        out.clear();
        emit_inode(parts, plan, inode, &mut out)?;
        add(&out, place.inode.position())?;
        let form = parts.form(inode, plan.epoch);
        if let Some(block) = parts.old_block(inode, &form) {
            out.clear();
            emit_blocks(parts, plan, inode, &mut out)?;
            // Readers of a directory take what follows the last name as a part of it, unless it is 0.
            out.resize(out.len().next_multiple_of(bits.size_usize()), 0);
            add(&out, u64::from(block) * bits.size())?;
        }
    }
    let is_changed = !all.is_empty() || Some(plan.end_block) != parts.base.map(Bases::first_free);
    if let Some(list) = unchanged.start_list.filter(|_| is_changed) {
        // A start list describes the image as it was built.
        all.add(&[0; COMPACT_LEN], list, bits, output)
            .map_err(|e| Error::io(Place::image(), "cannot read", e))?;
    }
    Ok(all)
}

/// Writes the whole blocks of directories and long links. Returns a digest of them.
fn emit_directories(
    parts: &Parts<'_>,
    plan: &Plan,
    with_blocks: Vec<InodeId>,
    environment: &Environment<'_>,
    write: Write<'_>,
) -> Result<u128> {
    let bits = parts.options.block;
    let end = with_blocks.last().map_or(0, |last| {
        u64::from(plan.block_of[last]) + bits.count(len_in_blocks(parts, plan, *last))
    });
    let zone = Zone {
        parts,
        plan,
        with_blocks,
        area: None,
        inodes: Vec::new(),
        inodes_at: 0,
        end: end * bits.size(),
    };
    emit_zone(&zone, &[], environment, write)
}

/// Returns the inode of the start list, if the image has one.
fn start_list(plan: &Plan) -> impl Iterator<Item = InodeId> {
    plan.start.iter().map(|_| START_LIST)
}

/// Returns the length in bytes of what a directory, a long link or the start list has in whole blocks.
fn len_in_blocks(parts: &Parts<'_>, plan: &Plan, id: InodeId) -> u64 {
    match &plan.start {
        Some(start) if id == START_LIST => start.bytes.len() as u64,
        _ => {
            let form = parts.form(id, plan.epoch);
            form.size - form.tail
        }
    }
}

fn by_position(plan: &Plan, mut inodes: Vec<InodeId>) -> Vec<InodeId> {
    inodes.sort_unstable_by_key(|i| plan.position(*i));
    inodes
}

/// Returns the inodes in block 0: its bytes from [`SUPERBLOCK_END`] on.
fn front_inodes(parts: &Parts<'_>, plan: &Plan, inodes: &[InodeId]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for inode in inodes {
        // Fits: the offset is within a block.
        let at = (plan.position(*inode) - SUPERBLOCK_END) as usize;
        assert!(at >= out.len(), "inodes do not overlap");
        out.resize(at, 0);
        emit_inode(parts, plan, *inode, &mut out)?;
    }
    Ok(out)
}

/// Writes all pieces. Returns a digest of them and of the inodes in block 0.
fn emit_zone(
    zone: &Zone<'_>,
    front: &[u8],
    environment: &Environment<'_>,
    write: Write<'_>,
) -> Result<u128> {
    let starts = zone.pieces();
    let emit = |n: usize, bytes: &mut Vec<u8>, digests: &mut Vec<(usize, u128)>| {
        bytes.clear();
        zone.make(starts[n]..starts[n + 1], bytes)?;
        write(bytes, zone.start(starts[n]))?;
        digests.push((n, xxh3_128(bytes)));
        Ok(())
    };
    let count = starts.len().saturating_sub(1);
    let digests = parallel(count, environment.threads, environment.progress, &emit)?;
    let mut digests = digests.concat();
    digests.sort_unstable();
    let mut digest = Xxh3::new();
    digest.update(front);
    for (_, piece) in digests {
        digest.update(&piece.to_le_bytes());
    }
    Ok(digest.digest128())
}

/// Appends the whole blocks of a directory or long link.
pub(super) fn emit_blocks(
    parts: &Parts<'_>,
    plan: &Plan,
    id: InodeId,
    out: &mut Vec<u8>,
) -> Result<()> {
    if let Some(list) = plan.start.as_ref().filter(|_| id == START_LIST) {
        out.extend_from_slice(&list.bytes);
        return Ok(());
    }
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
