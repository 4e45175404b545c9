//! `tuff-lab experiment`: reproduces the published experiments.

use std::path::PathBuf;
use tuff_lab::campaigns::experiments;
use tuff_lab::{Error, Result};

/// Run the published experiments on the flash model, in virtual time
///
/// Writes report.md, charts (SVG) and raw samples (JSON lines). Exit code 1 if a result violates
/// its limit.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Experiments, E1 to E10 (default: all)
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Folder for the report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Scale of the experiments: tiny, quick, full, large
    #[arg(long, default_value = "quick", value_name = "NAME")]
    scale: String,
    /// Definition file (default: the built-in definition)
    #[arg(long, value_name = "FILE")]
    definition: Option<PathBuf>,
    /// Folder for the volumes of E10 (default: inside --out)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Seed of the random numbers (default: that of the definition)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
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
    let ids: Vec<String> = args.ids.iter().map(|id| id.to_uppercase()).collect();
    let work = args.work.clone().unwrap_or_else(|| args.out.join("work"));
    let outcomes = experiments::run(&definition, &ids, &args.scale, &args.out, &work, &mut |o| {
        print!("{}", experiments::markdown(o));
    })?;
    Ok(outcomes.iter().all(|o| o.passed()))
}
