//! Outputs of verbs other than `build`: rules for replacing files, and the mount command of an image with devices.

use crate::common::{Place, code, is_root, stderr, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use tuff_testkit::skipped;

#[test]
fn outputs_replace_only_their_own_format_without_force() {
    let place = Place::with_image("outputs");
    fs::write(place.path("README"), "Read this before all else.\n").unwrap();
    fs::write(place.path("p"), "tuff profile 1\n").unwrap();
    for (args, forced) in [
        (&["tar", "i", "README"][..], true),
        (&["verity", "add", "-q", "--into=README", "i"], true),
        (&["profile", "merge", "-o", "README", "p"], false),
        (&["mount", "--record=README", "i", "."], false),
    ] {
        let before = fs::read(place.path("README")).unwrap();
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (2, 1),
            "{args:?}: {message}"
        );
        assert!(
            message.contains("README: is a text file"),
            "{args:?}: {message}"
        );
        assert_eq!(fs::read(place.path("README")).unwrap(), before);
        assert_eq!(message.contains("--force"), forced, "{args:?}: {message}");
        if forced {
            place.text(&[args, &["--force"]].concat());
            assert_ne!(fs::read(place.path("README")).unwrap(), before);
            // A file of the same format needs no `--force`.
            place.text(args);
            fs::write(place.path("README"), before).unwrap();
        }
    }
    for _ in 0..2 {
        place.text(&["profile", "merge", "-o", "merged", "p"]);
    }
}

#[test]
fn an_image_with_devices_is_mounted_as_its_build_says() {
    if !is_root() {
        return skipped("mounting with the kernel's EROFS needs root");
    }
    let place = Place::new("printed");
    for (dir, more) in [("base-tree", ""), ("new tree", "more\n")] {
        fs::create_dir(place.path(dir)).unwrap();
        fs::write(place.path(dir).join("text"), text() + more).unwrap();
    }
    place.text(&["build", "-q", "base-tree", "base"]);
    fs::create_dir(place.path("mnt")).unwrap();
    let shell = |command: &str| {
        let bin = std::path::Path::new(env!("CARGO_BIN_EXE_tuff"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", bin.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.env("PATH", path).current_dir(&place.0);
        shell.args(["-c", command]).output().unwrap()
    };
    let is_mounted_by = |command: &str| {
        let out = shell(command);
        assert_eq!(code(&out), 0, "{command}: {}", stderr(&out));
        let is_same = fs::read_to_string(place.path("mnt/text")).unwrap() == text() + "more\n";
        assert_eq!(code(&shell("umount mnt")), 0);
        assert!(is_same, "{command}");
    };
    for build in [
        &["build", "--base", "base", "new tree", "an image's"][..],
        &[
            "build",
            "--chunk=4K",
            "-z",
            "none",
            "--blob=a blob",
            "new tree",
            "an image's",
        ],
    ] {
        let message = place.text(build);
        let command = message.lines().find_map(|line| line.strip_prefix("mount"));
        let command = command.unwrap_or_else(|| panic!("{message}")).trim();
        assert!(command.ends_with(" DIR"), "{command}");
        is_mounted_by(&command.replace("DIR", "mnt"));
    }
    // As documented for systems without Tuff.
    place.text(&["build", "-q", "--base", "base", "new tree", "new"]);
    is_mounted_by(
        "base=$(losetup -r -f --show base) && mount -t erofs -o ro,loop,device=$base new mnt && losetup -d $base",
    );
    let plain = place.text(&["build", "new tree", "plain"]);
    assert!(!plain.contains("mount"), "{plain}");
}

/// Runs of every verb that writes a file, with the name of that file.
const WRITERS: &[(&str, &[&str])] = &[
    ("o", &["build", "-q", "--force", "-o", "o", "src"]),
    (
        "chunks",
        &[
            "build",
            "-q",
            "--force",
            "-z",
            "none",
            "--blob=chunks",
            "--chunk=4K",
            "-o",
            "of-chunks",
            "src",
        ],
    ),
    ("patched", &["patch", "-q", "-o", "patched", "src"]),
    ("compacted", &["patch", "-q", "--compact", "compacted"]),
    ("d.raw", &["disk", "-q", "--force", "src", "d.raw"]),
    ("t", &["tar", "--force", "i", "t"]),
    (
        "tree",
        &["verity", "add", "-q", "--force", "--into=tree", "i"],
    ),
    ("profile", &["profile", "merge", "-o", "profile", "p"]),
    #[cfg(feature = "report")]
    ("r", &["report", "--force", "-o", "r", "i"]),
];

fn writers(name: &str) -> Place {
    let place = Place::with_image(name);
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/file"), text()).unwrap();
    fs::write(place.path("p"), "tuff profile 1\n").unwrap();
    for (file, _) in WRITERS {
        match *file {
            "patched" | "compacted" => drop(fs::copy(place.path("i"), place.path(file)).unwrap()),
            file => fs::write(place.path(file), "").unwrap(),
        }
    }
    place
}

#[test]
fn every_output_keeps_mode_owner_and_attributes_of_its_file() {
    let place = writers("attributes");
    for (file, args) in WRITERS {
        let path = place.path(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        if is_root() {
            std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        }
        let flags = rustix::fs::XattrFlags::empty();
        let has_xattrs = rustix::fs::setxattr(&path, "user.note", b"kept", flags).is_ok();
        let before = fs::metadata(&path).unwrap();
        place.text(args);
        let after = fs::metadata(&path).unwrap();
        assert_eq!(after.mode(), before.mode(), "{file}");
        assert_eq!(
            (after.uid(), after.gid()),
            (before.uid(), before.gid()),
            "{file}"
        );
        assert!(after.len() > 0, "{file}");
        let mut value = [0; 8];
        let found = rustix::fs::getxattr(&path, "user.note", &mut value[..]);
        assert_eq!(found.is_ok(), has_xattrs, "{file}");
    }
}

#[test]
fn every_output_keeps_the_other_names_of_its_file() {
    let place = writers("names");
    for (file, args) in WRITERS {
        let (path, other) = (place.path(file), place.path("other"));
        fs::hard_link(&path, &other).unwrap();
        place.text(args);
        assert!(
            fs::read(&path).unwrap() == fs::read(&other).unwrap(),
            "{file}"
        );
        assert_eq!(fs::metadata(&other).unwrap().nlink(), 2, "{file}");
        assert!(fs::metadata(&other).unwrap().len() > 0, "{file}");
        fs::remove_file(&other).unwrap();
    }
    assert_eq!(code(&place.run(&["check", "-q", "patched"])), 0);
    assert_eq!(code(&place.run(&["check", "-q", "compacted"])), 0);
    assert_eq!(code(&place.run(&["check", "-q", "o"])), 0);
}

#[test]
fn a_mount_point_of_a_file_and_a_file_in_a_closed_directory_are_written() {
    if !is_root() {
        return skipped("bind mounts and other users need root");
    }
    let place = Place::new("in-place");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/file"), text()).unwrap();
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program)
            .current_dir(&place.0)
            .env_remove("TMPDIR")
            .args(args)
            .output();
        out.unwrap_or_else(|e| panic!("{program}: {e}"))
    };
    for name in ["source", "bound"] {
        fs::write(place.path(name), "").unwrap();
    }
    assert_eq!(code(&run("mount", &["--bind", "source", "bound"])), 0);
    let built = place.run(&["build", "-q", "-o", "bound", "src"]);
    assert_eq!(code(&run("umount", &["bound"])), 0);
    assert_eq!(code(&built), 0, "{}", stderr(&built));
    assert_eq!(code(&place.run(&["check", "-q", "source"])), 0);
    assert_eq!(fs::metadata(place.path("bound")).unwrap().len(), 0);

    fs::create_dir(place.path("closed")).unwrap();
    let file = place.path("closed/image");
    fs::write(&file, "").unwrap();
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    for dir in ["", "closed", "src"] {
        fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", tuff];
    if code(&run("setpriv", &[&nobody[..], &["--version"]].concat())) != 0 {
        return skipped("other users cannot run the program under test");
    }
    let built = run(
        "setpriv",
        &[&nobody[..], &["build", "-q", "-o", "closed/image", "src"]].concat(),
    );
    assert_eq!(code(&built), 0, "{}", stderr(&built));
    assert_eq!(code(&place.run(&["check", "-q", "closed/image"])), 0);
    assert_eq!(fs::metadata(&file).unwrap().uid(), 65534);
    // A name that does not exist needs the directory.
    let built = run(
        "setpriv",
        &[&nobody[..], &["build", "-q", "-o", "closed/new", "src"]].concat(),
    );
    assert_eq!(code(&built), 5, "{}", stderr(&built));
}
