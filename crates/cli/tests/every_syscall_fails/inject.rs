//! Runs the binary under `strace`, which injects failures of system calls.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::skipped;

/// Timeout of a run. Healthy runs take about 10 ms.
const HANG: Duration = Duration::from_secs(30);

/// Fault: a system call that fails.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Name of the call, such as `openat`.
    pub(crate) call: &'static str,
    /// Name of the error, such as `EIO`.
    pub(crate) error: &'static str,
    /// Index of the failing call of this name, counted per thread from 1.
    pub(crate) n: usize,
    /// True if all later calls fail too.
    pub(crate) lasting: bool,
    /// True if only calls on certain files count. This excludes those of the dynamic loader.
    pub(crate) on_files: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let plus = if self.lasting { "+" } else { "" };
        let on = if self.on_files { " on files" } else { "" };
        write!(f, "{}:{}:{}{plus}{on}", self.call, self.error, self.n)
    }
}

/// Result of a run under `strace`: status, output and injected faults.
pub(crate) struct Run {
    /// None after a timeout.
    status: Option<ExitStatus>,
    pub(crate) stderr: String,
    /// Failed calls with their arguments.
    pub(crate) injected: Vec<String>,
}

impl Run {
    /// Waits for a process whose standard error goes to the file `message`.
    pub(crate) fn after(dir: &Path, child: Child) -> Self {
        let status = wait(child);
        let log = fs::read(dir.join("trace")).unwrap();
        Self {
            status,
            stderr: without_strace(&fs::read_to_string(dir.join("said")).unwrap()),
            injected: injected(&String::from_utf8_lossy(&log)),
        }
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// Returns true if a failed call has this text in its name or arguments.
    pub(crate) fn failed_call(&self, text: &str) -> bool {
        self.injected.iter().any(|line| line.contains(text))
    }

    /// Checks every run: it ends, does not panic, and a failure has a documented exit code and a one-line message.
    ///
    /// With `prints_findings`, exit code 1 says that findings are on standard output.
    pub(crate) fn check_manners(&self, codes: &[i32], prints_findings: bool) -> Result<(), String> {
        let Some(status) = self.status else {
            return Err("did not end".to_owned());
        };
        let stderr = self.stderr.trim_end();
        if status.success() {
            // A mount on a full host is read-only and prints that. A backup store may do without a part.
            let is_fine = stderr.is_empty()
                || stderr.contains(": mounted for reading only: ")
                || stderr
                    .lines()
                    .all(|line| line.starts_with("tuff: warning: "));
            return match is_fine {
                true => Ok(()),
                false => Err(format!("exit code 0, but said: {stderr}")),
            };
        }
        // The Rust runtime aborts if an allocation fails.
        let out_of_memory = status.signal() == Some(rustix::process::Signal::ABORT.as_raw())
            && stderr.starts_with("memory allocation of ");
        let code = status.code();
        if !out_of_memory && !code.is_some_and(|code| codes.contains(&code)) {
            return Err(format!("ended with {status}: {stderr}"));
        }
        let no_voice = self.failed_call("write(2<");
        // `extract` lists every entry that it could not restore.
        let is_list = code == Some(1);
        let ours = stderr.lines().all(|line| line.starts_with("tuff: "));
        let is_warning = |line: &&str| line.starts_with("tuff: warning: ");
        let lines = stderr.lines().filter(|line| !is_warning(line)).count();
        let one_line = ours && (lines == 1 || is_list && lines > 1 || is_list && prints_findings);
        if !(one_line || out_of_memory || no_voice) {
            return Err(format!("{status}, not one sentence: {stderr:?}"));
        }
        Ok(())
    }
}

/// Removes the lines of strace, which reports that it could not change a call of a thread that just ended.
fn without_strace(stderr: &str) -> String {
    let lines = stderr.split_inclusive('\n');
    lines.filter(|l| !l.starts_with("strace: ")).collect()
}

/// Command that runs the binary under `strace` in `dir` with `options`.
pub(crate) fn command(dir: &Path, options: &[String], args: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command
        .current_dir(dir)
        .env_remove("SOURCE_DATE_EPOCH")
        .args(["-f", "-qq", "-y", "-o", "trace"])
        .args(options)
        .arg(env!("CARGO_BIN_EXE_tuff"))
        .args(args)
        .stdin(Stdio::null())
        // A separate process group, so that the traced process can be killed too.
        .process_group(0);
    command
}

/// Options of `strace` that inject a fault.
pub(crate) fn options(fault: &Fault) -> Vec<String> {
    let plus = if fault.lasting { "+" } else { "" };
    let Fault { call, error, n, .. } = fault;
    // A failed `brk` returns the old break instead of an error.
    let how = match *call {
        "brk" => "retval=0".to_owned(),
        _ => format!("error={error}"),
    };
    vec![
        "-e".to_owned(),
        format!("trace={call}"),
        "-e".to_owned(),
        format!("inject={call}:{how}:when={n}{plus}"),
    ]
}

/// Options of `strace` that limit it to calls on certain files.
pub(crate) fn only<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Vec<String> {
    let options = |path: &PathBuf| ["-P".to_owned(), path.display().to_string()];
    files.into_iter().flat_map(options).collect()
}

/// Runs the binary in `dir` with a fault, which may be limited to calls on `files`.
pub(crate) fn run(dir: &Path, fault: &Fault, files: &[PathBuf], args: &[&str]) -> Run {
    let message = File::create(dir.join("said")).unwrap();
    let mut all = options(fault);
    if fault.on_files {
        all.extend(only(files));
    }
    let child = command(dir, &all, args)
        .stdout(Stdio::null())
        .stderr(message)
        .spawn()
        .unwrap();
    Run::after(dir, child)
}

/// Waits for a process, and kills its group after a timeout.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if start.elapsed() > HANG {
            kill_group(&mut child);
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a process and the one it traces.
pub(crate) fn kill_group(child: &mut Child) {
    let group = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let _ = child.wait();
}

/// Returns the injected failures in a log. A call interrupted by another thread takes two lines.
pub(crate) fn injected(log: &str) -> Vec<String> {
    let mut started = HashMap::new();
    let mut calls = Vec::new();
    for line in log.lines() {
        let (thread, what) = line.split_once(' ').unwrap_or(("", line));
        let what = what.trim_start();
        if let Some(head) = what.strip_suffix("<unfinished ...>") {
            started.insert(thread, head);
        } else if line.ends_with("(INJECTED)") {
            let head = started.get(thread).filter(|_| what.starts_with("<..."));
            calls.push(format!("{}{what}", head.unwrap_or(&"")));
        }
    }
    calls
}

/// Number of uses of each call in a run without faults.
pub(crate) struct Census {
    /// By call: number of uses before `main`, and the largest number of any thread.
    counts: HashMap<String, (usize, usize)>,
}

impl Census {
    /// Counts the calls of a successful run of the binary.
    pub(crate) fn take(dir: &Path, args: &[&str]) -> Self {
        let out = command(dir, &[], args).output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        Self::of_log(&fs::read_to_string(dir.join("trace")).unwrap())
    }

    /// Counts the calls of a log.
    fn of_log(log: &str) -> Self {
        let first = log.split(' ').next().unwrap_or("").to_owned();
        let mut by_thread: HashMap<(&str, &str), usize> = HashMap::new();
        let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
        let mut is_ours = false;
        for line in log.lines() {
            let (thread, what) = line.split_once(' ').unwrap_or(("", line));
            // Resumed calls and exits of threads are not new calls.
            let Some((call, _)) = what.trim_start().split_once('(') else {
                continue;
            };
            if !call.starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            let nth = by_thread.entry((thread, call)).or_default();
            *nth += 1;
            let (before, last) = counts.entry(call.to_owned()).or_default();
            *last = (*nth).max(*last);
            // Marks the first call of `main`.
            is_ours |= what.contains("SIGXFSZ");
            if thread == first && !is_ours {
                *before = *nth;
            }
        }
        Self { counts }
    }

    /// Counts the calls of a run whose log is limited to certain files.
    pub(crate) fn of_files(dir: &Path) -> Self {
        let mut census = Self::of_log(&fs::read_to_string(dir.join("trace")).unwrap());
        census
            .counts
            .values_mut()
            .for_each(|(before, _)| *before = 0);
        census
    }

    /// Indices of a call, without those of the dynamic loader.
    pub(crate) fn range(&self, call: &str) -> std::ops::RangeInclusive<usize> {
        let (before, last) = self.counts.get(call).copied().unwrap_or((0, 0));
        before + 1..=last
    }

    /// Number of calls by the dynamic loader. Faults with these indices are limited to named files.
    pub(crate) fn by_loader(&self, call: &str) -> usize {
        self.counts.get(call).map_or(0, |(before, _)| *before)
    }

    /// Iterates over the names of the calls.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &str> {
        self.counts.keys().map(String::as_str)
    }
}

/// Returns false, with a note, if `strace` cannot inject faults here.
pub(crate) fn is_possible() -> bool {
    let tried = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync"])
        .args(["-e", "inject=fsync:error=EIO:when=1", "true"])
        .output();
    match tried {
        Ok(out) if out.status.success() => true,
        Ok(out) => {
            skipped(format_args!(
                "strace: {}",
                String::from_utf8_lossy(&out.stderr)
            ));
            false
        }
        Err(e) => {
            skipped(format_args!("strace: {e}"));
            false
        }
    }
}
