//! fsync: a file made durable without a checkpoint.
//!
//! ```text
//!  warm node log:  … │ nodes, the inode last │ data they newly name │ nodes … │ data … │ ready for more │
//!                    └──────── one group, one write ──────────────┘
//! ```
//!
//! A small change goes out as one write into one log, so that the host has one file to make durable. Roll-forward finds the next group behind the data that
//! the last one names; so a block of data there is never looked at as a node. `rebuild` looks at every block, so data that could be taken for a node goes
//! to its own log.
//!
//! What a host does slowly is not writing but taking note of new blocks and a longer file. So the device is asked to make blocks ready ahead of the
//! head; they are beyond the head, as what a crash leaves behind is, and a recovery gives them back like that.

use crate::disk::address::{BLOCK_SIZE, Log, Nid};
use crate::disk::inode::{Content, mode};
use crate::disk::node::NodeBody;
use crate::disk::slot::Slot;
use crate::disk::superblock::GROUPS_WITH_DATA;
use crate::disk::wire::sealed;
use crate::error::Result;
use crate::volume::state::{Volume, WriteState};
use std::collections::HashMap;

/// Data of a group that goes behind its nodes; more goes to its own log. Unit: blocks.
const DATA_MAX: usize = 64;
/// Nodes of a group that go out in one write.
const NODES_MAX: usize = 64;
/// Fsyncs since the last checkpoint from which on blocks are made ready: somebody who saves a file now and then needs none.
const PREPARE_FROM: u64 = 1;
/// Room that must be left on volume and host, in units of what is made ready.
const PREPARE_ROOM: u64 = 16;

/// What a file still needs to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fsync {
    /// Nothing.
    Durable,
    /// A flush of the device that begins from now on. Several files can share one.
    Flush,
    /// The end of a checkpoint that begins from now on; if one is under way, its end, after which to ask again.
    Checkpoint,
}

impl Volume {
    /// Makes a file durable, with its name if it is new. A directory, or a file whose names changed, takes a whole checkpoint; other files leave a
    /// group of nodes that the next mount adopts.
    pub fn fsync(&mut self, ino: Nid) -> Result<()> {
        self.complete_checkpoint()?;
        match self.begin_fsync(ino)? {
            Fsync::Durable => Ok(()),
            Fsync::Flush => self.flush(),
            Fsync::Checkpoint => self.checkpoint(),
        }
    }

    /// All of `fsync` that takes no waiting for the device. If a flush that is made outside the volume fails, tell [`flush_failed`](Self::flush_failed).
    pub fn begin_fsync(&mut self, ino: Nid) -> Result<Fsync> {
        self.writable()?;
        let inode = self.inode(ino)?;
        if inode.nlink == 0 {
            // Without a name nothing of it can survive.
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
            // Another's group may be written and not yet flushed, and this file be part of it.
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

    /// A flush that somebody made for [`begin_fsync`](Self::begin_fsync) failed: nobody knows what the device still has.
    pub fn flush_failed(&mut self, why: &std::io::Error) {
        self.state = WriteState::Broken(format!("a flush failed: {why}"));
    }

    /// The device, for a flush outside the volume.
    pub fn device(&self) -> std::sync::Arc<dyn crate::device::BlockDevice> {
        self.dev.clone()
    }

    /// Makes the data of a file durable. At present as much work as `fsync`.
    pub fn fdatasync(&mut self, ino: Nid) -> Result<()> {
        self.fsync(ino)
    }

    /// True if roll-forward could not bring the file back as it is.
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

    /// Dirty nodes of an inode and the inode itself, which comes last.
    fn group_of(&mut self, ino: Nid) -> Result<Vec<Nid>> {
        self.inode_mut(ino)?;
        let dirty = self.nodes.dirty_of(ino);
        let mut nids: Vec<Nid> = dirty.filter(|nid| *nid != ino).collect();
        nids.push(ino);
        Ok(nids)
    }

    /// Writes an inode's dirty pages and nodes as one. False, and nothing done, if they are too many or must not lie together.
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
            // The nodes in memory change when the device has taken the write: until then the slots lead to what is there.
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
        // A failure leaves a gap in the sequence, which would hide every later group from roll-forward.
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

    /// Has the device make blocks ready for the groups that will follow. If it cannot, a flush takes longer, nothing else.
    fn prepare_blocks(&mut self) {
        let blocks = self.options.prepare_blocks;
        let marks = self.logs.marks[Log::WarmNode.index()];
        let used_up = marks.head + blocks / 16 >= self.logs.prepared;
        if blocks == 0 || self.roll_forward.changes.groups < PREPARE_FROM || !used_up {
            return;
        }
        let start = marks.head.max(self.logs.prepared);
        let end = (marks.head + blocks).min(marks.limit);
        let roomy = |room: u64| room > PREPARE_ROOM * blocks;
        let host = self.dev.free_blocks().ok().flatten();
        if start >= end || !roomy(self.space().available()) || !host.is_none_or(roomy) {
            return;
        }
        let range = self.sb.geometry.range(Log::WarmNode, start..end);
        match self.dev.prepare(range) {
            Ok(true) => self.logs.prepared = end,
            Ok(false) | Err(_) => self.options.prepare_blocks = 0,
        }
    }

    /// Gives back what was made ready and not used.
    pub(crate) fn discard_prepared(&mut self) {
        let head = self.logs.marks[Log::WarmNode.index()].head;
        let end = std::mem::take(&mut self.logs.prepared);
        if head < end {
            let range = self.sb.geometry.range(Log::WarmNode, head..end);
            // What stays is used when the head comes there.
            let _ = self.dev.discard(range);
            // That was room, too.
            let room = &mut self.logs.preallocated[Log::WarmNode.index()];
            *room = (*room).min(head);
            self.maintain_preallocation();
        }
    }

    /// Blocks made ready and not used.
    pub(crate) fn prepared_blocks(&self) -> u64 {
        self.logs
            .prepared
            .saturating_sub(self.logs.marks[Log::WarmNode.index()].head)
    }
}
