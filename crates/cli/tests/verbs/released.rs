//! Images of released versions open as before: testdata/released.

use crate::common::{Place, code, stderr};
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Digest of the tar of the tree that most images hold, of the changed tree, and of the tree with another layer.
const DAY_1: &str = "22439044fbcf88e0f8375784a97a77126b0a84f1b4b644dedafe9d431f751a44";
const DAY_2: &str = "9cafd8cb190068111bfece89665881cdb0a18ad9e7d404b66f7f8757ac0f8986";
const LAYERS: &str = "14c6b48206d45b268cea1c8a77a311b4ff902a6b5dd06afc5ce50604fcc05388";

/// Images of 0.2.0, with the device that they need and the digest of their tar.
const IMAGES: [(&str, Option<&str>, &str); 11] = [
    ("blob", Some("blob.data"), DAY_1),
    ("chunks", None, DAY_1),
    ("default", None, DAY_1),
    ("deflate", None, DAY_1),
    ("delta", Some("default.erofs"), DAY_2),
    ("layers", None, LAYERS),
    ("lzma", None, DAY_1),
    ("patched", None, DAY_2),
    ("plain", None, DAY_1),
    ("verity", None, DAY_1),
    ("zstd", None, DAY_1),
];

/// Copies the images to a directory.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/released/0.2.0");
    let mut images = 0;
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        images += usize::from(path.extension().is_some_and(|e| e == "erofs"));
        fs::copy(
            &path,
            place.path(path.file_name().unwrap().to_str().unwrap()),
        )
        .unwrap();
    }
    assert_eq!(images, IMAGES.len());
    place
}

/// SHA-256 of the tar of an image.
fn tar_digest(place: &Place, image: &str, device: Option<&str>) -> String {
    let mut args = vec!["tar", image, "-"];
    args.extend(device.iter().flat_map(|device| ["--device", device]));
    let mut tar = place.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let sum = std::process::Command::new("sha256sum")
        .stdin(tar.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(tar.wait().unwrap().success(), "{image}");
    String::from_utf8(sum.stdout).unwrap()[..64].to_owned()
}

#[test]
fn images_of_released_versions_are_clean_and_hold_the_same_trees() {
    let place = stage("released-read");
    for (name, device, digest) in IMAGES {
        let image = format!("{name}.erofs");
        let mut args = vec!["check", &image];
        args.extend(device.iter().flat_map(|device| ["--device", device]));
        let out = place.run(&args);
        assert_eq!(code(&out), 0, "{name}: {}", stderr(&out));
        assert_eq!(tar_digest(&place, &image, device), digest, "{name}");
    }
    // The root hash that 0.2.0 printed.
    let root = "a122ae306988819569ca21840b49dcacb7387160afe82c55caf31483df526049";
    place.text(&["cat", "--root-hash", root, "verity.erofs", "dir/deep/text"]);
}

#[test]
fn images_of_released_versions_are_bases_and_take_patches() {
    let place = stage("released-change");
    let tree = place.path("tree");
    for (name, device, _) in IMAGES {
        let image = format!("{name}.erofs");
        let _ = fs::remove_dir_all(&tree);
        let mut args = vec!["extract", "-q", &image, "tree"];
        args.extend(device.iter().flat_map(|device| ["--device", device]));
        place.text(&args);
        fs::write(tree.join("added"), "added\n").unwrap();
        if device.is_none() {
            let delta = format!("{name}-2.erofs");
            place.text(&["build", "-q", "--base", &image, "-o", &delta, "tree"]);
            assert!(same_tree(&place, &delta, Some(&image), &tree), "{name}");
            let patched = format!("{name}-3.erofs");
            fs::copy(place.path(&image), place.path(&patched)).unwrap();
            place.text(&["patch", "-q", "tree", &patched]);
            assert!(same_tree(&place, &patched, None, &tree), "{name}");
        }
    }
}

/// True if an image holds a tree.
fn same_tree(place: &Place, image: &str, device: Option<&str>, tree: &Path) -> bool {
    let mut args = vec!["diff", "--content-only", image, tree.to_str().unwrap()];
    args.extend(device.iter().flat_map(|device| ["--device", device]));
    let out = place.run(&args);
    code(&out) == 0 || panic!("{}{}", String::from_utf8_lossy(&out.stdout), stderr(&out))
}
