//! Unit of cluster addresses.

use crate::{Error, Place, Remedy, Result};
use tuff_format::BlockBits;

/// log2 of the grain in bytes where clusters start anywhere: little padding per cluster, and images of up to 64 GiB.
const UNALIGNED: u8 = 5;

/// Unit of cluster addresses: a block, or less where clusters start anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain(u8);

impl Grain {
    /// Returns the grain of images with this block size.
    pub(crate) const fn new(bits: BlockBits, unaligned: bool) -> Self {
        Self(if unaligned { UNALIGNED } else { bits.get() })
    }

    /// Returns the size of a grain in bytes.
    pub(crate) fn size(self) -> usize {
        1 << self.0
    }

    /// Returns the number of grains that hold `bytes`.
    pub(crate) fn count(self, bytes: usize) -> usize {
        bytes.div_ceil(self.size())
    }

    /// Returns the length of `grains` in bytes.
    pub(crate) fn bytes(self, grains: u32) -> u64 {
        u64::from(grains) << self.0
    }

    /// Returns the grain that starts at byte `position`.
    pub(crate) fn at(self, position: u64) -> Result<u32> {
        debug_assert!(position.is_multiple_of(1 << self.0));
        let grain = u32::try_from(position >> self.0).ok();
        // The highest bit distinguishes the image from its bases.
        grain
            .filter(|g| *g < 1 << 31)
            .ok_or_else(|| self.too_large())
    }

    fn too_large(self) -> Error {
        let most = (1u64 << 31 << self.0) >> 30;
        Error::limit(Place::image(), format_args!("larger than {most} GiB"))
    }
}

/// Returns the error of an image that exceeds the size budget of its build.
pub(crate) fn over_budget() -> Error {
    Error::limit(Place::image(), "larger than its size budget").with_remedy(Remedy::LargerBudget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_said_is_an_error() {
        let (blocks, grains) = (
            Grain::new(BlockBits::B4K, false),
            Grain::new(BlockBits::B4K, true),
        );
        assert_eq!(grains.at((64 << 30) - 32).unwrap(), u32::MAX >> 1);
        assert_eq!(
            grains.at(64 << 30).unwrap_err().to_string(),
            "limit reached: image: larger than 64 GiB"
        );
        assert_eq!(blocks.at(64 << 30).unwrap(), 16 << 20);
        assert!(blocks.at(8 << 40).is_err());
        assert_eq!((grains.count(33), blocks.count(33)), (2, 1));
    }
}
