//! `tuff volume`: IPLFS volumes, one verb per file.

mod branch;
mod check;
mod create;
mod export;
mod failure;
mod fork;
mod import;
mod live;
mod mount;
mod open;
mod quota;
mod receive;
mod remount;
mod send;
mod snapshot;
mod stat;
mod sync;
mod tar;
mod trim;
mod watched;

use clap::Subcommand;
use failure::{Failure, advice};
use std::process::ExitCode;

/// Create, mount, check and replicate writable IPLFS volumes
///
/// A volume is a log-structured filesystem that returns free space to its host. It lies in a directory of sparse zone files,
/// in one sparse file, or on a block device. A verb locks the volume while it runs.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Create(create::Args),
    Check(check::Args),
    Stat(stat::Args),
    Trim(trim::Args),
    Sync(sync::Args),
    Mount(mount::Args),
    Quota(quota::Args),
    Export(export::Args),
    Import(import::Args),
    Send(send::Args),
    Receive(receive::Args),
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    Fork(fork::Args),
    #[command(subcommand)]
    Branch(branch::Verb),
}

/// Runs a verb of `tuff volume`, and maps its errors to exit codes.
pub(crate) fn run(args: &Args) -> tuff_erofs::Result<ExitCode> {
    let result = match &args.verb {
        Verb::Create(args) => create::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Stat(args) => stat::run(args),
        Verb::Trim(args) => trim::run(args),
        Verb::Sync(args) => sync::run(args),
        Verb::Mount(args) => mount::run(args),
        Verb::Quota(args) => quota::run(args),
        Verb::Export(args) => export::run(args),
        Verb::Import(args) => import::run(args),
        Verb::Send(args) => send::run(args),
        Verb::Receive(args) => receive::run(args),
        Verb::Snapshot(verb) => snapshot::run(verb),
        Verb::Fork(args) => fork::run(args),
        Verb::Branch(verb) => branch::run(verb),
    };
    let advice = result.as_ref().err().and_then(advice);
    let (code, what) = match result {
        Ok(code) => return Ok(code),
        Err(Failure::Other(e)) => return Err(e),
        Err(Failure::Usage(what)) => (2, what),
        Err(Failure::Host(place, e)) => (5, format!("{place}: {e}")),
        Err(Failure::Volume(place, e)) => (e.exit_code(), format!("{place}: {e}")),
    };
    let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
    eprintln!("tuff: {what}{advice}");
    Ok(ExitCode::from(code))
}
