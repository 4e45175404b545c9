//! Backup stores: what is restored, compared and mounted. Names begin with the numbers of mistakes of other programs.

use crate::common::{Place, code, skipped, stderr};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_testkit::tree::{Ignore, assert_same, host_tree};

/// Runs a program that must succeed, or returns false if it is missing.
fn has_run(place: &Place, program: &str, args: &[&str]) -> bool {
    let run = Command::new(program)
        .args(args)
        .current_dir(&place.0)
        .output();
    match run {
        Ok(out) => {
            assert!(out.status.success(), "{program} {args:?}: {}", stderr(&out));
            true
        }
        Err(_) => false,
    }
}

/// Real path of a file in the place.
fn real(place: &Place, path: &str) -> PathBuf {
    fs::canonicalize(&place.0).unwrap().join(path)
}

/// Path of a file of the place below a directory to which it was restored.
fn restored(place: &Place, target: &str, path: &str) -> PathBuf {
    place
        .path(target)
        .join(real(place, path).strip_prefix("/").unwrap())
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn b12_the_parent_is_printed_and_does_not_depend_on_the_host() {
    let place = Place::new("b12");
    write(&place.path("a/file"), "text");
    write(&place.path("b/file"), "text");
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let first = place.text(&["backup", "--series", "home", "a", "b", "store"]);
    assert!(first.contains("compared     with none"), "{first}");
    let second = place.text(&["backup", "--series", "home", "./b/", "a/../a", "store"]);
    assert!(
        second.contains("compared     with snapshot 1\n"),
        "{second}"
    );
    assert!(second.contains("files        2, 0 read\n"), "{second}");
    let script = "hostname other-host && exec \"$0\" backup --series home a b store";
    let mut other = Command::new("unshare");
    other.args(["--uts", "sh", "-c", script, env!("CARGO_BIN_EXE_tuff")]);
    match other.current_dir(&place.0).output() {
        Ok(out) if out.status.success() => {
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(text.contains("compared     with snapshot 2\n"), "{text}");
            assert!(text.contains("files        2, 0 read\n"), "{text}");
        }
        _ => skipped("another host name needs root and unshare"),
    }
}

/// B16: names are bytes. What `store diff` prints can be pasted into `store restore`.
#[test]
fn b16_printed_names_are_restored() {
    let place = Place::new("b16");
    fs::create_dir(place.path("source")).unwrap();
    place.text(&["backup", "-q", "source", "store"]);
    let names: [&[u8]; 8] = [
        b"a\xfe",
        b"a\xff",
        b"new\nline",
        b"back\\slash",
        b"back\\\\slash",
        b"\\xff",
        b"\xff",
        "\u{202e}".as_bytes(),
    ];
    for name in names {
        fs::write(place.path("source").join(OsStr::from_bytes(name)), name).unwrap();
    }
    place.text(&["backup", "-q", "source", "store"]);
    let out = place.run(&["store", "diff", "store"]);
    assert_eq!(code(&out), 1);
    let text = String::from_utf8(out.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("+ "));
    let printed: Vec<&str> = lines
        .map(|line| line.strip_suffix(" (file)").unwrap())
        .collect();
    assert_eq!(printed.len(), names.len(), "{text}");
    let mut found = Vec::new();
    for (n, name) in printed.into_iter().enumerate() {
        let target = format!("target{n}");
        place.text(&["store", "restore", "-q", "store", &target, name]);
        let mut files = fs::read_dir(restored(&place, &target, "source")).unwrap();
        let file = files.next().unwrap().unwrap();
        assert!(files.next().is_none(), "{name}");
        assert_eq!(fs::read(file.path()).unwrap(), file.file_name().as_bytes());
        found.push(file.file_name());
    }
    let mut expected: Vec<OsString> = names
        .iter()
        .map(|name| OsString::from_vec(name.to_vec()))
        .collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    // A name as it is, which is not what is printed.
    let raw = place.path("raw");
    let mut restore = place.command(&["store", "restore", "-q", "store", "raw"]);
    restore.arg(real(&place, "source").join(OsStr::from_bytes(b"new\nline")));
    assert!(restore.status().unwrap().success());
    assert!(raw.exists());
}

/// B18: no attribute that is set undoes one that was set before.
#[test]
fn b18_attributes_survive_each_other() {
    let place = Place::new("b18");
    if !tuff_testkit::is_root() {
        return skipped("capabilities and owners need root");
    }
    write(&place.path("source/closed/file"), "text");
    for (name, mode) in [("suid", 0o6755), ("capable", 0o755), ("listed", 0o640)] {
        write(&place.path("source").join(name), "text");
        let path = place.path("source").join(name);
        chown(&path, Some(1234), Some(2345)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(
        place.path("source/closed"),
        fs::Permissions::from_mode(0o555),
    )
    .unwrap();
    let old = [
        "-d",
        "2001-02-03 04:05:06",
        "source/closed",
        "source/suid",
        "source",
    ];
    let made = has_run(&place, "setcap", &["cap_net_raw+ep", "source/capable"])
        && has_run(
            &place,
            "setfacl",
            &["-m", "u:3456:rw,m::rw", "source/listed"],
        )
        && has_run(
            &place,
            "setfattr",
            &["-n", "user.note", "-v", "text", "source/suid"],
        );
    if !made {
        return skipped("needs setcap, setfacl and setfattr");
    }
    assert!(has_run(&place, "touch", &old));
    place.text(&["backup", "-q", "source", "store"]);
    place.text(&["store", "restore", "-q", "store", "target"]);
    let (expected, found) = (
        host_tree(&place.path("source")),
        host_tree(&restored(&place, "target", "source")),
    );
    assert!(
        expected
            .iter()
            .any(|r| r.xattrs.contains_key(&b"security.capability"[..]))
    );
    assert!(
        expected
            .iter()
            .any(|r| r.xattrs.contains_key(&b"system.posix_acl_access"[..]))
    );
    let ignore = Ignore {
        dir_size: true,
        ..Ignore::default()
    };
    assert_same("restored", &expected, &found, ignore);
    let closed = restored(&place, "target", "source/closed")
        .metadata()
        .unwrap();
    assert_eq!((closed.mode() & 0o7777, closed.mtime_nsec()), (0o555, 0));
}

/// B19: any names of a file restore its content, linked among themselves. Sources may be given twice, or one within another.
#[test]
fn b19_any_subset_of_hard_links_is_restored() {
    let place = Place::new("b19");
    write(&place.path("source/a/first"), &"content ".repeat(20_000));
    for name in ["b/second", "c/third", "c/fourth"] {
        let path = place.path("source").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::hard_link(place.path("source/a/first"), path).unwrap();
    }
    place.text(&["backup", "-q", "source", "source/c", "source", "store"]);
    let content = fs::read(place.path("source/a/first")).unwrap();
    for (n, names) in [
        &["b/second"][..],
        &["c/third", "c/fourth"],
        &["a/first", "c/fourth"],
        &["c"],
    ]
    .iter()
    .enumerate()
    {
        let target = format!("target{n}");
        let mut restore = place.command(&["store", "restore", "-q", "store", &target]);
        restore.args(names.iter().map(|name| real(&place, "source").join(name)));
        let out = restore.output().unwrap();
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{names:?}");
        let files = match *names {
            ["c"] => &["c/third", "c/fourth"],
            names => names,
        };
        let mut inodes = Vec::new();
        for name in files {
            let path = restored(&place, &target, "source").join(name);
            assert_eq!(fs::read(&path).unwrap(), content, "{names:?}");
            let metadata = path.metadata().unwrap();
            assert_eq!(metadata.nlink(), files.len() as u64);
            inodes.push(metadata.ino());
        }
        inodes.dedup();
        assert_eq!(inodes.len(), 1, "{names:?}");
    }
    // The content is compared also if its first name is not restored.
    let pack = place.path("store/packs/0000.pack");
    let mut bytes = fs::read(&pack).unwrap();
    bytes.fill(0x55);
    fs::write(&pack, bytes).unwrap();
    let out = place
        .command(&["store", "restore", "-q", "store", "damaged"])
        .arg(real(&place, "source/b/second"))
        .output()
        .unwrap();
    assert_ne!(code(&out), 0);
    assert!(!restored(&place, "damaged", "source/b/second").exists());
}

/// B20: links in the target are not followed, neither those of files nor those of directories above them.
#[test]
fn b20_planted_links_lead_nowhere() {
    let place = Place::new("b20");
    write(&place.path("source/dir/file"), "saved");
    write(&place.path("source/top"), "saved");
    place.text(&["backup", "-q", "source", "store"]);
    write(&place.path("outside/dir/file"), "outside");
    write(&place.path("outside/top"), "outside");
    write(&place.path("outside/extra"), "outside");
    let before = host_tree(&place.path("outside"));
    let outside = real(&place, "outside");
    let plant = |target: &str, path: &str, to: &Path| {
        let link = restored(&place, target, path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(to, link).unwrap();
    };
    plant("file", "source/top", &outside.join("top"));
    plant("dir", "source/dir", &outside.join("dir"));
    plant("root", "source", &outside);
    // Above the saved directory: it stays, and nothing is restored by it.
    let above = place
        .path("above")
        .join(real(&place, "").strip_prefix("/").unwrap());
    fs::create_dir_all(above.parent().unwrap()).unwrap();
    symlink(&outside, &above).unwrap();
    for target in ["file", "dir", "root", "above"] {
        for delete in [&[][..], &["--delete"]] {
            let args = ["store", "restore", "-q", "--overwrite", "store", target];
            let out = place.run(&[&args[..], delete].concat());
            assert_eq!(
                code(&out) != 0,
                target == "above",
                "{target}: {}",
                stderr(&out)
            );
            assert_same(
                target,
                &before,
                &host_tree(&place.path("outside")),
                Ignore::default(),
            );
        }
        if target != "above" {
            let file = restored(&place, target, "source/dir/file");
            assert_eq!(fs::read_to_string(file).unwrap(), "saved");
        }
    }
    assert!(above.is_symlink());
}

/// B21: nothing is deleted unless asked for, and then only below what was saved; directories above stay as they are.
#[test]
fn b21_siblings_of_saved_directories_stay() {
    let place = Place::new("b21");
    write(&place.path("source/saved/file"), "saved");
    write(&place.path("source/saved/below/file"), "saved");
    place.text(&["backup", "-q", "source/saved", "store"]);
    let target = |path: &str| restored(&place, "target", path);
    let fill = || {
        write(&target("source/saved/extra"), "extra");
        write(&target("source/saved/extras/a/b"), "extra");
        write(&target("source/saved/below/extra"), "extra");
    };
    for path in ["sibling", "source/sibling", "source/saved.old/file"] {
        write(&target(path), "sibling");
    }
    write(&place.path("target/sibling"), "sibling");
    write(&place.path("elsewhere/file"), "elsewhere");
    fill();
    symlink(real(&place, "elsewhere"), target("source/saved/link")).unwrap();
    let above = [place.path("target"), target("source")];
    for path in &above {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let kept = || {
        for path in ["sibling", "source/sibling", "source/saved.old/file"] {
            assert!(target(path).is_file(), "{path}");
        }
        assert!(place.path("target/sibling").is_file());
        assert!(place.path("elsewhere/file").is_file());
        for path in &above {
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700, "{path:?}");
        }
    };
    let saved = real(&place, "source/saved");
    let (source, top) = (real(&place, "source"), PathBuf::from("/"));
    // Without being asked, nothing is deleted.
    place.text(&["store", "restore", "-q", "--overwrite", "store", "target"]);
    assert!(target("source/saved/extras/a/b").is_file());
    kept();
    for path in [None, Some(&top), Some(&source), Some(&saved)] {
        fill();
        let mut restore = place.command(&[
            "store",
            "restore",
            "--json",
            "--overwrite",
            "--delete",
            "store",
            "target",
        ]);
        let out = restore.args(path).output().unwrap();
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{path:?}");
        kept();
        let expected = host_tree(&place.path("source/saved"));
        let ignore = Ignore {
            dir_size: true,
            ..Ignore::default()
        };
        assert_same(
            "deleted",
            &expected,
            &host_tree(&target("source/saved")),
            ignore,
        );
        assert!(String::from_utf8_lossy(&out.stdout).contains("\"deleted\":"));
    }
    // Only below the path that is restored.
    fill();
    let mut restore = place.command(&[
        "store",
        "restore",
        "-q",
        "--overwrite",
        "--delete",
        "store",
        "target",
    ]);
    assert!(restore.arg(saved.join("below")).status().unwrap().success());
    assert!(target("source/saved/extra").is_file() && !target("source/saved/below/extra").exists());
    // A mount there stays.
    let mounted = target("source/saved/extras");
    let mut mount = Command::new("mount");
    if !tuff_testkit::is_root()
        || !mount
            .arg("--bind")
            .arg(real(&place, "elsewhere"))
            .arg(&mounted)
            .status()
            .unwrap()
            .success()
    {
        return skipped("bind mounts need root");
    }
    let out = place.run(&[
        "store",
        "restore",
        "-q",
        "--overwrite",
        "--delete",
        "store",
        "target",
    ]);
    assert!(
        Command::new("umount")
            .arg(&mounted)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(code(&out), 1);
    assert!(
        stderr(&out).contains("source/saved/extras: something is mounted here"),
        "{}",
        stderr(&out)
    );
    kept();
    assert!(!target("source/saved/extra").exists());
}

/// A lost file comes back to its place, without a change of the directories above it.
#[test]
fn a_path_is_restored_into_existing_directories() {
    let place = Place::new("store-lost");
    write(&place.path("source/dir/lost"), "saved");
    write(&place.path("source/dir/other"), "saved");
    place.text(&["backup", "-q", "source", "store"]);
    fs::remove_file(place.path("source/dir/lost")).unwrap();
    fs::set_permissions(place.path("source"), fs::Permissions::from_mode(0o711)).unwrap();
    write(&place.path("source/dir/other"), "edited");
    let lost = real(&place, "source/dir/lost");
    place.text(&[
        "store",
        "restore",
        "-q",
        "store",
        "/",
        lost.to_str().unwrap(),
    ]);
    assert_eq!(fs::read_to_string(lost).unwrap(), "saved");
    assert_eq!(
        fs::read_to_string(place.path("source/dir/other")).unwrap(),
        "edited"
    );
    assert_eq!(
        place.path("source").metadata().unwrap().mode() & 0o777,
        0o711
    );
}

/// The restore lists attributes that the target cannot hold.
#[test]
fn attributes_that_a_target_refuses_are_listed() {
    let place = Place::new("store-refused");
    write(&place.path("source/file"), "text");
    fs::create_dir(place.path("target")).unwrap();
    let mut mount = Command::new("mount");
    let mut mount = || {
        mount
            .args(["-t", "ramfs", "none"])
            .arg(place.path("target"))
            .status()
            .is_ok_and(|s| s.success())
    };
    if !has_run(
        &place,
        "setfattr",
        &["-n", "user.note", "-v", "text", "source/file"],
    ) || !tuff_testkit::is_root()
        || !mount()
    {
        return skipped("a filesystem without attributes needs root and setfattr");
    }
    place.text(&["backup", "-q", "source", "store"]);
    let out = place.run(&["store", "restore", "-q", "--overwrite", "store", "target"]);
    let read = fs::read_to_string(restored(&place, "target", "source/file"));
    assert!(
        Command::new("umount")
            .arg(place.path("target"))
            .status()
            .unwrap()
            .success()
    );
    assert_eq!((code(&out), read.unwrap().as_str()), (1, "text"));
    assert!(
        stderr(&out).contains("source/file: attribute user.note not restored"),
        "{}",
        stderr(&out)
    );
}

#[test]
fn excludes_are_read_from_files_and_compression_stays() {
    let place = Place::new("store-options");
    for path in [
        "keep",
        "a.tmp",
        "dir/b.tmp",
        "skip/file",
        "cache/CACHEDIR.TAG",
        "cache/file",
    ] {
        write(
            &place.path("source").join(path),
            "Signature: 8a477f597d28d172789f06886806bc55",
        );
    }
    fs::write(place.path("patterns"), "# comment\n*.tmp\n\n/skip\n").unwrap();
    let text = place.text(&[
        "backup",
        "--exclude-from",
        "patterns",
        "--exclude-caches",
        "-z",
        "lz4",
        "-C",
        "64K",
        "source",
        "store",
    ]);
    assert!(text.contains("files        2, 2 read\n"), "{text}");
    for (args, is_refused) in [
        (&["-z", "zstd:3"][..], true),
        (&["-C", "32K"], true),
        (&["-z", "lz4", "-C", "64K"], false),
        (&[], false),
    ] {
        let out = place.run(&[&["backup", "-q"][..], args, &["source", "store"]].concat());
        assert_eq!(code(&out) != 0, is_refused, "{args:?}: {}", stderr(&out));
        assert_eq!(
            stderr(&out).contains("which cannot be changed"),
            is_refused,
            "{args:?}"
        );
    }
    let out = place.run(&["backup", "-C", "5000", "source", "new"]);
    assert!(
        code(&out) != 0 && !place.path("new").exists(),
        "{}",
        stderr(&out)
    );
}

#[test]
fn snapshots_are_compared_by_their_trees() {
    let place = Place::new("store-diff");
    for path in ["same", "edited", "gone", "mode", "dir/first"] {
        write(&place.path("source").join(path), "text");
    }
    symlink("a", place.path("source/link")).unwrap();
    fs::hard_link(place.path("source/dir/first"), place.path("source/second")).unwrap();
    place.text(&["backup", "-q", "source", "store"]);
    fs::write(place.path("source/edited"), "edited").unwrap();
    fs::remove_file(place.path("source/gone")).unwrap();
    fs::set_permissions(place.path("source/mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(place.path("source/link")).unwrap();
    symlink("b", place.path("source/link")).unwrap();
    fs::write(place.path("source/dir.new"), "text").unwrap();
    fs::write(place.path("source/dir/first"), "TEXT").unwrap();
    place.text(&["backup", "-q", "source", "store"]);
    let source = real(&place, "source");
    let source = source.strip_prefix("/").unwrap().to_str().unwrap();
    let out = place.run(&["store", "diff", "store"]);
    assert_eq!(code(&out), 1);
    let text = String::from_utf8(out.stdout).unwrap();
    let has = |line: &str| {
        text.lines()
            .any(|l| l.starts_with(&line.replace("SOURCE", source)))
    };
    for line in [
        "- SOURCE/gone (file)",
        "+ SOURCE/dir.new (file)",
        "~ SOURCE/dir/first: time ",
        "~ SOURCE/second: time ",
    ] {
        assert!(has(line), "{line}: {text}");
    }
    assert!(
        text.contains("size 4 -> 6, content from byte 0\n"),
        "{text}"
    );
    assert!(
        text.contains(&format!("~ {source}/mode: mode 0644 -> 0600\n")),
        "{text}"
    );
    assert!(text.contains("target \"a\" -> \"b\"\n"), "{text}");
    assert!(!text.contains("/same"), "{text}");
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("1 added, 1 removed, "),
        "{text}"
    );
    assert_eq!(
        code(&place.run(&["store", "diff", "-q", "store", "1", "1"])),
        0
    );
    let back = place.run(&["store", "diff", "--json", "store", "2", "1"]);
    let back = String::from_utf8(back.stdout).unwrap();
    assert!(
        back.lines().last().unwrap().contains("\"added\":1"),
        "{back}"
    );
    place.text(&["backup", "-q", "source", "store"]);
    assert_eq!(place.text(&["store", "diff", "store"]), "");
    assert_eq!(code(&place.run(&["store", "diff", "-q", "store", "1"])), 1);
}

/// The script mounts the snapshot, and the kernel detaches its devices after umount(8).
#[test]
fn the_printed_script_mounts_a_snapshot() {
    let place = Place::new("store-print");
    write(&place.path("source/it's a file"), &"text ".repeat(100_000));
    place.text(&["backup", "-q", "source", "it's a store"]);
    fs::create_dir(place.path("mnt")).unwrap();
    let script = place.text(&[
        "store",
        "mount",
        "--print",
        "snapshot.erofs",
        "it's a store",
        "mnt",
    ]);
    fs::write(place.path("mount.sh"), &script).unwrap();
    if !tuff_testkit::is_root() {
        return skipped("the script needs root");
    }
    let devices = || {
        let out = Command::new("losetup").arg("--list").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let name = place.0.file_name().unwrap().to_str().unwrap().to_owned();
        text.lines().filter(|line| line.contains(&name)).count()
    };
    let run = |dir: &str| {
        let mut sh = Command::new("sh");
        let script = place.path("mount.sh");
        sh.arg("-e").arg(script).current_dir(dir).output().unwrap()
    };
    let out = run("/");
    assert!(out.status.success(), "{}\n{script}", stderr(&out));
    let mounted = restored(&place, "mnt", "source/it's a file");
    assert_eq!(
        fs::read(mounted).unwrap(),
        fs::read(place.path("source/it's a file")).unwrap()
    );
    assert_eq!(devices(), 2);
    assert!(
        Command::new("umount")
            .arg(place.path("mnt"))
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(devices(), 0);
    // A mount that fails leaves no device.
    fs::remove_dir(place.path("mnt")).unwrap();
    assert!(!run("/").status.success());
    assert_eq!(devices(), 0);
}
