//! Stores in buckets: a bucket in memory, which counts, refuses, loses and lies as it is told.

mod encrypted;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tuff_backup::{Bucket, Depth, Object, Pruned, Report, Request, Store, StoreCompression};
use tuff_erofs::extract;
use tuff_mkfs::{Options, Progress};
use tuff_store::ReadAt;
use tuff_testkit::content::{noise, text};
use tuff_testkit::tree::{assert_same, from_source, host_tree};
use tuff_testkit::{Rng, Scratch};

const DAY: Duration = Duration::from_secs(86_400);

type Hook = Box<dyn FnMut(&str) + Send>;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Vec<u8>, u64, SystemTime)>,
    /// Time of the bucket ahead of that of the host.
    ahead: Duration,
    writes: u64,
    requests: u64,
    bytes: u64,
    /// The key may only add.
    adds_only: bool,
    ignores_conditions: bool,
    /// Objects with this part in their names are not created.
    fails: Option<&'static str>,
    /// Parts of names whose objects are acknowledged and lost.
    loses: Option<&'static str>,
    /// Called before each object that is created.
    before: Option<Hook>,
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<State>>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> String {
        let mut state = self.state();
        state.writes += 1;
        state.requests += 1;
        state.bytes += bytes.len() as u64;
        let (tag, now) = (state.writes, SystemTime::now() + state.ahead);
        if state.loses.is_none_or(|part| !name.contains(part)) {
            state.objects.insert(name.to_owned(), (bytes, tag, now));
        }
        tag.to_string()
    }

    fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    fn data(&self) -> u64 {
        let state = self.state();
        let data = state
            .objects
            .iter()
            .filter(|(name, _)| name.ends_with(".data"));
        data.map(|(_, (bytes, ..))| bytes.len() as u64).sum()
    }

    fn pass(&self, time: Duration) {
        self.state().ahead += time;
    }

    /// Requests and bytes since the last call.
    fn used(&self) -> (u64, u64) {
        let mut state = self.state();
        (
            std::mem::take(&mut state.requests),
            std::mem::take(&mut state.bytes),
        )
    }
}

impl Bucket for Memory {
    fn url(&self) -> String {
        "s3://test/store".to_owned()
    }

    fn list(&self) -> io::Result<Vec<Object>> {
        let mut state = self.state();
        state.requests += 1;
        let objects = state
            .objects
            .iter()
            .map(|(name, (bytes, tag, modified))| Object {
                name: name.clone(),
                len: bytes.len() as u64,
                tag: tag.to_string(),
                modified: *modified,
            });
        Ok(objects.collect())
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        state.requests += 1;
        let (bytes, ..) = state.objects.get(name).ok_or(ErrorKind::NotFound)?;
        let end = (range.end as usize).min(bytes.len());
        let part = bytes
            .get(range.start as usize..end)
            .unwrap_or_default()
            .to_vec();
        state.bytes += part.len() as u64;
        Ok(part)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<String> {
        let hook = self.state().before.take();
        if let Some(mut hook) = hook {
            hook(name);
        }
        let state = self.state();
        if state.fails.is_some_and(|part| name.contains(part)) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if state.objects.contains_key(name) && !state.ignores_conditions {
            return Err(ErrorKind::AlreadyExists.into());
        }
        drop(state);
        Ok(self.put(name, bytes.to_vec()))
    }

    fn replace(&self, name: &str, bytes: &[u8], tag: &str) -> io::Result<String> {
        let state = self.state();
        if state.adds_only {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let found = state.objects.get(name).map(|(_, tag, _)| tag.to_string());
        drop(state);
        match found.as_deref() == Some(tag) {
            true => Ok(self.put(name, bytes.to_vec())),
            false => Err(ErrorKind::AlreadyExists.into()),
        }
    }

    fn upload(&self, name: &str, content: Arc<dyn ReadAt>) -> io::Result<()> {
        let state = self.state();
        if state.adds_only && state.objects.contains_key(name) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        drop(state);
        let mut bytes = vec![0; content.size() as usize];
        content.read_exact_at(&mut bytes, 0)?;
        self.put(name, bytes);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.adds_only {
            return Err(ErrorKind::PermissionDenied.into());
        }
        state.requests += 1;
        state.objects.remove(name);
        Ok(())
    }
}

struct Place {
    scratch: Scratch,
    bucket: Memory,
}

impl Place {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let source = scratch.path().join("source");
        fs::create_dir(&source).unwrap();
        for n in 0..60 {
            fs::write(source.join(format!("small-{n}")), text(2000 + n, n as u64)).unwrap();
        }
        fs::write(source.join("noise"), noise(2_500_000, 1)).unwrap();
        fs::write(source.join("text"), text(1_500_000, 2)).unwrap();
        let bucket = Memory::default();
        Store::create_in_bucket(&bucket, StoreCompression::default()).unwrap();
        Self { scratch, bucket }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Opens the store on a host, whose directory of copies this is.
    fn open(&self, host: &str, writes: bool) -> Store {
        let bucket = Arc::new(self.bucket.clone());
        Store::open_bucket(bucket, &self.at(host), writes).unwrap()
    }

    fn try_backup(&self, host: &str) -> tuff_mkfs::Result<Report> {
        let mut store = self.open(host, true);
        store.backup(&request(&self.at("source")), &Progress::default())
    }

    fn backup(&self, host: &str) -> Report {
        self.try_backup(host).unwrap()
    }

    fn prune(&self, host: &str) -> Pruned {
        let mut store = self.open(host, true);
        store.prune(2, &Progress::default()).unwrap()
    }

    fn forget(&self, number: u32) {
        self.open("h", true).forget(number).unwrap();
    }

    /// Compares a snapshot with a directory.
    fn compare(&self, host: &str, number: u32, source: &Path) {
        let store = Arc::new(self.open(host, false));
        compare(&self.scratch, &store, number, source);
    }

    fn findings(&self, host: &str) -> Vec<String> {
        let store = self.open(host, false);
        let checked = store.check(Depth::Data, 2, &Progress::default());
        checked.unwrap().findings
    }
}

fn request(source: &Path) -> Request {
    Request {
        archives: Vec::new(),
        sources: vec![source.to_owned()],
        series: "test".to_owned(),
        options: Options::default(),
        reads_all: false,
        is_dry: false,
    }
}

/// Extracts a snapshot, and compares it with what was saved.
fn compare(scratch: &Scratch, store: &Arc<Store>, number: u32, source: &Path) {
    let target = scratch.path().join("restored");
    let _ = fs::remove_dir_all(&target);
    let snapshot = store.snapshot(number).unwrap();
    let image = store.image(
        &snapshot,
        &scratch.path().join("image"),
        &Progress::default(),
    );
    let image = image.unwrap().open().unwrap();
    let report = extract::extract(&image, &target, &extract::Options::default(), |_| ());
    assert_eq!(report.unwrap().problems, Vec::new());
    let saved = fs::canonicalize(scratch.path().join("source")).unwrap();
    let restored = target.join(saved.strip_prefix("/").unwrap());
    let (saved, restored) = (host_tree(source), host_tree(&restored));
    assert_same("the snapshot", &saved, &restored, from_source(&saved));
}

/// A copy of the source as it is.
fn keep(place: &Place, name: &str) -> PathBuf {
    let (source, kept) = (place.at("source"), place.at(name));
    let args = ["-a".as_ref(), source.as_os_str(), kept.as_os_str()];
    let copied = std::process::Command::new("cp").args(args).status();
    assert!(copied.unwrap().success());
    kept
}

fn age() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// A day without changes asks for little, and every host reads what others have written.
#[test]
fn a_day_without_changes_costs_few_requests() {
    let place = Place::new("bucket-day");
    age();
    assert_eq!(place.backup("h").number, Some(1));
    place.bucket.used();
    let report = place.backup("h");
    assert_eq!((report.number, report.files_read), (Some(2), 0));
    let (requests, bytes) = place.bucket.used();
    assert!(requests <= 20, "{requests} requests");
    assert!(bytes <= 1_000_000, "{bytes} bytes");
    // The tree that was read is kept.
    place.backup("h");
    let (requests, bytes) = place.bucket.used();
    assert!(
        requests <= 8 && bytes <= 20_000,
        "{requests} requests, {bytes} bytes"
    );
    place.compare("other", 1, &place.at("source"));
    fs::write(place.at("source/more"), text(100_000, 9)).unwrap();
    assert_eq!(place.backup("other").number, Some(4));
    place.compare("h", 4, &place.at("source"));
    assert_eq!(place.findings("h"), Vec::<String>::new());
}

/// A key that can only add is enough for runs of `backup`.
#[test]
fn a_key_that_can_only_add_is_enough() {
    let place = Place::new("bucket-add");
    place.bucket.state().adds_only = true;
    for n in 0..3 {
        fs::write(place.at("source/day"), noise(50_000, n)).unwrap();
        place.backup("h");
        place.compare("h", n as u32 + 1, &place.at("source"));
    }
    let mut store = place.open("h", true);
    assert!(store.forget(1).is_err());
    drop(store);
    assert_eq!(place.open("other", false).snapshots().unwrap().len(), 3);
    // A run that ended between data and directory is continued.
    fs::write(place.at("source/day"), noise(90_000, 99)).unwrap();
    place.bucket.state().fails = Some(".dir");
    assert!(place.try_backup("h").is_err());
    place.bucket.state().fails = None;
    let before = place.bucket.data();
    assert_eq!(place.backup("other").number, Some(4));
    assert_eq!(place.bucket.data(), before);
    place.compare("h", 4, &place.at("source"));
}

/// B3: of two runs that write at the same time, on different hosts, one ends without a snapshot, and nothing is lost.
#[test]
fn b3_conditions_exclude_writers_of_other_hosts() {
    for (n, part) in ["segments/", "snapshots/"].into_iter().enumerate() {
        let place = Place::new(&format!("bucket-two-{n}"));
        place.backup("h");
        fs::write(place.at("source/more"), noise(300_000, 5)).unwrap();
        let other = place.bucket.clone();
        let (source, copies) = (place.at("source"), place.at("other"));
        place.bucket.state().before = Some(Box::new(move |name| {
            assert!(name.starts_with("segments/"), "{name}");
            // The whole run of the other host, or as much of it as comes before its manifest.
            let mut store = Store::open_bucket(Arc::new(other.clone()), &copies, true).unwrap();
            store
                .backup(&request(&source), &Progress::default())
                .unwrap();
            if part == "segments/" {
                other.remove("snapshots/00000002.json").unwrap();
            }
        }));
        let failed = place.try_backup("h").unwrap_err().to_string();
        assert!(
            failed.contains("at the same time; run the command again"),
            "{failed}"
        );
        let report = place.backup("h");
        assert_eq!(report.number, Some(if part == "segments/" { 2 } else { 3 }));
        for number in 2..=report.number.unwrap() {
            place.compare("third", number, &place.at("source"));
        }
        assert_eq!(place.findings("h"), Vec::<String>::new());
    }
}

/// B2: nothing that is named is removed by `prune`, also if it is named again between marking and removing; what is not, is removed.
#[test]
fn b2_prune_marks_first_and_removes_later() {
    let place = Place::new("bucket-prune");
    place.backup("h");
    let first = keep(&place, "first");
    fs::remove_file(place.at("source/noise")).unwrap();
    for n in 0..30 {
        fs::write(
            place.at("source").join(format!("small-{n}")),
            text(3000, 100 + n),
        )
        .unwrap();
    }
    place.backup("h");
    let second = keep(&place, "second");
    let before = place.bucket.data();
    // Nothing is without use.
    let pruned = place.prune("h");
    assert_eq!((pruned.freed_bytes, pruned.marked_bytes), (0, 0));
    place.forget(1);
    let pruned = place.prune("h");
    assert!(
        pruned.freed_bytes == 0 && pruned.marked_bytes > 2_400_000,
        "{pruned:?}"
    );
    assert_eq!(pruned.wait, Some(7 * DAY));
    place.bucket.pass(6 * DAY);
    let pruned = place.prune("other");
    assert_eq!((pruned.freed_bytes, place.bucket.data()), (0, before));
    assert!(pruned.wait.unwrap() <= DAY);
    // A run that begins in between names what is marked: it stores it again, once.
    fs::copy(first.join("noise"), place.at("source/noise")).unwrap();
    fs::copy(first.join("small-3"), place.at("source/small-3")).unwrap();
    let report = place.backup("other");
    assert!(report.stored_bytes > 2_400_000, "{report:?}");
    let third = keep(&place, "third");
    assert!(place.backup("other").stored_bytes < 2_400_000);
    place.bucket.pass(2 * DAY);
    // Another host has opened the store before, and does not go on with what it knows.
    let mut stale = place.open("stale", true);
    place.prune("h");
    let refused = stale.prune(2, &Progress::default()).unwrap_err();
    assert!(
        refused.to_string().contains("at the same time"),
        "{refused}"
    );
    drop(stale);
    place.prune("stale");
    for (number, kept) in [(2, &second), (3, &third), (4, &third)] {
        place.compare("fourth", number, kept);
    }
    assert_eq!(place.findings("h"), Vec::<String>::new());
    // After two more rounds, nothing is left that nothing names, below the bound on waste.
    for _ in 0..3 {
        place.bucket.pass(8 * DAY);
        place.prune("h");
    }
    for (number, kept) in [(2, &second), (3, &third), (4, &third)] {
        place.compare("h", number, kept);
    }
    let fresh = Place::new("bucket-fresh");
    for kept in [&second, &third] {
        fs::remove_dir_all(fresh.at("source")).unwrap();
        fs::rename(keep_of(kept, &fresh), fresh.at("source")).unwrap();
        fresh.backup("h");
    }
    let (left, needed) = (place.bucket.data(), fresh.bucket.data());
    assert!(
        left <= needed + needed / 10,
        "{left} bytes are left, {needed} are needed"
    );
    assert_eq!(
        place
            .bucket
            .names()
            .iter()
            .filter(|name| name.ends_with(".dir"))
            .count(),
        place
            .bucket
            .names()
            .iter()
            .filter(|name| name.ends_with(".data"))
            .count()
    );
}

fn keep_of(from: &Path, place: &Place) -> PathBuf {
    let to = place.at("kept");
    let args = ["-a".as_ref(), from.as_os_str(), to.as_os_str()];
    let copied = std::process::Command::new("cp").args(args).status();
    assert!(copied.unwrap().success());
    to
}

/// Pins of other hosts keep what they name.
#[test]
fn pins_in_buckets_are_respected() {
    let place = Place::new("bucket-pin");
    place.backup("h");
    let first = keep(&place, "first");
    let store = place.open("other", false);
    let snapshot = store.snapshot(1).unwrap();
    let held = store.pin(&snapshot).unwrap();
    fs::remove_file(place.at("source/noise")).unwrap();
    place.backup("h");
    place.forget(1);
    for _ in 0..3 {
        assert_eq!(place.prune("h").pins.len(), 1);
        place.bucket.pass(8 * DAY);
    }
    let store = Arc::new(store);
    let image = store.image(&snapshot, &place.at("pinned"), &Progress::default());
    let image = image.unwrap().open().unwrap();
    let report = extract::extract(
        &image,
        &place.at("out"),
        &extract::Options::default(),
        |_| (),
    );
    assert_eq!(report.unwrap().problems, Vec::new());
    let source = fs::canonicalize(place.at("source")).unwrap();
    let noise = place
        .at("out")
        .join(source.strip_prefix("/").unwrap())
        .join("noise");
    assert_eq!(
        fs::read(noise).unwrap(),
        fs::read(first.join("noise")).unwrap()
    );
    drop(held);
    assert_eq!(place.prune("h").pins.len(), 0);
    place.bucket.pass(8 * DAY);
    assert!(
        place.prune("h").removed_segments + place.prune("h").renewed_segments == 0
            || place.bucket.data() > 0
    );
    place.compare("h", 2, &place.at("source"));
}

/// Objects that a bucket acknowledges and loses are named when the store is opened, and stored again by the next run.
#[test]
fn lost_objects_are_named_and_stored_again() {
    let place = Place::new("bucket-lost");
    place.bucket.state().loses = Some(".data");
    place.backup("h");
    place.bucket.state().loses = None;
    let findings = place.findings("other");
    assert!(
        findings
            .iter()
            .any(|found| found.ends_with(".data: is missing")),
        "{findings:?}"
    );
    assert!(
        findings.iter().any(|found| found.contains("snapshot 1")),
        "{findings:?}"
    );
    let mut store = place.open("h", true);
    let repaired = store.repair(2, &Progress::default()).unwrap();
    assert!(repaired.has_losses);
    drop(store);
    assert_eq!(place.backup("h").number, Some(2));
    place.compare("other", 2, &place.at("source"));
    // A lost manifest leaves no trace but what it stored.
    fs::write(place.at("source/more"), noise(100_000, 77)).unwrap();
    place.bucket.state().loses = Some("snapshots/");
    place.backup("h");
    place.bucket.state().loses = None;
    assert_eq!(place.backup("h").number, Some(3));
    place.compare("h", 3, &place.at("source"));
}

/// Objects and copies that were changed give no wrong byte.
#[test]
fn changed_objects_and_copies_give_no_wrong_byte() {
    let place = Place::new("bucket-lies");
    place.backup("h");
    fs::write(place.at("source/more"), text(200_000, 4)).unwrap();
    place.backup("h");
    let second = keep(&place, "second");
    let whole = place.bucket.state().objects.clone();
    let names = place.bucket.names();
    let mut rng = Rng::new(4711);
    for round in 0..60 {
        let name = &names[rng.below(names.len())];
        {
            let mut state = place.bucket.state();
            let (bytes, tag, _) = state.objects.get_mut(name).unwrap();
            // Half of the changes keep the tag, so that copies hide them.
            *tag += 1000 * (round % 2);
            let at = rng.below(bytes.len());
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes.truncate(at),
                2 => bytes[at..].fill(0),
                _ => bytes.clear(),
            }
        }
        let copies = place.at("lied");
        if rng.below(2) == 0 {
            let _ = fs::remove_dir_all(&copies);
        }
        let bucket = Arc::new(place.bucket.clone());
        let opened = Store::open_bucket(bucket, &copies, false);
        if let Ok(store) = opened.map(Arc::new) {
            let snapshots = store.snapshots().unwrap();
            for snapshot in snapshots.into_iter().flatten().filter(|s| s.number == 2) {
                let path = place.at("image");
                let Ok(image) = store.image(&snapshot, &path, &Progress::default()) else {
                    continue;
                };
                let Ok(image) = image.open() else { continue };
                let target = place.at("restored");
                let _ = fs::remove_dir_all(&target);
                let _ = extract::extract(&image, &target, &extract::Options::default(), |_| ());
                let source = fs::canonicalize(place.at("source")).unwrap();
                let restored = target.join(source.strip_prefix("/").unwrap());
                for entry in fs::read_dir(&restored).into_iter().flatten() {
                    let path = entry.unwrap().path();
                    let saved = second.join(path.file_name().unwrap());
                    let (restored, saved) = (fs::read(&path).unwrap(), fs::read(saved).unwrap());
                    assert!(restored == saved, "round {round}, {name}: {path:?}");
                }
            }
        }
        let tags: BTreeMap<String, (Vec<u8>, u64, SystemTime)> = whole.clone();
        place.bucket.state().objects = tags;
    }
    // Copies of this host: damaged ones are read again or refused.
    for entry in fs::read_dir(place.at("h/packs")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[4096..].fill(7);
        fs::write(&path, bytes).unwrap();
    }
    fs::remove_file(place.at("h/segments/00000001.dir")).unwrap();
    place.compare("h", 2, &second);
    place.backup("h");
    assert_eq!(place.findings("h"), Vec::<String>::new());
}

/// A bucket that ignores conditions is refused, and nothing is left in it.
#[test]
fn a_bucket_without_conditions_is_refused() {
    let bucket = Memory::default();
    bucket.state().ignores_conditions = true;
    let made = Store::create_in_bucket(&bucket, StoreCompression::default());
    assert!(made.unwrap_err().to_string().contains("If-None-Match"));
    assert_eq!(bucket.names(), Vec::<String>::new());
}

/// Copies of stores have the same snapshots, and are added to.
#[test]
fn snapshots_are_copied_between_stores() {
    let place = Place::new("bucket-copy");
    place.backup("h");
    let first = keep(&place, "first");
    fs::write(place.at("source/small-7"), text(5000, 99)).unwrap();
    fs::write(place.at("source/more"), noise(700_000, 8)).unwrap();
    place.backup("h");
    let second = keep(&place, "second");
    let disk = place.at("disk");
    Store::create(&disk, StoreCompression::default()).unwrap();
    let copy = |numbers: &[u32]| {
        let mut target = Store::open_to_write(&disk).unwrap();
        let from = place.open("h", false);
        from.copy_to(&mut target, numbers, 2, &Progress::default())
            .unwrap()
    };
    assert_eq!(copy(&[2]).snapshots, [(2, 2)]);
    let all = copy(&[]);
    assert_eq!((all.snapshots, all.had), (vec![(1, 1)], 1));
    assert_eq!(copy(&[]).snapshots, []);
    assert_eq!(copy(&[]).stored_bytes, 0);
    let store = Arc::new(Store::open(&disk).unwrap());
    compare(&place.scratch, &store, 1, &first);
    compare(&place.scratch, &store, 2, &second);
    let checked = store.check(Depth::Data, 2, &Progress::default()).unwrap();
    assert_eq!(checked.findings, Vec::<String>::new());
    // The parts of groups that only the other snapshot has were not copied with the first.
    drop(store);
    let other = Memory::default();
    Store::create_in_bucket(&other, StoreCompression::default()).unwrap();
    let mut target = Store::open_bucket(Arc::new(other.clone()), &place.at("o"), true).unwrap();
    let from = Store::open(&disk).unwrap();
    let copied = from
        .copy_to(&mut target, &[], 2, &Progress::default())
        .unwrap();
    assert_eq!(copied.snapshots, [(1, 1), (2, 2)]);
    drop(target);
    let target = Store::open_bucket(Arc::new(other), &place.at("o2"), false).unwrap();
    compare(&place.scratch, &Arc::new(target), 2, &second);
    let unknown = place.open("h", false).copy_to(
        &mut Store::open_to_write(&disk).unwrap(),
        &[9],
        2,
        &Progress::default(),
    );
    assert!(unknown.unwrap_err().to_string().contains("no snapshot 9"));
}
