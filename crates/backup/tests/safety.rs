//! Stores under rules, in use, and after damage. Names begin with the mistake of other programs that they rule out.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tuff_backup::{Checked, Depth, Digest, Policy, Report, Request, Store, StoreCompression};
use tuff_mkfs::{Options, Progress};
use tuff_testkit::content::{noise, text};
use tuff_testkit::{Rng, Scratch};

const DAY: i64 = 86_400;
const HOUR: i64 = 3600;

fn request(series: &str, source: &Path) -> Request {
    Request {
        sources: vec![source.to_owned()],
        series: series.to_owned(),
        options: Options::default(),
        reads_all: false,
        is_dry: false,
        archives: Vec::new(),
    }
}

fn backup(store: &Path, series: &str, source: &Path) -> Report {
    let mut store = Store::open_to_write(store).unwrap();
    let report = store.backup(&request(series, source), &Progress::default());
    report.unwrap()
}

fn check(store: &Path, depth: Depth) -> Checked {
    let store = Store::open(store).unwrap();
    store.check(depth, 2, &Progress::default()).unwrap()
}

fn findings(store: &Path) -> Vec<String> {
    let checked = check(store, Depth::Data);
    assert!(checked.read_bytes > 0 || !checked.findings.is_empty());
    checked.findings
}

/// A source of small and large files, and a store with its snapshot.
fn saved(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (source, store) = (scratch.path().join("source"), scratch.path().join("store"));
    fs::create_dir(&source).unwrap();
    for n in 0..60 {
        fs::write(source.join(format!("small-{n}")), text(2000 + n, n as u64)).unwrap();
    }
    fs::write(source.join("noise"), noise(2_500_000, 1)).unwrap();
    fs::write(source.join("text"), text(1_500_000, 2)).unwrap();
    Store::create(&store, StoreCompression::default()).unwrap();
    backup(&store, "test", &source);
    (source, store)
}

/// Copies the manifest of a snapshot under the next number, of another series and time.
fn forge(store: &Path, number: u32, series: &str, time: i64) -> u32 {
    let manifest = |number: u32| store.join(format!("snapshots/{number:08}.json"));
    let text = fs::read(manifest(number)).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let mut snapshot = value["snapshot"].clone();
    snapshot["series"] = series.into();
    snapshot["time"] = time.into();
    let numbers = Store::open(store).unwrap().snapshots().unwrap();
    let next = numbers.last().unwrap().as_ref().unwrap().number + 1;
    snapshot["number"] = next.into();
    let check = Digest::of_bytes(snapshot.to_string().as_bytes()).to_string();
    let forged = serde_json::json!({"snapshot": snapshot, "check": check});
    fs::write(manifest(next), forged.to_string()).unwrap();
    next
}

fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap().as_secs()).unwrap()
}

/// Numbers that a policy keeps, and those in doubt among them.
fn kept(store: &Path, policy: Policy) -> (Vec<u32>, Vec<u32>) {
    let choices = Store::open(store).unwrap().choose(policy, None).unwrap();
    let kept = choices.iter().filter(|choice| choice.is_kept);
    let doubts = choices.iter().filter(|choice| choice.doubt.is_some());
    (
        kept.map(|choice| choice.snapshot.number).collect(),
        doubts.map(|choice| choice.snapshot.number).collect(),
    )
}

#[test]
fn b3_one_run_writes_at_a_time() {
    let scratch = Scratch::new("backup-b3");
    let (_, store) = saved(&scratch);
    // However long a run takes, and although its process is stopped.
    let held = Store::open_to_write(&store).unwrap();
    let refused = Store::open_to_write(&store).unwrap_err().to_string();
    assert!(refused.contains("another run writes"), "{refused}");
    drop(held);
    Store::open_to_write(&store).unwrap();
}

#[test]
fn b8_twenty_parts_are_the_whole_store() {
    let scratch = Scratch::new("backup-b8");
    let (source, store) = saved(&scratch);
    for n in 0..25 {
        fs::write(source.join("more"), noise(200_000, 100 + n)).unwrap();
        backup(&store, "test", &source);
    }
    let all = check(&store, Depth::Data).read_bytes;
    let mut sum = 0;
    for _ in 0..20 {
        let part = check(&store, Depth::Part(0.05));
        assert!(part.read_bytes > 0);
        assert_eq!(part.findings, Vec::<String>::new());
        sum += part.read_bytes;
    }
    assert!(sum >= all, "{sum} of {all}");
    // Damage anywhere is found by one of twenty.
    for seed in 0..6 {
        let pack = store.join("packs/0000.pack");
        let whole = fs::read(&pack).unwrap();
        let mut damaged = whole.clone();
        let at = 4096 + Rng::new(seed).below(whole.len() - 4096);
        damaged[at] ^= 0x40;
        fs::write(&pack, &damaged).unwrap();
        let found = (0..20).any(|_| !check(&store, Depth::Part(0.05)).findings.is_empty());
        assert!(found, "{at}");
        fs::write(&pack, &whole).unwrap();
    }
}

/// All files of a store, with their content.
fn content(store: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for dir in ["packs", "segments", "snapshots"] {
        for entry in fs::read_dir(store.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            files.push((path, bytes));
        }
    }
    files.sort();
    files
}

fn repair(store: &Path) -> tuff_backup::Repaired {
    let mut store = Store::open_to_write(store).unwrap();
    store.repair(2, &Progress::default()).unwrap()
}

/// Damages a file of the store, has it repaired, and compares all files with those before.
fn repaired(what: &str, store: &Path, name: &str, damage: &dyn Fn(&mut Vec<u8>)) {
    let before = content(store);
    let path = store.join(name);
    let mut bytes = fs::read(&path).unwrap();
    damage(&mut bytes);
    fs::write(&path, &bytes).unwrap();
    assert!(!findings(store).is_empty(), "{what}");
    let report = repair(store);
    assert!(!report.has_losses, "{what}: {report:?}");
    assert!(report.blocks + report.shifted_blocks > 0, "{what}");
    assert_eq!(findings(store), Vec::<String>::new(), "{what}");
    let after = content(store);
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.0, new.0, "{what}");
        assert!(old.1 == new.1, "{what}: {}", old.0.display());
    }
}

#[test]
fn b9_lost_sectors_shifts_and_truncation_are_repaired_in_place() {
    let scratch = Scratch::new("backup-b9");
    let (source, store) = saved(&scratch);
    let run = check(&store, Depth::Data).longest_run.unwrap() as usize;
    let mut random = Rng::new(9);
    let pack = "packs/0000.pack";
    let len = fs::metadata(store.join(pack)).unwrap().len() as usize;
    for name in [pack, "segments/00000001.dir", "segments/00000001.tree"] {
        let len = fs::metadata(store.join(name)).unwrap().len() as usize;
        for _ in 0..6 {
            let sector = random.below(len / 512) * 512;
            let what = format!("a sector of {name} at {sector}");
            repaired(&what, &store, name, &|bytes| {
                bytes[sector..sector + 512]
                    .iter_mut()
                    .for_each(|byte| *byte = !*byte);
            });
        }
    }
    for _ in 0..6 {
        let at = 4096 + random.below(len - 4096 - run);
        repaired("the longest run", &store, pack, &|bytes| {
            bytes[at..at + run]
                .iter_mut()
                .for_each(|byte| *byte = !*byte);
        });
        repaired("a byte less", &store, pack, &|bytes| {
            bytes.remove(at);
        });
        repaired("bytes more", &store, pack, &|bytes| {
            bytes.splice(at..at, *b"inserted");
        });
    }
    repaired("a truncated pack", &store, pack, &|bytes| {
        bytes.truncate(len - 5000);
    });
    let other = fs::read(store.join("segments/00000001.dir")).unwrap();
    fs::write(source.join("more"), text(5000, 7)).unwrap();
    backup(&store, "test", &source);
    repaired(
        "the directory of another segment",
        &store,
        "segments/00000002.dir",
        &|bytes| bytes.clone_from(&other),
    );
    repaired(
        "an empty directory",
        &store,
        "segments/00000001.dir",
        &|bytes| {
            bytes.clear();
        },
    );
}

#[test]
fn b9_what_is_lost_is_named_and_stored_anew() {
    let scratch = Scratch::new("backup-b9-lost");
    let (source, store) = saved(&scratch);
    let path = |name: &str| store.join(name);
    // Each is cut in half, and is missing.
    for (name, is_missing) in [
        ("packs/0000.pack", false),
        ("packs/0000.pack", true),
        ("segments/00000001.tree", true),
        ("segments/00000001.tree", false),
    ] {
        let bytes = fs::read(path(name)).unwrap();
        match is_missing {
            true => fs::remove_file(path(name)).unwrap(),
            false => fs::write(path(name), &bytes[..bytes.len() / 2]).unwrap(),
        }
        let found = findings(&store);
        assert!(!found.is_empty());
        let report = repair(&store);
        assert_eq!(report.has_losses, name.ends_with("pack"), "{report:?}");
        let left = findings(&store);
        assert_eq!(left.is_empty(), !report.has_losses, "{left:?}");
        if report.has_losses {
            // The tree was at the end of the pack.
            let is_named = |what: &String| what.contains("the tree of snapshot 1");
            assert!(left.iter().any(is_named), "{left:?}");
        }
        // A run stores again what is lost, and the old snapshots are whole.
        backup(&store, "test", &source);
        assert_eq!(findings(&store), Vec::<String>::new(), "{name}");
    }
}

/// Files of which something is lost are named, and read again although they are as they were.
#[test]
fn b9_files_with_losses_have_names() {
    let scratch = Scratch::new("backup-b9-names");
    let (source, store) = saved(&scratch);
    fs::hard_link(source.join("noise"), source.join("other-name")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    backup(&store, "test", &source);
    let pack = store.join("packs/0000.pack");
    let mut bytes = fs::read(&pack).unwrap();
    // More than parity corrects, of the large file in the middle.
    let middle = bytes.len() / 2;
    bytes[middle - 400_000..middle + 400_000].fill(0xee);
    fs::write(&pack, &bytes).unwrap();
    let named = |found: Vec<String>| {
        let is_named = |name: &&str| found.iter().any(|what| what.contains(*name));
        ["source/noise", "source/other-name"].iter().all(is_named)
    };
    assert!(named(findings(&store)));
    assert!(repair(&store).has_losses);
    assert!(named(findings(&store)));
    let report = backup(&store, "test", &source);
    assert!(report.files_read < 10, "{report:?}");
    assert_eq!(findings(&store), Vec::<String>::new());
}

#[test]
fn b14_an_empty_source_displaces_no_snapshot() {
    let scratch = Scratch::new("backup-b14");
    let (source, store) = saved(&scratch);
    fs::remove_dir_all(&source).unwrap();
    fs::create_dir(&source).unwrap();
    for _ in 0..30 {
        assert!(backup(&store, "test", &source).lost_most);
    }
    let policy = Policy {
        last: 3,
        daily: 3,
        ..Policy::default()
    };
    let (numbers, doubts) = kept(&store, policy);
    assert!(numbers.contains(&1));
    assert_eq!(doubts, (2..32).collect::<Vec<u32>>());
    // An owner who says that it is right has it counted.
    Store::open_to_write(&store).unwrap().confirm(31).unwrap();
    assert!(!backup(&store, "test", &source).lost_most);
    let last = Policy {
        last: 2,
        ..Policy::default()
    };
    let (numbers, _) = kept(&store, last);
    assert!(!numbers.contains(&1), "{numbers:?}");
}

#[test]
fn b22_series_do_not_displace_each_other() {
    let scratch = Scratch::new("backup-b22");
    let (_, store) = saved(&scratch);
    let start = now() - 20 * DAY;
    let mut days = Vec::new();
    for day in 0..10 {
        for (host, name) in ["one", "two", "three"].iter().enumerate() {
            let time = start + day * DAY + host as i64 * HOUR;
            days.push((forge(&store, 1, name, time), *name, day));
        }
    }
    // The first one of the store is later than all of them, and so they are in doubt until it is gone.
    assert_eq!(kept(&store, Policy::default()).1.len(), 30);
    Store::open_to_write(&store).unwrap().forget(1).unwrap();
    let policy = Policy {
        daily: 4,
        ..Policy::default()
    };
    let (numbers, doubts) = kept(&store, policy);
    assert_eq!(doubts, Vec::<u32>::new());
    let expected = days.iter().filter(|(_, _, day)| *day >= 6);
    let expected: Vec<u32> = expected.map(|(number, ..)| *number).collect();
    assert_eq!(numbers, expected);
    // Without any rule the newest of each series stays.
    assert_eq!(kept(&store, Policy::default()).0, expected[9..]);
}

#[test]
fn b23_forged_snapshots_displace_no_real_one() {
    let scratch = Scratch::new("backup-b23");
    let (_, store) = saved(&scratch);
    // At any hour, these dates have the same distance from the clock.
    let start = now() - 10 * DAY;
    let real: Vec<u32> = (0..10)
        .map(|day| forge(&store, 1, "real", start + day * DAY))
        .collect();
    Store::open_to_write(&store).unwrap().forget(1).unwrap();
    for day in 0..30 {
        forge(&store, real[0], "real", start + day * DAY + 11 * HOUR);
    }
    let policy = Policy {
        last: 5,
        // Two of the forged ones are in the days that the owner has seen.
        daily: 12,
        weekly: 1,
        monthly: 1,
        yearly: 1,
    };
    let (numbers, doubts) = kept(&store, policy);
    for number in &real {
        assert!(numbers.contains(number), "{number}: {numbers:?}");
    }
    assert!(doubts.len() >= 28, "{doubts:?}");
}

/// A snapshot in use keeps its data, although it is forgotten.
#[test]
fn pins_keep_what_is_in_use() {
    let scratch = Scratch::new("backup-pins");
    let (source, store) = saved(&scratch);
    fs::remove_dir_all(&source).unwrap();
    fs::create_dir(&source).unwrap();
    fs::write(source.join("other"), noise(100_000, 77)).unwrap();
    backup(&store, "test", &source);
    let opened = Store::open(&store).unwrap();
    let first = opened.snapshot(1).unwrap();
    let held = opened.pin(&first).unwrap();
    let prune = || {
        let mut store = Store::open_to_write(&store).unwrap();
        store.prune(2, &Progress::default()).unwrap()
    };
    Store::open_to_write(&store).unwrap().forget(1).unwrap();
    let pruned = prune();
    assert_eq!((pruned.pins.len(), pruned.freed_bytes), (1, 0));
    let whole = opened.check_files(&first, &[], &Progress::default());
    assert_eq!(whole.unwrap().findings, Vec::<String>::new());
    // A process that ends without removing its pin does not hold it.
    let pin = fs::read_dir(store.join("pins")).unwrap().next().unwrap();
    let pin = pin.unwrap().path();
    let text = fs::read(&pin).unwrap();
    drop(held);
    assert!(!pin.exists());
    fs::write(&pin, &text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lasting = text.replace("\"process\": true", "\"process\": false");
    assert_ne!(text, lasting);
    fs::write(store.join("pins/lasting"), lasting).unwrap();
    let pruned = prune();
    assert_eq!(pruned.pins.len(), 1);
    assert_eq!(
        (pruned.pins[0].name.as_str(), pruned.freed_bytes),
        ("lasting", 0)
    );
    let opened = Store::open_to_write(&store).unwrap();
    assert!(opened.unpin("another").is_err());
    opened.unpin("lasting").unwrap();
    drop(opened);
    assert!(prune().freed_bytes > 2_000_000);
    assert_eq!(findings(&store), Vec::<String>::new());
    // A damaged pin may be of anything.
    fs::write(store.join("pins/damaged"), "{").unwrap();
    let mut opened = Store::open_to_write(&store).unwrap();
    let refused = opened.prune(2, &Progress::default()).unwrap_err();
    assert!(refused.to_string().contains("damaged"), "{refused}");
}

/// A pack that is damaged while it is read is never wrong: blocks are compared with what names them.
#[test]
fn a_block_that_changes_is_noticed() {
    let scratch = Scratch::new("backup-changes");
    let (_, store) = saved(&scratch);
    let opened = Store::open(&store).unwrap();
    let pack = File::options()
        .write(true)
        .open(store.join("packs/0000.pack"))
        .unwrap();
    pack.write_all_at(&[0x55; 4096], 8192).unwrap();
    let first = opened.snapshot(1).unwrap();
    let checked = opened.check_files(&first, &[], &Progress::default());
    assert!(!checked.unwrap().findings.is_empty());
}
