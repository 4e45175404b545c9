//! Steps common to all commands with a record: write it, write its reports, fill a block of a
//! document.

use std::path::{Path, PathBuf};
use tuff_lab::record::{Record, RecordLine, RecordWriter};
use tuff_lab::report::document;
use tuff_lab::{Error, Result};

/// Generated block of a document.
#[derive(clap::Args)]
pub(crate) struct Block {
    /// Insert a short table of the record into this document, between <!-- lab:begin BLOCK --> and
    /// <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires_all = ["block", "from"])]
    readme: Option<PathBuf>,
    /// Name of the block in the document
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
}

impl Block {
    /// Returns true if a block was requested.
    pub(crate) fn is_requested(&self) -> bool {
        self.readme.is_some()
    }

    /// Fills the block, if one was requested, with `table` and the command that makes it from `records`.
    pub(crate) fn fill(&self, verb: &str, records: &[PathBuf], table: &str) -> Result<()> {
        let (Some(readme), Some(block)) = (&self.readme, &self.block) else {
            return Ok(());
        };
        let from = records.iter().map(|r| format!("--from {} ", r.display()));
        let (from, document) = (from.collect::<String>(), readme.display());
        let command = format!("tuff-lab {verb} {from}--readme {document} --block {block}");
        document::fill(readme, block, table, &command)
    }
}

/// Runs a campaign and writes its record. Returns the path of the record and the result of the
/// campaign.
pub(crate) fn write<L: RecordLine, T>(
    folder: &Path,
    name: &str,
    campaign: impl FnOnce(&mut dyn FnMut(&L) -> Result<()>) -> Result<T>,
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

/// Writes `text` to a file with the name of the record and another extension.
pub(crate) fn write_beside(record: &Path, extension: &str, text: &str) -> Result<()> {
    let path = record.with_extension(extension);
    std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
}

/// Prints the tables of a record.
pub(crate) fn report(record: &Path) -> Result<()> {
    print!(
        "{}",
        tuff_lab::campaigns::report(&Record::read(&[record])?)?
    );
    Ok(())
}
