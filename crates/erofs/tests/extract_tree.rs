//! An extraction creates exactly what the image contains, for any image and any target directory.

use rustix::fs as rfs;
use std::os::unix::fs::{MetadataExt, symlink as make_symlink};
use std::path::Path;
use tuff_erofs::Error;
use tuff_erofs::extract::{Options, Report, extract};
use tuff_erofs::read::Image;
use tuff_store::{MemStore, Target};
use tuff_testkit::Scratch;
use tuff_testkit::assemble::{Body, Node, assemble, dir, file, symlink};
use tuff_testkit::is_root;
use tuff_testkit::sample;
use tuff_testkit::tree::Ignore;
use tuff_testkit::tree::assert_same;
use tuff_testkit::tree::host_tree;
use tuff_testkit::tree::image_tree;
use tuff_testkit::tree::nasty_tree;
use tuff_testkit::tree::open;
use tuff_testkit::variants::mkfs;

fn options() -> Options {
    Options::default()
}

fn image(bytes: Vec<u8>) -> Image {
    Image::open(MemStore::new(bytes), Default::default()).unwrap()
}

fn run(image: &Image, target: &Path, options: &Options) -> Result<Report, Error> {
    extract(image, target, options, |_| ())
}

fn same_as_image() -> Ignore {
    Ignore {
        dir_size: true,
        dir_nlink: true,
        holes: true,
        owners: !is_root(),
        ..Ignore::default()
    }
}

#[test]
fn every_form_extracts_to_its_content() {
    if !is_root() {
        tuff_testkit::skipped("creating devices and setting owners needs root");
        return;
    }
    let scratch = Scratch::new("extract-samples");
    for (name, bytes) in sample::all() {
        for threads in [1, 3] {
            let target = scratch.path().join(format!("{name}-{threads}"));
            let image = sample::open(bytes);
            let report = run(
                &image,
                &target,
                &Options {
                    threads,
                    ..options()
                },
            )
            .unwrap();
            assert_eq!(report.problems, [], "{name}");
            assert_same(
                name,
                &image_tree(&image),
                &host_tree(&target),
                same_as_image(),
            );
            // Error-prone cases: a hole at the end of a file, a second name of a file.
            let sparse = std::fs::metadata(target.join("sparse")).unwrap();
            assert_eq!(sparse.len(), 40_000, "{name}");
            assert_eq!(std::fs::metadata(target.join("hi")).unwrap().nlink(), 2);
            assert_eq!(report.totals.links, 1);
        }
    }
}

#[test]
fn holes_are_extracted_as_holes() {
    let scratch = Scratch::new("extract-holes");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let file = std::fs::File::create(source.join("sparse")).unwrap();
    file.set_len(1_000_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 600_000).unwrap();
    let image = scratch.path().join("image");
    let mut options = tuff_mkfs::Options::default();
    options.compression.default = None;
    options.layout.sparse = tuff_mkfs::SparsePolicy::Keep;
    let sources = [tuff_mkfs::Source::Dir(source)];
    let to = tuff_store::Target::Path(image.clone());
    tuff_mkfs::build(&sources, &options, &to, &Default::default()).unwrap();
    let target = scratch.path().join("out");
    run(&open(&image), &target, &Options::default()).unwrap();
    let sparse = std::fs::metadata(target.join("sparse")).unwrap();
    assert_eq!(sparse.len(), 1_000_000);
    assert!(sparse.blocks() * 512 <= 8192);
}

#[test]
fn special_cases_survive_mkfs_and_extraction() {
    let scratch = Scratch::new("extract-nasty");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    let requested = host_tree(&source);
    for (i, options) in [
        &["-zlz4hc", "-C65536", "-Eall-fragments,dedupe,ztailpacking"][..],
        &["-zlz4", "-C4096"],
        &["--chunksize=4096"],
        &["-Elegacy-compress", "-zlz4"],
    ]
    .iter()
    .enumerate()
    {
        let file = scratch.path().join(format!("{i}.erofs"));
        if mkfs(&file, &source, options).is_none() {
            continue;
        }
        let target = scratch.path().join(format!("out-{i}"));
        let report = run(&open(&file), &target, &Options::default()).unwrap();
        if is_root() {
            assert_eq!(report.problems, []);
        }
        assert_same(
            &format!("{options:?}"),
            &requested,
            &host_tree(&target),
            same_as_image(),
        );
    }
}

#[test]
fn existing_files_are_not_written_to() {
    let scratch = Scratch::new("extract-exists");
    let target = scratch.path().join("out");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("hi"), "mine").unwrap();
    let error = run(&sample::image("lz4"), &target, &options()).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    assert!(error.to_string().contains("hi"), "{error}");
    assert_eq!(std::fs::read(target.join("hi")).unwrap(), b"mine");
}

#[test]
fn overwriting_replaces_files_symlinks_and_hard_links() {
    let scratch = Scratch::new("extract-again");
    let target = scratch.path().join("out");
    let outside = scratch.path().join("outside");
    std::fs::write(&outside, "precious").unwrap();
    let image = sample::image("zstd");
    let again = Options {
        overwrite: true,
        ..options()
    };
    run(&image, &target, &again).unwrap();
    // A symlink in the place of a file, and a second name of another file in the place of a hard
    // link.
    std::fs::remove_file(target.join("letters")).unwrap();
    make_symlink(&outside, target.join("letters")).unwrap();
    std::fs::remove_file(target.join("hi-too")).unwrap();
    std::fs::hard_link(&outside, target.join("hi-too")).unwrap();
    run(&image, &target, &again).unwrap();
    assert_same(
        "again",
        &image_tree(&image),
        &host_tree(&target),
        same_as_image(),
    );
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
}

#[test]
fn an_update_keeps_complete_files_and_extracts_the_rest() {
    let scratch = Scratch::new("extract-update");
    let (tree, target) = (scratch.path().join("tree"), scratch.path().join("out"));
    std::fs::create_dir(&tree).unwrap();
    let names = [
        "gone", "short", "later", "mode", "joined", "other", "kept", "xattr",
    ];
    for name in names {
        let path = tree.join(name);
        std::fs::write(&path, name.repeat(3000)).unwrap();
        rfs::setxattr(&path, "user.of", name.as_bytes(), rfs::XattrFlags::empty()).unwrap();
    }
    std::fs::hard_link(tree.join("kept"), tree.join("second")).unwrap();
    let made = scratch.path().join("image");
    let (source, to) = (tuff_mkfs::Source::Dir(tree), Target::Path(made.clone()));
    let defaults = tuff_mkfs::Options::default();
    tuff_mkfs::build(&[source], &defaults, &to, &tuff_mkfs::Progress::default()).unwrap();
    let image = open(&made);
    let update = Options {
        overwrite: true,
        update: true,
        ..options()
    };
    let at = |name: &str| target.join(name);
    let first = run(&image, &target, &update).unwrap().totals;
    assert_eq!((first.files, first.kept, first.links), (8, 0, 1));
    let number = |name: &str| std::fs::metadata(at(name)).unwrap().ino();
    let before = names.map(number);
    let time = std::fs::metadata(at("short")).unwrap().modified().unwrap();
    let as_before = |name: &str| {
        let file = std::fs::File::options().write(true).open(at(name));
        file.unwrap().set_modified(time).unwrap();
    };

    std::fs::remove_file(at("gone")).unwrap();
    std::fs::write(at("short"), "short").unwrap();
    as_before("short");
    std::fs::write(at("later"), "LATER".repeat(3000)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(at("mode"), mode).unwrap();
    std::fs::hard_link(at("joined"), scratch.path().join("outside")).unwrap();
    rfs::setxattr(at("xattr"), "user.of", b"others", rfs::XattrFlags::empty()).unwrap();
    let second = run(&image, &target, &update).unwrap().totals;
    assert_eq!((second.files, second.kept), (8, 2));
    let same = names.map(number);
    let stayed: Vec<&str> = (names.into_iter().zip(before.iter().zip(&same)))
        .filter(|(_, (before, after))| before == after)
        .map(|(name, _)| name)
        .collect();
    assert!(
        stayed.contains(&"kept") && stayed.contains(&"other"),
        "{stayed:?}"
    );
    let (expected, found) = (image_tree(&image), host_tree(&target));
    assert_same("update", &expected, &found, same_as_image());
    let third = run(&image, &target, &update).unwrap().totals;
    assert_eq!((third.files, third.kept, third.bytes), (8, 8, 0));

    for wrong in [
        Options {
            overwrite: false,
            ..update.clone()
        },
        Options {
            times: false,
            ..update
        },
    ] {
        let error = run(&image, &target, &wrong).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
    }
}

/// Leftovers of a killed extraction are removed by the next one, but not while an extraction runs.
#[test]
fn leftovers_of_a_killed_extraction_are_removed() {
    let scratch = Scratch::new("extract-left");
    let temporary = |name: &str| {
        let hash = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
        format!(".tuff-extract-{hash:016x}")
    };
    let tree = |name: &str| {
        let tree = scratch.path().join(format!("{name}-tree"));
        std::fs::create_dir_all(tree.join("d")).unwrap();
        std::fs::write(tree.join("d/f"), "complete").unwrap();
        std::fs::write(tree.join(name), "complete".repeat(200_000)).unwrap();
        let made = scratch.path().join(format!("{name}-image"));
        let (source, to) = (tuff_mkfs::Source::Dir(tree), Target::Path(made.clone()));
        let defaults = tuff_mkfs::Options::default();
        tuff_mkfs::build(&[source], &defaults, &to, &tuff_mkfs::Progress::default()).unwrap();
        open(&made)
    };
    let plain = tree("f");
    let target = scratch.path().join("out");
    let names = |dir: &Path| {
        let all = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = all.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // A new target; a new directory and a large file in an existing target.
    for (above, name, is_dir) in [("", "out", true), ("out", "d", true), ("out", "f", false)] {
        let above = scratch.path().join(above);
        let left = above.join(temporary(name));
        if above == target {
            std::fs::remove_dir_all(&target).unwrap();
            std::fs::create_dir(&target).unwrap();
        }
        let mut held = target.clone();
        if is_dir {
            std::fs::create_dir_all(left.join("other")).unwrap();
            std::fs::write(left.join("other/part"), "com").unwrap();
            held.clone_from(&left);
        } else {
            std::fs::write(&left, "com").unwrap();
        }
        let lock = std::fs::File::open(&held).unwrap();
        rfs::flock(&lock, rfs::FlockOperation::LockShared).unwrap();
        let busy = run(&plain, &target, &options()).unwrap_err().to_string();
        assert!(busy.contains("another extraction is creating it"), "{busy}");
        drop(lock);
        let _ = std::fs::remove_dir_all(target.join("d"));
        run(&plain, &target, &options()).unwrap();
        assert_eq!(names(&target), ["d", "f"]);
        assert_eq!(names(&target.join("d")), ["f"]);
    }
    // A name of this form in an image is refused only where it could be taken for a leftover.
    let odd = tree(&temporary("x"));
    let error = run(
        &odd,
        &target,
        &Options {
            overwrite: true,
            ..options()
        },
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("extract into a new directory"), "{error}");
    run(&odd, &scratch.path().join("new"), &options()).unwrap();
    assert_eq!(names(&scratch.path().join("new")).len(), 2);
}

#[test]
fn leftovers_of_killed_extractions_to_other_targets_are_removed() {
    let scratch = Scratch::new("extract-stale");
    let left = |number: u32| {
        let left = scratch.path().join(format!(".tuff-extract-{number:016x}"));
        std::fs::create_dir_all(left.join("d")).unwrap();
        std::fs::write(left.join("d/part"), "com").unwrap();
        left
    };
    let (stale, living) = (left(1), left(2));
    let lock = std::fs::File::open(&living).unwrap();
    rfs::flock(&lock, rfs::FlockOperation::LockShared).unwrap();
    let kept = scratch.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("file"), "kept").unwrap();
    let link = scratch.path().join(format!(".tuff-extract-{:016x}", 3));
    std::os::unix::fs::symlink(&kept, &link).unwrap();
    let notes = scratch.path().join(".tuff-extract-notes");
    std::fs::create_dir(&notes).unwrap();
    run(
        &sample::image("lz4"),
        &scratch.path().join("out"),
        &options(),
    )
    .unwrap();
    assert!(!stale.exists());
    assert!(living.join("d/part").exists());
    assert!(notes.exists() && link.is_symlink());
    assert_eq!(std::fs::read(kept.join("file")).unwrap(), b"kept");
}

#[test]
fn symlinks_in_the_target_are_not_followed() {
    let scratch = Scratch::new("extract-planted");
    let (target, outside) = (scratch.path().join("out"), scratch.path().join("outside"));
    std::fs::create_dir(&target).unwrap();
    std::fs::create_dir(&outside).unwrap();
    make_symlink(&outside, target.join("dir")).unwrap();
    let image = sample::image("plain");
    assert!(run(&image, &target, &options()).is_err());
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let again = Options {
        overwrite: true,
        ..options()
    };
    run(&image, &target, &again).unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert!(
        std::fs::symlink_metadata(target.join("dir"))
            .unwrap()
            .is_dir()
    );
}

/// Root directory with these raw entries: name, node, file type.
fn raw_root(entries: &[(&[u8], usize, u8)]) -> Node {
    let entries = entries
        .iter()
        .map(|(n, i, k)| (n.to_vec(), *i, *k))
        .collect();
    Node {
        body: Body::RawDir(entries),
        ..dir(&[])
    }
}

#[test]
fn names_outside_the_target_are_refused() {
    for name in [
        &b"../evil"[..],
        b"a/b",
        b"/evil",
        b"x\0y",
        b"sub/../../evil",
    ] {
        let scratch = Scratch::new("extract-names");
        let target = scratch.path().join("in/out");
        std::fs::create_dir_all(&target).unwrap();
        let made = assemble(&[
            raw_root(&[(b".", 0, 2), (b"..", 0, 2), (name, 1, 1), (b"zz", 2, 1)]),
            file(b"x"),
            file(b"y"),
        ]);
        let image = image(made.bytes);
        assert!(run(&image, &target, &options()).is_err(), "{name:?}");
        let going_on = Options {
            keep_going: true,
            overwrite: true,
            ..options()
        };
        let report = run(&image, &target, &going_on).unwrap();
        assert_eq!(report.problems.len(), 1, "{name:?}: {:?}", report.problems);
        let all: Vec<_> = host_tree(scratch.path())
            .into_iter()
            .map(|r| r.path)
            .collect();
        assert_eq!(all, [&b""[..], b"in", b"in/out", b"in/out/zz"], "{name:?}");
    }
}

#[test]
fn a_symlink_and_a_directory_of_one_name_do_not_escape_the_target() {
    let scratch = Scratch::new("extract-twice");
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let link = symlink(outside.to_str().unwrap());
    let sub = Node {
        body: Body::RawDir(vec![
            (b".".to_vec(), 2, 2),
            (b"..".to_vec(), 0, 2),
            (b"f".to_vec(), 3, 1),
        ]),
        ..dir(&[])
    };
    let root = raw_root(&[(b".", 0, 2), (b"..", 0, 2), (b"d", 1, 7), (b"d", 2, 2)]);
    let made = assemble(&[root, link, sub, file(b"x")]);
    for overwrite in [false, true] {
        let target = scratch.path().join(format!("out-{overwrite}"));
        let _ = run(
            &image(made.bytes.clone()),
            &target,
            &Options {
                overwrite,
                ..options()
            },
        );
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}

#[test]
fn directory_cycles_and_second_names_are_refused() {
    let root = dir(&[("a", 1), ("b", 1)]);
    let made = assemble(&[root, dir(&[("back", 0)])]);
    let scratch = Scratch::new("extract-circle");
    let image = image(made.bytes);
    assert!(matches!(
        run(&image, &scratch.path().join("a"), &options()),
        Err(Error::Corrupt(_))
    ));
    let going_on = Options {
        keep_going: true,
        ..options()
    };
    let report = run(&image, &scratch.path().join("b"), &going_on).unwrap();
    assert_eq!(report.problems.len(), 2);
    assert_eq!(report.totals.directories, 1);
}

#[test]
fn paths_longer_than_path_max_are_extracted() {
    let depth = 1200;
    let name = "a-directory-name";
    let mut nodes: Vec<Node> = (0..depth).map(|i| dir(&[(name, i + 1)])).collect();
    nodes.push(file(b"bottom"));
    let scratch = Scratch::new("extract-deep");
    let target = scratch.path().join("out");
    let report = run(&image(assemble(&nodes).bytes), &target, &options()).unwrap();
    assert_eq!(
        (report.totals.directories, report.totals.files),
        (depth as u64 - 1, 1)
    );
    assert!(depth * name.len() > 4096);
    let flags = rfs::OFlags::DIRECTORY | rfs::OFlags::NOFOLLOW;
    let mut fd = rfs::open(&target, flags, rfs::Mode::empty()).unwrap();
    for _ in 0..depth - 1 {
        let flags = rfs::OFlags::DIRECTORY | rfs::OFlags::NOFOLLOW;
        fd = rfs::openat(&fd, name, flags, rfs::Mode::empty()).unwrap();
    }
    let stat = rfs::statat(&fd, name, rfs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(
        (stat.st_size, stat.st_mtime),
        (6, 1_700_000_000 + depth as i64)
    );
    // Removed by `rm`, because functions that take whole paths may fail.
    let removed = std::process::Command::new("rm")
        .arg("-rf")
        .arg(&target)
        .status()
        .unwrap();
    assert!(removed.success());
}

#[test]
fn filters_select_by_path_and_glob_and_strip_leading_names() {
    let scratch = Scratch::new("extract-filter");
    let image = sample::image("lz4");
    let names = |what: &str, options: Options| {
        let target = scratch.path().join(what);
        run(&image, &target, &options).unwrap();
        let tree = host_tree(&target);
        let names = tree.into_iter().map(|r| String::from_utf8(r.path).unwrap());
        names.filter(|n| !n.is_empty()).collect::<Vec<_>>()
    };
    let paths = vec![b"/dir/sub".to_vec(), b"hi".to_vec()];
    assert_eq!(
        names("paths", Options { paths, ..options() }),
        ["dir", "dir/sub", "dir/sub/file", "hi"]
    );
    let include = vec!["entry-10?".to_owned()];
    let got = names(
        "include",
        Options {
            include,
            ..options()
        },
    );
    assert_eq!(
        (got.len(), &got[0][..], &got[1][..]),
        (11, "dir", "dir/entry-100")
    );
    let exclude = vec!["dir".to_owned(), "n*".to_owned()];
    let got = names(
        "exclude",
        Options {
            exclude,
            ..options()
        },
    );
    assert_eq!(
        got,
        [
            "empty", "fifo", "hi", "hi-too", "letters", "link", "packed", "sparse"
        ]
    );
    let strip = Options {
        strip: 1,
        paths: vec![b"dir".to_vec()],
        ..options()
    };
    let got = names("strip", strip);
    assert_eq!(
        (got.len(), &got[130][..], &got[131][..]),
        (132, "sub", "sub/file")
    );
    let missing = Options {
        paths: vec![b"no/such".to_vec()],
        ..options()
    };
    assert!(matches!(
        run(&image, &scratch.path().join("x"), &missing),
        Err(Error::Usage(_))
    ));
}

#[test]
fn limits_stop_an_extraction() {
    let scratch = Scratch::new("extract-limits");
    let image = sample::image("lz4");
    let files = Options {
        files: 20,
        keep_going: true,
        ..options()
    };
    assert!(matches!(
        run(&image, &scratch.path().join("a"), &files),
        Err(Error::Limit(_))
    ));
    let bytes = Options {
        bytes: 1000,
        ..options()
    };
    assert!(matches!(
        run(&image, &scratch.path().join("b"), &bytes),
        Err(Error::Limit(_))
    ));
}

#[test]
fn damage_is_reported_and_the_rest_is_extracted_on_request() {
    let scratch = Scratch::new("extract-damage");
    let clean = sample::image("lz4");
    let letters = clean.resolve(b"letters").unwrap();
    let extent = clean
        .extents(&letters, 0..1)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let tuff_erofs::read::Location::Cluster(cluster) = extent.location else {
        panic!("compressed")
    };
    let mut bytes = sample::bytes("lz4");
    bytes[cluster.pos as usize..][..cluster.len as usize].fill(0xFF);
    let image = image(bytes);
    let error = run(&image, &scratch.path().join("a"), &options()).unwrap_err();
    assert!(matches!(&error, Error::Corrupt(_)), "{error}");
    assert!(error.to_string().contains("letters"), "{error}");
    let going_on = Options {
        keep_going: true,
        ..options()
    };
    let report = run(&image, &scratch.path().join("b"), &going_on).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert_eq!(report.problems[0].path, b"letters");
    let mut requested = image_tree(&clean);
    let mut got = host_tree(&scratch.path().join("b"));
    requested.retain(|r| r.path != b"letters");
    got.retain(|r| r.path != b"letters");
    assert_same("the rest", &requested, &got, same_as_image());
}

/// Regression: with a default ACL on the parent directory, users named in that ACL could read
/// extracted files of mode 0640.
#[test]
fn default_acls_of_the_parent_directory_are_not_inherited() {
    let scratch = Scratch::new("extract-acl");
    let above = scratch.path().join("above");
    std::fs::create_dir(&above).unwrap();
    // user::rwx,user:65534:rwx,group::r-x,mask::rwx,other::---
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, 7, 65534),
        (0x04, 5, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&rights.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    let name = "system.posix_acl_default";
    if let Err(e) = rfs::setxattr(&above, name, &list, rfs::XattrFlags::empty()) {
        tuff_testkit::skipped(format_args!(
            "the temporary directory does not support ACLs: {e}"
        ));
        return;
    }
    let image = sample::image("lz4");
    for threads in [1, 3] {
        let target = above.join(format!("out-{threads}"));
        let options = Options {
            threads,
            ..options()
        };
        let report = run(&image, &target, &options).unwrap();
        if is_root() {
            assert_eq!(report.problems, []);
        }
        assert_same(
            "acl",
            &image_tree(&image),
            &host_tree(&target),
            same_as_image(),
        );
    }
}
