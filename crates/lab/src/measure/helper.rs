//! Commands and content that the lab needs itself, on the host and in guests. Their resources are not measured.

use crate::{Error, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Time limit of commands without their own.
const LIMIT: Duration = Duration::from_secs(3600);
/// Folders of programs for process 1 of a guest, which has no PATH.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a command, as a group of processes of its own, so that a ^C reaches only the lab. Returns its standard output if its exit
/// code is at most `fine`, or else a reason with the name of the program.
pub fn run(command: &mut Command, fine: i32, limit: Duration) -> Result<String, String> {
    let name = Path::new(command.get_program()).file_name();
    let name = name.unwrap_or(OsStr::new("?")).display().to_string();
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PATH);
    }
    command.env("LC_ALL", "C").env_remove("SOURCE_DATE_EPOCH");
    let ended = finish(command.stdin(Stdio::null()), limit, |_| None, |_| ());
    let ended = ended.map_err(|e| format!("cannot run {name}: {e}"))?;
    let status = ended.status.ok_or_else(|| format!("{name} timed out"))?;
    let message = String::from_utf8_lossy(&ended.output).into_owned();
    match status.code() {
        Some(code) if code <= fine => Ok(message),
        Some(code) => {
            let error = ended.message();
            let text = if error.is_empty() { message } else { error };
            let lines = telling_lines(&text);
            Err(format!("{name} exited with code {code}: {lines}"))
        }
        None => Err(format!("{name} was killed by a signal")),
    }
}

/// Result of a command that ended.
pub(crate) struct Ended {
    /// None after a timeout.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) output: Vec<u8>,
    pub(crate) errors: Vec<u8>,
}

impl Ended {
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns the standard error as text.
    pub(crate) fn message(&self) -> String {
        String::from_utf8_lossy(&self.errors).trim().to_owned()
    }
}

/// Runs a command as a group of processes of its own, which is killed after a time limit. `during` is called once it runs; after
/// the time that it returns, the group is killed. `watch` is called with the number of the process while it runs.
pub(crate) fn finish(
    command: &mut Command,
    limit: Duration,
    during: impl FnOnce(&mut Child) -> Option<Duration>,
    mut watch: impl FnMut(u32),
) -> io::Result<Ended> {
    // Files, because a process that the command leaves behind would hold a pipe open.
    let (output, errors) = (output_file()?, output_file()?);
    command
        .process_group(0)
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?);
    let mut child = command.spawn()?;
    // The process is not reaped before its end, so the group exists.
    let group = Pid::from_child(&child);
    if let Some(after) = during(&mut child) {
        std::thread::sleep(after);
        let _ = kill_process_group(group, Signal::KILL);
    }
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        watch(child.id());
        if begin.elapsed() > limit {
            let _ = kill_process_group(group, Signal::KILL);
            child.wait()?;
            break None;
        }
        // Callers that measure the time are at most 2 % late.
        std::thread::sleep((begin.elapsed() / 50).min(Duration::from_millis(1)));
    };
    Ok(Ended {
        status,
        output: content(&output)?,
        errors: content(&errors)?,
    })
}

/// Returns a file in memory for the output of a command.
pub(crate) fn output_file() -> io::Result<File> {
    Ok(memfd_create("output", MemfdFlags::CLOEXEC)?.into())
}

fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Returns the content of a file in memory.
pub(super) fn text(file: &File) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&content(file)?).into_owned())
}

/// Runs a program with arguments, and returns its standard output.
///
/// # Errors
/// `Command` if it fails.
pub fn output(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<String> {
    let mut command = Command::new(program);
    run(command.args(arguments), 0, LIMIT).map_err(Error::Command)
}

/// Runs a command that prints JSON.
pub fn json(
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<serde_json::Value> {
    let text = output(program, arguments)?;
    // fio prints messages before the value.
    let begin = text.find('{').unwrap_or(0);
    serde_json::from_str(&text[begin..])
        .map_err(|e| Error::Command(format!("{} prints no JSON: {e}", program.display())))
}

/// Returns random bytes, which do not compress.
pub fn noise(rng: &mut Rng, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes());
    words.take(length).collect()
}

/// Selects the lines of a command's output that explain a failure: the first that mention an error, else the last lines.
pub(super) fn telling_lines(text: &str) -> String {
    const LINES: usize = 2;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let lines: Vec<&str> = lines.collect();
    let speaks = |l: &&str| {
        let l = l.to_ascii_lowercase();
        let words = ["error", "fatal", "fail", "<e>", "panicked"];
        words.iter().any(|w| l.contains(w))
    };
    let telling: Vec<&str> = lines.iter().copied().filter(speaks).take(LINES).collect();
    if telling.is_empty() {
        return lines[lines.len().saturating_sub(LINES)..].join("; ");
    }
    telling.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_lines_are_preferred_to_the_last_lines() {
        let text = "hello\nerror: no such option\n\n  usage: x\nFor more, try --help\n";
        assert_eq!(telling_lines(text), "error: no such option");
        assert_eq!(telling_lines("one\ntwo\nthree\n"), "two; three");
        assert_eq!(telling_lines(""), "");
    }

    #[test]
    fn failures_name_the_program_and_hanging_commands_are_killed() {
        let sh = |text: &str, fine| {
            run(
                Command::new("sh").args(["-c", text]),
                fine,
                Duration::from_millis(300),
            )
        };
        assert_eq!(sh("echo a; exit 1", 1), Ok("a\n".to_owned()));
        assert_eq!(
            sh("echo b >&2; exit 3", 1),
            Err("sh exited with code 3: b".to_owned())
        );
        assert_eq!(
            sh("kill -9 $$", 1),
            Err("sh was killed by a signal".to_owned())
        );
        assert_eq!(sh("sleep 60", 0), Err("sh timed out".to_owned()));
        // A process in the background holds the output open.
        assert_eq!(sh("sleep 2 & echo c", 0), Ok("c\n".to_owned()));
    }
}
