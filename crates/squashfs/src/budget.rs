//! Limits on the work and memory that an image may take in all.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Remainder of a limit that is proportional to the length of the image. Threads share it.
pub(crate) struct Budget {
    left: AtomicU64,
    max: u64,
    what: &'static str,
}

impl Budget {
    /// Allows `per_byte` units per byte of the image, and at least `min`.
    pub(crate) fn new(what: &'static str, image_len: u64, per_byte: u64, min: u64) -> Self {
        let max = image_len.saturating_mul(per_byte).max(min);
        Self {
            left: max.into(),
            max,
            what,
        }
    }

    /// Deducts `n` from the remainder.
    pub(crate) fn take(&self, n: u64) -> Result<()> {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(n)
            });
        match taken {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Limit(format!(
                "more than {} {} for an image of its length",
                self.max, self.what
            ))),
        }
    }
}
