//! Child process of a start. It joins a control group, changes its root directory, and starts the background
//! threads. Then it measures the time from fork to exit of the program.

use crate::campaigns::serve::run::nanos;
use crate::measure::cgroup::{self, Hits};
use crate::{At, Error, Result};
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

/// Number of threads that read and write in the background.
const READERS: u32 = 4;
/// Bytes read in a second by all threads together, and bytes written.
const RATE: u64 = 256 << 10;
/// Size of a single read or write in bytes.
const PAGE: usize = 4096;
/// Interval between two reads, all threads taken together: 64 reads a second. Each is followed by a write.
const STEP: Duration = Duration::from_nanos(1_000_000_000 / (RATE / PAGE as u64));
/// Minimum time of background I/O before the program starts. A random part of [`STEP`] is added.
const AHEAD: Duration = Duration::from_millis(100);

/// Parameters of a start, passed to the child process as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Directory that becomes the root directory.
    pub root: PathBuf,
    /// Path of the program and its arguments, below the new root.
    pub command: Vec<String>,
    /// Files for the background threads. None for no background I/O.
    pub background: Option<Background>,
    /// Control group, and number of bytes to read from the background file so that the group is full.
    pub group: Option<(PathBuf, u64)>,
}

impl Order {
    /// Returns the start of a command without background threads.
    pub fn new(root: &Path, command: &[String]) -> Order {
        Order {
            root: root.to_owned(),
            command: command.to_owned(),
            background: None,
            group: None,
        }
    }
}

/// Files that are read and written in the background.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Background {
    /// Path of the file to read, below the new root.
    pub path: PathBuf,
    /// Length of that file in bytes. The other one does not grow longer.
    pub length: u64,
    /// Path of the file to write, outside the new root.
    pub written: PathBuf,
    /// Seed of the offsets.
    pub seed: u64,
}

/// Result of a start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// Time from fork to exit in nanoseconds.
    pub ns: u64,
    /// Number of times that the control group reached its limit in this time. None without a group.
    pub limit_hits: Option<u64>,
    /// Exit status and output of the program.
    pub answer: Answer,
    /// Beginning of the output, for messages.
    pub message: String,
}

/// Exit status and output of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Exit code, or the negative signal number.
    pub exit: i32,
    /// Length of the standard output in bytes.
    pub bytes: u64,
    /// BLAKE3 of standard output and standard error, 16 hexadecimal digits.
    pub digest: String,
}

/// Performs a start. The root directory of this process stays changed afterwards.
pub fn start(order: &Order) -> Result<Started> {
    let (program, arguments) = order
        .command
        .split_first()
        .ok_or_else(|| Error::Usage("a command is needed".to_owned()))?;
    let written = match &order.background {
        Some(Background { written, .. }) => Some(File::create(written).at("create", written)?),
        None => None,
    };
    let mut hits = None;
    if let Some((group, _)) = &order.group {
        hits = Some(Hits::open(group)?);
        cgroup::enter(group, std::process::id())?;
    }
    rustix::process::chroot(&order.root).at("change the root to", &order.root)?;
    std::env::set_current_dir("/").at("enter", Path::new("/"))?;
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
        let output = output.at("run", Path::new(program))?;
        let limit_hits = before.zip(after).map(|(b, a)| a.saturating_sub(b));
        let mut hasher = blake3::Hasher::new();
        for bytes in [&output.stdout, &output.stderr] {
            // The length separates the two outputs, so that text cannot move from one to the other unnoticed.
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
            message: beginning(&[output.stderr, output.stdout].concat()),
        })
    };
    let (Some(background), Some(written)) = (&order.background, written) else {
        return run();
    };
    let file = File::open(&background.path).at("open", &background.path)?;
    if let Some((_, fill)) = order.group {
        fill_memory(&background.path, fill)?;
    }
    fadvise(&file, 0, None, Advice::Random).at("advise random reads of", &background.path)?;
    beside(&file, &written, background, run)
}

/// Reads `left` bytes of a file, starting over at its end.
fn fill_memory(path: &Path, mut left: u64) -> Result<()> {
    while left > 0 {
        let file = File::open(path).at("read", path)?;
        match std::io::copy(&mut file.take(left), &mut std::io::sink()).at("read", path)? {
            0 => break,
            read => left -= read,
        }
    }
    Ok(())
}

/// Calls `run` while threads read random pages of `file` and copy them into `written`. A failed read or write is an error.
fn beside<T>(
    file: &File,
    written: &File,
    background: &Background,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
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
                    let offset = rng.below(pages) * PAGE as u64;
                    file.read_at(&mut page, offset)?;
                    written.write_all_at(&page, offset)?;
                    due += STEP * READERS;
                }
            }));
        }
        std::thread::sleep((AHEAD + phase).saturating_sub(begin.elapsed()));
        let done = run();
        drop(ends);
        for reader in readers {
            match reader.join() {
                Ok(done) => done.at("read or write", &background.path)?,
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

/// Returns the first 200 bytes of the output, with its lines joined by semicolons.
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
    fn background_threads_end_with_the_program_and_write_what_they_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 3 * PAGE]).unwrap();
        let background = Background {
            path: path.clone(),
            length: 3 * PAGE as u64,
            written: folder.path().join("written"),
            seed: 1,
        };
        let file = File::open(&path).unwrap();
        let written = File::create(&background.written).unwrap();
        assert_eq!(beside(&file, &written, &background, || Ok(5)).unwrap(), 5);
        let copy = std::fs::read(&background.written).unwrap();
        assert!(copy.contains(&7), "pages are written, too");
        // A file that cannot be read causes an error.
        let folder = File::open(folder.path()).unwrap();
        let error = beside(&folder, &written, &background, || Ok(5)).unwrap_err();
        assert!(error.to_string().contains("read or write"), "{error}");
        fill_memory(&path, 8 * PAGE as u64).unwrap();
    }

    #[test]
    fn the_rate_is_that_of_the_paper() {
        assert_eq!(STEP.as_nanos() * 64, 1_000_000_000);
    }
}
