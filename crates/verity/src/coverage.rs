//! Decision which bytes of a store digests cover. It is made here alone, for every kind of store and of digest.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tuff_store::ReadAt;

/// Place of a hash tree: its store, and the position of its header there.
#[derive(Clone)]
pub struct TreePlace {
    pub(crate) store: Arc<dyn ReadAt>,
    pub(crate) hash_offset: u64,
    /// True if the store holds the data, too, up to the header.
    pub(crate) is_appended: bool,
}

impl TreePlace {
    /// Tree that follows its data: `store` holds both, and the header is at `hash_offset`.
    pub fn appended(store: Arc<dyn ReadAt>, hash_offset: u64) -> Self {
        Self {
            store,
            hash_offset,
            is_appended: true,
        }
    }

    /// Tree in another store than its data.
    pub fn separate(store: Arc<dyn ReadAt>, hash_offset: u64) -> Self {
        Self {
            store,
            hash_offset,
            is_appended: false,
        }
    }

    /// Store of the tree.
    pub fn store(&self) -> &Arc<dyn ReadAt> {
        &self.store
    }

    /// Position of the header in the store. Unit: bytes.
    pub fn hash_offset(&self) -> u64 {
        self.hash_offset
    }

    /// Longest data that the tree can have in a store of `data` bytes: up to the header of a tree that follows it.
    /// Unit: bytes.
    pub fn data_len_max(&self, data: u64) -> u64 {
        match self.is_appended {
            true => self.hash_offset,
            false => data,
        }
    }
}

/// Reason why digests do not cover what data claims. Unit of all numbers: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCovered {
    /// The data claims more bytes than there are digests for.
    Short {
        /// Number of bytes with digests.
        covered: u64,
        /// Number of bytes that the data claims.
        claim: u64,
    },
    /// There are digests for bytes after the data.
    Long {
        /// Number of bytes with digests.
        covered: u64,
        /// Position where the data ends at the latest.
        end: u64,
    },
}

impl fmt::Display for NotCovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { covered, claim } => write!(
                f,
                "digests cover {covered} bytes of {claim}: they are of other data, or were changed; restore the image from a trusted copy"
            ),
            Self::Long { covered, end } => write!(
                f,
                "digests cover {covered} bytes, and the data ends at byte {end}: they are of other data, or were changed; restore the image from a trusted copy"
            ),
        }
    }
}

impl std::error::Error for NotCovered {}

/// Returns the bytes that digests of the first `digested` bytes cover, for data that claims its first `claim` bytes and ends at
/// `end` at the latest.
///
/// # Errors
/// The digests do not cover the claim, or what they cover does not exist.
pub fn covered(digested: u64, claim: u64, end: u64) -> Result<Range<u64>, NotCovered> {
    if digested < claim {
        let covered = digested;
        return Err(NotCovered::Short { covered, claim });
    }
    if digested > end {
        let covered = digested;
        return Err(NotCovered::Long { covered, end });
    }
    Ok(0..digested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_cover_the_claim_and_end_with_the_data() {
        assert_eq!(covered(8192, 8192, 8192), Ok(0..8192));
        // The end of a block that the claim does not fill.
        assert_eq!(covered(8192, 4097, 8192), Ok(0..8192));
        let short = NotCovered::Short {
            covered: 8192,
            claim: 8193,
        };
        assert_eq!(covered(8192, 8193, 1 << 20), Err(short));
        let long = NotCovered::Long {
            covered: 8192,
            end: 4096,
        };
        assert_eq!(covered(8192, 4096, 4096), Err(long));
        assert_eq!(
            covered(0, 1, 1),
            Err(NotCovered::Short {
                covered: 0,
                claim: 1
            })
        );
        assert!(covered(u64::MAX, u64::MAX, u64::MAX).is_ok());
    }
}
