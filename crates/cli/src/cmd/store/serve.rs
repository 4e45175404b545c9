//! Mounts of snapshots in buckets, which this program serves.

use crate::cmd::mount::{Ending, background};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::read::Image;
use tuff_erofs::serve::{ServeOptions, Server};
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, MountOptions};
use tuff_fuse::transport::Transport;
use tuff_fuse::{CpuLatencyMode, Handler, Session, SessionOptions};
use tuff_mount::export::THREADS;
use tuff_mount::{ImageFs, OwnerOverride};

/// Mounts an image through FUSE, and serves it until it is unmounted.
pub(super) fn serve(
    image: Image,
    name: &Path,
    dir: &Path,
    allow_other: bool,
    in_background: bool,
) -> Result<ExitCode> {
    let failed = |e| Error::io(dir.display(), "cannot mount", e);
    let log = background::log(None, in_background)?;
    let server = Server::new(image, ServeOptions::default());
    let fs = ImageFs::new(server, OwnerOverride::default(), log.clone())?;
    // Reads wait for the network, but not for each other.
    let handler = Arc::new(Handler::new(Arc::new(fs), THREADS, log.clone()));
    let ending = Ending::register(&log, Arc::new(|| Ok(())))?;
    let options = MountOptions {
        source: name.to_owned(),
        allow_other,
        ..MountOptions::default()
    };
    let mountpoint = mountpoint::attach(dir, &options).map_err(failed)?;
    let how = SessionOptions {
        threads: THREADS,
        transport: Transport::Dev,
        cpu_latency: CpuLatencyMode::default(),
        // Longer readahead would fetch what no program reads.
        raises_read_ahead: false,
    };
    let session = Session::start(handler, mountpoint, how).map_err(failed)?;
    let dir = session.dir().to_owned();
    let life = ending.follow(session, dir)?;
    background::ready(in_background)?;
    life.wait();
    Ok(ExitCode::SUCCESS)
}
