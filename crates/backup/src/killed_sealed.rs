//! Runs on an encrypted store in a directory that end at every step.

use crate::Depth;
use crate::files::faults::limit;
use crate::folder::Folder;
use crate::keys::{KeyFile, Secret, StoreKey};
use crate::run::Request;
use crate::store::{Store, StoreCompression};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_mkfs::{Options, Progress, Result};
use tuff_testkit::Scratch;
use tuff_testkit::content::{noise, text};

struct Place {
    scratch: Scratch,
    file: KeyFile,
}

impl Place {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let folder = Folder::new(&scratch.path().join("store"));
        let mut file = None;
        Store::create_encrypted(&folder, StoreCompression::default(), None, &mut |new| {
            file = Some(new.clone());
            Ok(())
        })
        .unwrap();
        fs::create_dir(scratch.path().join("source")).unwrap();
        let file = file.unwrap();
        Self { scratch, file }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn open(&self, store: &str, writes: bool) -> Result<Store> {
        let folder = Arc::new(Folder::new(&self.at(store)));
        let secret = Secret::File(self.file.clone());
        let key = StoreKey::open(&*folder, self.file.store, &secret)?;
        let copies = self.at(&format!("copies-of-{store}"));
        Store::open_encrypted(folder, &key, &copies, writes)
    }

    fn try_backup(&self, store: &str) -> Result<u32> {
        let request = Request {
            sources: vec![self.at("source")],
            series: "test".to_owned(),
            options: Options::default(),
            reads_all: true,
            is_dry: false,
            archives: Vec::new(),
        };
        let report = self
            .open(store, true)?
            .backup(&request, &Progress::default())?;
        Ok(report.number.unwrap_or_default())
    }

    fn write_day(&self, day: u64) {
        for n in 0..12 {
            let seed = if n % 4 == 0 { n } else { n + 100 * day };
            let name = self.at("source").join(format!("small-{n}"));
            fs::write(name, noise(40_000, seed)).unwrap();
        }
        fs::write(self.at("source/large"), noise(300_000, 7 + day)).unwrap();
        fs::write(self.at("source/text"), text(300_000, 9)).unwrap();
    }

    /// Copies the store and the copies of the host.
    fn copy(&self, from: &str, to: &str) {
        for kind in ["", "copies-of-"] {
            let (from, to) = (format!("{kind}{from}"), format!("{kind}{to}"));
            let (from, to) = (self.at(&from), self.at(&to));
            let _ = fs::remove_dir_all(&to);
            let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
            assert!(copied.unwrap().success());
        }
    }

    /// Number of snapshots, all of which must be whole.
    fn snapshots(&self, store: &str) -> u64 {
        let store = self.open(store, false).unwrap();
        let checked = store.check(Depth::Data, 1, &Progress::default()).unwrap();
        assert_eq!(checked.findings, Vec::<String>::new());
        checked.snapshots
    }
}

/// Bytes of all segments.
fn used(store: &Path) -> u64 {
    let entries = fs::read_dir(store.join("segments")).unwrap();
    let names = entries.map(|entry| entry.unwrap());
    let names = names.filter(|entry| !entry.file_name().to_string_lossy().ends_with(".new"));
    names.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn b6_backup_to_an_encrypted_directory_may_end_at_every_step() {
    let place = Place::new("sealed-backup-killed");
    place.write_day(0);
    place.try_backup("store").unwrap();
    place.write_day(1);
    let mut ended = 0;
    loop {
        place.copy("store", "killed");
        limit(Some(ended));
        let done = place.try_backup("killed");
        limit(None);
        let count = place.snapshots("killed");
        assert!(
            (1..=2).contains(&count) && (count == 2 || done.is_err()),
            "after {ended} steps"
        );
        // The next run completes it.
        place.try_backup("killed").unwrap();
        assert_eq!(place.snapshots("killed"), count + 1);
        if done.is_ok() {
            break;
        }
        ended += 1;
    }
    assert!(ended > 10, "{ended}");
}

#[test]
fn b2_prune_of_an_encrypted_directory_may_end_at_every_step() {
    let place = Place::new("sealed-prune-killed");
    for day in 0..3 {
        place.write_day(day);
        place.try_backup("store").unwrap();
    }
    for number in [1, 2] {
        place.open("store", true).unwrap().forget(number).unwrap();
    }
    let prune = |store: &str| {
        let mut store = place.open(store, true)?;
        store.prune(1, &Progress::default())
    };
    let before = used(&place.at("store"));
    let (mut ended, mut least) = (0, u64::MAX);
    loop {
        place.copy("store", "killed");
        limit(Some(ended));
        let done = prune("killed");
        limit(None);
        assert_eq!(place.snapshots("killed"), 1, "after {ended} steps");
        prune("killed").unwrap();
        assert_eq!(place.snapshots("killed"), 1, "after {ended} steps");
        let left = used(&place.at("killed"));
        least = least.min(left);
        assert_eq!(left, least, "after {ended} steps");
        if done.is_ok() {
            break;
        }
        ended += 1;
    }
    assert!(
        ended > 10 && least < before * 2 / 3,
        "{ended} steps, {least} of {before} bytes"
    );
}
