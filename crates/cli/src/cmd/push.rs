//! `tuff push`: uploads images to registries and buckets.

use super::build_image::build_with_defaults;
use super::build_image::paths::are_images;
use super::profile;
use crate::image::OpenArgs;
use crate::out::Out;
use crate::progress::{Meter, Show, on_signal};
use crate::remote::{failed, is_url, shown};
use crate::signing::KeyPair;
use crate::text::hex;
use crate::units::size;
use clap::ValueEnum;
use serde_json::json;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::{Error, Result, verity};
use tuff_remote::{
    LayerImage, LayerMedia, LayerTree, Location, PushOptions, Pushed, RetryPolicy, Step,
    copy_layout,
};
use tuff_store::Window;

/// Upload an image to a registry or a bucket
///
/// SOURCE is an EROFS image, or one of the other sources of tuff build. From the latter an image with a hash tree is built
/// in a temporary file, as tuff build --verity does without further options; several sources are merged. A container image
/// keeps its configuration, such as the command to run. docker://REGISTRY/NAME:TAG is a container image in a registry.
///
/// URL is oci://REGISTRY/NAME:TAG or s3://BUCKET/KEY. Several EROFS images become layers in a registry, the lowest first.
/// Everything that the registry has already is skipped, and an upload that broke continues where it ended.
///
/// Layers in a registry have the form of the EROFS image specification. The manifest states the root hash, which tuff verifies
/// when it reads the image by its URL.
#[derive(clap::Args)]
#[command(override_usage = "tuff push [OPTIONS] <SOURCE>... <URL>")]
pub(crate) struct Args {
    /// One or more SOURCEs, then URL
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Media type of layers: application/vnd.erofs (erofs), or application/vnd.erofs.layer.v1 for containerd 2.4 (containerd)
    #[arg(long, value_enum, default_value = "erofs", value_name = "TYPE")]
    media_type: Media,
    /// Keep the layers of a container image: each becomes one EROFS image, with whiteouts for overlayfs
    #[arg(long)]
    layers: bool,
    /// Platform of the image, and of container images among the sources: OS/ARCHITECTURE[/VARIANT] (default: linux on this
    /// machine's architecture)
    #[arg(long, value_name = "PLATFORM", value_parser = parse_platform)]
    platform: Option<String>,
    /// Access profile that accompanies the image (see tuff mount --record)
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Sign the root hash: private key in PEM and its certificate. The signature accompanies the image (see --trust of the
    /// verbs that read)
    #[arg(long, value_name = "KEY,CERT", value_parser = KeyPair::parse)]
    sign: Option<KeyPair>,
    /// Time without progress after which the upload fails
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    timeout: u16,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print progress as JSON lines to standard error, and the result as one JSON object to standard output
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Media {
    Erofs,
    Containerd,
}

fn parse_platform(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('/').collect();
    match (2..=3).contains(&parts.len()) && parts.iter().all(|part| !part.is_empty()) {
        true => Ok(text.to_owned()),
        false => Err("write it as linux/amd64 or linux/arm64/v8".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Some((url, sources)) = args.paths.split_last() else {
        return Err(Error::usage("a source and a URL are needed"));
    };
    let text = url.to_str().filter(|_| is_url(url));
    let text = text.ok_or_else(|| {
        let wanted = "the last argument is not a URL such as oci://REGISTRY/NAME:TAG";
        Error::usage(format_args!("{}: {wanted}", shown(url).display()))
    })?;
    let location = Location::parse(text).map_err(|e| failed(e, "cannot push"))?;
    let show = match (args.quiet, args.json) {
        (true, _) => Show::Quiet,
        (_, true) => Show::Json,
        _ => Show::Auto,
    };
    // Fails before anything is built.
    let mut options = options(args)?;
    let (layers, config) = layers(sources, args, show)?;
    options.config = config;
    let pushed = upload(&location, &layers, &options, show)?;
    let mut out = Out::new();
    match show {
        Show::Json => out.line(object(&location, &pushed))?,
        Show::Auto => lines(&location, &pushed, &mut out)?,
        Show::Quiet => {}
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the sources if all are images, else builds images of them. Also returns the configuration of a container image.
fn layers(
    sources: &[PathBuf],
    args: &Args,
    show: Show,
) -> Result<(Vec<LayerImage>, Option<Vec<u8>>)> {
    if are_images(sources)? {
        let layers: Result<_> = sources.iter().map(|path| layer(path)).collect();
        return Ok((layers?, None));
    }
    let platform = args.platform.as_deref();
    let copies = Copies::fetch(sources, args, show)?;
    let sources = &copies.sources;
    let mut built = build_with_defaults(sources, platform, args.layers, show)?;
    let layers: Result<_> = built.images.iter().map(|path| layer(path)).collect();
    // The open files stay, and nothing is left if the upload is killed.
    Ok((layers?, built.config.take()))
}

/// Sources, with container images of registries as OCI layouts in temporary directories, removed on drop.
struct Copies {
    sources: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Copies {
    fn fetch(sources: &[PathBuf], args: &Args, show: Show) -> Result<Self> {
        let mut copies = Self {
            sources: Vec::new(),
            dirs: Vec::new(),
        };
        for (number, source) in sources.iter().enumerate() {
            let Some(url) = source.to_str().filter(|_| is_url(source)) else {
                copies.sources.push(source.clone());
                continue;
            };
            let location = Location::parse(url).map_err(|e| failed(e, "cannot read"))?;
            let name = format!("tuff-push-{}-{number}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
            made.map_err(|e| Error::io(dir.display(), "cannot create", e))?;
            copies.dirs.push(dir.clone());
            let stop = on_signal();
            let watched = Watched::new(show, &stop);
            let (platform, retry) = (args.platform.as_deref(), retry(args));
            let copied = copy_layout(&location, platform, &dir, retry, &|step| watched.step(step));
            copied.map_err(|e| stopped_or(e, &stop, "cannot read"))?;
            copies.sources.push(format!("oci:{}", dir.display()).into());
        }
        Ok(copies)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // The error that ends the upload is the one to report.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Opens an image, and finds its hash tree.
fn layer(path: &Path) -> Result<LayerImage> {
    let store = OpenArgs::default().store(path)?;
    let place = path.display().to_string();
    let image = Image::open_shared(Arc::clone(&store), OpenOptions::default());
    let image = image.map_err(|e| e.within(&place))?;
    if !image.slots().is_empty() {
        return Err(Error::usage(format_args!(
            "{place}: the image has data on other devices, which an upload does not carry; build it without --base, --blob and --image-index"
        )));
    }
    let end = verity::end(&image).map_err(|e| e.within(&place))?;
    let tree = verity::appended_tree(&image).map_err(|e| e.within(&place))?;
    if tree.is_none() {
        // A block device is longer than its image.
        let end = end.min(store.size());
        return Ok(LayerImage {
            store: Arc::new(Window::part(store, 0, end)),
            tree: None,
        });
    }
    let stated = verity::stated(&*store, &*store, verity::hash_offset(end));
    let stated = stated.map_err(|e| e.within(&place))?;
    let end = stated.end.min(store.size());
    Ok(LayerImage {
        store: Arc::new(Window::part(store, 0, end)),
        tree: Some(LayerTree {
            offset: stated.hash_offset,
            root: stated.root,
            block: stated.header.hash_block,
        }),
    })
}

/// Options of the library, with the files that they name.
fn options(args: &Args) -> Result<PushOptions> {
    let profile = args.profile.as_deref().map(|path| {
        // A file of another kind would be refused by the readers.
        profile::read(path)?;
        std::fs::read(path).map_err(|e| Error::io(path.display(), "cannot read", e))
    });
    let signer = args.sign.as_ref().map(KeyPair::signer).transpose()?;
    Ok(PushOptions {
        media: match args.media_type {
            Media::Erofs => LayerMedia::Erofs,
            Media::Containerd => LayerMedia::Containerd,
        },
        platform: args.platform.clone(),
        config: None,
        profile: profile.transpose()?,
        signer: signer.map(Arc::new),
        retry: retry(args),
    })
}

fn retry(args: &Args) -> RetryPolicy {
    RetryPolicy {
        deadline: Duration::from_secs(args.timeout.into()),
        ..RetryPolicy::default()
    }
}

/// Error for a failure, or for a signal that caused it.
fn stopped_or(e: tuff_remote::Error, stop: &AtomicBool, what: &str) -> Error {
    match stop.load(Ordering::Relaxed) {
        true => Error::io(e.place(), "stopped", io::ErrorKind::Interrupted.into()),
        false => failed(e, what),
    }
}

fn upload(
    location: &Location,
    layers: &[LayerImage],
    options: &PushOptions,
    show: Show,
) -> Result<Pushed> {
    let stop = on_signal();
    let watched = Watched::new(show, &stop);
    let pushed = tuff_remote::push(location, layers, options, &|step| watched.step(step));
    pushed.map_err(|e| stopped_or(e, &stop, "cannot push"))
}

/// Progress of an upload.
struct Watched<'a> {
    meter: Meter,
    stop: &'a AtomicBool,
}

impl<'a> Watched<'a> {
    fn new(show: Show, stop: &'a AtomicBool) -> Self {
        let meter = Meter::start("connect", show);
        Self { meter, stop }
    }

    /// Shows a step. Returns false if the upload is to stop.
    fn step(&self, step: &Step) -> bool {
        let counter = self.meter.counter();
        counter.set(step.stage, step.bytes, step.total_bytes);
        !self.stop.load(Ordering::Relaxed)
    }
}

fn object(location: &Location, pushed: &Pushed) -> serde_json::Value {
    let layers: Vec<_> = pushed
        .layers
        .iter()
        .map(|layer| {
            json!({
                "digest": layer.digest,
                "blob_bytes": layer.size,
                "root_hash": layer.root_hash.as_ref().map(|root| hex(root)),
                "was_present": layer.was_present,
            })
        })
        .collect();
    json!({
        "event": "done",
        "url": location.to_string(),
        "digest": pushed.digest,
        "manifest": pushed.manifest,
        "layers": layers,
    })
}

fn lines(location: &Location, pushed: &Pushed, out: &mut Out) -> Result<()> {
    out.line(format_args!("url          {location}"))?;
    out.line(format_args!("digest       {}", pushed.digest))?;
    for layer in &pushed.layers {
        let present = if layer.was_present {
            ", was there already"
        } else {
            ""
        };
        let bytes = size(layer.size);
        out.line(format_args!(
            "layer        {} ({bytes}{present})",
            layer.digest
        ))?;
        match &layer.root_hash {
            Some(root) => out.line(format_args!("root hash    {}", hex(root)))?,
            None => out.line("root hash    none: tuff verity add appends a hash tree")?,
        }
    }
    Ok(())
}
