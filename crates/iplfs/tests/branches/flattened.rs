//! Flattened branches.

use crate::accepts;
use crate::branch_fixture::{
    CALLER, GEOMETRY, Model, NOW, contents, copy, create, exact, held, mount, options, remove,
    scratch, write,
};
use crate::flatten;
use crate::power_cut::PowerCut;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tuff_iplfs::backend::{ZoneDir, kill_after, open_branch};
use tuff_iplfs::{
    Allocate, Attr, BranchInfo, FormatOptions, Limit, Nid, SetXattr, Subject, Volume, branches,
    delete_branch, flatten_branch, fork, mode, promote_branch,
};
use tuff_testkit::Rng;

#[test]
fn t3_11_blocks_that_are_dead_in_parent_and_child_are_shown_and_released() {
    let path = create("dead-in-both");
    let mut v = mount(&path, "main");
    write(&mut v, "large", &[1; 1 << 20]);
    v.unmount().unwrap();
    fork(&path, None, "x", None, NOW).unwrap();
    for name in ["main", "x"] {
        let mut v = mount(&path, name);
        remove(&mut v, "large");
        v.unmount().unwrap();
    }
    let info = |name: &str| {
        let infos = branches(&path).unwrap().into_iter();
        infos
            .into_iter()
            .find(|info| info.name.as_deref() == Some(name))
            .unwrap()
    };
    assert!(info("main").held_blocks >= 256, "{:?}", info("main"));
    assert!(info("x").shared_blocks < 16, "{:?}", info("x"));
    let before = held(&path).len();
    delete_branch(&path, "x").unwrap();
    assert_eq!(info("main").held_blocks, 0);
    assert!(held(&path).len() + 256 <= before);
    exact(&path);
}

/// Forks `x` from `main`, which has `of_x`. Both overwrite a half of a file of 4 MiB and delete another one.
fn dead_in_both(path: &Path) -> BTreeMap<String, Model> {
    let mut v = mount(path, "main");
    write(&mut v, "overwritten", &vec![1; 4 << 20]);
    write(&mut v, "deleted", &vec![2; 400_000]);
    write(&mut v, "kept", &[3; 100_000]);
    v.unmount().unwrap();
    fork(path, None, "x", None, NOW).unwrap();
    for (name, byte) in [("main", 4), ("x", 5)] {
        let mut v = mount(path, name);
        write(&mut v, "overwritten", &vec![byte; 2 << 20]);
        remove(&mut v, "deleted");
        v.unmount().unwrap();
    }
    contents(path)
}

fn info(path: &Path, name: &str) -> BranchInfo {
    let mut infos = branches(path).unwrap().into_iter();
    let found = infos.find(|info| info.name.as_deref() == Some(name));
    found.unwrap()
}

#[test]
fn t3_11_a_flattened_branch_needs_no_parent_and_the_parent_releases_what_was_dead() {
    let path = create("flatten");
    let want = dead_in_both(&path);
    let dead = (2 << 20) / 4096 + 97;
    assert!(info(&path, "main").held_blocks >= dead);
    let shared = info(&path, "x").shared_blocks;
    assert!(shared >= 537, "{shared}");
    let before = held(&path).len() as u64;
    let mut last = 0;
    let copied = flatten_branch(&path, "x", &mut |done, total| {
        assert!(last <= done && done <= total && total == shared);
        last = done;
    });
    assert_eq!(copied.unwrap(), Some(shared));
    let x = info(&path, "x");
    assert_eq!((x.parent, x.shared_blocks, x.forked_at), (None, 0, None));
    let main = info(&path, "main");
    assert_eq!((main.held_blocks, main.children), (0, 0));
    // The blocks that both still have are there twice.
    assert!(held(&path).len() as u64 + dead <= before + shared + 16);
    assert!(contents(&path) == want);
    exact(&path);
    assert_eq!(flatten(&path, "x").unwrap(), None);
    assert_eq!(flatten(&path, "main").unwrap(), None);
    // The first branch can go entirely.
    promote_branch(&path, "x").unwrap();
    delete_branch(&path, "main-1").unwrap();
    assert_eq!(branches(&path).unwrap().len(), 1);
    assert_eq!(std::fs::read_dir(path.join("zones")).unwrap().count(), 0);
    fork(&path, None, "y", None, NOW).unwrap();
    assert!(contents(&path)["y"] == want["x"]);
    exact(&path);
    flatten(&path, "y").unwrap();
    delete_branch(&path, "y").unwrap();
    exact(&path);
    assert!(contents(&path)["main"] == want["x"]);
}

#[test]
fn t3_11_a_flatten_that_is_killed_at_any_step_continues() {
    let template = create("flatten-killed-template");
    let want = dead_in_both(&template);
    let path = scratch("flatten-killed");
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Parent {
        Unmounted,
        Mounted,
        Deleted,
    }
    for parent in [Parent::Unmounted, Parent::Mounted, Parent::Deleted] {
        for steps in 0.. {
            copy(&template, &path);
            let mut mounted = None;
            match parent {
                Parent::Unmounted => {}
                Parent::Mounted => mounted = Some(mount(&path, "main")),
                Parent::Deleted => {
                    promote_branch(&path, "x").unwrap();
                    delete_branch(&path, "main-1").unwrap();
                }
            }
            let name = match parent {
                Parent::Deleted => "main",
                _ => "x",
            };
            kill_after(Some(steps));
            let result = flatten(&path, name);
            let left = kill_after(None);
            let what = format!("{parent:?}, {steps} steps");
            match left {
                Some(0) => {}
                _ => drop(result.unwrap()),
            }
            flatten(&path, name).unwrap_or_else(|e| panic!("{what}: {e}"));
            let flat = info(&path, name);
            assert_eq!((flat.parent, flat.shared_blocks), (None, 0), "{what}");
            if let Some(mut v) = mounted {
                v.release_forks().unwrap();
                assert_eq!(v.space().held, 0, "{what}");
                v.unmount().unwrap();
            }
            let shown = contents(&path);
            assert!(shown[name] == want["x"], "{what}");
            let of_main = match parent {
                Parent::Deleted => want.get("x"),
                _ => want.get("main"),
            };
            assert!(shown.get("main") == of_main, "{what}");
            let all = branches(&path).unwrap();
            assert_eq!(all.len(), shown.len(), "{what}: {all:?}");
            assert!(all.iter().all(|info| info.held_blocks == 0), "{what}");
            exact(&path);
            if left != Some(0) {
                assert!(steps > 8, "{what}");
                break;
            }
        }
    }
}

#[test]
fn t3_11_a_flatten_that_loses_power_at_any_write_continues() {
    let template = create("flatten-cut-template");
    let want = dead_in_both(&template);
    let path = scratch("flatten-cut");
    let mut rng = Rng::new(7);
    for writes in (0..).step_by(3) {
        copy(&template, &path);
        let dev = open_branch(&path, Some("x"), false).unwrap();
        let dev = Arc::new(PowerCut::new(dev, writes));
        let done = Volume::mount(dev.clone(), options()).and_then(|mut v| {
            v.flatten(&mut |_, _| {})?;
            v.unmount()
        });
        dev.cut(&mut rng);
        drop(dev);
        assert!(contents(&path) == want, "{writes} writes");
        exact(&path);
        flatten(&path, "x").unwrap();
        assert_eq!(info(&path, "main").held_blocks, 0, "{writes} writes");
        assert!(contents(&path) == want, "{writes} writes");
        exact(&path);
        if done.is_ok() {
            assert!(writes > 20, "{writes} writes");
            break;
        }
    }
}

#[test]
fn a_flattened_branch_keeps_holes_reservations_names_attributes_and_limits() {
    let path = create("flatten-kinds");
    let mut v = mount(&path, "main");
    let make = |v: &mut Volume, dir: Nid, name: &str, mode: u32| {
        v.create(dir, name.as_bytes(), mode, 0, &CALLER)
            .unwrap()
            .ino
    };
    let dir = make(&mut v, Nid::ROOT, "dir", mode::DIR | 0o755);
    for n in 0..700 {
        make(
            &mut v,
            dir,
            &format!("a file with a long name {n}"),
            mode::FILE | 0o644,
        );
    }
    let sparse = make(&mut v, dir, "sparse", mode::FILE | 0o644);
    // In the inode, and under direct, indirect and double indirect nodes.
    let places = [0, 300, 900, 2000, 700_000];
    for place in places {
        v.write(sparse, place * 4096, &[7; 9000], NOW).unwrap();
    }
    v.fallocate(sparse, Allocate::Reserve, 5000 * 4096, 8192, NOW)
        .unwrap();
    v.link(sparse, Nid::ROOT, b"hard", &CALLER).unwrap();
    let inline = make(&mut v, dir, "inline", mode::FILE | 0o644);
    v.write(inline, 0, b"short", NOW).unwrap();
    for len in [10, 3000] {
        let name = format!("user.{len}");
        v.set_xattr(inline, name.as_bytes(), &vec![1; len], SetXattr::Any, NOW)
            .unwrap();
    }
    let user = Subject::User(0);
    let limit = Limit {
        blocks: Some(5000),
        inodes: Some(1000),
    };
    v.set_quota(user, limit, NOW).unwrap();
    let orphan = make(&mut v, Nid::ROOT, "orphan", mode::FILE | 0o644);
    v.write(orphan, 0, &[9; 100_000], NOW).unwrap();
    v.hold(orphan).unwrap();
    remove(&mut v, "orphan");
    // A mount frees inodes without a name in the child, too.
    v.fork("x", None, NOW).unwrap();
    v.unmount().unwrap();
    type Shown = (Vec<u8>, Vec<Attr>, Vec<Vec<u8>>, Vec<u64>, String);
    let shown = |v: &mut Volume| -> Shown {
        let bytes = places.map(|place| v.read(sparse, place * 4096, 10_000).unwrap());
        let attrs = [dir, sparse, inline].map(|ino| v.attr(ino).unwrap());
        let xattrs = ["user.10", "user.3000"].map(|n| v.get_xattr(inline, n.as_bytes()).unwrap());
        let holes = (0..1200).map(|n| v.seek_data(sparse, n * 4096).unwrap());
        let holes = holes.collect();
        let quotas = format!("{:?}", v.quotas());
        assert_eq!(v.lookup(Nid::ROOT, b"hard").unwrap(), sparse);
        assert_eq!(v.read_dir(dir, 2, usize::MAX).unwrap().len(), 702);
        (
            bytes.concat(),
            attrs.to_vec(),
            xattrs.to_vec(),
            holes,
            quotas,
        )
    };
    let mut v = mount(&path, "x");
    let want = shown(&mut v);
    v.unmount().unwrap();
    let copied = flatten(&path, "x").unwrap().unwrap();
    assert!(copied > 700, "{copied}");
    exact(&path);
    delete_branch_after_promote(&path);
    let mut v = mount(&path, "main");
    assert!(shown(&mut v) == want);
    v.unmount().unwrap();
    exact(&path);
}

/// Makes `x` the only branch.
fn delete_branch_after_promote(path: &Path) {
    promote_branch(path, "x").unwrap();
    delete_branch(path, "main-1").unwrap();
    assert_eq!(branches(path).unwrap().len(), 1);
}

#[test]
fn a_flatten_that_cannot_be_is_one_sentence_and_changes_nothing() {
    let path = create("flatten-refused");
    let mut want = dead_in_both(&path);
    let refused = |branch: &str, words: &[&str]| {
        let text = flatten(&path, branch).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let mut x = mount(&path, "x");
    refused("x", &["'x'", "mounted"]);
    x.snapshot("s", NOW).unwrap();
    x.unmount().unwrap();
    refused("x", &["'s'", "delete it"]);
    refused("none", &["'none'"]);
    fork(&path, Some("x"), "y", None, NOW).unwrap();
    let mut x = mount(&path, "x");
    x.delete_snapshot("s").unwrap();
    x.unmount().unwrap();
    refused("x", &["'y'", "flatten or delete"]);
    fork(&path, Some("y"), "z", None, NOW).unwrap();
    delete_branch(&path, "y").unwrap();
    refused("x", &["number", "flatten or delete"]);
    flatten(&path, "z").unwrap();
    assert_eq!(branches(&path).unwrap().len(), 3);
    flatten(&path, "x").unwrap();
    want.insert("z".to_owned(), want["x"].clone());
    assert!(contents(&path) == want);
    exact(&path);
    // A snapshot that needs only blocks of the branch stays.
    let mut x = mount(&path, "x");
    x.snapshot("own", NOW).unwrap();
    x.unmount().unwrap();
    fork(&path, Some("x"), "w", None, NOW).unwrap();
    let mut w = mount(&path, "w");
    w.flatten(&mut |_, _| {}).unwrap();
    w.snapshot("own", NOW).unwrap();
    w.unmount().unwrap();
    assert_eq!(flatten(&path, "w").unwrap(), Some(0));
    exact(&path);
}

#[test]
fn a_flatten_without_space_for_the_copies_copies_nothing() {
    let path = scratch("flatten-full");
    let format = FormatOptions {
        geometry: GEOMETRY,
        reserve_blocks: 256,
        ..FormatOptions::new([3; 16], [5; 16], 4096)
    };
    Volume::format(Arc::new(ZoneDir::create(&path, 64).unwrap()), &format).unwrap();
    let want = dead_in_both(&path);
    let mut v = mount(&path, "main");
    let mut n = 0;
    while accepts(&mut v, &format!("fill {n}"), &[1; 200_000]) {
        n += 1;
    }
    v.unmount().unwrap();
    let shared = info(&path, "x").shared_blocks;
    let text = flatten(&path, "x").unwrap_err().to_string();
    assert!(text.contains("KiB for copies"), "{text}");
    let x = info(&path, "x");
    assert_eq!((x.parent, x.shared_blocks), (Some(0), shared));
    exact(&path);
    let mut v = mount(&path, "main");
    for n in 0..n {
        remove(&mut v, &format!("fill {n}"));
    }
    v.drain().unwrap();
    v.unmount().unwrap();
    flatten(&path, "x").unwrap();
    assert!(contents(&path) == want);
    exact(&path);
}
