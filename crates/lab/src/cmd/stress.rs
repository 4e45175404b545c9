//! `tuff-lab campaign`: mistakes in images and volumes.

use clap::Subcommand;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tuff_lab::campaigns::stress::images::{self, JUDGES, Judge, Tally};
use tuff_lab::campaigns::stress::{crash, files};
use tuff_lab::engines::settings::Size;
use tuff_lab::engines::{self, Tool};
use tuff_lab::{Error, Result};

/// Look for mistakes in images and volumes for a long time
#[derive(Subcommand)]
pub(crate) enum Verb {
    Crash(CrashArgs),
    Files(FilesArgs),
    Images(ImagesArgs),
}

/// What volumes show after losses of power: every pair of operations, more by seed, each safety rule off
///
/// Writes report.md and, unit by unit, progress.jsonl; started again with the same folder it goes on. Exit code 1 if something was found.
#[derive(clap::Args)]
pub(crate) struct CrashArgs {
    /// Folder for progress and report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Begin nothing after this long, and go on with more seeds until then (default: the plan, once)
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Rounds of sampled sequences in the plan
    #[arg(long, default_value_t = 40, value_name = "N")]
    rounds: u32,
    /// Start of everything random
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Units at a time
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Only this group: ones, tricky, pairs, threes, twelves, snapshots, "long logs", rules
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
}

/// Files on a mounted filesystem against plain bytes: writes, mappings, holes, truncation, copies by other processes
///
/// Exit code 1, and the operations that led there, if a byte is wrong.
#[derive(clap::Args)]
pub(crate) struct FilesArgs {
    /// Folder on the filesystem
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Operations
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    operations: u64,
    /// What fixes every operation
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Files at once
    #[arg(long, default_value_t = 4, value_name = "N")]
    files: usize,
    /// Longest file
    #[arg(long, default_value = "1M", value_name = "SIZE")]
    size: Size,
    /// Longest operation
    #[arg(long, default_value = "64K", value_name = "SIZE")]
    length: Size,
    /// Without mappings
    #[arg(long)]
    no_mmap: bool,
    /// Operations for each copy of an open file by another process (cp, tar -S, rsync -S, ...), 0 for no copies
    #[arg(long, default_value_t = 100, value_name = "N")]
    copy_every: u64,
}

/// Images of random trees at random settings, before several judges: the kernel, our own reader, fsck.erofs, other numbers of threads
///
/// Most of the trees change then, up to three times, and get a patch or an image over the first. Exit code 1 if something is wrong; the
/// seed and the commands are printed, tree and images stay.
#[derive(clap::Args)]
pub(crate) struct ImagesArgs {
    /// Folder for cases, of which those with findings stay
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of the first case; each has the next one
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Cases (default: 200, or as many as there is time for)
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// Begin no case after this long
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Only these judges: threads, sources, check, extract, mount, kernel, fsck (default: all); trees and settings stay the same
    #[arg(long, value_name = "JUDGE", value_parser = judge)]
    only: Vec<Judge>,
    /// fsck.erofs, 1.9 or newer (default: PATH)
    #[arg(long, value_name = "FILE")]
    fsck: Option<PathBuf>,
}

/// Runs the verb. False if something was found.
pub(crate) fn run(verb: &Verb) -> Result<bool> {
    match verb {
        Verb::Crash(args) => crash(args),
        Verb::Files(args) => files(args),
        Verb::Images(args) => images(args),
    }
}

fn crash(args: &CrashArgs) -> Result<bool> {
    let options = crash::Options {
        seed: args.seed,
        minutes: args.minutes,
        rounds: args.rounds,
        threads: args.threads,
        groups: args.only.clone(),
    };
    let program = std::env::current_exe()
        .and_then(std::fs::read)
        .map_err(|e| Error::io("read", Path::new("this program"), e))?;
    let build = blake3::hash(&program).to_hex();
    let fine = crash::run(&options, &args.out, &build, &mut |unit| eprintln!("{unit}"))?;
    let report = args.out.join("report.md");
    let text = std::fs::read_to_string(&report).map_err(|e| Error::io("read", &report, e))?;
    print!("{text}");
    Ok(fine)
}

fn files(args: &FilesArgs) -> Result<bool> {
    let options = files::Options {
        seed: args.seed,
        operations: args.operations,
        files: args.files,
        size_max: args.size.0.max(1),
        len_max: args.length.0.max(1),
        mapped: !args.no_mmap,
        copy_every: args.copy_every,
    };
    match files::run(&options, &args.dir)? {
        Ok(tally) => println!(
            "{} operations, {} of them through mappings, {} searches for holes, {} copies, {} bytes compared: nothing wrong",
            tally.operations, tally.mapped, tally.seeks, tally.copies, tally.compared_bytes
        ),
        Err(wrong) => {
            println!("{wrong}");
            return Ok(false);
        }
    }
    Ok(true)
}

fn images(args: &ImagesArgs) -> Result<bool> {
    tuff_lab::measure::stop::watch();
    let tuff = engines::find(Tool::Tuff, &[])?;
    let tuff = tuff.ok_or_else(|| {
        Error::Usage("tuff is neither beside this program nor on PATH".to_owned())
    })?;
    let time = args.minutes.map(|n| Duration::try_from_secs_f64(n * 60.0));
    let time = time
        .transpose()
        .map_err(|e| Error::Usage(format!("--minutes: {e}")))?;
    let mut given = Vec::new();
    if let Some(path) = &args.fsck {
        let path = std::path::absolute(path).map_err(|e| Error::io("find", path, e))?;
        given.push((Tool::FsckErofs, path));
    }
    let judges = match args.only.as_slice() {
        [] => JUDGES.map(|(_, judge)| judge).to_vec(),
        only => only.to_vec(),
    };
    let options = images::Options {
        seed: args.seed,
        cases: args.cases.or(time.is_none().then_some(200)),
        time,
        judges,
        tuff: tuff.path,
        fsck: engines::find(Tool::FsckErofs, &given)?,
    };
    let shown = std::io::stderr().is_terminal();
    let (mut tally, mut told) = (Tally::default(), 0);
    let ended = images::run(&options, &args.out, &mut tally, &mut |tally| {
        if shown {
            eprint!(
                "\r{} cases, {} images, {} findings ",
                tally.cases,
                tally.images,
                tally.findings.len()
            );
        }
        for finding in &tally.findings[told..] {
            print!("{finding}");
        }
        told = tally.findings.len();
    });
    if shown {
        eprintln!();
    }
    println!(
        "{} cases, {} images, {} settings refused, {} patches stopped, {} findings",
        tally.cases,
        tally.images,
        tally.refused,
        tally.stopped,
        tally.findings.len()
    );
    for (judge, images) in &tally.judged {
        match (judge, &options.fsck) {
            (Judge::Fsck, Some(fsck)) => {
                println!("{judge} {}: {images} images", fsck.receipt.number());
            }
            _ => println!("{judge}: {images} images"),
        }
    }
    for (why, images) in &tally.skipped {
        println!("not judged: {why} ({images} images)");
    }
    ended.map(|()| tally.findings.is_empty())
}

fn judge(name: &str) -> std::result::Result<Judge, String> {
    let judge = JUDGES.iter().find(|(known, _)| *known == name);
    judge.map(|(_, judge)| *judge).ok_or_else(|| {
        let names = JUDGES.map(|(name, _)| name).join(", ");
        format!("no judge is called that; there are {names}")
    })
}
