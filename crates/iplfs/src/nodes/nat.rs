//! Node address table in memory: the tree on the device, and the changes since it was last written.

use crate::device::BlockDevice;
use crate::disk::address::{BLOCK_SIZE, BlockAddr, Geometry, Log, Nid};
use crate::disk::nat::{NAT_FANOUT, NAT_HEIGHT_MAX, NatBlock, NatEntry, NatPointer, height_for};
use crate::error::{Errno, Error, Result};
use foldhash::fast::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const FANOUT: u32 = NAT_FANOUT as u32;

/// Changes of one level of the tree: per block, positions and new pairs.
type Changes = BTreeMap<u32, Vec<(usize, (u64, u32))>>;

/// Readable part of a damaged table.
#[derive(Default)]
pub(crate) struct Salvaged {
    pub(crate) entries: BTreeMap<Nid, NatEntry>,
    /// Ranges of numbers whose entries cannot be read.
    pub(crate) lost: Vec<std::ops::Range<u64>>,
    /// Numbers that the journal marks as free, whatever the tree contains.
    pub(crate) free: BTreeSet<Nid>,
    /// Blocks of the tree, unreadable ones included.
    pub(crate) tree: Vec<BlockAddr>,
    /// Errors that made the ranges unreadable.
    pub(crate) damage: Vec<Error>,
}

/// Node address table of a volume.
#[derive(Default)]
pub(crate) struct Nat {
    pub(crate) height: u32,
    pub(crate) root: NatPointer,
    /// Number of blocks of the tree.
    pub(crate) blocks: u64,
    pub(crate) next_nid: u32,
    /// Entries that differ from the tree. The address `RESERVED` marks a node that was never written.
    dirty: BTreeMap<Nid, NatEntry>,
    cache: HashMap<(u32, u32), NatBlock, RandomState>,
    /// Numbers that can be allocated.
    free: BTreeSet<Nid>,
    /// Numbers freed since the last checkpoint. Reusing one before the next checkpoint would let roll-forward put a
    /// new file under an old name.
    freed: BTreeSet<Nid>,
    /// Numbers that the checkpoint in progress frees.
    freed_in_commit: BTreeSet<Nid>,
    /// First leaf that was not yet searched for free numbers.
    search_leaf: u32,
}

/// Differences between two trees.
#[derive(Default)]
pub(crate) struct NatChanges {
    /// Blocks of the newer tree that the older one does not contain.
    pub(crate) new: Vec<BlockAddr>,
    /// Blocks of the older tree that they replace.
    pub(crate) old: Vec<BlockAddr>,
    /// Entries that differ: number, old entry, new entry.
    pub(crate) entries: Vec<(Nid, NatEntry, NatEntry)>,
}

/// Tree at new addresses that is not valid yet.
pub(crate) struct NatUpdate {
    pub(crate) bytes: Vec<u8>,
    blocks: Vec<(NatPointer, NatBlock)>,
    height: u32,
    root: NatPointer,
    pub(crate) dead: Vec<BlockAddr>,
    count: u64,
}

impl Nat {
    /// Returns the entry of a number. Its address is `HOLE` if the number is free.
    pub(crate) fn get(&mut self, dev: &dyn BlockDevice, nid: Nid) -> Result<NatEntry> {
        if let Some(entry) = self.dirty.get(&nid) {
            return Ok(*entry);
        }
        let Some(leaf) = self.load(dev, 0, nid.0 / FANOUT)? else {
            return Ok(NatEntry::default());
        };
        let (addr, ino) = leaf.pairs[(nid.0 % FANOUT) as usize];
        Ok(NatEntry {
            addr: BlockAddr(addr),
            ino: Nid(ino),
        })
    }

    /// Returns the address of a leaf of the tree on the device, `HOLE` if there is none.
    pub(crate) fn leaf_addr(&mut self, dev: &dyn BlockDevice, leaf: u32) -> Result<BlockAddr> {
        Ok(self.pointer(dev, 0, leaf)?.addr)
    }

    /// Sets the entry of a number.
    pub(crate) fn set(&mut self, nid: Nid, entry: NatEntry) {
        self.dirty.insert(nid, entry);
    }

    /// Marks a number as used, during recovery.
    pub(crate) fn mark_used(&mut self, nid: Nid) {
        self.next_nid = self.next_nid.max(nid.0.saturating_add(1));
        self.free.remove(&nid);
    }

    /// Allocates a node number.
    pub(crate) fn allocate(&mut self, dev: &dyn BlockDevice, ino: Option<Nid>) -> Result<Nid> {
        let leaves = if self.height == 0 {
            0
        } else {
            self.next_nid.div_ceil(FANOUT)
        };
        while self.free.is_empty() && self.search_leaf < leaves {
            let leaf = self.search_leaf;
            self.search_leaf += 1;
            self.scan_leaf(dev, leaf)?;
        }
        let nid = match self.free.pop_first() {
            Some(nid) => nid,
            None => {
                let nid = Nid(self.next_nid);
                self.next_nid = self.next_nid.checked_add(1).ok_or(Errno::NoSpace)?;
                nid
            }
        };
        self.dirty.insert(
            nid,
            NatEntry {
                addr: BlockAddr::RESERVED,
                ino: ino.unwrap_or(nid),
            },
        );
        Ok(nid)
    }

    fn scan_leaf(&mut self, dev: &dyn BlockDevice, leaf: u32) -> Result<()> {
        let end = u64::from(leaf + 1) * u64::from(FANOUT);
        let end = end.min(u64::from(self.next_nid)) as u32;
        for nid in (leaf * FANOUT).max(2)..end {
            let nid = Nid(nid);
            let waits = self.freed.contains(&nid) || self.freed_in_commit.contains(&nid);
            if !waits && self.get(dev, nid)?.addr == BlockAddr::HOLE {
                self.free.insert(nid);
            }
        }
        Ok(())
    }

    /// Frees a number. It can be allocated again after the next checkpoint.
    pub(crate) fn release(&mut self, nid: Nid) {
        self.dirty.insert(nid, NatEntry::default());
        self.freed.insert(nid);
    }

    /// Begins a checkpoint, which commits the numbers freed since the last one.
    pub(crate) fn begin_commit(&mut self) {
        self.freed_in_commit.append(&mut self.freed);
    }

    /// Ends a checkpoint that was committed.
    pub(crate) fn end_commit(&mut self) {
        self.free.append(&mut self.freed_in_commit);
    }

    /// Ends a checkpoint that failed.
    pub(crate) fn abort_commit(&mut self) {
        self.freed.append(&mut self.freed_in_commit);
    }

    /// Entries that differ from the tree.
    pub(crate) fn journal(&self) -> &BTreeMap<Nid, NatEntry> {
        &self.dirty
    }

    /// Applies the journal of a pack.
    pub(crate) fn replay(&mut self, journal: Vec<(Nid, NatEntry)>) {
        self.dirty.extend(journal);
    }

    /// Maximum number of blocks that writing the tree would take.
    pub(crate) fn update_blocks_max(&self) -> u64 {
        (self.dirty.len() as u64).min(self.blocks + 1 + self.dirty.len() as u64 / 8)
            + u64::from(NAT_HEIGHT_MAX)
    }

    /// Reads a block of the tree. `None` if nothing below it was ever used.
    fn load(&mut self, dev: &dyn BlockDevice, level: u32, index: u32) -> Result<Option<&NatBlock>> {
        if !self.cache.contains_key(&(level, index)) {
            let pointer = self.pointer(dev, level, index)?;
            if pointer.addr == BlockAddr::HOLE {
                return Ok(None);
            }
            let mut block = [0; BLOCK_SIZE];
            dev.read(pointer.addr, &mut block).map_err(|e| {
                Error::io(
                    e,
                    format_args!("reading the node address table at {}", pointer.addr),
                )
            })?;
            let block = NatBlock::decode(&block, level, index, pointer.crc)?;
            self.cache.insert((level, index), block);
        }
        Ok(self.cache.get(&(level, index)))
    }

    fn pointer(&mut self, dev: &dyn BlockDevice, level: u32, index: u32) -> Result<NatPointer> {
        // Bounded recursion: `load` calls back with level + 1, and the height is at most NAT_HEIGHT_MAX.
        if level >= self.height {
            return Ok(NatPointer::default());
        }
        if level + 1 == self.height {
            return Ok(if index == 0 {
                self.root
            } else {
                NatPointer::default()
            });
        }
        let Some(parent) = self.load(dev, level + 1, index / FANOUT)? else {
            return Ok(NatPointer::default());
        };
        let (addr, crc) = parent.pairs[(index % FANOUT) as usize];
        Ok(NatPointer {
            addr: BlockAddr(addr),
            crc,
        })
    }

    /// Builds a tree with all changes. Its blocks are laid out from `head` of the metadata log on.
    pub(crate) fn plan_update(
        &mut self,
        dev: &dyn BlockDevice,
        geometry: &Geometry,
        head: u64,
    ) -> Result<NatUpdate> {
        let height = height_for(self.next_nid).max(self.height).max(1);
        let old_height = self.height;
        let mut update = NatUpdate {
            bytes: Vec::new(),
            blocks: Vec::new(),
            height,
            root: NatPointer::default(),
            dead: Vec::new(),
            count: self.blocks,
        };
        let changes: Vec<(Nid, NatEntry)> = self
            .dirty
            .iter()
            .map(|(nid, entry)| (*nid, *entry))
            .collect();
        let mut level_changes = Changes::new();
        for (nid, entry) in changes {
            assert!(
                entry.addr != BlockAddr::RESERVED,
                "node {nid} was never written"
            );
            let pair = (entry.addr.0, entry.ino.0);
            level_changes
                .entry(nid.0 / FANOUT)
                .or_default()
                .push(((nid.0 % FANOUT) as usize, pair));
        }
        for level in 0..height {
            let mut above = Changes::new();
            if level == old_height && level > 0 && self.root.addr != BlockAddr::HOLE {
                // The tree grows: the old root becomes the first child, unless this update already replaced it.
                let pairs = level_changes.entry(0).or_default();
                if !pairs.iter().any(|(at, _)| *at == 0) {
                    pairs.push((0, (self.root.addr.0, self.root.crc)));
                }
            }
            for (index, pairs) in level_changes {
                let old = self.pointer(dev, level, index)?;
                let mut block = match self.load(dev, level, index)? {
                    Some(block) => block.clone(),
                    None => NatBlock::empty(level, index),
                };
                for (at, pair) in pairs {
                    block.pairs[at] = pair;
                }
                if old.addr != BlockAddr::HOLE {
                    update.dead.push(old.addr);
                } else {
                    update.count += 1;
                }
                let addr = geometry.addr(Log::Meta, head + update.blocks.len() as u64);
                let (bytes, crc) = block.encode();
                update.bytes.extend_from_slice(&bytes);
                update.blocks.push((NatPointer { addr, crc }, block));
                above
                    .entry(index / FANOUT)
                    .or_default()
                    .push(((index % FANOUT) as usize, (addr.0, crc)));
                update.root = NatPointer { addr, crc };
            }
            level_changes = above;
        }
        Ok(update)
    }

    /// Makes a tree valid after its blocks were written.
    pub(crate) fn apply(&mut self, update: NatUpdate) {
        self.height = update.height;
        self.root = update.root;
        self.blocks = update.count;
        for (_, block) in update.blocks {
            self.cache.insert((block.level, block.index), block);
        }
        self.dirty.clear();
    }

    /// Allocates a given number, used or not.
    pub(crate) fn reallocate(&mut self, nid: Nid) {
        self.freed.remove(&nid);
        self.free.remove(&nid);
        self.next_nid = self.next_nid.max(nid.0.saturating_add(1));
        let entry = NatEntry {
            addr: BlockAddr::RESERVED,
            ino: nid,
        };
        self.dirty.insert(nid, entry);
    }

    /// Creates a table of these entries without a tree. The next update writes a new tree.
    pub(crate) fn from_entries(entries: &BTreeMap<Nid, NatEntry>, next_nid: u32) -> Self {
        Self {
            dirty: entries.clone(),
            next_nid,
            ..Self::default()
        }
    }

    /// Reads everything that is readable. Corrects the counts of the checkpoint that concern the table.
    pub(crate) fn salvage(&mut self, dev: &dyn BlockDevice) -> Result<Salvaged> {
        let mut found = Salvaged::default();
        let mut blocks = 0;
        let mut level_blocks = vec![0u32];
        for level in (0..self.height).rev() {
            let mut below = Vec::new();
            for index in level_blocks {
                let addr = self.pointer(dev, level, index)?.addr;
                found
                    .tree
                    .extend(Some(addr).filter(|addr| addr.is_mapped()));
                let block = match self.load(dev, level, index) {
                    Ok(block) => block.cloned(),
                    Err(e @ Error::Corrupt(_)) => {
                        found.damage.push(e);
                        let span = u64::from(FANOUT).pow(level + 1);
                        let range = u64::from(index) * span..(u64::from(index) + 1) * span;
                        found.lost.push(range);
                        None
                    }
                    Err(e) => return Err(e),
                };
                blocks += u64::from(block.is_some());
                let pairs = block
                    .iter()
                    .flat_map(|b| b.pairs.iter().copied().enumerate());
                for (at, (addr, ino)) in pairs.filter(|(_, pair)| pair.0 != 0) {
                    let number = u64::from(index) * u64::from(FANOUT) + at as u64;
                    let Ok(number) = u32::try_from(number) else {
                        continue;
                    };
                    if level > 0 {
                        below.push(number);
                    } else {
                        let (addr, ino) = (BlockAddr(addr), Nid(ino));
                        found.entries.insert(Nid(number), NatEntry { addr, ino });
                    }
                }
            }
            level_blocks = below;
        }
        for (nid, entry) in &self.dirty {
            if entry.addr == BlockAddr::HOLE {
                found.entries.remove(nid);
                found.free.insert(*nid);
            } else {
                found.entries.insert(*nid, *entry);
            }
        }
        // Numbers at or above `next_nid` cannot be used: correct the bound by what is there.
        found.entries.remove(&Nid(u32::MAX));
        if let Some((last, _)) = found.entries.last_key_value() {
            self.next_nid = self.next_nid.max(last.0 + 1);
        }
        self.blocks = blocks;
        Ok(found)
    }

    /// Compares the tree with an older one, in which no address satisfied `is_new`. Only new blocks are read, and the
    /// blocks of `base` that they replace.
    pub(crate) fn changes_since(
        &mut self,
        dev: &dyn BlockDevice,
        base: &mut Nat,
        is_new: impl Fn(BlockAddr) -> bool,
    ) -> Result<NatChanges> {
        let mut changes = NatChanges::default();
        let journals = self.dirty.keys().chain(base.dirty.keys());
        let mut candidates: BTreeSet<Nid> = journals.copied().collect();
        let mut level_blocks = Vec::new();
        if self.height > 0 && is_new(self.root.addr) {
            level_blocks.push(0u32);
        }
        for level in (0..self.height).rev() {
            let mut below = Vec::new();
            for index in level_blocks {
                changes.new.push(self.pointer(dev, level, index)?.addr);
                let Some(block) = self.load(dev, level, index)?.cloned() else {
                    continue;
                };
                let old = base.pointer(dev, level, index)?.addr;
                changes
                    .old
                    .extend(Some(old).filter(|addr| addr.is_mapped()));
                let first = u64::from(index) * u64::from(FANOUT);
                for (at, (addr, _)) in block.pairs.iter().enumerate() {
                    let Ok(number) = u32::try_from(first + at as u64) else {
                        break;
                    };
                    let addr = BlockAddr(*addr);
                    if level > 0 {
                        if addr.is_mapped() && is_new(addr) {
                            below.push(number);
                        }
                        continue;
                    }
                    if addr != base.get(dev, Nid(number))?.addr {
                        candidates.insert(Nid(number));
                    }
                }
            }
            level_blocks = below;
        }
        for nid in candidates {
            let (old, new) = (base.get(dev, nid)?, self.get(dev, nid)?);
            if new.addr != old.addr {
                changes.entries.push((nid, old, new));
            }
        }
        Ok(changes)
    }

    /// Calls `node` for every used number and `tree_block` for every block of the tree.
    pub(crate) fn walk(
        &mut self,
        dev: &dyn BlockDevice,
        mut node: impl FnMut(Nid, NatEntry),
        mut tree_block: impl FnMut(BlockAddr),
    ) -> Result<()> {
        let mut level_blocks = if self.height == 0 || self.root.addr == BlockAddr::HOLE {
            Vec::new()
        } else {
            vec![0u32]
        };
        for level in (0..self.height).rev() {
            let mut below = Vec::new();
            for index in level_blocks {
                tree_block(self.pointer(dev, level, index)?.addr);
                let Some(block) = self.load(dev, level, index)?.cloned() else {
                    continue;
                };
                for (at, (addr, other)) in block
                    .pairs
                    .iter()
                    .enumerate()
                    .filter(|(_, pair)| pair.0 != 0)
                {
                    let number = u64::from(index) * u64::from(FANOUT) + at as u64;
                    let Ok(number) = u32::try_from(number) else {
                        return Err(Error::corrupt(
                            "node address table",
                            format_args!("entry for number {number}"),
                        ));
                    };
                    if level == 0 {
                        if !self.dirty.contains_key(&Nid(number)) {
                            node(
                                Nid(number),
                                NatEntry {
                                    addr: BlockAddr(*addr),
                                    ino: Nid(*other),
                                },
                            );
                        }
                    } else {
                        below.push(number);
                    }
                }
            }
            level_blocks = below;
        }
        for (nid, entry) in &self.dirty {
            if entry.addr != BlockAddr::HOLE {
                node(*nid, *entry);
            }
        }
        Ok(())
    }
}
