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
//! measured tools are a single process. With a control group, the peak of the group is also
//! recorded. It covers all processes, the page cache and data in tmpfs.

pub mod cgroup;
pub mod machine;
pub mod root;
pub mod stats;
pub mod stop;
pub(crate) mod workspace;

use crate::{Error, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    /// Peak memory of the control group. `None` without a control group.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup_peak_bytes: Option<u64>,
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

    /// CPU time. Unit: seconds.
    pub fn cpu_s(&self) -> f64 {
        (self.user_us + self.system_us) as f64 / 1e6
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
    /// Control group in which a child group is created for the command.
    pub cgroup: Option<&'a Path>,
}

/// Result of a command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Resource usage of the command.
    pub usage: Usage,
    /// Output of the command, reduced to the lines that explain a failure.
    pub said: String,
}

/// Measures one command in a fresh process.
pub fn sample(job: &Job<'_>) -> Result<Outcome> {
    let lab = std::env::current_exe().map_err(|e| Error::Io("find this program".to_owned(), e))?;
    let log = job.folder.join("said");
    let group = job.cgroup.map(Group::create).transpose()?;
    let mut command = Command::new(&lab);
    command.arg("sample").arg("--said").arg(&log);
    if let Some(group) = &group {
        command.arg("--cgroup").arg(&group.path);
    }
    command.arg("--").arg(job.program).args(job.arguments);
    quiet(&mut command, job.folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = command.output().map_err(|e| Error::io("run", &lab, e))?;
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
    let usage = serde_json::from_slice(&output.stdout)
        .map_err(|e| Error::Command(format!("cannot parse the sample: {e}")))?;
    Ok(Outcome {
        usage,
        said: telling_lines(&log),
    })
}

/// Runs a command without measuring it. Returns `None` if it was killed after `limit`.
pub fn run_within(job: &Job<'_>, limit: Duration) -> Result<Option<(Option<i32>, String)>> {
    let log = job.folder.join("said");
    let mut command = Command::new(job.program);
    command.args(job.arguments);
    said_to(quiet(&mut command, job.folder), &log)?;
    let mut child = command
        .spawn()
        .map_err(|e| Error::io("run", job.program, e))?;
    let waiting = |e| Error::io("wait for", job.program, e);
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(waiting)? {
            return Ok(Some((status.code(), telling_lines(&log))));
        }
        if Instant::now() > end {
            // The command may have ended already; it is waited for in either case.
            let _ = child.kill();
            child.wait().map_err(waiting)?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sets the same environment for every tool: no variables that affect images, the C locale, and one
/// folder for temporary files.
fn quiet<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .env_remove("SOURCE_DATE_EPOCH")
        .env("LC_ALL", "C")
        .env("TMPDIR", folder)
}

fn said_to(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).map_err(|e| Error::io("create", log, e))?;
    let twin = file
        .try_clone()
        .map_err(|e| Error::io("duplicate the handle of", log, e))?;
    command.stdout(file).stderr(twin);
    Ok(())
}

/// Selects the lines of a command's output that explain a failure: from the first line that mentions an error, else the
/// last lines.
fn telling_lines(log: &Path) -> String {
    const LINES: usize = 2;
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let speaks = |l: &&str| {
        let l = l.to_ascii_lowercase();
        ["error", "fatal", "fail", "<e>", "panicked"]
            .iter()
            .any(|w| l.contains(w))
    };
    let telling: Vec<&str> = lines.iter().copied().filter(speaks).take(LINES).collect();
    if telling.is_empty() {
        return lines[lines.len().saturating_sub(LINES)..].join("; ");
    }
    telling.join("; ")
}

/// Implements `tuff-lab sample`: runs the command and returns its resource usage.
pub fn take(
    program: &OsStr,
    arguments: &[OsString],
    said: &Path,
    cgroup: Option<&Path>,
) -> Result<Usage> {
    if let Some(group) = cgroup {
        let file = group.join("cgroup.procs");
        std::fs::write(&file, std::process::id().to_string())
            .map_err(|e| Error::io("join", &file, e))?;
    }
    let mut command = Command::new(program);
    said_to(command.args(arguments).stdin(Stdio::null()), said)?;
    let path = Path::new(program);
    let own_before_us = own_cpu_us()?;
    let before = Ticks::now()?;
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| Error::io("run", path, e))?;
    let status = child.wait().map_err(|e| Error::io("wait for", path, e))?;
    let wall = start.elapsed();
    let after = Ticks::now()?;
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(rusage_error)?;
    let (user_us, system_us) = (micros(used.user_time()), micros(used.system_time()));
    let own_us = user_us + system_us + own_cpu_us()?.saturating_sub(own_before_us);
    if let Some(signal) = status.signal() {
        eprintln!("tuff-lab: ended by signal {signal}");
    }
    Ok(Usage {
        wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        user_us,
        system_us,
        // The kernel reports KiB.
        max_rss_bytes: unsigned(used.max_rss()).saturating_mul(1024),
        cgroup_peak_bytes: cgroup.and_then(Group::peak_bytes),
        foreign_us: (after.busy_us.saturating_sub(before.busy_us)).saturating_sub(own_us),
        steal_us: after.steal_us.saturating_sub(before.steal_us),
        cpus: machine::online_cpus()?,
        // The kernel reports units of 512 bytes.
        read_bytes: unsigned(used.block_reads()).saturating_mul(512),
        exit: status.code(),
    })
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
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
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

/// Control group of one command, removed on drop.
struct Group {
    path: PathBuf,
}

impl Group {
    fn create(parent: &Path) -> Result<Group> {
        let path = parent.join(format!("tuff-lab-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        let group = Group { path };
        if Group::peak_bytes(&group.path).is_none() {
            return Err(Error::Usage(format!(
                "control group {}: no memory accounting",
                parent.display()
            )));
        }
        Ok(group)
    }

    /// Reads the peak memory from control groups version 2 or version 1.
    fn peak_bytes(path: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        let text = read("memory.peak").or_else(|| read("memory.max_usage_in_bytes"))?;
        text.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Removal fails if the command left processes in the group.
        let _ = std::fs::remove_dir(&self.path);
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
    fn foreign_share_is_relative_to_all_cpus() {
        let usage = Usage {
            wall_ns: 1_000_000_000,
            cpus: 2,
            foreign_us: 500_000,
            ..Usage::default()
        };
        assert_eq!(usage.foreign_share(), 0.25);
        assert!(usage.is_loud(0.2));
        assert!(!usage.is_loud(0.3));
    }

    #[test]
    fn rounding_errors_of_a_short_sample_are_ignored() {
        let usage = Usage {
            wall_ns: 10_000_000,
            cpus: 2,
            foreign_us: 20_000,
            ..Usage::default()
        };
        assert_eq!(usage.foreign_share(), 1.0);
        assert!(!usage.is_loud(0.1));
    }

    #[test]
    fn the_peak_of_a_control_group_is_read_in_versions_1_and_2() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Group::peak_bytes(folder.path()), None);
        std::fs::write(folder.path().join("memory.max_usage_in_bytes"), "1234\n").unwrap();
        assert_eq!(Group::peak_bytes(folder.path()), Some(1234));
        std::fs::write(folder.path().join("memory.peak"), "4321\n").unwrap();
        assert_eq!(Group::peak_bytes(folder.path()), Some(4321));
    }

    #[test]
    fn error_lines_are_preferred_to_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("said");
        std::fs::write(
            &log,
            "hello\nerror: no such option\n\n  usage: x\nFor more, try --help\n",
        )
        .unwrap();
        assert_eq!(telling_lines(&log), "error: no such option");
        std::fs::write(&log, "one\ntwo\nthree\n").unwrap();
        assert_eq!(telling_lines(&log), "two; three");
        assert_eq!(telling_lines(&folder.path().join("missing")), "");
    }

    #[test]
    fn a_hanging_command_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let job = Job {
            program: Path::new("/bin/sleep"),
            arguments: &["60".into()],
            folder: folder.path(),
            cgroup: None,
        };
        assert!(
            run_within(&job, Duration::from_millis(50))
                .unwrap()
                .is_none()
        );
    }
}
