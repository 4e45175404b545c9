//! Streams that may stall: a stop request ends a read that waits for data.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between two checks for a stop request.
const STOP_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Time that a pipe may be without a writer.
const WRITER_TIMEOUT: Duration = Duration::from_secs(5);

/// File or pipe whose reads fail after a stop request.
pub(super) struct StoppableReader {
    file: File,
    stop: Arc<AtomicBool>,
    /// Time until which a pipe must get a writer. `None` if it had one, or if it was opened
    /// elsewhere.
    writer_by: Option<Instant>,
}

impl StoppableReader {
    pub(super) fn new(file: File, stop: Arc<AtomicBool>) -> Self {
        let writer_by = tuff_store::is_nonblocking(&file).then(|| Instant::now() + WRITER_TIMEOUT);
        Self {
            file,
            stop,
            writer_by,
        }
    }
}

impl Read for StoppableReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                // Not `Interrupted`: the caller would retry.
                return Err(io::Error::other("stopped"));
            }
            // A pipe without a writer is not at its end but not ready.
            let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ready, Some(&STOP_CHECK_INTERVAL)) {
                // Reading from a pipe without a writer returns 0, as at its end; with a writer that
                // has sent nothing yet it would block.
                Ok(0) if self.writer_by.is_some() => {}
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
            let is_ready = !ready[0].revents().is_empty();
            match self.file.read(buf) {
                Ok(0) if !is_ready => {
                    if self.writer_by.is_some_and(|by| Instant::now() >= by) {
                        return Err(no_writer());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writer_by = None,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => {
                    self.writer_by = None;
                    return done;
                }
            }
        }
    }
}

fn no_writer() -> io::Error {
    let what = "no program has the pipe open for writing; give a stream as standard input, with - as the source";
    io::Error::new(io::ErrorKind::TimedOut, what)
}

#[cfg(test)]
mod tests {
    use crate::{Options, Progress, Source, build};
    use std::io::Write;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;
    use tuff_store::Target;

    /// Regression: a build from a pipe without a writer waited for ever.
    #[test]
    fn a_pipe_without_a_writer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
        let target = Target::Path(dir.path().join("image"));
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let sources = [Source::Tar(pipe)];
            let result = build(&sources, &Options::default(), &target, &Progress::default());
            let _ = done.send(result.map(drop));
        });
        let result = ended.recv_timeout(Duration::from_secs(60));
        let error = result.expect("the build waits").unwrap_err().to_string();
        assert!(
            error.contains("standard input, with - as the source"),
            "{error}"
        );
    }

    /// Regression: a build that waited for a pipe ignored ^C, because it checked for a stop request
    /// only between members.
    #[test]
    fn a_build_that_waits_for_a_pipe_can_be_stopped() {
        for begins in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (pipe, image) = (dir.path().join("pipe"), dir.path().join("image"));
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
            let progress = Arc::new(Progress::default());
            let (done, ended) = mpsc::channel();
            let (at_work, from) = (Arc::clone(&progress), pipe.clone());
            std::thread::spawn(move || {
                let options = Options::default();
                let result = build(
                    &[Source::Tar(from)],
                    &options,
                    &Target::Path(image),
                    &at_work,
                );
                let _ = done.send(result.map(drop));
            });
            let mut writer = begins.then(|| std::fs::File::create(&pipe).unwrap());
            if let Some(writer) = &mut writer {
                // More than a pipe holds: it is written completely only if the build reads.
                let mut head = [0; 512];
                head[..4].copy_from_slice(b"file");
                head[100..107].copy_from_slice(b"0000644");
                head[124..135].copy_from_slice(b"00010000000");
                head[156] = b'0';
                head[257..263].copy_from_slice(b"ustar\0");
                head[148..156].fill(b' ');
                let sum: u32 = head.iter().map(|b| u32::from(*b)).sum();
                head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
                writer.write_all(&head).unwrap();
                writer.write_all(&[b'x'; 1 << 18]).unwrap();
            }
            progress.stop();
            let result = ended.recv_timeout(Duration::from_secs(60));
            let error = result.expect("the build waits").unwrap_err();
            assert!(error.to_string().contains("stopped"), "{error}");
            assert!(
                matches!(&error, crate::Error::Io(_, e) if e.kind() == std::io::ErrorKind::Interrupted),
                "{error}"
            );
        }
    }
}
