//! `--trace`: the requests of a remote image, a line of JSON each.

use crate::overwrite::{self, Format};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::Log;
use tuff_open::{ImageRef, RemoteImage};
use tuff_store::{Output, Target};

/// Trace of a mount without requests.
const EMPTY: &str = "{\"requests\":0,\"bytes\":0,\"omitted_requests\":0,\"omitted_bytes\":0}\n";

/// Output file of a trace.
#[derive(Clone)]
pub(super) struct TraceFile {
    path: PathBuf,
    log: Log,
}

impl TraceFile {
    /// Fails for an image that is read without requests.
    pub(super) fn check(path: Option<&Path>, image: &ImageRef) -> Result<()> {
        match path.is_some() && !image.is_network() {
            false => Ok(()),
            true => Err(Error::usage(format_args!(
                "{image}: --trace is for an image behind a URL"
            ))),
        }
    }

    /// Writes an empty trace, so that most errors show before the mount. A full disk is none: it may have room later.
    pub(super) fn start(path: &Path, log: &Log) -> Result<Self> {
        overwrite::check(path, Format::Trace)?;
        let failed = |e| Error::io(path.display(), "cannot write", e);
        let this = Self {
            // The background process changes its working directory.
            path: std::path::absolute(path).map_err(failed)?,
            log: log.clone(),
        };
        match this.write(EMPTY) {
            Err(e) if matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                this.report(e);
            }
            Err(e) => return Err(failed(e)),
            Ok(()) => {}
        }
        Ok(this)
    }

    /// Writes the requests of an image. The log has errors: the mount goes on.
    pub(super) fn save(&self, image: &Arc<RemoteImage>) {
        if let Err(e) = self.write(&image.requests(usize::MAX)) {
            self.report(e);
        }
    }

    fn report(&self, e: io::Error) {
        let e = Error::io(self.path.display(), "cannot write the trace", e);
        self.log.again(e);
    }

    /// Replaces the file atomically.
    fn write(&self, text: &str) -> io::Result<()> {
        let output = Output::create(&Target::Path(self.path.clone()))?;
        output.write_at(text.as_bytes(), 0)?;
        output.finish(text.len() as u64, false)
    }
}
