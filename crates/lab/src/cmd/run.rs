//! `tuff-lab run`: measures the tasks of definitions and writes records.

use super::options::MeasureOptions;
use super::record;
use std::path::PathBuf;
use tuff_lab::campaigns::commands::definition::Definition;
use tuff_lab::campaigns::commands::run;
use tuff_lab::definition::Definition as _;
use tuff_lab::measure::machine;
use tuff_lab::record::Line;
use tuff_lab::{Error, Result};

/// Measure the tasks of definitions, and write the samples to records
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition files to run
    #[arg(required = true, value_name = "DEFINITION")]
    definitions: Vec<PathBuf>,
    /// Run only tasks whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Folder for records; each run creates DATE-MACHINE
    #[arg(long, default_value = "benchmarks/record", value_name = "DIR")]
    records: PathBuf,
    /// Date in the name of the folder (default: today)
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = name)]
    date: Option<String>,
    /// Machine in the name of the folder (default: the host name)
    #[arg(long, value_name = "NAME", value_parser = name)]
    machine: Option<String>,
    #[command(flatten)]
    options: MeasureOptions,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let definitions: Vec<Definition> = args
        .definitions
        .iter()
        .map(|d| Definition::read(d))
        .collect::<Result<_>>()?;
    let mut conditions = args.options.conditions()?;
    conditions.only = args.only.clone();
    let date = args.date.clone().unwrap_or_else(today);
    let name = args.machine.clone().unwrap_or_else(machine::host_name);
    let folder = args.records.join(format!("{date}-{name}"));
    if !definitions.iter().any(|d| conditions.want_any(d)) {
        return Err(Error::Usage(
            "nothing to do: no task matches these trees and --only".to_owned(),
        ));
    }
    let mut fine = true;
    for definition in definitions.iter().filter(|d| conditions.want_any(d)) {
        let campaign = |emit: &mut dyn FnMut(&Line) -> Result<()>| {
            run::run("commands", definition, &conditions, emit)
        };
        fine &= record::write(&folder, &definition.name, campaign)?.1;
    }
    Ok(fine)
}

/// Parses a component of a folder name, which must not be a path.
fn name(text: &str) -> std::result::Result<String, String> {
    if text.is_empty() || text.starts_with('.') || text.contains('/') {
        return Err("expected a part of a folder name, without '/' or a leading '.'".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns the current date in UTC, which only names a folder.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}
