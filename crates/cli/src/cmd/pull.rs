//! `tuff pull`: copies whole images from registries, buckets and web servers.

use crate::out::Out;
use crate::overwrite::Format;
use crate::progress::{Meter, Show};
use crate::remote::{RemoteArgs, failed, is_url, options, trusted};
use crate::sink::Sink;
use crate::text::{hex, parse_root};
use crate::units::size;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_remote::{Location, WholeImage};

/// Copy an image from a registry, a bucket or a web server to a file
///
/// Parts that are in the cache already are not fetched again, so a copy that was interrupted continues. FILE gets its name
/// when it is complete, and replaces only an EROFS image or an empty file. Devices of the image become FILE.device1 and so on,
/// which tuff mount --device takes in this order.
///
/// In a registry, the whole is compared with the digest of the manifest. Elsewhere, parts are verified if the root hash is
/// known (--root-hash, --trust).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// URL of the image: oci://, s3://, https://, http:// or file://
    #[arg(value_name = "URL")]
    url: PathBuf,
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
    let mut url = args.url.clone();
    if !is_url(&url) {
        return Err(Error::usage(format_args!(
            "{}: not a URL such as oci://REGISTRY/NAME:TAG",
            url.display()
        )));
    }
    let mut root = args.root_hash;
    if let Some(certificate) = &args.trust {
        let (pinned, signed) = trusted(&url, certificate, &args.remote)?;
        (url, root) = (pinned, signed);
    }
    let location = Location::parse(url.to_str().unwrap_or_default());
    let location = location.map_err(|e| failed(e, "cannot pull"))?;
    let read: Vec<&Path> = location.local_path().into_iter().collect();
    let sink = Sink::create(&args.file, &read, Format::Image, args.force)?;
    let options = options(&args.remote, root)?;
    let images = WholeImage::open(&location, &options).map_err(|e| failed(e, "cannot pull"))?;
    let devices = images.len() - 1;
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
    for (image, sink) in images.iter().zip(&mut sinks) {
        copy(image, sink, &meter)?;
    }
    drop(meter);
    // An image that has its name has its devices.
    for sink in sinks.into_iter().rev() {
        sink.finish()?;
    }
    report(args, &location, &images, &files)?;
    Ok(ExitCode::SUCCESS)
}

fn copy(image: &WholeImage, sink: &mut Sink, meter: &Meter) -> Result<()> {
    for part in image.parts() {
        let part = part.map_err(|e| sink.told(failed(e, "cannot pull")))?;
        sink.write_all(&part).map_err(|e| sink.failed(e))?;
        meter.counter().add(part.len() as u64);
    }
    Ok(())
}

fn report(
    args: &Args,
    location: &Location,
    images: &[WholeImage],
    files: &[PathBuf],
) -> Result<()> {
    // The summary must not be mixed into an image on standard output.
    let Some(image) = images
        .first()
        .filter(|_| !args.quiet && args.file != Path::new("-"))
    else {
        return Ok(());
    };
    let root = image.root_hash.as_ref().map(|root| hex(root));
    let devices: Vec<_> = files[1..]
        .iter()
        .map(|file| file.to_string_lossy())
        .collect();
    let mut out = Out::new();
    if args.json {
        out.line(json!({
            "event": "done",
            "url": location.to_string(),
            "file": args.file.to_string_lossy(),
            "devices": devices,
            "image_bytes": image.size,
            "digest": image.digest,
            "root_hash": root,
        }))?;
    } else {
        out.line(format_args!("image        {}", size(image.size)))?;
        for (device, file) in images[1..].iter().zip(&devices) {
            out.line(format_args!("device       {file} ({})", size(device.size)))?;
        }
        if let Some(digest) = &image.digest {
            out.line(format_args!("digest       {digest}"))?;
        }
        let root = root.unwrap_or_else(|| "unknown".to_owned());
        out.line(format_args!("root hash    {root}"))?;
    }
    out.finish()
}
