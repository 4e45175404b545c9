//! Chains of delta images: devices are found by UUID beside the image, and given in any order.

use crate::common::{Place, code, skipped, stderr};
use crate::mount::can_mount;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::process::Command;
use tuff_testkit::content::{noise, text};

/// Makes a tree, and images of three days: `day2` is a delta of `day1`, `day3` one of `day2`. All trees are in `trees`.
fn chain(name: &str) -> Place {
    let place = Place::new(name);
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("large"), text(300_000, 1)).unwrap();
    fs::write(tree.join("noise"), noise(200_000, 2)).unwrap();
    for n in 0..20 {
        fs::write(tree.join(format!("sub/{n}")), text(900, 10 + n)).unwrap();
    }
    place.text(&["build", "-q", "tree", "day1"]);
    fs::write(tree.join("second"), noise(50_000, 3)).unwrap();
    place.text(&["build", "-q", "--base", "day1", "tree", "day2"]);
    fs::write(tree.join("third"), noise(50_000, 4)).unwrap();
    place.text(&["build", "-q", "--base", "day2", "tree", "day3"]);
    place
}

#[test]
fn a_chain_of_deltas_is_read_by_every_verb() {
    let place = chain("chain");
    let info = place.json(&["info", "--json", "day3"]);
    assert_eq!(info[0]["devices"].as_array().unwrap().len(), 2);
    for image in ["day3", "./day3"] {
        assert_eq!(place.text(&["diff", image, "tree"]), "");
        place.text(&["extract", "-q", "--overwrite", image, "out"]);
        assert_eq!(place.text(&["diff", image, "out"]), "");
    }
    let large = fs::read_to_string(place.path("tree/large")).unwrap();
    assert_eq!(place.text(&["cat", "day3", "large"]), large);
    for args in [
        &["ls", "-R", "day3"][..],
        &["stat", "--extents", "day3", "large"],
        &["check", "day3"],
        &["dump", "day3"],
        &["tar", "day3", "day3.tar"],
        &["build", "-q", "day3", "whole"],
        &["build", "-q", "--image-index", "day2", "day3", "index"],
        &["fsck.erofs", "--extract=extracted", "day3"],
        &["dump.erofs", "-S", "day3"],
        &["mkfs.erofs", "--quiet", "again", "day3"],
    ] {
        let out = place.run(args);
        assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
    }
    for image in ["whole", "index", "again"] {
        assert_eq!(place.text(&["diff", "-c", image, "tree"]), "", "{image}");
    }
    place.text(&["patch", "-q", "day3", "day1"]);
    assert_eq!(place.text(&["diff", "day1", "tree"]), "");
}

#[test]
fn images_of_a_chain_are_compared() {
    let place = chain("chain-compared");
    fs::create_dir(place.path("away")).unwrap();
    for (args, change) in [
        (&["day2", "day3"][..], "+ third"),
        (&["day1", "day2"], "+ second"),
        (&["day3", "day1"], "- second"),
        (&["--device", "day1", "day1", "day2"], "+ second"),
        (
            &["--device", "day1", "--device", "day2", "day2", "day3"],
            "+ third",
        ),
        (
            &["--device", "day2", "--device", "day1", "day2", "day3"],
            "+ third",
        ),
    ] {
        let out = place.run(&[&["diff", "-c"], args].concat());
        let message = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(code(&out), 1, "{args:?}: {}", stderr(&out));
        assert!(
            message.lines().any(|line| line.starts_with(change)),
            "{message}"
        );
    }
    #[cfg(feature = "report")]
    for args in [&["day1", "day2"][..], &["--device", "day1", "day2", "day3"]] {
        let out = place.run(&[&["report", "--json"], args].concat());
        assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
    }
    // A device that no image needs is refused.
    let out = place.run(&["diff", "--device", "day3", "day1", "day2"]);
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("expected the image with UUID"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn devices_elsewhere_are_given_in_any_order() {
    let place = chain("chain-elsewhere");
    fs::create_dir(place.path("away")).unwrap();
    fs::rename(place.path("day1"), place.path("away/day1")).unwrap();
    let out = place.run(&["check", "-q", "day3"]);
    assert_eq!(code(&out), 2);
    let message = stderr(&out);
    assert!(
        message.contains("data is on device 2, the image with UUID")
            && message.contains("--device FILE"),
        "{message}"
    );
    // Metadata needs no device.
    place.text(&["ls", "day3"]);
    place.text(&["check", "-q", "--device", "away/day1", "day3"]);
    fs::rename(place.path("day2"), place.path("away/day2")).unwrap();
    for order in [["away/day1", "away/day2"], ["away/day2", "away/day1"]] {
        let devices = ["--device", order[0], "--device", order[1]];
        place.text(&[&["check", "-q"], &devices[..], &["day3"]].concat());
        let sources = ["--source-device", order[0], "--source-device", order[1]];
        place.text(&[&["build", "-q"], &sources[..], &["day3", "whole"]].concat());
        let base = ["--base", "day3", "tree", "day4"];
        place.text(&[&["build", "-q"], &sources[..], &base].concat());
        assert_eq!(place.text(&["diff", "whole", "tree"]), "");
    }
    // A link names the directory of the image, too.
    fs::rename(place.path("day3"), place.path("away/day3")).unwrap();
    symlink("away/day3", place.path("link")).unwrap();
    assert_eq!(place.text(&["diff", "link", "tree"]), "");
}

#[test]
fn a_chain_is_mounted() {
    if !can_mount() {
        return;
    }
    let place = chain("chain-mounted");
    fs::create_dir(place.path("mnt")).unwrap();
    for options in [&[][..], &["--kernel"]] {
        let out = place.run(&[&["mount"], options, &["day3", "mnt"]].concat());
        assert_eq!(code(&out), 0, "{options:?}: {}", stderr(&out));
        let same = Command::new("diff")
            .args(["-r", "tree", "mnt"])
            .current_dir(&place.0)
            .output();
        place.unmount("mnt");
        assert!(same.unwrap().status.success(), "{options:?}");
    }
}

#[test]
fn two_files_with_the_uuid_of_a_device_are_refused() {
    let place = chain("chain-ambiguous");
    fs::copy(place.path("day1"), place.path("copy")).unwrap();
    let out = place.run(&["check", "-q", "day2"]);
    assert_eq!(code(&out), 2);
    let message = stderr(&out);
    assert!(
        message.contains("both copy and day1 have its UUID"),
        "{message}"
    );
    place.text(&["check", "-q", "--device", "day1", "day2"]);
    // Another name of the same file is no other file.
    fs::remove_file(place.path("copy")).unwrap();
    fs::hard_link(place.path("day1"), place.path("copy")).unwrap();
    place.text(&["check", "-q", "day2"]);
}

#[test]
fn a_device_beside_the_image_belongs_to_its_owner() {
    let place = chain("chain-owner");
    let day1 = place.path("day1");
    if chown(&day1, Some(4321), None).is_err() {
        return skipped("changing the owner of a file needs root");
    }
    let out = place.run(&["check", "-q", "day2"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert!(
        stderr(&out).contains("no file beside the image"),
        "{}",
        stderr(&out)
    );
    // The owner of the image could replace the image as well.
    chown(place.path("day2"), Some(4321), None).unwrap();
    place.text(&["check", "-q", "day2"]);
    // A link of a stranger does not count.
    fs::create_dir(place.path("away")).unwrap();
    fs::rename(&day1, place.path("away/day1")).unwrap();
    symlink("away/day1", &day1).unwrap();
    place.text(&["check", "-q", "day2"]);
    std::os::unix::fs::lchown(&day1, Some(1234), None).unwrap();
    assert_eq!(code(&place.run(&["check", "-q", "day2"])), 2);
    // Nor does a pipe, which would block.
    fs::remove_file(&day1).unwrap();
    let _ = Command::new("mkfifo").arg(&day1).status();
    assert_eq!(code(&place.run(&["check", "-q", "day2"])), 2);
}

#[test]
fn no_device_is_looked_for_where_a_root_has_to_cover_it() {
    let place = chain("chain-verity");
    let added = place.json(&["verity", "add", "--json", "day2"]);
    let root = added[0]["root_hash"].as_str().unwrap();
    let out = place.run(&["cat", "--root-hash", root, "day2", "large"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    let out = place.run(&[
        "cat",
        "--root-hash",
        root,
        "--device",
        "day1",
        "day2",
        "large",
    ]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
}

#[test]
fn a_device_without_a_uuid_is_not_looked_for() {
    let place = Place::new("chain-no-uuid");
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/large"), text(100_000, 1)).unwrap();
    let uuid = "00000000-0000-0000-0000-000000000000";
    place.text(&["build", "-q", "--uuid", uuid, "tree", "base"]);
    let base = ["--uuid", uuid, "--base", "base", "tree", "delta"];
    place.text(&[&["build", "-q"], &base[..]].concat());
    let out = place.run(&["cat", "delta", "large"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    place.text(&["check", "-q", "--device", "base", "delta"]);
}
