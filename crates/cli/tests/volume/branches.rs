//! Forks of mounted and unmounted volumes, and changes of branches.

use crate::common::{Mounted, Place, bad, good, json, run};
use crate::statx::kernel;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns a file of a branch that is not mounted for writing. Of names of one file, the first has its content.
pub(crate) fn content(dir: &Path, branch: &str, file: &str) -> Option<Vec<u8>> {
    good(
        dir,
        &["export", "--force", "--branch", branch, "v", "out.tar"],
    );
    let file = format!("./{file}");
    let tar = Command::new("tar")
        .current_dir(dir)
        .args(["-xOf", "out.tar", &file])
        .output()
        .unwrap();
    tar.status.success().then_some(tar.stdout)
}

fn names(dir: &Path) -> Vec<String> {
    let list = json(&good(dir, &["branch", "list", "--json", "v"]));
    let names = list["branches"].as_array().unwrap().iter();
    names
        .filter_map(|branch| branch["name"].as_str().map(str::to_owned))
        .collect()
}

/// Forks and snapshots of a mounted volume need a kernel that waits for its pages.
pub(crate) fn is_live_possible() -> bool {
    let possible = kernel() >= (6, 16);
    if !possible {
        tuff_testkit::skipped("the kernel waits for pages of FUSE from Linux 6.16 on");
    }
    possible
}

#[test]
fn branches_are_independent_and_named_in_the_source_of_their_mounts() {
    let place = Place::new("branches");
    let dir = &place.0;
    good(dir, &["import", "v", "src"]);
    let before: Vec<_> = fs::read_dir(dir.join("v")).unwrap().collect();
    good(dir, &["fork", "v", "dev"]);
    assert_eq!(names(dir), ["main", "dev"]);
    let Some(dev) = Mounted::with(&place, &["--branch", "dev"]) else {
        return;
    };
    fs::write(dev.0.join("hello"), "dev").unwrap();
    fs::write(dev.0.join("new"), "dev").unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let source = format!("{}@dev ", dir.join("v").display());
    assert!(mounts.contains(&source), "{mounts}");
    // The other branch can be read and written meanwhile, this one cannot be changed.
    good(dir, &["snapshot", "create", "v", "s"]);
    assert!(content(dir, "main", "new").is_none());
    good(dir, &["check", "v"]);
    for verb in [
        &["branch", "delete", "v", "dev"][..],
        &["branch", "promote", "v", "dev"],
        &["branch", "flatten", "v", "dev"],
        &["branch", "rollback", "v", "dev", "--snapshot", "s"],
        &["snapshot", "create", "v", "x", "--branch", "dev"],
    ] {
        let (code, message) = bad(dir, verb);
        assert!(code == 5 || code == 2, "{code}: {message}");
        assert!(
            message.contains("use") || message.contains("mounted"),
            "{message}"
        );
    }
    dev.end();
    for branch in ["main", "dev"] {
        good(dir, &["check", "--data", "--branch", branch, "v"]);
        good(dir, &["trim", "--branch", branch, "v"]);
        good(dir, &["stat", "--branch", branch, "v"]);
    }
    assert_eq!(content(dir, "dev", "again").unwrap(), b"dev");
    assert!(
        content(dir, "main", "again")
            .unwrap()
            .starts_with(b"hello, volume")
    );
    // The command returns when the branch is closed.
    for _ in 0..3 {
        let tuff = env!("CARGO_BIN_EXE_tuff");
        good(dir, &["mount", "--branch", "dev", "v", "m"]);
        fs::write(dir.join("m/new"), "dev").unwrap();
        let ended = run(dir, tuff, &["umount", "m"]);
        assert!(ended.0, "{}", ended.1);
        assert_eq!(content(dir, "dev", "new").unwrap(), b"dev");
    }
    // In fstab the branch is an option.
    let by_option = Mounted::with(&place, &["-o", "branch=dev"]).unwrap();
    assert_eq!(fs::read(by_option.0.join("new")).unwrap(), b"dev");
    by_option.end();
    good(dir, &["branch", "delete", "v", "dev"]);
    assert_eq!(names(dir), ["main"]);
    let after: Vec<_> = fs::read_dir(dir.join("v")).unwrap().collect();
    assert!(after.len() <= before.len() + 2, "{before:?} {after:?}");
}

#[test]
fn a_mounted_snapshot_is_read_while_its_branch_is_written_and_cannot_be_deleted() {
    let place = Place::new("branches-snapshot");
    let dir = &place.0;
    good(dir, &["import", "v", "src"]);
    let plain = Place::new("branches-snapshot-plain");
    good(&plain.0, &["import", "v", "src"]);
    good(&plain.0, &["snapshot", "create", "v", "s"]);
    if let Some(old) = Mounted::on(&plain, "v", "old", &["--snapshot", "s"]) {
        // A volume that was never forked, too.
        good(&plain.0, &["trim", "v"]);
        assert_eq!(bad(&plain.0, &["snapshot", "delete", "v", "s"]).0, 4);
        old.end();
        good(&plain.0, &["snapshot", "delete", "v", "s"]);
    }
    good(dir, &["fork", "v", "dev"]);
    for branch in ["main", "dev"] {
        let of_branch = ["--branch", branch];
        good(
            dir,
            &[&["snapshot", "create", "v", "s"], &of_branch[..]].concat(),
        );
        let with = ["--branch", branch, "--snapshot", "s"];
        let Some(old) = Mounted::on(&place, "v", "old", &with) else {
            return;
        };
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let source = format!("{}@{branch}:s ", dir.join("v").display());
        assert!(mounts.contains(&source), "{mounts}");
        // The branch is written meanwhile.
        let new = Mounted::with(&place, &of_branch).unwrap();
        fs::write(new.0.join("hello"), "new").unwrap();
        fs::remove_file(new.0.join("link")).unwrap();
        new.end();
        good(dir, &[&["trim", "v"], &of_branch[..]].concat());
        let delete = [&["snapshot", "delete", "v", "s"], &of_branch[..]].concat();
        let (code, message) = bad(dir, &delete);
        assert!(code == 4 && message.contains("mounted"), "{message}");
        if branch == "dev" {
            let (_, message) = bad(dir, &["branch", "delete", "v", "dev"]);
            assert!(message.contains("snapshot"), "{message}");
        }
        let want = fs::read(dir.join("src/hello")).unwrap();
        assert!(fs::read(old.0.join("hello")).unwrap() == want);
        assert!(old.0.join("link").is_symlink());
        let denied = fs::write(old.0.join("hello"), "x").unwrap_err();
        assert_eq!(denied.raw_os_error(), Some(30));
        drop(old);
        // A killed server keeps nothing, and the command returns when the snapshot is given up.
        for _ in 0..3 {
            good(
                dir,
                &[
                    "mount",
                    "v",
                    "old",
                    "-o",
                    &format!("branch={branch},snapshot=s"),
                ],
            );
            assert!(fs::read(dir.join("old/again")).unwrap() == want);
            let ended = run(dir, env!("CARGO_BIN_EXE_tuff"), &["umount", "old"]);
            assert!(ended.0, "{}", ended.1);
            assert!(!dir.join("v/mounted").exists());
        }
        good(dir, &delete);
    }
    let (code, message) = bad(dir, &["mount", "v", "old", "--snapshot", "none"]);
    assert!(code == 2 && message.contains("none"), "{message}");
    // A file has one process at a time.
    good(dir, &["snapshot", "create", "f", "s"]);
    let of_file = Mounted::on(&place, "f", "old", &["--snapshot", "s"]).unwrap();
    let (_, message) = bad(dir, &["snapshot", "delete", "f", "s"]);
    assert!(message.contains("use"), "{message}");
    of_file.end();
    for branch in ["main", "dev"] {
        good(dir, &["check", "--data", "--branch", branch, "v"]);
    }
}

#[test]
fn the_number_of_forks_that_are_left_is_shown() {
    let place = Place::new("branches-left");
    let dir = &place.0;
    let left = |verb: &[&str]| json(&good(dir, verb))["forks_left"].as_u64();
    let create = ["create", "small", "-s", "64M", "--area-bits", "30"];
    let text = String::from_utf8(good(dir, &create)).unwrap();
    assert!(text.contains("allow 3 forks"), "{text}");
    assert!(left(&["stat", "--json", "v"]) >= Some(1_000_000));
    assert_eq!(left(&["stat", "--json", "f"]), None);
    for n in (0..3).rev() {
        good(dir, &["fork", "small", &format!("x{n}")]);
        assert_eq!(left(&["stat", "--json", "small"]), Some(n));
    }
    let text = String::from_utf8(good(dir, &["stat", "small"])).unwrap();
    assert!(text.contains("forks left"), "{text}");
    let (code, message) = bad(dir, &["fork", "small", "more"]);
    assert!(code == 4 && message.contains("send"), "{message}");
}

#[test]
fn wrong_branches_are_one_sentence() {
    let place = Place::new("branches-wrong");
    let dir = &place.0;
    for verb in [
        &["mount", "v", "m", "--branch", "none"][..],
        &["stat", "v", "--branch", "none"],
        &["branch", "delete", "v", "none"],
        &["branch", "delete", "v", "main"],
        &["branch", "promote", "v", "none"],
        &["branch", "flatten", "v", "none"],
        &["branch", "rollback", "v", "main", "--snapshot", "none"],
        &["fork", "v", "main"],
        &["fork", "v", "a/b"],
        &["fork", "v", ""],
        &["fork", "v", "x", "--snapshot", "none"],
        &["fork", "v", "x", "--branch", "none"],
    ] {
        let (code, message) = bad(dir, verb);
        assert_eq!(code, 2, "{verb:?}: {message}");
    }
    assert_eq!(names(dir), ["main"]);
    for verb in [&["fork", "f", "x"][..], &["branch", "list", "f"]] {
        let (code, message) = bad(dir, verb);
        assert_eq!(code, 4, "{message}");
        assert!(message.contains("send"), "{message}");
    }
    let (_, message) = bad(dir, &["fork", "missing", "x"]);
    assert!(message.contains("missing"), "{message}");
}

/// Regression: verbs of branches refused mount points, and `fork m a/b` asked for the fork `a` of a snapshot `b`.
#[test]
fn branches_are_changed_by_the_mount_point_of_another() {
    let place = Place::new("branches-mounted");
    let dir = &place.0;
    let Some(main) = Mounted::new(&place) else {
        return;
    };
    good(dir, &["snapshot", "create", "m", "s"]);
    good(dir, &["fork", "m", "a"]);
    let dev = Mounted::on(&place, "v", "m-a", &["--branch", "a"]).unwrap();
    good(dir, &["fork", "m-a", "b"]);
    assert_eq!(names(dir), ["main", "a", "b"]);
    good(dir, &["branch", "flatten", "m-a", "b"]);
    good(dir, &["branch", "list", "m-a"]);
    good(dir, &["branch", "delete", "m", "b"]);
    for verb in [
        &["branch", "promote", "m", "a"][..],
        &["branch", "delete", "m-a", "a"],
    ] {
        let (code, message) = bad(dir, verb);
        assert!(code == 5 && message.contains("mounted"), "{message}");
    }
    for verb in [
        &["fork", "m", "x/s"][..],
        &["snapshot", "create", "m", "x/s"],
        &["snapshot", "list", "m"],
        &["stat", "m"],
        &["branch", "list", "src"],
    ] {
        let (code, message) = bad(dir, verb);
        assert!(code == 2 || code == 5, "{code}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert_eq!(names(dir), ["main", "a"]);
    dev.end();
    good(dir, &["branch", "delete", "m", "a"]);
    assert_eq!(names(dir), ["main"]);
    main.end();
    good(dir, &["check", "--data", "v"]);
}

#[test]
fn a_mounted_parent_returns_what_a_flattened_fork_had_held() {
    // T3-11
    let place = Place::new("branches-flatten");
    let dir = &place.0;
    fs::write(dir.join("src/large"), vec![7; 4 << 20]).unwrap();
    fs::write(dir.join("src/kept"), vec![8; 1 << 20]).unwrap();
    good(dir, &["import", "v", "src"]);
    good(dir, &["fork", "v", "dev"]);
    let Some(dev) = Mounted::with(&place, &["--branch", "dev"]) else {
        return;
    };
    fs::remove_file(dev.0.join("large")).unwrap();
    dev.end();
    let main = Mounted::with(&place, &["--commit", "1"]).unwrap();
    fs::remove_file(main.0.join("large")).unwrap();
    let branch = |at: usize| {
        let list = json(&good(dir, &["branch", "list", "--json", "v"]));
        list["branches"][at].clone()
    };
    let wait = |what: &str, is_done: &dyn Fn(u64) -> bool| {
        let end = Instant::now() + Duration::from_secs(120);
        while !is_done(branch(0)["held_bytes"].as_u64().unwrap()) {
            assert!(Instant::now() < end, "{what}: {}", branch(0));
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    wait("held", &|bytes| bytes >= 4 << 20);
    let out = good(dir, &["branch", "flatten", "v", "dev"]);
    assert!(String::from_utf8_lossy(&out).contains("copied"));
    let dev = branch(1);
    assert!(dev["parent"].is_null() && dev["forked"].is_null(), "{dev}");
    assert_eq!(dev["shared_bytes"], 0);
    wait("released", &|bytes| bytes == 0);
    assert_eq!(fs::read(main.0.join("kept")).unwrap(), vec![8; 1 << 20]);
    main.end();
    for branch in ["main", "dev"] {
        assert_eq!(content(dir, branch, "kept").unwrap(), vec![8; 1 << 20]);
        assert!(content(dir, branch, "large").is_none());
        good(dir, &["check", "--data", "--branch", branch, "v"]);
    }
    let out = good(dir, &["branch", "flatten", "v", "dev"]);
    assert!(String::from_utf8_lossy(&out).contains("no parent"));
}

#[test]
fn rollback_and_promote_exchange_what_main_is() {
    // T3-18: a file of the same size, one that was mapped, and a name that is absent afterwards.
    let place = Place::new("branches-rollback");
    let dir = &place.0;
    fs::write(dir.join("src/size"), "aaaa").unwrap();
    good(dir, &["import", "v", "src"]);
    good(dir, &["snapshot", "create", "v", "s"]);
    let Some(main) = Mounted::new(&place) else {
        return;
    };
    fs::write(main.0.join("size"), "bbbb").unwrap();
    fs::remove_file(main.0.join("hello")).unwrap();
    fs::write(main.0.join("late"), "late").unwrap();
    let (_, message) = bad(dir, &["branch", "rollback", "v", "main", "--snapshot", "s"]);
    assert!(message.contains("umount"), "{message}");
    main.end();
    let message = good(dir, &["branch", "rollback", "v", "main", "--snapshot", "s"]);
    assert!(String::from_utf8_lossy(&message).contains("main-1"));
    let main = Mounted::new(&place).unwrap();
    assert_eq!(fs::read(main.0.join("size")).unwrap(), b"aaaa");
    assert!(main.0.join("hello").exists());
    assert!(!main.0.join("late").exists());
    main.end();
    assert_eq!(content(dir, "main-1", "late").unwrap(), b"late");
    good(dir, &["branch", "promote", "v", "main-1"]);
    assert_eq!(content(dir, "main", "late").unwrap(), b"late");
    let others = names(dir);
    assert_eq!(others.len(), 2);
    for branch in &others {
        good(dir, &["check", "--data", "--branch", branch, "v"]);
    }
}

#[test]
fn a_fork_of_a_mounted_volume_has_what_was_written_before() {
    // T3-19: write without fsync, a store to a mapping, fork, write on.
    if !is_live_possible() {
        return;
    }
    let place = Place::new("branches-live");
    let dir = &place.0;
    let Some(mounted) = Mounted::with(&place, &["--commit", "3600"]) else {
        return;
    };
    let script = r#"
import mmap, os, subprocess, sys
f = os.open("m/written", os.O_RDWR | os.O_CREAT)
os.write(f, b"before" * 100000)
g = os.open("m/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(g, 4 << 20)
m = mmap.mmap(g, 4 << 20)
m[:] = b"b" * (4 << 20)
tuff = sys.argv[1]
for verb in ["fork", "m", "one"], ["snapshot", "create", "m", "s"], ["fork", "m", "two", "--snapshot", "s"]:
    subprocess.run([tuff, "volume"] + verb, check=True)
os.write(f, b"after!" * 100000)
m[:] = b"a" * (4 << 20)
"#;
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let (done, text) = run(dir, "python3", &["-c", script, tuff]);
    assert!(done, "{text}");
    // Others may not ask.
    let others = "import os\nos.setgid(65534); os.setuid(65534)\ntry:\n  os.getxattr('m', 'system.tuff.fork/x')\nexcept OSError as e:\n  exit(0)\nexit(1)";
    assert!(run(dir, "python3", &["-c", others]).0);
    let (code, message) = bad(dir, &["fork", "m", "one"]);
    assert_eq!(code, 2, "{message}");
    let (code, message) = bad(dir, &["snapshot", "delete", "m", "none"]);
    assert_eq!(code, 2, "{message}");
    good(dir, &["snapshot", "delete", "m", "s"]);
    let size = |name: &str| fs::metadata(mounted.0.join(name)).unwrap().len();
    assert_eq!(size("written"), 1_200_000);
    for branch in ["one", "two"] {
        good(dir, &["check", "--data", "--branch", branch, "v"]);
        assert!(content(dir, branch, "written").unwrap() == b"before".repeat(100_000));
        assert!(content(dir, branch, "mapped").unwrap() == vec![b'b'; 4 << 20]);
    }
    mounted.end();
    assert!(content(dir, "main", "mapped").unwrap() == vec![b'a'; 4 << 20]);
    good(dir, &["check", "--data", "v"]);
    assert_eq!(names(dir), ["main", "one", "two"]);
}

#[test]
fn a_mounted_volume_releases_what_only_a_deleted_fork_needs() {
    let place = Place::new("branches-release");
    let dir = &place.0;
    good(dir, &["import", "v", "src"]);
    if !is_live_possible() {
        return;
    }
    let Some(mounted) = Mounted::with(&place, &["--commit", "1"]) else {
        return;
    };
    let held = || {
        json(&good(dir, &["branch", "list", "--json", "v"]))["branches"][0]["held_bytes"].as_u64()
    };
    fs::write(mounted.0.join("large"), vec![7; 4 << 20]).unwrap();
    fs::File::open(mounted.0.join("large"))
        .unwrap()
        .sync_all()
        .unwrap();
    good(dir, &["fork", "m", "dev"]);
    fs::remove_file(mounted.0.join("large")).unwrap();
    let until = |holds: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(120), "{:?}", held());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until(&|| held() >= Some(4 << 20));
    good(dir, &["branch", "delete", "v", "dev"]);
    until(&|| held() == Some(0));
    mounted.end();
    good(dir, &["check", "--data", "v"]);
    assert_eq!(names(dir), ["main"]);
}

#[test]
fn snapshots_in_a_loop_under_mapped_writes_do_not_hang() {
    // T3-20, with one serving thread.
    if !is_live_possible() {
        return;
    }
    let place = Place::new("branches-loop");
    let dir = &place.0;
    let Some(mounted) = Mounted::with(&place, &["--threads", "1"]) else {
        return;
    };
    let mut file = fs::File::create(mounted.0.join("grows")).unwrap();
    let script = r#"
import mmap, os, sys
f = os.open("m/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20)
i = 0
while not os.path.exists("stop"):
    i = (i + 4096) % (1 << 20)
    m[i:i + 8] = b"stored!!"
"#;
    let stores = Command::new("python3")
        .current_dir(dir)
        .args(["-c", script])
        .spawn();
    let Ok(mut stores) = stores else {
        return tuff_testkit::skipped("a mapping needs python3");
    };
    for i in 0..20 {
        file.write_all(&[7; 10_000]).unwrap();
        let name = format!("s{i}");
        good(dir, &["snapshot", "create", "m", &name]);
        if i % 4 == 3 {
            good(dir, &["fork", "m", &format!("f{i}")]);
            good(dir, &["snapshot", "delete", "m", &name]);
        }
    }
    fs::write(dir.join("stop"), "").unwrap();
    assert!(stores.wait().unwrap().success());
    drop(file);
    mounted.end();
    for branch in names(dir) {
        good(dir, &["check", "--data", "--branch", &branch, "v"]);
    }
}
