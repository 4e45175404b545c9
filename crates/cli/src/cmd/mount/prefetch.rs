//! Fetching in advance for a mount of a remote image: `--prefetch`, `--fill` and `--fill-rate`.

use crate::cmd::profile::read;
use crate::progress::{Meter, Show};
use crate::units::{parse_size, size};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tuff_erofs::serve::{Profile, Server};
use tuff_erofs::{Error, Result};
use tuff_mount::prefetch::{Prefetch as Requests, Requested};
use tuff_mount::{StoreCounters, StoreRequests};
use tuff_open::{ImageRef, RemoteImage};

/// Time between two updates of the status line.
const STEP: Duration = Duration::from_secs(1);

/// Options for fetching in advance.
#[derive(clap::Args)]
pub(super) struct PrefetchArgs {
    /// Fetch the parts of this profile first, in its order; off: no profile and no list of the image [default: URL.profile, if it
    /// exists]
    #[arg(long, value_name = "PROFILE|off", value_parser = parse_prefetch)]
    prefetch: Option<Prefetch>,
    /// Fetch the rest of the image in the time in which the link is idle
    #[arg(long)]
    fill: bool,
    /// Largest number of bytes that --fill fetches per second
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "fill")]
    fill_rate: Option<u64>,
}

/// Value of `--prefetch`.
#[derive(Clone)]
enum Prefetch {
    /// Nothing is fetched in advance.
    Off,
    Profile(PathBuf),
}

/// A file with the name `off` is `./off`.
fn parse_prefetch(text: &str) -> std::result::Result<Prefetch, std::convert::Infallible> {
    Ok(match text {
        "off" => Prefetch::Off,
        path => Prefetch::Profile(path.into()),
    })
}

/// Where a mount reports what it fetches.
pub(super) struct Report {
    /// True if success is worth a line.
    pub(super) is_verbose: bool,
    /// True if standard error is that of the user.
    pub(super) is_foreground: bool,
}

/// Returns the counters of a remote image.
pub(super) fn counters(image: &Arc<RemoteImage>) -> StoreCounters {
    let image = Arc::clone(image);
    Arc::new(move || image.counters())
}

/// Returns the requests of a remote image.
pub(super) fn requests_of(image: &Arc<RemoteImage>) -> StoreRequests {
    let image = Arc::clone(image);
    Arc::new(move |max| image.requests(max))
}

impl PrefetchArgs {
    /// Reads the profile of `--prefetch`.
    pub(super) fn profile(&self, image: &ImageRef) -> Result<Option<Profile>> {
        let given = match &self.prefetch {
            Some(Prefetch::Profile(path)) => Some(path.as_path()),
            Some(Prefetch::Off) | None => None,
        };
        if (given.is_some() || self.fill) && image.url().is_none() {
            return Err(Error::usage(format_args!(
                "{image}: --prefetch and --fill are for an image behind a URL"
            )));
        }
        if self.fill_rate == Some(0) {
            return Err(Error::usage("--fill-rate: expected at least 1 byte"));
        }
        given.map(read).transpose()
    }

    /// True unless the mount starts without a profile and without the list of the image.
    pub(super) fn has_list(&self) -> bool {
        !matches!(self.prefetch, Some(Prefetch::Off))
    }

    /// Requests the parts of a given profile, and returns what a thread of its own has to do. `server`: the mounted image.
    pub(super) fn work(
        &self,
        requests: Requests,
        profile: Option<Profile>,
        server: Arc<Server>,
        report: Report,
    ) -> impl FnOnce() + Send + 'static {
        let work = Work {
            requests,
            server,
            meter: Meter::start("fill", Show::unless(!(self.fill && report.is_foreground))),
            report,
        };
        let (fill, rate) = (self.fill, self.fill_rate);
        let is_known = profile.is_some() || !self.has_list();
        if let Some(profile) = profile {
            work.prefetch(&profile);
        }
        move || {
            if !is_known {
                work.prefetch_known();
            }
            if fill {
                work.fill(rate);
            }
        }
    }
}

/// Fetching in the background of a mount.
struct Work {
    requests: Requests,
    server: Arc<Server>,
    report: Report,
    meter: Meter,
}

impl Work {
    fn tell(&self, what: impl std::fmt::Display) {
        if self.report.is_verbose {
            self.requests.log.again(what);
        }
    }

    /// Prefetches what the image states, and what comes with it. A whole profile knows better than the list.
    fn prefetch_known(&self) {
        let stated = self.requests.stated_profile();
        if let Some((profile, _)) = &stated {
            self.prefetch(profile);
        }
        if stated.is_some_and(|(_, is_whole)| is_whole) {
            return;
        }
        self.prefetch_list();
        if let Some(profile) = self.requests.fetch_profile() {
            self.prefetch(&profile);
        }
    }

    /// Prefetches what the start list of the image names, then the rest of its metadata.
    fn prefetch_list(&self) {
        if let Some(Requested { ranges, bytes }) = self.requests.list(self.server.image()) {
            let bytes = size(bytes);
            self.tell(format_args!("the image lists {bytes} in {ranges} ranges"));
        }
    }

    /// Prefetches what a profile names.
    fn prefetch(&self, profile: &Profile) {
        let Requested { ranges, bytes } = self.requests.profile(self.server.image(), profile);
        let bytes = size(bytes);
        self.tell(format_args!("prefetching {bytes} in {ranges} ranges"));
    }

    /// Fills the cache, and shows how far it is.
    fn fill(&self, rate: Option<u64>) {
        let image = &self.requests.store;
        image.fill(rate);
        loop {
            if image.wait_complete(STEP) {
                return self.tell("the whole image is in the cache");
            }
            if let Some(why) = image.failure() {
                return self.requests.log.again(why);
            }
            let (present, all) = image.progress();
            self.meter.counter().set("fill", present, all);
        }
    }
}
