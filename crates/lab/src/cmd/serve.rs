//! `tuff-lab serve`: measures reads through mounts.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::serve::definition::Definition;
use tuff_lab::campaigns::serve::run::{self as serve, Conditions};
use tuff_lab::definition::Definition as _;
use tuff_lab::record::Line;

/// Measure reads through mounts: our FUSE server, the kernel, and other FUSE servers
///
/// Writes a record and prints its tables.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition file to run
    #[arg(value_name = "DEFINITION")]
    definition: PathBuf,
    /// Source tree of the images
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,
    /// Measure only workloads whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure only images whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    image: Option<String>,
    #[command(flatten)]
    programs: Programs,
    /// Number of rounds for each workload (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Folder on a disk for images and mount points
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(long, default_value = "benchmarks/record/serve", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let definition = Definition::read(&args.definition)?;
    let conditions = Conditions {
        tree: args.tree.clone(),
        tools: args.programs.given()?,
        rounds: args.rounds,
        only: args.only.clone(),
        image: args.image.clone(),
        work: args.work.clone(),
    };
    let (path, fine) = record::write(&args.records, &definition.name, |emit| {
        emit(&Line::Header(serve::header(
            "serve",
            &definition,
            &args.work,
        )?))?;
        serve::run(&definition, &conditions, emit)
    })?;
    record::report(&path)?;
    Ok(fine)
}
