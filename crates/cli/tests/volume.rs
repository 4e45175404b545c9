//! `tuff volume` as people and scripts meet it: what goes in comes out, exit codes, and one sentence on errors.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tuff(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tuff"))
        .current_dir(dir)
        .arg("volume")
        .args(args)
        .output()
        .unwrap()
}

/// Runs a verb that must succeed; what it printed.
fn good(dir: &Path, args: &[&str]) -> Vec<u8> {
    let out = tuff(dir, args);
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    out.stdout
}

/// Runs a verb that must fail: its exit code and the one line it said.
fn bad(dir: &Path, args: &[&str]) -> (i32, String) {
    let out = tuff(dir, args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    (out.status.code().unwrap_or(-1), said)
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

struct Place(PathBuf);

impl Place {
    /// A directory with a small tree in `src`, a volume in zone files `v` and one in a file `f`.
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("tuff-cli-volume-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("src/sub")).unwrap();
        fs::write(dir.join("src/hello"), "hello, volume\n".repeat(1000)).unwrap();
        fs::hard_link(dir.join("src/hello"), dir.join("src/again")).unwrap();
        std::os::unix::fs::symlink("hello", dir.join("src/link")).unwrap();
        let sparse = fs::File::create(dir.join("src/sub/sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        fs::write(dir.join("src/sub").join("n".repeat(200)), "long").unwrap();
        good(&dir, &["create", "v", "-s", "64M"]);
        good(&dir, &["create", "f", "--file", "-s", "64M"]);
        Self(dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_imported_comes_out_as_it_was_from_both_kinds_of_device() {
    let place = Place::new("export");
    let dir = &place.0;
    let mut tars = Vec::new();
    for volume in ["v", "f"] {
        let said = json(&good(dir, &["import", volume, "src", "--json"]));
        assert_eq!(said["objects"], 6);
        good(dir, &["check", "--data", volume]);
        tars.push(good(dir, &["export", volume]));
    }
    assert_eq!(tars[0], tars[1]);
    let out = dir.join("out");
    fs::create_dir(&out).unwrap();
    fs::write(dir.join("tar"), &tars[0]).unwrap();
    let tar = Command::new("tar")
        .current_dir(&out)
        .args(["-xf", "../tar"])
        .status();
    assert!(tar.unwrap().success());
    for name in ["hello", "again", "sub/sparse"] {
        let (was, is) = (dir.join("src").join(name), out.join(name));
        assert!(fs::read(&was).unwrap() == fs::read(&is).unwrap(), "{name}");
        let (was, is) = (fs::metadata(was).unwrap(), fs::metadata(is).unwrap());
        assert_eq!(
            (was.mode(), was.mtime(), was.mtime_nsec(), was.nlink()),
            (is.mode(), is.mtime(), is.mtime_nsec(), is.nlink()),
            "{name}"
        );
    }
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("hello"));
    assert!(out.join("sub").join("n".repeat(200)).exists());
}

#[test]
fn a_snapshot_keeps_what_the_present_loses() {
    let place = Place::new("snapshot");
    let dir = &place.0;
    let empty = good(dir, &["export", "v"]);
    good(dir, &["snapshot", "create", "v", "empty"]);
    good(dir, &["import", "v", "src"]);
    assert_ne!(good(dir, &["export", "v"]), empty);
    assert_eq!(good(dir, &["export", "v", "--snapshot", "empty"]), empty);
    let list = json(&good(dir, &["snapshot", "list", "v", "--json"]));
    assert_eq!(list["snapshots"][0]["name"], "empty");
    let (code, said) = bad(dir, &["snapshot", "create", "v", "empty"]);
    assert_eq!((code, said.contains("already")), (2, true), "{said}");
    let (code, said) = bad(dir, &["snapshot", "delete", "v", "none"]);
    assert_eq!((code, said.contains("no snapshot")), (2, true), "{said}");
    good(dir, &["snapshot", "delete", "v", "empty"]);
    good(dir, &["trim", "v"]);
    let stat = json(&good(dir, &["stat", "v", "--json"]));
    assert_eq!(
        (&stat["snapshots"], &stat["held_bytes"]),
        (&0.into(), &0.into())
    );
    good(dir, &["check", "v"]);
}

#[test]
fn errors_are_one_sentence_with_the_documented_code() {
    let place = Place::new("errors");
    let dir = &place.0;
    for (args, code, says) in [
        (&["create", "v", "-s", "64M"][..], 5, "not empty"),
        (&["create", "f", "--file", "-s", "64M"], 5, "exists"),
        (&["create", "x", "-s", "1M"], 2, "too small"),
        (
            &["create", "x", "-s", "64M", "--zone", "3M"],
            2,
            "power of two",
        ),
        (&["stat", "nothing"], 5, "nothing"),
        (&["check", "src"], 5, "src"),
        (&["import", "v", "src/hello"], 2, "no directory"),
        (&["export", "v", "--snapshot", "x"], 2, "no snapshot"),
    ] {
        let (found, said) = bad(dir, args);
        assert_eq!(found, code, "{args:?}: {said}");
        assert!(said.to_lowercase().contains(says), "{args:?}: {said}");
    }
    assert!(!dir.join("x").exists());
    fs::write(dir.join("junk"), vec![7; 1 << 20]).unwrap();
    let (code, said) = bad(dir, &["stat", "junk"]);
    assert_eq!((code, said.contains("superblock")), (3, true), "{said}");
}

#[test]
fn a_volume_that_is_in_use_is_refused() {
    let place = Place::new("lock");
    let dir = &place.0;
    for volume in ["v", "f"] {
        let held = tuff_iplfs::backend::open(&dir.join(volume), false).unwrap();
        let (code, said) = bad(dir, &["stat", volume]);
        assert_eq!((code, said.contains("in use")), (5, true), "{said}");
        drop(held);
        // Another test's child may still hold a copy of the descriptor, until it becomes another program.
        let free = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            tuff(dir, &["stat", volume]).status.success()
        });
        assert!(free, "{volume}");
    }
}

#[test]
fn a_volume_without_packs_is_repaired_from_its_logs() {
    let place = Place::new("rebuild");
    let dir = &place.0;
    good(dir, &["import", "f", "src"]);
    let was = good(dir, &["export", "f"]);
    let (code, said) = bad(dir, &["check", "--rebuild", "f"]);
    assert_eq!(
        (code, said.contains("nothing to rebuild")),
        (2, true),
        "{said}"
    );
    // Blocks 16 to 527 are the packs.
    let file = fs::File::options().write(true).open(dir.join("f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 512 << 12], 16 << 12).unwrap();
    drop(file);
    let (code, said) = bad(dir, &["check", "--repair", "f"]);
    assert_eq!((code, said.contains("no sound seal")), (3, true), "{said}");
    let out = tuff(dir, &["check", "--rebuild", "f", "--json"]);
    assert_eq!(
        out.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(json(&out.stdout)["clean"], true);
    good(dir, &["check", "--data", "f"]);
    good(dir, &["check", "--repair", "f"]);
    assert!(good(dir, &["export", "f"]) == was);
}
