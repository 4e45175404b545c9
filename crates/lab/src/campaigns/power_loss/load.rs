//! Load that writes until the power cut, and the states that its fsync calls guarantee.
//!
//! The load replaces files (written under another name, then renamed) and deletes them, overwrites pages of a
//! file, and appends to a log. A state is promised once `fsync` of the file and then of its directory
//! returned. Afterwards this state or a later one must be found. Later states may be found in part or with
//! holes, but never with bytes that were never written there.

use crate::measure::helper::noise;
use crate::{At, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tuff_testkit::Rng;

/// Part of the messages about bytes that no operation wrote.
pub(in crate::campaigns) const NEVER_WRITTEN: &str = "never written";
/// Files that are replaced and deleted.
const FILES: usize = 48;
/// Directories over which the files are spread.
const DIRECTORIES: usize = 4;
/// Pages of the file that is overwritten.
const PAGES: usize = 512;
const PAGE: usize = 4096;
/// Unit in which writes tear. Unit: bytes.
const SECTOR: usize = super::disk::SECTOR as usize;
/// In [`Pace::Async`], one operation in this many is synced.
const WAITS: usize = 24;

/// Frequency of syncs during a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::campaigns) enum Pace {
    /// Syncs after every operation.
    Sync,
    /// Syncs after one operation in [`WAITS`].
    Async,
    /// Never syncs. Operations that a power cut may have interrupted are replayed in this way.
    Never,
}

/// States that may be found after a failure.
pub(in crate::campaigns) struct Promise {
    files: Vec<History>,
    /// Possible seeds of each page. The first one is promised.
    pages: Vec<Vec<u64>>,
    log: Log,
}

/// States of a file in order. `None` means that it does not exist.
struct History {
    states: Vec<Option<Version>>,
    /// Index of the oldest state that may be found.
    promised: usize,
}

struct Version {
    seed: u64,
    size: usize,
    /// True if the content was synced before the file was renamed.
    whole: bool,
}

struct Log {
    seed: u64,
    written: usize,
    promised: usize,
}

/// Deviations from the promised states.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::campaigns) struct Verdict {
    /// First error that a read returned.
    pub(in crate::campaigns) reported: Option<String>,
    /// First wrong or missing content that no error reported.
    pub(in crate::campaigns) silent: Option<String>,
}

impl Verdict {
    /// True if everything is as promised.
    pub(in crate::campaigns) fn right(&self) -> bool {
        *self == Verdict::default()
    }

    fn tell(&mut self, path: &Path, error: &io::Error) {
        // Records contain no paths, so only the name is kept.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.reported
            .get_or_insert_with(|| format!("{name}: {error}"));
    }

    fn find(&mut self, what: String) {
        self.silent.get_or_insert(what);
    }
}

/// Returns pseudorandom bytes that depend on the seed alone.
fn content(seed: u64, size: usize) -> Vec<u8> {
    noise(&mut Rng::new(seed), size)
}

fn directory(top: &Path, number: usize) -> PathBuf {
    top.join(format!("dir{}", number % DIRECTORIES))
}

fn file(top: &Path, number: usize) -> PathBuf {
    directory(top, number).join(format!("file{number}"))
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates the initial files of the load and syncs them.
pub(in crate::campaigns) fn prepare(top: &Path, rng: &mut Rng) -> Result<Promise> {
    let made = (|| -> io::Result<Vec<Vec<u64>>> {
        for number in 0..DIRECTORIES {
            fs::create_dir(directory(top, number))?;
        }
        let pages: Vec<Vec<u64>> = (0..PAGES).map(|_| vec![rng.draw()]).collect();
        let mut whole = File::create_new(top.join("pages"))?;
        for seeds in &pages {
            whole.write_all(&content(seeds[0], PAGE))?;
        }
        whole.sync_all()?;
        File::create_new(top.join("log"))?.sync_all()?;
        for number in 0..DIRECTORIES {
            sync(&directory(top, number))?;
        }
        sync(top)?;
        Ok(pages)
    })();
    let pages = made.at("prepare", top)?;
    let absent = || History {
        states: vec![None],
        promised: 0,
    };
    Ok(Promise {
        files: (0..FILES).map(|_| absent()).collect(),
        pages,
        log: Log {
            seed: rng.draw(),
            written: 0,
            promised: 0,
        },
    })
}

impl Promise {
    /// Runs operations until `go_on` returns false or an operation fails. Passes the number of finished
    /// operations to `go_on` before each one.
    pub(in crate::campaigns) fn load(
        &mut self,
        top: &Path,
        pace: Pace,
        rng: &mut Rng,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> io::Result<()> {
        let mut count = 0;
        while go_on(count) {
            count += 1;
            let wait = match pace {
                Pace::Sync => true,
                Pace::Async => count % WAITS == 0,
                Pace::Never => false,
            };
            match rng.below(8) {
                0..=2 => self.replace(top, wait, rng)?,
                3 => self.delete(top, wait, rng)?,
                4..=5 => self.overwrite(top, wait, rng)?,
                _ => self.append(top, wait, rng)?,
            }
        }
        Ok(())
    }

    /// Promises all writes so far. To be called after an unmount without errors.
    pub(in crate::campaigns) fn settle(&mut self) {
        for history in &mut self.files {
            history.promised = history.states.len() - 1;
            if let Some(Some(version)) = history.states.last_mut() {
                version.whole = true;
            }
        }
        for seeds in &mut self.pages {
            seeds.drain(..seeds.len() - 1);
        }
        self.log.promised = self.log.written;
    }

    fn replace(&mut self, top: &Path, wait: bool, rng: &mut Rng) -> io::Result<()> {
        let number = rng.below(FILES);
        let size = match rng.below(4) {
            0 => rng.below(256 << 10),
            _ => rng.below(16 << 10),
        };
        let version = Version {
            seed: rng.draw(),
            size,
            whole: wait,
        };
        let target = file(top, number);
        let fresh = target.with_extension("new");
        let mut writer = File::create(&fresh)?;
        writer.write_all(&content(version.seed, size))?;
        if wait {
            writer.sync_all()?;
        }
        drop(writer);
        self.files[number].states.push(Some(version));
        fs::rename(&fresh, &target)?;
        self.named(top, number, wait)
    }

    fn delete(&mut self, top: &Path, wait: bool, rng: &mut Rng) -> io::Result<()> {
        let number = rng.below(FILES);
        if matches!(self.files[number].states.last(), Some(None)) {
            return Ok(());
        }
        self.files[number].states.push(None);
        fs::remove_file(file(top, number))?;
        self.named(top, number, wait)
    }

    /// Promises the newest states of all files in a directory by an fsync of it, if `wait` is set.
    fn named(&mut self, top: &Path, number: usize, wait: bool) -> io::Result<()> {
        if !wait {
            return Ok(());
        }
        sync(&directory(top, number))?;
        let same = self.files.iter_mut().skip(number % DIRECTORIES);
        for history in same.step_by(DIRECTORIES) {
            history.promised = history.states.len() - 1;
        }
        Ok(())
    }

    fn overwrite(&mut self, top: &Path, wait: bool, rng: &mut Rng) -> io::Result<()> {
        let (number, seed) = (rng.below(PAGES), rng.draw());
        self.pages[number].push(seed);
        let pages = OpenOptions::new().write(true).open(top.join("pages"))?;
        pages.write_all_at(&content(seed, PAGE), (number * PAGE) as u64)?;
        if wait {
            pages.sync_data()?;
            for seeds in &mut self.pages {
                seeds.drain(..seeds.len() - 1);
            }
        }
        Ok(())
    }

    fn append(&mut self, top: &Path, wait: bool, rng: &mut Rng) -> io::Result<()> {
        let more = 1 + rng.below(3000);
        let begin = self.log.written;
        self.log.written += more;
        let mut log = OpenOptions::new().append(true).open(top.join("log"))?;
        log.write_all(&content(self.log.seed, self.log.written)[begin..])?;
        if wait {
            log.sync_all()?;
            self.log.promised = self.log.written;
        }
        Ok(())
    }

    /// Reads everything and compares it with the promised states.
    pub(in crate::campaigns) fn judge(&self, top: &Path) -> Verdict {
        let mut verdict = Verdict::default();
        for (number, history) in self.files.iter().enumerate() {
            let path = file(top, number);
            let found = match fs::read(&path) {
                Ok(bytes) => Some(bytes),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => {
                    verdict.tell(&path, &e);
                    continue;
                }
            };
            if let Some(what) = history.complaint(found.as_deref()) {
                verdict.find(format!("file{number}: {what}"));
            }
        }
        let read = |name: &str, verdict: &mut Verdict| {
            let path = top.join(name);
            fs::read(&path).map_err(|e| verdict.tell(&path, &e)).ok()
        };
        if let Some(found) = read("pages", &mut verdict) {
            for (number, seeds) in self.pages.iter().enumerate() {
                let page = found.get(number * PAGE..(number + 1) * PAGE);
                if let Some(what) = page_complaint(seeds, page) {
                    verdict.find(format!("pages: page {number} {what}"));
                }
            }
        }
        if let Some(found) = read("log", &mut verdict)
            && let Some(what) = self.log.complaint(&found)
        {
            verdict.find(format!("log: {what}"));
        }
        verdict
    }
}

impl History {
    fn complaint(&self, found: Option<&[u8]>) -> Option<&'static str> {
        let (past, allowed) = self.states.split_at(self.promised);
        if allowed.iter().any(|state| is(state.as_ref(), found)) {
            return None;
        }
        Some(match found {
            None => "the promised state is missing",
            Some(_) if past.iter().any(|state| is(state.as_ref(), found)) => {
                "older than the promised state"
            }
            Some(_) => "bytes that were never written there",
        })
    }
}

fn is(state: Option<&Version>, found: Option<&[u8]>) -> bool {
    match (state, found) {
        (None, None) => true,
        (Some(version), Some(found)) => {
            let expected = content(version.seed, version.size);
            match version.whole {
                true => expected == found,
                false => found.len() <= version.size && in_part(&expected, found),
            }
        }
        _ => false,
    }
}

/// True if every found byte is the written one or zero, as in a hole.
fn in_part(expected: &[u8], found: &[u8]) -> bool {
    let mut both = found.iter().zip(expected);
    both.all(|(found, expected)| found == expected || *found == 0)
}

fn page_complaint(seeds: &[u64], found: Option<&[u8]>) -> Option<&'static str> {
    let Some(found) = found else {
        return Some("is missing");
    };
    let candidates: Vec<Vec<u8>> = seeds.iter().map(|seed| content(*seed, PAGE)).collect();
    let written = |at: usize| {
        let sector = at..at + SECTOR;
        let mut all = candidates.iter();
        all.any(|page| page[sector.clone()] == found[sector.clone()])
    };
    match (0..PAGE).step_by(SECTOR).all(written) {
        true => None,
        false => Some("has bytes that were never written there, or older ones"),
    }
}

impl Log {
    fn complaint(&self, found: &[u8]) -> Option<&'static str> {
        if found.len() < self.promised {
            return Some("shorter than promised");
        }
        if found.len() > self.written {
            return Some("longer than written");
        }
        let expected = content(self.seed, self.written);
        let (promised, rest) = found.split_at(self.promised);
        let fine =
            promised == &expected[..self.promised] && in_part(&expected[self.promised..], rest);
        match fine {
            true => None,
            false => Some("bytes that were never written there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(pace: Pace, count: usize) -> (tempfile::TempDir, Promise) {
        let place = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(5);
        let mut promise = prepare(place.path(), &mut rng).unwrap();
        let done = promise.load(place.path(), pace, &mut rng, |done| done < count);
        done.unwrap();
        (place, promise)
    }

    #[test]
    fn an_intact_load_passes_verification() {
        for pace in [Pace::Sync, Pace::Async] {
            let (place, mut promise) = loaded(pace, 400);
            assert_eq!(promise.judge(place.path()), Verdict::default());
            promise.settle();
            assert_eq!(promise.judge(place.path()), Verdict::default());
        }
    }

    /// Returns the number of a file whose newest state is a version of more than 100 bytes.
    fn some(promise: &Promise) -> usize {
        let exists = |h: &History| matches!(h.states.last(), Some(Some(v)) if v.size > 100);
        promise.files.iter().position(exists).unwrap()
    }

    #[test]
    fn missing_truncated_and_wrong_content_is_found() {
        let (place, promise) = loaded(Pace::Sync, 400);
        let top = place.path();
        let number = some(&promise);
        let path = file(top, number);
        let bytes = fs::read(&path).unwrap();
        let message = |verdict: Verdict| {
            assert_eq!(verdict.reported, None);
            verdict.silent.unwrap()
        };
        fs::remove_file(&path).unwrap();
        assert!(message(promise.judge(top)).ends_with("is missing"));
        fs::write(&path, &bytes[..50]).unwrap();
        assert!(message(promise.judge(top)).ends_with("never written there"));
        let mut wrong = bytes.clone();
        wrong[70] ^= 4;
        fs::write(&path, &wrong).unwrap();
        assert!(message(promise.judge(top)).ends_with("never written there"));
        fs::write(&path, &bytes).unwrap();
        let pages = OpenOptions::new().write(true).open(top.join("pages"));
        pages.unwrap().write_all_at(b"x", 9 * 4096 + 700).unwrap();
        assert!(message(promise.judge(top)).starts_with("pages: page 9 "));
    }

    #[test]
    fn older_states_and_wrong_bytes_are_distinguished() {
        let version = |seed, whole| {
            Some(Version {
                seed,
                size: 2000,
                whole,
            })
        };
        let history = History {
            states: vec![None, version(1, true), version(2, true), version(3, false)],
            promised: 2,
        };
        let says = |found: &[u8]| history.complaint(Some(found)).unwrap_or_default();
        assert_eq!(says(&content(2, 2000)), "");
        assert_eq!(says(&content(3, 2000)), "");
        assert_eq!(says(&content(3, 600)), "");
        assert_eq!(says(&[0; 2000]), "");
        assert!(says(&[0; 2001]).contains(NEVER_WRITTEN));
        assert_eq!(says(&content(1, 2000)), "older than the promised state");
        let missing = Some("the promised state is missing");
        assert_eq!(history.complaint(None), missing);
    }

    #[test]
    fn pages_tear_between_sectors_and_a_log_keeps_its_promised_part() {
        let (one, two) = (content(1, PAGE), content(2, PAGE));
        let is_fine = |at: usize, seeds: &[u64]| {
            let torn = [&two[..at], &one[at..]].concat();
            page_complaint(seeds, Some(&torn)).is_none()
        };
        assert!(is_fine(1024, &[1, 2]));
        assert!(!is_fine(1024, &[2]) && !is_fine(1000, &[1, 2]));
        let log = Log {
            seed: 9,
            written: 3000,
            promised: 1000,
        };
        let all = content(9, 3000);
        // Bytes of the log, and zeros after them.
        let is_fine = |bytes: usize, zeros: usize| {
            let found = [&all[..bytes], &vec![0; zeros]].concat();
            log.complaint(&found).is_none()
        };
        assert!(is_fine(1000, 0) && is_fine(1500, 900));
        assert!(!is_fine(999, 0) && !is_fine(900, 200) && !is_fine(3000, 1));
    }
}
