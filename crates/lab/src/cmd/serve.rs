//! `tuff-lab serve`: measures reads through mounts.

use super::options::Programs;
use super::record::{self, Block};
use std::path::{Path, PathBuf};
use tuff_lab::Result;
use tuff_lab::campaigns::serve::definition::Definition;
use tuff_lab::campaigns::serve::report;
use tuff_lab::campaigns::serve::run::{self as serve, Conditions};
use tuff_lab::definition::Definition as _;

/// Measure reads through mounts: our FUSE server, the kernel, and other FUSE servers
///
/// Writes NAME.jsonl (record), NAME.md (table) and NAME.svg (plot).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition file to run
    #[arg(value_name = "DEFINITION", required_unless_present = "from")]
    definition: Option<PathBuf>,
    /// Source tree of the images
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
    tree: Option<PathBuf>,
    /// Render table and plot of an existing record instead of measuring, or one table of several
    /// records
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["definition", "tree"])]
    from: Vec<PathBuf>,
    #[command(flatten)]
    block: Block,
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
    let (records, fine) = match (&args.definition, &args.tree) {
        (Some(definition), Some(tree)) => {
            let (path, fine) = measure(args, &Definition::read(definition)?, tree)?;
            (vec![path], fine)
        }
        _ => (args.from.clone(), true),
    };
    let mut lines = Vec::new();
    for path in &records {
        lines.extend(tuff_lab::record::read(path)?);
    }
    let gathered = report::gather(&lines);
    if args.block.is_requested() {
        args.block
            .fill("serve", &records, &report::brief(&gathered))?;
        return Ok(fine);
    }
    let table = report::render(&gathered);
    print!("{table}");
    if let [path] = records.as_slice() {
        record::write_beside(path, "md", &table)?;
        record::write_beside(path, "svg", &report::plot(&gathered)?)?;
    }
    Ok(fine)
}

/// Runs the campaign. Returns the path of the record, and false if our own tool failed or gave a
/// wrong result.
fn measure(args: &Args, definition: &Definition, tree: &Path) -> Result<(PathBuf, bool)> {
    let conditions = Conditions {
        tree: tree.to_owned(),
        tools: args.programs.given()?,
        rounds: args.rounds,
        only: args.only.clone(),
        image: args.image.clone(),
        work: args.work.clone(),
    };
    record::write(&args.records, &definition.name, |emit| {
        serve::run(definition, &conditions, emit)
    })
}
