//! Forks of a mounted volume.

use crate::branch_fixture::{NOW, content, create, exact, mount, options, remove, write};
use std::sync::Arc;
use tuff_iplfs::backend::open_branch;
use tuff_iplfs::{BlockDevice, Fork, Volume, branches, delete_branch, fork};

/// Completes the checkpoint of a fork, as a mount does.
fn complete(v: &mut Volume, dev: &Arc<dyn BlockDevice>, forking: &Fork) {
    let Some(checkpoint) = forking.checkpoint() else {
        return;
    };
    dev.flush().unwrap();
    v.seal_checkpoint(checkpoint).unwrap();
    dev.flush().unwrap();
    v.end_checkpoint(checkpoint).unwrap();
}

#[test]
fn a_fork_of_a_mounted_volume_is_the_moment_at_which_it_began() {
    for branched in [false, true] {
        let path = create(&format!("live-{branched}"));
        if branched {
            fork(&path, None, "other", None, NOW).unwrap();
        }
        let dev = open_branch(&path, None, false).unwrap();
        let mut v = Volume::mount(dev.clone(), options()).unwrap();
        write(&mut v, "a", &[1; 9000]);
        write(&mut v, "b", &[1; 9000]);
        let want = content(&mut v);
        let forking = v.begin_fork("child", None, NOW).unwrap();
        // Between the steps, other operations run.
        write(&mut v, "a", &[2; 9000]);
        complete(&mut v, &dev, &forking);
        remove(&mut v, "b");
        forking.make().unwrap();
        write(&mut v, "c", &[3; 9000]);
        v.end_fork(forking).unwrap();
        v.sync().unwrap();
        let mut child = mount(&path, "child");
        assert_eq!(content(&mut child), want);
        // The parent goes on to clean up.
        write(&mut v, "a", &[4; 9000]);
        v.drain().unwrap();
        assert!(v.space().held >= 6, "{:?}", v.space());
        assert_eq!(content(&mut child), want);
        child.unmount().unwrap();
        assert_eq!(content(&mut v)["a"], [4; 9000]);
        // The mount of the parent releases what a deleted child held.
        delete_branch(&path, "child").unwrap();
        assert_eq!(v.release_forks().unwrap(), 1);
        v.drain().unwrap();
        assert!(v.space().held <= 1, "{:?}", v.space());
        v.unmount().unwrap();
        drop(dev);
        exact(&path);
    }
}

#[test]
fn a_fork_that_is_given_up_holds_nothing() {
    let path = create("given-up");
    fork(&path, None, "other", None, NOW).unwrap();
    for counted in [false, true] {
        for pinned in [false, true] {
            let dev = open_branch(&path, None, false).unwrap();
            let mut v = Volume::mount(dev.clone(), options()).unwrap();
            write(&mut v, "a", &[1; 9000]);
            v.drain().unwrap();
            let before = v.space().held;
            let forking = v.begin_fork("child", None, NOW).unwrap();
            write(&mut v, "a", &[2; 9000]);
            complete(&mut v, &dev, &forking);
            write(&mut v, "a", &[3; 9000]);
            if counted {
                // This checkpoint counts blocks that only the fork holds.
                v.sync().unwrap();
            }
            if pinned {
                // Another branch takes the name.
                fork(&path, Some("other"), "child", None, NOW).unwrap();
                assert!(forking.make().is_err());
                v.end_fork(forking).unwrap();
                delete_branch(&path, "child").unwrap();
            } else {
                v.end_fork(forking).unwrap();
            }
            assert_eq!(branches(&path).unwrap().len(), 2);
            v.drain().unwrap();
            let held = v.space().held;
            assert_eq!(held, before, "counted {counted}, pinned {pinned}");
            assert_eq!(content(&mut v)["a"], [3; 9000]);
            v.unmount().unwrap();
            drop(dev);
            exact(&path);
        }
    }
}

#[test]
fn t3_19_a_fork_of_a_mounted_snapshot_needs_no_checkpoint() {
    let path = create("live-snapshot");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.snapshot("s", NOW).unwrap();
    write(&mut v, "a", &[2; 9000]);
    let forking = v.begin_fork("child", Some("s"), NOW).unwrap();
    assert!(forking.checkpoint().is_none());
    // The fork holds the snapshot's blocks, whatever becomes of the snapshot.
    v.delete_snapshot("s").unwrap();
    forking.make().unwrap();
    v.end_fork(forking).unwrap();
    v.drain().unwrap();
    v.unmount().unwrap();
    exact(&path);
    let mut child = mount(&path, "child");
    assert_eq!(content(&mut child)["a"], [1; 9000]);
}
