//! Snapshots: creating and opening them.
//!
//! Creating one costs a checkpoint and a record, whatever the size of the volume. While it exists, a block that dies
//! and is older than the newest snapshot is kept. Deleting one walks its nodes and those of its newer neighbour.
//! Blocks that only it refers to are dead.

use crate::checkpoint::state::Checkpoint;
use crate::device::{BlockDevice, read_block};
use crate::disk::address::{BlockAddr, Nid};
use crate::disk::inode::{Time, mode};
use crate::disk::nat::NatEntry;
use crate::disk::snapshot::{NAME_MAX, Snapshot};
use crate::disk::superblock::Superblock;
use crate::error::{Errno, Error, Result};
use crate::options::MountOptions;
use crate::volume::state::{Volume, WriteState};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Blocks that a state of the volume refers to.
#[derive(Default)]
pub(crate) struct References {
    /// Addresses; for data blocks with inode and checksum.
    pub(crate) blocks: Vec<(u64, Option<(Nid, u32)>)>,
    /// Nodes and blocks of the node address table that cannot be read.
    pub(crate) damage: Vec<DamagedBlock>,
}

/// Block that cannot be read.
pub(crate) struct DamagedBlock {
    /// Inode that owns the block, if it is a node or data.
    pub(crate) ino: Option<Nid>,
    pub(crate) error: Error,
}

impl References {
    pub(crate) fn addrs(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.iter().map(|(addr, _)| *addr)
    }
}

/// Maximum number of snapshots of a volume, if its pack can hold that many.
const SNAPSHOTS_MAX: usize = 1024;

impl Volume {
    /// Returns the snapshots, oldest first.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots.records
    }

    /// Takes a snapshot of the current state. All earlier changes are durable when this returns.
    pub fn snapshot(&mut self, name: &str, now: Time) -> Result<()> {
        self.admit_snapshot(name)?;
        self.checkpoint_whole_table()?;
        self.push_snapshot(name, now);
        self.checkpoint.has_changes = true;
        self.checkpoint()
            .inspect_err(|_| drop(self.snapshots.records.pop()))
    }

    /// Begins a snapshot of the current state, for callers that flush without access to the volume. The snapshot exists
    /// when the checkpoint is [sealed](Self::seal_checkpoint) and [ended](Self::end_checkpoint). If that fails,
    /// [delete](Self::delete_snapshot) it.
    pub fn begin_snapshot(&mut self, name: &str, now: Time) -> Result<Checkpoint> {
        self.admit_snapshot(name)?;
        self.begin_whole_table()?;
        self.push_snapshot(name, now);
        let result = self.begin_prepared_checkpoint();
        result.inspect_err(|_| drop(self.snapshots.records.pop()))
    }

    /// Fails if there can be no snapshot of this name.
    fn admit_snapshot(&mut self, name: &str) -> Result<()> {
        self.writable()?;
        if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') || name.contains('/') {
            return Err(Errno::Invalid.into());
        }
        if self.snapshots.position(name).is_some() {
            return Err(Errno::Exists.into());
        }
        if self.snapshots.records.len()
            >= SNAPSHOTS_MAX.min(self.body_capacity() / 2 / crate::disk::snapshot::SNAPSHOT_LEN)
        {
            return Err(Errno::NoSpace.into());
        }
        self.admit(16, false)
    }

    /// Adds the record of the state whose table is complete.
    fn push_snapshot(&mut self, name: &str, now: Time) {
        self.snapshots.records.push(Snapshot {
            name: name.to_string(),
            time: now,
            version: self.checkpoint.version + 1,
            next_nid: self.nat.next_nid,
            nat_root: self.nat.root,
            nat_height: self.nat.height,
            nat_blocks: self.nat.blocks,
            live_blocks: self.live,
            inodes: self.inodes,
            heads: self.logs.heads(),
            lost_nodes: 0,
            lost_data: 0,
        });
    }

    /// Opens a snapshot as a read-only volume, in addition to the volume itself.
    pub fn open_snapshot(&mut self, name: &str) -> Result<Volume> {
        let at = self.snapshots.position(name).ok_or(Errno::NotFound)?;
        let mut volume = self.at_snapshot(at);
        volume.snapshots.token = Some(self.snapshots.open_token(name));
        Ok(volume)
    }

    /// Creates the state that the record of a snapshot describes.
    pub(crate) fn of_snapshot(dev: Arc<dyn BlockDevice>, sb: Superblock, s: &Snapshot) -> Self {
        let mut volume = Volume::empty(dev, sb, MountOptions::default());
        volume.state = WriteState::ReadOnly;
        volume.checkpoint.version = s.version;
        volume.nat.height = s.nat_height;
        volume.nat.root = s.nat_root;
        volume.nat.blocks = s.nat_blocks;
        volume.nat.next_nid = s.next_nid;
        volume.live = s.live_blocks;
        volume.inodes = s.inodes;
        for (marks, head) in volume.logs.marks.iter_mut().zip(s.heads) {
            (marks.scan, marks.head, marks.limit, marks.far) = (head, head, head, head);
        }
        volume
    }

    /// Returns the state of the snapshot at an index.
    pub(crate) fn at_snapshot(&self, at: usize) -> Volume {
        Self::of_snapshot(
            self.dev.clone(),
            self.sb.clone(),
            &self.snapshots.records[at],
        )
    }

    /// Returns whether a repair rewrote the node address table of a snapshot, past its heads.
    pub(crate) fn has_repaired_table(&self, snapshot: &Snapshot) -> bool {
        !self.lies_below(snapshot.nat_root.addr, &snapshot.heads)
    }

    /// Finds data blocks in `references` that do not match their checksums. Blocks that `skip` selects are left out.
    /// `known` caches the results of blocks already read.
    pub(crate) fn damaged_data(
        &self,
        references: &References,
        skip: impl Fn(u64) -> bool,
        known: &mut HashMap<u64, bool>,
    ) -> Result<Vec<DamagedBlock>> {
        let mut damage = Vec::new();
        for (addr, data) in &references.blocks {
            let Some((ino, crc)) = *data else { continue };
            if skip(*addr) {
                continue;
            }
            let sound = match known.get(addr) {
                Some(sound) => *sound,
                None => crc32c::crc32c(&read_block(&*self.dev, BlockAddr(*addr))?) == crc,
            };
            known.insert(*addr, sound);
            if !sound {
                let place = format_args!("block {} of inode {ino}", BlockAddr(*addr));
                let error = Error::corrupt(place, "checksum does not match");
                let ino = Some(ino);
                damage.push(DamagedBlock { ino, error });
            }
        }
        Ok(damage)
    }

    /// Returns a path of each of the inodes, as far as directories can be read.
    pub(crate) fn paths_of(&mut self, requested: &BTreeSet<Nid>) -> BTreeMap<Nid, String> {
        let mut found = BTreeMap::new();
        let (mut seen, mut todo) = (HashSet::new(), Vec::new());
        if requested.contains(&Nid::ROOT) {
            found.insert(Nid::ROOT, "/".to_owned());
        }
        todo.push((Nid::ROOT, String::new()));
        while let Some((dir, path)) = todo.pop() {
            if found.len() == requested.len() {
                break;
            }
            for entry in self.read_dir(dir, 2, usize::MAX).unwrap_or_default() {
                let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                if u32::from(entry.kind) << 12 == mode::DIR && seen.insert(entry.ino) {
                    todo.push((entry.ino, path.clone()));
                }
                if requested.contains(&entry.ino) {
                    found.entry(entry.ino).or_insert(path);
                }
            }
            self.shrink_caches();
        }
        found
    }

    /// Returns whether a snapshot or a fork point may refer to a block.
    pub(crate) fn is_held(&self, addr: BlockAddr) -> bool {
        let snapshot = self.snapshots.records.last().map(|newest| &newest.heads);
        let newest = snapshot.into_iter().chain(&self.fork_points.newest);
        newest.into_iter().any(|heads| self.lies_below(addr, heads))
    }

    /// Returns whether a block is below the given heads.
    pub(crate) fn lies_below(&self, addr: BlockAddr, heads: &[u64; 7]) -> bool {
        self.sb
            .geometry
            .place(addr)
            .is_some_and(|(log, offset)| offset < heads[log.index()])
    }

    /// Returns every block that the state on the device refers to: table, nodes, data. Blocks that only damaged blocks
    /// refer to are left out, and the damage is in the result. Memory must be in sync with the device.
    pub(crate) fn readable_references(&mut self) -> Result<References> {
        let mut all = References::default();
        let dev = self.dev.clone();
        let (mut tree, mut nodes) = (Vec::new(), BTreeMap::new());
        let walked = self.nat.walk(
            &*dev,
            |nid, entry| _ = nodes.insert(nid, entry),
            |addr| tree.push(addr),
        );
        match walked {
            Err(Error::Corrupt(_)) => {
                let salvaged = self.nat.salvage(&*dev)?;
                (nodes, tree) = (salvaged.entries, salvaged.tree);
                let damage = salvaged.damage.into_iter();
                all.damage
                    .extend(damage.map(|error| DamagedBlock { ino: None, error }));
            }
            other => other?,
        }
        all.blocks
            .extend(tree.into_iter().map(|addr| (addr.0, None)));
        for NatEntry { addr, ino } in nodes.into_values() {
            if !addr.is_mapped() {
                continue;
            }
            all.blocks.push((addr.0, None));
            let body = match self.read_node_at(addr) {
                Ok((body, _)) => body,
                Err(error @ Error::Corrupt(_)) => {
                    let ino = Some(ino);
                    all.damage.push(DamagedBlock { ino, error });
                    continue;
                }
                Err(e) => return Err(e),
            };
            let mapped = body.slots().iter().filter(|slot| slot.addr.is_mapped());
            all.blocks
                .extend(mapped.map(|slot| (slot.addr.0, Some((ino, slot.crc)))));
        }
        Ok(all)
    }
}
