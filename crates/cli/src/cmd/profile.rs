//! `tuff profile`: shows and merges access profiles.

use crate::out::Out;
use crate::overwrite::Format;
use crate::sink::Sink;
use clap::Subcommand;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::Result;
use tuff_erofs::serve::Profile;

/// Show and merge access profiles recorded by mounts
///
/// A profile lists which parts of which files were read, and in which order. tuff mount --record writes one; tuff build
/// --order and tuff mount --pin use it. docs/reference/profile.md describes the format.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List files in the order of their first use, with time, number of runs and bytes
    Show {
        /// Profile to list
        file: PathBuf,
        /// List every part of a file instead of one line per file
        #[arg(long)]
        parts: bool,
    },
    /// Merge profiles: runs are added up, and the earliest times count
    Merge {
        /// Two or more profiles
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Output file (default: standard output)
        #[arg(short = 'o', long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Show { file, parts } => return show(&read(file)?, *parts),
        What::Merge { files, output } => {
            let profiles: Vec<Profile> = files.iter().map(|f| read(f)).collect::<Result<_>>()?;
            let path = output.as_deref().unwrap_or(Path::new("-"));
            // All inputs have been read, so the output may replace one of them.
            let mut sink = Sink::create(path, &[], Format::Profile, false)?;
            let written = Profile::merge(&profiles).write(&mut sink);
            written.map_err(|e| sink.failed(e))?;
            sink.finish()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads and parses a profile.
pub(super) fn read(path: &Path) -> Result<Profile> {
    let text = tuff_mkfs::source::lists::read_text(path)?;
    Profile::parse(&text).map_err(|e| e.within(path.display()))
}

fn show(profile: &Profile, parts: bool) -> Result<ExitCode> {
    let mut out = Out::new();
    out.line("   when_ms  runs        bytes  path")?;
    let ms = |us: u64| format!("{}.{:03}", us / 1000, us % 1000);
    if parts {
        for u in &profile.uses {
            let (when, path) = (ms(u.when_us), u.path.escape_ascii());
            let place = format!("{}+{}", u.offset, u.len);
            out.line(format_args!("{when:>10} {:>5} {place:>12}  {path}", u.runs))?;
        }
        return out.finish();
    }
    // Earliest time, most runs and total bytes by path.
    let mut files: HashMap<&[u8], (u64, u32, u64)> = HashMap::new();
    for u in &profile.uses {
        let file = files.entry(&u.path).or_insert((u.when_us, 0, 0));
        *file = (
            file.0.min(u.when_us),
            file.1.max(u.runs),
            file.2.saturating_add(u.len),
        );
    }
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_unstable_by_key(|(path, (when, ..))| (*when, *path));
    for (path, (when, runs, bytes)) in files {
        let (when, path) = (ms(when), path.escape_ascii());
        out.line(format_args!("{when:>10} {runs:>5} {bytes:>12}  {path}"))?;
    }
    out.finish()
}
