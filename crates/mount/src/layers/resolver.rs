//! Tries URLs again whose layers could not be found, and serves them then.

use super::layer::Layer;
use super::served::Served;
use super::sources::Unresolved;
use super::store::LayerStore;
use super::{bad_name, files};
use crate::export::ExportFs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;
use tuff_erofs::Result;
use tuff_fuse::Log;

/// Pause before the first attempt. It doubles with each one.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Finds the layers of URLs whose servers could not be reached, or refused them.
pub struct Resolver {
    /// URLs whose layers are not served yet.
    pub unresolved: Vec<Unresolved>,
    /// Layers that are served.
    pub served: Arc<Served>,
    /// Export of these layers, which grows.
    pub export: ExportFs,
    /// Directory of complete layers.
    pub store: Arc<LayerStore>,
    /// Log of the mount.
    pub log: Log,
}

impl Resolver {
    /// Works until the layers of all URLs are served.
    pub fn run(mut self) {
        let mut pause = PAUSE_FIRST;
        while !self.unresolved.is_empty() {
            sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            let tried = std::mem::take(&mut self.unresolved);
            self.unresolved = tried
                .into_iter()
                .filter_map(|url| self.is_left(url))
                .collect();
        }
    }

    /// Tries a URL again. Returns it if its layers are still not served.
    fn is_left(&self, mut url: Unresolved) -> Option<Unresolved> {
        match url.find().and_then(|layers| self.serve(layers)) {
            Ok(()) => {
                self.log.line(format_args!("{url}: served"));
                None
            }
            Err(e) => {
                let why = e.to_string();
                if url.why != why {
                    self.log.line(format_args!("{url}: not served: {why}"));
                    url.why = why;
                }
                Some(url)
            }
        }
    }

    fn serve(&self, layers: Vec<Layer>) -> Result<()> {
        let mut new = Vec::new();
        for layer in layers {
            match self.served.get(&layer.diff_id) {
                Some(served) => served.share(&layer),
                None => new.push(Arc::new(layer)),
            }
        }
        for layer in &new {
            self.store.adopt(layer)?;
        }
        self.export.add(files(&new)).map_err(bad_name)?;
        self.served.add(new);
        Ok(())
    }
}
