//! Limits on the resources that reading an image may take.

use crate::{Error, Result};

/// Limits on the resources that reading an image may take. Each is checked before memory is allocated.
/// Exceeding one is [`Error::Limit`](crate::Error::Limit), not corruption.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Nesting depth of directories in a walk. Default: 65,536.
    pub depth: usize,
    /// Length of the path of a directory that a walk enters. Unit: bytes. Default: 256 KiB, enough for the
    /// deepest tree of one-byte names.
    pub path_len: usize,
    /// Names that one walk may visit, per byte of the image. Bounds directories that share blocks and list
    /// the same names repeatedly. Default: 2; an uncompressed name takes at least 13 bytes.
    pub names_per_byte: u64,
    /// Bytes of content that one operation reads, writes or compares, per byte of the image. Holes count only
    /// if they are written as zeros. Default: 1,048,576.
    pub content_per_byte: u64,
    /// Size of one directory. Unit: bytes. Default: 1 GiB, about 30 million names.
    pub dir_size: u64,
    /// Size of one index or chunk table, which is held in memory while its file is read. Unit: bytes.
    /// Default: 64 MiB, enough for a file of 32 GiB in 4 KiB units.
    pub index_size: u64,
    /// Decoded size of one cluster. Unit: bytes. Default: 12 MiB, the maximum that a kernel accepts.
    pub decoded_size: u64,
    /// Length of a symlink's target. Unit: bytes. Default: 4095.
    pub symlink_len: u64,
    /// Symlinks that one [`resolve_following`](crate::read::Image::resolve_following) may follow. Default: 40.
    pub symlinks: usize,
    /// Capacity of the metadata cache. Unit: bytes. Default: 4 MiB.
    pub metadata_cache: usize,
    /// Capacity of the cache of decoded clusters. Unit: bytes. Default: 16 MiB.
    pub cluster_cache: usize,
    /// Capacity of the cache of file indexes. Unit: bytes. Default: 4 MiB.
    pub index_cache: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 1 << 16,
            path_len: 256 << 10,
            names_per_byte: 2,
            content_per_byte: 1 << 20,
            dir_size: 1 << 30,
            index_size: 64 << 20,
            decoded_size: tuff_format::cluster::DECODED_MAX,
            symlink_len: 4095,
            symlinks: 40,
            metadata_cache: 4 << 20,
            cluster_cache: 16 << 20,
            index_cache: 4 << 20,
        }
    }
}

/// Remainder of a limit that is proportional to the length of the image.
#[derive(Clone, Debug)]
pub struct WorkBudget {
    left: u64,
    max: u64,
    image_len: u64,
    what: &'static str,
    /// Field of [`Limits`], for messages.
    limit: &'static str,
}

impl WorkBudget {
    /// Returns the budget of names for a walk over an image of `image_len` bytes.
    pub(super) fn names(limits: &Limits, image_len: u64) -> Self {
        let max = image_len.saturating_mul(limits.names_per_byte);
        Self {
            left: max,
            max,
            image_len,
            what: "names",
            limit: "names_per_byte",
        }
    }

    /// Returns the budget of content bytes for an operation on an image of `image_len` bytes.
    pub(super) fn content(limits: &Limits, image_len: u64) -> Self {
        let max = image_len.saturating_mul(limits.content_per_byte);
        Self {
            left: max,
            max,
            image_len,
            what: "bytes of content",
            limit: "content_per_byte",
        }
    }

    /// Deducts `n` from the remainder.
    ///
    /// # Errors
    /// `Limit` if less than `n` is left.
    pub fn take(&mut self, n: u64) -> Result<()> {
        match self.left.checked_sub(n) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.exceeded()),
        }
    }

    #[cold]
    fn exceeded(&self) -> Error {
        let Self {
            max,
            image_len,
            what,
            limit,
            ..
        } = self;
        Error::limit(
            "",
            format_args!(
                "more than {max} {what} in an image of {image_len} bytes (limit {limit}); select parts of the image by path"
            ),
        )
    }
}
