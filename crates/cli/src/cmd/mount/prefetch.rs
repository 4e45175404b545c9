//! Fetching in advance for a mount of a remote image: `--prefetch`, `--fill` and `--fill-rate`.

use crate::cmd::profile::read;
use crate::progress::{Meter, Show};
use crate::units::{parse_size, size};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tuff_erofs::serve::{Profile, StoreRange};
use tuff_erofs::{Error, Result};
use tuff_fuse::Log;
use tuff_mount::StoreCounters;
use tuff_open::{ImageRef, RemoteImage};

/// Time between two updates of the status line.
const STEP: Duration = Duration::from_secs(1);

/// Options for fetching in advance.
#[derive(clap::Args)]
pub(super) struct PrefetchArgs {
    /// Fetch the parts of this profile first, in its order [default: URL.profile, if it exists]
    #[arg(long, value_name = "PROFILE")]
    prefetch: Option<PathBuf>,
    /// Fetch the rest of the image while no program waits
    #[arg(long)]
    fill: bool,
    /// Largest number of bytes that --fill fetches per second
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "fill")]
    fill_rate: Option<u64>,
}

/// Where a mount reports what it fetches.
pub(super) struct Report {
    pub(super) log: Log,
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

impl PrefetchArgs {
    /// Reads the profile of `--prefetch`.
    pub(super) fn profile(&self, image: &ImageRef) -> Result<Option<Profile>> {
        if (self.prefetch.is_some() || self.fill) && image.url().is_none() {
            return Err(Error::usage(format_args!(
                "{image}: --prefetch and --fill are for an image behind a URL"
            )));
        }
        if self.fill_rate == Some(0) {
            return Err(Error::usage("--fill-rate: expected at least 1 byte"));
        }
        self.prefetch.as_deref().map(read).transpose()
    }

    /// Requests the parts of a given profile, and returns what a thread of its own has to do. `ranges` finds the parts of a
    /// profile in the remote object.
    pub(super) fn work(
        &self,
        image: &Arc<RemoteImage>,
        profile: Option<Profile>,
        ranges: impl Fn(&Profile) -> Vec<StoreRange> + Send + 'static,
        report: Report,
    ) -> impl FnOnce() + Send + 'static {
        let work = Work {
            image: Arc::clone(image),
            ranges: Box::new(ranges),
            meter: Meter::start("fill", Show::unless(!(self.fill && report.is_foreground))),
            report,
        };
        let (fill, rate) = (self.fill, self.fill_rate);
        let is_given = profile.is_some();
        if let Some(profile) = profile {
            work.prefetch(&profile);
        }
        move || {
            if !is_given {
                work.prefetch_beside();
            }
            if fill {
                work.fill(rate);
            }
        }
    }
}

/// Finds the parts of a profile in the remote objects.
type Mapping = Box<dyn Fn(&Profile) -> Vec<StoreRange> + Send>;

/// Fetching in the background of a mount.
struct Work {
    image: Arc<RemoteImage>,
    ranges: Mapping,
    report: Report,
    meter: Meter,
}

impl Work {
    fn tell(&self, what: impl std::fmt::Display) {
        if self.report.is_verbose {
            self.report.log.again(what);
        }
    }

    /// Prefetches what the profile beside the image names, if there is one.
    fn prefetch_beside(&self) {
        let text = self.image.profile();
        match text.and_then(|text| text.map(|text| Profile::parse(&text)).transpose()) {
            Ok(Some(profile)) => self.prefetch(&profile),
            Ok(None) => {}
            // Without a profile the image is read all the same.
            Err(e) => self.report.log.again(format_args!("no prefetch: {e}")),
        }
    }

    /// Prefetches what a profile names.
    fn prefetch(&self, profile: &Profile) {
        let ranges = (self.ranges)(profile);
        let bytes = ranges
            .iter()
            .map(|StoreRange { range, .. }| range.end - range.start);
        self.image.prefetch(&ranges);
        self.tell(format_args!(
            "prefetching {} in {} ranges",
            size(bytes.sum()),
            ranges.len()
        ));
    }

    /// Fills the cache, and shows how far it is.
    fn fill(&self, rate: Option<u64>) {
        let image = &self.image;
        image.fill(rate);
        loop {
            if image.wait_complete(STEP) {
                return self.tell("the whole image is in the cache");
            }
            if let Some(why) = image.failure() {
                return self.report.log.again(why);
            }
            let (present, all) = image.progress();
            self.meter.counter().set("fill", present, all);
        }
    }
}
