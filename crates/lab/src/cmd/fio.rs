//! `tuff-lab fio`: measures a matrix of fio workloads.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::fio;
use tuff_lab::campaigns::serve::program::program;

/// Programs used by the campaign.
const PROGRAMS: [&str; 5] = ["tuff", "fio", "erofsfuse", "mksquashfs", "fsck.erofs"];

/// Measure with fio: volumes compared with ext4, XFS and Btrfs, images compared with SquashFS
///
/// Workloads are sequential and random, with small and large requests, direct and buffered,
/// reading, writing and mixed. Also measures request latency, CPU time of the machine, the duration
/// of mounts and checks, and the size of an empty filesystem. Writes a record and prints its tables.
/// Requires root for the loop devices.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of rounds of each measurement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Measure only targets whose name contains TEXT, such as volume, ext4 or image
    #[arg(long, value_name = "TEXT")]
    place: Option<String>,
    /// Measure only workloads whose name contains TEXT, such as random or direct
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Size of the file, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=2048), default_value_t = 256)]
    file: u64,
    #[command(flatten)]
    programs: Programs,
    /// Folder on the host for the filesystems
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/fio", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let given = args.programs.given()?;
    let programs = PROGRAMS.iter();
    let conditions = fio::Conditions {
        programs: programs
            .filter_map(|name| Some(((*name).to_owned(), program(name, &given)?)))
            .collect(),
        rounds: args.rounds,
        place: args.place.clone(),
        only: args.only.clone(),
        file_mib: args.file,
        work: args.work.clone(),
    };
    conditions.plan()?;
    let (path, fine) = record::write(&args.records, "fio", |emit| fio::run(&conditions, emit))?;
    record::report(&path)?;
    Ok(fine)
}
