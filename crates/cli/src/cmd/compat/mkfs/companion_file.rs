//! Text files that accompany an image.

use std::path::Path;
use tuff_erofs::{Error, Result};
use tuff_store::{Output, Target};

/// Writes a text to `path`, atomically.
pub(super) fn write(path: &Path, text: &[u8]) -> Result<()> {
    let failed = |e| Error::io(path.display(), "cannot write", e);
    let output = Output::create(&Target::Path(path.to_owned())).map_err(failed)?;
    output.write_at(text, 0).map_err(failed)?;
    output.finish(text.len() as u64, false).map_err(failed)
}
