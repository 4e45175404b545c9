//! Repair of snapshots: node address tables are rebuilt from the logs, and losses are recorded.

use super::salvage::Salvage;
use super::scan::LogScan;
use crate::disk::address::Log;
use crate::error::{Error, Result};
use crate::nodes::nat::{Nat, Salvaged};
use crate::volume::unlisted::is_forked;
use std::collections::{HashMap, HashSet};

impl Salvage {
    /// Repairs the node address tables of snapshots, and records the losses of each for the check. Their nodes and
    /// data are not changed.
    pub(super) fn repair_snapshots(&mut self) -> Result<()> {
        let mut known = HashMap::new();
        for at in 0..self.v.snapshots.records.len() {
            self.repair_snapshot_table(at)?;
            let mut state = self.v.at_snapshot(at);
            let references = state.readable_references()?;
            let (mut lost_nodes, mut lost_data) = {
                let record = &self.v.snapshots.records[at];
                (record.lost_nodes, record.lost_data)
            };
            let mut damage = Vec::new();
            if self.data {
                let claimed = |addr| self.claimed.contains(&addr);
                let found = self.v.damaged_data(&references, claimed, &mut known)?;
                let count = count(found.len())?;
                if count != lost_data {
                    lost_data = count;
                    damage.extend(found);
                }
            }
            let count = count(references.damage.len())?;
            if count != lost_nodes {
                lost_nodes = count;
                damage.extend(references.damage);
            }
            let record = &mut self.v.snapshots.records[at];
            (record.lost_nodes, record.lost_data) = (lost_nodes, lost_data);
            let place = format!("snapshot {}", record.name);
            let paths = state.paths_of(&damage.iter().filter_map(|damage| damage.ino).collect());
            for damage in damage {
                let path = damage.ino.and_then(|ino| paths.get(&ino));
                let path = path.map_or(String::new(), |path| format!(" ({path})"));
                let what = format_args!("{}; lost in the snapshot", damage.error);
                self.note(format_args!("{place}{path}"), what);
            }
        }
        Ok(())
    }

    /// Rewrites the node address table of a snapshot if blocks of it cannot be read. The lost entries are the newest
    /// versions of nodes below its heads. A table that a fork reads stays as it is.
    fn repair_snapshot_table(&mut self, at: usize) -> Result<()> {
        if is_forked(&self.v.holders()?, self.v.snapshots.records[at].version) {
            return Ok(());
        }
        let dev = self.v.dev.clone();
        let mut state = self.v.at_snapshot(at);
        let next_nid = state.nat.next_nid;
        let Salvaged {
            mut entries, lost, ..
        } = state.nat.salvage(&*dev)?;
        if lost.is_empty() {
            return Ok(());
        }
        let place = format!("snapshot {}", self.v.snapshots.records[at].name);
        let dead: HashSet<u64> = self
            .v
            .discard_log
            .iter()
            .chain(self.v.dead.runs())
            .flatten()
            .collect();
        let heads = self.v.snapshots.records[at].heads;
        let scan = LogScan::run(&self.v, heads, |addr| dead.contains(&addr))?;
        for range in lost {
            let (first, last) = (range.start, range.end - 1);
            self.note(
                format_args!("{place}, node address table, numbers {first} to {last}"),
                "cannot be read; found again in the logs",
            );
            let again = scan
                .table
                .iter()
                .filter(|(nid, _)| range.contains(&u64::from(nid.0)) && nid.0 < next_nid);
            for (nid, entry) in again {
                entries.entry(*nid).or_insert(*entry);
            }
        }
        let mut nat = Nat::from_entries(&entries, next_nid);
        let head = self.v.logs.marks[Log::Meta.index()].head;
        let update = nat.plan_update(&*dev, &self.v.sb.geometry, head)?;
        self.v.append(Log::Meta, &update.bytes)?;
        nat.apply(update);
        let record = &mut self.v.snapshots.records[at];
        (record.nat_root, record.nat_height, record.nat_blocks) =
            (nat.root, nat.height, nat.blocks);
        Ok(())
    }
}

fn count(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| Error::Limit("2^32 damaged blocks in a snapshot".to_owned()))
}
