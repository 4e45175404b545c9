//! `tuff-lab experiment`: the published experiments.

use std::path::PathBuf;
use tuff_lab::campaigns::experiments;
use tuff_lab::{Error, Result};

/// Run the published experiments on the flash model, in virtual time
///
/// Writes report.md, charts (SVG) and raw samples (JSON lines). Exit code 1 if a shape is not as published.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Experiments, E1 to E10 (default: all)
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Folder for the report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How large: tiny, quick, full, large
    #[arg(long, default_value = "quick", value_name = "NAME")]
    scale: String,
    /// Another definition than the one that ships
    #[arg(long, value_name = "FILE")]
    definition: Option<PathBuf>,
    /// Folder for the volumes of E10 (default: inside --out)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Another seed than the definition's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs the verb. False if a shape is not as published.
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
