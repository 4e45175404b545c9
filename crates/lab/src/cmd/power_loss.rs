//! `tuff-lab power-loss`: tests filesystems under power cuts and bit errors.

use super::options::Programs;
use super::record::{self, Block};
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::power_loss::record::Failure;
use tuff_lab::campaigns::power_loss::{self, report};

/// Simulate power cuts and bit errors during writes: volumes compared with ext4, XFS and Btrfs
///
/// Each round creates a filesystem on a simulated disk that loses unflushed writes or flips bits.
/// The filesystem is then mounted, compared with the data that must have survived, checked, and
/// repaired if necessary. Writes NAME.jsonl (record) and NAME.md (tables). Exit code 1 if a volume
/// is not clean after a cut, or returns wrong data without an error. Requires root for the loop
/// device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Render the tables of an existing record instead of testing
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    #[command(flatten)]
    block: Block,
    /// Number of rounds for each failure and filesystem
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 20)]
    rounds: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Test only filesystems whose name contains TEXT: volume, ext4, XFS, Btrfs
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Test only this failure; may be repeated
    #[arg(long, value_name = "NAME")]
    failure: Vec<Failure>,
    #[command(flatten)]
    programs: Programs,
    /// Folder for mount points
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(
        long,
        default_value = "benchmarks/record/power-loss",
        value_name = "DIR"
    )]
    records: PathBuf,
}

/// Runs the command. Returns false if a volume lost or corrupted data.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let path = match &args.from {
        Some(path) => path.clone(),
        None => measure(args)?,
    };
    let lines = tuff_lab::record::read(&path)?;
    if !record::show(&args.block, "power-loss", &path, &report::render(&lines))? {
        return Ok(true);
    }
    let failed = report::failed(&lines);
    if let Some(round) = failed {
        eprintln!(
            "tuff-lab: a volume failed: round {}, {}, seed {}: {}, {}",
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
