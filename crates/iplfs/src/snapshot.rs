//! Snapshots: pin a checkpoint, look at it, let it go.
//!
//! Making one costs a checkpoint and a record, whatever the size of the volume. While it exists, a block that dies and is older than the newest
//! snapshot is kept instead of discarded. Deleting one walks the nodes of it and of its newer neighbour: what only it refers to is dead.

use crate::areas::{Addr, Nid};
use crate::disk::inode::{Content, Time};
use crate::disk::node::{NodeBody, Slot};
use crate::disk::snapshot::{NAME_MAX, Snapshot};
use crate::error::{Errno, Error, Result};
use crate::volume::Volume;
use std::collections::HashSet;
use std::sync::Arc;

/// Most snapshots of a volume, if its pack has room for so many.
const SNAPSHOTS_MAX: usize = 1024;

impl Volume {
    /// The snapshots, oldest first.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Keeps the present state under a name. Everything done before is durable when this returns.
    pub fn snapshot(&mut self, name: &str, now: Time) -> Result<()> {
        self.writable()?;
        if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') || name.contains('/') {
            return Err(Errno::Invalid.into());
        }
        if self.snapshots.iter().any(|snapshot| snapshot.name == name) {
            return Err(Errno::Exists.into());
        }
        if self.snapshots.len()
            >= SNAPSHOTS_MAX.min(self.body_room() / 2 / crate::disk::snapshot::SNAPSHOT_LEN)
        {
            return Err(Errno::NoSpace.into());
        }
        self.begin(16, false)?;
        self.checkpoint_whole_table()?;
        self.snapshots.push(Snapshot {
            name: name.to_string(),
            time: now,
            version: self.version + 1,
            next_nid: self.nat.next_nid,
            nat_root: self.nat.root,
            nat_height: self.nat.height,
            nat_blocks: self.nat.blocks,
            live_blocks: self.live,
            inodes: self.inodes,
            heads: self.marks.map(|m| m.head),
        });
        self.changed = true;
        self.checkpoint()
            .inspect_err(|_| drop(self.snapshots.pop()))
    }

    /// Deletes a snapshot. `Busy` while it is open.
    pub fn delete_snapshot(&mut self, name: &str) -> Result<()> {
        self.writable()?;
        let at = self
            .snapshots
            .iter()
            .position(|s| s.name == name)
            .ok_or(Errno::NotFound)?;
        if self
            .open_snapshots
            .get(name)
            .is_some_and(|open| open.strong_count() > 0)
        {
            return Err(Errno::Busy.into());
        }
        self.checkpoint()?;
        // What only a damaged node of a snapshot refers to leaks, and a trim finds it: better than a snapshot that cannot be deleted.
        let (mine, damage) = self.at_snapshot(at).references_beside_damage()?;
        // A block that the older neighbour and this one could both see is older than the former's heads.
        let older = at.checked_sub(1).map(|at| self.snapshots[at].heads);
        let newer: HashSet<u64> = match self.snapshots.get(at + 1) {
            Some(_) => {
                let (newer, damage) = self.at_snapshot(at + 1).references_beside_damage()?;
                self.needs_trim |= damage.is_some();
                newer.into_iter().collect()
            }
            None => self.references()?.into_iter().collect(),
        };
        let gone: Vec<Addr> = mine
            .into_iter()
            .filter(|addr| !newer.contains(addr))
            .map(Addr)
            .filter(|addr| !older.is_some_and(|heads| self.is_older(*addr, &heads)))
            .collect();
        self.needs_trim |= damage.is_some();
        self.mutate(|v| {
            v.snapshots.remove(at);
            for addr in gone {
                v.held = v.held.saturating_sub(1);
                v.dead.insert(addr);
            }
            Ok(())
        })?;
        self.checkpoint()
    }

    /// Opens a snapshot for reading, beside the volume itself.
    pub fn open_snapshot(&mut self, name: &str) -> Result<Volume> {
        let at = self
            .snapshots
            .iter()
            .position(|s| s.name == name)
            .ok_or(Errno::NotFound)?;
        let mut volume = self.at_snapshot(at);
        let token = self
            .open_snapshots
            .get(name)
            .and_then(|open| open.upgrade())
            .unwrap_or_else(|| Arc::new(()));
        self.open_snapshots
            .insert(name.to_string(), Arc::downgrade(&token));
        volume.snapshot_token = Some(token);
        Ok(volume)
    }

    /// The state that a snapshot pins.
    pub(crate) fn at_snapshot(&self, at: usize) -> Volume {
        Self::of_snapshot(self.dev.clone(), self.sb.clone(), &self.snapshots[at])
    }

    /// True if a snapshot may need a block, whatever the present does.
    pub(crate) fn is_held(&self, addr: Addr) -> bool {
        let newest = self.snapshots.last();
        newest.is_some_and(|newest| self.is_older(addr, &newest.heads))
    }

    /// True if a block lies below the given heads.
    pub(crate) fn is_older(&self, addr: Addr, heads: &[u64; 7]) -> bool {
        self.sb
            .geometry
            .place(addr)
            .is_some_and(|(log, offset)| offset < heads[log.index()])
    }

    /// Every block that the state on the device refers to: table, nodes, data. Memory must be in sync with it.
    pub(crate) fn references(&mut self) -> Result<Vec<u64>> {
        let (all, damage) = self.references_beside_damage()?;
        damage.map_or(Ok(all), Err)
    }

    /// The same, without what only a damaged node refers to: nobody else can reach that either. The first damage comes with it.
    pub(crate) fn references_beside_damage(&mut self) -> Result<(Vec<u64>, Option<Error>)> {
        let mut damage = None;
        let dev = self.dev.clone();
        let (mut all, mut nodes) = (Vec::new(), Vec::new());
        let walked = self.nat.walk(
            &*dev,
            |_: Nid, entry| nodes.push(entry.addr),
            |addr| all.push(addr.0),
        );
        match walked {
            Err(e @ Error::Corrupt(_)) => damage = Some(e),
            other => other?,
        }
        for addr in nodes.into_iter().filter(|addr| addr.is_mapped()) {
            all.push(addr.0);
            let body = match self.read_node_at(addr) {
                Ok((body, _)) => body,
                Err(e @ Error::Corrupt(_)) => {
                    damage = damage.or(Some(e));
                    continue;
                }
                Err(e) => return Err(e),
            };
            let slots: &[Slot] = match &body {
                NodeBody::Direct(slots) => &slots[..],
                NodeBody::Inode(inode) => match &inode.content {
                    Content::Map(map) => &map.slots,
                    _ => &[],
                },
                _ => &[],
            };
            all.extend(
                slots
                    .iter()
                    .filter(|slot| slot.addr.is_mapped())
                    .map(|slot| slot.addr.0),
            );
        }
        Ok((all, damage))
    }
}
