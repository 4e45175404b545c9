//! How much an image may ask of its reader.

use crate::{Error, Result};

/// Bounds on what a reader does for an image. Each has a name and a default; each is checked before memory is taken,
/// and going past one is [`Error::Limit`](crate::Error::Limit), never damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Directories inside directories, in walks. Default: 65,536.
    pub depth: usize,
    /// Length of the path of a directory that a walk enters. Unit: bytes. Default: 256 KiB, which holds the deepest tree of
    /// the shortest names.
    pub path_len: usize,
    /// Names in one walk, per byte of the image: directories that share their blocks list the same names again. Default: 2;
    /// a name that is stored once and not compressed takes 13 bytes and more.
    pub names_per_byte: u64,
    /// Bytes of content that one operation reads, writes or compares, per byte of the image. Holes count only where they are
    /// written as zeros. Default: 1,048,576.
    pub content_per_byte: u64,
    /// Size of one directory. Unit: bytes. Default: 1 GiB, about 30 million names.
    pub dir_size: u64,
    /// Size of one index or chunk table, which is held in memory while its file is read. Unit: bytes. Default: 64 MiB,
    /// enough for a file of 32 GiB in 4 KiB steps.
    pub index_size: u64,
    /// What one cluster decodes to. Unit: bytes. Default: 12 MiB, the most a kernel accepts.
    pub decoded_size: u64,
    /// Length of a symlink's target. Unit: bytes. Default: 4095.
    pub symlink_len: u64,
    /// Symlinks that one [`resolve_following`](crate::read::Image::resolve_following) may follow. Default: 40.
    pub symlinks: usize,
    /// Pieces of metadata that are kept. Unit: bytes. Default: 4 MiB.
    pub metadata_cache: usize,
    /// Decoded clusters that are kept. Unit: bytes. Default: 16 MiB.
    pub cluster_cache: usize,
    /// Indexes of files that are kept. Unit: bytes. Default: 4 MiB.
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

/// Remainder of a limit that grows with the length of the image.
#[derive(Clone, Debug)]
pub struct WorkBudget {
    left: u64,
    max: u64,
    image_len: u64,
    what: &'static str,
    /// Name of the limit.
    limit: &'static str,
}

impl WorkBudget {
    /// Names that a walk over an image of `image_len` bytes may meet.
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

    /// Bytes of content that an operation on an image of `image_len` bytes may touch.
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

    /// Takes `n`; fails with `Limit` if less is left.
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
                "more than {max} {what} in an image of {image_len} bytes (limit {limit}); take parts of it by their paths"
            ),
        )
    }
}
