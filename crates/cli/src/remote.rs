//! Images behind URLs, where the command takes a file. Without the cargo feature `remote` they are refused.

use crate::units::parse_size;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_store::ReadAt;

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
    /// Certificate that has signed the root hash.
    #[arg(skip)]
    pub(crate) trust: Option<PathBuf>,
}

/// Returns true if an image is named by a URL rather than by a path.
pub(crate) fn is_url(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://"));
    scheme.is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

/// Returns true if an image is read over a network: `file://` is not.
pub(crate) fn is_remote(path: &Path) -> bool {
    is_url(path)
        && !path
            .to_str()
            .is_some_and(|text| text.starts_with("file://"))
}

#[cfg(feature = "remote")]
mod with_clients {
    use super::*;
    use crate::layer_index::{self, Layer};
    use crate::signing;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};
    use tuff_erofs::serve::StoreRange;
    use tuff_remote::{
        CompleteFile, Kind, Location, OpenImage, Options, RemoteStore, RetryPolicy, open_images,
    };
    use tuff_store::FileStore;

    /// Name of an image for messages: a URL without credentials, or its path.
    pub(crate) fn shown(path: &Path) -> PathBuf {
        let location = path.to_str().filter(|_| is_url(path)).map(Location::parse);
        match location {
            Some(Ok(location)) => location.to_string().into(),
            // A URL that cannot be parsed may hold a password anywhere.
            Some(Err(_)) => "the URL of the image".into(),
            None => path.to_owned(),
        }
    }

    /// Opens the image at a URL with its devices. With a root hash, it has only bytes that match it. Several EROFS layers
    /// of an image in a registry become one image.
    ///
    /// If `has_devices`, the caller has the devices.
    pub(crate) fn open(
        url: &Path,
        args: &RemoteArgs,
        root: Option<Root>,
        has_devices: bool,
    ) -> Result<Arc<RemoteImage>> {
        let location = Location::parse(url.to_str().unwrap_or_default()).map_err(error)?;
        let options = options(args, root)?;
        let mut images = open_images(&location, &options, has_devices).map_err(error)?;
        let image = match (images.pop(), images.is_empty()) {
            (Some(image), true) => RemoteImage {
                primary: as_store(&image.store),
                index: None,
                devices: image.devices.iter().map(as_store).collect(),
                stores: std::iter::once(image.store)
                    .chain(image.devices)
                    .map(Some)
                    .collect(),
                location,
                options,
            },
            (top, _) => {
                images.extend(top);
                let (index, primary) = index(&images, &options)?;
                let all = images
                    .into_iter()
                    .flat_map(|image| std::iter::once(image.store).chain(image.devices));
                let all: Vec<_> = all.collect();
                RemoteImage {
                    primary: Arc::new(primary),
                    index: Some(index),
                    devices: all.iter().map(as_store).collect(),
                    stores: std::iter::once(None)
                        .chain(all.into_iter().map(Some))
                        .collect(),
                    location,
                    options,
                }
            }
        };
        Ok(Arc::new(image))
    }

    fn as_store(store: &Arc<RemoteStore>) -> Arc<dyn ReadAt> {
        Arc::<RemoteStore>::clone(store)
    }

    /// Builds the index of several images, which are its devices, each before its own devices. Returns its file, and the
    /// store for it.
    pub(crate) fn index(images: &[OpenImage], options: &Options) -> Result<(File, FileStore)> {
        let named = |store: &Arc<RemoteStore>| (store.place().into(), as_store(store));
        let layers: Vec<Layer> = images
            .iter()
            .map(|image| Layer {
                image: named(&image.store),
                devices: image.devices.iter().map(named).collect(),
            })
            .collect();
        let file = layer_index::build(&layers, &options.cache)?;
        let store = file.try_clone().and_then(FileStore::new);
        let failed = |e| Error::io("index of the layers", "cannot open", e);
        Ok((file, store.map_err(failed)?))
    }

    /// Options of the library.
    pub(crate) fn options(args: &RemoteArgs, root: Option<Root>) -> Result<Options> {
        let cache = args.cache_dir.clone().or_else(tuff_remote::default_cache);
        let cache = cache.ok_or_else(|| {
            Error::usage("there is no home directory for the cache: give one with --cache-dir DIR")
        })?;
        let mut options = Options::new(cache);
        options.root_hash = root;
        options.cache_max = args.cache_max.unwrap_or(options.cache_max);
        options.retry = retry(args);
        options.hedging = !args.no_hedging;
        let certificate = args.trust.as_deref().map(signing::certificate);
        options.trust = certificate.transpose()?;
        Ok(options)
    }

    fn retry(args: &RemoteArgs) -> RetryPolicy {
        let mut retry = RetryPolicy::default();
        if let Some(seconds) = args.fetch_timeout {
            retry.deadline = Duration::from_secs(seconds.into());
        }
        retry
    }

    /// Root hash of the image at a path or URL, if a signature by the certificate in a file comes with it. The URL that is
    /// returned names the image by its digest, if it has one. Several images in a registry have no common root hash.
    pub(crate) fn trusted(
        image: &Path,
        certificate: &Path,
        args: &RemoteArgs,
    ) -> Result<(PathBuf, Option<Root>)> {
        let certificate = signing::certificate(certificate)?;
        let location = match image.to_str().filter(|_| is_url(image)) {
            Some(url) => Location::parse(url).map_err(error)?,
            None => Location::of_file(image),
        };
        let found = tuff_remote::trusted(&location, &certificate, retry(args));
        let (pinned, root) = found.map_err(error)?;
        // Other locations have no digest, and their text may lack credentials.
        let is_pinned = pinned.to_string().starts_with("oci://");
        let image = if is_pinned {
            pinned.to_string().into()
        } else {
            image.to_owned()
        };
        Ok((image, root))
    }

    /// Open image behind a URL, with its devices.
    pub(crate) struct RemoteImage {
        /// The image, or the index of several layers.
        primary: Arc<dyn ReadAt>,
        /// File of the index.
        index: Option<File>,
        devices: Vec<Arc<dyn ReadAt>>,
        /// Image and devices as they are fetched. `None` for an index.
        stores: Vec<Option<Arc<RemoteStore>>>,
        location: Location,
        options: Options,
    }

    impl RemoteImage {
        /// Devices of the image, if it names any.
        pub(crate) fn devices(&self) -> &[Arc<dyn ReadAt>] {
            &self.devices
        }

        /// Stores that are fetched.
        fn fetched(&self) -> impl Iterator<Item = &Arc<RemoteStore>> {
            self.stores.iter().flatten()
        }

        /// Fetches the profile that lies beside the image.
        pub(crate) fn profile(&self) -> Result<Option<Vec<u8>>> {
            tuff_remote::profile(&self.location, &self.options).map_err(error)
        }

        /// Fetches ranges of the image in the background, in their order.
        pub(crate) fn prefetch(&self, ranges: &[StoreRange]) {
            for (store, number) in self.stores.iter().zip(0u16..) {
                let of_store = ranges.iter().filter(|range| range.store == number);
                let of_store: Vec<_> = of_store.map(|range| range.range.clone()).collect();
                if let Some(store) = store.as_ref().filter(|_| !of_store.is_empty()) {
                    store.prefetch(&of_store);
                }
            }
        }

        /// Fetches the rest of the image in the background, at most `rate` bytes per second.
        pub(crate) fn fill(&self, rate: Option<u64>) {
            let count = self.fetched().count().max(1) as u64;
            for store in self.fetched() {
                store.fill(rate.map(|rate| (rate / count).max(1)));
            }
        }

        /// Waits until the image is complete. Returns false if the time is over, or the fill has failed.
        pub(crate) fn wait_complete(&self, timeout: Duration) -> bool {
            let start = Instant::now();
            let left = || timeout.saturating_sub(start.elapsed());
            self.fetched().all(|store| store.wait_complete(left()))
        }

        /// Failure that ended the fill.
        pub(crate) fn failure(&self) -> Option<String> {
            let failure = self.fetched().find_map(|store| store.failure());
            failure.map(|e| e.to_string())
        }

        /// The complete image and its devices as plain files.
        pub(crate) fn complete_files(&self) -> Result<CompleteFiles> {
            let files: Vec<CompleteFile> = self
                .fetched()
                .map(|store| store.complete_file().map_err(error))
                .collect::<Result<_>>()?;
            // Paths of descriptors lead to the files that were verified and are short enough for fsconfig(2). The index has no
            // other path.
            let of_descriptor = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd()).into();
            let of_file = |file: &CompleteFile| of_descriptor(file.file());
            let (image, devices) = match (&self.index, &files[..]) {
                (Some(index), layers) => (of_descriptor(index), layers),
                (None, [image, devices @ ..]) => (of_file(image), devices),
                (None, []) => return Err(Error::usage("bug: an image without a store")),
            };
            Ok(CompleteFiles {
                image,
                devices: devices.iter().map(of_file).collect(),
                _files: files,
            })
        }

        /// Bytes in the cache, and size of the image.
        pub(crate) fn progress(&self) -> (u64, u64) {
            let stats = self.fetched().map(|store| store.stats());
            stats.fold((0, 0), |(present, size), stats| {
                (present + stats.present_bytes, size + stats.size)
            })
        }

        /// Counters, by the names that `tuff stats` shows.
        pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
            let mut sum: Vec<(&'static str, u64)> = Vec::new();
            for stats in self.fetched().map(|store| store.stats()) {
                let counters = [
                    ("remote_size_bytes", stats.size),
                    ("remote_present_bytes", stats.present_bytes),
                    ("remote_fetched_bytes", stats.fetched_bytes),
                    ("remote_shared_bytes", stats.shared_bytes),
                    ("remote_pending_bytes", stats.pending_bytes),
                    ("remote_requests", stats.requests),
                    ("remote_demand_misses", stats.demand_misses),
                    ("remote_demand_waits", stats.demand_waits),
                    ("remote_hedged_requests", stats.hedged_requests),
                    ("remote_retries", stats.retries),
                    ("remote_failed_requests", stats.failed_requests),
                ];
                if sum.is_empty() {
                    sum.extend(counters);
                } else {
                    for (total, (_, value)) in sum.iter_mut().zip(counters) {
                        total.1 += value;
                    }
                }
            }
            sum
        }
    }

    /// Complete image as plain files, whose bytes stay as long as the value and the image live.
    pub(crate) struct CompleteFiles {
        /// Path of the image, or of the index of several layers. It is valid in this process.
        pub(crate) image: PathBuf,
        /// Paths of its devices, in their order. They are valid in this process.
        pub(crate) devices: Vec<PathBuf>,
        _files: Vec<CompleteFile>,
    }

    impl ReadAt for RemoteImage {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            self.primary.read_at(buf, offset)
        }

        fn size(&self) -> u64 {
            self.primary.size()
        }

        fn will_need(&self, offset: u64, len: u64) {
            self.primary.will_need(offset, len);
        }

        fn done_with(&self, offset: u64, len: u64) {
            self.primary.done_with(offset, len);
        }
    }

    /// Error of the command for an image that cannot be opened.
    pub(crate) fn error(e: tuff_remote::Error) -> Error {
        failed(e, "cannot open")
    }

    /// Error of the command for a failure of `what` was done.
    pub(crate) fn failed(e: tuff_remote::Error, what: &str) -> Error {
        match e.kind() {
            Kind::Usage => Error::usage(e),
            Kind::Corrupt => Error::corrupt(e.place(), e.what()),
            Kind::Unsupported => Error::unsupported(e.place(), e.what()),
            Kind::Untrusted => Error::untrusted(e.place(), e.what()),
            Kind::Limit => Error::limit(e.place(), e.what()),
            Kind::Unavailable | Kind::Changed => {
                Error::io(e.place(), what, std::io::Error::other(e.what().to_owned()))
            }
        }
    }
}

#[cfg(not(feature = "remote"))]
mod without_clients {
    use super::*;
    use std::time::Duration;
    use tuff_erofs::serve::StoreRange;

    /// Name of an image for messages.
    pub(crate) fn shown(path: &Path) -> PathBuf {
        match is_url(path) {
            true => "the URL of the image".into(),
            false => path.to_owned(),
        }
    }

    /// Image behind a URL, of which there is none.
    pub(crate) enum RemoteImage {}

    /// Files of a complete image, of which there are none.
    pub(crate) struct CompleteFiles {
        pub(crate) image: PathBuf,
        pub(crate) devices: Vec<PathBuf>,
    }

    impl ReadAt for RemoteImage {
        fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
            match *self {}
        }

        fn size(&self) -> u64 {
            match *self {}
        }
    }

    impl RemoteImage {
        pub(crate) fn complete_files(&self) -> Result<CompleteFiles> {
            match *self {}
        }

        pub(crate) fn profile(&self) -> Result<Option<Vec<u8>>> {
            match *self {}
        }

        pub(crate) fn devices(&self) -> &[Arc<dyn ReadAt>] {
            match *self {}
        }

        pub(crate) fn prefetch(&self, _: &[StoreRange]) {
            match *self {}
        }

        pub(crate) fn fill(&self, _: Option<u64>) {
            match *self {}
        }

        pub(crate) fn wait_complete(&self, _: Duration) -> bool {
            match *self {}
        }

        pub(crate) fn failure(&self) -> Option<String> {
            match *self {}
        }

        pub(crate) fn progress(&self) -> (u64, u64) {
            match *self {}
        }

        pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
            match *self {}
        }
    }

    /// Refuses a certificate.
    pub(crate) fn trusted(_: &Path, _: &Path, _: &RemoteArgs) -> Result<(PathBuf, Option<Root>)> {
        let what = "--trust: this tuff reads signatures in disks only: it was built without the cargo feature 'remote'";
        Err(Error::usage(what))
    }

    /// Refuses a URL.
    pub(crate) fn open(
        _: &Path,
        _: &RemoteArgs,
        _: Option<Root>,
        _: bool,
    ) -> Result<Arc<RemoteImage>> {
        let what = "this tuff reads no URLs: it was built without the cargo feature 'remote'";
        Err(Error::usage(what))
    }
}

#[cfg(feature = "remote")]
pub(crate) use with_clients::{RemoteImage, error, failed, index, open, options, shown, trusted};
#[cfg(not(feature = "remote"))]
pub(crate) use without_clients::{RemoteImage, open, shown, trusted};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_urls() {
        for path in ["a.erofs", "/a", "oci:dir", "://", "A://b", "./a://b"] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
        for url in ["s3://b/k", "https://h/i", "file:///a"] {
            assert!(is_url(Path::new(url)), "{url}");
        }
    }
}
