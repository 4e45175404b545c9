//! Check of a store.

use crate::digest::Digest;
use crate::record::are_alone;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::TreeReader;
use std::collections::HashSet;
use tuff_codec::Decoder;
use tuff_erofs::walk::shown;
use tuff_mkfs::source::Kind;
use tuff_mkfs::{Progress, Result};

/// Amount of a store that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The trees of all snapshots, and whether their ranges exist.
    Trees,
    /// All ranges of all snapshots as well.
    Data,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Snapshots that were read.
    pub snapshots: u64,
    /// Ranges that they name, each once.
    pub ranges: u64,
    /// Content that was read and compared. Unit: bytes.
    pub read_bytes: u64,
    /// Damage and losses, a sentence for each.
    pub findings: Vec<String>,
}

impl Store {
    /// Checks the store: every manifest, directory and tree, and with [`Depth::Data`] the content of every range.
    ///
    /// # Errors
    /// `Io` if the store cannot be listed. Damage is in the result.
    pub fn check(&self, depth: Depth, progress: &Progress) -> Result<Checked> {
        let mut checked = Checked::default();
        for pack in &self.packs {
            let named = |what: &String| format!("{}: {what} is damaged", pack.path.display());
            checked.findings.extend(pack.damaged.iter().map(named));
        }
        let mut ranges: HashSet<(Digest, bool)> = HashSet::new();
        for snapshot in self.snapshots()? {
            checked.snapshots += 1;
            let read = snapshot.and_then(|snapshot| {
                self.check_tree(&snapshot, &mut ranges, &mut checked, progress)
            });
            if let Err(e) = read {
                progress.check()?;
                checked.findings.push(e.to_string());
            }
        }
        checked.ranges = ranges.len() as u64;
        if depth == Depth::Data {
            let mut decoder = Decoder::default();
            let mut ranges: Vec<(Digest, bool)> = ranges.into_iter().collect();
            ranges.sort_unstable();
            for (range, alone) in ranges {
                progress.check()?;
                match self.read(&mut decoder, range, alone) {
                    Ok(content) => {
                        checked.read_bytes += content.len() as u64;
                        progress.add_bytes(content.len() as u64);
                    }
                    Err(e) => checked.findings.push(e.to_string()),
                }
            }
        }
        Ok(checked)
    }

    /// Reads the content of a snapshot's files at and below `paths`, or of all, and compares it with its digests. The findings name
    /// the files.
    ///
    /// # Errors
    /// `Corrupt` and `Io` if the tree of the snapshot cannot be read.
    pub fn check_files(
        &self,
        snapshot: &Snapshot,
        paths: &[Vec<u8>],
        progress: &Progress,
    ) -> Result<Checked> {
        let mut checked = Checked {
            snapshots: 1,
            ..Checked::default()
        };
        let is_wanted = |path: &[u8]| {
            let is_below = |dir: &Vec<u8>| {
                let rest = path.strip_prefix(&dir[..]);
                rest.is_some_and(|rest| dir.is_empty() || rest.is_empty() || rest[0] == b'/')
            };
            paths.is_empty() || paths.iter().any(is_below)
        };
        let (mut decoder, mut good) = (Decoder::default(), HashSet::new());
        // First names of files of which another one is wanted: records of the others have no content.
        let mut first_names = HashSet::new();
        let mut tree = TreeReader::new(self, snapshot);
        while let Some((path, record)) = tree.next()? {
            if let Kind::Hardlink(first) = record.kind
                && is_wanted(&path)
                && !is_wanted(&first)
            {
                first_names.insert(first);
            }
        }
        let mut tree = TreeReader::new(self, snapshot);
        while let Some((path, record)) = tree.next()? {
            progress.check()?;
            let is_read = is_wanted(&path) || first_names.contains(&path);
            for (range, alone) in are_alone(&record.ranges) {
                if !is_read || good.contains(&(range.digest, alone)) {
                    continue;
                }
                match self.read(&mut decoder, range.digest, alone) {
                    Ok(content) => {
                        good.insert((range.digest, alone));
                        checked.read_bytes += content.len() as u64;
                        progress.add_bytes(content.len() as u64);
                    }
                    Err(e) => checked.findings.push(format!("{}: {e}", shown(&path))),
                }
            }
        }
        checked.ranges = good.len() as u64;
        Ok(checked)
    }

    fn check_tree(
        &self,
        snapshot: &Snapshot,
        ranges: &mut HashSet<(Digest, bool)>,
        checked: &mut Checked,
        progress: &Progress,
    ) -> Result<()> {
        let mut tree = TreeReader::new(self, snapshot);
        let mut entries = 0u64;
        while let Some((path, record)) = tree.next()? {
            progress.check()?;
            entries += 1;
            for (range, alone) in are_alone(&record.ranges) {
                if ranges.insert((range.digest, alone)) && !self.index.has(range.digest, alone) {
                    checked.findings.push(format!(
                        "snapshot {}: {}: a part of the file is in no pack",
                        snapshot.number,
                        shown(&path)
                    ));
                }
            }
        }
        if entries == 0 {
            checked
                .findings
                .push(format!("snapshot {}: has no tree", snapshot.number));
        }
        Ok(())
    }
}
