//! `tuff-lab start`: how long programs take to start from an image.

use super::options::Programs;
use super::record::{self, Block};
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::serve::definition::Cache;
use tuff_lab::campaigns::start::definition::{Condition, Definition};
use tuff_lab::campaigns::start::report;
use tuff_lab::campaigns::start::run::{self as start, Conditions};
use tuff_lab::definition::Definition as _;

/// Measure how long programs take to start from images: idle, beside readers, under memory pressure
///
/// Writes the record, its table and its plot as NAME.jsonl, NAME.md and NAME.svg. Root's, since programs get the mount as
/// their root.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition file
    #[arg(value_name = "DEFINITION", required_unless_present = "from")]
    definition: Option<PathBuf>,
    /// Root that programs are in, as it is (default: one is made of this machine's programs with what they need)
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Measure nothing; make table and plot of this record again, or one table of several
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["definition", "tree"])]
    from: Vec<PathBuf>,
    #[command(flatten)]
    block: Block,
    /// How often everything is started (default: what the definition says)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    starts: Option<u32>,
    /// Only programs whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only this condition: idle, background or pressure; may be given again
    #[arg(long, value_name = "NAME")]
    condition: Vec<Condition>,
    /// Evict the image's pages before each mount, so that it is read from the disk
    #[arg(long)]
    evict: bool,
    #[command(flatten)]
    programs: Programs,
    /// Control group (a folder) below which one is made for starts under memory pressure (default: looked for)
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Folder for tree, images and mount points, on a disk
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/start", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the verb. False if our own tool failed or was wrong.
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

/// Measures. Returns the path of the record, and false if our own tool failed or was wrong.
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
