//! State of a mounted volume, and the basic operations on its blocks and nodes.
//!
//! Invariants:
//!
//! * No address outside the fixed part of area 0 is written twice in the life of the volume.
//! * A clean node in memory equals its block on the device.
//! * A dirty page has a slot that is not a hole: space is reserved when data arrives, not when it is written.
//! * A block is marked dead in the same step in which its last reference in memory goes.
//! * A checkpoint is the state of the whole volume between two operations.
//! * While a checkpoint is in progress, no node is written.

use crate::checkpoint::state::{CheckpointState, RollForwardState};
use crate::device::{BlockDevice, blocks_in};
use crate::disk::address::{BLOCK_SIZE, BlockAddr, Log, Nid, zero_block};
use crate::disk::inode::{Inode, Time};
use crate::disk::nat::NatEntry;
use crate::disk::node::{Footer, NodeBody};
use crate::disk::slot::Slot;
use crate::disk::superblock::Superblock;
use crate::error::{Errno, Error, Result};
use crate::log::dead_blocks::DeadBlocks;
use crate::log::discard_log::DiscardLog;
use crate::log::free_space::FreeSpace;
use crate::log::readers::{ReaderGuard, Readers};
use crate::log::state::Logs;
use crate::nodes::absent::AbsentName;
use crate::nodes::cache::{Node, NodeCache};
use crate::nodes::nat::Nat;
use crate::nodes::pages::PageCache;
use crate::options::{DiscardRule, MountOptions};
use crate::quota::Quotas;
use crate::volume::claim_records::Claims;
use crate::volume::fork_points::ForkPoints;
use crate::volume::promise_records::Promises;
use crate::volume::snapshot_records::Snapshots;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

/// State of a volume with regard to changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WriteState {
    Writable,
    ReadOnly,
    /// A change failed half-way. Nothing of it may reach the device.
    Broken(String),
}

/// Volume that is mounted, or an open snapshot of one.
pub struct Volume {
    pub(crate) dev: Arc<dyn BlockDevice>,
    pub(crate) sb: Superblock,
    pub(crate) options: MountOptions,
    pub(crate) state: WriteState,
    pub(crate) logs: Logs,
    pub(crate) checkpoint: CheckpointState,
    pub(crate) roll_forward: RollForwardState,
    pub(crate) nat: Nat,
    pub(crate) nodes: NodeCache,
    pub(crate) pages: PageCache,
    pub(crate) absent: AbsentName,
    pub(crate) dead: DeadBlocks,
    pub(crate) discard_log: DiscardLog,
    pub(crate) readers: Readers,
    /// Number of live blocks of data and nodes, reserved ones included.
    pub(crate) live: u64,
    pub(crate) inodes: u64,
    pub(crate) next_generation: u32,
    pub(crate) needs_trim: bool,
    pub(crate) snapshots: Snapshots,
    pub(crate) fork_points: ForkPoints,
    pub(crate) quotas: Quotas,
    /// Inodes without a name.
    pub(crate) orphans: BTreeSet<Nid>,
    /// References by open files, which keep an orphan alive.
    pub(crate) holds: HashMap<Nid, u64>,
    pub(crate) free_space: FreeSpace,
    pub(crate) promises: Promises,
    pub(crate) claims: Claims,
    pub(crate) stats: Stats,
}

/// Counters since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of committed checkpoints.
    pub checkpoints: u64,
    /// Number of fsyncs left to roll-forward.
    pub fsync_groups: u64,
    /// Number of blocks appended to each log.
    pub appended_blocks: [u64; 7],
    /// Number of blocks overwritten in checkpoint packs.
    pub pack_blocks: u64,
    /// Number of discarded blocks.
    pub discarded_blocks: u64,
    /// Number of discards issued.
    pub discard_commands: u64,
    /// Number of zones released as a whole.
    pub released_zones: u64,
    /// Number of groups that roll-forward adopted at mount.
    pub adopted_groups: u64,
    /// Number of blocks after the last adopted group that the mount put in the discard log.
    pub tail_blocks: u64,
}

impl Volume {
    pub(crate) fn empty(dev: Arc<dyn BlockDevice>, sb: Superblock, options: MountOptions) -> Self {
        let section_bits = sb.geometry.section_bits;
        Self {
            dev,
            sb,
            options,
            state: WriteState::Writable,
            logs: Logs::default(),
            checkpoint: CheckpointState::default(),
            roll_forward: RollForwardState::default(),
            nat: Nat::default(),
            nodes: NodeCache::default(),
            pages: PageCache::default(),
            absent: AbsentName::default(),
            dead: DeadBlocks::new(section_bits),
            discard_log: DiscardLog::default(),
            readers: Readers::default(),
            live: 0,
            inodes: 0,
            next_generation: 1,
            needs_trim: false,
            snapshots: Snapshots::default(),
            fork_points: ForkPoints::default(),
            quotas: Quotas::default(),
            orphans: BTreeSet::new(),
            holds: HashMap::new(),
            free_space: FreeSpace::default(),
            promises: Promises::default(),
            claims: Claims::default(),
            stats: Stats::default(),
        }
    }

    /// Returns the counters since the mount.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Superblock of the volume.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Version of the newest committed checkpoint.
    pub fn checkpoint_version(&self) -> u64 {
        self.checkpoint.version
    }

    /// Checkpoint pack, 0 or 1, that holds the newest committed checkpoint.
    pub fn checkpoint_pack(&self) -> usize {
        self.checkpoint.pack
    }

    /// Returns whether the volume is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        self.state == WriteState::ReadOnly
    }

    pub(crate) fn writable(&self) -> Result<()> {
        match &self.state {
            WriteState::Writable => Ok(()),
            WriteState::ReadOnly => Err(Errno::ReadOnly.into()),
            WriteState::Broken(why) => {
                let what = "an earlier change failed half-way, mount again";
                Err(Error::io(io::Error::other(why.clone()), what))
            }
        }
    }

    /// Runs the part of an operation that changes memory. If it fails half-way, the volume refuses further changes:
    /// the device still holds the last sound state, which the next mount finds.
    pub(crate) fn mutate<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.checkpoint.has_changes = true;
        let result = change(self);
        if let Err(e) = &result
            && e.is_fatal_midway()
        {
            self.state = WriteState::Broken(e.to_string());
        }
        result
    }

    pub(crate) fn register_reader(&self) -> ReaderGuard {
        self.readers.enter(self.checkpoint.version)
    }

    /// Appends blocks to a log. The addresses are used up even if the write fails, unless the log itself is full.
    pub(crate) fn append(&mut self, log: Log, data: &[u8]) -> Result<BlockAddr> {
        let n = blocks_in(data);
        let marks = self.logs.marks[log.index()];
        if marks.head + n > marks.limit.min(self.sb.geometry.area_blocks()) {
            let what = format!(
                "{log:?} log: {n} blocks at {:#x} pass the limit {:#x}",
                marks.head, marks.limit
            );
            return Err(Error::Limit(what));
        }
        self.preallocate_if_low(log, n)?;
        let marks = &mut self.logs.marks[log.index()];
        let addr = self.sb.geometry.addr(log, marks.head);
        marks.head += n;
        self.stats.appended_blocks[log.index()] += n;
        if let Err(e) = self.dev.write(addr, data) {
            self.dead.insert_range(addr.0..addr.0 + n);
            return Err(Error::io(e, format_args!("appending {n} blocks at {addr}")));
        }
        Ok(addr)
    }

    /// Frees a block of a file or node after its last reference is gone.
    pub(crate) fn free_block(&mut self, addr: BlockAddr) {
        if addr.is_mapped() {
            if self.is_shared(addr) {
                // The fork point of the parent holds it.
                let shared = &mut self.fork_points.shared_blocks;
                *shared = shared.saturating_sub(1);
                return;
            }
            if self.is_held(addr) {
                self.snapshots.held_blocks += 1;
                if let Some(died) = &mut self.snapshots.died_meanwhile {
                    died.insert(addr);
                }
                return;
            }
            let is_new = match self.pending_fork_holds(addr) {
                true => self.fork_points.hold(addr),
                false => self.dead.insert(addr),
            };
            if !is_new {
                // Two references to one block: the volume is damaged, and further writes would spread the damage.
                self.state = WriteState::Broken(format!("block {addr} was freed twice"));
            }
            if !self.options.holds(DiscardRule::DurableCheckpoint) && !self.pending_fork_holds(addr)
            {
                let _ = self.dev.discard(addr.0..addr.0 + 1);
            }
        }
    }

    /// Frees the block or reservation of a slot.
    pub(crate) fn free_slot(&mut self, slot: Slot) {
        if slot.counts() {
            self.live -= 1;
            self.free_block(slot.addr);
        }
    }

    /// Returns a node, read from the device if it is not cached.
    pub(crate) fn node(&mut self, nid: Nid) -> Result<&Node> {
        if !self.nodes.contains(nid) {
            let node = self.read_node(nid)?;
            self.nodes.insert(nid, node);
        }
        Ok(&self.nodes[nid])
    }

    /// Returns a node to change, and marks it as dirty.
    pub(crate) fn node_mut(&mut self, nid: Nid) -> Result<&mut Node> {
        let ino = self.node(nid)?.ino;
        self.detach(nid)?;
        self.mark_dirty(ino, nid);
        self.nodes.get_mut(nid).ok_or_else(|| Errno::Stale.into())
    }

    pub(crate) fn mark_dirty(&mut self, ino: Nid, nid: Nid) {
        self.nodes.mark_dirty(ino, nid);
        self.checkpoint.has_changes = true;
    }

    fn read_node(&mut self, nid: Nid) -> Result<Node> {
        let entry = self.nat.get(&*self.dev, nid)?;
        if !entry.addr.is_mapped() {
            return Err(Errno::Stale.into());
        }
        let (body, footer) = self.read_node_at(entry.addr)?;
        if (footer.nid, footer.ino) != (nid, entry.ino) {
            let what = format_args!("is node {} of inode {}", footer.nid, footer.ino);
            return Err(Error::corrupt(
                format_args!("node {nid} of inode {} (block {})", entry.ino, entry.addr),
                what,
            ));
        }
        Ok(Node {
            ino: footer.ino,
            ordinal: footer.ordinal,
            body,
        })
    }

    pub(crate) fn read_node_at(&self, addr: BlockAddr) -> Result<(NodeBody, Footer)> {
        let mut block = zero_block();
        self.dev
            .read(addr, &mut block[..])
            .map_err(|e| Error::io(e, format_args!("reading node block {addr}")))?;
        NodeBody::decode(&block, addr)
    }

    /// Returns an inode. `Stale` if the number is not that of an inode.
    pub(crate) fn inode(&mut self, ino: Nid) -> Result<&Inode> {
        match &self.node(ino)?.body {
            NodeBody::Inode(inode) => Ok(inode),
            _ => Err(Errno::Stale.into()),
        }
    }

    /// Returns an inode to change, and marks it as dirty.
    pub(crate) fn inode_mut(&mut self, ino: Nid) -> Result<&mut Inode> {
        self.inode(ino)?;
        match &mut self.node_mut(ino)?.body {
            NodeBody::Inode(inode) => Ok(inode),
            _ => Err(Errno::Stale.into()),
        }
    }

    /// Creates a node. The caller stores its number in the parent.
    pub(crate) fn new_node(
        &mut self,
        ino: Option<Nid>,
        ordinal: u32,
        body: NodeBody,
    ) -> Result<Nid> {
        let nid = self.nat.allocate(&*self.dev, ino)?;
        let ino = ino.unwrap_or(nid);
        self.nodes.insert(nid, Node { ino, ordinal, body });
        self.mark_dirty(ino, nid);
        self.live += 1;
        Ok(nid)
    }

    /// Frees a node, but not the blocks it names.
    pub(crate) fn free_node(&mut self, nid: Nid) -> Result<()> {
        match self.detach(nid) {
            // Its reservations are not known.
            Err(Error::Corrupt(_)) => {}
            other => other?,
        }
        let entry = self.nat.get(&*self.dev, nid)?;
        self.free_block(entry.addr);
        self.live -= 1;
        self.nat.release(nid);
        self.nodes.remove(nid);
        self.nodes.mark_clean(entry.ino, nid);
        Ok(())
    }

    fn node_log(&mut self, nid: Nid) -> Result<Log> {
        let node = self.node(nid)?;
        let ino = node.ino;
        if matches!(node.body, NodeBody::Indirect(..) | NodeBody::Xattr(_)) {
            return Ok(Log::ColdNode);
        }
        Ok(if self.inode(ino)?.is_dir() {
            Log::HotNode
        } else {
            Log::WarmNode
        })
    }

    /// Writes dirty nodes in the given order. With `group`, the last one ends the group of an fsync.
    pub(crate) fn write_nodes(&mut self, nids: &[Nid], group: bool) -> Result<()> {
        for (chunk_index, chunk) in nids.chunks(256).enumerate() {
            let mut logs: BTreeMap<Log, (Vec<u8>, Vec<Nid>)> = BTreeMap::new();
            for (i, &nid) in chunk.iter().enumerate() {
                let log = self.node_log(nid)?;
                let last = chunk_index * 256 + i + 1 == nids.len();
                let footer = self.next_footer(nid, if group && last { nids.len() } else { 0 });
                let (bytes, members) = logs.entry(log).or_default();
                bytes.extend_from_slice(&self.nodes[nid].body.encode(&footer));
                members.push(nid);
            }
            for (log, (bytes, members)) in logs {
                // A failure leaves a gap in the sequence, which hides every later group from roll-forward.
                let start = self
                    .append(log, &bytes)
                    .inspect_err(|_| self.checkpoint.is_required = true)?;
                self.nodes_written(start, &members)?;
            }
        }
        Ok(())
    }

    /// Footer of the next write of a cached node. `group` is the number of nodes of the fsync that it ends, 0 if it
    /// ends none.
    pub(crate) fn next_footer(&mut self, nid: Nid, group: usize) -> Footer {
        let node = &self.nodes[nid];
        let footer = Footer {
            nid,
            ino: node.ino,
            ordinal: node.ordinal,
            group: group as u32, // fits: node numbers have 32 bits
            tag: self.checkpoint.version,
            seq: self.roll_forward.next_seq,
        };
        self.roll_forward.next_seq += 1;
        footer
    }

    /// Records that nodes were written at consecutive addresses from `start` on. Their old blocks are dead.
    pub(crate) fn nodes_written(&mut self, start: BlockAddr, members: &[Nid]) -> Result<()> {
        for (addr, &nid) in (start.0..).map(BlockAddr).zip(members) {
            let NatEntry { addr: old, ino } = self.nat.get(&*self.dev, nid)?;
            self.free_block(old);
            self.nat.set(nid, NatEntry { addr, ino });
            self.nodes.mark_clean(ino, nid);
        }
        Ok(())
    }

    /// Drops clean nodes and pages if too many are cached. Must be called between operations only.
    pub(crate) fn shrink_caches(&mut self) {
        self.nodes.shrink(self.options.node_cache_max);
        if self.pages.clean() > self.options.page_cache_max {
            self.pages.drop_clean();
        }
    }

    /// Reads whole blocks and verifies the checksum of each.
    pub(crate) fn read_data(
        &self,
        ino: Nid,
        index: u64,
        slots: &[Slot],
        buf: &mut [u8],
    ) -> Result<()> {
        let first = slots[0].addr;
        self.dev.read(first, buf).map_err(|e| {
            Error::io(
                e,
                format_args!("reading {} blocks of inode {ino} at {first}", slots.len()),
            )
        })?;
        for (i, (slot, bytes)) in slots.iter().zip(buf.chunks_exact(BLOCK_SIZE)).enumerate() {
            verify_data(ino, index + i as u64, slot, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn touch(&mut self, ino: Nid, now: Time) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.mtime = now;
        inode.ctime = now;
        Ok(())
    }
}

pub(crate) fn verify_data(ino: Nid, index: u64, slot: &Slot, bytes: &[u8]) -> Result<()> {
    let found = crc32c::crc32c(bytes);
    if found == slot.crc {
        return Ok(());
    }
    let place = format_args!("block {index} of inode {ino} (block {})", slot.addr).to_string();
    Err(Error::corrupt(
        place,
        format_args!("checksum {found:#010x}, expected {:#010x}", slot.crc),
    ))
}
