//! `tuff-lab paper erofs`: repeats the measurements of the EROFS paper.

use super::options::Programs;
use super::record;
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::paper_erofs;

/// Compare EROFS with SquashFS and writable filesystems (Gao et al., USENIX ATC 2019)
///
/// Throughput and bytes read from a device for sequential, random and strided reads; memory; space; decode strategies;
/// scheduling; start of programs, idle, beside threads that read and write, and with little memory. Writes a record
/// and prints its tables. Requires root, and packages of Debian for the corpora.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the corpora paper-text and paper-mixed; missing ones are created
    #[arg(long, default_value = "trees", value_name = "DIR")]
    trees: PathBuf,
    /// Measure only this part: reads, strategies, scheduling or start; may be repeated
    #[arg(long, value_name = "NAME")]
    part: Vec<String>,
    /// Number of rounds of reads (default: those of the definitions)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Number of starts of each program (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    starts: Option<u32>,
    /// Read only images whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    image: Option<String>,
    #[command(flatten)]
    programs: Programs,
    /// Folder on a disk for images and mount points
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Folder for the record
    #[arg(
        long,
        default_value = "benchmarks/record/paper-erofs",
        value_name = "DIR"
    )]
    records: PathBuf,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let conditions = paper_erofs::Conditions {
        trees: args.trees.clone(),
        tools: args.programs.given()?,
        parts: args.part.clone(),
        rounds: args.rounds,
        starts: args.starts,
        image: args.image.clone(),
        work: args.work.clone(),
    };
    let (path, fine) = record::write(&args.records, "erofs", |emit| {
        paper_erofs::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(fine)
}
