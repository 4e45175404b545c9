//! Branches of a volume in a directory of zone files. Tests named T3-NN cover the trap of that number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_iplfs::backend::{ZoneDir, kill_after, open_branch};
use tuff_iplfs::{
    BlockDevice, Caller, CheckOptions, Error, FormatOptions, Geometry, MountOptions, Nid, Time,
    Volume, branches, check, delete_branch, fork, forks_left, mode, promote_branch,
    rollback_branch,
};
use tuff_testkit::Rng;

const NOW: Time = Time { sec: 1, nsec: 0 };
const CALLER: Caller = Caller {
    now: NOW,
    uid: 0,
    gid: 0,
};
const GEOMETRY: Geometry = Geometry {
    area_bits: 40,
    section_bits: 12,
    zone_bits: 6,
    pack_blocks: 16,
};

type Model = BTreeMap<String, Vec<u8>>;

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("branches-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn create(name: &str) -> PathBuf {
    let path = scratch(name);
    let options = FormatOptions {
        geometry: GEOMETRY,
        reserve_blocks: 256,
        ..FormatOptions::new([3; 16], [5; 16], 1 << 20)
    };
    Volume::format(Arc::new(ZoneDir::create(&path, 64).unwrap()), &options).unwrap();
    path
}

fn options() -> MountOptions {
    MountOptions {
        window_blocks: 512,
        journal_max: 8,
        ..MountOptions::default()
    }
}

fn mount(path: &Path, branch: &str) -> Volume {
    Volume::mount(open_branch(path, Some(branch), false).unwrap(), options()).unwrap()
}

fn write(v: &mut Volume, name: &str, bytes: &[u8]) {
    let ino = match v.lookup(Nid::ROOT, name.as_bytes()) {
        Ok(ino) => ino,
        Err(_) => {
            let made = v.create(Nid::ROOT, name.as_bytes(), mode::FILE | 0o644, 0, &CALLER);
            made.unwrap().ino
        }
    };
    v.write(ino, 0, bytes, NOW).unwrap();
}

fn remove(v: &mut Volume, name: &str) {
    v.unlink(Nid::ROOT, name.as_bytes(), &CALLER).unwrap();
}

fn content(v: &mut Volume) -> Model {
    let entries = v.read_dir(Nid::ROOT, 2, usize::MAX).unwrap();
    entries
        .into_iter()
        .map(|entry| {
            let bytes = v.read(entry.ino, 0, 1 << 20).unwrap();
            (String::from_utf8(entry.name).unwrap(), bytes)
        })
        .collect()
}

/// Blocks that zone files hold, by address.
fn held(path: &Path) -> BTreeSet<u64> {
    let dirs = std::fs::read_dir(path.join("regions")).map_or(Vec::new(), |dirs| {
        dirs.map(|dir| dir.unwrap().path()).collect()
    });
    let mut blocks = BTreeSet::new();
    for dir in dirs.into_iter().chain([path.join("zones")]) {
        for file in std::fs::read_dir(dir).unwrap() {
            let file = file.unwrap();
            let zone = u64::from_str_radix(file.file_name().to_str().unwrap(), 16).unwrap();
            let bytes = std::fs::read(file.path()).unwrap();
            for (at, block) in bytes.chunks(4096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    blocks.insert(zone * 64 + at as u64);
                }
            }
        }
    }
    // Superblocks and packs of the first branch.
    let fixed = GEOMETRY.fixed_end();
    blocks.retain(|addr| *addr >= fixed && *addr != 7 << GEOMETRY.area_bits);
    blocks
}

/// Drains every branch that has a name, checks it, and compares the blocks that zone files hold with those that a
/// branch, a snapshot or a fork point refers to.
fn exact(path: &Path) {
    let mut reachable = BTreeSet::new();
    for info in branches(path).unwrap() {
        let Some(name) = info.name else { continue };
        let mut v = mount(path, &name);
        v.drain().unwrap();
        v.unmount().unwrap();
    }
    for info in branches(path).unwrap() {
        let dev = match &info.name {
            Some(name) => open_branch(path, Some(name), true).unwrap(),
            None => continue,
        };
        let options = CheckOptions {
            data: true,
            ..CheckOptions::default()
        };
        let report = check(&dev, options).unwrap();
        assert!(
            report.findings.is_empty(),
            "{:?}: {:?}",
            info.name,
            report.findings
        );
        assert!(
            report.leaked.is_empty(),
            "{:?}: {:x?}",
            info.name,
            report.leaked
        );
        reachable.extend(report.reachable);
    }
    let all_named = branches(path)
        .unwrap()
        .iter()
        .all(|info| info.name.is_some());
    let found = held(path);
    let missing: Vec<_> = reachable
        .iter()
        .filter(|addr| !found.contains(addr) && **addr >= GEOMETRY.fixed_end())
        .collect();
    assert!(missing.is_empty(), "reachable but not held: {missing:x?}");
    if all_named {
        let leaked: Vec<_> = found.difference(&reachable).collect();
        assert!(leaked.is_empty(), "held but not reachable: {leaked:x?}");
    }
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn a_fork_and_its_parent_are_written_independently() {
    let path = create("independent");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    write(&mut v, "b", &[2; 9000]);
    v.unmount().unwrap();
    fork(&path, None, "child", None, NOW).unwrap();
    let (mut parent, mut child) = (mount(&path, "main"), mount(&path, "child"));
    assert_eq!(content(&mut child), content(&mut parent));
    write(&mut parent, "a", &[3; 9000]);
    remove(&mut parent, "b");
    write(&mut child, "c", &[4; 5000]);
    write(&mut child, "b", &[5; 9000]);
    parent.drain().unwrap();
    child.drain().unwrap();
    let want = |files: &[(&str, u8, usize)]| -> Model {
        let files = files.iter();
        files
            .map(|(name, byte, len)| (name.to_string(), vec![*byte; *len]))
            .collect()
    };
    assert_eq!(content(&mut parent), want(&[("a", 3, 9000)]));
    let in_child = want(&[("a", 1, 9000), ("b", 5, 9000), ("c", 4, 5000)]);
    assert_eq!(content(&mut child), in_child);
    parent.unmount().unwrap();
    child.unmount().unwrap();
    exact(&path);
    delete_branch(&path, "child").unwrap();
    exact(&path);
    let mut parent = mount(&path, "main");
    assert_eq!(parent.space().held, 0);
    assert_eq!(content(&mut parent), want(&[("a", 3, 9000)]));
}

#[test]
fn t3_14_branches_are_deleted_in_any_order_after_a_promote() {
    // A→B→C, C promoted: every order in which the other two, and then the rest, can go.
    for order in [["b", "main-1"], ["main-1", "b"]] {
        for snapshots in [false, true] {
            let path = create(&format!("order-{}-{snapshots}", order[0]));
            let mut a = mount(&path, "main");
            write(&mut a, "a", &[1; 40_000]);
            write(&mut a, "dead", &[1; 40_000]);
            if snapshots {
                a.snapshot("s", NOW).unwrap();
            }
            a.unmount().unwrap();
            fork(&path, None, "b", None, NOW).unwrap();
            let mut a = mount(&path, "main");
            write(&mut a, "a", &[9; 40_000]);
            a.unmount().unwrap();
            let mut b = mount(&path, "b");
            write(&mut b, "b", &[2; 40_000]);
            remove(&mut b, "dead");
            if snapshots {
                b.snapshot("s", NOW).unwrap();
                write(&mut b, "b2", &[2; 40_000]);
            }
            b.unmount().unwrap();
            fork(&path, Some("b"), "c", None, NOW).unwrap();
            let mut c = mount(&path, "c");
            write(&mut c, "c", &[3; 40_000]);
            remove(&mut c, "b");
            let want = content(&mut c);
            c.unmount().unwrap();
            exact(&path);
            assert_eq!(promote_branch(&path, "c").unwrap(), "main-1");
            for name in order {
                delete_branch(&path, name).unwrap();
                exact(&path);
                let mut main = mount(&path, "main");
                assert_eq!(content(&mut main), want);
                main.unmount().unwrap();
            }
            // The ancestors stay without names, and hold only what C reads.
            let infos = branches(&path).unwrap();
            assert_eq!(infos.len(), 3, "{infos:?}");
            fork(&path, None, "d", None, NOW).unwrap();
            promote_branch(&path, "d").unwrap();
            delete_branch(&path, "main-1").unwrap();
            let mut main = mount(&path, "main");
            assert_eq!(content(&mut main), want);
            // D rewrites everything, and its ancestors hold the same blocks still.
            for name in want.keys() {
                write(&mut main, name, &[7; 40_000]);
            }
            main.unmount().unwrap();
            exact(&path);
        }
    }
}

#[test]
fn t3_10_a_parent_that_cleans_up_keeps_what_its_child_reads() {
    let path = create("parent-cleans");
    let mut v = mount(&path, "main");
    for n in 0..30 {
        write(&mut v, &format!("file {n}"), &[n + 1; 9000]);
    }
    v.snapshot("one", NOW).unwrap();
    for n in 0..10 {
        write(&mut v, &format!("file {n}"), &[100 + n; 9000]);
    }
    v.snapshot("two", NOW).unwrap();
    let of_present = content(&mut v);
    v.unmount().unwrap();
    fork(&path, None, "old", Some("one"), NOW).unwrap();
    fork(&path, None, "new", None, NOW).unwrap();
    let mut v = mount(&path, "main");
    for n in 0..30 {
        write(&mut v, &format!("file {n}"), &[200 + n; 9000]);
    }
    v.delete_snapshot("two").unwrap();
    v.delete_snapshot("one").unwrap();
    for n in 0..20 {
        remove(&mut v, &format!("file {n}"));
    }
    assert_eq!(v.trim().unwrap(), 0);
    v.drain().unwrap();
    v.unmount().unwrap();
    exact(&path);
    assert_eq!(content(&mut mount(&path, "new")), of_present);
    let mut old = mount(&path, "old");
    for n in 0..30u8 {
        assert_eq!(content(&mut old)[&format!("file {n}")], [n + 1; 9000]);
    }
    old.unmount().unwrap();
    delete_branch(&path, "new").unwrap();
    exact(&path);
    delete_branch(&path, "old").unwrap();
    exact(&path);
    assert_eq!(mount(&path, "main").space().held, 0);
}

#[test]
fn t3_17_a_name_and_a_number_are_never_those_of_a_dead_branch() {
    let path = create("same-name");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.unmount().unwrap();
    let mut numbers = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    for round in 0..60u8 {
        fork(&path, None, "same", None, NOW).unwrap();
        let number = branches(&path).unwrap()[1].number;
        assert!(numbers.insert(number), "number {number} returned");
        let mut v = mount(&path, "same");
        write(&mut v, "a", &[round + 1; 9000]);
        write(&mut v, "b", &[round + 1; 9000]);
        v.unmount().unwrap();
        let of_main: BTreeSet<u64> = held(&path)
            .into_iter()
            .filter(|addr| addr & (1 << 40) - 1 >= 1 << 28)
            .collect();
        assert!(of_main.is_disjoint(&addresses));
        addresses.extend(of_main);
        let mut v = mount(&path, "same");
        assert_eq!(content(&mut v)["b"], [round + 1; 9000]);
        v.unmount().unwrap();
        delete_branch(&path, "same").unwrap();
    }
    exact(&path);
}

#[test]
fn nothing_of_a_dead_fork_remains() {
    let path = create("thousand");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.unmount().unwrap();
    fork(&path, None, "x", None, NOW).unwrap();
    delete_branch(&path, "x").unwrap();
    let before = files(&path);
    let left = forks_left(&path).unwrap();
    for _ in 0..200 {
        fork(&path, None, "x", None, NOW).unwrap();
        delete_branch(&path, "x").unwrap();
    }
    assert_eq!(files(&path), before);
    assert_eq!(forks_left(&path).unwrap(), left - 200);
    exact(&path);
}

#[test]
fn t3_15_a_long_lineage_is_read_and_deleted_from_either_end() {
    let path = create("deep");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.unmount().unwrap();
    let name = |n: usize| {
        if n == 0 {
            "main".to_owned()
        } else {
            format!("b{n}")
        }
    };
    for n in 0..100 {
        fork(&path, Some(&name(n)), &name(n + 1), None, NOW).unwrap();
    }
    let mut last = mount(&path, &name(100));
    assert_eq!(content(&mut last)["a"], [1; 9000]);
    last.unmount().unwrap();
    // From the oldest on, and then from the newest.
    for n in (1..50).chain((50..=100).rev()) {
        delete_branch(&path, &name(n)).unwrap();
    }
    assert_eq!(branches(&path).unwrap().len(), 1);
    exact(&path);
}

#[test]
fn t3_18_rollback_promote_and_delete_are_refused_while_mounted() {
    let path = create("refused");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.snapshot("s", NOW).unwrap();
    write(&mut v, "a", &[2; 9000]);
    write(&mut v, "b", &[2; 9000]);
    v.unmount().unwrap();
    fork(&path, None, "x", None, NOW).unwrap();
    let main = mount(&path, "main");
    let x = mount(&path, "x");
    let infos = branches(&path).unwrap();
    assert!(infos.iter().all(|info| info.is_mounted), "{infos:?}");
    let busy = |result: Result<(), Error>, name: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(&format!("'{name}'")), "{text}");
        assert!(text.contains("mounted"), "{text}");
    };
    busy(
        rollback_branch(&path, "main", "s", false, NOW).map(drop),
        "main",
    );
    busy(promote_branch(&path, "x").map(drop), "x");
    busy(delete_branch(&path, "x"), "x");
    busy(fork(&path, None, "y", None, NOW), "main");
    x.unmount().unwrap();
    busy(promote_branch(&path, "x").map(drop), "main");
    main.unmount().unwrap();
    let kept = rollback_branch(&path, "main", "s", false, NOW).unwrap();
    assert_eq!(kept.as_deref(), Some("main-1"));
    let mut v = mount(&path, "main");
    assert_eq!(
        content(&mut v),
        Model::from([("a".to_owned(), vec![1; 9000])])
    );
    v.unmount().unwrap();
    let mut v = mount(&path, "main-1");
    assert_eq!(content(&mut v)["b"], [2; 9000]);
    assert_eq!(v.snapshots().len(), 1);
    v.unmount().unwrap();
    assert!(delete_branch(&path, "main").is_err());
    exact(&path);
    // Back again, without what is left.
    assert_eq!(
        rollback_branch(&path, "main-1", "s", true, NOW).unwrap(),
        None
    );
    delete_branch(&path, "x").unwrap();
    exact(&path);
}

#[test]
fn t3_16_many_forks_cost_the_parent_nothing() {
    let path = create("many");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.unmount().unwrap();
    let appended = |path: &Path| {
        let mut v = mount(path, "main");
        let before = v.stats();
        write(&mut v, "a", &[2; 9000]);
        v.sync().unwrap();
        let after = v.stats();
        v.unmount().unwrap();
        let sum = |s: &tuff_iplfs::Stats| s.appended_blocks.iter().sum::<u64>() + s.pack_blocks;
        sum(&after) - sum(&before)
    };
    fork(&path, None, "first", None, NOW).unwrap();
    let before = appended(&path);
    for n in 0..150 {
        fork(&path, None, &format!("fork {n}"), None, NOW).unwrap();
    }
    assert_eq!(appended(&path), before);
}
