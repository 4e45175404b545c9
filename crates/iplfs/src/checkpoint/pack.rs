//! Checkpoint packs and superblocks on the device: choosing the newest sound copy, and rewriting damaged copies.

use crate::device::{BlockDevice, read_block};
use crate::disk::address::{AREA_BITS, BLOCK_SIZE, BlockAddr, Geometry, Log};
use crate::disk::checkpoint::{CheckpointBody, Phase, SEALS, Seal};
use crate::disk::nat::NAT_HEIGHT_MAX;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::finding::Finding;

/// Checkpoint read from the device.
pub(crate) struct FoundCheckpoint {
    pub(crate) seal: Seal,
    pub(crate) body: CheckpointBody,
    pub(crate) pack: usize,
    pub(crate) damage: DamagedParts,
}

/// Parts of a checkpoint that are damaged and have another copy.
#[derive(Clone, Copy, Default)]
pub(crate) struct DamagedParts {
    pub(crate) seal: bool,
    pub(crate) body: bool,
    pub(crate) copy: bool,
}

impl FoundCheckpoint {
    /// Returns the damaged parts. A crash may damage one of two seals, but not those of an unmounted volume.
    pub(crate) fn damaged_parts(&self) -> Vec<Finding> {
        let parts = [
            (
                self.damage.seal && self.seal.phase == Phase::Clean,
                "one of its two seals",
            ),
            (self.damage.body, "its body"),
            (self.damage.copy, "the copy of its body"),
        ];
        let place = format!("checkpoint {}", self.seal.version);
        parts
            .into_iter()
            .filter(|(damaged, _)| *damaged)
            .map(|(_, part)| Finding::new(&place, format_args!("{part} is damaged")))
            .collect()
    }
}

/// Reads the superblock. Of the two copies at the start, the sound one with the higher generation is valid. If
/// neither is sound, the third copy is.
pub fn read_superblock(dev: &dyn BlockDevice) -> Result<Superblock> {
    let copies = [BlockAddr(0), BlockAddr(1)]
        .map(|addr| read_block(dev, addr).and_then(|block| Superblock::decode(&block)));
    match copies {
        [Ok(a), Ok(b)] => Ok(if b.generation > a.generation { b } else { a }),
        [Ok(sb), Err(_)] | [Err(_), Ok(sb)] => Ok(sb),
        // The largest address space wins: a smaller one never writes at the address of its copy.
        [Err(e), Err(_)] => spare_superblocks(dev)
            .next_back()
            .map(|(_, sb)| sb)
            .ok_or(e),
    }
}

/// Third copies of superblocks, by ascending size of the address space that they describe.
fn spare_superblocks(
    dev: &dyn BlockDevice,
) -> impl DoubleEndedIterator<Item = (BlockAddr, Superblock)> + use<'_> {
    AREA_BITS.filter_map(move |bits| {
        let addr = BlockAddr(7 << bits);
        let sb = Superblock::decode(&read_block(dev, addr).ok()?).ok()?;
        (sb.geometry.spare_superblock() == addr).then_some((addr, sb))
    })
}

/// Addresses of the copies of the superblock that differ from `sb`.
pub(crate) fn damaged_superblocks(
    dev: &dyn BlockDevice,
    sb: &Superblock,
) -> Result<Vec<BlockAddr>> {
    let spare = sb.geometry.spare_superblock();
    let mut damaged = Vec::new();
    for addr in [BlockAddr(0), BlockAddr(1), spare] {
        let found = read_block(dev, addr).and_then(|block| Superblock::decode(&block));
        // A block device may end with the last area.
        let exists = addr != spare
            || dev.knows_allocated()
            || !dev
                .allocated(addr.0..addr.0 + 1)
                .map_err(|e| Error::io(e, "querying the size of the device"))?
                .is_empty();
        if exists && found.as_ref().ok() != Some(sb) {
            damaged.push(addr);
        }
    }
    Ok(damaged)
}

/// Writes copies of the superblock one after the other, so that one is always intact.
pub(crate) fn write_superblocks(
    dev: &dyn BlockDevice,
    sb: &Superblock,
    copies: &[BlockAddr],
) -> Result<()> {
    for addr in copies {
        let io = |e| Error::io(e, "writing a superblock");
        dev.write(*addr, &sb.encode()).map_err(io)?;
        dev.flush().map_err(io)?;
    }
    Ok(())
}

/// Finds structures that are damaged or missing and have a sound copy.
pub(crate) fn damaged_copies(
    dev: &dyn BlockDevice,
    sb: &Superblock,
    found: &FoundCheckpoint,
) -> Result<Vec<Finding>> {
    let mut findings = dev.damaged_files();
    for addr in damaged_superblocks(dev, sb)? {
        let place = format_args!("superblock copy at block {addr}");
        findings.push(Finding::new(place, "is damaged, old or missing"));
    }
    findings.extend(found.damaged_parts());
    Ok(findings)
}

/// Rewrites structures that are damaged or missing and have a sound copy.
pub(crate) fn rewrite_damaged_copies(dev: &dyn BlockDevice, sb: &Superblock) -> Result<()> {
    let io = |e| Error::io(e, "rewriting a damaged file");
    dev.rewrite_damaged_files().map_err(io)?;
    write_superblocks(dev, sb, &damaged_superblocks(dev, sb)?)
}

/// Prepares a device for a volume. If formatting is interrupted, what was there before cannot be mistaken for a
/// volume.
pub(crate) fn clear_fixed(dev: &dyn BlockDevice, g: &Geometry) -> Result<()> {
    let io = |e| Error::io(e, "preparing the device");
    dev.preallocate(0..g.fixed_end()).map_err(io)?;
    let zeros = vec![0; BLOCK_SIZE * 2];
    for addr in [BlockAddr(0), g.pack_start(0), g.pack_start(1)] {
        dev.write(addr, &zeros).map_err(io)?;
    }
    for (addr, _) in spare_superblocks(dev) {
        dev.write(addr, &zeros[..BLOCK_SIZE]).map_err(io)?;
    }
    dev.flush().map_err(io)
}

/// Finds the newest committed checkpoint. A damaged body is an error, because no crash loses a committed checkpoint.
/// With `fallback` the previous checkpoint is used instead.
pub(crate) fn find_checkpoint(
    dev: &dyn BlockDevice,
    sb: &Superblock,
    fallback: bool,
) -> Result<FoundCheckpoint> {
    let mut seals: Vec<(usize, Seal, bool)> = Vec::new();
    for pack in 0..2 {
        let start = sb.geometry.pack_start(pack);
        // Either copy proves that the checkpoint was committed.
        let mut best: Option<Seal> = None;
        let mut unread = None;
        let mut copies = Vec::new();
        for addr in [start, BlockAddr(start.0 + 1)] {
            match read_block(dev, addr) {
                Ok(block) => {
                    let seal = Seal::decode(&block);
                    copies.push(seal.clone());
                    best = best.into_iter().chain(seal).max_by_key(|seal| seal.version)
                }
                Err(e) => unread = Some(e),
            }
        }
        match (best, unread) {
            (Some(seal), _) => {
                let whole = copies.len() == 2 && copies[0] == copies[1];
                seals.push((pack, seal, !whole));
            }
            // No crash makes a seal unreadable: the block may be the newest checkpoint.
            (None, Some(e)) if !fallback => return Err(e),
            _ => {}
        }
    }
    seals.sort_by_key(|(_, seal, _)| std::cmp::Reverse(seal.version));
    let mut first_error = None;
    for (pack, seal, seal_damaged) in seals {
        match read_body(dev, sb, pack, &seal) {
            Ok((body, mut damage)) => {
                damage.seal = seal_damaged;
                let mut seal = seal;
                // A newer checkpoint was committed, so blocks may have been written after this one.
                if first_error.is_some() && seal.phase == Phase::Clean {
                    seal.phase = Phase::Mounted;
                }
                return Ok(FoundCheckpoint {
                    seal,
                    body,
                    pack,
                    damage,
                });
            }
            Err(e) if fallback => first_error = first_error.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    Err(first_error
        .unwrap_or_else(|| Error::corrupt("checkpoint packs", "no sound seal in either")))
}

/// Returns whether the volume was unmounted cleanly: its newest checkpoint contains every change.
pub fn is_unmounted(dev: &dyn BlockDevice) -> Result<bool> {
    let sb = read_superblock(dev)?;
    Ok(find_checkpoint(dev, &sb, false)?.seal.phase == Phase::Clean)
}

/// Version that precedes the first checkpoint. It depends on the identity of the volume, so that node blocks of an
/// older volume on the same device never carry a tag that roll-forward accepts.
pub(crate) fn first_version(uuid: &[u8; 16]) -> u64 {
    let seed = crate::disk::hash::siphash(uuid, b"first checkpoint");
    (seed & 0x7fff_ffff) << 24
}

/// Highest version of all readable seals on the medium, 0 if there is none.
pub(crate) fn newest_seal_version(dev: &dyn BlockDevice, sb: &Superblock) -> u64 {
    let seals = (0..2).flat_map(|pack| (0..SEALS).map(move |copy| (pack, copy)));
    seals
        .filter_map(|(pack, copy)| {
            seal_version(dev, BlockAddr(sb.geometry.pack_start(pack).0 + copy))
        })
        .max()
        .unwrap_or(0)
}

/// Version of a seal on the medium, None if it cannot be read.
pub(crate) fn seal_version(dev: &dyn BlockDevice, addr: BlockAddr) -> Option<u64> {
    let mut block = [0; BLOCK_SIZE];
    dev.read_uncached(addr, &mut block).ok()?;
    Some(Seal::decode(&block)?.version)
}

/// Reads the body of a checkpoint, or its copy if the body is damaged.
fn read_body(
    dev: &dyn BlockDevice,
    sb: &Superblock,
    pack: usize,
    seal: &Seal,
) -> Result<(CheckpointBody, DamagedParts)> {
    let g = &sb.geometry;
    let place = || format!("checkpoint {}", seal.version);
    let (body_blocks, capacity) = (seal.body_blocks(), u64::from(g.pack_blocks) - SEALS);
    let blocks = body_blocks + u64::from(seal.copy_blocks);
    let in_pack = blocks.min(capacity);
    if body_blocks.saturating_sub(capacity) != u64::from(seal.overflow_blocks)
        || seal.overflow_blocks > 1 << 16
        || u64::from(seal.copy_blocks) > body_blocks
    {
        return Err(Error::corrupt(
            place(),
            format_args!(
                "body of {body_blocks} blocks, {} overflow, {} copied",
                seal.overflow_blocks, seal.copy_blocks
            ),
        ));
    }
    if seal.nat_height > NAT_HEIGHT_MAX {
        return Err(Error::corrupt(
            place(),
            format_args!("node address table of {} levels", seal.nat_height),
        ));
    }
    for (log, m) in Log::ALL.iter().zip(&seal.logs) {
        let start = if *log == Log::Meta { g.fixed_end() } else { 0 };
        if !(start <= m.scan
            && m.scan <= m.head
            && m.head <= m.limit
            && m.limit <= m.far
            && m.far <= g.area_blocks())
        {
            return Err(Error::corrupt(
                place(),
                format_args!("marks of the {log:?} log are {m:?}"),
            ));
        }
    }
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    let (head, tail) = bytes.split_at_mut(in_pack as usize * BLOCK_SIZE);
    let read = |addr, buf: &mut [u8]| {
        if buf.is_empty() {
            return Ok(());
        }
        dev.read(addr, buf)
            .map_err(|e| Error::io(e, format_args!("reading {}", place())))
    };
    read(BlockAddr(g.pack_start(pack).0 + SEALS), head)?;
    read(seal.overflow, tail)?;
    let (bytes, copy) = bytes.split_at(body_blocks as usize * BLOCK_SIZE);
    let mut damage = DamagedParts::default();
    let body = match CheckpointBody::decode(seal, bytes) {
        Err(_) if !copy.is_empty() => {
            damage.body = true;
            CheckpointBody::decode_copy(seal, copy)?
        }
        other => other?,
    };
    damage.copy = !copy.is_empty() && crc32c::crc32c(copy) != seal.copy_crc;
    let mut dead: Vec<_> = body
        .discards
        .iter()
        .map(|e| (e.start.0, e.start.0.saturating_add(e.blocks.into())))
        .collect();
    dead.sort_unstable();
    let overlap = dead.windows(2).any(|pair| pair[1].0 < pair[0].1);
    if overlap
        || dead.iter().any(|(start, end)| {
            start >= end || *end > 7 << g.area_bits || g.place(BlockAddr(*start)).is_none()
        })
    {
        return Err(Error::corrupt(
            place(),
            "discard log names a block twice, or one outside all logs",
        ));
    }
    Ok((body, damage))
}
