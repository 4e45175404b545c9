//! Streams that may have nothing for a long time: whoever waits for them can be stopped.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long nobody looks whether to stop.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Time that a pipe may be without a writer.
const WRITER_PATIENCE: Duration = Duration::from_secs(5);

/// A file or pipe whose reader ends with an error when it is to stop.
pub(super) struct Waiting {
    file: File,
    stop: Arc<AtomicBool>,
    /// When a pipe must have a writer. `None`: it had one, or is none that was opened here.
    writer_by: Option<Instant>,
}

impl Waiting {
    pub(super) fn new(file: File, stop: Arc<AtomicBool>) -> Self {
        let writer_by = tuff_store::is_nonblocking(&file).then(|| Instant::now() + WRITER_PATIENCE);
        Self {
            file,
            stop,
            writer_by,
        }
    }
}

impl Read for Waiting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                // Not `Interrupted`: a reader would try again.
                return Err(io::Error::other("stopped"));
            }
            // A pipe that nobody has opened for writing is not at its end: it is not ready.
            let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ready, Some(&PATIENCE)) {
                // A pipe without a writer reads as one that is at its end; with a writer that has nothing yet it would block.
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

    /// Seen: a build that waited for a pipe ignored ^C. Cause: it looked whether to stop between two members only.
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
                // More than a pipe holds: all of it is written when the build reads.
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
