//! Runs of the binary under `strace`, which makes system calls fail.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::skipped;

/// A run that takes longer hangs. Healthy ones take a hundredth of a second.
const HANG: Duration = Duration::from_secs(30);

/// A call that fails.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Name of the system call.
    pub(crate) call: &'static str,
    /// Name of the error.
    pub(crate) error: &'static str,
    /// Which call of this name fails, counted in each thread from 1.
    pub(crate) n: usize,
    /// True if all later ones fail, too.
    pub(crate) lasting: bool,
    /// True if only calls count that concern certain files. Then those of the dynamic loader do not.
    pub(crate) on_files: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let plus = if self.lasting { "+" } else { "" };
        let on = if self.on_files { " on files" } else { "" };
        write!(f, "{}:{}:{}{plus}{on}", self.call, self.error, self.n)
    }
}

/// Result of a run under `strace`.
pub(crate) struct Run {
    /// None if it did not end in time.
    status: Option<ExitStatus>,
    pub(crate) stderr: String,
    /// The calls that were made to fail, with their arguments.
    pub(crate) injected: Vec<String>,
}

impl Run {
    /// Waits for a process that has its standard error in `said`.
    pub(crate) fn after(dir: &Path, child: Child) -> Self {
        let status = wait(child);
        let log = fs::read(dir.join("trace")).unwrap();
        Self {
            status,
            stderr: fs::read_to_string(dir.join("said")).unwrap(),
            injected: injected(&String::from_utf8_lossy(&log)),
        }
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// True if a call with this text among its arguments or in its name was made to fail.
    pub(crate) fn failed_call(&self, text: &str) -> bool {
        self.injected.iter().any(|line| line.contains(text))
    }

    /// Checks what holds for every run: it ends, does not panic, and a failure has a documented exit code and says one
    /// sentence.
    pub(crate) fn check_manners(&self, codes: &[i32]) -> Result<(), String> {
        let Some(status) = self.status else {
            return Err("did not end".to_owned());
        };
        let stderr = self.stderr.trim_end();
        if status.success() {
            // A mount on a full host is read-only, and says so.
            let is_fine = stderr.is_empty() || stderr.contains(": mounted for reading only: ");
            return match is_fine {
                true => Ok(()),
                false => Err(format!("exit code 0, but said: {stderr}")),
            };
        }
        // Rust's standard library aborts where an allocation fails.
        let out_of_memory = status.signal() == Some(rustix::process::Signal::ABORT.as_raw())
            && stderr.starts_with("memory allocation of ");
        let code = status.code();
        if !out_of_memory && !code.is_some_and(|code| codes.contains(&code)) {
            return Err(format!("ended with {status}: {stderr}"));
        }
        let no_voice = self.failed_call("write(2<");
        // Where several things are not as in an image each is named.
        let is_list = code == Some(1);
        let ours = stderr.lines().all(|line| line.starts_with("tuff: "));
        let lines = stderr.lines().count();
        let one_line = ours && (lines == 1 || is_list && lines > 1);
        if !(one_line || out_of_memory || no_voice) {
            return Err(format!("{status}, not one sentence: {stderr:?}"));
        }
        Ok(())
    }
}

/// The binary under `strace`, in `dir`, with whatever `options` say.
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
        // Of its own group, so that it can be ended with the process it traces.
        .process_group(0);
    command
}

/// Options of `strace` for a fault.
pub(crate) fn options(fault: &Fault) -> Vec<String> {
    let plus = if fault.lasting { "+" } else { "" };
    let Fault { call, error, n, .. } = fault;
    // This one says that it failed by another break than the one asked for, and the C library takes its word.
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

/// Options of `strace` for calls that concern certain files only.
pub(crate) fn only<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Vec<String> {
    let options = |path: &PathBuf| ["-P".to_owned(), path.display().to_string()];
    files.into_iter().flat_map(options).collect()
}

/// Runs the binary in `dir` with a fault, which may be one for calls on `files` only.
pub(crate) fn run(dir: &Path, fault: &Fault, files: &[PathBuf], args: &[&str]) -> Run {
    let said = File::create(dir.join("said")).unwrap();
    let mut all = options(fault);
    if fault.on_files {
        all.extend(only(files));
    }
    let child = command(dir, &all, args)
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
        .unwrap();
    Run::after(dir, child)
}

/// Waits for a process, and ends its group if that takes too long.
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

/// Ends a process and what it traces.
pub(crate) fn kill_group(child: &mut Child) {
    let group = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let _ = child.wait();
}

/// The calls that a log says were made to fail. Where another thread came between, a call takes two lines.
pub(crate) fn injected(log: &str) -> Vec<String> {
    let mut begun = HashMap::new();
    let mut calls = Vec::new();
    for line in log.lines() {
        let (thread, what) = line.split_once(' ').unwrap_or(("", line));
        let what = what.trim_start();
        if let Some(head) = what.strip_suffix("<unfinished ...>") {
            begun.insert(thread, head);
        } else if line.ends_with("(INJECTED)") {
            let head = begun.get(thread).filter(|_| what.starts_with("<..."));
            calls.push(format!("{}{what}", head.unwrap_or(&"")));
        }
    }
    calls
}

/// Number of times that each call is made in a run without faults.
pub(crate) struct Census {
    /// By name of the call: number of the last one before `main`, and of the last one of the thread that makes most.
    counts: HashMap<String, (usize, usize)>,
}

impl Census {
    /// Counts the calls of a run of the binary, which must succeed.
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
            // Ends of calls begun before, and of threads, are no calls.
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
            // The first call of `main`.
            is_ours |= what.contains("SIGXFSZ");
            if thread == first && !is_ours {
                *before = *nth;
            }
        }
        Self { counts }
    }

    /// Counts the calls of a run whose log has only those that concern certain files.
    pub(crate) fn of_files(dir: &Path) -> Self {
        let mut census = Self::of_log(&fs::read_to_string(dir.join("trace")).unwrap());
        census
            .counts
            .values_mut()
            .for_each(|(before, _)| *before = 0);
        census
    }

    /// The numbers of a call's uses, without those of the dynamic loader.
    pub(crate) fn range(&self, call: &str) -> std::ops::RangeInclusive<usize> {
        let (before, last) = self.counts.get(call).copied().unwrap_or((0, 0));
        before + 1..=last
    }

    /// Number of calls that the dynamic loader makes. Faults with these numbers are tried on named files only.
    pub(crate) fn by_loader(&self, call: &str) -> usize {
        self.counts.get(call).map_or(0, |(before, _)| *before)
    }

    /// The calls that a run makes.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &str> {
        self.counts.keys().map(String::as_str)
    }
}

/// False, said aloud, if `strace` cannot make calls fail here.
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
