//! Snapshots: their content, and the release of their space in any order of deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{BlockDevice, Errno, Error, Volume};
use tuff_iplfs_crash::fixture::{GEOMETRY, NOW, device, mount};
use tuff_iplfs_crash::model::tree_of;
use tuff_iplfs_crash::verify::only_reachable_blocks;
use tuff_iplfs_crash::workload::{Op, alphabet};
use tuff_testkit::Rng;

fn drain_exact(v: &mut Volume, device: &Arc<MemDevice>) {
    v.drain().unwrap();
    let dev: Arc<dyn BlockDevice> = device.clone();
    only_reachable_blocks(&dev, GEOMETRY.fixed_end());
}

/// Deletes a snapshot, and runs `meanwhile` before and after the comparison.
fn delete_while(v: &mut Volume, name: &str, mut meanwhile: impl FnMut(&mut Volume)) {
    let mut release = v.begin_delete_snapshot(name).unwrap();
    meanwhile(v);
    if let Some(checkpoint) = release.checkpoint()
        && v.seal_checkpoint(checkpoint).unwrap()
    {
        v.end_checkpoint(checkpoint).unwrap();
    }
    meanwhile(v);
    release.compare().unwrap();
    meanwhile(v);
    let released = v.end_release(release).unwrap().unwrap();
    v.sync().unwrap();
    released.finish(v).unwrap();
}

#[test]
fn snapshots_do_not_change_and_can_be_deleted_in_any_order() {
    for seed in 0..12 {
        let device = device();
        let mut v = mount(&device);
        let mut rng = Rng::new(seed);
        let ops: Vec<Op> = alphabet()
            .into_iter()
            .filter(|op| !matches!(op, Op::Snapshot(_) | Op::DeleteSnapshot(_)))
            .collect();
        let mut want = BTreeMap::new();
        for step in 0..400 {
            match rng.below(20) {
                0 => {
                    let name = format!("s{step}");
                    let shown = tree_of_present(&mut v);
                    v.snapshot(&name, NOW).unwrap();
                    want.insert(name, shown);
                }
                1 => {
                    let names: Vec<String> = want.keys().cloned().collect();
                    if let Some(name) = names.get(rng.below(names.len().max(1))) {
                        let deletes_at_once = rng.below(3) == 0;
                        match deletes_at_once {
                            true => v.delete_snapshot(name).unwrap(),
                            false => delete_while(&mut v, name, |v| {
                                for _ in 0..rng.below(12) {
                                    let done = ops[rng.below(ops.len())].volume(v, step);
                                    assert!(matches!(done, Ok(()) | Err(Error::Posix(_))));
                                }
                                // Discards what is dead.
                                if rng.below(4) == 0 {
                                    v.drain().unwrap();
                                }
                            }),
                        }
                        want.remove(name);
                    }
                }
                2 if step % 3 == 0 => {
                    // A crash or an unmount in between.
                    if step % 2 == 0 {
                        v.unmount().unwrap();
                    } else {
                        v.sync().unwrap();
                    }
                    v = mount(&device);
                }
                _ => match ops[rng.below(ops.len())].volume(&mut v, step) {
                    Ok(()) | Err(Error::Posix(_)) => {}
                    Err(e) => panic!("seed {seed}, step {step}: {e}"),
                },
            }
            if step % 50 == 0 {
                drain_exact(&mut v, &device);
                for (name, tree) in &want {
                    assert!(
                        tree_of(&mut v.open_snapshot(name).unwrap()).unwrap() == *tree,
                        "seed {seed}: {name}"
                    );
                }
            }
        }
        let names: Vec<String> = want.keys().cloned().collect();
        for name in names {
            v.delete_snapshot(&name).unwrap();
        }
        drain_exact(&mut v, &device);
        assert_eq!(v.space().held, 0);
    }
}

/// Current state, without the snapshots.
fn tree_of_present(v: &mut Volume) -> tuff_iplfs_crash::model::Tree {
    let mut tree = tree_of(v).unwrap();
    tree.retain(|path, _| path.starts_with('/'));
    tree
}

#[test]
fn an_open_snapshot_cannot_be_deleted_and_names_are_unique() {
    let device = device();
    let mut v = mount(&device);
    v.snapshot("one", NOW).unwrap();
    assert!(matches!(
        v.snapshot("one", NOW),
        Err(Error::Posix(Errno::Exists))
    ));
    assert!(matches!(
        v.snapshot("", NOW),
        Err(Error::Posix(Errno::Invalid))
    ));
    assert!(matches!(
        v.delete_snapshot("two"),
        Err(Error::Posix(Errno::NotFound))
    ));
    let mut open = v.open_snapshot("one").unwrap();
    assert!(matches!(
        v.delete_snapshot("one"),
        Err(Error::Posix(Errno::Busy))
    ));
    assert!(matches!(
        Op::Unlink("/a").volume(&mut open, 0),
        Err(Error::Posix(Errno::ReadOnly))
    ));
    Op::Unlink("/a").volume(&mut v, 0).unwrap();
    v.drain().unwrap();
    assert!(tree_of(&mut open).unwrap().contains_key("/a"));
    drop(open);
    v.delete_snapshot("one").unwrap();
    drain_exact(&mut v, &device);
}

#[test]
fn a_deletion_that_fails_or_is_given_up_changes_nothing() {
    let device = device();
    let mut v = mount(&device);
    Op::Create("/n").volume(&mut v, 0).unwrap();
    Op::Write("/n", 0, 40 * 4096).volume(&mut v, 0).unwrap();
    v.snapshot("one", NOW).unwrap();
    let release = v.begin_delete_snapshot("one").unwrap();
    Op::Unlink("/n").volume(&mut v, 0).unwrap();
    assert!(v.end_release(release).unwrap().is_none());
    assert_eq!(v.snapshots().len(), 1);
    // Opened during the comparison.
    let mut release = v.begin_delete_snapshot("one").unwrap();
    let mut open = v.open_snapshot("one").unwrap();
    release.compare().unwrap();
    assert!(matches!(
        v.end_release(release),
        Err(Error::Posix(Errno::Busy))
    ));
    assert!(tree_of(&mut open).unwrap().contains_key("/n"));
    drop(open);
    drain_exact(&mut v, &device);
    v.delete_snapshot("one").unwrap();
    drain_exact(&mut v, &device);
    assert_eq!(v.space().held, 0);
}

#[test]
fn blocks_held_by_a_snapshot_count_against_the_quota() {
    let device = device();
    let mut v = mount(&device);
    Op::Create("/n").volume(&mut v, 0).unwrap();
    Op::Write("/n", 0, 400 * 4096).volume(&mut v, 0).unwrap();
    v.snapshot("one", NOW).unwrap();
    let before = v.space();
    Op::Unlink("/n").volume(&mut v, 0).unwrap();
    v.drain().unwrap();
    assert!(v.space().held > 400, "{:?}", v.space());
    assert!(v.space().available() <= before.available());
    v.delete_snapshot("one").unwrap();
    v.drain().unwrap();
    assert_eq!(v.space().held, 0);
    assert!(v.space().available() > before.available() + 390);
}

#[test]
fn the_cost_of_a_snapshot_depends_on_changes_and_not_on_size() {
    let mut spent = Vec::new();
    for files in [10, 3000] {
        let device = device();
        let mut v = mount(&device);
        let caller = tuff_iplfs::Caller::default();
        let mut last = tuff_iplfs::Nid::NONE;
        for n in 0..files {
            let name = format!("file {n}");
            let kind = tuff_iplfs::mode::FILE;
            let made = v.create(tuff_iplfs::Nid::ROOT, name.as_bytes(), kind, 0, &caller);
            last = made.unwrap().ino;
            v.write(last, 0, &[1; 4096], NOW).unwrap();
        }
        v.snapshot("a", NOW).unwrap();
        v.write(last, 0, &[2; 4096], NOW).unwrap();
        let before = v.stats();
        v.snapshot("b", NOW).unwrap();
        let after = v.stats();
        let appended = |s: &tuff_iplfs::Stats| s.appended_blocks.iter().sum::<u64>();
        spent.push(appended(&after) - appended(&before) + after.pack_blocks - before.pack_blocks);
    }
    // The block, its inode, a path in the table of one or two blocks, a body, two seals; the larger volume has one
    // more level.
    assert!(spent[0] >= 5 && spent[1] <= spent[0] + 1, "{spent:?}");
}
