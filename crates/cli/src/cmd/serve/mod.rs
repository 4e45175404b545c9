//! `tuff serve`: layers of remote images as files, for container engines that mount them.
//!
//! ```text
//!  STORE/sha256/ab/abcd….erofs   complete layer: a plain file
//!  INTO/sha256/ab/abcd….erofs    every layer, through FUSE; what is read is fetched
//! ```

use crate::allocator;
use crate::cmd::mount::background::{self, Role};
use crate::cmd::mount::{Ending, serve_metrics};
use crate::image::image_ref;
use crate::progress::{Meter, Show};
use crate::remote::RemoteArgs;
use crate::units::parse_size;
use clap::ValueHint;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::Log;
use tuff_mount::layers::{
    self, Keeper, Layer, LayerNeighbours, LayerStore, ListPrefetch, Resolver, Served,
};
use tuff_open::ImageRef;

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
    let found = layers::find(&args.urls, &args.remote.cache())?;
    for warning in &found.warnings {
        eprintln!("tuff: warning: {warning}");
    }
    let (layers, unresolved) = (found.layers, found.unresolved);
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
    let grows = !unresolved.is_empty();
    let export = layers::export(&layers, grows, log.clone())?;
    let handler = layers::handler(&export, log.clone());
    serve_metrics(args.metrics, args.verbose, &handler)?;
    let ending = Ending::register(&log, Arc::new(|| Ok(())))?;
    let served = Arc::new(Served::new(layers.clone()));
    let fetches_ahead = args.fill_rate != Some(0);
    let neighbours = fetches_ahead.then(|| LayerNeighbours::follow(&served, log.clone()));
    let session = layers::mount(&args.into, handler)?;
    let dir = session.dir().to_owned();
    let life = ending.follow(session, dir)?;
    if args.verbose {
        for layer in layers {
            eprintln!("tuff: {} is {layer}", layer.diff_id);
        }
    }
    let store = Arc::new(store);
    let keeper = Keeper {
        layers: Arc::clone(&served),
        grows,
        store: Arc::clone(&store),
        rate: args.fill_rate,
        log: log.clone(),
    };
    life.beside(move || keeper.run())?;
    if let Some(neighbours) = neighbours {
        let lists = ListPrefetch {
            layers: Arc::clone(&served),
            grows,
            log: log.clone(),
        };
        life.beside(move || lists.run())?;
        life.beside(move || neighbours.run())?;
    }
    if grows {
        let resolver = Resolver {
            unresolved,
            served,
            export,
            store,
            log,
        };
        life.beside(move || resolver.run())?;
    }
    background::ready(in_background)?;
    life.wait();
    Ok(ExitCode::SUCCESS)
}

/// Compares the files of the store with their names. Later runs skip those that have not changed.
fn verify(store: &LayerStore, layers: &[Layer], log: &Log) -> Result<()> {
    let meter = Meter::start("check", Show::Auto);
    let report = |line: &str| meter.suspend(|| log.line(format_args!("{line}")));
    let progress = |done, total| meter.counter().set("check", done, total);
    store.verify(layers, &report, &progress)
}
