//! fsync: making a file durable without a checkpoint.
//!
//! ```text
//!  warm node log:  … │ nodes, the inode last │ data they newly name │ nodes … │ data … │ ready for more │
//!                    └──────── one group, one write ──────────────┘
//! ```
//!
//! A small change is one write to one log, so that the host has one file to make durable. Roll-forward finds the next
//! group after the data that the last group names, and never takes a block of that data for a node. A rebuild reads
//! every block, so data that looks like a node goes to its own log.
//!
//! Hosts take longest for recording new blocks and a new file length, not for the data. Therefore the device prepares
//! blocks past the head. They look like the leftovers of a crash, and a recovery releases them likewise.

use crate::disk::address::{BLOCK_SIZE, Log, Nid};
use crate::disk::inode::{Content, mode};
use crate::disk::node::NodeBody;
use crate::disk::slot::Slot;
use crate::disk::superblock::GROUPS_WITH_DATA;
use crate::disk::wire::sealed;
use crate::error::Result;
use crate::volume::state::{Volume, WriteState};
use std::collections::HashMap;

/// Maximum amount of data that is written after the nodes of its group; more goes to its own log. Unit: blocks.
const DATA_MAX: usize = 64;
/// Maximum number of nodes of a group that is one write.
const NODES_MAX: usize = 64;
/// Number of fsyncs since the last checkpoint from which on blocks are prepared. A rare fsync does not need them.
const PREPARE_FROM: u64 = 1;
/// Free space required on the volume and the host, as a multiple of the prepared blocks.
const PREPARE_FREE_FACTOR: u64 = 16;

/// Step that makes a file durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fsync {
    /// The file is durable already.
    Durable,
    /// A device flush that starts from here on. Several files can share it.
    Flush,
    /// The end of a checkpoint that starts from here on. If one is in progress: its end, then another call.
    Checkpoint,
}

impl Volume {
    /// Makes a file durable, and its name if it is new. A directory, or a file whose names changed, requires a
    /// checkpoint. Other files leave a group of nodes that the next mount adopts.
    pub fn fsync(&mut self, ino: Nid) -> Result<()> {
        self.complete_checkpoint()?;
        match self.begin_fsync(ino)? {
            Fsync::Durable => Ok(()),
            Fsync::Flush => self.flush(),
            Fsync::Checkpoint => self.checkpoint(),
        }
    }

    /// Performs the part of `fsync` that does not wait for the device. If a flush outside the volume fails, the
    /// caller reports it to [`flush_failed`](Self::flush_failed).
    pub fn begin_fsync(&mut self, ino: Nid) -> Result<Fsync> {
        self.writable()?;
        let inode = self.inode(ino)?;
        if inode.nlink == 0 {
            // Without a name it cannot survive a crash.
            return Ok(Fsync::Durable);
        }
        let plain = matches!(inode.mode & mode::TYPE, mode::FILE | mode::LINK);
        let (parent, name) = (inode.parent, inode.name.clone());
        if self.checkpoint.in_progress.is_some() {
            return Ok(Fsync::Checkpoint);
        }
        let dirty = self.pages.has_dirty(ino) || self.nodes.has_dirty(ino);
        if !plain {
            return Ok(
                if self.checkpoint.has_changes || self.checkpoint.is_required {
                    Fsync::Checkpoint
                } else {
                    Fsync::Durable
                },
            );
        }
        if !dirty
            && !self.roll_forward.changes.renamed.contains(&ino)
            && !self.checkpoint.is_required
        {
            // The file may be part of a group that is written and not flushed yet.
            return Ok(Fsync::Flush);
        }
        if self.needs_checkpoint(ino, parent, &name) {
            return Ok(Fsync::Checkpoint);
        }
        if !self.write_group(ino)? {
            self.write_pages(ino)?;
            let nodes = self.group_of(ino)?;
            self.write_nodes(&nodes, true)?;
        }
        self.stats.fsync_groups += 1;
        self.roll_forward.changes.groups += 1;
        Ok(Fsync::Flush)
    }

    /// Reports that a flush for [`begin_fsync`](Self::begin_fsync) failed. The volume refuses further changes,
    /// because it is unknown which blocks the device has.
    pub fn flush_failed(&mut self, why: &std::io::Error) {
        self.state = WriteState::Broken(format!("a flush failed: {why}"));
    }

    /// Device, for a flush outside the volume.
    pub fn device(&self) -> std::sync::Arc<dyn crate::device::BlockDevice> {
        self.dev.clone()
    }

    /// Makes the data of a file durable. The work is that of `fsync`.
    pub fn fdatasync(&mut self, ino: Nid) -> Result<()> {
        self.fsync(ino)
    }

    /// Returns whether roll-forward could not restore the file.
    fn needs_checkpoint(&self, ino: Nid, parent: Nid, name: &[u8]) -> bool {
        let s = &self.roll_forward.changes;
        if self.checkpoint.is_required || s.renamed.contains(&ino) {
            return true;
        }
        if self.roll_forward.next_seq - self.roll_forward.base_seq > self.options.roll_forward_max {
            return true;
        }
        let new = s.created.contains(&ino);
        new && (s.directory_moved
            || s.created.contains(&parent)
            || s.vacated.contains(&(parent, name.to_vec())))
    }

    /// Dirty nodes of an inode, then the inode itself.
    fn group_of(&mut self, ino: Nid) -> Result<Vec<Nid>> {
        self.inode_mut(ino)?;
        let dirty = self.nodes.dirty_of(ino);
        let mut nids: Vec<Nid> = dirty.filter(|nid| *nid != ino).collect();
        nids.push(ino);
        Ok(nids)
    }

    /// Writes the dirty pages and nodes of an inode as one group. Returns false, without effect, if they are too many
    /// or must not lie together.
    fn write_group(&mut self, ino: Nid) -> Result<bool> {
        if self.sb.incompat & GROUPS_WITH_DATA == 0 {
            return Ok(false);
        }
        let pages = self.pages.dirty_of(ino);
        let nids = self.group_of(ino)?;
        if pages.len() > DATA_MAX || nids.len() > NODES_MAX {
            return Ok(false);
        }
        let first = self.logs.marks[Log::WarmNode.index()].head + nids.len() as u64;
        let mut data = Vec::with_capacity(pages.len() * BLOCK_SIZE);
        let mut slots = Vec::with_capacity(pages.len());
        let mut bodies: HashMap<Nid, NodeBody> = HashMap::new();
        for (offset, &index) in (first..).zip(&pages) {
            let Some(page) = self.pages.get(ino, index).filter(|page| !sealed(page)) else {
                return Ok(false);
            };
            let slot = Slot {
                addr: self.sb.geometry.addr(Log::WarmNode, offset),
                crc: crc32c::crc32c(page),
            };
            data.extend_from_slice(page);
            slots.push(slot);
            // Nodes in memory change only after the device has accepted the write: until then their slots lead to the
            // old data.
            let Some((nid, at)) = self.find_dnode(ino, index)? else {
                return Ok(false);
            };
            let body = match bodies.entry(nid) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => {
                    new.insert(self.nodes[nid].body.clone())
                }
            };
            match body {
                NodeBody::Direct(slots) => slots[at] = slot,
                NodeBody::Inode(inode) => match &mut inode.content {
                    Content::Map(map) => map.slots[at] = slot,
                    _ => return Ok(false),
                },
                _ => return Ok(false),
            }
        }
        let mut bytes = Vec::with_capacity((nids.len() + pages.len()) * BLOCK_SIZE);
        for (i, &nid) in nids.iter().enumerate() {
            let footer = self.next_footer(nid, if i + 1 == nids.len() { nids.len() } else { 0 });
            let body = bodies.get(&nid).unwrap_or(&self.nodes[nid].body);
            bytes.extend_from_slice(&body.encode(&footer));
        }
        bytes.extend_from_slice(&data);
        // A failure leaves a gap in the sequence, which hides every later group from roll-forward.
        let start = self
            .append(Log::WarmNode, &bytes)
            .inspect_err(|_| self.checkpoint.is_required = true)?;
        for (&index, slot) in pages.iter().zip(slots) {
            self.set_slot(ino, index, slot)?;
            self.pages.written(ino, index, false);
        }
        self.nodes_written(start, &nids)?;
        self.prepare_blocks();
        Ok(true)
    }

    /// Prepares blocks for the next groups. If the device cannot, flushes take longer and nothing else changes.
    fn prepare_blocks(&mut self) {
        let blocks = self.options.prepare_blocks;
        let marks = self.logs.marks[Log::WarmNode.index()];
        let used_up = marks.head + blocks / 16 >= self.logs.prepared;
        if blocks == 0 || self.roll_forward.changes.groups < PREPARE_FROM || !used_up {
            return;
        }
        let start = marks.head.max(self.logs.prepared);
        let end = (marks.head + blocks).min(marks.limit);
        let is_ample = |free: u64| free > PREPARE_FREE_FACTOR * blocks;
        let host = self.dev.free_blocks().ok().flatten();
        if start >= end || !is_ample(self.space().available()) || !host.is_none_or(is_ample) {
            return;
        }
        let range = self.sb.geometry.range(Log::WarmNode, start..end);
        match self.dev.prepare(range) {
            Ok(true) => self.logs.prepared = end,
            Ok(false) | Err(_) => self.options.prepare_blocks = 0,
        }
    }

    /// Discards prepared blocks that were not used.
    pub(crate) fn discard_prepared(&mut self) {
        let head = self.logs.marks[Log::WarmNode.index()].head;
        let end = std::mem::take(&mut self.logs.prepared);
        if head < end {
            let range = self.sb.geometry.range(Log::WarmNode, head..end);
            // If the discard fails, the blocks are used when the head reaches them.
            let _ = self.dev.discard(range);
            // Prepared blocks were preallocated, too.
            let preallocated = &mut self.logs.preallocated[Log::WarmNode.index()];
            *preallocated = (*preallocated).min(head);
            self.maintain_preallocation();
        }
    }

    /// Number of prepared blocks that were not used.
    pub(crate) fn prepared_blocks(&self) -> u64 {
        self.logs
            .prepared
            .saturating_sub(self.logs.marks[Log::WarmNode.index()].head)
    }
}
