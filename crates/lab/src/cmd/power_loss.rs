//! `tuff-lab power-loss`: tests filesystems under power cuts and bit errors.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::power_loss::{self, outcome::Failure};

/// Simulate power cuts and bit errors during writes: volumes compared with ext4, XFS and Btrfs
///
/// Each round creates a filesystem on a simulated disk that loses unflushed writes or flips bits.
/// The filesystem is then mounted, compared with the data that must have survived, checked, and
/// repaired if necessary. Writes a record and prints its table. Exit code 1 if a volume is not clean
/// after a cut, or returns wrong data without an error. Requires root for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
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
    let conditions = power_loss::Conditions {
        tuff: args.programs.tuff()?,
        rounds: args.rounds,
        seed: args.seed,
        only: args.only.clone(),
        failures: args.failure.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let (path, failed) = record::write(&args.records, "power-loss", |emit| {
        power_loss::run(&conditions, emit)
    })?;
    record::report(&path)?;
    if let Some(failed) = &failed {
        eprintln!("tuff-lab: a volume failed: {failed}");
    }
    Ok(failed.is_none())
}
