//! `tuff store unpin`: removes a pin.

use super::place::StoreArgs;
use std::process::ExitCode;
use tuff_erofs::Result;

/// Remove a pin of a backup store
///
/// A snapshot that is mounted has a pin, so that `tuff store prune` keeps what it names. The pin of a mount by printed commands stays
/// until it is removed. `tuff store list` shows all pins.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: StoreArgs,
    /// Name of the pin
    #[arg(value_name = "PIN")]
    pin: String,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    args.place.open(false)?.unpin(&args.pin)?;
    Ok(ExitCode::SUCCESS)
}
