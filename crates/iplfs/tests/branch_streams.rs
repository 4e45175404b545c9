//! Streams between branches of a volume and those of its copy.

mod branch_fixture;

use branch_fixture::{
    Model, NOW, Scratch, content, contents, create, exact, mount, options, remove, scratch, write,
};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use tuff_iplfs::backend::{ZoneDir, kill_after, open_branch};
use tuff_iplfs::disk::stream::Header;
use tuff_iplfs::{
    BLOCK_SIZE, BlockDevice, Error, FormatOptions, Received, Stream, Volume, delete_branch, fork,
    forks_left, is_snapshot_mounted, mount_snapshot,
};

/// Sends a snapshot of a branch.
fn send(path: &Path, branch: &str, name: &str, base: Option<&str>) -> Vec<u8> {
    let mut v = mount(path, branch);
    let mut stream = Vec::new();
    v.send(name, base, &mut stream).unwrap();
    v.unmount().unwrap();
    stream
}

fn receive(path: &Path, branch: &str, stream: &[u8]) -> Result<Received, Error> {
    receive_from(path, branch, &mut &*stream)
}

fn receive_from(path: &Path, branch: &str, mut from: &mut dyn Read) -> Result<Received, Error> {
    let dev = open_branch(path, Some(branch), false).unwrap();
    Stream::open(&mut from)?.unwrap().receive(dev, false)
}

/// Creates a volume from a full stream.
fn copy_of(name: &str, stream: &[u8]) -> Scratch {
    let path = scratch(name);
    let dev: Arc<dyn BlockDevice> = Arc::new(ZoneDir::create(&path, 64).unwrap());
    let mut from = stream;
    let stream = Stream::open(&mut from).unwrap().unwrap();
    stream.receive(dev, false).unwrap();
    path
}

fn snapshot(path: &Path, branch: &str, name: &str) -> Model {
    let mut v = mount(path, branch);
    v.snapshot(name, NOW).unwrap();
    let shown = content(&mut v);
    v.unmount().unwrap();
    shown
}

fn shown(path: &Path, branch: &str) -> Model {
    contents(path).remove(branch).unwrap()
}

/// Fills the main branch of a new volume, and takes the snapshot `s1`.
fn source(name: &str) -> (Scratch, Model) {
    let path = create(name);
    let mut v = mount(&path, "main");
    for n in 0..40u8 {
        write(&mut v, &format!("file {n}"), &[n + 1; 20_000]);
    }
    v.unmount().unwrap();
    let first = snapshot(&path, "main", "s1");
    (path, first)
}

fn change(path: &Path, branch: &str, byte: u8) {
    let mut v = mount(path, branch);
    for n in 0..6 {
        write(&mut v, &format!("file {n}"), &[byte; 9000]);
    }
    remove(&mut v, &format!("file {}", byte % 20 + 10));
    write(&mut v, &format!("new {byte}"), &[byte; 5000]);
    v.unmount().unwrap();
}

#[test]
fn a_copy_with_forks_receives_increments_of_its_main_branch() {
    let (path, first) = source("streams-main");
    let copy = copy_of("streams-main-copy", &send(&path, "main", "s1", None));
    fork(&copy, None, "present", None, NOW).unwrap();
    change(&path, "main", 100);
    let second = snapshot(&path, "main", "s2");
    change(&path, "main", 101);
    let third = snapshot(&path, "main", "s3");
    receive(&copy, "main", &send(&path, "main", "s2", Some("s1"))).unwrap();
    assert!(shown(&copy, "main") == second);
    assert!(shown(&copy, "present") == first);
    exact(&copy);
    fork(&copy, None, "of s2", Some("s2"), NOW).unwrap();
    let stream = send(&path, "main", "s3", Some("s2"));
    // The base would be dropped.
    let open = mount_snapshot(&copy, None, "s2").unwrap();
    assert!(is_snapshot_mounted(&copy, None, "s2").unwrap());
    let text = receive(&copy, "main", &stream).unwrap_err().to_string();
    assert!(text.contains("is mounted"), "{text}");
    drop(open);
    receive(&copy, "main", &stream).unwrap();
    assert!(shown(&copy, "main") == third);
    assert!(shown(&copy, "present") == first && shown(&copy, "of s2") == second);
    exact(&copy);
    // The branch has changed.
    change(&copy, "main", 102);
    let text = receive(&copy, "main", &stream).unwrap_err().to_string();
    assert!(text.contains("newest here"), "{text}");
    for name in ["present", "of s2"] {
        delete_branch(&copy, name).unwrap();
        exact(&copy);
    }
}

/// Reader that panics after some bytes, as if the process was killed.
struct Killed<'s>(&'s [u8]);

impl Read for Killed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf)? {
            0 => panic!("killed"),
            n => Ok(n),
        }
    }
}

#[test]
fn changes_of_a_fork_are_received_by_a_fork_of_the_same_snapshot() {
    let (path, first) = source("streams-fork");
    let full = send(&path, "main", "s1", None);
    let mut before = Vec::new();
    for name in ["x", "y"] {
        fork(&path, None, name, Some("s1"), NOW).unwrap();
        change(&path, name, name.as_bytes()[0]);
        let state = snapshot(&path, name, "c1");
        change(&path, name, name.as_bytes()[0] + 50);
        before.push((name, state, snapshot(&path, name, "c2")));
    }
    let copy = copy_of("streams-fork-copy", &full);
    // The second branch has another region than its fork in the copy has at first.
    for (name, state, newest) in before.iter().rev().take(1) {
        fork(&copy, None, "copied", Some("s1"), NOW).unwrap();
        let stream = send(&path, name, "c1", Some("s1"));
        for at in [9000, stream.len() / 2, stream.len() - 1] {
            let text = receive(&copy, "copied", &stream[..at]).unwrap_err();
            assert!(text.to_string().contains("truncated"), "{text}");
            assert!(shown(&copy, "copied") == first);
            exact_without_mounts(&copy);
        }
        for at in [9000, stream.len() / 2, stream.len() - 1] {
            let killed = catch_unwind(AssertUnwindSafe(|| {
                receive_from(&copy, "copied", &mut Killed(&stream[..at]))
            }));
            assert!(killed.is_err());
        }
        // It is the base, although blocks of the stream are there.
        let dev = open_branch(&copy, Some("copied"), true).unwrap();
        let mut v = Volume::mount(
            dev,
            tuff_iplfs::MountOptions {
                read_only: true,
                ..options()
            },
        )
        .unwrap();
        assert!(content(&mut v) == first);
        drop(v);
        receive(&copy, "copied", &stream).unwrap();
        assert!(shown(&copy, "copied") == *state && shown(&copy, "main") == first);
        exact(&copy);
        receive(&copy, "copied", &send(&path, name, "c2", Some("c1"))).unwrap();
        assert!(shown(&copy, "copied") == *newest && shown(&copy, "main") == first);
        exact(&copy);
        fork(&copy, Some("copied"), "next", None, NOW).unwrap();
        change(&copy, "next", 150);
        change(&copy, "copied", 152);
        exact(&copy);
        delete_branch(&copy, "next").unwrap();
        exact(&copy);
        delete_branch(&copy, "copied").unwrap();
        exact(&copy);
    }
    // In the order of their forks, both are received.
    let copy = copy_of("streams-fork-both", &full);
    for (name, state, _) in &before {
        fork(&copy, None, name, Some("s1"), NOW).unwrap();
        receive(&copy, name, &send(&path, name, "c1", Some("s1"))).unwrap();
        assert!(shown(&copy, name) == *state);
    }
    exact(&copy);
}

/// Checks a branch that a mount would change.
fn exact_without_mounts(path: &Path) {
    let dev = open_branch(path, Some("copied"), true).unwrap();
    let report = tuff_iplfs::check(&dev, tuff_iplfs::CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(report.leaked.is_empty(), "{:x?}", report.leaked);
}

#[test]
fn a_stream_for_another_state_of_a_fork_is_refused_and_changes_nothing() {
    let (path, first) = source("streams-refused");
    let full = send(&path, "main", "s1", None);
    for name in ["x", "y"] {
        fork(&path, None, name, Some("s1"), NOW).unwrap();
        change(&path, name, name.as_bytes()[0]);
        snapshot(&path, name, "c1");
    }
    let copy = copy_of("streams-refused-copy", &full);
    let refused = |branch: &str, stream: &[u8], why: &str| {
        let before = contents(&copy);
        let left = forks_left(&copy).unwrap();
        let text = receive(&copy, branch, stream).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
        assert!(contents(&copy) == before && forks_left(&copy).unwrap() == left);
    };
    fork(&copy, None, "a", None, NOW).unwrap();
    fork(&copy, None, "b", Some("s1"), NOW).unwrap();
    let x = send(&path, "x", "c1", Some("s1"));
    // Forked from the same state, which had no name.
    refused("a", &x, "newest here is none");
    // Another branch has the addresses.
    refused("b", &x, "in the order");
    let mut v = mount(&copy, "b");
    write(&mut v, "file 1", &[9; 4096]);
    v.unmount().unwrap();
    refused("b", &send(&path, "y", "c1", Some("s1")), "was changed");
    assert!(shown(&copy, "main") == first);
    exact(&copy);
    // Only the snapshot of the fork itself.
    let mut v = mount(&path, "x");
    let text = v.send("c1", Some("s2"), &mut Vec::new()).unwrap_err();
    assert!(text.to_string().contains("no snapshot 's2'"), "{text}");
}

#[test]
fn a_branch_receives_no_more_than_the_size_of_the_volume_allows() {
    let path = scratch("streams-full");
    let options = FormatOptions {
        geometry: branch_fixture::GEOMETRY,
        reserve_blocks: 64,
        ..FormatOptions::new([3; 16], [5; 16], 2048)
    };
    Volume::format(Arc::new(ZoneDir::create(&path, 64).unwrap()), &options).unwrap();
    let mut v = mount(&path, "main");
    write(&mut v, "large", &[1; 600 * 4096]);
    v.snapshot("s1", NOW).unwrap();
    v.unmount().unwrap();
    let copy = copy_of("streams-full-copy", &send(&path, "main", "s1", None));
    let mut v = mount(&path, "main");
    write(&mut v, "large", &[2; 600 * 4096]);
    v.snapshot("s2", NOW).unwrap();
    v.unmount().unwrap();
    let stream = send(&path, "main", "s2", Some("s1"));
    fork(&copy, None, "x", None, NOW).unwrap();
    let mut x = mount(&copy, "x");
    write(&mut x, "more", &[3; 1000 * 4096]);
    x.unmount().unwrap();
    let before = contents(&copy);
    let text = receive(&copy, "main", &stream).unwrap_err().to_string();
    assert!(text.contains("no space left"), "{text}");
    assert!(contents(&copy) == before);
    exact(&copy);
    delete_branch(&copy, "x").unwrap();
    fork(&copy, None, "x", None, NOW).unwrap();
    receive(&copy, "main", &stream).unwrap();
    exact(&copy);
}

#[test]
fn a_stream_cannot_use_up_the_regions() {
    let (path, first) = source("streams-regions");
    let copy = copy_of("streams-regions-copy", &send(&path, "main", "s1", None));
    fork(&path, None, "x", Some("s1"), NOW).unwrap();
    change(&path, "x", 120);
    snapshot(&path, "x", "c1");
    fork(&copy, None, "x", Some("s1"), NOW).unwrap();
    let stream = send(&path, "x", "c1", Some("s1"));
    let block = |at: usize| stream[at * BLOCK_SIZE..][..BLOCK_SIZE].try_into().unwrap();
    let (header, _) = Header::decode(block(0), block(1)).unwrap();
    let left = forks_left(&copy).unwrap();
    for region in [left / 2 + 10, left] {
        let mut lying = header.clone();
        lying.snapshot.heads = [region << 28; 7];
        let bytes = [&lying.encode().0, &stream[2 * BLOCK_SIZE..]].concat();
        let text = receive(&copy, "x", &bytes).unwrap_err().to_string();
        assert!(text.contains("half of the address space"), "{text}");
        assert_eq!(forks_left(&copy).unwrap(), left);
    }
    receive(&copy, "x", &stream).unwrap();
    assert!(shown(&copy, "main") == first);
    exact(&copy);
}

#[test]
fn a_receive_that_is_killed_while_it_takes_regions_can_be_repeated() {
    let (path, first) = source("streams-take");
    let template = copy_of("streams-take-copy", &send(&path, "main", "s1", None));
    for name in ["x", "y"] {
        fork(&path, None, name, Some("s1"), NOW).unwrap();
    }
    change(&path, "y", 120);
    let want = snapshot(&path, "y", "c1");
    let stream = send(&path, "y", "c1", Some("s1"));
    fork(&template, None, "y", Some("s1"), NOW).unwrap();
    let copy = scratch("streams-take-killed");
    let mut steps = 0;
    loop {
        branch_fixture::copy(&template, &copy);
        kill_after(Some(steps));
        let result = receive(&copy, "y", &stream);
        let left = kill_after(None);
        if left != Some(0) {
            result.unwrap();
            break;
        }
        // Claims that cannot be lowered stay as they are.
        if result.is_err() {
            assert!(shown(&copy, "y") == first, "{steps} steps");
            receive(&copy, "y", &stream).unwrap();
        }
        assert!(shown(&copy, "main") == first && shown(&copy, "y") == want);
        // No number is given out twice.
        for name in ["next", "last"] {
            fork(&copy, Some("y"), name, None, NOW).unwrap();
            change(&copy, name, 150);
        }
        exact(&copy);
        steps += 1;
    }
    assert!(steps >= 2, "{steps} steps");
}
