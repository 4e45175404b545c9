//! `tuff-lab paper`: repeats measurements of publications.

use super::backup::{self, Backup};
use super::guest::Machine;
use super::options::Programs;
use super::paper_erofs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::{cleaning, embedded};

/// Repeat the measurements of publications
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    Erofs(paper_erofs::Args),
    Embedded(Embedded),
    Backup(Backup),
    Cleaning(Cleaning),
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
    /// Run only this part
    #[arg(long, value_name = "NAME")]
    part: Option<embedded::Part>,
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

/// Measure F2FS's cleaning in a guest, beside a volume (IPLFS, ATC 2022)
///
/// A file fills most of the disk, and its pages are overwritten at random. Speed and bytes written to the disk
/// are sampled while F2FS begins to clean. Writes a record and prints its tables. benchmarks/guest-packages
/// installs QEMU, the kernel and the tools.
#[derive(clap::Args)]
pub(crate) struct Cleaning {
    /// Size of the disk in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(128..=8192), default_value_t = 512)]
    disk: u64,
    /// Share of the disk that the file fills, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=90), default_value_t = 70)]
    fill: u64,
    /// Bytes to overwrite, as a multiple of the size of the disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100), default_value_t = 1)]
    times: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    programs: Programs,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/cleaning", value_name = "DIR")]
    records: PathBuf,
}

fn clean(args: &Cleaning) -> Result<bool> {
    let conditions = cleaning::Conditions {
        tuff: args.programs.tuff()?,
        guest: args.machine.guest()?,
        disk_mib: args.disk,
        fill_percent: args.fill,
        times: args.times,
        seed: args.seed,
        work: args.machine.work.clone(),
    };
    let (path, ()) = record::write(&args.records, "cleaning", |emit| {
        cleaning::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(true)
}

/// Runs the measurement of a publication.
pub(crate) fn run(verb: &Verb) -> Result<bool> {
    let args = match verb {
        Verb::Erofs(args) => return paper_erofs::run(args),
        Verb::Embedded(args) => args,
        Verb::Backup(args) => return backup::run(args),
        Verb::Cleaning(args) => return clean(args),
    };
    let conditions = embedded::Conditions {
        tuff: args.programs.tuff()?,
        guest: args.machine.guest()?,
        only: args.only.clone(),
        part: args.part,
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
