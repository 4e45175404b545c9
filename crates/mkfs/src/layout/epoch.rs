//! Base time of compact inodes.

use crate::options::{Metadata, Options};
use tuff_format::superblock::Superblock;

/// Base time of compact inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Seconds since the start of 1970.
    pub(crate) seconds: i64,
    /// Nanoseconds of all compact inodes.
    pub(crate) nanos: u32,
    /// Compact inodes store the number of seconds after the base time.
    pub(super) counts: bool,
}

/// Returns the base time of an image for further inodes.
pub(crate) fn old_epoch(sb: &Superblock, options: &Options) -> Epoch {
    Epoch {
        seconds: sb.epoch,
        nanos: sb.fixed_nsec,
        counts: options.metadata.form != Metadata::Plain,
    }
}

impl Epoch {
    /// Returns the seconds after the base time that a compact inode with this time stores. `None` if it needs an
    /// extended inode.
    pub(crate) fn delay(self, (seconds, nanos): (i64, u32)) -> Option<u32> {
        let delay = u32::try_from(seconds.checked_sub(self.seconds)?).ok()?;
        (nanos == self.nanos && (self.counts || delay == 0)).then_some(delay)
    }
}
