//! Snapshots equal their sources, as the library and the kernel read them, and share what is equal.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tuff_backup::{Depth, Report, Request, Snapshot, Store, StoreCompression};
use tuff_erofs::{check, extract};
use tuff_mkfs::{Options, Progress, Source};
use tuff_testkit::content::{mixed, noise, text};
use tuff_testkit::kernel::by_kernel;
use tuff_testkit::tree::{
    Ignore, Record, assert_same, from_source, host_tree, image_tree, nasty_tree,
};
use tuff_testkit::{Rng, Scratch};

fn request(sources: &[&Path]) -> Request {
    Request {
        sources: sources.iter().map(|path| path.to_path_buf()).collect(),
        archives: Vec::new(),
        series: "test".to_owned(),
        options: Options::default(),
        reads_all: false,
        is_dry: false,
    }
}

fn backup(store: &Path, request: &Request) -> Report {
    let mut store = Store::open_to_write(store).unwrap();
    let report = store.backup(request, &Progress::default()).unwrap();
    assert_eq!(report.left_out, Vec::<String>::new());
    report
}

fn newest(store: &Store) -> Snapshot {
    store.snapshots().unwrap().pop().unwrap().unwrap()
}

/// Waits until the times of files are trusted.
fn age() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// Sets the times of all files to a day ago.
fn date(dir: &Path) {
    let day = SystemTime::now() - Duration::from_secs(86_400);
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            date(&path);
        } else if kind.is_file() {
            File::open(&path).unwrap().set_modified(day).unwrap();
        }
    }
}

/// Records below a directory, by their paths in it.
fn below(tree: &[Record], dir: &Path) -> Vec<Record> {
    let prefix = dir.strip_prefix("/").unwrap().as_os_str().as_bytes();
    let cut = |path: &[u8]| {
        let rest = path.strip_prefix(prefix)?;
        let rest = if rest.is_empty() {
            rest
        } else {
            rest.strip_prefix(b"/")?
        };
        Some(rest.to_vec())
    };
    let records = tree.iter().filter_map(|record| {
        Some(Record {
            path: cut(&record.path)?,
            same_as: cut(&record.same_as)?,
            ..record.clone()
        })
    });
    records.collect()
}

fn ignore(tree: &[Record]) -> Ignore {
    Ignore {
        holes: true,
        dir_size: true,
        ..from_source(tree)
    }
}

/// Compares the newest snapshot with its source, by the library and by the kernel.
fn compare(what: &str, store: &Path, source: &Path) {
    let source = fs::canonicalize(source).unwrap();
    let expected = host_tree(&source);
    let opened = Arc::new(Store::open(store).unwrap());
    let path = store.with_extension("image");
    let image = opened
        .image(&newest(&opened), &path, &Progress::default())
        .unwrap();
    let read = image.open().unwrap();
    let report = check::check(&read, &check::Options::default(), |_| ());
    let findings = report.findings.iter().map(|f| f.what.to_string());
    // Nothing may be shared in a small store.
    let findings: Vec<_> = findings
        .filter(|f| !f.contains("dedupe is not used"))
        .collect();
    assert!(findings.is_empty(), "{what}: {findings:?}");
    assert_same(
        what,
        &expected,
        &below(&image_tree(&read), &source),
        ignore(&expected),
    );
    let devices: Vec<&Path> = image.devices.iter().map(PathBuf::as_path).collect();
    let dir = store.with_extension("mnt");
    by_kernel(&path, &devices, &dir, &|way, at| {
        let shown = host_tree(&at.join(source.strip_prefix("/").unwrap()));
        assert_same(
            &format!("{what}: {way}"),
            &expected,
            &shown,
            ignore(&expected),
        );
    });
    let checked = opened.check(Depth::Data, 2, &Progress::default()).unwrap();
    assert_eq!(checked.findings, Vec::<String>::new(), "{what}");
    assert!(checked.read_bytes > 0);
}

#[test]
fn snapshots_are_images_that_the_kernel_mounts_and_equal_their_sources() {
    let scratch = Scratch::new("backup");
    let (source, store) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    fs::write(source.join("large"), mixed(9_000_000, 1)).unwrap();
    fs::write(source.join("noise"), noise(5_000_123, 2)).unwrap();
    fs::write(source.join("medium"), text(100_000, 3)).unwrap();
    for n in 0..500 {
        fs::write(
            source.join(format!("small-{n}")),
            text(100 + 37 * n, n as u64),
        )
        .unwrap();
    }
    date(&source);
    age();
    Store::create(&store, StoreCompression::default()).unwrap();
    let first = backup(&store, &request(&[&source]));
    assert_eq!((first.number, first.parent), (Some(1), None));
    assert!(first.files_read > 500);
    compare("first", &store, &source);

    let again = backup(&store, &request(&[&source]));
    assert_eq!((again.number, again.parent), (Some(2), Some(1)));
    assert_eq!(again.files_read, 0);
    // Nothing is stored for what was stored before.
    assert_eq!(again.stored_bytes, 0);

    // An insertion into a large file, an edit that keeps size and time, a new name, and one file less.
    let mut bytes = fs::read(source.join("noise")).unwrap();
    bytes.splice(1_000_000..1_000_000, *b"inserted");
    fs::write(source.join("noise"), &bytes).unwrap();
    let edited = File::options()
        .write(true)
        .open(source.join("small-7"))
        .unwrap();
    let time = edited.metadata().unwrap().modified().unwrap();
    edited.write_all_at(b"EDIT", 3).unwrap();
    edited.set_modified(time).unwrap();
    fs::rename(source.join("small-8"), source.join("renamed")).unwrap();
    fs::remove_file(source.join("small-9")).unwrap();
    let day = backup(&store, &request(&[&source]));
    assert_eq!((day.number, day.parent), (Some(3), Some(2)));
    assert!(day.files_read <= 3, "{}", day.files_read);
    assert!(
        (4096..6 << 20).contains(&day.stored_bytes),
        "{}",
        day.stored_bytes
    );
    compare("third", &store, &source);

    // Another series reads everything and stores no content.
    let other = Request {
        series: "other".to_owned(),
        ..request(&[&source])
    };
    let other = backup(&store, &other);
    assert_eq!((other.parent, other.stored_bytes), (None, 0));
    assert!(other.files_read > 500);
}

/// The parent, and what is new, do not depend on how a source is spelled; a source given twice or within another is saved once.
#[test]
fn sources_are_known_by_their_real_paths() {
    let scratch = Scratch::new("backup-sources");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::create_dir_all(at("a.c")).unwrap();
    for name in ["a/file", "a/b/file", "a.c/file"] {
        fs::write(at(name), text(5000, 9)).unwrap();
    }
    std::os::unix::fs::symlink("a", at("link")).unwrap();
    age();
    let store = at("store");
    Store::create(&store, StoreCompression::default()).unwrap();
    let first = backup(&store, &request(&[&at("a"), &at("a.c")]));
    assert_eq!(first.files, 3);
    for sources in [
        [at("a.c"), at("a/b"), at("link")],
        [at("a/../a"), at("a.c/."), at("a")],
    ] {
        let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
        let report = backup(&store, &request(&sources));
        assert_eq!(
            (report.files_read, report.stored_bytes),
            (0, 0),
            "{sources:?}"
        );
        assert_eq!(report.parent, report.number.map(|number| number - 1));
    }
    compare("sources", &store, &at("a"));
    compare("sources", &store, &at("a.c"));
}

/// Archives and images of a directory that was saved add none of its content, and are not read again while they are unchanged.
#[test]
fn archives_of_a_saved_directory_add_no_content() {
    let scratch = Scratch::new("backup-archives");
    let at = |name: &str| scratch.path().join(name);
    let (source, store) = (at("source"), at("store"));
    fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    fs::write(source.join("large"), mixed(4_000_000, 1)).unwrap();
    fs::write(source.join("noise"), noise(3_000_123, 2)).unwrap();
    for n in 0..200 {
        fs::write(
            source.join(format!("small-{n}")),
            text(100 + 37 * n, n as u64),
        )
        .unwrap();
    }
    date(&source);
    let run = |program: &str, args: &[&str]| {
        let mut command = std::process::Command::new(program);
        let output = command.args(args).current_dir(scratch.path()).output();
        output.is_ok_and(|output| output.status.success())
    };
    let target = tuff_store::Target::Path(at("image.erofs"));
    let tree = [Source::Dir(source.clone())];
    tuff_mkfs::build(&tree, &Options::default(), &target, &Progress::default()).unwrap();
    let image = tuff_testkit::kernel::input_with(&at("image.erofs"), &[]);
    let mut archives = vec![(at("image.erofs"), Source::Image(image), false)];
    let quiet = [
        "source",
        "old.squashfs",
        "-quiet",
        "-no-progress",
        "-noappend",
    ];
    if run("mksquashfs", &quiet) {
        let old = at("old.squashfs");
        archives.push((old.clone(), Source::SquashFs(old), true));
    }
    let xattrs = ["--acls", "--xattrs", "--xattrs-include=*", "--format=posix"];
    for (name, form) in [("old.tar", "-cf"), ("old.tar.gz", "-czf")] {
        if run(
            "tar",
            &[&xattrs[..], &[form, name, "-C", "source", "."]].concat(),
        ) {
            archives.push((at(name), Source::Tar(at(name)), false));
        }
    }
    age();
    Store::create(&store, StoreCompression::default()).unwrap();
    let first = backup(&store, &request(&[&source]));
    assert!(first.stored_bytes > 3_000_000, "{}", first.stored_bytes);
    let expected = host_tree(&source);
    for (path, archive, is_squashfs) in &archives {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let only = Request {
            archives: vec![(path.clone(), archive.clone())],
            series: name.clone(),
            ..request(&[path])
        };
        let report = backup(&store, &only);
        assert_eq!(report.files, first.files, "{name}");
        // Leaves of the tree, and none of the content.
        assert!(
            report.stored_bytes < 40_000,
            "{name}: {}",
            report.stored_bytes
        );
        let again = backup(&store, &only);
        assert_eq!((again.files_read, again.stored_bytes), (0, 0), "{name}");
        let opened = Arc::new(Store::open(&store).unwrap());
        let image = opened.image(&newest(&opened), &at("image"), &Progress::default());
        let tree = image_tree(&image.unwrap().open().unwrap());
        let ignore = Ignore {
            nsec: *is_squashfs,
            ..ignore(&expected)
        };
        // A tar has no sockets, and SquashFS has no ACLs.
        let comparable = |tree: &[Record]| {
            let mut records = tree.to_vec();
            records.retain(|record| record.mode & 0xF000 != 0xC000);
            for record in records.iter_mut().filter(|_| *is_squashfs) {
                record
                    .xattrs
                    .retain(|name, _| !name.starts_with(b"system."));
            }
            records
        };
        assert_same(&name, &comparable(&expected), &comparable(&tree), ignore);
    }

    // Another state of the file, and a place beside a directory.
    let (path, archive, _) = &archives[0];
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(SystemTime::now())
        .unwrap();
    let both = Request {
        archives: vec![(path.clone(), archive.clone())],
        series: "image.erofs".to_owned(),
        ..request(&[path, &source])
    };
    let report = backup(&store, &both);
    assert_eq!(report.files, 2 * first.files);
    assert_eq!(report.files_read, report.files);
    let opened = Arc::new(Store::open(&store).unwrap());
    let image = opened.image(&newest(&opened), &at("image"), &Progress::default());
    let tree = image_tree(&image.unwrap().open().unwrap());
    let real = fs::canonicalize(path).unwrap();
    assert_same("both", &expected, &below(&tree, &real), ignore(&expected));
}

/// T-B26: a damaged file of an archive is left out and named, and the others are saved.
#[test]
fn a_damaged_file_of_an_archive_is_left_out() {
    let scratch = Scratch::new("backup-damaged-archive");
    let at = |name: &str| scratch.path().join(name);
    let store = at("store");
    fs::create_dir(at("source")).unwrap();
    fs::write(at("source").join("bad"), text(300_000, 1)).unwrap();
    fs::write(at("source").join("good"), text(300_000, 2)).unwrap();
    let made = std::process::Command::new("mksquashfs")
        .args(["source", "old.squashfs", "-quiet", "-no-progress"])
        .current_dir(scratch.path())
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        return tuff_testkit::skipped("SquashFS images need mksquashfs");
    }
    let path = at("old.squashfs");
    // The first block of data follows the superblock.
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 64], 200).unwrap();
    Store::create(&store, StoreCompression::default()).unwrap();
    let only = Request {
        archives: vec![(path.clone(), Source::SquashFs(path.clone()))],
        ..request(&[&path])
    };
    let mut opened = Store::open_to_write(&store).unwrap();
    let report = opened.backup(&only, &Progress::default()).unwrap();
    assert_eq!(report.files, 1);
    let [line] = &report.left_out[..] else {
        panic!("{:?}", report.left_out)
    };
    assert!(
        line.contains("bad") && line.contains("cannot be decoded"),
        "{line}"
    );
}

/// T-B6: what a run leaves that ends early is not read, and the next run writes over it.
#[test]
fn what_an_ended_run_leaves_is_written_over() {
    let scratch = Scratch::new("backup-ended");
    let (source, store) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), text(300_000, 1)).unwrap();
    Store::create(&store, StoreCompression::default()).unwrap();
    backup(&store, &request(&[&source]));
    let pack = store.join("packs/0000.pack");
    for rest in 0..4 {
        let mut bytes = fs::read(&pack).unwrap();
        let segment = bytes[4096..].to_vec();
        // Rests of every kind: of a block, of clusters, a segment with its tree, and one with a part of its directory.
        bytes.extend_from_slice(&segment[..[5, 4096 * 3, 4096 * 4, 4096][rest]]);
        fs::write(&pack, &bytes).unwrap();
        let next = 2 + rest;
        let copy = |end: &str, name: &str| {
            let from = store.join(format!("segments/00000001.{end}"));
            fs::copy(from, store.join(format!("segments/{next:08}.{name}"))).unwrap();
        };
        if rest >= 2 {
            copy("tree", "tree");
        }
        if rest == 3 {
            copy("dir", "dir.new");
        }
        fs::write(source.join("file"), text(300_000, rest as u64)).unwrap();
        backup(&store, &request(&[&source]));
        compare("after an ended run", &store, &source);
    }
}

/// Damage of every part of a store is named or without effect, and no content is wrong.
#[test]
fn damage_is_named_and_gives_no_wrong_byte() {
    let scratch = Scratch::new("backup-damage");
    let (source, store) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("text"), text(300_000, 1)).unwrap();
    fs::write(source.join("noise"), noise(200_001, 2)).unwrap();
    for n in 0..20 {
        fs::write(source.join(format!("small-{n}")), text(500 + n, n as u64)).unwrap();
    }
    Store::create(&store, StoreCompression::default()).unwrap();
    backup(&store, &request(&[&source]));
    let names = [
        "packs/0000.pack",
        "segments/00000001.dir",
        "snapshots/00000001.json",
        "store.json",
    ];
    let files = names.map(|name| store.join(name));
    let mut random = Rng::new(7);
    let mut named = 0;
    for round in 0..150 {
        let path = &files[[0, 1, 0, 2, 0, 1, 3][round % 7]];
        let whole = fs::read(path).unwrap();
        let mut damaged = whole.clone();
        let at = random.below(whole.len());
        match round % 3 {
            0 => damaged[at] ^= 1 << (round % 8),
            1 => damaged.truncate(at),
            _ => {
                let end = (at + 4096).min(damaged.len());
                damaged[at..end].fill(0);
            }
        }
        fs::write(path, &damaged).unwrap();
        let checked = Store::open(&store).and_then(|store| {
            let found = store.check(Depth::Data, 2, &Progress::default())?;
            Ok((store, found))
        });
        if let Ok((store, checked)) = checked
            && checked.findings.is_empty()
            && checked.snapshots == 1
        {
            // Nothing uses the damaged bytes.
            let store = Arc::new(store);
            let image = scratch.path().join("image");
            let image = store
                .image(&newest(&store), &image, &Progress::default())
                .unwrap();
            let source = fs::canonicalize(&source).unwrap();
            let expected = host_tree(&source);
            let shown = below(&image_tree(&image.open().unwrap()), &source);
            assert_same(
                &format!("round {round}"),
                &expected,
                &shown,
                ignore(&expected),
            );
        } else {
            named += 1;
        }
        fs::write(path, &whole).unwrap();
    }
    assert!(named > 100, "{named}");
}

/// Damaged files are listed, and are the only ones that are not as they were.
#[test]
fn damaged_content_is_not_restored() {
    let scratch = Scratch::new("backup-restore");
    let (source, store) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("mixed"), mixed(6_000_000, 1)).unwrap();
    for n in 0..200 {
        fs::write(source.join(format!("small-{n}")), text(3000 + n, n as u64)).unwrap();
    }
    Store::create(&store, StoreCompression::default()).unwrap();
    backup(&store, &request(&[&source]));
    let source = fs::canonicalize(&source).unwrap();
    let pack = store.join("packs/0000.pack");
    let whole = fs::read(&pack).unwrap();
    let mut random = Rng::new(5);
    let (mut kept, mut lost) = (0, 0);
    for round in 0..20 {
        let mut damaged = whole.clone();
        let at = 4096 + random.below(whole.len() - 4096);
        damaged[at] ^= 1 << (round % 8);
        fs::write(&pack, &damaged).unwrap();
        let open = Arc::new(Store::open(&store).unwrap());
        let image = scratch.path().join("image");
        let image = open.image(&newest(&open), &image, &Progress::default());
        // Metadata that is damaged.
        let Ok(image) = image else { continue };
        let restore = |keep_going, overwrite| {
            let target = scratch.path().join("target");
            let _ = fs::remove_dir_all(&target);
            let below = target.join(source.strip_prefix("/").unwrap());
            if overwrite {
                fs::create_dir_all(&below).unwrap();
                for entry in fs::read_dir(&source).unwrap() {
                    fs::write(below.join(entry.unwrap().file_name()), "old").unwrap();
                }
            }
            let options = extract::Options {
                keep_going,
                overwrite,
                ..extract::Options::default()
            };
            let image = image.open_comparing().unwrap();
            let report = extract::extract(&image, &target, &options, |_| ());
            (report, below)
        };
        let (report, target) = restore(true, false);
        let problems = report.unwrap().problems;
        let mut paths: Vec<_> = problems.iter().map(|problem| &problem.path).collect();
        paths.dedup();
        assert_eq!(paths.len(), problems.len(), "{problems:?}");
        for entry in fs::read_dir(&source).unwrap() {
            let entry = entry.unwrap();
            let is_listed = problems
                .iter()
                .any(|problem| problem.path.ends_with(entry.file_name().as_bytes()));
            let restored = fs::read(target.join(entry.file_name())).unwrap_or_default();
            let is_same = restored == fs::read(entry.path()).unwrap();
            assert_eq!(is_listed, !is_same, "{:?}: {problems:?}", entry.path());
            *if is_same { &mut kept } else { &mut lost } += 1;
        }
        let name = |path: &[u8]| {
            let name = path.rsplit(|byte| *byte == b'/').next();
            PathBuf::from(std::ffi::OsStr::from_bytes(name.unwrap()))
        };
        let (report, target) = restore(false, false);
        assert_eq!(report.is_err(), !problems.is_empty());
        for problem in &problems {
            assert!(!target.join(name(&problem.path)).exists());
        }
        // Existing files stay in the place of damaged ones.
        for keep_going in [false, true] {
            let (_, target) = restore(keep_going, true);
            for problem in &problems {
                let found = fs::read(target.join(name(&problem.path))).unwrap();
                assert_eq!(found, b"old", "{problem:?}");
            }
        }
    }
    assert!(kept > 100 && lost > 10, "{kept}, {lost}");
}

/// B1 and B2: an error of the store ends a run without a snapshot; the next one stores what is missing.
#[test]
fn b1_a_full_disk_ends_a_run_without_a_snapshot() {
    let scratch = Scratch::new("backup-full");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir_all(at("disk")).unwrap();
    fs::create_dir_all(at("source")).unwrap();
    let mount = |args: &[&str]| {
        let mut mount = std::process::Command::new("mount");
        mount
            .args(args)
            .arg(at("disk"))
            .status()
            .is_ok_and(|status| status.success())
    };
    if !tuff_testkit::is_root() || !mount(&["-t", "tmpfs", "-o", "size=20M", "none"]) {
        return tuff_testkit::skipped("a small disk needs root and tmpfs");
    }
    fs::write(at("source").join("small"), text(1000, 1)).unwrap();
    let store = at("disk").join("store");
    Store::create(&store, StoreCompression::default()).unwrap();
    backup(&store, &request(&[&at("source")]));
    fs::write(at("source").join("large"), noise(60 << 20, 2)).unwrap();
    let mut open = Store::open_to_write(&store).unwrap();
    let failed = open.backup(&request(&[&at("source")]), &Progress::default());
    assert!(failed.unwrap_err().to_string().contains("No space left"));
    drop(open);
    assert_eq!(Store::open(&store).unwrap().snapshots().unwrap().len(), 1);
    compare_files(&store);
    fs::remove_file(at("source").join("large")).unwrap();
    let report = backup(&store, &request(&[&at("source")]));
    assert_eq!(report.number, Some(2));
    compare_files(&store);
    assert!(
        std::process::Command::new("umount")
            .arg(at("disk"))
            .status()
            .unwrap()
            .success()
    );
}

/// Every file of every snapshot is whole.
fn compare_files(store: &Path) {
    let store = Store::open(store).unwrap();
    for snapshot in store.snapshots().unwrap() {
        let checked = store
            .check_files(&snapshot.unwrap(), &[], &Progress::default())
            .unwrap();
        assert_eq!(checked.findings, Vec::<String>::new());
        assert!(checked.read_bytes > 0);
    }
}

/// A store below its source is no part of it, but an empty directory.
#[test]
fn a_store_does_not_save_itself() {
    let scratch = Scratch::new("backup-itself");
    let (source, store) = (
        scratch.path().join("source"),
        scratch.path().join("source/store"),
    );
    fs::create_dir(&source).unwrap();
    for name in ["file", "store.file"] {
        fs::write(source.join(name), text(5000, 1)).unwrap();
    }
    Store::create(&store, StoreCompression::default()).unwrap();
    for number in 1..4 {
        let report = backup(&store, &request(&[&source]));
        assert_eq!(
            (report.number, report.files, report.entries),
            (Some(number), 2, 4)
        );
    }
}

/// B14, B15: files that cannot be read are left out and reported, and a source that is empty is no success.
#[test]
fn what_a_source_lacks_is_reported() {
    let scratch = Scratch::new("backup-lost");
    let (source, store) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    for n in 0..10 {
        fs::write(source.join(n.to_string()), text(1000, n)).unwrap();
    }
    Store::create(&store, StoreCompression::default()).unwrap();
    assert!(!backup(&store, &request(&[&source])).lost_most);
    for n in 0..6 {
        fs::remove_file(source.join(n.to_string())).unwrap();
    }
    assert!(backup(&store, &request(&[&source])).lost_most);
    let again = backup(&store, &request(&[&source]));
    assert!(again.lost_most);
    // Until its owner says that it is right.
    let number = again.number.unwrap();
    let mut open = Store::open_to_write(&store).unwrap();
    open.confirm(number).unwrap();
    drop(open);
    assert!(!backup(&store, &request(&[&source])).lost_most);
}
