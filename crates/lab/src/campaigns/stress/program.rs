//! Run of the tested program in a folder of its own, and what holds after any input.

use crate::measure::helper;
use crate::{At, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::io::Seek as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a run.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Documented exit codes: docs/reference/exit-codes.md.
const EXIT_CODES: std::ops::RangeInclusive<i32> = 0..=6;

/// Status and output of a run. None for the status if it did not end in time.
pub(super) struct Ran {
    pub(super) status: Option<ExitStatus>,
    pub(super) output: Vec<u8>,
    pub(super) errors: Vec<u8>,
}

impl Ran {
    pub(super) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns true if the run was ended by SIGKILL.
    pub(super) fn is_killed(&self) -> bool {
        self.status.is_some_and(|status| status.signal() == Some(9))
    }

    /// Standard error as text.
    pub(super) fn message(&self) -> String {
        String::from_utf8_lossy(&self.errors).trim().to_owned()
    }

    /// Returns what no input may lead to: a run without end, a signal, a panic, or an exit code without a meaning.
    pub(super) fn fault(&self) -> Option<String> {
        let Some(status) = self.status else {
            return Some("it does not end".to_owned());
        };
        let message = self.message();
        let is_documented = status.code().is_some_and(|code| EXIT_CODES.contains(&code));
        let is_fine = is_documented && !message.contains("panicked at");
        (!is_fine).then(|| format!("{status}: {message}"))
    }
}

/// Runs the program with a folder for its temporary files, its cache and its settings. `during` is called while it runs; after
/// the time that it returns, the program is killed.
pub(super) fn run(
    program: &Path,
    folder: &Path,
    arguments: &[impl AsRef<OsStr>],
    during: impl FnOnce() -> Option<Duration>,
) -> Result<Ran> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .env("TMPDIR", folder.join("tmp"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("HOME", folder)
        .env("LC_ALL", "C.UTF-8")
        .env("SOURCE_DATE_EPOCH", "1700000000");
    run_command(command, TIME_LIMIT, during, |_| ())
}

/// Runs a command in a process group of its own, which is killed after a time limit. `during` is as in [`run`]. `watch` is called with
/// the number of the process while it runs.
pub(super) fn run_command(
    mut command: Command,
    limit: Duration,
    during: impl FnOnce() -> Option<Duration>,
    mut watch: impl FnMut(u32),
) -> Result<Ran> {
    let create = || helper::output_file().at("create", Path::new("a file in memory"));
    let (output, errors) = (create()?, create()?);
    let program = PathBuf::from(command.get_program());
    let program = program.as_path();
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.try_clone().at("run", program)?)
        .stderr(errors.try_clone().at("run", program)?)
        .spawn()
        .at("run", program)?;
    let group = Pid::from_child(&child);
    if let Some(after) = during() {
        std::thread::sleep(after);
        // The process is not reaped yet, so the group exists even if it has ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().at("wait for", program)? {
            break Some(status);
        }
        watch(child.id());
        if Instant::now() > end {
            let _ = kill_process_group(group, Signal::KILL);
            child.wait().at("wait for", program)?;
            break None;
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let read = |mut file: File| {
        let mut bytes = Vec::new();
        let done = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
        done.at("read", program).map(|_| bytes)
    };
    Ok(Ran {
        status,
        output: read(output)?,
        errors: read(errors)?,
    })
}

/// Image with a hash tree.
pub(super) struct SealedImage {
    pub(super) bytes: Vec<u8>,
    /// Root hash, in hexadecimal.
    pub(super) root: String,
}

impl SealedImage {
    /// Builds an image of a tree.
    pub(super) fn build(
        tuff: &Path,
        options: &[&str],
        tree: &Path,
        image: &Path,
    ) -> Result<SealedImage> {
        let words = [&["build", "-q", "--force", "--verity"], options].concat();
        let words = words.into_iter().map(OsStr::new);
        helper::output(tuff, words.chain([tree.as_os_str(), image.as_os_str()]))?;
        let words = ["verity", "show", "--json"].map(OsStr::new).into_iter();
        let shown = helper::json(tuff, words.chain([image.as_os_str()]))?;
        Ok(SealedImage {
            bytes: std::fs::read(image).at("read", image)?,
            root: shown["root_hash"].as_str().unwrap_or_default().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, kill: Option<Duration>) -> Ran {
        let folder = tempfile::tempdir().unwrap();
        run(Path::new("/bin/sh"), folder.path(), &["-c", text], || kill).unwrap()
    }

    #[test]
    fn signals_panics_and_unknown_exit_codes_are_faults() {
        let fine = shell("echo a; echo b >&2; exit 3", None);
        assert_eq!(
            (fine.fault(), &*fine.output, &*fine.message()),
            (None, &b"a\n"[..], "b")
        );
        assert!(shell("kill -ABRT $$", None).fault().is_some());
        assert!(shell("exit 101", None).fault().is_some());
        assert!(
            shell("echo thread main panicked at x >&2; exit 1", None)
                .fault()
                .is_some()
        );
        assert!(shell("sleep 60", Some(Duration::from_millis(1))).is_killed());
    }
}
