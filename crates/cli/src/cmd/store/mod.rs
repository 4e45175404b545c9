//! `tuff store`: snapshots of a backup store, one verb per file.

mod check;
mod copy;
mod diff;
mod forget;
pub(super) mod key;
pub(super) mod keys;
mod list;
mod mount;
mod objects;
pub(super) mod place;
mod prune;
mod repair;
mod restore;
mod serve;
mod snapshot;
mod unpin;
mod work;

use clap::Subcommand;
use std::process::ExitCode;
use tuff_erofs::Result;

/// Use and look after the snapshots of a backup store
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
    Forget(forget::Args),
    Prune(prune::Args),
    Diff(diff::Args),
    Copy(copy::Args),
    Check(check::Args),
    Repair(repair::Args),
    Unpin(unpin::Args),
    Key(key::Args),
}

/// Runs a verb of `tuff store`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::List(args) => list::run(args),
        Verb::Mount(args) => mount::run(args),
        Verb::Restore(args) => restore::run(args),
        Verb::Forget(args) => forget::run(args),
        Verb::Prune(args) => prune::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Copy(args) => copy::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Repair(args) => repair::run(args),
        Verb::Unpin(args) => unpin::run(args),
        Verb::Key(args) => key::run(args),
    }
}
