//! `tuff-lab volumes`: volumes beside ext4.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::volumes::record::split;
use tuff_lab::campaigns::volumes::{self, report};

/// Measure volumes beside ext4 on a loop device and the host's own filesystem
///
/// Small files made and deleted, a large one written and read, pages written over and made durable, and how long others wait beside
/// those who write. Writes the record and its table as NAME.jsonl and NAME.md. Root's, for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure nothing; make the table of this record again
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    /// Rounds of everything
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Only loads of groups whose name contains this: files, stream, overwrite, fdatasync, beside
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    programs: Programs,
    /// Folder on the host that volumes are made on
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/volumes", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the verb.
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

/// Measures. Returns the path of the record.
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
