//! Properties of a volume without crashes: large files and directories, full and failing devices, damaged blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{
    Allocate, BlockAddr, BlockDevice, Caller, Errno, Error, FormatOptions, Geometry, MountOptions,
    Nid, SIZE_MAX, SetAttr, SetXattr, Time, Volume, mode,
};
use tuff_iplfs_crash::verify::only_reachable_blocks;
use tuff_testkit::Rng;

const NOW: Time = Time { sec: 1, nsec: 2 };
const CALLER: Caller = Caller {
    now: NOW,
    uid: 10,
    gid: 20,
};
const PACKS: u64 = 16 + 2 * 16;

fn device() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new());
    let geometry = Geometry {
        area_bits: 48,
        section_bits: 18,
        zone_bits: 8,
        pack_blocks: 16,
    };
    let options = FormatOptions {
        geometry,
        ..FormatOptions::new([7; 16], [8; 16], 1 << 20)
    };
    Volume::format(device.clone(), &options).unwrap();
    device
}

fn mount(device: &Arc<MemDevice>) -> Volume {
    Volume::mount(device.clone(), MountOptions::default()).unwrap()
}

fn create(v: &mut Volume, name: &str) -> Nid {
    v.create(Nid::ROOT, name.as_bytes(), mode::FILE | 0o644, 0, &CALLER)
        .unwrap()
        .ino
}

/// Unmounts after a drain, and verifies that the device holds exactly the reachable blocks.
fn unmount_exact(mut v: Volume, device: &Arc<MemDevice>) {
    v.drain().unwrap();
    v.unmount().unwrap();
    let dev: Arc<dyn BlockDevice> = device.clone();
    let report = only_reachable_blocks(&dev, PACKS);
    assert!(report.leaked.is_empty() && report.clean);
}

/// Regression: two mounts of one medium overwrote each other's checkpoints, and files vanished.
#[test]
fn a_second_writer_is_found_before_its_checkpoint_is_overwritten() {
    let device = device();
    let mut first = mount(&device);
    create(&mut first, "first");
    first.sync().unwrap();
    // As through another path, which has a lock of its own.
    let mut second = mount(&device);
    create(&mut second, "second");
    second.sync().unwrap();
    create(&mut first, "late");
    for _ in 0..2 {
        let e = first.sync().unwrap_err().to_string();
        assert!(e.contains("another program has written"), "{e}");
    }
    assert!(first.unmount().is_err());
    second.unmount().unwrap();
    let mut volume = mount(&device);
    for name in [&b"first"[..], b"second"] {
        volume.lookup(Nid::ROOT, name).unwrap();
    }
    unmount_exact(volume, &device);
}

#[test]
fn a_link_target_may_be_as_long_as_a_path() {
    // Bug: pjdfstest created a link target of 4095 bytes and got ENAMETOOLONG. Cause: targets had to fit the inode.
    let device = device();
    let mut v = mount(&device);
    let targets: Vec<Vec<u8>> = [3464, 3465, 4095].map(|len| vec![b'x'; len]).into();
    for (n, target) in targets.iter().enumerate() {
        let name = format!("l{n}");
        let ino = v
            .symlink(Nid::ROOT, name.as_bytes(), target, &CALLER)
            .unwrap()
            .ino;
        v.fsync(ino).unwrap();
        assert_eq!(v.attr(ino).unwrap().size, target.len() as u64);
    }
    let e = v.symlink(Nid::ROOT, b"n", &[b'x'; 4096], &CALLER);
    assert!(matches!(e, Err(Error::Posix(Errno::NameTooLong))));
    // The state after a crash.
    drop(v);
    let mut v = mount(&device);
    for (n, target) in targets.iter().enumerate() {
        let ino = v.lookup(Nid::ROOT, format!("l{n}").as_bytes()).unwrap();
        assert!(v.read_link(ino).unwrap() == *target);
        v.unlink(Nid::ROOT, format!("l{n}").as_bytes(), &CALLER)
            .unwrap();
    }
    unmount_exact(v, &device);
}

#[test]
fn a_file_reaches_every_level_of_its_map() {
    let device = device();
    let mut v = mount(&device);
    let ino = create(&mut v, "f");
    let (d, i) = (338u64, 1014u64);
    let starts = [
        0,
        286,
        286 + d,
        286 + 2 * d,
        286 + 2 * d + d * i,
        286 + 2 * d + 2 * d * i,
    ];
    let double_end = 286 + 2 * d + 2 * d * i + d * i * i;
    let mut at: Vec<u64> = starts
        .iter()
        .flat_map(|s| [*s, s + 1])
        .chain([double_end, double_end + d * i * i])
        .collect();
    at.push(SIZE_MAX / 4096 - 1);
    for (n, index) in at.iter().enumerate() {
        v.write(ino, index * 4096, &[n as u8 + 1; 4096], NOW)
            .unwrap();
    }
    assert!(matches!(
        v.write(ino, SIZE_MAX, b"x", NOW),
        Err(Error::Posix(Errno::FileTooBig))
    ));
    v.unmount().unwrap();
    let mut v = mount(&device);
    let mut offset = 0;
    let mut seen = Vec::new();
    while let Ok(data) = v.seek_data(ino, offset) {
        offset = v.seek_hole(ino, data).unwrap();
        seen.extend(data / 4096..offset / 4096);
    }
    let mut sorted = at.clone();
    sorted.sort_unstable();
    assert_eq!(seen, sorted);
    for (n, index) in at.iter().enumerate() {
        assert_eq!(
            v.read(ino, index * 4096, 4096).unwrap(),
            [n as u8 + 1; 4096]
        );
    }
    // Truncate it in the middle, then to nothing: all blocks are released.
    v.set_attr(
        ino,
        &SetAttr {
            size: Some(starts[4] * 4096 + 5),
            ..SetAttr::default()
        },
        NOW,
    )
    .unwrap();
    v.set_attr(
        ino,
        &SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
        NOW,
    )
    .unwrap();
    assert_eq!(v.attr(ino).unwrap().blocks, 1);
    unmount_exact(v, &device);
}

#[test]
fn a_large_directory_lists_remaining_entries_once_during_changes() {
    let device = device();
    let mut v = mount(&device);
    let dir = v
        .create(Nid::ROOT, b"dir", mode::DIR | 0o755, 0, &CALLER)
        .unwrap()
        .ino;
    let name = |n: usize| format!("file number {n}{}", "x".repeat(n % 40)).into_bytes();
    for n in 0..6000 {
        v.create(dir, &name(n), mode::FILE, 0, &CALLER).unwrap();
    }
    v.unmount().unwrap();
    let mut v = mount(&device);
    let (mut cookie, mut seen) = (0, BTreeMap::new());
    let mut round = 0;
    loop {
        let entries = v.read_dir(dir, cookie, 100).unwrap();
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        for entry in entries {
            *seen.entry(entry.name).or_insert(0) += 1;
        }
        // Every third entry is removed and others are created. The remaining ones must be listed exactly once.
        for n in (round * 60..round * 60 + 60).filter(|n| *n < 6000 && n % 3 == 0) {
            v.unlink(dir, &name(n), &CALLER).unwrap();
            v.create(dir, format!("new {n}").as_bytes(), mode::FILE, 0, &CALLER)
                .unwrap();
        }
        round += 1;
    }
    for n in (0..6000).filter(|n| n % 3 != 0) {
        assert_eq!(seen.get(&name(n)), Some(&1), "entry {n}");
        assert!(v.lookup(dir, &name(n)).is_ok());
    }
    let names: BTreeSet<Vec<u8>> = v
        .read_dir(dir, 2, usize::MAX)
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    for name in names {
        v.unlink(dir, &name, &CALLER).unwrap();
    }
    v.rmdir(Nid::ROOT, b"dir", &CALLER).unwrap();
    assert_eq!(v.space().inodes, 1);
    unmount_exact(v, &device);
}

#[test]
fn node_numbers_are_reused_only_after_a_checkpoint() {
    let device = device();
    let mut v = mount(&device);
    let first = create(&mut v, "a");
    v.unlink(Nid::ROOT, b"a", &CALLER).unwrap();
    let second = create(&mut v, "b");
    assert_ne!(first, second);
    v.sync().unwrap();
    let third = create(&mut v, "c");
    assert_eq!(first, third);
    let generations = [second, third].map(|ino| v.attr(ino).unwrap().generation);
    assert_ne!(generations[0], generations[1]);
    unmount_exact(v, &device);
}

/// Random reads, writes, truncations, punches and reservations against plain bytes, with remounts, as fsx does.
#[test]
fn a_file_equals_plain_bytes_after_any_sequence() {
    for seed in 0..4 {
        let device = device();
        let mut v = mount(&device);
        let ino = create(&mut v, "f");
        let mut rng = Rng::new(seed);
        let mut plain: Vec<u8> = Vec::new();
        for step in 0..3000 {
            let offset = rng.below(300_000);
            let len = 1 + rng.below(if step % 7 == 0 { 60_000 } else { 5000 });
            match rng.below(12) {
                0..=4 => {
                    let data: Vec<u8> = (0..len).map(|i| (i * 7 + step) as u8).collect();
                    v.write(ino, offset as u64, &data, NOW).unwrap();
                    if plain.len() < offset + len {
                        plain.resize(offset + len, 0);
                    }
                    plain[offset..offset + len].copy_from_slice(&data);
                }
                5 => {
                    v.set_attr(
                        ino,
                        &SetAttr {
                            size: Some(offset as u64),
                            ..SetAttr::default()
                        },
                        NOW,
                    )
                    .unwrap();
                    plain.resize(offset, 0);
                }
                6 | 7 => {
                    let how = if len.is_multiple_of(2) {
                        Allocate::PunchHole
                    } else {
                        Allocate::ZeroRange { keep_size: true }
                    };
                    v.fallocate(ino, how, offset as u64, len as u64, NOW)
                        .unwrap();
                    let size = plain.len();
                    plain[offset.min(size)..(offset + len).min(size)].fill(0);
                }
                8 => {
                    v.fallocate(ino, Allocate::Reserve, offset as u64, len as u64, NOW)
                        .unwrap();
                    if plain.len() < offset + len {
                        plain.resize(offset + len, 0);
                    }
                }
                9 => match rng.below(6) {
                    0 => v.sync().unwrap(),
                    1 => v.fsync(ino).unwrap(),
                    2 => {
                        v.unmount().unwrap();
                        v = mount(&device);
                    }
                    3 => {
                        // A crash right after an fsync loses nothing of the file.
                        v.fsync(ino).unwrap();
                        drop(v);
                        v = mount(&device);
                    }
                    _ => {}
                },
                _ => {
                    let want = &plain[offset.min(plain.len())..(offset + len).min(plain.len())];
                    assert_eq!(
                        v.read(ino, offset as u64, len).unwrap(),
                        want,
                        "seed {seed}, step {step}"
                    );
                }
            }
            assert_eq!(
                v.attr(ino).unwrap().size,
                plain.len() as u64,
                "seed {seed}, step {step}"
            );
        }
        assert_eq!(v.read(ino, 0, plain.len()).unwrap(), plain);
        unmount_exact(v, &device);
    }
}

#[test]
fn huge_reservations_and_holes_are_processed_in_steps() {
    let device = device();
    let mut v = mount(&device);
    let ino = create(&mut v, "f");
    let quota = 1 << 20;
    let large = (quota - 50_000) * 4096;
    assert!(matches!(
        v.fallocate(ino, Allocate::Reserve, 0, 1 << 45, NOW),
        Err(Error::Posix(Errno::NoSpace))
    ));
    assert_eq!(
        (v.attr(ino).unwrap().blocks, v.attr(ino).unwrap().size),
        (1, 0)
    );
    v.fallocate(ino, Allocate::Reserve, 5000, large, NOW)
        .unwrap();
    assert_eq!(v.attr(ino).unwrap().size, 5000 + large);
    assert!(matches!(
        v.seek_data(ino, 0),
        Err(Error::Posix(Errno::NoSuchOffset))
    ));
    v.write(ino, large / 2, &[7; 10_000], NOW).unwrap();
    v.fallocate(ino, Allocate::PunchHole, 0, SIZE_MAX, NOW)
        .unwrap();
    assert_eq!(v.read(ino, large / 2, 10_000).unwrap(), [0; 10_000]);
    v.unlink(Nid::ROOT, b"f", &CALLER).unwrap();
    unmount_exact(v, &device);
}

#[test]
fn attributes_are_inline_or_in_a_node() {
    let device = device();
    let mut v = mount(&device);
    let ino = create(&mut v, "f");
    v.set_xattr(ino, b"user.small", b"1", SetXattr::Create, NOW)
        .unwrap();
    assert!(matches!(
        v.set_xattr(ino, b"user.small", b"2", SetXattr::Create, NOW),
        Err(Error::Posix(Errno::Exists))
    ));
    assert!(matches!(
        v.set_xattr(ino, b"user.no", b"2", SetXattr::Replace, NOW),
        Err(Error::Posix(Errno::NoAttribute))
    ));
    v.set_xattr(ino, b"trusted.large", &[5; 3000], SetXattr::Any, NOW)
        .unwrap();
    assert_eq!(v.attr(ino).unwrap().blocks, 2);
    assert!(matches!(
        v.set_xattr(ino, b"user.more", &[5; 2000], SetXattr::Any, NOW),
        Err(Error::Posix(Errno::NoSpace))
    ));
    v.unmount().unwrap();
    let mut v = mount(&device);
    assert_eq!(v.get_xattr(ino, b"trusted.large").unwrap(), [5; 3000]);
    v.remove_xattr(ino, b"trusted.large", NOW).unwrap();
    assert_eq!(v.attr(ino).unwrap().blocks, 1);
    assert_eq!(
        v.xattrs(ino).unwrap(),
        [(b"user.small".to_vec(), b"1".to_vec())].into()
    );
    unmount_exact(v, &device);
}

#[test]
fn an_open_file_without_a_name_exists_until_its_release() {
    let device = device();
    let mut v = mount(&device);
    let ino = create(&mut v, "f");
    v.write(ino, 0, &[1; 50_000], NOW).unwrap();
    v.hold(ino).unwrap();
    v.unlink(Nid::ROOT, b"f", &CALLER).unwrap();
    v.sync().unwrap();
    assert_eq!(v.read(ino, 0, 10).unwrap(), [1; 10]);
    assert_eq!(v.attr(ino).unwrap().nlink, 0);
    v.release(ino);
    assert!(matches!(v.attr(ino), Err(Error::Posix(Errno::Stale))));
    // After a crash while it is held, the next mount frees it.
    let ino = create(&mut v, "g");
    v.hold(ino).unwrap();
    v.unlink(Nid::ROOT, b"g", &CALLER).unwrap();
    v.unmount().unwrap();
    let v = mount(&device);
    assert_eq!(v.space().inodes, 1);
    unmount_exact(v, &device);
}

#[test]
fn a_full_device_fails_only_writes() {
    let device = device();
    let mut v = mount(&device);
    let kept = create(&mut v, "kept");
    v.write(kept, 0, &[3; 100_000], NOW).unwrap();
    v.sync().unwrap();
    let held = device.blocks().len() as u64;
    device.set_capacity(Some(held + 320));
    let more = create(&mut v, "more");
    let mut failed = false;
    for n in 0..100 {
        let result = v
            .write(more, n * 40_960, &[4; 40_960], NOW)
            .map(drop)
            .and_then(|()| v.fsync(more));
        failed |= result.as_ref().is_err_and(|e| e.errno() == 28);
        if failed {
            break;
        }
    }
    assert!(failed, "a full device was not noticed");
    assert_eq!(v.read(kept, 0, 100_000).unwrap(), vec![3; 100_000]);
    v.unlink(Nid::ROOT, b"more", &CALLER).unwrap();
    v.drain().unwrap();
    let again = create(&mut v, "again");
    v.write(again, 0, &[5; 40_960], NOW).unwrap();
    v.fsync(again).unwrap();
    device.set_capacity(None);
    unmount_exact(v, &device);
}

#[test]
fn every_flipped_bit_of_metadata_is_an_error_or_harmless() {
    let device = device();
    let mut v = mount(&device);
    let dir = v
        .create(Nid::ROOT, b"dir", mode::DIR | 0o755, 0, &CALLER)
        .unwrap()
        .ino;
    for n in 0..300 {
        v.create(
            dir,
            format!("a somewhat long name {n}").as_bytes(),
            mode::FILE,
            0,
            &CALLER,
        )
        .unwrap();
    }
    let ino = create(&mut v, "f");
    v.write(ino, 300 * 4096, &[1; 3 * 4096], NOW).unwrap();
    v.set_xattr(ino, b"user.large", &[5; 3000], SetXattr::Any, NOW)
        .unwrap();
    // More changes than a journal takes, so that the tree of the node address table is on the device too.
    for n in 0..300 {
        create(&mut v, &format!("n{n}"));
    }
    v.drain().unwrap();
    v.unmount().unwrap();
    let blocks = device.blocks();
    let inspect = |device: &Arc<MemDevice>| -> Result<Vec<u8>, Error> {
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let mut v = Volume::mount(device.clone(), options)?;
        let mut all = Vec::new();
        for parent in [Nid::ROOT, v.lookup(Nid::ROOT, b"dir")?] {
            for entry in v.read_dir(parent, 0, usize::MAX)? {
                all.extend_from_slice(&entry.name);
                all.extend_from_slice(format!("{:?}", v.attr(entry.ino)?).as_bytes());
                if v.attr(entry.ino)?.mode & mode::TYPE == mode::FILE {
                    all.extend(v.read(entry.ino, 0, 2 << 20)?);
                    all.extend(format!("{:?}", v.xattrs(entry.ino)?).bytes());
                }
            }
        }
        Ok(all)
    };
    let want = inspect(&device).unwrap();
    let (mut errors, mut harmless) = (0, 0);
    let mut rng = Rng::new(5);
    let addresses: Vec<u64> = blocks
        .keys()
        .copied()
        .filter(|addr| blocks[addr].iter().any(|b| *b != 0))
        .collect();
    for addr in addresses {
        let mut block = *blocks[&addr];
        let bit = rng.below(4096 * 8);
        block[bit / 8] ^= 1 << (bit % 8);
        let damaged = Arc::new(MemDevice::from_blocks(blocks.clone()));
        damaged.write(BlockAddr(addr), &block).unwrap();
        match inspect(&damaged) {
            Ok(got) => {
                assert!(
                    got == want,
                    "bit {bit} of block {addr:#x} changes what is seen"
                );
                harmless += 1;
            }
            Err(Error::Corrupt(_) | Error::Unsupported(_)) => errors += 1,
            Err(other) => panic!("bit {bit} of block {addr:#x}: {other}"),
        }
    }
    // Harmless damage: one of two superblocks or seals, and the older pack.
    assert!(
        errors > 300 && harmless < 20,
        "{errors} errors, {harmless} harmless"
    );
}
