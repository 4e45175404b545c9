//! File under test with its expected content.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;

/// File under test, its expected content, and the last operations on it.
pub(super) struct Subject {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) want: Vec<u8>,
    pub(super) past: VecDeque<String>,
}

/// Extent of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of operations on all files.
    pub operations: u64,
    /// Number of compared bytes.
    pub compared_bytes: u64,
    /// Number of reads and writes through mappings.
    pub mapped: u64,
    /// Number of searches for all holes of a file.
    pub seeks: u64,
    /// Number of copies by other processes and system calls.
    pub copies: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} of them through mappings, {} searches for holes, {} copies, {} bytes compared",
            self.operations, self.mapped, self.seeks, self.copies, self.compared_bytes
        )
    }
}

pub(super) fn differs(want: &[u8], at: u64, found: &[u8], tally: &mut Tally) -> Option<String> {
    tally.compared_bytes += found.len() as u64;
    let want = &want[at as usize..][..found.len()];
    let first = want.iter().zip(found).position(|(a, b)| a != b)?;
    let count = want.iter().zip(found).filter(|(a, b)| a != b).count();
    Some(format!(
        "{count} bytes differ, the first at {}: {:#04x}, expected {:#04x}",
        at + first as u64,
        found[first],
        want[first]
    ))
}
