//! Repair of one branch of a volume: other branches keep every byte, and nothing leaks.

mod branch_fixture;

use branch_fixture::{
    GEOMETRY, Model, NOW, Scratch, copy, create, directory, exact, files, held, mount, remove,
    scratch, write,
};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tuff_iplfs::backend::open_branch;
use tuff_iplfs::{CheckOptions, Nid, Repaired, check, delete_branch, fork, repair};

/// Makes a volume whose branches share some blocks, hold others for a fork, and have blocks and snapshots of their own.
fn two_branches(name: &str) -> Scratch {
    let path = create(name);
    let mut v = mount(&path, "main");
    for n in 0..12u8 {
        write(&mut v, &format!("file {n}"), &[n + 1; 20_000]);
    }
    v.snapshot("s", NOW).unwrap();
    write(&mut v, "file 0", &[50; 9000]);
    v.unmount().unwrap();
    fork(&path, None, "child", None, NOW).unwrap();
    let mut child = mount(&path, "child");
    // A new inode that names blocks of the parent.
    for n in 1..5 {
        write(&mut child, &format!("file {n}"), &[60; 4096]);
    }
    child.snapshot("t", NOW).unwrap();
    write(&mut child, "of the child", &[70; 9000]);
    remove(&mut child, "file 9");
    child.unmount().unwrap();
    let mut v = mount(&path, "main");
    for n in 0..4 {
        write(&mut v, &format!("file {n}"), &[80; 20_000]);
    }
    write(&mut v, "of the parent", &[90; 9000]);
    remove(&mut v, "file 8");
    v.drain().unwrap();
    v.unmount().unwrap();
    path
}

/// File and offset of a block.
fn block(path: &Path, addr: u64) -> (PathBuf, u64) {
    let name = format!("{:010x}", addr / 64);
    let found = files(path).into_iter().find(|file| {
        let fits = file.file_name().is_some_and(|found| *found == *name);
        fits && file.is_file()
    });
    (found.unwrap(), addr % 64 * 4096)
}

fn damage(path: &Path, addr: u64) {
    let (file, at) = block(path, addr);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at + 100).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at + 100).unwrap();
}

fn repaired(path: &Path, branch: &str) -> Repaired {
    let dev = open_branch(path, Some(branch), false).unwrap();
    repair(&dev, true, NOW).unwrap()
}

fn reachable(path: &Path, branch: &str) -> Vec<u64> {
    let dev = open_branch(path, Some(branch), true).unwrap();
    check(&dev, CheckOptions::default()).unwrap().reachable
}

fn findings(path: &Path, branch: &str) -> Vec<String> {
    let dev = open_branch(path, Some(branch), true).unwrap();
    let options = CheckOptions {
        data: true,
        ..CheckOptions::default()
    };
    let report = check(&dev, options).unwrap();
    assert!(report.leaked.is_empty(), "{branch}: {:x?}", report.leaked);
    report.findings.iter().map(ToString::to_string).collect()
}

/// Files that only a branch may change.
fn bytes_of(path: &Path, branch: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let own = directory(path, branch);
    let zones = match branch {
        "main" => path.join("zones"),
        _ => path.join("regions"),
    };
    let paths = files(&own).into_iter().chain(files(&zones));
    let files = paths.filter(|file| file.is_file());
    files
        .map(|file| (file.clone(), std::fs::read(file).unwrap()))
        .collect()
}

/// Content of the files of a branch that can be read.
fn readable(path: &Path, branch: &str) -> Model {
    let mut v = mount(path, branch);
    let mut shown = Model::new();
    for entry in v.read_dir(Nid::ROOT, 2, usize::MAX).unwrap() {
        if let Ok(bytes) = v.read(entry.ino, 0, 1 << 20) {
            shown.insert(String::from_utf8(entry.name).unwrap(), bytes);
        }
    }
    v.unmount().unwrap();
    shown
}

#[test]
fn a_repair_of_one_branch_leaves_the_blocks_of_others_and_leaks_nothing() {
    let template = two_branches("repair-template");
    let names = ["main", "child"];
    let before = names.map(|name| readable(&template, name));
    let needed = names.map(|name| reachable(&template, name));
    let path = scratch("repair");
    for addr in held(&template) {
        copy(&template, &path);
        damage(&path, addr);
        for (at, name) in names.into_iter().enumerate() {
            let other = names[1 - at];
            let bytes = bytes_of(&path, other);
            let done = repaired(&path, name);
            let place = format!("block {addr:#x}, {name}");
            assert!(done.left.findings.is_empty(), "{place}: {:?}", done.left);
            assert!(bytes == bytes_of(&path, other), "{place}");
            assert_eq!(findings(&path, name), [""; 0], "{place}");
            if needed[at].binary_search(&addr).is_err() {
                // A snapshot of the child has blocks of the parent.
                let mut done = done.done.iter();
                assert!(done.all(|of| of.place.starts_with("snapshot t")), "{place}");
            }
            let again = repaired(&path, name);
            assert!(again.done.is_empty(), "{place}: {:?}", again.done);
        }
        for (at, name) in names.into_iter().enumerate() {
            let after = readable(&path, name);
            let place = format!("block {addr:#x}, {name}");
            match needed[at].binary_search(&addr) {
                Err(_) => assert!(after == before[at], "{place}"),
                Ok(_) => {
                    let wrong = after.iter().find(|(file, bytes)| {
                        let known = before[at].get(*file);
                        known.is_some_and(|known| known != *bytes)
                    });
                    assert!(wrong.is_none(), "{place}: {wrong:?}");
                }
            }
        }
        exact(&path);
        delete_branch(&path, "child").unwrap();
        exact(&path);
    }
}

#[test]
fn nodes_of_a_lost_table_are_found_in_the_logs_of_the_parent() {
    for snapshot in [None, Some("s")] {
        let template = create("repair-table-template");
        let mut v = mount(&template, "main");
        for n in 0..700 {
            write(&mut v, &format!("file {n}"), format!("{n}").as_bytes());
        }
        v.snapshot("s", NOW).unwrap();
        v.unmount().unwrap();
        fork(&template, None, "middle", snapshot, NOW).unwrap();
        let mut middle = mount(&template, "middle");
        write(&mut middle, "file 1", b"middle");
        middle.snapshot("m", NOW).unwrap();
        middle.unmount().unwrap();
        fork(&template, Some("middle"), "child", None, NOW).unwrap();
        let mut child = mount(&template, "child");
        write(&mut child, "file 2", b"child");
        remove(&mut child, "file 3");
        child.unmount().unwrap();
        // Not in the child.
        let mut v = mount(&template, "main");
        write(&mut v, "file 4", b"main");
        v.unmount().unwrap();
        let names = ["child", "main", "middle"];
        let before = names.map(|name| readable(&template, name));
        let is_table = |addr: &u64| (GEOMETRY.fixed_end()..1 << 28).contains(addr);
        let tables: Vec<u64> = held(&template).into_iter().filter(is_table).collect();
        assert!(tables.len() > 2, "{tables:x?}");
        let path = scratch("repair-table");
        for addr in tables {
            copy(&template, &path);
            damage(&path, addr);
            for (name, before) in names.iter().zip(&before) {
                let done = repaired(&path, name);
                assert!(done.left.findings.is_empty(), "{addr:#x}: {:?}", done.left);
                assert!(readable(&path, name) == *before, "{addr:#x}: {name}");
            }
            exact(&path);
            let mut main = mount(&path, "main");
            main.delete_snapshot("s").unwrap();
            main.unmount().unwrap();
            exact(&path);
            // Its state, which stays for its child, is damaged, and nobody mounts it.
            delete_branch(&path, "middle").unwrap();
            delete_branch(&path, "child").unwrap();
            exact(&path);
        }
    }
}

#[test]
fn a_repair_of_sound_branches_finds_nothing() {
    let path = two_branches("repair-sound");
    fork(&path, Some("child"), "new", None, NOW).unwrap();
    let names = ["main", "child", "new"];
    let before = names.map(|name| readable(&path, name));
    // The first checkpoint of a fork has no other one before it.
    fork(&path, None, "first", None, NOW).unwrap();
    for name in ["first", "new", "main", "child"] {
        let done = repaired(&path, name);
        assert!(done.done.is_empty(), "{name}: {:?}", done.done);
        assert!(done.left.findings.is_empty(), "{name}: {:?}", done.left);
    }
    assert!(names.map(|name| readable(&path, name)) == before);
    exact(&path);
}
