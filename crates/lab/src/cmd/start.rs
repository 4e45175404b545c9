//! `tuff-lab start`: measures the start-up time of programs in an image.

use super::options::Programs;
use super::record::{self, Block};
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::serve::definition::Cache;
use tuff_lab::campaigns::start::definition::{Condition, Definition};
use tuff_lab::campaigns::start::report;
use tuff_lab::campaigns::start::run::{self as start, Conditions};
use tuff_lab::definition::Definition as _;

/// Measure the start-up time of programs in images: idle, with concurrent readers, under memory
/// pressure
///
/// Writes NAME.jsonl (record), NAME.md (table) and NAME.svg (plot). Requires root, because programs
/// run with the mount as their root directory.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition file to run
    #[arg(value_name = "DEFINITION", required_unless_present = "from")]
    definition: Option<PathBuf>,
    /// Root tree that contains the programs (default: built from this machine's programs and their
    /// dependencies)
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Render table and plot of an existing record instead of measuring, or one table of several
    /// records
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["definition", "tree"])]
    from: Vec<PathBuf>,
    #[command(flatten)]
    block: Block,
    /// Number of starts of each program (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    starts: Option<u32>,
    /// Start only programs whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure only this condition: idle, background or pressure; may be repeated
    #[arg(long, value_name = "NAME")]
    condition: Vec<Condition>,
    /// Evict the pages of the image before each mount, so that it is read from the disk
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
    let (records, fine) = match &args.definition {
        Some(definition) => {
            let (path, fine) = measure(args, &Definition::read(definition)?)?;
            (vec![path], fine)
        }
        None => (args.from.clone(), true),
    };
    let mut lines = Vec::new();
    for path in &records {
        lines.extend(tuff_lab::record::read(path)?);
    }
    let gathered = report::gather(&lines);
    if args.block.is_requested() {
        args.block
            .fill("start", &records, &report::brief(&gathered))?;
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
fn measure(args: &Args, definition: &Definition) -> Result<(PathBuf, bool)> {
    let conditions = Conditions {
        tree: args.tree.clone(),
        tools: args.programs.given()?,
        starts: args.starts,
        only: args.only.clone(),
        conditions: args.condition.clone(),
        cache: args.evict.then_some(Cache::None),
        cgroup: args.cgroup.clone(),
        work: args.work.clone(),
    };
    record::write(&args.records, &definition.name, |emit| {
        start::run(definition, &conditions, emit)
    })
}
