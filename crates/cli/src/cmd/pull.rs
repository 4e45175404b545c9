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
/// when it is complete, and replaces only an EROFS image or an empty file.
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
        (url, root) = (pinned, Some(signed));
    }
    let location = Location::parse(url.to_str().unwrap_or_default());
    let location = location.map_err(|e| failed(e, "cannot pull"))?;
    let read: Vec<&Path> = location.local_path().into_iter().collect();
    let mut sink = Sink::create(&args.file, &read, Format::Image, args.force)?;
    let cannot = |e| failed(e, "cannot pull");
    let options = options(&args.remote, root)?;
    let image = WholeImage::open(&location, &options).map_err(cannot)?;
    let meter = Meter::start("pull", Show::unless(args.quiet || args.json));
    meter.counter().add_total(image.size);
    for part in image.parts() {
        let part = part.map_err(|e| sink.told(cannot(e)))?;
        sink.write_all(&part).map_err(|e| sink.failed(e))?;
        meter.counter().add(part.len() as u64);
    }
    drop(meter);
    sink.finish()?;
    report(args, &location, &image)?;
    Ok(ExitCode::SUCCESS)
}

fn report(args: &Args, location: &Location, image: &WholeImage) -> Result<()> {
    // The summary must not be mixed into an image on standard output.
    if args.quiet || args.file == Path::new("-") {
        return Ok(());
    }
    let root = image.root_hash.as_ref().map(|root| hex(root));
    let mut out = Out::new();
    if args.json {
        out.line(json!({
            "event": "done",
            "url": location.to_string(),
            "file": args.file.to_string_lossy(),
            "image_bytes": image.size,
            "digest": image.digest,
            "root_hash": root,
        }))?;
    } else {
        out.line(format_args!("image        {}", size(image.size)))?;
        if let Some(digest) = &image.digest {
            out.line(format_args!("digest       {digest}"))?;
        }
        let root = root.unwrap_or_else(|| "unknown".to_owned());
        out.line(format_args!("root hash    {root}"))?;
    }
    out.finish()
}
