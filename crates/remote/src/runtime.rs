//! Runtime of the clients: two threads, whatever the number of images.

use crate::error::{Error, Kind, Result};
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

/// Returns the runtime of this process, started on first use.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let built = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("tuff-remote");
        builder.enable_all().build().map_err(|e| e.to_string())
    });
    built
        .as_ref()
        .map_err(|e| Error::new(Kind::Unavailable, "the network client", e))
}
