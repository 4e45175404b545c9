//! Snapshots that the kernel mounts: after many runs, and with the greatest number of packs.

use super::disk::Disk;
use crate::cluster::BLOCK;
use crate::pack::{PACK_MAX, PACKS_MAX};
use crate::run::Request;
use crate::segment::SEGMENT_MAX;
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreCompression};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_mkfs::{Options, Progress};
use tuff_testkit::content::{noise, text};
use tuff_testkit::kernel::by_kernel;
use tuff_testkit::tree::{Record, assert_same, from_source, host_tree};
use tuff_testkit::{Rng, Scratch, is_root, skipped};

/// Longest options of mount(2). Unit: bytes.
const OPTIONS_MAX: usize = 4096;

fn request(source: &Path) -> Request {
    Request {
        sources: vec![source.to_owned()],
        series: "test".to_owned(),
        options: Options::default(),
        reads_all: true,
        is_dry: false,
        archives: Vec::new(),
    }
}

/// Mounts a snapshot in each way, also by its script, and compares it with its source.
fn compare(scratch: &Scratch, store: &Path, snapshot: &Snapshot, expected: &[Record]) {
    let open = Arc::new(Store::open(store).unwrap());
    let path = scratch.path().join("image.erofs");
    let image = open.image(snapshot, &path, &Progress::default()).unwrap();
    let options = image.devices.len() * ",device=/dev/loop1234".len() + "ro".len();
    assert!(options < OPTIONS_MAX, "{options}");
    let devices: Vec<&Path> = image.devices.iter().map(PathBuf::as_path).collect();
    let source = fs::canonicalize(scratch.path().join("source")).unwrap();
    let source = source.strip_prefix("/").unwrap();
    let number = snapshot.number;
    let dir = scratch.path().join("mnt");
    let see = |way: &str, at: &Path| {
        let shown = host_tree(&at.join(source));
        let what = format!("snapshot {number} by {way}");
        assert_same(&what, expected, &shown, from_source(expected));
    };
    by_kernel(&path, &devices, &dir, &see);
    let script = image.script(&dir).unwrap();
    let out = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    see("the script", &dir);
    let umount = Command::new("umount").arg(&dir).status();
    assert!(umount.unwrap().success());
}

#[test]
fn the_kernel_mounts_any_of_1000_snapshots_after_three_prunes() {
    if !is_root() {
        return skipped("mounting needs root");
    }
    let scratch = Scratch::new("backup-1000");
    let disk = Disk::new(&scratch.path().join("disk"), 512);
    let (source, store) = (scratch.path().join("source"), disk.path().join("store"));
    fs::create_dir(&source).unwrap();
    Store::create(&store, StoreCompression::default()).unwrap();
    let mut random = Rng::new(1000);
    let mut trees: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for run in 1..=1000 {
        let name = source.join(format!("file-{}", random.below(30)));
        let len = random.below(if run % 50 == 0 { 900_000 } else { 30_000 });
        let bytes = match run % 3 {
            0 => text(len, run),
            _ => noise(len, run),
        };
        fs::write(name, bytes).unwrap();
        let mut open = Store::open_to_write(&store).unwrap();
        let report = open.backup(&request(&source), &Progress::default());
        let number = report.unwrap().number.unwrap();
        if run % 7 == 0 || run == 1000 {
            trees.insert(number, host_tree(&source));
        }
        if matches!(run, 300 | 700 | 1000) {
            // Those of which the tree is known, and some of the others.
            for old in open.snapshots().unwrap() {
                let old = old.unwrap().number;
                let is_kept = match trees.contains_key(&old) {
                    true => old == number || random.below(10) > 0,
                    false => random.below(3) == 0,
                };
                if !is_kept {
                    open.forget(old).unwrap();
                    trees.remove(&old);
                }
            }
            let pruned = open.prune(2, &Progress::default()).unwrap();
            assert!(pruned.freed_bytes > 0, "{pruned:?}");
        }
    }
    let numbers: Vec<u32> = trees.keys().copied().collect();
    for place in [0, numbers.len() / 3, numbers.len() / 2, numbers.len() - 1] {
        let number = numbers[place];
        let snapshot = Store::open(&store).unwrap().snapshot(number).unwrap();
        compare(&scratch, &store, &snapshot, &trees[&number]);
    }
}

/// Each pack has a segment at its start and one at its end, so that the image has addresses of 8 TiB.
#[test]
fn the_kernel_mounts_a_snapshot_of_all_packs() {
    if !is_root() {
        return skipped("mounting needs root");
    }
    let scratch = Scratch::new("backup-packs");
    let disk = Disk::new(&scratch.path().join("disk"), 512);
    let (source, store) = (scratch.path().join("source"), disk.path().join("store"));
    fs::create_dir(&source).unwrap();
    Store::create(&store, StoreCompression::default()).unwrap();
    let mut number = 0;
    let mut run = |pack: u16, end: u32| {
        let name = format!("{pack}-{end}");
        let seed = u64::from(pack) << 32 | u64::from(end);
        fs::write(source.join(&name), noise(200_000, seed)).unwrap();
        fs::write(source.join(name + "-small"), text(20_000, seed)).unwrap();
        let mut open = Store::open_to_write(&store).unwrap();
        if let Some(last) = open.packs.last_mut() {
            last.end = last.end.max(end);
        }
        let report = open.backup(&request(&source), &Progress::default())?;
        number = report.number.unwrap();
        Ok::<(), tuff_mkfs::Error>(())
    };
    let last = ((PACK_MAX - SEGMENT_MAX) / BLOCK as u64) as u32;
    for pack in 0..PACKS_MAX {
        // The pack before is full.
        run(pack, if pack == 0 { 1 } else { last + 1 }).unwrap();
        run(pack, last).unwrap();
    }
    let open = Store::open(&store).unwrap();
    assert_eq!(open.packs.len(), usize::from(PACKS_MAX));
    assert!(
        open.packs
            .iter()
            .all(|pack| pack.len() > PACK_MAX - SEGMENT_MAX)
    );
    let expected = host_tree(&source);
    let full = run(0, last + 1).unwrap_err().to_string();
    assert!(full.contains("63 packs"), "{full}");
    let snapshot = open.snapshot(number).unwrap();
    drop(open);
    compare(&scratch, &store, &snapshot, &expected);
}
