//! Verbs that write images: `tuff build`, `tuff patch`, `tuff disk` and `tuff sysext`.
//!
//! `args` and `settings` define the arguments, `paths` and `options` convert them to those of the library,
//! `referenced_images` supplies defaults from base images, and `summary` prints the result.

mod args;
pub(crate) mod disk;
#[cfg(feature = "remote")]
pub(crate) mod fetched;
pub(crate) mod options;
pub(crate) mod patch;
pub(crate) mod paths;
pub(crate) mod preset;
pub(crate) mod referenced_images;
mod settings;
pub(crate) mod summary;
pub(crate) mod sysext;

use args::Args;

use crate::advice::not_an_archive;
use crate::disk::DiskSummary;
use crate::next_command;
use crate::out::Out;
use crate::progress::{Show, Watch};
use crate::text;
use paths::BuildPaths;
use referenced_images::ReferencedImages;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::{Error, Place, Result};
use tuff_mkfs::{LeftOut, Progress, Start, Summary};
use tuff_store::Target;
#[cfg(feature = "remote")]
use {
    crate::image::input, fetched::FetchedImages, std::ops::Range, std::os::unix::ffi::OsStrExt,
    std::path::PathBuf, tuff_mkfs::Source, tuff_mkfs::Verity, tuff_mkfs::Whiteouts,
    tuff_mkfs::settings::Settings, tuff_open::Device, tuff_open::remote::start_of_layers,
    tuff_remote::RetryPolicy, tuff_store::TemporaryDir,
};

/// Build an image from directories, archives or other images
///
/// SOURCE is one of:
///
/// * a directory
///
/// * a tar or cpio archive, plain or compressed with gzip, xz, lzma, lzip or zstd; - is standard input
///
/// * a manifest: a file whose name ends in .mtree or .manifest
///
/// * an EROFS image in a file, on a block device, in a disk, or behind a URL; with ,ROOT-HASH after its name it is verified
///
/// * docker://REGISTRY/NAME:TAG or oci://REGISTRY/NAME:TAG, a container image in a registry
///
/// * oci:DIR, a container image in an OCI layout; oci-archive:FILE, a tar of such a layout; docker-archive:FILE, from docker save.
///   If there are several images, append :NAME.
///
/// Several sources are merged in order; later ones win. IMAGE is a file, a block device, or - for standard output. An
/// existing IMAGE is replaced if it is an EROFS image or empty.
#[derive(clap::Args)]
#[command(
    override_usage = "tuff build [OPTIONS] <SOURCE>... <IMAGE>\n       tuff build [OPTIONS] -o <IMAGE> <SOURCE>..."
)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    args: Args,
    /// Replace IMAGE and the --blob file whatever they contain, overwrite a device that holds data, and write to a terminal
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: BuildArgs) -> Result<ExitCode> {
    let BuildArgs { mut args, force } = args;
    if !force {
        paths::check_outputs(&args)?;
    }
    #[cfg(feature = "remote")]
    let _fetched = fetch(&mut args)?;
    let BuildPaths {
        sources,
        target,
        bases,
        config,
    } = paths::resolve(&args)?;
    let others = ReferencedImages::new(&bases, &sources, args.settings.has("image-index"));
    others.set_defaults(&mut args.settings)?;
    let mut options = options::options(&args)?;
    if !args.settings.has("kernel") {
        options.kernel = options.kernel.max(others.kernel());
    }
    options.dedupe.bases = bases;
    options.dedupe.base_names.clear();
    let is_layer = !options.dedupe.bases.is_empty() || options.dedupe.image_index;
    if !args.settings.has("start-with") && !is_layer && !options.dedupe.tar_index {
        options.sources.start = of_config(config.as_deref());
    }
    // The summary must not be mixed into an image on standard output.
    let to_stdout = target == Target::Stdout;
    let archives = paths::archives(args.source_type, &sources);
    let chosen = ["compress", "auto", "size-budget"];
    let is_default = !chosen.iter().any(|name| args.settings.has(name))
        && options.dedupe.bases.is_empty()
        && options.compression.default.is_some();
    let hint = is_default.then_some(DEFAULT_COMPRESSION);
    let left_out = options.sources.keep_going.as_ref();
    report(&args, to_stdout, hint, left_out, |progress| {
        let built = tuff_mkfs::build(&sources, &options, &target, progress);
        let built = built.map_err(|e| archives.iter().fold(e, |e, path| not_an_archive(e, path)));
        built.map(Built::from)
    })
}

/// Returns the start of the command in the configuration of a container image.
fn of_config(config: Option<&[u8]>) -> Start {
    let command = config.and_then(tuff_mkfs::Command::of_config);
    command.map_or(Start::None, Start::Command)
}

/// Image that a verb has written.
struct Built {
    summary: Summary,
    /// Disk that contains it.
    disk: Option<DiskSummary>,
}

impl From<Summary> for Built {
    fn from(summary: Summary) -> Self {
        Self {
            summary,
            disk: None,
        }
    }
}

/// Fetches container images of registries among the sources, and puts their copies in their places.
#[cfg(feature = "remote")]
fn fetch(args: &mut Args) -> Result<Option<FetchedImages>> {
    // A signature is one of an image: a registry cannot replace it by tars.
    if args.trust.is_some() {
        return Ok(None);
    }
    let show = show(args);
    let (image, sources) = paths::split(args)?;
    let platform = args.platform.as_deref();
    let fetched = FetchedImages::fetch(sources, platform, RetryPolicy::default(), show)?;
    args.output = Some(image.clone());
    args.paths = fetched.sources.clone();
    Ok(Some(fetched))
}

/// Images that were built for an upload.
#[cfg(feature = "remote")]
pub(crate) struct BuiltImages {
    /// Images to upload, each with its devices.
    pub(crate) images: Vec<(PathBuf, Vec<PathBuf>)>,
    /// Configuration of the container image among the sources.
    pub(crate) config: Option<Vec<u8>>,
    /// Parts that a start reads of images for overlayfs.
    pub(crate) start: Vec<(usize, Range<u64>)>,
    /// Files that were left out, if they are no errors.
    pub(crate) left_out: Option<LeftOut>,
    /// Holds the images, and removes them when the value is dropped.
    _dir: TemporaryDir,
}

/// Treatment of several layers.
#[cfg(feature = "remote")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layering {
    /// One image of all layers.
    Merged,
    /// An image of each layer, with whiteouts for overlayfs.
    Overlay,
    /// An image of each layer and all below it, whose data stays in the images of those.
    Delta,
}

/// Choices for images that are built for an upload.
#[cfg(feature = "remote")]
pub(crate) struct PushBuild<'a> {
    /// Settings of all images.
    pub(crate) settings: &'a Settings,
    /// Platform of container images among the sources.
    pub(crate) platform: Option<&'a str>,
    /// Treatment of several layers.
    pub(crate) layering: Layering,
    /// Leaves out files that cannot be read.
    pub(crate) keep_going: bool,
    /// Value of `--start-with`.
    pub(crate) start_with: Option<&'a Path>,
}

/// Builds images of `sources`, as `tuff build --verity` does with these settings.
#[cfg(feature = "remote")]
pub(crate) fn build_for_push(
    sources: &[PathBuf],
    how: &PushBuild<'_>,
    show: Show,
) -> Result<BuiltImages> {
    let PushBuild {
        layering,
        keep_going,
        start_with,
        ..
    } = *how;
    let platform = how.platform.filter(|_| paths::have_container(sources));
    let args = Args {
        paths: sources.to_vec(),
        output: Some("-".into()),
        platform: platform.map(str::to_owned),
        ..Args::default()
    };
    let paths = paths::resolve(&args)?;
    let mut options = how.settings.options()?;
    options.output.verity = Some(Verity::default());
    options.metadata.clamp = options::source_date_epoch()?;
    options.sources.keep_going = keep_going.then(LeftOut::default);
    let start = match start_with {
        Some(path) => Start::with(path.as_os_str().as_bytes()),
        None => of_config(paths.config.as_deref()),
    };
    if layering == Layering::Merged {
        options.sources.start = start.clone();
    }
    let archives = paths::archives(None, &paths.sources);
    let parent = std::env::temp_dir();
    let dir = TemporaryDir::create(&parent).map_err(|e| {
        let e = Error::io("", "cannot create", e);
        temporary_failed(e, Path::new(""), &parent, "image to push")
    })?;
    let path = dir.path().to_owned();
    let mut built = BuiltImages {
        images: Vec::new(),
        config: paths.config,
        start: Vec::new(),
        left_out: options.sources.keep_going.clone(),
        _dir: dir,
    };
    let mut files: Vec<PathBuf> = Vec::new();
    let count = match layering {
        Layering::Merged => paths.sources.len(),
        Layering::Overlay | Layering::Delta => 1,
    };
    let chunks = paths.sources.chunks(count.max(1));
    let top = chunks.len().saturating_sub(1);
    for (number, layers) in chunks.enumerate() {
        let image = path.join(format!("{number}.erofs"));
        // Nearest first: each image is followed by its own devices.
        let below: Vec<PathBuf> = files.iter().rev().cloned().collect();
        files.push(image.clone());
        let mut sources = layers.to_vec();
        match layering {
            Layering::Merged => {}
            // The lowest layer has nothing to hide.
            _ if number == 0 => options.sources.whiteouts = Some(Whiteouts::Both),
            Layering::Overlay => options.sources.whiteouts = Some(Whiteouts::Convert),
            Layering::Delta => {
                options.sources.whiteouts = None;
                options.dedupe.image_index = true;
                // The layers below are shared by images with other commands.
                if number == top {
                    options.sources.start = start.clone();
                }
                if let Some((image, devices)) = below.split_first() {
                    let devices = devices.iter().cloned().map(Device::from).collect();
                    let image = input(image.clone().into(), devices, None)?;
                    sources.insert(0, Source::Image(image));
                }
            }
        }
        let progress = Arc::new(Progress::default());
        let target = Target::Path(image.clone());
        let (summary, _) = watched(&progress, show, |progress| {
            let built = tuff_mkfs::build(&sources, &options, &target, progress);
            let built = built.map_err(|e| temporary_failed(e, &image, &parent, "image to push"));
            built.map_err(|e| archives.iter().fold(e, |e, path| not_an_archive(e, path)))
        })?;
        for warning in &summary.stats.warnings {
            eprintln!("tuff: warning: {warning}");
        }
        match layering {
            Layering::Delta => built.images = vec![(image, below)],
            Layering::Merged | Layering::Overlay => built.images.push((image, Vec::new())),
        }
    }
    if layering == Layering::Overlay && start != Start::None {
        // Images that were pushed with another command keep their bytes.
        let found = start_of_layers(&files, &start, &path)?;
        for warning in &found.warnings {
            eprintln!("tuff: warning: {warning}");
        }
        built.start = found.ranges;
    }
    list_left_out(built.left_out.as_ref());
    Ok(built)
}

/// Names the output instead of the temporary file `image` in an error, and the directory `dir` of temporary files if that file
/// cannot be written.
pub(super) fn temporary_failed(e: Error, image: &Path, dir: &Path, output: &str) -> Error {
    let output = Place::file(output);
    let place = match &e {
        Error::Io(_, io) if io.kind() == io::ErrorKind::Interrupted => output,
        _ => {
            let dir = dir.display();
            let file = format!("temporary file in {dir} (TMPDIR names another directory)");
            Place::from(file).within(output)
        }
    };
    e.rename_place(image.display(), place)
}

/// Runs `work` while it shows progress. Returns the result and the elapsed seconds.
pub(crate) fn watched<T>(
    progress: &Arc<Progress>,
    show: Show,
    work: impl FnOnce(&Progress) -> Result<T>,
) -> Result<(T, f64)> {
    let watch = Watch::start(progress, show);
    let start = std::time::Instant::now();
    let result = work(progress);
    drop(watch);
    Ok((result?, start.elapsed().as_secs_f64()))
}

/// Last line of the summary of a build without a choice of compression.
const DEFAULT_COMPRESSION: &str = "default      lz4hc:9 for fast reads from Linux 6.1 on; zstd:3 is smaller and builds faster \
     (6.10), lz4 builds fastest";

fn show(args: &Args) -> Show {
    match (args.json, args.quiet) {
        (true, _) => Show::Json,
        (false, true) => Show::Quiet,
        (false, false) => Show::Auto,
    }
}

/// Prints and returns what was left out.
fn list_left_out(left_out: Option<&LeftOut>) -> Vec<String> {
    let lines = left_out.map_or_else(Vec::new, LeftOut::lines);
    for line in &lines {
        eprintln!("tuff: left out: {line}");
    }
    lines
}

/// Runs `work` while it shows progress, then prints the summary with `hint` as its last line: to standard error if
/// `on_stderr`. Files in `left_out` are listed.
fn report(
    args: &Args,
    on_stderr: bool,
    hint: Option<&str>,
    left_out: Option<&LeftOut>,
    work: impl FnOnce(&Progress) -> Result<Built>,
) -> Result<ExitCode> {
    let progress = Arc::new(Progress::default());
    let (built, seconds) = watched(&progress, show(args), work)?;
    let left_out = list_left_out(left_out);
    print_summary(args, on_stderr, hint, &left_out, &built, seconds, &progress)
}

/// Prints the warnings and the summary of an image that took `seconds`; see [`report`].
fn print_summary(
    args: &Args,
    on_stderr: bool,
    hint: Option<&str>,
    left_out: &[String],
    Built { summary, disk }: &Built,
    seconds: f64,
    progress: &Progress,
) -> Result<ExitCode> {
    let show = show(args);
    let stages = if args.stats {
        progress.stages()
    } else {
        Vec::new()
    };
    for warning in &summary.stats.warnings {
        eprintln!("tuff: warning: {warning}");
    }
    let image = paths::split(args).ok().map(|(image, _)| image.as_path());
    let image = image.filter(|_| !on_stderr);
    let message = match show {
        Show::Json => {
            let mut object = summary::json(summary, seconds, &stages);
            object["left_out"] = left_out.into();
            if let Some(disk) = disk {
                object["disk"] = disk.json();
            }
            text::json(&object)
        }
        Show::Auto => {
            let mut text = summary::text(summary, seconds, &stages, image);
            if !left_out.is_empty() {
                text += &format!(
                    "{:<12} {} paths, listed above\n",
                    "left out",
                    left_out.len()
                );
            }
            text.extend(disk.iter().map(DiskSummary::text));
            let next = image.and_then(|image| match disk {
                Some(_) => Some(format!("tuff check {}", next_command::shell_word(image))),
                None => summary::next_command(summary, image),
            });
            let next = next.and_then(next_command::line);
            let lines = hint.into_iter().chain(next.as_deref());
            text.extend(lines.flat_map(|line| [line, "\n"]));
            text
        }
        Show::Quiet => String::new(),
    };
    if on_stderr {
        message.lines().for_each(|line| eprintln!("{line}"));
    } else {
        let mut out = Out::new();
        out.lines(&message)?;
        out.finish()?;
    }
    Ok(match left_out.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
