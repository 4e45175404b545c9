//! `tuff-lab serve`: reads through mounts.

use super::how::program_at;
use std::path::PathBuf;
use tuff_lab::record::RecordWriter;
use tuff_lab::serve::record::Line;
use tuff_lab::{Error, Result, report, serve};

/// Measure reads through mounts: ours, the kernel's, and other FUSE servers'
///
/// Writes the record, its table and its plot as NAME.jsonl, NAME.md and NAME.svg.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition file
    #[arg(value_name = "DEFINITION", required_unless_present = "from")]
    definition: Option<PathBuf>,
    /// Tree that images are made of
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
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
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only images whose name contains this
    #[arg(long, value_name = "TEXT")]
    image: Option<String>,
    /// Where a program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Rounds of every workload (default: what the definition says)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Folder for images and mount points, on a disk
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/serve", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the verb. False if our own tool failed or was wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut fine = true;
    let records = match (&args.definition, &args.tree) {
        _ if !args.from.is_empty() => args.from.clone(),
        (Some(definition), Some(tree)) => {
            let definition = serve::define::Definition::read(definition)?;
            let conditions = serve::run::Conditions {
                tree: tree.clone(),
                tools: args
                    .tool
                    .iter()
                    .map(|t| program_at(t))
                    .collect::<Result<_>>()?,
                rounds: args.rounds,
                only: args.only.clone(),
                image: args.image.clone(),
                work: args.work.clone(),
            };
            let mut writer = RecordWriter::create(&args.records, &definition.name)?;
            eprintln!("record: {}", writer.path().display());
            let mut measured = false;
            let done = serve::run::run(&definition, &conditions, &mut |line| {
                measured |= matches!(line, Line::Sample(_) | Line::Failed(_));
                writer.write_any(line)
            });
            let path = writer.path().to_owned();
            if !measured {
                writer.give_up();
            }
            fine = done?;
            if !measured {
                return Err(Error::Usage(
                    "nothing to do: no workload and image have names that contain what --only and --image say"
                        .to_owned(),
                ));
            }
            vec![path]
        }
        _ => {
            return Err(Error::Usage(
                "a definition and a tree are needed".to_owned(),
            ));
        }
    };
    let mut lines = Vec::new();
    for record in &records {
        lines.extend(serve::record::read(record)?);
    }
    let gathered = serve::report::gather(&lines);
    if let (Some(readme), Some(block)) = (&args.readme, &args.block) {
        let from = records.iter().map(|r| format!("--from {}", r.display()));
        let options = from.collect::<Vec<_>>().join(" ");
        let command = format!(
            "tuff-lab serve {options} --readme {} --block {block}",
            readme.display()
        );
        report::fill(readme, block, &serve::report::brief(&gathered), &command)?;
        return Ok(fine);
    }
    let table = serve::report::render(&gathered);
    print!("{table}");
    let [record] = records.as_slice() else {
        return Ok(fine);
    };
    for (extension, text) in [("md", table), ("svg", serve::report::plot(&gathered)?)] {
        let path = record.with_extension(extension);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(fine)
}
