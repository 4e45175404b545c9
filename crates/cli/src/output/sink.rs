//! Output of a stream: directly to standard output or a pipe, or to a file that gets its name when it is complete.

use crate::out;
use crate::overwrite::{self, Format};
use crate::progress::on_signal;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tuff_erofs::{Error, Place, Result};
use tuff_store::{Output, Target, is_same, retry, takes_stream};

/// Output of a stream. Without a call of [`finish`](Self::finish) it leaves no file.
pub(crate) struct Sink {
    place: String,
    to: BufWriter<To>,
    stop: Arc<AtomicBool>,
}

enum To {
    Stdout(io::Stdout),
    /// A pipe or a character device.
    Stream(File),
    File {
        output: Output,
        len: u64,
        stop: Arc<AtomicBool>,
    },
}

impl Sink {
    /// Opens `path`; `-` is standard output. ^C and SIGTERM stop the output to a file without leaving one. The output
    /// replaces none of the files in `read`, and without `force` only a file of `format`.
    pub(crate) fn create(path: &Path, read: &[&Path], format: Format, force: bool) -> Result<Self> {
        keep(path, read)?;
        if !force {
            overwrite::check(path, format)?;
        }
        let is_stdout = path == Path::new("-");
        let place = if is_stdout {
            out::PLACE.to_owned()
        } else {
            path.display().to_string()
        };
        let failed = |e| Error::io(Place::file(&place), "cannot create", e);
        let mut stop = Arc::default();
        let to = if is_stdout {
            To::Stdout(io::stdout())
        } else if takes_stream(path) {
            To::Stream(OpenOptions::new().write(true).open(path).map_err(failed)?)
        } else {
            // The handler is registered before anything exists that a signal would leave.
            stop = on_signal();
            let output = Output::create(&Target::Path(path.to_owned())).map_err(failed)?;
            let stop = Arc::clone(&stop);
            To::File {
                output,
                len: 0,
                stop,
            }
        };
        let to = BufWriter::with_capacity(1 << 20, to);
        Ok(Self { place, to, stop })
    }

    /// Name of the output in errors.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Returns the error to report for `e`: that the work was stopped, if it was.
    pub(crate) fn stop_or(&self, e: Error) -> Error {
        if self.stop.load(Relaxed) {
            return Error::io(
                Place::file(&self.place),
                "stopped",
                io::ErrorKind::Interrupted.into(),
            );
        }
        e
    }

    /// Returns the error to report for a failed write.
    pub(crate) fn failed(&self, e: io::Error) -> Error {
        self.stop_or(Error::io(Place::file(&self.place), "cannot write", e))
    }

    /// Flushes the output, and gives a file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.to.flush().map_err(|e| self.failed(e))?;
        let (to, _) = self.to.into_parts();
        if let To::File { output, len, .. } = to {
            let failed = |e| Error::io(Place::file(&self.place), "cannot finish", e);
            output.finish(len, false).map_err(failed)?;
        }
        Ok(())
    }
}

/// Fails if the file `path` would replace one of `read`, or lie in one of these directories.
pub(crate) fn keep(path: &Path, read: &[&Path]) -> Result<()> {
    let is_file = path != Path::new("-") && !takes_stream(path);
    if is_file && read.iter().any(|read| takes_place(path, read)) {
        return Err(Error::usage(format_args!(
            "{}: the output cannot replace a file that is read",
            path.display()
        )));
    }
    Ok(())
}

fn takes_place(path: &Path, read: &Path) -> bool {
    if !retry(|| read.metadata()).is_ok_and(|m| m.is_dir()) {
        return is_same(path, read);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    // Target of a link, or the path of the new file.
    let real = |path: &Path| retry(|| path.canonicalize());
    let place = real(path).or_else(|_| real(dir));
    let within = |place: PathBuf| real(read).is_ok_and(|dir| place.starts_with(dir));
    place.is_ok_and(within)
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Write for To {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::Stream(file) => file.write(bytes),
            // Not `Interrupted`, which writers retry.
            Self::File { stop, .. } if stop.load(Relaxed) => Err(io::Error::other("stopped")),
            Self::File { output, len, .. } => {
                output.write_at(bytes, *len)?;
                *len += bytes.len() as u64;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::Stream(file) => file.flush(),
            Self::File { .. } => Ok(()),
        }
    }
}
