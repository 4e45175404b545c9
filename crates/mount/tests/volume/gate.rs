//! Full volumes: `write` reports the end of the space, and what it accepted is kept.

use super::Ours;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, chown};
use std::process::Command;
use tuff_fuse::transport::Transport;

/// Blocks of a small volume: 32 MiB, a part of which is for deletes.
const SMALL: u64 = 8 << 10;

fn no_space(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

/// Pattern of a file that depends on the position.
fn pattern(start: usize, len: usize) -> Vec<u8> {
    (start..start + len)
        .map(|i| (i / 512 * 7 + i % 251) as u8)
        .collect()
}

/// Writes a file in pieces until there is no space. Returns the number of bytes accepted.
fn fill(file: &mut File, piece: usize) -> usize {
    let mut accepted = 0;
    loop {
        match file.write(&pattern(accepted, piece)) {
            Ok(n) => accepted += n,
            Err(e) => {
                assert!(no_space(&e), "{e}");
                return accepted;
            }
        }
        assert!(accepted < 1 << 30, "a full volume was not noticed");
    }
}

#[test]
fn what_write_accepted_is_kept_on_a_full_volume() {
    let some: &[usize] = &[4096];
    let all: &[usize] = &[700, 4096, 100_000, 9 << 20];
    for (transport, pieces) in [(Transport::Auto, all), (Transport::Dev, some)] {
        for &piece in pieces {
            let Some(mut ours) = Ours::of_blocks("gate", transport, SMALL) else {
                return;
            };
            let mut file = File::create(ours.path("file")).unwrap();
            let accepted = fill(&mut file, piece);
            assert!(accepted > 10 << 20, "{accepted} bytes by {piece}");
            file.sync_all().unwrap();
            drop(file);
            assert!(
                ours.stored("file").unwrap() == pattern(0, accepted),
                "{piece}"
            );
            // Space that is released can be written again.
            File::options()
                .write(true)
                .open(ours.path("file"))
                .unwrap()
                .set_len(1000)
                .unwrap();
            fs::remove_file(ours.path("file")).unwrap();
            let mut file = File::create(ours.path("again")).unwrap();
            file.write_all(&pattern(0, 10 << 20)).unwrap();
            file.sync_all().unwrap();
            drop(file);
            ours.unmount().unwrap();
            ours.is_sound();
        }
    }
}

#[test]
fn calls_of_all_kinds_are_asked_for() {
    let Some(mut ours) = Ours::of_blocks("gate-calls", Transport::Auto, SMALL) else {
        return;
    };
    let whole = vec![5; 80 << 20];
    // One call that is larger than the volume, at once and in buffers.
    let mut file = File::create(ours.path("file")).unwrap();
    assert!(no_space(&file.write(&whole).unwrap_err()));
    let buffers = [
        IoSlice::new(&whole[..60 << 20]),
        IoSlice::new(&whole[..20 << 20]),
    ];
    assert!(no_space(&file.write_vectored(&buffers).unwrap_err()));
    assert!(no_space(&file.write_at(&whole, 5000).unwrap_err()));
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert!(no_space(
        &rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 80 << 20)
            .unwrap_err()
            .into()
    ));
    // A copy in the kernel.
    let source = tuff_testkit::unused_path("gate-source");
    fs::write(&source, &whole).unwrap();
    let mut from = File::open(&source).unwrap();
    let error = io::copy(&mut from, &mut file).unwrap_err();
    assert!(no_space(&error), "{error}");
    file.sync_all().unwrap();
    let len = file.metadata().unwrap().len() as usize;
    assert!(ours.stored("file").unwrap() == whole[..len]);
    // Appending, after there is space again.
    file.set_len(0).unwrap();
    drop(file);
    let mut file = File::options()
        .append(true)
        .open(ours.path("file"))
        .unwrap();
    let accepted = fill(&mut file, 10_000);
    file.sync_all().unwrap();
    assert!(ours.stored("file").unwrap() == pattern(0, accepted));
    // The content can be read.
    assert!(fs::read(ours.path("file")).unwrap() == pattern(0, accepted));
    drop(file);
    fs::remove_file(&source).unwrap();
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn several_writers_lose_nothing_on_a_full_volume() {
    let Some(mut ours) = Ours::of_blocks("gate-writers", Transport::Auto, SMALL) else {
        return;
    };
    let accepted: Vec<usize> = std::thread::scope(|scope| {
        let writers: Vec<_> = [3000, 4096, 65_536, 1 << 20]
            .iter()
            .enumerate()
            .map(|(i, piece)| {
                let path = ours.path(&format!("file{i}"));
                scope.spawn(move || fill(&mut File::create(path).unwrap(), *piece))
            })
            .collect();
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    for (i, accepted) in accepted.into_iter().enumerate() {
        let name = format!("file{i}");
        File::open(ours.path(&name)).unwrap().sync_all().unwrap();
        assert!(
            ours.stored(&name).unwrap() == pattern(0, accepted),
            "{name}"
        );
    }
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn an_exceeded_quota_is_reported_by_write() {
    let Some(mut ours) = Ours::new("gate-quota") else {
        return;
    };
    let set = |value: &str| {
        rustix::fs::setxattr(
            &ours.dir,
            "trusted.tuff.quota.user.1234",
            value.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
    };
    let file = File::create(ours.path("theirs")).unwrap();
    chown(ours.path("theirs"), Some(1234), None).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    set("1048576 -").unwrap();
    file.write_all_at(&pattern(0, 512 << 10), 0).unwrap();
    let quota = Some(Errno::DQUOT.raw_os_error());
    for len in [600 << 10, 4 << 20] {
        let error = file.write_at(&vec![7; len], 512 << 10).unwrap_err();
        assert_eq!(error.raw_os_error(), quota, "{len}");
    }
    let mut end = 512 << 10;
    let error = loop {
        match file.write_at(&pattern(end, 4096), end as u64) {
            Ok(n) => end += n,
            Err(e) => break e,
        }
        assert!(end < 2 << 20, "an exceeded quota was not noticed");
    };
    assert_eq!(error.raw_os_error(), quota);
    assert!(end > 900 << 10, "{end}");
    // Blocks within the limit can be overwritten.
    file.write_all_at(&pattern(0, end), 0).unwrap();
    file.sync_all().unwrap();
    assert!(ours.stored("theirs").unwrap() == pattern(0, end));
    // Others have space.
    ours.put("ours", &[8; 4 << 20]).unwrap();
    set("4194304 -").unwrap();
    file.write_all_at(&[7; 1 << 20], 512 << 10).unwrap();
    file.sync_all().unwrap();
    drop(file);
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn an_error_of_a_mapping_is_reported_by_msync() {
    let Some(mut ours) = Ours::of_blocks("gate-mapping", Transport::Auto, SMALL) else {
        return;
    };
    let script = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 64 << 20)
m = mmap.mmap(f, 64 << 20)
m[:] = b'x' * (64 << 20)
try:
    m.flush()
    os.fsync(f)
except OSError as e:
    sys.exit(e.errno)
";
    let path = ours.path("mapped");
    let run = Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .output();
    let Ok(run) = run else {
        return tuff_testkit::skipped("a mapping needs python3");
    };
    let nospc = Errno::NOSPC.raw_os_error();
    assert_eq!(run.status.code(), Some(nospc), "{run:?}");
    // Deleting has its reserve.
    fs::remove_file(&path).unwrap();
    ours.put("kept", &pattern(0, 1 << 20)).unwrap();
    assert!(ours.stored("kept").unwrap() == pattern(0, 1 << 20));
    ours.unmount().unwrap();
    ours.is_sound();
}

#[test]
fn what_write_accepted_is_kept_on_a_full_host() {
    let Some(mut ours) = Ours::new("gate-host") else {
        return;
    };
    let held = ours.host.inner.blocks().len() as u64;
    ours.host.inner.set_capacity(Some(held + 8000));
    let mut file = File::create(ours.path("file")).unwrap();
    let accepted = fill(&mut file, 100_000);
    assert!(accepted > 10 << 20, "{accepted}");
    file.sync_all().unwrap();
    assert!(ours.stored("file").unwrap() == pattern(0, accepted));
    drop(file);
    fs::remove_file(ours.path("file")).unwrap();
    ours.unmount().unwrap();
    ours.host.inner.set_capacity(None);
    ours.is_sound();
}
