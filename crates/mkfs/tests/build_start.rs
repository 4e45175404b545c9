//! Images with a start list: the list names the data of its files, data and metadata lie together, and the tree is the same.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::slice;
use tuff_erofs::check::{self, Severity};
use tuff_erofs::dump::Regions;
use tuff_erofs::read::{
    DeviceId, DeviceRange, FileType, Image, Inode, Location, Space, StartList, first_reads,
};
use tuff_erofs::walk::Walk;
use tuff_format::BlockAddr;
use tuff_format::start_list;
use tuff_mkfs::{Options, Progress, Source, Start, StartFile, TarStream, build, build_to, patch};
use tuff_store::Target;
use tuff_testkit::Scratch;
use tuff_testkit::content::{noise, text};
use tuff_testkit::kernel::{all_agree, by_kernel, input_with, open_with};
use tuff_testkit::tree::{assert_same, from_source, host_tree, image_tree, nasty_tree, open};
use tuff_testkit::variants::{build_dir, fsck_agrees, variants};

/// Options with a list of whole files.
fn listing(paths: &[&str]) -> Options {
    with_list(Options::default(), paths)
}

fn with_list(mut options: Options, paths: &[&str]) -> Options {
    let file = |path: &&str| StartFile {
        path: path.as_bytes().to_vec(),
        first: Vec::new(),
    };
    options.sources.start = Start::Files(paths.iter().map(file).collect());
    options
}

/// Large and small files, in three directories.
fn tree(root: &Path) {
    for (seed, dir) in (0..).zip(["bin", "lib", "share"]) {
        fs::create_dir_all(root.join(dir)).unwrap();
        for n in 0..12u64 {
            let make = if n % 2 == 0 { text } else { noise };
            let large = make(150_000 + 7919 * n as usize, 1000 + 20 * seed + n);
            fs::write(root.join(format!("{dir}/large{n}")), large).unwrap();
            let small = noise(3000 + 131 * n as usize, 100 + 20 * seed + n);
            fs::write(root.join(format!("{dir}/small{n}")), small).unwrap();
        }
    }
    let copy = noise(90_000, 77);
    fs::write(root.join("bin/a-copy"), &copy).unwrap();
    fs::write(root.join("share/copy"), &copy).unwrap();
    for n in 0..400 {
        fs::create_dir_all(root.join("many")).unwrap();
        fs::write(root.join(format!("many/a-long-name-of-a-file-{n}")), b"x").unwrap();
    }
}

const LISTED: [&str; 6] = [
    "lib/large7",
    "./bin//small3",
    "bin/large2",
    "share/copy",
    "lib/small5",
    "many/a-long-name-of-a-file-9",
];

/// Places of a file's clusters and blocks, those in the packed inode included.
fn places(image: &Image, inode: &Inode, range: Range<u64>) -> Vec<DeviceRange> {
    let mut all = Vec::new();
    for extent in image.extents(inode, range.clone()).unwrap() {
        let extent = extent.unwrap();
        let (device, bytes) = match extent.location {
            Location::Hole | Location::Inline { .. } => continue,
            Location::Raw { device, pos } => {
                let from = pos + range.start.saturating_sub(extent.offset);
                (
                    device,
                    from..pos + (range.end.min(extent.end()) - extent.offset),
                )
            }
            Location::Cluster(c) => (DeviceId::PRIMARY, c.pos..c.pos + u64::from(c.len)),
            Location::Fragment { offset } => {
                let from = offset + range.start.saturating_sub(extent.offset);
                let to = offset + (range.end.min(extent.end()) - extent.offset);
                all.extend(places(image, image.packed().unwrap(), from..to));
                continue;
            }
        };
        all.push(DeviceRange { device, bytes });
    }
    all
}

fn holds(list: &[DeviceRange], place: &DeviceRange) -> bool {
    list.iter().any(|range| {
        range.device == place.device
            && range.bytes.start <= place.bytes.start
            && place.bytes.end <= range.bytes.end
    })
}

fn read(image: &Image) -> StartList {
    StartList::read(image)
        .unwrap()
        .expect("the image has a list")
}

/// Findings other than notes about features, which do not depend on a list.
fn findings(image: &Image) -> Vec<(Severity, &'static str)> {
    let report = check::check(image, &check::Options::default(), |_| ());
    let mut all: Vec<_> = (report
        .findings
        .iter()
        .filter(|f| f.rule.name() != "features"))
    .map(|f| (f.severity, f.rule.name()))
    .collect();
    all.sort_unstable();
    all
}

fn extent_of(places: &[DeviceRange]) -> Range<u64> {
    let start = places.iter().map(|p| p.bytes.start).min().unwrap();
    start..places.iter().map(|p| p.bytes.end).max().unwrap()
}

#[test]
fn the_list_holds_the_data_of_its_files_in_order() {
    let scratch = Scratch::new("start-order");
    let (root, path) = (scratch.path().join("tree"), scratch.path().join("image"));
    tree(&root);
    build_dir(&root, &path, &listing(&LISTED));
    let image = open(&path);
    let list = read(&image);
    let mut next = 0;
    for file in &LISTED[..5] {
        let inode = image.resolve(file.as_bytes()).unwrap();
        let places = places(&image, &inode, 0..inode.size());
        assert!(!places.is_empty(), "{file}");
        for place in &places {
            assert!(holds(list.ranges(), place), "{file}: {place:?}");
        }
        let first = list
            .ranges()
            .iter()
            .position(|range| range.bytes.contains(&places[0].bytes.start));
        assert!(first.unwrap() >= next || file.contains("small"), "{file}");
        next = first.unwrap();
    }
    let others: u64 = list
        .ranges()
        .iter()
        .map(|r| r.bytes.end - r.bytes.start)
        .sum();
    assert_eq!(list.bytes(), others);
    assert!(others < 700_000, "{others} bytes are listed");
    assert!(matches!(
        list,
        StartList::Known {
            files: 6,
            outside: 0,
            ..
        }
    ));
}

#[test]
fn listed_data_lies_together_before_the_packed_inode_and_before_the_metadata() {
    let scratch = Scratch::new("start-layout");
    let (root, path) = (scratch.path().join("tree"), scratch.path().join("image"));
    tree(&root);
    build_dir(&root, &path, &listing(&LISTED));
    let image = open(&path);
    let (mut large, mut small, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for entry in Walk::root(&image).unwrap() {
        let entry = entry.unwrap();
        if entry.inode.file_type() != FileType::File {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path).replace("bin/small3", "./bin//small3");
        let is_listed = LISTED.contains(&&*path);
        let mut blocks = Vec::new();
        for extent in image.extents(&entry.inode, 0..entry.inode.size()).unwrap() {
            let extent = extent.unwrap();
            let len = extent.len;
            match extent.location {
                Location::Cluster(c) => blocks.push(c.pos..c.pos + u64::from(c.len)),
                Location::Raw { pos, .. } => blocks.push(pos..pos + len.next_multiple_of(4096)),
                _ => {}
            }
        }
        match (is_listed, blocks.is_empty()) {
            (true, false) => large.extend(blocks),
            (true, true) => small.extend(places(&image, &entry.inode, 0..entry.inode.size())),
            // The copy has the data of a listed file.
            (false, _) if entry.path == b"bin/a-copy" => assert!(!blocks.is_empty()),
            (false, _) => others.extend(places(&image, &entry.inode, 0..entry.inode.size())),
        }
    }
    let packed = places(
        &image,
        image.packed().unwrap(),
        0..image.packed().unwrap().size(),
    );
    let (packed, small) = (extent_of(&packed), extent_of(&small));
    let start = large.iter().map(|r| r.start).min().unwrap();
    let end = large.iter().map(|r| r.end).max().unwrap();
    let between = |range: &Range<u64>| {
        others
            .iter()
            .filter(|p| p.bytes.start < range.end && p.bytes.end > range.start)
            .count()
    };
    assert_eq!((between(&(start..end)), between(&small)), (0, 0));
    assert_eq!((end, packed.end), (packed.start, small.end));
    let StartList::Known { metadata, .. } = read(&image) else {
        panic!("the list is known");
    };
    // Only blocks of other directories are between.
    assert!(metadata.start >= packed.end && metadata.start - packed.end <= 32 << 10);
    for path in LISTED.iter().chain(&["bin", "lib", "share", "many", ""]) {
        let inode = image.resolve(path.as_bytes()).unwrap();
        assert!(metadata.contains(&inode.position()), "{path}");
    }
    let list = StartList::inode(&image).unwrap().unwrap();
    let packed = image.packed().unwrap();
    assert!(metadata.contains(&list.position()) && metadata.contains(&packed.position()));
    assert!(metadata.end - metadata.start < 64 << 10, "{metadata:?}");
    let first = first_reads(&image).unwrap();
    let covers = |place: u64| first.iter().any(|range| range.contains(&place));
    assert!(
        first.len() <= 3 && covers(0) && covers(start) && covers(small.start),
        "{first:?}"
    );
    assert!(covers(metadata.start) && covers(metadata.end - 1));
}

#[test]
fn first_parts_come_before_the_rests_of_all_files() {
    let scratch = Scratch::new("start-parts");
    let (root, path) = (scratch.path().join("tree"), scratch.path().join("image"));
    fs::create_dir(&root).unwrap();
    for n in 0..4 {
        fs::write(root.join(format!("f{n}")), noise(1 << 20, n)).unwrap();
    }
    let file = |name: &str, first: &[Range<u64>]| StartFile {
        path: name.as_bytes().to_vec(),
        first: first.to_vec(),
    };
    let mut options = Options::default();
    options.sources.start = Start::Files(vec![
        file("f2", &[0..4096, 900_000..900_001]),
        file("f0", &[]),
        file("f3", slice::from_ref(&(0..1))),
        file("absent", &[]),
    ]);
    build_dir(&root, &path, &options);
    let image = open(&path);
    let list = read(&image);
    let at = |name: &[u8], byte: u64| {
        let inode = image.resolve(name).unwrap();
        let place = &places(&image, &inode, byte..byte + 1)[0];
        let at = list
            .ranges()
            .iter()
            .position(|range| holds(slice::from_ref(range), place));
        at.unwrap()
    };
    let found = [
        at(b"f2", 0),
        at(b"f2", 900_000),
        at(b"f0", 0),
        at(b"f3", 0),
        at(b"f2", 500_000),
        at(b"f3", 500_000),
    ];
    assert!(found.is_sorted(), "{found:?}");
    assert!(list.ranges().len() >= 5);
}

#[test]
fn a_list_changes_neither_the_tree_nor_what_other_programs_read() {
    let scratch = Scratch::new("start-variants");
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    let expected = host_tree(&source);
    let ignore = from_source(&expected);
    let plain = scratch.path().join("plain");
    build_dir(&source, &plain, &Options::default());
    let mut files: Vec<Vec<u8>> = Vec::new();
    for entry in Walk::root(&open(&plain)).unwrap() {
        files.push(entry.unwrap().path);
    }
    // Every third name, the last one first.
    let listed: Vec<StartFile> = (files.into_iter().rev().step_by(3))
        .map(|path| StartFile {
            path,
            first: Vec::new(),
        })
        .collect();
    // A third of all combinations, and all forms of metadata.
    let chosen = variants().into_iter().enumerate();
    let chosen = chosen.filter(|(i, (name, _))| i % 3 == 0 || name.contains("metadata"));
    for (i, (name, mut options)) in chosen {
        options.sources.start = Start::Files(listed.clone());
        options.output.verify = i % 4 == 0;
        let path = scratch.path().join(format!("{i}.erofs"));
        build_dir(&source, &path, &options);
        let image = open(&path);
        let list = StartList::read(&image).unwrap();
        assert!(
            matches!(list, Some(StartList::Known { outside: 0, .. })),
            "{name}: {list:?}"
        );
        assert_eq!(findings(&image), [], "{name}");
        assert_same(&name, &expected, &image_tree(&image), ignore);
        assert!(first_reads(&image).unwrap().len() <= 3, "{name}");
        let regions = Regions::collect(&image);
        let inode = StartList::inode(&image).unwrap().unwrap();
        assert!(
            regions.list.iter().any(|r| r.nid == Some(inode.nid())),
            "{name}"
        );
        if i == 0 {
            fsck_agrees(&path, &[], &source, &scratch.path().join("fsck"));
            all_agree(&name, &path, &[], &expected, ignore);
        }
        if i % 4 > 0 {
            continue;
        }
        // Same input, same bytes.
        let again = scratch.path().join("again");
        options.resources.threads = Some(if i % 8 == 0 { 1 } else { 8 });
        options.output.verify = false;
        build_dir(&source, &again, &options);
        assert!(
            fs::read(&path).unwrap() == fs::read(&again).unwrap(),
            "{name}"
        );
    }
}

/// Trap: a list in an image without data overwrote inodes.
#[test]
fn images_without_data_and_with_large_files_have_lists() {
    let scratch = Scratch::new("start-shapes");
    let file = |root: &Path, name: &str| fs::File::create(root.join(name)).unwrap();
    type Make<'a> = (&'a str, &'a dyn Fn(&Path), &'a [&'a str]);
    let shapes: [Make<'_>; 6] = [
        ("empty", &|_| (), &["", "no/such"]),
        (
            "inline",
            &|root| fs::write(root.join("a"), b"inline").unwrap(),
            &["a"],
        ),
        (
            "devices",
            &|root| {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), kind, 0o600.into(), 0)
                    .unwrap();
                std::os::unix::fs::symlink("fifo", root.join("link")).unwrap();
            },
            &["fifo", "link"],
        ),
        (
            "beyond 4 GiB",
            &|root| {
                let file = file(root, "large");
                file.set_len((5 << 30) + 1).unwrap();
                file.write_all_at(b"behind the first 4 GiB", (4 << 30) + 5)
                    .unwrap();
                fs::write(root.join("small"), text(3000, 1)).unwrap();
            },
            &["large", "small"],
        ),
        (
            "blocks of the root",
            &|root| (0..300).for_each(|n| drop(file(root, &format!("a-rather-long-name-{n}")))),
            &["a-rather-long-name-7"],
        ),
        (
            "long list",
            &|root| {
                for n in 0..4500u64 {
                    fs::write(root.join(format!("{n}")), noise(5000, n)).unwrap();
                }
            },
            &[],
        ),
    ];
    for (name, make, listed) in shapes {
        let root = scratch.path().join(name.replace(' ', "-"));
        fs::create_dir(&root).unwrap();
        make(&root);
        let mut options = listing(listed);
        if name == "long list" {
            // Every second file with chunks in the order of the tree, so that nothing is merged.
            let names: Vec<String> = (0..4500).step_by(2).map(|n| format!("{n}")).collect();
            options = listing(&names.iter().map(|n| &**n).collect::<Vec<_>>());
            options.compression.default = None;
            options.sources.order = (0..4500).map(|n| format!("{n}").into_bytes()).collect();
        }
        let image = root.with_extension("erofs");
        build_dir(&root, &image, &options);
        let opened = open(&image);
        match StartList::read(&opened).unwrap() {
            None => assert!(matches!(name, "empty" | "devices"), "{name}"),
            Some(list) => assert!(
                matches!(list, StartList::Known { outside: 0, .. }),
                "{name}"
            ),
        }
        if name == "long list" {
            let inode = StartList::inode(&opened).unwrap().unwrap();
            assert!(inode.size() > 4096, "{} bytes", inode.size());
            assert!(read(&opened).ranges().len() > 1000);
        }
        if name == "beyond 4 GiB" {
            assert_eq!(findings(&opened), []);
            let mut end = [0; 22];
            let large = opened.resolve(b"large").unwrap();
            opened.read_at(&large, &mut end, (4 << 30) + 5).unwrap();
            assert_eq!(&end, b"behind the first 4 GiB");
            by_kernel(&image, &[], &root.with_extension("mnt"), &|way, at| {
                let mut end = [0; 22];
                let large = fs::File::open(at.join("large")).unwrap();
                large.read_exact_at(&mut end, (4 << 30) + 5).unwrap();
                assert_eq!(&end, b"behind the first 4 GiB", "{way}");
                assert_eq!(fs::read(at.join("small")).unwrap(), text(3000, 1), "{way}");
            });
            continue;
        }
        let expected = host_tree(&root);
        all_agree(name, &image, &[], &expected, from_source(&expected));
    }
}

#[test]
fn the_order_of_data_wins_over_the_list() {
    let scratch = Scratch::new("start-ordered");
    let (root, path) = (scratch.path().join("tree"), scratch.path().join("image"));
    tree(&root);
    let mut options = listing(&LISTED);
    options.sources.order = vec![b"share/large3".to_vec(), b"lib/large7".to_vec()];
    build_dir(&root, &path, &options);
    let plain = scratch.path().join("plain");
    let order = std::mem::take(&mut options.sources.start);
    build_dir(&root, &plain, &options);
    let (image, plain) = (open(&path), open(&plain));
    for name in ["share/large3", "lib/large7", "bin/large0", "lib/small5"] {
        let at = |image: &Image| {
            let inode = image.resolve(name.as_bytes()).unwrap();
            places(image, &inode, 0..inode.size())
        };
        assert_eq!(at(&image), at(&plain), "{name}");
    }
    assert!(order != Start::None && !read(&image).ranges().is_empty());
    assert_eq!(StartList::read(&plain).unwrap(), None);
}

#[test]
fn a_stream_is_laid_out_as_well() {
    let scratch = Scratch::new("start-stream");
    let root = scratch.path().join("tree");
    tree(&root);
    let tar = scratch.path().join("tar");
    let packed = std::process::Command::new("tar")
        .arg("-C")
        .arg(&root)
        .args(["--sort=name", "-cf"])
        .arg(&tar)
        .arg(".")
        .status();
    assert!(packed.unwrap().success());
    let mut options = listing(&LISTED);
    options.dedupe.mode = tuff_mkfs::Dedupe::Files;
    let (mut streamed, progress) = (Vec::new(), Progress::default());
    let stream = TarStream::new("tar", fs::File::open(&tar).unwrap());
    build_to(
        &[Source::TarStream(stream)],
        &options,
        &mut streamed,
        &progress,
    )
    .unwrap();
    let mut read_twice = Vec::new();
    build_to(&[Source::Tar(tar)], &options, &mut read_twice, &progress).unwrap();
    assert!(streamed == read_twice);
}

/// Changes the list of an image in place.
fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let image = open(path);
    let inode = StartList::inode(&image).unwrap().unwrap();
    let mut bytes = vec![0; inode.size() as usize];
    image.read_at(&inode, &mut bytes, 0).unwrap();
    change(&mut bytes);
    assert_eq!(inode.space(), Space::Image);
    let at = inode.position() + 32;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&bytes, at).unwrap();
}

fn image_with_list(scratch: &Scratch) -> PathBuf {
    let (root, path) = (scratch.path().join("tree"), scratch.path().join("image"));
    tree(&root);
    build_dir(&root, &path, &listing(&LISTED));
    path
}

/// Returns an image whose list has many ranges.
fn image_with_long_list(scratch: &Scratch) -> PathBuf {
    let (root, path) = (scratch.path().join("tree"), scratch.path().join("image"));
    tree(&root);
    let names: Vec<String> = (0..12)
        .step_by(2)
        .flat_map(|n| ["bin", "lib", "share"].map(|dir| format!("{dir}/large{n}")))
        .collect();
    let mut options = listing(&names.iter().map(|name| &**name).collect::<Vec<_>>());
    // The data stays in the order of the tree, so the ranges are not neighbours.
    options.sources.order = vec![b"bin/large0".to_vec()];
    build_dir(&root, &path, &options);
    path
}

/// Trap: older programs failed on newer lists.
#[test]
fn a_list_of_another_version_is_skipped_with_one_message() {
    let scratch = Scratch::new("start-version");
    let path = image_with_list(&scratch);
    rewrite(&path, |bytes| bytes[8..].fill(0xEE));
    let image = open(&path);
    let list = read(&image);
    assert_eq!(list, StartList::Unknown { version: 0xEEEE });
    assert!(list.ranges().is_empty());
    let message = list.skipped().unwrap();
    assert!(message.contains("version 61166"), "{message}");
    assert_eq!(first_reads(&image).unwrap(), slice::from_ref(&(0..4096)));
    assert_eq!(findings(&image), [(Severity::Note, "start-list")]);
}

/// Trap: an author switched verification off. Here the author's ranges lead anywhere.
#[test]
fn ranges_are_cut_at_the_end_of_their_device() {
    let scratch = Scratch::new("start-claims");
    let path = image_with_long_list(&scratch);
    let range = |device: u16, start: u64, blocks: u32| start_list::Range {
        start: BlockAddr(start),
        blocks,
        device: DeviceId(device),
    };
    let false_list = start_list::StartList {
        files: u32::MAX,
        meta: (BlockAddr(u64::MAX), u32::MAX),
        ranges: vec![
            range(0, 0, u32::MAX),
            range(0, 1 << 60, 7),
            range(0, 1, 2),
            range(0, 2, 2),
            range(9, 0, 5),
        ],
    };
    rewrite(&path, |bytes| {
        let new = false_list.encode();
        assert!(new.len() <= bytes.len());
        bytes[..new.len()].copy_from_slice(&new);
    });
    let image = open(&path);
    let size = image.store_size();
    let own = |bytes: Range<u64>| DeviceRange {
        device: DeviceId::PRIMARY,
        bytes,
    };
    let list = read(&image);
    assert_eq!(
        list.ranges(),
        [own(0..size), own(4096..12288), own(8192..16384)]
    );
    assert!(
        matches!(list, StartList::Known { outside: 3, ref metadata, .. } if metadata.is_empty())
    );
    let first = first_reads(&image).unwrap();
    let bytes: u64 = first.iter().map(|range| range.end - range.start).sum();
    assert!(first.len() <= 3 && bytes <= (8 << 20) + 4096, "{first:?}");
    assert_eq!(findings(&image), [(Severity::Warning, "start-list")]);
    rewrite(&path, |bytes| bytes[12..16].fill(0xFF));
    let image = open(&path);
    assert!(StartList::read(&image).is_err());
    assert_eq!(findings(&image), [(Severity::Warning, "start-list")]);
}

#[test]
fn a_patch_drops_the_list_unless_it_changes_nothing() {
    let scratch = Scratch::new("start-patch");
    let path = image_with_list(&scratch);
    let root = scratch.path().join("tree");
    let sources = [Source::Dir(root.clone())];
    let before = fs::read(&path).unwrap();
    let patched = || {
        patch(&sources, &Options::default(), &path, &Progress::default()).unwrap();
        open(&path)
    };
    assert!(StartList::read(&patched()).unwrap().is_some());
    assert!(fs::read(&path).unwrap() == before);
    fs::write(root.join("lib/small5"), b"changed").unwrap();
    let refused = patch(&sources, &listing(&LISTED), &path, &Progress::default()).unwrap_err();
    assert!(refused.to_string().contains("no start list"), "{refused}");
    assert!(fs::read(&path).unwrap() == before);
    let image = patched();
    assert_eq!(StartList::read(&image).unwrap(), None);
    assert_eq!(findings(&image), []);
    let expected = host_tree(&root);
    assert_same(
        "patched",
        &expected,
        &image_tree(&image),
        from_source(&expected),
    );
    // Also when the tree, and with it the root's length, is as it was.
    fs::remove_file(root.join("lib/small5")).unwrap();
    fs::write(root.join("lib/small5"), noise(3000 + 131 * 5, 125)).unwrap();
    assert_eq!(StartList::read(&patched()).unwrap(), None);
}

#[test]
fn a_list_names_data_of_bases_by_their_devices() {
    let scratch = Scratch::new("start-base");
    let (root, base, path) = (
        scratch.path().join("tree"),
        scratch.path().join("base"),
        scratch.path().join("image"),
    );
    tree(&root);
    build_dir(&root, &base, &Options::default());
    fs::write(root.join("lib/new"), noise(100_000, 9)).unwrap();
    let mut options = listing(&["lib/new", "lib/large7", "bin/small3"]);
    let input = input_with(&base, &[]);
    options.dedupe.bases = vec![input];
    build_dir(&root, &path, &options);
    let image = open_with(&path, &[&base]).unwrap();
    let list = read(&image);
    let devices: BTreeSet<u16> = list.ranges().iter().map(|range| range.device.0).collect();
    assert_eq!(devices, BTreeSet::from([0, 1]));
    // Blocks of the base by the list are those of the base's own files.
    let base = open(&base);
    let inode = base.resolve(b"lib/large7").unwrap();
    for place in places(&base, &inode, 0..inode.size()) {
        let device = DeviceId(1);
        assert!(holds(list.ranges(), &DeviceRange { device, ..place }));
    }
    let expected = host_tree(&root);
    all_agree(
        "base",
        &path,
        &[&scratch.path().join("base")],
        &expected,
        from_source(&expected),
    );
}

#[test]
fn a_merged_image_has_no_list_of_its_sources() {
    let scratch = Scratch::new("start-merge");
    let path = image_with_list(&scratch);
    let merged = scratch.path().join("merged");
    let input = input_with(&path, &[]);
    build(
        &[Source::Image(input)],
        &Options::default(),
        &Target::Path(merged.clone()),
        &Progress::default(),
    )
    .unwrap();
    assert_eq!(StartList::read(&open(&merged)).unwrap(), None);
}
