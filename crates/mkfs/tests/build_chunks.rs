//! Chunk-based images, with data inside or in a chunk file: this reader and the kernel see the
//! source tree.

use std::fs;
use std::path::{Path, PathBuf};
use tuff_erofs::Error;
use tuff_erofs::read::{DeviceId, Location};
use tuff_mkfs::{
    Dedupe, Fragments, KernelVersion, Metadata, Method, Options, Progress, Source, SparsePolicy,
    Summary, build,
};
use tuff_store::Target;
use tuff_testkit::Scratch;
use tuff_testkit::content::noise;
use tuff_testkit::kernel::{all_agree, by_kernel, input_with};
use tuff_testkit::tree::{assert_same, from_source, host_tree, image_tree, nasty_tree, open};
use tuff_testkit::variants::compression;

/// Options for uncompressed chunks.
fn options(chunk: usize, blob: Option<PathBuf>) -> Options {
    let mut options = Options::for_kernel(KernelVersion(6, 4));
    options.compression.default = None;
    options.layout.fragments = Fragments::Off;
    options.layout.chunk = Some(chunk);
    options.layout.blob = blob;
    options.dedupe.mode = Dedupe::Off;
    options.output.verify = true;
    options
}

fn make(source: &Path, image: &Path, options: &Options) -> tuff_erofs::Result<Summary> {
    let (source, target) = (
        Source::Dir(source.to_owned()),
        Target::Path(image.to_owned()),
    );
    build(&[source], options, &target, &Progress::default())
}

#[test]
fn chunk_based_images_contain_the_tree() {
    let scratch = Scratch::new("chunks");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    let expected = host_tree(&at("tree"));
    let ignore = from_source(&expected);
    let lz4 = |mut options: Options| {
        options.compression.default = compression(Method::Lz4, 1);
        options.layout.fragments = Fragments::Tails;
        options.dedupe.mode = Dedupe::Content;
        options
    };
    let small = |mut options: Options| {
        options.block = tuff_format::BlockBits::new(9).unwrap();
        options
    };
    let boxed = |options: Options| {
        let mut options = lz4(options);
        options.kernel = KernelVersion(6, 17);
        options.metadata.form = Metadata::Compressed;
        options
    };
    let keep = |mut options: Options| {
        options.layout.sparse = SparsePolicy::Keep;
        options
    };
    let with: [(&str, &dyn Fn(Options) -> Options); 5] = [
        ("stored", &|o| o),
        ("kept holes", &keep),
        ("lz4", &lz4),
        ("small blocks", &small),
        ("compressed metadata", &boxed),
    ];
    for (name, with) in with {
        for chunk in [4096, 64 << 10] {
            let what = format!("{name}, chunks of {chunk}");
            let (image, blob) = (at("image"), at("blob"));
            make(&at("tree"), &image, &with(options(chunk, None))).unwrap();
            assert_same(&what, &expected, &image_tree(&open(&image)), ignore);
            by_kernel(&image, &[], &at("mnt"), &|way, dir| {
                assert_same(
                    &format!("{what}, {way}"),
                    &expected,
                    &host_tree(dir),
                    ignore,
                );
            });
            make(
                &at("tree"),
                &image,
                &with(options(chunk, Some(blob.clone()))),
            )
            .unwrap();
            all_agree(
                &format!("{what}, blob"),
                &image,
                &[&blob],
                &expected,
                ignore,
            );
        }
    }
}

#[test]
fn equal_chunks_are_stored_once_and_zeros_not_at_all() {
    let scratch = Scratch::new("chunks-once");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    let content = noise(40_000, 1);
    let file = |name: &str, bytes: &[u8]| fs::write(at("tree").join(name), bytes).unwrap();
    file("a", &content);
    file("b", &content);
    file("c", &[&content, &b"more"[..]].concat());
    file(
        "d",
        &[&[0; 8192][..], &content[4096..8192], &[0; 10_000]].concat(),
    );
    file("e", &[0; 5000]);
    let blob = at("blob");
    let made = make(
        &at("tree"),
        &at("image"),
        &options(4096, Some(blob.clone())),
    )
    .unwrap();
    // Ten blocks of the content, and a different last one.
    assert_eq!(fs::metadata(&blob).unwrap().len(), 11 * 4096);
    assert_eq!(
        (made.stats.blob_bytes, made.stats.external_bytes),
        (11 * 4096, 40_000 + 3140)
    );
    let image = open(&at("image"));
    let root = image.root().unwrap();
    let places = |name: &str| -> Vec<(u64, Location)> {
        let nid = image.lookup(&root, name.as_bytes()).unwrap().unwrap();
        let inode = image.inode(nid).unwrap();
        let extents = image.extents(&inode, 0..inode.size()).unwrap();
        extents
            .map(|e| e.unwrap())
            .map(|e| (e.len, e.location))
            .collect()
    };
    let device = DeviceId(1);
    let data = |pos| Location::Raw { device, pos };
    assert_eq!(places("a"), [(40_000, data(0))]);
    assert_eq!(places("b"), [(40_000, data(0))]);
    assert_eq!(places("c"), [(36_864, data(0)), (3140, data(40_960))]);
    assert_eq!(
        places("d"),
        [
            (8192, Location::Hole),
            (4096, data(4096)),
            (10_000, Location::Hole)
        ]
    );
    assert_eq!(places("e"), [(5000, Location::Hole)]);
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let scratch = Scratch::new("chunks-same");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    fs::write(at("tree/large"), noise(20 << 20, 3)).unwrap();
    let mut made = Vec::new();
    for threads in [1, 2, 7, 16] {
        let mut options = options(4096, Some(at("blob")));
        options.resources.threads = Some(threads);
        make(&at("tree"), &at("image"), &options).unwrap();
        made.push((
            fs::read(at("image")).unwrap(),
            fs::read(at("blob")).unwrap(),
        ));
    }
    assert!(made.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_failed_build_preserves_both_files() {
    let scratch = Scratch::new("chunks-fail");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/a"), noise(100_000, 1)).unwrap();
    fs::write(at("blob"), "what was there").unwrap();
    fs::write(at("cut.tar"), [7; 100]).unwrap();
    let target = Target::Path(at("image"));
    let sources = [Source::Dir(at("tree")), Source::Tar(at("cut.tar"))];
    let options = options(4096, Some(at("blob")));
    assert!(build(&sources, &options, &target, &Progress::default()).is_err());
    assert!(!at("image").exists());
    assert_eq!(fs::read(at("blob")).unwrap(), b"what was there");
    let unnamed = fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(unnamed, 3);
    let progress = Progress::default();
    progress.stop();
    assert!(build(&sources[..1], &options, &target, &progress).is_err());
    assert_eq!(fs::read(at("blob")).unwrap(), b"what was there");
}

#[test]
fn conflicting_options_are_rejected() {
    let scratch = Scratch::new("chunks-refused");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    let blob = || Some(at("blob"));
    let base = Target::Path(at("base"));
    let tree = Source::Dir(at("tree"));
    tuff_mkfs::build(&[tree], &Options::default(), &base, &Progress::default()).unwrap();
    for (options, says) in [
        (options(512, None), "chunk size 512"),
        (options(12_288, None), "chunk size 12288"),
        (options(16 << 20, None), "up to 8388608"),
        (options(4096, Some(at("image"))), "cannot be one file"),
        (
            options(4096, Some(at("tree/../image"))),
            "cannot be one file",
        ),
        (
            {
                let mut options = options(4096, blob());
                options.layout.chunk = None;
                options
            },
            "needs a chunk size",
        ),
        (
            {
                let mut options = options(4096, blob());
                options.dedupe.bases = vec![input_with(&at("base"), &[])];
                options
            },
            "neither a base nor",
        ),
        (
            {
                let mut options = options(4096, blob());
                options.kernel = KernelVersion(5, 15);
                options
            },
            "needs Linux 5.16",
        ),
    ] {
        let refused = make(&at("tree"), &at("image"), &options).unwrap_err();
        assert!(matches!(refused, Error::Usage(_)), "{refused}");
        assert!(refused.to_string().contains(says), "{refused}");
        assert!(!at("image").exists() && !at("blob").exists());
    }
}
