//! How a cluster is decoded: four ways, and which one when.

use std::fmt;
use std::str::FromStr;

/// A way to decode a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// The whole extent into one run of memory: the caller's buffer where all of it is asked for, otherwise a cached
    /// one.
    Gathered,
    /// As far as needed into a buffer of the thread, from which the part that is asked for is copied.
    Buffer,
    /// Through a window of 64 KiB, as far as needed: nothing in front of the part that is asked for is kept.
    Rolling,
    /// Compressed bytes are read into the end of the output and decoded there.
    InPlace,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gathered, Self::Buffer, Self::Rolling, Self::InPlace];

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gathered => "gathered",
            Self::Buffer => "buffer",
            Self::Rolling => "rolling",
            Self::InPlace => "in-place",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == s);
        found.ok_or_else(|| {
            format!("{s:?} is no strategy: expected gathered, buffer, rolling or in-place")
        })
    }
}
