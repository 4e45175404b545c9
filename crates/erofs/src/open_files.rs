//! Limit on the number of files that are open at once.

use rustix::process::{Resource, getrlimit};

/// Returns half of this process's limit on open files, at most `most`. The other half is left to the rest of the
/// process.
pub(crate) fn half(most: u64) -> u64 {
    (getrlimit(Resource::Nofile).current.unwrap_or(1024) / 2).min(most)
}
