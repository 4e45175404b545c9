//! Many cases in processes that may die.
//!
//! ```text
//!  this process ──► one process per core: "<image> <first damage> <step> <count>"
//!        ▲               │ writes the number of each case into its standard input before it begins: a file without a name
//!        └── watches ────┘ a case that ends its process or takes too long is a finding; the next one follows
//! ```

#![allow(unreachable_pub, reason = "a module of one test")]

use crate::common::Scratch;
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

/// What a process may allocate. Two threads of an extraction, a decoder's window of 8 MiB each, clusters of 12 MiB and
/// 24 MiB of caches fit; memory that follows a claim of the image does not. Unit: bytes.
const MEMORY: u64 = 150 << 20;
/// For one case, of the processor, whatever the image, and for each of its bytes. More is a finding, with a test build
/// whose own code is hardly optimized.
const ALLOWANCE: Duration = Duration::from_secs(2);
const PER_BYTE: Duration = Duration::from_micros(20);
/// A case that has used so much of the processor is ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// For one case, of the clock, if it sleeps: a busy machine may leave a process with nothing for a long time.
const SLEEP: Duration = Duration::from_secs(900);
/// Names the cases of a process.
const CASES: &str = "TUFF_HOSTILE";
/// Says that standard input is a file into which it writes how far it got.
const PROGRESS: &str = "TUFF_HOSTILE_PROGRESS";

/// Cases of one image: `count` damages from the first on, `stride` apart.
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

    /// One of so many of the cases.
    pub fn one_of(self, stride: u64) -> Self {
        Self {
            stride,
            count: self.count.div_ceil(stride),
            ..self
        }
    }

    /// The damage of case `n`.
    fn case(&self, n: u64) -> Damage {
        later(self.first, n * self.stride)
    }
}

/// A directory in memory, where there is such a thing: most of the time would go into making files otherwise.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.to_owned()
        } else {
            std::env::temp_dir()
        };
        // Tests of one process run side by side.
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

/// The damage `n` steps on.
fn later(first: Damage, n: u64) -> Damage {
    match first {
        Damage::Bit(at) => Damage::Bit(at + n as usize),
        Damage::AnyBit(at) => Damage::AnyBit(at + n as usize),
        Damage::Cut(at) => Damage::Cut(at + n as usize),
        Damage::Mutation(at) => Damage::Mutation(at + n),
    }
}

/// Runs all cases of all batches, or, in a process that was started for that, the cases it was started for. `test` is
/// the name of the test that calls.
///
/// # Panics
/// If there were findings. They are named, and the images that made them are left in a directory that is named, too.
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

/// Runs every `step`-th case of a batch from `shard` on in processes, and starts another behind each case that ended
/// one. Returns those cases.
fn watch(
    batch: &Batch,
    (shard, step): (u64, u64),
    test: &str,
    memory: &Path,
) -> Vec<(&'static str, Damage, String)> {
    let (mut at, mut findings) = (shard, Vec::new());
    while at < batch.count && findings.len() < 20 {
        let count = (batch.count - at).div_ceil(step);
        let (image, first, apart) = (batch.image, batch.case(at), step * batch.stride);
        let cases = format!("{image} {first} {apart} {count}");
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
        let said = text_of(&output);
        let said: Vec<_> = said
            .lines()
            .filter(|l| l.contains("panicked") || l.contains("memory"))
            .collect();
        let what = batch.case(at + done * step);
        eprintln!("{} {what}: {how}", batch.image);
        findings.push((batch.image, what, format!("{how} {}", said.join(" "))));
        at += (done + 1) * step;
    }
    findings
}

/// A file that nobody can take away, as happened to one in a shared directory of temporary files while a campaign ran.
fn nameless() -> File {
    File::from(memfd_create("tuff-hostile", MemfdFlags::CLOEXEC).unwrap())
}

/// All that was written to a file.
fn text_of(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for the end of a process. Returns the case it was at, and what ended it if it did not come to its end.
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
        if used.saturating_sub(spent) > PATIENCE || since.elapsed() > SLEEP {
            child.kill().unwrap();
            child.wait().unwrap();
            let busy = used.saturating_sub(spent);
            let how = format!("no end after {:?}, busy for {busy:?}", since.elapsed());
            return (last, Some(how));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Time that a process was given on a processor. Source: proc_pid_stat(5), the fields utime and stime.
fn used(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // The second field is a name in parentheses, which may hold anything.
    let behind = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = behind.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|t| t.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Time that this process was given on a processor.
fn busy() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    // Fits: neither is negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// As [`use_all`], and it takes no more of the processor than an image of this length may.
pub fn within_budget(bytes: &[u8], devices: &[Arc<dyn ReadAt>], around: &Path, turn: Option<u64>) {
    let before = busy();
    use_all(bytes, devices, around, turn);
    let took = busy() - before;
    // Fits: images are small.
    let budget = ALLOWANCE + PER_BYTE * bytes.len() as u32;
    assert!(
        took <= budget,
        "{took:?} of the processor, expected at most {budget:?}"
    );
}

/// The cases of this process.
fn work(bases: &[Base], cases: &str) {
    let words: Vec<_> = cases.split(' ').collect();
    let [image, first, step, count] = words[..] else {
        panic!("{CASES}: image, damage, step and count");
    };
    let base = bases.iter().find(|b| b.name == image).expect("an image");
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
