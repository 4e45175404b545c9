//! Run of the tested program in a folder of its own, and what holds after any input.

pub(super) use crate::measure::helper::Ended as Ran;

use crate::measure::helper;
use crate::{At, Result};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of a run.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Documented exit codes: docs/reference/exit-codes.md.
const EXIT_CODES: std::ops::RangeInclusive<i32> = 0..=6;

impl Ran {
    /// Returns true if the run was ended by SIGKILL.
    pub(super) fn is_killed(&self) -> bool {
        self.status.is_some_and(|status| status.signal() == Some(9))
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
    let ended = helper::finish(
        command.stdin(Stdio::null()),
        TIME_LIMIT,
        |_| during(),
        |_| (),
    );
    ended.at("run", program)
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
