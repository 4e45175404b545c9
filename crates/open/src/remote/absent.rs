//! Stands for images behind URLs in a program without network clients.

use super::CompleteFiles;
use crate::options::OpenOptions;
use crate::reference::ImageUrl;
use std::sync::Arc;
use std::time::Duration;
use tuff_erofs::serve::StoreRange;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_store::ReadAt;

/// Image behind a URL, of which there is none.
pub enum RemoteImage {}

impl RemoteImage {
    /// Refuses every URL, as no client is compiled.
    pub(crate) fn open(_: &ImageUrl, _: &OpenOptions) -> Result<(Arc<Self>, Option<Root>)> {
        let what = "this tuff reads no URLs: it was built without the cargo feature 'remote'";
        Err(Error::usage(what))
    }

    /// Devices of the image.
    pub fn devices(&self) -> &[Arc<dyn ReadAt>] {
        match *self {}
    }

    /// Layers of an image that is the index of several.
    pub fn layers(&self) -> Vec<(u16, Arc<dyn ReadAt>)> {
        match *self {}
    }

    /// Properties of layers that their common index does not show.
    pub fn warnings(&self) -> &[String] {
        match *self {}
    }

    /// Profile that lies beside the image.
    ///
    /// # Errors
    /// None.
    pub fn profile(&self) -> Result<Option<Vec<u8>>> {
        match *self {}
    }

    /// Profile that the manifest of the image states.
    pub fn stated_profile(&self) -> Option<(Vec<u8>, bool)> {
        match *self {}
    }

    /// Parts that a start reads of the stores, as the manifest of the image states.
    pub fn stated_start(&self) -> Vec<StoreRange> {
        match *self {}
    }

    /// Fetches ranges of the image in the background.
    pub fn prefetch(&self, _: &[StoreRange]) {
        match *self {}
    }

    /// Fetches ranges that came with the image in the background.
    pub fn prefetch_list(&self, _: &[StoreRange]) {
        match *self {}
    }

    /// Fetches ranges that a reader is expected to want next.
    pub fn read_ahead(&self, _: &[StoreRange]) {
        match *self {}
    }

    /// Fetches neighbours of what was read.
    pub fn prefetch_near(&self, _: &[StoreRange]) {
        match *self {}
    }

    /// Lets reads of this thread fail for bytes that are not in the cache.
    pub fn never_wait_in_this_thread() {}

    /// Sets the callback after a request that a read waits for.
    pub fn on_miss(&self, _: Arc<dyn Fn(u16, u64) + Send + Sync>) {
        match *self {}
    }

    /// Fetches the rest of the image in the background.
    pub fn fill(&self, _: Option<u64>) {
        match *self {}
    }

    /// Waits until the image is complete.
    pub fn wait_complete(&self, _: Duration) -> bool {
        match *self {}
    }

    /// Failure that ended the fill.
    pub fn failure(&self) -> Option<String> {
        match *self {}
    }

    /// The complete image and its devices as plain files.
    ///
    /// # Errors
    /// None.
    pub fn complete_files(&self) -> Result<CompleteFiles> {
        match *self {}
    }

    /// Bytes in the cache, and size of the image.
    pub fn progress(&self) -> (u64, u64) {
        match *self {}
    }

    /// Requests for the image, as lines of JSON.
    pub fn requests(&self, _: usize) -> String {
        match *self {}
    }

    /// Counters, by the names that `tuff stats` shows.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        match *self {}
    }
}

impl ReadAt for RemoteImage {
    fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
        match *self {}
    }

    fn size(&self) -> u64 {
        match *self {}
    }
}
