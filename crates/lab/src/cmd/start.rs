//! `tuff-lab start`: how long programs take to start from an image.

use super::how::program_at;
use std::path::PathBuf;
use tuff_lab::record::RecordWriter;
use tuff_lab::serve::define::Cache;
use tuff_lab::start::define::{Condition, Definition};
use tuff_lab::start::record::Line;
use tuff_lab::{Error, Result, report, start};

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
    /// Put a short table of the records into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires_all = ["block", "from"])]
    readme: Option<PathBuf>,
    /// Name of the block
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
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
    /// Where a program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
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
    let mut fine = true;
    let records = match &args.definition {
        Some(definition) => {
            let definition = Definition::read(definition)?;
            let (path, ours_fine) = measure(args, &definition)?;
            fine = ours_fine;
            vec![path]
        }
        None => args.from.clone(),
    };
    let mut lines = Vec::new();
    for record in &records {
        lines.extend(start::record::read(record)?);
    }
    let gathered = start::report::gather(&lines);
    if let (Some(readme), Some(block)) = (&args.readme, &args.block) {
        let from = records.iter().map(|r| format!("--from {}", r.display()));
        let options = from.collect::<Vec<_>>().join(" ");
        let command = format!(
            "tuff-lab start {options} --readme {} --block {block}",
            readme.display()
        );
        report::fill(readme, block, &start::report::brief(&gathered), &command)?;
        return Ok(fine);
    }
    let table = start::report::render(&gathered);
    print!("{table}");
    let [record] = records.as_slice() else {
        return Ok(fine);
    };
    for (extension, text) in [("md", table), ("svg", start::report::plot(&gathered)?)] {
        let path = record.with_extension(extension);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(fine)
}

/// Measures, and returns where the record is.
fn measure(args: &Args, definition: &Definition) -> Result<(PathBuf, bool)> {
    let conditions = start::run::Conditions {
        tree: args.tree.clone(),
        tools: args
            .tool
            .iter()
            .map(|t| program_at(t))
            .collect::<Result<_>>()?,
        starts: args.starts,
        only: args.only.clone(),
        conditions: args.condition.clone(),
        cache: args.evict.then_some(Cache::None),
        cgroup: args.cgroup.clone(),
        work: args.work.clone(),
    };
    let mut writer = RecordWriter::create(&args.records, &definition.name)?;
    eprintln!("record: {}", writer.path().display());
    let mut measured = false;
    let done = start::run::run(definition, &conditions, &mut |line| {
        measured |= matches!(line, Line::Sample(_) | Line::Failed(_));
        writer.write_any(line)
    });
    let path = writer.path().to_owned();
    if !measured {
        writer.give_up();
    }
    let fine = done?;
    if !measured {
        return Err(Error::Usage(
            "nothing to do: no program, server and condition are left of what was asked for"
                .to_owned(),
        ));
    }
    Ok((path, fine))
}
