//! What can go wrong while a source is read, said in one sentence that names the place.

use std::fmt;
use std::io;

/// The five cases that a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceErrorKind {
    /// The source breaks its own format.
    Corrupt,
    /// The source uses something that is not known here.
    Unsupported,
    /// A named limit was exceeded.
    Limit,
    /// The operating system could not read.
    Io,
    /// The caller asked for something that makes no sense.
    Usage,
}

/// A source could not be read.
///
/// Printed as `SOURCE: byte N: member "PATH": what is wrong`; parts that are not known are left out. Byte positions in
/// a compressed tar count decompressed bytes.
pub struct SourceError(Box<Detail>);

struct Detail {
    kind: SourceErrorKind,
    source: Option<String>,
    place: Option<Place>,
    member: Option<Vec<u8>>,
    what: String,
    cause: Option<io::Error>,
}

#[derive(Clone, Copy)]
enum Place {
    Byte(u64),
    Line(u64),
}

impl SourceError {
    /// An error that knows no place yet. `what` starts in lower case and ends without a period.
    pub fn new(kind: SourceErrorKind, what: impl Into<String>) -> Self {
        Self(Box::new(Detail {
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

    /// [`SourceErrorKind::Unsupported`]: the source uses something that is not known here.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Unsupported, what)
    }

    /// [`SourceErrorKind::Limit`]: a named limit was exceeded.
    pub fn limit(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Limit, what)
    }

    /// [`SourceErrorKind::Usage`]: the caller asked for something that makes no sense.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(SourceErrorKind::Usage, what)
    }

    /// [`SourceErrorKind::Io`]: `what` could not be done because of `cause`.
    pub fn io(what: impl Into<String>, cause: io::Error) -> Self {
        let mut error = Self::new(SourceErrorKind::Io, what);
        error.0.cause = Some(cause);
        error
    }

    /// Adds the name of the source, unless it is known already.
    #[must_use]
    pub fn in_source(mut self, name: &str) -> Self {
        self.0.source.get_or_insert_with(|| name.to_owned());
        self
    }

    /// Adds a byte position, unless a place is known already.
    #[must_use]
    pub fn at_byte(mut self, byte: u64) -> Self {
        self.0.place.get_or_insert(Place::Byte(byte));
        self
    }

    /// Adds a line number, counted from 1, unless a place is known already.
    #[must_use]
    pub fn at_line(mut self, line: u64) -> Self {
        self.0.place.get_or_insert(Place::Line(line));
        self
    }

    /// Adds the path of the member, unless it is known already.
    #[must_use]
    pub fn in_member(mut self, path: &[u8]) -> Self {
        self.0.member.get_or_insert_with(|| path.to_vec());
        self
    }

    /// Which of the five cases this is.
    pub fn kind(&self) -> SourceErrorKind {
        self.0.kind
    }

    /// Where in the source, if it is a tar. Unit: bytes.
    pub fn byte(&self) -> Option<u64> {
        match self.0.place {
            Some(Place::Byte(byte)) => Some(byte),
            _ => None,
        }
    }

    /// Where in the source, if it is a manifest. Counted from 1.
    pub fn line(&self) -> Option<u64> {
        match self.0.place {
            Some(Place::Line(line)) => Some(line),
            _ => None,
        }
    }

    /// The member or path that was being read.
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
            Some(Place::Byte(byte)) => write!(f, "byte {byte}: ")?,
            Some(Place::Line(line)) => write!(f, "line {line}: ")?,
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

/// A member's data is read through [`io::Read`], which can only carry an [`io::Error`]. This takes the error out again.
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

/// Bytes of a source, quoted for a message: text as text, other bytes escaped, long ones cut.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

/// More than this of a name does not help anyone who reads a message.
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

impl From<SourceError> for tuff_erofs::Error {
    fn from(error: SourceError) -> Self {
        match error.kind() {
            SourceErrorKind::Corrupt | SourceErrorKind::Unsupported => Self::source(&error),
            SourceErrorKind::Limit => Self::limit("", &error),
            SourceErrorKind::Usage => Self::usage(&error),
            // The message of `error` states the cause.
            SourceErrorKind::Io => {
                Self::io("", "cannot read the source", std::io::Error::other(error))
            }
        }
    }
}
