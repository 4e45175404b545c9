//! How many files may be open at once.

use rustix::process::{Resource, getrlimit};

/// Half of what this process may have; the rest is for others. More than `most` is of no use.
pub(crate) fn half(most: u64) -> u64 {
    (getrlimit(Resource::Nofile).current.unwrap_or(1024) / 2).min(most)
}
