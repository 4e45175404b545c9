//! Mutations of all files of a store, and every verb on what is left.

use super::disk::Disk;
use super::judge::{self, Saved};
use super::setting;
use super::source::RandomSource;
use crate::digest::Digest;
use crate::pack::seal;
use crate::run::Request;
use crate::{Depth, Store, StoreCompression};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tuff_codec::Method;
use tuff_erofs::diff::Change;
use tuff_mkfs::{Options, Progress, Result};
use tuff_testkit::content::noise;
use tuff_testkit::{Rng, Scratch};

/// Mutations of a run without settings.
const MUTATIONS: u64 = 24;
/// Mutations of one store.
const OF_STORE: u64 = 100;
/// Longest time without progress, in campaigns.
const STALL: Duration = Duration::from_secs(60);

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Store to damage.
struct Base {
    source: RandomSource,
    scratch: Scratch,
    disk: Disk,
    /// Its files, and those of earlier days.
    files: Files,
    older: Vec<Files>,
    saved: BTreeMap<u32, Saved>,
}

fn read_files(store: &Path) -> Files {
    let mut found = Files::new();
    let mut todo = vec![store.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let name = path.strip_prefix(store).unwrap().to_owned();
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}

fn request(source: &Path, reads_all: bool) -> Request {
    Request {
        sources: vec![source.to_owned()],
        series: "test".to_owned(),
        options: Options::default(),
        reads_all,
        is_dry: false,
        archives: Vec::new(),
    }
}

impl Base {
    fn new(seed: u64) -> Self {
        let scratch = Scratch::new("backup-mutations");
        let disk = Disk::new(&scratch.path().join("disk"), 256);
        let mut source = RandomSource::new(&scratch.path().join("source"), seed, 4);
        let store = scratch.path().join("first");
        let method = [Method::Zstd, Method::Lz4, Method::Deflate, Method::Lzma];
        let compression = StoreCompression {
            method: method[(seed % 4) as usize],
            level: 1,
            cluster: [128 << 10, 16 << 10][(seed % 2) as usize],
        };
        Store::create(&store, compression).unwrap();
        let (mut older, mut saved) = (Vec::new(), BTreeMap::new());
        for day in 0..5 {
            source.edit(if day == 0 { 25 } else { 12 });
            let mut open = Store::open_to_write(&store).unwrap();
            let report = open.backup(&request(&source.root, true), &Progress::default());
            let number = report.unwrap().number.unwrap();
            let tree = judge::walk(&source.root);
            saved.insert(
                number,
                Saved {
                    tree,
                    later: None,
                    left_out: Vec::new(),
                },
            );
            if day == 3 {
                open.forget(2).unwrap();
                saved.remove(&2);
                open.prune(2, &Progress::default()).unwrap();
            }
            drop(open);
            older.push(read_files(&store));
        }
        let mut files = older.pop().unwrap();
        // Locks are made when they are missing.
        files.entry("lock".into()).or_default();
        Self {
            source,
            scratch,
            disk,
            files,
            older,
            saved,
        }
    }

    /// Snapshots that do not show what was saved. All of that is in the findings.
    fn wrong(&self, store: &Path, findings: &[String], forged: Option<u32>) -> Vec<u32> {
        let mut wrong = Vec::new();
        let image = self.scratch.path().join("image");
        for (number, saved) in &self.saved {
            let shown = Store::open(store)
                .and_then(|open| open.snapshot(*number))
                .and_then(|snapshot| judge::shown(store, &snapshot, &self.source.root, &image));
            if forged == Some(*number) {
                continue;
            }
            match shown {
                Ok(shown) => {
                    let found = saved.differences(&shown);
                    for (path, how) in &found {
                        let is_named = judge::is_named(findings, *number, Some(path));
                        let path = String::from_utf8_lossy(path);
                        assert!(is_named, "snapshot {number}: {path}: {how}: {findings:?}");
                    }
                    if found.is_empty() {
                        continue;
                    }
                }
                Err(e) => {
                    // Without its manifest and its list, it was never there.
                    let paths = [
                        format!("snapshots/{number:08}.json"),
                        format!("seen/{number:08}"),
                    ];
                    let is_gone = paths.iter().all(|name| !store.join(name).exists());
                    assert!(is_gone || !findings.is_empty(), "snapshot {number}: {e}");
                }
            }
            wrong.push(*number);
        }
        wrong
    }
}

/// Kind of a mutation.
#[derive(Debug, Default)]
struct Mutation {
    what: Vec<String>,
    /// One bit, which parity corrects.
    is_bit: bool,
    /// It has valid digests, or is none that a disk makes.
    is_hostile: bool,
    /// Snapshot whose manifest has a valid digest.
    forged: Option<u32>,
    is_header: bool,
}

fn mutate(files: &mut Files, base: &Base, random: &mut Rng) -> Mutation {
    let mut mutation = Mutation::default();
    let count = [1, 1, 1, 2, 3][random.below(5)];
    for _ in 0..count {
        let dir = [
            "packs",
            "packs",
            "segments",
            "segments",
            "segments",
            "snapshots",
            "seen",
        ];
        let dir = dir[random.below(dir.len())];
        let mut names: Vec<PathBuf> = files.keys().cloned().collect();
        match random.below(40) {
            0 => {
                mutation.is_header = true;
                names.retain(|name| name.ends_with("store.json"));
            }
            _ => names.retain(|name| name.starts_with(dir)),
        }
        if names.is_empty() {
            continue;
        }
        let name = names.swap_remove(random.below(names.len()));
        let bytes = files.get_mut(&name).unwrap();
        let (len, seed) = (bytes.len(), random.draw());
        let at = random.below(len);
        let kind = random.below(16);
        mutation
            .what
            .push(format!("{} at {at}: {kind}", name.display()));
        let is_covered = name.starts_with("packs") || name.starts_with("segments");
        mutation.is_bit = kind < 4 && count == 1 && is_covered;
        if len == 0 {
            bytes.push(1);
            continue;
        }
        let run = [1, 512, 4096, 9000, 100_000][random.below(5)].min(len - at);
        match kind {
            0..4 => bytes[at] ^= 1 << random.below(8),
            4 => bytes[at..at + run].fill(0),
            5 => bytes[at..at + run].copy_from_slice(&noise(run, seed)),
            6 => bytes.truncate(at),
            7 => drop(bytes.drain(at..at + run.min(20_000))),
            8 => drop(bytes.splice(at..at, noise(1 + random.below(9000), seed))),
            9 => {
                files.remove(&name);
            }
            10 => bytes.clear(),
            11 => {
                // That of an earlier day.
                let older = &base.older[random.below(base.older.len())];
                if let Some(old) = older.get(&name) {
                    *bytes = old.clone();
                }
            }
            12 => {
                // That of another one.
                let dir = name.parent().unwrap();
                let mut others: Vec<&PathBuf> = base.files.keys().collect();
                others.retain(|other| other.parent() == Some(dir));
                *bytes = base.files[others[random.below(others.len())]].clone();
            }
            _ => {
                mutation.is_hostile = true;
                forge(&name, bytes, random, &mut mutation);
            }
        }
    }
    mutation
}

/// Changes a file and gives it valid digests.
fn forge(name: &Path, bytes: &mut Vec<u8>, random: &mut Rng, mutation: &mut Mutation) {
    let end = name.extension().unwrap_or_default().to_str().unwrap();
    let mut value = |bytes: &mut [u8]| {
        // Numbers have 4 bytes.
        let at = random.below(bytes.len() / 4) * 4;
        let new = match random.below(4) {
            0 => [0; 4],
            1 => [0xff; 4],
            2 => (random.below(100) as u32).to_le_bytes(),
            _ => (random.draw() as u32).to_le_bytes(),
        };
        bytes[at..at + 4].copy_from_slice(&new);
    };
    match end {
        "dir" if bytes.len() > 200 => {
            let end = bytes.len() - 32;
            match bytes[8] & 1 {
                0 => value(&mut bytes[24..52]),
                _ => value(&mut bytes[96..end]),
            }
            seal(&mut bytes[..96]);
            seal(bytes);
        }
        "tree" if bytes.len() > 8192 => {
            value(&mut bytes[24..120]);
            seal(&mut bytes[..4096]);
            let front = bytes[..4096].to_vec();
            let end = bytes.len() - 4096;
            bytes[end..].copy_from_slice(&front);
        }
        "pack" if bytes.len() > 4096 => {
            value(&mut bytes[8..32]);
            seal(&mut bytes[..1024]);
        }
        "json" => {
            let text: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
            let mut snapshot = text["snapshot"].clone();
            let Some(fields) = snapshot.as_object_mut() else {
                return;
            };
            let n = random.below(fields.len());
            if let Some((key, field)) = fields.iter_mut().nth(n) {
                *field = match (&*key.clone(), random.below(3)) {
                    ("tree", 0) => serde_json::json!([]),
                    ("tree", _) => serde_json::json!([Digest::of_bytes(b"").to_string()]),
                    (_, 0) => u64::MAX.into(),
                    (_, 1) => i64::MIN.into(),
                    _ => "..".into(),
                };
            }
            let check = Digest::of_bytes(snapshot.to_string().as_bytes()).to_string();
            let forged = serde_json::json!({"snapshot": snapshot, "check": check});
            *bytes = forged.to_string().into_bytes();
            let stem = name.file_stem().unwrap().to_str().unwrap();
            mutation.forged = stem.parse().ok();
        }
        _ if bytes.len() > 100 => {
            let end = bytes.len() - 32;
            value(&mut bytes[8..end]);
            let digest = Digest::of_bytes(&bytes[..end]);
            bytes[end..].copy_from_slice(&digest.0);
        }
        _ => bytes.clear(),
    }
}

/// Verb that runs, and when it has last made progress.
type Running = Option<(String, Arc<Progress>, [u64; 2], Instant)>;

/// Runs a verb. In campaigns, one without progress ends the process.
fn verb<T>(what: &str, run: impl FnOnce(&Progress) -> T) -> T {
    static RUNNING: Mutex<Running> = Mutex::new(None);
    static WATCH: OnceLock<()> = OnceLock::new();
    let progress = Arc::new(Progress::default());
    if setting("TUFF_MUTATIONS").is_some() {
        WATCH.get_or_init(|| {
            std::thread::spawn(|| {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some((what, progress, last, since)) = &mut *running {
                        let now = progress.snapshot();
                        let now = [now.entries, now.bytes];
                        if now != *last {
                            (*last, *since) = (now, Instant::now());
                        }
                        if since.elapsed() > STALL {
                            eprintln!("no progress: {what}");
                            std::process::abort();
                        }
                    }
                }
            });
        });
        let running = (
            what.to_owned(),
            Arc::clone(&progress),
            [0; 2],
            Instant::now(),
        );
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
    }
    let done = run(&progress);
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    done
}

fn findings(store: &Path, depth: Depth) -> Vec<String> {
    verb("check", |progress| {
        let open = Store::open(store).unwrap();
        open.check(depth, 2, progress).unwrap().findings
    })
}

fn write(store: &Path, files: &Files) {
    let _ = fs::remove_dir_all(store);
    for dir in ["packs", "segments", "snapshots", "seen", "pins"] {
        fs::create_dir_all(store.join(dir)).unwrap();
    }
    for (name, bytes) in files {
        fs::write(store.join(name), bytes).unwrap();
    }
}

fn run(base: &Base, seed: u64) {
    let mut random = Rng::new(seed);
    let mut files = base.files.clone();
    let mutation = mutate(&mut files, base, &mut random);
    println!("{seed}: {mutation:?}");
    let store = base.disk.path().join("store");
    write(&store, &files);
    let open = match Store::open(&store) {
        Ok(open) => open,
        Err(e) => {
            println!("  {e}");
            assert!(mutation.is_header || mutation.is_hostile, "{e}");
            return;
        }
    };
    let is_honest = !mutation.is_hostile && !mutation.is_header;
    if random.below(4) == 0 {
        findings(&store, Depth::Trees);
        findings(&store, Depth::Part(0.3));
    }
    let found = findings(&store, Depth::Data);
    let first = base.wrong(&store, &found, mutation.forged);
    println!("  found {found:?}, wrong {first:?}");
    let snapshots: Vec<_> = open.snapshots().unwrap().into_iter().flatten().collect();
    for snapshot in &snapshots {
        let files = verb("check files", |progress| {
            open.check_files(snapshot, &[], progress)
        });
        let is_clean = files.is_ok_and(|checked| checked.findings.is_empty());
        // No image has a pack that is missing, as a forged directory claims, or is without its first block. Ranges can be read.
        let is_front =
            |what: &String| what.contains("the first block") || what.ends_with(".pack: is missing");
        let has_fronts = !found.iter().any(is_front);
        let is_wrong = has_fronts && first.contains(&snapshot.number);
        assert!(!(is_clean && is_wrong), "snapshot {}", snapshot.number);
    }
    if let [a, .., b] = &snapshots[..]
        && random.below(4) == 0
    {
        let _ = verb("diff", |progress| {
            let take: &mut dyn FnMut(&[u8], &Change) -> Result<()> = &mut |_, _| Ok(());
            open.diff(a, b, progress, take)
        });
    }
    drop(open);
    if random.below(3) == 0 {
        let pruned = verb("prune", |progress| {
            Store::open_to_write(&store)?.prune(2, progress)
        });
        println!("  prune: {pruned:?}");
        let found = findings(&store, Depth::Data);
        let wrong = base.wrong(&store, &found, mutation.forged);
        let is_no_worse = wrong.iter().all(|number| first.contains(number));
        assert!(is_no_worse || !is_honest, "{wrong:?}, {found:?}");
    }
    let repaired = verb("repair", |progress| {
        Store::open_to_write(&store)?.repair(2, progress)
    });
    println!("  repair: {repaired:?}");
    let repaired = repaired.unwrap();
    let mut now = read_files(&store);
    now.remove(Path::new("checked"));
    if now == base.files {
        // As it was. Of a directory of an earlier day, ranges may be lost that no snapshot names.
        assert!(!repaired.has_losses || !mutation.is_bit, "{repaired:?}");
        return;
    }
    let found = findings(&store, Depth::Data);
    let second = base.wrong(&store, &found, mutation.forged);
    let is_no_worse = second.iter().all(|number| first.contains(number));
    assert!(is_no_worse || !is_honest, "{second:?}, {found:?}");
    if mutation.is_bit {
        assert!(!repaired.has_losses && found.is_empty(), "{found:?}");
    }
    let reads_all = random.below(2) == 0;
    let report = verb("backup", |progress| {
        Store::open_to_write(&store)?.backup(&request(&base.source.root, reads_all), progress)
    });
    println!("  backup: {report:?}");
    let number = report.unwrap().number.unwrap();
    let found = findings(&store, Depth::Data);
    let snapshot = Store::open(&store).unwrap().snapshot(number).unwrap();
    let image = base.scratch.path().join("image");
    let shown = judge::shown(&store, &snapshot, &base.source.root, &image).unwrap();
    let differences = base.saved.last_key_value().unwrap().1.differences(&shown);
    assert!(differences.is_empty() || !is_honest, "{differences:?}");
    let third = base.wrong(&store, &found, mutation.forged);
    let is_no_worse = third.iter().all(|number| first.contains(number));
    assert!(is_no_worse || !is_honest, "{third:?}, {found:?}");
    let numbers = Store::open(&store).unwrap().numbers("snapshots", ".json");
    for old in numbers.unwrap().into_iter().chain(third.clone()) {
        let is_wrong = third.contains(&old)
            || judge::is_named(&found, old, None)
            || !base.saved.contains_key(&old);
        if old != number && is_wrong {
            let _ = Store::open_to_write(&store).unwrap().forget(old);
        }
    }
    let pruned = verb("prune", |progress| {
        Store::open_to_write(&store)?.prune(2, progress)
    });
    println!("  forget and prune: {pruned:?}");
    if is_honest {
        pruned.unwrap();
        assert_eq!(findings(&store, Depth::Data), Vec::<String>::new());
        assert_eq!(judge::waste(&store), Vec::<String>::new());
    }
}

/// A damaged store is repaired, or the damage is named; what it shows is never wrong, and every verb ends.
#[test]
fn mutations_are_repaired_or_named() {
    let base: std::cell::RefCell<Option<(u64, Base)>> = std::cell::RefCell::default();
    super::campaign(setting("TUFF_MUTATIONS"), MUTATIONS, &|seed| {
        let of = seed / OF_STORE;
        let mut base = base.borrow_mut();
        if base.as_ref().is_none_or(|(number, _)| *number != of) {
            *base = None;
            *base = Some((of, Base::new(of)));
        }
        run(&base.as_ref().unwrap().1, seed);
    });
}
