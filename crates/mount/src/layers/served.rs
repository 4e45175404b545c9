//! Layers that are served.

use super::layer::{Layer, MissSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Layers that are served, in the order in which they are filled. Their number grows.
#[derive(Default)]
pub struct Served {
    layers: Mutex<Vec<Arc<Layer>>>,
    /// Receiver of reads that wait for requests.
    misses: OnceLock<MissSender>,
}

impl Served {
    /// Layers that are served from the start.
    pub fn new(layers: Vec<Arc<Layer>>) -> Self {
        Self {
            layers: Mutex::new(layers),
            misses: OnceLock::new(),
        }
    }

    /// Sends the places of reads that wait for requests, of all layers that are not open yet. Only the first sender counts.
    pub(crate) fn follow(&self, sender: MissSender) {
        for layer in self.layers().iter() {
            layer.follow(&sender);
        }
        let _ = self.misses.set(sender);
    }

    fn layers(&self) -> MutexGuard<'_, Vec<Arc<Layer>>> {
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all layers in their order.
    pub(crate) fn all(&self) -> Vec<Arc<Layer>> {
        self.layers().clone()
    }

    /// Layer with a name, if it is served.
    pub(crate) fn get(&self, diff_id: &str) -> Option<Arc<Layer>> {
        let layers = self.layers();
        let found = layers.iter().find(|layer| layer.diff_id == diff_id);
        found.cloned()
    }

    /// Adds layers after the others.
    pub(crate) fn add(&self, layers: Vec<Arc<Layer>>) {
        if let Some(sender) = self.misses.get() {
            layers.iter().for_each(|layer| layer.follow(sender));
        }
        self.layers().extend(layers);
    }
}
