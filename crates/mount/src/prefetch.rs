//! Requests for what programs are expected to read of an image behind a URL.
//!
//! In the order of their priority: the rest of a file that is read, the profile of the image, its start list, and what belongs to
//! files that had to be fetched.

use crate::ImageFs;
use crate::neighbours::{Neighbours, RequestRanges, find_in_this_thread};
use std::sync::Arc;
use tuff_erofs::read::{DeviceRange, Image, StartList};
use tuff_erofs::serve::{Profile, Server, StoreRange};
use tuff_fuse::Log;
use tuff_open::{RemoteImage, open_stores};

/// Source of an image, for requests in advance.
#[derive(Clone)]
pub struct Prefetch {
    /// Image behind a URL.
    pub store: Arc<RemoteImage>,
    /// Start of the mounted image in the remote object. Unit: bytes.
    pub offset: u64,
    /// Receives the reasons why nothing is requested.
    pub log: Log,
}

/// Number of ranges that were requested, and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Number of ranges.
    pub ranges: usize,
    /// Sum of their lengths. Unit: bytes.
    pub bytes: u64,
}

fn requested(ranges: &[StoreRange]) -> Requested {
    let bytes = ranges.iter();
    let bytes = bytes.map(|of| of.range.end.saturating_sub(of.range.start));
    Requested {
        ranges: ranges.len(),
        bytes: bytes.fold(0, u64::saturating_add),
    }
}

impl Prefetch {
    /// Requests what the manifest states about the start, what the start list of `image` names, then the rest of its metadata. Of
    /// several layers that are mounted as one image, it takes the lists of all. `None` without a list. What this thread reads is from here on no miss of a program.
    pub fn list(&self, image: &Image) -> Option<Requested> {
        find_in_this_thread();
        let layers = self
            .store
            .layers()
            .into_iter()
            .filter_map(|(store, layer)| {
                let layer = open_stores(layer, Vec::new());
                // Damage is reported to the program that reads the layer.
                self.listed(store, &layer.ok()?)
            });
        // The index of several layers has no list.
        let lists: Vec<_> = self.listed(0, image).into_iter().chain(layers).collect();
        let (ranges, mut counts): (Vec<_>, Vec<_>) = lists.into_iter().unzip();
        let mut ranges_of_start = self.store.stated_start();
        if !ranges_of_start.is_empty() {
            counts.push(requested(&ranges_of_start));
        }
        if counts.is_empty() {
            return None;
        }
        ranges_of_start.extend(self.at_offset(ranges.concat()));
        self.store.prefetch_list(&ranges_of_start);
        let sum = |all: Requested, one: &Requested| Requested {
            ranges: all.ranges + one.ranges,
            bytes: all.bytes.saturating_add(one.bytes),
        };
        Some(counts.iter().fold(Requested::default(), sum))
    }

    /// Reads the list of the image in a store, whose devices are the next stores.
    fn listed(&self, store: u16, image: &Image) -> Option<(Vec<StoreRange>, Requested)> {
        let list = match StartList::read(image) {
            Ok(list) => list?,
            Err(e) => {
                self.failed(&e);
                return None;
            }
        };
        if let Some(why) = list.skipped() {
            self.log.again(why);
            return None;
        }
        let of_device = |range: &DeviceRange| StoreRange {
            store: store.saturating_add(range.device.0),
            range: range.bytes.clone(),
        };
        let mut ranges: Vec<StoreRange> = list.ranges().iter().map(of_device).collect();
        let sb = image.superblock();
        let position = |blocks: u64| blocks.saturating_mul(sb.block_bits.size());
        // Metadata beside the superblock was read with it.
        if sb.meta_blkaddr.0 > 0 {
            ranges.push(StoreRange {
                store,
                range: position(sb.meta_blkaddr.0)..position(sb.blocks),
            });
        }
        let requested = Requested {
            ranges: list.ranges().len(),
            bytes: list.bytes(),
        };
        Some((ranges, requested))
    }

    /// Profile that the manifest of the image states, and whether it is all of the recording. Nothing is requested for it.
    pub fn stated_profile(&self) -> Option<(Profile, bool)> {
        let (text, is_whole) = self.store.stated_profile()?;
        match Profile::parse(&text) {
            Ok(profile) => Some((profile, is_whole)),
            Err(e) => {
                self.failed(&e);
                None
            }
        }
    }

    /// Fetches the profile that comes with the image, if there is one.
    pub fn fetch_profile(&self) -> Option<Profile> {
        let text = self.store.profile();
        let parsed = text.and_then(|text| text.map(|text| Profile::parse(&text)).transpose());
        parsed.unwrap_or_else(|e| {
            self.failed(&e);
            None
        })
    }

    /// Requests what a profile names in `image`.
    pub fn profile(&self, image: &Image, profile: &Profile) -> Requested {
        let ranges = self.at_offset(profile.physical_ranges(image));
        self.store.prefetch(&ranges);
        requested(&ranges)
    }

    /// Without a list or a profile the image is read all the same.
    fn failed(&self, e: &tuff_erofs::Error) {
        self.log.again(format_args!("no prefetch: {e}"));
    }

    /// Lets misses request what belongs to the files that `fs` reads.
    pub fn follow(&self, fs: ImageFs) -> (ImageFs, Neighbours) {
        let [ahead, near] = self.requests();
        let (fs, neighbours, on_miss) = fs.follow_misses(ahead, near);
        self.store.on_miss(on_miss);
        (fs, neighbours)
    }

    /// The same for an image that the kernel reads.
    pub fn follow_addresses(&self, server: &Arc<Server>) -> Neighbours {
        let [ahead, near] = self.requests();
        let (neighbours, on_miss) = Neighbours::by_address(Arc::clone(server), ahead, near);
        self.store.on_miss(on_miss);
        neighbours
    }

    /// Requests for the rest of a file, and for other files.
    pub(crate) fn requests(&self) -> [RequestRanges; 2] {
        let (ahead, near) = (self.clone(), self.clone());
        [
            Box::new(move |ranges| ahead.store.read_ahead(&ahead.at_offset(ranges.to_vec()))),
            Box::new(move |ranges| near.store.prefetch_near(&near.at_offset(ranges.to_vec()))),
        ]
    }

    /// Positions in the stores of ranges of the image and its devices.
    fn at_offset(&self, mut ranges: Vec<StoreRange>) -> Vec<StoreRange> {
        for StoreRange { range, .. } in ranges.iter_mut().filter(|range| range.store == 0) {
            *range = range.start.saturating_add(self.offset)..range.end.saturating_add(self.offset);
        }
        ranges
    }
}
