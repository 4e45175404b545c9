//! The plan becomes bytes.

use super::layout::{Parts, Plan, dir_names, inode_order};
use super::pack::{FileData, FileTail, PACKED};
use super::tree::{InodeId, NodeKind};
use crate::{Error, Result};
use tuff_codec::EncoderSpec;
use tuff_format::cluster::header::MapHeader;
use tuff_format::cluster::write::{self, Piece, Tail, header_pos};
use tuff_format::config::{Configs, Lz4};
use tuff_format::dirent::{self, Dirent, Fill};
use tuff_format::features::{compat, incompat};
use tuff_format::inode::{Inode, encode_device};
use tuff_format::superblock::{self, Superblock};
use tuff_format::{BlockBits, Nid, chunk, xattr};
use tuff_store::Output;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are collected before they are written.
const CHUNK: usize = 1 << 20;

/// Where the metadata goes, with its digest.
struct Sink<'a> {
    output: &'a Output,
    digest: Xxh3,
    at: u64,
    buf: Vec<u8>,
}

impl Sink<'_> {
    /// Position behind the last byte.
    fn offset(&self) -> u64 {
        self.at + self.buf.len() as u64
    }

    fn pad_to(&mut self, offset: u64) {
        assert!(
            offset >= self.offset(),
            "{offset} was promised to start after {}",
            self.offset()
        );
        let n = offset - self.offset();
        self.buf.resize(
            self.buf.len() + usize::try_from(n).expect("a gap is shorter than a block"),
            0,
        );
    }

    fn flush(&mut self, at_least: usize) -> Result<()> {
        if self.buf.len() >= at_least && !self.buf.is_empty() {
            self.output
                .write_at(&self.buf, self.at)
                .map_err(|e| Error::io("image", "cannot write", e))?;
            self.digest.update(&self.buf);
            self.at += self.buf.len() as u64;
            self.buf.clear();
        }
        Ok(())
    }
}

/// Writes all metadata, the superblock last. Returns the length of the image in bytes.
pub(crate) fn emit(
    parts: &Parts<'_>,
    plan: &Plan,
    area: &[u8],
    prefix_at: Option<(u64, u8)>,
    output: &Output,
) -> Result<u64> {
    let bits = parts.options.block;
    let start = u64::from(parts.packed.end_block) * bits.size();
    let mut sink = Sink {
        output,
        digest: Xxh3::new(),
        at: start,
        buf: Vec::with_capacity(CHUNK + (64 << 10)),
    };
    let order = inode_order(parts.tree);
    // Whole blocks of directories and long links, as the plan numbered them.
    for inode in &order {
        let Some(block) = plan.block_of.get(inode) else {
            continue;
        };
        sink.pad_to(u64::from(*block) * bits.size());
        let form = parts.form(*inode, plan.epoch);
        let end = sink.offset() + form.size - form.tail;
        match &parts.tree.nodes[*inode as usize].kind {
            NodeKind::Symlink(target) => sink
                .buf
                .extend_from_slice(&target[..target.len() - form.tail as usize]),
            _ => dir_blocks(parts, plan, *inode, &mut |bytes, whole| {
                if whole || form.tail == 0 {
                    sink.buf.extend_from_slice(bytes);
                    sink.buf.resize(
                        sink.buf
                            .len()
                            .next_multiple_of(if whole { bits.size_usize() } else { 1 }),
                        0,
                    );
                }
                sink.flush(CHUNK)
            })?,
        }
        assert_eq!(
            sink.offset(),
            end,
            "a directory has the size that was planned"
        );
        let padded = sink.offset().next_multiple_of(bits.size());
        sink.pad_to(padded);
        sink.flush(CHUNK)?;
    }
    sink.pad_to(u64::from(plan.xattr_block) * bits.size());
    sink.buf.extend_from_slice(area);
    let zone = u64::from(plan.zone_block) * bits.size();
    let gap = zone - sink.offset();
    assert!(gap < bits.size());
    sink.pad_to(zone);
    // Inodes by position.
    let mut by_position: Vec<(u64, InodeId)> = order
        .iter()
        .map(|i| (plan.positions[*i as usize], *i))
        .collect();
    by_position.extend(plan.packed_position.map(|p| (p, PACKED)));
    by_position.sort_unstable();
    for (position, inode) in by_position {
        sink.pad_to(zone + position);
        emit_inode(parts, plan, inode, &mut sink.buf)?;
        sink.flush(CHUNK)?;
    }
    sink.pad_to(zone + plan.zone_len);
    sink.flush(0)?;
    let digest = sink.digest.digest128();
    emit_superblock(parts, plan, prefix_at, digest, output)?;
    Ok(plan.blocks(bits) * bits.size())
}

/// Calls `each` with the bytes of each directory block; the flag says that another block follows.
fn dir_blocks(
    parts: &Parts<'_>,
    plan: &Plan,
    dir: InodeId,
    each: &mut dyn FnMut(&[u8], bool) -> Result<()>,
) -> Result<()> {
    let bits = parts.options.block;
    // Names are gathered per block; the borrow of the tree lasts for the whole call.
    let mut names: Vec<(Vec<u8>, InodeId)> = Vec::new();
    let mut fill = Fill::new(bits.size_usize());
    let mut result = Ok(());
    let mut out = Vec::with_capacity(bits.size_usize());
    let mut write = |names: &mut Vec<(Vec<u8>, InodeId)>, more: bool| -> Result<()> {
        out.clear();
        let entries: Vec<Dirent<'_>> = names
            .iter()
            .map(|(name, inode)| Dirent {
                nid: plan.nid(*inode, bits),
                file_type: parts.tree.nodes[*inode as usize].file_type().dirent_code(),
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
        names.push((name.to_vec(), inode));
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
        let node = &parts.tree.nodes[id as usize];
        inode.mode = node.meta.mode & 0o7777 | node.file_type().mode_bits();
        inode.nlink = node.nlink;
        (inode.uid, inode.gid) = parts.owner(id);
        inode.ino = plan.serials[id as usize];
        if form.extended {
            (inode.mtime, inode.mtime_nsec) = parts.time(id);
        }
        match &node.kind {
            NodeKind::Char(d) | NodeKind::Block(d) => {
                inode.u = encode_device(d.major, d.minor).into()
            }
            NodeKind::Fifo | NodeKind::Socket => {}
            NodeKind::Dir { .. } | NodeKind::Symlink(_) => {
                inode.u = plan.block_of.get(&id).map_or(no_block, |b| u64::from(*b));
            }
            NodeKind::File { .. } => {}
        }
    }
    let is_file =
        id == PACKED || matches!(parts.tree.nodes[id as usize].kind, NodeKind::File { .. });
    if is_file {
        inode.u = match parts.data(id) {
            FileData::None | FileData::Same(_) => no_block,
            FileData::Flat { block, .. } if bits.count(form.size - form.tail) > 0 => {
                (*block).into()
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
            FileData::Compressed(data) => data
                .runs
                .iter()
                .flat_map(|r| &r.pieces)
                .map(|p| u64::from(p.blocks))
                .sum(),
        };
    }
    inode.encode(out);
    out.extend_from_slice(body);
    if is_file {
        emit_file(parts, id, start, out)?;
    } else {
        match &parts.tree.nodes[id as usize].kind {
            NodeKind::Symlink(target) => {
                out.extend_from_slice(&target[target.len() - form.tail as usize..])
            }
            NodeKind::Dir { .. } if form.tail > 0 => {
                dir_blocks(parts, plan, id, &mut |bytes, more| {
                    if !more {
                        out.extend_from_slice(bytes);
                    }
                    Ok(())
                })?
            }
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
fn emit_file(parts: &Parts<'_>, id: InodeId, start: usize, out: &mut Vec<u8>) -> Result<()> {
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
            let NodeKind::File { size, .. } = parts.tree.nodes[id as usize].kind else {
                return Ok(());
            };
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
        FileData::Compressed(data) => {
            pad(out, 8);
            let mut pieces = Vec::new();
            for run in &data.runs {
                let mut block = run.block;
                for p in &run.pieces {
                    pieces.push(Piece {
                        len: p.len.into(),
                        kind: p.kind,
                        block,
                        blocks: p.blocks,
                        partial: false,
                    });
                    block += u32::from(p.blocks);
                }
            }
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
            FileData::Compressed(data) => {
                used.incompat |= incompat::LZ4_0PADDING;
                if let FileTail::Inline(_) = data.tail {
                    used.incompat |= incompat::ZTAILPACKING;
                }
                used.algorithms |= 1 << data.algorithm;
                let largest = &mut used.largest[usize::from(data.algorithm & 3)];
                for p in data.runs.iter().flat_map(|r| &r.pieces) {
                    *largest = (*largest).max(p.blocks);
                }
            }
        }
    }
    if packed.is_some() {
        used.incompat |= incompat::FRAGMENTS | incompat::LZ4_0PADDING;
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
        .flat_map(|c| [(c, o.cluster), (c, o.fragment_cluster)]);
    let specs: Vec<EncoderSpec> = rules
        .chain(default)
        .map(|(c, cluster)| o.encoder(c, cluster))
        .collect();
    let has = |id: u8| used.algorithms & 1 << id != 0;
    let largest = |id: u8| {
        let of = specs.iter().filter(|s| s.method.algorithm() as u8 == id);
        of.map(EncoderSpec::history).max().unwrap_or(0) as u32
    };
    Configs {
        lz4: has(0).then_some(Lz4 {
            max_distance: 65535,
            max_pcluster_blocks: used.largest[0].max(1),
        }),
        lzma_dict_size: has(1).then(|| largest(1).clamp(4096, 8 << 20)),
        deflate_window_bits: has(2).then_some(15),
        zstd_window_log: has(3).then(|| {
            largest(3)
                .next_power_of_two()
                .trailing_zeros()
                .clamp(10, 20) as u8
        }),
    }
}

fn emit_superblock(
    parts: &Parts<'_>,
    plan: &Plan,
    prefix_at: Option<(u64, u8)>,
    meta_digest: u128,
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
        blocks: plan.blocks(bits),
        meta_blkaddr: plan.meta_blkaddr(),
        xattr_blkaddr: plan.xattr_block,
        uuid: [0; 16],
        label,
        algs_or_distance: 0,
        extra_devices: 0,
        devt_slotoff: 0,
        xattr_prefix_count: 0,
        xattr_prefix_start: 0,
        packed: plan.packed_position.map(|p| Nid((bits.size() + p) / 32)),
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
    covered.resize(len, 0);
    if o.checksum {
        superblock::seal(&mut covered);
    }
    let fail = |e| Error::io("image", "cannot write", e);
    output
        .write_at(&[0; superblock::OFFSET as usize], 0)
        .map_err(fail)?;
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
    // 1024 bytes, superblock and records: 256 bytes at most.
    bits.count(1024 + 256) as u32
}
