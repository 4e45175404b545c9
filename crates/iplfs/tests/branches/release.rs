//! Release of what deleted branches held.

use crate::branch_fixture::{NOW, content, create, directory, exact, files, mount, remove, write};
use tuff_iplfs::{branches, delete_branch, fork, forks_left, promote_branch};

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
fn a_release_that_fails_is_repeated_and_leaks_nothing() {
    let path = create("release-fails");
    let mut v = mount(&path, "main");
    write(&mut v, "large", &[1; 1 << 20]);
    v.unmount().unwrap();
    for name in ["x", "y", "z"] {
        fork(&path, None, name, None, NOW).unwrap();
        let mut v = mount(&path, "main");
        match name {
            "x" => remove(&mut v, "large"),
            _ => write(&mut v, name, &[2; 9000]),
        }
        v.unmount().unwrap();
    }
    let mut v = mount(&path, "main");
    let held = v.space().held;
    assert!(held >= 256);
    delete_branch(&path, "x").unwrap();
    // The release needs the record of the newest fork point.
    let record = directory(&path, "z").join("record");
    let away = path.join("away");
    std::fs::rename(&record, &away).unwrap();
    v.release_forks().unwrap_err();
    assert_eq!(v.space().held, held);
    std::fs::rename(&away, &record).unwrap();
    assert_eq!(v.release_forks().unwrap(), 1);
    assert!(v.space().held + 256 <= held);
    v.unmount().unwrap();
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
