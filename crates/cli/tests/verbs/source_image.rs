//! Images as sources of other images.

use crate::common::{Place, code, is_root, skipped, stderr};
use std::fs;
use std::process::Command;

#[test]
fn an_image_as_source_gives_the_bytes_of_its_tree() {
    let place = Place::new("source-image");
    for options in [
        &["-z", "lz4", "-C", "4K"][..],
        &["-z", "zstd", "--kernel", "6.12", "--fragments", "all"],
        &["-z", "none", "--sparse", "fill"],
        &["--metadata", "compressed", "--kernel", "6.18"],
        &["--kernel", "5.4", "--sparse", "fill"],
    ] {
        place.image("first", options);
        let mut args = vec!["build", "-q", "--verify", "first", "second"];
        args.extend(options);
        if !options.contains(&"--sparse") {
            args.extend(["--sparse", "keep"]);
        }
        place.text(&args);
        let [first, second] = ["first", "second"].map(|i| fs::read(place.path(i)).unwrap());
        assert!(first == second, "{options:?}");
        // Another form, with the image as its own base.
        place.text(&[
            "build", "-q", "-z", "deflate", "--kernel", "6.6", "second", "second",
        ]);
        assert_eq!(place.text(&["diff", "first", "second"]), "");
    }
    let out = place.run(&["build", "-q", "--source-type", "image", "m", "o"]);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    assert!(!place.path("o").exists());
}

/// Regression: the message named an option of other verbs.
#[test]
fn a_damaged_source_is_refused_without_options_that_builds_lack() {
    let place = Place::with_image("source-damaged");
    let image = fs::read(place.path("i")).unwrap();
    fs::write(place.path("cut"), &image[..3000]).unwrap();
    for args in [
        &["build", "cut", "new"][..],
        &["build", "--base", "cut", "m", "new"],
        &["patch", "m", "cut"],
    ] {
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{args:?}: {message}");
        assert!(message.contains("cut: superblock"), "{message}");
        assert!(!message.contains("--no-checksum"), "{message}");
        assert!(!place.path("new").exists());
    }
}

/// Regression: "0 bytes reach past the end", since a file without blocks has no address.
#[test]
fn a_file_that_is_all_inline_is_read() {
    let place = Place::new("source-inline");
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/small"), "small").unwrap();
    place.text(&["build", "-q", "tree", "first"]);
    place.text(&["build", "-q", "first", "second"]);
    let [first, second] = ["first", "second"].map(|i| fs::read(place.path(i)).unwrap());
    assert!(first == second);
}

#[test]
fn layers_that_are_images_are_merged() {
    let place = Place::new("source-layers");
    for (dir, files) in [("one", ["a", "b", "c"]), ("two", ["b", "d", "e"])] {
        fs::create_dir(place.path(dir)).unwrap();
        for file in files {
            let text = format!("{file} of {dir}\n").repeat(500);
            fs::write(place.path(dir).join(file), text).unwrap();
        }
    }
    fs::write(
        place.path("two.mtree"),
        "#mtree\n./a type=char device=0,0\n./f type=file size=0\n",
    )
    .unwrap();
    place.text(&["build", "-q", "one", "1"]);
    place.text(&[
        "build",
        "-q",
        "--whiteouts",
        "keep",
        "two",
        "two.mtree",
        "2",
    ]);
    place.text(&["build", "-q", "1", "2", "both"]);
    assert_eq!(place.text(&["ls", "both"]), "b\nc\nd\ne\nf\n");
    assert!(place.text(&["cat", "both", "b"]).starts_with("b of two\n"));
    // With a directory on top, and with excluded paths.
    fs::create_dir(place.path("three")).unwrap();
    fs::write(place.path("three/g"), "g").unwrap();
    place.text(&["build", "-q", "--exclude", "e", "both", "three", "all"]);
    assert_eq!(place.text(&["ls", "all"]), "b\nc\nd\nf\ng\n");
}

#[test]
fn obsolete_data_of_patches_is_dropped() {
    let place = Place::with_image("source-patched");
    fs::create_dir(place.path("new")).unwrap();
    fs::write(place.path("new/one"), "one\n".repeat(3000)).unwrap();
    place.text(&["patch", "-q", "new", "i"]);
    place.text(&["build", "-q", "i", "small", "-z", "lz4", "-C", "16K"]);
    place.text(&["build", "-q", "new", "fresh", "-z", "lz4", "-C", "16K"]);
    let [small, fresh] = ["small", "fresh"].map(|i| fs::read(place.path(i)).unwrap());
    assert!(small == fresh);
    assert!(fs::metadata(place.path("i")).unwrap().len() > small.len() as u64);
}

#[test]
fn a_damaged_image_is_rejected_as_source() {
    let place = Place::new("source-damaged");
    place.image("i", &["-z", "lz4", "-C", "4K", "--fragments", "off"]);
    let extents = place.extents("i", "dir/text");
    let at = extents[1]["physical"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes[at..at + 4096].fill(0);
    fs::write(place.path("d"), &bytes).unwrap();
    fs::write(place.path("cut"), &bytes[..3000]).unwrap();
    for (image, expected) in [("d", "d: /dir/text"), ("cut", "cut: ")] {
        let out = place.run(&["build", "-q", image, "o"]);
        let message = stderr(&out);
        assert_eq!(code(&out), 3, "{message}");
        assert!(message.contains(expected), "{message}");
        assert!(!place.path("o").exists());
    }
    // An image whose data is on a device.
    fs::create_dir(place.path("t")).unwrap();
    fs::copy(place.path("text"), place.path("t/text")).unwrap();
    place.text(&["build", "-q", "--base", "i", "t", "over"]);
    let out = place.run(&["build", "-q", "over", "o"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert!(stderr(&out).contains("device"), "{}", stderr(&out));
}

#[test]
fn a_device_is_not_written_while_it_is_read() {
    if !is_root() {
        return skipped("a loop device needs root");
    }
    let place = Place::with_image("source-device");
    let extended = fs::OpenOptions::new()
        .write(true)
        .open(place.path("i"))
        .unwrap();
    extended.set_len(8 << 20).unwrap();
    let made = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(place.path("i"))
        .output();
    let Some(made) = made.ok().filter(|out| out.status.success()) else {
        return skipped("no loop device");
    };
    let device = String::from_utf8(made.stdout).unwrap();
    let device = device.trim();
    let onto_itself = place.run(&["build", "-q", device, device]);
    let from_it = place.run(&["build", "-q", device, "copy"]);
    assert!(
        Command::new("losetup")
            .args(["-d", device])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(code(&onto_itself), 2, "{}", stderr(&onto_itself));
    assert!(
        stderr(&onto_itself).contains("written to"),
        "{}",
        stderr(&onto_itself)
    );
    assert_eq!(code(&from_it), 0, "{}", stderr(&from_it));
    assert_eq!(place.text(&["diff", "i", "copy"]), "");
}

#[test]
fn an_image_with_devices_is_a_source_together_with_them() {
    let place = Place::new("source-devices");
    place.image("first", &["-z", "lz4"]);
    let tar = place.run(&["tar", "first"]);
    assert_eq!(code(&tar), 0);
    fs::write(place.path("t.tar"), &tar.stdout).unwrap();
    place.text(&["build", "-q", "--tar-index", "t.tar", "index"]);
    place.text(&[
        "build", "-q", "--chunk", "4K", "--blob", "blob", "-z", "none", "first", "chunks",
    ]);
    let build = |sources: &[&str]| {
        let options = [
            "build",
            "-q",
            "-z",
            "lz4",
            "--sparse",
            "keep",
            "--whiteouts",
            "keep",
        ];
        place.run(&[&options, sources].concat())
    };
    assert_eq!(code(&build(&["first", "wanted"])), 0);
    for (image, device) in [("index", "t.tar"), ("chunks", "blob")] {
        for threads in ["1", "7"] {
            let out = build(&["--source-device", device, "-j", threads, image, "o"]);
            assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{image}");
            assert_eq!(place.text(&["diff", "first", "o"]), "");
            fs::rename(place.path("o"), place.path(&format!("o{threads}"))).unwrap();
        }
        let [one, seven] = ["o1", "o7"].map(|i| fs::read(place.path(i)).unwrap());
        assert!(one == seven, "{image}");
    }
    // Several images in order, some without devices.
    let devices = ["--source-device", "t.tar", "--source-device", "blob"];
    let out = build(&[&devices[..], &["first", "index", "chunks", "o"]].concat());
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
    assert_eq!(place.text(&["diff", "first", "o"]), "");
    for (args, expected) in [
        (
            &["index", "no"][..],
            "index: data is on device 1: it was not given; give it with --source-device FILE",
        ),
        (
            &["--source-device", "blob", "first", "no"],
            "--source-device blob: no image that was given has data there",
        ),
    ] {
        let out = build(args);
        assert_eq!(code(&out), 2, "{}", stderr(&out));
        assert!(stderr(&out).contains(expected), "{}", stderr(&out));
        assert!(!place.path("no").exists());
    }
}
