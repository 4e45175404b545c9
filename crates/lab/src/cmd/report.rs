//! `tuff-lab report`: renders tables from records.

use clap::ValueEnum;
use std::path::PathBuf;
use tuff_lab::campaigns;
use tuff_lab::campaigns::commands::record::Line;
use tuff_lab::campaigns::commands::report::{self, Style};
use tuff_lab::engines::settings::Action;
use tuff_lab::report::document;
use tuff_lab::{Error, Result, record};

/// Render tables from records
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record files, or folders that contain them
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Level of detail of the table
    #[arg(long, value_enum, default_value = "full")]
    style: StyleArg,
    /// Include only this action
    #[arg(long, value_enum)]
    action: Option<ActionArg>,
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

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum StyleArg {
    /// All tools of all tasks, notes, limits and command lines
    Full,
    /// Our tool compared with each other tool
    Brief,
    /// Limits and measured values
    Bars,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ActionArg {
    Build,
    Extract,
    Check,
}

/// Runs the command. With `--check`, returns false if the block is outdated.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if let Ok(record) = record::Record::read(&args.records) {
        return campaign(args, &record);
    }
    let mut records = Vec::new();
    for path in &args.records {
        records.extend(record::read_all::<Line>(path)?);
    }
    let action = args.action.map(|a| match a {
        ActionArg::Build => Action::Build,
        ActionArg::Extract => Action::Extract,
        ActionArg::Check => Action::Check,
    });
    let style = match args.style {
        StyleArg::Full => Style::Full,
        StyleArg::Brief => Style::Brief,
        StyleArg::Bars => Style::Bars,
    };
    let table = report::render(&report::gather(&records, action)?, style);
    show(args, &table)
}

/// Prints the tables of a record of any campaign, or fills a block with them, and draws its chart if requested.
fn campaign(args: &Args, record: &record::Record) -> Result<bool> {
    if let Some(path) = &args.plot {
        let svg = campaigns::plot(record)?;
        std::fs::write(path, svg).map_err(|e| Error::io("write", path, e))?;
    }
    show(args, &campaigns::report(record)?)
}

fn show(args: &Args, table: &str) -> Result<bool> {
    let (Some(readme), Some(block)) = (&args.readme, &args.block) else {
        print!("{table}");
        return Ok(true);
    };
    let word = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned());
    let mut options = Vec::new();
    let style = word(args.style.to_possible_value()).filter(|s| s != "full");
    options.extend(style.map(|s| format!("--style {s}")));
    options.extend(
        args.action
            .and_then(|a| word(a.to_possible_value()))
            .map(|a| format!("--action {a}")),
    );
    let command = document::block_command(readme, &args.records, block, &options);
    let document = std::fs::read_to_string(readme).map_err(|e| Error::io("read", readme, e))?;
    let spliced = document::splice(
        &document,
        block,
        &format!("\n{table}\nMade by `{command}`.\n"),
    )?;
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
        std::fs::write(readme, spliced.text).map_err(|e| Error::io("write", readme, e))?;
    }
    Ok(true)
}
