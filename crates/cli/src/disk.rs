//! Disks that the command writes and shows.

use crate::text::escaped_line;
use crate::units::size;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use tuff_disk::Table;

/// Disk that was written.
pub(crate) struct DiskSummary {
    /// Path of the disk.
    pub(crate) out: PathBuf,
    /// Length of the disk. Unit: bytes.
    pub(crate) len: u64,
    /// Partition table. `None` for files without one.
    pub(crate) table: Option<Table>,
    /// Files beside the image.
    pub(crate) files: Vec<PathBuf>,
    /// Fingerprint of the certificate that signed.
    pub(crate) fingerprint: Option<[u8; 32]>,
}

impl DiskSummary {
    /// Lines at the end of the summary of a build.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12} {}", escaped_line(value));
        };
        for partition in self.table.iter().flat_map(|table| &table.partitions) {
            let len = size(partition.range.end - partition.range.start);
            line(
                &format!("partition {}", partition.number),
                format!(
                    "{}, {len} at byte {}",
                    partition.name, partition.range.start
                ),
            );
        }
        for file in &self.files {
            line("file", file.display().to_string());
        }
        match &self.fingerprint {
            Some(fingerprint) => line("signed by", format!("sha256 {}", hex::encode(fingerprint))),
            None => line(
                "signed by",
                "none: --sign KEY,CERT signs the root hash".to_owned(),
            ),
        }
        if self.out != Path::new("-") {
            line(
                "disk",
                format!("{} in {}", size(self.len), self.out.display()),
            );
        }
        text
    }

    /// Value of the key `disk`.
    pub(crate) fn json(&self) -> Value {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|path| path.to_string_lossy())
            .collect();
        json!({
            "disk_bytes": self.len,
            "uuid": self.table.as_ref().map(|table| table.disk.to_string()),
            "sector_bytes": self.table.as_ref().map(|table| table.sector),
            "partitions": self.table.as_ref().map(partitions_json),
            "certificate_fingerprint": self.fingerprint.as_ref().map(hex::encode),
            "companion_files": files,
        })
    }
}

/// Formats the partitions of a table as a JSON array.
pub(crate) fn partitions_json(table: &Table) -> Value {
    let partitions = table.partitions.iter().map(|partition| {
        json!({
            "number": partition.number, "name": partition.name,
            "type": partition.kind.to_string(), "uuid": partition.id.to_string(),
            "offset": partition.range.start, "length": partition.range.end - partition.range.start,
        })
    });
    partitions.collect()
}
