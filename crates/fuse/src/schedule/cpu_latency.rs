//! Keeping processors from halting while one request comes after another.
//!
//! A server that answers wakes whoever asked, and the scheduler likes to wake him on a processor that has nothing to do. In a
//! virtual machine that one has halted, and getting it to run again takes the hypervisor 20 to 40 us, several times what most
//! answers take. The kernel takes wishes for how long that may last (`/dev/cpu_dma_latency`, from root): as long as one
//! of 0 us is open, processors with nothing to do look for work instead of halting. Guests may do that anyway
//! (`guest_halt_poll_ns` of the module haltpoll), always and for a fixed time; here it is done while requests come.
//!
//! Invariant: the wish is withdrawn 10 ms after the last request, and with the process, whatever ends that.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where wishes go. Source: Linux, Documentation/power/pm_qos_interface.rst.
const WISHES: &str = "/dev/cpu_dma_latency";
/// Unit: microseconds.
const NO_LATENCY: i32 = 0;

/// How long processors are kept awake for the next request.
const HOLD: Duration = Duration::from_millis(10);
/// A request that comes within this time after the one before is one of a row.
const GAP: Duration = Duration::from_millis(1);
/// Requests of a row before anything is wished for: fewer are not worth waking all processors.
const ROW: u32 = 16;
/// With more processors than this each row would keep many awake for the sake of one.
const PROCESSORS_MAX: usize = 16;

/// Whether processors are kept cpu_latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuLatencyMode {
    /// In a virtual machine of up to 16 processors, if this process may.
    #[default]
    Auto,
    /// If this process may.
    On,
    /// No.
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

/// True in a virtual machine, as far as the processor or the firmware says so.
fn is_guest() -> bool {
    let says = |line: &str| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
    };
    Path::new("/proc/device-tree/hypervisor").exists()
        || std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| info.lines().any(says))
}

/// Told of each request, keeps processors cpu_latency.
pub struct CpuLatency {
    row: Arc<Row>,
    thread: Option<JoinHandle<()>>,
}

/// The requests that came last.
struct Row {
    since: Instant,
    /// When the last one came, counted from the start. Unit: nanoseconds.
    last: AtomicU64,
    /// How many came in a row, as far as that matters.
    count: AtomicU32,
    /// There is a wish, or is to be one.
    wishes: AtomicBool,
    ended: AtomicBool,
}

impl Row {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            last: AtomicU64::new(0),
            count: AtomicU32::new(0),
            wishes: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        // Fits: 584 years.
        self.since.elapsed().as_nanos() as u64
    }

    /// A request came at `now`. True if that begins a wish.
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
        !self.wishes.load(Ordering::Relaxed) && !self.wishes.swap(true, Ordering::AcqRel)
    }

    /// Wishes whenever there is to be a wish, until the end or an error.
    fn keep(&self, wish: impl Fn() -> io::Result<File>) {
        while !self.ended.load(Ordering::Acquire) {
            if !self.wishes.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            let Ok(_wish) = wish() else { return };
            while let Some(left) = self.left() {
                std::thread::sleep(left);
            }
            self.wishes.store(false, Ordering::Release);
        }
    }

    /// How long the wish stands, if no other request comes.
    fn left(&self) -> Option<Duration> {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        let left = (last + HOLD).checked_sub(self.since.elapsed())?;
        (!left.is_zero() && !self.ended.load(Ordering::Relaxed)).then_some(left)
    }
}

/// The kernel keeps the wish for as long as the file is open.
fn wish(at: &Path) -> io::Result<File> {
    let mut file = File::options().write(true).open(at)?;
    file.write_all(&NO_LATENCY.to_ne_bytes())?;
    Ok(file)
}

impl CpuLatency {
    /// `None` if nothing is to be kept cpu_latency, or nothing can be.
    pub fn start(how: CpuLatencyMode) -> Option<Arc<Self>> {
        Self::by(how, WISHES.into())
    }

    fn by(how: CpuLatencyMode, wishes: PathBuf) -> Option<Arc<Self>> {
        if !how.is_wanted() {
            return None;
        }
        drop(wish(&wishes).ok()?);
        let row = Arc::new(Row::new());
        let kept = row.clone();
        let thread = std::thread::Builder::new().name("awake".to_owned());
        let thread = thread.spawn(move || kept.keep(|| wish(&wishes))).ok()?;
        Some(Arc::new(Self {
            row,
            thread: Some(thread),
        }))
    }

    /// A request came.
    #[inline]
    pub fn note_request(&self) {
        if self.row.note(self.row.now())
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// True while requests come in a row.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.row.wishes.load(Ordering::Relaxed)
    }
}

impl Drop for CpuLatency {
    fn drop(&mut self) {
        self.row.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_requests_in_a_row_begin_a_wish_and_only_one() {
        let row = Row::new();
        let begun =
            |from: u64, step: u64, count| (0..count).filter(|i| row.note(from + i * step)).count();
        assert_eq!(begun(10 * MS, 2 * MS, 1000), 0, "far apart");
        assert_eq!(begun(3000 * MS, MS / 50, u64::from(ROW) + 1), 0, "few");
        assert_eq!(begun(3001 * MS, MS / 50, 1000), 1);
        row.wishes.store(false, Ordering::Relaxed);
        assert_eq!(begun(3021 * MS, MS / 50, 1), 1, "it was withdrawn");
    }

    #[test]
    fn a_wish_is_made_for_a_row_and_withdrawn_after_it() {
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
            let begun = Instant::now();
            while is_open() != state {
                assert!(begun.elapsed() < Duration::from_secs(20), "{state}");
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
    fn what_was_asked_for_is_understood() {
        assert_eq!("on".parse(), Ok(CpuLatencyMode::On));
        assert_eq!("off".parse(), Ok(CpuLatencyMode::Off));
        assert_eq!("auto".parse(), Ok(CpuLatencyMode::Auto));
        assert!("yes".parse::<CpuLatencyMode>().is_err());
        assert!(CpuLatency::by(CpuLatencyMode::Off, WISHES.into()).is_none());
        assert!(CpuLatency::by(CpuLatencyMode::On, "/proc/nothing".into()).is_none());
    }
}
