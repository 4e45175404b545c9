//! Images whose data stays in several others: bases, bases of bases, and source images.

use std::fs;
use std::path::{Path, PathBuf};
use tuff_erofs::{Error, Result};
use tuff_format::BlockBits;
use tuff_mkfs::{
    Dedupe, Fragments, KernelVersion, Metadata, Method, Options, Progress, Source, Summary, Verity,
    build,
};
use tuff_store::Target;
use tuff_testkit::Scratch;
use tuff_testkit::content::{mixed, noise, text};
use tuff_testkit::kernel::{all_agree, input_with, open_with};
use tuff_testkit::tree::{Ignore, assert_same, image_tree, open};
use tuff_testkit::variants::{MKFS_OPTIONS, compression, mkfs};

/// Holes may be read back as data.
const HOLES: Ignore = Ignore {
    dir_nlink: false,
    dir_size: true,
    holes: true,
    nsec: false,
    times: false,
    owners: false,
    xattrs: false,
};

fn make(sources: &[Source], image: &Path, options: &Options) -> Result<Summary> {
    let target = Target::Path(image.to_owned());
    build(sources, options, &target, &Progress::default())
}

fn image(path: &Path) -> Source {
    Source::Image(input_with(path, &[]))
}

fn method(method: Method, cluster: usize, fragments: Fragments) -> Options {
    let mut o = Options::for_kernel(KernelVersion(6, 18));
    o.compression.default = compression(method, 1);
    (o.compression.cluster, o.layout.fragment_cluster) = (cluster, cluster.min(16 << 10));
    o.layout.fragments = fragments;
    o.layout.tail_packing = fragments == Fragments::Off;
    o
}

fn stored() -> Options {
    let mut options = Options::for_kernel(KernelVersion(6, 18));
    options.compression.default = None;
    options.layout.fragments = Fragments::Off;
    options.dedupe.mode = Dedupe::Off;
    options
}

/// Options of an image that refers to its source images.
fn index(mut options: Options) -> Options {
    options.dedupe.image_index = true;
    options.output.verify = true;
    options
}

/// Creates files of every layout. Each number has its own files, changes some of the layer below
/// and deletes one.
fn layer(root: &Path, number: u64) -> PathBuf {
    let dir = root.join(format!("tree-{number}"));
    fs::create_dir_all(dir.join("sub")).unwrap();
    for (name, bytes) in [
        ("text", text(300_001, number)),
        ("blocks", text(5 * 4096, number + 10)),
        ("mixed", mixed(700_000, number + 20)),
        ("noise", noise(100_123, number + 30)),
        ("tiny", format!("tiny {number}").into_bytes()),
        ("zeros", vec![0; 200_000]),
        ("empty", Vec::new()),
    ] {
        fs::write(dir.join(format!("sub/{name}-{number}")), &bytes).unwrap();
        // The same path in every layer.
        fs::write(dir.join(name), &bytes).unwrap();
    }
    for n in 0..20 {
        let bytes = text(1000 + 97 * n, 100 * number + n as u64);
        fs::write(dir.join(format!("sub/{number}-{n}")), bytes).unwrap();
    }
    let sparse = fs::File::create(dir.join(format!("sparse-{number}"))).unwrap();
    sparse.set_len((1 << 20) + 5).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &text(9000, number), 512 << 10).unwrap();
    fs::hard_link(dir.join("text"), dir.join(format!("link-{number}"))).unwrap();
    if number > 0 && tuff_testkit::is_root() {
        let gone = dir.join(format!("sub/{}-3", number - 1));
        let kind = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::empty();
        rustix::fs::mknodat(rustix::fs::CWD, &gone, kind, mode, 0).unwrap();
    }
    dir
}

/// Builds one layer image per element of `options`. Returns their paths, and them as sources.
fn layers(scratch: &Scratch, options: &[Options]) -> (Vec<PathBuf>, Vec<Source>) {
    let mut paths = Vec::new();
    for (options, number) in options.iter().zip(0..) {
        let dir = layer(scratch.path(), number);
        let path = scratch.path().join(format!("layer-{number}"));
        make(&[Source::Dir(dir)], &path, options).unwrap();
        paths.push(path);
    }
    let sources = paths.iter().map(|path| image(path)).collect();
    (paths, sources)
}

fn refs(paths: &[PathBuf]) -> Vec<&Path> {
    paths.iter().map(PathBuf::as_path).collect()
}

/// Expected tree, from an image that copies all data.
fn copied(scratch: &Scratch, sources: &[Source]) -> Vec<tuff_testkit::tree::Record> {
    let copy = scratch.path().join("copy");
    make(sources, &copy, &Options::for_kernel(KernelVersion(6, 18))).unwrap();
    image_tree(&open(&copy))
}

/// Merges layers of every layout into an image that stores almost no data.
#[test]
fn images_in_place_are_one_tree() {
    let scratch = Scratch::new("merge");
    let chunks = {
        let mut options = stored();
        options.layout.chunk = Some(8192);
        options
    };
    let lz4 = method(Method::Lz4, 64 << 10, Fragments::Tails);
    let zstd = method(Method::Zstd, 32 << 10, Fragments::Off);
    let all = method(Method::Lz4, 16 << 10, Fragments::All);
    let (paths, sources) = layers(&scratch, &[stored(), lz4.clone(), chunks, zstd, all]);
    let expected = copied(&scratch, &sources);
    let merged = scratch.path().join("merged");
    for (what, options) in [
        ("stored", index(stored())),
        ("LZ4", index(lz4.clone())),
        (
            "short",
            index({
                let mut options = stored();
                options.metadata.form = Metadata::Short;
                options
            }),
        ),
        (
            "compressed",
            index({
                let mut options = lz4.clone();
                options.metadata.form = Metadata::Compressed;
                options.layout.align_blocks = 8;
                options
            }),
        ),
        (
            "verity",
            index({
                let mut options = stored();
                options.output.verity = Some(Verity::default());
                options
            }),
        ),
    ] {
        let summary = make(&sources, &merged, &options).unwrap();
        let s = &summary.stats;
        println!("{what}: {} of {} files in place", s.base_files, s.files);
        match options.output.verity {
            // The hash tree follows the image.
            Some(_) => {
                let shown = image_tree(&open_with(&merged, &refs(&paths)).unwrap());
                assert_same(what, &expected, &shown, HOLES);
            }
            None => all_agree(what, &merged, &refs(&paths), &expected, HOLES),
        }
        // Fragments are copied if no packed inode with their algorithm exists.
        assert!(s.base_bytes > s.content_bytes / 2, "{what}");
        // All files but six empty ones.
        let same = matches!(what, "LZ4" | "compressed");
        assert!(!same || s.base_files + 6 == s.files, "{what}");
    }
}

/// A packed inode has clusters of two algorithms; fragments of a third one are copied.
#[test]
fn fragments_of_two_algorithms_stay_in_place() {
    let scratch = Scratch::new("merge-algorithms");
    let lz4 = method(Method::Lz4, 64 << 10, Fragments::Tails);
    let zstd = method(Method::Zstd, 32 << 10, Fragments::All);
    let deflate = method(Method::Deflate, 16 << 10, Fragments::All);
    let unaligned = {
        let mut options = zstd.clone();
        options.layout.unaligned = true;
        options
    };
    let (paths, sources) = layers(&scratch, &[lz4.clone(), zstd.clone(), lz4.clone(), deflate]);
    let merged = scratch.path().join("merged");
    for (what, count, options) in [
        ("LZ4 first", 3, &lz4),
        ("Zstd first", 3, &zstd),
        ("extents", 3, &unaligned),
        ("a third", 4, &lz4),
    ] {
        let (paths, sources) = (&paths[..count], &sources[..count]);
        let expected = copied(&scratch, sources);
        let summary = make(sources, &merged, &index(options.clone())).unwrap();
        all_agree(what, &merged, &refs(paths), &expected, HOLES);
        let s = &summary.stats;
        println!("{what}: {} of {} files in place", s.base_files, s.files);
        // Empty files, and the few whose fragments are in clusters that no other index can express.
        let copied = s.files - s.base_files;
        match what {
            "a third" => assert!(copied > 20, "{what}: {copied}"),
            _ => assert!(copied < 8, "{what}: {copied}"),
        }
    }
}

/// Device tables of several blocks; the result does not depend on the number of threads.
#[test]
fn many_layers_are_one_tree() {
    let scratch = Scratch::new("merge-many");
    for bits in [9, 12] {
        let block = BlockBits::new(bits).unwrap();
        let (mut paths, mut sources) = (Vec::new(), Vec::new());
        for n in 0..40u64 {
            let dir = scratch.path().join(format!("t{n}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("same"), text(20_000 + n as usize, n)).unwrap();
            fs::write(dir.join(format!("own-{n}")), text(9_999, n)).unwrap();
            let path = scratch.path().join(format!("l{n}"));
            make(&[Source::Dir(dir)], &path, &Options { block, ..stored() }).unwrap();
            sources.push(image(&path));
            paths.push(path);
        }
        let expected = copied(&scratch, &sources);
        let options = index(Options { block, ..stored() });
        let merged = scratch.path().join("merged");
        let bytes = [1, 2, 7].map(|threads| {
            let threads = Some(threads);
            let mut options = options.clone();
            options.resources.threads = threads;
            make(&sources, &merged, &options).unwrap();
            fs::read(&merged).unwrap()
        });
        assert!(bytes.windows(2).all(|w| w[0] == w[1]));
        assert_eq!(open(&merged).slots().len(), 40);
        all_agree("many", &merged, &refs(&paths), &expected, HOLES);
    }
}

/// Layers with devices of their own: a base, a chunk file, and a tar as a device or appended.
#[test]
fn devices_of_layers_are_devices_of_the_image() {
    let scratch = Scratch::new("merge-devices");
    let at = |name: &str| scratch.path().join(name);
    let trees = [0, 1, 2].map(|n| layer(scratch.path(), n));
    let plain = stored();
    make(&[Source::Dir(trees[0].clone())], &at("bottom"), &plain).unwrap();
    fs::write(trees[1].join("text"), text(300_001, 0)).unwrap();
    let over = {
        let mut options = plain.clone();
        options.dedupe.bases = vec![input_with(&at("bottom"), &[])];
        options
    };
    make(&[Source::Dir(trees[1].clone())], &at("over"), &over).unwrap();
    let chunked = {
        let mut options = plain.clone();
        options.layout.chunk = Some(4096);
        options.layout.blob = Some(at("blob"));
        options
    };
    make(&[Source::Dir(trees[2].clone())], &at("chunked"), &chunked).unwrap();
    let with = |name: &str, device: &str| Source::Image(input_with(&at(name), &[&at(device)]));
    let sources = [with("over", "bottom"), with("chunked", "blob")];
    let expected = copied(&scratch, &sources);
    let merged = at("merged");
    make(&sources, &merged, &index(plain.clone())).unwrap();
    let devices = ["over", "bottom", "chunked", "blob"].map(at);
    all_agree("beside", &merged, &refs(&devices), &expected, HOLES);
    // The same two images as bases of their own tree.
    let bases = [("over", "bottom"), ("chunked", "blob")]
        .map(|(name, device)| input_with(&at(name), &[&at(device)]));
    let mut options = plain.clone();
    options.dedupe.bases = bases.to_vec();
    options.output.verify = true;
    let again = [Source::Dir(trees[1].clone()), Source::Dir(trees[2].clone())];
    let summary = make(&again, &merged, &options).unwrap();
    let s = summary.stats;
    // All files but three empty and two sparse ones.
    assert_eq!(s.base_files + 5, s.files);
    let expected = copied(&scratch, &again);
    all_agree("bases", &merged, &refs(&devices), &expected, HOLES);
    // A device that is appended to its image is not a separate device.
    let both = [
        fs::read(at("over")).unwrap(),
        fs::read(at("bottom")).unwrap(),
    ];
    fs::write(at("both"), both.concat()).unwrap();
    let sources = [image(&at("both")), with("chunked", "blob")];
    let expected = copied(&scratch, &sources);
    make(&sources, &merged, &index(plain.clone())).unwrap();
    let devices = ["both", "chunked", "blob"].map(at);
    all_agree("behind", &merged, &refs(&devices), &expected, HOLES);
    // An image without its device is rejected.
    let refused = make(&[image(&at("over"))], &merged, &index(plain));
    assert!(matches!(refused, Err(Error::Usage(what)) if what.to_string().contains("not given")));
}

/// Layers of mkfs.erofs and tar indexes.
#[test]
fn layers_of_mkfs_erofs_are_merged() {
    let scratch = Scratch::new("merge-mkfs");
    let trees = [0, 1].map(|n| layer(scratch.path(), n));
    let at = |name: &str| scratch.path().join(name);
    let merged = at("merged");
    for options in MKFS_OPTIONS.iter().filter(|o| !o.contains(&"-b1024")) {
        let paths = ["first", "second"].map(at);
        if mkfs(&paths[0], &trees[0], options).is_none()
            || mkfs(&paths[1], &trees[1], options).is_none()
        {
            continue;
        }
        let sources = [image(&paths[0]), image(&paths[1])];
        let expected = copied(&scratch, &sources);
        let what = format!("{options:?}");
        let summary = make(&sources, &merged, &index(stored())).unwrap();
        println!("{what}: {} in place", summary.stats.base_files);
        all_agree(&what, &merged, &refs(&paths), &expected, HOLES);
    }
    let tars = ["0.tar", "1.tar"].map(at);
    let mut paths = Vec::new();
    for (tar, tree) in tars.iter().zip(&trees) {
        let name = tar.with_extension("index");
        let mut command = std::process::Command::new("tar");
        command.arg("-cf").arg(tar).arg("-C").arg(tree).arg(".");
        assert!(command.status().unwrap().success());
        let mut options = Options::for_kernel(KernelVersion(6, 18));
        options.block = BlockBits::new(9).unwrap();
        options.index_a_tar();
        make(&[Source::Tar(tar.clone())], &name, &options).unwrap();
        paths.extend([name, tar.clone()]);
    }
    let with = |i: usize| Source::Image(input_with(&paths[i], &[&paths[i + 1]]));
    let sources = [with(0), with(2)];
    let expected = copied(&scratch, &sources);
    let block = BlockBits::new(9).unwrap();
    let summary = make(&sources, &merged, &index(Options { block, ..stored() })).unwrap();
    let s = summary.stats;
    // All files that are not empty.
    assert_eq!((s.base_files, s.base_bytes), (s.files - 3, s.content_bytes));
    all_agree("tars", &merged, &refs(&paths), &expected, HOLES);
}

/// A damaged layer is reported by name when its data is read. Layers are known by UUID, and a wrong one is rejected.
#[test]
fn a_damaged_layer_is_named() {
    let scratch = Scratch::new("merge-damaged");
    let lz4 = method(Method::Lz4, 16 << 10, Fragments::Off);
    let (paths, sources) = layers(&scratch, &[lz4.clone(), lz4.clone()]);
    let merged = scratch.path().join("merged");
    make(&sources, &merged, &index(lz4.clone())).unwrap();
    let expected = image_tree(&open_with(&merged, &[&paths[0], &paths[1]]).unwrap());
    let swapped = open_with(&merged, &[&paths[1], &paths[0]]).unwrap();
    assert_same("swapped", &expected, &image_tree(&swapped), HOLES);
    assert!(open_with(&merged, &[&paths[0], &paths[0]]).is_err());
    assert!(open_with(&merged, &[&paths[0], &merged]).is_err());
    let len = fs::metadata(&paths[1]).unwrap().len();
    let bytes = fs::read(&paths[1]).unwrap();
    fs::write(&paths[1], &bytes[..(len / 2) as usize & !4095]).unwrap();
    let cut = make(&sources, &merged, &index(lz4))
        .unwrap_err()
        .to_string();
    assert!(cut.contains("layer-1"), "{cut}");
    let nothing = [Source::Dir(scratch.path().join("tree-0"))];
    let none = make(&nothing, &merged, &index(stored())).unwrap_err();
    assert!(none.to_string().contains("an image among its sources"));
    let itself = make(&sources, &paths[0], &index(stored())).unwrap_err();
    assert!(itself.to_string().contains("cannot take the place"));
}

/// The tree does not depend on the order of merging.
#[test]
fn an_index_of_an_index_contains_the_tree() {
    let scratch = Scratch::new("merge-twice");
    let lz4 = method(Method::Lz4, 16 << 10, Fragments::Tails);
    let (paths, sources) = layers(&scratch, &[lz4.clone(), lz4.clone(), lz4.clone()]);
    let expected = copied(&scratch, &sources);
    let (two, three) = (scratch.path().join("two"), scratch.path().join("three"));
    make(&sources[..2], &two, &index(lz4.clone())).unwrap();
    let two_as_source = Source::Image(input_with(&two, &[&paths[0], &paths[1]]));
    let sources = [two_as_source, sources[2].clone()];
    make(&sources, &three, &index(lz4)).unwrap();
    let devices = [&two, &paths[0], &paths[1], &paths[2]].map(PathBuf::as_path);
    let shown = image_tree(&open_with(&three, &devices).unwrap());
    assert_same("twice", &expected, &shown, HOLES);
    all_agree("twice", &three, &devices, &expected, HOLES);
}
