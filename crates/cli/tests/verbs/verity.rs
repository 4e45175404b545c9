//! dm-verity hash trees: created with an image, later, and by a patch; verified; and checked by veritysetup.

use crate::common::{Place, code, is_root, skipped, stderr, text};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Output of `verity show`.
struct Tree {
    root: String,
    offset: u64,
}

impl Tree {
    fn stated(place: &Place, image: &str) -> Self {
        let shown = place.json(&["verity", "show", "--json", image]).remove(0);
        Self {
            root: shown["root_hash"].as_str().unwrap().to_owned(),
            offset: shown["hash_offset"].as_u64().unwrap(),
        }
    }

    /// Root hash with one digit changed.
    fn wrong(&self) -> String {
        let first = if self.root.starts_with('0') { "1" } else { "0" };
        format!("{first}{}", &self.root[1..])
    }
}

/// Checks that veritysetup verifies the data, or notes that it is missing.
fn others_agree(place: &Place, image: &str, tree: &str, root: &str, offset: u64) {
    let run = Command::new("veritysetup")
        .current_dir(&place.0)
        .args(["verify", image, tree, root])
        .arg(format!("--hash-offset={offset}"))
        .output();
    match run {
        Ok(out) => assert!(out.status.success(), "{image}: {}", stderr(&out)),
        Err(_) => skipped("no veritysetup"),
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x55;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_hash_tree_is_the_same_when_added_later() {
    let place = Place::new("verity-made");
    place.image(
        "with",
        &["-z", "zstd", "--kernel", "6.12", "--verity", "-j", "3"],
    );
    place.image("without", &["-z", "zstd", "--kernel", "6.12"]);
    let tree = Tree::stated(&place, "with");
    let plain = fs::read(place.path("without")).unwrap();
    let whole = fs::read(place.path("with")).unwrap();
    assert_eq!(tree.offset, plain.len() as u64);
    assert!(whole[..plain.len()] == plain, "the image is as without");
    others_agree(&place, "with", "with", &tree.root, tree.offset);
    let message = place.text(&["verity", "check", "with", &tree.root]);
    assert!(message.contains("match the root hash"), "{message}");

    place.text(&["verity", "add", "without", "--into", "tree"]);
    assert!(plain == fs::read(place.path("without")).unwrap());
    assert!(whole[plain.len()..] == fs::read(place.path("tree")).unwrap());
    others_agree(&place, "without", "tree", &tree.root, 0);
    place.text(&["verity", "check", "without", &tree.root, "--tree", "tree"]);
    let message = place.text(&[
        "ls",
        "--verity",
        &tree.root,
        "--verity-tree",
        "tree",
        "without",
    ]);
    assert!(message.contains("hello"), "{message}");

    place.text(&["verity", "add", "-q", "without"]);
    assert!(whole == fs::read(place.path("without")).unwrap());
}

#[test]
fn salts_blocks_and_images_of_small_blocks() {
    let place = Place::new("verity-forms");
    for (n, options) in [
        &["--verity-salt", "00aa55"][..],
        &["--verity-block", "512"],
        &["-b", "512", "-z", "none", "--kernel", "6.18"],
        &[
            "-b",
            "512",
            "--kernel",
            "6.18",
            "--verity-block",
            "1K",
            "--verity-salt",
            "ff",
        ],
        &["--size-budget", "1M"],
        &["--metadata", "compressed", "--kernel", "6.18"],
    ]
    .iter()
    .enumerate()
    {
        let image = format!("i{n}");
        place.image(&image, &[&["--verity"], *options].concat());
        let tree = Tree::stated(&place, &image);
        others_agree(&place, &image, &image, &tree.root, tree.offset);
        place.text(&["verity", "check", "-q", &image, &tree.root]);
        place.text(&["check", "-q", "--verity", &tree.root, &image]);
    }
    // With the tree, the file is at least a header and a block longer.
    let len = fs::metadata(place.path("i4")).unwrap().len();
    let exact = len.to_string();
    place.image("exact", &["--verity", "--size-budget", &exact]);
    let less = (len - 1).to_string();
    place.image("less", &["--verity", "--size-budget", &less]);
    assert!(fs::metadata(place.path("less")).unwrap().len() < len);
}

/// Regression: for an image over a small base, the tree was looked for after the blocks of the base, as if they were in
/// the image's file.
#[test]
fn a_hash_tree_of_an_image_with_a_base_is_found() {
    let place = Place::new("verity-base");
    fs::create_dir(place.path("t")).unwrap();
    fs::write(place.path("t/text"), "word ".repeat(100_000)).unwrap();
    place.text(&["build", "-q", "t", "base"]);
    place.text(&["build", "-q", "--base", "base", "t", "plain"]);
    place.text(&[
        "build",
        "-q",
        "--base",
        "base",
        "--verity",
        "--verity-fec",
        "24",
        "t",
        "over",
    ]);
    let plain = fs::metadata(place.path("plain")).unwrap().len();
    let base = fs::metadata(place.path("base")).unwrap().len();
    assert!(fs::metadata(place.path("over")).unwrap().len() >= plain + base);
    let tree = Tree::stated(&place, "over");
    assert_eq!(tree.offset, plain);
    place.text(&["verity", "check", "-q", "over", &tree.root]);
    place.text(&["verity", "add", "-q", "--replace", "--fec", "24", "over"]);
    assert_eq!(Tree::stated(&place, "over").root, tree.root);
}

#[test]
fn damage_is_reported_and_never_read() {
    let place = Place::new("verity-damage");
    place.image(
        "i",
        &["-z", "lz4", "-C", "4K", "--fragments", "off", "--verity"],
    );
    let tree = Tree::stated(&place, "i");
    let extents = place.extents("i", "dir/text");
    let at = extents[1]["physical"]
        .as_u64()
        .unwrap_or_else(|| panic!("{extents:?}"));
    fs::copy(place.path("i"), place.path("d")).unwrap();
    flip(&place.path("d"), at as usize + 100);

    let out = place.run(&["verity", "check", "d", &tree.root]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    let block = at / 4096 * 4096;
    assert_eq!(code(&out), 1, "{message}");
    assert!(
        message.contains(&format!("4096 bytes at {block}: damaged")),
        "{message}"
    );
    assert!(message.contains("/dir/text: "), "{message}");
    assert!(!message.contains("hello"), "{message}");
    let found = place.run(&["verity", "check", "--json", "d", &tree.root]);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["damaged"][0]["offset"], block);
    assert_eq!(found["sound"], false);

    let out = place.run(&["cat", "--verity", &tree.root, "d", "dir/text"]);
    let message = stderr(&out);
    assert_eq!(code(&out), 3, "{message}");
    assert!(
        message.contains(&format!("block {}", block / 4096)),
        "{message}"
    );
    assert!(
        text().as_bytes().starts_with(&out.stdout),
        "nothing wrong is given out"
    );
    assert_eq!(
        place.text(&["cat", "--verity", &tree.root, "d", "hello"]),
        "hello\n"
    );

    // A root hash of another image.
    let wrong = tree.wrong();
    for args in [
        &["verity", "check", "i", &wrong][..],
        &["ls", "--verity", &wrong, "i"],
        &["check", "--verity", &wrong, "i"],
        &["extract", "--verity", &wrong, "i", "out"],
    ] {
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{args:?}: {message}");
        assert!(message.contains("root hash"), "{args:?}: {message}");
    }
    // Damage in the tree: the data it covers is unknown.
    fs::copy(place.path("i"), place.path("t")).unwrap();
    let len = fs::metadata(place.path("t")).unwrap().len() as usize;
    flip(&place.path("t"), len - 4096);
    let out = place.run(&["verity", "check", "t", &tree.root]);
    assert!(code(&out) == 1 || code(&out) == 3, "{}", stderr(&out));
}

#[test]
fn parity_repairs_reads_and_the_image() {
    let place = Place::new("verity-parity");
    let options = ["-z", "none", "--verity", "--verity-fec", "2"];
    place.image("i", &options);
    let tree = Tree::stated(&place, "i");
    let shown = place.json(&["verity", "show", "--json", "i"]).remove(0);
    assert_eq!(shown["fec_roots"], 2);
    let parity = shown["fec_offset"].as_u64().unwrap();
    let run = Command::new("veritysetup")
        .current_dir(&place.0)
        .args([
            "verify",
            "i",
            "i",
            &tree.root,
            "--fec-device=i",
            "--fec-roots=2",
        ])
        .arg(format!("--hash-offset={}", tree.offset))
        .arg(format!("--fec-offset={parity}"))
        .output();
    match run {
        Ok(out) => assert!(out.status.success(), "{}", stderr(&out)),
        Err(_) => skipped("no veritysetup"),
    }
    let good = fs::read(place.path("i")).unwrap();
    // The superblock and the top of the tree.
    flip(&place.path("i"), 1030);
    flip(&place.path("i"), tree.offset as usize + 4096 + 5);
    assert_eq!(
        place.text(&["cat", "--verity", &tree.root, "i", "hello"]),
        "hello\n"
    );
    let out = place.run(&["verity", "check", "i", &tree.root]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(code(&out), 1, "{message}");
    assert!(message.contains("4096 bytes at 0: damaged\n"), "{message}");
    assert!(message.contains("damaged hash tree\n"), "{message}");
    assert!(message.contains("tuff verity repair"), "{message}");
    let message = place.text(&["verity", "repair", "i", &tree.root]);
    assert!(message.starts_with("blocks repaired: 2\n"), "{message}");
    assert!(fs::read(place.path("i")).unwrap() == good);
    // The parity itself.
    let at = parity as usize + 100;
    flip(&place.path("i"), at);
    let out = place.run(&["verity", "check", "i", &tree.root]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(code(&out), 1, "{message}");
    let line = format!("4096 bytes at {parity}: damaged parity\nverified: ");
    assert!(message.starts_with(&line), "{message}");
    assert!(
        message.ends_with("'tuff verity repair' computes it again\n"),
        "{message}"
    );
    let out = place.run(&["verity", "check", "--json", "i", &tree.root]);
    let message: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&message["sound"], &message["damaged"][0]["kind"]),
        (&false.into(), &"parity".into())
    );
    let message = place.text(&["verity", "repair", "i", &tree.root]);
    assert!(
        message.starts_with("blocks repaired: 1\nverified: "),
        "{message}"
    );
    assert!(fs::read(place.path("i")).unwrap() == good);
    // Too much damage, with a separate tree: everything repairable is repaired.
    place.text(&["verity", "add", "-q", "--fec", "2", "i", "--into", "tree"]);
    let blocks = tree.offset as usize / 4096;
    for block in 0..3.min(blocks) {
        flip(&place.path("i"), block * 4096 + 9);
    }
    let out = place.run(&[
        "verity", "repair", "i", &tree.root, "--tree", "tree", "--json",
    ]);
    let message: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let rounds = blocks.div_ceil(253);
    assert_eq!(message["sound"], blocks < 3 || rounds >= 2, "{message}");
    place.image("without", &["--verity"]);
    let out = place.run(&[
        "verity",
        "repair",
        "without",
        &Tree::stated(&place, "without").root,
    ]);
    assert_eq!(code(&out), 2);
    assert!(stderr(&out).contains("no parity"), "{}", stderr(&out));
}

/// Regression: with block 0 damaged, no verb found the tree, and `verity repair` did not recognise the image.
#[test]
fn a_damaged_superblock_does_not_hide_the_hash_tree() {
    let place = Place::new("verity-superblock");
    place.image("plain", &["-z", "lz4", "--verity"]);
    place.image("i", &["-z", "lz4", "--verity", "--verity-fec", "2"]);
    let whole = fs::read(place.path("i")).unwrap();
    // The magic number, the checksum, the number of blocks, the table of devices.
    for at in [1024, 1028, 1024 + 36, 1024 + 86] {
        for image in ["plain", "i"] {
            let sound = fs::read(place.path(image)).unwrap();
            let root = Tree::stated(&place, image).root;
            flip(&place.path(image), at);
            let out = place.run(&["verity", "check", image, &root]);
            let message = String::from_utf8_lossy(&out.stdout);
            assert_eq!(code(&out), 1, "{at}: {message}{}", stderr(&out));
            assert!(
                message.starts_with("4096 bytes at 0: damaged\n"),
                "{at}: {message}"
            );
            let listed = place.run(&["ls", "--verity", &root, image]);
            assert_eq!(code(&listed), if image == "i" { 0 } else { 3 }, "{at}");
            if image == "i" {
                place.text(&["verity", "repair", "-q", image, &root]);
                assert!(fs::read(place.path(image)).unwrap() == whole, "{at}");
            }
            fs::write(place.path(image), sound).unwrap();
        }
    }
    fs::write(place.path("zeros"), vec![0; 3 << 20]).unwrap();
    let out = place.run(&["verity", "check", "zeros", &"0".repeat(64)]);
    assert_eq!(code(&out), 3);
    assert!(
        stderr(&out).contains("not an EROFS image"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn what_makes_no_sense_is_said() {
    let place = Place::with_image("verity-sense");
    let root = "0".repeat(64);
    for (args, expected) in [
        (
            &["ls", "--verity", &root, "i"][..],
            "no hash tree of dm-verity",
        ),
        (&["ls", "--verity", "12", "i"], "64 hexadecimal digits"),
        (&["ls", "--verity-tree", "i", "i"], "--verity"),
        (&["verity", "show", "i"], "no hash tree of dm-verity"),
        (
            &["verity", "check", "i", &root],
            "no hash tree of dm-verity",
        ),
        (&["verity", "add", "--salt", "abc", "i"], "hexadecimal"),
        (&["verity", "add", "--block", "8K", "i"], "512 to 4096"),
        (&["build", "--verity-salt", "00", "m", "o"], "need --verity"),
        (
            &["ls", "--verity", &root, "--device", "i", "i"],
            "extra devices",
        ),
    ] {
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(code(&out), 2, "{args:?}: {message}");
        assert!(message.contains(expected), "{args:?}: {message}");
    }
    // Other bytes, or a tree, follow the image.
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes.extend_from_slice(b"signature");
    fs::write(place.path("i"), &bytes).unwrap();
    let out = place.run(&["verity", "add", "i"]);
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("continues for 9 bytes after the image"),
        "{}",
        stderr(&out)
    );
    assert!(fs::read(place.path("i")).unwrap() == bytes);
    place.image("j", &["--verity"]);
    let out = place.run(&["verity", "add", "j"]);
    assert_eq!(code(&out), 2);
    assert!(stderr(&out).contains("--replace"), "{}", stderr(&out));
    let before = Tree::stated(&place, "j");
    place.text(&["verity", "add", "-q", "--replace", "--salt", "01", "j"]);
    assert!(Tree::stated(&place, "j").root != before.root);
}

#[test]
fn a_patch_replaces_the_hash_tree_atomically() {
    let place = Place::new("verity-patch");
    place.image(
        "i",
        &["--verity", "--verity-salt", "0102", "--verity-fec", "3"],
    );
    let old = fs::read(place.path("i")).unwrap();
    let before = Tree::stated(&place, "i");
    fs::create_dir(place.path("new")).unwrap();
    fs::write(place.path("new/one"), text()).unwrap();
    place.text(&["patch", "-q", "new", "i"]);
    let after = Tree::stated(&place, "i");
    let now = fs::read(place.path("i")).unwrap();
    assert!(after.offset as usize >= old.len(), "behind the old tree");
    assert!(now[4096..old.len()] == old[4096..]);
    others_agree(&place, "i", "i", &after.root, after.offset);
    place.text(&["verity", "check", "-q", "i", &after.root]);
    let shown = place.json(&["verity", "show", "--json", "i"]).remove(0);
    assert_eq!(
        (&shown["salt"], &shown["fec_roots"]),
        (&"0102".into(), &3.into())
    );
    assert!(before.root != after.root);
    assert_eq!(place.text(&["diff", "--content-only", "new", "i"]), "");
}

#[test]
fn a_mount_serves_only_data_that_matches_the_root_hash() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return skipped("mounting needs root and /dev/fuse");
    }
    let place = Place::new("verity-mount");
    place.image(
        "i",
        &["-z", "lz4", "-C", "4K", "--fragments", "off", "--verity"],
    );
    let tree = Tree::stated(&place, "i");
    let extents = place.extents("i", "dir/text");
    let at = extents[1]["physical"].as_u64().unwrap() as usize;
    fs::create_dir(place.path("mnt")).unwrap();
    let option = format!("verity.roothash={}", tree.root);
    let read = |name: &str| fs::read(place.path("mnt").join(name));
    place.text(&["mount", "i", "mnt", "-o", &option]);
    let sound = read("dir/text");
    place.unmount("mnt");
    assert!(sound.unwrap() == text().into_bytes());
    flip(&place.path("i"), at + 50);
    place.text(&["mount", "i", "mnt", "--verity", &tree.root, "--log", "log"]);
    let (damaged, other) = (read("dir/text"), read("hello"));
    place.unmount("mnt");
    assert_eq!(damaged.unwrap_err().raw_os_error(), Some(5));
    assert_eq!(other.unwrap(), b"hello\n");
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("does not match the root hash"), "{log}");
    // With parity: counted, and logged once.
    flip(&place.path("i"), at + 50);
    place.text(&["verity", "add", "-q", "--replace", "--fec", "2", "i"]);
    flip(&place.path("i"), at + 50);
    place.text(&["mount", "i", "mnt", "--verity", &tree.root, "--log", "log2"]);
    let (read_back, stats) = (read("dir/text"), place.run(&["stats", "mnt"]));
    place.unmount("mnt");
    assert!(read_back.unwrap() == text().into_bytes());
    let stats = String::from_utf8_lossy(&stats.stdout).into_owned();
    let count = stats
        .lines()
        .find_map(|l| l.strip_prefix("repaired_blocks "));
    assert!(count.is_some_and(|n| n.trim() != "0"), "{stats}");
    let log = fs::read_to_string(place.path("log2")).unwrap();
    assert_eq!(
        log.matches("is damaged and repaired from parity").count(),
        1,
        "{log}"
    );
}
