//! Coverage of root hashes: every verb refuses a tree that does not cover what its image claims, wherever the image is.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
#[cfg(feature = "remote")]
use crate::remote::{run, serve};
use std::fs;
use std::path::Path;
use tuff_format::superblock::{self, Superblock};

/// Position of the number of data blocks in the header of a tree.
const DATA_BLOCKS: usize = 72;

/// Root hash and position of the header of the tree of an image.
fn tree(place: &Place, image: &str) -> (String, usize) {
    let shown = place.json(&["verity", "show", "--json", image]).remove(0);
    let root = shown["root_hash"].as_str().unwrap().to_owned();
    (root, shown["hash_offset"].as_u64().unwrap() as usize)
}

/// Changes the number of data blocks in the header at `at`.
fn state_blocks(path: &Path, at: usize, change: impl FnOnce(u64) -> u64) {
    let mut bytes = fs::read(path).unwrap();
    let field = &mut bytes[at + DATA_BLOCKS..at + DATA_BLOCKS + 8];
    let blocks = u64::from_le_bytes(field.try_into().unwrap());
    field.copy_from_slice(&change(blocks).to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// Changes the last byte of the data before byte `at`.
fn change_end(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at - 1] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Command lines of verbs that read an image with the root hash `ROOT`.
const VERBS: [&[&str]; 7] = [
    &["cat", "--root-hash", "ROOT", "IMAGE", "hello"],
    &["ls", "--root-hash", "ROOT", "IMAGE"],
    &["stat", "--root-hash", "ROOT", "IMAGE", "hello"],
    &["check", "--root-hash", "ROOT", "IMAGE"],
    &["extract", "-q", "--root-hash", "ROOT", "IMAGE", "out"],
    &["tar", "--root-hash", "ROOT", "IMAGE", "-"],
    &["info", "--root-hash", "ROOT", "IMAGE"],
];

/// Replaces the words `ROOT` and `IMAGE`.
fn filled<'a>(args: &[&'a str], root: &'a str, image: &'a str) -> Vec<&'a str> {
    let word = |arg: &&'a str| match *arg {
        "ROOT" => root,
        "IMAGE" => image,
        arg => arg,
    };
    args.iter().map(word).collect()
}

/// Image `i` with a hash tree. Returns its root hash and the position of the header.
fn image(place: &Place) -> (String, usize) {
    place.image("i", &["-z", "none", "--verity"]);
    tree(place, "i")
}

#[test]
fn no_verb_reads_a_file_whose_hash_tree_covers_less_or_more() {
    let place = Place::new("coverage-file");
    let (root, at) = image(&place);
    for (name, change) in [("low", -1i64), ("high", 1)] {
        fs::copy(place.path("i"), place.path(name)).unwrap();
        state_blocks(&place.path(name), at, |blocks| {
            blocks.saturating_add_signed(change)
        });
        if change < 0 {
            // An attacker changes the bytes without a digest.
            change_end(&place.path(name), at);
        }
        let own: [&[&str]; 7] = [
            &["verity", "show", "IMAGE"],
            &["info", "IMAGE"],
            &["cat", "IMAGE", "hello"],
            &["verity", "check", "IMAGE", "ROOT"],
            &["verity", "repair", "IMAGE", "ROOT"],
            &["verity", "check", "IMAGE"],
            &["check", "IMAGE"],
        ];
        for args in VERBS.iter().chain(&own) {
            let out = place.run(&filled(args, &root, name));
            assert_eq!(code(&out), 3, "{args:?} of {name}: {}", stderr(&out));
            let message = stderr(&out);
            assert!(
                message.contains("digests cover"),
                "{args:?} of {name}: {message}"
            );
        }
        // The tree in a file of its own.
        let bytes = fs::read(place.path(name)).unwrap();
        fs::write(place.path("data"), &bytes[..at]).unwrap();
        fs::write(place.path("tree"), &bytes[at..]).unwrap();
        let out = place.run(&[
            "cat",
            "--root-hash",
            &root,
            "--verity-tree",
            "tree",
            "data",
            "hello",
        ]);
        assert_eq!(code(&out), 3, "{name}: {}", stderr(&out));
    }
    let (other, _) = {
        place.image("j", &["-z", "lz4", "--verity"]);
        tree(&place, "j")
    };
    // A tree of another image, with either root hash.
    let whole = fs::read(place.path("i")).unwrap();
    let (_, other_at) = tree(&place, "j");
    let of_other = fs::read(place.path("j")).unwrap();
    fs::write(
        place.path("mixed"),
        [&whole[..at], &of_other[other_at..]].concat(),
    )
    .unwrap();
    for root in [&root, &other] {
        for args in VERBS {
            let out = place.run(&filled(args, root, "mixed"));
            assert_eq!(code(&out), 3, "{args:?}: {}", stderr(&out));
        }
    }
}

#[test]
fn a_mount_of_a_file_whose_hash_tree_covers_less_is_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new("coverage-mount");
    let (root, at) = image(&place);
    state_blocks(&place.path("i"), at, |blocks| blocks - 1);
    fs::create_dir(place.path("mnt")).unwrap();
    for kernel in [&[][..], &["--kernel"]] {
        let args = [&["mount"][..], kernel, &["--root-hash", &root, "i", "mnt"]].concat();
        let out = place.run(&args);
        assert_eq!(code(&out), 3, "{kernel:?}: {}", stderr(&out));
    }
}

#[cfg(feature = "remote")]
#[test]
fn no_verb_reads_a_url_whose_hash_tree_covers_less_or_more() {
    let place = Place::new("coverage-url");
    let (root, at) = image(&place);
    let server = serve(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    for (name, change) in [("low", -1i64), ("high", 1)] {
        fs::copy(place.path("i"), place.path(name)).unwrap();
        state_blocks(&place.path(name), at, |blocks| {
            blocks.saturating_add_signed(change)
        });
        change_end(&place.path(name), at);
        let mut verbs = VERBS.to_vec();
        verbs.push(&["pull", "--root-hash", "ROOT", "IMAGE", "pulled"]);
        if can_mount() {
            verbs.push(&["mount", "--root-hash", "ROOT", "IMAGE", "mnt"]);
            verbs.push(&["mount", "--kernel", "--root-hash", "ROOT", "IMAGE", "mnt"]);
        }
        let url = server.url(&format!("/{name}"));
        for args in verbs {
            let out = run(&place, &url, &filled(args, &root, "IMAGE"));
            assert_eq!(code(&out), 3, "{args:?} of {name}: {}", stderr(&out));
            let message = stderr(&out);
            assert!(
                message.contains("digests cover"),
                "{args:?} of {name}: {message}"
            );
        }
        assert!(!place.path("pulled").exists());
    }
}

#[cfg(feature = "remote")]
#[test]
fn a_copy_of_a_url_has_what_the_root_hash_determines_and_nothing_else() {
    let place = Place::new("coverage-pull");
    place.image("i", &["-z", "none", "--verity", "--verity-fec", "2"]);
    let shown = place.json(&["verity", "show", "--json", "i"]).remove(0);
    let root = shown["root_hash"].as_str().unwrap();
    let end = shown["fec_offset"].as_u64().unwrap() as usize;
    let whole = fs::read(place.path("i")).unwrap();
    assert!(whole.len() > end);
    // Parity that nothing verifies.
    let mut served = whole.clone();
    served[end..].fill(0xEE);
    fs::write(place.path("served"), served).unwrap();
    let server = serve(&place);
    let url = server.url("/served");
    let out = run(
        &place,
        &url,
        &["pull", "-q", "--root-hash", root, "IMAGE", "copy"],
    );
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert!(fs::read(place.path("copy")).unwrap() == whole[..end]);
}

#[test]
fn a_file_after_the_covered_range_is_an_error_that_names_the_place() {
    let place = Place::new("coverage-claim");
    place.image("i", &["-z", "none"]);
    // The superblock claims less than its inodes refer to.
    let mut bytes = fs::read(place.path("i")).unwrap();
    let last = last_data(&place);
    let at = superblock::OFFSET as usize;
    let mut sb = Superblock::decode(&bytes[at..]).unwrap();
    sb.blocks = last / 4096;
    let encoded = sb.encode();
    bytes[at..at + encoded.len()].copy_from_slice(&encoded);
    superblock::seal(&mut bytes[at..4096]);
    fs::write(place.path("i"), &bytes).unwrap();
    place.text(&["verity", "add", "-q", "i", "--into", "tree"]);
    let shown = place.json(&["verity", "show", "--json", "i", "--tree", "tree"]);
    let root = shown[0]["root_hash"].as_str().unwrap();
    let with_tree = ["--root-hash", root, "--verity-tree", "tree", "i"];
    // Its bytes are there, and nothing verifies them.
    for verb in [&["cat"][..], &["extract", "-q"], &["tar"], &["check"]] {
        let end: &[&str] = match verb[0] {
            "cat" => &["dir/text", "many/copy", "sparse"],
            "extract" => &["out"],
            "tar" => &["-"],
            _ => &[],
        };
        let out = place.run(&[verb, &with_tree, end].concat());
        let message = stderr(&out) + &String::from_utf8_lossy(&out.stdout);
        assert!([1, 3].contains(&code(&out)), "{verb:?}: {message}");
        assert!(
            message.contains("past") || message.contains("end"),
            "{verb:?}: {message}"
        );
    }
}

/// Position of the last block with data of a file.
fn last_data(place: &Place) -> u64 {
    let files = ["dir/text", "many/copy", "sparse"];
    let ends = files.iter().flat_map(|file| {
        let extents = place.extents("i", file);
        extents
            .into_iter()
            .filter_map(|extent| extent["physical"].as_u64())
    });
    ends.max().unwrap() / 4096 * 4096
}

#[test]
fn a_hash_tree_does_not_stand_for_other_devices() {
    let place = Place::new("coverage-devices");
    fs::create_dir(place.path("t")).unwrap();
    fs::write(place.path("t/text"), "word ".repeat(100_000)).unwrap();
    place.text(&["build", "-q", "t", "base"]);
    place.text(&["build", "-q", "--base", "base", "--verity", "t", "over"]);
    let (root, _) = tree(&place, "over");
    let out = place.run(&[
        "cat",
        "--root-hash",
        &root,
        "--device",
        "base",
        "over",
        "text",
    ]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert!(stderr(&out).contains("does not cover extra devices"));
    // Nor are bytes after the image taken for a device.
    let with_base = [
        fs::read(place.path("over")).unwrap(),
        fs::read(place.path("base")).unwrap(),
    ];
    fs::write(place.path("both"), with_base.concat()).unwrap();
    for image in ["over", "both"] {
        let out = place.run(&["cat", "--root-hash", &root, image, "text"]);
        assert!([2, 3].contains(&code(&out)), "{image}: {}", stderr(&out));
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn a_device_with_a_root_hash_of_its_own_is_verified() {
    let place = Place::new("coverage-verified-devices");
    fs::create_dir(place.path("t")).unwrap();
    let text = "word ".repeat(100_000);
    fs::write(place.path("t/text"), &text).unwrap();
    place.text(&["build", "-q", "-z", "none", "--verity", "t", "base"]);
    place.text(&[
        "build", "-q", "-z", "none", "--base", "base", "--verity", "t", "over",
    ]);
    let ((root, _), (of_base, _)) = (tree(&place, "over"), tree(&place, "base"));
    let cat = |device: &str| {
        place.run(&[
            "cat",
            "--root-hash",
            &root,
            "--device",
            device,
            "over",
            "text",
        ])
    };
    let out = cat(&format!("base,{of_base}"));
    assert_eq!((code(&out), out.stdout), (0, text.into_bytes()));
    // The root hash of another image.
    let out = cat(&format!("base,{root}"));
    assert_eq!((code(&out), out.stdout.len()), (3, 0), "{}", stderr(&out));
    assert!(stderr(&out).contains("device 1"), "{}", stderr(&out));
    let mut bytes = fs::read(place.path("base")).unwrap();
    let at = bytes.windows(5).position(|w| w == b"word ").unwrap();
    bytes[at] ^= 1;
    fs::write(place.path("base"), bytes).unwrap();
    let out = cat(&format!("base,{of_base}"));
    assert_eq!((code(&out), out.stdout.len()), (3, 0), "{}", stderr(&out));
    assert!(stderr(&out).contains("device 1"), "{}", stderr(&out));
}

#[test]
fn damage_is_found_by_the_hash_tree_without_a_root_hash() {
    let place = Place::new("coverage-integrity");
    place.image("i", &["-z", "none", "--verity"]);
    let (root, at) = tree(&place, "i");
    let message = place.text(&["check", "i"]);
    assert!(
        message.contains(&format!("match its root hash {root}")),
        "{message}"
    );
    let info = place.text(&["info", "i"]);
    assert!(info.contains(&format!("root hash     {root}")), "{info}");
    assert!(info.contains("covers"), "{info}");
    let info = place.json(&["info", "-b", "--json", "i"]).remove(0);
    assert_eq!(info["verity"]["root_hash"], root);
    assert_eq!(info["verity"]["hash_offset"], at);
    let message = place.text(&["verity", "check", "i"]);
    assert!(
        message.contains("match the hash tree") && message.contains("no root hash was given"),
        "{message}"
    );
    let message = place.json(&["verity", "check", "--json", "i"]).remove(0);
    assert_eq!(
        (&message["sound"], &message["is_authentic"]),
        (&true.into(), &false.into())
    );
    let message = place
        .json(&["verity", "check", "--json", "i", &root])
        .remove(0);
    assert_eq!(message["is_authentic"], true);

    let extents = place.extents("i", "dir/text");
    let physical = extents[0]["physical"].as_u64().unwrap() as usize;
    place.damage("d", physical + 5000, |b| b ^ 0x55);
    let out = place.run(&["check", "d"]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(code(&out), 1, "{message}");
    assert!(
        message.contains("error[hash-tree]: image: 4096 bytes at"),
        "{message}"
    );
    assert!(
        message.contains("error[hash-tree]: /dir/text: 4096 bytes at 4096 are damaged"),
        "{message}"
    );
    assert!(message.contains("4.0 KiB of "), "{message}");
    assert!(!message.contains("clean"), "{message}");
    let out = place.run(&["check", "--json", "d"]);
    let object: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let tree = &object["verity"];
    assert_eq!(
        tree["covered_bytes"].as_u64().unwrap() - tree["verified_bytes"].as_u64().unwrap(),
        4096
    );
    for args in [
        &["cat", "d", "dir/text"][..],
        &["tar", "d", "-"],
        &["extract", "-q", "d", "out"],
        &["extract", "-q", "--keep-going", "d", "out2"],
    ] {
        let out = place.run(args);
        assert!([1, 3].contains(&code(&out)), "{args:?}: {}", stderr(&out));
        assert!(
            stderr(&out).contains("does not match the hash tree"),
            "{}",
            stderr(&out)
        );
    }
    assert_eq!(place.text(&["cat", "d", "hello"]), "hello\n");
    let out = place.run(&["verity", "check", "d"]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(code(&out), 1, "{message}");
    assert!(
        message.contains("/dir/text: 4096 bytes at 4096"),
        "{message}"
    );

    // Repaired without a root hash, and read as if it were.
    place.image("i", &["-z", "none", "--verity", "--verity-fec", "2"]);
    let sound = fs::read(place.path("i")).unwrap();
    place.damage("d", physical + 5000, |b| b ^ 0x55);
    assert_eq!(place.text(&["cat", "d", "dir/text"]), crate::common::text());
    let message = place.text(&["verity", "repair", "d"]);
    assert!(message.starts_with("blocks repaired: 1\n"), "{message}");
    assert!(message.contains("no root hash was given"), "{message}");
    assert!(fs::read(place.path("d")).unwrap() == sound);
}
