//! `tuff-lab inside`: one start, in another root. Measurements run it; it is not for users.

use tuff_lab::campaigns::start::inside;
use tuff_lab::{Error, Result};

/// Start one program as the order on standard input says, and print what came of it
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the verb.
pub(crate) fn run(_: &Args) -> Result<bool> {
    let order = serde_json::from_reader(std::io::stdin())
        .map_err(|e| Error::Usage(format!("the order cannot be read: {e}")))?;
    let started = inside::start(&order)?;
    let text = serde_json::to_string(&started);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("the start cannot be written: {e}")))?
    );
    Ok(true)
}
