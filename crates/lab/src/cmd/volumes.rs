//! `tuff-lab volumes`: compares volumes with ext4.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::volumes::record::split;
use tuff_lab::campaigns::volumes::{self, report};

/// Measure volumes, compared with ext4 on a loop device and the filesystem of the host
///
/// Workloads create and delete small files, write and read a large file, overwrite pages with
/// fdatasync, and measure latency with concurrent writers. Writes NAME.jsonl (record) and NAME.md
/// (table). Requires root for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Render the table of an existing record instead of measuring
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    /// Number of rounds of each measurement
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Run only workloads of groups whose name contains TEXT: files, stream, overwrite, fdatasync,
    /// beside
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    programs: Programs,
    /// Folder on the host for the volumes
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/volumes", value_name = "DIR")]
    records: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let path = match &args.from {
        Some(path) => path.clone(),
        None => measure(args)?,
    };
    let (header, samples) = split(tuff_lab::record::read(&path)?)?;
    let table = report::render(&header, &samples);
    print!("{table}");
    record::write_beside(&path, "md", &table)?;
    Ok(true)
}

/// Runs the campaign and returns the path of the record.
fn measure(args: &Args) -> Result<PathBuf> {
    let conditions = volumes::Conditions {
        tuff: args.programs.tuff()?,
        rounds: args.rounds,
        only: args.only.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let write = record::write(&args.records, "volumes", |emit| {
        volumes::run(&conditions, emit)
    });
    write.map(|(path, ())| path)
}
