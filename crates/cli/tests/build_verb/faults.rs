//! Damaged sources, a full disk and ^C: messages, exit codes, and no partial output.

use crate::common::{Place, code, run, sixteen_letters, tuff};
use std::process::Command;
use std::time::Duration;

#[test]
fn a_damaged_tar_is_reported_by_name_with_code_3() {
    let place = Place::new("tar");
    let tar = Command::new("tar")
        .args(["-cf", "t.tar", "tree"])
        .current_dir(&place.0)
        .status();
    if !tar.is_ok_and(|s| s.success()) {
        tuff_testkit::skipped("no tar on PATH");
        return;
    }
    let bytes = std::fs::read(place.0.join("t.tar")).unwrap();
    std::fs::write(place.0.join("t.tar"), &bytes[..bytes.len() / 3]).unwrap();
    let (code, message) = code(&run(&["build", "t.tar", "i"], &place.0));
    assert_eq!(code, 3, "{message}");
    assert!(
        message.contains("t.tar") && message.lines().count() == 1,
        "{message}"
    );
    assert_eq!(place.names(), ["t.tar", "tree"]);
}

#[test]
fn a_stopped_build_leaves_nothing() {
    let place = Place::new("stop");
    // Slow enough to be stopped: incompressible data and the slowest method.
    let big = sixteen_letters(24 << 20);
    for i in 0..4 {
        std::fs::write(place.0.join(format!("tree/big{i}")), &big[i..]).unwrap();
    }
    let child = tuff()
        .current_dir(&place.0)
        .args([
            "build", "-z", "lzma:9", "--kernel", "6.18", "-j", "1", "tree", "image",
        ])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let out = child.wait_with_output().unwrap();
    let (code, message) = code(&out);
    assert_eq!(code, 130, "{message}");
    assert!(message.contains("stopped"), "{message}");
    assert_eq!(place.names(), ["tree"]);
}

#[test]
fn a_full_disk_is_reported_and_leaves_nothing() {
    let place = Place::new("full");
    let small = place.0.join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(&small)
        .output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        tuff_testkit::skipped("a small tmpfs needs root");
        return;
    }
    std::fs::write(place.0.join("tree/large"), vec![7u8; 4 << 20]).unwrap();
    let out = run(&["build", "-z", "none", "tree", "small/image"], &place.0);
    let left = std::fs::read_dir(&small).unwrap().count();
    let _ = Command::new("umount").arg(&small).status();
    let (code, message) = code(&out);
    assert_eq!(code, 5, "{message}");
    assert_eq!(
        message,
        "tuff: small/image: cannot write: No space left on device (os error 28)\n"
    );
    assert_eq!(left, 0);
}

#[test]
fn output_to_a_full_disk_is_an_error_without_a_panic() {
    // Regression: println! and eprintln! panic if the output cannot be written.
    let place = Place::new("dev-full");
    let full = || std::fs::File::options().write(true).open("/dev/full");
    if full().is_err() {
        tuff_testkit::skipped("no /dev/full");
        return;
    }
    for args in [
        &["build", "tree", "i"][..],
        &["build", "--json", "tree", "i"],
    ] {
        let mut command = tuff();
        let out = command.current_dir(&place.0).args(args);
        let (code, message) = code(&out.stdout(full().unwrap()).output().unwrap());
        assert_eq!((code, message.lines().count()), (5, 1), "{message}");
        assert!(message.contains("standard output"), "{message}");
    }
    let mut command = tuff();
    let none = command.current_dir(&place.0).args(["build", "none", "i"]);
    let status = none.stderr(full().unwrap()).status().unwrap();
    assert_eq!(status.code(), Some(5));
}
