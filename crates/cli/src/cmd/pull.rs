//! `tuff pull`: copies whole images from registries, buckets and web servers.

use crate::image::image_ref;
use crate::out::Out;
use crate::overwrite::Format;
use crate::progress::{Meter, Show};
use crate::remote::RemoteArgs;
use crate::sink::Sink;
use crate::units::size;
use clap::ValueHint;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_open::remote::{failed, index, options, trusted};
use tuff_open::{ImageRef, certificate, parse_root};
use tuff_remote::{Location, WholeImage, open_images};
use tuff_store::{FileStore, ReadAt};

/// Bytes of an index that are copied at once. Unit: bytes.
const STEP: u64 = 1 << 20;

/// Copy an image from a registry, a bucket or a web server to a file
///
/// Parts that are in the cache already are not fetched again, so a copy that was interrupted continues. FILE gets its name
/// when it is complete, and replaces only an EROFS image or an empty file. Devices of the image become FILE.device1 and so on,
/// which tuff mount --device takes in this order. For several layers, FILE is an index that shows them as one tree, and the
/// layers are its devices.
///
/// In a registry, the whole is compared with the digest of the manifest. Elsewhere, parts are verified if the root hash is
/// known (--root-hash, --trust).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// URL of the image: oci://, s3://, https://, http:// or file://
    #[arg(value_name = "URL", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    url: ImageRef,
    /// File to write, or - for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace FILE whatever it contains
    #[arg(long)]
    force: bool,
    /// Verify every part against the dm-verity hash tree with this root hash
    #[arg(long, visible_alias = "verity", value_parser = parse_root, value_name = "ROOT-HASH")]
    root_hash: Option<Root>,
    /// Refuse the image unless a signature of its root hash by this certificate comes with it
    #[arg(long, value_name = "CERT", conflicts_with = "root_hash")]
    trust: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let url = args.url.url().ok_or_else(|| {
        let problem = "not a URL such as oci://REGISTRY/NAME:TAG";
        Error::usage(format_args!("{}: {problem}", args.url))
    })?;
    let location = url.location().map_err(|e| failed(e, "cannot pull"))?;
    let (mut location, mut root) = (location.clone(), args.root_hash);
    let cache = args.remote.cache();
    let trust = args.trust.as_deref().map(certificate).transpose()?;
    if let Some(certificate) = &trust {
        (location, root) = trusted(&location, certificate, &cache)?;
    }
    let read: Vec<&Path> = location.local_path().into_iter().collect();
    let sink = Sink::create(&args.file, &read, Format::Image, args.force)?;
    let options = options(&cache, root, trust)?;
    let opened = open_images(&location, &options, false).map_err(|e| failed(e, "cannot pull"))?;
    let layers = match opened.len() {
        1 => None,
        _ => Some(index(&opened, &options)?),
    };
    for warning in layers.iter().flat_map(|layers| &layers.warnings) {
        eprintln!("tuff: warning: {warning}");
    }
    let layers = layers.map(|layers| layers.store);
    let images = WholeImage::all(opened).map_err(|e| failed(e, "cannot pull"))?;
    let devices = images.len() - usize::from(layers.is_none());
    if devices > 0 && args.file == Path::new("-") {
        return Err(Error::usage(format_args!(
            "{location}: the image has {devices} devices, which are files of their own: name a file"
        )));
    }
    let mut files = vec![args.file.clone()];
    let mut sinks = vec![sink];
    for number in 1..=devices {
        let mut name = args.file.clone().into_os_string();
        name.push(format!(".device{number}"));
        files.push(name.into());
    }
    for file in &files[1..] {
        sinks.push(Sink::create(file, &read, Format::Image, args.force)?);
    }
    let meter = Meter::start("pull", Show::unless(args.quiet || args.json));
    for image in &images {
        meter.counter().add_total(image.size);
    }
    let (of_index, of_images) = sinks.split_at_mut(usize::from(layers.is_some()));
    if let (Some(index), [sink]) = (&layers, of_index) {
        copy_index(index, sink)?;
    }
    for (image, sink) in images.iter().zip(of_images) {
        copy(image, sink, &meter)?;
    }
    drop(meter);
    // An image that has its name has its devices.
    for sink in sinks.into_iter().rev() {
        sink.finish()?;
    }
    let copied = Copied {
        index: layers.as_ref(),
        images: &images,
        files: &files,
    };
    copied.report(args, &location)
}

/// Copies the index of several layers.
fn copy_index(index: &FileStore, sink: &mut Sink) -> Result<()> {
    let mut at = 0;
    while at < index.size() {
        let mut part = vec![0; STEP.min(index.size() - at) as usize]; // fits: at most STEP
        let read = index.read_exact_at(&mut part, at);
        read.map_err(|e| Error::io("index of the layers", "cannot read", e))?;
        sink.write_all(&part).map_err(|e| sink.failed(e))?;
        at += part.len() as u64;
    }
    Ok(())
}

fn copy(image: &WholeImage, sink: &mut Sink, meter: &Meter) -> Result<()> {
    for part in image.parts() {
        let part = part.map_err(|e| sink.stop_or(failed(e, "cannot pull")))?;
        sink.write_all(&part).map_err(|e| sink.failed(e))?;
        meter.counter().add(part.len() as u64);
    }
    Ok(())
}

/// Files that were written.
struct Copied<'a> {
    /// Index of several layers, in the first file.
    index: Option<&'a FileStore>,
    /// Images in the other files, or in all.
    images: &'a [WholeImage],
    files: &'a [PathBuf],
}

impl Copied<'_> {
    fn report(&self, args: &Args, location: &Location) -> Result<ExitCode> {
        // The summary must not be mixed into an image on standard output.
        if args.quiet || args.file == Path::new("-") {
            return Ok(ExitCode::SUCCESS);
        }
        let first = self.images.first().filter(|_| self.index.is_none());
        let len = match (self.index, first) {
            (Some(index), _) => index.size(),
            (None, first) => first.map_or(0, |image| image.size),
        };
        let digest = first.and_then(|image| image.digest.as_ref());
        let root = first.and_then(|image| image.root_hash.as_ref());
        let root = root.map(hex::encode);
        let devices = &self.images[usize::from(first.is_some())..];
        let names = self.files.iter().skip(1).map(|file| file.to_string_lossy());
        let names: Vec<_> = names.collect();
        let mut out = Out::new();
        if args.json {
            out.json(&json!({
                "event": "done",
                "url": location.to_string(),
                "file": args.file.to_string_lossy(),
                "devices": names,
                "image_bytes": len,
                "digest": digest,
                "root_hash": root,
            }))?;
            return out.finish();
        }
        out.line(format_args!("image        {}", size(len)))?;
        for (device, name) in devices.iter().zip(&names) {
            out.line(format_args!("device       {name} ({})", size(device.size)))?;
        }
        if let Some(digest) = digest {
            out.line(format_args!("digest       {digest}"))?;
        }
        if self.index.is_none() {
            let root = root.unwrap_or_else(|| "unknown".to_owned());
            out.line(format_args!("root hash    {root}"))?;
        }
        out.finish()
    }
}
