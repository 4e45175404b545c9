//! `tuff-lab run`: what definitions ask for, kept as a record.

use super::options::MeasureOptions;
use super::record;
use std::path::PathBuf;
use tuff_lab::campaigns::commands::definition::Definition;
use tuff_lab::campaigns::commands::record::Line;
use tuff_lab::campaigns::commands::run;
use tuff_lab::definition::Definition as _;
use tuff_lab::measure::machine;
use tuff_lab::{Error, Result};

/// Measure what definitions ask for, and keep the samples as a record
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Definition files
    #[arg(required = true, value_name = "DEFINITION")]
    definitions: Vec<PathBuf>,
    /// Only tasks whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where records go, each run in a folder DATE-MACHINE
    #[arg(long, default_value = "benchmarks/record", value_name = "DIR")]
    records: PathBuf,
    /// Date in the folder's name (default: today)
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = name)]
    date: Option<String>,
    /// Machine in the folder's name (default: the host's name)
    #[arg(long, value_name = "NAME", value_parser = name)]
    machine: Option<String>,
    #[command(flatten)]
    options: MeasureOptions,
}

/// Runs the verb. False if our own tool failed or was wrong.
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
            "nothing to do: no task is for these trees and has a name that contains what --only says"
                .to_owned(),
        ));
    }
    let mut fine = true;
    for definition in definitions.iter().filter(|d| conditions.want_any(d)) {
        let campaign =
            |emit: &mut dyn FnMut(&Line) -> Result<()>| run::run(definition, &conditions, emit);
        fine &= record::write(&folder, &definition.name, campaign)?.1;
    }
    Ok(fine)
}

/// A part of a folder's name, no path.
fn name(text: &str) -> std::result::Result<String, String> {
    if text.is_empty() || text.starts_with('.') || text.contains('/') {
        return Err("it is a part of a folder's name".to_owned());
    }
    Ok(text.to_owned())
}

/// Returns the date in UTC. It names a folder and is used for nothing else.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}
