//! Fills layers in the background, and puts those that are complete into the store.

use super::layer::Layer;
use super::served::Served;
use super::store::LayerStore;
use std::fmt::Display;
use std::io::ErrorKind;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tuff_fuse::Log;
use tuff_remote::{Kind, RemoteStore};

/// Interval of checks for layers that are complete.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Pause after a failure, unless the layer is read for the first time meanwhile.
const PAUSE: Duration = Duration::from_secs(30);

/// Fills one layer after the other: those that were read first, then by their order.
pub struct Keeper {
    /// Layers, in the order in which they are filled.
    pub layers: Arc<Served>,
    /// True if layers may be added.
    pub grows: bool,
    /// Directory of complete layers.
    pub store: Arc<LayerStore>,
    /// Largest rate of the fill. Unit: bytes per second. 0 disables it.
    pub rate: Option<u64>,
    /// Log of the mount.
    pub log: Log,
}

/// Layer that is not in the store.
struct Pending {
    layer: Arc<Layer>,
    is_filled: bool,
    /// Time of the last failure, and whether the layer had been read then.
    failure: Option<(Instant, bool)>,
}

impl Pending {
    fn is_ready(&self) -> bool {
        self.failure.is_none_or(|(at, was_read)| {
            at.elapsed() >= PAUSE || self.layer.was_read() && !was_read
        })
    }
}

impl Keeper {
    /// Works until all layers are in the store, if none may be added.
    pub fn run(self) {
        let mut pending: Vec<Pending> = Vec::new();
        let mut known = 0;
        loop {
            let layers = self.layers.all();
            let new = layers.iter().skip(known);
            let absent = new.filter(|layer| !layer.is_complete());
            pending.extend(absent.map(|layer| Pending {
                layer: Arc::clone(layer),
                is_filled: false,
                failure: None,
            }));
            known = layers.len();
            if pending.is_empty() && !self.grows {
                return;
            }
            match self.filled(&mut pending) {
                Some(source) => {
                    source.wait_complete(CHECK_INTERVAL);
                }
                None => sleep(CHECK_INTERVAL),
            }
            pending.retain_mut(|p| {
                let is_active = p.is_filled || p.layer.was_read();
                let done = match is_active && p.is_ready() {
                    true => self.keep_complete(&p.layer),
                    false => Ok(false),
                };
                !done.unwrap_or_else(|why| self.failed(p, &why))
            });
        }
    }

    /// Notes the failure of a layer. Returns false: it is not in the store.
    fn failed(&self, pending: &mut Pending, why: &str) -> bool {
        let layer = &pending.layer;
        self.log
            .line(format_args!("{layer}: not in the store: {why}"));
        pending.is_filled = false;
        pending.failure = Some((Instant::now(), layer.was_read()));
        false
    }

    /// Source of the layer that is filled. Chooses one if there is none.
    fn filled(&self, pending: &mut [Pending]) -> Option<Arc<RemoteStore>> {
        if let Some(p) = pending.iter().find(|p| p.is_filled) {
            return p.layer.open().ok();
        }
        if self.rate == Some(0) {
            return None;
        }
        let read = |p: &Pending| p.is_ready() && p.layer.was_read();
        let chosen = pending.iter().position(read);
        let chosen = chosen.or_else(|| pending.iter().position(Pending::is_ready))?;
        let p = &mut pending[chosen];
        match p.layer.open() {
            Ok(source) => {
                source.fill(self.rate);
                p.is_filled = true;
                Some(source)
            }
            Err(e) => {
                p.layer.leave(None);
                self.failed(p, &e.to_string());
                None
            }
        }
    }

    /// Puts a layer into the store if it is complete. Returns true if it is there.
    fn keep_complete(&self, layer: &Layer) -> Result<bool, String> {
        let source = layer.open().map_err(|e| e.to_string())?;
        if !source.wait_complete(Duration::ZERO) {
            let Some(e) = source.failure() else {
                return Ok(false);
            };
            layer.leave(Some(&source));
            return Err(e.to_string());
        }
        // A layer that no one has read must not displace others.
        let has_room = self
            .store
            .make_room(layer.size, layer.was_read(), &self.layers.all());
        if !has_room.map_err(|e| e.to_string())? {
            return Err("there is no room; make the store larger with --store-max SIZE".to_owned());
        }
        let file = match source.complete_file() {
            Ok(file) => file,
            Err(e) if e.kind() == Kind::Corrupt => return Ok(self.withdrawn(layer, &e)),
            Err(e) => return Err(e.to_string()),
        };
        match self.store.add(layer, file.file()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::InvalidData => Ok(self.withdrawn(layer, &e)),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Ends the reads of a layer whose content is not that of its name. Returns true: there is no more to do for it.
    fn withdrawn(&self, layer: &Layer, why: &dyn Display) -> bool {
        layer.withdraw();
        let id = &layer.diff_id;
        self.log
            .line(format_args!("{layer}: not served as {id}: {why}"));
        true
    }
}
