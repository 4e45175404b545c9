//! CPU latency limit: idle processors poll instead of halting while requests arrive.
//!
//! The scheduler often wakes a client on an idle processor. In a virtual machine that processor has halted, and the
//! hypervisor takes 20 to 40 us to resume it, several times as long as most replies. While `/dev/cpu_dma_latency` is
//! open with a limit of 0 us, idle processors poll. The module haltpoll (`guest_halt_poll_ns`) does the same always
//! and for a fixed time.
//!
//! Invariant: the limit is released 10 ms after the last request, and with the process, whatever ends it.
//!
//! Effect: `benchmarks/record/serve/awake.jsonl`, "Keeping processors awake" in `benchmarks/results/mounts.md`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Device that takes latency limits. Source: Linux, Documentation/power/pm_qos_interface.rst.
const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";
/// Latency limit that forbids halting. Unit: microseconds.
const NO_LATENCY: i32 = 0;

/// Time that the limit is held after the last request.
const HOLD: Duration = Duration::from_millis(10);
/// Longest gap between two requests of a row.
const GAP: Duration = Duration::from_millis(1);
/// Length of a row after which the limit is set. Shorter rows do not justify waking all processors.
const ROW: u32 = 16;
/// With more processors than this, each row would keep many awake for the sake of one.
const PROCESSORS_MAX: usize = 16;

/// Policy for holding the CPU latency limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuLatencyMode {
    /// Holds it in virtual machines of up to 16 processors, if the process has permission.
    #[default]
    Auto,
    /// Holds it if the process has permission.
    On,
    /// Never holds the limit.
    Off,
}

impl FromStr for CpuLatencyMode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("expected auto, on or off, not {s:?}")),
        }
    }
}

impl CpuLatencyMode {
    fn is_wanted(self) -> bool {
        match self {
            Self::Off => false,
            Self::On => true,
            Self::Auto => {
                let few = 2..=PROCESSORS_MAX;
                std::thread::available_parallelism().is_ok_and(|n| few.contains(&n.get()))
                    && is_guest()
            }
        }
    }
}

/// Returns true in a virtual machine, as reported by the processor or the firmware.
fn is_guest() -> bool {
    let says = |line: &str| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
    };
    Path::new("/proc/device-tree/hypervisor").exists()
        || std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| info.lines().any(says))
}

/// CPU latency limit of a session. Notes requests and holds the limit while they arrive in a row.
pub struct CpuLatency {
    row: Arc<Row>,
    thread: Option<JoinHandle<()>>,
}

/// Detector of rows of requests, shared with the thread that holds the limit.
struct Row {
    since: Instant,
    /// Time of the last request since the start. Unit: nanoseconds.
    last: AtomicU64,
    /// Length of the current row, up to the threshold.
    count: AtomicU32,
    /// The limit is held or about to be set.
    is_set: AtomicBool,
    ended: AtomicBool,
}

impl Row {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            last: AtomicU64::new(0),
            count: AtomicU32::new(0),
            is_set: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        // Does not overflow in 584 years.
        self.since.elapsed().as_nanos() as u64
    }

    /// Notes a request at this time. Returns true if the limit has to be set.
    fn note(&self, now: u64) -> bool {
        let before = self.last.swap(now, Ordering::Relaxed);
        if now.saturating_sub(before) > GAP.as_nanos() as u64 {
            self.count.store(0, Ordering::Relaxed);
            return false;
        }
        if self.count.load(Ordering::Relaxed) < ROW {
            self.count.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        !self.is_set.load(Ordering::Relaxed) && !self.is_set.swap(true, Ordering::AcqRel)
    }

    /// Holds the limit whenever a row requires it, until the end of the session or an error.
    fn keep(&self, set_limit: impl Fn() -> io::Result<File>) {
        while !self.ended.load(Ordering::Acquire) {
            if !self.is_set.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            let Ok(_held) = set_limit() else { return };
            while let Some(left) = self.left() {
                std::thread::sleep(left);
            }
            self.is_set.store(false, Ordering::Release);
        }
    }

    /// Returns the remaining time of the limit if no other request arrives.
    fn left(&self) -> Option<Duration> {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        let left = (last + HOLD).checked_sub(self.since.elapsed())?;
        (!left.is_zero() && !self.ended.load(Ordering::Relaxed)).then_some(left)
    }
}

/// Sets the limit. The kernel keeps it while the file is open.
fn set_limit(at: &Path) -> io::Result<File> {
    let mut file = File::options().write(true).open(at)?;
    file.write_all(&NO_LATENCY.to_ne_bytes())?;
    Ok(file)
}

impl CpuLatency {
    /// Starts the thread that holds the limit. None if the policy or the system forbids it.
    pub fn start(how: CpuLatencyMode) -> Option<Arc<Self>> {
        Self::by(how, LATENCY_DEVICE.into())
    }

    fn by(how: CpuLatencyMode, limit: PathBuf) -> Option<Arc<Self>> {
        if !how.is_wanted() {
            return None;
        }
        drop(set_limit(&limit).ok()?);
        let row = Arc::new(Row::new());
        let kept = row.clone();
        let thread = std::thread::Builder::new().name("awake".to_owned());
        let thread = thread.spawn(move || kept.keep(|| set_limit(&limit))).ok()?;
        Some(Arc::new(Self {
            row,
            thread: Some(thread),
        }))
    }

    /// Notes the arrival of a request.
    #[inline]
    pub fn note_request(&self) {
        if self.row.note(self.row.now())
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Returns true while requests arrive in a row.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.row.is_set.load(Ordering::Relaxed)
    }
}

impl Drop for CpuLatency {
    fn drop(&mut self) {
        self.row.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread returns no result.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_row_of_requests_sets_the_limit_once() {
        let row = Row::new();
        let started =
            |from: u64, step: u64, count| (0..count).filter(|i| row.note(from + i * step)).count();
        assert_eq!(started(10 * MS, 2 * MS, 1000), 0, "far apart");
        assert_eq!(started(3000 * MS, MS / 50, u64::from(ROW) + 1), 0, "few");
        assert_eq!(started(3001 * MS, MS / 50, 1000), 1);
        row.is_set.store(false, Ordering::Relaxed);
        assert_eq!(started(3021 * MS, MS / 50, 1), 1, "it was withdrawn");
    }

    #[test]
    fn the_limit_is_held_during_a_row_and_released_after_it() {
        let file = std::env::temp_dir().join(format!("tuff-awake-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let cpu_latency =
            CpuLatency::by(CpuLatencyMode::On, file.clone()).expect("a file can be opened");
        assert_eq!(std::fs::read(&file).unwrap(), NO_LATENCY.to_ne_bytes());
        let is_open = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.filter_map(|fd| std::fs::read_link(fd.path()).ok())
                .any(|to| to == file)
        };
        let until = |state: bool, asking: bool| {
            let started = Instant::now();
            while is_open() != state {
                assert!(started.elapsed() < Duration::from_secs(20), "{state}");
                if asking {
                    cpu_latency.note_request();
                }
            }
        };
        assert!(!is_open());
        until(true, true);
        until(false, false);
        until(true, true);
        drop(cpu_latency);
        assert!(!is_open());
        let _ = std::fs::remove_file(&file);
    }

    #[test]
    fn policies_are_parsed() {
        assert_eq!("on".parse(), Ok(CpuLatencyMode::On));
        assert_eq!("off".parse(), Ok(CpuLatencyMode::Off));
        assert_eq!("auto".parse(), Ok(CpuLatencyMode::Auto));
        assert!("yes".parse::<CpuLatencyMode>().is_err());
        assert!(CpuLatency::by(CpuLatencyMode::Off, LATENCY_DEVICE.into()).is_none());
        assert!(CpuLatency::by(CpuLatencyMode::On, "/proc/nothing".into()).is_none());
    }
}
