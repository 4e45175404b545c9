//! Records: JSON lines with a `kind` field, in one format for all campaigns.
//!
//! The first line is a header with the version of the format and the machine. Every other line is
//! self-contained: a result, a failure, or the description of an item that results refer to by
//! name.
//!
//! Invariants: a file is written once, never appended to or replaced; every attempt adds a line; no
//! line contains a path of the machine, a time of day, or the name of a person.

mod rows;
pub(crate) mod state;

pub use rows::{Bar, FORMAT, Header, Labels, Line, Note, Record, Sample, labels};

use crate::{At, Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a record line by line, so that an interrupted campaign keeps its results. The file is created with the first result.
#[derive(Debug)]
pub struct RecordWriter {
    folder: PathBuf,
    name: String,
    /// Lines before the first result.
    pending: String,
    file: Option<(PathBuf, File)>,
}

impl RecordWriter {
    /// Returns a writer of `folder/NAME.jsonl`, or the first free name of `NAME-2.jsonl`, `NAME-3.jsonl` and so on.
    pub fn new(folder: &Path, name: &str) -> RecordWriter {
        RecordWriter {
            folder: folder.to_owned(),
            name: name.to_owned(),
            pending: String::new(),
            file: None,
        }
    }

    /// Returns the path of the record. None if it has no result.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// Appends a line to the record.
    pub fn write(&mut self, line: &Line) -> Result<()> {
        self.pending += &(encode(line) + "\n");
        if self.file.is_none() && line.is_result() {
            self.file = Some(self.create()?);
        }
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let text = std::mem::take(&mut self.pending);
        file.write_all(text.as_bytes()).at("write", path)
    }

    fn create(&self) -> Result<(PathBuf, File)> {
        let folder = &self.folder;
        std::fs::create_dir_all(folder).at("create", folder)?;
        let mut number = 1;
        loop {
            let suffix = match number {
                1 => String::new(),
                _ => format!("-{number}"),
            };
            let path = folder.join(format!("{}{suffix}.jsonl", self.name));
            match File::create_new(&path) {
                Ok(file) => {
                    eprintln!("record: {}", path.display());
                    return Ok((path, file));
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
    }
}

/// Returns a line as JSON, without a line feed.
pub fn encode(line: &Line) -> String {
    serde_json::to_string(line)
        .expect("cannot fail: keys are strings and writing to memory is infallible")
}

/// Parses the text of a record. Errors name the line.
pub fn decode(text: &str) -> Result<Vec<Line>> {
    let corrupt =
        |number: usize, reason: String| Error::Corrupt(format!("line {number}: {reason}"));
    let mut lines: Vec<Line> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if !line.trim().is_empty() {
            lines.push(serde_json::from_str(line).map_err(|e| corrupt(i + 1, e.to_string()))?);
        }
    }
    match lines.first() {
        Some(Line::Header(header)) if header.format == FORMAT => Ok(lines),
        Some(Line::Header(header)) => {
            let found = header.format;
            Err(corrupt(1, format!("format {found}, expected {FORMAT}")))
        }
        _ => Err(corrupt(1, "not a header".to_owned())),
    }
}

impl Record {
    /// Reads record files, or folders of them, all of one campaign.
    pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Record> {
        let mut lines = Vec::new();
        for path in paths {
            for file in files(path.as_ref())? {
                lines.extend(read(&file)?);
            }
        }
        Record::collect(lines)
    }
}

/// Reads a record file. Errors name the file and the line.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    decode(&text).map_err(|e| match e {
        Error::Corrupt(reason) => Error::Corrupt(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// Returns a record file itself, or all record files of a folder in order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).at("list", path)? {
        let entry = entry.at("list", path)?.path();
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
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        let note = || Note {
            cell: labels([("tool", "tuff")]),
            text: "a note".to_owned(),
        };
        let sample = || Sample {
            cell: labels([("tool", "tuff")]),
            round: 1,
            values: [("wall_ns".to_owned(), 1.5)].into(),
        };
        let bar = |against| Bar {
            cell: labels([("tool", "tuff")]),
            value: "wall_ns".to_owned(),
            against,
            at_most: Some(1.0),
            at_least: None,
        };
        vec![
            Line::Header(Header::here("test", [("seed", "1".to_owned())]).unwrap()),
            Line::Bar(bar(Some(labels([("tool", "mkfs.erofs")])))),
            Line::Bar(bar(None)),
            Line::Note(note()),
            Line::Rejected(sample()),
            Line::Sample(sample()),
            Line::Failure(note()),
        ]
    }

    #[test]
    fn every_kind_of_line_survives_the_round_trip() {
        let text: String = lines().iter().map(|l| encode(l) + "\n").collect();
        assert_eq!(decode(&text).unwrap(), lines());
        assert_eq!(
            encode(&lines()[5]),
            r#"{"kind":"sample","cell":{"tool":"tuff"},"round":1,"values":{"wall_ns":1.5}}"#
        );
    }

    #[test]
    fn a_broken_record_is_named_by_its_line() {
        let header = encode(&lines()[0]);
        let error = |text: &str| decode(text).unwrap_err().to_string();
        assert!(
            error(&format!("{header}\n{{\"kind\":\"sampl")).starts_with("corrupt record: line 2:")
        );
        assert_eq!(error(""), "corrupt record: line 1: not a header");
        let other = header.replacen("\"format\":2", "\"format\":9", 1);
        assert_eq!(
            error(&other),
            "corrupt record: line 1: format 9, expected 2"
        );
    }

    #[test]
    fn a_record_never_replaces_another_and_exists_only_with_results() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["build.jsonl", "build-2.jsonl"] {
            let mut writer = RecordWriter::new(folder.path(), "build");
            writer.write(&lines()[0]).unwrap();
            assert_eq!(writer.path(), None);
            writer.write(&lines()[5]).unwrap();
            assert_eq!(writer.path(), Some(&*folder.path().join(name)));
        }
        let record = Record::read(&[folder.path()]).unwrap();
        assert_eq!((record.headers.len(), record.samples.len()), (2, 2));
    }
}
