//! Options for opening remote images.

use crate::retry::RetryPolicy;
use std::path::PathBuf;
use tuff_signature::Certificate;
use tuff_verity::Root;

/// Options for opening a remote image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the cache, created if it does not exist.
    pub cache: PathBuf,
    /// Largest size of the cache with all its images. Unit: bytes.
    pub cache_max: u64,
    /// Root hash of the dm-verity tree that follows the image. It is stronger than that of a manifest.
    pub root_hash: Option<Root>,
    /// Certificate that has signed the root hash. It must have signed the list of devices beside an object as well.
    pub trust: Option<Certificate>,
    /// Number of connections, 1 to 32.
    pub connections: usize,
    /// Sends a second request when the answer that a reader waits for is late.
    pub hedging: bool,
    /// Opens what was opened last, if the server cannot be reached: what a tag or URL named then.
    /// [`Location::warnings`](crate::Location::warnings) states it.
    pub offline: bool,
    /// Repetition of failed requests.
    pub retry: RetryPolicy,
}

impl Options {
    /// Largest number of connections.
    pub const CONNECTIONS_MAX: usize = 32;

    /// Default size of the cache. Unit: bytes.
    pub const CACHE_MAX: u64 = 8 << 30;

    /// Default options with a cache in a directory.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            cache,
            cache_max: Self::CACHE_MAX,
            root_hash: None,
            trust: None,
            connections: Self::CONNECTIONS_MAX,
            hedging: true,
            offline: false,
            retry: RetryPolicy::default(),
        }
    }
}

/// Default directory of the cache: `$XDG_CACHE_HOME/tuff` or `~/.cache/tuff`. `None` without a home directory.
pub fn default_cache() -> Option<PathBuf> {
    let dir = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let cache = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("tuff"))
}
