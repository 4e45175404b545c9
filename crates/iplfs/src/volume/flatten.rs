//! Flattening: writing the blocks again that a branch shares with other branches.
//!
//! ```text
//!  data of a node ► the node, dirty ► … ► checkpoint ► whole table, checkpoint
//! ```
//!
//! Nodes are visited by their numbers, so inodes without a name are included. Every step is an ordinary change of the
//! volume: a crash leaves a state that shares less.

use crate::disk::address::{BLOCK_SIZE, BlockAddr, Nid};
use crate::disk::inode::INODE_SLOTS;
use crate::disk::nat::{NAT_FANOUT, NatEntry};
use crate::disk::node::{DIRECT_SLOTS, NodeBody};
use crate::disk::slot::Slot;
use crate::error::{Errno, Error, Result};
use crate::volume::state::Volume;

/// Returns the first number of a leaf of the node address table that `nid` is, and the leaf.
fn leaf_from(nid: u32) -> Option<u32> {
    let fanout = NAT_FANOUT as u32;
    // No node has the number 0.
    (nid == 1 || nid.is_multiple_of(fanout)).then_some(nid / fanout)
}

impl Volume {
    /// Writes every block again that the present state shares with other branches, and makes the copies durable. Returns
    /// their number. `progress` gets the blocks that were copied and their total. After an error or a crash, a repeated
    /// call continues.
    ///
    /// # Errors
    /// `Limit` if the copies do not fit the volume or its host; nothing is copied then. `Corrupt` if a block that must be
    /// copied is damaged.
    pub fn flatten(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        self.sync()?;
        let total = self.fork_points.shared_blocks;
        if total == 0 {
            return Ok(0);
        }
        self.admit_copies(total)?;
        for nid in 1..self.nat.next_nid {
            self.copy_node(Nid(nid))?;
            progress(total.saturating_sub(self.fork_points.shared_blocks), total);
        }
        self.checkpoint()?;
        self.admit(16, false)?;
        self.checkpoint_whole_table()?;
        match self.fork_points.shared_blocks {
            0 => Ok(total),
            left => Err(Error::corrupt(
                "checkpoint",
                format_args!("{left} shared blocks that nothing refers to"),
            )),
        }
    }

    /// Fails unless there is space for `blocks` copies.
    fn admit_copies(&mut self, blocks: u64) -> Result<()> {
        let kib = |blocks: u64| blocks * (BLOCK_SIZE as u64 >> 10);
        match self.admit(blocks + blocks / 300 + 16, false) {
            Err(Error::Posix(Errno::NoSpace)) => Err(Error::Limit(format!(
                "the branch shares {} KiB, and the volume has {} KiB for copies: delete files, snapshots or branches",
                kib(blocks),
                kib(self.space().available())
            ))),
            Err(Error::Posix(Errno::HostFull)) => Err(Error::Limit(format!(
                "the branch shares {} KiB, and the host has less for copies: free space on the host",
                kib(blocks)
            ))),
            other => other,
        }
    }

    /// Copies the shared data blocks of a node, and marks the node and its leaf of the table as dirty if they are shared.
    fn copy_node(&mut self, nid: Nid) -> Result<()> {
        let dev = self.dev.clone();
        let entry = self.nat.get(&*dev, nid)?;
        if let Some(leaf) = leaf_from(nid.0) {
            let addr = self.nat.leaf_addr(&*dev, leaf)?;
            if self.is_shared(addr) {
                self.nat.set(nid, entry);
                self.checkpoint.has_changes = true;
            }
        }
        if !entry.addr.is_mapped() {
            return Ok(());
        }
        let slots = self.node(nid)?.body.slots().to_vec();
        let shared: Vec<(usize, Slot)> = (0..)
            .zip(slots)
            .filter(|(_, slot)| slot.addr.is_mapped() && self.is_shared(slot.addr))
            .collect();
        if shared.is_empty() && !self.is_shared(entry.addr) {
            return Ok(());
        }
        self.admit(shared.len() as u64 + 2, false)?;
        self.copy_data(nid, entry, &shared)?;
        self.mutate(|v| v.node_mut(nid).map(drop))
    }

    /// Writes data blocks of a node again, which `shared` gives by their positions in it.
    fn copy_data(&mut self, nid: Nid, entry: NatEntry, shared: &[(usize, Slot)]) -> Result<()> {
        if shared.is_empty() {
            return Ok(());
        }
        let node = self.node(nid)?;
        let first = match node.body {
            NodeBody::Inode(_) => 0,
            _ => INODE_SLOTS as u64 + u64::from(node.ordinal) * DIRECT_SLOTS as u64,
        };
        let mut bytes = vec![0; shared.len() * BLOCK_SIZE];
        let mut rest = &mut bytes[..];
        let is_next =
            |a: &(usize, Slot), b: &(usize, Slot)| (b.0, b.1.addr.0) == (a.0 + 1, a.1.addr.0 + 1);
        for run in shared.chunk_by(is_next) {
            let (now, later) = rest.split_at_mut(run.len() * BLOCK_SIZE);
            let slots: Vec<Slot> = run.iter().map(|(_, slot)| *slot).collect();
            self.read_data(entry.ino, first + run[0].0 as u64, &slots, now)?;
            rest = later;
        }
        let log = self.data_log(entry.ino)?;
        let start = self.append(log, &bytes)?;
        self.mutate(|v| {
            for (addr, (at, old)) in (start.0..).zip(shared) {
                let copy = Slot {
                    addr: BlockAddr(addr),
                    ..*old
                };
                v.replace_slot(nid, *at, copy)?;
                v.free_block(old.addr);
            }
            Ok(())
        })
    }

    /// Returns whether this state, that of a snapshot or fork point, refers to a block below the heads.
    pub(crate) fn refers_below(&mut self, heads: &[u64; 7]) -> Result<bool> {
        let dev = self.dev.clone();
        for nid in 1..self.nat.next_nid {
            if let Some(leaf) = leaf_from(nid) {
                let addr = self.nat.leaf_addr(&*dev, leaf)?;
                if self.lies_below(addr, heads) {
                    return Ok(true);
                }
            }
            let addr = self.nat.get(&*dev, Nid(nid))?.addr;
            if !addr.is_mapped() {
                continue;
            }
            let (body, _) = self.read_node_at(addr)?;
            let mut blocks = body.slots().iter().map(|slot| slot.addr).chain([addr]);
            if blocks.any(|addr| addr.is_mapped() && self.lies_below(addr, heads)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
