//! What can be wrong with bytes that claim to be EROFS.

use core::fmt;

/// The two ways in which bytes cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They break a rule of the format.
    Corrupt,
    /// They follow a rule that this version does not know.
    Unsupported,
}

/// One broken rule: what, what was found, what was expected. The caller adds the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Damaged, or merely unknown.
    pub kind: Kind,
    /// A noun phrase: which field or rule.
    pub what: &'static str,
    /// The value found, if one number says it.
    pub found: Option<u64>,
    /// What would have been right. May be empty.
    pub expected: &'static str,
}

/// Result of every decoder of this crate.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// A broken rule without a telling number.
    pub const fn corrupt(what: &'static str) -> Self {
        Self {
            kind: Kind::Corrupt,
            what,
            found: None,
            expected: "",
        }
    }

    /// A broken rule with the number that breaks it.
    pub const fn bad(what: &'static str, found: u64, expected: &'static str) -> Self {
        Self {
            kind: Kind::Corrupt,
            what,
            found: Some(found),
            expected,
        }
    }

    /// A value that this version does not know.
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
