//! Lists, tables and profiles in files.

use crate::{Error, Result};
use std::io::Read;
use std::path::Path;
use tuff_store::open_text;

/// Largest list, table or profile. Unit: bytes.
const TEXT_MAX: u64 = 1 << 28;

/// Reads a list, table or profile.
///
/// # Errors
/// `Io` if the file cannot be read, `Usage` for one that is too long.
pub fn read_text(file: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::io(file.display(), "cannot read", e);
    let open = open_text(file).map_err(failed)?;
    let mut text = Vec::new();
    let length = open.take(TEXT_MAX + 1).read_to_end(&mut text);
    if length.map_err(failed)? as u64 > TEXT_MAX {
        let name = file.display();
        return Err(Error::usage(format_args!(
            "{name}: is longer than {TEXT_MAX} bytes, which no list of paths is"
        )));
    }
    Ok(text)
}

/// Returns the lines of a list, without comments.
pub(crate) fn lines(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let is_used = |line: &&str| !line.is_empty() && !line.starts_with('#');
    text.lines().filter(is_used).map(str::to_owned).collect()
}
