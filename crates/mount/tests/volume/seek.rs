//! SEEK_DATA, SEEK_HOLE and copies of files that are still being written.

use super::Ours;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_fuse::transport::Transport;

const BOTH: [Transport; 2] = [Transport::Dev, Transport::Auto];

/// Returns the data ranges of a file through a descriptor of its own, as a copying process finds them.
fn data_ranges(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => {
                let end = seek(&file, SeekFrom::Hole(start)).unwrap();
                ranges.push((start, end));
                at = end;
            }
            Err(Errno::NXIO) => return ranges,
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8 | 1).collect()
}

#[test]
fn dirty_pages_of_the_kernel_are_data() {
    for transport in BOTH {
        let Some(mut ours) = Ours::through("seek", transport) else {
            return;
        };
        let path = ours.path("written");
        let file = File::create(&path).unwrap();
        file.write_all_at(&bytes(1_000_000), 0).unwrap();
        assert_eq!(data_ranges(&path), [(0, 1_000_000)]);
        // Half of the data is durable, half is not.
        file.sync_all().unwrap();
        file.write_all_at(&bytes(1_000_000), 1_000_000).unwrap();
        assert_eq!(data_ranges(&path), [(0, 2_000_000)]);
        drop(file);

        // Inside a hole of the volume, across the end of the file in the volume, and in its last block.
        let path = ours.path("sparse");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&bytes(100), 81_920).unwrap();
        assert_eq!(data_ranges(&path), [(81_920, 86_016)]);
        file.write_all_at(&bytes(5000), (1 << 20) + 4096).unwrap();
        assert_eq!(
            data_ranges(&path),
            [
                (81_920, 86_016),
                ((1 << 20) + 4096, (1 << 20) + 4096 + 5000)
            ]
        );
        file.sync_all().unwrap();
        file.write_all_at(b"end", (1 << 20) + 4096 + 5000).unwrap();
        assert_eq!(data_ranges(&path)[1].1, (1 << 20) + 4096 + 5003);
        drop(file);
        ours.unmount().unwrap();
    }
}

#[test]
fn holes_stay_holes() {
    for transport in BOTH {
        let Some(mut ours) = Ours::through("holes", transport) else {
            return;
        };
        let path = ours.path("sparse");
        let file = File::create(&path).unwrap();
        for at in [0, 40_960, 1 << 30] {
            file.write_all_at(&bytes(4096), at).unwrap();
        }
        file.set_len(1 << 40).unwrap();
        let ranges = [(0, 4096), (40_960, 45_056), (1 << 30, (1 << 30) + 4096)];
        assert_eq!(data_ranges(&path), ranges);
        file.sync_all().unwrap();
        assert_eq!(data_ranges(&path), ranges);
        let past = seek(&file, SeekFrom::Data(1 << 40));
        assert_eq!(past, Err(Errno::NXIO));
        drop(file);
        ours.unmount().unwrap();
    }
}

/// Commands that copy FROM to TO and rely on SEEK_HOLE or `st_blocks` for holes.
const COPIES: [&str; 4] = [
    "cp FROM TO",
    "cp --sparse=always FROM TO",
    "cp --sparse=never FROM TO",
    "tar -c -S -C DIR NAME | tar -x -O > TO",
];

#[test]
fn copies_of_open_files_are_complete() {
    for transport in BOTH {
        let Some(mut ours) = Ours::through("copies", transport) else {
            return;
        };
        let to = std::env::temp_dir().join(format!("tuff-volume-copy-{}", std::process::id()));
        let copy = |name: &str, copy: &str| -> Vec<u8> {
            let line = copy
                .replace("FROM", ours.path(name).to_str().unwrap())
                .replace("DIR", ours.dir.to_str().unwrap())
                .replace("NAME", name)
                .replace("TO", to.to_str().unwrap());
            let done = Command::new("sh").arg("-c").arg(&line).status().unwrap();
            assert!(done.success(), "{line}");
            fs::read(&to).unwrap()
        };
        for (number, command) in COPIES.into_iter().enumerate() {
            let name = format!("file{number}");
            let path: PathBuf = ours.path(&name);
            let file = File::create(&path).unwrap();
            let want = bytes(1_000_000);
            file.write_all_at(&want[..10], 0).unwrap();
            assert!(fs::metadata(&path).unwrap().blocks() > 0);
            assert!(copy(&name, command) == want[..10], "{command}, 10 bytes");
            file.write_all_at(&want, 0).unwrap();
            assert!(copy(&name, command) == want, "{command}, no fsync");
            file.sync_all().unwrap();
            file.write_all_at(&want, 1_000_000).unwrap();
            let twice = [&want[..], &want].concat();
            assert!(
                copy(&name, command) == twice,
                "{command}, half of it durable"
            );
        }
        let _ = fs::remove_file(&to);
        ours.unmount().unwrap();
    }
}

#[test]
fn after_a_failed_write_back_every_byte_is_data() {
    let Some(mut ours) = Ours::new("seek-failed") else {
        return;
    };
    let path = ours.path("file");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    file.sync_all().unwrap();
    let held = ours.host.inner.blocks().len() as u64;
    ours.host.inner.set_capacity(Some(held));
    // Only stores to a mapping are accepted on a full host.
    let store = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
mmap.mmap(f, 1 << 20)[:] = bytes((i * 7 + i // 256) & 255 | 1 for i in range(1 << 20))
";
    let stored = Command::new("python3")
        .args(["-c", store])
        .arg(&path)
        .status();
    let Ok(stored) = stored else {
        return tuff_testkit::skipped("a mapping needs python3");
    };
    assert!(stored.success());
    assert_eq!(data_ranges(&path), [(0, 1 << 20)]);
    assert!(fs::read(&path).unwrap() == bytes(1 << 20));
    ours.host.inner.set_capacity(None);
    drop(file);
    ours.unmount().unwrap();
}
