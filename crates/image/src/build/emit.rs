//! The plan becomes bytes.

use super::base::Base;
use super::layout::{Parts, Plan, SUPERBLOCK_END, dir_names};
use super::pack::segment::ShortPiece;
use super::pack::{FileData, FileTail, PACKED};
use super::tree::{InodeId, NodeKind};
use crate::threads;
use crate::{Error, Result};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tuff_codec::EncoderSpec;
use tuff_format::cluster::header::MapHeader;
use tuff_format::cluster::write::{self, Piece, Tail, header_pos};
use tuff_format::config::{Configs, Lz4};
use tuff_format::device::SLOT_LEN;
use tuff_format::dirent::{self, Dirent, Fill};
use tuff_format::features::{compat, incompat};
use tuff_format::inode::{FileType, Inode, encode_device};
use tuff_format::superblock::{self, Superblock};
use tuff_format::{BlockBits, chunk, xattr};
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

fn emit_inode(parts: &Parts<'_>, plan: &Plan, id: InodeId, out: &mut Vec<u8>) -> Result<()> {
    let bits = parts.options.block;
    let form = parts.form(id, plan.epoch);
    let start = out.len();
    let body = parts.body(id);
    let no_block = if form.extended {
        (1u64 << 48) - 1
    } else {
        u32::MAX.into()
    };
    let mut inode = Inode {
        extended: form.extended,
        layout: form.layout,
        flag4: false,
        xattr_icount: xattr::icount(body.len()).expect("checked when the attributes were planned"),
        mode: 0o100_644,
        nlink: 1,
        size: form.size,
        mtime: if form.extended { plan.epoch.0 } else { 0 },
        mtime_nsec: if form.extended { plan.epoch.1 } else { 0 },
        u: 0,
        ino: plan.inodes as u32,
        uid: 0,
        gid: 0,
        no_start: false,
    };
    if id != PACKED {
        let tree = parts.tree;
        inode.mode = tree.meta(id).mode & 0o7777 | tree.file_type(id).mode_bits();
        inode.nlink = tree.nlink(id);
        (inode.uid, inode.gid) = parts.owner(id);
        inode.ino = plan.serials[id as usize];
        if form.extended {
            (inode.mtime, inode.mtime_nsec) = parts.time(id);
        }
        match tree.kind(id) {
            NodeKind::Char(d) | NodeKind::Block(d) => {
                inode.u = encode_device(d.major, d.minor).into()
            }
            NodeKind::Fifo | NodeKind::Socket => {}
            NodeKind::Dir | NodeKind::Symlink(_) => {
                inode.u = plan.block_of.get(&id).map_or(no_block, |b| u64::from(*b));
            }
            NodeKind::File { .. } => {}
        }
    }
    let is_file = id == PACKED || parts.tree.file_type(id) == FileType::File;
    if is_file {
        inode.u = match parts.data(id) {
            FileData::None | FileData::Same(_) => no_block,
            FileData::Flat { block, .. } if bits.count(form.size - form.tail) > 0 => {
                plan.address(*block).into()
            }
            FileData::Flat { .. } => no_block,
            FileData::WholeFragment { .. } => 0,
            FileData::Chunked(c) => chunk::Format {
                bits: c.bits,
                indexes: false,
                bit48: false,
            }
            .encode()
            .into(),
            data => data
                .compressed()
                .expect("all others were matched")
                .pieces()
                .map(|(_, p)| u64::from(p.blocks))
                .sum(),
        };
    }
    inode.encode(out);
    out.extend_from_slice(body);
    if is_file {
        emit_file(parts, plan, id, start, out)?;
    } else {
        match parts.tree.kind(id) {
            NodeKind::Symlink(target) => {
                out.extend_from_slice(&target[target.len() - form.tail as usize..])
            }
            NodeKind::Dir if form.tail > 0 => dir_blocks(parts, plan, id, &mut |bytes, more| {
                if !more {
                    out.extend_from_slice(bytes);
                }
                Ok(())
            })?,
            _ => {}
        }
    }
    assert_eq!(
        (out.len() - start) as u64,
        form.before_tail + form.tail,
        "an inode has the length that was planned"
    );
    Ok(())
}

/// Appends a file's payload: index or table, and inline tail. The inode starts at `start` of `out`.
fn emit_file(
    parts: &Parts<'_>,
    plan: &Plan,
    id: InodeId,
    start: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let bits = parts.options.block;
    let pad = |out: &mut Vec<u8>, align: usize| {
        let len = (out.len() - start).next_multiple_of(align);
        out.resize(start + len, 0);
    };
    match parts.data(id) {
        FileData::None | FileData::Same(_) => {}
        FileData::Flat { tail, .. } => {
            if let Some(tail) = tail {
                parts.packed.spill.get(*tail, out)?;
            }
        }
        FileData::WholeFragment { offset } => {
            pad(out, 8);
            out.extend_from_slice(&MapHeader::WholeFragment { offset: *offset }.encode());
            out.extend_from_slice(&[0; 8]);
        }
        FileData::Chunked(c) => {
            pad(out, 4);
            let format = chunk::Format {
                bits: c.bits,
                indexes: false,
                bit48: false,
            };
            let size = parts.tree.size(id);
            let chunk_size = format.chunk_size(bits);
            let (mut at, mut block) = (0, u64::from(c.block));
            for run in &*c.runs {
                while at < run.first {
                    format.encode_entry(chunk::Chunk::Hole, out);
                    at += 1;
                }
                for _ in 0..run.count {
                    format.encode_entry(chunk::Chunk::Data { device: 0, block }, out);
                    block += 1 << c.bits;
                    at += 1;
                }
            }
            while at < size.div_ceil(chunk_size) {
                format.encode_entry(chunk::Chunk::Hole, out);
                at += 1;
            }
        }
        data => {
            let data = data.compressed().expect("all others were matched");
            pad(out, 8);
            let place = |(block, p): (u32, ShortPiece)| Piece {
                len: p.len.into(),
                kind: p.kind,
                // An end elsewhere has no block.
                block: if p.blocks > 0 { plan.address(block) } else { 0 },
                blocks: p.blocks,
                partial: p.partial,
            };
            let pieces: Vec<Piece> = data.pieces().map(place).collect();
            let tail = match data.tail {
                FileTail::Cluster => Tail::Cluster,
                // Fits: shorter than a block.
                FileTail::Inline(t) => Tail::Inline(t.len() as u16),
                FileTail::Fragment(offset) => Tail::Fragment(offset),
            };
            let header = header_pos((out.len() - start) as u64);
            let compact = parts.options.compact_index && data.is_contiguous();
            let index = write::index(&pieces, tail, data.algorithm, header, bits, compact);
            assert_eq!(
                index.compact, compact,
                "contiguous clusters have a compact index"
            );
            out.extend_from_slice(&index.bytes);
            if let FileTail::Inline(t) = data.tail {
                parts.packed.spill.get(t, out)?;
            }
        }
    }
    Ok(())
}

/// What the image's data needs its readers to know: feature bits and compression records.
struct Used {
    incompat: u32,
    algorithms: u16,
    /// Largest cluster of each algorithm. Unit: blocks.
    largest: [u16; 4],
}

fn used(parts: &Parts<'_>) -> Used {
    let mut used = Used {
        incompat: 0,
        algorithms: 0,
        largest: [0; 4],
    };
    let packed = (parts.packed.packed_size > 0).then_some(&parts.packed.packed);
    for data in parts.packed.files.iter().chain(packed) {
        match data {
            FileData::None | FileData::Flat { .. } | FileData::Same(_) => {}
            FileData::Chunked(_) => used.incompat |= incompat::CHUNKED_FILE,
            FileData::WholeFragment { .. } => used.incompat |= incompat::LZ4_0PADDING,
            data => {
                let data = data.compressed().expect("all others were matched");
                used.incompat |= incompat::LZ4_0PADDING;
                if let FileTail::Inline(_) = data.tail {
                    used.incompat |= incompat::ZTAILPACKING;
                }
                // The bit of fragments is the bit of clusters in several files, too.
                if data.shares() {
                    used.incompat |= incompat::FRAGMENTS;
                }
                used.algorithms |= 1 << data.algorithm;
                let largest = &mut used.largest[usize::from(data.algorithm & 3)];
                for (_, p) in data.pieces() {
                    *largest = (*largest).max(p.blocks);
                }
            }
        }
    }
    if packed.is_some() {
        used.incompat |= incompat::FRAGMENTS | incompat::LZ4_0PADDING;
    }
    if parts.base.is_some_and(|base| !base.in_image()) {
        used.incompat |= incompat::DEVICE_TABLE;
    }
    if used.algorithms & !1 != 0 || used.largest.iter().any(|l| *l > 1) {
        used.incompat |= incompat::COMPR_CFGS;
    }
    used
}

fn configs(parts: &Parts<'_>, used: &Used) -> Configs {
    let o = parts.options;
    let rules = o
        .rules
        .iter()
        .filter_map(|r| Some((r.compression?, r.cluster.unwrap_or(o.cluster))));
    let default = o
        .compression
        .into_iter()
        .flat_map(|c| [(c, o.cluster), (c, o.alike_cluster())]);
    let specs: Vec<EncoderSpec> = rules
        .chain(default)
        .map(|(c, cluster)| o.encoder(c, cluster))
        .collect();
    let has = |id: u8| used.algorithms & 1 << id != 0;
    let largest = |id: u8| {
        let of = specs.iter().filter(|s| s.method.algorithm() as u8 == id);
        of.map(EncoderSpec::history).max().unwrap_or(0) as u32
    };
    let base = parts.base.map(Base::configs);
    let base_dict = base.and_then(|c| c.lzma_dict_size).unwrap_or(0);
    let base_window = base.and_then(|c| c.zstd_window_log).unwrap_or(0);
    Configs {
        lz4: has(0).then_some(Lz4 {
            max_distance: 65535,
            max_pcluster_blocks: used.largest[0].max(1),
        }),
        lzma_dict_size: has(1).then(|| largest(1).max(base_dict).clamp(4096, 8 << 20)),
        deflate_window_bits: has(2).then_some(15),
        zstd_window_log: has(3).then(|| {
            largest(3)
                .next_power_of_two()
                .trailing_zeros()
                .clamp(10, 20)
                .max(base_window.into()) as u8
        }),
    }
}

fn emit_superblock(
    parts: &Parts<'_>,
    plan: &Plan,
    prefix_at: Option<(u64, u8)>,
    meta_digest: u128,
    front: &[u8],
    output: &Output,
) -> Result<()> {
    let o = parts.options;
    let bits = o.block;
    let used = used(parts);
    let configs = configs(parts, &used);
    let mut label = [0; 16];
    label[..o.label.len()].copy_from_slice(&o.label);
    let mut sb = Superblock {
        compat: compat::MTIME
            | if o.checksum { compat::SB_CHKSUM } else { 0 }
            | if o.xattr_filter {
                compat::XATTR_FILTER
            } else {
                0
            },
        incompat: used.incompat,
        checksum: 0,
        block_bits: bits,
        ext_slots: 0,
        root: plan.nid(super::tree::ROOT, bits),
        inodes: plan.inodes,
        epoch: plan.epoch.0,
        fixed_nsec: plan.epoch.1,
        blocks: plan.end_block.into(),
        meta_blkaddr: plan.meta_blkaddr(),
        // Behind it may be nothing at all.
        xattr_blkaddr: match parts.xattr_area {
            0 if !front.is_empty() => 0,
            _ => plan.xattr_block,
        },
        uuid: [0; 16],
        label,
        algs_or_distance: 0,
        extra_devices: 0,
        devt_slotoff: 0,
        xattr_prefix_count: 0,
        xattr_prefix_start: 0,
        packed: plan.packed_position.map(|p| plan.nid_at(p, bits)),
        xattr_filter_reserved: 0,
        ishare_prefix: 0,
        build_time: 0,
        metabox: None,
    };
    let mut records = Vec::new();
    if sb.has(incompat::COMPR_CFGS) {
        sb.algs_or_distance = configs.algorithms();
        records = configs.encode();
    } else if sb.has(incompat::LZ4_0PADDING) {
        sb.algs_or_distance = 65535;
    }
    if let Some((at, count)) = prefix_at {
        sb.incompat |= incompat::XATTR_PREFIXES;
        sb.xattr_prefix_count = count;
        let start = u32::try_from(at / 4)
            .map_err(|_| Error::limit("attribute prefixes", "beyond 16 GiB"))?;
        sb.xattr_prefix_start = start;
    }
    if let Some(slot) = parts.base.and_then(|base| base.slot(plan.end_block.into())) {
        sb.extra_devices = 1;
        let end = superblock::OFFSET as usize + sb.len() + records.len();
        let at = end.next_multiple_of(SLOT_LEN);
        sb.devt_slotoff = (at / SLOT_LEN) as u16; // fits: in the first blocks
        records.resize(records.len() + at - end, 0);
        records.extend_from_slice(&slot.encode());
    }
    sb.uuid = o
        .uuid
        .unwrap_or_else(|| derived_uuid(&sb, &records, parts.packed.digest, meta_digest));
    let len = (superblock::checksum_len(bits)).max(bits.size_usize().saturating_sub(1024));
    let mut covered = sb.encode();
    covered.extend_from_slice(&records);
    assert!(
        covered.len() <= len,
        "superblock and records fit their block"
    );
    if !front.is_empty() {
        // Fits: the start of a block.
        let at = (SUPERBLOCK_END - superblock::OFFSET) as usize;
        assert!(covered.len() <= at, "superblock and records end there");
        covered.resize(at, 0);
        covered.extend_from_slice(front);
    }
    let fail = |e| Error::io("image", "cannot write", e);
    let known = covered.len();
    covered.resize(len, 0);
    if parts.base.is_some_and(Base::in_image) {
        // What follows stays, so that all that changes is in one sector.
        let at = superblock::OFFSET + known as u64;
        let rest = output.file().read_exact_at(&mut covered[known..], at);
        rest.map_err(|e| Error::io("image", "cannot read", e))?;
    } else {
        output
            .write_at(&[0; superblock::OFFSET as usize], 0)
            .map_err(fail)?;
    }
    if o.checksum {
        superblock::seal(&mut covered);
    }
    output.settle().map_err(fail)?;
    output.write_at(&covered, superblock::OFFSET).map_err(fail)
}

/// A UUID that names the content: the same image has the same, another image another.
fn derived_uuid(sb: &Superblock, records: &[u8], data: u128, meta: u128) -> [u8; 16] {
    let mut h = Xxh3::new();
    h.update(&sb.encode());
    h.update(records);
    h.update(&data.to_le_bytes());
    h.update(&meta.to_le_bytes());
    let mut uuid = h.digest128().to_be_bytes();
    // Version 8, the one for private schemes.
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

/// Blocks before the data: the superblock, for small blocks more than one.
pub(crate) fn first_data_block(bits: BlockBits) -> u32 {
    // Fits: three blocks of 512 bytes, one otherwise.
    bits.count(SUPERBLOCK_END) as u32
}
