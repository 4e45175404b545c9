//! Layers of remote images as files, for container engines that mount them.
//!
//! ```text
//!  STORE/sha256/ab/abcd….erofs   complete layer: a plain file
//!  INTO/sha256/ab/abcd….erofs    every layer, through FUSE; what is read is fetched
//! ```
//!
//! [`find`] finds the layers that URLs name. [`export`], [`handler`] and [`mount`] serve them. A [`LayerStore`] has the complete ones, which a
//! [`Keeper`] puts there. [`ListPrefetch`] and [`LayerNeighbours`] request what programs
//! are expected to read. A [`Resolver`] adds the layers of URLs whose servers could not be reached before.

mod digest;
mod keeper;
mod layer;
mod prefetch;
mod resolver;
mod served;
mod sources;
mod store;

pub use keeper::Keeper;
pub use layer::Layer;
pub use prefetch::{LayerNeighbours, ListPrefetch};
pub use resolver::Resolver;
pub use served::Served;
pub use sources::{Found, Unresolved, find};
pub use store::LayerStore;

use crate::export::{BadName, ExportFs, THREADS};
use rustix::mount::MountFlags;
use std::path::Path;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, MountOptions};
use tuff_fuse::transport::Transport;
use tuff_fuse::{CpuLatencyMode, Handler, Log, Session, SessionOptions};
use tuff_store::{MemStore, ReadAt};

/// Creates an export of the layers. `grows`: layers may be added.
///
/// # Errors
/// `Usage` for a layer whose name is no file name.
pub fn export(layers: &[Arc<Layer>], grows: bool, log: Log) -> Result<ExportFs> {
    let export = ExportFs::new(files(layers), log).map_err(bad_name)?;
    Ok(match grows {
        true => export.growing(),
        false => export,
    })
}

fn bad_name(BadName(name): BadName) -> Error {
    Error::usage(format_args!("{name}: no file name"))
}

/// Creates the handler of an export.
pub fn handler(export: &ExportFs, log: Log) -> Arc<Handler> {
    Arc::new(Handler::new(Arc::new(export.clone()), THREADS, log))
}

/// Mounts the export at `into` and serves it.
///
/// # Errors
/// `Io` if it cannot be mounted.
pub fn mount(into: &Path, handler: Arc<Handler>) -> Result<Session<Handler>> {
    let failed = |e| Error::io(into.display(), "cannot mount", e);
    let options = MountOptions {
        source: "layers".into(),
        // The modes of the files exclude other users; root needs it for the mounts of user namespaces.
        allow_other: rustix::process::geteuid().is_root(),
        flags: MountFlags::NOSUID | MountFlags::NODEV,
        ..MountOptions::default()
    };
    let mountpoint = mountpoint::attach(into, &options).map_err(failed)?;
    let options = SessionOptions {
        threads: THREADS,
        transport: Transport::Dev,
        cpu_latency: CpuLatencyMode::Off,
        ..SessionOptions::default()
    };
    Session::start(handler, mountpoint, options).map_err(failed)
}

/// Files of the export: each layer, and a description of its hash tree.
fn files(layers: &[Arc<Layer>]) -> Vec<(String, Arc<dyn ReadAt>)> {
    let mut files: Vec<(String, Arc<dyn ReadAt>)> = Vec::new();
    for layer in layers {
        let path = store::path(&layer.diff_id);
        if let Some(verity) = &layer.verity {
            let text = Arc::new(MemStore::new(verity.clone().into_bytes()));
            files.push((store::verity_path(&path), text));
        }
        files.push((path, Arc::<Layer>::clone(layer)));
    }
    files
}
