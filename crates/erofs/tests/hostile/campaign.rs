//! Runner of cases in child processes, which may crash.
//!
//! ```text
//!  this process ──► one child per core: "<image> <first damage> <step> <count>"
//!        ▲               │ before each case: writes its number into standard input, a memfd
//!        └── watches ────┘ a case that ends the child or exceeds its time is a finding
//!                          a new child continues with the next case
//! ```

#![allow(unreachable_pub, reason = "module of a test")]

use crate::mutate::{Base, Damage, damage};
use crate::probe::use_all;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tuff_store::ReadAt;
use tuff_testkit::Scratch;

/// Memory limit of a child. It covers an extraction with two threads (a decoder window of 8 MiB
/// each), clusters of 12 MiB and caches of 24 MiB. It does not cover allocations that follow a size
/// field of the image. Unit: bytes.
const MEMORY: u64 = 150 << 20;
/// CPU time limit of a case: a constant, and a part per byte of the image. Allows for a test build
/// with little optimization. More is a finding.
const ALLOWANCE: Duration = Duration::from_secs(2);
const PER_BYTE: Duration = Duration::from_micros(20);
/// CPU time after which a case is killed.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Elapsed time after which a case is killed. A busy host may not schedule a process for a long
/// time.
const SLEEP: Duration = Duration::from_secs(900);
/// Environment variable with the cases of a child.
const CASES: &str = "TUFF_HOSTILE";
/// Environment variable that declares standard input as the progress file.
const PROGRESS: &str = "TUFF_HOSTILE_PROGRESS";

/// Cases of one image: `count` damages from the first on, with step `stride`.
pub struct Batch {
    image: &'static str,
    first: Damage,
    stride: u64,
    count: u64,
}

impl Batch {
    pub fn new(base: &Base, first: Damage, count: usize) -> Self {
        Self {
            image: base.name,
            first,
            stride: 1,
            count: count as u64,
        }
    }

    /// Keeps one in `stride` cases.
    pub fn one_of(self, stride: u64) -> Self {
        Self {
            stride,
            count: self.count.div_ceil(stride),
            ..self
        }
    }

    /// Returns the damage of case `n`.
    fn case(&self, n: u64) -> Damage {
        later(self.first, n * self.stride)
    }
}

/// Temporary directory in memory if /dev/shm exists, because cases create many files.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_owned()
        } else {
            std::env::temp_dir()
        };
        // Tests of one process run in parallel.
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("tuff-hostile-{}-{run}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the damage `n` steps after `first`.
fn later(first: Damage, n: u64) -> Damage {
    match first {
        Damage::Bit(at) => Damage::Bit(at + n as usize),
        Damage::AnyBit(at) => Damage::AnyBit(at + n as usize),
        Damage::Cut(at) => Damage::Cut(at + n as usize),
        Damage::Mutation(at) => Damage::Mutation(at + n),
    }
}

/// Runs all cases of all batches. In a child process, runs the cases of its environment. `test` is
/// the name of the calling test.
///
/// # Panics
/// If there are findings. The message lists them and the directory with the damaged images.
pub fn run(bases: &[Base], batches: &[Batch], test: &str) {
    if let Ok(cases) = std::env::var(CASES) {
        return work(bases, &cases);
    }
    let start = Instant::now();
    let memory = Memory::new();
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let findings = std::sync::Mutex::new(Vec::new());
    for batch in batches {
        std::thread::scope(|scope| {
            for shard in 0..threads {
                let (findings, memory) = (&findings, &memory.0);
                scope.spawn(move || {
                    let found = watch(batch, (shard, threads), test, memory);
                    findings.lock().unwrap().extend(found);
                });
            }
        });
        eprintln!(
            "{} {}: {} cases, {:.0} s so far",
            batch.image,
            batch.first,
            batch.count,
            start.elapsed().as_secs_f64()
        );
    }
    let findings = findings.into_inner().unwrap();
    let dir = std::env::temp_dir().join("tuff-hostile-findings");
    for (image, what, _) in &findings {
        let base = bases.iter().find(|b| b.name == *image).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{image}-{what}")), damage(base, *what)).unwrap();
    }
    let all: u64 = batches.iter().map(|b| b.count).sum();
    let list: Vec<_> = findings
        .iter()
        .map(|(image, what, how)| format!("{image} {what}: {how}"))
        .collect();
    assert!(
        findings.is_empty(),
        "{} of {all} cases, images in {}:\n{}",
        findings.len(),
        dir.display(),
        list.join("\n")
    );
    eprintln!("{all} cases in {:.0} s", start.elapsed().as_secs_f64());
}

/// Runs every `step`-th case of a batch from `shard` on in child processes. Starts a new child
/// after each case that ended one. Returns these cases.
fn watch(
    batch: &Batch,
    (shard, step): (u64, u64),
    test: &str,
    memory: &Path,
) -> Vec<(&'static str, Damage, String)> {
    let (mut at, mut findings) = (shard, Vec::new());
    while at < batch.count && findings.len() < 20 {
        let count = (batch.count - at).div_ceil(step);
        let (image, first, separate) = (batch.image, batch.case(at), step * batch.stride);
        let cases = format!("{image} {first} {separate} {count}");
        let progress = nameless();
        progress.write_all_at(&0u64.to_le_bytes(), 0).unwrap();
        let output = nameless();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--include-ignored", "--nocapture"])
            .env(CASES, &cases)
            .env(PROGRESS, "")
            .env("TMPDIR", memory)
            .stdin(progress.try_clone().unwrap())
            .stdout(output.try_clone().unwrap())
            .stderr(output.try_clone().unwrap())
            .spawn()
            .unwrap();
        let (done, how) = wait(child, &progress);
        let Some(how) = how else { break };
        let message = text_of(&output);
        let message: Vec<_> = message
            .lines()
            .filter(|l| l.contains("panicked") || l.contains("memory"))
            .collect();
        let what = batch.case(at + done * step);
        eprintln!("{} {what}: {how}", batch.image);
        findings.push((batch.image, what, format!("{how} {}", message.join(" "))));
        at += (done + 1) * step;
    }
    findings
}

/// Creates an unnamed file, which cleaners of temporary directories cannot remove.
fn nameless() -> File {
    File::from(memfd_create("tuff-hostile", MemfdFlags::CLOEXEC).unwrap())
}

/// Returns the content of a file as text.
fn text_of(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a child. Returns the number of its last case, and the reason if it failed.
fn wait(mut child: Child, progress: &File) -> (u64, Option<String>) {
    let read = || {
        let mut bytes = [0; 8];
        progress.read_exact_at(&mut bytes, 0).unwrap();
        u64::from_le_bytes(bytes)
    };
    let (mut last, mut since, mut spent) = (read(), Instant::now(), used(&child));
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let how = (!status.success()).then(|| status.to_string());
            return (read(), how);
        }
        let (now, used) = (read(), used(&child));
        if now != last {
            (last, since, spent) = (now, Instant::now(), used);
        }
        if used.saturating_sub(spent) > TIME_LIMIT || since.elapsed() > SLEEP {
            child.kill().unwrap();
            child.wait().unwrap();
            let busy = used.saturating_sub(spent);
            let how = format!("killed after {:?}, CPU time {busy:?}", since.elapsed());
            return (last, Some(how));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the CPU time of a child. Source: proc_pid_stat(5), the fields utime and stime.
fn used(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // The second field is a name in parentheses, which may contain any byte.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|t| t.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Returns the CPU time of this process.
fn busy() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    // Fits: neither is negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Calls [`use_all`] and asserts that it stays within the CPU time limit for the length of the
/// image.
pub fn within_budget(bytes: &[u8], devices: &[Arc<dyn ReadAt>], around: &Path, turn: Option<u64>) {
    let before = busy();
    use_all(bytes, devices, around, turn);
    let took = busy() - before;
    // Fits: images are small.
    let budget = ALLOWANCE + PER_BYTE * bytes.len() as u32;
    assert!(
        took <= budget,
        "CPU time {took:?}, expected at most {budget:?}"
    );
}

/// Runs the cases of this child process.
fn work(bases: &[Base], cases: &str) {
    let words: Vec<_> = cases.split(' ').collect();
    let [image, first, step, count] = words[..] else {
        panic!("{CASES}: expected image, damage, step and count");
    };
    let base = bases
        .iter()
        .find(|b| b.name == image)
        .expect("name of a base image");
    let first: Damage = first.parse().unwrap();
    let (step, count): (u64, u64) = (step.parse().unwrap(), count.parse().unwrap());
    let limit = Rlimit {
        current: Some(MEMORY),
        maximum: Some(MEMORY),
    };
    setrlimit(Resource::Data, limit).unwrap();
    let progress = std::env::var_os(PROGRESS)
        .map(|_| File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()));
    let around = Scratch::new("hostile-extract");
    for n in 0..count {
        if let Some(progress) = &progress {
            progress.write_all_at(&n.to_le_bytes(), 0).unwrap();
        }
        let what = later(first, n * step);
        let bytes = damage(base, what);
        within_budget(&bytes, &base.devices, around.path(), what.turn());
    }
}
