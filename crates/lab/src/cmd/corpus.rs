//! `tuff-lab corpus`: trees to measure on.

use std::path::PathBuf;
use tuff_lab::campaigns::corpus::{Corpora, SHIPPED};
use tuff_lab::{Error, Result};

/// Make the trees to measure on, from packages of the Debian release that runs here
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to make them in
    dir: PathBuf,
    /// Only these (default: those marked usual)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Recipes (default: those that ship)
    #[arg(long, value_name = "FILE")]
    corpora: Option<PathBuf>,
    /// Say what there is, make nothing
    #[arg(long)]
    list: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let text = match &args.corpora {
        Some(path) => std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?,
        None => SHIPPED.to_owned(),
    };
    let corpora = Corpora::parse(&text)?;
    if let Some(name) = args
        .only
        .iter()
        .find(|n| !corpora.list.iter().any(|c| c.name == **n))
    {
        return Err(Error::Usage(format!(
            "there is no corpus '{name}'; --list says what there is"
        )));
    }
    for corpus in &corpora.list {
        if args.list {
            println!("{:<10} {}", corpus.name, corpus.about);
        } else if args.only.contains(&corpus.name) || (args.only.is_empty() && corpus.usual) {
            eprintln!("{}: {}", corpus.name, corpus.about);
            corpus.make(&args.dir)?;
        }
    }
    Ok(true)
}
