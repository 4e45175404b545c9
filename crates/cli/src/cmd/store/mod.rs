//! `tuff store`: snapshots of a backup store, one verb per file.

mod check;
mod diff;
mod list;
mod mount;
mod restore;
mod snapshot;

use clap::Subcommand;
use std::process::ExitCode;
use tuff_erofs::Result;

/// List, mount, restore, compare and check backups
///
/// `tuff backup` makes stores and snapshots.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(list::Args),
    Mount(mount::Args),
    Restore(restore::Args),
    Diff(diff::Args),
    Check(check::Args),
}

/// Runs a verb of `tuff store`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::List(args) => list::run(args),
        Verb::Mount(args) => mount::run(args),
        Verb::Restore(args) => restore::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Check(args) => check::run(args),
    }
}
