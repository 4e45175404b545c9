//! Steps common to all commands with a record: write it and print its tables.

use std::path::{Path, PathBuf};
use tuff_lab::record::{Line, Record, RecordWriter};
use tuff_lab::{Error, Result};

/// Runs a campaign and writes its record. Returns the path of the record and the result of the
/// campaign.
pub(crate) fn write<T>(
    folder: &Path,
    name: &str,
    campaign: impl FnOnce(&mut dyn FnMut(&Line) -> Result<()>) -> Result<T>,
) -> Result<(PathBuf, T)> {
    let mut writer = RecordWriter::create(folder, name)?;
    eprintln!("record: {}", writer.path().display());
    let result = campaign(&mut |line| writer.write(line));
    let path = writer.finish();
    let result = result?;
    let path = path.ok_or_else(|| {
        Error::Usage("nothing to do: no measurement matches the given filters".to_owned())
    })?;
    Ok((path, result))
}

/// Prints the tables of a record.
pub(crate) fn report(record: &Path) -> Result<()> {
    print!(
        "{}",
        tuff_lab::campaigns::report(&Record::read(&[record])?)?
    );
    Ok(())
}
