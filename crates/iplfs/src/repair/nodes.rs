//! Repair of nodes and blocks: keep what is sound, rebuild indirect nodes from their children, cut out the rest.

use super::salvage::Salvage;
use crate::disk::address::{BLOCK_SIZE, BlockAddr, Log, Nid};
use crate::disk::inode::{Content, Inode};
use crate::disk::node::{DIRECT_SLOTS, INDIRECT_SLOTS, NodeBody};
use crate::disk::slot::Slot;
use crate::disk::xattr;
use crate::error::{Error, Result};
use crate::nodes::cache::Node;
use crate::nodes::tree::{ROOT_LEVELS, child_base, ordinal_at, root_base, span};
use crate::quota;
use crate::volume::unlisted::is_forked;
use std::collections::HashSet;

impl Salvage {
    /// Keeps a node if it can be read and belongs to `owner`.
    pub(super) fn keep_node(&mut self, nid: Nid, owner: Nid) -> Result<bool> {
        let Some(entry) = self.table.get(&nid).copied() else {
            return Ok(false);
        };
        let place = self.v.sb.geometry.place(entry.addr);
        let fits = place.is_some_and(|(log, offset)| {
            Log::NODES.contains(&log) && offset < self.v.logs.marks[log.index()].head
        });
        if entry.ino != owner
            || !fits
            || self.kept.contains(&nid)
            || self.claimed.contains(&entry.addr.0)
        {
            return Ok(false);
        }
        match self.v.node(nid) {
            Ok(node) if (nid == owner) != matches!(node.body, NodeBody::Inode(_)) => {
                return Ok(false);
            }
            Ok(_) => {}
            Err(Error::Corrupt(_) | Error::Posix(_)) => return Ok(false),
            Err(e) => return Err(e),
        }
        self.claimed.insert(entry.addr.0);
        self.kept.insert(nid);
        self.live += 1;
        Ok(true)
    }

    /// Undoes the effect of [`keep_node`](Self::keep_node).
    pub(super) fn drop_node(&mut self, nid: Nid) {
        if self.kept.remove(&nid) {
            self.live -= 1;
            if let Some(entry) = self.table.get(&nid) {
                self.claimed.remove(&entry.addr.0);
            }
        }
    }

    pub(super) fn repair_maps(&mut self) -> Result<()> {
        for (nid, entry) in self.table.clone() {
            if nid == entry.ino {
                continue;
            }
            if let Ok(node) = self.v.node(nid) {
                let level = match &node.body {
                    NodeBody::Direct(_) => 0,
                    NodeBody::Indirect(level, _) => *level,
                    _ => continue,
                };
                let place = (level, node.ordinal);
                self.places.entry(entry.ino).or_default().insert(place, nid);
            }
            self.v.shrink_caches();
        }
        let inos: Vec<Nid> = self
            .table
            .iter()
            .filter(|(nid, entry)| **nid == entry.ino)
            .map(|(nid, _)| *nid)
            .collect();
        for ino in inos {
            if self.keep_node(ino, ino)? {
                self.inos.insert(ino);
                self.repair_map(ino)?;
            } else {
                self.damaged.insert(ino);
                self.note(format_args!("inode {ino}"), "cannot be read");
            }
            self.v.shrink_caches();
        }
        let unused: Vec<Nid> = self
            .table
            .keys()
            .copied()
            .filter(|nid| !self.kept.contains(nid))
            .collect();
        for nid in unused {
            let ino = self.table[&nid].ino;
            if !self.stale && nid != ino {
                self.note(
                    format_args!("node {nid}"),
                    format_args!("not used by inode {ino}; freed"),
                );
            }
            self.v.nat.release(nid);
            self.v.nodes.remove(nid);
            self.v.nodes.mark_clean(ino, nid);
        }
        Ok(())
    }

    /// Repairs the block map of an inode that was kept.
    pub(super) fn repair_map(&mut self, ino: Nid) -> Result<()> {
        let was = self.v.inode(ino)?.clone();
        let mut inode = was.clone();
        let mut blocks = 0;
        if let Content::Map(map) = &mut inode.content {
            for (i, slot) in map.slots.iter_mut().enumerate() {
                *slot = self.repair_slot(ino, i as u64, *slot)?;
                blocks += u64::from(slot.counts());
            }
            for (root, nid) in map.nids.iter_mut().enumerate() {
                let (level, base) = (ROOT_LEVELS[root], root_base(root));
                let (new, under) = self.repair_subtree(ino, *nid, level, base, was.size)?;
                *nid = new;
                blocks += under;
            }
        }
        if inode.xattr_nid != Nid::NONE {
            let taken = self.keep_node(inode.xattr_nid, ino)?;
            let sound = taken
                && matches!(&self.v.node(inode.xattr_nid)?.body, NodeBody::Xattr(bytes) if xattr::decode(bytes).is_ok());
            if sound {
                blocks += 1;
                inode.xattr = Vec::new();
            } else {
                // A node that was not kept here belongs to another inode.
                if taken {
                    self.drop_node(inode.xattr_nid);
                }
                self.note_in(
                    ino,
                    format_args!("inode {ino}"),
                    "its extended attributes are lost",
                );
                inode.xattr_nid = Nid::NONE;
            }
        }
        if xattr::decode(&inode.xattr).is_err() {
            self.note_in(
                ino,
                format_args!("inode {ino}"),
                "its extended attributes are lost",
            );
            inode.xattr = Vec::new();
        }
        if ino == Nid::ROOT {
            self.drop_invalid_limits(&mut inode)?;
        }
        if let Content::Inline(bytes) = &inode.content {
            inode.size = inode.size.max(bytes.len() as u64);
        }
        inode.blocks = blocks;
        if inode != was {
            *self.v.inode_mut(ino)? = inode;
        }
        Ok(())
    }

    /// Drops attributes of the root directory that look like limits and cannot be parsed.
    fn drop_invalid_limits(&mut self, root: &mut Inode) -> Result<()> {
        let nid = root.xattr_nid;
        let left = if nid == Nid::NONE {
            quota::understood(&root.xattr)
        } else {
            match &self.v.node(nid)?.body {
                NodeBody::Xattr(bytes) => quota::understood(bytes),
                _ => None,
            }
        };
        let Some(left) = left else {
            return Ok(());
        };
        if nid == Nid::NONE {
            root.xattr = left;
        } else {
            self.v.node_mut(nid)?.body = NodeBody::Xattr(left);
        }
        self.note("root directory", "a malformed limit is removed");
        Ok(())
    }

    /// Returns the slot to use instead of a slot: the same, or a lost one.
    pub(super) fn repair_slot(&mut self, ino: Nid, index: u64, slot: Slot) -> Result<Slot> {
        if !slot.counts() {
            return Ok(slot);
        }
        self.live += 1;
        if !slot.addr.is_mapped() {
            return Ok(slot);
        }
        let place = self.v.sb.geometry.place(slot.addr);
        let fits = place.is_some_and(|(log, offset)| {
            log.may_hold_data() && offset < self.v.logs.marks[log.index()].head
        });
        let mut sound = fits && self.claimed.insert(slot.addr.0);
        if sound && self.data {
            let mut bytes = [0; BLOCK_SIZE];
            match self.v.read_data(ino, index, &[slot], &mut bytes) {
                Ok(()) => {}
                Err(Error::Corrupt(_)) => {
                    sound = false;
                    self.claimed.remove(&slot.addr.0);
                }
                Err(e) => return Err(e),
            }
        }
        if sound {
            return Ok(slot);
        }
        if self.incomplete.insert(ino) && !self.stale {
            let what = format_args!("block {index} is lost, and possibly others");
            self.note_in(ino, format_args!("inode {ino}"), what);
        }
        Ok(Slot::LOST)
    }

    /// Repairs the subtree of a node. Returns its number, which may be new, and its number of blocks.
    pub(super) fn repair_subtree(
        &mut self,
        ino: Nid,
        nid: Nid,
        level: u8,
        base: u64,
        size: u64,
    ) -> Result<(Nid, u64)> {
        if nid == Nid::NONE {
            return Ok((nid, 0));
        }
        if self.keep_node(nid, ino)? {
            let body = self.v.node(nid)?.body.clone();
            let ordinal = self.v.node(nid)?.ordinal;
            if let Some((new, blocks)) = self.repair_body(ino, &body, level, base, size)? {
                if new != body || ordinal != ordinal_at(base) {
                    let node = self.v.node_mut(nid)?;
                    (node.body, node.ordinal) = (new, ordinal_at(base));
                }
                return Ok((nid, blocks + 1));
            }
            self.drop_node(nid);
        }
        self.incomplete.insert(ino);
        self.note_in(
            ino,
            format_args!("node {nid} of inode {ino}"),
            "cannot be read",
        );
        self.rebuild_subtree(ino, level, base, size)
    }

    /// Repairs the content of a node. Returns it with the number of blocks under it, `None` if the node has another
    /// level.
    pub(super) fn repair_body(
        &mut self,
        ino: Nid,
        body: &NodeBody,
        level: u8,
        base: u64,
        size: u64,
    ) -> Result<Option<(NodeBody, u64)>> {
        let mut blocks = 0;
        match body {
            NodeBody::Direct(slots) if level == 0 => {
                let mut slots = slots.clone();
                for (i, slot) in slots.iter_mut().enumerate() {
                    *slot = self.repair_slot(ino, base + i as u64, *slot)?;
                    blocks += u64::from(slot.counts());
                }
                Ok(Some((NodeBody::Direct(slots), blocks)))
            }
            NodeBody::Indirect(found, nids) if *found == level && level > 0 => {
                let mut nids = nids.clone();
                for (at, nid) in nids.iter_mut().enumerate() {
                    let (new, under) = self.repair_subtree(
                        ino,
                        *nid,
                        level - 1,
                        child_base(base, level, at),
                        size,
                    )?;
                    *nid = new;
                    blocks += under;
                }
                Ok(Some((NodeBody::Indirect(level, nids), blocks)))
            }
            _ => Ok(None),
        }
    }

    /// Rebuilds a lost node from its children, which state their positions. Under a lost direct node every block of
    /// the file is lost. Bounded recursion: level 0 ends it, at most four deep.
    pub(super) fn rebuild_subtree(
        &mut self,
        ino: Nid,
        level: u8,
        base: u64,
        size: u64,
    ) -> Result<(Nid, u64)> {
        if level == 0 {
            let end = size.div_ceil(BLOCK_SIZE as u64);
            let n = end.saturating_sub(base).min(DIRECT_SLOTS as u64) as usize;
            if n == 0 {
                return Ok((Nid::NONE, 0));
            }
            let mut slots = Box::new([Slot::HOLE; DIRECT_SLOTS]);
            slots[..n].fill(Slot::LOST);
            self.live += n as u64;
            let nid = self.new_node(ino, base, NodeBody::Direct(slots))?;
            return Ok((nid, n as u64 + 1));
        }
        let mut nids = Box::new([Nid::NONE; INDIRECT_SLOTS]);
        let mut blocks = 0;
        for (at, nid) in nids.iter_mut().enumerate() {
            let first = child_base(base, level, at);
            let range = ordinal_at(first)..ordinal_at(first + span(level - 1));
            let known = self.places.get(&ino).cloned().unwrap_or_default();
            let mut present = known
                .iter()
                .filter(|((l, o), _)| *l < level && range.contains(o));
            if present.next().is_none() {
                continue;
            }
            let child = known.get(&(level - 1, range.start)).copied();
            let (new, under) = match child {
                Some(child) => self.repair_subtree(ino, child, level - 1, first, size)?,
                None => self.rebuild_subtree(ino, level - 1, first, size)?,
            };
            *nid = new;
            blocks += under;
        }
        let nid = self.new_node(ino, base, NodeBody::Indirect(level, nids))?;
        Ok((nid, blocks + 1))
    }

    pub(super) fn new_node(&mut self, ino: Nid, base: u64, body: NodeBody) -> Result<Nid> {
        let dev = self.v.dev.clone();
        let nid = self.v.nat.allocate(&*dev, Some(ino))?;
        let ordinal = ordinal_at(base);
        self.v.nodes.insert(nid, Node { ino, ordinal, body });
        self.v.mark_dirty(ino, nid);
        self.live += 1;
        Ok(nid)
    }

    /// Recomputes the counts of the checkpoint from what was kept.
    pub(super) fn recount(&mut self) -> Result<()> {
        self.v.live = self.live;
        self.v.inodes = self.inos.len() as u64;
        let (mut held, mut damaged_fork) = (HashSet::new(), None);
        let holders = self.v.holders()?;
        for (version, holder) in holders.iter().copied() {
            let Some(mut state) = self.v.state_of(holder)? else {
                continue;
            };
            let references = state.readable_references()?;
            if !references.damage.is_empty() && is_forked(&holders, version) {
                damaged_fork = Some(state.logs.heads());
            }
            // Blocks of other branches are held there.
            let own = references.addrs();
            held.extend(own.filter(|addr| !self.v.is_shared(BlockAddr(*addr))));
        }
        let alive: HashSet<u64> = held.union(&self.claimed).copied().collect();
        self.v.discard_log.remove_live(|addr| alive.contains(&addr));
        let dead = self.v.dead.runs();
        let bits = self.v.sb.geometry.section_bits;
        self.v.dead = crate::log::dead_blocks::DeadBlocks::new(bits);
        for addr in dead
            .into_iter()
            .flatten()
            .filter(|addr| !alive.contains(addr))
        {
            self.v.dead.insert(BlockAddr(addr));
        }
        // Blocks of dropped nodes and of a dropped node address table are found by the trim at the end.
        held.retain(|addr| !self.claimed.contains(addr));
        let (mut tree, mut nodes) = (HashSet::new(), Vec::new());
        let dev = self.v.dev.clone();
        self.v.nat.walk(
            &*dev,
            |nid, _| nodes.push(nid),
            |addr| _ = tree.insert(addr.0),
        )?;
        held.retain(|addr| !tree.contains(addr));
        if let Some(heads) = damaged_fork {
            let lists = [&held, &self.claimed, &tree];
            let known = |addr| lists.iter().any(|list| list.contains(&addr));
            let unlisted = self.v.unlisted_blocks(&heads, known)?;
            held.extend(unlisted);
        }
        let used = self.claimed.iter().chain(&tree);
        let shared = used.filter(|addr| self.v.is_shared(BlockAddr(**addr)));
        let mut shared = shared.count() as u64;
        for nid in nodes {
            if self.v.is_inherited(nid)? {
                shared += self.v.node(nid)?.body.without_block();
            }
        }
        self.v.fork_points.shared_blocks = shared;
        self.v.snapshots.held_blocks = held.len() as u64;
        Ok(())
    }
}
