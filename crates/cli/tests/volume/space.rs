//! Space after deletes: what `statfs` shows, and what the host gets back.

use crate::common::{Mounted, Place, good, run};
use crate::host::Loop;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time after which a release does not come any more.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(60);

/// Space that a file or a directory takes on the host. Unit: bytes.
fn on_the_host(path: &Path) -> u64 {
    let Ok(metadata) = fs::metadata(path) else {
        return 0;
    };
    let below = fs::read_dir(path).into_iter().flatten();
    let below: u64 = below.map(|entry| on_the_host(&entry.unwrap().path())).sum();
    metadata.blocks() * 512 + below
}

/// Space that `statfs` shows as available. Unit: bytes.
fn available(dir: &Path) -> u64 {
    let space = statvfs(dir).unwrap();
    space.f_bavail * space.f_frsize
}

/// Waits for a condition. The kernel forgets deleted files a moment after their deletion.
fn until(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < RELEASE_TIME_MAX);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Writes 24 MiB in small files and makes them durable.
fn fill(dir: &Path) {
    for n in 0..3000 {
        fs::write(dir.join(n.to_string()), [n as u8; 8000]).unwrap();
    }
    fs::File::open(dir).unwrap().sync_all().unwrap();
}

/// Regression: both came with the third checkpoint, the second one of a block device never.
#[test]
fn deleted_space_is_shown_at_once_and_returned_while_the_volume_is_idle() {
    let place = Place::new("idle");
    let dir = &place.0;
    let medium = fs::File::create_new(dir.join("medium")).unwrap();
    medium.set_len(64 << 20).unwrap();
    good(dir, &["create", "medium"]);
    let Some(device) = Loop::over(dir, &[], "medium") else {
        return;
    };
    for (source, host) in [("v", "v"), ("f", "f"), (device.path(), "medium")] {
        // No checkpoint of the interval helps.
        let Some(mounted) = Mounted::of_source(&place, source, &["--commit", "3600"]) else {
            return;
        };
        let host = dir.join(host);
        let m = mounted.0.join("d");
        fs::create_dir(&m).unwrap();
        let free = available(&m);
        fill(&m);
        let (full, left) = (on_the_host(&host), available(&m));
        assert!(free - left > 20 << 20, "{source}: {free} and {left}");
        assert!(full > 20 << 20, "{source}: {full}");
        // Every tenth file stays, so that no chunk of a device becomes empty.
        for n in (0..3000).filter(|n| n % 10 > 0) {
            fs::remove_file(m.join(n.to_string())).unwrap();
        }
        until(|| free - available(&m) < 7 << 20);
        until(|| on_the_host(&host) < full - (12 << 20));
        for n in (0..3000).filter(|n| n % 10 == 0) {
            assert_eq!(fs::read(m.join(n.to_string())).unwrap(), [n as u8; 8000]);
        }
        mounted.end();
        good(dir, &["check", "--data", source]);
    }
}

/// Regression (xfstests generic/103): nodes were not counted.
#[test]
fn available_space_can_be_allocated() {
    let place = Place::new("available");
    let dir = &place.0;
    fs::create_dir(dir.join("host")).unwrap();
    // A filesystem of its own: other tests change the free space of a shared one. Reserved ranges take no memory.
    let tmpfs = ["-t", "tmpfs", "-o", "size=16G", "none", "host"];
    if !rustix::process::geteuid().is_root() || !run(dir, "mount", &tmpfs).0 {
        tuff_testkit::skipped("a host of its own needs root and tmpfs");
        return;
    }
    good(dir, &["create", "host/large", "-s", "8G"]);
    if let Some(mounted) = Mounted::of_source(&place, "host/large", &[]) {
        let file = fs::File::create_new(mounted.0.join("file")).unwrap();
        let most = available(&mounted.0) - (512 << 10);
        fallocate(&file, FallocateFlags::empty(), 0, most).unwrap();
        let left = available(&mounted.0);
        assert!(left < 16 << 20, "{left}");
        drop(file);
        fs::remove_file(mounted.0.join("file")).unwrap();
        mounted.end();
    }
    assert!(run(dir, "umount", &["host"]).0);
}

/// Regression: `statfs` promised the quota, whatever the host had.
#[test]
fn available_space_is_that_of_the_host() {
    let place = Place::new("small-host");
    let dir = &place.0;
    fs::create_dir(dir.join("host")).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "size=64M", "none", "host"];
    if !rustix::process::geteuid().is_root() || !run(dir, "mount", &tmpfs).0 {
        tuff_testkit::skipped("a small host needs root and tmpfs");
        return;
    }
    for options in [
        &["host/v", "-s", "1G"][..],
        &["host/v", "-s", "1G", "--file"],
    ] {
        good(dir, &[&["create"], options].concat());
        let Some(mounted) = Mounted::of_source(&place, "host/v", &[]) else {
            return;
        };
        let space = available(&mounted.0);
        assert!(space < 64 << 20, "{space}");
        let bytes = vec![7; space as usize - (2 << 20)];
        fs::write(mounted.0.join("file"), &bytes).unwrap();
        let file = fs::File::open(mounted.0.join("file")).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert!(fs::read(mounted.0.join("file")).unwrap() == bytes);
        let left = available(&mounted.0);
        assert!(left < 4 << 20, "{left}");
        fs::remove_file(mounted.0.join("file")).unwrap();
        until(|| available(&mounted.0) > space - (4 << 20));
        mounted.end();
        let removed = run(dir, "rm", &["-r", "host/v"]);
        assert!(removed.0, "{}", removed.1);
    }
    let unmounted = run(dir, "umount", &["host"]);
    assert!(unmounted.0, "{}", unmounted.1);
}
