//! `tuff-lab run`: what definitions ask for, kept as a record.

use super::how::How;
use std::path::PathBuf;
use tuff_lab::define::Definition;
use tuff_lab::record::{Line, RecordWriter};
use tuff_lab::{Error, Result, machine, run};

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
    how: How,
}

/// Runs the verb. False if our own tool failed or was wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let definitions: Vec<Definition> = args
        .definitions
        .iter()
        .map(|d| Definition::read(d))
        .collect::<Result<_>>()?;
    let mut conditions = args.how.conditions()?;
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
        let mut writer = RecordWriter::create(&folder, &definition.name)?;
        eprintln!("record: {}", writer.path().display());
        let mut measured = false;
        let done = run::run(definition, &conditions, &mut |line| {
            measured |= matches!(line, Line::Sample(_) | Line::Failed(_));
            writer.write(line)
        });
        if done.is_err() && !measured {
            writer.give_up();
        }
        fine &= done?;
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

/// The clock is asked for the name of a folder, and for nothing else.
fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    machine::date(now.map_or(0, |d| d.as_secs()))
}
