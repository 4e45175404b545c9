//! Images assembled by hand with forms that no available writer produces: block sizes up to 64 KiB,
//! large numbers, omitted "." entries.

use tuff_erofs::Error;
use tuff_erofs::read::{Image, Limits, Location, OpenOptions};
use tuff_format::features::incompat;
use tuff_format::inode::Layout;
use tuff_format::{BlockBits, Nid};
use tuff_store::MemStore;
use tuff_testkit::assemble::{Body, Node, assemble, assemble_with, dir, file, superblock, symlink};
use tuff_testkit::content::text;
use tuff_testkit::sample;
use tuff_testkit::tree::image_tree;

fn open(bytes: Vec<u8>) -> Image {
    Image::open(MemStore::new(bytes), OpenOptions::default()).unwrap()
}

#[test]
fn every_block_size_is_readable() {
    for bits in 9..=16 {
        let names: Vec<String> = (0..3000).map(|i| format!("name-{i:05}")).collect();
        let mut entries: Vec<(&str, usize)> = names.iter().map(|n| (&n[..], 1)).collect();
        entries.push(("big", 2));
        let big = Node {
            body: Body::Blocks(text(200_001, 3)),
            ..file(b"")
        };
        let sb = superblock(BlockBits::new(bits).unwrap());
        let made = assemble_with(&[dir(&entries), file(b"tail"), big], sb, |_| ());
        let image = open(made.bytes);
        assert_eq!(image_tree(&image).len(), 3002, "blocks of 2^{bits}");
        let big = image.resolve(b"big").unwrap();
        let mut buf = vec![0; 1000];
        assert_eq!(image.read_at(&big, &mut buf, 199_500).unwrap(), 501);
        assert!(buf[..501] == text(200_001, 3)[199_500..]);
        let root = image.root().unwrap();
        assert_eq!(image.lookup(&root, b"name-01234x").unwrap(), None);
        assert_eq!(image.lookup(&root, b"").unwrap(), None);
        // A listing continues at any position.
        let all: Vec<_> = image.read_dir(&root).unwrap().map(Result::unwrap).collect();
        for at in [0, 1, 700, 3001] {
            let rest = image.read_dir_from(&root, all[at].next).unwrap();
            assert!(rest.map(Result::unwrap).eq(all[at + 1..].iter().cloned()));
        }
    }
}

#[test]
fn an_omitted_dot_entry_is_part_of_the_listing() {
    let entries = vec![(b"..".to_vec(), 0, 2), (b"a".to_vec(), 1, 1)];
    let mut root = dir(&[]);
    root.body = Body::RawDir(entries);
    root.change = |i| i.flag4 = true;
    let image = open(
        assemble_with(&[root, file(b"x")], superblock(BlockBits::B4K), |sb| {
            sb.incompat = incompat::BIT48
        })
        .bytes,
    );
    let root = image.root().unwrap();
    let all: Vec<_> = image.read_dir(&root).unwrap().map(Result::unwrap).collect();
    assert_eq!(
        all.iter().map(|e| &e.name[..]).collect::<Vec<_>>(),
        [&b"."[..], b"..", b"a"]
    );
    assert_eq!(image.lookup(&root, b".").unwrap(), Some(root.nid()));
    for at in 0..3 {
        let rest = image.read_dir_from(&root, all[at].next).unwrap();
        assert!(rest.map(Result::unwrap).eq(all[at + 1..].iter().cloned()));
    }
}

#[test]
fn a_48_bit_null_start_block_is_a_hole_and_a_32_bit_one_is_not() {
    let zeros = |change| Node {
        change,
        ..file(b"")
    };
    let made = assemble(&[
        dir(&[("hole", 1), ("not", 2)]),
        zeros(|i| (i.size, i.u, i.layout) = (1 << 40, (1 << 48) - 1, Layout::FlatPlain)),
        zeros(|i| (i.size, i.u, i.layout) = (10, u32::MAX.into(), Layout::FlatPlain)),
    ]);
    let image = open(made.bytes);
    let hole = image.resolve(b"hole").unwrap();
    let extents: Vec<_> = image
        .extents(&hole, 0..u64::MAX)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        (extents.len(), extents[0].location, extents[0].len),
        (1, Location::Hole, 1 << 40)
    );
    let mut buf = [1; 100];
    assert_eq!(image.read_at(&hole, &mut buf, (1 << 40) - 50).unwrap(), 50);
    assert_eq!(buf[..50], [0; 50]);
    let not = image.resolve(b"not").unwrap();
    assert!(matches!(
        image.read_at(&not, &mut buf, 0),
        Err(Error::Corrupt(_))
    ));
}

#[test]
fn block_maps_may_contain_holes() {
    // 4-byte entries: block, hole, the same block again, hole at the end.
    let chunks = |block: u32| {
        let table = [block, u32::MAX, block, u32::MAX];
        let payload = table.iter().flat_map(|b| b.to_le_bytes()).collect();
        let body = Body::Raw {
            layout: Layout::ChunkBased,
            size: 4 * 4096 - 96,
            u: 0,
            payload,
        };
        Node { body, ..file(b"") }
    };
    let sb = superblock(BlockBits::B4K);
    let mut made = assemble_with(&[dir(&[("chunks", 1)]), chunks(1)], sb, |sb| {
        sb.incompat = incompat::CHUNKED_FILE;
        sb.blocks += 1;
    });
    made.bytes.extend(text(4096, 5));
    let image = open(made.bytes);
    let inode = image.resolve(b"chunks").unwrap();
    let runs: Vec<_> = image
        .extents(&inode, 0..u64::MAX)
        .unwrap()
        .map(|e| {
            e.map(|e| (e.offset, e.len, e.location == Location::Hole))
                .unwrap()
        })
        .collect();
    assert_eq!(
        runs,
        [
            (0, 4096, false),
            (4096, 4096, true),
            (8192, 4096, false),
            (12288, 4000, true)
        ]
    );
    let mut all = vec![1; 20_000];
    assert_eq!(image.read_at(&inode, &mut all, 0).unwrap(), 16288);
    assert!(all[..4096] == text(4096, 5) && all[8192..12288] == text(4096, 5));
    assert!(
        all[4096..8192]
            .iter()
            .chain(&all[12288..16288])
            .all(|b| *b == 0)
    );
}

#[test]
fn limits_are_checked_before_memory_is_allocated() {
    let huge = |layout, u| {
        let body = Body::Raw {
            layout,
            size: 1 << 62,
            u,
            payload: vec![0; 16],
        };
        Node { body, ..file(b"") }
    };
    let mut long = symlink("x");
    long.change = |i| (i.size, i.layout, i.u) = (1 << 40, Layout::FlatPlain, (1 << 48) - 1);
    let mut wide = dir(&[]);
    wide.change = |i| (i.size, i.layout, i.u) = (1 << 50, Layout::FlatPlain, (1 << 48) - 1);
    let nodes = [
        dir(&[("chunks", 1), ("clusters", 2), ("long", 3), ("wide", 4)]),
        huge(Layout::ChunkBased, 0),
        huge(Layout::CompressedFull, 0),
        long,
        wide,
    ];
    let image = open(assemble(&nodes).bytes);
    let limit = |e: Error| assert!(matches!(e, Error::Limit(_)), "{e}");
    let mut buf = [0; 10];
    for name in [&b"chunks"[..], b"clusters"] {
        limit(
            image
                .read_at(&image.resolve(name).unwrap(), &mut buf, 0)
                .unwrap_err(),
        );
    }
    limit(
        image
            .readlink(&image.resolve(b"long").unwrap())
            .unwrap_err(),
    );
    limit(
        image
            .read_dir(&image.resolve(b"wide").unwrap())
            .err()
            .unwrap(),
    );
}

#[test]
fn symlinks_are_followed_only_on_request_and_within_a_limit() {
    let nodes = [
        dir(&[("a", 1), ("b", 2), ("sub", 3), ("up", 5)]),
        symlink("b"),
        symlink("a"),
        dir(&[("file", 4), ("rel", 6), ("root", 7)]),
        file(b"found"),
        symlink("sub/rel"),
        symlink("./../sub//file"),
        symlink("/sub"),
    ];
    let image = open(assemble(&nodes).bytes);
    assert!(matches!(
        image.resolve_following(b"a"),
        Err(Error::Limit(_))
    ));
    assert_eq!(
        image.resolve_following(b"up").unwrap(),
        image.resolve(b"sub/file").unwrap()
    );
    assert_eq!(
        image
            .resolve_following(b"sub/root/root/file")
            .unwrap()
            .size(),
        5
    );
    assert!(matches!(
        image.resolve(b"sub/root/file"),
        Err(Error::Usage(_))
    ));
    assert_eq!(image.resolve(b"/./sub/../sub/file/").unwrap().size(), 5);
}

#[test]
fn errors_state_the_inode_its_position_and_the_cause() {
    let made = assemble(&[dir(&[("a", 1)]), file(b"x")]);
    let mut bytes = made.bytes.clone();
    let at = made.nids[1].0 as usize * 32;
    bytes[at] = 0x0B; // layout 5
    let image = open(bytes);
    let error = image.inode(made.nids[1]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "unsupported image: nid {} (byte {at:#x}): inode data layout 0x5 is not known to this version",
            made.nids[1]
        )
    );
    let error = image.inode(Nid(1 << 40)).unwrap_err();
    assert!(
        error.to_string().contains("past the end, byte 4096"),
        "{error}"
    );
    let error = image.inode(Nid(1 << 63 | 5)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "corrupt image: nid metabox:5 (byte 0xa0): inside the metabox, but the image has none"
    );
}

#[test]
fn results_do_not_depend_on_the_cache_size() {
    let bytes = sample::bytes("prefix-packed");
    let mut limits = Limits::default();
    (
        limits.metadata_cache,
        limits.cluster_cache,
        limits.index_cache,
    ) = (0, 0, 0);
    let options = OpenOptions {
        limits,
        ..OpenOptions::default()
    };
    let cold = Image::open(MemStore::new(bytes.clone()), options).unwrap();
    assert_eq!(image_tree(&cold), image_tree(&open(bytes)));
}

#[test]
fn threads_can_share_an_image() {
    let image = sample::image("fragments");
    let expected = image_tree(&image);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(image_tree(&image), expected));
        }
    });
}
