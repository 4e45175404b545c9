//! Cpio archives as sources, created by the tool cpio.

use crate::common::{Place, code, stderr, tool};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

/// Creates a tree `t` and archives of it in `DIALECT.cpio`. Returns false, with a note, without cpio.
fn archives(place: &Place) -> bool {
    let tree = place.path("t");
    fs::create_dir_all(tree.join("dir/below")).unwrap();
    fs::write(tree.join("dir/text"), "what it says ".repeat(20_000)).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::write(tree.join("one"), "one of three").unwrap();
    fs::set_permissions(tree.join("one"), PermissionsExt::from_mode(0o4711)).unwrap();
    for name in ["dir/two", "three"] {
        fs::hard_link(tree.join("one"), tree.join(name)).unwrap();
    }
    fs::hard_link(tree.join("empty"), tree.join("dir/below/empty")).unwrap();
    symlink("dir/text", tree.join("link")).unwrap();
    // Without permission the tree has no device.
    let _ = tool(&place.0, "mkfifo", &["t/fifo"]);
    let _ = tool(&place.0, "mknod", &["t/null", "c", "1", "3"]);
    for dialect in ["newc", "crc"] {
        let script = format!(
            "cd t && find . -exec touch -h -d @1700000000 {{}} + && find . | LC_ALL=C sort | cpio -o -H {dialect} > ../{dialect}.cpio"
        );
        if tool(&place.0, "cpio", &["--version"]).is_none()
            || tool(&place.0, "sh", &["-c", &script]).is_none()
        {
            return false;
        }
    }
    true
}

/// Builds an image of a source, with equal bytes on one and seven threads.
fn image(place: &Place, source: &str, stdin: Option<&str>) -> Vec<u8> {
    let mut images = ["1", "7"].map(|threads| {
        let mut command = place.command(&["build", "-q", "-z", "lz4", "-j", threads, source, "i"]);
        if let Some(stdin) = stdin {
            command.stdin(Stdio::from(File::open(place.path(stdin)).unwrap()));
        }
        let out = command.output().unwrap();
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{source}");
        fs::read(place.path("i")).unwrap()
    });
    let image = std::mem::take(&mut images[0]);
    assert!(image == images[1], "{source}");
    image
}

#[test]
fn an_image_of_a_cpio_is_its_tree() {
    let place = &Place::new("cpio-tree");
    if !archives(place) {
        return;
    }
    let expected = image(place, "newc.cpio", None);
    fs::create_dir(place.path("x")).unwrap();
    // cpio does not restore times of directories and links.
    let script = "cd x && cpio -idm < ../newc.cpio && find . -exec touch -h -d @1700000000 {} +";
    if let Some(out) = tool(&place.0, "sh", &["-c", script]) {
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        // The difference is printed.
        let out = place.run(&["diff", "i", "x"]);
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{out:?}");
    }
    assert!(image(place, "crc.cpio", None) == expected);
    assert!(image(place, "-", Some("newc.cpio")) == expected);
    for (tool_name, args, name) in [
        ("gzip", &["-nk", "newc.cpio"][..], "newc.cpio.gz"),
        ("xz", &["-k", "newc.cpio"], "newc.cpio.xz"),
        ("zstd", &["-q", "-k", "newc.cpio"], "newc.cpio.zst"),
    ] {
        if tool(&place.0, tool_name, args).is_some() {
            assert!(image(place, name, None) == expected, "{name}");
            assert!(image(place, "-", Some(name)) == expected, "{name}");
        }
    }
    let out = place.run(&["build", "-q", "--tar-index", "newc.cpio", "o"]);
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("but this is a cpio"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn an_initramfs_of_several_archives_is_one_tree() {
    let place = &Place::new("cpio-initramfs");
    if !archives(place) {
        return;
    }
    fs::create_dir_all(place.path("early/kernel/x86/microcode")).unwrap();
    let code_of = place.path("early/kernel/x86/microcode/GenuineIntel.bin");
    fs::write(&code_of, [0x5a; 5000]).unwrap();
    let script = "cd early && find . | LC_ALL=C sort | cpio -o -H newc > ../early.cpio";
    tool(&place.0, "sh", &["-c", script]).unwrap();
    let early = fs::read(place.path("early.cpio")).unwrap();
    let late = fs::read(place.path("newc.cpio")).unwrap();
    let zeros = [0; 1000];
    fs::write(place.path("plain"), [&early[..], &zeros, &late].concat()).unwrap();
    let expected = image(place, "plain", None);
    assert!(image(place, "-", Some("plain")) == expected);
    let whole = place.text(&["ls", "-R", "i"]);
    assert!(
        whole.contains("dir/text") && whole.contains("GenuineIntel.bin"),
        "{whole}"
    );
    if tool(&place.0, "gzip", &["-nk", "newc.cpio"]).is_some() {
        let late = fs::read(place.path("newc.cpio.gz")).unwrap();
        fs::write(place.path("packed"), [&early[..], &zeros, &late].concat()).unwrap();
        assert!(image(place, "packed", None) == expected);
        assert!(image(place, "-", Some("packed")) == expected);
        let half = [&early[..], &late[..late.len() / 2]].concat();
        fs::write(place.path("half"), half).unwrap();
        let out = place.run(&["build", "-q", "half", "o"]);
        assert_eq!(code(&out), 3);
        assert!(
            stderr(&out).contains("gzip stream ends early"),
            "{}",
            stderr(&out)
        );
        assert!(!place.path("o").exists());
    }
}

/// Regression: "header checksum is not a number", as for a damaged tar; `cpio -o` writes binary headers by default.
#[test]
fn an_unsupported_cpio_format_is_named() {
    let place = &Place::new("cpio-forms");
    if !archives(place) {
        return;
    }
    for (form, says) in [("odc", "POSIX headers (odc)"), ("bin", "binary headers")] {
        let script = format!("cd t && find . | cpio -o -H {form} > ../other; gzip -fk ../other");
        tool(&place.0, "sh", &["-c", &script]).unwrap();
        for source in ["other", "other.gz", "-"] {
            let mut command = place.command(&["build", "-q", source, "o"]);
            let out = command
                .stdin(Stdio::from(File::open(place.path("other")).unwrap()))
                .output()
                .unwrap();
            let message = stderr(&out);
            assert_eq!(
                (code(&out), message.lines().count()),
                (3, 1),
                "{form} {source}: {message}"
            );
            assert!(message.contains(says), "{form} {source}: {message}");
            assert!(
                message.contains("cpio -H newc"),
                "{form} {source}: {message}"
            );
        }
    }
    // The same first bytes, in a tar.
    let name = std::ffi::OsStr::from_bytes(b"\xc7q and other letters");
    fs::write(place.path("t").join(name), "").unwrap();
    let script = "cd t && tar cf ../tar --format=ustar ?q*";
    tool(&place.0, "sh", &["-c", script]).unwrap();
    assert!(!image(place, "tar", None).is_empty());
}
