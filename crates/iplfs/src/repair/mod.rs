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
mod snapshots;

use crate::areas::{Addr, BLOCK_SIZE, Block, Log, Nid};
use crate::check::{CheckOptions, Report, check, name_paths};
use crate::device::BlockDevice;
use crate::dir::Spot;
use crate::discard::DiscardMode;
use crate::disk::checkpoint::{Phase, SEALS, Seal};
use crate::disk::dentry::Dentry;
use crate::disk::inode::Time;
use crate::disk::nat::NatEntry;
use crate::disk::node::NodeBody;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::mount::{
    Found, damaged_copies, find_checkpoint, first_version, mend_copies, newest_seal_version,
    read_block, read_superblock,
};
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
    /// Set if the newest checkpoint that was committed may be lost, and an older one was used.
    pub went_back: Option<WentBack>,
    /// Report of the check after the repair.
    pub left: Report,
}

/// A repair that went back to the checkpoint before the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WentBack {
    /// The checkpoint that cannot be read. If only its seals cannot, it may have been cut short by a crash.
    pub lost: u64,
    /// The checkpoint that was used.
    pub used: u64,
    /// Last change of any inode in it.
    pub changed: Time,
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
    let mut note = |place: &dyn fmt::Display, what: &dyn fmt::Display| {
        done.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    };
    let (found, lost) = match find_checkpoint(&**dev, &sb, false) {
        Err(what @ (Error::Corrupt(_) | Error::Io(..))) => {
            let found = find_checkpoint(&**dev, &sb, true).map_err(say_rebuild)?;
            let place = match &what {
                Error::Corrupt(what) => what.clone(),
                other => other.to_string(),
            };
            note(
                &place,
                &format_args!("checkpoint {} is used instead", found.seal.version),
            );
            let lost = newest_seal_version(&**dev, &sb).max(found.seal.version + 1);
            (found, Some(lost))
        }
        other => {
            let found = other?;
            let lost = lost_behind(&**dev, &sb, &found);
            if let Some(lost) = lost {
                let place = format_args!("checkpoint {lost}");
                let what = "both of its seals cannot be read, or a crash cut it short";
                let used = found.seal.version;
                note(
                    &place,
                    &format_args!("{what}; checkpoint {used} is used instead"),
                );
            }
            (found, lost)
        }
    };
    for finding in damaged_copies(&**dev, &sb, &found)? {
        note(
            &finding.place,
            &format_args!("{}; written again", finding.what),
        );
    }
    mend_copies(&**dev, &sb)?;
    let went_back = lost.map(|lost| (lost, found.seal.version));
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
        ..
    } = volume.nat.salvage(&**dev)?;
    if lost.is_empty() && counted != (volume.nat.blocks, volume.nat.next_nid) {
        note(&"node address table", &"its counts were wrong");
    }
    let (mut doubtful, mut old) = (BTreeSet::new(), BTreeMap::new());
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
                    let tag = volume.read_node_at(entry.addr)?.1.tag;
                    old.insert(*nid, tag);
                }
                table.entry(*nid).or_insert(*entry);
            }
        }
        let next_nid = volume.nat.next_nid;
        volume.nat = Nat::of(&table, next_nid);
    }
    let mut salvage = Salvage::new(volume, table, done, now);
    (salvage.data, salvage.doubtful) = (data, doubtful);
    (salvage.old, salvage.went_back) = (old, went_back);
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
    mend_copies(&**dev, &sb)?;
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

fn say_rebuild(e: Error) -> Error {
    match e {
        Error::Corrupt(what) => Error::Corrupt(format!(
            "{what}; --rebuild makes the volume anew from its logs"
        )),
        other => other,
    }
}

/// The checkpoint after the one that was found, if it was or may have been committed: its pack holds what is no seal. Packs take turns, and only that of a
/// volume's first checkpoint has no other before it.
fn lost_behind(dev: &dyn BlockDevice, sb: &Superblock, found: &Found) -> Option<u64> {
    let other = sb.geometry.pack_start(1 - found.pack);
    let copies = (0..SEALS).map(|copy| read_block(dev, Addr(other.0 + copy)));
    let mut empty = true;
    for block in copies {
        match block {
            Ok(block) if Seal::decode(&block).is_some() => return None,
            Ok(block) => empty &= block.iter().all(|byte| *byte == 0),
            Err(_) => empty = false,
        }
    }
    let first = first_version(&sb.uuid) + 1;
    (!empty || found.seal.version != first).then_some(found.seal.version + 1)
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
    /// Positions in `done`, and the inodes that they are about.
    about: Vec<(usize, Nid)>,
    /// Compare data with its checksums.
    data: bool,
    /// The table was scanned from the logs: it may hold what was deleted.
    stale: bool,
    /// Inodes that were found again in the logs, and that may be there for a snapshot alone.
    doubtful: BTreeSet<Nid>,
    /// What of it may be an older version: the checkpoint that it is from.
    old: BTreeMap<Nid, u64>,
    /// Lost checkpoint, and the one that is used.
    went_back: Option<(u64, u64)>,
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
            about: Vec::new(),
            data: false,
            stale: false,
            doubtful: BTreeSet::new(),
            old: BTreeMap::new(),
            went_back: None,
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
        self.snapshots()?;
        let went_back = self.newest_change()?;
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
        self.say_old()?;
        let wanted = self.about.iter().map(|(_, ino)| *ino).collect();
        let paths = self.v.paths_of(&wanted);
        name_paths(&mut self.done, &self.about, &paths);
        self.finish(went_back)
    }

    /// Looks how old the state is that was gone back to.
    fn newest_change(&mut self) -> Result<Option<WentBack>> {
        let Some((lost, used)) = self.went_back else {
            return Ok(None);
        };
        let mut changed = Time { sec: 0, nsec: 0 };
        for ino in self.inos.clone() {
            let ctime = self.v.inode(ino)?.ctime;
            if (ctime.sec, ctime.nsec) > (changed.sec, changed.nsec) {
                changed = ctime;
            }
            self.v.shrink_caches();
        }
        Ok(Some(WentBack {
            lost,
            used,
            changed,
        }))
    }

    /// Directories that were found in a version that a snapshot has: nobody can know whether there was a newer one.
    fn say_old(&mut self) -> Result<()> {
        for (ino, tag) in std::mem::take(&mut self.old) {
            if self.inos.contains(&ino) && self.v.inode(ino).is_ok_and(|inode| inode.is_dir()) {
                let place = format_args!("directory {ino}").to_string();
                let what = format!(
                    "was found as a snapshot has it, written after checkpoint {tag}; names that changed later are as they were then"
                );
                self.note_in(ino, place, what);
            }
        }
        Ok(())
    }

    fn note(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        self.done.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    }

    /// The same, with the path that an inode has in the end.
    fn note_in(&mut self, ino: Nid, place: impl fmt::Display, what: impl fmt::Display) {
        self.about.push((self.done.len(), ino));
        self.note(place, what);
    }

    /// Everything is consistent on the device. What it still holds and nobody needs goes back.
    fn finish(self, went_back: Option<WentBack>) -> Result<Repaired> {
        let Self {
            mut v, mut done, ..
        } = self;
        let dev = v.dev.clone();
        let report = check(&dev, CheckOptions::default())?;
        for run in report.leaked {
            v.dead.insert_range(run);
        }
        v.needs_trim = false;
        v.options.discard = DiscardMode::Eager;
        v.changed = true;
        v.drain()?;
        let foreign = v.clear_past_heads()?;
        if foreign > 0 {
            done.push(Finding {
                place: "device".to_string(),
                what: format!(
                    "{foreign} blocks past the heads of the logs are nobody's; given back"
                ),
            });
        }
        v.release_all_zones()?;
        v.unmount()?;
        let left = check(&dev, CheckOptions::default())?;
        Ok(Repaired {
            done,
            went_back,
            left,
        })
    }
}
