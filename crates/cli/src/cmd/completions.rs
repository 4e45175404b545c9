//! `tuff completions`: completion scripts for shells.

use crate::out::Out;
use clap::Command;
use clap_complete::Shell;
use std::process::ExitCode;
use tuff_erofs::Result;

/// Print the completion script of a shell
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shell to complete in
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tuff", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}
