//! Errors of sources, each with its place in the source.

use crate::Place;
use std::fmt;
use std::io;

/// Category of an error, for callers that treat them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceErrorKind {
    /// The source breaks its own format.
    Corrupt,
    /// The source uses an unknown feature.
    Unsupported,
    /// A named limit was exceeded.
    Limit,
    /// The operating system reported a read error.
    Io,
    /// The request is invalid.
    Usage,
}

/// Error while reading a source.
///
/// It is displayed as `SOURCE: byte N: member "PATH": cause`; unknown parts are left out. Byte
/// positions in a compressed tar count decompressed bytes.
pub struct SourceError(Box<ErrorDetail>);

struct ErrorDetail {
    kind: SourceErrorKind,
    source: Option<String>,
    place: Option<ErrorPlace>,
    member: Option<Vec<u8>>,
    what: String,
    cause: Option<io::Error>,
}

#[derive(Clone, Copy)]
enum ErrorPlace {
    Byte(u64),
    Line(u64),
}

impl SourceError {
    /// Creates an error without a place. `what` starts in lower case and ends without a period.
    pub fn new(kind: SourceErrorKind, what: impl Into<String>) -> Self {
        Self(Box::new(ErrorDetail {
            kind,
            source: None,
            place: None,
            member: None,
            what: what.into(),
            cause: None,
        }))
    }

    /// [`SourceErrorKind::Corrupt`]: the source breaks its own format.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Corrupt, what)
    }

    /// [`SourceErrorKind::Unsupported`]: the source uses an unknown feature.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Unsupported, what)
    }

    /// [`SourceErrorKind::Limit`]: a named limit was exceeded.
    pub fn limit(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Limit, what)
    }

    /// [`SourceErrorKind::Usage`]: the request is invalid.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Usage, what)
    }

    /// [`SourceErrorKind::Io`]: `what` failed because of `cause`.
    pub fn io(what: impl Into<String>, cause: io::Error) -> Self {
        let mut error = Self::new(SourceErrorKind::Io, what);
        error.0.cause = Some(cause);
        error
    }

    /// Adds the name of the source, unless it has one already.
    #[must_use]
    pub fn in_source(mut self, name: &str) -> Self {
        self.0.source.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Adds a byte position, unless the error has a place already.
    #[must_use]
    pub fn at_byte(mut self, byte: u64) -> Self {
        self.0.place.get_or_insert(ErrorPlace::Byte(byte));
        self
    }

    /// Adds a line number, counted from 1, unless the error has a place already.
    #[must_use]
    pub fn at_line(mut self, line: u64) -> Self {
        self.0.place.get_or_insert(ErrorPlace::Line(line));
        self
    }

    /// Adds the path of the member, unless it has one already.
    #[must_use]
    pub fn in_member(mut self, path: &[u8]) -> Self {
        self.0.member.get_or_insert_with(|| path.to_vec());
        self
    }

    /// Category of the error.
    pub fn kind(&self) -> SourceErrorKind {
        self.0.kind
    }

    /// Byte position in the source, if it is an archive. Unit: bytes.
    pub fn byte(&self) -> Option<u64> {
        match self.0.place {
            Some(ErrorPlace::Byte(byte)) => Some(byte),
            _ => None,
        }
    }

    /// Line in the source, if it is a manifest. Counted from 1.
    pub fn line(&self) -> Option<u64> {
        match self.0.place {
            Some(ErrorPlace::Line(line)) => Some(line),
            _ => None,
        }
    }

    /// Path of the member that was read.
    pub fn member(&self) -> Option<&[u8]> {
        self.0.member.as_deref()
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = &*self.0;
        if let Some(source) = &detail.source {
            write!(f, "{source}: ")?;
        }
        match detail.place {
            Some(ErrorPlace::Byte(byte)) => write!(f, "byte {byte}: ")?,
            Some(ErrorPlace::Line(line)) => write!(f, "line {line}: ")?,
            None => {}
        }
        if let Some(member) = &detail.member {
            write!(f, "member {}: ", Quoted(member))?;
        }
        f.write_str(&detail.what)?;
        if let Some(cause) = &detail.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0
            .cause
            .as_ref()
            .map(|cause| cause as &(dyn std::error::Error + 'static))
    }
}

/// A member's data is read through [`io::Read`], which returns only [`io::Error`]. This extracts
/// the source error from it.
impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<SourceError>() {
            Ok(inner) => inner,
            Err(other) => Self::io("cannot read", other),
        }
    }
}

impl From<SourceError> for io::Error {
    fn from(error: SourceError) -> Self {
        let kind = match error.kind() {
            SourceErrorKind::Corrupt => io::ErrorKind::InvalidData,
            SourceErrorKind::Unsupported => io::ErrorKind::Unsupported,
            SourceErrorKind::Limit => io::ErrorKind::QuotaExceeded,
            SourceErrorKind::Io => match &error.0.cause {
                Some(cause) => cause.kind(),
                None => io::ErrorKind::Other,
            },
            SourceErrorKind::Usage => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

/// Bytes of a source, quoted for a message: invalid UTF-8 is escaped, and long names are cut.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

/// Maximum number of bytes that a message shows of a name.
const QUOTED_BYTES_MAX: usize = 256;

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(QUOTED_BYTES_MAX)];
        f.write_str("\"")?;
        for chunk in shown.utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        f.write_str("\"")?;
        if shown.len() < self.0.len() {
            write!(f, "... ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl From<SourceError> for tuff_erofs::Error {
    fn from(mut error: SourceError) -> Self {
        if error.kind() == SourceErrorKind::Io {
            // The message of `error` states the cause.
            return Self::io("", "cannot read the source", io::Error::other(error));
        }
        let source = error.0.source.take();
        let this = match error.kind() {
            SourceErrorKind::Limit => Self::limit("", &error),
            SourceErrorKind::Usage => Self::usage(&error),
            _ => Self::source(&error),
        };
        match source {
            Some(source) => this.within(Place::file(source)),
            None => this,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_source_place_and_member() {
        let error = SourceError::corrupt("stored bytes end early, expected 10, found 3")
            .in_member(b"usr/bin/\xffx\n")
            .at_byte(512)
            .in_source("layer.tar");
        assert_eq!(
            error.to_string(),
            "layer.tar: byte 512: member \"usr/bin/\\xffx\\n\": stored bytes end early, expected 10, found 3"
        );
    }

    #[test]
    fn context_that_is_known_is_not_replaced() {
        let error = SourceError::corrupt("x")
            .at_byte(1)
            .at_byte(2)
            .in_source("a")
            .in_source("b");
        assert_eq!(error.to_string(), "a: byte 1: x");
    }

    #[test]
    fn a_source_error_survives_the_way_through_an_io_error() {
        let error = io::Error::from(SourceError::limit("too long").at_line(3));
        let back = SourceError::from(error);
        assert_eq!(
            (back.kind(), back.line()),
            (SourceErrorKind::Limit, Some(3))
        );
    }

    #[test]
    fn long_names_are_cut() {
        let text = Quoted(&[b'a'; 1000]).to_string();
        assert!(text.len() < 300);
        assert!(text.ends_with("(1000 bytes)"));
    }
}
