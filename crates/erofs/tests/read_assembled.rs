//! Images assembled structure by structure, with forms that neither Tuff nor mkfs.erofs writes. The
//! reader returns the content, the check finds nothing, and a kernel with the features reads the
//! same tree.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_codec::Method;
use tuff_erofs::check::{Options, check};
use tuff_erofs::read::{Image, Location, OpenOptions};
use tuff_format::chunk::{Chunk, Format};
use tuff_format::cluster::header::{FRAGMENT, INTERLACED};
use tuff_format::cluster::write::{Piece, Tail, index};
use tuff_format::cluster::{HeadKind, Lcluster};
use tuff_format::device::Slot;
use tuff_format::features::{compat, incompat};
use tuff_format::inode::{FileType, Inode, Layout};
use tuff_format::{BlockAddr, DeviceId, Nid};
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::Scratch;
use tuff_testkit::content::noise;
use tuff_testkit::content::text;
use tuff_testkit::is_root;
use tuff_testkit::sheet::{
    BS, EPOCH, HEADER_POS, PARTIAL, Sheet, boxed, compact, dir_block, entry, extents, full_index,
    inode, len_word, place, record16, record32, squeeze, xattrs,
};
use tuff_testkit::tree::Ignore;
use tuff_testkit::tree::assert_same;
use tuff_testkit::tree::host_tree;
use tuff_testkit::tree::image_tree;

const COMPRESSED: u32 = incompat::LZ4_0PADDING | incompat::COMPR_CFGS;
const EXTENTS: u32 = COMPRESSED | incompat::BIT48;
// Format field of an extent record.
const STORED: u32 = 0;
const LZ4: u32 = 1;
const LZMA: u32 = 2;
const DEFLATE: u32 = 3;
const ZSTD: u32 = 4;

fn open(bytes: &[u8], devices: &[&[u8]]) -> Image {
    let devices = devices
        .iter()
        .map(|d| Arc::new(MemStore::new(*d)) as Arc<dyn ReadAt>)
        .collect();
    let options = OpenOptions {
        devices,
        ..OpenOptions::default()
    };
    Image::open(MemStore::new(bytes), options).unwrap()
}

fn content(image: &Image, path: &str) -> Vec<u8> {
    let inode = image.resolve(path.as_bytes()).unwrap();
    let mut out = Vec::new();
    std::io::copy(&mut image.reader(&inode).unwrap(), &mut out).unwrap();
    // Reads of parts return the same bytes.
    let mut random = tuff_testkit::Rng::new(inode.size());
    for _ in 0..20 {
        let at = random.below_u64(out.len() as u64 + 1) as usize;
        let mut part = vec![0xEE; random.below_u64(9000) as usize];
        let n = image.read_at(&inode, &mut part, at as u64).unwrap();
        assert!(part[..n] == out[at..(at + part.len()).min(out.len())]);
    }
    out
}

/// Asserts that the check finds nothing.
fn assert_clean(image: &Image) {
    let report = check(image, &Options::default(), |_| ());
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Image that is mounted directly from a file.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        // Another test that starts a process may hold a file of the mount for a moment.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Mounts `bytes` if the kernel lists these features in /sys/fs/erofs/features. Otherwise reports a
/// skipped test and returns `None`.
fn kernel(scratch: &Scratch, needs: &[&str], bytes: &[u8], devices: &[&[u8]]) -> Option<Mount> {
    let missing = needs
        .iter()
        .find(|f| !Path::new("/sys/fs/erofs/features").join(f).exists());
    if let Some(feature) = missing {
        tuff_testkit::skipped(format_args!(
            "erofs of this kernel lacks the feature {feature}"
        ));
        return None;
    }
    if !is_root() {
        tuff_testkit::skipped("mounting needs root");
        return None;
    }
    let file = scratch.path().join("image");
    std::fs::write(&file, bytes).unwrap();
    let mut options = Vec::new();
    for (i, device) in devices.iter().enumerate() {
        let path = scratch.path().join(format!("device-{i}"));
        std::fs::write(&path, device).unwrap();
        options.push(format!("device={}", path.display()));
    }
    let dir = scratch.path().join("mnt");
    std::fs::create_dir_all(&dir).unwrap();
    let options = std::ffi::CString::new(options.join(",")).unwrap();
    match mount(&file, &dir, "erofs", MountFlags::RDONLY, Some(&*options)) {
        Ok(()) => Some(Mount(dir)),
        Err(rustix::io::Errno::NOTBLK | rustix::io::Errno::PERM) => {
            tuff_testkit::skipped("file-backed mounts need Linux 6.12");
            None
        }
        Err(e) => panic!("the kernel does not mount it: {e}"),
    }
}

/// Asserts that the check finds nothing and that the kernel reads the same tree.
fn judge(name: &str, needs: &[&str], bytes: &[u8], devices: &[&[u8]]) -> Image {
    let image = open(bytes, devices);
    assert_clean(&image);
    let tree = image_tree(&image);
    let scratch = Scratch::new(name);
    if let Some(mounted) = kernel(&scratch, needs, bytes, devices) {
        // The kernel reports no holes in compressed files.
        let ignore = Ignore {
            holes: true,
            ..Ignore::default()
        };
        assert_same(name, &host_tree(&mounted.0), &tree, ignore);
    }
    image
}

/// Returns start, length and whether it is a hole for each extent of a file.
fn runs(image: &Image, path: &str) -> Vec<(u64, u64, bool)> {
    let inode = image.resolve(path.as_bytes()).unwrap();
    let all = image.extents(&inode, 0..u64::MAX).unwrap();
    all.map(|e| {
        e.map(|e| (e.offset, e.len, e.location == Location::Hole))
            .unwrap()
    })
    .collect()
}

fn head(kind: HeadKind, ofs: u16, block: u32) -> Lcluster {
    Lcluster::Head {
        kind,
        ofs,
        block,
        partial: false,
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn records_of_4_bytes_describe_consecutive_extents() {
    // Extents of 8 KiB, stored consecutively on disk without alignment.
    let (first, last) = (text(8192, 1), noise(100, 2));
    let (a, b) = (
        squeeze(Method::Zstd, &first),
        squeeze(Method::Deflate, &first),
    );
    let mut sheet = Sheet::new(EXTENTS);
    sheet.put_root(&[("f", place(1))]);
    sheet.run(b"odd");
    let start = sheet.run(&a);
    sheet.run(&b);
    sheet.run(&last);
    let table = [
        start.to_le_bytes().to_vec(),
        words(&[
            len_word(a.len() as u32, ZSTD),
            0, // a hole takes no space
            len_word(b.len() as u32, DEFLATE),
            len_word(100, STORED),
        ]),
    ]
    .concat();
    let size = 3 * 8192 + 100;
    let file = inode(Layout::CompressedFull, size, 1);
    sheet.put(place(1), file, &[], 8, &extents(4, 0, 1, 0, &table));
    let image = judge("records-4", &["48bit"], &sheet.finish(), &[]);
    let expected = [&first[..], &[0; 8192], &first, &last].concat();
    assert!(content(&image, "f") == expected);
    let holes = [
        (0, 8192, false),
        (8192, 8192, true),
        (16384, 8192, false),
        (24576, 100, false),
    ];
    assert_eq!(runs(&image, "f"), holes);
}

#[test]
fn records_of_8_bytes_may_share_clusters() {
    // Extents of 16 KiB. The last two refer to the cluster of the first, completely and in part.
    let data = text(16384, 3);
    let mut sheet = Sheet::new(EXTENTS | incompat::FRAGMENTS);
    sheet.put_root(&[("f", place(1))]);
    let packed = squeeze(Method::Lz4, &data);
    let plen = packed.len().next_multiple_of(BS) as u32;
    let at = sheet.cluster(&packed) * BS as u32;
    let table = words(&[
        len_word(plen, LZ4),
        at,
        0,
        0,
        len_word(plen, LZ4),
        at,
        len_word(plen, LZ4) | PARTIAL,
        at,
    ]);
    let file = inode(
        Layout::CompressedFull,
        3 * 16384 + 5000,
        u64::from(plen) / 4096,
    );
    sheet.put(place(1), file, &[], 8, &extents(8, 0, 2, 0, &table));
    let image = judge("records-8", &["48bit"], &sheet.finish(), &[]);
    let expected = [&data[..], &[0; 16384], &data, &data[..5000]].concat();
    assert!(content(&image, "f") == expected);
}

#[test]
fn records_of_16_bytes_start_at_any_byte_and_may_end_in_a_fragment() {
    let (a, b, c) = (text(10_000, 4), text(7_000, 5), noise(3_000, 6));
    let fragments = [&b"in front "[..], b"the fragment"].concat();
    let mut sheet = Sheet::new(EXTENTS | incompat::FRAGMENTS);
    sheet.put_root(&[("f", place(1))]);
    sheet.sb.packed = Some(place(2));
    let packed = inode(Layout::FlatInline, fragments.len() as u64, 0);
    sheet.put(place(2), packed, &[], 1, &fragments);
    let (za, zb) = (squeeze(Method::Deflate, &a), squeeze(Method::Lzma, &b));
    sheet.run(&[0xAA; 7]);
    let (pa, pb, pc) = (sheet.run(&za), sheet.run(&zb), sheet.run(&c));
    let table = [
        record16(len_word(za.len() as u32, DEFLATE), pa, 0),
        record16(len_word(zb.len() as u32, LZMA), pb, 10_000),
        record16(0, 0, 17_000),
        record16(len_word(3_000, STORED), pc, 37_000),
        record16(len_word(za.len() as u32, DEFLATE) | PARTIAL, pa, 40_000),
        record16(9, 0, 41_000), // the first word is an offset in the packed inode
    ]
    .concat();
    let file = inode(Layout::CompressedFull, 41_012, 1);
    sheet.put(place(1), file, &[], 8, &extents(16, 6, 0, FRAGMENT, &table));
    let image = judge("records-16", &["48bit"], &sheet.finish(), &[]);
    let expected = [&a[..], &b, &[0; 20_000], &c, &a[..1000], b"the fragment"].concat();
    assert!(content(&image, "f") == expected);
    assert_eq!(runs(&image, "f")[2], (17_000, 20_000, true));
    assert_eq!(runs(&image, "f")[5].0, 41_000);
}

#[test]
fn records_of_32_bytes_describe_files_over_4_gib() {
    let (a, b) = (text(9_000, 7), text(5_000, 8));
    let far = 5 << 30;
    let mut sheet = Sheet::new(EXTENTS);
    sheet.put_root(&[("f", place(1))]);
    let (za, zb) = (squeeze(Method::Zstd, &a), squeeze(Method::Zstd, &b));
    let (pa, pb) = (sheet.run(&za), sheet.run(&zb));
    let table = [
        record32(len_word(za.len() as u32, ZSTD), pa, 0),
        record32(0, 0, 9_000),
        record32(len_word(zb.len() as u32, ZSTD), pb, far),
    ]
    .concat();
    let file = inode(Layout::CompressedFull, far + 5_000, 1);
    sheet.put(place(1), file, &[], 8, &extents(32, 3, 0, 0, &table));
    let bytes = sheet.finish();
    let image = open(&bytes, &[]);
    assert_clean(&image);
    assert_eq!(
        runs(&image, "f"),
        [
            (0, 9_000, false),
            (9_000, far - 9_000, true),
            (far, 5_000, false)
        ]
    );
    let file = image.resolve(b"f").unwrap();
    let scratch = Scratch::new("records-32");
    let mounted = kernel(&scratch, &["48bit"], &bytes, &[]);
    let theirs = mounted
        .as_ref()
        .map(|m| std::fs::File::open(m.0.join("f")).unwrap());
    let near_end = [&[0; 100][..], &b[..300]].concat();
    for (at, expected) in [
        (8_900, [&a[8_900..], &[0; 300]].concat()),
        (far - 100, near_end),
    ] {
        let mut buf = [1; 400];
        assert_eq!(image.read_at(&file, &mut buf, at).unwrap(), 400);
        assert!(buf[..] == expected, "{at}");
        if let Some(theirs) = &theirs {
            use std::os::unix::fs::FileExt;
            theirs.read_exact_at(&mut buf, at).unwrap();
            assert!(buf[..] == expected, "{at}: kernel");
        }
    }
}

#[test]
fn only_aligned_stored_records_are_rotated() {
    // A stored whole block at file offset 1000 is rotated: byte x of the file is byte x % 4096 of
    // the block. Shorter records are not rotated.
    let a = text(1000, 1);
    let b = noise(4096, 2);
    let c = noise(700, 3);
    let mut sheet = Sheet::new(EXTENTS | incompat::FRAGMENTS);
    sheet.put_root(&[("f", place(1))]);
    let mut rotated = b.clone();
    rotated.rotate_right(1000);
    let pb = u64::from(sheet.blocks(&rotated)) * BS as u64;
    let (pa, pc) = (sheet.run(&a), sheet.run(&c));
    let table = [
        record16(len_word(1000, STORED), pa, 0),
        record16(len_word(4096, STORED), pb, 1000),
        record16(len_word(700, STORED), pc, 5096),
    ]
    .concat();
    let file = inode(Layout::CompressedFull, 5796, 1);
    sheet.put(
        place(1),
        file,
        &[],
        8,
        &extents(16, 3, 0, INTERLACED, &table),
    );
    let image = judge("rotated-records", &["48bit"], &sheet.finish(), &[]);
    assert!(content(&image, "f") == [a, b, c].concat());
}

#[test]
fn root_nids_over_16_bits_and_block_counts_over_32_bits_are_read() {
    let mut sheet = Sheet::new(incompat::BIT48);
    sheet.sb.root = Nid(100_000); // byte 3,200,000
    sheet.put_root(&[("f", place(1))]);
    sheet.put(place(1), inode(Layout::FlatInline, 4, 0), &[], 1, b"here");
    sheet.sb.blocks = 3 << 32;
    let bytes = sheet.finish();
    assert_eq!(
        bytes[1024 + 0x0E..1024 + 0x10],
        [3, 0],
        "bits 32 to 47 of the block count"
    );
    assert_eq!(
        bytes[1024 + 0x70..1024 + 0x78],
        [0xA0, 0x86, 1, 0, 0, 0, 0, 0]
    );
    let image = open(&bytes, &[]);
    assert_eq!(image.superblock().blocks, (3 << 32) + 782);
    assert_eq!(image.root().unwrap().nid(), Nid(100_000));
    assert_eq!(content(&image, "f"), b"here");
    let scratch = Scratch::new("far-root");
    if let Some(mounted) = kernel(&scratch, &["48bit"], &bytes, &[]) {
        let theirs = host_tree(&mounted.0);
        assert_same("far root", &theirs, &image_tree(&image), Ignore::default());
    }
}

#[test]
fn compact_inodes_store_times_relative_to_the_epoch_and_high_start_blocks() {
    let mut sheet = Sheet::new(incompat::BIT48);
    sheet.sb.fixed_nsec = 123;
    sheet.put_root(&[("later", place(1)), ("one", place(2))]);
    let later = Inode {
        mtime: 77,
        nlink: 1,
        ..compact(Layout::FlatInline, 2, 0)
    };
    sheet.put(place(1), later, &[], 1, b"ok");
    let block = sheet.blocks(&text(4096, 9));
    let one = Inode {
        flag4: true, // the nlink field holds bits 32 to 47 of the start block
        ..compact(Layout::FlatPlain, 4096, block.into())
    };
    sheet.put(place(2), one, &[], 1, &[]);
    let image = judge("compact", &["48bit"], &sheet.finish(), &[]);
    let later = image.resolve(b"later").unwrap();
    assert_eq!(later.mtime(), (EPOCH + 77, 123));
    let one = image.resolve(b"one").unwrap();
    assert_eq!((one.nlink(), one.mtime()), (1, (EPOCH, 123)));
    assert!(content(&image, "one") == text(4096, 9));
}

#[test]
fn high_start_blocks_are_mapped_to_their_device() {
    // A device at block 2^32 of the unified address space, referenced by a compact and by an
    // extended inode.
    let mut sheet = Sheet::new(incompat::BIT48 | incompat::DEVICE_TABLE);
    sheet.put_root(&[("a", place(1)), ("b", place(2))]);
    sheet.slots.push(Slot {
        tag: [0; 64],
        blocks: 2,
        uniaddr: BlockAddr(1 << 32),
    });
    let a = Inode {
        flag4: true,
        ..compact(Layout::FlatPlain, 4096, 1 << 32)
    };
    sheet.put(place(1), a, &[], 1, &[]);
    let b = inode(Layout::FlatPlain, 4096, (1 << 32) + 1);
    sheet.put(place(2), b, &[], 1, &[]);
    let device = noise(8192, 1);
    // Kernels before 7.1 ignore the high half of a device's address, so this is not compared.
    let image = open(&sheet.finish(), &[&device]);
    assert!(content(&image, "a") == device[..4096]);
    assert!(content(&image, "b") == device[4096..]);
}

#[test]
fn start_blocks_of_all_ones_in_the_width_of_the_inode_form_are_holes() {
    let mut sheet = Sheet::new(incompat::BIT48);
    sheet.put_root(&[
        ("compact", place(1)),
        ("extended", place(2)),
        ("nlink-1", place(3)),
    ]);
    let ones = (1 << 48) - 1;
    sheet.put(
        place(1),
        compact(Layout::FlatPlain, 5000, 0xFFFF_FFFF),
        &[],
        1,
        &[],
    );
    sheet.put(place(2), inode(Layout::FlatPlain, 5000, ones), &[], 1, &[]);
    let one = Inode {
        flag4: true,
        ..compact(Layout::FlatPlain, 5000, ones)
    };
    sheet.put(place(3), one, &[], 1, &[]);
    let image = judge("all-ones", &["48bit"], &sheet.finish(), &[]);
    for name in ["compact", "extended", "nlink-1"] {
        assert!(content(&image, name) == [0; 5000], "{name}");
        assert_eq!(runs(&image, name), [(0, 5000, true)], "{name}");
    }
}

#[test]
fn an_omitted_dot_entry_is_listed_and_found() {
    let mut sheet = Sheet::new(incompat::BIT48);
    let entries = vec![
        ("..", place(0), FileType::Dir),
        ("f", place(1), FileType::File),
    ];
    let bytes = dir_block(entries);
    let root = Inode {
        flag4: true,
        mode: 0o040755,
        nlink: 2,
        ..inode(Layout::FlatInline, bytes.len() as u64, 0)
    };
    sheet.put(place(0), root, &[], 1, &bytes);
    sheet.put(place(1), inode(Layout::FlatInline, 1, 0), &[], 1, b"x");
    let image = judge("no-dot", &["48bit"], &sheet.finish(), &[]);
    let root = image.root().unwrap();
    let names: Vec<_> = image
        .read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().name)
        .collect();
    assert_eq!(names, [&b"."[..], b"..", b"f"]);
    assert_eq!(image.lookup(&root, b".").unwrap(), Some(place(0)));
}

/// Tree in the metabox: a directory, a file with inline data, one with a COMPACT index, attributes.
fn metabox(compressed: bool) -> Vec<u8> {
    let mut sheet = Sheet::new(EXTENTS | incompat::METABOX);
    sheet.sb.compat |= compat::SHARED_EA_IN_METABOX;
    // The first slot of the metabox holds a shared attribute at byte 16 and the prefix table at
    // byte 64.
    let mut shared = Vec::new();
    entry(1, "shared", "by two").encode(&mut shared);
    sheet.write(true, 16, &shared);
    let table = sheet.prefixes(64, &[(4, "overlay."), (1, "long.")]);
    sheet.write(true, 64, &table);
    sheet.sb.root = boxed(1);
    let entries = [
        ("dir", boxed(2), FileType::Dir),
        ("out", place(1), FileType::File),
    ];
    sheet.put_dir(boxed(1), boxed(1), &xattrs(&[4], &[]), &entries);
    let entries = [
        ("compact", boxed(4), FileType::File),
        ("in", boxed(3), FileType::File),
    ];
    let opaque = [(0x80, "opaque", "y"), (0x81, "name", "value")];
    sheet.put_dir(boxed(2), boxed(1), &xattrs(&[4], &opaque), &entries);
    sheet.put(boxed(3), inode(Layout::FlatInline, 5, 0), &[], 1, b"tail.");
    // 20 lclusters in two clusters: enough for a pack of 16.
    let (a, b) = (text(30_000, 1), text(48_000, 2));
    let mut pieces = Vec::new();
    for part in [&a, &b] {
        let packed = squeeze(Method::Lz4, part);
        let block = sheet.cluster(&packed);
        pieces.push(Piece {
            len: part.len() as u64,
            kind: HeadKind::Head1,
            block,
            blocks: packed.len().div_ceil(BS) as u16,
            partial: false,
        });
    }
    let packs = index(
        &pieces,
        Tail::Cluster,
        0,
        HEADER_POS,
        sheet.sb.block_bits,
        true,
    );
    assert!(packs.compact);
    let blocks = pieces.iter().map(|p| u64::from(p.blocks)).sum();
    let file = inode(Layout::CompressedCompact, 78_000, blocks);
    sheet.put(boxed(4), file, &[], 8, &packs.bytes);
    // A file outside the metabox, with a long attribute name.
    let out = inode(Layout::FlatInline, 3, 0);
    sheet.put(
        place(1),
        out,
        &xattrs(&[], &[(0x81, "out", "1")]),
        1,
        b"out",
    );
    // Makes the metabox longer than a block.
    sheet.write(true, 4096, &[0xAB; 10]);
    sheet.close_metabox(place(2), compressed);
    sheet.finish()
}

#[test]
fn a_tree_inside_the_metabox_is_readable() {
    for compressed in [false, true] {
        let image = judge("metabox", &["48bit", "metabox"], &metabox(compressed), &[]);
        assert_eq!(image.root().unwrap().nid(), Nid(1 << 63 | 16));
        assert_eq!(content(&image, "dir/in"), b"tail.");
        assert_eq!(content(&image, "out"), b"out");
        assert!(content(&image, "dir/compact") == [text(30_000, 1), text(48_000, 2)].concat());
        let xattr = |path: &str, name: &str| {
            let inode = image.resolve(path.as_bytes()).unwrap();
            let value = image.xattr(&inode, name.as_bytes()).unwrap();
            value.map(|v| String::from_utf8(v).unwrap())
        };
        assert_eq!(xattr("", "user.shared").as_deref(), Some("by two"));
        assert_eq!(xattr("dir", "user.shared").as_deref(), Some("by two"));
        assert_eq!(xattr("dir", "trusted.overlay.opaque").as_deref(), Some("y"));
        assert_eq!(xattr("dir", "user.long.name").as_deref(), Some("value"));
        assert_eq!(xattr("out", "user.long.out").as_deref(), Some("1"));
        assert_eq!(xattr("out", "user.long."), None);
    }
}

#[test]
fn long_prefixes_are_read_from_the_image_or_the_packed_inode() {
    for (packed, plain) in [(false, false), (true, false), (true, true)] {
        let features = if packed {
            COMPRESSED | incompat::FRAGMENTS
        } else {
            0
        };
        let mut sheet = Sheet::new(features);
        sheet.put_root(&[("f", place(1))]);
        let names = xattrs(&[], &[(0x80, "name", "value"), (0x85, "none", "hidden")]);
        sheet.put(place(1), inode(Layout::FlatInline, 1, 0), &names, 1, b"x");
        if packed {
            sheet.sb.packed = Some(place(2));
            let mut data = vec![0; 100];
            if !plain {
                data.extend(sheet.prefixes(100, &[(1, "a.b.c.")]));
            }
            let file = inode(Layout::FlatInline, data.len() as u64, 0);
            sheet.put(place(2), file, &[], 1, &data);
        }
        if !packed || plain {
            let table = sheet.prefixes(12288, &[(1, "a.b.c.")]);
            sheet.write(false, 12288, &table);
        }
        if plain {
            sheet.sb.compat |= compat::PLAIN_XATTR_PFX;
        }
        let bytes = sheet.finish();
        let image = open(&bytes, &[]);
        let all = image.xattrs(&image.resolve(b"f").unwrap()).unwrap();
        assert_eq!(
            all.len(),
            1,
            "attributes with a prefix outside the table are hidden"
        );
        assert_eq!(
            (&all[0].name[..], &all[0].value[..]),
            (&b"user.a.b.c.name"[..], &b"value"[..])
        );
        let scratch = Scratch::new("prefixes");
        // The kernel supports the plain table since it supports the metabox.
        let needs: &[&str] = if plain { &["metabox"] } else { &["fragments"] };
        if let Some(mounted) = kernel(&scratch, needs, &bytes, &[]) {
            let theirs = host_tree(&mounted.0);
            assert_same("prefixes", &theirs, &image_tree(&image), Ignore::default());
        }
    }
}

#[test]
fn chunks_on_devices_read_the_same_with_separate_and_appended_devices() {
    let own = noise(4096, 1);
    let (one, two) = (noise(8192, 2), noise(4096, 3));
    let mut sheet = Sheet::new(incompat::CHUNKED_FILE | incompat::DEVICE_TABLE);
    sheet.put_root(&[("chunks", place(1)), ("flat", place(2))]);
    let block = sheet.blocks(&own);
    for (blocks, uniaddr) in [(2, 5), (1, 7)] {
        sheet.slots.push(Slot {
            tag: [0; 64],
            blocks,
            uniaddr: BlockAddr(uniaddr),
        });
    }
    let format = Format {
        bits: 0,
        indexes: true,
        bit48: false,
    };
    let mut table = Vec::new();
    for (device, block) in [(1, 1), (0, block), (2, 0), (1, 0)] {
        let (device, block) = (DeviceId(device), BlockAddr::from(block));
        format.encode_entry(Chunk::Data { device, block }, &mut table);
        format.encode_entry(Chunk::Hole, &mut table);
    }
    let chunks = inode(Layout::ChunkBased, 8 * 4096 - 9, format.encode().into());
    sheet.put(place(1), chunks, &[], 8, &table);
    // A flat file refers to blocks of the unified address space: here all of device 1.
    let flat = inode(Layout::FlatPlain, 8192, 5);
    sheet.put(place(2), flat, &[], 1, &[]);
    let primary = sheet.finish();
    assert_eq!(primary.len(), 5 * BS);
    let zeros = [0; 4096];
    let expected = [
        &one[4096..],
        &zeros,
        &own,
        &zeros,
        &two,
        &zeros,
        &one[..4096],
        &zeros[9..],
    ];
    let explicit = judge("devices", &["device_table"], &primary, &[&one, &two]);
    let together = [&primary[..], &one, &two].concat();
    let flat = judge("devices-flat", &["device_table"], &together, &[]);
    for image in [&explicit, &flat] {
        assert!(content(image, "chunks") == expected.concat());
        assert!(content(image, "flat") == one);
        let holes: Vec<_> = runs(image, "chunks").iter().map(|r| r.2).collect();
        assert_eq!(holes, [false, true, false, true, false, true, false, true]);
    }
}

#[test]
fn one_index_may_use_two_algorithms() {
    // HEAD1 is LZ4, HEAD2 is DEFLATE. The second extent starts in the lcluster where the first
    // ends.
    let (a, b) = (text(5_000, 1), text(6_000, 2));
    let mut sheet = Sheet::new(COMPRESSED | incompat::DEVICE_TABLE);
    sheet.put_root(&[("f", place(1))]);
    let first = sheet.cluster(&squeeze(Method::Lz4hc, &a));
    let second = sheet.cluster(&squeeze(Method::Deflate, &b));
    let entries = [
        head(HeadKind::Head1, 0, first),
        head(HeadKind::Head2, 904, second), // 4096 + 904 = 5000
        head(HeadKind::Plain, 2808, 0),     // the end: 8192 + 2808 = 11000
    ];
    let file = inode(Layout::CompressedFull, 11_000, 2);
    sheet.put(place(1), file, &[], 8, &full_index(0, 0, 0x20, &entries));
    let image = judge("head2", &["compr_head2"], &sheet.finish(), &[]);
    assert!(content(&image, "f") == [a, b].concat());
}

#[test]
fn interlaced_stored_clusters_are_rotated() {
    let (a, b) = (text(6_000, 1), noise(4_096, 2));
    let mut sheet = Sheet::new(COMPRESSED | incompat::FRAGMENTS);
    sheet.sb.packed = Some(place(2));
    sheet.put(place(2), inode(Layout::FlatInline, 1, 0), &[], 1, b"x");
    sheet.put_root(&[("f", place(1))]);
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
    sheet.put(
        place(1),
        file,
        &[],
        8,
        &full_index(0, INTERLACED, 0, &entries),
    );
    let image = judge("interlaced", &["fragments"], &sheet.finish(), &[]);
    assert!(content(&image, "f") == [a, b].concat());
}

#[test]
fn partial_clusters_and_whole_file_fragments_are_readable() {
    let data = text(12_000, 1);
    let mut sheet = Sheet::new(COMPRESSED | incompat::FRAGMENTS);
    sheet.put_root(&[("part", place(1)), ("whole", place(2))]);
    sheet.put_fragments([place(3), place(1), place(2)], &data);
    let image = judge("partial", &["fragments"], &sheet.finish(), &[]);
    assert!(content(&image, "part") == data[..5_000]);
    assert!(content(&image, "whole") == data[2_000..]);
}
