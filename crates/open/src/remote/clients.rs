//! Images behind URLs, which the network clients of `tuff-remote` fetch.

use super::CompleteFiles;
use super::layer_index::{self, Layer, LayerIndex};
use crate::options::{CacheOptions, Integrity, OpenOptions};
use crate::reference::ImageUrl;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_erofs::serve::StoreRange;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_mkfs::Start;
use tuff_remote::{CompleteFile, Kind, Location, OpenImage, Options, RemoteStore, Statements};
use tuff_signature::Certificate;
use tuff_store::ReadAt;

/// Open image behind a URL, with its devices.
pub struct RemoteImage {
    /// The image, or the index of several layers.
    primary: Arc<dyn ReadAt>,
    /// File of the index.
    index: Option<File>,
    devices: Vec<Arc<dyn ReadAt>>,
    /// Image and devices as they are fetched. `None` for an index.
    stores: Vec<Option<Arc<RemoteStore>>>,
    /// Numbers of the stores of layers that the index is of. The devices of each follow it.
    layers: Vec<u16>,
    warnings: Vec<String>,
    location: Location,
    options: Options,
}

impl RemoteImage {
    /// Opens the image at a URL with its devices. With a root hash, it has only bytes that match it. Several EROFS layers of an
    /// image in a registry become one image. Returns the root hash that was given or signed as well.
    pub(crate) fn open(url: &ImageUrl, options: &OpenOptions) -> Result<(Arc<Self>, Option<Root>)> {
        let location = url.location().map_err(error)?.clone();
        let (location, root, trust) = match &options.integrity {
            Integrity::None => (location, None, None),
            Integrity::Root { hash, .. } => (location, Some(*hash), None),
            Integrity::Certificate(certificate) => {
                // The location that was verified is opened: it names the image by its digest, if it has one.
                let (pinned, root) = trusted(&location, certificate, &options.cache)?;
                (pinned, root, Some(certificate.clone()))
            }
        };
        let fetched = root.filter(|_| options.verifies_fetched());
        let has_devices = !options.devices.is_empty() || options.offset > 0;
        let library = self::options(&options.cache, fetched, trust)?;
        let image = Self::at(location, library, has_devices, options.for_kernel)?;
        Ok((Arc::new(image), root))
    }

    /// If `has_devices`, the caller has the devices. `for_kernel`: the kernel may read the image.
    fn at(
        location: Location,
        options: Options,
        has_devices: bool,
        for_kernel: bool,
    ) -> Result<Self> {
        let images = tuff_remote::open_images(&location, &options, has_devices);
        let images = images.map_err(error)?;
        let index = match images.len() {
            1 => None,
            _ => Some(build_index(&images, &options, for_kernel)?),
        };
        let numbers = images.iter().scan(1u16, |next, image| {
            let number = *next;
            let devices = u16::try_from(image.devices.len()).unwrap_or(u16::MAX);
            *next = next.saturating_add(1).saturating_add(devices);
            Some(number)
        });
        let layers: Vec<u16> = match index {
            Some(_) => numbers.collect(),
            None => Vec::new(),
        };
        let fetched = images
            .into_iter()
            .flat_map(|image| std::iter::once(image.store).chain(image.devices));
        let mut stores: Vec<Option<Arc<RemoteStore>>> = fetched.map(Some).collect();
        if index.is_some() {
            stores.insert(0, None);
        }
        let mut opened = stores.iter().flatten().map(as_store);
        let (primary, index, warnings) = match index {
            Some(LayerIndex {
                file,
                store,
                warnings,
            }) => (Arc::new(store) as Arc<dyn ReadAt>, Some(file), warnings),
            None => {
                let first = opened.next();
                let first = first.ok_or_else(|| Error::usage("bug: an image without a store"))?;
                (first, None, Vec::new())
            }
        };
        let devices = opened.collect();
        let mut warnings = warnings;
        warnings.extend(location.warnings());
        Ok(Self {
            primary,
            index,
            devices,
            stores,
            layers,
            warnings,
            location,
            options,
        })
    }

    /// Wraps an open image without devices. Its profile is that of the image at `location`.
    pub fn of_store(store: Arc<RemoteStore>, location: Location, options: Options) -> Self {
        Self {
            primary: as_store(&store),
            index: None,
            devices: Vec::new(),
            stores: vec![Some(store)],
            layers: Vec::new(),
            warnings: Vec::new(),
            location,
            options,
        }
    }

    /// Devices of the image, if it names any.
    pub fn devices(&self) -> &[Arc<dyn ReadAt>] {
        &self.devices
    }

    /// Layers of an image that is the index of several, with the numbers of their stores. The next stores are their devices.
    pub fn layers(&self) -> Vec<(u16, Arc<dyn ReadAt>)> {
        let store = |number: &u16| {
            let store = self.stores.get(usize::from(*number))?.as_ref()?;
            Some((*number, as_store(store)))
        };
        self.layers.iter().filter_map(store).collect()
    }

    /// Properties of layers that their common index does not show, and a server that could not be reached.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Location of the image.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Stores that are fetched.
    fn fetched(&self) -> impl Iterator<Item = &Arc<RemoteStore>> {
        self.stores.iter().flatten()
    }

    /// Fetches the profile that lies beside the image.
    pub fn profile(&self) -> Result<Option<Vec<u8>>> {
        tuff_remote::profile(&self.location, &self.options).map_err(error)
    }

    /// Profile that the manifest of the image states, and whether it is all of the recording. Nothing is requested.
    pub fn stated_profile(&self) -> Option<(Vec<u8>, bool)> {
        tuff_remote::stated_profile(&self.location)
    }

    /// Parts that a start reads of the stores, as the manifest of the image states, in the order in which each store wants it.
    pub fn stated_start(&self) -> Vec<StoreRange> {
        let stores = self.stores.iter().zip(0u16..);
        let stated = stores.flat_map(|(of_store, store)| {
            let ranges = of_store.iter().flat_map(|of_store| of_store.stated_start());
            ranges.map(move |range| StoreRange {
                store,
                range: range.clone(),
            })
        });
        stated.collect()
    }

    /// Fetches ranges of the image in the background, in their order.
    pub fn prefetch(&self, ranges: &[StoreRange]) {
        self.each(ranges, RemoteStore::prefetch);
    }

    /// Fetches ranges that came with the image in the background, in their order. What no program reads has a bound.
    pub fn prefetch_list(&self, ranges: &[StoreRange]) {
        self.each(ranges, RemoteStore::prefetch_list);
    }

    /// Fetches ranges that a reader is expected to want next, before all others that no reader waits for.
    pub fn read_ahead(&self, ranges: &[StoreRange]) {
        self.each(ranges, RemoteStore::read_ahead);
    }

    /// Fetches neighbours of what was read in the background, after profiles and lists.
    pub fn prefetch_near(&self, ranges: &[StoreRange]) {
        self.each(ranges, RemoteStore::prefetch_near);
    }

    /// Lets reads of this thread fail for bytes that are not in the cache, instead of waiting for a server. The bytes are requested
    /// as neighbours.
    pub fn never_wait_in_this_thread() {
        RemoteStore::never_wait_in_this_thread();
    }

    /// Sets the callback after a request that a read waits for, in the thread that reads: with the number of the store, and the
    /// position in it. Only the first one counts.
    pub fn on_miss(&self, callback: Arc<dyn Fn(u16, u64) + Send + Sync>) {
        for (store, number) in self.stores.iter().zip(0u16..) {
            if let Some(store) = store {
                let callback = Arc::clone(&callback);
                store.on_miss(Arc::new(move |pos| callback(number, pos)));
            }
        }
    }

    /// Passes ranges to their stores.
    fn each(&self, ranges: &[StoreRange], request: impl Fn(&RemoteStore, &[Range<u64>])) {
        for (store, number) in self.stores.iter().zip(0u16..) {
            let of_store = ranges.iter().filter(|range| range.store == number);
            let of_store: Vec<_> = of_store.map(|range| range.range.clone()).collect();
            if let Some(store) = store.as_ref().filter(|_| !of_store.is_empty()) {
                request(store, &of_store);
            }
        }
    }

    /// Fetches the rest of the image in the background, at most `rate` bytes per second.
    pub fn fill(&self, rate: Option<u64>) {
        let count = self.fetched().count().max(1) as u64;
        for store in self.fetched() {
            store.fill(rate.map(|rate| (rate / count).max(1)));
        }
    }

    /// Waits until the image is complete. Returns false if the time is over, or the fill has failed.
    pub fn wait_complete(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        let left = || timeout.saturating_sub(start.elapsed());
        self.fetched().all(|store| store.wait_complete(left()))
    }

    /// Failure that ended the fill.
    pub fn failure(&self) -> Option<String> {
        let failure = self.fetched().find_map(|store| store.failure());
        failure.map(|e| e.to_string())
    }

    /// The complete image and its devices as plain files.
    pub fn complete_files(&self) -> Result<CompleteFiles> {
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
    pub fn progress(&self) -> (u64, u64) {
        let stats = self.fetched().map(|store| store.stats());
        stats.fold((0, 0), |(present, size), stats| {
            (present + stats.present_bytes, size + stats.size)
        })
    }

    /// Requests for the image since its URL was parsed, as lines of JSON: at most `max` bytes. The last line has the sums.
    pub fn requests(&self, max: usize) -> String {
        self.location.requests(max)
    }

    /// Shortest round trip to the server, and its bandwidth in bytes per second, as far as they were measured.
    pub fn measured(&self) -> (Option<Duration>, Option<u64>) {
        self.location.measured()
    }

    /// Statements about the image, which are not verified.
    ///
    /// # Errors
    /// Errors of reading what lies beside the image.
    pub fn statements(&self) -> Result<Statements> {
        tuff_remote::statements(&self.location, &self.options).map_err(error)
    }

    /// Counters, by the names that `tuff stats` shows.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
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

fn as_store(store: &Arc<RemoteStore>) -> Arc<dyn ReadAt> {
    Arc::<RemoteStore>::clone(store)
}

/// Builds the index of several images, which are its devices, each before its own devices.
///
/// # Errors
/// Errors of reading the images, and of writing the index.
pub fn index(images: &[OpenImage], options: &Options) -> Result<LayerIndex> {
    build_index(images, options, true)
}

fn build_index(images: &[OpenImage], options: &Options, for_kernel: bool) -> Result<LayerIndex> {
    let named = |store: &Arc<RemoteStore>| (store.place().into(), as_store(store));
    let layers: Vec<Layer> = images
        .iter()
        .map(|image| Layer {
            image: named(&image.store),
            devices: image.devices.iter().map(named).collect(),
        })
        .collect();
    layer_index::build(&layers, &options.cache, Start::None, for_kernel)
}

/// Options of `tuff-remote`.
///
/// # Errors
/// `Usage` if no directory is given for the cache, and there is no home directory.
pub fn options(
    cache: &CacheOptions,
    root: Option<Root>,
    trust: Option<Certificate>,
) -> Result<Options> {
    let dir = cache.dir.clone().or_else(tuff_remote::default_cache);
    let dir = dir.ok_or_else(|| {
        Error::usage("there is no home directory for the cache: name a directory for it")
    })?;
    let mut options = Options::new(dir);
    options.root_hash = root;
    options.cache_max = cache.size_max.unwrap_or(options.cache_max);
    options.retry.deadline = cache.fetch_timeout.unwrap_or(options.retry.deadline);
    options.hedging = !cache.no_hedging;
    options.trust = trust;
    options.offline = cache.offline;
    Ok(options)
}

/// Root hash of the image at a location, if a signature by a certificate comes with it. The location that is returned names the
/// image by its digest, if it has one. Several images in a registry have no common root hash.
///
/// # Errors
/// `Untrusted` without such a signature, and errors of reading it.
pub fn trusted(
    location: &Location,
    certificate: &Certificate,
    cache: &CacheOptions,
) -> Result<(Location, Option<Root>)> {
    let options = options(cache, None, None)?;
    tuff_remote::trusted(location, certificate, &options).map_err(error)
}

/// Error for an image that cannot be opened.
fn error(e: tuff_remote::Error) -> Error {
    failed(e, "cannot open")
}

/// Error for a failure of `what` was done.
pub fn failed(e: tuff_remote::Error, what: &str) -> Error {
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
