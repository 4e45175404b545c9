//! `tuff-lab experiment`: reproduces the published experiments.

use super::record;
use std::path::PathBuf;
use tuff_lab::campaigns::experiments;
use tuff_lab::{Error, Result};

/// Run the published experiments on the flash model, in virtual time
///
/// Each experiment adds its figures, charts and raw samples to a record when it ends, so an interrupted
/// run keeps those before. Prints the record's tables. Exit code 1 if a result violates its limit.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Experiments, E1 to E10 (default: all)
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Scale of the experiments: tiny, quick, full, large
    #[arg(long, default_value = "quick", value_name = "NAME")]
    scale: String,
    /// Definition file (default: the built-in definition)
    #[arg(long, value_name = "FILE")]
    definition: Option<PathBuf>,
    /// Folder for the volumes of E10
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Seed of the random numbers (default: that of the definition)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Folder for the record
    #[arg(
        long,
        default_value = "benchmarks/record/experiment",
        value_name = "DIR"
    )]
    records: PathBuf,
}

/// Runs the command. Returns false if a result violates its limit.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let (name, text) = match &args.definition {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
            (path.display().to_string(), text)
        }
        None => (
            "the definition".to_owned(),
            experiments::PUBLISHED.to_owned(),
        ),
    };
    let mut definition = experiments::parse(&name, &text)?;
    definition.seed = args.seed.unwrap_or(definition.seed);
    let conditions = experiments::Conditions {
        definition,
        only: args.ids.iter().map(|id| id.to_uppercase()).collect(),
        scale: args.scale.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let (path, passed) = record::write(&args.records, "experiment", |emit| {
        experiments::run(&conditions, emit)
    })?;
    record::report(&path)?;
    Ok(passed)
}
