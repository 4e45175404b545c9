//! Delta images: an image with its base contains the source tree, for this reader and for the
//! kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::Error;
use tuff_erofs::read::{DeviceId, Image, Location, OpenOptions};
use tuff_erofs::walk::Walk;
use tuff_mkfs::{
    Dedupe, Fragments, KernelVersion, Method, Options, Progress, Rule, Source, Summary, build,
};
use tuff_store::{FileStore, ReadAt, Target};
use tuff_testkit::Scratch;
use tuff_testkit::content::{mixed, noise, text};
use tuff_testkit::kernel::{by_kernel, input_with, open_with};
use tuff_testkit::tree::{Ignore, assert_same, host_tree, image_tree};
use tuff_testkit::variants::{MKFS_OPTIONS, compression, fsck_agrees, mkfs};

/// Files of every layout that both trees contain.
fn shared(root: &Path) {
    fs::create_dir_all(root.join("sub")).unwrap();
    for (name, bytes) in [
        ("text", text(300_001, 1)),
        ("blocks", text(5 * 4096, 2)),
        ("mixed", mixed(700_000, 3)),
        ("noise", noise(100_123, 4)),
        ("noise-in-blocks", noise(8 * 4096, 5)),
        ("small", text(700, 6)),
        ("tiny", b"tiny".to_vec()),
        ("zeros", vec![0; 200_000]),
    ] {
        fs::write(root.join(name), bytes).unwrap();
    }
    for n in 0..40 {
        let bytes = text(1000 + 97 * n, 100 + n as u64);
        fs::write(root.join(format!("sub/{n}")), bytes).unwrap();
    }
}

/// Tree of the base, with additional files before and between the common ones.
fn old_tree(root: &Path) {
    shared(root);
    for (name, n) in [
        ("a", 90_000),
        ("n", 3_333),
        ("sub/0-old", 20_000),
        ("z", 150_000),
    ] {
        fs::write(root.join(name), text(n, n as u64)).unwrap();
    }
}

/// Tree of the image: more files, copies of the base's files, modified files of equal size, and a
/// sparse file.
fn new_tree(root: &Path) {
    shared(root);
    fs::hard_link(root.join("small"), root.join("small-link")).unwrap();
    fs::copy(root.join("text"), root.join("sub/text-again")).unwrap();
    let mut changed = text(300_001, 1);
    changed[200_000] ^= 1;
    fs::write(root.join("changed"), changed).unwrap();
    fs::write(root.join("new"), mixed(222_222, 9)).unwrap();
    fs::write(root.join("new-small"), text(1234, 10)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
}

fn make(source: &Path, image: &Path, options: &Options) -> tuff_erofs::Result<Summary> {
    let sources = [Source::Dir(source.to_owned())];
    build(
        &sources,
        options,
        &Target::Path(image.to_owned()),
        &Progress::default(),
    )
}

fn open_both(image: &Path, base: &Path) -> tuff_erofs::Result<Image> {
    let base: Arc<dyn ReadAt> = Arc::new(FileStore::open(base).unwrap());
    let options = OpenOptions {
        devices: vec![base],
        ..OpenOptions::default()
    };
    Image::open(FileStore::open(image).unwrap(), options)
}

/// Properties that depend on the source's filesystem.
fn ignore() -> Ignore {
    Ignore {
        dir_size: true,
        dir_nlink: true,
        holes: true,
        ..Ignore::default()
    }
}

fn unaligned(mut options: Options) -> Options {
    options.layout.unaligned = true;
    options.layout.tail_packing = false;
    options
}

fn newest(method: Option<Method>, cluster: usize, fragments: Fragments) -> Options {
    let mut o = Options::for_kernel(KernelVersion(6, 18));
    o.compression.default = method.and_then(|method| compression(method, 1));
    (o.compression.cluster, o.layout.fragment_cluster) = (cluster, cluster.min(16 << 10));
    o.layout.fragments = fragments;
    o.layout.tail_packing = matches!(fragments, Fragments::Off | Fragments::Small);
    o.output.verify = true;
    o
}

struct TestTrees {
    scratch: Scratch,
    old: PathBuf,
    new: PathBuf,
}

impl TestTrees {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let (old, new) = (scratch.path().join("old"), scratch.path().join("new"));
        old_tree(&old);
        new_tree(&new);
        Self { scratch, old, new }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

#[test]
fn shared_files_refer_to_the_base() {
    let place = TestTrees::new("base");
    let expected = host_tree(&place.new);
    let (base, image) = (place.path("base"), place.path("image"));
    let lz4 = Some(Method::Lz4);
    let small_blocks = Options {
        block: tuff_format::BlockBits::new(9).unwrap(),
        ..newest(None, 4096, Fragments::Off)
    };
    let two = |options: Options| (options.clone(), options);
    let older = Options::for_kernel(KernelVersion(5, 16));
    // All 48 common files are shared, with these exceptions:
    //
    // * Compression or tails have to be those of the image.
    // * A tail's cluster of the packed inode is shorter than a block, as at the end of a segment.
    // * A tail is inline, which an unaligned image does not support.
    let settings = [
        ("lz4 64K", two(newest(lz4, 64 << 10, Fragments::Tails)), 47),
        ("lz4 4K", two(newest(lz4, 4 << 10, Fragments::Off)), 48),
        (
            "lz4 16K small",
            two(newest(lz4, 16 << 10, Fragments::Small)),
            48,
        ),
        (
            "zstd all",
            two(newest(Some(Method::Zstd), 16 << 10, Fragments::All)),
            48,
        ),
        (
            "deflate",
            two(newest(Some(Method::Deflate), 32 << 10, Fragments::Tails)),
            48,
        ),
        (
            "lzma",
            two(newest(Some(Method::Lzma), 128 << 10, Fragments::Off)),
            48,
        ),
        ("stored", two(newest(None, 4096, Fragments::Off)), 48),
        (
            "unaligned",
            two(unaligned(newest(lz4, 16 << 10, Fragments::Off))),
            48,
        ),
        (
            "unaligned, with fragments",
            two(unaligned(newest(
                Some(Method::Zstd),
                64 << 10,
                Fragments::Tails,
            ))),
            48,
        ),
        (
            "unaligned, over one that is not",
            (
                newest(lz4, 16 << 10, Fragments::Tails),
                unaligned(newest(lz4, 16 << 10, Fragments::Tails)),
            ),
            48,
        ),
        (
            "unaligned, over ends behind inodes",
            (
                newest(lz4, 16 << 10, Fragments::Off),
                unaligned(newest(lz4, 16 << 10, Fragments::Off)),
            ),
            6,
        ),
        ("blocks of 512", two(small_blocks), 48),
        ("for 5.16", two(older), 48),
        (
            "another algorithm",
            (
                newest(lz4, 16 << 10, Fragments::Off),
                newest(Some(Method::Zstd), 64 << 10, Fragments::Tails),
            ),
            48,
        ),
        (
            "fragments of another algorithm",
            (
                newest(Some(Method::Zstd), 64 << 10, Fragments::Tails),
                newest(lz4, 16 << 10, Fragments::Tails),
            ),
            4,
        ),
        (
            "fragments, but not in the image",
            (
                newest(lz4, 64 << 10, Fragments::Tails),
                newest(lz4, 64 << 10, Fragments::Off),
            ),
            4,
        ),
    ];
    for (name, (old, mut new), files) in settings {
        make(&place.old, &base, &old).unwrap();
        let alone = make(&place.new, &image, &new).unwrap();
        new.dedupe.bases = vec![input_with(&base, &[])];
        let summary = make(&place.new, &image, &new).unwrap();
        println!(
            "{name}: {} of 48 files, parts {}, {} of {}",
            summary.stats.base_files,
            summary.stats.base_part_bytes,
            summary.image_bytes,
            alone.image_bytes
        );
        assert_eq!(summary.stats.base_files, files, "{name}");
        assert!(summary.image_bytes < alone.image_bytes, "{name}");
        let both = open_both(&image, &base).unwrap();
        let report = tuff_erofs::check::check(&both, &Default::default(), |_| ());
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        assert_same(name, &expected, &image_tree(&both), ignore());
        by_kernel(&image, &[&base], &place.path("mnt"), &|way, dir| {
            assert_same(
                &format!("{name}: {way}"),
                &expected,
                &host_tree(dir),
                ignore(),
            );
        });
    }
}

/// Asserts that no data has an address in the unified address space behind the image, which some readers do not know.
/// Returns the number of extents on other devices.
fn extents_by_device(image: &Image) -> usize {
    let sb = image.superblock();
    let end = sb.blocks * sb.block_bits.size();
    let mut on_devices = 0;
    for entry in Walk::root(image).unwrap() {
        let entry = entry.unwrap();
        if !entry.inode.has_data() {
            continue;
        }
        for extent in image.extents(&entry.inode, 0..entry.inode.size()).unwrap() {
            let extent = extent.unwrap();
            match extent.location {
                Location::Raw { device, pos } if device == DeviceId::PRIMARY => {
                    assert!(pos + extent.len <= end, "{:?}", entry.path);
                }
                Location::Raw { .. } => on_devices += 1,
                Location::Hole | Location::Inline { .. } => {}
                other => panic!("{:?}: {other:?}", entry.path),
            }
        }
    }
    on_devices
}

#[test]
fn stored_data_of_a_base_has_its_device_number() {
    let place = TestTrees::new("base-devices");
    let expected = host_tree(&place.new);
    let (base, image) = (place.path("base"), place.path("image"));
    let plain = newest(None, 4096, Fragments::Off);
    let mut no_tails = plain.clone();
    no_tails.layout.inline_data = false;
    let mut chunks = plain.clone();
    chunks.layout.chunk = Some(8192);
    let over = |base: &Path, devices: &[&Path]| {
        let mut options = plain.clone();
        options.dedupe.bases = vec![input_with(base, devices)];
        options
    };
    for (name, of_base) in [
        ("tails", &plain),
        ("no tails", &no_tails),
        ("chunks", &chunks),
    ] {
        make(&place.old, &base, of_base).unwrap();
        make(&place.new, &image, &over(&base, &[])).unwrap();
        let both = open_both(&image, &base).unwrap();
        assert!(extents_by_device(&both) >= 8, "{name}");
        assert_same(name, &expected, &image_tree(&both), ignore());
        fsck_agrees(&image, &[&base], &place.new, &place.path("extracted"));
    }
    // A delta over the delta: two devices.
    let second = place.path("second");
    fs::write(place.new.join("later"), noise(50_000, 77)).unwrap();
    make(&place.new, &second, &over(&image, &[&base])).unwrap();
    let expected = host_tree(&place.new);
    let all = open_with(&second, &[&image, &base]).unwrap();
    assert!(extents_by_device(&all) >= 8);
    assert_same("chain", &expected, &image_tree(&all), ignore());
    let extracted = place.path("extracted");
    fsck_agrees(&second, &[&image, &base], &place.new, &extracted);
}

#[test]
fn image_and_base_can_be_concatenated() {
    let place = TestTrees::new("base-flat");
    let (base, image) = (place.path("base"), place.path("image"));
    let mut options = newest(Some(Method::Lz4), 64 << 10, Fragments::Tails);
    make(&place.old, &base, &options).unwrap();
    options.dedupe.bases = vec![input_with(&base, &[])];
    make(&place.new, &image, &options).unwrap();
    let both = [fs::read(&image).unwrap(), fs::read(&base).unwrap()].concat();
    let flat = Image::open(tuff_store::MemStore::new(both), OpenOptions::default()).unwrap();
    assert_same("flat", &host_tree(&place.new), &image_tree(&flat), ignore());
}

/// Modified versions of the base's files: bytes changed, inserted, removed, rotated and repeated.
fn changed_trees(root: &Path) -> (PathBuf, PathBuf) {
    let (old, new) = (root.join("old-large"), root.join("new-large"));
    fs::create_dir_all(&old).unwrap();
    fs::create_dir_all(&new).unwrap();
    let (first, second) = (text(2_500_000, 31), mixed(1_800_000, 32));
    fs::write(old.join("first"), &first).unwrap();
    fs::write(old.join("second"), &second).unwrap();
    let mut flipped = first.clone();
    flipped[1_234_567] ^= 1;
    let inserted = [&second[..900_000], b"something new", &second[900_000..]].concat();
    let without = [&first[..500_000], &first[503_000..]].concat();
    let turned = [&second[700_001..], &second[..700_001]].concat();
    let both = [&first[300_000..1_300_000], &second[5_000..1_000_000]].concat();
    let more = [&both[..], &text(200_000, 33)].concat();
    for (name, bytes) in [
        ("flipped", flipped),
        ("inserted", inserted),
        ("without", without),
        ("turned", turned),
        ("both", both),
        ("more", more),
        ("new", text(300_000, 34)),
    ] {
        fs::write(new.join(name), bytes).unwrap();
    }
    (old, new)
}

#[test]
fn shared_parts_refer_to_the_base() {
    let scratch = Scratch::new("base-parts");
    let (old, new) = changed_trees(scratch.path());
    let path = |name: &str| scratch.path().join(name);
    let (base, image) = (path("base"), path("image"));
    let expected = host_tree(&new);
    let [lz4, zstd] = [Method::Lz4, Method::Zstd].map(Some);
    let two = |options: Options| (options.clone(), options);
    // Minimum share of the content in clusters of the base. Unit: percent.
    let settings = [
        ("lz4 4K", two(newest(lz4, 4 << 10, Fragments::Off)), 80),
        ("lz4 64K", two(newest(lz4, 64 << 10, Fragments::Tails)), 60),
        (
            "zstd 64K",
            two(newest(zstd, 64 << 10, Fragments::Small)),
            40,
        ),
        (
            "deflate",
            two(newest(Some(Method::Deflate), 16 << 10, Fragments::Off)),
            60,
        ),
        (
            "lzma",
            two(newest(Some(Method::Lzma), 32 << 10, Fragments::Tails)),
            40,
        ),
        (
            "unaligned",
            two(unaligned(newest(lz4, 16 << 10, Fragments::Off))),
            60,
        ),
        (
            "smaller clusters",
            (
                newest(lz4, 16 << 10, Fragments::Off),
                newest(lz4, 4 << 10, Fragments::Tails),
            ),
            50,
        ),
        (
            "another algorithm",
            (
                newest(lz4, 16 << 10, Fragments::Off),
                newest(zstd, 16 << 10, Fragments::Off),
            ),
            0,
        ),
    ];
    for (name, (before, mut now), share) in settings {
        make(&old, &base, &before).unwrap();
        let alone = make(&new, &image, &now).unwrap();
        now.dedupe.bases = vec![input_with(&base, &[])];
        let summary = make(&new, &image, &now).unwrap();
        let stats = &summary.stats;
        let found = stats.base_part_bytes * 100 / stats.content_bytes;
        println!(
            "{name}: {found} %, {} bytes instead of {}",
            summary.image_bytes, alone.image_bytes
        );
        assert_eq!(stats.base_files, 0, "{name}");
        assert!(found >= share, "{name}: {found} %");
        assert_eq!(found > 0, share > 0, "{name}");
        assert_eq!(summary.image_bytes < alone.image_bytes, share > 0, "{name}");
        let both = open_both(&image, &base).unwrap();
        let report = tuff_erofs::check::check(&both, &Default::default(), |_| ());
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        assert_same(name, &expected, &image_tree(&both), ignore());
        by_kernel(&image, &[&base], &path("mnt"), &|way, dir| {
            let name = format!("{name}: {way}");
            assert_same(&name, &expected, &host_tree(dir), ignore());
        });
        let bytes = fs::read(&image).unwrap();
        for threads in [1, 7, 16] {
            now.resources.threads = Some(threads);
            make(&new, &image, &now).unwrap();
            assert!(fs::read(&image).unwrap() == bytes, "{name}: {threads}");
        }
    }
    // With `Dedupe::Files` only whole files are shared.
    let mut whole = newest(lz4, 16 << 10, Fragments::Off);
    make(&old, &base, &whole).unwrap();
    whole.dedupe.bases = vec![input_with(&base, &[])];
    whole.dedupe.mode = Dedupe::Files;
    let stats = make(&new, &image, &whole).unwrap().stats;
    assert_eq!(stats.base_part_bytes, 0);
}

/// Images of mkfs.erofs as bases.
#[test]
fn images_of_mkfs_erofs_can_be_bases() {
    let place = TestTrees::new("base-mkfs");
    let expected = host_tree(&place.new);
    let (base, image) = (place.path("base"), place.path("image"));
    for (i, options) in MKFS_OPTIONS.iter().enumerate() {
        if mkfs(&base, &place.old, options).is_none() {
            continue;
        }
        let mut new = newest(Some(Method::Lz4), 64 << 10, Fragments::Tails);
        if options.contains(&"-b1024") {
            new.block = tuff_format::BlockBits::new(10).unwrap();
        }
        if options.iter().any(|o| o.contains("lzma")) {
            new.compression.default = compression(Method::Lzma, 0);
        }
        new.dedupe.bases = vec![input_with(&base, &[])];
        let summary = make(&place.new, &image, &new).unwrap();
        let name = format!("{options:?}: {} of 48 files", summary.stats.base_files);
        println!("{name}");
        // Plain files are always shared; the last variants are compressed.
        assert!(summary.stats.base_files > 0 || i > 4, "{name}");
        let both = open_both(&image, &base).unwrap();
        assert_same(&name, &expected, &image_tree(&both), ignore());
        by_kernel(&image, &[&base], &place.path("mnt"), &|way, dir| {
            assert_same(
                &format!("{name}: {way}"),
                &expected,
                &host_tree(dir),
                ignore(),
            );
        });
    }
}

#[test]
fn bytes_over_a_base_do_not_depend_on_threads() {
    let place = TestTrees::new("base-threads");
    let base = place.path("base");
    for fragments in [Fragments::Off, Fragments::Tails, Fragments::All] {
        let mut options = newest(Some(Method::Lz4), 16 << 10, fragments);
        // More than one segment.
        for tree in [&place.old, &place.new] {
            fs::write(tree.join("sub/large"), mixed((9 << 20) + 5, 7)).unwrap();
        }
        make(&place.old, &base, &options).unwrap();
        options.dedupe.bases = vec![input_with(&base, &[])];
        let images = [1, 2, 7, 16].map(|threads| {
            let image = place.path(&threads.to_string());
            options.resources.threads = Some(threads);
            make(&place.new, &image, &options).unwrap();
            fs::read(image).unwrap()
        });
        assert!(images.windows(2).all(|w| w[0] == w[1]), "{fragments:?}");
    }
}

/// A rule for uncompressed storage prevents the use of compressed files in a base.
#[test]
fn rules_for_storage_apply_to_base_files() {
    let place = TestTrees::new("base-rule");
    let (base, image) = (place.path("base"), place.path("image"));
    let mut options = newest(Some(Method::Lz4), 16 << 10, Fragments::Off);
    make(&place.old, &base, &options).unwrap();
    options.dedupe.bases = vec![input_with(&base, &[])];
    options.compression.rules = vec![Rule {
        paths: globset::Glob::new("{text,noise-in-blocks}")
            .unwrap()
            .compile_matcher()
            .into(),
        compression: None,
        cluster: None,
    }];
    let summary = make(&place.new, &image, &options).unwrap();
    assert_eq!(summary.stats.base_files, 48, "text-again instead of text");
    let both = open_both(&image, &base).unwrap();
    let stored = both.resolve(b"/text").unwrap();
    assert_eq!(stored.layout(), tuff_erofs::read::Layout::FlatInline);
    assert_same("rule", &host_tree(&place.new), &image_tree(&both), ignore());
}

#[test]
fn unsuitable_bases_are_rejected() {
    let place = TestTrees::new("base-refused");
    let (base, image) = (place.path("base"), place.path("image"));
    let plain = newest(Some(Method::Lz4), 16 << 10, Fragments::Off);
    make(&place.old, &base, &plain).unwrap();
    let over = |base: &Path| {
        let mut options = plain.clone();
        options.dedupe.bases = vec![input_with(base, &[])];
        options
    };
    let refused = |options: &Options| match make(&place.new, &image, options) {
        Err(Error::Usage(what)) => what.to_string(),
        other => panic!("{other:?}"),
    };
    make(&place.new, &image, &over(&base)).unwrap();
    // Another block size; a base whose own base is missing; an old kernel.
    let mut blocks = over(&base);
    blocks.block = tuff_format::BlockBits::new(10).unwrap();
    assert!(refused(&blocks).contains("blocks of 4096 bytes"));
    let chained = place.path("chained");
    fs::copy(&image, &chained).unwrap();
    assert!(refused(&over(&chained)).contains("not given"));
    let old = {
        let mut options = Options::for_kernel(KernelVersion(5, 15));
        options.dedupe.bases = vec![input_with(&base, &[])];
        options
    };
    assert!(refused(&old).contains("Linux 5.16"));
    let itself = make(&place.new, &base, &over(&base));
    assert!(matches!(itself, Err(Error::Usage(what)) if what.to_string().contains("its base")));
    // Opening with the wrong base fails.
    let other = place.path("other");
    make(&place.new, &other, &plain).unwrap();
    assert!(
        matches!(open_both(&image, &other), Err(Error::Usage(what)) if what.to_string().contains("UUID"))
    );
}

/// A damaged base fails the build, at the latest when a file is compared.
#[test]
fn a_damaged_base_is_named() {
    let place = TestTrees::new("base-damaged");
    let (base, image) = (place.path("base"), place.path("image"));
    let mut options = newest(Some(Method::Zstd), 16 << 10, Fragments::Off);
    make(&place.old, &base, &options).unwrap();
    let mut bytes = fs::read(&base).unwrap();
    bytes[4096..40960].fill(0x5A);
    fs::write(&base, bytes).unwrap();
    options.dedupe.bases = vec![input_with(&base, &[])];
    options.dedupe.mode = Dedupe::Off;
    match make(&place.new, &image, &options) {
        Err(e @ Error::Corrupt(_)) => assert!(e.to_string().contains("base"), "{e}"),
        other => panic!("{other:?}"),
    }
    assert!(!image.exists(), "nothing has the image's name");
}
