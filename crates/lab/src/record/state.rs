//! State of a run in a folder: the lines of each cell, appended one by one, so that a run continues where it was stopped.

use super::{Labels, Line, encode};
use crate::{At, Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Lines of a cell.
pub(crate) struct CellState {
    path: PathBuf,
    pub(crate) lines: Vec<Line>,
}

impl CellState {
    /// Opens the state of a cell.
    pub(crate) fn open(folder: &Path, cell: &str) -> Result<CellState> {
        std::fs::create_dir_all(folder).at("create", folder)?;
        let path = folder.join(format!("{cell}.jsonl"));
        let text = match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.at("read", &path)?,
        };
        // The last line of a process that was killed may be cut off.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            let file = OpenOptions::new().write(true).open(&path);
            let cut = file.and_then(|file| file.set_len(whole as u64));
            cut.at("shorten", &path)?;
        }
        let parse = |line: &str| {
            serde_json::from_str(line)
                .map_err(|e| Error::Corrupt(format!("{}: {e}", path.display())))
        };
        let lines: Result<Vec<Line>> = text[..whole].lines().map(parse).collect();
        Ok(CellState {
            lines: lines?,
            path,
        })
    }

    /// Returns true if a way has a sample or a failure in a round.
    pub(crate) fn has(&self, cell: &Labels, round: u32) -> bool {
        self.lines.iter().any(|line| match line {
            Line::Sample(sample) => sample.cell == *cell && sample.round == round,
            // A way that fails is not tried again.
            Line::Failure(note) => note.cell == *cell,
            _ => false,
        })
    }

    /// Appends a line to the file.
    pub(crate) fn add(&mut self, line: Line) -> Result<()> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path);
        let mut file: File = file.at("open", &self.path)?;
        let text = encode(&line) + "\n";
        file.write_all(text.as_bytes()).at("write", &self.path)?;
        self.lines.push(line);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::labels;

    #[test]
    fn a_run_continues_behind_the_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let cell = labels([("way", "tuff")]);
        let other = labels([("way", "other")]);
        let mut state = CellState::open(folder.path(), "a").unwrap();
        assert!(!state.has(&cell, 1));
        state
            .add(Line::sample(cell.clone(), 1, [("start_ms", 1.0)]))
            .unwrap();
        state.add(Line::failure(other.clone(), "broken")).unwrap();
        let path = folder.path().join("a.jsonl");
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += "{\"kind\":\"samp";
        std::fs::write(&path, text).unwrap();
        let mut state = CellState::open(folder.path(), "a").unwrap();
        assert_eq!([1, 2].map(|round| state.has(&cell, round)), [true, false]);
        assert_eq!([1, 2].map(|round| state.has(&other, round)), [true, true]);
        state
            .add(Line::sample(cell.clone(), 2, [("start_ms", 2.0)]))
            .unwrap();
        let state = CellState::open(folder.path(), "a").unwrap();
        assert_eq!(state.lines.len(), 3);
        assert!(state.has(&cell, 2));
    }
}
