//! Maps of sparse files: the runs that a member stores.
//!
//! There are four encodings of the same list:
//!
//! * GNU's old headers (type `S`), decoded in [`super::header`].
//! * PAX version 0.0: repeated `GNU.sparse.offset` and `GNU.sparse.numbytes`.
//! * PAX version 0.1: `GNU.sparse.map`.
//! * PAX version 1.0: text before the member's data, padded to a block.
//!
//! Every list is validated by [`checked`] before it is used.
//!
//! Source: GNU tar manual, "Storing Sparse Files".

use super::super::error::{Quoted, SourceError};
use super::super::text::decimal;

/// Maximum number of runs, which are held in memory.
pub(super) const SPARSE_RUNS_MAX: usize = 1 << 20;

/// Run of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SparseRun {
    /// Position in the file. Unit: bytes.
    pub(super) offset: u64,
    /// Length of the run. Unit: bytes.
    pub(super) len: u64,
}

/// Validates a list against the file size and the number of stored bytes, and drops empty runs.
///
/// Afterwards runs are ascending and disjoint, end within the file, and their lengths add up to
/// `stored`.
pub(super) fn checked(
    runs: Vec<SparseRun>,
    real_size: u64,
    stored: u64,
) -> Result<Vec<SparseRun>, SourceError> {
    let mut end = 0u64;
    let mut sum = 0u64;
    for (index, run) in runs.iter().enumerate() {
        if run.offset < end {
            return Err(SourceError::corrupt(format!(
                "sparse map entry {index}: offset {}, expected at least {end}",
                run.offset
            )));
        }
        end = run
            .offset
            .checked_add(run.len)
            .filter(|&end| end <= real_size)
            .ok_or_else(|| {
                SourceError::corrupt(format!(
                    "sparse map entry {index}: offset {} and length {} reach beyond the file's {real_size} bytes",
                    run.offset, run.len
                ))
            })?;
        // Cannot overflow: the runs are disjoint within `real_size`.
        sum += run.len;
    }
    if sum != stored {
        return Err(SourceError::corrupt(format!(
            "sparse map describes {sum} bytes, but {stored} are stored"
        )));
    }
    let mut runs = runs;
    runs.retain(|run| run.len > 0);
    Ok(runs)
}

/// Fails if there are too many runs.
pub(super) fn within_limit(runs: usize) -> Result<(), SourceError> {
    if runs > SPARSE_RUNS_MAX {
        return Err(SourceError::limit(format!(
            "sparse map has more than {SPARSE_RUNS_MAX} entries"
        )));
    }
    Ok(())
}

/// Sparse records of an extended header.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseRecords {
    used: bool,
    major: Option<u64>,
    minor: Option<u64>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    blocks: Option<u64>,
    pending_offset: Option<u64>,
    runs: Vec<SparseRun>,
}

/// Location of the list of runs.
#[derive(Debug, PartialEq)]
pub(super) enum SparseMap {
    /// The list is in the extended header.
    Listed {
        /// File size including holes. Unit: bytes.
        real_size: u64,
        /// List that is not validated yet.
        runs: Vec<SparseRun>,
    },
    /// The list precedes the member's data.
    InData {
        /// File size including holes. Unit: bytes.
        real_size: u64,
    },
}

impl SparseRecords {
    /// Adds the record `GNU.sparse.<key>`. Unknown keys are ignored.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), SourceError> {
        let number = || {
            decimal(value).ok_or_else(|| {
                SourceError::corrupt(format!(
                    "GNU.sparse.{} is {}, expected a decimal number",
                    key.escape_ascii(),
                    Quoted(value)
                ))
            })
        };
        match key {
            b"major" => self.major = Some(number()?),
            b"minor" => self.minor = Some(number()?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number()?),
            b"numblocks" => self.blocks = Some(number()?),
            b"offset" => {
                if self.pending_offset.replace(number()?).is_some() {
                    return Err(SourceError::corrupt(
                        "GNU.sparse.offset follows another without a GNU.sparse.numbytes between them",
                    ));
                }
            }
            b"numbytes" => {
                let offset = self.pending_offset.take().ok_or_else(|| {
                    SourceError::corrupt("GNU.sparse.numbytes without a GNU.sparse.offset before")
                })?;
                within_limit(self.runs.len() + 1)?;
                self.runs.push(SparseRun {
                    offset,
                    len: number()?,
                });
            }
            b"map" => self.runs = parse_map(value)?,
            _ => return Ok(()),
        }
        self.used = true;
        Ok(())
    }

    /// True if there was any record.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// Real name of the file, if the name in the header is artificial.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// Combines all records. `None` if the file has no holes.
    pub(super) fn plan(self) -> Result<Option<SparseMap>, SourceError> {
        if !self.used {
            return Ok(None);
        }
        let real_size = self
            .size
            .ok_or_else(|| SourceError::corrupt("sparse file without GNU.sparse.realsize"))?;
        match (self.major.unwrap_or(0), self.minor.unwrap_or(0)) {
            (1, 0) => return Ok(Some(SparseMap::InData { real_size })),
            (0, 0 | 1) => {}
            (major, minor) => {
                return Err(SourceError::unsupported(format!(
                    "GNU sparse format {major}.{minor} is not known, only 0.0, 0.1 and 1.0"
                )));
            }
        }
        if self.pending_offset.is_some() {
            return Err(SourceError::corrupt(
                "GNU.sparse.offset without a GNU.sparse.numbytes after it",
            ));
        }
        if let Some(blocks) = self.blocks
            && blocks != self.runs.len() as u64
        {
            return Err(SourceError::corrupt(format!(
                "GNU.sparse.numblocks is {blocks}, but the map has {} entries",
                self.runs.len()
            )));
        }
        Ok(Some(SparseMap::Listed {
            real_size,
            runs: self.runs,
        }))
    }
}

/// Parses a map of the form `offset,length,offset,length,...`.
fn parse_map(value: &[u8]) -> Result<Vec<SparseRun>, SourceError> {
    let mut runs = Vec::new();
    if value.is_empty() {
        return Ok(runs);
    }
    let mut numbers = value.split(|&c| c == b',').map(|text| {
        decimal(text).ok_or_else(|| {
            SourceError::corrupt(format!(
                "GNU.sparse.map contains {}, expected a decimal number",
                Quoted(text)
            ))
        })
    });
    while let Some(offset) = numbers.next() {
        let len = numbers
            .next()
            .ok_or_else(|| SourceError::corrupt("GNU.sparse.map ends after an offset"))?;
        within_limit(runs.len() + 1)?;
        runs.push(SparseRun {
            offset: offset?,
            len: len?,
        });
    }
    Ok(runs)
}

/// Incremental parser of the version 1.0 list: decimal numbers, each followed by a newline. The
/// first is the number of runs; then come an offset and a length for each.
#[derive(Default)]
pub(super) struct MapText {
    number: Option<u64>,
    expected: Option<usize>,
    pending_offset: Option<u64>,
    runs: Vec<SparseRun>,
}

impl MapText {
    /// Parses one block. Returns the list when it is complete; the rest of the block is padding.
    pub(super) fn feed(&mut self, block: &[u8]) -> Result<Option<Vec<SparseRun>>, SourceError> {
        for &c in block {
            if c != b'\n' {
                self.number = Some(self.digit(c)?);
                continue;
            }
            let number = self
                .number
                .take()
                .ok_or_else(|| SourceError::corrupt("sparse map contains an empty line"))?;
            match (self.expected, self.pending_offset.take()) {
                (None, _) => {
                    let count = usize::try_from(number).unwrap_or(usize::MAX);
                    within_limit(count)?;
                    self.expected = Some(count);
                }
                (Some(_), None) => self.pending_offset = Some(number),
                (Some(_), Some(offset)) => self.runs.push(SparseRun {
                    offset,
                    len: number,
                }),
            }
            if self.pending_offset.is_none() && self.expected == Some(self.runs.len()) {
                return Ok(Some(std::mem::take(&mut self.runs)));
            }
        }
        Ok(None)
    }

    fn digit(&self, c: u8) -> Result<u64, SourceError> {
        if !c.is_ascii_digit() {
            return Err(SourceError::corrupt(format!(
                "sparse map contains \"{}\", expected decimal digits",
                c.escape_ascii()
            )));
        }
        self.number
            .unwrap_or(0)
            .checked_mul(10)
            .and_then(|n| n.checked_add(u64::from(c - b'0')))
            .filter(|&n| i64::try_from(n).is_ok())
            .ok_or_else(|| SourceError::corrupt("sparse map contains a number beyond 63 bits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: u64, len: u64) -> SparseRun {
        SparseRun { offset, len }
    }

    #[test]
    fn runs_must_ascend_fit_and_add_up() {
        let good = vec![run(0, 10), run(10, 5), run(100, 0)];
        assert_eq!(
            checked(good, 100, 15).unwrap(),
            [run(0, 10), run(10, 5)],
            "a last empty run only marks the end"
        );
        for (runs, real_size, stored, why) in [
            (vec![run(0, 10), run(9, 5)], 100, 15, "overlap"),
            (vec![run(50, 10), run(0, 10)], 100, 20, "descending"),
            (vec![run(95, 10)], 100, 10, "beyond the end"),
            (vec![run(i64::MAX as u64, u64::MAX)], 100, 10, "overflow"),
            (vec![run(101, 0)], 100, 0, "empty run beyond the end"),
            (vec![run(0, 10)], 100, 11, "stores more"),
            (vec![run(0, 10)], 100, 9, "stores less"),
        ] {
            assert!(checked(runs, real_size, stored).is_err(), "{why}");
        }
    }

    #[test]
    fn map_text_may_be_split_anywhere() {
        let text = b"2\n0\n512\n1048576\n7\n";
        for cut in 0..text.len() {
            let mut map = MapText::default();
            assert_eq!(map.feed(&text[..cut]).unwrap(), None);
            let runs = map.feed(&text[cut..]).unwrap();
            assert_eq!(runs, Some(vec![run(0, 512), run(1_048_576, 7)]));
        }
    }

    #[test]
    fn a_map_of_no_runs_is_complete_at_once() {
        assert_eq!(MapText::default().feed(b"0\n\0\0").unwrap(), Some(vec![]));
    }

    #[test]
    fn map_text_with_invalid_numbers_is_rejected() {
        for text in [
            &b"\n"[..],
            b"x\n",
            b"1\n-5\n",
            b"99999999999999999999\n",
            b"2000000\n",
        ] {
            assert!(MapText::default().feed(text).is_err());
        }
    }
}
