//! Making a damaged volume whole again: what can be saved is saved, what cannot is said.
//!
//! What must hold afterwards: a check finds nothing, no byte is shown that was not written, and a block of a file that could not be saved
//! reads as an error (a *lost* slot) until it is overwritten.
//!
//! ```text
//!  checkpoint, or a scan of the node logs ► table of nodes ► every inode and its map ► directories ► names ► counts ► checkpoint ► trim
//! ```
//!
//! Redundancy that this lives from: two superblocks, two seals, two packs; every node says whose it is and where it belongs; every inode
//! knows a name and a directory. Nothing here runs on a sound volume.

use crate::areas::{Addr, BLOCK_SIZE, Block, Log, Nid};
use crate::check::{CheckOptions, Finding, Report, check};
use crate::device::BlockDevice;
use crate::dir::{Spot, check_name, kind_of};
use crate::discard::DiscardMode;
use crate::disk::checkpoint::Phase;
use crate::disk::dentry::{self, BUCKET_BLOCKS, Dentry, bucket_start};
use crate::disk::inode::{Content, INLINE_MAX, Inode, Time, mode};
use crate::disk::nat::NatEntry;
use crate::disk::node::{DIRECT_SLOTS, INDIRECT_SLOTS, NodeBody, Slot};
use crate::disk::superblock::Superblock;
use crate::disk::xattr;
use crate::error::{Error, Result};
use crate::map::{ROOT_LEVELS, child_base, ordinal_at, root_base, span};
use crate::mount::{find_checkpoint, newest_seal_version, read_block, read_superblock};
use crate::nat::Nat;
use crate::options::{Caller, MountOptions};
use crate::volume::{Node, Volume};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// What a repair did.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Everything that was changed, in order: where, and what was done.
    pub done: Vec<Finding>,
    /// What a check says afterwards. Findings that are left are damage inside snapshots, which are never changed.
    pub left: Report,
}

/// Blocks read at once from a log.
const SCAN_BLOCKS: u64 = 256;
/// Where objects go whose name is lost.
const LOST_FOUND: &[u8] = b"lost+found";

/// Repairs a volume that is not mounted. With `data`, data blocks that do not match their checksum become lost.
///
/// Fails as `Corrupt` if there is no sound superblock, or no sound checkpoint: then [`rebuild`] is what is left.
pub fn repair(dev: &Arc<dyn BlockDevice>, data: bool, now: Time) -> Result<Repaired> {
    let sb = read_superblock(&**dev)?;
    let mut done = Vec::new();
    mend_superblocks(&**dev, &sb, &mut done)?;
    let mut note = |place: &dyn fmt::Display, what: &dyn fmt::Display| {
        done.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    };
    let found = match find_checkpoint(&**dev, &sb, false) {
        Err(Error::Corrupt(what)) => {
            let found = find_checkpoint(&**dev, &sb, true)?;
            note(
                &what,
                &format_args!("checkpoint {} is used instead", found.seal.version),
            );
            found
        }
        other => other?,
    };
    let options = || MountOptions {
        discard: DiscardMode::Never,
        ..MountOptions::default()
    };
    let clean = found.seal.phase == Phase::Clean;
    let mut volume = Volume::at(dev.clone(), sb.clone(), options(), found);
    if clean {
        volume.commit_again(Phase::Mounted)?;
    } else {
        match volume.recover_groups(true) {
            Err(Error::Corrupt(what)) => {
                note(&what, &"what fsync left behind the checkpoint is given up");
                let found = find_checkpoint(&**dev, &sb, false)?;
                volume = Volume::at(dev.clone(), sb, options(), found);
                volume.recover_groups(false)?;
            }
            other => other?,
        }
    }
    let (mut table, lost) = volume.nat.salvage(&**dev)?;
    if !lost.is_empty() {
        let dead: HashSet<u64> = volume
            .pending
            .iter()
            .chain(volume.dead.runs())
            .flatten()
            .collect();
        let heads = volume.marks.map(|m| m.head);
        let scan = Scan::of(&volume, heads, |addr| dead.contains(&addr))?;
        for range in lost {
            note(
                &format_args!(
                    "node address table, numbers {} to {}",
                    range.start,
                    range.end - 1
                ),
                &"cannot be read; found again in the logs",
            );
            let again = scan
                .table
                .iter()
                .filter(|(nid, _)| range.contains(&u64::from(nid.0)));
            for (nid, entry) in again {
                table.entry(*nid).or_insert(*entry);
            }
        }
        let next_nid = volume.nat.next_nid;
        volume.nat = Nat::of(&table, next_nid);
    }
    Salvage::run(volume, table, done, data, false, now)
}

/// Makes a volume of what the logs hold, after the loss of both checkpoint packs. It gets a new identity, because what others know of the
/// old one may be newer. Snapshots are lost. Deleted files whose blocks were not given back yet may come back, in lost+found.
pub fn rebuild(dev: &Arc<dyn BlockDevice>, uuid: [u8; 16], now: Time) -> Result<Repaired> {
    let mut sb = read_superblock(&**dev)?;
    if let Ok(found) = find_checkpoint(&**dev, &sb, true) {
        return Err(Error::Usage(format!(
            "checkpoint {} is sound: nothing to rebuild, a repair is enough",
            found.seal.version
        )));
    }
    let mut done = Vec::new();
    sb.uuid = uuid;
    sb.generation += 1;
    write_superblocks(&**dev, &sb)?;
    let options = MountOptions {
        discard: DiscardMode::Never,
        ..MountOptions::default()
    };
    let window = options.window_blocks;
    let mut volume = Volume::empty(dev.clone(), sb.clone(), options);
    let g = sb.geometry;
    let mut ends = [0; 7];
    for log in Log::ALL {
        let start = if log == Log::Meta { g.fixed_end() } else { 0 };
        ends[log.index()] = log_end(&**dev, &volume, log, start)?;
        // Nothing was written twice before, and nothing is now: whatever was written lies below here.
        let head = (ends[log.index()] + 1).next_multiple_of(g.zone_blocks());
        let m = &mut volume.marks[log.index()];
        (m.scan, m.head, m.limit, m.far) = (head, head, head + window, head + 2 * window);
        if m.far > g.area_blocks() {
            return Err(Error::Limit(format!(
                "the {log:?} log has no room behind block {head:#x}"
            )));
        }
    }
    let scan = Scan::of(&volume, ends, |_| false)?;
    volume.version = scan.tag.max(newest_seal_version(&**dev, &sb)) + 2;
    volume.pack = 1;
    (volume.next_seq, volume.base_seq) = (scan.seq + 1, scan.seq + 1);
    volume.next_generation = scan.generation.wrapping_add(1);
    let next_nid = scan
        .table
        .keys()
        .next_back()
        .map_or(Nid::ROOT.0 + 1, |nid| nid.0.saturating_add(1));
    volume.nat = Nat::of(&scan.table, next_nid);
    done.push(Finding {
        place: "checkpoint packs".to_string(),
        what: format!(
            "both are lost; {} nodes were found in the logs",
            scan.table.len()
        ),
    });
    Salvage::run(volume, scan.table, done, true, true, now)
}

/// First offset of a log behind everything that the device holds or has a zone for.
fn log_end(dev: &dyn BlockDevice, volume: &Volume, log: Log, start: u64) -> Result<u64> {
    let g = volume.sb.geometry;
    let io = |e| Error::io(e, format_args!("asking for the end of the {log:?} log"));
    let range = g.range(log, start..g.area_blocks());
    if !dev.knows_allocated() {
        return Err(Error::Unsupported(
            "the device does not say what it holds".to_string(),
        ));
    }
    let runs = dev.allocated(range.clone()).map_err(io)?;
    let mut end = runs.last().map_or(range.start, |run| run.end);
    if let Some(zone) = dev.zone_blocks() {
        let zones = dev
            .zones(range.start / zone..range.end / zone)
            .map_err(io)?;
        end = end.max(zones.last().map_or(0, |last| (last + 1) * zone));
    }
    Ok(end - g.range(log, 0..0).start)
}

fn mend_superblocks(dev: &dyn BlockDevice, sb: &Superblock, done: &mut Vec<Finding>) -> Result<()> {
    for addr in [Addr(0), Addr(1)] {
        let same = read_block(dev, addr).and_then(|block| Superblock::decode(&block));
        if same.as_ref().ok() != Some(sb) {
            done.push(Finding {
                place: format!("superblock copy {}", addr.0),
                what: "damaged or old; written again".to_string(),
            });
            write_superblocks(dev, sb)?;
        }
    }
    Ok(())
}

/// One copy after the other, so that one is always whole.
fn write_superblocks(dev: &dyn BlockDevice, sb: &Superblock) -> Result<()> {
    for addr in [Addr(0), Addr(1)] {
        let io = |e| Error::io(e, "writing a superblock");
        dev.write(addr, &sb.encode()).map_err(io)?;
        dev.flush().map_err(io)?;
    }
    Ok(())
}

/// The newest version of every node in the logs.
#[derive(Default)]
struct Scan {
    table: BTreeMap<Nid, NatEntry>,
    /// Highest seen.
    tag: u64,
    seq: u64,
    generation: u32,
}

impl Scan {
    fn of(volume: &Volume, ends: [u64; 7], skip: impl Fn(u64) -> bool) -> Result<Self> {
        let mut scan = Self::default();
        let mut newest: HashMap<Nid, (u64, u64)> = HashMap::new();
        for log in Log::NODES {
            let range = volume.sb.geometry.range(log, 0..ends[log.index()]);
            let io = |e| Error::io(e, format_args!("scanning the {log:?} log"));
            for run in volume.dev.allocated(range).map_err(io)? {
                let mut at = run.start;
                while at < run.end {
                    let n = (run.end - at).min(SCAN_BLOCKS);
                    let mut bytes = vec![0; n as usize * BLOCK_SIZE];
                    volume.dev.read(Addr(at), &mut bytes).map_err(io)?;
                    for (i, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
                        let addr = Addr(at + i as u64);
                        if !skip(addr.0) {
                            scan.node(addr, block, &mut newest);
                        }
                    }
                    at += n;
                }
            }
        }
        Ok(scan)
    }

    fn node(&mut self, addr: Addr, bytes: &[u8], newest: &mut HashMap<Nid, (u64, u64)>) {
        let mut block: Block = [0; BLOCK_SIZE];
        block.copy_from_slice(bytes);
        let Ok((body, footer)) = NodeBody::decode(&block, addr) else {
            return;
        };
        self.tag = self.tag.max(footer.tag);
        self.seq = self.seq.max(footer.seq);
        if let NodeBody::Inode(inode) = &body {
            self.generation = self.generation.max(inode.generation);
        }
        // A tail that was never adopted may have higher sequence numbers, but its tag is older than what was written since.
        let age = (footer.tag, footer.seq);
        if newest.get(&footer.nid).is_none_or(|old| *old < age) {
            newest.insert(footer.nid, age);
            let ino = footer.ino;
            self.table.insert(footer.nid, NatEntry { addr, ino });
        }
    }
}

/// A volume under repair.
struct Salvage {
    v: Volume,
    table: BTreeMap<Nid, NatEntry>,
    /// Nodes by what they say of themselves: inode, level, ordinal. For maps whose upper nodes are lost.
    places: HashMap<Nid, BTreeMap<(u8, u32), Nid>>,
    done: Vec<Finding>,
    /// Compare data with its checksums.
    data: bool,
    /// The table was scanned from the logs: it may hold what was deleted.
    stale: bool,
    now: Time,
    claimed: HashSet<u64>,
    kept: BTreeSet<Nid>,
    inos: BTreeSet<Nid>,
    /// Inodes whose node cannot be read.
    damaged: BTreeSet<Nid>,
    /// Inodes of which data is missing.
    incomplete: HashSet<Nid>,
    live: u64,
    /// Names of every inode: directory and name.
    names: BTreeMap<Nid, Vec<(Nid, Vec<u8>)>>,
}

/// An entry as found: directory, place, entry.
type Seen = (Nid, Spot, Dentry);

impl Salvage {
    fn run(
        v: Volume,
        table: BTreeMap<Nid, NatEntry>,
        done: Vec<Finding>,
        data: bool,
        stale: bool,
        now: Time,
    ) -> Result<Repaired> {
        let mut s = Self {
            v,
            table,
            places: HashMap::new(),
            done,
            data,
            stale,
            now,
            claimed: HashSet::new(),
            kept: BTreeSet::new(),
            inos: BTreeSet::new(),
            damaged: BTreeSet::new(),
            incomplete: HashSet::new(),
            live: 0,
            names: BTreeMap::new(),
        };
        s.maps()?;
        s.counters()?;
        s.root()?;
        let entries = s.entries()?;
        s.choose(entries)?;
        s.connect()?;
        s.nameless()?;
        s.links()?;
        s.v.evict_orphans();
        s.v.checkpoint_whole_table()?;
        s.finish()
    }

    fn note(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        self.done.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    }

    // ---- nodes and blocks ----

    /// Keeps a node if it can be read and belongs to `owner`.
    fn take(&mut self, nid: Nid, owner: Nid) -> Result<bool> {
        let Some(entry) = self.table.get(&nid).copied() else {
            return Ok(false);
        };
        let place = self.v.sb.geometry.place(entry.addr);
        let fits = place.is_some_and(|(log, offset)| {
            Log::NODES.contains(&log) && offset < self.v.marks[log.index()].head
        });
        if entry.ino != owner
            || !fits
            || self.kept.contains(&nid)
            || self.claimed.contains(&entry.addr.0)
        {
            return Ok(false);
        }
        match self.v.node(nid) {
            Ok(_) => {}
            Err(Error::Corrupt(_) | Error::Posix(_)) => return Ok(false),
            Err(e) => return Err(e),
        }
        self.claimed.insert(entry.addr.0);
        self.kept.insert(nid);
        self.live += 1;
        Ok(true)
    }

    /// Undoes `take`.
    fn leave(&mut self, nid: Nid) {
        if self.kept.remove(&nid) {
            self.live -= 1;
            if let Some(entry) = self.table.get(&nid) {
                self.claimed.remove(&entry.addr.0);
            }
        }
    }

    fn maps(&mut self) -> Result<()> {
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
            if self.take(ino, ino)? {
                self.inos.insert(ino);
                self.map(ino)?;
            } else {
                self.damaged.insert(ino);
                self.note(format_args!("inode {ino}"), "cannot be read");
            }
            self.v.shrink_caches();
        }
        let gone: Vec<Nid> = self
            .table
            .keys()
            .copied()
            .filter(|nid| !self.kept.contains(nid))
            .collect();
        for nid in gone {
            let ino = self.table[&nid].ino;
            if !self.stale && nid != ino {
                self.note(
                    format_args!("node {nid}"),
                    format_args!("inode {ino} does not need it; freed"),
                );
            }
            self.v.nat.release(nid);
            self.v.nodes.remove(&nid);
            self.v.mark_clean(ino, nid);
        }
        Ok(())
    }

    /// Goes through the map of an inode that was kept.
    fn map(&mut self, ino: Nid) -> Result<()> {
        let was = self.v.inode(ino)?.clone();
        let mut inode = was.clone();
        let mut blocks = 0;
        if let Content::Map(map) = &mut inode.content {
            for (i, slot) in map.slots.iter_mut().enumerate() {
                *slot = self.slot(ino, i as u64, *slot)?;
                blocks += u64::from(slot.counts());
            }
            for (root, nid) in map.nids.iter_mut().enumerate() {
                let (level, base) = (ROOT_LEVELS[root], root_base(root));
                let (new, under) = self.subtree(ino, *nid, level, base, was.size)?;
                *nid = new;
                blocks += under;
            }
        }
        if inode.xattr_nid != Nid::NONE {
            let sound = self.take(inode.xattr_nid, ino)?
                && matches!(&self.v.node(inode.xattr_nid)?.body, NodeBody::Xattr(bytes) if xattr::decode(bytes).is_ok());
            if sound {
                blocks += 1;
                inode.xattr = Vec::new();
            } else {
                self.leave(inode.xattr_nid);
                self.note(
                    format_args!("inode {ino}"),
                    "its extended attributes are lost",
                );
                inode.xattr_nid = Nid::NONE;
            }
        }
        if xattr::decode(&inode.xattr).is_err() {
            self.note(
                format_args!("inode {ino}"),
                "its extended attributes are lost",
            );
            inode.xattr = Vec::new();
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

    /// What becomes of a slot.
    fn slot(&mut self, ino: Nid, index: u64, slot: Slot) -> Result<Slot> {
        if !slot.counts() {
            return Ok(slot);
        }
        self.live += 1;
        if !slot.addr.is_mapped() {
            return Ok(slot);
        }
        let place = self.v.sb.geometry.place(slot.addr);
        let fits = place.is_some_and(|(log, offset)| {
            log.may_hold_data() && offset < self.v.marks[log.index()].head
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
            let what = format_args!("block {index}, and perhaps others, are lost");
            self.note(format_args!("inode {ino}"), what);
        }
        Ok(Slot::LOST)
    }

    /// The number to put where `nid` was, and the blocks under it, itself included.
    fn subtree(
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
        if self.take(nid, ino)? {
            let body = self.v.node(nid)?.body.clone();
            let ordinal = self.v.node(nid)?.ordinal;
            if let Some((new, blocks)) = self.below(ino, &body, level, base, size)? {
                if new != body || ordinal != ordinal_at(base) {
                    let node = self.v.node_mut(nid)?;
                    (node.body, node.ordinal) = (new, ordinal_at(base));
                }
                return Ok((nid, blocks + 1));
            }
            self.leave(nid);
        }
        self.incomplete.insert(ino);
        self.note(format_args!("node {nid} of inode {ino}"), "cannot be read");
        self.regrow(ino, level, base, size)
    }

    /// A node as it should be, and the blocks under it. `None` if it is of another kind.
    fn below(
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
                    *slot = self.slot(ino, base + i as u64, *slot)?;
                    blocks += u64::from(slot.counts());
                }
                Ok(Some((NodeBody::Direct(slots), blocks)))
            }
            NodeBody::Indirect(found, nids) if *found == level && level > 0 => {
                let mut nids = nids.clone();
                for (at, nid) in nids.iter_mut().enumerate() {
                    let (new, under) =
                        self.subtree(ino, *nid, level - 1, child_base(base, level, at), size)?;
                    *nid = new;
                    blocks += under;
                }
                Ok(Some((NodeBody::Indirect(level, nids), blocks)))
            }
            _ => Ok(None),
        }
    }

    /// Puts together what is left under a node that is lost, from what the nodes below it say of their place. Under a lost direct node every block
    /// of the file is lost. Ends at level 0, at most four deep.
    fn regrow(&mut self, ino: Nid, level: u8, base: u64, size: u64) -> Result<(Nid, u64)> {
        if level == 0 {
            let end = size.div_ceil(BLOCK_SIZE as u64);
            let n = end.saturating_sub(base).min(DIRECT_SLOTS as u64) as usize;
            if n == 0 {
                return Ok((Nid::NONE, 0));
            }
            let mut slots = Box::new([Slot::HOLE; DIRECT_SLOTS]);
            slots[..n].fill(Slot::LOST);
            self.live += n as u64;
            let nid = self.make(ino, base, NodeBody::Direct(slots))?;
            return Ok((nid, n as u64 + 1));
        }
        let mut nids = Box::new([Nid::NONE; INDIRECT_SLOTS]);
        let mut blocks = 0;
        for (at, nid) in nids.iter_mut().enumerate() {
            let first = child_base(base, level, at);
            let range = ordinal_at(first)..ordinal_at(first + span(level - 1));
            let known = self.places.get(&ino).cloned().unwrap_or_default();
            let mut there = known
                .iter()
                .filter(|((l, o), _)| *l < level && range.contains(o));
            if there.next().is_none() {
                continue;
            }
            let child = known.get(&(level - 1, range.start)).copied();
            let (new, under) = match child {
                Some(child) => self.subtree(ino, child, level - 1, first, size)?,
                None => self.regrow(ino, level - 1, first, size)?,
            };
            *nid = new;
            blocks += under;
        }
        let nid = self.make(ino, base, NodeBody::Indirect(level, nids))?;
        Ok((nid, blocks + 1))
    }

    fn make(&mut self, ino: Nid, base: u64, body: NodeBody) -> Result<Nid> {
        let dev = self.v.dev.clone();
        let nid = self.v.nat.allocate(&*dev, Some(ino))?;
        let ordinal = ordinal_at(base);
        self.v.nodes.insert(nid, Node { ino, ordinal, body });
        self.v.mark_dirty(ino, nid);
        self.live += 1;
        Ok(nid)
    }

    /// What the checkpoint counts, from what was kept.
    fn counters(&mut self) -> Result<()> {
        self.v.live = self.live;
        self.v.inodes = self.inos.len() as u64;
        let mut held = HashSet::new();
        for at in 0..self.v.snapshots.len() {
            let (blocks, _) = self.v.at_snapshot(at).references_beside_damage()?;
            held.extend(blocks);
        }
        let alive: HashSet<u64> = held.union(&self.claimed).copied().collect();
        self.v.pending.spare(|addr| alive.contains(&addr));
        let dead = self.v.dead.runs();
        let bits = self.v.sb.geometry.section_bits;
        self.v.dead = crate::dead::DeadMap::new(bits);
        for addr in dead
            .into_iter()
            .flatten()
            .filter(|addr| !alive.contains(addr))
        {
            self.v.dead.insert(Addr(addr));
        }
        // Blocks of a table that was given up, and of nodes that were, are found by the trim at the end.
        held.retain(|addr| !self.claimed.contains(addr));
        let mut tree = Vec::new();
        let dev = self.v.dev.clone();
        self.v
            .nat
            .walk(&*dev, |_, _| {}, |addr| tree.push(addr.0))?;
        held.retain(|addr| !tree.contains(addr));
        self.v.held = held.len() as u64;
        Ok(())
    }

    // ---- names ----

    /// An empty directory under a number whose inode is lost.
    fn new_dir(&mut self, ino: Nid, parent: Nid) -> Result<()> {
        let mut inode = Inode::new(mode::DIR | 0o755, 0, 0, self.now);
        inode.parent = parent;
        inode.nlink = 2;
        inode.size = INLINE_MAX as u64;
        self.v.nat.revive(ino);
        let body = NodeBody::Inode(Box::new(inode));
        self.v.nodes.insert(
            ino,
            Node {
                ino,
                ordinal: 0,
                body,
            },
        );
        self.v.mark_dirty(ino, ino);
        self.v.live += 1;
        self.v.inodes += 1;
        self.inos.insert(ino);
        self.damaged.remove(&ino);
        self.note(format_args!("directory {ino}"), "made again, empty");
        Ok(())
    }

    fn root(&mut self) -> Result<()> {
        if self.inos.contains(&Nid::ROOT) && self.v.inode(Nid::ROOT)?.is_dir() {
            let inode = self.v.inode(Nid::ROOT)?;
            if inode.parent != Nid::ROOT {
                self.v.inode_mut(Nid::ROOT)?.parent = Nid::ROOT;
            }
            return Ok(());
        }
        if self.inos.contains(&Nid::ROOT) {
            return Err(Error::corrupt("root directory", "is a file"));
        }
        self.new_dir(Nid::ROOT, Nid::ROOT)
    }

    /// Every entry that can be read. What cannot be is taken away.
    fn entries(&mut self) -> Result<Vec<Seen>> {
        let mut all = Vec::new();
        for dir in self.inos.clone() {
            let inode = self.v.inode(dir)?;
            if !inode.is_dir() {
                continue;
            }
            let (depth, counted, before) = (inode.depth, inode.entries, all.len());
            if let Content::InlineDir(bytes) = &inode.content {
                match dentry::all(&bytes[..]) {
                    Ok(entries) => all.extend(entries.into_iter().map(|e| {
                        let spot = Spot {
                            block: None,
                            slot: e.slot,
                        };
                        (dir, spot, e)
                    })),
                    Err(_) => {
                        self.note(format_args!("directory {dir}"), "its entries are lost");
                        self.v.inode_mut(dir)?.content =
                            Content::InlineDir(Box::new([0; INLINE_MAX]));
                    }
                }
            } else {
                self.block_entries(dir, depth, &mut all)?;
            }
            let count = (all.len() - before) as u64;
            if count != counted {
                self.v.inode_mut(dir)?.entries = count;
            }
        }
        Ok(all)
    }

    fn block_entries(&mut self, dir: Nid, depth: u8, all: &mut Vec<Seen>) -> Result<()> {
        let mut at = 0;
        while let Some(index) = self.v.next_claimed(dir, at)? {
            at = index + 1;
            let entries = match self.v.dir_block(dir, index) {
                _ if index >= dentry::blocks_for(depth) => None,
                Ok(Some(block)) => dentry::all(&block[..]).ok(),
                Ok(None) | Err(Error::Corrupt(_)) => None,
                Err(e) => return Err(e),
            };
            match entries {
                Some(entries) => all.extend(entries.into_iter().map(|e| {
                    let spot = Spot {
                        block: Some(index),
                        slot: e.slot,
                    };
                    (dir, spot, e)
                })),
                None => {
                    self.note(
                        format_args!("block {index} of directory {dir}"),
                        "its entries are lost",
                    );
                    self.v.pages.remove(dir, index);
                    self.v.set_slot(dir, index, Slot::HOLE)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the entries that make sense.
    fn choose(&mut self, entries: Vec<Seen>) -> Result<()> {
        let mut taken: HashSet<(Nid, Vec<u8>)> = HashSet::new();
        for (dir, spot, entry) in entries {
            let ino = entry.ino;
            let in_bucket = spot.block.is_none_or(|block| {
                (0..dentry::DEPTH_MAX).any(|level| {
                    let start = bucket_start(level, entry.hash);
                    (start..start + BUCKET_BLOCKS).contains(&block)
                })
            });
            let named = check_name(&entry.name).is_ok()
                && in_bucket
                && self.v.name_hash(&entry.name) == entry.hash
                && taken.insert((dir, entry.name.clone()));
            if named
                && ino != Nid::ROOT
                && !self.inos.contains(&ino)
                && self.damaged.contains(&ino)
                && u32::from(entry.kind) << 12 == mode::DIR
            {
                self.new_dir(ino, dir)?;
            }
            let mut keep = named && ino != Nid::ROOT && self.inos.contains(&ino);
            if keep {
                let inode = self.v.inode(ino)?;
                let (kind, is_dir) = (kind_of(inode.mode), inode.is_dir());
                // A directory has one name.
                keep = !is_dir || !self.names.contains_key(&ino);
                if keep && kind != entry.kind {
                    self.v.retarget_entry(dir, spot, ino, kind)?;
                }
            }
            if keep {
                self.names.entry(ino).or_default().push((dir, entry.name));
            } else {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                self.note(
                    format_args!("entry {name:?} of directory {dir}"),
                    format_args!("leads to {ino}, which cannot be; removed"),
                );
                self.v.remove_entry(dir, spot, entry.name.len())?;
            }
        }
        Ok(())
    }

    /// Cuts circles of directories, and makes every directory's parent the one that names it.
    fn connect(&mut self) -> Result<()> {
        for ino in self.inos.clone() {
            if ino == Nid::ROOT || !self.v.inode(ino)?.is_dir() {
                continue;
            }
            let mut at = ino;
            for _ in 0..=self.inos.len() {
                match self.names.get(&at) {
                    _ if at == Nid::ROOT => break,
                    Some(names) => at = names[0].0,
                    None => break,
                }
            }
            // Still going after that many steps: a circle.
            if at != Nid::ROOT && self.names.contains_key(&at) {
                if let Some(names) = self.names.remove(&ino) {
                    for (dir, name) in names {
                        if let Some(found) = self.v.find(dir, &name)? {
                            self.v.remove_entry(dir, found.spot, name.len())?;
                        }
                    }
                }
                self.note(format_args!("directory {ino}"), "was inside itself");
            }
        }
        Ok(())
    }

    /// Gives what has no name one again: where it was, or in lost+found.
    fn nameless(&mut self) -> Result<()> {
        for orphan in self.v.orphans.clone() {
            if !self.inos.contains(&orphan) || self.names.contains_key(&orphan) {
                self.v.orphans.remove(&orphan);
            }
        }
        for ino in self.inos.clone() {
            if ino == Nid::ROOT || self.names.contains_key(&ino) || self.v.orphans.contains(&ino) {
                continue;
            }
            let inode = self.v.inode(ino)?;
            let empty_dir = inode.is_dir() && inode.entries == 0;
            let (parent, name, kind) = (inode.parent, inode.name.clone(), kind_of(inode.mode));
            if self.stale && (self.incomplete.contains(&ino) || inode.nlink == 0 || empty_dir) {
                // Its blocks were on their way back: it was deleted.
                self.v.inode_mut(ino)?.nlink = 0;
                self.v.orphans.insert(ino);
                continue;
            }
            let at_home = !self.stale
                && check_name(&name).is_ok()
                && self.inos.contains(&parent)
                && self.v.inode(parent)?.is_dir()
                && !self.is_under(parent, ino)?
                && self.v.find(parent, &name)?.is_none();
            let (dir, name) = if at_home {
                (parent, name)
            } else {
                let dir = self.lost_found()?;
                let mut name = format!("#{ino}");
                while self.v.find(dir, name.as_bytes())?.is_some() {
                    name.push('+');
                }
                (dir, name.into_bytes())
            };
            self.v.insert_entry(dir, &name, ino, kind)?;
            let shown = String::from_utf8_lossy(&name).into_owned();
            self.note(
                format_args!("inode {ino}"),
                format_args!("had no name; is {shown:?} in directory {dir}"),
            );
            self.names.entry(ino).or_default().push((dir, name));
        }
        Ok(())
    }

    fn is_under(&self, mut dir: Nid, top: Nid) -> Result<bool> {
        for _ in 0..=self.inos.len() {
            if dir == top {
                return Ok(true);
            }
            match self.names.get(&dir) {
                Some(names) => dir = names[0].0,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn lost_found(&mut self) -> Result<Nid> {
        let mut name = LOST_FOUND.to_vec();
        while let Some(found) = self.v.find(Nid::ROOT, &name)? {
            if self.v.inode(found.ino)?.is_dir() {
                return Ok(found.ino);
            }
            name.push(b'+');
        }
        let caller = Caller {
            now: self.now,
            uid: 0,
            gid: 0,
        };
        let ino = self.v.new_inode(Nid::ROOT, mode::DIR | 0o700, 0, &caller)?;
        self.v.inode_mut(ino)?.name = name.clone();
        self.v
            .insert_entry(Nid::ROOT, &name, ino, kind_of(mode::DIR))?;
        self.inos.insert(ino);
        self.names.entry(ino).or_default().push((Nid::ROOT, name));
        Ok(ino)
    }

    /// Link counts and parents, from the names.
    fn links(&mut self) -> Result<()> {
        let mut subdirs: HashMap<Nid, u32> = HashMap::new();
        for ino in self.inos.clone() {
            if self.v.inode(ino)?.is_dir() {
                for (dir, _) in self.names.get(&ino).into_iter().flatten() {
                    *subdirs.entry(*dir).or_default() += 1;
                }
            }
        }
        for ino in self.inos.clone() {
            let names = self.names.get(&ino).cloned().unwrap_or_default();
            let inode = self.v.inode(ino)?;
            let is_dir = inode.is_dir();
            let parent = match names.first() {
                Some((dir, _)) if is_dir => *dir,
                _ => inode.parent,
            };
            let nlink = if !is_dir {
                names.len() as u32
            } else if names.is_empty() && ino != Nid::ROOT {
                0
            } else {
                2 + subdirs.get(&ino).copied().unwrap_or(0)
            };
            if (nlink, parent) != (inode.nlink, inode.parent) {
                let inode = self.v.inode_mut(ino)?;
                (inode.nlink, inode.parent) = (nlink, parent);
            }
        }
        Ok(())
    }

    // ---- the end ----

    /// Everything is consistent on the device. What it still holds and nobody needs goes back.
    fn finish(self) -> Result<Repaired> {
        let Self { mut v, done, .. } = self;
        let dev = v.dev.clone();
        let report = check(&dev, CheckOptions::default())?;
        for run in report.leaked {
            v.dead.insert_range(run);
        }
        v.needs_trim = false;
        v.options.discard = DiscardMode::Eager;
        v.changed = true;
        v.drain()?;
        v.release_all_zones()?;
        v.unmount()?;
        let left = check(&dev, CheckOptions::default())?;
        Ok(Repaired { done, left })
    }
}
