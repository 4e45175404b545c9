//! Verifications that tests of volumes share. Each panics if its property does not hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use tuff_iplfs::{
    BlockDevice, CheckOptions, Error, Nid, Report, Volume, check, mode, read_superblock,
};

/// Content of every file, by path. A block is `None` if reading it is an error. Directories have no blocks.
pub type FileBlocks = BTreeMap<String, Vec<Option<Vec<u8>>>>;

/// Treatment of directories and attributes that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// They are a failure: only data may be lost.
    Panic,
    /// They are left out: the volume is not repaired yet.
    Skip,
}

/// Verifies that a full check, including data, finds nothing on a device. `place` is part of the failure message.
pub fn no_findings(device: &Arc<dyn BlockDevice>, place: &str) -> Report {
    let options = CheckOptions {
        data: true,
        fallback: false,
    };
    let report = check(device, options).unwrap_or_else(|e| panic!("{place}: {e}"));
    assert_eq!(report.findings, [], "{place}");
    report
}

/// Verifies that a check finds nothing, and that the device holds exactly the reachable blocks. `fixed_end` is the end
/// of its fixed blocks.
pub fn only_reachable_blocks(device: &Arc<dyn BlockDevice>, fixed_end: u64) -> Report {
    let report = no_findings(device, "check");
    // A copy of the superblock lies past the logs.
    let superblock = read_superblock(&**device).unwrap_or_else(|e| panic!("{e}"));
    let spare = superblock.geometry.spare_superblock().0;
    let held = device.allocated(fixed_end..spare);
    let held = held.unwrap_or_else(|e| panic!("{e}"));
    let held: Vec<u64> = held.into_iter().flatten().collect();
    assert_eq!(held, report.reachable);
    report
}

/// Reads every file of a volume.
pub fn file_blocks(v: &mut Volume, unreadable: Unreadable) -> FileBlocks {
    let mut files = FileBlocks::new();
    let mut todo = vec![(Nid::ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let entries = readable(v.read_dir(dir, 2, usize::MAX), unreadable, &path);
        for entry in entries.into_iter().flatten() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let Some(attr) = readable(v.attr(entry.ino), unreadable, &path) else {
                continue;
            };
            if attr.mode & mode::TYPE == mode::DIR {
                files.insert(path.clone(), Vec::new());
                todo.push((entry.ino, path));
                continue;
            }
            let blocks = (0..attr.size.div_ceil(4096)).map(|n| {
                let bytes = v.read(entry.ino, n * 4096, 4096);
                readable(bytes, Unreadable::Skip, &path)
            });
            files.insert(path.clone(), blocks.collect());
        }
    }
    files
}

fn readable<T>(result: Result<T, Error>, unreadable: Unreadable, path: &str) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Corrupt(_)) if unreadable == Unreadable::Skip => None,
        Err(e) => panic!("{path}: {e}"),
    }
}

/// Verifies that every block was written before at its path. Additional paths may exist in lost+found only. Returns the
/// number of paths that are missing or partly lost.
pub fn no_wrong_bytes(before: &FileBlocks, after: &FileBlocks, place: &str) -> usize {
    for (path, blocks) in after {
        let Some(old) = before.get(path) else {
            assert!(path.starts_with("/lost+found"), "{place}: {path} appeared");
            continue;
        };
        assert_eq!(old.len(), blocks.len(), "{place}: {path}");
        for (n, (old, new)) in old.iter().zip(blocks).enumerate() {
            assert!(
                new.is_none() || old == new,
                "{place}: block {n} of {path} changed"
            );
        }
    }
    before
        .iter()
        .filter(|(path, blocks)| after.get(*path) != Some(blocks))
        .count()
}
