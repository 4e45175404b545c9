//! Writing of an inode and everything that follows it.

use super::directory::dir_blocks;
use crate::Result;
use crate::layout::{self, Parts, Plan};
use crate::pack::address::{GrainAddr, Location};
use crate::pack::piece::ShortPiece;
use crate::pack::{Encoded, FileData, FileTail};
use crate::tree::{InodeId, NodeKind, START_LIST, is_hidden};
use tuff_format::cluster::header::MapHeader;
use tuff_format::cluster::write::header_pos;
use tuff_format::cluster::{Coding, Data, Extent, HeadKind, extent};
use tuff_format::inode::{FileType, Inode, Layout, encode_device};
use tuff_format::{BlockAddr, DeviceId, chunk, xattr};

/// Appends an inode with its attributes, its index and its inline tail.
pub(super) fn emit_inode(
    parts: &Parts<'_>,
    plan: &Plan,
    id: InodeId,
    out: &mut Vec<u8>,
) -> Result<()> {
    if id == START_LIST {
        emit_start_list(plan, out);
        return Ok(());
    }
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
        mtime: if form.extended { plan.epoch.seconds } else { 0 },
        mtime_nsec: if form.extended { plan.epoch.nanos } else { 0 },
        u: 0,
        ino: plan.serial(id),
        uid: 0,
        gid: 0,
        no_start: false,
    };
    if !is_hidden(id) {
        let tree = parts.tree;
        inode.mode = tree.meta(id).mode & 0o7777 | tree.file_type(id).mode_bits();
        inode.nlink = tree.nlink(id);
        (inode.uid, inode.gid) = parts.owner(id);
        let time = parts.time(id);
        if form.extended {
            (inode.mtime, inode.mtime_nsec) = time;
        } else if let Some(delay) = plan.epoch.delay(time) {
            inode.mtime = delay.into();
        }
        match tree.kind(id) {
            NodeKind::Char(d) | NodeKind::Block(d) => {
                inode.u = encode_device(d.major, d.minor).into()
            }
            NodeKind::Fifo | NodeKind::Socket => {}
            NodeKind::Dir if form.layout == Layout::CompressedFull => {}
            NodeKind::Dir | NodeKind::Symlink(_) => {
                inode.u = plan.block_of.get(&id).map_or(no_block, |b| u64::from(*b));
            }
            NodeKind::File { .. } => {}
        }
    }
    let is_file = is_hidden(id) || parts.tree.file_type(id) == FileType::File;
    if is_file {
        inode.u = match parts.data(id) {
            FileData::None | FileData::Same(_) => no_block,
            FileData::Flat { block, .. } if bits.count(form.size - form.tail) > 0 => {
                plan.block_address(*block).into()
            }
            FileData::Flat { .. } => no_block,
            FileData::WholeFragment { .. } => 0,
            data @ (FileData::Chunked(_) | FileData::OneChunk { .. } | FileData::Table(_)) => {
                let chunks = data.chunks(form.size, bits).expect("it has chunks");
                parts.chunk_format(&chunks).encode().into()
            }
            data => {
                let data = data.compressed().expect("all others were matched");
                let grains = data.pieces().map(|(_, p)| u64::from(p.grains)).sum::<u64>();
                bits.count(grains * parts.options.grain().size() as u64)
            }
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
            NodeKind::Dir if form.layout == Layout::CompressedFull => {
                let dirs = &plan.packed_dirs;
                let i = dirs.binary_search_by_key(&plan.serial(id), |(dir, _)| plan.serial(*dir));
                let (_, offset) = dirs[i.expect("all such directories were placed")];
                emit_whole_fragment(offset, start, out);
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

/// Appends the inode of the start list, with the list if it is inline.
fn emit_start_list(plan: &Plan, out: &mut Vec<u8>) {
    let Some(start) = &plan.start else {
        return;
    };
    let block = plan.block_of.get(&START_LIST);
    let inode = Inode {
        extended: false,
        layout: match start.is_inline {
            true => Layout::FlatInline,
            false => Layout::FlatPlain,
        },
        flag4: false,
        xattr_icount: 0,
        mode: 0o100_400,
        // No directory names it.
        nlink: 0,
        size: start.bytes.len() as u64,
        mtime: 0,
        mtime_nsec: 0,
        u: block.map_or(u32::MAX.into(), |block| u64::from(*block)),
        // Serial numbers are those of the tree.
        ino: 0,
        uid: 0,
        gid: 0,
        no_start: false,
    };
    inode.encode(out);
    if start.is_inline {
        out.extend_from_slice(&start.bytes);
    }
}

/// Appends the map header of a file that is a fragment as a whole. The inode starts at `start` of `out`.
fn emit_whole_fragment(offset: u64, start: usize, out: &mut Vec<u8>) {
    let len = (out.len() - start).next_multiple_of(8);
    out.resize(start + len, 0);
    out.extend_from_slice(&MapHeader::WholeFragment { offset }.encode());
    out.extend_from_slice(&[0; 8]);
}

/// Appends index or chunk table and the inline tail of a file. The inode starts at `start` of `out`.
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
            emit_whole_fragment(offset.offset(), start, out);
        }
        data @ (FileData::Chunked(_) | FileData::OneChunk { .. } | FileData::Table(_)) => {
            let size = parts.tree.size(id);
            let chunks = data.chunks(size, bits).expect("it has chunks");
            let format = parts.chunk_format(&chunks);
            pad(out, format.entry_len());
            let mut at = 0;
            for (run, block) in chunks.runs() {
                let (device, block) = match (block.location(), parts.base) {
                    (Location::Base(block), Some(bases)) => bases.block_on_device(block),
                    (Location::Base(block) | Location::Image(block), _) => {
                        (DeviceId(chunks.external.into()), block)
                    }
                };
                let mut block = BlockAddr::from(block);
                while at < run.first {
                    format.encode_entry(chunk::Chunk::Hole, out);
                    at += 1;
                }
                for _ in 0..run.count {
                    format.encode_entry(chunk::Chunk::Data { device, block }, out);
                    block.0 += 1 << format.bits;
                    at += 1;
                }
            }
            while at < format.chunk_count(size, bits) {
                format.encode_entry(chunk::Chunk::Hole, out);
                at += 1;
            }
        }
        data => {
            let data = data.compressed().expect("all others were matched");
            pad(out, 8);
            let header = header_pos((out.len() - start) as u64);
            let index = if parts.options.layout.unaligned {
                extent::encode(&extents(parts, plan, &data), header, bits)
            } else {
                let compact = parts.has_compact_index(id, &data, header);
                let index = layout::index(&data, plan.base_block, header, bits, compact);
                assert_eq!(
                    index.compact, compact,
                    "contiguous clusters have a compact index"
                );
                index.bytes
            };
            out.extend_from_slice(&index);
            if let FileTail::Inline(t) = data.tail {
                parts.packed.spill.get(t, out)?;
            }
        }
    }
    Ok(())
}

/// Returns the extents of a compressed file whose clusters start anywhere.
fn extents(parts: &Parts<'_>, plan: &Plan, data: &Encoded<'_>) -> Vec<Extent> {
    let (bits, grain) = (parts.options.block, parts.options.grain());
    assert!(
        !matches!(data.tail, FileTail::Inline(_)),
        "an index of extents has no end behind it"
    );
    let mut la = 0;
    let extent = |(cluster, p): (GrainAddr, ShortPiece)| {
        let len = u64::from(p.len);
        la += len;
        let data = match data.tail {
            FileTail::Fragment(offset) if p.grains == 0 => Data::Fragment {
                offset: offset.offset(),
            },
            _ => Data::Cluster {
                pa: plan.cluster_position(cluster, bits, grain),
                // Fits: at most 1 MiB.
                plen: grain.bytes(p.grains.into()) as u32,
                coding: match p.kind {
                    HeadKind::Plain => Coding::Stored,
                    kind => Coding::Compressed(data.algorithm_of(kind)),
                },
                partial: p.partial,
            },
        };
        Extent {
            la: la - len,
            len,
            data,
        }
    };
    data.pieces().map(extent).collect()
}
