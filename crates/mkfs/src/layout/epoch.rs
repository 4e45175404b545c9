//! Base time of compact inodes.

/// The time that compact inodes have, or count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Seconds since 1970.
    pub(crate) seconds: i64,
    /// Nanoseconds, the same for all compact inodes.
    pub(crate) nanos: u32,
    /// A compact inode may say how many seconds later its own time is.
    pub(super) counts: bool,
}

impl Epoch {
    /// What a compact inode with this time says of it. `None`: it cannot. Unit: seconds.
    pub(crate) fn delay(self, (seconds, nanos): (i64, u32)) -> Option<u32> {
        let delay = u32::try_from(seconds.checked_sub(self.seconds)?).ok()?;
        (nanos == self.nanos && (self.counts || delay == 0)).then_some(delay)
    }
}
