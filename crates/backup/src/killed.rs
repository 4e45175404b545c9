//! Tests of runs that end at every step.

use crate::files::faults::limit;
use crate::run::{Request, append};
use crate::segment::{Directory, NewRange};
use crate::snapshot::Snapshot;
use crate::store::{Store, StoreCompression};
use crate::{Depth, cluster::BLOCK};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_mkfs::{Options, Progress};
use tuff_testkit::content::{noise, text};
use tuff_testkit::tree::{Record, image_tree};
use tuff_testkit::{Scratch, is_root, skipped};

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

fn backup(store: &Path, source: &Path) -> u32 {
    let mut store = Store::open_to_write(store).unwrap();
    let report = store.backup(&request(source), &Progress::default());
    report.unwrap().number.unwrap()
}

fn findings(store: &Path) -> Vec<String> {
    let store = Store::open(store).unwrap();
    let checked = store.check(Depth::Data, 2, &Progress::default()).unwrap();
    checked.findings
}

/// Files of a snapshot with their content, and everything else of them.
fn tree(store: &Path, snapshot: &Snapshot, image: &Path) -> Vec<Record> {
    let store = Arc::new(Store::open(store).unwrap());
    let image = store.image(snapshot, image, &Progress::default()).unwrap();
    image_tree(&image.open().unwrap())
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Blocks of packs that no directory names, and that are no holes.
fn waste(store: &Path) -> u64 {
    let store = Store::open(store).unwrap();
    let mut waste = 0;
    for segment in store.segments.values() {
        let directory = store.directory(segment).unwrap();
        let pack = &store.packs[usize::from(directory.pack)];
        for gap in directory.gaps() {
            waste += gap.filter(|block| pack.has_data(*block..block + 1)).count() as u64;
        }
    }
    waste
}

/// Bytes that the files of a directory take.
fn taken(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let len = entries.map(|entry| match entry.metadata().unwrap() {
        metadata if metadata.is_dir() => taken(&entry.path()),
        metadata => metadata.blocks() * 512,
    });
    len.sum()
}

/// A source that changes for three days, and its store with three snapshots.
struct Days {
    source: PathBuf,
    store: PathBuf,
    /// Expected tree of the last snapshot.
    last: Vec<Record>,
}

fn days(dir: &Path) -> Days {
    let (source, store) = (dir.join("source"), dir.join("store"));
    fs::create_dir(&source).unwrap();
    Store::create(&store, StoreCompression::default()).unwrap();
    for day in 0..3u64 {
        for n in 0..40 {
            // Most members of each group are replaced on every day.
            let seed = if n % 8 == 0 { n } else { n + 100 * day };
            let name = source.join(format!("small-{n}"));
            fs::write(name, noise(60_000, seed)).unwrap();
        }
        fs::write(source.join("large"), noise(300_000, 7 + day)).unwrap();
        fs::write(source.join("text"), text(300_000, 9)).unwrap();
        backup(&store, &source);
    }
    let newest = Store::open(&store).unwrap().snapshot(3).unwrap();
    let last = tree(&store, &newest, &dir.join("image"));
    assert_eq!(
        last.iter()
            .filter(|record| record.path.ends_with(b"small-1"))
            .count(),
        1
    );
    Days {
        source,
        store,
        last,
    }
}

fn forget_first_two(store: &Path) {
    let mut store = Store::open_to_write(store).unwrap();
    store.forget(1).unwrap();
    store.forget(2).unwrap();
}

fn prune(store: &Path) -> tuff_mkfs::Result<crate::Pruned> {
    Store::open_to_write(store)?.prune(2, &Progress::default())
}

/// B2: a run of prune that ends at any step loses nothing, and the next run of backup stores what is missing.
#[test]
fn b2_prune_may_end_at_every_step() {
    let scratch = Scratch::new("backup-prune-killed");
    let days = days(scratch.path());
    let before = taken(&days.store);
    forget_first_two(&days.store);
    let at = scratch.path().join("copy");
    let mut steps = 0;
    loop {
        copy(&days.store, &at);
        limit(Some(steps));
        let pruned = prune(&at);
        limit(None);
        // Only what is noticed as a loss of parity may be found.
        let found = findings(&at);
        let is_harmless = |what: &String| what.contains("no parity");
        assert!(found.iter().all(is_harmless), "step {steps}: {found:?}");
        let number = backup(&at, &days.source);
        let open = Store::open(&at).unwrap();
        for number in [3, number] {
            let snapshot = open.snapshot(number).unwrap();
            let shown = tree(&at, &snapshot, &scratch.path().join("image"));
            assert_eq!(shown, days.last, "step {steps}, snapshot {number}");
        }
        if let Ok(pruned) = pruned
            && pruned.warnings.is_empty()
        {
            assert!(steps > 12, "{steps}");
            assert!(pruned.freed_bytes > 2_000_000, "{pruned:?}");
            assert!(pruned.renewed_segments + pruned.removed_segments >= 2);
            assert!(pruned.moved_bytes > 0);
            break;
        }
        prune(&at).unwrap();
        assert_eq!(findings(&at), Vec::<String>::new(), "step {steps}");
        assert_eq!(waste(&at), 0, "step {steps}");
        steps += 1;
    }
    assert_eq!(waste(&at), 0);
    let after = taken(&at);
    assert!(after < before - 2_000_000, "{before} bytes, now {after}");
    // Once more, there is nothing to do.
    let again = prune(&at).unwrap();
    assert_eq!((again.freed_bytes, again.renewed_segments), (0, 0));
}

/// B5: without any free byte, snapshots can be forgotten and pruned, wherever a run ends.
#[test]
fn b5_prune_frees_space_on_a_full_disk() {
    let scratch = Scratch::new("backup-prune-full");
    let disk = scratch.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = || {
        let mut mount = Command::new("mount");
        let mount = mount
            .args(["-t", "tmpfs", "-o", "size=32M", "none"])
            .arg(&disk);
        mount.status().is_ok_and(|status| status.success())
    };
    if !is_root() || !mount() {
        return skipped("a small disk needs root and tmpfs");
    }
    let days = days(scratch.path());
    let at = disk.join("store");
    let fill = disk.join("fill");
    let mut steps = 0;
    loop {
        let _ = fs::remove_file(&fill);
        copy(&days.store, &at);
        // Fills the disk, the last bytes one by one.
        let mut full = fs::File::create(&fill).unwrap();
        for len in [1 << 20, 4096, 1] {
            use std::io::Write;
            while full.write_all(&vec![1; len]).is_ok() {}
        }
        forget_first_two(&at);
        limit(Some(steps));
        let pruned = prune(&at);
        limit(None);
        if let Ok(pruned) = &pruned {
            assert!(pruned.freed_bytes > 2_000_000, "{pruned:?}");
        } else {
            let found = findings(&at);
            let is_harmless = |what: &String| what.contains("no parity");
            assert!(found.iter().all(is_harmless), "step {steps}: {found:?}");
            prune(&at).unwrap();
        }
        assert_eq!(findings(&at), Vec::<String>::new(), "step {steps}");
        let snapshot = Store::open(&at).unwrap().snapshot(3).unwrap();
        let shown = tree(&at, &snapshot, &scratch.path().join("image"));
        assert_eq!(shown, days.last, "step {steps}");
        if pruned.is_ok() {
            break;
        }
        // All steps are tried above; here each third one.
        steps += 3;
    }
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.unwrap().success());
}

/// B6: whatever has a name is whole, wherever a run of backup ends, and the next run goes on.
#[test]
fn b6_backup_may_end_at_every_step() {
    let scratch = Scratch::new("backup-killed");
    let days = days(scratch.path());
    fs::write(days.source.join("more"), noise(200_000, 99)).unwrap();
    let at = scratch.path().join("copy");
    let mut steps = 0;
    loop {
        copy(&days.store, &at);
        limit(Some(steps));
        let mut store = Store::open_to_write(&at).unwrap();
        let report = store.backup(&request(&days.source), &Progress::default());
        drop(store);
        limit(None);
        assert_eq!(findings(&at), Vec::<String>::new(), "step {steps}");
        let number = backup(&at, &days.source);
        assert_eq!(findings(&at), Vec::<String>::new(), "step {steps}");
        let snapshot = Store::open(&at).unwrap().snapshot(number).unwrap();
        let shown = tree(&at, &snapshot, &scratch.path().join("image"));
        let more = shown
            .iter()
            .filter(|record| record.path.ends_with(b"/more"));
        assert_eq!(more.count(), 1);
        prune(&at).unwrap();
        assert_eq!(findings(&at), Vec::<String>::new(), "step {steps}");
        if report.is_ok() {
            break;
        }
        steps += 1;
    }
    assert!(steps > 5, "{steps}");
}

/// B9: damage from before tree and parity were made is no content: the ranges tell, and are stored again.
#[test]
fn b9_trees_of_damaged_clusters_hide_no_loss() {
    let scratch = Scratch::new("backup-tree-of-damage");
    let days = days(scratch.path());
    let store = Store::open_to_write(&days.store).unwrap();
    let directory = store.directory(&store.segments[&1]).unwrap();
    store.packs[0].write(&[0; BLOCK], directory.start).unwrap();
    store.write_tree(&directory, 2).unwrap();
    drop(store);
    assert!(!findings(&days.store).is_empty());
    let mut store = Store::open_to_write(&days.store).unwrap();
    let repaired = store.repair(2, &Progress::default()).unwrap();
    assert!(repaired.has_losses, "{repaired:?}");
    drop(store);
    assert!(!findings(&days.store).is_empty());
}

/// B9: where a part of a group is lost, its other members are stored anew.
#[test]
fn b9_members_beside_damage_are_kept() {
    let scratch = Scratch::new("backup-members-kept");
    let (source, path) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    Store::create(&path, StoreCompression::default()).unwrap();
    for n in 0..40 {
        fs::write(source.join(format!("file-{n}")), text(20_000, n)).unwrap();
    }
    backup(&path, &source);
    let store = Store::open_to_write(&path).unwrap();
    let directory = store.directory(&store.segments[&1]).unwrap();
    let group = directory
        .ranges
        .iter()
        .max_by_key(|range| range.count)
        .unwrap();
    assert!(group.count >= 4, "{group:?}");
    // More than the parity corrects, within one cluster.
    let blocks = directory.clusters[group.first as usize].blocks;
    assert!(blocks >= 6, "{blocks}");
    store.packs[0].write(&[1; 6 * BLOCK], group.block).unwrap();
    drop(store);
    let mut store = Store::open_to_write(&path).unwrap();
    let repaired = store.repair(2, &Progress::default()).unwrap();
    // The group itself is among them.
    assert!((2..20).contains(&repaired.lost.len()), "{repaired:?}");
    drop(store);
    let left = findings(&path);
    let files = left.iter().filter(|line| line.contains("file-")).count();
    assert!((1..19).contains(&files), "{left:?}");
    backup(&path, &source);
    assert_eq!(Store::open(&path).unwrap().snapshot(2).unwrap().files, 40);
}

/// A manifest that the disk has lost is named and not replaced, and nothing is freed until it is forgotten.
#[test]
fn b2_a_manifest_that_is_gone_is_named() {
    let scratch = Scratch::new("backup-manifest-gone");
    let days = days(scratch.path());
    for gone in [1, 3] {
        fs::remove_file(days.store.join(format!("snapshots/{gone:08}.json"))).unwrap();
    }
    let is_named = |number: u32| {
        let mut found = findings(&days.store).into_iter();
        found.any(|what| what.ends_with(&format!("{number:08}.json: the manifest is missing")))
    };
    assert!(is_named(1) && is_named(3));
    assert_eq!(backup(&days.store, &days.source), 4);
    assert!(is_named(1) && is_named(3));
    let refused = prune(&days.store).unwrap_err().to_string();
    assert!(refused.contains("nothing was pruned"), "{refused}");
    let mut store = Store::open_to_write(&days.store).unwrap();
    for gone in [1, 3] {
        store.forget(gone).unwrap();
        assert!(store.forget(gone).is_err());
    }
    drop(store);
    prune(&days.store).unwrap();
    assert_eq!(findings(&days.store), Vec::<String>::new());
}

/// A manifest under the number of another snapshot is damage.
#[test]
fn b2_a_manifest_of_another_number_is_named() {
    let scratch = Scratch::new("backup-manifest-other");
    let days = days(scratch.path());
    let path = |number: u32| days.store.join(format!("snapshots/{number:08}.json"));
    fs::copy(path(1), path(3)).unwrap();
    assert!(Store::open(&days.store).unwrap().snapshot(3).is_err());
    let is_named = |what: &String| what.contains("00000003.json");
    assert!(findings(&days.store).iter().any(is_named));
}

/// Parts of a snapshot that are left by a run of forget that ends early are of no other one.
#[test]
fn b2_forget_may_end_at_every_step() {
    let scratch = Scratch::new("backup-forget-killed");
    let days = days(scratch.path());
    let at = scratch.path().join("copy");
    let mut store = Store::open_to_write(&days.store).unwrap();
    store.confirm(3).unwrap();
    drop(store);
    for steps in 0..4 {
        copy(&days.store, &at);
        let mut store = Store::open_to_write(&at).unwrap();
        limit(Some(steps));
        let forgotten = store.forget(3);
        limit(None);
        drop(store);
        assert_eq!(findings(&at), Vec::<String>::new(), "step {steps}");
        assert_eq!(forgotten.is_ok(), steps == 3);
        if steps == 3 {
            let number = backup(&at, &days.source);
            assert_eq!(number, 3);
            assert!(!at.join("snapshots/00000003.confirmed").exists());
        }
    }
}

/// Blocks of a segment whose directory and tree are lost are freed, when no snapshot misses them.
#[test]
fn b2_blocks_of_no_segment_are_freed() {
    let scratch = Scratch::new("backup-unclaimed");
    let days = days(scratch.path());
    for end in ["dir", "tree"] {
        fs::remove_file(days.store.join(format!("segments/00000002.{end}"))).unwrap();
    }
    let unclaimed = || {
        let store = Store::open(&days.store).unwrap();
        let [first, third] = [1, 3].map(|number| store.segments[&number].header);
        store.packs[0].has_data(first.start + first.blocks..third.start)
    };
    let _ = prune(&days.store);
    assert!(unclaimed());
    let number = backup(&days.store, &days.source);
    let mut store = Store::open_to_write(&days.store).unwrap();
    for old in 1..number {
        store.forget(old).unwrap();
    }
    drop(store);
    prune(&days.store).unwrap();
    assert!(!unclaimed());
    assert_eq!(findings(&days.store), Vec::<String>::new());
}

/// A tree that does not give its missing directory is a loss that ends with its repair.
#[test]
fn b9_a_tree_without_its_directory_is_removed() {
    let scratch = Scratch::new("backup-tree-alone");
    let days = days(scratch.path());
    let path = |end: &str| days.store.join(format!("segments/00000002.{end}"));
    fs::remove_file(path("dir")).unwrap();
    let tree = fs::File::options().write(true).open(path("tree")).unwrap();
    tree.set_len(BLOCK as u64).unwrap();
    let mut store = Store::open_to_write(&days.store).unwrap();
    let repaired = store.repair(2, &Progress::default()).unwrap();
    assert!(repaired.has_losses, "{repaired:?}");
    store.forget(2).unwrap();
    drop(store);
    backup(&days.store, &days.source);
    assert_eq!(findings(&days.store), Vec::<String>::new());
}

/// A member that names another group than the one that has its content is damage, although its digest is there.
#[test]
fn members_of_other_groups_are_damage() {
    let scratch = Scratch::new("backup-other-group");
    let days = days(scratch.path());
    let mut store = Store::open_to_write(&days.store).unwrap();
    let mut directory = store.directory(&store.segments[&1]).unwrap();
    let member = directory.members.iter_mut().find(|member| member.group > 0);
    member.unwrap().group = 0;
    store.replace_directory(&directory).unwrap();
    drop(store);
    let found = findings(&days.store);
    let is_loss = |what: &String| what.contains("damaged ranges: 1");
    assert!(found.iter().any(is_loss), "{found:?}");
}

/// B4: a range that is twice in one segment, and in two, is kept once.
#[test]
fn b4_duplicates_are_kept_once() {
    let scratch = Scratch::new("backup-duplicates");
    let days = days(scratch.path());
    let mut store = Store::open_to_write(&days.store).unwrap();
    let mut copies = BTreeMap::new();
    for segment in store.segments.values() {
        let directory = store.directory(segment).unwrap();
        for (i, range) in directory.ranges.iter().enumerate() {
            let blocks = directory.blocks_of(range).unwrap();
            let pack = &store.packs[0];
            let len = (blocks.end - blocks.start) as usize * BLOCK;
            let bytes = pack.read(u64::from(blocks.start) * BLOCK as u64, len as u64);
            let members = directory.members.iter();
            let members = members.filter(|member| member.group as usize == i);
            let new = || NewRange {
                digest: range.digest,
                clusters: directory.clusters_of(range).unwrap().to_vec(),
                bytes: bytes.as_ref().unwrap().clone(),
                members: members
                    .clone()
                    .map(|member| (member.digest, member.offset, member.len))
                    .collect(),
            };
            copies.insert(range.digest, [new(), new()]);
        }
    }
    let mut segment: Option<Directory> = None;
    for copy in copies.values().flatten() {
        append(&mut store, &mut segment, 2, copy).unwrap();
    }
    store.commit(&segment.unwrap(), 2).unwrap();
    drop(store);
    let pruned = prune(&days.store).unwrap();
    assert_eq!(pruned.removed_segments, 1);
    assert_eq!(findings(&days.store), Vec::<String>::new());
    let snapshot = Store::open(&days.store).unwrap().snapshot(3).unwrap();
    let shown = tree(&days.store, &snapshot, &scratch.path().join("image"));
    assert_eq!(shown, days.last);
}
