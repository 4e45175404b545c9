//! `tuff serve`: layers of remote images as files, for container engines that mount them.
//!
//! ```text
//!  STORE/sha256/ab/abcd….erofs   complete layer: a plain file
//!  INTO/sha256/ab/abcd….erofs    every layer, through FUSE; what is read is fetched
//! ```

mod keeper;
mod layer;
mod layer_digest;
mod layer_store;
mod sources;

use crate::allocator;
use crate::cmd::mount::background::{self, Role};
use crate::cmd::mount::lifetime::{Lifetime, Signals, serve_metrics};
use crate::image::image_ref;
use crate::progress::{Meter, Show};
use crate::remote::RemoteArgs;
use crate::units::parse_size;
use clap::ValueHint;
use keeper::Keeper;
use layer::Layer;
use layer_store::LayerStore;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, MountOptions};
use tuff_fuse::transport::Transport;
use tuff_fuse::{CpuLatencyMode, Handler, Log, Session, SessionOptions};
use tuff_mount::ExportFs;
use tuff_mount::export::{BadName, THREADS};
use tuff_open::ImageRef;
use tuff_store::{MemStore, ReadAt};

/// Serve layers of remote images to container engines
///
/// Two directories show every layer as sha256/XX/DIFFID.erofs, the layout of containerd's layer_content_caches: STORE the
/// complete layers as plain files, INTO all layers through FUSE. What is read is fetched first, and the rest in the
/// background. A layer gets into STORE when its content has the digest that is its name. A background process serves until INTO is unmounted (tuff umount) or on SIGTERM or SIGINT.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image in a registry (oci://), whose EROFS layers are served, or a layer by a URL that ends in DIFFID.erofs
    #[arg(required = true, value_name = "URL", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    urls: Vec<ImageRef>,
    /// Directory to mount on, for layers that are not complete
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Directory of complete layers
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Largest size of that directory; layers that were not used for longest and are not mounted are removed first
    /// [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    store_max: Option<u64>,
    /// Largest number of bytes per second that are fetched in the background; 0 fetches only what is read [default: no
    /// limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    fill_rate: Option<u64>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Serve the counters at http://ADDR/metrics in the Prometheus text format; ADDR is a loopback address such as
    /// 127.0.0.1:9000
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Append log messages to this file [default: standard error, or the system log in the background]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print which layers are served
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Role::Server { in_background } = Role::of_this_process(args.foreground) else {
        return background::start();
    };
    if in_background {
        background::leave_terminal();
    }
    allocator::share_heap();
    let log = background::log(args.log.as_deref(), in_background)?;
    let layers = sources::layers(&args.urls, &args.remote)?;
    let absolute = |dir: &PathBuf| {
        std::path::absolute(dir).map_err(|e| Error::io(dir.display(), "cannot find", e))
    };
    let store = LayerStore::open(
        absolute(&args.store)?,
        absolute(&args.into)?,
        args.store_max,
    )?;
    verify(&store, &layers, &log)?;
    let layers: Vec<Arc<Layer>> = layers.into_iter().map(Arc::new).collect();
    for layer in &layers {
        store.adopt(layer)?;
    }
    let export = ExportFs::new(files(&layers), log.clone());
    let export = export.map_err(|BadName(name)| Error::usage(format_args!("{name}: no file name")));
    let handler = Arc::new(Handler::new(Arc::new(export?), THREADS, log.clone()));
    serve_metrics(args.metrics, args.verbose, &handler)?;
    let signals = Signals::register()?;
    let session = mount(args, handler)?;
    let dir = session.dir().to_owned();
    let life = Lifetime::start(signals, session, dir, &log, Arc::new(|| Ok(())))?;
    if args.verbose {
        for layer in &layers {
            eprintln!("tuff: {} is {layer}", layer.diff_id);
        }
    }
    let keeper = Keeper {
        layers,
        store,
        rate: args.fill_rate,
        log,
    };
    life.beside(move || keeper.run())?;
    life.wait(None, in_background)
}

/// Compares the files of the store with their names. Later runs skip those that have not changed.
fn verify(store: &LayerStore, layers: &[Layer], log: &Log) -> Result<()> {
    let meter = Meter::start("check", Show::Auto);
    let report = |line: &str| meter.suspend(|| log.line(format_args!("{line}")));
    let progress = |done, total| meter.counter().set("check", done, total);
    store.verify(layers, &report, &progress)
}

/// Files of the export: each layer, and a description of its hash tree.
fn files(layers: &[Arc<Layer>]) -> Vec<(String, Arc<dyn ReadAt>)> {
    let mut files: Vec<(String, Arc<dyn ReadAt>)> = Vec::new();
    for layer in layers {
        let path = layer_store::path(&layer.diff_id);
        if let Some(verity) = &layer.verity {
            let text = Arc::new(MemStore::new(verity.clone().into_bytes()));
            files.push((layer_store::verity_path(&path), text));
        }
        files.push((path, Arc::<Layer>::clone(layer)));
    }
    files
}

fn mount(args: &Args, handler: Arc<Handler>) -> Result<Session<Handler>> {
    let failed = |e| Error::io(args.into.display(), "cannot mount", e);
    let options = MountOptions {
        source: "layers".into(),
        // The modes of the files exclude other users; root needs it for the mounts of user namespaces.
        allow_other: rustix::process::geteuid().is_root(),
        flags: rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV,
    };
    let mountpoint = mountpoint::attach(&args.into, &options).map_err(failed)?;
    let options = SessionOptions {
        threads: THREADS,
        transport: Transport::Dev,
        cpu_latency: CpuLatencyMode::Off,
        ..SessionOptions::default()
    };
    Session::start(handler, mountpoint, options).map_err(failed)
}
