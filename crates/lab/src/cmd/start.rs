//! `tuff-lab start`: measures the start-up time of programs in an image.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::serve::definition::Cache;
use tuff_lab::campaigns::start::definition::{Condition, Definition};
use tuff_lab::campaigns::start::run::{self as start, Conditions};
use tuff_lab::definition::Definition as _;
use tuff_lab::record::Line;

/// Measure the start-up time of programs in images: idle, with concurrent reads and writes, under memory
/// pressure
///
/// Writes a record and prints its tables. Requires root, because programs run with the mount as their
/// root directory.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition file to run
    #[arg(value_name = "DEFINITION")]
    definition: PathBuf,
    /// Root tree that contains the programs (default: built from this machine's programs and their
    /// dependencies)
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Number of starts of each program (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    starts: Option<u32>,
    /// Start only programs whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure only this condition: idle, background or pressure; may be repeated
    #[arg(long, value_name = "NAME")]
    condition: Vec<Condition>,
    /// Mount a loop device with direct I/O, so that the image is read from the disk
    #[arg(long)]
    evict: bool,
    #[command(flatten)]
    programs: Programs,
    /// Control group (a folder) in which a child group is created for memory pressure (default:
    /// detected)
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Folder on a disk for tree, images and mount points
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/start", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let definition = Definition::read(&args.definition)?;
    let conditions = Conditions {
        tree: args.tree.clone(),
        tools: args.programs.given()?,
        starts: args.starts,
        only: args.only.clone(),
        conditions: args.condition.clone(),
        cache: args.evict.then_some(Cache::Device),
        cgroup: args.cgroup.clone(),
        work: args.work.clone(),
    };
    let (path, fine) = record::write(&args.records, &definition.name, |emit| {
        emit(&Line::Header(start::header(
            "start",
            &definition,
            &conditions,
        )?))?;
        start::run(&definition, &conditions, emit)
    })?;
    record::report(&path)?;
    Ok(fine)
}
