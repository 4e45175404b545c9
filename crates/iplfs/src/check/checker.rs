//! Full check: every node, entry, address and count, and every block that the device holds.

use crate::checkpoint::pack::{damaged_copies, find_checkpoint, read_superblock};
use crate::device::BlockDevice;
use crate::disk::address::{BLOCK_SIZE, BlockAddr, Log, Nid};
use crate::disk::checkpoint::Phase;
use crate::disk::inode::{Content, Inode};
use crate::disk::nat::NatEntry;
use crate::disk::node::NodeBody;
use crate::disk::slot::Slot;
use crate::disk::xattr;
use crate::error::Result;
use crate::finding::Finding;
use crate::nodes::tree::{child_base, ordinal_at, roots};
use crate::options::MountOptions;
use crate::quota;
use crate::volume::state::{Volume, verify_data};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Options of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read every data block and verify its checksum.
    pub data: bool,
    /// Check the older checkpoint if the newest is damaged.
    pub fallback: bool,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inconsistencies, in the order of the passes.
    pub findings: Vec<Finding>,
    /// Version of the checkpoint that was checked.
    pub version: u64,
    /// False if the volume was not unmounted. The next mount adopts or discards the blocks after the checkpoint.
    pub clean: bool,
    /// Number of inodes in use.
    pub inodes: u64,
    /// Blocks that the checkpoint refers to, without the fixed part, ascending.
    pub reachable: Vec<u64>,
    /// Number of blocks in the discard log.
    pub pending_blocks: u64,
    /// Number of file blocks that an earlier repair could not save. Reading them is an error.
    pub lost_blocks: u64,
    /// Number of blocks of snapshots that an earlier repair found damaged.
    pub lost_in_snapshots: u64,
    /// Allocated blocks that nothing refers to. They cost space and are no damage; a trim releases them.
    pub leaked: Vec<Range<u64>>,
}

impl Report {
    /// Number of leaked blocks.
    pub fn leaked_blocks(&self) -> u64 {
        self.leaked.iter().map(|run| run.end - run.start).sum()
    }
}

/// Checks the newest checkpoint of a volume without writing. The volume must not be mounted for writing, or must be
/// in sync.
pub fn check(dev: &Arc<dyn BlockDevice>, options: CheckOptions) -> Result<Report> {
    let sb = read_superblock(&**dev)?;
    let found = find_checkpoint(&**dev, &sb, options.fallback)?;
    let mut checker = Checker {
        report: Report {
            findings: damaged_copies(&**dev, &sb, &found)?,
            version: found.seal.version,
            ..Report::default()
        },
        claimed: HashSet::new(),
        shared_without_block: 0,
        nodes: BTreeMap::new(),
        visited: HashSet::new(),
        live: 0,
        phase: found.seal.phase,
        data: options.data,
        volume: Volume::at(dev.clone(), sb, MountOptions::default(), found),
        inodes: BTreeMap::new(),
        names: HashMap::new(),
        subdirs: HashMap::new(),
        about: Vec::new(),
    };
    checker.volume.load_fork_points()?;
    checker.run()?;
    let requested = checker.about.iter().map(|(_, ino)| *ino).collect();
    let paths = checker.volume.paths_of(&requested);
    name_paths(&mut checker.report.findings, &checker.about, &paths);
    Ok(checker.report)
}

/// Adds paths to findings. `about` gives positions of findings and the inodes they concern.
pub(crate) fn name_paths(
    findings: &mut [Finding],
    about: &[(usize, Nid)],
    paths: &BTreeMap<Nid, String>,
) {
    for (at, ino) in about {
        if let (Some(finding), Some(path)) = (findings.get_mut(*at), paths.get(ino)) {
            finding.place += &format!(" ({path})");
        }
    }
}

pub(super) struct Checker {
    pub(super) volume: Volume,
    pub(super) report: Report,
    pub(super) phase: Phase,
    pub(super) data: bool,
    pub(super) claimed: HashSet<u64>,
    /// Blocks that nodes of other branches count and do not name.
    pub(super) shared_without_block: u64,
    pub(super) nodes: BTreeMap<Nid, NatEntry>,
    pub(super) visited: HashSet<Nid>,
    pub(super) live: u64,
    pub(super) inodes: BTreeMap<Nid, Inode>,
    /// Entries of each inode: directory and type.
    pub(super) names: HashMap<Nid, Vec<(Nid, u8)>>,
    pub(super) subdirs: HashMap<Nid, u32>,
    /// Positions of findings, and the inodes they concern.
    pub(super) about: Vec<(usize, Nid)>,
}

impl Checker {
    pub(super) fn find(&mut self, place: impl fmt::Display, what: impl fmt::Display) {
        self.report.findings.push(Finding {
            place: place.to_string(),
            what: what.to_string(),
        });
    }

    /// Adds a finding that gets the path of an inode.
    pub(super) fn find_in(&mut self, ino: Nid, place: impl fmt::Display, what: impl fmt::Display) {
        self.about.push((self.report.findings.len(), ino));
        self.find(place, what);
    }

    pub(super) fn run(&mut self) -> Result<()> {
        self.table()?;
        let inos: Vec<Nid> = self
            .nodes
            .iter()
            .filter(|(nid, e)| **nid == e.ino)
            .map(|(nid, _)| *nid)
            .collect();
        for ino in inos {
            self.inode(ino);
        }
        self.links();
        self.counts();
        self.space()
    }

    pub(super) fn table(&mut self) -> Result<()> {
        let (mut nodes, mut tree) = (Vec::new(), Vec::new());
        let dev = self.volume.dev.clone();
        if let Err(e) = self.volume.nat.walk(
            &*dev,
            |nid, entry| nodes.push((nid, entry)),
            |addr| tree.push(addr),
        ) {
            self.find("node address table", e);
        }
        if tree.len() as u64 != self.volume.nat.blocks {
            let what = format!("{} blocks, counted {}", self.volume.nat.blocks, tree.len());
            self.find("node address table", what);
        }
        for addr in tree {
            self.claim(addr, "node address table", |log| log == Log::Meta);
        }
        for addr in self.volume.checkpoint.overflow.clone() {
            self.claim(BlockAddr(addr), "checkpoint overflow", |log| {
                log == Log::Meta
            });
        }
        for (nid, entry) in nodes {
            if nid.0 >= self.volume.nat.next_nid {
                let what = format!("next number is {}", self.volume.nat.next_nid);
                self.find(format_args!("node {nid}"), what);
            }
            self.nodes.insert(nid, entry);
        }
        Ok(())
    }

    pub(super) fn claim(
        &mut self,
        addr: BlockAddr,
        who: impl fmt::Display,
        fits: impl Fn(Log) -> bool,
    ) {
        match self.volume.sb.geometry.place(addr) {
            Some((log, offset)) if fits(log) => {
                let head = self.volume.logs.marks[log.index()].head;
                if offset >= head {
                    self.find(
                        &who,
                        format_args!(
                            "block {addr} lies past the head {head:#x} of the {log:?} log"
                        ),
                    );
                }
            }
            _ => self.find(&who, format_args!("block {addr} lies in the wrong area")),
        }
        if !self.claimed.insert(addr.0) {
            self.find(&who, format_args!("block {addr} is referred to twice"));
        }
    }

    /// Reads a node that `owner` names, and marks it as used.
    pub(super) fn visit(&mut self, nid: Nid, owner: Nid) -> Option<NodeBody> {
        let place = format!("node {nid} of inode {owner}");
        match self.nodes.get(&nid) {
            Some(entry) if entry.ino == owner => {}
            other => {
                let what = format!("table entry is {other:?}");
                self.find_in(owner, place, what);
                return None;
            }
        }
        if !self.visited.insert(nid) {
            self.find_in(owner, place, "is named twice");
            return None;
        }
        let addr = self.nodes[&nid].addr;
        self.claim(addr, &place, |log| Log::NODES.contains(&log));
        self.live += 1;
        match self.volume.node(nid) {
            Ok(node) => {
                let body = node.body.clone();
                if self.volume.is_shared(addr) {
                    self.shared_without_block += body.without_block();
                }
                Some(body)
            }
            Err(e) => {
                self.find_in(owner, place, e);
                None
            }
        }
    }

    pub(super) fn inode(&mut self, ino: Nid) {
        let Some(body) = self.visit(ino, ino) else {
            return;
        };
        let NodeBody::Inode(inode) = body else {
            return self.find_in(ino, format_args!("inode {ino}"), "is not an inode");
        };
        let mut blocks = 0;
        if let Content::Map(map) = &inode.content {
            for (i, slot) in map.slots.iter().enumerate() {
                blocks += self.slot(ino, i as u64, slot);
            }
        }
        let mut todo = roots(&inode);
        // Terminates: every step visits a node for the first time, or visits nothing.
        while let Some((nid, level, base)) = todo.pop() {
            let Some(body) = self.visit(nid, ino) else {
                continue;
            };
            blocks += 1;
            let place = format!("node {nid} of inode {ino}");
            if self
                .volume
                .nodes
                .get(nid)
                .is_some_and(|node| node.ordinal != ordinal_at(base))
            {
                self.find_in(
                    ino,
                    &place,
                    format_args!("ordinal, expected {}", ordinal_at(base)),
                );
            }
            match (&body, level) {
                (NodeBody::Direct(slots), 0) => {
                    for (i, slot) in slots.iter().enumerate() {
                        blocks += self.slot(ino, base + i as u64, slot);
                    }
                }
                (NodeBody::Indirect(found, nids), _) if *found == level => {
                    for (at, nid) in nids
                        .iter()
                        .enumerate()
                        .filter(|(_, nid)| **nid != Nid::NONE)
                    {
                        todo.push((*nid, level - 1, child_base(base, level, at)));
                    }
                }
                _ => self.find_in(ino, place, format_args!("is not a node of level {level}")),
            }
        }
        let mut attributes = inode.xattr.clone();
        if inode.xattr_nid != Nid::NONE {
            if !attributes.is_empty() {
                self.find_in(
                    ino,
                    format_args!("inode {ino}"),
                    "has attributes both inside and in a node",
                );
            }
            match self.visit(inode.xattr_nid, ino) {
                Some(NodeBody::Xattr(bytes)) => attributes = bytes,
                Some(_) => self.find_in(
                    ino,
                    format_args!("node {} of inode {ino}", inode.xattr_nid),
                    "holds no attributes",
                ),
                None => {}
            }
            blocks += 1;
        }
        if let Err(e) = xattr::decode(&attributes) {
            self.find_in(ino, format_args!("inode {ino}"), e);
        }
        if ino == Nid::ROOT && quota::understood(&attributes).is_some() {
            self.find("root directory", "an attribute holds a malformed limit");
        }
        if blocks != inode.blocks {
            self.find_in(
                ino,
                format_args!("inode {ino}"),
                format_args!("{} blocks, counted {blocks}", inode.blocks),
            );
        }
        if let Content::Inline(bytes) = &inode.content
            && bytes.len() as u64 > inode.size
        {
            self.find_in(
                ino,
                format_args!("inode {ino}"),
                format_args!("{} inline bytes, size {}", bytes.len(), inode.size),
            );
        }
        if inode.is_dir() {
            self.directory(ino, &inode);
        }
        self.inodes.insert(ino, *inode);
    }

    pub(super) fn slot(&mut self, ino: Nid, index: u64, slot: &Slot) -> u64 {
        if !slot.counts() {
            return 0;
        }
        self.live += 1;
        self.report.lost_blocks += u64::from(*slot == Slot::LOST);
        if slot.addr.is_mapped() {
            let place = format!("block {index} of inode {ino}");
            self.claim(slot.addr, &place, Log::may_hold_data);
            if self.data {
                let mut bytes = [0; BLOCK_SIZE];
                if let Err(e) = self.volume.read_data(ino, index, &[*slot], &mut bytes) {
                    self.find_in(ino, place, e);
                } else if let Err(e) = verify_data(ino, index, slot, &bytes) {
                    self.find_in(ino, place, e);
                }
            }
        }
        1
    }

    pub(super) fn counts(&mut self) {
        let lost: Vec<Nid> = self
            .nodes
            .keys()
            .copied()
            .filter(|nid| !self.visited.contains(nid))
            .collect();
        for nid in lost {
            let what = format!(
                "belongs to inode {}, which does not name it",
                self.nodes[&nid].ino
            );
            self.find(format_args!("node {nid}"), what);
        }
        if self.live != self.volume.live {
            let what = format!("{} live blocks, counted {}", self.volume.live, self.live);
            self.find("checkpoint", what);
        }
        if self.report.inodes != self.volume.inodes {
            let what = format!(
                "{} inodes, counted {}",
                self.volume.inodes, self.report.inodes
            );
            self.find("checkpoint", what);
        }
    }
}
