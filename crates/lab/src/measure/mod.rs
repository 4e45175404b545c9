//! Measurement of a single command.
//!
//! Each sample runs in a new instance of this program (`tuff-lab sample`), which starts the
//! command, waits for it and prints one JSON object. There are two reasons:
//!
//! * The kernel accumulates the usage of all finished children of a process. With a single child,
//!   the total is exactly that child's usage.
//! * The peak memory of a child includes the memory of the process that forked it, so that process
//!   must be small.
//!
//! Peak memory is that of the largest process of the tree, including pages of mapped files; all
//! measured tools are a single process.

pub mod cgroup;
pub mod device;
pub mod helper;
pub(crate) mod link;
pub mod machine;
pub(crate) mod process;
pub mod root;
pub mod stats;
pub mod stop;
pub(crate) mod workspace;

use crate::{At, Error, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Smallest foreign CPU time that is significant. The kernel counts ticks of 10 ms on each CPU.
pub const FOREIGN_GRAIN_US: u64 = 40_000;

/// Resource usage of one command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Elapsed time from before the start to after the end.
    pub wall_ns: u64,
    /// CPU time in user mode, including all threads and children.
    pub user_us: u64,
    /// CPU time in kernel mode, including all threads and children.
    pub system_us: u64,
    /// Peak resident memory of the largest process.
    pub max_rss_bytes: u64,
    /// CPU time of all other processes during the command, including stolen time.
    pub foreign_us: u64,
    /// CPU time during the command that the hypervisor gave to other guests.
    pub steal_us: u64,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Bytes that the command read from devices. A value above 0 indicates a cold cache.
    pub read_bytes: u64,
    /// Exit code; `None` after a signal.
    pub exit: Option<i32>,
}

impl Usage {
    /// Elapsed time. Unit: seconds.
    pub fn wall_s(&self) -> f64 {
        self.wall_ns as f64 / 1e9
    }

    /// Fraction of the machine's CPU time used by other processes, 0 to 1.
    pub fn foreign_share(&self) -> f64 {
        let available_us = self.wall_ns as f64 / 1e3 * f64::from(self.cpus);
        if available_us > 0.0 {
            self.foreign_us as f64 / available_us
        } else {
            0.0
        }
    }

    /// Returns true if other processes used a significant CPU time and more than the fraction
    /// `share`.
    pub fn is_loud(&self, share: f64) -> bool {
        self.foreign_us > FOREIGN_GRAIN_US && self.foreign_share() > share
    }
}

/// Command to be measured.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// Path of the program.
    pub program: &'a Path,
    /// Arguments of the program.
    pub arguments: &'a [OsString],
    /// Working directory, which also receives temporary files (TMPDIR) and the output of the
    /// command.
    pub folder: &'a Path,
}

/// Result of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Resource usage of the command.
    pub usage: Usage,
    /// Output of the command, reduced to the lines that explain a failure.
    pub message: String,
}

/// Measures one command in a fresh process.
pub fn sample(job: &Job<'_>) -> Result<Outcome> {
    let lab = std::env::current_exe().map_err(|e| Error::Io("find this program".to_owned(), e))?;
    let mut command = Command::new(&lab);
    command
        .args(["sample", "--"])
        .arg(job.program)
        .args(job.arguments);
    // The same environment for every tool: no variables that affect images, the C locale, and one folder for temporary files.
    command
        .current_dir(job.folder)
        .stdin(Stdio::null())
        .env_remove("SOURCE_DATE_EPOCH")
        .env("LC_ALL", "C")
        .env("TMPDIR", job.folder);
    let output = command.output().at("run", &lab)?;
    // A terminal sends the signal of ^C to all processes of the group.
    if output.status.signal().is_some_and(stop::is_request) {
        return Err(Error::Stopped);
    }
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Command(
            text.trim().trim_start_matches("tuff-lab: ").to_owned(),
        ));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Error::Command(format!("cannot parse the sample: {e}")))
}

/// Implements `tuff-lab sample`: runs the command and returns its resource usage.
pub fn take(program: &OsStr, arguments: &[OsString]) -> Result<Outcome> {
    let mut command = Command::new(program);
    let failed = |e| Error::Io("handle the output".to_owned(), e);
    let message = helper::output_file().map_err(failed)?;
    command.args(arguments).stdin(Stdio::null());
    command.stdout(message.try_clone().map_err(failed)?);
    command.stderr(message.try_clone().map_err(failed)?);
    let path = Path::new(program);
    let own_before_us = own_cpu_us()?;
    let before = Ticks::now()?;
    let start = Instant::now();
    let mut child = command.spawn().at("run", path)?;
    let status = child.wait().at("wait for", path)?;
    let wall = start.elapsed();
    let after = Ticks::now()?;
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(rusage_error)?;
    let (user_us, system_us) = (micros(used.user_time()), micros(used.system_time()));
    let own_us = user_us + system_us + own_cpu_us()?.saturating_sub(own_before_us);
    if let Some(signal) = status.signal() {
        eprintln!("tuff-lab: ended by signal {signal}");
    }
    let usage = Usage {
        wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        user_us,
        system_us,
        // The kernel reports KiB.
        max_rss_bytes: unsigned(used.max_rss()).saturating_mul(1024),
        foreign_us: (after.busy_us.saturating_sub(before.busy_us)).saturating_sub(own_us),
        steal_us: after.steal_us.saturating_sub(before.steal_us),
        cpus: machine::online_cpus()?,
        // The kernel reports units of 512 bytes.
        read_bytes: unsigned(used.block_reads()).saturating_mul(512),
        exit: status.code(),
    };
    let message = helper::telling_lines(&helper::text(&message).map_err(failed)?);
    Ok(Outcome { usage, message })
}

fn own_cpu_us() -> Result<u64> {
    let own = getrusage(UsageWho::RUSAGE_SELF).map_err(rusage_error)?;
    Ok(micros(own.user_time()) + micros(own.system_time()))
}

fn rusage_error(errno: nix::errno::Errno) -> Error {
    Error::Io("read the resource usage".to_owned(), errno.into())
}

fn micros(time: nix::sys::time::TimeVal) -> u64 {
    unsigned(time.num_microseconds())
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// CPU time of the machine since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    busy_us: u64,
    steal_us: u64,
}

impl Ticks {
    fn now() -> Result<Ticks> {
        let path = Path::new("/proc/stat");
        let text = std::fs::read_to_string(path).at("read", path)?;
        let parsed = Ticks::parse(&text, rustix::param::clock_ticks_per_second());
        parsed.ok_or_else(|| Error::Command("/proc/stat has no total of the CPU times".to_owned()))
    }

    /// Parses the line `cpu user nice system idle iowait irq softirq steal ..`. Guest time is
    /// included in user time.
    fn parse(stat: &str, ticks_per_second: u64) -> Option<Ticks> {
        let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
        let fields: Vec<u64> = line
            .split_whitespace()
            .map_while(|f| f.parse().ok())
            .collect();
        let &[user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields.as_slice()
        else {
            return None;
        };
        let micros = |ticks: u64| ticks * 1_000_000 / ticks_per_second.max(1);
        Some(Ticks {
            busy_us: micros(user + nice + system + irq + softirq + steal),
            steal_us: micros(steal),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_and_iowait() {
        let stat = "cpu  100 20 30 9000 800 4 5 6 77 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        let expected = Ticks {
            busy_us: 1_650_000,
            steal_us: 60_000,
        };
        assert_eq!(Ticks::parse(stat, 100), Some(expected));
        assert_eq!(Ticks::parse("cpu  1 2 3\n", 100), None);
        assert_eq!(Ticks::parse("intr 5\n", 100), None);
    }

    #[test]
    fn foreign_share_is_relative_to_all_cpus_and_counts_above_the_grain() {
        let usage = Usage {
            wall_ns: 1_000_000_000,
            cpus: 2,
            foreign_us: 500_000,
            ..Usage::default()
        };
        assert_eq!(usage.foreign_share(), 0.25);
        assert!(usage.is_loud(0.2));
        assert!(!usage.is_loud(0.3));
        // Rounding errors of a short sample are ignored.
        let usage = Usage {
            wall_ns: 10_000_000,
            foreign_us: 20_000,
            ..usage
        };
        assert_eq!(usage.foreign_share(), 1.0);
        assert!(!usage.is_loud(0.1));
    }
}
