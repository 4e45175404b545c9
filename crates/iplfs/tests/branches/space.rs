//! Space that all branches share.

use crate::accepts;
use crate::branch_fixture::{
    CALLER, GEOMETRY, Model, NOW, content, exact, held, mount, remove, scratch, write,
};
use std::sync::Arc;
use tuff_iplfs::backend::ZoneDir;
use tuff_iplfs::{FormatOptions, Limit, Nid, SetAttr, Subject, Volume, delete_branch, fork, mode};

#[test]
fn t3_13_the_size_limits_all_branches_together_and_a_full_volume_gives_space_back() {
    const SIZE: usize = 8192;
    let path = scratch("full");
    let format = FormatOptions {
        geometry: GEOMETRY,
        reserve_blocks: 512,
        ..FormatOptions::new([3; 16], [5; 16], SIZE as u64)
    };
    Volume::format(Arc::new(ZoneDir::create(&path, 64).unwrap()), &format).unwrap();
    let mut main = mount(&path, "main");
    write(&mut main, "base", &[1; 400_000]);
    let user = Subject::User(7);
    let limit = |blocks| Limit {
        blocks: Some(blocks),
        inodes: None,
    };
    main.set_quota(user, limit(10), NOW).unwrap();
    // The first fork is made while its parent is mounted.
    main.fork("x", None, NOW).unwrap();
    main.fork("y", None, NOW).unwrap();
    let mut open: Vec<(&str, Volume, Model)> = Vec::new();
    for name in ["x", "y"] {
        let mut v = mount(&path, name);
        let model = content(&mut v);
        open.push((name, v, model));
    }
    let model = content(&mut main);
    open.push(("main", main, model));
    let sum_holds = || assert!(held(&path).len() <= SIZE, "{}", held(&path).len());
    let fill = |open: &mut Vec<(&str, Volume, Model)>, round: u8| {
        let mut accepted = 0;
        for n in 0u16.. {
            let before = accepted;
            for (branch, v, model) in open.iter_mut() {
                let name = format!("{branch} {round} {n}");
                let bytes = vec![n as u8 | 1; 200_000];
                if accepts(v, &name, &bytes) {
                    model.insert(name, bytes);
                    accepted += 1;
                }
            }
            if n % 8 == 0 {
                sum_holds();
            }
            if accepted == before {
                return accepted;
            }
        }
        accepted
    };
    let accepted = fill(&mut open, 0);
    // 49 blocks each. Most of the volume can be used.
    assert!(accepted * 49 > SIZE * 3 / 4, "{accepted}");
    for (_, v, model) in &mut open {
        v.sync().unwrap();
        assert!(content(v) == *model);
        assert!(v.statfs().free < 300, "{:?}", v.statfs());
    }
    sum_holds();
    // A killed process keeps its claim, and what it wrote is kept.
    let (name, v, model) = open.remove(0);
    drop(v);
    fill(&mut open, 1);
    sum_holds();
    let mut v = mount(&path, name);
    assert!(content(&mut v) == model);
    open.push((name, v, model));
    fill(&mut open, 2);
    sum_holds();
    // Full: a larger quota, unlink and truncate. What one branch gives back another one can have.
    let at = open.iter().position(|(name, ..)| *name == "main").unwrap();
    let (_, mut main, mut in_main) = open.remove(at);
    main.set_quota(user, limit(20), NOW).unwrap();
    for (_, v, model) in &mut open {
        let names: Vec<String> = model
            .keys()
            .filter(|n| n.contains(" 0 "))
            .cloned()
            .collect();
        for name in &names[..4] {
            remove(v, name);
            model.remove(name);
        }
        let ino = v.lookup(Nid::ROOT, names[4].as_bytes()).unwrap();
        let size = SetAttr {
            size: Some(10),
            ..SetAttr::default()
        };
        v.set_attr(ino, &size, NOW).unwrap();
        model.get_mut(&names[4]).unwrap().truncate(10);
        v.drain().unwrap();
    }
    for n in 0..4 {
        let name = format!("again {n}");
        assert!(accepts(&mut main, &name, &[5; 200_000]), "{n}");
        in_main.insert(name, vec![5; 200_000]);
    }
    sum_holds();
    // A snapshot of a full volume, its deletion, and that of a fork.
    let taken = main.snapshot("s", NOW).is_ok();
    let name = in_main
        .keys()
        .find(|n| n.starts_with("main "))
        .unwrap()
        .clone();
    remove(&mut main, &name);
    in_main.remove(&name);
    if taken {
        main.delete_snapshot("s").unwrap();
    }
    main.drain().unwrap();
    let (name, v, _) = open.remove(0);
    v.unmount().unwrap();
    delete_branch(&path, name).unwrap();
    for n in 4..20 {
        let name = format!("again {n}");
        assert!(accepts(&mut main, &name, &[5; 200_000]), "{n}");
        in_main.insert(name, vec![5; 200_000]);
    }
    main.sync().unwrap();
    sum_holds();
    assert!(content(&mut main) == in_main);
    main.unmount().unwrap();
    for (_, mut v, model) in open {
        assert!(content(&mut v) == model);
        v.unmount().unwrap();
    }
    exact(&path);
}

/// Regression: pages that arrive need more than their promise for a moment, which other branches had claimed.
#[test]
fn t3_13_promises_of_several_branches_are_kept() {
    const SIZE: u64 = 16 << 10;
    const CALL: usize = 64 << 10;
    let path = scratch("promises");
    let format = FormatOptions {
        geometry: GEOMETRY,
        reserve_blocks: 512,
        ..FormatOptions::new([3; 16], [5; 16], SIZE)
    };
    Volume::format(Arc::new(ZoneDir::create(&path, 64).unwrap()), &format).unwrap();
    let mut main = mount(&path, "main");
    write(&mut main, "base", &[1; 8 << 20]);
    main.unmount().unwrap();
    for name in ["x", "y"] {
        fork(&path, None, name, None, NOW).unwrap();
    }
    let mut open: Vec<(Volume, Nid, usize, usize)> = Vec::new();
    for name in ["main", "x", "y"] {
        let mut v = mount(&path, name);
        let file = v
            .create(Nid::ROOT, b"file", mode::FILE | 0o644, 0, &CALLER)
            .unwrap();
        open.push((v, file.ino, 0, 0));
    }
    let arrive = |v: &mut Volume, ino: Nid, promised: usize, arrived: &mut usize| {
        while *arrived < promised {
            let len = (promised - *arrived).min(1 << 20);
            let written = v.write_back(ino, *arrived as u64, &vec![7; len], NOW);
            assert_eq!(written.unwrap(), len, "{arrived} of {promised}");
            *arrived += len;
        }
    };
    loop {
        let mut is_accepted = false;
        for (turn, (v, ino, promised, arrived)) in open.iter_mut().enumerate() {
            // The kernel sends pages a while after it has accepted them.
            for _ in 0..3 + 5 * turn {
                if v.promise(*ino, CALL as u64, Some(*promised as u64)).is_ok() {
                    *promised += CALL;
                    is_accepted = true;
                }
            }
            if *promised - *arrived > (1 << 20) * turn {
                arrive(v, *ino, *promised, arrived);
            }
        }
        if !is_accepted {
            break;
        }
    }
    for (v, ino, promised, arrived) in &mut open {
        arrive(v, *ino, *promised, arrived);
        v.fsync(*ino).unwrap();
    }
    let all: usize = open.iter().map(|(_, _, promised, _)| promised).sum();
    assert!(all as u64 > SIZE * 4096 / 2, "{all} bytes");
    assert!(held(&path).len() as u64 <= SIZE);
    for (v, ..) in open {
        v.unmount().unwrap();
    }
}
