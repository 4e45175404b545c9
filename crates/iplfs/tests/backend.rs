//! Volumes on a host, in zone files and in one file: the space on the host must follow the live data.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_iplfs::backend::{FileDevice, ZoneDir};
use tuff_iplfs::{
    BlockDevice, Caller, FormatOptions, Geometry, MountOptions, Nid, Time, Volume, mode,
};
use tuff_iplfs_crash::verify::no_findings;
use tuff_testkit::Rng;

const CALLER: Caller = Caller {
    now: Time { sec: 1, nsec: 0 },
    uid: 0,
    gid: 0,
};

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    let _ = std::fs::remove_file(&path);
    path
}

fn format(dev: Arc<dyn BlockDevice>) {
    let geometry = Geometry {
        area_bits: 29,
        section_bits: 18,
        zone_bits: 10,
        pack_blocks: 64,
    };
    Volume::format(
        dev,
        &FormatOptions {
            geometry,
            ..FormatOptions::new([1; 16], [2; 16], 1 << 20)
        },
    )
    .unwrap();
}

/// Space that a directory tree takes on the host. Unit: bytes.
fn host_bytes(path: &Path) -> u64 {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let below = if meta.is_dir() {
        std::fs::read_dir(path)
            .unwrap()
            .map(|entry| host_bytes(&entry.unwrap().path()))
            .sum()
    } else {
        0
    };
    below + meta.blocks() * 512
}

/// Writes, overwrites and deletes files, with remounts in between. Returns the expected content.
fn churn(open: impl Fn() -> Arc<dyn BlockDevice>) -> BTreeMap<String, Vec<u8>> {
    let mut want: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut rng = Rng::new(9);
    for round in 0..4u8 {
        let options = MountOptions {
            window_blocks: 1 << 14,
            ..MountOptions::default()
        };
        let mut v = Volume::mount(open(), options).unwrap();
        for (name, bytes) in &want {
            let ino = v.lookup(Nid::ROOT, name.as_bytes()).unwrap();
            assert!(
                v.read(ino, 0, bytes.len() + 1).unwrap() == *bytes,
                "{name} in round {round}"
            );
        }
        for step in 0..60 {
            let name = format!("file {}", rng.below(12));
            if rng.below(4) == 0 && want.remove(&name).is_some() {
                v.unlink(Nid::ROOT, name.as_bytes(), &CALLER).unwrap();
                continue;
            }
            let ino = match v.lookup(Nid::ROOT, name.as_bytes()) {
                Ok(ino) => ino,
                Err(_) => {
                    v.create(Nid::ROOT, name.as_bytes(), mode::FILE, 0, &CALLER)
                        .unwrap()
                        .ino
                }
            };
            let (offset, len) = (rng.below(400_000), 1 + rng.below(300_000));
            let data = vec![round * 60 + step + 1; len];
            v.write(ino, offset as u64, &data, CALLER.now).unwrap();
            let bytes = want.entry(name).or_default();
            bytes.resize(bytes.len().max(offset + len), 0);
            bytes[offset..offset + len].copy_from_slice(&data);
            if step % 20 == 0 {
                v.fsync(ino).unwrap();
            }
        }
        if round % 2 == 0 {
            v.unmount().unwrap();
        } else {
            v.sync().unwrap();
        }
    }
    want
}

fn live_and_sound(dev: &Arc<dyn BlockDevice>) -> u64 {
    let mut v = Volume::mount(dev.clone(), MountOptions::default()).unwrap();
    v.drain().unwrap();
    let live = v.space().live;
    v.unmount().unwrap();
    let report = no_findings(dev, "check");
    assert!(report.leaked.is_empty(), "{:x?}", report.leaked);
    live * 4096
}

#[test]
fn zone_files_take_little_more_than_the_live_data() {
    let path = scratch("zone-files");
    format(Arc::new(ZoneDir::create(&path, 1024).unwrap()));
    churn(|| Arc::new(ZoneDir::open(&path, false).unwrap()));
    let dev: Arc<dyn BlockDevice> = Arc::new(ZoneDir::open(&path, false).unwrap());
    let live = live_and_sound(&dev);
    // The packs and the preallocation past the heads are a constant part.
    let taken = host_bytes(&path);
    assert!(
        taken <= live + live / 50 + (4 << 20),
        "{taken} bytes taken, {live} live"
    );
    // The heads have passed many zones. Only zones that hold something have a file.
    let zones = std::fs::read_dir(path.join("zones")).unwrap().count() as u64;
    assert!(zones <= 8 + live / (4 << 20) * 2 + 8, "{zones} zone files");
}

#[test]
fn one_sparse_file_takes_little_more_than_the_live_data() {
    let path = scratch("one-file");
    format(Arc::new(FileDevice::create(&path).unwrap()));
    churn(|| Arc::new(FileDevice::open(&path, false).unwrap()));
    let dev: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(&path, false).unwrap());
    let live = live_and_sound(&dev);
    let taken = host_bytes(&path);
    assert!(
        taken <= live + live / 50 + (2 << 20),
        "{taken} bytes taken, {live} live"
    );
}

#[test]
fn an_open_volume_cannot_be_opened_again() {
    let path = scratch("locked-zones");
    let first = ZoneDir::create(&path, 1024).unwrap();
    assert_eq!(
        ZoneDir::open(&path, false).err().unwrap().kind(),
        io::ErrorKind::ResourceBusy
    );
    assert_eq!(
        ZoneDir::open(&path, true).err().unwrap().kind(),
        io::ErrorKind::ResourceBusy
    );
    drop(first);
    let readers = [
        ZoneDir::open(&path, true).unwrap(),
        ZoneDir::open(&path, true).unwrap(),
    ];
    assert_eq!(
        ZoneDir::open(&path, false).err().unwrap().kind(),
        io::ErrorKind::ResourceBusy
    );
    drop(readers);
    ZoneDir::open(&path, false).unwrap();
    assert_eq!(
        ZoneDir::create(&path, 1024).err().unwrap().kind(),
        io::ErrorKind::AlreadyExists
    );

    let path = scratch("locked-file");
    let first = FileDevice::create(&path).unwrap();
    assert_eq!(
        FileDevice::open(&path, false).err().unwrap().kind(),
        io::ErrorKind::ResourceBusy
    );
    drop(first);
    FileDevice::open(&path, false).unwrap();
}

#[test]
fn blocks_cross_zone_files_and_whole_zones_are_unlinked() {
    let path = scratch("zones");
    let dev = ZoneDir::create(&path, 16).unwrap();
    let data: Vec<u8> = (0..40).flat_map(|n| [n; 4096]).collect();
    dev.write(tuff_iplfs::BlockAddr(10), &data).unwrap();
    dev.flush().unwrap();
    let mut back = vec![0; data.len() + 8192];
    dev.read(tuff_iplfs::BlockAddr(9), &mut back).unwrap();
    assert!(
        back[4096..data.len() + 4096] == data
            && back[..4096] == [0; 4096]
            && back[data.len() + 4096..] == [0; 4096]
    );
    assert_eq!(dev.allocated(0..1000).unwrap(), vec![10..50; 1]);
    dev.discard(12..34).unwrap();
    assert_eq!(dev.allocated(0..1000).unwrap(), [10..12, 34..50]);
    assert_eq!(dev.zones(0..100).unwrap(), [0, 2, 3]);
    dev.read(tuff_iplfs::BlockAddr(20), &mut back[..4096])
        .unwrap();
    assert_eq!(back[..4096], [0; 4096]);
}

#[test]
fn a_file_that_is_not_a_zone_is_reported_by_name() {
    // Bug: a file `7` among the zones made every command fail with "no such file", because `0000000007` was opened
    // for it. Other names were not reported.
    let path = scratch("names");
    drop(ZoneDir::create(&path, 16).unwrap());
    for name in ["7", "000000000A", "00000000007", "+000000007", "junk"] {
        let file = path.join("zones").join(name);
        std::fs::write(&file, "").unwrap();
        let e = ZoneDir::open(&path, true).err().unwrap();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
        assert!(e.to_string().contains(name), "{e}");
        std::fs::remove_file(file).unwrap();
    }
    ZoneDir::open(&path, true).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
}

/// Bug: with a pipe in place of `zones` or of a zone file, every command waited for a writer.
#[test]
fn a_pipe_in_place_of_a_file_is_rejected_without_blocking() {
    let path = scratch("pipes");
    let place = |name: &str| {
        let _ = std::fs::remove_dir_all(&path);
        let dev = ZoneDir::create(&path, 16).unwrap();
        dev.write(tuff_iplfs::BlockAddr(0), &[1; 4096]).unwrap();
        let pipe = path.join(name);
        if pipe.is_dir() {
            std::fs::remove_dir_all(&pipe).unwrap();
        } else {
            std::fs::remove_file(&pipe).unwrap();
        }
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
    };
    let read = || {
        let (done, is_done) = std::sync::mpsc::channel();
        let path = path.clone();
        std::thread::spawn(move || {
            let dev = ZoneDir::open(&path, true);
            let _ = done.send(dev.and_then(|dev| {
                dev.read(tuff_iplfs::BlockAddr(0), &mut [0; 4096])?;
                Ok(dev.damaged_files().len())
            }));
        });
        is_done.recv_timeout(std::time::Duration::from_secs(60))
    };
    for name in ["zones", "zones/0000000000"] {
        place(name);
        let result = read().unwrap_or_else(|_| panic!("waits for a writer of {name}"));
        assert!(result.is_err(), "{name}: {result:?}");
    }
    for name in ["volume", "volume.copy"] {
        place(name);
        let result = read().unwrap_or_else(|_| panic!("waits for a writer of {name}"));
        assert_eq!(result.unwrap(), 1, "{name}");
    }
    std::fs::remove_dir_all(&path).unwrap();
}

/// Bug: data written to a zone file that another process had removed was reported as durable, and lost at the next
/// mount.
#[test]
fn a_removed_zone_file_fails_the_next_flush() {
    let path = scratch("removed");
    let dev = ZoneDir::create(&path, 16).unwrap();
    for zone in 0..3 {
        dev.write(tuff_iplfs::BlockAddr(zone * 16), &[1; 4096])
            .unwrap();
    }
    dev.flush().unwrap();
    // This removal is the volume's own.
    dev.write(tuff_iplfs::BlockAddr(1), &[2; 4096]).unwrap();
    dev.release_zone(0).unwrap();
    dev.flush().unwrap();
    std::fs::remove_file(path.join("zones/0000000002")).unwrap();
    dev.write(tuff_iplfs::BlockAddr(16), &[2; 4096]).unwrap();
    dev.flush().unwrap();
    dev.write(tuff_iplfs::BlockAddr(33), &[2; 4096]).unwrap();
    let e = dev.flush().unwrap_err();
    assert!(
        e.to_string().contains("zones/0000000002 was removed"),
        "{e}"
    );
}

/// Fills the host, and therefore needs a small filesystem of its own: `TUFF_SMALL_DIR=/some/16M/tmpfs`.
#[test]
#[ignore = "needs a directory on a filesystem of about 16 MiB"]
fn a_full_host_still_takes_deletes() {
    let small = PathBuf::from(
        std::env::var_os("TUFF_SMALL_DIR").expect("TUFF_SMALL_DIR names a directory"),
    );
    let path = small.join("volume");
    format(Arc::new(ZoneDir::create(&path, 1024).unwrap()));
    let mut v = Volume::mount(
        Arc::new(ZoneDir::open(&path, false).unwrap()),
        MountOptions::default(),
    )
    .unwrap();
    let ino = v
        .create(Nid::ROOT, b"mine", mode::FILE, 0, &CALLER)
        .unwrap()
        .ino;
    v.write(ino, 0, &[1; 3 << 20], CALLER.now).unwrap();
    v.sync().unwrap();
    // Another program takes all remaining space.
    let mut other = std::fs::File::create(small.join("other")).unwrap();
    while io::Write::write_all(&mut other, &[7; 4096]).is_ok() {}
    let more = v
        .write(ino, 3 << 20, &[2; 1 << 20], CALLER.now)
        .and_then(|_| v.fsync(ino));
    assert_eq!(more.unwrap_err().errno(), 28);
    assert_eq!(v.read(ino, 0, 3 << 20).unwrap(), vec![1; 3 << 20]);
    v.unlink(Nid::ROOT, b"mine", &CALLER).unwrap();
    v.drain().unwrap();
    let ino = v
        .create(Nid::ROOT, b"again", mode::FILE, 0, &CALLER)
        .unwrap()
        .ino;
    v.write(ino, 0, &[3; 100 << 10], CALLER.now).unwrap();
    v.unmount().unwrap();
    let dev: Arc<dyn BlockDevice> = Arc::new(ZoneDir::open(&path, false).unwrap());
    live_and_sound(&dev);
}
