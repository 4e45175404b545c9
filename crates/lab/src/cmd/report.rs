//! `tuff-lab report`: tables from records.

use clap::ValueEnum;
use std::path::PathBuf;
use tuff_lab::campaigns::commands::record::Line;
use tuff_lab::campaigns::commands::report::{self, Style};
use tuff_lab::engines::settings::Action;
use tuff_lab::report::document;
use tuff_lab::{Error, Result, record};

/// Make tables from records
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record files, or folders of them
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// How much to tell
    #[arg(long, value_enum, default_value = "full")]
    style: StyleArg,
    /// Only this action
    #[arg(long, value_enum)]
    action: Option<ActionArg>,
    /// Put the table into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires = "block")]
    readme: Option<PathBuf>,
    /// Name of the block
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
    /// Change nothing; exit with 1 when the document's block is another
    #[arg(long, requires = "readme")]
    check: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum StyleArg {
    /// Every tool of every task, notes, bars, command lines
    Full,
    /// Ours beside each rival
    Brief,
    /// What was to be reached and what was
    Bars,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ActionArg {
    Build,
    Extract,
    Check,
}

/// Runs the verb. With `--check`, false if the document's block is another.
pub(crate) fn run(args: &Args) -> Result<bool> {
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
    let (Some(readme), Some(block)) = (&args.readme, &args.block) else {
        print!("{table}");
        return Ok(true);
    };
    let word = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned());
    let mut options = Vec::new();
    options.extend(word(args.style.to_possible_value()).map(|s| format!("--style {s}")));
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
                "tuff-lab: block '{block}' of {} is not what the record says; run {command}",
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
