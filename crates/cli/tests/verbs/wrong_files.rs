//! Files of another format than a verb reads: the message names the format and a way out.

use crate::common::{Place, code, stderr, tool};
use std::fs;

/// A directory with files of several formats.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/a"), "content\n").unwrap();
    let padded = |head: &[u8]| [head, &[0; 8192][..]].concat();
    fs::write(place.path("elf"), padded(b"\x7fELF\x02\x01\x01")).unwrap();
    fs::write(place.path("squashfs"), padded(b"hsqs")).unwrap();
    fs::write(place.path("zip"), padded(b"PK\x03\x04")).unwrap();
    fs::write(place.path("volume"), padded(b"TUFFIPLF")).unwrap();
    fs::write(place.path("manifest.txt"), "#mtree\n./a type=dir\n").unwrap();
    fs::write(place.path("text"), "some words\n").unwrap();
    fs::write(place.path("unknown"), padded(b"\x01\x02\x03")).unwrap();
    fs::write(place.path("short"), b"\x01\x02\x03").unwrap();
    let mut gpt = padded(&[]);
    gpt[512..520].copy_from_slice(b"EFI PART");
    fs::write(place.path("gpt"), gpt).unwrap();
    place.text(&["build", "-q", "src", "image"]);
    place.text(&["tar", "image", "tar"]);
    let image = fs::read(place.path("image")).unwrap();
    fs::write(place.path("cut"), &image[..1300]).unwrap();
    place
}

#[test]
fn a_wrong_file_as_image_is_named_with_a_way_out() {
    let place = stage("wrong-image");
    for (file, format, advice) in [
        ("elf", "an ELF file", "check the path"),
        ("squashfs", "a SquashFS image", "tuff build squashfs IMAGE"),
        ("zip", "a zip archive", "unpack it"),
        ("volume", "an IPLFS volume", "tuff volume"),
        (
            "manifest.txt",
            "an mtree manifest",
            "tuff build manifest.txt IMAGE",
        ),
        ("text", "a text file", "--offset"),
        ("unknown", "not an EROFS image", "--offset"),
        ("short", "too short for an EROFS image", "check the path"),
        ("gpt", "a GPT partition table", "--offset"),
        ("tar", "a tar", "tuff build tar IMAGE"),
        ("cut", "truncated", "--no-checksum"),
    ] {
        let out = place.run(&["ls", file]);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{file}: {message}");
        assert!(
            message.contains(format) && message.contains(advice),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_wrong_file_as_source_is_named_with_a_way_out() {
    let place = stage("wrong-source");
    for (file, format, advice) in [
        ("elf", "an ELF file", "name a directory"),
        ("squashfs", "SquashFS 0.0", "only 4.0 can be read"),
        ("zip", "a zip archive", "unpack it"),
        ("volume", "an IPLFS volume", "tuff volume export"),
        (
            "manifest.txt",
            "an mtree manifest",
            "--source-type manifest",
        ),
        ("text", "a text file", "--source-type manifest"),
        ("unknown", "unknown: byte 0", "if it is not an archive"),
    ] {
        let out = place.run(&["build", "-q", file, "out"]);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{file}: {message}");
        assert!(
            message.contains(format) && message.contains(advice),
            "{message}"
        );
    }
    place.text(&[
        "build",
        "-q",
        "--source-type",
        "manifest",
        "manifest.txt",
        "out",
    ]);
}

#[test]
fn a_truncated_image_is_called_truncated() {
    let place = Place::new("truncated");
    fs::create_dir(place.path("src")).unwrap();
    for i in 0..4u64 {
        // Incompressible, so that the directory lies far from the start.
        let bytes: Vec<u8> = (0..20_000u64)
            .map(|n| (n.wrapping_mul(n ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(i) >> 23) as u8)
            .collect();
        fs::write(place.path(&format!("src/{i}")), bytes).unwrap();
    }
    place.text(&["build", "-q", "-z", "none", "src", "image"]);
    let image = fs::read(place.path("image")).unwrap();
    fs::write(place.path("cut"), &image[..8192]).unwrap();
    let out = place.run(&["cat", "cut", "3"]);
    assert_eq!(code(&out), 3, "{}", stderr(&out));
    assert!(!stderr(&out).contains(" 0 bytes"), "{}", stderr(&out));
}

#[test]
fn an_error_that_an_option_avoids_names_the_option() {
    let place = stage("remedies");
    fs::create_dir(place.path("dir")).unwrap();
    fs::write(place.path("dir/a"), "other\n").unwrap();
    fs::write(place.path("src/text"), crate::common::text()).unwrap();
    place.text(&["build", "-q", "src", "image"]);
    place.text(&["verity", "add", "-q", "image"]);
    fs::create_dir(place.path("away")).unwrap();
    place.text(&["build", "-q", "--base", "image", "src", "away/delta"]);
    for (args, option) in [
        (&["extract", "image", "dir"][..], "--overwrite"),
        (&["verity", "add", "image"], "--replace"),
        (&["cat", "away/delta", "text"], "--device FILE"),
        (&["build", "away/delta", "out"], "--source-device FILE"),
    ] {
        let out = place.run(args);
        assert_eq!(code(&out), 2, "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(option), "{}", stderr(&out));
    }
}

#[test]
fn a_wrong_file_as_volume_is_named_with_a_way_out() {
    let place = stage("wrong-volume");
    place.text(&["volume", "create", "-s", "64M", "v"]);
    place.text(&["volume", "snapshot", "create", "v", "s"]);
    place.text(&["volume", "send", "v", "-o", "stream"]);
    for (file, format, advice) in [
        ("image", "an EROFS image", "tuff mount"),
        ("tar", "a tar", "tuff volume import"),
        ("squashfs", "a SquashFS image", "tuff volume import"),
        ("gpt", "a GPT partition table", "device of a partition"),
        ("stream", "a stream of a snapshot", "tuff volume receive"),
    ] {
        for verb in ["stat", "check"] {
            let out = place.run(&["volume", verb, file]);
            let message = stderr(&out);
            assert_eq!(code(&out), 3, "{file}: {message}");
            assert!(
                message.contains(format) && message.contains(advice),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}

/// Commands, their exit code, and the words that lead out of the failure.
const WAYS_OUT: &[(&[&str], i32, &str)] = &[
    (&["cat", "image", "absent"], 2, "tuff ls -R IMAGE"),
    (&["ls", "image", "*.absent"], 2, "tuff ls -R IMAGE"),
    (&["cat", "image", "/"], 2, "tuff extract"),
    (&["dump", "--inode", "999999", "image"], 2, "tuff ls -i"),
    (
        &["extract", "--max-files", "0", "image", "o"],
        4,
        "--max-files",
    ),
    (
        &["extract", "--max-bytes", "1", "image", "o"],
        4,
        "--max-bytes",
    ),
    (&["verity", "show", "image"], 2, "tuff verity add"),
    (&["check", "--verity", ZEROS, "image"], 2, "--verity-tree"),
    (
        &["build", "-z", "zstd", "--kernel", "5.4", "src", "o"],
        2,
        "--kernel",
    ),
    (&["build", "src"], 2, "tuff build SOURCE IMAGE"),
    (
        &["patch", "--base", "image", "src", "image"],
        2,
        "tuff build",
    ),
    (
        &["build", "--size-budget", "1M", "-", "o"],
        2,
        "name a file",
    ),
    (&["umount", "/proc"], 2, "umount(8)"),
    (&["mount", "image", "absent-dir"], 5, "absent-dir"),
    (&["ls", "src"], 2, "tuff build"),
    (&["ls", "new\nline"], 5, "new\\nline: cannot open"),
    (
        &["build", "new\nline", "absent"],
        5,
        "new\\nline: cannot open",
    ),
    (&["push", "image", "file"], 2, "oci://"),
    (&["pull", "image", "file"], 2, "oci://"),
];

/// Root hash of no image.
const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[test]
fn failures_name_a_way_out() {
    let place = stage("ways-out");
    place.text(&["build", "-q", "--verity", "src", "sealed"]);
    for (args, status, advice) in WAYS_OUT {
        if !cfg!(feature = "remote") && matches!(args[0], "push" | "pull") {
            continue;
        }
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(code(&out), *status, "{args:?}: {message}");
        assert!(message.contains(advice), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    }
    let tree = place.json(&["verity", "show", "--json", "sealed"]);
    let root = tree[0]["root_hash"].as_str().unwrap();
    let out = place.run(&["verity", "repair", "sealed", root]);
    assert!(stderr(&out).contains("--fec"), "{}", stderr(&out));
}

#[test]
fn every_verb_names_the_image_that_is_damaged() {
    let place = Place::with_image("damaged-name");
    let inode = &place.json(&["stat", "--json", "i", "dir"])[0];
    let at = inode["position"].as_u64().unwrap() as usize;
    // The type of the directory.
    place.damage("bad", at + 5, |_| 0xe0);
    let extents = place.extents("i", "dir/text");
    let at = extents[0]["physical"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes[at..at + 4000].fill(0xff);
    fs::write(place.path("bad-content"), bytes).unwrap();
    let out = place.run(&["diff", "i", "bad-content"]);
    let message = stderr(&out);
    assert_eq!(code(&out), 3, "{message}");
    assert!(message.contains(": bad-content: /dir/text: "), "{message}");
    let verbs: [&[&str]; 10] = [
        &["diff", "i", "bad"],
        &["diff", "bad", "m"],
        &["cat", "bad", "dir/text"],
        &["ls", "-R", "bad"],
        &["stat", "bad", "dir"],
        &["stat", "--extents", "bad", "dir/text"],
        &["tar", "bad", "o.tar"],
        &["extract", "bad", "o"],
        &["info", "bad"],
        &["build", "bad", "o.erofs"],
    ];
    for args in verbs {
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{args:?}: {message}");
        assert!(
            message.starts_with("tuff: corrupt image: bad: "),
            "{args:?}: {message}"
        );
        assert_eq!(message.matches("bad").count(), 1, "{args:?}: {message}");
    }
}

#[test]
fn android_sparse_and_compressed_images_are_named_with_the_tool_for_them() {
    let place = Place::new("wrong-images");
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/file"), "content").unwrap();
    place.text(&["build", "-q", "tree", "i"]);
    // Header of the format: magic, version 1.0, its length, that of a chunk's header, and the size of a block.
    let mut sparse = b"\x3a\xff\x26\xed\x01\x00\x00\x00\x1c\x00\x0c\x00\x00\x10\x00\x00".to_vec();
    sparse.resize(8192, 0);
    fs::write(place.path("s.img"), sparse).unwrap();
    for args in [&["ls", "s.img"][..], &["build", "-q", "s.img", "o"]] {
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{message}");
        assert!(
            message.contains("s.img: is an Android sparse image"),
            "{message}"
        );
        assert!(message.contains("'simg2img s.img IMAGE'"), "{message}");
    }
    for (program, end, name) in [
        ("gzip", "gz", "a gzip file"),
        ("zstd", "zst", "a Zstandard file"),
        ("xz", "xz", "an xz file"),
    ] {
        let Some(out) = tool(&place.0, program, &["-k", "-q", "i"]) else {
            continue;
        };
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let file = format!("i.{end}");
        let out = place.run(&["build", "-q", &file, "o"]);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{message}");
        assert!(
            message.contains(&format!("{file}: is {name} of an EROFS image")),
            "{message}"
        );
        let out = place.run(&["ls", &file]);
        assert!(
            stderr(&out).contains("decompress it: it holds one"),
            "{}",
            stderr(&out)
        );
    }
}

#[test]
fn an_image_before_its_source_and_verbs_of_other_tools_are_corrected() {
    let place = Place::new("wrong-order");
    fs::create_dir(place.path("tree")).unwrap();
    let out = place.run(&["build", "i.erofs", "tree"]);
    let expected = "tuff: tree: is a directory; the image comes last: tuff build tree i.erofs\n";
    assert_eq!((code(&out), stderr(&out).as_str()), (2, expected));
    for (word, verb) in [
        ("unpack", "extract"),
        ("create", "build"),
        ("list", "ls"),
        ("unmount", "umount"),
    ] {
        let out = place.run(&[word, "i"]);
        let message = stderr(&out);
        assert_eq!(code(&out), 2, "{message}");
        assert!(
            message.starts_with("tuff: unrecognized subcommand"),
            "{message}"
        );
        assert!(message.contains(&format!("'{verb}'")), "{message}");
        assert!(!message.contains('\x1b'), "{message:?}");
    }
}

#[test]
fn an_image_of_empty_files_is_no_multiple_of_its_content_with_ten_digits() {
    let place = Place::new("wrong-share");
    fs::create_dir(place.path("tree")).unwrap();
    for n in 0..200 {
        fs::write(place.path(&format!("tree/{n}")), "").unwrap();
    }
    fs::write(place.path("tree/one"), "1").unwrap();
    let text = place.text(&["build", "tree", "i"]);
    assert!(text.contains("(> 999 % of the content)"), "{text}");
}
