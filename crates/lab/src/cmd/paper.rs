//! `tuff-lab paper`: repeats measurements of publications.

use super::backup::{self, Backup};
use super::guest::Machine;
use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::embedded;

/// Repeat the measurements of publications
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    Embedded(Embedded),
    Backup(Backup),
}

/// Compare filesystems for embedded systems in a guest (Lelong, ELC 2015)
///
/// Start, mount, fio, kernel threads, overhead, check, power cuts and faulty devices, for EROFS, SquashFS,
/// ext4, F2FS, NILFS2, JFFS2 and UBIFS. Writes a record and prints its tables. Requires root.
/// benchmarks/guest-packages installs QEMU, the kernel and the tools.
#[derive(clap::Args)]
pub(crate) struct Embedded {
    /// Test only filesystems whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Size of the large partition on a block device in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=8192), default_value_t = 512)]
    partition: u64,
    /// Rounds with a power cut for each filesystem and pace
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    programs: Programs,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/embedded", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the command.
pub(crate) fn run(verb: &Verb) -> Result<bool> {
    let args = match verb {
        Verb::Embedded(args) => args,
        Verb::Backup(args) => return backup::run(args),
    };
    let conditions = embedded::Conditions {
        tuff: args.programs.tuff()?,
        guest: args.machine.guest()?,
        only: args.only.clone(),
        partition_mib: args.partition,
        rounds: args.rounds,
        seed: args.seed,
        work: args.machine.work.clone(),
    };
    conditions.plan()?;
    let (path, ()) = record::write(&args.records, "embedded", |emit| {
        embedded::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(true)
}
