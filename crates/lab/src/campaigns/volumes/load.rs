//! Loads of the measurement. Each verifies its result before it returns a time.

use crate::measure::stats;
use crate::{At, Error, Result};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::io;
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

/// Operation that a figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Creation and write of a small file.
    Make,
    /// Deletion of a small file.
    Delete,
    /// Sequential write of 1 MiB, including its share of one fsync.
    Write,
    /// Sequential read of 1 MiB from the page cache of the host, with an empty page cache of the mount.
    Read,
    /// Random overwrite of a page, including its share of one fsync.
    Overwrite,
    /// Write of a page and fdatasync, median.
    Fdatasync,
    /// Creation and removal of a directory during heavy background writes, median.
    Beside,
    /// 99.9th percentile of [`Load::Beside`].
    BesideTail,
    /// Longest time of [`Load::Beside`].
    BesideLongest,
}

impl Load {
    /// Name of the table row, with the operation and the unit.
    pub fn name(self) -> &'static str {
        match self {
            Load::Make => "create a small file, us",
            Load::Delete => "delete a small file, us",
            Load::Write => "sequential write of 1 MiB, us",
            Load::Read => "sequential read of 1 MiB, us",
            Load::Overwrite => "random overwrite of a page, us",
            Load::Fdatasync => "page write and fdatasync, median, us",
            Load::Beside => "mkdir and rmdir during background writes, median, us",
            Load::BesideTail => "the same, 99.9th percentile, us",
            Load::BesideLongest => "the same, maximum, us",
        }
    }
}

/// Function that runs related loads in the place at a path. Returns costs in nanoseconds.
pub type Group = fn(&Path) -> Result<Vec<(Load, f64)>>;

/// All groups of loads with their names.
pub const GROUPS: [(&str, Group); 5] = [
    ("files", files),
    ("stream", stream),
    ("overwrite", overwrite),
    ("fdatasync", fdatasync),
    ("beside", beside),
];

fn done<T>(result: io::Result<T>, what: &str, path: &Path) -> Result<T> {
    result.at(what, path)
}

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
    done(
        fadvise(file, 0, None, Advice::DontNeed).map_err(Into::into),
        "drop the cache of",
        path,
    )
}

fn files(place: &Path) -> Result<Vec<(Load, f64)>> {
    let top = place.join("files");
    let dir = |n: usize| top.join(format!("d{}", n / IN_A_DIRECTORY));
    let path = |n: usize| dir(n).join(format!("f{n}"));
    let mut bytes = vec![0; SMALL];
    let begun = Instant::now();
    done(fs::create_dir(&top), "create", &top)?;
    for n in 0..FILES {
        if n % IN_A_DIRECTORY == 0 {
            done(fs::create_dir(dir(n)), "create", &dir(n))?;
        }
        fill(n as u64, &mut bytes);
        done(fs::write(path(n), &bytes), "write", &path(n))?;
    }
    let made = begun.elapsed();
    for n in 0..FILES {
        fill(n as u64, &mut bytes);
        if done(fs::read(path(n)), "read", &path(n))? != bytes {
            return Err(wrong(&path(n), "content differs from the written bytes"));
        }
    }
    let begun = Instant::now();
    for n in 0..FILES {
        done(fs::remove_file(path(n)), "delete", &path(n))?;
        if n % IN_A_DIRECTORY == IN_A_DIRECTORY - 1 {
            done(fs::remove_dir(dir(n)), "delete", &dir(n))?;
        }
    }
    done(fs::remove_dir(&top), "delete", &top)?;
    let deleted = begun.elapsed();
    if top.exists() {
        return Err(wrong(&top, "exists after its deletion"));
    }
    Ok(vec![
        (Load::Make, each(made, FILES)),
        (Load::Delete, each(deleted, FILES)),
    ])
}

fn stream(place: &Path) -> Result<Vec<(Load, f64)>> {
    let path = place.join("large");
    let mut bytes = vec![0; MIB];
    let file = done(File::create_new(&path), "create", &path)?;
    let mut written = Duration::ZERO;
    for n in 0..LARGE {
        fill(n, &mut bytes);
        let begun = Instant::now();
        done(file.write_all_at(&bytes, n << 20), "write", &path)?;
        written += begun.elapsed();
    }
    let begun = Instant::now();
    done(file.sync_all(), "sync", &path)?;
    written += begun.elapsed();
    drop(file);
    let file = done(File::open(&path), "open", &path)?;
    forget(&file, &path)?;
    let (mut read, mut found) = (Duration::ZERO, vec![0; MIB]);
    for n in 0..LARGE {
        let begun = Instant::now();
        done(file.read_exact_at(&mut found, n << 20), "read", &path)?;
        read += begun.elapsed();
        fill(n, &mut bytes);
        if found != bytes {
            return Err(wrong(&path, "content differs from the written bytes"));
        }
    }
    done(fs::remove_file(&path), "delete", &path)?;
    let all = LARGE as usize;
    Ok(vec![
        (Load::Write, each(written, all)),
        (Load::Read, each(read, all)),
    ])
}

/// Creates and syncs a file of pages. Each page is filled with its number as the seed.
fn pages(place: &Path, count: usize) -> Result<(PathBuf, File)> {
    let path = place.join("pages");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = done(file, "create", &path)?;
    let mut page = vec![0; PAGE];
    for n in 0..count {
        fill(n as u64, &mut page);
        done(file.write_all_at(&page, (n * PAGE) as u64), "write", &path)?;
    }
    done(file.sync_all(), "sync", &path)?;
    Ok((path, file))
}

/// Compares every page with the bytes of its seed and deletes the file.
fn compare(path: &Path, file: &File, seeds: &[u64]) -> Result<()> {
    forget(file, path)?;
    let (mut page, mut found) = (vec![0; PAGE], vec![0; PAGE]);
    for (n, seed) in seeds.iter().enumerate() {
        fill(*seed, &mut page);
        done(
            file.read_exact_at(&mut found, (n * PAGE) as u64),
            "read",
            path,
        )?;
        if found != page {
            return Err(wrong(path, "content differs from the written bytes"));
        }
    }
    done(fs::remove_file(path), "delete", path)
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
        let begun = Instant::now();
        done(file.write_all_at(&page, (at * PAGE) as u64), "write", &path)?;
        if synced {
            done(file.sync_data(), "sync", &path)?;
        }
        times.push(begun.elapsed().as_nanos() as f64);
    }
    let begun = Instant::now();
    done(file.sync_all(), "sync", &path)?;
    let end = begun.elapsed().as_nanos() as f64;
    compare(&path, &file, &seeds)?;
    Ok((times, end))
}

fn overwrite(place: &Path) -> Result<Vec<(Load, f64)>> {
    let (times, end) = rewrite(place, OVERWRITES, PAGES, false)?;
    let cost = (times.iter().sum::<f64>() + end) / OVERWRITES as f64;
    Ok(vec![(Load::Overwrite, cost)])
}

fn fdatasync(place: &Path) -> Result<Vec<(Load, f64)>> {
    let (times, _) = rewrite(place, SYNCS, 256, true)?;
    let cost = stats::median(&times);
    Ok(cost
        .map(|cost| (Load::Fdatasync, cost))
        .into_iter()
        .collect())
}

/// Two threads write in the background: one overwrites random pages, one rewrites a large file. Meanwhile the
/// caller's thread measures mkdir and rmdir.
fn beside(place: &Path) -> Result<Vec<(Load, f64)>> {
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
                done(file.write_all_at(&page, (at * PAGE) as u64), "write", &path)?;
            }
            Ok(())
        });
        let again = scope.spawn(|| {
            let bytes = vec![7; MIB];
            while !ended.load(Relaxed) {
                let file = done(File::create(&large), "create", &large)?;
                let mut n = 0;
                while n < 128 && !ended.load(Relaxed) {
                    done(file.write_all_at(&bytes, n << 20), "write", &large)?;
                    n += 1;
                }
            }
            Ok(())
        });
        let mut dirs = || {
            let begun = Instant::now();
            while begun.elapsed() < BESIDE {
                let dir = place.join(format!("d{}", times.len()));
                let now = Instant::now();
                done(fs::create_dir(&dir), "create", &dir)?;
                done(fs::remove_dir(&dir), "delete", &dir)?;
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
    done(fs::remove_file(&large), "delete", &large)?;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(vec![
        (Load::Beside, at(0.5)),
        (Load::BesideTail, at(0.999)),
        (Load::BesideLongest, at(1.0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_return_their_costs_and_remove_their_files() {
        let place = tempfile::tempdir().unwrap();
        let loads = |costs: Vec<(Load, f64)>| costs.into_iter().map(|(l, _)| l).collect::<Vec<_>>();
        let made = files(place.path()).unwrap();
        assert_eq!(loads(made), [Load::Make, Load::Delete]);
        let synced = fdatasync(place.path()).unwrap();
        assert_eq!(loads(synced), [Load::Fdatasync]);
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
