//! `tuff push`: uploads images to registries and buckets.

use super::build_image::fetched::{FetchedImages, Watched, stopped_or};
use super::build_image::paths::are_images;
use super::build_image::{BuiltImages, Layering, PushBuild, build_for_push};
use super::profile;
use crate::image::unused;
use crate::out::Out;
use crate::progress::{Show, on_signal};
use crate::signing::KeyPair;
use crate::units::size;
use clap::ValueEnum;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tuff_erofs::read::StartList;
use tuff_erofs::verity::{self, Extent, TreePlace};
use tuff_erofs::{Error, Place, Result};
use tuff_mkfs::settings::Settings;
use tuff_open::remote::failed;
use tuff_open::{Container, Device, ImageRef, OpenOptions, devices, open_stores};
use tuff_remote::{
    LayerImage, LayerMedia, LayerTree, Location, PushOptions, Pushed, RetryPolicy, default_cache,
};
use tuff_store::Window;

/// Directory of the cache with the records of unfinished uploads.
const RECORDS: &str = "uploads";

/// Upload an image to a registry or a bucket
///
/// SOURCE is an EROFS image, or one of the other sources of tuff build. From the latter an image with a hash tree is built
/// in a temporary file, as tuff build --verity does, with --compress and --cluster if they are given; several sources are merged. A container image
/// keeps its configuration, such as the command to run. docker://REGISTRY/NAME:TAG is a container image in a registry.
///
/// URL is oci://REGISTRY/NAME:TAG or s3://BUCKET/KEY. Several EROFS images become layers in a registry, the lowest first.
/// An image with bases is uploaded with them (--device). Blobs that the server has are skipped, and an interrupted
/// upload continues where it ended.
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
    /// Keep the layers of a container image: each becomes an EROFS image with whiteouts for overlayfs (overlay), or a delta
    /// image whose devices are the images of the layers below (delta)
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "overlay", value_name = "HOW")]
    layers: Option<Layers>,
    /// Extra device of an EROFS image among the sources, once for each slot of the device tables; those with UUIDs in any
    /// order, or found beside the image. It is uploaded with the image
    #[arg(long, value_name = "FILE")]
    device: Vec<PathBuf>,
    /// Other repository of the same registry: layers that it has are mounted there instead of sent
    #[arg(long, value_name = "NAME")]
    mount_from: Option<String>,
    /// Platform of the image, and of container images among the sources: OS/ARCHITECTURE[/VARIANT] (default: linux on this
    /// machine's architecture)
    #[arg(long, value_name = "PLATFORM", value_parser = parse_platform)]
    platform: Option<String>,
    /// Algorithm and level of an image that is built, as with tuff build
    #[arg(short = 'z', long, value_name = "ALG[:LEVEL]", value_parser = |text: &str| setting("compress", text))]
    compress: Option<String>,
    /// Largest physical cluster of an image that is built, as with tuff build
    #[arg(short = 'C', long, value_name = "SIZE", value_parser = |text: &str| setting("cluster", text))]
    cluster: Option<String>,
    /// Access profile that accompanies the image (see tuff mount --record)
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Program of the image whose start is listed in the image (see tuff build): a path inside the image, or none (default: the
    /// command of a container image). With --layers=delta the list is in the topmost image, with --layers=overlay in the manifest
    #[arg(long, value_name = "PATH")]
    start_with: Option<PathBuf>,
    /// Sign the root hash: private key in PEM and its certificate. The signature accompanies the image (see --trust of the
    /// verbs that read)
    #[arg(long, value_name = "KEY,CERT", value_parser = KeyPair::parse)]
    sign: Option<KeyPair>,
    /// Time without progress after which the upload fails
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    timeout: u16,
    /// Leave out files and directories of directory sources that cannot be read, vanish or change, list them, and exit
    /// with code 1
    #[arg(short, long)]
    keep_going: bool,
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Layers {
    Overlay,
    Delta,
}

/// Checks the value of a setting of builds.
fn setting(name: &str, value: &str) -> Result<String, Error> {
    Settings::default().set(name, value)?;
    Ok(value.to_owned())
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
    let target = ImageRef::from(url.as_path());
    let url = target.url().ok_or_else(|| {
        let problem = "the last argument is not a URL such as oci://REGISTRY/NAME:TAG";
        Error::usage(format_args!("{target}: {problem}"))
    })?;
    let location = url.location().map_err(|e| failed(e, "cannot push"))?;
    let show = match (args.quiet, args.json) {
        (true, _) => Show::Quiet,
        (_, true) => Show::Json,
        _ => Show::Auto,
    };
    // Fails before anything is built.
    let mut options = options(args)?;
    if args.start_with.is_some() && args.layers == Some(Layers::Overlay) && !location.is_registry()
    {
        return Err(Error::usage(
            "--start-with: a bucket has no manifest, which would state the start of layers",
        ));
    }
    let (layers, mut built) = layers(sources, args, show)?;
    if let Some(built) = &mut built {
        options.config = built.config.take();
        options.start = std::mem::take(&mut built.start);
    }
    let left_out = built.and_then(|built| built.left_out.clone());
    let pushed = upload(location, &layers, &options, show)?;
    let mut out = Out::new();
    match show {
        Show::Json => out.json(&object(location, &pushed))?,
        Show::Auto => lines(location, &pushed, &mut out)?,
        Show::Quiet => {}
    }
    out.finish()?;
    Ok(
        match left_out.is_none_or(|left_out| left_out.count() == 0) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

/// Opens the sources if all are images, else builds images of them and returns these as well.
fn layers(
    sources: &[PathBuf],
    args: &Args,
    show: Show,
) -> Result<(Vec<LayerImage>, Option<BuiltImages>)> {
    let settings = settings(args)?;
    if are_images(sources)? {
        if args.compress.is_some() || args.cluster.is_some() {
            let problem = "the sources are EROFS images, which are uploaded as they are";
            let option = args.compress.as_ref().map_or("--cluster", |_| "--compress");
            return Err(Error::usage(format_args!("{option}: {problem}")));
        }
        if args.start_with.is_some() {
            return Err(Error::usage(
                "--start-with: the sources are EROFS images, which are uploaded as they are",
            ));
        }
        let paths: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
        let images: Vec<ImageRef> = paths.iter().copied().map(ImageRef::from).collect();
        let images: Vec<&ImageRef> = images.iter().collect();
        let given: Vec<Device> = args.device.iter().cloned().map(Device::from).collect();
        let devices = devices::of_images(&images, &given, false);
        let devices = devices.map_err(|device| unused("--device", &device))?;
        let layers = paths.iter().zip(devices).map(|(path, own)| {
            let own: Vec<PathBuf> = own.iter().map(|device| device.image.name()).collect();
            layer(path, &own)
        });
        let layers: Result<_> = layers.collect();
        return Ok((layers?, None));
    }
    if !args.device.is_empty() {
        return Err(Error::usage("--device: the sources are no EROFS images"));
    }
    let platform = args.platform.as_deref();
    let fetched = FetchedImages::fetch(sources, platform, retry(args), show)?;
    let layering = args.layers.map_or(Layering::Merged, |layers| match layers {
        Layers::Overlay => Layering::Overlay,
        Layers::Delta => Layering::Delta,
    });
    let how = PushBuild {
        settings: &settings,
        platform,
        layering,
        keep_going: args.keep_going,
        start_with: args.start_with.as_deref(),
    };
    let built = build_for_push(&fetched.sources, &how, show)?;
    let open = |(image, devices): &(PathBuf, Vec<PathBuf>)| layer(image, devices);
    let layers: Result<_> = built.images.iter().map(open).collect();
    Ok((layers?, Some(built)))
}

/// Returns the settings of an image that is built.
fn settings(args: &Args) -> Result<Settings> {
    let mut settings = Settings::with_prefix("--");
    for (name, value) in [("compress", &args.compress), ("cluster", &args.cluster)] {
        if let Some(value) = value {
            settings.set(name, value)?;
        }
    }
    Ok(settings)
}

/// Opens an image with its devices.
fn layer(path: &Path, devices: &[PathBuf]) -> Result<LayerImage> {
    let container = Container::open(&path.into(), &OpenOptions::default())?;
    let place = path.display().to_string();
    let open = |devices| {
        open_stores(Arc::clone(container.store()), devices)
            .map_err(|e| e.within(Place::file(&place)))
    };
    let image = open(Vec::new())?;
    let sb = image.superblock();
    let own = sb.blocks.saturating_mul(sb.block_bits.size());
    // Data of devices may follow the image in its file.
    let is_inside = verity::end(&image).map_err(|e| e.within(Place::file(&place)))? > own;
    let mut of_image = Vec::new();
    if !image.slots().is_empty() && !is_inside {
        let slots = image.slots().len();
        let given: Vec<_> = devices
            .iter()
            .map(|device| part(device))
            .collect::<Result<_>>()?;
        if given.len() < slots {
            return Err(Error::usage(format_args!(
                "{place}: the image has data on {slots} devices: give each that is not beside it with --device FILE"
            )));
        }
        // Compares their names with those in the device table.
        open(
            given
                .iter()
                .map(|device| Arc::clone(&device.store))
                .collect(),
        )?;
        of_image = given;
    }
    Ok(LayerImage {
        devices: of_image,
        ..part(path)?
    })
}

/// Opens an image without its devices, and finds its hash tree. Another file is a device of plain bytes.
fn part(path: &Path) -> Result<LayerImage> {
    let container = Container::open(&path.into(), &OpenOptions::default())?;
    let store = Arc::clone(container.store());
    let place = path.display().to_string();
    let image = match open_stores(Arc::clone(&store), Vec::new()) {
        Ok(image) => image,
        Err(_) if !are_images(&[path.to_owned()])? => {
            return Ok(LayerImage {
                store,
                tree: None,
                start_metadata: None,
                is_image: false,
                devices: Vec::new(),
            });
        }
        Err(e) => return Err(e.within(Place::file(&place))),
    };
    let end = verity::end(&image).map_err(|e| e.within(Place::file(&place)))?;
    let tree = verity::appended_tree(&image).map_err(|e| e.within(Place::file(&place)))?;
    let mut tree_of_layer = None;
    let mut layer_end = end;
    if tree.is_some() {
        let header = TreePlace::appended(Arc::clone(&store), verity::hash_offset(end));
        let stated = verity::stated(&store, &header, Extent::Image);
        let stated = stated.map_err(|e| e.within(Place::file(&place)))?;
        layer_end = stated.end;
        tree_of_layer = Some(LayerTree {
            offset: stated.hash_offset,
            root: stated.root,
            block: stated.header.hash_block,
        });
    }
    let list = StartList::read(&image).map_err(|e| e.within(Place::file(&place)))?;
    let start_metadata = list.and_then(|list| match list {
        StartList::Known { metadata, .. } => Some(metadata).filter(|range| !range.is_empty()),
        StartList::Unknown { .. } => None,
    });
    // A block device is longer than its image.
    let layer_end = layer_end.min(store.size());
    Ok(LayerImage {
        store: Arc::new(Window::part(store, 0, layer_end)),
        tree: tree_of_layer,
        start_metadata,
        is_image: true,
        devices: Vec::new(),
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
        start: Vec::new(),
        signer: signer.map(Arc::new),
        mount_from: args.mount_from.clone(),
        records: default_cache().map(|cache| cache.join(RECORDS)),
        retry: retry(args),
    })
}

fn retry(args: &Args) -> RetryPolicy {
    RetryPolicy {
        deadline: Duration::from_secs(args.timeout.into()),
        ..RetryPolicy::default()
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

fn object(location: &Location, pushed: &Pushed) -> serde_json::Value {
    let layers: Vec<_> = pushed
        .layers
        .iter()
        .map(|layer| {
            json!({
                "digest": layer.digest,
                "blob_bytes": layer.size,
                "root_hash": layer.root_hash.as_ref().map(hex::encode),
                "is_device": layer.is_device,
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
        let name = if layer.is_device { "device" } else { "layer" };
        out.line(format_args!(
            "{name:<12} {} ({bytes}{present})",
            layer.digest
        ))?;
        match &layer.root_hash {
            Some(root) => out.line(format_args!("root hash    {}", hex::encode(root)))?,
            None => out.line("root hash    none: tuff verity add appends a hash tree")?,
        }
    }
    Ok(())
}
