//! One thing that is wrong with a volume, or that a repair did.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where.
    pub place: String,
    /// The value found and the value expected.
    pub what: String,
}

impl Finding {
    pub(crate) fn new(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self {
            place: place.to_string(),
            what: what.to_string(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
