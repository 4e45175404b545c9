//! Existing outputs: rules for replacing them, and exclusion of the output from its sources.

use crate::common::{Place, code, run};
use std::fs;
use std::process::{Command, Stdio};
use tuff_testkit::skipped;

/// Bytes of a device with the magic number of ext4 and nothing else.
fn ext4() -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    bytes[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    bytes
}

#[test]
fn files_of_other_formats_are_replaced_only_with_force() {
    let place = Place::new("existing");
    let tar = Command::new("tar")
        .current_dir(&place.0)
        .args(["-cf", "layer.tar", "tree"])
        .status();
    assert!(tar.unwrap().success());
    fs::copy(place.0.join("layer.tar"), place.0.join("base.tar")).unwrap();
    fs::write(
        place.0.join("thesis.txt"),
        "It was a dark and stormy night.\n",
    )
    .unwrap();
    fs::write(place.0.join("disk"), ext4()).unwrap();
    fs::write(place.0.join("noise"), [0xff; 100]).unwrap();
    for (args, name, what) in [
        // The user forgot IMAGE.
        (&["base.tar", "layer.tar"][..], "layer.tar", "is a tar"),
        (&["tree", "thesis.txt"], "thesis.txt", "is a text file"),
        (
            &["tree", "disk"],
            "disk",
            "an ext2, ext3 or ext4 filesystem",
        ),
        (&["tree", "noise"], "noise", "data of another kind"),
        (
            &["-o", "thesis.txt", "tree"],
            "thesis.txt",
            "is a text file",
        ),
        (
            &["--chunk=4K", "--blob=noise", "tree", "new"],
            "noise",
            "not a file of chunks",
        ),
    ] {
        let before = fs::read(place.0.join(name)).unwrap();
        let build = |more: &[&str]| run(&[&["build", "-q"], more, args].concat(), &place.0);
        let (status, message) = code(&build(&[]));
        assert_eq!(status, 2, "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.contains(name) && message.contains(what),
            "{message}"
        );
        assert!(message.contains("--force"), "{message}");
        assert_eq!(fs::read(place.0.join(name)).unwrap(), before);
        assert_eq!(code(&build(&["--force"])), (0, String::new()));
        assert_ne!(fs::read(place.0.join(name)).unwrap(), before);
        fs::write(place.0.join(name), before).unwrap();
    }
}

#[test]
fn images_empty_files_and_a_blob_of_the_same_build_are_replaced() {
    let place = Place::new("replaced");
    fs::write(place.0.join("i"), "").unwrap();
    let build = |args: &[&str]| {
        let out = run(&[&["build", "-q"], args].concat(), &place.0);
        assert_eq!(code(&out), (0, String::new()), "{args:?}");
    };
    build(&["tree", "i"]);
    build(&["tree", "tree", "i"]);
    let two = fs::read(place.0.join("i")).unwrap();
    build(&["-o", "o", "tree", "tree"]);
    assert_eq!(fs::read(place.0.join("o")).unwrap(), two);
    for _ in 0..2 {
        build(&["--chunk=4K", "--blob=b", "tree", "i"]);
    }
}

#[test]
fn a_patch_accepts_its_image_by_name() {
    let place = Place::new("patch-output");
    for args in [
        &["build", "-q", "tree", "i"][..],
        &["patch", "-q", "-o", "i", "tree", "tree"],
    ] {
        assert_eq!(code(&run(args, &place.0)), (0, String::new()), "{args:?}");
    }
}

#[test]
fn an_image_is_written_to_a_terminal_only_with_force() {
    let place = Place::new("terminal");
    // `script` gives its command a terminal.
    let on_terminal = |command: &str| {
        let exe = env!("CARGO_BIN_EXE_tuff");
        Command::new("script")
            .current_dir(&place.0)
            .args(["-qec", &format!("{exe} {command}"), "/dev/null"])
            .stdin(Stdio::null())
            .output()
    };
    assert_eq!(code(&run(&["build", "-q", "tree", "i"], &place.0)).0, 0);
    for command in [
        "build -q tree -",
        "build -q tree /dev/tty",
        "tar i",
        "mkfs.erofs --quiet /dev/tty tree",
    ] {
        let out = match on_terminal(command) {
            Ok(out) => out,
            Err(e) => return skipped(format_args!("script: {e}")),
        };
        let message = String::from_utf8_lossy(&out.stdout);
        let status = if command.starts_with("mkfs") { 1 } else { 2 };
        assert_eq!(out.status.code(), Some(status), "{command}: {message}");
        assert!(message.contains("is a terminal"), "{command}: {message}");
    }
    let forced = on_terminal("build -q --force tree -").unwrap();
    assert!(forced.status.success() && forced.stdout.len() > 1000);
}

#[test]
fn an_output_is_not_packed_into_itself() {
    let place = Place::new("itself");
    let tree = place.0.join("tree");
    let build = |args: &[&str]| run(args, &tree);
    let is_told = |out: &std::process::Output, name: &str| {
        let (status, message) = code(out);
        assert_eq!(status, 0, "{message}");
        assert!(
            message.contains(name) && message.contains("left out"),
            "{message}"
        );
    };
    let listed = |image: &str| {
        let out = run(&["ls", "-R", image], &tree);
        assert!(out.status.success(), "{}", code(&out).1);
        String::from_utf8(out.stdout).unwrap()
    };
    let first = build(&["build", "-q", ".", "out.erofs"]);
    assert_eq!(code(&first), (0, String::new()));
    for args in [
        &["build", "-q", ".", "out.erofs"][..],
        &["build", "-q", "--dedupe=off", "-j1", ".", "out.erofs"],
        &["patch", "-q", ".", "out.erofs"],
        &["mkfs.erofs", "out.erofs", "."],
        &["mkfs.erofs", "--offset=4096", "out.erofs", "."],
    ] {
        is_told(&build(args), "out.erofs");
        if !args.contains(&"--offset=4096") {
            assert!(!listed("out.erofs").contains("out.erofs"), "{args:?}");
        }
    }
    fs::remove_file(tree.join("out.erofs")).unwrap();
    // The redirected standard output and a list are files in the tree.
    let file = fs::File::create(tree.join("shell.erofs")).unwrap();
    let out = crate::common::tuff()
        .current_dir(&tree)
        .args(["build", "-q", ".", "-"])
        .stdout(file)
        .output()
        .unwrap();
    is_told(&out, "shell.erofs");
    assert!(!listed("shell.erofs").contains("shell.erofs"));
    fs::write(tree.join("list"), "an older list\n").unwrap();
    let out = build(&["mkfs.erofs", "--block-list-file=list", "out.erofs", "."]);
    is_told(&out, "list");
    // Another hard link of the output in the tree is the output, too.
    fs::hard_link(tree.join("out.erofs"), tree.join("again")).unwrap();
    is_told(&build(&["build", "-q", ".", "out.erofs"]), "again");
}

#[test]
fn devices_with_data_are_overwritten_only_with_force() {
    let place = Place::new("device");
    let disk = place.0.join("disk");
    fs::write(&disk, ext4()).unwrap();
    let losetup = |args: &[&str]| Command::new("losetup").args(args).output();
    let device = match losetup(&["--find", "--show", disk.to_str().unwrap()]) {
        Ok(out) if out.status.success() => String::from_utf8(out.stdout).unwrap(),
        _ => return skipped("no loop device"),
    };
    let device = device.trim();
    let verb = |args: &[&str]| code(&run(args, &place.0));
    let tried = std::panic::catch_unwind(|| {
        let (status, message) = verb(&["build", "-q", "tree", device]);
        assert_eq!(status, 2, "{message}");
        assert!(
            message.contains("ext4") && message.contains("--force"),
            "{message}"
        );
        let (status, message) = verb(&["mkfs.erofs", "--quiet", device, "tree"]);
        assert_eq!(status, 1, "{message}");
        assert!(
            message.contains("ext4") && message.contains("--force"),
            "{message}"
        );
        // An image may follow a partition table.
        assert_eq!(
            verb(&["mkfs.erofs", "--quiet", "--offset=524288", device, "tree"]).0,
            0
        );
        assert_eq!(&fs::read(device).unwrap()[0x438..0x43a], &[0x53, 0xef]);
        assert_eq!(
            verb(&["mkfs.erofs", "--quiet", "--force", device, "tree"]).0,
            0
        );
        // An image may be replaced.
        assert_eq!(verb(&["build", "-q", "tree", device]), (0, String::new()));
        assert_eq!(verb(&["mkfs.erofs", "--quiet", device, "tree"]).0, 0);
    });
    losetup(&["-d", device]).unwrap();
    tried.unwrap();
}
