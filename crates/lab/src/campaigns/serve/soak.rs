//! Soak test: readers with mixed workloads on one mount for a long time, in a control group with a low memory
//! limit, with caches dropped at random times. Memory of the server must not grow, and times must not rise.
//!
//! The lab joins the control group, so that the group is also charged for the page cache filled by the
//! readers.

use super::server::{Served, Server};
use super::workload::{Answer, Kind, Script};
use crate::engines::Format;
use crate::measure::cgroup::Membership;
use crate::measure::stats::{Spread, median};
use crate::{Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Number of reading threads.
const READERS: u64 = 4;
/// Permitted growth of the server after the second quarter of the time, in bytes.
const GROWTH: u64 = 4 << 20;
/// Permitted increase of a median as a factor. Three deviations are added to it.
const DECAY: f64 = 1.1;

/// Parameters of a soak test.
#[derive(Clone, Debug)]
pub struct Soak {
    /// Path of the server program.
    pub program: PathBuf,
    /// Arguments of the server, in addition to those for mounting.
    pub extra: Vec<String>,
    /// EROFS image to serve.
    pub image: PathBuf,
    /// Source tree of the image.
    pub tree: PathBuf,
    /// Duration of the test.
    pub length: Duration,
    /// Memory limit of the control group in bytes.
    pub limit: u64,
    /// Parent of the control group that is created.
    pub cgroup: PathBuf,
    /// Seed of the order of reads and cache drops.
    pub seed: u64,
    /// Directory for the mount point.
    pub work: PathBuf,
}

/// Results of a soak test.
#[derive(Clone, Debug, Serialize)]
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
    /// For each kind of script: name, median time in the second and in the last quarter, and median deviation
    /// in the second quarter. Times in milliseconds.
    pub times: Vec<(String, f64, f64, f64)>,
    /// Descriptions of all failures. Empty if the test passed.
    pub findings: Vec<String>,
}

struct Sample {
    at: Duration,
    kind: usize,
    time: Duration,
    answer: Answer,
}

/// Runs a soak test.
pub fn run(soak: &Soak) -> Result<Outcome> {
    let kinds = kinds(&soak.tree)?;
    let mut scripts = Vec::new();
    for (name, kind) in &kinds {
        // Several variants of each, so that the data does not stay in a cache.
        for variant in 0..4 {
            let script = Script::new(kind, &soak.tree, soak.seed + variant)?;
            let (answer, _) = script.run(&soak.tree)?;
            scripts.push((name.as_str(), script, answer));
        }
    }
    let group = Membership::join(&soak.cgroup, Some(soak.limit))?;
    let name = format!("tuff-lab-soak-{}", std::process::id());
    let point = Point(soak.work.join(name));
    let image = (soak.image.as_path(), Format::Erofs.name());
    let served = Served::start(
        Server::Tuff,
        Some(&soak.program),
        &soak.extra,
        image,
        &point.0,
    )?
    .map_err(Error::Command)?;
    let start = Instant::now();
    let stop = AtomicBool::new(false);
    let samples = Mutex::new(Vec::new());
    let wrong = Mutex::new(Vec::new());
    let mut memory = Vec::new();
    let mut drops = 0;
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (stop, samples, wrong, scripts, point) =
                (&stop, &samples, &wrong, &scripts, &point.0);
            let mut random = Rng::new(soak.seed ^ (reader + 1) << 32);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let kind = random.below(scripts.len());
                    let (name, script, expected) = &scripts[kind];
                    match script.run(point) {
                        Ok((answer, took)) if answer == *expected => {
                            let sample = Sample {
                                at: start.elapsed(),
                                kind,
                                time: took.wall,
                                answer,
                            };
                            lock(samples).push(sample);
                        }
                        // The reader stops at the first failure. A server that has exited fails all further
                        // reads.
                        Ok(_) => return lock(wrong).push(format!("{name}: wrong bytes")),
                        Err(e) => return lock(wrong).push(format!("{name}: {e}")),
                    }
                }
            });
        }
        let mut random = Rng::new(soak.seed);
        let mut next_drop = Duration::from_secs(5);
        while start.elapsed() < soak.length
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
    drop(point);
    drop(group);
    crate::measure::stop::check()?;
    let samples = samples.into_inner().unwrap_or_default();
    let findings = wrong.into_inner().unwrap_or_default();
    Ok(judge(
        &scripts.iter().map(|s| s.0).collect::<Vec<_>>(),
        &samples,
        &memory,
        drops,
        findings,
    ))
}

/// Directory of the mount point, removed when dropped. Its name contains the process id, so other tests do
/// not reuse it.
struct Point(PathBuf);

impl Drop for Point {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the workloads: the walk, the small files, and sequential, random and strided reads of each file
/// above 1 MiB in the root of the tree.
fn kinds(tree: &Path) -> Result<Vec<(String, Kind)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(tree).map_err(|e| Error::io("list", tree, e))? {
        let entry = entry.map_err(|e| Error::io("list", tree, e))?;
        let attributes = entry.metadata().map_err(|e| Error::io("list", tree, e))?;
        if attributes.is_file() && attributes.len() > 1 << 20 {
            files.push(PathBuf::from(entry.file_name()));
        }
    }
    files.sort();
    let mut kinds = vec![
        (
            "walk".to_owned(),
            Kind::Walk {
                folder: PathBuf::new(),
            },
        ),
        (
            "small files".to_owned(),
            Kind::Small {
                folder: PathBuf::new(),
                count: 500,
            },
        ),
    ];
    for file in files {
        let shown = file.display();
        kinds.push((
            format!("{shown}, sequential"),
            Kind::Sequential { file: file.clone() },
        ));
        kinds.push((
            format!("{shown}, random"),
            Kind::Random {
                file: file.clone(),
                count: 500,
            },
        ));
        kinds.push((
            format!("{shown}, stride"),
            Kind::Stride { file: file.clone() },
        ));
    }
    Ok(kinds)
}

fn judge(
    names: &[&str],
    samples: &[Sample],
    memory: &[(Duration, u64)],
    drops: u64,
    mut findings: Vec<String>,
) -> Outcome {
    let end = memory.last().map_or(Duration::ZERO, |(at, _)| *at);
    let early = |at: Duration| at >= end / 4 && at < end / 2;
    let late = |at: Duration| at >= end * 3 / 4;
    // Exact: sizes are far below 2^53.
    let held = |part: &dyn Fn(Duration) -> bool| {
        let of: Vec<f64> = memory
            .iter()
            .filter(|m| part(m.0))
            .map(|m| m.1 as f64)
            .collect();
        median(&of).unwrap_or(0.0) as u64
    };
    let (memory_early, memory_late) = (held(&early), held(&late));
    if memory_late > memory_early + GROWTH {
        findings.push(format!(
            "the server's memory grew from {memory_early} to {memory_late} bytes"
        ));
    }
    let mut distinct: Vec<&str> = names.to_vec();
    distinct.dedup();
    let mut times = Vec::new();
    for name in distinct {
        let of = |part: &dyn Fn(Duration) -> bool| -> Vec<f64> {
            let chosen = samples
                .iter()
                .filter(|s| names[s.kind] == name && part(s.at));
            chosen.map(|s| s.time.as_secs_f64() * 1e3).collect()
        };
        let (Some(first), Some(last)) = (Spread::of(&of(&early)), Spread::of(&of(&late))) else {
            continue;
        };
        if last.median > first.median * DECAY + 3.0 * first.mad {
            let (a, b) = (first.median, last.median);
            findings.push(format!("{name} slowed down from {a:.1} ms to {b:.1} ms"));
        }
        times.push((name.to_owned(), first.median, last.median, first.mad));
    }
    Outcome {
        scripts: samples.len() as u64,
        bytes: samples.iter().map(|s| s.answer.bytes).sum(),
        drops,
        memory_early,
        memory_late,
        memory_peak: memory.iter().map(|m| m.1).max().unwrap_or(0),
        times,
        findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(late_ms: u64) -> Vec<Sample> {
        let sample = |second: u64| Sample {
            at: Duration::from_secs(second),
            kind: 0,
            time: Duration::from_millis(if second >= 75 { late_ms } else { 10 }),
            answer: Answer::default(),
        };
        (0..=100).map(sample).collect()
    }

    fn memory(late: u64) -> Vec<(Duration, u64)> {
        let held = |second| if second >= 75 { late } else { 40 << 20 };
        (0..=100)
            .map(|s| (Duration::from_secs(s), held(s)))
            .collect()
    }

    #[test]
    fn a_mount_point_goes_with_its_soak() {
        let name = format!("tuff-lab-soak-point-{}", std::process::id());
        let point = Point(std::env::temp_dir().join(name));
        std::fs::create_dir(&point.0).unwrap();
        let path = point.0.clone();
        drop(point);
        assert!(!path.exists());
    }

    #[test]
    fn steady_speed_and_size_are_no_finding() {
        let outcome = judge(&["x"], &samples(11), &memory(43 << 20), 3, Vec::new());
        assert_eq!(outcome.findings, Vec::<String>::new());
        assert_eq!((outcome.scripts, outcome.memory_peak), (101, 43 << 20));
    }

    #[test]
    fn growth_and_decay_are_found() {
        let findings = judge(&["x"], &samples(12), &memory(45 << 20), 3, Vec::new()).findings;
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("grew") && findings[1].contains("slowed down"));
    }
}
