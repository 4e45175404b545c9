//! Standard output: buffered, and quiet when its reader goes away.

use crate::text::{self, Line};
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::process::ExitCode;
use tuff_erofs::{Error, Result};

/// Writes a line of a name, padded to a width, and a value: `field!(out, 9, "size" => "{} bytes", bytes)`.
macro_rules! field {
    ($out:expr, $width:literal, $name:expr => $($value:tt)+) => {
        $out.line(format_args!("{:<width$} {}", $name, format_args!($($value)+), width = $width))
    };
}
pub(crate) use field;

/// Name of standard output in errors.
pub(crate) const PLACE: &str = "standard output";

/// Buffered standard output. Call [`finish`](Self::finish) at the end.
pub(crate) struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    /// Locks standard output for this value.
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout().lock()))
    }

    /// Writes a line of text, in which hidden characters are escaped.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        let mut to = ToIo {
            out: &mut self.0,
            error: None,
        };
        match write!(Line(&mut to), "{line}") {
            Ok(()) => self.bytes(b"\n"),
            Err(fmt::Error) => Err(failed(to.error.unwrap_or(io::ErrorKind::Other.into()))),
        }
    }

    /// Writes lines of text that end with a line feed.
    pub(crate) fn lines(&mut self, text: &str) -> Result<()> {
        text.lines().try_for_each(|line| self.line(line))
    }

    /// Writes a value as a line of JSON.
    pub(crate) fn json(&mut self, value: &Value) -> Result<()> {
        self.line(text::json(value))
    }

    /// Writes bytes as they are: content, or text of the program itself.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(failed)
    }

    /// Writes what is buffered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }

    /// Writes the rest of the buffer. Returns the exit code of success.
    pub(crate) fn finish(mut self) -> Result<ExitCode> {
        self.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writer of text that keeps the error of the stream.
struct ToIo<'a, W> {
    out: &'a mut W,
    error: Option<io::Error>,
}

impl<W: Write> fmt::Write for ToIo<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|e| {
            self.error = Some(e);
            fmt::Error
        })
    }
}

/// Writes a line to standard error, in which hidden characters are escaped. If that fails, such as on a full disk, only the exit
/// code remains.
pub(crate) fn error_line(line: impl fmt::Display) {
    let mut text = text::escaped_line(line);
    text.push('\n');
    let _ = io::stderr().write_all(text.as_bytes());
}

fn failed(e: io::Error) -> Error {
    Error::io(PLACE, "cannot write", e)
}

/// Returns true if the reader of standard output closed it early, which is not a failure.
pub(crate) fn reader_left(e: &Error) -> bool {
    matches!(e, Error::Io(_, io) if io.kind() == io::ErrorKind::BrokenPipe)
}
