//! Snapshots sent to another device: the received state equals the sent one, and a failed transfer changes nothing.

use std::sync::Arc;
use tuff_iplfs::backend::{Blocks, MemDevice};
use tuff_iplfs::disk::stream::{FRAME_LEN, Frame};
use tuff_iplfs::{
    BLOCK_SIZE, BlockDevice, Caller, Error, FormatOptions, MountOptions, Nid, Received, Stream,
    Volume,
};
use tuff_iplfs_crash::fixture::{GEOMETRY, NOW, device as source, mount, options};
use tuff_iplfs_crash::model::{Tree, tree_of};
use tuff_iplfs_crash::verify::only_reachable_blocks;
use tuff_iplfs_crash::workload::{Op, alphabet};
use tuff_iplfs_crash::{CrashDisk, states};
use tuff_testkit::Rng;

const HEADER: usize = 2 * BLOCK_SIZE;

/// Performs `count` random operations.
fn work(v: &mut Volume, rng: &mut Rng, count: usize) {
    let ops: Vec<Op> = alphabet()
        .into_iter()
        .filter(|op| !matches!(op, Op::Snapshot(_) | Op::DeleteSnapshot(_)))
        .collect();
    for _ in 0..count {
        let now = rng.below(1 << 20) as i64;
        match ops[rng.below(ops.len())].volume(v, now) {
            Ok(()) | Err(Error::Posix(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

fn send(v: &mut Volume, snapshot: &str, base: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    let sent = v.send(snapshot, base, &mut stream).unwrap();
    assert_eq!(sent.bytes, stream.len() as u64);
    stream
}

fn receive(device: &Arc<dyn BlockDevice>, stream: &[u8], keep: bool) -> Result<Received, Error> {
    let mut from = stream;
    let received = Stream::open(&mut from)?
        .unwrap()
        .receive(device.clone(), keep)?;
    assert!(from.is_empty(), "the stream was read to its end");
    Ok(received)
}

/// Current state, without the snapshots.
fn present(v: &mut Volume) -> Tree {
    let mut tree = tree_of(v).unwrap();
    tree.retain(|path, _| path.starts_with('/'));
    tree
}

fn shown(device: &Arc<dyn BlockDevice>) -> Tree {
    let inspect = MountOptions {
        read_only: true,
        ..options()
    };
    present(&mut Volume::mount(device.clone(), inspect).unwrap())
}

/// Verifies that a check finds nothing, and that the device holds exactly the reachable blocks.
fn reachable(device: &Arc<dyn BlockDevice>) -> Vec<u64> {
    only_reachable_blocks(device, GEOMETRY.fixed_end()).reachable
}

/// Source with four snapshots, their trees, and its streams: a full one and three incremental ones.
struct Chain {
    trees: Vec<Tree>,
    streams: Vec<Vec<u8>>,
}

fn chain(seed: u64) -> Chain {
    chain_with(seed, true)
}

/// Creates a source. With `nameless`, its snapshots contain open files without a name.
fn chain_with(seed: u64, nameless: bool) -> Chain {
    let device = source();
    let mut v = mount(&device);
    let mut rng = Rng::new(seed);
    let (mut trees, mut streams) = (Vec::new(), Vec::new());
    let mut open = None;
    for round in 0..4usize {
        work(&mut v, &mut rng, 60);
        let _ = Op::Create("/bulk").volume(&mut v, 0);
        for _ in 0..12 {
            let at = rng.below(400) as u64 * 4096;
            Op::Write("/bulk", at, 5000)
                .volume(&mut v, at as i64)
                .unwrap();
        }
        if round % 2 == 1 {
            // The source crashes or is unmounted: its heads are moved or not.
            if seed.is_multiple_of(2) {
                v.unmount().unwrap();
            } else {
                v.sync().unwrap();
                drop(v);
            }
            v = mount(&device);
            open = None;
        }
        if nameless && open.is_none() {
            // Snapshots contain open files without a name.
            let caller = Caller::default();
            let ino = v.tmpfile(Nid::ROOT, 0o600, &caller).unwrap().ino;
            v.write(ino, 0, &[7; 9000], NOW).unwrap();
            open = Some(ino);
        }
        trees.push(present(&mut v));
        v.snapshot(&format!("s{round}"), NOW).unwrap();
        // Changes after a snapshot are not sent with it.
        work(&mut v, &mut rng, 20);
        v.sync().unwrap();
        let base = round.checked_sub(1).map(|last| format!("s{last}"));
        streams.push(send(&mut v, &format!("s{round}"), base.as_deref()));
    }
    Chain { trees, streams }
}

fn empty() -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new())
}

#[test]
fn a_full_stream_and_three_increments_reproduce_the_source() {
    for seed in 0..12 {
        let Chain { trees, streams } = chain(seed);
        for keep in [false, true] {
            let device = empty();
            for (round, stream) in streams.iter().enumerate() {
                receive(&device, stream, keep).unwrap();
                assert!(shown(&device) == trees[round], "seed {seed}, round {round}");
                reachable(&device);
            }
            let mut v = mount_dyn(&device);
            let names: Vec<String> = v.snapshots().iter().map(|s| s.name.clone()).collect();
            let kept: &[&str] = if keep {
                &["s0", "s1", "s2", "s3"]
            } else {
                &["s3"]
            };
            assert_eq!(names, kept);
            for name in kept {
                let round: usize = name[1..].parse().unwrap();
                let tree = tree_of(&mut v.open_snapshot(name).unwrap()).unwrap();
                assert!(tree == trees[round], "seed {seed}: {name}");
            }
            // The received volume is a volume like any other.
            for name in kept {
                v.delete_snapshot(name).unwrap();
            }
            work(&mut v, &mut Rng::new(seed), 40);
            v.drain().unwrap();
            let tree = present(&mut v);
            assert_eq!(v.space().held, 0);
            v.unmount().unwrap();
            reachable(&device);
            assert!(shown(&device) == tree);
        }
    }
}

fn mount_dyn(device: &Arc<dyn BlockDevice>) -> Volume {
    Volume::mount(device.clone(), options()).unwrap()
}

#[test]
fn a_stream_may_skip_snapshots_in_between() {
    let device = source();
    let mut v = mount(&device);
    let mut rng = Rng::new(5);
    for name in ["a", "b", "c"] {
        work(&mut v, &mut rng, 50);
        v.snapshot(name, NOW).unwrap();
    }
    let tree = present(&mut v);
    let copy = empty();
    receive(&copy, &send(&mut v, "a", None), false).unwrap();
    let stream = send(&mut v, "c", Some("a"));
    v.delete_snapshot("b").unwrap();
    assert!(send(&mut v, "c", Some("a")) == stream);
    receive(&copy, &stream, false).unwrap();
    assert!(shown(&copy) == tree);
    reachable(&copy);
}

#[test]
fn streams_may_follow_each_other() {
    let Chain { trees, streams } = chain(3);
    let all = streams.concat();
    let (mut from, device) = (&all[..], empty());
    while let Some(stream) = Stream::open(&mut from).unwrap() {
        stream.receive(device.clone(), false).unwrap();
    }
    assert!(shown(&device) == trees[3]);
}

/// Copies the content of a device.
fn copy(device: &Arc<dyn BlockDevice>) -> Arc<CrashDisk> {
    Arc::new(CrashDisk::new(
        blocks(device),
        Arc::default(),
        GEOMETRY.fixed_end(),
    ))
}

fn blocks(device: &Arc<dyn BlockDevice>) -> Blocks {
    let mut blocks = Blocks::new();
    for addr in device.allocated(0..u64::MAX).unwrap().into_iter().flatten() {
        let mut block = [0; BLOCK_SIZE];
        device
            .read(tuff_iplfs::BlockAddr(addr), &mut block)
            .unwrap();
        blocks.insert(addr, Arc::new(block));
    }
    blocks
}

/// Offsets of the frames of a stream, and the end of the last one.
fn frames(stream: &[u8]) -> Vec<usize> {
    let mut at = HEADER;
    let mut out = vec![at];
    for number in 0.. {
        if at == stream.len() {
            break;
        }
        let head: &[u8; FRAME_LEN] = stream[at..at + FRAME_LEN].try_into().unwrap();
        at += FRAME_LEN + Frame::decode(head, number).unwrap().payload_len();
        out.push(at);
    }
    out
}

/// Verifies that a stream is rejected, and that the device stays as it was.
fn refused(device: &Arc<dyn BlockDevice>, stream: &[u8], tree: &Tree, what: &str) -> String {
    let held = reachable(device);
    let target = copy(device);
    let dev: Arc<dyn BlockDevice> = target.clone();
    let e = receive(&dev, stream, false).expect_err(what);
    assert!(!e.to_string().contains('\n'), "{what}: {e}");
    assert!(shown(&dev) == *tree, "{what}: {e}");
    assert_eq!(reachable(&dev), held, "{what}: {e}");
    e.to_string()
}

#[test]
fn damaged_streams_are_rejected_and_change_nothing() {
    let Chain { trees, streams } = chain(2);
    let device = empty();
    receive(&device, &streams[0], false).unwrap();
    let (stream, tree) = (&streams[1], &trees[0]);
    let bounds = frames(stream);
    assert!(bounds.len() > 6, "{} frames", bounds.len());
    // Truncated: near every boundary, and in the middle of frames.
    for at in bounds.iter().flat_map(|at| [at - 1, *at, at + 1, at + 30]) {
        if at < stream.len() {
            let message = refused(&device, &stream[..at], tree, &format!("cut at {at}"));
            assert!(message.contains("is truncated"), "{message}");
        }
    }
    // One flipped bit anywhere.
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let mut bad = stream.clone();
        let bit = rng.below(bad.len() * 8);
        bad[bit / 8] ^= 1 << (bit % 8);
        refused(&device, &bad, tree, &format!("bit {bit}"));
    }
    // Frames out of order, repeated or missing.
    let part = |i: usize| &stream[bounds[i]..bounds[i + 1]];
    let n = bounds.len() - 1;
    for i in 0..n - 1 {
        let head = &stream[..bounds[i]];
        let swapped = [head, part(i + 1), part(i), &stream[bounds[i + 2]..]].concat();
        refused(
            &device,
            &swapped,
            tree,
            &format!("frame {i} after the next"),
        );
        let twice = [head, part(i), part(i), &stream[bounds[i + 1]..]].concat();
        refused(&device, &twice, tree, &format!("frame {i} twice"));
        let without = [head, &stream[bounds[i + 1]..]].concat();
        refused(&device, &without, tree, &format!("without frame {i}"));
    }
    // The original stream is still accepted.
    receive(&device, stream, false).unwrap();
    assert!(shown(&device) == trees[1]);
}

/// Frame with its payload.
type Made = (Frame, Vec<u8>);

#[test]
fn misplaced_frames_with_correct_checksums_are_rejected() {
    let Chain { trees, streams } = chain(4);
    let device = empty();
    receive(&device, &streams[0], false).unwrap();
    let bounds = frames(&streams[1]);
    let first: Vec<Made> = (0..bounds.len() - 1)
        .map(|i| {
            let bytes = &streams[1][bounds[i]..bounds[i + 1]];
            let head: &[u8; FRAME_LEN] = bytes[..FRAME_LEN].try_into().unwrap();
            let frame = Frame::decode(head, i as u32).unwrap();
            (frame, bytes[FRAME_LEN..].to_vec())
        })
        .collect();
    // Re-encodes frames, so that every checksum is correct.
    let made = |frames: &[Made]| {
        let mut out = streams[1][..HEADER].to_vec();
        let mut sum = crc32c::crc32c(&out[..BLOCK_SIZE]);
        for (number, (f, payload)) in frames.iter().enumerate() {
            let (head, next) = Frame::encode(f.kind, number as u32, f.start, f.count, sum, payload);
            out.extend_from_slice(&head);
            out.extend_from_slice(payload);
            sum = next;
        }
        out
    };
    assert!(made(&first) == streams[1]);
    let dead = first
        .iter()
        .position(|(f, _)| f.payload_len() % BLOCK_SIZE != 0)
        .unwrap();
    let mut cases: Vec<(&str, Vec<Made>)> = Vec::new();
    let mut f = first.clone();
    f[0].1[100] ^= 1;
    cases.push(("another byte", f));
    let mut f = first.clone();
    f[1].0.start = f[0].0.start;
    cases.push(("an address twice", f));
    let mut f = first.clone();
    f[0].0.start = GEOMETRY.fixed_end();
    cases.push(("a block of the base", f));
    let mut f = first.clone();
    f[0].0.start = 0;
    cases.push(("the superblock", f));
    let mut f = first.clone();
    f[0].0.start = u64::MAX;
    cases.push(("an address past the end", f));
    let mut f = first.clone();
    f.last_mut().unwrap().0.start -= 1;
    cases.push(("a wrong count", f));
    let mut f = first.clone();
    f[dead].1[8] ^= 2;
    cases.push(("another dead run", f));
    let mut f = first.clone();
    let count = f[dead].0.count;
    f.remove(dead);
    f.last_mut().unwrap().0.count -= count;
    cases.push(("no dead runs", f));
    let mut f = first.clone();
    let gone = u64::from(f[0].0.count);
    f.remove(0);
    f.last_mut().unwrap().0.start -= gone;
    cases.push(("a block too few", f));
    for (what, frames) in cases {
        refused(&device, &made(&frames), &trees[0], what);
    }
}

#[test]
fn streams_for_another_state_are_rejected() {
    let Chain { trees, streams } = chain_with(6, false);
    let device = empty();
    assert!(receive(&device, &streams[1], false).is_err());
    receive(&device, &streams[0], false).unwrap();
    for (n, says) in [(0, "a volume already"), (2, "continues"), (3, "continues")] {
        let message = refused(&device, &streams[n], &trees[0], says);
        assert!(message.contains(says), "{message}");
    }
    // Stream of another volume.
    let other = {
        let device = Arc::new(MemDevice::new());
        let format = FormatOptions {
            geometry: GEOMETRY,
            reserve_blocks: 256,
            ..FormatOptions::new([4; 16], [5; 16], 8192)
        };
        Volume::format(device.clone(), &format).unwrap();
        device as Arc<dyn BlockDevice>
    };
    let message = receive(&other, &streams[1], false).unwrap_err().to_string();
    assert!(message.contains("another volume"), "{message}");
    // A volume that was only read, mounted and unmounted accepts the next stream. One with another file does not.
    mount_dyn(&device).unmount().unwrap();
    let taken: Arc<dyn BlockDevice> = copy(&device);
    receive(&taken, &streams[1], false).unwrap();
    assert!(shown(&taken) == trees[1]);
    let mut v = mount_dyn(&device);
    Op::Create("/mine").volume(&mut v, 7).unwrap();
    v.unmount().unwrap();
    let tree = shown(&device);
    let e = receive(&device, &streams[1], false)
        .unwrap_err()
        .to_string();
    assert!(e.contains("was changed"), "{e}");
    assert!(shown(&device) == tree);
}

#[test]
fn a_crash_in_a_receive_leaves_the_base_or_the_snapshot() {
    let Chain { trees, streams } = chain(7);
    for keep in [false, true] {
        let base = empty();
        receive(&base, &streams[0], keep).unwrap();
        let disk = copy(&base);
        let dev: Arc<dyn BlockDevice> = disk.clone();
        receive(&dev, &streams[1], keep).unwrap();
        assert_eq!(disk.violations(), [] as [String; 0]);
        let before = blocks(&base);
        let (mut old, mut new) = (0, 0);
        let mut rng = Rng::new(9);
        states(
            &before,
            &disk.events(),
            200,
            &mut rng.clone(),
            |state, _| {
                // The volume is mounted.
                let fixed = GEOMETRY.fixed_end();
                let mounted = Arc::new(CrashDisk::new(state.clone(), Arc::default(), fixed));
                let mut v = mount(&mounted);
                let seen = present(&mut v);
                assert!(seen == trees[0] || seen == trees[1]);
                v.drain().unwrap();
                v.unmount().unwrap();
                let mounted: Arc<dyn BlockDevice> = mounted;
                reachable(&mounted);
                // The stream is sent again, interrupted again, and sent once more.
                let again = Arc::new(CrashDisk::new(state.clone(), Arc::default(), fixed));
                let dev: Arc<dyn BlockDevice> = again.clone();
                let arrived = shown(&dev) == trees[1];
                match receive(&dev, &streams[1], keep) {
                    Ok(_) => assert!(!arrived),
                    Err(e) => assert!(arrived, "{e}"),
                }
                assert!(shown(&dev) == trees[1]);
                if !arrived {
                    reachable(&dev);
                    old += 1;
                    if old % 20 == 0 {
                        states(&state, &again.events(), 3, &mut rng, |nested, _| {
                            let dev: Arc<dyn BlockDevice> =
                                Arc::new(CrashDisk::new(nested, Arc::default(), fixed));
                            if shown(&dev) == trees[0] {
                                receive(&dev, &streams[1], keep).unwrap();
                                reachable(&dev);
                            }
                            assert!(shown(&dev) == trees[1]);
                            Ok::<(), ()>(())
                        })?;
                    }
                } else {
                    new += 1;
                }
                Ok::<(), ()>(())
            },
        )
        .unwrap();
        assert!(old > 100 && new > 10, "{old} {new}");
    }
}

#[test]
fn a_crash_in_a_full_receive_leaves_no_volume_or_the_snapshot() {
    let Chain { trees, streams } = chain(8);
    let disk = Arc::new(CrashDisk::new(
        Blocks::new(),
        Arc::default(),
        GEOMETRY.fixed_end(),
    ));
    let dev: Arc<dyn BlockDevice> = disk.clone();
    receive(&dev, &streams[0], false).unwrap();
    let (mut none, mut whole) = (0, 0);
    states(
        &Blocks::new(),
        &disk.events(),
        40,
        &mut Rng::new(2),
        |state, _| {
            let disk = CrashDisk::new(state, Arc::default(), GEOMETRY.fixed_end());
            let dev: Arc<dyn BlockDevice> = Arc::new(disk);
            if tuff_iplfs::read_superblock(&*dev).is_err() {
                none += 1;
                // A torn superblock may hold the magic. Then only the user can decide that nothing is lost.
                if receive(&dev, &streams[0], false).is_err() {
                    return Ok(());
                }
            } else {
                whole += 1;
            }
            assert!(shown(&dev) == trees[0]);
            let mut v = mount_dyn(&dev);
            v.drain().unwrap();
            v.unmount().unwrap();
            reachable(&dev);
            Ok::<(), ()>(())
        },
    )
    .unwrap();
    assert!(none > 50 && whole > 5, "{none} {whole}");
}

#[test]
fn an_increment_is_as_long_as_its_new_blocks() {
    let device = source();
    let mut v = mount(&device);
    v.snapshot("a", NOW).unwrap();
    let caller = Caller::default();
    let ino = v
        .create(
            Nid::ROOT,
            b"new",
            tuff_iplfs::mode::FILE | 0o644,
            0,
            &caller,
        )
        .unwrap()
        .ino;
    let bytes: Vec<u8> = (0..4u32 << 20).map(|i| (i * 7 + i / 999) as u8).collect();
    v.write(ino, 0, &bytes, NOW).unwrap();
    v.snapshot("b", NOW).unwrap();
    let stream = send(&mut v, "b", Some("a"));
    let more = stream.len() as f64 / bytes.len() as f64;
    assert!((1.0..1.05).contains(&more), "{more}");
}
