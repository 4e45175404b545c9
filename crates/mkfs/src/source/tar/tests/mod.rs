//! Tests with tars assembled by hand, each read as a stream and by position with equal results.

mod archive;
mod attributes;
mod end;
mod header;
mod hostile;
mod members;
mod pax;
mod sparse;
mod tools;

use super::*;
use crate::source::{Content, DataRun, Kind, Meta};
use tuff_store::MemStore;

/// Entry with its content.
#[derive(Clone, Debug, PartialEq)]
struct ReadEntry {
    path: String,
    kind: Kind,
    meta: Meta,
    xattrs: Vec<(String, Vec<u8>)>,
    /// Content with holes filled with zeros.
    bytes: Vec<u8>,
    /// Data runs of a sparse file.
    runs: Option<Vec<(u64, u64)>>,
}

/// Maximum size of a file with holes that tests fill with zeros.
const FILL_MAX: u64 = 64 << 20;

impl ReadEntry {
    fn new(entry: Entry, stored: &[u8]) -> Self {
        let (_, runs) = entry.content.parts();
        let bytes = match (&entry.kind, runs) {
            (Kind::File { size }, Some(runs)) if *size <= FILL_MAX => fill(*size, runs, stored),
            _ => stored.to_vec(),
        };
        Self {
            path: String::from_utf8_lossy(&entry.path).into_owned(),
            kind: entry.kind,
            meta: entry.meta,
            xattrs: entry
                .xattrs
                .into_iter()
                .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), value))
                .collect(),
            bytes,
            runs: runs.map(|runs| runs.iter().map(|r| (r.file_offset, r.len)).collect()),
        }
    }
}

fn fill(size: u64, runs: &[DataRun], stored: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    let mut rest = stored;
    for run in runs {
        let (data, after) = rest.split_at(run.len as usize);
        bytes[run.file_offset as usize..][..data.len()].copy_from_slice(data);
        rest = after;
    }
    assert!(rest.is_empty(), "the runs describe all stored bytes");
    bytes
}

/// Entries of a stream up to its end or the first error.
fn by_stream(tar: &[u8]) -> (Vec<ReadEntry>, Option<SourceError>) {
    let mut reader = TarReader::new("test.tar", tar);
    let mut got = Vec::new();
    loop {
        let entry = match reader.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => return (got, None),
            Err(error) => return (got, Some(error)),
        };
        assert!(
            !matches!(entry.content.parts().0, Content::Range { .. }),
            "a stream has no positions"
        );
        let mut stored = Vec::new();
        if let Err(error) = reader.data().read_to_end(&mut stored) {
            return (got, Some(error.into()));
        }
        check(&entry, stored.len() as u64);
        got.push(ReadEntry::new(entry, &stored));
    }
}

/// Entries read by position up to the end or the first error.
fn by_position(tar: &[u8]) -> (Vec<ReadEntry>, Option<SourceError>) {
    let store = MemStore::new(tar);
    let mut got = Vec::new();
    for entry in scan_file("test.tar", &store) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return (got, Some(error)),
        };
        let mut stored = Vec::new();
        match (&entry.content, &entry.kind) {
            (Content::None, _) => {}
            (Content::Range { offset }, Kind::File { size }) => {
                stored.extend(&tar[*offset as usize..][..*size as usize]);
            }
            (Content::Sparse(sparse), _) => {
                for run in sparse.runs.iter() {
                    stored.extend(&tar[run.source_offset as usize..][..run.len as usize]);
                }
            }
            other => panic!("not readable by position: {other:?}"),
        }
        check(&entry, stored.len() as u64);
        got.push(ReadEntry::new(entry, &stored));
    }
    (got, None)
}

/// Checks the invariants of every entry.
fn check(entry: &Entry, stored: u64) {
    let path = &entry.path;
    assert!(!path.contains(&0));
    let root = path.is_empty();
    assert!(!root || entry.kind == Kind::Dir);
    for component in path.split(|&c| c == b'/') {
        assert!(root || !matches!(component, b"" | b"." | b".."));
    }
    assert!(entry.meta.mode <= 0o7777 && entry.meta.mtime_nsec < 1_000_000_000);
    assert!(entry.xattrs.is_sorted_by(|a, b| a.0 < b.0));
    let size = match entry.kind {
        Kind::File { size } => size,
        _ => 0,
    };
    match &entry.content {
        Content::None => assert_eq!((size, stored), (0, 0)),
        Content::Sparse(sparse) => {
            let runs = &sparse.runs;
            let mut end = 0;
            for run in runs.iter() {
                assert!(run.len > 0 && run.file_offset >= end);
                end = run.file_offset + run.len;
            }
            assert!(end <= size);
            assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), stored);
        }
        _ => assert_eq!(size, stored),
    }
}

/// Warnings of both readers about a valid tar.
fn warnings(tar: &[u8]) -> Vec<String> {
    let mut reader = TarReader::new("test.tar", tar);
    while reader.next_entry().unwrap().is_some() {}
    let store = MemStore::new(tar);
    let mut scan = scan_file("test.tar", &store);
    while scan.next_entry().unwrap().is_some() {}
    assert_eq!(reader.warnings(), scan.warnings());
    reader.warnings()
}

/// Reads a valid tar both ways.
fn read(tar: &[u8]) -> Vec<ReadEntry> {
    let (got, error) = by_stream(tar);
    assert!(error.is_none(), "{error:?}");
    let (by_position, error) = by_position(tar);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(got, by_position, "both ways of reading agree");
    got
}

/// Reads an invalid tar both ways and returns the error.
fn fails(tar: &[u8]) -> SourceError {
    let (_, stream) = by_stream(tar);
    let (_, position) = by_position(tar);
    let (stream, position) = (stream.expect("an error"), position.expect("an error"));
    assert_eq!(stream.to_string(), position.to_string());
    assert_eq!(stream.kind(), position.kind());
    stream
}

fn one(tar: &[u8]) -> ReadEntry {
    let mut got = read(tar);
    assert_eq!(got.len(), 1);
    got.remove(0)
}

fn paths(tar: &[u8]) -> Vec<String> {
    read(tar).into_iter().map(|got| got.path).collect()
}
