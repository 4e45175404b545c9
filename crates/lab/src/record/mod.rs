//! Records: JSON lines with a `kind` field, in one format for all campaigns.
//!
//! The first line is a header with the version of the format and the machine. Every other line is
//! self-contained: a result, a failure, or the description of an item that results refer to by
//! name. Each campaign defines its lines as one enum.
//!
//! Invariants: a file is written once, never appended to or replaced; every attempt adds a line; no
//! line contains a path of the machine, a time of day, or the name of a person.

mod rows;

pub use rows::{Bar, Header, Labels, Line, Note, Record, Sample, labels};

use crate::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Version of the record format, increased by incompatible changes.
pub const FORMAT: u32 = 1;

/// Line of a campaign's record.
pub trait RecordLine: Serialize + DeserializeOwned {
    /// Version of the format of these lines.
    const FORMAT: u32 = FORMAT;

    /// Returns the version that a header states, or `None` for another line.
    fn format(&self) -> Option<u32>;

    /// Returns true for a measurement or a failure. A record without one is removed.
    fn is_result(&self) -> bool;
}

/// Writes a record line by line, so that an interrupted campaign keeps its results.
#[derive(Debug)]
pub struct RecordWriter {
    path: PathBuf,
    file: BufWriter<File>,
    has_results: bool,
}

impl RecordWriter {
    /// Creates `folder/NAME.jsonl`, or the first free name of `NAME-2.jsonl`, `NAME-3.jsonl` and so on.
    pub fn create(folder: &Path, name: &str) -> Result<RecordWriter> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
        let mut number = 1;
        loop {
            let suffix = match number {
                1 => String::new(),
                _ => format!("-{number}"),
            };
            let path = folder.join(format!("{name}{suffix}.jsonl"));
            match File::create_new(&path) {
                Ok(file) => {
                    let (file, has_results) = (BufWriter::new(file), false);
                    return Ok(RecordWriter {
                        path,
                        file,
                        has_results,
                    });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
    }

    /// Returns the path of the record.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line to the record.
    pub fn write(&mut self, line: &impl RecordLine) -> Result<()> {
        self.has_results |= line.is_result();
        let written = writeln!(self.file, "{}", encode(line)).and_then(|()| self.file.flush());
        written.map_err(|e| Error::io("write", &self.path, e))
    }

    /// Closes the record and returns its path. Removes a record without results, and its folder if that becomes empty, and returns `None`.
    pub fn finish(self) -> Option<PathBuf> {
        if self.has_results {
            return Some(self.path);
        }
        // A file that cannot be removed is harmless: it has no samples.
        let _ = std::fs::remove_file(&self.path);
        if let Some(folder) = self.path.parent() {
            let _ = std::fs::remove_dir(folder);
        }
        None
    }
}

/// Returns a line as JSON, without a line feed.
pub fn encode(line: &impl RecordLine) -> String {
    serde_json::to_string(line)
        .expect("cannot fail: keys are strings and writing to memory is infallible")
}

/// Parses the text of a record. Errors name the line.
pub fn decode<L: RecordLine>(text: &str) -> Result<Vec<L>> {
    let corrupt =
        |number: usize, reason: String| Error::Corrupt(format!("line {number}: {reason}"));
    let mut lines: Vec<L> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if !line.trim().is_empty() {
            lines.push(serde_json::from_str(line).map_err(|e| corrupt(i + 1, e.to_string()))?);
        }
    }
    match lines.first().map(L::format) {
        Some(Some(found)) if found == L::FORMAT => Ok(lines),
        Some(Some(found)) => {
            let expected = L::FORMAT;
            Err(corrupt(1, format!("format {found}, expected {expected}")))
        }
        _ => Err(corrupt(1, "not a header".to_owned())),
    }
}

/// Reads a record file. Errors name the file and the line.
pub fn read<L: RecordLine>(path: &Path) -> Result<Vec<L>> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    decode(&text).map_err(|e| match e {
        Error::Corrupt(reason) => Error::Corrupt(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// Reads a record file, or all record files of a folder in order of their names.
pub fn read_all<L: RecordLine>(path: &Path) -> Result<Vec<Vec<L>>> {
    if !path.is_dir() {
        return Ok(vec![read(path)?]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| Error::io("list", path, e))? {
        let entry = entry.map_err(|e| Error::io("list", path, e))?.path();
        if entry.extension().is_some_and(|e| e == "jsonl") {
            files.push(entry);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Error::Usage(format!(
            "{}: contains no records (*.jsonl)",
            path.display()
        )));
    }
    files.iter().map(|file| read(file)).collect()
}
