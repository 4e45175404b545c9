//! `tuff-lab volumes`: compares volumes with ext4.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::volumes;

/// Measure volumes, compared with ext4 on a loop device and the filesystem of the host
///
/// Workloads create and delete small files, write and read a large file, overwrite pages with
/// fdatasync, and measure latency with concurrent writers. Writes a record and prints its
/// table. Requires root for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of rounds of each measurement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Run only workloads of groups whose name contains TEXT: files, stream, overwrite, fdatasync,
    /// beside
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Compare dispatches of discards and sizes of sections instead of filesystems
    #[arg(long)]
    discards: bool,
    #[command(flatten)]
    programs: Programs,
    /// Folder on the host for the volumes
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/volumes", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the measurement, and prints its tables.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let conditions = volumes::Conditions {
        tuff: args.programs.tuff()?,
        rounds: args.rounds,
        discards: args.discards,
        only: args.only.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let (path, ()) = record::write(&args.records, "volumes", |emit| {
        volumes::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(true)
}
