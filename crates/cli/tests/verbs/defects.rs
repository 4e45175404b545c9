//! Defects that users found in other tools, such as erofs-utils 1.9.3. Each test is one that those tools failed.

use crate::common::{Place, code, stderr};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Creates a directory `src` of three files with holes: at the end, everywhere, and on both sides of data.
fn with_holes(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir(place.path("src")).unwrap();
    for (file, size, data) in [
        ("end", 8 << 20, Some((0, 1 << 20))),
        ("all", 5 << 20, None),
        ("middle", 8 << 20, Some((3 << 20, 4096))),
    ] {
        let file = File::create(place.path("src").join(file)).unwrap();
        file.set_len(size).unwrap();
        if let Some((at, len)) = data {
            file.write_all_at(&vec![b'd'; len], at).unwrap();
        }
    }
    place
}

/// Builds `src` into `i`, extracts that into `out`, and expects the same sizes and bytes.
fn round_trip(place: &Place, options: &[&str]) {
    let build = place.run(&[&["build", "-q"], options, &["src", "i"]].concat());
    assert_eq!((code(&build), stderr(&build).as_str()), (0, ""));
    let _ = fs::remove_dir_all(place.path("out"));
    let extract = place.run(&["extract", "i", "out"]);
    assert_eq!((code(&extract), stderr(&extract).as_str()), (0, ""));
    let (src, out) = (place.path("src"), place.path("out"));
    for file in ["end", "all", "middle"] {
        let same = fs::read(src.join(file)).unwrap() == fs::read(out.join(file)).unwrap();
        assert!(same, "{options:?}: {file}");
    }
}

#[test]
fn a_file_that_ends_in_a_hole_keeps_its_size() {
    let place = with_holes("holes");
    for options in [
        &["--sparse", "keep"][..],
        &["--sparse", "auto"],
        &["--sparse", "fill"],
        &["--sparse", "keep", "-z", "none"],
        &["--sparse", "keep", "--kernel", "5.15"],
    ] {
        round_trip(&place, options);
    }
}

#[test]
fn holes_are_read_as_holes_and_extracted_as_holes() {
    let place = with_holes("as-holes");
    round_trip(&place, &["--sparse", "keep"]);
    for (file, holes) in [
        ("end", 7 << 20),
        ("all", 5 << 20),
        ("middle", (8 << 20) - 4096),
    ] {
        let stat = &place.json(&["stat", "--json", "i", file])[0];
        assert_eq!(stat["stored"]["hole_bytes"], holes, "{stat}");
        let stored = fs::metadata(place.path("out").join(file)).unwrap();
        assert_eq!(stored.blocks() * 512, stored.size() - holes, "{file}");
    }
}

/// Holes of files named by a manifest are kept too.
#[test]
fn a_manifests_files_keep_their_holes() {
    let place = with_holes("manifest-holes");
    let lines: String = ["end", "all", "middle"]
        .iter()
        .map(|f| format!("./{f} type=file mode=0644 contents=src/{f}\n"))
        .collect();
    fs::write(place.path("m.mtree"), format!("#mtree\n{lines}")).unwrap();
    for (sparse, kept) in [("keep", 1), ("fill", 0)] {
        let out = place.run(&["build", "-q", "--sparse", sparse, "m.mtree", "i"]);
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
        for (file, holes) in [
            ("end", 7 << 20),
            ("all", 5 << 20),
            ("middle", (8 << 20) - 4096),
        ] {
            let stat = &place.json(&["stat", "--json", "i", file])[0];
            assert_eq!(stat["stored"]["hole_bytes"], kept * holes, "{stat}");
            let bytes = place.run(&["cat", "i", file]).stdout;
            assert!(bytes == fs::read(place.path("src").join(file)).unwrap());
        }
    }
}

#[test]
fn a_sparse_file_makes_a_small_image() {
    let place = with_holes("small");
    for options in [
        &["-z", "none"][..],
        &["-z", "lz4"],
        &["-z", "none", "--kernel", "5.15"],
    ] {
        round_trip(&place, options);
        // One megabyte of data, and a page.
        let size = fs::metadata(place.path("i")).unwrap().size();
        assert!(size < (1 << 20) + (64 << 10), "{options:?}: {size}");
    }
}

#[test]
fn an_empty_attribute_value_leaves_the_others() {
    let place = Place::new("empty-value");
    fs::write(place.path("f"), "f").unwrap();
    fs::write(
        place.path("m.mtree"),
        "#mtree\n./f type=file mode=0644 contents=f xattr.user.a=1 xattr.user.b= xattr.user.c=3\n",
    )
    .unwrap();
    let build = place.run(&["build", "-q", "m.mtree", "i"]);
    assert_eq!((code(&build), stderr(&build).as_str()), (0, ""));
    let extract = place.run(&["extract", "i", "out"]);
    assert_eq!((code(&extract), stderr(&extract).as_str()), (0, ""));
    for (name, value) in [("user.a", "1"), ("user.b", ""), ("user.c", "3")] {
        let mut buf = [0; 10];
        let n = rustix::fs::getxattr(place.path("out/f"), name, &mut buf[..]).unwrap();
        assert_eq!(&buf[..n], value.as_bytes(), "{name}");
    }
    let diff = place.run(&["diff", "i", "out"]);
    let message = String::from_utf8_lossy(&diff.stdout).into_owned();
    assert!(!message.contains("user."), "{message}");
}

/// Options of the form on/off do what they are named.
#[test]
fn options_of_the_form_on_off_apply() {
    let place = Place::new("on-off");
    fs::create_dir(place.path("src")).unwrap();
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    let bytes: Vec<u8> = (0..100_000).map(|_| noise()).collect();
    fs::write(place.path("src/a"), &bytes).unwrap();
    fs::write(place.path("src/b"), &bytes).unwrap();
    let built = |options: &[&str]| {
        let out = place.run(&[&["build", "--json"], options, &["src", "i"]].concat());
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        fs::metadata(place.path("i")).unwrap().size()
    };
    let (off, on) = (built(&["--dedupe", "off"]), built(&["--dedupe", "on"]));
    assert!(off > on + 90_000, "{off} {on}");
    built(&["--fragments", "off"]);
    let features = place.text(&["info", "i"]);
    assert!(!features.contains("fragments"), "{features}");
    built(&["--fragments", "all"]);
    let features = place.text(&["info", "i"]);
    assert!(features.contains("fragments"), "{features}");
}

#[test]
fn extracting_over_hard_links_replaces_them() {
    let place = Place::new("hard-links");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/f"), "new").unwrap();
    fs::hard_link(place.path("src/f"), place.path("src/g")).unwrap();
    assert_eq!(code(&place.run(&["build", "-q", "src", "i"])), 0);
    for _ in 0..2 {
        let out = place.run(&["extract", "--overwrite", "i", "out"]);
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
        let [f, g] = ["out/f", "out/g"].map(|p| fs::metadata(place.path(p)).unwrap());
        assert_eq!((f.ino(), f.nlink()), (g.ino(), 2));
        fs::write(place.path("out/f"), "changed").unwrap();
    }
}

#[test]
fn a_path_that_is_missing_is_an_error_of_every_verb() {
    let place = Place::with_image("missing-path");
    for verb in [
        &["cat", "i", "nowhere"][..],
        &["stat", "i", "nowhere"],
        &["ls", "i", "nowhere"],
        &["extract", "i", "out", "nowhere"],
        &["tar", "i", "t.tar", "nowhere"],
    ] {
        let out = place.run(verb);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (2, 1),
            "{verb:?}: {message}"
        );
        assert!(message.contains("nowhere"), "{verb:?}: {message}");
    }
    let out = place.run(&["dump", "-i", "99999999", "i"]);
    assert_ne!(code(&out), 0);
    assert!(stderr(&out).contains("99999999"), "{}", stderr(&out));
}

#[test]
fn requested_output_needs_no_verbose_option() {
    let place = Place::with_image("says");
    let check = place.text(&["check", "i"]);
    assert!(
        check.contains("inodes") && check.contains("clean"),
        "{check}"
    );
    assert!(!place.text(&["info", "i"]).is_empty());
    assert!(!place.text(&["dump", "--summary", "i"]).is_empty());
}

/// Each exits with code 2 and names the value; for an algorithm or keyword it lists the known ones.
#[test]
fn invalid_values_are_rejected() {
    let place = Place::new("values");
    fs::create_dir(place.path("src")).unwrap();
    for (option, value, known) in [
        ("-z", "bogus", "lz4hc"),
        ("-z", "lz4:13", "1 to 2"),
        ("-C", "5000", "4096"),
        ("-b", "5", "65536"),
        ("--sparse", "bogus", "keep"),
        ("--dedupe", "bogus", "content"),
        ("--fragments", "bogus", "tails"),
        ("--whiteouts", "bogus", "overlay"),
        ("--source-type", "bogus", "tar"),
        ("--kernel", "bogus", "6.1"),
        ("--uuid", "bogus", "zero"),
        ("--timestamp", "bogus", "digit"),
        ("--memory", "bogus", "64K"),
        ("--window", "bogus", "64K"),
        ("-j", "0", "1..=256"),
        ("--rule", "bogus", "GLOB"),
    ] {
        let out = place.run(&["build", option, value, "src", "i"]);
        let message = stderr(&out);
        assert_eq!(code(&out), 2, "{option} {value}: {message}");
        assert!(
            message.contains(value) && message.contains(known),
            "{message}"
        );
        assert!(!message.contains("os error"), "{message}");
        assert!(!place.path("i").exists());
    }
    // A time before 1970 is valid.
    fs::write(place.path("src/f"), "f").unwrap();
    assert_eq!(
        code(&place.run(&["build", "-q", "--timestamp=-5", "src", "i"])),
        0
    );
    assert_eq!(place.json(&["stat", "--json", "i", "f"])[0]["mtime"], -5);
}

/// Without a terminal, a line per file would be noise.
#[test]
fn output_does_not_grow_with_the_number_of_files() {
    let place = Place::new("quiet");
    fs::create_dir(place.path("src")).unwrap();
    for i in 0..300 {
        fs::write(place.path("src").join(format!("name-{i}")), "x").unwrap();
    }
    for verb in [
        &["build", "src", "i"][..],
        &["check", "i"],
        &["extract", "i", "out"],
        &["tar", "i", "t.tar"],
        &["diff", "i", "src"],
    ] {
        let out = place.run(verb);
        let message = String::from_utf8_lossy(&out.stdout).into_owned() + &stderr(&out);
        assert_eq!(code(&out), 0, "{verb:?}: {message}");
        assert!(message.lines().count() < 20, "{verb:?}: {message}");
        assert!(!message.contains("name-"), "{verb:?}: {message}");
    }
}
