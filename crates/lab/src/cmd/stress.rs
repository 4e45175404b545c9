//! `tuff-lab campaign`: stress tests of images and volumes.

use clap::Subcommand;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tuff_lab::campaigns::stress::images::{self, JUDGES, Judge, Tally};
use tuff_lab::campaigns::stress::{crash, files};
use tuff_lab::engines::settings::Size;
use tuff_lab::engines::{self, Tool};
use tuff_lab::{Error, Result};

/// Stress-test images and volumes
#[derive(Subcommand)]
pub(crate) enum Verb {
    Crash(CrashArgs),
    Files(FilesArgs),
    Images(ImagesArgs),
}

/// Test volumes after simulated power losses: all pairs of operations, random sequences, and each
/// safety rule disabled
///
/// Writes report.md and progress.jsonl; a repeated run with the same folder resumes. Exit code 1 if
/// there are findings.
#[derive(clap::Args)]
pub(crate) struct CrashArgs {
    /// Folder for progress and report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Time limit; random sequences are added until it is reached (default: run the plan once)
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Number of rounds of random sequences in the plan
    #[arg(long, default_value_t = 40, value_name = "N")]
    rounds: u32,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Number of parallel test units
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Run only this group: ones, tricky, pairs, threes, twelves, snapshots, "long logs", rules
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
}

/// Compare files on a mounted filesystem with a model: writes, mappings, holes, truncation, copies
/// by other processes
///
/// On a wrong byte, prints the operations that led to it and exits with 1.
#[derive(clap::Args)]
pub(crate) struct FilesArgs {
    /// Folder on the filesystem under test
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Number of operations on the files
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    operations: u64,
    /// Seed of the sequence of operations
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Number of open files
    #[arg(long, default_value_t = 4, value_name = "N")]
    files: usize,
    /// Largest size of a file
    #[arg(long, default_value = "1M", value_name = "SIZE")]
    size: Size,
    /// Largest length of an operation
    #[arg(long, default_value = "64K", value_name = "SIZE")]
    length: Size,
    /// Do not use memory mappings
    #[arg(long)]
    no_mmap: bool,
    /// Operations between copies of an open file by another process (cp, tar -S, rsync -S, ...); 0
    /// disables copies
    #[arg(long, default_value_t = 100, value_name = "N")]
    copy_every: u64,
}

/// Build images of random trees with random settings, and verify each with several judges
///
/// Judges are the kernel, our own reader, fsck.erofs, and builds with other numbers of threads.
/// Most trees are then changed up to three times, and get a patch or an image based on the first.
/// On a wrong result, prints the seed and the commands, keeps tree and images, and exits with 1.
#[derive(clap::Args)]
pub(crate) struct ImagesArgs {
    /// Folder for test cases; those with findings are kept
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of the first case; each following case uses the next number
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Number of cases (default: 200, or unlimited with --minutes)
    #[arg(long, value_name = "N")]
    cases: Option<u64>,
    /// Time after which no case is started
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Use only these judges: threads, sources, check, extract, mount, kernel, fsck (default: all).
    /// Trees and settings are unaffected
    #[arg(long, value_name = "JUDGE", value_parser = judge)]
    only: Vec<Judge>,
    /// Path of fsck.erofs 1.9 or newer (default: search in PATH)
    #[arg(long, value_name = "FILE")]
    fsck: Option<PathBuf>,
}

/// Runs the command. Returns false if there are findings.
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
            "{} operations, {} of them through mappings, {} searches for holes, {} copies, {} bytes compared: no errors",
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
        Error::Usage("the program tuff was not found beside this program or in PATH".to_owned())
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
        "{} cases, {} images, {} settings rejected, {} patches interrupted, {} findings",
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
        println!("not verified: {why} ({images} images)");
    }
    ended.map(|()| tally.findings.is_empty())
}

fn judge(name: &str) -> std::result::Result<Judge, String> {
    let judge = JUDGES.iter().find(|(known, _)| *known == name);
    judge.map(|(_, judge)| *judge).ok_or_else(|| {
        let names = JUDGES.map(|(name, _)| name).join(", ");
        format!("unknown judge; expected one of {names}")
    })
}
