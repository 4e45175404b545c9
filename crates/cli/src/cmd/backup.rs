//! `tuff backup`: saves directories, archives and images as a snapshot of a backup store.

use crate::cmd::build_image::paths::archive;
use crate::cmd::build_image::watched;
use crate::cmd::store::keys::KeyArgs;
use crate::cmd::store::place;
use crate::out::Out;
use crate::progress::Show;
use crate::units::{counted, size};
use clap::ValueHint;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_backup::{Report, Request, StoreCompression, default_series};
use tuff_erofs::{Error, Result, THREADS_MAX};
use tuff_mkfs::settings::Settings;
use tuff_mkfs::{Compression, Progress};

/// Save directories, archives and images to a backup store
///
/// STORE is a directory, or s3://BUCKET/PREFIX. It becomes a store if it is absent or empty. Each snapshot is an image that the kernel mounts, and stores
/// what earlier ones lack. `tuff store` lists, mounts, restores and checks snapshots.
///
/// --encrypt makes a store whose contents and names nobody can read without its key. The key is a new file in ~/.config/tuff/keys, or
/// the one that --key-file names, of which a copy belongs elsewhere, or a password. Such snapshots are mounted through FUSE only.
///
/// A SOURCE that is a file is saved as the tree in it: a SquashFS or EROFS image, or a tar or cpio archive, which may be compressed.
/// The only source of a run becomes the root of the snapshot; of several, each is at its path. Its files are not read again while the
/// size, times and inode of the archive are as they were.
///
/// Files whose size, times and inode are as in the snapshot before are not read. Files that cannot be read, or that change while
/// they are read, are left out and listed; the exit code is 1, and the next run reads them again. So it is if a snapshot has less
/// than half of the files of the one before.
#[derive(clap::Args)]
#[command(override_usage = "tuff backup [OPTIONS] <SOURCE>... <STORE>")]
pub(crate) struct Args {
    /// Directories, archives and images, then the store
    #[arg(required = true, num_args = 2.., value_name = "SOURCE|STORE")]
    paths: Vec<PathBuf>,
    /// Name of the series, in which snapshots are compared (default: the host and the sources)
    #[arg(long, value_name = "NAME")]
    series: Option<String>,
    /// Omit paths that match, with everything below them; a pattern without a slash matches names
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// File with patterns to exclude, one per line; lines that begin with # are comments
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    exclude_from: Vec<PathBuf>,
    /// Omit the contents of directories that are marked as caches, except for their CACHEDIR.TAG
    #[arg(long)]
    exclude_caches: bool,
    /// Do not descend into other file systems
    #[arg(long)]
    one_file_system: bool,
    /// Read every file, also those that are as they were
    #[arg(long)]
    all: bool,
    /// Make a new store, although the directory may be where a disk is usually mounted
    #[arg(long)]
    new: bool,
    /// Encrypt a new store, with a new key file or the password of --password-file
    #[arg(long)]
    encrypt: bool,
    #[command(flatten)]
    keys: KeyArgs,
    /// Compression of a new store, which cannot be changed later (default: zstd:3)
    #[arg(short = 'z', long, value_name = "ALG[:LEVEL]")]
    compress: Option<String>,
    /// Largest physical cluster of a new store, 8K to 1M (default: 128K)
    #[arg(short = 'C', long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    cluster: Option<u64>,
    /// Write nothing, and print what would be stored
    #[arg(short = 'n', long, conflicts_with = "new")]
    dry_run: bool,
    /// Worker threads (default: the number of CPUs that the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Print neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
    /// Print the summary as one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Some((path, sources)) = args.paths.split_last() else {
        return Err(Error::usage("no backup store is named"));
    };
    // A store is not made for sources that are not there.
    let mut archives = Vec::new();
    for source in sources {
        let found = tuff_store::retry(|| std::fs::metadata(source));
        let found = found.map_err(|e| Error::io(source.display(), "cannot find", e))?;
        if !found.is_dir() {
            archives.push((source.clone(), archive(source)?));
        }
    }
    let mut settings = Settings::default();
    for pattern in &args.exclude {
        settings.set("exclude", pattern)?;
    }
    for file in &args.exclude_from {
        settings.set("exclude-from", file)?;
    }
    let mut options = settings.options()?;
    options.sources.one_file_system = args.one_file_system;
    options.sources.exclude_caches = args.exclude_caches;
    let is_new = !place::is_at(path)?;
    if is_new {
        make(path, args)?;
    }
    options.resources.threads = args.threads.map(usize::from);
    let request = Request {
        series: (args.series.clone()).unwrap_or_else(|| default_series(sources)),
        sources: sources.to_vec(),
        archives,
        options,
        reads_all: args.all,
        is_dry: args.dry_run,
    };
    args.keys.compare(path, args.encrypt)?;
    let mut store = match args.dry_run {
        true => place::open(path, &args.keys, false)?,
        false => place::open(path, &args.keys, true)?,
    };
    if !is_new && compression(args, store.compression())? != store.compression() {
        return Err(Error::usage(format_args!(
            "{}: the store has {}, which cannot be changed; omit --compress and --cluster, or name a new store",
            path.display(),
            shown(store.compression())
        )));
    }
    let progress = Arc::new(Progress::default());
    let show = Show::unless(args.quiet || args.json);
    let (report, seconds) = watched(&progress, show, |progress| store.backup(&request, progress))?;
    for warning in &report.warnings {
        eprintln!("tuff: warning: {warning}");
    }
    for line in &report.left_out {
        eprintln!("tuff: left out: {line}");
    }
    let others = report.left_out_count - report.left_out.len() as u64;
    if others > 0 {
        eprintln!("tuff: left out: {}", counted(others, "other file"));
    }
    if report.lost_most {
        eprintln!(
            "tuff: warning: less than half of the files of snapshot {}; is the source mounted?",
            report.parent.unwrap_or_default()
        );
    }
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "snapshot": report.number,
            "parent": report.parent,
            "series": request.series,
            "entries": report.entries,
            "files": report.files,
            "files_read": report.files_read,
            "bytes": report.bytes,
            "stored_bytes": report.stored_bytes,
            "left_out": report.left_out,
            "left_out_count": report.left_out_count,
            "lost_most": report.lost_most,
            "seconds": seconds,
        }))?;
    } else if !args.quiet {
        summary(&report, is_new, path, seconds, &mut out)?;
    }
    out.finish()?;
    let is_whole = report.left_out.is_empty() && !report.lost_most;
    Ok(ExitCode::from(u8::from(!is_whole)))
}

/// Makes a store where none is.
fn make(path: &Path, args: &Args) -> Result<()> {
    if args.dry_run {
        return Err(Error::usage(format_args!(
            "{}: no backup store; a dry run makes none",
            path.display()
        )));
    }
    if path.exists()
        && !args.new
        && path
            .read_dir()
            .is_ok_and(|mut names| names.next().is_none())
        && is_in_fstab(path)
    {
        return Err(Error::usage(format_args!(
            "{}: no backup store; is its disk mounted? --new makes a store here",
            path.display()
        )));
    }
    place::create(
        path,
        compression(args, StoreCompression::default())?,
        &args.keys,
        args.encrypt,
    )
}

/// Returns the compression that the arguments state, the rest as in `other`.
fn compression(args: &Args, other: StoreCompression) -> Result<StoreCompression> {
    let mut compression = other;
    if let Some(text) = &args.compress {
        let parsed = Compression::parse(text)?;
        let parsed = parsed.ok_or_else(|| Error::usage("--compress: a backup store compresses"))?;
        (compression.method, compression.level) = (parsed.method, parsed.level);
    }
    if let Some(cluster) = args.cluster {
        let fits = cluster.is_multiple_of(4096) && (8192..=1 << 20).contains(&cluster);
        let cluster = usize::try_from(cluster).ok().filter(|_| fits);
        compression.cluster = cluster
            .ok_or_else(|| Error::usage("--cluster: expected a multiple of 4K from 8K to 1M"))?;
    }
    Ok(compression)
}

fn shown(compression: StoreCompression) -> String {
    format!(
        "--compress {}:{} --cluster {}K",
        compression.method.name(),
        compression.level,
        compression.cluster >> 10
    )
}

/// True if the directory is where /etc/fstab mounts something.
fn is_in_fstab(path: &Path) -> bool {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let table = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let mut places = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_comment = words.next()?.starts_with('#');
        words.next().filter(|_| !is_comment)
    });
    places.any(|place| Path::new(place) == real)
}

fn summary(report: &Report, is_new: bool, path: &Path, seconds: f64, out: &mut Out) -> Result<()> {
    if is_new {
        out.line(format_args!("store        new, {}", path.display()))?;
    }
    match report.number {
        Some(number) => out.line(format_args!("snapshot     {number}"))?,
        None => out.line("snapshot     none: a dry run")?,
    }
    match report.parent {
        Some(parent) => out.line(format_args!("compared     with snapshot {parent}"))?,
        None => out.line("compared     with none: the first of its series")?,
    }
    out.line(format_args!(
        "files        {}, {} read",
        report.files, report.files_read
    ))?;
    out.line(format_args!(
        "content      {}, stored {}",
        size(report.bytes),
        size(report.stored_bytes)
    ))?;
    if !report.left_out.is_empty() {
        out.line(format_args!(
            "left out     {}",
            counted(report.left_out_count, "file")
        ))?;
    }
    out.line(format_args!("time         {seconds:.1} s"))
}
