//! Small images that declare large amounts of data: huge files in every layout, and trees that are deep, wide or shared.

use crate::sheet::{BS, Sheet, dir_block, extents, full_index, inode, len_word, place, record32};
use tuff_format::Nid;
use tuff_format::chunk::Format;
use tuff_format::cluster::MapHeader;
use tuff_format::features::incompat;
use tuff_format::inode::{FileType, Inode, Layout};

/// All features except the metabox.
const EXTENDED: u32 = incompat::KNOWN & !incompat::METABOX;
/// Start block of a file without blocks.
const NO_START: u64 = (1 << 48) - 1;

/// Name and bytes of an image.
pub type Shape = (String, Vec<u8>);

/// Returns an image for each layout and each size in bytes. Each has one file that declares the size.
pub fn claimed_files(sizes: &[u64]) -> Vec<Shape> {
    let mut out = Vec::new();
    for &size in sizes {
        for (layout, build) in LAYOUTS {
            let mut sheet = Sheet::new(EXTENDED);
            sheet.put_root(&[("file", place(1))]);
            build(&mut sheet, size);
            out.push((format!("{layout}-{}", size.ilog2()), sheet.finish()));
        }
    }
    out
}

type Layouts = [(&'static str, fn(&mut Sheet, u64)); 10];

const LAYOUTS: Layouts = [
    ("plain", |sheet, size| {
        let block = sheet.blocks(b"data");
        let file = inode(Layout::FlatPlain, size, block.into());
        sheet.put(place(1), file, &[], 1, &[]);
    }),
    ("plain-hole", |sheet, size| {
        let file = inode(Layout::FlatPlain, size, NO_START);
        sheet.put(place(1), file, &[], 1, &[]);
    }),
    ("inline", |sheet, size| {
        let block = sheet.blocks(b"data");
        let file = inode(Layout::FlatInline, size | 7, block.into());
        sheet.put(place(1), file, &[], 1, b"tail...");
    }),
    ("chunks-hole", |sheet, size| {
        let (file, table) = chunks(size, u32::MAX);
        sheet.put(place(1), file, &[], 8, &table);
    }),
    ("chunks-data", |sheet, size| {
        let block = sheet.blocks(b"data");
        let (file, table) = chunks(size, block);
        sheet.put(place(1), file, &[], 8, &table);
    }),
    ("extent-hole", |sheet, size| {
        let payload = extents(32, 1, 0, 0, &record32(0, 0, 0));
        let file = inode(Layout::CompressedFull, size, 1);
        sheet.put(place(1), file, &[], 32, &payload[..]);
    }),
    ("extent-data", |sheet, size| {
        let at = sheet.run(&[7; BS]);
        let payload = extents(32, 1, 0, 0, &record32(len_word(BS as u32, 1), at, 0));
        let file = inode(Layout::CompressedFull, size, 1);
        sheet.put(place(1), file, &[], 8, &payload);
    }),
    ("fragment", |sheet, size| {
        let block = sheet.blocks(b"data");
        packed(sheet, inode(Layout::FlatPlain, size, block.into()), size);
    }),
    ("fragment-hole", |sheet, size| {
        packed(sheet, inode(Layout::FlatPlain, size, NO_START), size);
    }),
    ("index", |sheet, size| {
        // Only the part of the index that fits into a place.
        let file = inode(Layout::CompressedFull, size, 1);
        let index = full_index(0, 0, 0, &[]);
        sheet.put(place(1), file, &[], 8, &index);
    }),
];

/// Returns an image with a file of `size` bytes in every layout that has holes. Almost all of each file is a hole.
pub fn holes(size: u64) -> Vec<u8> {
    let mut sheet = Sheet::new(EXTENDED);
    sheet.put_root(&[
        ("chunks", place(3)),
        ("extents", place(4)),
        ("flat", place(5)),
        ("fragment", place(1)),
    ]);
    packed(&mut sheet, inode(Layout::FlatPlain, size, NO_START), size);
    let (file, table) = chunks(size, u32::MAX);
    sheet.put(place(3), file, &[], 8, &table);
    let at = sheet.run(&[7; BS]);
    let records = [record32(0, 0, 0), record32(BS as u32, at, size - BS as u64)].concat();
    let file = inode(Layout::CompressedFull, size, 1);
    sheet.put(place(4), file, &[], 8, &extents(32, 2, 0, 0, &records));
    let file = inode(Layout::FlatPlain, size, NO_START);
    sheet.put(place(5), file, &[], 1, &[]);
    sheet.finish()
}

/// Returns an image with `files` files whose data is the same `len` bytes.
pub fn same_blocks(files: u64, len: usize) -> Vec<u8> {
    assert!(files <= 150, "the root is one block");
    let mut sheet = Sheet::new(EXTENDED);
    let names: Vec<String> = (0..files).map(|i| format!("{i:04}")).collect();
    let entries: Vec<_> = names
        .iter()
        .zip(0..)
        .map(|(n, i)| (&n[..], nid_of(i)))
        .collect();
    for (_, nid) in &entries {
        let start = (16384 + 512 * files).div_ceil(BS as u64);
        sheet.put(
            *nid,
            inode(Layout::FlatPlain, len as u64, start),
            &[],
            1,
            &[],
        );
    }
    sheet.blocks(&vec![7; len]);
    sheet.put_root(&entries);
    sheet.finish()
}

/// Returns a file of the largest chunks and its table. The size is limited to the chunks whose table fits into a place.
fn chunks(size: u64, block: u32) -> (Inode, Vec<u8>) {
    let format = Format {
        bits: 31,
        indexes: false,
        bit48: false,
    };
    let count = size.div_ceil(BS as u64 * (1 << 31)).min(100);
    let size = size.min(count * BS as u64 * (1 << 31));
    let file = inode(Layout::ChunkBased, size, format.encode().into());
    (file, block.to_le_bytes().repeat(count as usize))
}

/// Writes a packed inode, and a file that is one fragment with all of its data.
fn packed(sheet: &mut Sheet, file: Inode, size: u64) {
    sheet.sb.packed = Some(place(2));
    sheet.put(place(2), file, &[], 1, &[]);
    let header = MapHeader::WholeFragment { offset: 0 };
    let file = inode(Layout::CompressedFull, size, 0);
    sheet.put(place(1), file, &[], 8, &header.encode());
}

fn directory(size: u64, block: u64) -> Inode {
    Inode {
        mode: 0o040755,
        nlink: 2,
        ..inode(Layout::FlatPlain, size, block)
    }
}

/// Returns an image with `depth` nested directories, whose names have `name_len` bytes, and a file in the last one.
pub fn deep(depth: u64, name_len: usize) -> Vec<u8> {
    let mut sheet = Sheet::new(EXTENDED);
    let name = "d".repeat(name_len);
    sheet.put_dir(
        place(0),
        place(0),
        &[],
        &[(&name, nid_of(0), FileType::Dir)],
    );
    for i in 0..depth {
        let parent = if i == 0 { place(0) } else { nid_of(i - 1) };
        let last = i + 1 == depth;
        let kind = if last { FileType::File } else { FileType::Dir };
        sheet.put_dir(nid_of(i), parent, &[], &[(&name, nid_of(i + 1), kind)]);
    }
    sheet.put(
        nid_of(depth),
        inode(Layout::FlatInline, 4, 0),
        &[],
        1,
        b"leaf",
    );
    sheet.finish()
}

/// Returns the i-th inode after the places, 512 bytes each.
fn nid_of(i: u64) -> Nid {
    Nid((16384 + 512 * i) / 32)
}

/// Returns an image with `dirs` directories that share their data blocks, which contain `names` names of files.
pub fn shared(dirs: u64, names: u64) -> Vec<u8> {
    let mut sheet = Sheet::new(EXTENDED);
    let listed: Vec<String> = (0..names).map(|i| format!("{i:08}")).collect();
    let first = 16384 + 32 * 2 * dirs;
    let file = Nid(first.next_multiple_of(512) / 32);
    let mut data = Vec::new();
    for block in listed.chunks(150) {
        let mut entries: Vec<_> = block
            .iter()
            .map(|name| (&name[..], file, FileType::File))
            .collect();
        if data.is_empty() {
            entries.extend([
                (".", place(0), FileType::Dir),
                ("..", place(0), FileType::Dir),
            ]);
        }
        data.extend_from_slice(&dir_block(entries));
        data.resize(data.len().next_multiple_of(BS), 0);
    }
    let name: Vec<String> = (0..dirs).map(|i| format!("{i:08}")).collect();
    let mut root = Vec::new();
    for (n, block) in name.chunks(150).enumerate() {
        let mut entries: Vec<_> = block
            .iter()
            .enumerate()
            .map(|(i, name)| {
                (
                    &name[..],
                    Nid((16384 + 64 * (150 * n + i) as u64) / 32),
                    FileType::Dir,
                )
            })
            .collect();
        if n == 0 {
            entries.extend([
                (".", place(0), FileType::Dir),
                ("..", place(0), FileType::Dir),
            ]);
        }
        root.extend_from_slice(&dir_block(entries));
        root.resize(root.len().next_multiple_of(BS), 0);
    }
    sheet.put(file, inode(Layout::FlatInline, 4, 0), &[], 1, b"file");
    let at = (file.0 as usize * 32 + 512).next_multiple_of(BS);
    sheet.write(false, at, &data);
    let root_at = sheet.blocks(&root);
    for i in 0..dirs {
        let dir = directory(data.len() as u64, (at / BS) as u64);
        sheet.put(Nid((16384 + 64 * i) / 32), dir, &[], 1, &[]);
    }
    sheet.put(
        place(0),
        directory(root.len() as u64, root_at.into()),
        &[],
        1,
        &[],
    );
    sheet.finish()
}
