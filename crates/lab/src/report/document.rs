//! Generated blocks of documents, delimited by marker lines.

use crate::{Error, Result};
use std::path::{Component, Path, PathBuf};

/// Document with a replaced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spliced {
    /// Text of the whole document.
    pub text: String,
    /// True if the block differs from the previous one.
    pub changed: bool,
}

/// Replaces the text between `<!-- lab:begin NAME -->` and `<!-- lab:end NAME -->`. Both markers
/// must occur exactly once, each on its own line, in this order.
pub fn splice(document: &str, name: &str, block: &str) -> Result<Spliced> {
    let begin = marker(document, &format!("<!-- lab:begin {name} -->"))?;
    let end = marker(document, &format!("<!-- lab:end {name} -->"))?;
    if end.start < begin.end {
        return Err(Error::Usage(format!(
            "block '{name}' ends before it begins"
        )));
    }
    let text = format!(
        "{}\n{}\n{}",
        document[..begin.end].trim_end(),
        block.trim_end(),
        &document[end.start..]
    );
    let changed = text != document;
    Ok(Spliced { text, changed })
}

fn marker(document: &str, marker: &str) -> Result<std::ops::Range<usize>> {
    let mut found = None;
    let mut at = 0;
    for line in document.split_inclusive('\n') {
        if line.trim() == marker {
            if found.is_some() {
                return Err(Error::Usage(format!("the line '{marker}' occurs twice")));
            }
            found = Some(at..at + line.len());
        }
        at += line.len();
    }
    found.ok_or_else(|| Error::Usage(format!("the line '{marker}' is missing")))
}

/// Returns the command that generates a block. Paths are relative to the root of the project, or to
/// the innermost folder that contains the document and all records. The text is thus independent of
/// the location of the project.
pub fn block_command(document: &Path, records: &[PathBuf], name: &str) -> String {
    let document = absolute(document);
    let records: Vec<PathBuf> = records.iter().map(|r| absolute(r)).collect();
    let holds_all = |folder: &&Path| records.iter().all(|r| r.starts_with(folder));
    let folders = || document.ancestors().skip(1).filter(holds_all);
    let project = folders().find(|folder| folder.join("Cargo.lock").exists());
    // The root directory contains every path, so a folder is always found.
    let folder = project.or_else(|| folders().next());
    let folder = folder.unwrap_or(Path::new("/"));
    let relative = |path: &Path| {
        let inside = path.strip_prefix(folder).unwrap_or(path);
        inside.display().to_string()
    };
    let mut words = vec!["tuff-lab report".to_owned()];
    words.push(format!("--readme {} --block {name}", relative(&document)));
    words.extend(records.iter().map(|r| relative(r)));
    words.join(" ")
}

/// Returns an absolute path without resolving symbolic links, as a record may be one.
fn absolute(path: &Path) -> PathBuf {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    full.components()
        .filter(|c| *c != Component::CurDir)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# T\n\n<!-- lab:begin x -->\nold\n<!-- lab:end x -->\n\nrest\n";

    #[test]
    fn only_the_block_is_replaced() {
        let spliced = splice(DOCUMENT, "x", "new\nlines\n\n").unwrap();
        let expected = "# T\n\n<!-- lab:begin x -->\nnew\nlines\n<!-- lab:end x -->\n\nrest\n";
        assert_eq!((spliced.text.as_str(), spliced.changed), (expected, true));
        assert!(!splice(expected, "x", "new\nlines").unwrap().changed);
    }

    #[test]
    fn markers_must_occur_once_and_in_order() {
        for (document, expected) in [
            ("text\n".to_owned(), "begin x -->' is missing"),
            ("<!-- lab:begin x -->\n".to_owned(), "end x -->' is missing"),
            (
                "<!-- lab:end x -->\n<!-- lab:begin x -->\n".to_owned(),
                "ends before it begins",
            ),
            (format!("{DOCUMENT}{DOCUMENT}"), "begin x -->' occurs twice"),
        ] {
            let error = splice(&document, "x", "").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_command_of_a_block_has_paths_relative_to_the_project() {
        let command = block_command(
            Path::new("/p/README.md"),
            &["/p/benchmarks/record/a".into(), "/p/./b.jsonl".into()],
            "images",
        );
        assert_eq!(
            command,
            "tuff-lab report --readme README.md --block images benchmarks/record/a b.jsonl"
        );
        let command = block_command(
            Path::new("/p/docs/figures.md"),
            &["/p/benchmarks/record/a".into()],
            "images",
        );
        assert_eq!(
            command,
            "tuff-lab report --readme docs/figures.md --block images benchmarks/record/a"
        );
    }
}
