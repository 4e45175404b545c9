//! `tuff-lab corpus`: creates the trees used in measurements.

use std::path::PathBuf;
use tuff_lab::campaigns::corpus::{Corpora, SHIPPED};
use tuff_lab::{Error, Result};

/// Create trees to measure on, from packages of the running Debian release
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for the trees
    dir: PathBuf,
    /// Create only these trees (default: those marked as usual)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// File with recipes (default: the built-in recipes)
    #[arg(long, value_name = "FILE")]
    corpora: Option<PathBuf>,
    /// List the available trees and exit
    #[arg(long)]
    list: bool,
}

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
            "corpus '{name}' does not exist; --list shows the available ones"
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
