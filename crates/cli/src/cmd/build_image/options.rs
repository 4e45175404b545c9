//! Converts arguments to the options of the library.

use super::args::Args;
use tuff_erofs::{Error, Result};
use tuff_mkfs::{LeftOut, Options};

/// Returns the options of the library, for `--kernel` or the oldest kernel that supports the other options.
pub(super) fn options(args: &Args) -> Result<Options> {
    let mut options = args.settings.options()?;
    if !args.settings.has("timestamp") && !args.settings.has("clamp-mtime") {
        options.metadata.clamp = source_date_epoch()?;
    }
    options.sources.keep_going = args.keep_going.then(LeftOut::default);
    Ok(options)
}

/// Returns the time of SOURCE_DATE_EPOCH. An empty variable counts as unset.
pub(crate) fn source_date_epoch() -> Result<Option<i64>> {
    let value = std::env::var_os("SOURCE_DATE_EPOCH").filter(|value| !value.is_empty());
    let Some(value) = value else {
        return Ok(None);
    };
    let parsed = value.to_str().and_then(|v| v.trim().parse().ok());
    let shown = value.to_string_lossy();
    parsed.map(Some).ok_or_else(|| {
        Error::usage(format_args!(
            "SOURCE_DATE_EPOCH is '{shown}', not a number of seconds"
        ))
    })
}
