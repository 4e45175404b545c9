//! Where a verb writes a stream: as it comes to standard output and to pipes, or into a file that has its name when it is
//! complete.

use crate::out;
use crate::overwrite::{self, Format};
use crate::progress::on_signal;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tuff_erofs::{Error, Result};
use tuff_store::{Output, Target, is_same, retry, takes_stream};

/// A stream's end. [`finish`](Self::finish) it; dropped before, it leaves no file.
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
    /// Opens `path`; `-` is standard output. While a file is written, ^C and SIGTERM end it with nothing left. It takes the
    /// place of nothing in `read`, and of nothing but `format` unless `force`.
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
        let failed = |e| Error::io(&place, "cannot create", e);
        let mut stop = Arc::default();
        let to = if is_stdout {
            To::Stdout(io::stdout())
        } else if takes_stream(path) {
            To::Stream(OpenOptions::new().write(true).open(path).map_err(failed)?)
        } else {
            // Before there is anything that a signal would leave behind.
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

    /// What errors name.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// The error that an error of a write, or one that followed from it, is to be told as: that the work was stopped, if
    /// it was.
    pub(crate) fn told(&self, e: Error) -> Error {
        if self.stop.load(Relaxed) {
            return Error::io(&self.place, "stopped", io::ErrorKind::Interrupted.into());
        }
        e
    }

    /// The same for a write's own error.
    pub(crate) fn failed(&self, e: io::Error) -> Error {
        self.told(Error::io(&self.place, "cannot write", e))
    }

    /// All is written: gives a file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.to.flush().map_err(|e| self.failed(e))?;
        let (to, _) = self.to.into_parts();
        if let To::File { output, len, .. } = to {
            let failed = |e| Error::io(&self.place, "cannot finish", e);
            output.finish(len, false).map_err(failed)?;
        }
        Ok(())
    }
}

/// Fails if a file `path` would take the place of one of `read`, or of something in a directory of them.
pub(crate) fn keep(path: &Path, read: &[&Path]) -> Result<()> {
    let is_file = path != Path::new("-") && !takes_stream(path);
    if is_file && read.iter().any(|read| takes_place(path, read)) {
        return Err(Error::usage(format_args!(
            "{}: what is written cannot take the place of what is read",
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
    // Where a link leads, or where the file will be.
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
            // Not `Interrupted`: a writer would try again.
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
