//! Standard output: buffered, and quiet when its reader goes away.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};
use tuff_erofs::{Error, Result};

/// Name of standard output in errors.
pub(crate) const PLACE: &str = "standard output";

/// Buffered standard output. Call [`finish`](Self::finish) at the end.
pub(crate) struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    /// Locks standard output for this value.
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout().lock()))
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        writeln!(self.0, "{line}").map_err(failed)
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(failed)
    }

    /// Writes what is buffered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }

    /// Writes the rest of the buffer.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }
}

fn failed(e: io::Error) -> Error {
    Error::io(PLACE, "cannot write", e)
}

/// Returns true if the reader of standard output closed it early, which is not a failure.
pub(crate) fn reader_left(e: &Error) -> bool {
    matches!(e, Error::Io(_, io) if io.kind() == io::ErrorKind::BrokenPipe)
}
