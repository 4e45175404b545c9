//! `tuff completions`: what a shell completes.

use crate::out::Out;
use clap::CommandFactory;
use clap_complete::Shell;
use std::process::ExitCode;
use tuff_erofs::Result;

/// Print the completions for a shell.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "tuff", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}
