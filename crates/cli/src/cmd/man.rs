//! `tuff man`: the manual pages.

use clap::CommandFactory;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};

/// Write the manual pages to a directory.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory; made if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.dir)
        .map_err(|e| Error::io(args.dir.display(), "cannot make the directory", e))?;
    let command = crate::Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir)
        .map_err(|e| Error::io(args.dir.display(), "cannot write the pages", e))?;
    Ok(ExitCode::SUCCESS)
}
