//! Who writes until the power goes, and what was promised to him.
//!
//! Files that are replaced (written under another name, then renamed) and deleted, a file whose pages are written over, a log that is
//! appended to. What `fsync` of a file and then of its directory returned for is promised: that, or what came after, must be found. What was
//! not promised may be found or not, in part or with holes, but never with bytes that nobody wrote there.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tuff_testkit::Rng;

/// Files that are replaced and deleted, in so many directories.
const FILES: usize = 48;
const DIRECTORIES: usize = 4;
/// Pages of the file that is written over.
const PAGES: usize = 512;
const PAGE: usize = 4096;
/// What survives or does not. Unit: bytes.
const SECTOR: usize = super::disk::SECTOR as usize;
/// Of those who do not wait, every so many'th operation does.
const WAITS: usize = 24;

/// How often durability is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// After every operation.
    Sync,
    /// After one in [`WAITS`].
    Async,
}

/// What may be found, by what was promised.
pub(super) struct Promise {
    files: Vec<History>,
    /// The seeds that each page may have; the first is promised.
    pages: Vec<Vec<u64>>,
    log: Log,
}

/// The states of a file, `None` where it is not there.
struct History {
    states: Vec<Option<Version>>,
    /// The oldest state that may be found.
    promised: usize,
}

struct Version {
    seed: u64,
    size: usize,
    /// Was it made durable before it got its name?
    whole: bool,
}

struct Log {
    seed: u64,
    written: usize,
    promised: usize,
}

/// What is not as promised.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The first error that somebody who reads is told.
    pub(super) told: Option<String>,
    /// The first thing that is wrong or missing without one.
    pub(super) silent: Option<String>,
}

impl Verdict {
    /// Is everything as promised?
    pub(super) fn right(&self) -> bool {
        *self == Verdict::default()
    }

    fn tell(&mut self, path: &Path, error: &io::Error) {
        // The name alone: records hold no paths.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.told.get_or_insert_with(|| format!("{name}: {error}"));
    }

    fn find(&mut self, what: String) {
        self.silent.get_or_insert(what);
    }
}

/// Bytes that the seed alone decides.
fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&rng.draw().to_le_bytes());
    }
    bytes.truncate(size);
    bytes
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

/// Makes what the load begins with, durable.
pub(super) fn prepare(top: &Path, rng: &mut Rng) -> Result<Promise> {
    let made = (|| {
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
    let pages = made.map_err(|e| Error::io("prepare", top, e))?;
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
    /// Goes on until it is told to stop, which it asks before each operation, or until something fails: the error.
    pub(super) fn load(
        &mut self,
        top: &Path,
        pace: Pace,
        rng: &mut Rng,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> io::Result<()> {
        let mut count = 0;
        while go_on(count) {
            count += 1;
            let wait = pace == Pace::Sync || count % WAITS == 0;
            match rng.below(8) {
                0..=2 => self.replace(top, wait, rng)?,
                3 => self.delete(top, wait, rng)?,
                4..=5 => self.overwrite(top, wait, rng)?,
                _ => self.append(top, wait, rng)?,
            }
        }
        Ok(())
    }

    /// All that was written is promised from now on: the filesystem was unmounted without an error.
    pub(super) fn settle(&mut self) {
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

    /// A directory that was made durable has all the names that it had before.
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

    /// Reads everything, and compares.
    pub(super) fn judge(&self, top: &Path) -> Verdict {
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
            None => "what was promised is not there",
            Some(_) if past.iter().any(|state| is(state.as_ref(), found)) => {
                "older than what was promised"
            }
            Some(_) => "bytes that nobody wrote there",
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

/// Is every byte that which was written there, or a hole's?
fn in_part(expected: &[u8], found: &[u8]) -> bool {
    let mut both = found.iter().zip(expected);
    both.all(|(found, expected)| found == expected || *found == 0)
}

fn page_complaint(seeds: &[u64], found: Option<&[u8]>) -> Option<&'static str> {
    let Some(found) = found else {
        return Some("is not there");
    };
    let candidates: Vec<Vec<u8>> = seeds.iter().map(|seed| content(*seed, PAGE)).collect();
    let written = |at: usize| {
        let sector = at..at + SECTOR;
        let mut all = candidates.iter();
        all.any(|page| page[sector.clone()] == found[sector.clone()])
    };
    match (0..PAGE).step_by(SECTOR).all(written) {
        true => None,
        false => Some("has bytes that nobody wrote there, or older ones"),
    }
}

impl Log {
    fn complaint(&self, found: &[u8]) -> Option<&'static str> {
        if found.len() < self.promised {
            return Some("shorter than was promised");
        }
        if found.len() > self.written {
            return Some("longer than was written");
        }
        let expected = content(self.seed, self.written);
        let (promised, rest) = found.split_at(self.promised);
        let fine =
            promised == &expected[..self.promised] && in_part(&expected[self.promised..], rest);
        match fine {
            true => None,
            false => Some("bytes that nobody wrote there"),
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
    fn what_was_written_is_as_promised() {
        for pace in [Pace::Sync, Pace::Async] {
            let (place, mut promise) = loaded(pace, 400);
            assert_eq!(promise.judge(place.path()), Verdict::default());
            promise.settle();
            assert_eq!(promise.judge(place.path()), Verdict::default());
        }
    }

    /// A file whose newest state is a version of at least 100 bytes.
    fn some(promise: &Promise) -> usize {
        let there = |h: &History| matches!(h.states.last(), Some(Some(v)) if v.size > 100);
        promise.files.iter().position(there).unwrap()
    }

    #[test]
    fn what_is_missing_older_or_of_others_is_found() {
        let (place, promise) = loaded(Pace::Sync, 400);
        let top = place.path();
        let number = some(&promise);
        let path = file(top, number);
        let bytes = fs::read(&path).unwrap();
        let said = |verdict: Verdict| {
            assert_eq!(verdict.told, None);
            verdict.silent.unwrap()
        };
        fs::remove_file(&path).unwrap();
        assert!(said(promise.judge(top)).ends_with("not there"));
        fs::write(&path, &bytes[..50]).unwrap();
        assert!(said(promise.judge(top)).ends_with("nobody wrote there"));
        let mut wrong = bytes.clone();
        wrong[70] ^= 4;
        fs::write(&path, &wrong).unwrap();
        assert!(said(promise.judge(top)).ends_with("nobody wrote there"));
        fs::write(&path, &bytes).unwrap();
        let pages = OpenOptions::new().write(true).open(top.join("pages"));
        pages.unwrap().write_all_at(b"x", 9 * 4096 + 700).unwrap();
        assert!(said(promise.judge(top)).starts_with("pages: page 9 "));
    }

    #[test]
    fn an_older_state_is_told_from_a_wrong_one() {
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
        let says = |found: Option<&[u8]>| history.complaint(found);
        assert_eq!(says(Some(&content(2, 2000))), None);
        assert_eq!(says(Some(&content(3, 2000))), None);
        assert_eq!(says(Some(&content(3, 600))), None);
        assert_eq!(says(Some(&[0; 2000])), None);
        assert_eq!(
            says(Some(&[0; 2001])),
            Some("bytes that nobody wrote there")
        );
        assert_eq!(
            says(Some(&content(1, 2000))),
            Some("older than what was promised")
        );
        assert_eq!(says(None), Some("what was promised is not there"));
    }

    #[test]
    fn a_torn_page_is_of_sectors_and_a_log_has_its_promise() {
        let (one, two) = (content(1, PAGE), content(2, PAGE));
        let torn = [&two[..1024], &one[1024..]].concat();
        assert_eq!(page_complaint(&[1, 2], Some(&torn)), None);
        assert!(page_complaint(&[2], Some(&torn)).is_some());
        let torn = [&two[..1000], &one[1000..]].concat();
        assert!(page_complaint(&[1, 2], Some(&torn)).is_some());
        let log = Log {
            seed: 9,
            written: 3000,
            promised: 1000,
        };
        let all = content(9, 3000);
        assert_eq!(log.complaint(&all[..1000]), None);
        assert_eq!(log.complaint(&[&all[..1500], &[0; 900][..]].concat()), None);
        assert!(log.complaint(&all[..999]).is_some());
        assert!(
            log.complaint(&[&all[..900], &[0; 200][..]].concat())
                .is_some()
        );
        assert!(log.complaint(&[&all[..], &[0]].concat()).is_some());
    }
}
