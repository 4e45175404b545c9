//! SquashFS images as sources of images and of backups.

use crate::common::{Place, code, stderr, tool};
use std::fs;

/// Creates a directory `t` and an image of it, `old`, whose name says nothing. Returns false, with a note, without mksquashfs.
fn image(place: &Place) -> bool {
    fs::create_dir_all(place.path("t/dir")).unwrap();
    fs::write(place.path("t/dir/text"), "what it says ".repeat(20_000)).unwrap();
    fs::write(place.path("t/small"), "small").unwrap();
    fs::hard_link(place.path("t/small"), place.path("t/dir/linked")).unwrap();
    let touched = tool(
        &place.0,
        "touch",
        &["-d", "@1700000000", "t/dir/text", "t/small", "t/dir", "t"],
    );
    let args = ["t", "old", "-quiet", "-no-progress"];
    touched.is_some() && tool(&place.0, "mksquashfs", &args).is_some()
}

#[test]
fn an_image_of_a_squashfs_image_is_that_of_its_tree() {
    let place = Place::new("squashfs-tree");
    if !image(&place) {
        return;
    }
    let build =
        |source: &str, image: &str| place.text(&["build", "-q", "-z", "lz4", source, image]);
    build("t", "expected");
    build("old", "found");
    assert_eq!(place.text(&["diff", "expected", "found"]), "");
    let [expected, found] = ["expected", "found"].map(|name| fs::read(place.path(name)).unwrap());
    assert!(expected == found);
    place.text(&["build", "-q", "--source-type", "squashfs", "old", "again"]);
}

#[test]
fn a_backup_of_a_squashfs_image_has_its_tree_as_its_root() {
    let place = Place::new("squashfs-backup");
    if !image(&place) {
        return;
    }
    place.text(&["backup", "-q", "old", "backups"]);
    place.text(&["store", "restore", "-q", "backups", "restored"]);
    let text = |path: &str| fs::read(place.path(path)).unwrap();
    assert_eq!(text("t/dir/text"), text("restored/dir/text"));
    assert_eq!(text("restored/dir/linked"), b"small");
    // At its path beside another source.
    place.text(&["backup", "-q", "--series", "both", "old", "t", "backups"]);
    place.text(&["store", "restore", "-q", "backups", "both"]);
    let real = fs::canonicalize(place.path("old")).unwrap();
    let below = format!("both{}/dir/text", real.display());
    assert_eq!(text(&below), text("t/dir/text"));
}

#[test]
fn files_without_a_tree_are_no_sources_of_backups() {
    let place = Place::new("backup-no-source");
    fs::write(place.path("text"), "some words\n").unwrap();
    let volume = [&b"TUFFIPLF"[..], &[0; 8192]].concat();
    fs::write(place.path("volume"), volume).unwrap();
    for (file, words) in [
        ("text", "text: "),
        ("volume", "tuff volume mount --snapshot"),
    ] {
        let out = place.run(&["backup", "-q", file, "backups"]);
        assert!(code(&out) > 1, "{file}");
        assert!(stderr(&out).contains(words), "{}", stderr(&out));
    }
}
