//! Repair: save what can be saved, and report what cannot.
//!
//! Guarantees afterwards: a check finds nothing, no byte is returned that was not written, and a file block that
//! could not be saved reads as an error (a *lost* slot) until it is overwritten.
//!
//! ```text
//!  checkpoint, or a scan of the node logs ► table of nodes ► every inode and its map ► directories ► names ► counts ► checkpoint ► trim
//! ```
//!
//! The repair relies on redundancy: copies of superblocks and seals, two packs, nodes that state their owner and
//! position, inodes that state a name and a directory. It changes nothing on a sound volume.

use super::salvage::{Repaired, Salvage};
use super::scan::{LogScan, log_end};
use crate::backend::branch::BranchSet;
use crate::checkpoint::pack::{
    FoundCheckpoint, damaged_copies, find_checkpoint, first_version, newest_seal_version,
    read_superblock, rewrite_damaged_copies,
};
use crate::device::{BlockDevice, read_block};
use crate::disk::address::{BlockAddr, Log, Nid};
use crate::disk::branch::FIRST_BRANCH;
use crate::disk::checkpoint::{Phase, SEALS, Seal};
use crate::disk::inode::Time;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::nodes::nat::{Nat, Salvaged};
use crate::options::DiscardMode;
use crate::options::MountOptions;
use crate::volume::state::Volume;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

/// Repairs a volume that is not mounted. With `data`, data blocks that do not match their checksum become lost.
///
/// # Errors
/// `Corrupt` if there is no sound superblock, or no sound checkpoint. In the latter case [`rebuild`] may help.
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
            let found = find_checkpoint(&**dev, &sb, true)?;
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
            let lost = lost_checkpoint_after(&**dev, &sb, &found);
            if let Some(lost) = lost {
                let place = format_args!("checkpoint {lost}");
                let what = "neither of its seals can be read, or a crash interrupted it";
                let used = found.seal.version;
                note(
                    &place,
                    &format_args!("{what}; checkpoint {used} is used instead"),
                );
            }
            (found, lost)
        }
    };
    require_newer_than_forks(&**dev, &found)?;
    for finding in damaged_copies(&**dev, &sb, &found)? {
        note(&finding.place, &format_args!("{}; rewritten", finding.what));
    }
    rewrite_damaged_copies(&**dev, &sb)?;
    let fallback = lost.map(|lost| (lost, found.seal.version));
    let options = || MountOptions {
        discard: DiscardMode::Never,
        ..MountOptions::default()
    };
    let clean = found.seal.phase == Phase::Clean;
    let mut volume = Volume::at(dev.clone(), sb.clone(), options(), found);
    volume.load_fork_points()?;
    if clean {
        volume.commit_unchanged(Phase::Mounted)?;
    } else {
        match volume.recover_groups(true) {
            Err(Error::Corrupt(what)) => {
                note(&what, &"fsyncs after the checkpoint are discarded");
                let found = find_checkpoint(&**dev, &sb, false)?;
                volume = Volume::at(dev.clone(), sb, options(), found);
                volume.load_fork_points()?;
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
            .discard_log
            .iter()
            .chain(volume.dead.runs())
            .flatten()
            .collect();
        let heads = volume.logs.heads();
        let scan = LogScan::run(&volume, heads, |addr| dead.contains(&addr))?;
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
                let is_older = volume.is_held(entry.addr) || volume.is_shared(entry.addr);
                if is_older && nid == &entry.ino && !table.contains_key(nid) {
                    doubtful.insert(*nid);
                    let tag = volume.read_node_at(entry.addr)?.1.tag;
                    old.insert(*nid, tag);
                }
                table.entry(*nid).or_insert(*entry);
            }
        }
        let next_nid = volume.nat.next_nid;
        volume.nat = Nat::from_entries(&table, next_nid);
    }
    let mut salvage = Salvage::new(volume, table, done, now);
    (salvage.data, salvage.doubtful) = (data, doubtful);
    (salvage.old, salvage.fallback) = (old, fallback);
    salvage.run()
}

/// Rebuilds a volume from its logs, after the loss of both checkpoint packs. It gets a new identity, because other
/// devices may have newer states of the old one. Snapshots are lost. Deleted files whose blocks were not released yet
/// may reappear in lost+found.
pub fn rebuild(dev: &Arc<dyn BlockDevice>, uuid: [u8; 16], now: Time) -> Result<Repaired> {
    require_no_branches(&**dev)?;
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
    rewrite_damaged_copies(&**dev, &sb)?;
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
        // No address is written twice: every block of the log lies below the new head.
        let head = (ends[log.index()] + 1).next_multiple_of(g.zone_blocks());
        let m = &mut volume.logs.marks[log.index()];
        (m.scan, m.head, m.limit, m.far) = (head, head, head + window, head + 2 * window);
        if m.far > g.area_blocks() {
            return Err(Error::Limit(format!(
                "the {log:?} log has no space after block {head:#x}"
            )));
        }
    }
    let scan = LogScan::run(&volume, ends, |_| false)?;
    volume.checkpoint.version = scan.tag.max(newest_seal_version(&**dev, &sb)) + 2;
    volume.checkpoint.pack = 1;
    (volume.roll_forward.next_seq, volume.roll_forward.base_seq) = (scan.seq + 1, scan.seq + 1);
    volume.next_generation = scan.generation.wrapping_add(1);
    let next_nid = scan
        .table
        .keys()
        .next_back()
        .map_or(Nid::ROOT.0 + 1, |nid| nid.0.saturating_add(1));
    volume.nat = Nat::from_entries(&scan.table, next_nid);
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

/// Fails if the volume has branches: each has only a part of the nodes that it needs in its own logs.
fn require_no_branches(dev: &dyn BlockDevice) -> Result<()> {
    let Some(branch) = dev.branch() else {
        return Ok(());
    };
    // Flattened branches are no children.
    let others = BranchSet::at(branch.directory()).list()?;
    if others.iter().all(|entry| entry.number == FIRST_BRANCH) {
        return Ok(());
    }
    Err(Error::Unsupported(
        "a volume with branches is not rebuilt: copy the other branches to new volumes with `send` and `receive`"
            .to_owned(),
    ))
}

/// Fails if a branch was forked from a checkpoint that is lost: the branch needs blocks of which the older one knows
/// nothing.
fn require_newer_than_forks(dev: &dyn BlockDevice, found: &FoundCheckpoint) -> Result<()> {
    let Some(branch) = dev.branch() else {
        return Ok(());
    };
    let version = found.seal.version;
    let children = branch.children()?;
    match children.iter().find(|child| child.version > version) {
        None => Ok(()),
        Some(child) => Err(Error::Unsupported(format!(
            "checkpoint {} is lost, and checkpoint {version} is older than branch number {}, which was forked from it: use that branch instead",
            child.version, child.number
        ))),
    }
}

/// Version of the checkpoint after the one that was found, if it was or may have been committed. Its pack does not
/// hold a seal then. Packs alternate, and only the first checkpoint of a volume or fork has no pack before it.
fn lost_checkpoint_after(
    dev: &dyn BlockDevice,
    sb: &Superblock,
    found: &FoundCheckpoint,
) -> Option<u64> {
    let other = sb.geometry.pack_start(1 - found.pack);
    let copies = (0..SEALS).map(|copy| read_block(dev, BlockAddr(other.0 + copy)));
    let mut empty = true;
    for block in copies {
        match block {
            Ok(block) if Seal::decode(&block).is_some() => return None,
            Ok(block) => empty &= block.iter().all(|byte| *byte == 0),
            Err(_) => empty = false,
        }
    }
    let origin = dev.branch().and_then(|branch| branch.origin());
    let before = origin.map_or_else(|| first_version(&sb.uuid), |origin| origin.state.version);
    let first = before + 1;
    (!empty || found.seal.version != first).then_some(found.seal.version + 1)
}
