//! Requests for what programs are expected to read of layers.

use super::layer::{Layer, LayerMiss};
use super::served::Served;
use crate::neighbours::{Finder, MAP_MAX, Miss, QUEUE};
use crate::prefetch::Prefetch;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::sleep;
use std::time::Duration;
use tuff_erofs::read::Image;
use tuff_erofs::serve::{Profile, ServeOptions, Server};
use tuff_fuse::Log;
use tuff_open::{RemoteImage, open_stores};

/// Interval of looks for added layers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Number of layers whose lists are looked for at once.
const AT_ONCE: usize = 32;

/// Number of layers whose files are known by their addresses. They share the space of one image.
const FINDERS_MAX: usize = 8;

/// Requests the start lists of layers, and the profiles of their images.
pub struct ListPrefetch {
    /// Layers that are served.
    pub layers: Arc<Served>,
    /// True if layers may be added.
    pub grows: bool,
    /// Log of the mount.
    pub log: Log,
}

impl ListPrefetch {
    /// Works until all layers were looked at, if none may be added.
    pub fn run(self) {
        let mut known = 0;
        loop {
            let layers = self.layers.all();
            self.request(&layers[known..]);
            known = layers.len();
            if !self.grows {
                return;
            }
            sleep(CHECK_INTERVAL);
        }
    }

    fn request(&self, layers: &[Arc<Layer>]) {
        let mut profiles: HashMap<String, Option<Profile>> = HashMap::new();
        for layers in layers.chunks(AT_ONCE) {
            let images: Vec<(Prefetch, Image)> = std::thread::scope(|scope| {
                let list = |layer: &'_ Arc<Layer>| {
                    let layer = Arc::clone(layer);
                    scope.spawn(move || self.list(&layer))
                };
                let threads: Vec<_> = layers.iter().map(list).collect();
                let ended = threads.into_iter().map(|thread| {
                    let ended = thread.join();
                    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                ended.flatten().collect()
            });
            for (requests, image) in images {
                // Layers of one image have one profile.
                let location = requests.store.location().to_string();
                let find = || match requests.stated_profile() {
                    Some((whole, true)) => Some(whole),
                    part => requests
                        .fetch_profile()
                        .or(part.map(|(profile, _)| profile)),
                };
                if let Some(profile) = profiles.entry(location).or_insert_with(find) {
                    requests.profile(&image, profile);
                }
            }
        }
    }

    /// Requests what the list of a layer names. Returns the layer if it is an image that is fetched in parts.
    fn list(&self, layer: &Layer) -> Option<(Prefetch, Image)> {
        let (requests, image) = open(layer, &self.log)?;
        requests.list(&image);
        Some((requests, image))
    }
}

/// Opens a layer as an image. Reads of programs report what keeps it from that.
fn open(layer: &Layer, log: &Log) -> Option<(Prefetch, Image)> {
    // Without something that verifies parts, no part is given out before all is there.
    let store = layer.parts()?;
    let requests = Prefetch {
        store: Arc::clone(&store),
        offset: 0,
        log: log.clone(),
    };
    Some((requests, open_stores(store, Vec::new()).ok()?))
}

/// Requests what belongs to files of layers that had to be fetched.
pub struct LayerNeighbours {
    misses: Receiver<LayerMiss>,
    log: Log,
}

impl LayerNeighbours {
    /// Follows the reads of all layers that wait for requests. Layers that are open are not followed.
    pub fn follow(layers: &Served, log: Log) -> Self {
        let (sender, misses) = sync_channel(QUEUE);
        layers.follow(sender);
        Self { misses, log }
    }

    /// Works as long as layers are served.
    pub fn run(self) {
        RemoteImage::never_wait_in_this_thread();
        let mut finders: VecDeque<(Weak<Layer>, Finder)> = VecDeque::new();
        loop {
            let miss = match finders.is_empty() {
                true => self.misses.recv().map_err(RecvTimeoutError::from),
                false => self.misses.recv_timeout(CHECK_INTERVAL),
            };
            // Finders keep the caches of their layers in use.
            finders.retain(|(layer, _)| layer.upgrade().is_some_and(|it| !it.is_complete()));
            match miss {
                Ok((layer, pos)) => self.request(&mut finders, &layer, pos),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn request(
        &self,
        finders: &mut VecDeque<(Weak<Layer>, Finder)>,
        layer: &Weak<Layer>,
        pos: u64,
    ) {
        let known = finders.iter().position(|(known, _)| known.ptr_eq(layer));
        let found = match known {
            // The one that was used last is removed last.
            Some(number) => finders.remove(number),
            None => self
                .finder(layer)
                .map(|finder| (Weak::clone(layer), finder)),
        };
        let Some((layer, mut finder)) = found else {
            return;
        };
        finder.request(&Miss::Address(0, pos));
        finders.push_back((layer, finder));
        if finders.len() > FINDERS_MAX {
            finders.pop_front();
        }
    }

    fn finder(&self, layer: &Weak<Layer>) -> Option<Finder> {
        let (requests, image) = open(&*layer.upgrade()?, &self.log)?;
        // It finds files by their addresses, and caches next to nothing.
        let options = ServeOptions {
            budget: 0,
            ..ServeOptions::default()
        };
        let server = Arc::new(Server::new(image, options));
        Some(Finder::new(
            server,
            requests.requests(),
            MAP_MAX / FINDERS_MAX,
        ))
    }
}
