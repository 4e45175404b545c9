//! The soak: mixed readers of one mount for a long time, in a control group with little memory, with caches dropped at
//! random. The server must not grow, and its speed must not decay.
//!
//! The lab joins the group, so that the page cache that its reads fill is charged there, too, beside the server's own
//! memory.

use super::server::{Served, Server};
use super::workload::{Answer, Kind, Script};
use crate::engines::Format;
use crate::measure::stats::{Spread, median};
use crate::{Error, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How many threads read.
const READERS: u64 = 4;
/// A server may grow by this much beyond its size after the first quarter. Unit: bytes.
const GROWTH: u64 = 4 << 20;
/// A median may rise by this factor at least, and beyond that by three deviations.
const DECAY: f64 = 1.1;

/// What a soak is asked for.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The server's program.
    pub program: PathBuf,
    /// Its arguments beyond those that mount.
    pub extra: Vec<String>,
    /// The image.
    pub image: PathBuf,
    /// The tree that it was made from.
    pub tree: PathBuf,
    /// How long.
    pub length: Duration,
    /// Limit of the control group. Unit: bytes.
    pub limit: u64,
    /// Control group below which one is made.
    pub cgroup: PathBuf,
    /// Seed of what is read when.
    pub seed: u64,
    /// Folder for the mount point.
    pub work: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Scripts run, all answered right.
    pub scripts: u64,
    /// Bytes of content read.
    pub bytes: u64,
    /// How often caches were dropped.
    pub drops: u64,
    /// Resident memory of the server, sampled each second: the median of the second quarter of the time. Unit: bytes.
    pub memory_early: u64,
    /// The same, of the last quarter.
    pub memory_late: u64,
    /// The most that was sampled.
    pub memory_peak: u64,
    /// For each kind of script: name, median time in the second and in the last quarter of the time, and the median
    /// deviation in the second. Unit: milliseconds.
    pub times: Vec<(String, f64, f64, f64)>,
    /// What is wrong; empty when nothing is.
    pub findings: Vec<String>,
}

struct Sample {
    at: Duration,
    kind: usize,
    time: Duration,
    answer: Answer,
}

/// Runs a soak.
pub fn run(soak: &Soak) -> Result<Outcome> {
    let kinds = kinds(&soak.tree)?;
    let mut scripts = Vec::new();
    for (name, kind) in &kinds {
        // Several of each, so that a cache cannot hold the answer.
        for variant in 0..4 {
            let script = Script::new(kind, &soak.tree, soak.seed + variant)?;
            let (answer, _) = script.run(&soak.tree)?;
            scripts.push((name.as_str(), script, answer));
        }
    }
    let group = Group::join(&soak.cgroup, soak.limit)?;
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
            let mut random = Random(soak.seed ^ (reader + 1) << 32);
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
                        // One word of it: whoever reads from a server that is gone fails at once, again and again.
                        Ok(_) => return lock(wrong).push(format!("{name}: wrong bytes")),
                        Err(e) => return lock(wrong).push(format!("{name}: {e}")),
                    }
                }
            });
        }
        let mut random = Random(soak.seed);
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

/// Where the image is mounted, also when no server could: an empty folder, which the next soak would not find by its name.
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

/// What is read: the largest files as a whole and in pages, the small files, the names.
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
    // Sizes far below 2^53: exact.
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
            "the server grew from {memory_early} to {memory_late} bytes"
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
            findings.push(format!("{name} decayed from {a:.1} ms to {b:.1} ms"));
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

/// A control group that this process is in; it goes back and removes the group when dropped.
struct Group {
    parent: PathBuf,
    path: PathBuf,
}

impl Group {
    fn join(parent: &Path, limit: u64) -> Result<Group> {
        let path = parent.join(format!("tuff-lab-soak-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        let group = Group {
            parent: parent.to_owned(),
            path,
        };
        // Version 2 of control groups, then version 1.
        let names = ["memory.max", "memory.limit_in_bytes"];
        let Some(file) = names
            .iter()
            .map(|n| group.path.join(n))
            .find(|p| p.exists())
        else {
            return Err(Error::Usage(format!(
                "control group {}: it does not limit memory",
                parent.display()
            )));
        };
        std::fs::write(&file, limit.to_string()).map_err(|e| Error::io("write", &file, e))?;
        enter(&group.path)?;
        Ok(group)
    }
}

fn enter(group: &Path) -> Result<()> {
    let file = group.join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string()).map_err(|e| Error::io("join", &file, e))
}

impl Drop for Group {
    fn drop(&mut self) {
        let done = enter(&self.parent).map(|()| std::fs::remove_dir(&self.path));
        if !matches!(done, Ok(Ok(()))) {
            eprintln!("tuff-lab: warning: {} stays", self.path.display());
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // Fits: below the count.
        ((z ^ (z >> 31)) % count as u64) as usize
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
        assert!(findings[0].contains("grew") && findings[1].contains("decayed"));
    }
}
