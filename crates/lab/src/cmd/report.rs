//! `tuff-lab report`: renders tables from records.

use std::path::PathBuf;
use tuff_lab::record::Record;
use tuff_lab::report::document;
use tuff_lab::{At, Result, campaigns};

/// Render tables from records
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record files, or folders that contain them
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Insert the table into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK
    /// -->
    #[arg(long, value_name = "FILE", requires = "block")]
    readme: Option<PathBuf>,
    /// Name of the block in the document
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
    /// Draw the chart of the campaign into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Do not write; exit with 1 if the block is outdated
    #[arg(long, requires = "readme")]
    check: bool,
}

/// Runs the command. With `--check`, returns false if the block is outdated.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let record = Record::read(&args.records)?;
    if let Some(path) = &args.plot {
        let svg = campaigns::plot(&record)?;
        std::fs::write(path, svg).at("write", path)?;
    }
    let table = campaigns::report(&record)?;
    let (Some(readme), Some(block)) = (&args.readme, &args.block) else {
        print!("{table}");
        return Ok(true);
    };
    let command = document::block_command(readme, &args.records, block);
    let document = std::fs::read_to_string(readme).at("read", readme)?;
    let text = format!("\n{table}\nMade by `{command}`.\n");
    let spliced = document::splice(&document, block, &text)?;
    if args.check {
        if spliced.changed {
            eprintln!(
                "tuff-lab: block '{block}' of {} is outdated; run {command}",
                readme.display()
            );
        }
        return Ok(!spliced.changed);
    }
    if spliced.changed {
        std::fs::write(readme, spliced.text).at("write", readme)?;
    }
    Ok(true)
}
