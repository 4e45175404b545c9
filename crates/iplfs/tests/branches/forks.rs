//! Forks: what they share, their names and numbers, and the limits of the address space.

use crate::branch_fixture::{
    GEOMETRY, Model, NOW, content, create, create_with, exact, held, mount, options, remove,
    scratch, write,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tuff_iplfs::backend::{ZoneDir, open_branch};
use tuff_iplfs::{
    FormatOptions, Geometry, MountOptions, Nid, Volume, branches, delete_branch, fork, forks_left,
};

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
            .filter(|addr| addr & ((1 << 40) - 1) >= 1 << 28)
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

/// Forks of forks, `depth` of them. They are deleted from the oldest to `middle`, and then from the newest.
fn long_lineage(depth: usize, middle: usize) {
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
    for n in 0..depth {
        fork(&path, Some(&name(n)), &name(n + 1), None, NOW).unwrap();
    }
    let mut last = mount(&path, &name(depth));
    assert_eq!(content(&mut last)["a"], [1; 9000]);
    last.unmount().unwrap();
    for n in (1..middle).chain((middle..=depth).rev()) {
        delete_branch(&path, &name(n)).unwrap();
    }
    assert_eq!(branches(&path).unwrap().len(), 1);
    exact(&path);
}

#[test]
fn t3_15_a_long_lineage_is_read_and_deleted_from_either_end() {
    long_lineage(100, 50);
}

#[test]
#[ignore = "two thousand forks of forks: minutes"]
fn t3_15_a_lineage_of_two_thousand_forks_is_read_and_deleted() {
    long_lineage(2000, 1000);
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

#[test]
fn a_log_at_the_end_of_its_region_continues_in_another() {
    let path = create("next-region");
    fork(&path, None, "x", None, NOW).unwrap();
    for name in ["main", "x"] {
        // Each recovery moves the heads by two windows of an eighth of a region.
        let wide = MountOptions {
            window_blocks: 1 << 25,
            ..options()
        };
        let mut last = 0;
        for round in 1..=16u8 {
            let dev = open_branch(&path, Some(name), false).unwrap();
            let mut v = Volume::mount(dev, wide.clone()).unwrap();
            if round > 1 {
                assert_eq!(content(&mut v)["a"], [round - 1; 9000], "{name}");
            }
            write(&mut v, "a", &[round; 9000]);
            let ino = v.lookup(Nid::ROOT, b"a").unwrap();
            v.sync().unwrap();
            write(&mut v, "a", &[round; 9000]);
            v.fsync(ino).unwrap();
            last = forks_left(&path).unwrap();
            // Not unmounted: the next mount recovers.
        }
        let mut v = mount(&path, name);
        assert_eq!(content(&mut v)["a"], [16; 9000]);
        v.unmount().unwrap();
        assert!(last < GEOMETRY.regions() - 8, "{name}: {last} left");
    }
    exact(&path);
    fork(&path, Some("x"), "y", None, NOW).unwrap();
    delete_branch(&path, "x").unwrap();
    let mut y = mount(&path, "y");
    assert_eq!(content(&mut y)["a"], [16; 9000]);
    y.unmount().unwrap();
    delete_branch(&path, "y").unwrap();
    exact(&path);
}

#[test]
fn the_last_fork_is_refused_by_a_sentence() {
    let geometry = Geometry {
        area_bits: 30,
        ..GEOMETRY
    };
    let path = create_with("last-fork", geometry);
    assert_eq!(forks_left(&path).unwrap(), 3);
    // The default address space allows a million.
    let large = scratch("last-fork-default");
    let options = FormatOptions::new([1; 16], [2; 16], 1 << 20);
    Volume::format(Arc::new(ZoneDir::create(&large, 64).unwrap()), &options).unwrap();
    assert!(forks_left(&large).unwrap() >= 1_000_000);
    for n in 0..3 {
        fork(&path, None, &format!("fork {n}"), None, NOW).unwrap();
    }
    assert_eq!(forks_left(&path).unwrap(), 0);
    // Deletion gives no number back.
    delete_branch(&path, "fork 1").unwrap();
    let text = fork(&path, None, "last", None, NOW)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("all 4 regions") && text.contains("`send`"),
        "{text}"
    );
    let mut v = mount(&path, "main");
    let live = v.begin_fork("last", None, NOW).map(drop);
    assert_eq!(live.unwrap_err().to_string(), text);
    v.unmount().unwrap();
}

#[test]
fn a_volume_without_forks_has_no_trace_of_branches() {
    let path = create("no-trace");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.snapshot("s", NOW).unwrap();
    v.delete_snapshot("s").unwrap();
    v.unmount().unwrap();
    assert!(forks_left(&path).unwrap() > 4000);
    assert_eq!(branches(&path).unwrap().len(), 1);
    assert!(!path.join("branches").exists() && !path.join("regions").exists());
    let dev = open_branch(&path, None, true).unwrap();
    assert_eq!(tuff_iplfs::read_superblock(&*dev).unwrap().incompat, 1);
    let mut seal = [0; 4096];
    for pack in 0..2 {
        dev.read(GEOMETRY.pack_start(pack), &mut seal).unwrap();
        assert!(seal[356..4092].iter().all(|byte| *byte == 0));
    }
    drop(dev);
    fork(&path, None, "x", None, NOW).unwrap();
    let dev = open_branch(&path, None, true).unwrap();
    assert_eq!(tuff_iplfs::read_superblock(&*dev).unwrap().incompat, 3);
}

#[test]
fn a_mount_uses_the_listing_of_branches_that_its_opening_made() {
    let path = create("listing");
    fork(&path, None, "x", None, NOW).unwrap();
    // Claims the space of all branches.
    mount(&path, "main").unmount().unwrap();
    let dev = open_branch(&path, None, false).unwrap();
    let strange = path.join("branches/strange");
    std::fs::create_dir(&strange).unwrap();
    let mut v = Volume::mount(dev, options()).unwrap();
    // Every later listing is made anew.
    let text = v.release_forks().unwrap_err().to_string();
    assert!(text.contains("branches/strange"), "{text}");
    std::fs::remove_dir(&strange).unwrap();
    delete_branch(&path, "x").unwrap();
    assert_eq!(v.release_forks().unwrap(), 1);
    v.unmount().unwrap();
    exact(&path);
}
