//! Crash recovery: adopt the groups of fsyncs after the checkpoint, discard the rest, continue at a later address.
//!
//! ```text
//!   scan            head of the crashed mount            far                     far'
//!    │ groups of nodes, data │ never durable │ … limit …  │ this recovery writes   │
//!    └───────────── tail: adopted or discarded ───────────┘
//! ```
//!
//! A recovery first writes a checkpoint with the same content and the same scan marks, but with heads moved to `far`.
//! If the recovery is interrupted, the next one finds that checkpoint. It rolls forward from the same marks, starts
//! past the new `far`, and treats everything in between as tail. No address is written twice, however often a
//! recovery is interrupted.

use crate::disk::address::{BLOCK_SIZE, BlockAddr, Log, Nid};
use crate::disk::checkpoint::Phase;
use crate::disk::inode::Inode;
use crate::disk::nat::NatEntry;
use crate::disk::node::{Footer, NodeBody};
use crate::disk::slot::Slot;
use crate::error::{Error, Result};
use crate::nodes::cache::Node;
use crate::nodes::tree::roots;
use crate::options::{Caller, DiscardRule};
use crate::vfs::dir::kind_of;
use crate::volume::state::{Volume, verify_data};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Node found after the checkpoint.
struct RollForwardNode {
    addr: BlockAddr,
    footer: Footer,
    body: NodeBody,
}

impl Volume {
    pub(crate) fn recover(&mut self) -> Result<()> {
        self.recover_groups(true)?;
        self.evict_orphans();
        self.checkpoint()
    }

    /// Recovers up to the point where orphans are freed. Without `adopt`, the groups of fsyncs are discarded.
    pub(crate) fn recover_groups(&mut self, adopt: bool) -> Result<()> {
        if self.options.holds(DiscardRule::NoReuse) {
            let zone = self.sb.geometry.zone_blocks();
            let window = self.options.window_blocks;
            for log in Log::ALL {
                let m = self.logs.marks[log.index()];
                let mut restart = m.far.next_multiple_of(zone);
                if self.is_region_full(m.head, restart) {
                    restart = self.take_region()?;
                }
                let m = &mut self.logs.marks[log.index()];
                (m.head, m.limit) = (restart, restart + window);
                m.far = m.limit + window;
            }
        }
        let restart = self.logs.heads();
        self.move_preallocation();
        self.commit_unchanged(Phase::Recovering)?;
        let adopted = if adopt {
            self.mutate(|v| v.roll_forward())?
        } else {
            HashSet::new()
        };
        self.mutate(|v| v.free_tail(&adopted, restart))
    }

    /// Adopts groups in the order of their writing, up to the first incomplete one. Returns the adopted blocks.
    pub(crate) fn roll_forward(&mut self) -> Result<HashSet<u64>> {
        let mut adopted = HashSet::new();
        let mut open: Vec<RollForwardNode> = Vec::new();
        let mut at: BTreeMap<Log, u64> = Log::NODES
            .iter()
            .map(|log| (*log, self.logs.marks[log.index()].scan))
            .collect();
        let mut ahead: HashMap<Log, Option<RollForwardNode>> = HashMap::new();
        let mut seq = self.roll_forward.base_seq;
        loop {
            let mut next = None;
            for log in Log::NODES {
                let offset = at[&log];
                let found = match ahead.remove(&log) {
                    Some(found) => found,
                    None => self.roll_candidate(log, offset)?,
                };
                if found
                    .as_ref()
                    .is_some_and(|rolled| rolled.footer.seq == seq)
                {
                    at.insert(log, offset + 1);
                    next = found;
                    break;
                }
                ahead.insert(log, found);
            }
            let Some(rolled) = next else { break };
            seq += 1;
            let group = rolled.footer.group as usize;
            open.push(rolled);
            if group > 0 {
                if group > open.len() {
                    break;
                }
                let members = open.split_off(open.len() - group);
                open.clear();
                // Blocks that the group names past its own nodes are data and must not be taken for nodes.
                for slot in members.iter().flat_map(|m| m.body.slots()) {
                    if let Some((log, offset)) = self.sb.geometry.place(slot.addr)
                        && at.get(&log).is_some_and(|next| *next <= offset)
                    {
                        at.insert(log, offset + 1);
                        ahead.remove(&log);
                    }
                }
                if !self.adopt(members, &mut adopted)? {
                    break;
                }
                self.stats.adopted_groups += 1;
            }
        }
        self.roll_forward.next_seq = self.roll_forward.next_seq.max(seq);
        Ok(adopted)
    }

    /// Returns the node at an offset of a log, if it was written after the checkpoint.
    fn roll_candidate(&mut self, log: Log, offset: u64) -> Result<Option<RollForwardNode>> {
        if offset >= self.logs.marks[log.index()].far {
            return Ok(None);
        }
        let addr = self.sb.geometry.addr(log, offset);
        match self.read_node_at(addr) {
            Ok((body, footer)) if footer.tag == self.roll_forward.tag => {
                Ok(Some(RollForwardNode { addr, footer, body }))
            }
            Ok(_) | Err(Error::Corrupt(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Adopts a group if every block that it newly names is intact. Returns whether it did.
    fn adopt(&mut self, members: Vec<RollForwardNode>, adopted: &mut HashSet<u64>) -> Result<bool> {
        let ino = members[members.len() - 1].footer.nid;
        let NodeBody::Inode(last) = &members[members.len() - 1].body else {
            return Ok(false);
        };
        if members.iter().any(|m| m.footer.ino != ino) {
            return Ok(false);
        }
        let is_new = self.nat.get(&*self.dev, ino)?.addr == BlockAddr::HOLE;
        let (parent, name) = (last.parent, last.name.clone());
        // Verify everything before changing anything.
        for member in &members {
            let old = self.old_version(member.footer.nid)?;
            let old_slots = old.as_ref().map(NodeBody::slots).unwrap_or_default();
            let known: HashSet<BlockAddr> = old_slots.iter().map(|slot| slot.addr).collect();
            for slot in member
                .body
                .slots()
                .iter()
                .filter(|s| s.addr.is_mapped() && !known.contains(&s.addr))
            {
                let mut block = [0; BLOCK_SIZE];
                self.dev.read(slot.addr, &mut block).map_err(|e| {
                    Error::io(
                        e,
                        format_args!("reading block {} of inode {ino}", slot.addr),
                    )
                })?;
                if verify_data(ino, 0, slot, &block).is_err() {
                    return Ok(false);
                }
            }
        }
        for member in members {
            let nid = member.footer.nid;
            let old = self.old_version(nid)?;
            let (old_slots, new_slots) = (
                old.as_ref().map(NodeBody::slots).unwrap_or_default(),
                member.body.slots().to_vec(),
            );
            let (old_nids, new_nids) = (
                old.as_ref().map(nids).unwrap_or_default(),
                nids(&member.body),
            );
            let kept: HashSet<Nid> = new_nids.iter().map(|(nid, _)| *nid).collect();
            for (removed, level) in old_nids.into_iter().filter(|(nid, _)| !kept.contains(nid)) {
                self.forget_subtree(removed, level, adopted)?;
            }
            let width = old_slots.len().max(new_slots.len());
            for at in 0..width {
                let old = old_slots.get(at).copied().unwrap_or(Slot::HOLE);
                let new = new_slots.get(at).copied().unwrap_or(Slot::HOLE);
                self.live += u64::from(new.counts());
                if old.addr == new.addr {
                    self.live -= u64::from(old.counts());
                } else {
                    self.free_slot(old);
                    adopted.remove(&old.addr.0);
                    if new.addr.is_mapped() {
                        adopted.insert(new.addr.0);
                    }
                }
            }
            let entry = self.nat.get(&*self.dev, nid)?;
            if entry.addr == BlockAddr::HOLE {
                self.live += 1;
                self.nat.mark_used(nid);
            } else {
                self.detach(nid)?;
                self.free_block(entry.addr);
                adopted.remove(&entry.addr.0);
            }
            adopted.insert(member.addr.0);
            self.nat.set(
                nid,
                NatEntry {
                    addr: member.addr,
                    ino,
                },
            );
            let Footer { ino, ordinal, .. } = member.footer;
            self.nodes.insert(
                nid,
                Node {
                    ino,
                    ordinal,
                    body: member.body,
                },
            );
        }
        self.checkpoint.has_changes = true;
        if is_new {
            self.inodes += 1;
            self.next_generation = self
                .next_generation
                .max(self.inode(ino)?.generation.wrapping_add(1));
            self.adopt_name(ino, parent, &name)?;
        }
        Ok(true)
    }

    /// Inserts a new file under the name it was created with. An fsync leaves a new file to roll-forward only if the
    /// checkpoint contains its directory, and no file that had the name before.
    fn adopt_name(&mut self, ino: Nid, parent: Nid, name: &[u8]) -> Result<()> {
        let inode = self.inode(ino)?;
        let (mode_bits, now) = (inode.mode, inode.btime);
        self.require_dir(parent).map_err(|_| {
            Error::corrupt(
                format_args!("inode {ino}"),
                format_args!("was created in {parent}, which is not a directory"),
            )
        })?;
        let caller = Caller {
            now,
            uid: 0,
            gid: 0,
        };
        match self.find(parent, name)? {
            Some(found) => {
                self.retarget_entry(parent, found.position, ino, kind_of(mode_bits))?;
                self.drop_link(parent, name, found.ino, &caller)?;
            }
            None => self.insert_entry(parent, name, ino, kind_of(mode_bits))?,
        }
        self.touch(parent, now)
    }

    fn old_version(&mut self, nid: Nid) -> Result<Option<NodeBody>> {
        if self.nat.get(&*self.dev, nid)?.addr == BlockAddr::HOLE {
            return Ok(None);
        }
        Ok(Some(self.node(nid)?.body.clone()))
    }

    /// Frees a node that a newer version of its parent does not name, and its subtree. Bounded recursion: level 0
    /// ends it, at most four deep.
    fn forget_subtree(&mut self, nid: Nid, level: u8, adopted: &mut HashSet<u64>) -> Result<()> {
        let Some(body) = self.old_version(nid)? else {
            return Ok(());
        };
        // Without this check, a node that names itself would recurse forever.
        let found = if let NodeBody::Indirect(found, _) = &body {
            *found
        } else {
            0
        };
        if found != level {
            return Err(Error::corrupt(
                format_args!("node {nid}"),
                format_args!("level {found}, expected {level}"),
            ));
        }
        if level > 0 {
            for (child, below) in nids(&body) {
                self.forget_subtree(child, below, adopted)?;
            }
        }
        for slot in body.slots() {
            self.free_slot(*slot);
            adopted.remove(&slot.addr.0);
        }
        let entry = self.nat.get(&*self.dev, nid)?;
        adopted.remove(&entry.addr.0);
        self.free_node(nid)
    }

    /// Marks blocks after the checkpoint that were not adopted as dead. No other record of them exists.
    fn free_tail(&mut self, adopted: &HashSet<u64>, restart: [u64; 7]) -> Result<()> {
        for log in Log::ALL {
            // Blocks of this recovery start at `restart`.
            let range = self
                .sb
                .geometry
                .range(log, self.logs.marks[log.index()].scan..restart[log.index()]);
            let runs = self
                .dev
                .allocated(range)
                .map_err(|e| Error::io(e, format_args!("listing the tail of the {log:?} log")))?;
            for addr in runs.into_iter().flatten() {
                let known = adopted.contains(&addr) || self.checkpoint.overflow.contains(&addr);
                if !known && self.dead.insert(BlockAddr(addr)) {
                    self.stats.tail_blocks += 1;
                }
            }
        }
        Ok(())
    }
}

/// Node numbers in a node, with the level of each target.
fn nids(body: &NodeBody) -> Vec<(Nid, u8)> {
    match body {
        NodeBody::Inode(inode) => inode_nids(inode),
        NodeBody::Indirect(level, nids) => nids
            .iter()
            .filter(|nid| **nid != Nid::NONE)
            .map(|nid| (*nid, level - 1))
            .collect(),
        _ => Vec::new(),
    }
}

fn inode_nids(inode: &Inode) -> Vec<(Nid, u8)> {
    let mut out: Vec<(Nid, u8)> = roots(inode)
        .into_iter()
        .map(|(nid, level, _)| (nid, level))
        .collect();
    if inode.xattr_nid != Nid::NONE {
        out.push((inode.xattr_nid, 0));
    }
    out
}
