//! `tuff-lab run`: what definitions ask for, kept as a record.

use super::how::How;
use std::path::PathBuf;
use tuff_lab::define::Definition;
use tuff_lab::record::RecordWriter;
use tuff_lab::{Result, machine, run};

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
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: Option<String>,
    /// Machine in the folder's name (default: the host's name)
    #[arg(long, value_name = "NAME")]
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
    let mut fine = true;
    for definition in &definitions {
        let mut writer = RecordWriter::create(&folder, &definition.name)?;
        eprintln!("record: {}", writer.path().display());
        fine &= run::run(definition, &conditions, &mut |line| writer.write(line))?;
    }
    Ok(fine)
}

/// The clock is asked for the name of a folder, and for nothing else.
fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    machine::date(now.map_or(0, |d| d.as_secs()))
}
