//! Damaged files of the set of branches, and what needs a volume without branches.

use crate::branch_fixture::{
    GEOMETRY, NOW, content, create, directory, exact, mount, options, scratch, write,
};
use crate::flatten;
use std::path::Path;
use std::sync::Arc;
use tuff_iplfs::backend::{ZoneDir, open_branch};
use tuff_iplfs::{BlockAddr, BlockDevice, MountOptions, Volume, fork, forks_left};

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_record_of_a_branch_is_named_and_never_used() {
    let path = create("damaged-record");
    fork(&path, None, "x", None, NOW).unwrap();
    let dir = directory(&path, "x");
    for at in [20, 100, 250, 283] {
        flip(&dir.join("record"), at);
        // Neither the child is mounted, nor a parent that might release what the child reads.
        for name in ["x", "main"] {
            let opened = open_branch(&path, Some(name), false)
                .map_err(|e| e.to_string())
                .and_then(|dev| Volume::mount(dev, options()).map_err(|e| e.to_string()));
            let text = opened.map(drop).unwrap_err();
            assert!(
                text.contains("record") && text.contains("checksum"),
                "{text}"
            );
        }
        flip(&dir.join("record"), at);
    }
    // A directory that claims another parent or fork point.
    let name = dir.file_name().unwrap().to_str().unwrap();
    let other = dir.with_file_name(name.replace("-00000000-", "-00000007-"));
    std::fs::rename(&dir, &other).unwrap();
    let text = open_branch(&path, Some("x"), false)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(text.contains("another branch"), "{text}");
    std::fs::rename(&other, &dir).unwrap();
    exact(&path);
}

#[test]
fn a_damaged_or_old_counter_gives_no_number_twice() {
    let path = create("damaged-counter");
    fork(&path, None, "x", None, NOW).unwrap();
    let counter = path.join("branches/counter");
    let old = std::fs::read(&counter).unwrap();
    fork(&path, None, "y", None, NOW).unwrap();
    let left = forks_left(&path).unwrap();
    // Either slot is enough.
    for slot in [0, 4096] {
        flip(&counter, slot + 33);
        assert_eq!(forks_left(&path).unwrap(), left);
        flip(&counter, slot + 33);
    }
    flip(&counter, 33);
    flip(&counter, 4096 + 33);
    let text = fork(&path, None, "z", None, NOW).unwrap_err().to_string();
    assert!(text.contains("counter"), "{text}");
    // The branches that exist can be used.
    mount(&path, "y").unmount().unwrap();
    // From a backup: the number of a branch that lives.
    std::fs::write(&counter, &old).unwrap();
    let text = fork(&path, None, "z", None, NOW).unwrap_err().to_string();
    assert!(text.contains("counter is older"), "{text}");
    std::fs::remove_file(&counter).unwrap();
    let text = fork(&path, None, "z", None, NOW).unwrap_err().to_string();
    assert!(text.contains("counter"), "{text}");
}

#[test]
fn a_fallback_to_a_checkpoint_before_a_fork_point_is_refused() {
    let path = create("fallback");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.unmount().unwrap();
    fork(&path, None, "x", None, NOW).unwrap();
    // The checkpoint from which the child was forked is lost.
    let dev = open_branch(&path, None, false).unwrap();
    let v = Volume::mount(
        dev.clone(),
        MountOptions {
            read_only: true,
            ..options()
        },
    )
    .unwrap();
    let pack = v.checkpoint_pack();
    let start = GEOMETRY.pack_start(pack);
    drop(v);
    let mut bytes = vec![0; 3 * 4096];
    dev.read(start, &mut bytes).unwrap();
    bytes[2 * 4096] ^= 1;
    let at = BlockAddr(start.0 + 2);
    dev.write(at, &bytes[2 * 4096..]).unwrap();
    // Body and copy.
    let mut rest = vec![0; 4096];
    dev.read(BlockAddr(at.0 + 1), &mut rest).unwrap();
    rest[0] ^= 1;
    dev.write(BlockAddr(at.0 + 1), &rest).unwrap();
    let fallback = MountOptions {
        fallback: true,
        ..options()
    };
    let text = Volume::mount(dev.clone(), fallback)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(text.contains("was forked"), "{text}");
    let text = tuff_iplfs::repair(&dev, false, NOW).unwrap_err();
    assert!(text.to_string().contains("use that branch"), "{text}");
    drop(dev);
    let mut x = mount(&path, "x");
    assert_eq!(content(&mut x)["a"], [1; 9000]);
}

#[test]
fn a_rebuild_that_needs_a_volume_without_branches_says_so() {
    let path = create("refusals");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.snapshot("s", NOW).unwrap();
    let mut stream = Vec::new();
    v.send("s", None, &mut stream).unwrap();
    v.unmount().unwrap();
    fork(&path, None, "x", None, NOW).unwrap();
    fork(&path, None, "flat", None, NOW).unwrap();
    flatten(&path, "flat").unwrap();
    let refuse = |name: &str| {
        let dev = open_branch(&path, Some(name), false).unwrap();
        let text = tuff_iplfs::rebuild(&dev, [7; 16], NOW)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(text.contains("branches"), "{text}");
    };
    ["main", "x", "flat"].into_iter().for_each(refuse);
    flatten(&path, "x").unwrap();
    ["main", "x", "flat"].into_iter().for_each(refuse);
    // A snapshot of a fork is sent whole, and received by a volume of one branch.
    let mut x = mount(&path, "x");
    write(&mut x, "x", &[2; 9000]);
    x.snapshot("of x", NOW).unwrap();
    let want = content(&mut x);
    let mut stream = Vec::new();
    x.send("of x", None, &mut stream).unwrap();
    x.unmount().unwrap();
    let copy = scratch("refusals-copy");
    let dev: Arc<dyn BlockDevice> = Arc::new(ZoneDir::create(&copy, 64).unwrap());
    let mut from = &stream[..];
    let stream = tuff_iplfs::Stream::open(&mut from).unwrap().unwrap();
    stream.receive(dev.clone(), false).unwrap();
    let mut v = Volume::mount(dev.clone(), options()).unwrap();
    assert_eq!(content(&mut v), want);
    v.unmount().unwrap();
    let dir = scratch("refusals-file");
    std::fs::create_dir_all(&*dir).unwrap();
    let file = dir.join("volume");
    std::fs::write(&file, [0; 4096]).unwrap();
    let text = fork(&file, None, "x", None, NOW).unwrap_err().to_string();
    assert!(text.contains("`send` and `receive`"), "{text}");
    let text = open_branch(&file, Some("x"), false)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(text.contains("`send` and `receive`"), "{text}");
}
