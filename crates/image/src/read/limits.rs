//! How much an image may ask of its reader.

/// Bounds on what a reader does for an image. Each has a name and a default; each is checked before memory is taken,
/// and going past one is [`Error::Limit`](crate::Error::Limit), never damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Directories inside directories, in walks. Default: 65,536.
    pub depth: usize,
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
