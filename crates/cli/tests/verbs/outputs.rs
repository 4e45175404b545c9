//! Outputs of verbs other than `build`: rules for replacing files, and the mount command of an image with devices.

use crate::common::{Place, code, is_root, stderr, text};
use std::fs;
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
        let said = stderr(&out);
        assert_eq!(
            (code(&out), said.lines().count()),
            (2, 1),
            "{args:?}: {said}"
        );
        assert!(said.contains("README: is a text file"), "{args:?}: {said}");
        assert_eq!(fs::read(place.path("README")).unwrap(), before);
        assert_eq!(said.contains("--force"), forced, "{args:?}: {said}");
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
        let said = place.text(build);
        let command = said.lines().find_map(|line| line.strip_prefix("mount"));
        let command = command.unwrap_or_else(|| panic!("{said}")).trim();
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
