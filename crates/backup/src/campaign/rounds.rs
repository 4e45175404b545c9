//! Rounds of a store in use, with faults.

use super::disk::Disk;
use super::judge::{self, Saved};
use super::source::{RandomSource, change};
use crate::faults::{change_at_reads, lose_writes, lost_writes, set_clock};
use crate::files::faults::limit;
use crate::run::Request;
use crate::{Depth, Policy, Report, Store, StoreCompression};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;
use tuff_codec::Method;
use tuff_erofs::extract;
use tuff_mkfs::{Options, Progress, Result};
use tuff_testkit::tree::{assert_same, from_source};
use tuff_testkit::{Rng, Scratch};

/// Rounds with one seed.
const ROUNDS: u64 = 10;
/// Seeds of a run without settings.
const SEEDS: u64 = 2;
/// Units of a run's changes of which one is undone.
const UNDONE_OF: usize = 40;

/// Fault of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The process ends before this step.
    Killed(u32),
    /// Only these bytes are left on the disk of the store.
    Full(u64),
    /// The clock of the host is set forward. Unit: seconds.
    Clock(i64),
    /// Files change while they are read: once, or at each read.
    Changes {
        is_once: bool,
    },
    /// Writes are acknowledged and have no effect.
    Lost,
    /// Writes have an effect until the end of the run.
    Undone,
}

struct World {
    random: Rng,
    scratch: Scratch,
    disk: Disk,
    source: RandomSource,
    store: PathBuf,
    /// Snapshots that were reported, and are not forgotten.
    saved: BTreeMap<u32, Saved>,
    /// Writes were lost, and the store is not repaired yet.
    is_damaged: bool,
    /// A run of prune has ended early.
    is_unfinished: bool,
    log: Vec<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        limit(None);
        lose_writes(None);
        set_clock(0);
        change_at_reads(None);
        if std::thread::panicking() {
            println!("{}", self.log.join("\n"));
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let scratch = Scratch::new("backup-rounds");
        let disk = Disk::new(&scratch.path().join("disk"), 128);
        let source = RandomSource::new(&scratch.path().join("source"), seed, 1);
        let store = disk.path().join("store");
        let (method, level) = match seed % 4 {
            0 => (Method::Lz4, 1),
            1 => (Method::Deflate, 1),
            2 => (Method::Lzma, 1),
            _ => (Method::Zstd, 3),
        };
        let compression = StoreCompression {
            method,
            level,
            cluster: [128 << 10, 8 << 10, 64 << 10][(seed % 3) as usize],
        };
        Store::create(&store, compression).unwrap();
        Self {
            random: Rng::new(seed ^ 0x7001),
            scratch,
            disk,
            source,
            store,
            saved: BTreeMap::new(),
            is_damaged: false,
            is_unfinished: false,
            log: Vec::new(),
        }
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    /// Calls `run` with a fault. Writes that are to be undone are undone afterwards.
    fn with<T>(&mut self, fault: Fault, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.scratch.path().join("before");
        let seed = self.random.draw();
        let mut filled = None;
        match fault {
            Fault::Killed(steps) => limit(Some(steps)),
            Fault::Full(left) => filled = self.disk.fill(left),
            Fault::Clock(seconds) => set_clock(seconds),
            Fault::Lost => lose_writes(Some(seed)),
            Fault::Undone => copy(&self.store, &before),
            Fault::None | Fault::Changes { .. } => {}
        }
        let done = run(self);
        drop(filled);
        limit(None);
        set_clock(0);
        if fault == Fault::Lost {
            let lost = lost_writes();
            self.note(format!("  lost writes: {lost}"));
            self.is_damaged |= lost > 0;
        }
        lose_writes(None);
        if fault == Fault::Undone {
            let undone = undo(&before, &self.store, &mut self.random);
            self.note(format!("  undone: {undone:?}"));
            self.is_damaged |= !undone.is_empty();
        }
        done
    }

    fn clock(&mut self) -> Fault {
        Fault::Clock([-100_000, -10, 7200, 400_000][self.random.below(4)])
    }

    fn fault(&mut self) -> Fault {
        match self.random.below(10) {
            0 | 1 => Fault::Killed(self.random.below(30) as u32),
            2 => Fault::Full([0, 5000, 100_000, 1_000_000][self.random.below(4)]),
            3 => Fault::Lost,
            4 => Fault::Undone,
            5 => self.clock(),
            _ => Fault::None,
        }
    }

    fn round(&mut self) {
        let count = self.random.below(8);
        self.source.edit(count);
        // Behind the tick of the filesystem's clock.
        std::thread::sleep(Duration::from_millis(8));
        match self.random.below(10) {
            0..=5 => {
                let fault = match self.random.below(10) {
                    0 => self.clock(),
                    1 | 2 => Fault::Changes {
                        is_once: self.random.below(2) == 0,
                    },
                    _ => self.fault(),
                };
                self.backup(fault);
            }
            6 | 7 => {
                self.forget();
                let fault = self.fault();
                self.prune(fault);
            }
            8 => {
                let fault = self.fault();
                self.repair(fault);
            }
            _ => {
                self.forget();
                self.backup(Fault::None);
                self.prune(Fault::None);
            }
        }
        self.judge(3);
        if self.is_damaged && self.random.below(3) > 0 {
            self.heal();
        }
    }

    fn try_backup(&mut self) -> Result<Report> {
        // Files of which the times are old enough are not read again.
        let reads_all = self.random.below(3) == 0;
        let request = Request {
            sources: vec![self.source.root.clone()],
            series: "test".to_owned(),
            options: Options::default(),
            reads_all,
            is_dry: self.random.below(20) == 0,
            archives: Vec::new(),
        };
        Store::open_to_write(&self.store)?.backup(&request, &Progress::default())
    }

    fn backup(&mut self, fault: Fault) {
        if matches!(fault, Fault::None) {
            // As if files had become older meanwhile.
            set_clock(4);
        }
        let tree = judge::walk(&self.source.root);
        let victim = self.source.file();
        let mut has_changed = false;
        if let (Fault::Changes { is_once }, Some(victim)) = (fault, victim) {
            let seed = self.random.draw();
            let at = self.random.below(20) as u32;
            let changed = Rc::new(RefCell::new(victim));
            change_at_reads(Some(Box::new(move |read| {
                if read == at || (read > at && !is_once) {
                    let path = changed.borrow();
                    change(&path, seed + u64::from(read));
                }
            })));
            has_changed = true;
        }
        let report = self.with(fault, Self::try_backup);
        change_at_reads(None);
        let later = has_changed.then(|| judge::walk(&self.source.root));
        self.note(format!("backup, {fault:?}: {report:?}"));
        match report {
            Ok(report) => {
                if let Some(number) = report.number {
                    let saved = Saved {
                        tree,
                        later,
                        left_out: report.left_out,
                    };
                    self.saved.insert(number, saved);
                }
            }
            Err(e) => assert!(self.may_fail(fault), "{e}"),
        }
    }

    /// True if a run with this fault may end with an error.
    fn may_fail(&self, fault: Fault) -> bool {
        let is_harmless = matches!(fault, Fault::None | Fault::Clock(_) | Fault::Changes { .. });
        self.is_damaged || !is_harmless
    }

    fn forget(&mut self) {
        let numbers: Vec<u32> = match self.random.below(3) {
            0 => {
                let policy = Policy {
                    last: self.random.below(4) as u32,
                    ..Policy::default()
                };
                let choices = Store::open(&self.store).unwrap().choose(policy, None);
                let choices = choices.unwrap_or_default();
                let has_sound = choices.iter().any(|choice| choice.doubt.is_none());
                let is_any_kept = |c: &crate::Choice| c.is_kept && c.doubt.is_none();
                assert!(!has_sound || choices.iter().any(is_any_kept), "{choices:?}");
                let gone = choices.iter().filter(|choice| !choice.is_kept);
                gone.map(|choice| choice.snapshot.number).collect()
            }
            _ => {
                let numbers: Vec<u32> = self.saved.keys().copied().collect();
                let random = &mut self.random;
                let gone = numbers.into_iter().filter(|_| random.below(2) == 0);
                gone.collect()
            }
        };
        self.note(format!("forget {numbers:?}"));
        for number in numbers {
            self.forget_one(number);
        }
    }

    fn forget_one(&mut self, number: u32) {
        let forgotten = Store::open_to_write(&self.store).and_then(|mut s| s.forget(number));
        match forgotten {
            Ok(()) => {}
            Err(e) => assert!(self.is_damaged, "{e}"),
        }
        self.saved.remove(&number);
    }

    fn prune(&mut self, fault: Fault) {
        let threads = 2;
        let pruned = self.with(fault, |world| {
            Store::open_to_write(&world.store)?.prune(threads, &Progress::default())
        });
        self.note(format!("prune, {fault:?}: {pruned:?}"));
        match pruned {
            Ok(pruned) if pruned.warnings.is_empty() => {
                self.is_unfinished = false;
                if !self.is_damaged {
                    assert_eq!(judge::waste(&self.store), Vec::<String>::new());
                }
            }
            Ok(pruned) => {
                self.is_unfinished = true;
                assert!(self.may_fail(fault), "{pruned:?}");
            }
            Err(e) => {
                self.is_unfinished = true;
                assert!(self.may_fail(fault), "{e}");
            }
        }
    }

    fn repair(&mut self, fault: Fault) {
        let repaired = self.with(fault, |world| {
            Store::open_to_write(&world.store)?.repair(2, &Progress::default())
        });
        self.note(format!("repair, {fault:?}: {repaired:?}"));
        match repaired {
            Ok(repaired) => assert!(self.is_damaged || !repaired.has_losses, "{repaired:?}"),
            Err(e) => assert!(self.may_fail(fault), "{e}"),
        }
    }

    /// Compares some of the snapshots, and the newest, with what was saved. Returns those that are not right.
    fn judge(&mut self, some: usize) -> Vec<u32> {
        let findings = judge::findings(&self.store);
        let is_harmless = |what: &String| what.contains("has no parity") && self.is_unfinished;
        let is_clean = findings.iter().all(is_harmless);
        assert!(self.is_damaged || is_clean, "{findings:?}");
        let present = Store::open(&self.store).unwrap().snapshots().unwrap();
        let numbers: Vec<u32> = present.iter().flatten().map(|s| s.number).collect();
        if !self.is_damaged {
            let expected: Vec<u32> = self.saved.keys().copied().collect();
            assert_eq!(numbers, expected);
        }
        let mut wrong = Vec::new();
        let all: Vec<u32> = self.saved.keys().copied().collect();
        for number in &all {
            let is_chosen = number == all.last().unwrap()
                || all.len() <= some
                || self.random.below(all.len()) < some;
            if !is_chosen && !self.is_damaged {
                continue;
            }
            let saved = &self.saved[number];
            let snapshot = present.iter().flatten().find(|s| s.number == *number);
            let Some(snapshot) = snapshot else {
                let is_named = judge::is_named(&findings, *number, None);
                assert!(is_named, "snapshot {number} is gone: {findings:?}");
                wrong.push(*number);
                continue;
            };
            let image = self.scratch.path().join("image");
            match judge::shown(&self.store, snapshot, &self.source.root, &image) {
                Ok(shown) => {
                    let found = saved.differences(&shown);
                    for (path, how) in &found {
                        let path = judge::is_named(&findings, *number, Some(path));
                        assert!(
                            self.is_damaged && path,
                            "snapshot {number}: {how}: {findings:?}"
                        );
                    }
                    if !found.is_empty() {
                        wrong.push(*number);
                    }
                }
                Err(e) => {
                    assert!(self.is_damaged && !is_clean, "snapshot {number}: {e}");
                    wrong.push(*number);
                }
            }
        }
        wrong
    }

    /// Repairs the store, saves the source again, and forgets what is lost.
    fn heal(&mut self) {
        self.note("heal".to_owned());
        let before = self.judge(usize::MAX);
        self.repair(Fault::None);
        let after = self.judge(usize::MAX);
        assert!(
            after.iter().all(|n| before.contains(n)),
            "{before:?}, {after:?}"
        );
        let last = self.saved.keys().next_back().copied();
        while self.saved.keys().next_back().copied() == last {
            self.backup_must_succeed();
        }
        let wrong = self.judge(usize::MAX);
        assert!(
            wrong.iter().all(|n| before.contains(n)),
            "{before:?}, {wrong:?}"
        );
        let findings = judge::findings(&self.store);
        let open = Store::open(&self.store).unwrap();
        let mut numbers = open.numbers("snapshots", ".json").unwrap();
        numbers.extend(open.missing_manifests().unwrap());
        drop(open);
        for number in wrong.iter().copied().chain(numbers) {
            let is_known = self.saved.contains_key(&number) && !wrong.contains(&number);
            if !is_known {
                self.note(format!("forget {number}: {findings:?}"));
                self.forget_one(number);
            }
        }
        self.repair(Fault::None);
        self.is_damaged = false;
        self.prune(Fault::None);
        self.judge(usize::MAX);
        let left = judge::findings(&self.store);
        assert_eq!(left, Vec::<String>::new());
    }

    fn backup_must_succeed(&mut self) {
        let tree = judge::walk(&self.source.root);
        let report = self.try_backup().unwrap();
        self.note(format!("backup of a damaged store: {report:?}"));
        if let Some(number) = report.number {
            let saved = Saved {
                tree,
                later: None,
                left_out: Vec::new(),
            };
            self.saved.insert(number, saved);
        }
    }

    /// Restores the newest snapshot to a directory, and compares that.
    fn restore(&mut self) {
        let Some((number, saved)) = self.saved.last_key_value() else {
            return;
        };
        if saved.later.is_some() {
            return;
        }
        let store = std::sync::Arc::new(Store::open(&self.store).unwrap());
        let snapshot = store.snapshot(*number).unwrap();
        let image = self.scratch.path().join("image");
        let image = store.image(&snapshot, &image, &Progress::default());
        let target = self.scratch.path().join("restored");
        let options = extract::Options::default();
        let image = image.unwrap().open().unwrap();
        let report = extract::extract(&image, &target, &options, |_| ()).unwrap();
        assert_eq!(report.problems, Vec::new());
        let source = fs::canonicalize(&self.source.root).unwrap();
        let restored = judge::walk(&target.join(source.strip_prefix("/").unwrap()));
        assert_same("restored", &saved.tree, &restored, from_source(&saved.tree));
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Files of a store by their names in it.
fn files(store: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in ["packs", "segments", "snapshots", "seen"] {
        for entry in fs::read_dir(store.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            found.insert(path.strip_prefix(store).unwrap().to_owned(), bytes);
        }
    }
    found
}

/// Change of a store that can be undone.
#[derive(Debug)]
enum Unit {
    /// Name of a file.
    File(PathBuf),
    /// Name of a pack, position and length of a part of it.
    Part(PathBuf, usize, usize),
}

/// Undoes some of the changes between two states of a store, as a disk does that loses what it has acknowledged.
fn undo(before: &Path, store: &Path, random: &mut Rng) -> Vec<Unit> {
    let (old, new) = (files(before), files(store));
    let mut units = Vec::new();
    for name in old
        .keys()
        .chain(new.keys().filter(|name| !old.contains_key(*name)))
    {
        let (was, is) = (old.get(name), new.get(name));
        if was == is {
            continue;
        }
        let is_pack = name.starts_with("packs");
        let (Some(was), Some(is), true) = (was, is, is_pack) else {
            units.push(Unit::File(name.clone()));
            continue;
        };
        let len = 32 << 10;
        for at in (0..was.len().max(is.len())).step_by(len) {
            let part = |bytes: &[u8]| {
                let end = bytes.len().min(at + len);
                bytes.get(at..end).unwrap_or_default().to_vec()
            };
            if part(was) != part(is) {
                units.push(Unit::Part(name.clone(), at, len));
            }
        }
    }
    let count = units.len().div_ceil(UNDONE_OF).min(units.len());
    let mut undone = Vec::new();
    for _ in 0..count {
        undone.push(units.swap_remove(random.below(units.len())));
    }
    for unit in &undone {
        match unit {
            Unit::File(name) => match (old.get(name), new.get(name)) {
                // Length without content.
                (None, Some(bytes)) if random.below(2) == 0 => {
                    fs::write(store.join(name), vec![0; bytes.len()]).unwrap();
                }
                (Some(bytes), _) => fs::write(store.join(name), bytes).unwrap(),
                (None, _) => fs::remove_file(store.join(name)).unwrap(),
            },
            Unit::Part(name, at, len) => {
                let file = fs::File::options().write(true).open(store.join(name));
                let mut bytes = vec![0; *len];
                let was = old[name].get(*at..).unwrap_or_default();
                let n = was.len().min(*len);
                bytes[..n].copy_from_slice(&was[..n]);
                bytes.truncate(new[name].len().saturating_sub(*at).max(n));
                file.unwrap().write_all_at(&bytes, *at as u64).unwrap();
            }
        }
    }
    undone
}

/// A snapshot shows what was saved, or the loss is named, and nothing is kept that is not needed, whatever goes wrong.
#[test]
fn rounds_with_faults_lose_nothing_that_is_not_named() {
    let run = |seed| {
        let mut world = World::new(seed);
        world.source.edit(30);
        world.backup(Fault::None);
        for round in 0..ROUNDS {
            world.note(format!("round {round}"));
            world.round();
        }
        if world.is_damaged {
            world.heal();
        }
        world.judge(usize::MAX);
        world.restore();
        world.prune(Fault::None);
        let checked = Store::open(&world.store).unwrap();
        let checked = checked.check(Depth::Trees, 1, &Progress::default());
        assert_eq!(checked.unwrap().findings, Vec::<String>::new());
    };
    let count = super::setting("TUFF_ROUNDS");
    super::campaign(count.map(|rounds| rounds.div_ceil(ROUNDS)), SEEDS, &run);
}
