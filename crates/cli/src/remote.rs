//! Options for images behind URLs.

use crate::units::parse_size;
use std::path::PathBuf;
use std::time::Duration;
use tuff_open::CacheOptions;

/// Options for images behind URLs.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct RemoteArgs {
    /// Directory that keeps what was fetched from URLs [default: $XDG_CACHE_HOME/tuff or ~/.cache/tuff]
    #[arg(long, value_name = "DIR", help_heading = "Image")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Largest size of that directory; what was not read for longest is removed first [default: 8G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Image")]
    pub(crate) cache_max: Option<u64>,
    /// Time after which a part that cannot be fetched is an I/O error [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600), help_heading = "Image")]
    pub(crate) fetch_timeout: Option<u16>,
    /// Send no second request when an answer is late, to measure what the second one is worth.
    #[arg(long, hide = true)]
    pub(crate) no_hedging: bool,
}

impl RemoteArgs {
    /// Options of the library.
    pub(crate) fn cache(&self) -> CacheOptions {
        let seconds = |seconds: u16| Duration::from_secs(seconds.into());
        CacheOptions {
            dir: self.cache_dir.clone(),
            size_max: self.cache_max,
            fetch_timeout: self.fetch_timeout.map(seconds),
            no_hedging: self.no_hedging,
            offline: false,
        }
    }
}
