//! Runtime of the clients: two threads, whatever the number of images.

use crate::error::{Error, Kind, Result};
use std::sync::{Mutex, PoisonError};
use tokio::runtime::{Builder, Runtime};

/// Returns the runtime of this process, started on first use. The child of a fork has none of its parent's threads, and gets a
/// runtime of its own.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);
    let mut current = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((owner, runtime)) = *current
        && owner == process
    {
        return Ok(runtime);
    }
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("tuff-remote");
    let built = builder.enable_all().build();
    let built = built.map_err(|e| Error::new(Kind::Unavailable, "the network client", e))?;
    // A runtime lives as long as its process.
    let runtime: &'static Runtime = Box::leak(Box::new(built));
    *current = Some((process, runtime));
    Ok(runtime)
}
