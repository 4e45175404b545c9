//! `tuff store unpin`: removes a pin.

use super::place;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::Result;

/// Remove a pin of a backup store
///
/// A snapshot that is mounted has a pin, so that `tuff store prune` keeps what it names. The pin of a mount by printed commands stays
/// until it is removed. `tuff store list` shows all pins.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the store, or s3://BUCKET/PREFIX
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// Name of the pin
    #[arg(value_name = "PIN")]
    pin: String,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    place::open(&args.store, false)?.unpin(&args.pin)?;
    Ok(ExitCode::SUCCESS)
}
