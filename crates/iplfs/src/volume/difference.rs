//! Difference between the blocks of two states.

use crate::disk::address::BlockAddr;
use crate::error::{Error, Result};
use crate::ship::delta::SnapshotDelta;
use crate::volume::state::Volume;
use std::collections::HashSet;

/// Blocks that only one of two states refers to.
#[derive(Default)]
pub(crate) struct Difference {
    pub(crate) only_older: Vec<u64>,
    pub(crate) only_newer: Vec<u64>,
    /// Nodes of `only_older` that count blocks which they do not name, with their number.
    pub(crate) without_block: Vec<(BlockAddr, u64)>,
    /// Set if blocks of the older state cannot be read, so that the lists are not complete.
    pub(crate) is_older_damaged: bool,
    pub(crate) is_newer_damaged: bool,
}

impl Difference {
    /// Compares a state with a newer one. The work follows the difference, unless a table is damaged or was repaired.
    pub(crate) fn between(older: &mut Volume, newer: &mut Volume) -> Result<Self> {
        if older.has_table_below_heads() && newer.has_table_below_heads() {
            match SnapshotDelta::between(newer, Some(older)) {
                Ok(delta) => {
                    let new = delta.new.into_iter().map(|(addr, _)| addr);
                    return Ok(Self {
                        only_older: delta.dead.into_iter().flatten().collect(),
                        only_newer: new.collect(),
                        without_block: delta.without_block,
                        ..Self::default()
                    });
                }
                Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        let old = older.readable_references()?;
        let new = newer.readable_references()?;
        let in_old: HashSet<u64> = old.addrs().collect();
        let in_new: HashSet<u64> = new.addrs().collect();
        Ok(Self {
            only_older: old.addrs().filter(|addr| !in_new.contains(addr)).collect(),
            only_newer: new.addrs().filter(|addr| !in_old.contains(addr)).collect(),
            // A check reports what is wrong with the count.
            without_block: Vec::new(),
            is_older_damaged: !old.damage.is_empty(),
            is_newer_damaged: !new.damage.is_empty(),
        })
    }

    /// Returns whether blocks may leak that only a damaged node refers to. A trim finds them. Otherwise a damaged state could
    /// not be deleted.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_older_damaged || self.is_newer_damaged
    }
}
