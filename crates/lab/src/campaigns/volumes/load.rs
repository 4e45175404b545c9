//! Loads of the measurement. Each verifies its result before it returns a time.

use crate::measure::stats;
use crate::{At, Error, Result};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Number of small files, each of [`SMALL`] bytes, [`IN_A_DIRECTORY`] in each directory.
const FILES: usize = 10_000;
const IN_A_DIRECTORY: usize = 100;
const SMALL: usize = 1024;
/// Length of the large file. Unit: MiB.
const LARGE: u64 = 300;
const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// Pages of the file that is overwritten at random.
const PAGES: usize = 16_384;
/// Number of random page overwrites.
const OVERWRITES: usize = 20_000;
/// Page writes that are each followed by fdatasync.
const SYNCS: usize = 400;
/// Duration of the load that creates directories during background writes.
const BESIDE: Duration = Duration::from_secs(10);

/// Creation and write of a small file.
pub(super) const MAKE: &str = "create a small file, us";
/// Deletion of a small file.
pub(super) const DELETE: &str = "delete a small file, us";
/// Sequential write of 1 MiB, including its share of one fsync.
pub(super) const WRITE: &str = "sequential write of 1 MiB, us";
/// Sequential read of 1 MiB from the page cache of the host, with an empty page cache of the mount.
pub(super) const READ: &str = "sequential read of 1 MiB, us";
/// Random overwrite of a page, including its share of one fsync.
pub(super) const OVERWRITE: &str = "random overwrite of a page, us";
/// Write of a page and fdatasync, median.
pub(super) const FDATASYNC: &str = "page write and fdatasync, median, us";
/// Creation and removal of a directory during heavy background writes: median, 99.9th percentile and longest time.
const BESIDES: [(&str, f64); 3] = [
    ("mkdir and rmdir during background writes, median, us", 0.5),
    ("the same, 99.9th percentile, us", 0.999),
    ("the same, maximum, us", 1.0),
];

/// Name of a table row, with the operation and the unit, and its cost in nanoseconds.
pub type Cost = (&'static str, f64);

/// Function that runs related loads in the place at a path.
pub type Group = fn(&Path) -> Result<Vec<Cost>>;

/// All groups of loads with their names.
pub const GROUPS: [(&str, Group); 5] = [
    ("files", files),
    ("stream", stream),
    ("overwrite", overwrite),
    ("fdatasync", fdatasync),
    ("beside", beside),
];

fn wrong(path: &Path, what: &str) -> Error {
    Error::Command(format!("{}: {what}", path.display()))
}

fn each(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}

/// Fills `buf` with pseudorandom bytes that depend on `seed` alone.
fn fill(seed: u64, buf: &mut [u8]) {
    let mut rng = Rng::new(seed);
    for word in buf.chunks_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes()[..word.len()]);
    }
}

/// Evicts a file from the page cache of the mount, but not from that of the host.
fn forget(file: &File, path: &Path) -> Result<()> {
    fadvise(file, 0, None, Advice::DontNeed).at("drop the cache of", path)
}

fn files(place: &Path) -> Result<Vec<Cost>> {
    let top = place.join("files");
    let dir = |n: usize| top.join(format!("d{}", n / IN_A_DIRECTORY));
    let path = |n: usize| dir(n).join(format!("f{n}"));
    let mut bytes = vec![0; SMALL];
    let start = Instant::now();
    fs::create_dir(&top).at("create", &top)?;
    for n in 0..FILES {
        if n % IN_A_DIRECTORY == 0 {
            fs::create_dir(dir(n)).at("create", &dir(n))?;
        }
        fill(n as u64, &mut bytes);
        fs::write(path(n), &bytes).at("write", &path(n))?;
    }
    let made = start.elapsed();
    for n in 0..FILES {
        fill(n as u64, &mut bytes);
        if fs::read(path(n)).at("read", &path(n))? != bytes {
            return Err(wrong(&path(n), "content differs from the written bytes"));
        }
    }
    let start = Instant::now();
    for n in 0..FILES {
        fs::remove_file(path(n)).at("delete", &path(n))?;
        if n % IN_A_DIRECTORY == IN_A_DIRECTORY - 1 {
            fs::remove_dir(dir(n)).at("delete", &dir(n))?;
        }
    }
    fs::remove_dir(&top).at("delete", &top)?;
    let deleted = start.elapsed();
    if top.exists() {
        return Err(wrong(&top, "exists after its deletion"));
    }
    Ok(vec![
        (MAKE, each(made, FILES)),
        (DELETE, each(deleted, FILES)),
    ])
}

fn stream(place: &Path) -> Result<Vec<Cost>> {
    let path = place.join("large");
    let mut bytes = vec![0; MIB];
    let file = File::create_new(&path).at("create", &path)?;
    let mut written = Duration::ZERO;
    for n in 0..LARGE {
        fill(n, &mut bytes);
        let start = Instant::now();
        file.write_all_at(&bytes, n << 20).at("write", &path)?;
        written += start.elapsed();
    }
    let start = Instant::now();
    file.sync_all().at("sync", &path)?;
    written += start.elapsed();
    drop(file);
    let file = File::open(&path).at("open", &path)?;
    forget(&file, &path)?;
    let (mut read, mut found) = (Duration::ZERO, vec![0; MIB]);
    for n in 0..LARGE {
        let start = Instant::now();
        file.read_exact_at(&mut found, n << 20).at("read", &path)?;
        read += start.elapsed();
        fill(n, &mut bytes);
        if found != bytes {
            return Err(wrong(&path, "content differs from the written bytes"));
        }
    }
    fs::remove_file(&path).at("delete", &path)?;
    let all = LARGE as usize;
    Ok(vec![(WRITE, each(written, all)), (READ, each(read, all))])
}

/// Creates and syncs a file of pages. Each page is filled with its number as the seed.
fn pages(place: &Path, count: usize) -> Result<(PathBuf, File)> {
    let path = place.join("pages");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = file.at("create", &path)?;
    let mut page = vec![0; PAGE];
    for n in 0..count {
        fill(n as u64, &mut page);
        file.write_all_at(&page, (n * PAGE) as u64)
            .at("write", &path)?;
    }
    file.sync_all().at("sync", &path)?;
    Ok((path, file))
}

/// Compares every page with the bytes of its seed and deletes the file.
fn compare(path: &Path, file: &File, seeds: &[u64]) -> Result<()> {
    forget(file, path)?;
    let (mut page, mut found) = (vec![0; PAGE], vec![0; PAGE]);
    for (n, seed) in seeds.iter().enumerate() {
        fill(*seed, &mut page);
        file.read_exact_at(&mut found, (n * PAGE) as u64)
            .at("read", path)?;
        if found != page {
            return Err(wrong(path, "content differs from the written bytes"));
        }
    }
    fs::remove_file(path).at("delete", path)
}

/// Overwrites random pages of a file of `pages` pages, `count` times, and compares them. `synced` calls fdatasync after each.
/// Returns the time of each overwrite, and the time of the fsync at the end in nanoseconds.
fn rewrite(place: &Path, count: usize, pages: usize, synced: bool) -> Result<(Vec<f64>, f64)> {
    let (path, file) = self::pages(place, pages)?;
    let mut seeds: Vec<u64> = (0..pages as u64).collect();
    let (mut rng, mut page) = (Rng::new(1), vec![0; PAGE]);
    let mut times = Vec::new();
    for n in 0..count {
        let at = rng.below(pages);
        seeds[at] = (pages + n) as u64;
        fill(seeds[at], &mut page);
        let start = Instant::now();
        file.write_all_at(&page, (at * PAGE) as u64)
            .at("write", &path)?;
        if synced {
            file.sync_data().at("sync", &path)?;
        }
        times.push(start.elapsed().as_nanos() as f64);
    }
    let start = Instant::now();
    file.sync_all().at("sync", &path)?;
    let end = start.elapsed().as_nanos() as f64;
    compare(&path, &file, &seeds)?;
    Ok((times, end))
}

fn overwrite(place: &Path) -> Result<Vec<Cost>> {
    let (times, end) = rewrite(place, OVERWRITES, PAGES, false)?;
    let cost = (times.iter().sum::<f64>() + end) / OVERWRITES as f64;
    Ok(vec![(OVERWRITE, cost)])
}

fn fdatasync(place: &Path) -> Result<Vec<Cost>> {
    let (times, _) = rewrite(place, SYNCS, 256, true)?;
    let cost = stats::median(&times).unwrap_or_default();
    Ok(vec![(FDATASYNC, cost)])
}

/// Two threads write in the background: one overwrites random pages, one rewrites a large file. Meanwhile the
/// caller's thread measures mkdir and rmdir.
fn beside(place: &Path) -> Result<Vec<Cost>> {
    let (path, file) = pages(place, PAGES)?;
    let large = place.join("again");
    let ended = AtomicBool::new(false);
    let mut times = Vec::new();
    let result = std::thread::scope(|scope| {
        let over = scope.spawn(|| {
            let (mut rng, mut page) = (Rng::new(3), vec![0; PAGE]);
            while !ended.load(Relaxed) {
                let at = rng.below(PAGES);
                fill(at as u64, &mut page);
                file.write_all_at(&page, (at * PAGE) as u64)
                    .at("write", &path)?;
            }
            Ok(())
        });
        let again = scope.spawn(|| {
            let bytes = vec![7; MIB];
            while !ended.load(Relaxed) {
                let file = File::create(&large).at("create", &large)?;
                let mut n = 0;
                while n < 128 && !ended.load(Relaxed) {
                    file.write_all_at(&bytes, n << 20).at("write", &large)?;
                    n += 1;
                }
            }
            Ok(())
        });
        let mut dirs = || {
            let start = Instant::now();
            while start.elapsed() < BESIDE {
                let dir = place.join(format!("d{}", times.len()));
                let now = Instant::now();
                fs::create_dir(&dir).at("create", &dir)?;
                fs::remove_dir(&dir).at("delete", &dir)?;
                times.push(now.elapsed().as_nanos() as f64);
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        };
        let made = dirs();
        ended.store(true, Relaxed);
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let written = join(over).and(join(again));
        made.and(written)
    });
    result?;
    // The overwrites did not change the content of any page.
    let seeds: Vec<u64> = (0..PAGES as u64).collect();
    compare(&path, &file, &seeds)?;
    fs::remove_file(&large).at("delete", &large)?;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(BESIDES.map(|(name, share)| (name, at(share))).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_return_their_costs_and_remove_their_files() {
        let place = tempfile::tempdir().unwrap();
        let loads = |costs: Vec<Cost>| costs.into_iter().map(|(l, _)| l).collect::<Vec<_>>();
        let made = files(place.path()).unwrap();
        assert_eq!(loads(made), [MAKE, DELETE]);
        let synced = fdatasync(place.path()).unwrap();
        assert_eq!(loads(synced), [FDATASYNC]);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_page_with_wrong_content_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let (path, file) = pages(place.path(), 4).unwrap();
        file.write_all_at(b"x", 9000).unwrap();
        let error = compare(&path, &file, &[0, 1, 2, 3]).unwrap_err();
        assert!(error.to_string().contains("content differs"), "{error}");
    }
}
