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

mod names;
mod nodes;

use crate::areas::{Addr, BLOCK_SIZE, Block, Log, Nid};
use crate::check::{CheckOptions, Finding, Report, check};
use crate::device::BlockDevice;
use crate::dir::Spot;
use crate::discard::DiscardMode;
use crate::disk::checkpoint::Phase;
use crate::disk::dentry::Dentry;
use crate::disk::inode::Time;
use crate::disk::nat::NatEntry;
use crate::disk::node::NodeBody;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::mount::{find_checkpoint, newest_seal_version, read_block, read_superblock};
use crate::nat::{Nat, Salvaged};
use crate::options::MountOptions;
use crate::volume::Volume;
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
    let counted = (volume.nat.blocks, volume.nat.next_nid);
    let Salvaged {
        entries: mut table,
        lost,
        free,
    } = volume.nat.salvage(&**dev)?;
    if lost.is_empty() && counted != (volume.nat.blocks, volume.nat.next_nid) {
        note(&"node address table", &"its counts were wrong");
    }
    let mut doubtful = BTreeSet::new();
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
            for (nid, entry) in again.filter(|(nid, _)| !free.contains(nid)) {
                if volume.is_held(entry.addr) && nid == &entry.ino && !table.contains_key(nid) {
                    doubtful.insert(*nid);
                }
                table.entry(*nid).or_insert(*entry);
            }
        }
        let next_nid = volume.nat.next_nid;
        volume.nat = Nat::of(&table, next_nid);
    }
    let mut salvage = Salvage::new(volume, table, done, now);
    (salvage.data, salvage.doubtful) = (data, doubtful);
    salvage.run()
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
    let mut salvage = Salvage::new(volume, scan.table, done, now);
    (salvage.data, salvage.stale) = (true, true);
    salvage.run()
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
    /// Inodes that were found again in the logs, and that may be there for a snapshot alone.
    doubtful: BTreeSet<Nid>,
    /// A directory has lost entries.
    entries_lost: bool,
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
    fn new(v: Volume, table: BTreeMap<Nid, NatEntry>, done: Vec<Finding>, now: Time) -> Self {
        Self {
            v,
            table,
            places: HashMap::new(),
            done,
            data: false,
            stale: false,
            doubtful: BTreeSet::new(),
            entries_lost: false,
            now,
            claimed: HashSet::new(),
            kept: BTreeSet::new(),
            inos: BTreeSet::new(),
            damaged: BTreeSet::new(),
            incomplete: HashSet::new(),
            live: 0,
            names: BTreeMap::new(),
        }
    }

    fn run(mut self) -> Result<Repaired> {
        self.maps()?;
        self.counters()?;
        self.root()?;
        let mut entries = self.entries()?;
        self.drop_deleted(&mut entries)?;
        self.choose(entries)?;
        self.connect()?;
        self.nameless()?;
        self.links()?;
        self.v.evict_orphans();
        self.v.checkpoint_whole_table()?;
        self.finish()
    }

    fn note(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        self.done.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    }

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
