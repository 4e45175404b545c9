//! The check reports each kind of damage under its rule.

use tuff_erofs::check::{Options, Report, Rule, Severity, check};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_format::features::{compat, incompat};
use tuff_format::inode::{Inode, Layout};
use tuff_format::superblock::Superblock;
use tuff_format::xattr::{Entry, encode_body, filter_bit};
use tuff_format::{BlockBits, Nid};
use tuff_store::MemStore;
use tuff_testkit::assemble::{
    Assembled, Body, Node, assemble, assemble_with, dir, file, superblock, symlink,
};

fn report(bytes: Vec<u8>) -> Report {
    let options = OpenOptions {
        verify_checksum: false,
        ..OpenOptions::default()
    };
    let image = Image::open(MemStore::new(bytes), options).unwrap();
    check(&image, &Options::default(), |_| ())
}

/// Returns the broken rules, except those of notes.
fn rules(bytes: Vec<u8>) -> Vec<Rule> {
    let mut rules: Vec<_> = report(bytes)
        .findings
        .into_iter()
        .filter(|f| f.severity != Severity::Note)
        .map(|f| f.rule)
        .collect();
    rules.sort();
    rules.dedup();
    rules
}

/// Root, a file, a directory with a file, a symlink.
fn nodes() -> Vec<Node> {
    vec![
        dir(&[("file", 1), ("sub", 2), ("link", 4)]),
        file(b"content"),
        dir(&[("inner", 3)]),
        file(b"inner content"),
        symlink("file"),
    ]
}

fn changed(i: usize, change: fn(&mut Inode)) -> Vec<Rule> {
    let mut nodes = nodes();
    nodes[i].change = change;
    rules(assemble(&nodes).bytes)
}

fn raw(entries: &[(&str, usize, u8)]) -> Body {
    Body::RawDir(
        entries
            .iter()
            .map(|(n, i, k)| (n.as_bytes().to_vec(), *i, *k))
            .collect(),
    )
}

/// Returns the rules that are broken by a root directory with these entries.
fn root(entries: &[(&str, usize, u8)]) -> Vec<Rule> {
    let mut nodes = nodes();
    nodes[0].body = raw(entries);
    nodes[0].nlink = 3;
    rules(assemble(&nodes).bytes)
}

#[test]
fn a_valid_image_breaks_no_rule() {
    for bits in 9..=16 {
        let sb = superblock(BlockBits::new(bits).unwrap());
        let made = assemble_with(&nodes(), sb, |sb| sb.compat |= compat::SB_CHKSUM);
        let report = report(made.bytes);
        assert_eq!(report.findings, [], "blocks of 2^{bits}");
        assert_eq!((report.totals.inodes, report.totals.directories), (5, 2));
    }
}

#[test]
fn tree_damage_is_reported_under_its_rule() {
    let good = [
        (".", 0, 2),
        ("..", 0, 2),
        ("file", 1, 1),
        ("link", 4, 7),
        ("sub", 2, 2),
    ];
    assert_eq!(root(&good), []);
    assert_eq!(
        root(&[
            (".", 0, 2),
            ("..", 0, 2),
            ("link", 4, 7),
            ("file", 1, 1),
            ("sub", 2, 2)
        ]),
        [Rule::NameOrder]
    );
    assert_eq!(
        root(&[
            (".", 0, 2),
            ("..", 0, 2),
            ("file", 1, 1),
            ("file", 4, 7),
            ("sub", 2, 2)
        ]),
        [Rule::NameOrder]
    );
    assert_eq!(
        root(&[
            (".", 0, 2),
            ("..", 2, 2),
            ("file", 1, 1),
            ("link", 4, 7),
            ("sub", 2, 2)
        ]),
        [Rule::Dots]
    );
    assert_eq!(
        root(&[
            (".", 1, 2),
            ("..", 0, 2),
            ("file", 1, 1),
            ("link", 4, 7),
            ("sub", 2, 2)
        ]),
        [Rule::Dots]
    );
    assert_eq!(
        root(&[("..", 0, 2), ("file", 1, 1), ("link", 4, 7), ("sub", 2, 2)]),
        [Rule::Dots]
    );
    assert_eq!(
        root(&[(".", 0, 2), ("file", 1, 1), ("link", 4, 7), ("sub", 2, 2)]),
        [Rule::Dots]
    );
    assert_eq!(
        root(&[
            (".", 0, 2),
            ("..", 0, 2),
            ("file", 1, 4),
            ("link", 4, 7),
            ("sub", 2, 2)
        ]),
        [Rule::EntryType]
    );
    assert_eq!(
        root(&[
            (".", 0, 2),
            ("..", 0, 2),
            ("file", 1, 9),
            ("link", 4, 7),
            ("sub", 2, 2)
        ]),
        [Rule::EntryType]
    );
    assert_eq!(
        root(&[
            (".", 0, 2),
            ("..", 0, 2),
            ("fi/e", 1, 1),
            ("link", 4, 7),
            ("sub", 2, 2)
        ]),
        [Rule::Name]
    );
    // A directory with two names, and a directory that contains itself.
    let twice = [
        (".", 0, 2),
        ("..", 0, 2),
        ("file", 1, 1),
        ("link", 4, 7),
        ("more", 2, 2),
        ("sub", 2, 2),
    ];
    assert_eq!(root(&twice), [Rule::TreeShape, Rule::LinkCount]);
    let itself = [
        (".", 0, 2),
        ("..", 0, 2),
        ("file", 1, 1),
        ("link", 4, 7),
        ("me", 0, 2),
        ("sub", 2, 2),
    ];
    assert_eq!(root(&itself), [Rule::TreeShape, Rule::LinkCount]);
    // A second name that the link count does not include.
    let links = [
        (".", 0, 2),
        ("..", 0, 2),
        ("file", 1, 1),
        ("link", 4, 7),
        ("more", 1, 1),
        ("sub", 2, 2),
    ];
    assert_eq!(root(&links), [Rule::LinkCount]);
}

#[test]
fn inode_damage_is_reported_under_its_rule() {
    assert_eq!(changed(1, |i| i.nlink = 2), [Rule::LinkCount]);
    assert_eq!(changed(2, |i| i.nlink = 7), [Rule::LinkCount]);
    assert_eq!(changed(2, |i| i.nlink = 1), []);
    assert_eq!(changed(1, |i| i.mtime_nsec = 1_000_000_000), [Rule::Time]);
    assert_eq!(changed(4, |i| i.size = 0), [Rule::Symlink]);
    assert_eq!(
        changed(1, |i| i.mode = 0o010644),
        [Rule::EntryType, Rule::SpecialFile]
    );
    assert_eq!(changed(1, |i| i.mode = 0), [Rule::InodeCount, Rule::Inode]);
    assert_eq!(changed(1, |i| i.size = 1 << 40), [Rule::Index]);
    assert_eq!(
        changed(1, |i| (i.layout, i.u) = (Layout::FlatPlain, 1 << 30)),
        [Rule::DataRange]
    );
    // Data at the position of the inodes.
    assert_eq!(
        changed(1, |i| (i.layout, i.u) = (Layout::FlatPlain, 0)),
        [Rule::Overlap, Rule::Padding]
    );
    let mut nodes = nodes();
    nodes[4] = symlink("with a NUL");
    let mut made = assemble(&nodes).bytes;
    let at = made.windows(10).position(|w| w == b"with a NUL").unwrap();
    made[at + 4] = 0;
    assert_eq!(rules(made), [Rule::Symlink]);
}

#[test]
fn overlapping_inodes_are_reported() {
    let mut nodes = nodes();
    nodes[1] = file(&[0; 200]);
    let good = assemble(&nodes);
    // An entry refers to a position inside the file's data that contains a valid inode.
    let inside = good.nids[1].0 + 3;
    let mut inode = Vec::new();
    let template = tuff_format::inode::Inode {
        extended: false,
        layout: Layout::FlatPlain,
        flag4: false,
        xattr_icount: 0,
        mode: 0o010644,
        nlink: 1,
        size: 0,
        mtime: 0,
        mtime_nsec: 0,
        u: 0,
        ino: 0,
        uid: 0,
        gid: 0,
        no_start: false,
    };
    template.encode(&mut inode);
    let mut bytes = good.bytes.clone();
    bytes[inside as usize * 32..][..32].copy_from_slice(&inode);
    let entry = good.nids[4].0.to_le_bytes();
    let at = bytes.windows(8).position(|w| w == entry).unwrap();
    bytes[at..at + 8].copy_from_slice(&inside.to_le_bytes());
    bytes[at + 10] = 5; // a fifo by its type
    assert_eq!(rules(bytes), [Rule::Overlap]);
}

#[test]
fn superblock_damage_is_reported_under_its_rule() {
    let with = |change: fn(&mut Superblock)| {
        rules(assemble_with(&nodes(), superblock(BlockBits::B4K), change).bytes)
    };
    assert_eq!(with(|sb| sb.inodes = 9), [Rule::InodeCount]);
    assert_eq!(with(|sb| sb.blocks += 1), [Rule::ImageSize]);
    let mut made = assemble_with(&nodes(), superblock(BlockBits::B4K), |sb| {
        sb.compat |= compat::SB_CHKSUM
    });
    let last = 4095;
    made.bytes[last] ^= 1;
    assert_eq!(rules(made.bytes), [Rule::Checksum]);
}

fn with_xattrs(
    filter: Option<u32>,
    entries: &[Entry<'_>],
    change: fn(&mut Superblock),
) -> Assembled {
    let mut nodes = nodes();
    let requested = entries
        .iter()
        .fold(0, |bits, e| bits | filter_bit(e.index, e.name));
    encode_body(
        filter.unwrap_or(!requested),
        &[],
        entries,
        &mut nodes[1].xattrs,
    );
    assemble_with(&nodes, superblock(BlockBits::B4K), change)
}

#[test]
fn xattr_damage_is_reported_under_its_rule() {
    let entry = |index, name: &'static [u8], value: &'static [u8]| Entry { index, name, value };
    let filters: fn(&mut Superblock) = |sb| sb.compat |= compat::XATTR_FILTER;
    let good = with_xattrs(
        None,
        &[entry(1, b"a", b"b"), entry(6, b"selinux", b"")],
        filters,
    );
    assert_eq!(rules(good.bytes), []);
    let hides = with_xattrs(Some(!0), &[entry(1, b"a", b"b")], filters);
    assert_eq!(rules(hides.bytes.clone()), [Rule::XattrFilter]);
    // The same as in the kernel: listed, but not found by name.
    let image = Image::open(MemStore::new(hides.bytes), OpenOptions::default()).unwrap();
    let inode = image.inode(hides.nids[1]).unwrap();
    assert_eq!(image.xattrs(&inode).unwrap().len(), 1);
    assert_eq!(image.xattr(&inode, b"user.a").unwrap(), None);
    let twice = with_xattrs(None, &[entry(1, b"a", b"b"), entry(1, b"a", b"c")], |_| ());
    assert_eq!(rules(twice.bytes), [Rule::XattrName]);
    let unknown = with_xattrs(None, &[entry(77, b"a", b"b")], |_| ());
    assert_eq!(rules(unknown.bytes), [Rule::XattrName]);
    let prefix = with_xattrs(None, &[entry(0x80, b"a", b"b")], |_| ());
    assert_eq!(rules(prefix.bytes), [Rule::XattrName]);
    let acl = with_xattrs(None, &[entry(2, b"", b"\x02\0\0\0\x01\0")], |_| ());
    assert_eq!(rules(acl.bytes), [Rule::Acl]);
    // A body that is only a header, and an entry that extends past the end of the body.
    let mut header = nodes();
    header[1].xattrs = vec![0; 12];
    assert_eq!(rules(assemble(&header).bytes), [Rule::XattrBody]);
    let mut past = nodes();
    past[1].xattrs = [&[0; 12][..], &[200, 1, 0, 0]].concat();
    assert_eq!(rules(assemble(&past).bytes), [Rule::XattrBody]);
}

/// Compressed file with an index of 8-byte entries. Its clusters follow the assembled image.
fn compressed(size: u64, header: [u8; 8], entries: &[[u8; 8]]) -> Node {
    let payload = [&header[..], &[0; 8], &entries.concat()].concat();
    let blocks = entries.len() as u64;
    Node {
        body: Body::Raw {
            layout: Layout::CompressedFull,
            size,
            u: blocks,
            payload,
        },
        ..file(b"")
    }
}

fn lz4(sb: &mut Superblock) {
    sb.incompat |= incompat::LZ4_0PADDING;
    sb.algs_or_distance = 65535;
}

/// A block that ends with an LZ4 stream of 4096 times `letter`.
fn cluster(letter: u8) -> Vec<u8> {
    let mut lz4 = vec![0x1F, letter, 1, 0];
    let more = 4096 - 1 - 4 - 15 - 5;
    lz4.extend(vec![255; more / 255]);
    lz4.push((more % 255) as u8);
    lz4.push(0x50);
    lz4.extend([letter; 5]);
    let mut block = vec![0; 4096 - lz4.len()];
    block.extend(lz4);
    block
}

fn with_clusters(
    first: Node,
    second: Node,
    clusters: &[Vec<u8>],
    change: impl FnOnce(&mut Superblock),
) -> Vec<u8> {
    let nodes = [dir(&[("a", 1), ("b", 2)]), first, second];
    let mut made = assemble_with(&nodes, superblock(BlockBits::B4K), |sb| {
        lz4(sb);
        sb.blocks += clusters.len() as u64;
        change(sb);
    });
    assert_eq!(made.bytes.len(), 4096, "clusters start at block 1");
    made.bytes.extend(clusters.concat());
    made.bytes
}

fn head(block: u32) -> [u8; 8] {
    let [a, b, c, d] = block.to_le_bytes();
    [1, 0, 0, 0, a, b, c, d]
}

#[test]
fn cluster_damage_is_reported_under_its_rule() {
    let one = |block| compressed(4096, [0; 8], &[head(block)]);
    let clusters = [cluster(b'x'), cluster(b'y')];
    assert_eq!(rules(with_clusters(one(1), one(2), &clusters, |_| ())), []);
    // Two files may share a cluster. It is decoded once.
    let shared = report(with_clusters(one(1), one(1), &clusters, |_| ()));
    assert_eq!((shared.findings.len(), shared.totals.clusters), (0, 1));
    assert_eq!(
        rules(with_clusters(one(1), one(9), &clusters, |_| ())),
        [Rule::DataRange]
    );
    assert_eq!(
        rules(with_clusters(one(1), one(0), &clusters, |_| ())),
        [Rule::Overlap, Rule::Cluster]
    );
    let mut broken = clusters.clone();
    broken[1][4000..].fill(0xFF);
    assert_eq!(
        rules(with_clusters(one(1), one(2), &broken, |_| ())),
        [Rule::Cluster]
    );
    let empty = [cluster(b'x'), vec![0; 4096]];
    assert_eq!(
        rules(with_clusters(one(1), one(2), &empty, |_| ())),
        [Rule::Cluster]
    );
    // A first entry that is a NONHEAD; an algorithm that the image does not declare.
    let nonhead = compressed(4096, [0; 8], &[[2, 0, 0, 0, 1, 0, 1, 0]]);
    assert_eq!(
        rules(with_clusters(one(1), nonhead, &clusters, |_| ())),
        [Rule::Index]
    );
    let zstd = compressed(4096, [0, 0, 0, 0, 0, 0, 3, 0], &[head(2)]);
    assert_eq!(
        rules(with_clusters(one(1), zstd, &clusters, |_| ())),
        [Rule::Index]
    );
    let mut counts = one(2);
    counts.change = |i| i.u = 7;
    // Kernels only show the number.
    let found = report(with_clusters(one(1), counts, &clusters, |_| ())).findings;
    let found: Vec<_> = found.iter().map(|f| (f.severity, f.rule)).collect();
    assert!(
        found.contains(&(Severity::Note, Rule::BlockCount)),
        "{found:?}"
    );
}

#[test]
fn lookahead_distances_that_skip_a_head_are_reported() {
    let nonhead = |back: u16, ahead: u16| {
        let ([a, b], [c, d]) = (back.to_le_bytes(), ahead.to_le_bytes());
        [2, 0, 0, 0, a, b, c, d]
    };
    let index = |wrong: u16| {
        let mut entries = vec![head(1)];
        entries.extend((1..90).map(|n| nonhead(n, 90 - n)));
        entries[1] = nonhead(1, wrong);
        entries.push(head(2));
        entries.extend((1..10).map(|n| nonhead(n, 10 - n)));
        let mut node = compressed(100 * 4096, [0; 8], &entries);
        node.change = |i| i.u = 2;
        node
    };
    let with = |wrong| with_clusters(index(wrong), file(b""), &[], |_| ());
    // The clusters are missing, which breaks another rule.
    assert_eq!(rules(with(89)), [Rule::DataRange]);
    assert_eq!(rules(with(90)), [Rule::Index]);
}

#[test]
fn fragments_outside_the_packed_inode_are_reported() {
    let fragment = |offset: u64, size: u64| Node {
        body: Body::Raw {
            layout: Layout::CompressedFull,
            size,
            u: 0,
            payload: (offset | 1 << 63).to_le_bytes().to_vec(),
        },
        ..file(b"")
    };
    let with = |offset, size| {
        let nodes = [
            dir(&[("a", 1)]),
            fragment(offset, size),
            file(b"packed bytes"),
        ];
        let nids = assemble(&nodes).nids;
        assemble_with(&nodes, superblock(BlockBits::B4K), |sb| {
            sb.incompat |= incompat::FRAGMENTS | incompat::LZ4_0PADDING;
            sb.packed = Some(Nid(nids[2].0));
        })
    };
    assert_eq!(rules(with(7, 5).bytes), []);
    let image = Image::open(MemStore::new(with(7, 5).bytes), OpenOptions::default()).unwrap();
    let mut buf = [0; 9];
    let inode = image.resolve(b"a").unwrap();
    assert_eq!(image.read_at(&inode, &mut buf, 0).unwrap(), 5);
    assert_eq!(&buf[..5], b"bytes");
    assert_eq!(rules(with(8, 5).bytes), [Rule::Fragment]);
    assert_eq!(rules(with(u64::MAX >> 1, 5).bytes), [Rule::Fragment]);
}

#[test]
fn files_that_use_only_the_second_algorithm_are_readable() {
    // HEAD2 is LZ4 (id 0), HEAD1 is DEFLATE (id 2), which no entry uses.
    let mut entry = head(1);
    entry[0] = 3;
    let file2 = compressed(4096, [0, 0, 0, 0, 0, 0, 0x02, 0], &[entry]);
    let bytes = with_clusters(file2, file(b""), &[cluster(b'z')], |sb| {
        sb.incompat |= incompat::COMPR_CFGS | incompat::DEVICE_TABLE;
        sb.algs_or_distance = 0b101;
    });
    // The compression records follow the superblock, where the assembler leaves room.
    let mut bytes = bytes;
    let records = tuff_format::config::Configs {
        lz4: Some(tuff_format::config::Lz4 {
            max_distance: 65535,
            max_pcluster_blocks: 1,
        }),
        deflate_window_bits: Some(15),
        ..Default::default()
    }
    .encode();
    bytes[1152..1152 + records.len()].copy_from_slice(&records);
    assert_eq!(rules(bytes.clone()), []);
    let image = Image::open(MemStore::new(bytes), OpenOptions::default()).unwrap();
    let mut buf = [0; 4096];
    image
        .read_at(&image.resolve(b"a").unwrap(), &mut buf, 0)
        .unwrap();
    assert_eq!(buf, [b'z'; 4096]);
}

#[test]
fn findings_are_the_same_for_any_number_of_threads() {
    let mut bytes = tuff_testkit::sample::bytes("four");
    let mut random = tuff_testkit::Rng::new(7);
    for _ in 0..200 {
        let at = 1200 + random.below_u64(bytes.len() as u64 - 1200) as usize;
        bytes[at] ^= 1 << random.below_u64(8);
    }
    let options = || OpenOptions {
        verify_checksum: false,
        ..OpenOptions::default()
    };
    let with = |threads| {
        let image = Image::open(MemStore::new(bytes.clone()), options()).unwrap();
        check(
            &image,
            &Options {
                threads,
                ..Options::default()
            },
            |_| (),
        )
        .findings
    };
    let one = with(1);
    assert!(one.len() > 3);
    assert_eq!(one, with(2));
    assert_eq!(one, with(7));
}

/// The check discards what it decodes and does not read data as a reader does. It must report the
/// same clusters.
#[test]
fn the_check_reports_exactly_the_clusters_that_fail_to_read() {
    use std::io::Read;
    use tuff_mkfs::{Fragments, Progress, Source};
    let dir = tempfile::tempdir().unwrap();
    let lines = |n: u32| -> String { (0..n).map(|i| format!("{} {i}\n", i % 97)).collect() };
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    std::fs::write(dir.path().join("tree/file"), lines(40_000)).unwrap();
    for cluster in [4096, 16_384] {
        let options = tuff_mkfs::Options {
            compression: tuff_mkfs::CompressionOptions {
                default: Some(tuff_mkfs::Compression {
                    method: tuff_codec::Method::Lz4,
                    level: 1,
                    dict: None,
                }),
                cluster,
                ..tuff_mkfs::CompressionOptions::default()
            },
            layout: tuff_mkfs::LayoutOptions {
                fragments: Fragments::Off,
                ..tuff_mkfs::LayoutOptions::default()
            },
            ..tuff_mkfs::Options::default()
        };
        let path = dir.path().join("image");
        let source = [Source::Dir(dir.path().join("tree"))];
        let target = tuff_store::Target::Path(path.clone());
        tuff_mkfs::build(&source, &options, &target, &Progress::default()).unwrap();
        let good = std::fs::read(&path).unwrap();
        let (mut random, mut broken) = (tuff_testkit::Rng::new(7), 0);
        for _ in 0..300 {
            let mut bytes = good.clone();
            let at = 8192 + random.below_u64(bytes.len() as u64 - 8192) as usize;
            bytes[at] ^= 1 << random.below_u64(8);
            let options = OpenOptions {
                verify_checksum: false,
                ..OpenOptions::default()
            };
            let image = Image::open(MemStore::new(bytes.clone()), options).unwrap();
            let inode = image.resolve(b"/file").unwrap();
            let mut content = Vec::new();
            let read = image.reader(&inode).unwrap().read_to_end(&mut content);
            let found = rules(bytes);
            let expected: &[Rule] = if read.is_err() { &[Rule::Cluster] } else { &[] };
            assert_eq!(found, expected, "byte {at:#x}, clusters of {cluster}");
            broken += u32::from(read.is_err());
        }
        assert!(broken > 20 && broken < 280, "{broken}");
    }
}

#[test]
fn nonzero_padding_is_reported_after_short_and_long_data() {
    for len in [100, 5000, 16_000, 20_000, 300_000] {
        let mut nodes = nodes();
        nodes[1].body = Body::Blocks(vec![b'x'; len]);
        let mut bytes = assemble(&nodes).bytes;
        assert_eq!(rules(bytes.clone()), []);
        let end = bytes.windows(2).rposition(|w| w == b"x\0").unwrap();
        bytes[end + 3] = 1;
        assert_eq!(rules(bytes), [Rule::Padding], "{len} bytes");
    }
}

/// Builds an image of compressible, random and small files, and clears bits of its superblock.
fn without_bits(options: &tuff_mkfs::Options, bits: u32) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    for (name, bytes) in [
        ("text", tuff_testkit::content::text(300_001, 1)),
        ("noise", tuff_testkit::content::noise(50_000, 2)),
        ("short", tuff_testkit::content::text(3000, 3)),
        ("shorter", tuff_testkit::content::text(6000, 4)),
        ("small", b"small".to_vec()),
    ] {
        std::fs::write(dir.path().join("tree").join(name), bytes).unwrap();
    }
    let path = dir.path().join("image");
    let source = [tuff_mkfs::Source::Dir(dir.path().join("tree"))];
    let target = tuff_store::Target::Path(path.clone());
    tuff_mkfs::build(&source, options, &target, &tuff_mkfs::Progress::default()).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let clear = |bytes: &mut [u8], at: usize, bits: u32| {
        let field = bytes[at..].first_chunk_mut::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*field) & bits, bits, "bits are set");
        *field = (u32::from_le_bytes(*field) & !bits).to_le_bytes();
    };
    clear(&mut bytes, 1024 + 8, compat::SB_CHKSUM);
    clear(&mut bytes, 1024 + 0x50, bits);
    bytes
}

/// Linux 6.18 and fsck.erofs 1.9.3 read images without the first bits, and fail without the last ones.
#[test]
fn bits_of_features_that_readers_find_by_inode_may_be_missing() {
    let options = |change: fn(&mut tuff_mkfs::Options)| {
        let mut options = tuff_mkfs::Options::for_kernel(tuff_mkfs::KernelVersion(6, 18));
        options.layout.fragments = tuff_mkfs::Fragments::Off;
        options.dedupe.mode = tuff_mkfs::Dedupe::Off;
        options.compression.default = Some(tuff_mkfs::Compression {
            method: tuff_codec::Method::Lz4,
            level: 1,
            dict: None,
        });
        options.compression.cluster = 65536;
        change(&mut options);
        options
    };
    let chunks = options(|o| (o.compression.default, o.layout.chunk) = (None, Some(4096)));
    let tails = options(|o| o.layout.tail_packing = true);
    let fragments = options(|o| {
        o.layout.tail_packing = false;
        o.layout.fragments = tuff_mkfs::Fragments::Tails;
    });
    for (options, bits, broken) in [
        (&chunks, incompat::CHUNKED_FILE, false),
        (&tails, incompat::ZTAILPACKING, false),
        (&tails, incompat::COMPR_CFGS, true),
        (&fragments, incompat::FRAGMENTS, true),
    ] {
        let report = report(without_bits(options, bits));
        let missing = |f: &tuff_erofs::check::Finding| {
            f.rule == Rule::Features && f.what.ends_with("is not set")
        };
        let found = report.findings.iter().find(|f| missing(f));
        let severity = found.map(|f| f.severity);
        match broken {
            false => {
                assert_eq!(severity, Some(Severity::Note), "{bits:#x}");
                assert!(report.is_clean(), "{:?}", report.findings);
            }
            true => assert!(!report.is_clean(), "{bits:#x}"),
        }
    }
}
