//! `tuff patch`: updates an image.

use super::args::Args;
use super::settings::SettingArgs;
use super::{Built, options, paths, print_summary, report, show, watched};
use crate::advice::not_an_archive;
use crate::image::open_for_build;
use crate::out::Out;
use crate::progress::Show;
use crate::units::{parse_size, size};
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_mkfs::{Options, Progress};
use tuff_open::OpenOptions;
use tuff_store::Target;

/// Update an image by appending changes
///
/// IMAGE is an image in a file or on a block device. After the patch it contains the tree of the sources. Files, and parts
/// of files, that it already contains keep their data. New data and metadata are appended. Unless much has changed, only
/// few blocks of the old metadata change. A file is replaced by its patched copy; on a block device, a single sector,
/// written last, switches to the new tree. An interrupted patch leaves the old tree.
///
/// The options are those of `tuff build`. Label, algorithm, cluster size, fragments and metadata form default to those of
/// the image. Its block size and the kernel it needs cannot change. An appended hash tree is replaced by a new one.
#[derive(clap::Args)]
#[command(
    override_usage = "tuff patch [OPTIONS] <SOURCE>... <IMAGE>\n       tuff patch [OPTIONS] -o <IMAGE> <SOURCE>...\n       tuff patch --compact [OPTIONS] <IMAGE>"
)]
pub(crate) struct PatchArgs {
    /// Write the tree of IMAGE anew, without data and metadata that earlier patches made unused, and replace the file if
    /// the new image is smaller
    #[arg(long)]
    compact: bool,
    #[command(flatten)]
    build: Args,
}

pub(crate) fn run(args: PatchArgs) -> Result<ExitCode> {
    let PatchArgs {
        compact,
        build: mut args,
    } = args;
    if compact {
        // The image is the only path, and -o names it as well.
        let (None, [image]) = (&args.output, &args.paths[..]) else {
            return Err(Error::usage("--compact takes one image and no source"));
        };
        args.output = Some(image.clone());
    }
    let paths::BuildPaths {
        sources,
        target,
        bases,
        ..
    } = paths::resolve(&args)?;
    let Target::Path(path) = target else {
        return Err(Error::usage(
            "standard output cannot be patched: name an image",
        ));
    };
    let name = path.display();
    let image = open_for_build(&path.as_path().into(), &OpenOptions::default())?;
    if image.container().disk().is_some() || image.reference().url().is_some() {
        return Err(Error::usage(format_args!(
            "{name}: only an image in a file or on a block device of its own can be patched"
        )));
    }
    let kernel = args.settings.kernel();
    let like = tuff_mkfs::like_in_detail(&image, kernel.unwrap_or(Options::default().kernel));
    let like = like.map_err(|e| e.within(name))?;
    let kept = stays(&args, &like);
    kept.map_err(|what| Error::usage(format_args!("{}: {what}", path.display())))?;
    let given = args.settings.clone();
    let mut options = of_image(&mut args, &like)?;
    add_details(&given, &like, &mut options);
    options.dedupe.bases = bases;
    options.dedupe.base_names.clear();
    if !given.has("kernel") {
        options.raise_kernel();
    }
    if compact {
        return run_compact(&args, &options, &path);
    }
    let archives = paths::archives(args.source_type, &sources);
    let left_out = options.sources.keep_going.as_ref();
    report(&args, false, None, left_out, |progress| {
        let patched = tuff_mkfs::patch(&sources, &options, &path, progress);
        let patched =
            patched.map_err(|e| archives.iter().fold(e, |e, path| not_an_archive(e, path)));
        patched.map(Built::from)
    })
}

/// Compacts the image at `path`, and states whether it was replaced.
fn run_compact(args: &Args, options: &Options, path: &Path) -> Result<ExitCode> {
    let progress = Arc::new(Progress::default());
    let compacted = |progress: &Progress| tuff_mkfs::compact(options, path, progress);
    let (compacted, seconds) = watched(&progress, show(args), compacted)?;
    if let Some(summary) = compacted {
        return print_summary(
            args,
            false,
            None,
            &[],
            &Built::from(summary),
            seconds,
            &progress,
        );
    }
    let len = std::fs::metadata(path).map_or(0, |meta| meta.len());
    let mut out = Out::new();
    match show(args) {
        Show::Json => out.json(&serde_json::json!({
            "event": "kept", "seconds": seconds, "image_bytes": len,
        }))?,
        Show::Quiet => {}
        Show::Auto => out.line(format_args!(
            "{:<12} {}, kept: written anew it would not be smaller",
            "image",
            size(len)
        ))?,
    }
    out.finish()
}

/// Fails for arguments that contradict properties that a patch cannot change.
fn stays(args: &Args, like: &Options) -> std::result::Result<(), String> {
    let block = like.block.size();
    let requested = args.settings.get("block-size").and_then(OsStr::to_str);
    let requested = requested.and_then(|requested| parse_size(requested).ok());
    if let Some(requested) = requested.filter(|requested| *requested != block) {
        return Err(format!(
            "its block size is {block} and cannot change to {requested}"
        ));
    }
    if let Some(requested) = args
        .settings
        .kernel()
        .filter(|requested| *requested < like.kernel)
    {
        let needs = like.kernel;
        return Err(format!(
            "its content needs Linux {needs}: it cannot be for {requested}"
        ));
    }
    Ok(())
}

/// Returns the options, with defaults from the image.
fn of_image(args: &mut Args, like: &Options) -> Result<Options> {
    let settings = &mut args.settings;
    settings.set("kernel", like.kernel.to_string())?;
    settings.set("block-size", like.block.size().to_string())?;
    if like.layout.unaligned && !settings.has("tail-packing") {
        settings.set("unaligned", "on")?;
    }
    let mut options = options::options(args)?;
    let has = |names: &[&str]| names.iter().any(|name| args.settings.has(name));
    if args.settings.get("label").is_none_or(OsStr::is_empty) {
        options.metadata.label.clone_from(&like.metadata.label);
    }
    // A hash tree must cover the appended data, so it is written again with its parameters.
    if !has(&["verity"]) {
        options.output.verity.clone_from(&like.output.verity);
    }
    if !has(&["fingerprints"]) {
        let like = &like.metadata.fingerprints;
        options.metadata.fingerprints.clone_from(like);
    }
    if has(&["auto"]) {
        return Ok(options);
    }
    if !has(&["metadata"]) {
        options.metadata.form = like.metadata.form;
    }
    if !has(&["compress"]) {
        options.compression.default = like.compression.default;
    }
    if !has(&["cluster"]) {
        options.compression.cluster = like.compression.cluster;
    }
    if !has(&["fragments", "tail-packing"]) {
        options.layout.fragments = like.layout.fragments;
        options.layout.tail_packing = like.layout.tail_packing;
    }
    if !has(&["fragment-cluster"]) {
        options.layout.fragment_cluster = like.layout.fragment_cluster;
        options.layout.similar_cluster_max = like.layout.similar_cluster_max;
    }
    Ok(options)
}

/// Adds the options that follow from the content of the image, unless they are given.
fn add_details(given: &SettingArgs, like: &Options, options: &mut Options) {
    let has = |names: &[&str]| names.iter().any(|name| given.has(name));
    if !has(&["compress", "auto", "rule"]) {
        let like = &like.compression.rules;
        options.compression.rules.clone_from(like);
    }
    if !has(&["chunk"]) {
        options.layout.chunk = like.layout.chunk;
    }
    if given.get("sparse").is_none_or(|value| value == "auto") {
        options.layout.sparse = like.layout.sparse;
    }
    if !has(&["metadata-cluster", "auto"]) {
        options.metadata.cluster = like.metadata.cluster;
    }
    if !has(&["xattr-prefix"]) {
        let prefixes = &like.metadata.xattr_prefixes;
        options.metadata.xattr_prefixes.clone_from(prefixes);
    }
    let share = &mut options.metadata.xattr_share;
    *share = (*share).min(like.metadata.xattr_share);
}
