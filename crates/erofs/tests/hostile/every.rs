//! Small image with every feature that the reader supports, in two forms: with a flat and with a
//! compressed metabox.

#![allow(unreachable_pub, reason = "module of a test")]

use std::sync::Arc;
use tuff_codec::Method;
use tuff_format::chunk::{Chunk, Format};
use tuff_format::cluster::header::{FRAGMENT, INTERLACED};
use tuff_format::cluster::write::{Piece, Tail, index};
use tuff_format::cluster::{HeadKind, Lcluster};
use tuff_format::device::Slot;
use tuff_format::features::{compat, incompat};
use tuff_format::inode::{FileType, Inode, Layout};
use tuff_format::xattr::filter_bit;
use tuff_format::{BlockAddr, DeviceId};
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::content::{noise, text};
use tuff_testkit::sheet::{
    BS, HEADER_POS, PARTIAL, Sheet, boxed, compact, dir_block, entry, extents, full_index, inode,
    len_word, place, record16, record32, squeeze, xattrs,
};

// Format field of an extent record.
const STORED: u32 = 0;
const LZ4: u32 = 1;
const LZMA: u32 = 2;
const DEFLATE: u32 = 3;
const ZSTD: u32 = 4;

/// Extra devices of the image, the same for every damage.
pub fn devices() -> Vec<Arc<dyn ReadAt>> {
    [noise(8192, 2), noise(4096, 3)]
        .into_iter()
        .map(|d| Arc::new(MemStore::new(d)) as Arc<dyn ReadAt>)
        .collect()
}

/// Assembles the image. Names describe the form of each inode.
pub fn every(compressed_metabox: bool) -> Vec<u8> {
    let mut sheet = Sheet::new(incompat::KNOWN);
    sheet.sb.compat |= compat::MTIME | compat::XATTR_FILTER | compat::SHARED_EA_IN_METABOX;
    sheet.sb.fixed_nsec = 5;
    for (blocks, uniaddr) in [(2, 0x1000), (1, 0x1002)] {
        sheet.slots.push(Slot {
            tag: [0; 64],
            blocks,
            uniaddr: BlockAddr(uniaddr),
        });
    }
    metabox(&mut sheet);
    root(&mut sheet);
    plain(&mut sheet);
    chunks(&mut sheet);
    indexed(&mut sheet);
    encoded(&mut sheet);
    fragments(&mut sheet);
    sheet.close_metabox(place(27), compressed_metabox);
    sheet.finish()
}

/// Writes into the metabox: a shared attribute, long prefixes, a directory and two kinds of files.
fn metabox(sheet: &mut Sheet) {
    let mut shared = Vec::new();
    entry(1, "shared", "by two").encode(&mut shared);
    sheet.write(true, 16, &shared);
    let table = sheet.prefixes(64, &[(4, "overlay."), (1, "long.")]);
    sheet.write(true, 64, &table);
    let entries = [
        ("boxed-compact", boxed(3), FileType::File),
        ("boxed-inline", boxed(2), FileType::File),
    ];
    let opaque = [(0x80, "opaque", "y"), (0x81, "empty", "")];
    sheet.put_dir(boxed(1), place(0), &xattrs(&[4], &opaque), &entries);
    let inline = inode(Layout::FlatInline, 5, 0);
    sheet.put(boxed(2), inline, &[], 1, b"tail.");
    // 17 lclusters: a COMPACT index with a pack of 16.
    let data = text(66_000, 1);
    let packed = squeeze(Method::Lz4, &data);
    let piece = Piece {
        len: data.len() as u64,
        kind: HeadKind::Head1,
        block: sheet.cluster(&packed),
        blocks: packed.len().div_ceil(BS) as u16,
        partial: false,
    };
    let bits = sheet.sb.block_bits;
    let packs = index(&[piece], Tail::Cluster, 0, HEADER_POS, bits, true);
    assert!(packs.compact);
    let file = inode(Layout::CompressedCompact, 66_000, piece.blocks.into());
    sheet.put(boxed(3), file, &[], 8, &packs.bytes);
    // Makes the metabox longer than a block.
    sheet.write(true, 4096, &[0xAB; 10]);
}

fn root(sheet: &mut Sheet) {
    use FileType::{Char, Dir, Fifo, File, Symlink};
    let entries = [
        ("box", boxed(1), Dir),
        ("chunks", place(8), File),
        ("compact-inode", place(4), File),
        ("device", place(6), Char),
        ("extents-16", place(17), File),
        ("extents-32", place(18), File),
        ("extents-4", place(15), File),
        ("extents-8", place(16), File),
        ("fifo", place(7), Fifo),
        ("flat", place(2), File),
        ("flat-device", place(10), File),
        ("heads", place(12), File),
        ("inline", place(3), File),
        ("inline-cluster", place(14), File),
        ("interlaced", place(13), File),
        ("link", place(5), Symlink),
        ("map", place(9), File),
        ("part", place(20), File),
        ("rotated", place(19), File),
        ("twin", place(3), File),
        ("whole", place(21), File),
        ("wide", place(23), Dir),
        ("zeros", place(11), File),
    ];
    sheet.put_dir(place(0), place(0), &xattrs(&[4], &[]), &entries);
    // A directory of two blocks without a "." entry.
    let names: Vec<_> = (0..40).map(|i| format!("name-{i:0120}")).collect();
    let mut first = vec![("..", place(0), File)];
    first[0].2 = Dir;
    let mut blocks = Vec::new();
    let mut last = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let list = if i < 28 { &mut first } else { &mut last };
        list.push((name, place(2 + (i % 3) as u64), File));
    }
    blocks.extend(dir_block(first));
    assert!(blocks.len() <= BS);
    blocks.resize(BS, 0);
    blocks.extend(dir_block(last));
    let size = blocks.len() as u64;
    let block = sheet.blocks(&blocks);
    let wide = Inode {
        flag4: true,
        mode: 0o040755,
        nlink: 2,
        ..inode(Layout::FlatPlain, size, block.into())
    };
    sheet.put(place(23), wide, &[], 1, &[]);
}

/// Writes flat files, a symlink, a device, a fifo, and a file of zeros without blocks.
fn plain(sheet: &mut Sheet) {
    let block = sheet.blocks(&noise(4000, 4));
    let flat = inode(Layout::FlatPlain, 4000, block.into());
    sheet.put(place(2), Inode { nlink: 15, ..flat }, &[], 1, &[]);
    // A Bloom filter of attribute names: the bits of existing names are clear.
    let mut body = Vec::new();
    let filter = !(filter_bit(1, b"colour") | filter_bit(1, b"empty"));
    let entries = [entry(1, "colour", "blue"), entry(1, "empty", "")];
    tuff_format::xattr::encode_body(filter, &[], &entries, &mut body);
    let inline = inode(Layout::FlatInline, 6, 0);
    let twice = Inode {
        nlink: 15,
        ..inline
    };
    sheet.put(place(3), twice, &body, 1, b"inline");
    let block = sheet.blocks(&text(4096, 9));
    let small = Inode {
        mtime: 77,
        nlink: 14,
        ..compact(Layout::FlatPlain, 4096, block.into())
    };
    sheet.put(place(4), small, &[], 1, &[]);
    let link = Inode {
        mode: 0o120777,
        ..inode(Layout::FlatInline, 10, 0)
    };
    sheet.put(place(5), link, &[], 1, b"../outside");
    let device = Inode {
        mode: 0o020600,
        ..inode(Layout::FlatPlain, 0, 0x0103)
    };
    sheet.put(place(6), device, &[], 1, &[]);
    let fifo = Inode {
        mode: 0o010600,
        ..inode(Layout::FlatPlain, 0, 0)
    };
    sheet.put(place(7), fifo, &[], 1, &[]);
    let zeros = inode(Layout::FlatPlain, 5000, (1 << 48) - 1);
    sheet.put(place(11), zeros, &[], 1, &[]);
}

/// Writes chunk-based files of both entry widths, with holes, on all devices, and a flat file on a
/// device.
fn chunks(sheet: &mut Sheet) {
    let own = sheet.blocks(&noise(4096, 1));
    let wide = Format {
        bits: 0,
        indexes: true,
        bit48: false,
    };
    let mut table = Vec::new();
    for (device, block) in [(1, 1), (0, own.into()), (2, 0), (1, 0)] {
        let (device, block) = (DeviceId(device), BlockAddr(block));
        wide.encode_entry(Chunk::Data { device, block }, &mut table);
        wide.encode_entry(Chunk::Hole, &mut table);
    }
    let file = inode(Layout::ChunkBased, 8 * 4096 - 9, wide.encode().into());
    sheet.put(place(8), file, &[], 8, &table);
    let narrow = Format {
        bits: 1,
        indexes: false,
        bit48: false,
    };
    let mut table = Vec::new();
    let block = sheet.blocks(&noise(8192, 5)).into();
    narrow.encode_entry(Chunk::Hole, &mut table);
    let device = DeviceId::PRIMARY;
    narrow.encode_entry(Chunk::Data { device, block }, &mut table);
    narrow.encode_entry(Chunk::Hole, &mut table);
    let file = inode(Layout::ChunkBased, 5 * 4096, narrow.encode().into());
    sheet.put(place(9), file, &[], 4, &table);
    let flat = inode(Layout::FlatPlain, 8192, 0x1000);
    sheet.put(place(10), flat, &[], 1, &[]);
}

fn head(kind: HeadKind, ofs: u16, block: u32) -> Lcluster {
    Lcluster::Head {
        kind,
        ofs,
        block,
        partial: false,
    }
}

/// Writes files with indexes: two algorithms, an interlaced cluster, and an inline last cluster.
fn indexed(sheet: &mut Sheet) {
    let (a, b) = (text(5_000, 1), text(6_000, 2));
    let first = sheet.cluster(&squeeze(Method::Lz4hc, &a));
    let second = sheet.cluster(&squeeze(Method::Deflate, &b));
    let entries = [
        head(HeadKind::Head1, 0, first),
        head(HeadKind::Head2, 904, second), // 4096 + 904 = 5000
        head(HeadKind::Plain, 2808, 0),     // the end: 8192 + 2808 = 11000
    ];
    let file = inode(Layout::CompressedFull, 11_000, 2);
    let payload = full_index(0, 0, 0x20, &entries);
    sheet.put(place(12), file, &[], 8, &payload);

    let (a, b) = (text(6_000, 1), noise(4_096, 2));
    let first = sheet.cluster(&squeeze(Method::Lz4hc, &a));
    let mut rotated = b.clone();
    rotated.rotate_right(6_000 % 4096);
    let second = sheet.blocks(&rotated);
    let entries = [
        head(HeadKind::Head1, 0, first),
        head(HeadKind::Plain, 1_904, second), // 4096 + 1904 = 6000
        head(HeadKind::Plain, 1_904, 0),      // the end
    ];
    let file = inode(Layout::CompressedFull, 10_096, 2);
    let payload = full_index(0, INTERLACED, 0, &entries);
    sheet.put(place(13), file, &[], 8, &payload);

    // A cluster of two blocks, then an inline one.
    let (big, tail) = (noise(5_000, 8), text(900, 3));
    let (first, last) = (
        squeeze(Method::Zstd, &[&big[..], &text(10_000, 4)].concat()),
        squeeze(Method::Zstd, &tail),
    );
    let blocks = first.len().div_ceil(BS) as u16;
    assert_eq!(blocks, 2);
    let pieces = [
        Piece {
            len: 15_000,
            kind: HeadKind::Head1,
            block: sheet.cluster(&first),
            blocks,
            partial: false,
        },
        Piece {
            len: 900,
            kind: HeadKind::Head1,
            block: 0,
            blocks: 0,
            partial: false,
        },
    ];
    let bits = sheet.sb.block_bits;
    let tail = Tail::Inline(last.len() as u16);
    let mut packs = index(&pieces, tail, 3, HEADER_POS, bits, true);
    assert!(packs.compact);
    packs.bytes.extend(last);
    let file = inode(Layout::CompressedCompact, 15_900, 2);
    sheet.put(place(14), file, &[], 8, &packs.bytes);
}

/// Writes files with encoded extents, with records of all four lengths.
fn encoded(sheet: &mut Sheet) {
    let whole = text(8192, 1);
    let (z, d) = (
        squeeze(Method::Zstd, &whole),
        squeeze(Method::Deflate, &whole),
    );
    sheet.run(b"odd");
    let start = sheet.run(&z);
    sheet.run(&d);
    sheet.run(&noise(100, 2));
    let words = [
        len_word(z.len() as u32, ZSTD),
        0, // a hole takes no space
        len_word(d.len() as u32, DEFLATE),
        len_word(100, STORED),
    ];
    let mut table = start.to_le_bytes().to_vec();
    table.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    let file = inode(Layout::CompressedFull, 3 * 8192 + 100, 1);
    sheet.put(place(15), file, &[], 8, &extents(4, 0, 1, 0, &table));

    // The last two refer to the cluster of the first, completely and in part.
    let packed = squeeze(Method::Lz4, &text(16384, 3));
    let plen = packed.len().next_multiple_of(BS) as u32;
    let at = sheet.cluster(&packed) * BS as u32;
    let words = [
        [len_word(plen, LZ4), at],
        [0, 0],
        [len_word(plen, LZ4), at],
        [len_word(plen, LZ4) | PARTIAL, at],
    ];
    let table: Vec<u8> = words
        .as_flattened()
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let file = inode(
        Layout::CompressedFull,
        3 * 16384 + 5000,
        (plen / 4096).into(),
    );
    sheet.put(place(16), file, &[], 8, &extents(8, 0, 2, 0, &table));

    let (a, b, c) = (text(10_000, 4), text(7_000, 5), noise(300, 6));
    let (za, zb) = (squeeze(Method::Deflate, &a), squeeze(Method::Lzma, &b));
    let (pa, pb, pc) = (sheet.run(&za), sheet.run(&zb), sheet.run(&c));
    let table = [
        record16(len_word(za.len() as u32, DEFLATE), pa, 0),
        record16(len_word(zb.len() as u32, LZMA), pb, 10_000),
        record16(0, 0, 17_000),
        record16(len_word(300, STORED), pc, 37_000),
        record16(len_word(za.len() as u32, DEFLATE) | PARTIAL, pa, 37_300),
        record16(9, 0, 38_300), // the first word is an offset in the packed inode
    ]
    .concat();
    let file = inode(Layout::CompressedFull, 38_312, 1);
    let payload = extents(16, 6, 0, FRAGMENT, &table);
    sheet.put(place(17), file, &[], 8, &payload);

    let far = 70_000;
    let (za, zb) = (
        squeeze(Method::Zstd, &text(9_000, 7)),
        squeeze(Method::Lz4hc, &text(5_000, 8)),
    );
    let (pa, pb) = (sheet.run(&za), sheet.run(&zb));
    let table = [
        record32(len_word(za.len() as u32, ZSTD), pa, 0),
        record32(0, 0, 9_000),
        record32(len_word(zb.len() as u32, LZ4), pb, far),
    ]
    .concat();
    let file = inode(Layout::CompressedFull, far + 5_000, 1);
    sheet.put(place(18), file, &[], 8, &extents(32, 3, 0, 0, &table));

    let (a, b) = (noise(200, 1), noise(4096, 2));
    let mut rotated = b.clone();
    rotated.rotate_right(200);
    let pb = u64::from(sheet.blocks(&rotated)) * BS as u64;
    let pa = sheet.run(&a);
    let table = [
        record16(len_word(200, STORED), pa, 0),
        record16(len_word(4096, STORED), pb, 200),
    ]
    .concat();
    let file = inode(Layout::CompressedFull, 4296, 1);
    let payload = extents(16, 2, 0, INTERLACED, &table);
    sheet.put(place(19), file, &[], 8, &payload);
}

/// Writes the packed inode, a file of a part of its cluster, and a file that is one fragment.
fn fragments(sheet: &mut Sheet) {
    sheet.put_fragments([place(22), place(20), place(21)], &text(12_000, 1));
}
