//! Standard output: buffered, and quiet when its reader goes away.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};
use tuff_erofs::{Error, Result};

/// The place that errors of standard output name.
pub(crate) const PLACE: &str = "standard output";

/// Standard output. [`finish`](Self::finish) it.
pub(crate) struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    /// Takes standard output.
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout().lock()))
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        writeln!(self.0, "{line}").map_err(failed)
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(failed)
    }

    /// Writes what is still in memory.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }
}

fn failed(e: io::Error) -> Error {
    Error::io(PLACE, "cannot write", e)
}

/// True if the reader of standard output has seen enough: no failure of ours.
pub(crate) fn reader_left(e: &Error) -> bool {
    matches!(e, Error::Io(_, io) if io.kind() == io::ErrorKind::BrokenPipe)
}
