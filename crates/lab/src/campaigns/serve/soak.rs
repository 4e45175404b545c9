//! Soak test: readers with mixed workloads on one mount for a long time, in a control group with a low memory
//! limit, with caches dropped at random times. Memory of the server must not grow.
//!
//! The lab joins the control group, so that the group is also charged for the page cache filled by the
//! readers.

use super::server::{Served, Server};
use super::workload::{Kind, Script};
use crate::engines::Format;
use crate::engines::settings::Size;
use crate::measure::cgroup::{self, Membership};
use crate::measure::root;
use crate::measure::stats::median;
use crate::measure::workspace::Work;
use crate::options::{Options, minutes};
use crate::{Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Number of reading threads.
const READERS: u64 = 4;
/// Permitted growth of the server after the second quarter of the time, in bytes.
const GROWTH: u64 = 4 << 20;

/// Read one mount for a long time under a memory limit; report memory growth and wrong data
///
/// Exit code 1 if there are findings.
#[derive(Clone, Debug, clap::Args)]
pub struct Soak {
    /// Image to mount and read
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Source tree of the image; large files in its root are read completely and in pages
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,
    /// Duration of the test
    #[arg(long, default_value = "30", value_name = "N", value_parser = minutes)]
    pub minutes: Duration,
    /// Memory limit for the server and the readers together
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub limit: Size,
    /// Seed of the order of reads and cache drops
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Results of a soak test.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Number of scripts run, all with the expected answer.
    pub scripts: u64,
    /// Bytes of content read.
    pub bytes: u64,
    /// Number of times that caches were dropped.
    pub drops: u64,
    /// Resident memory of the server in bytes: median of the samples in the second quarter of the time.
    /// Samples are taken each second.
    pub memory_early: u64,
    /// Resident memory of the server in bytes: median of the samples in the last quarter of the time.
    pub memory_late: u64,
    /// Largest sample of the resident memory in bytes.
    pub memory_peak: u64,
    /// Descriptions of all failures. Empty if the test passed.
    pub findings: Vec<String>,
}

/// Runs a soak test.
pub fn run(soak: &Soak) -> Result<Outcome> {
    let kinds = kinds(&soak.tree)?;
    let mut scripts = Vec::new();
    for kind in &kinds {
        // Several variants of each, so that the data does not stay in a cache.
        for variant in 0..4 {
            let script = Script::new(kind, &soak.tree, soak.seed + variant)?;
            let (answer, _) = script.run(&soak.tree)?;
            scripts.push((kind, script, answer));
        }
    }
    let program = soak.options.need("tuff")?;
    let parent = cgroup::parent().ok_or_else(|| {
        Error::Usage("no control group with a memory limit is available".to_owned())
    })?;
    let work = Work::create(soak.options.work())?;
    let group = Membership::join(&parent, Some(soak.limit.0))?;
    let point = work.path("mount");
    let image = (&*soak.image, Format::Erofs.name());
    let served = Served::start(Server::Tuff, Some(&program), &[], image, &point)?;
    let served = served.map_err(Error::Command)?;
    let start = Instant::now();
    let stop = AtomicBool::new(false);
    let (count, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let wrong = Mutex::new(Vec::new());
    let mut memory = Vec::new();
    let mut drops = 0;
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (stop, wrong, scripts, point) = (&stop, &wrong, &scripts, &point);
            let (count, bytes) = (&count, &bytes);
            let mut random = Rng::new(soak.seed ^ (reader + 1) << 32);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let kind = random.below(scripts.len());
                    let (kind, script, expected) = &scripts[kind];
                    match script.run(point) {
                        Ok((answer, _)) if answer == *expected => {
                            count.fetch_add(1, Ordering::Relaxed);
                            bytes.fetch_add(answer.bytes, Ordering::Relaxed);
                        }
                        // The reader stops at the first failure. A server that has exited fails all further
                        // reads.
                        Ok(_) => return lock(wrong).push(format!("{kind:?}: wrong bytes")),
                        Err(e) => return lock(wrong).push(format!("{kind:?}: {e}")),
                    }
                }
            });
        }
        let mut random = Rng::new(soak.seed);
        let mut next_drop = Duration::from_secs(5);
        while start.elapsed() < soak.minutes
            && lock(&wrong).is_empty()
            && crate::measure::stop::check().is_ok()
        {
            std::thread::sleep(Duration::from_secs(1));
            memory.push((start.elapsed(), served.resident_bytes().unwrap_or(0)));
            if start.elapsed() >= next_drop {
                let what = 1 + random.below(3);
                if let Err(e) = std::fs::write("/proc/sys/vm/drop_caches", what.to_string()) {
                    lock(&wrong).push(format!("cannot drop caches: {e}"));
                }
                drops += 1;
                next_drop = start.elapsed() + Duration::from_secs(5 + random.below(25) as u64);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(served);
    drop(group);
    crate::measure::stop::check()?;
    let mut outcome = judge(&memory);
    outcome
        .findings
        .extend(wrong.into_inner().unwrap_or_default());
    Ok(Outcome {
        scripts: count.into_inner(),
        bytes: bytes.into_inner(),
        drops,
        ..outcome
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the workloads: the walk, the small files, and sequential, random and strided reads of each file
/// above 1 MiB in the root of the tree.
fn kinds(tree: &Path) -> Result<Vec<Kind>> {
    let mut files = Vec::new();
    root::list(tree, &mut files)?;
    files.retain(|(path, length)| path.parent() == Some(tree) && *length > 1 << 20);
    let folder = PathBuf::new;
    let small = Kind::Small {
        folder: folder(),
        count: 500,
    };
    let mut kinds = vec![Kind::Walk { folder: folder() }, small];
    for file in files.iter().filter_map(|(path, _)| path.file_name()) {
        let file = PathBuf::from(file);
        kinds.push(Kind::Sequential { file: file.clone() });
        kinds.push(Kind::Stride { file: file.clone() });
        kinds.push(Kind::Random { file, count: 500 });
    }
    Ok(kinds)
}

/// Returns the memory in both quarters, and a finding if it grew. Samples are pairs of a time and bytes.
fn judge(memory: &[(Duration, u64)]) -> Outcome {
    let end = memory.last().map_or(Duration::ZERO, |(at, _)| *at);
    // Exact: sizes are far below 2^53.
    let held = |part: std::ops::Range<Duration>| {
        let of = memory.iter().filter(|(at, _)| part.contains(at));
        median(&of.map(|(_, bytes)| *bytes as f64).collect::<Vec<_>>()).unwrap_or(0.0) as u64
    };
    let (memory_early, memory_late) = (held(end / 4..end / 2), held(end * 3 / 4..Duration::MAX));
    let mut findings = Vec::new();
    if memory_late > memory_early + GROWTH {
        findings.push(format!(
            "the server's memory grew from {memory_early} to {memory_late} bytes"
        ));
    }
    Outcome {
        memory_early,
        memory_late,
        memory_peak: memory.iter().map(|m| m.1).max().unwrap_or(0),
        findings,
        ..Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_found() {
        let outcome = |late| {
            let held = |second| if second >= 75 { late } else { 40 << 20 };
            let memory = (0..=100).map(|s| (Duration::from_secs(s), held(s)));
            judge(&memory.collect::<Vec<_>>())
        };
        let steady = outcome(43 << 20);
        assert_eq!((steady.findings.len(), steady.memory_peak), (0, 43 << 20));
        assert_eq!(outcome(45 << 20).findings.len(), 1);
    }
}
