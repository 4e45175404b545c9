//! Error type of all decoders.

use core::fmt;

/// Category of a decoding error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes violate a rule of the format.
    Corrupt,
    /// The bytes use a part of the format that this version does not support.
    Unsupported,
}

/// Violated rule: the field, the value found and the value expected. The caller adds the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Category: corrupt or unsupported.
    pub kind: Kind,
    /// Noun phrase that names the field or rule.
    pub what: &'static str,
    /// Value found, for errors about a number.
    pub found: Option<u64>,
    /// Description of valid values. May be empty.
    pub expected: &'static str,
}

/// Result of the decoders in this crate.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// Creates an error for a violated rule, without a value.
    pub const fn corrupt(what: &'static str) -> Self {
        Self {
            kind: Kind::Corrupt,
            what,
            found: None,
            expected: "",
        }
    }

    /// Creates an error for an invalid value.
    pub const fn bad(what: &'static str, found: u64, expected: &'static str) -> Self {
        Self {
            kind: Kind::Corrupt,
            what,
            found: Some(found),
            expected,
        }
    }

    /// Creates an error for a value that this version does not support.
    pub const fn unsupported(what: &'static str, found: u64) -> Self {
        Self {
            kind: Kind::Unsupported,
            what,
            found: Some(found),
            expected: "",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        match (self.kind, self.found) {
            (Kind::Unsupported, Some(found)) => {
                write!(f, " {found:#x} is not known to this version")?
            }
            (Kind::Unsupported, None) => f.write_str(" is not known to this version")?,
            (Kind::Corrupt, Some(found)) if self.expected.starts_with("0x") => {
                write!(f, ": found {found:#x}")?
            }
            (Kind::Corrupt, Some(found)) => write!(f, ": found {found}")?,
            (Kind::Corrupt, None) => {}
        }
        if !self.expected.is_empty() {
            write!(f, ", expected {}", self.expected)?;
        }
        Ok(())
    }
}

impl core::error::Error for Error {}
