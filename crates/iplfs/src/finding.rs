//! Findings of a check, and changes made by a repair.

use std::fmt;

/// Inconsistency found by a check, or change made by a repair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Structure or path that the finding is about.
    pub place: String,
    /// Value found and value expected, or the change made.
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
