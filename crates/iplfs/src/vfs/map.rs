//! Block maps of inodes: finding, setting and freeing slots.

use crate::disk::address::Nid;
use crate::disk::inode::{BlockMap, Content, INODE_SLOTS};
use crate::disk::node::{DIRECT_SLOTS, INDIRECT_SLOTS, NodeBody};
use crate::disk::slot::Slot;
use crate::error::{Errno, Error, Result};
use crate::nodes::tree::{BLOCKS_MAX, ROOT_LEVELS, TreePosition, ordinal, place, span};
use crate::volume::state::Volume;

/// Node and index of a slot, or the first block past the missing subtree.
enum SlotLookup {
    Found(Nid, usize),
    Missing(u64),
}

impl Volume {
    pub(crate) fn map_of(&mut self, ino: Nid) -> Result<&BlockMap> {
        match &self.inode(ino)?.content {
            Content::Map(map) => Ok(map),
            _ => Err(Error::corrupt(
                format_args!("inode {ino}"),
                "content is inline where blocks were expected",
            )),
        }
    }

    fn map_mut(&mut self, ino: Nid) -> Result<&mut BlockMap> {
        self.map_of(ino)?;
        match &mut self.inode_mut(ino)?.content {
            Content::Map(map) => Ok(map),
            _ => Err(Errno::Stale.into()),
        }
    }

    fn indirect_entry(&mut self, nid: Nid, level: u8, ino: Nid, at: usize) -> Result<Nid> {
        let node = self.node(nid)?;
        match &node.body {
            NodeBody::Indirect(found, nids) if *found == level && node.ino == ino => Ok(nids[at]),
            _ => Err(Error::corrupt(
                format_args!("node {nid}"),
                format_args!("is not a level-{level} node of inode {ino}"),
            )),
        }
    }

    fn probe(&mut self, ino: Nid, index: u64) -> Result<SlotLookup> {
        if index < INODE_SLOTS as u64 {
            return Ok(SlotLookup::Found(ino, index as usize));
        }
        let Some(TreePosition {
            root,
            mut level,
            base,
        }) = place(index)
        else {
            return Err(Errno::FileTooBig.into());
        };
        let mut nid = self.map_of(ino)?.nids[root];
        let mut rest = index - base;
        loop {
            if nid == Nid::NONE {
                return Ok(SlotLookup::Missing(index - rest + span(level)));
            }
            if level == 0 {
                let node = self.node(nid)?;
                return match &node.body {
                    NodeBody::Direct(_) if node.ino == ino => {
                        Ok(SlotLookup::Found(nid, rest as usize))
                    }
                    _ => Err(Error::corrupt(
                        format_args!("node {nid}"),
                        format_args!("is not a direct node of inode {ino}"),
                    )),
                };
            }
            let below = span(level - 1);
            nid = self.indirect_entry(nid, level, ino, (rest / below) as usize)?;
            rest %= below;
            level -= 1;
        }
    }

    /// Returns the slot of a block of an inode with a map.
    pub(crate) fn slot(&mut self, ino: Nid, index: u64) -> Result<Slot> {
        match self.probe(ino, index)? {
            SlotLookup::Missing(_) => Ok(Slot::HOLE),
            SlotLookup::Found(nid, at) => self.slot_at(nid, at),
        }
    }

    pub(crate) fn slot_at(&mut self, nid: Nid, at: usize) -> Result<Slot> {
        match &self.node(nid)?.body {
            NodeBody::Direct(slots) => Ok(slots[at]),
            NodeBody::Inode(inode) => match &inode.content {
                Content::Map(map) => Ok(map.slots[at]),
                _ => Ok(Slot::HOLE),
            },
            _ => Err(Errno::Stale.into()),
        }
    }

    /// Finds the direct node, or the inode, that holds a slot.
    pub(crate) fn find_dnode(&mut self, ino: Nid, index: u64) -> Result<Option<(Nid, usize)>> {
        Ok(match self.probe(ino, index)? {
            SlotLookup::Found(nid, at) => Some((nid, at)),
            SlotLookup::Missing(_) => None,
        })
    }

    /// Returns the direct node, or the inode, that holds a slot. It is created if it is missing, and marked as dirty.
    fn dnode_for_write(&mut self, ino: Nid, index: u64) -> Result<(Nid, usize)> {
        if index < INODE_SLOTS as u64 {
            self.map_mut(ino)?;
            return Ok((ino, index as usize));
        }
        if let SlotLookup::Found(nid, at) = self.probe(ino, index)? {
            self.node_mut(nid)?;
            return Ok((nid, at));
        }
        let Some(TreePosition {
            root,
            mut level,
            base,
        }) = place(index)
        else {
            return Err(Errno::FileTooBig.into());
        };
        let mut rest = index - base;
        let mut nid = self.map_of(ino)?.nids[root];
        if nid == Nid::NONE {
            nid = self.new_map_node(ino, level, index - rest)?;
            self.map_mut(ino)?.nids[root] = nid;
        }
        while level > 0 {
            let below = span(level - 1);
            let at = (rest / below) as usize;
            rest %= below;
            let mut next = self.indirect_entry(nid, level, ino, at)?;
            level -= 1;
            if next == Nid::NONE {
                next = self.new_map_node(ino, level, index - rest)?;
                if let NodeBody::Indirect(_, nids) = &mut self.node_mut(nid)?.body {
                    nids[at] = next;
                }
            }
            nid = next;
        }
        self.node_mut(nid)?;
        Ok((nid, rest as usize))
    }

    fn new_map_node(&mut self, ino: Nid, level: u8, first: u64) -> Result<Nid> {
        let body = if level == 0 {
            NodeBody::Direct(Box::new([Slot::HOLE; DIRECT_SLOTS]))
        } else {
            NodeBody::Indirect(level, Box::new([Nid::NONE; INDIRECT_SLOTS]))
        };
        let nid = self.new_node(Some(ino), ordinal(first), body)?;
        self.count_blocks(ino, 1)?;
        Ok(nid)
    }

    /// Replaces a slot, frees what the old one held, and counts the new one.
    pub(crate) fn set_slot(&mut self, ino: Nid, index: u64, new: Slot) -> Result<()> {
        let (nid, at) = self.dnode_for_write(ino, index)?;
        let old = self.replace_slot(nid, at, new)?;
        if old.counts() != new.counts() {
            self.count_blocks(ino, if new.counts() { 1 } else { -1 })?;
        }
        self.live += u64::from(new.counts());
        self.free_slot(old);
        Ok(())
    }

    /// Replaces a slot of a node and returns the old one, which the caller frees.
    pub(crate) fn replace_slot(&mut self, nid: Nid, at: usize, new: Slot) -> Result<Slot> {
        match &mut self.node_mut(nid)?.body {
            NodeBody::Direct(slots) => Ok(std::mem::replace(&mut slots[at], new)),
            NodeBody::Inode(inode) => match &mut inode.content {
                Content::Map(map) => Ok(std::mem::replace(&mut map.slots[at], new)),
                _ => Err(Errno::Stale.into()),
            },
            _ => Err(Errno::Stale.into()),
        }
    }

    /// Reserves a block that is about to get a dirty page, and marks its node as dirty.
    pub(crate) fn reserve_block(&mut self, ino: Nid, index: u64) -> Result<()> {
        self.dnode_for_write(ino, index)?;
        if self.slot(ino, index)? == Slot::HOLE {
            self.set_slot(ino, index, Slot::RESERVED)
        } else {
            Ok(())
        }
    }

    /// First block at or after `from` whose slot is not a hole.
    pub(crate) fn next_allocated(&mut self, ino: Nid, from: u64) -> Result<Option<u64>> {
        let mut index = from;
        while index < BLOCKS_MAX {
            match self.probe(ino, index)? {
                SlotLookup::Missing(next) => index = next,
                SlotLookup::Found(nid, at) => {
                    let slots: &[Slot] = match &self.node(nid)?.body {
                        NodeBody::Direct(slots) => &slots[..],
                        NodeBody::Inode(inode) => match &inode.content {
                            Content::Map(map) => &map.slots,
                            _ => return Ok(None),
                        },
                        _ => return Ok(None),
                    };
                    if let Some(step) = slots[at..].iter().position(|slot| slot.counts()) {
                        return Ok(Some(index + step as u64));
                    }
                    index += (slots.len() - at) as u64;
                }
            }
        }
        Ok(None)
    }

    /// Frees all blocks from `first` on, and the nodes that become empty.
    pub(crate) fn truncate_blocks(&mut self, ino: Nid, first: u64) -> Result<()> {
        if first < INODE_SLOTS as u64 {
            let tail: Vec<Slot> = {
                let map = self.map_mut(ino)?;
                map.slots[first as usize..]
                    .iter_mut()
                    .map(std::mem::take)
                    .collect()
            };
            for slot in tail {
                self.free_slot_of(ino, slot)?;
            }
        }
        let mut base = INODE_SLOTS as u64;
        for (root, level) in ROOT_LEVELS.into_iter().enumerate() {
            let nid = self.map_of(ino)?.nids[root];
            let reached = nid != Nid::NONE && first < base + span(level);
            if reached && self.truncate_node(ino, nid, level, first.saturating_sub(base))? {
                self.map_mut(ino)?.nids[root] = Nid::NONE;
            }
            base += span(level);
        }
        Ok(())
    }

    fn free_slot_of(&mut self, ino: Nid, slot: Slot) -> Result<()> {
        if slot.counts() {
            self.free_slot(slot);
            self.count_blocks(ino, -1)?;
        }
        Ok(())
    }

    /// Frees the blocks of a subtree from block `from` on. Returns whether the node itself was freed. Bounded
    /// recursion: level 0 ends it, at most four deep.
    fn truncate_node(&mut self, ino: Nid, nid: Nid, level: u8, from: u64) -> Result<bool> {
        if level == 0 {
            let node = self.node(nid)?;
            let NodeBody::Direct(slots) = &node.body else {
                return Err(Error::corrupt(
                    format_args!("node {nid}"),
                    "is not a direct node",
                ));
            };
            let removed: Vec<Slot> = slots[from as usize..]
                .iter()
                .copied()
                .filter(|slot| slot.counts())
                .collect();
            for slot in &removed {
                self.free_slot_of(ino, *slot)?;
            }
            if from > 0 {
                if !removed.is_empty()
                    && let NodeBody::Direct(slots) = &mut self.node_mut(nid)?.body
                {
                    slots[from as usize..].fill(Slot::HOLE);
                }
                return Ok(false);
            }
        } else {
            let below = span(level - 1);
            let first = (from / below) as usize;
            for at in first..INDIRECT_SLOTS {
                let child = self.indirect_entry(nid, level, ino, at)?;
                if child == Nid::NONE {
                    continue;
                }
                let child_from = from.saturating_sub(at as u64 * below);
                if self.truncate_node(ino, child, level - 1, child_from)?
                    && let NodeBody::Indirect(_, nids) = &mut self.node_mut(nid)?.body
                {
                    nids[at] = Nid::NONE;
                }
            }
            if from > 0 {
                return Ok(false);
            }
        }
        self.free_node(nid)?;
        self.count_blocks(ino, -1)?;
        Ok(true)
    }
}
