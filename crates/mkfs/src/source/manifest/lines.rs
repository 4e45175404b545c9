//! Logical lines of a manifest: comments and empty lines removed, continued lines joined.

use super::super::error::SourceError;
use std::io::{BufRead, BufReader, Read};

/// Maximum length of a logical line. Unit: bytes.
///
/// The largest xattrs that an image can hold need a quarter of it.
const LINE_BYTES_MAX: usize = 4 << 20;

/// Logical line that is neither empty nor a comment.
pub(super) struct Line {
    /// Number of its first physical line, counted from 1.
    pub(super) number: u64,
    pub(super) text: Vec<u8>,
}

impl Line {
    /// Words separated by blanks. Every line from [`Lines::next_line`] has at least one.
    pub(super) fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.text
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
    }
}

pub(super) struct Lines<R> {
    inner: BufReader<R>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            inner: BufReader::new(reader),
            number: 0,
        }
    }

    /// Returns the next line that is neither empty nor a comment.
    pub(super) fn next_line(&mut self) -> Result<Option<Line>, SourceError> {
        loop {
            let mut text = Vec::new();
            if !self.append_physical(&mut text)? {
                return Ok(None);
            }
            let number = self.number;
            match text.trim_ascii_start().first() {
                None | Some(b'#') => continue,
                Some(_) => {}
            }
            while ends_in_backslash(&text) {
                text.pop();
                if !self.append_physical(&mut text)? {
                    return Err(SourceError::corrupt(
                        "line ends in a backslash, expected another line after it",
                    )
                    .at_line(self.number));
                }
            }
            let line = Line { number, text };
            if line.words().next().is_some() {
                return Ok(Some(line));
            }
        }
    }

    /// Appends one physical line without its newline. Returns `false` at the end.
    fn append_physical(&mut self, text: &mut Vec<u8>) -> Result<bool, SourceError> {
        self.number += 1;
        let remaining = LINE_BYTES_MAX + 1 - text.len();
        let got = (&mut self.inner)
            .take(remaining as u64)
            .read_until(b'\n', text)
            .map_err(|e| SourceError::from(e).at_line(self.number))?;
        if text.len() > LINE_BYTES_MAX {
            return Err(
                SourceError::limit(format!("line has more than {LINE_BYTES_MAX} bytes"))
                    .at_line(self.number),
            );
        }
        if text.ends_with(b"\n") {
            text.pop();
            if text.ends_with(b"\r") {
                text.pop();
            }
        }
        Ok(got > 0)
    }
}

/// True if the last backslash is not itself escaped.
fn ends_in_backslash(text: &[u8]) -> bool {
    let backslashes = text.iter().rev().take_while(|&&c| c == b'\\').count();
    backslashes % 2 == 1
}
