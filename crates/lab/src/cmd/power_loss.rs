//! `tuff-lab power-loss`: power cuts and wrong bits.

use super::options::Programs;
use super::record::{self, Block};
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::power_loss::record::Failure;
use tuff_lab::campaigns::power_loss::{self, report};

/// Cut the power while somebody writes, and get bits wrong: volumes beside ext4, XFS and Btrfs
///
/// Each round makes a filesystem on a disk in memory that forgets what was not flushed, or flips bits; afterwards it is mounted, compared
/// with what was promised, checked, and repaired where it has to be. Writes the record and its tables as NAME.jsonl and NAME.md. Exit code 1
/// if a volume is not clean after a cut, or silently wrong. Root's, for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do nothing; make the tables of this record again
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    #[command(flatten)]
    block: Block,
    /// Rounds of each failure on each filesystem
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 20)]
    rounds: u32,
    /// What all chance comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only filesystems whose name contains this: volume, ext4, XFS, Btrfs
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only this failure; may be given again
    #[arg(long, value_name = "NAME")]
    failure: Vec<Failure>,
    #[command(flatten)]
    programs: Programs,
    /// Folder for mount points
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(
        long,
        default_value = "benchmarks/record/power-loss",
        value_name = "DIR"
    )]
    records: PathBuf,
}

/// Runs the verb. False if a volume lost or corrupted data.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let path = match &args.from {
        Some(path) => path.clone(),
        None => measure(args)?,
    };
    let lines = tuff_lab::record::read(&path)?;
    let tables = report::render(&lines);
    if args.block.is_requested() {
        args.block.fill("power-loss", &[path], &tables)?;
        return Ok(true);
    }
    print!("{tables}");
    record::write_beside(&path, "md", &tables)?;
    let failed = report::failed(&lines);
    if let Some(round) = failed {
        eprintln!(
            "tuff-lab: a volume did not hold: round {}, {}, seed {}: {}, {}",
            round.round,
            round.failure.name(),
            round.seed,
            round.outcome.name(),
            round.found.as_deref().unwrap_or_default()
        );
    }
    Ok(failed.is_none())
}

/// Runs the rounds. Returns the path of the record.
fn measure(args: &Args) -> Result<PathBuf> {
    let conditions = power_loss::Conditions {
        tuff: args.programs.tuff()?,
        rounds: args.rounds,
        seed: args.seed,
        only: args.only.clone(),
        failures: args.failure.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let write = record::write(&args.records, "power-loss", |emit| {
        power_loss::run(&conditions, emit)
    });
    write.map(|(path, ())| path)
}
