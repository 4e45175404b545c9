//! `tuff build`: sources to an image.

use crate::progress::{Show, Watch};
use crate::units::{parse_size, percent, size};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_image::build::options::FRAGMENT_CLUSTER;
use tuff_image::build::{
    self, Compression, Fragments, InodeForm, Kernel, Method, Options, Progress, Rule, Source,
    SparsePolicy, Summary, Whiteouts,
};
use tuff_image::{Error, Result};
use tuff_store::Target;

/// Build an image from directories, tars and manifests.
///
/// SOURCE is a directory, a tar (plain, gzip, xz or zstd; - for standard input) or a manifest (a file whose name ends
/// in .mtree or .manifest). Several sources are merged in order, the later wins. IMAGE is a file, a block device, or -
/// for standard output.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sources, then the image
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "IMAGE"])]
    paths: Vec<PathBuf>,

    /// Oldest Linux that must mount the image
    #[arg(long, default_value = "6.1", value_parser = parse_kernel, help_heading = "Format")]
    kernel: Kernel,
    /// Block size
    #[arg(short = 'b', long, default_value = "4096", value_parser = parse_size, value_name = "SIZE", help_heading = "Format")]
    block_size: u64,
    /// Algorithm: none, lz4, lz4hc, deflate, lzma or zstd, with an optional level (lz4hc:12)
    #[arg(short = 'z', long, value_parser = parse_compression, value_name = "ALG[:LEVEL]", help_heading = "Compression")]
    compress: Option<MaybeCompression>,
    /// Largest compressed cluster, 4K to 1M
    #[arg(short = 'C', long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    cluster: Option<u64>,
    /// Most input of one cluster, up to 12M
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    window: Option<u64>,
    /// Dictionary or window of LZMA and Zstandard
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    dict: Option<u64>,
    /// Settings for some paths; the first rule that matches wins
    #[arg(
        long,
        value_name = "GLOB=ALG[:LEVEL][,CLUSTER]",
        help_heading = "Compression"
    )]
    rule: Vec<String>,
    /// Store a file that saves less than this share of its size
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "PERCENT",
        help_heading = "Compression"
    )]
    min_saving: f64,
    /// Ends of compressed files behind their inodes (default: on if there are no fragments and the kernel can)
    #[arg(long, value_enum, value_name = "WHEN", help_heading = "Layout")]
    tail_packing: Option<Switch>,
    /// Ends of stored files behind their inodes
    #[arg(
        long,
        value_enum,
        default_value = "on",
        value_name = "WHEN",
        help_heading = "Layout"
    )]
    inline_data: Switch,
    /// Ends of files and small files packed together (default: on for 6.1 and newer)
    #[arg(long, value_enum, value_name = "WHEN", help_heading = "Layout")]
    fragments: Option<Switch>,
    /// Cluster size of packed fragments (default: 16K, or the cluster size if that is smaller)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    fragment_cluster: Option<u64>,
    /// Identical files share their data
    #[arg(
        long,
        value_enum,
        default_value = "on",
        value_name = "WHEN",
        help_heading = "Layout"
    )]
    dedupe: Switch,
    /// Index form of compressed files
    #[arg(long, value_enum, default_value = "compact", help_heading = "Layout")]
    index: IndexForm,
    /// Inode form
    #[arg(long, value_enum, default_value = "auto", help_heading = "Layout")]
    inodes: Inodes,
    /// Files with holes: keep all sparse, fill all, or keep those that are at least half holes
    #[arg(long, value_enum, default_value = "auto", help_heading = "Layout")]
    sparse: Sparse,
    /// File with paths, one per line, in the order their data should lie
    #[arg(long, value_name = "FILE", help_heading = "Layout")]
    order: Option<PathBuf>,

    /// Time of every inode, in seconds since 1970 (default: times as they are; SOURCE_DATE_EPOCH is an upper bound)
    #[arg(
        long,
        value_name = "SECONDS",
        allow_hyphen_values = true,
        help_heading = "Metadata"
    )]
    timestamp: Option<i64>,
    /// UUID: a UUID, "zero", or "content" (derived from the image's content)
    #[arg(long, default_value = "content", value_parser = parse_uuid, help_heading = "Metadata")]
    uuid: Uuid,
    /// Volume label, up to 15 bytes
    #[arg(short = 'L', long, default_value = "", help_heading = "Metadata")]
    label: String,
    /// Everything belongs to root
    #[arg(long, conflicts_with_all = ["uid", "gid"], help_heading = "Metadata")]
    all_root: bool,
    /// Owner of everything
    #[arg(long, help_heading = "Metadata")]
    uid: Option<u32>,
    /// Group of everything
    #[arg(long, help_heading = "Metadata")]
    gid: Option<u32>,
    /// Added to every owner
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Metadata")]
    uid_offset: u32,
    /// Added to every group
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Metadata")]
    gid_offset: u32,
    /// Store no extended attributes
    #[arg(long, help_heading = "Metadata")]
    no_xattrs: bool,
    /// Share an attribute that more inodes than this have
    #[arg(long, default_value_t = 2, value_name = "N", help_heading = "Metadata")]
    xattr_share: u32,
    /// A long attribute name prefix to store once, such as trusted.overlay.
    #[arg(long, value_name = "PREFIX", help_heading = "Metadata")]
    xattr_prefix: Vec<String>,
    /// Leave the per-inode attribute name filter out
    #[arg(long, help_heading = "Metadata")]
    no_xattr_filter: bool,
    /// Leave the superblock checksum out
    #[arg(long, help_heading = "Metadata")]
    no_checksum: bool,

    /// Leave out paths that match, with all below them
    #[arg(long, value_name = "GLOB", help_heading = "Sources")]
    exclude: Vec<String>,
    /// File with such patterns, one per line
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    exclude_from: Vec<PathBuf>,
    /// Do not enter other filesystems
    #[arg(long, help_heading = "Sources")]
    one_file_system: bool,
    /// What whiteouts mean (default: overlay for several sources, keep for one)
    #[arg(long, value_enum, help_heading = "Sources")]
    whiteouts: Option<WhiteoutKind>,
    /// Take every source for this kind
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Sources")]
    source_type: Option<SourceType>,

    /// Worker threads (default: as many as the process may use)
    #[arg(short = 'j', long, value_name = "N", help_heading = "Work")]
    threads: Option<usize>,
    /// Memory for buffers
    #[arg(long, default_value = "256M", value_parser = parse_size, value_name = "SIZE", help_heading = "Work")]
    memory: u64,
    /// Wait until the image is on the disk
    #[arg(long, help_heading = "Work")]
    sync: bool,
    /// Time per stage in the summary
    #[arg(long, help_heading = "Work")]
    stats: bool,
    /// No progress, no summary
    #[arg(short = 'q', long, help_heading = "Work")]
    quiet: bool,
    /// Progress as JSON lines on standard error, the summary as one JSON object on standard output
    #[arg(long, conflicts_with = "quiet", help_heading = "Work")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IndexForm {
    Compact,
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Inodes {
    Auto,
    Extended,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sparse {
    Auto,
    Keep,
    Fill,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WhiteoutKind {
    Overlay,
    Aufs,
    Keep,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SourceType {
    Dir,
    Tar,
    Manifest,
}

#[derive(Clone, Copy)]
struct MaybeCompression(Option<Compression>);

#[derive(Clone, Copy)]
struct Uuid(Option<[u8; 16]>);

fn parse_kernel(text: &str) -> Result<Kernel, String> {
    let parsed = text
        .split_once('.')
        .and_then(|(a, b)| Some(Kernel(a.parse().ok()?, b.parse().ok()?)));
    match parsed {
        Some(kernel) if kernel >= Kernel(5, 4) => Ok(kernel),
        Some(kernel) => Err(format!(
            "EROFS images are for Linux 5.4 and newer, not {kernel}"
        )),
        None => Err("write it as 5.4, 5.10, 5.15, 6.1, 6.6, 6.12 or 6.18".to_owned()),
    }
}

fn parse_compression(text: &str) -> Result<MaybeCompression, String> {
    if matches!(text, "none" | "stored") {
        return Ok(MaybeCompression(None));
    }
    let (name, level) = match text.split_once([':', ',']) {
        Some((name, level)) => (name, Some(level.trim_start_matches("level="))),
        None => (text, None),
    };
    let method = Method::from_name(name).ok_or_else(|| {
        format!("'{name}' is not an algorithm; known are none, lz4, lz4hc, deflate, lzma and zstd")
    })?;
    let level = match level {
        None => method.default_level(),
        Some(level) => level
            .parse()
            .ok()
            .filter(|l| method.has_level(*l))
            .ok_or_else(|| format!("{name} has no level '{level}'; it has {}", levels(method)))?,
    };
    Ok(MaybeCompression(Some(Compression {
        method,
        level,
        dict: None,
    })))
}

fn levels(method: Method) -> String {
    let range = method.levels();
    match method {
        Method::Lzma => "0 to 9, and 100 to 109 for their extreme forms".to_owned(),
        _ => format!("{} to {}", range.start(), range.end()),
    }
}

fn parse_uuid(text: &str) -> Result<Uuid, String> {
    match text {
        "content" => return Ok(Uuid(None)),
        "zero" | "clear" => return Ok(Uuid(Some([0; 16]))),
        _ => {}
    }
    let hex: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    let bytes: Option<Vec<u8>> = hex
        .chunks(2)
        .map(|pair| {
            std::str::from_utf8(pair)
                .ok()
                .and_then(|p| u8::from_str_radix(p, 16).ok())
        })
        .collect();
    match bytes.and_then(|b| <[u8; 16]>::try_from(b).ok()) {
        Some(uuid) if hex.len() == 32 => Ok(Uuid(Some(uuid))),
        _ => Err(format!(
            "'{text}' is not a UUID; write 32 hexadecimal digits, zero or content"
        )),
    }
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let (sources, target) = places(&args)?;
    let options = options(&args)?;
    let show = if args.json {
        Show::Json
    } else if args.quiet {
        Show::Quiet
    } else {
        Show::Auto
    };
    let progress = Arc::new(Progress::default());
    let watch = Watch::start(&progress, show);
    let start = std::time::Instant::now();
    let result = build::build(&sources, &options, &target, &progress);
    drop(watch);
    let summary = result?;
    let seconds = start.elapsed().as_secs_f64();
    let stages = if args.stats {
        progress.stages()
    } else {
        Vec::new()
    };
    for warning in &summary.stats.warnings {
        eprintln!("tuff: warning: {warning}");
    }
    // A summary must not land in an image that goes to standard output.
    let to_stdout = target == Target::Stdout;
    match show {
        Show::Json if to_stdout => eprintln!("{}", json(&summary, seconds, &stages)),
        Show::Json => println!("{}", json(&summary, seconds, &stages)),
        Show::Auto if to_stdout => eprint!("{}", text(&summary, seconds, &stages)),
        Show::Auto => print!("{}", text(&summary, seconds, &stages)),
        Show::Quiet => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn places(args: &Args) -> Result<(Vec<Source>, Target)> {
    let Some((image, sources)) = args.paths.split_last() else {
        return Err(Error::usage("a source and an image are needed"));
    };
    let dash = Path::new("-");
    let target = if image == dash {
        Target::Stdout
    } else {
        Target::Path(image.clone())
    };
    let sources: Result<Vec<Source>> = sources
        .iter()
        .map(|path| {
            if path == dash {
                return Ok(Source::TarStdin);
            }
            let kind = match args.source_type {
                Some(kind) => kind,
                None => guess(path)?,
            };
            Ok(match kind {
                SourceType::Dir => Source::Dir(path.clone()),
                SourceType::Tar => Source::Tar(path.clone()),
                SourceType::Manifest => Source::Manifest(path.clone()),
            })
        })
        .collect();
    let sources = sources?;
    if sources.iter().filter(|s| **s == Source::TarStdin).count() > 1 {
        return Err(Error::usage(
            "standard input can be only one of the sources",
        ));
    }
    Ok((sources, target))
}

fn guess(path: &Path) -> Result<SourceType> {
    let meta = std::fs::metadata(path)
        .map_err(|e| Error::io(path.display(), "cannot open the source", e))?;
    let manifest = path
        .extension()
        .is_some_and(|e| e == "mtree" || e == "manifest");
    Ok(if meta.is_dir() {
        SourceType::Dir
    } else if manifest {
        SourceType::Manifest
    } else {
        SourceType::Tar
    })
}

fn options(args: &Args) -> Result<Options> {
    let mut o = Options::for_kernel(args.kernel);
    let narrow = |n: u64, what: &str| {
        usize::try_from(n).map_err(|_| Error::usage(format_args!("{what} is too large")))
    };
    let block = args.block_size;
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(Error::usage(format_args!(
            "block size {block}: a power of two from 512 to 4096 is needed"
        )));
    }
    o.block = tuff_format::BlockBits::new(block.trailing_zeros() as u8).map_err(Error::usage)?;
    if let Some(MaybeCompression(compression)) = args.compress {
        o.compression = compression;
    }
    let dict = args.dict.map(|d| narrow(d, "--dict")).transpose()?;
    if let Some(compression) = &mut o.compression {
        compression.dict =
            dict.filter(|_| matches!(compression.method, Method::Lzma | Method::Zstd));
    }
    if let Some(cluster) = args.cluster {
        o.cluster = narrow(cluster, "--cluster")?;
        o.fragment_cluster = o.cluster.min(FRAGMENT_CLUSTER);
    }
    if let Some(cluster) = args.fragment_cluster {
        o.fragment_cluster = narrow(cluster, "--fragment-cluster")?;
    }
    if let Some(window) = args.window {
        o.window = narrow(window, "--window")?;
    }
    o.rules = args
        .rule
        .iter()
        .map(|r| parse_rule(r, dict))
        .collect::<Result<_>>()?;
    if !(0.0..=100.0).contains(&args.min_saving) {
        return Err(Error::usage(format_args!(
            "--min-saving {}: from 0 to 100 percent",
            args.min_saving
        )));
    }
    o.min_saving = (args.min_saving * 10.0) as u32;
    // Either of the two takes the ends of files; asking for one is asking the other to go.
    match (args.fragments, args.tail_packing) {
        (Some(Switch::On), Some(Switch::On)) => {
            return Err(Error::usage(
                "--fragments=on and --tail-packing=on: the end of a file can be in one place only",
            ));
        }
        (Some(Switch::On), _) => (o.fragments, o.tail_packing) = (Fragments::Tails, false),
        (_, Some(Switch::On)) => (o.fragments, o.tail_packing) = (Fragments::Off, true),
        (Some(Switch::Off), None) => {
            o.fragments = Fragments::Off;
            o.tail_packing = args.kernel >= Kernel(5, 17);
        }
        (Some(Switch::Off), Some(Switch::Off)) => {
            (o.fragments, o.tail_packing) = (Fragments::Off, false)
        }
        (None, Some(Switch::Off)) => o.tail_packing = false,
        (None, None) => {}
    }
    o.inline_data = args.inline_data == Switch::On;
    o.dedupe = args.dedupe == Switch::On;
    o.compact_index = args.index == IndexForm::Compact;
    o.inodes = if args.inodes == Inodes::Extended {
        InodeForm::Extended
    } else {
        InodeForm::Auto
    };
    o.sparse = match args.sparse {
        Sparse::Auto => SparsePolicy::Auto,
        Sparse::Keep => SparsePolicy::Keep,
        Sparse::Fill => SparsePolicy::Fill,
    };
    if let Some(file) = &args.order {
        o.order = lines(file)?
            .into_iter()
            .map(|l| {
                l.trim_start_matches("./")
                    .trim_matches('/')
                    .as_bytes()
                    .to_vec()
            })
            .collect();
    }
    o.timestamp = args.timestamp;
    if args.timestamp.is_none() {
        o.clamp = source_date_epoch()?;
    }
    o.uuid = args.uuid.0;
    o.label = args.label.clone().into_bytes();
    (o.uid, o.gid) = if args.all_root {
        (Some(0), Some(0))
    } else {
        (args.uid, args.gid)
    };
    (o.uid_offset, o.gid_offset) = (args.uid_offset, args.gid_offset);
    o.xattrs = !args.no_xattrs;
    o.xattr_share = args.xattr_share;
    o.xattr_prefixes = args
        .xattr_prefix
        .iter()
        .map(|p| p.clone().into_bytes())
        .collect();
    o.xattr_filter = !args.no_xattr_filter;
    o.checksum = !args.no_checksum;
    let mut patterns = args.exclude.clone();
    for file in &args.exclude_from {
        patterns.extend(lines(file)?);
    }
    o.exclude = glob_set(&patterns)?;
    o.one_file_system = args.one_file_system;
    o.whiteouts = args.whiteouts.map(|w| match w {
        WhiteoutKind::Overlay => Whiteouts::Overlay,
        WhiteoutKind::Aufs => Whiteouts::Aufs,
        WhiteoutKind::Keep => Whiteouts::Keep,
    });
    if args.threads == Some(0) {
        return Err(Error::usage("--threads 0: at least 1 is needed"));
    }
    o.threads = args.threads;
    o.memory = args.memory;
    o.sync = args.sync;
    Ok(o)
}

fn source_date_epoch() -> Result<Option<i64>> {
    let Some(value) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let parsed = value.to_str().and_then(|v| v.trim().parse().ok());
    let shown = value.to_string_lossy();
    parsed.map(Some).ok_or_else(|| {
        Error::usage(format_args!(
            "SOURCE_DATE_EPOCH is '{shown}', not a number of seconds"
        ))
    })
}

fn lines(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read(file).map_err(|e| Error::io(file.display(), "cannot read", e))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(text
        .lines()
        .map(str::to_owned)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect())
}

/// A pattern without a slash matches a name anywhere; with one, a path from the root.
fn anchored(pattern: &str) -> String {
    let pattern = pattern.trim_end_matches('/');
    match pattern.trim_start_matches("./").strip_prefix('/') {
        Some(path) => path.to_owned(),
        None if pattern.contains('/') => pattern.trim_start_matches("./").to_owned(),
        None => format!("**/{pattern}"),
    }
}

fn glob(pattern: &str) -> Result<globset::Glob> {
    let built = globset::GlobBuilder::new(&anchored(pattern))
        .literal_separator(true)
        .backslash_escape(true)
        .build();
    built.map_err(|e| Error::usage(format_args!("pattern '{pattern}': {}", e.kind())))
}

fn glob_set(patterns: &[String]) -> Result<globset::GlobSet> {
    let mut set = globset::GlobSetBuilder::new();
    for pattern in patterns {
        set.add(glob(pattern)?);
    }
    set.build()
        .map_err(|e| Error::usage(format_args!("patterns: {e}")))
}

fn parse_rule(text: &str, dict: Option<usize>) -> Result<Rule> {
    let wrong = |what: &str| Error::usage(format_args!("--rule '{text}': {what}"));
    let (pattern, settings) = text
        .rsplit_once('=')
        .ok_or_else(|| wrong("write GLOB=ALG[:LEVEL][,CLUSTER]"))?;
    let (algorithm, cluster) = match settings.split_once(',') {
        Some((algorithm, cluster)) => {
            (algorithm, Some(parse_size(cluster).map_err(|e| wrong(&e))?))
        }
        None => (settings, None),
    };
    let MaybeCompression(mut compression) = parse_compression(algorithm).map_err(|e| wrong(&e))?;
    if let Some(c) = &mut compression {
        c.dict = dict.filter(|_| matches!(c.method, Method::Lzma | Method::Zstd));
    }
    let cluster = cluster
        .map(usize::try_from)
        .transpose()
        .map_err(|_| wrong("the cluster is too large"))?;
    Ok(Rule {
        glob: glob(pattern)?.compile_matcher(),
        compression,
        cluster,
    })
}

/// Names of stages, and how long each took.
type Stages = [(&'static str, std::time::Duration)];

fn text(summary: &Summary, seconds: f64, stages: &Stages) -> String {
    use std::fmt::Write;
    let s = &summary.stats;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<12} {value}");
    };
    line(
        "tree",
        format!(
            "{} files, {} directories, {} links, {} others, {} hard links",
            s.files, s.dirs, s.symlinks, s.specials, s.hard_links
        ),
    );
    line("content", size(s.content_bytes));
    line(
        "image",
        format!(
            "{} ({} of the content) in {seconds:.2} s",
            size(summary.image_bytes),
            percent(summary.image_bytes, s.content_bytes)
        ),
    );
    for (name, a) in build::stats::ALGORITHM_NAMES
        .iter()
        .zip(&s.algorithms)
        .filter(|(_, a)| a.clusters > 0)
    {
        let stored = a.blocks * s.block_size;
        line(
            name,
            format!(
                "{} in {} clusters, {} ({})",
                size(a.input_bytes),
                a.clusters,
                size(stored),
                percent(stored, a.input_bytes)
            ),
        );
    }
    if s.stored_bytes > 0 {
        line("stored", size(s.stored_bytes));
    }
    line("metadata", size(s.meta_blocks * s.block_size));
    if s.inline_tails > 0 {
        line(
            "inline",
            format!("{} tails, {}", s.inline_tails, size(s.inline_bytes)),
        );
    }
    if s.fragments > 0 {
        line(
            "fragments",
            format!("{}, {} shared", s.fragments, size(s.fragment_dedupe_bytes)),
        );
    }
    if s.dedupe_files > 0 {
        line(
            "dedupe",
            format!("{} files, {}", s.dedupe_files, size(s.dedupe_bytes)),
        );
    }
    if s.sparse_files > 0 {
        line(
            "sparse",
            format!("{} files, {} of holes", s.sparse_files, size(s.hole_bytes)),
        );
    }
    if s.in_place_tried > 0 {
        line(
            "in place",
            format!(
                "{} of {} sampled LZ4 clusters",
                percent(s.in_place, s.in_place_tried),
                s.in_place_tried
            ),
        );
    }
    for (name, time) in stages {
        line(&format!("  {name}"), format!("{:.2} s", time.as_secs_f64()));
    }
    out
}

fn json(summary: &Summary, seconds: f64, stages: &Stages) -> serde_json::Value {
    let s = &summary.stats;
    let algorithms: serde_json::Map<String, serde_json::Value> = build::stats::ALGORITHM_NAMES
        .iter()
        .zip(&s.algorithms)
        .filter(|(_, a)| a.clusters > 0)
        .map(|(name, a)| {
            let value = serde_json::json!({"input_bytes": a.input_bytes, "clusters": a.clusters,
                "stored_bytes": a.blocks * s.block_size});
            ((*name).to_owned(), value)
        })
        .collect();
    serde_json::json!({
        "event": "done",
        "seconds": seconds,
        "image_bytes": summary.image_bytes,
        "content_bytes": s.content_bytes,
        "files": s.files, "directories": s.dirs, "symlinks": s.symlinks, "specials": s.specials, "hard_links": s.hard_links,
        "algorithms": algorithms,
        "cluster_blocks_histogram": s.cluster_histogram,
        "stored_bytes": s.stored_bytes,
        "plain_clusters": s.plain_clusters,
        "metadata_bytes": s.meta_blocks * s.block_size,
        "inline_tails": s.inline_tails, "inline_bytes": s.inline_bytes,
        "fragments": s.fragments, "fragment_bytes": s.fragment_bytes, "fragment_dedupe_bytes": s.fragment_dedupe_bytes,
        "dedupe_files": s.dedupe_files, "dedupe_bytes": s.dedupe_bytes,
        "sparse_files": s.sparse_files, "hole_bytes": s.hole_bytes,
        "in_place": {"sampled": s.in_place_tried, "possible": s.in_place},
        "stage_seconds": stages.iter().map(|(name, t)| ((*name).to_owned(), t.as_secs_f64().into())).collect::<serde_json::Map<_, _>>(),
        "warnings": s.warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_and_levels_are_checked() {
        assert!(parse_compression("lz4hc:12").is_ok());
        assert!(parse_compression("lz4hc,12").is_ok());
        assert!(parse_compression("zstd,level=22").is_ok());
        assert!(parse_compression("none").is_ok_and(|c| c.0.is_none()));
        assert!(parse_compression("lz5").is_err());
        assert!(parse_compression("lz4hc:13").is_err());
        assert!(parse_compression("lzma:50").is_err());
    }

    #[test]
    fn patterns_without_a_slash_match_anywhere() {
        let set = glob_set(&[
            "*.o".to_owned(),
            "/var/log/*".to_owned(),
            "usr/doc/".to_owned(),
        ])
        .unwrap();
        for path in ["a.o", "x/y/a.o", "var/log/x", "usr/doc"] {
            assert!(set.is_match(path), "{path}");
        }
        for path in ["a.c", "x/var/log/y", "var/log/x/y"] {
            assert!(!set.is_match(path), "{path}");
        }
    }

    #[test]
    fn uuids_are_read() {
        assert!(
            parse_uuid("00112233-4455-6677-8899-aabbccddeeff")
                .is_ok_and(|u| u.0.unwrap()[15] == 0xff)
        );
        assert!(parse_uuid("0011").is_err());
        assert!(parse_uuid("zz112233-4455-6677-8899-aabbccddeeff").is_err());
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        crate::Cli::command().debug_assert();
    }
}
