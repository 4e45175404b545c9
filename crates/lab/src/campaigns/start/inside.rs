//! The inside of a start: a fresh process takes a folder for its root, joins a control group, begins to read in the background,
//! and only then looks at the clock and starts the program.

use super::group::{self, Hits};
use crate::campaigns::serve::run::nanos;
use crate::{Error, Result};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tuff_flash_sim::experiment::random::Rng;

/// How many threads read in the background.
const READERS: u32 = 4;
/// What all of them read in a second. Unit: bytes.
const RATE: u64 = 256 << 10;
/// What one of them reads at a time. Unit: bytes.
const PAGE: usize = 4096;
/// From one read of any of them to the next: 64 in a second.
const STEP: Duration = Duration::from_nanos(1_000_000_000 / (RATE / PAGE as u64));
/// How long they have read before the program starts, at least; up to a step more.
const AHEAD: Duration = Duration::from_millis(100);

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Folder that becomes the root.
    pub root: PathBuf,
    /// Program and arguments, in that root.
    pub command: Vec<String>,
    /// File that is read in the background, in that root.
    pub background: Option<Background>,
    /// Control group, and how much of that file is read before, so that it is full. Unit: bytes.
    pub group: Option<(PathBuf, u64)>,
}

/// A file that is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Background {
    /// Its place in the root.
    pub path: PathBuf,
    /// Its length. Unit: bytes.
    pub length: u64,
    /// Where it is read comes from this.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// From fork to exit.
    pub ns: u64,
    /// How often the control group came to its limit in that time.
    pub limit_hits: Option<u64>,
    /// How it ended, and all that it said.
    pub answer: Answer,
    /// Beginning of what it said, for a message.
    pub said: String,
}

/// How a program ended, and what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Exit code, or the signal as a negative number.
    pub exit: i32,
    /// Length of what it wrote to standard output. Unit: bytes.
    pub bytes: u64,
    /// BLAKE3 of that, and of standard error: 16 hexadecimal digits.
    pub digest: String,
}

/// Does what the order says; this process has another root afterwards.
pub fn start(order: &Order) -> Result<Started> {
    let (program, arguments) = order
        .command
        .split_first()
        .ok_or_else(|| Error::Usage("a command is needed".to_owned()))?;
    let mut hits = None;
    if let Some((group, _)) = &order.group {
        hits = Some(Hits::open(group)?);
        group::enter(group, std::process::id())?;
    }
    rustix::process::chroot(&order.root)
        .map_err(|e| Error::io("take as root", &order.root, e.into()))?;
    std::env::set_current_dir("/").map_err(|e| Error::io("enter", Path::new("/"), e))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_clear()
        .envs([
            ("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"),
            ("HOME", "/root"),
            ("LC_ALL", "C"),
            ("TERM", "dumb"),
            ("TZ", "UTC"),
        ]);
    let mut run = || -> Result<Started> {
        let before = hits.as_ref().and_then(Hits::count);
        let start = Instant::now();
        let output = command.output();
        let time = start.elapsed();
        let after = hits.as_ref().and_then(Hits::count);
        let output = output.map_err(|e| Error::io("run", Path::new(program), e))?;
        let limit_hits = before.zip(after).map(|(b, a)| a.saturating_sub(b));
        let mut hasher = blake3::Hasher::new();
        for bytes in [&output.stdout, &output.stderr] {
            // Its length, too: what goes to one of them is not what goes to the other.
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        Ok(Started {
            ns: nanos(time),
            limit_hits,
            answer: Answer {
                exit: exit(output.status),
                bytes: output.stdout.len() as u64,
                digest: hasher.finalize().to_hex()[..16].to_owned(),
            },
            said: beginning(&[output.stderr, output.stdout].concat()),
        })
    };
    let Some(background) = &order.background else {
        return run();
    };
    let file = File::open(&background.path).map_err(|e| Error::io("open", &background.path, e))?;
    if let Some((_, fill)) = order.group {
        fill_memory(&background.path, fill)?;
    }
    fadvise(&file, 0, None, Advice::Random)
        .map_err(|e| Error::io("announce reads of", &background.path, e.into()))?;
    beside(&file, background, run)
}

/// Reads so much of a file, from its beginning, again if it is shorter.
fn fill_memory(path: &Path, mut left: u64) -> Result<()> {
    let mut buffer = vec![0; 128 << 10];
    let reading = |e| Error::io("read", path, e);
    while left > 0 {
        let mut file = File::open(path).map_err(reading)?;
        let mut length = 0;
        loop {
            let read = file.read(&mut buffer).map_err(reading)? as u64;
            length += read;
            left = left.saturating_sub(read);
            if read == 0 || left == 0 {
                break;
            }
        }
        if length == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Does `run` while threads read pages of the file at random. A read that fails is an error.
fn beside<T>(file: &File, background: &Background, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let pages = (background.length / PAGE as u64).max(1);
    let mut rng = Rng::new(background.seed);
    let phase = Duration::from_nanos(rng.below(nanos(STEP)));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        let mut readers = Vec::new();
        for reader in 0..READERS {
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            let mut rng = Rng::new(rng.draw());
            readers.push(scope.spawn(move || -> std::io::Result<()> {
                let mut page = [0; PAGE];
                let mut due = STEP * reader;
                loop {
                    let wait = due.saturating_sub(begin.elapsed());
                    match ended.recv_timeout(wait) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return Ok(()),
                    }
                    file.read_at(&mut page, rng.below(pages) * PAGE as u64)?;
                    due += STEP * READERS;
                }
            }));
        }
        std::thread::sleep((AHEAD + phase).saturating_sub(begin.elapsed()));
        let done = run();
        drop(ends);
        for reader in readers {
            match reader.join() {
                Ok(read) => read.map_err(|e| Error::io("read", &background.path, e))?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    })
}

fn exit(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|s| -s);
    status.code().or(signal).unwrap_or(i32::MIN)
}

/// The first lines, in one.
fn beginning(bytes: &[u8]) -> String {
    const LENGTH: usize = 200;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LENGTH)]);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_in_the_background_end_with_what_they_are_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 3 * PAGE]).unwrap();
        let background = Background {
            path: path.clone(),
            length: 3 * PAGE as u64,
            seed: 1,
        };
        let file = File::open(&path).unwrap();
        assert_eq!(beside(&file, &background, || Ok(5)).unwrap(), 5);
        // A file that cannot be read is an error, not silence.
        let folder = File::open(folder.path()).unwrap();
        let error = beside(&folder, &background, || Ok(5)).unwrap_err();
        assert!(error.to_string().contains("read"), "{error}");
        fill_memory(&path, 8 * PAGE as u64).unwrap();
    }

    #[test]
    fn the_rate_is_that_of_the_paper() {
        assert_eq!(STEP.as_nanos() * 64, 1_000_000_000);
    }
}
