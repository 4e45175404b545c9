//! Space usage of a tree: sizes, stored bytes and shared content of every file, and their sums by directory.

use super::attribution::GroupId;
use super::layout_stats::{LayoutStats, LayoutStatsOptions, StatsBuilder};
use super::limits::{NAME_BYTES_MAX, NAMES_MAX};
use super::regions::{Codings, Collector, GroupIds, InodeSizes, Member, Region, Visitor};
use super::sharing::Sharing;
use crate::read::{FileType, Image, Inode, Layout, Nid};
use crate::{Error, Result};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Group of the data of the packed inode that no file uses.
const PACKED: GroupId = 0;
/// Group of the data of the metabox inode.
const METABOX: GroupId = 1;
/// Number of groups that precede those of the inodes.
const HIDDEN_GROUPS: u32 = 2;
/// Marks the absence of an index.
const NONE: u32 = u32::MAX;

/// Name in a [`TreeUsage`]. The root is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// Root directory of the tree.
    pub const ROOT: Self = Self(0);

    /// Returns the position in tree order.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Space usage of one inode.
#[derive(Clone, Copy, Debug)]
pub struct InodeUsage {
    /// Number of the inode in the image.
    pub nid: Nid,
    /// Type of the file.
    pub file_type: FileType,
    /// Layout of the data.
    pub layout: Layout,
    /// Encodings of the data, except of fragments.
    pub codings: Codings,
    /// Number of names in the tree.
    pub names: u32,
    /// Sizes of the data.
    pub sums: Sums,
    /// First name in tree order.
    pub node: NodeId,
}

/// Sizes of the data of an inode, or of all inodes below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of inodes. Each counts at its first name only.
    pub inodes: u64,
    /// Size of the data, in bytes.
    pub bytes: u64,
    /// Share of the data in the image, in bytes. A cluster with data of several files is divided among them.
    pub stored_bytes: u64,
    /// Bytes of data whose place in the image another extent refers to as well.
    pub shared_bytes: u64,
    /// Bytes of data in the packed inode.
    pub fragment_bytes: u64,
    /// Bytes of data that are holes.
    pub hole_bytes: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.inodes += other.inodes;
        for (sum, more) in [
            (&mut self.bytes, other.bytes),
            (&mut self.stored_bytes, other.stored_bytes),
            (&mut self.shared_bytes, other.shared_bytes),
            (&mut self.fragment_bytes, other.fragment_bytes),
            (&mut self.hole_bytes, other.hole_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Name in the tree.
struct Node {
    parent: u32,
    /// Position past the last descendant in tree order.
    end: u32,
    inode: u32,
    /// Position of the sums of a directory.
    dir: u32,
    name_start: u32,
    name_len: u16,
}

/// Space usage of the tree of an image, with the statistics and regions that the same walk collects.
pub struct TreeUsage {
    nodes: Vec<Node>,
    names: Vec<u8>,
    inodes: Vec<InodeUsage>,
    /// Sums of the directories.
    dirs: Vec<Sums>,
    sharing: Sharing,
    /// Bytes in the image that hold data of the packed inode that no file uses.
    pub packed_unused_bytes: u64,
    /// Bytes in the image that hold data of the metabox inode.
    pub metabox_bytes: u64,
    /// Statistics of the layout, with those by type and extension.
    pub stats: LayoutStats,
    /// Regions of the image, by area and position.
    pub regions: Vec<Region>,
}

impl TreeUsage {
    /// Collects the usage of an image. Reads all metadata, and no data. Damaged structures are omitted and listed in
    /// the errors of the statistics.
    ///
    /// # Errors
    /// `Limit` for more names or references than fit into the memory that is set aside for them. The errors of
    /// reading the root.
    pub fn collect(image: &Image) -> Result<Self> {
        image.root()?;
        let options = LayoutStatsOptions {
            files: true,
            in_place: false,
        };
        let mut collector = Collector::new(image);
        collector.tables();
        let mut builder = Builder::new(image, options);
        collector.tree(&mut builder);
        let uses = collector.take_uses();
        let mut regions = collector.finish();
        // The root has a group.
        let Some((by_kind, by_inode, references)) = uses else {
            return Err(regions
                .errors
                .pop()
                .unwrap_or_else(|| Error::corrupt("root", "cannot be read")));
        };
        let is_full = builder.is_full || by_inode.is_full() || references.is_full();
        let is_limit = |e: &Error| matches!(e, Error::Limit(_));
        if let Some(at) = regions.errors.iter().position(is_limit).filter(|_| is_full) {
            return Err(regions.errors.swap_remove(at));
        }
        let stats = builder.stats.finish(image, Some(by_kind), &mut regions);
        let groups = builder.inodes.len() + HIDDEN_GROUPS as usize;
        let stored = by_inode.stored_bytes(groups);
        let sharing = references.sorted();
        let mut inodes = builder.inodes;
        for (inode, stored) in inodes.iter_mut().zip(&stored[HIDDEN_GROUPS as usize..]) {
            inode.sums.stored_bytes = *stored;
        }
        sharing.each_shared(|group, bytes| {
            let inode = group.checked_sub(HIDDEN_GROUPS);
            if let Some(inode) = inode.and_then(|i| inodes.get_mut(i as usize)) {
                inode.sums.shared_bytes = inode.sums.shared_bytes.saturating_add(bytes);
            }
        });
        let mut out = Self {
            nodes: builder.nodes,
            names: builder.names,
            inodes,
            dirs: vec![Sums::default(); builder.dirs as usize],
            sharing,
            packed_unused_bytes: stored[PACKED as usize],
            metabox_bytes: stored[METABOX as usize],
            stats,
            regions: regions.list,
        };
        out.add_up();
        Ok(out)
    }

    /// Adds each inode to the directories above its first name, and closes the ranges of descendants.
    fn add_up(&mut self) {
        for i in (0..self.nodes.len()).rev() {
            let node = &self.nodes[i];
            let (dir, parent, end) = (node.dir, node.parent, node.end);
            let inode = &self.inodes[node.inode as usize];
            let own = match inode.node.index() == i {
                true => inode.sums,
                false => Sums::default(),
            };
            let sums = match self.dirs.get_mut(dir as usize) {
                Some(sums) => {
                    sums.add(&own);
                    *sums
                }
                None => own,
            };
            if let Some(parent) = self.nodes.get_mut(parent as usize) {
                parent.end = parent.end.max(end);
                let dir = parent.dir as usize;
                self.dirs[dir].add(&sums);
            }
        }
    }

    /// Returns the number of names, including the root.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns false: every tree has a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns all names in tree order.
    pub fn all(&self) -> impl Iterator<Item = NodeId> {
        // Fits: at most `NAMES_MAX`.
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// Returns the last component of the path. That of the root is empty.
    pub fn name(&self, id: NodeId) -> &[u8] {
        let node = &self.nodes[id.index()];
        let start = node.name_start as usize;
        &self.names[start..start + usize::from(node.name_len)]
    }

    /// Returns the path from the root without a leading slash.
    pub fn path(&self, id: NodeId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = Some(id);
        while let Some(id) = at.filter(|id| *id != NodeId::ROOT) {
            parts.push(self.name(id));
            at = self.parent(id);
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Returns the directory that holds a name. `None` for the root.
    pub fn parent(&self, id: NodeId) -> Option<NodeId> {
        Some(self.nodes[id.index()].parent)
            .filter(|parent| *parent != NONE)
            .map(NodeId)
    }

    /// Returns the entries of a directory, in the order of their names.
    pub fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        let end = self.nodes[id.index()].end;
        let mut next = id.0 + 1;
        std::iter::from_fn(move || {
            let at = (next < end).then_some(NodeId(next))?;
            next = self.nodes[at.index()].end;
            Some(at)
        })
    }

    /// Returns the name at a path from the root, with or without a leading slash.
    pub fn find(&self, path: &[u8]) -> Option<NodeId> {
        let parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty());
        let mut at = NodeId::ROOT;
        for part in parts {
            at = self.child(at, part)?;
        }
        Some(at)
    }

    /// Finds an entry of a directory by bisection over its descendants.
    fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        let (mut low, mut high) = (dir.0 + 1, self.nodes[dir.index()].end);
        while low < high {
            let mut at = NodeId(low + (high - low) / 2);
            // Ends: every node of the range is below the directory.
            while let Some(parent) = self.parent(at).filter(|parent| *parent != dir) {
                at = parent;
            }
            match self.name(at).cmp(name) {
                Ordering::Equal => return Some(at),
                Ordering::Less => low = self.nodes[at.index()].end,
                Ordering::Greater => high = at.0,
            }
        }
        None
    }

    /// Returns the usage of the inode of a name.
    pub fn inode(&self, id: NodeId) -> &InodeUsage {
        &self.inodes[self.nodes[id.index()].inode as usize]
    }

    /// Returns true for a further name of an inode, which has no part in the sums.
    pub fn is_hard_link(&self, id: NodeId) -> bool {
        self.inode(id).node != id
    }

    /// Returns true for a directory.
    pub fn is_dir(&self, id: NodeId) -> bool {
        self.nodes[id.index()].dir != NONE
    }

    /// Returns the sums of a directory and everything below it, or the sizes of a file.
    pub fn sums(&self, id: NodeId) -> Sums {
        match self.dirs.get(self.nodes[id.index()].dir as usize) {
            Some(sums) => *sums,
            None => self.inode(id).sums,
        }
    }

    /// Returns at most `max` other inodes whose data is partly at the same places, by their first names.
    pub fn sharers(&self, id: NodeId, max: usize) -> Vec<NodeId> {
        let own = self.nodes[id.index()].inode + HIDDEN_GROUPS;
        let groups = self.sharing.sharers(own, max);
        let inodes = groups.into_iter().filter_map(|group| {
            self.inodes
                .get(group.checked_sub(HIDDEN_GROUPS)? as usize)
                .map(|inode| inode.node)
        });
        inodes.collect()
    }

    /// Returns the bytes that hard links save: the size of each inode, for every name after its first.
    pub fn hard_link_bytes(&self) -> u64 {
        let saved = self.inodes.iter().filter(|i| i.file_type == FileType::File);
        saved.fold(0, |sum: u64, i| {
            sum.saturating_add(i.sums.bytes.saturating_mul(u64::from(i.names) - 1))
        })
    }
}

/// Tree while the walk over the image is under way.
struct Builder {
    stats: StatsBuilder,
    nodes: Vec<Node>,
    names: Vec<u8>,
    inodes: Vec<InodeUsage>,
    /// Number of directories that were added.
    dirs: u32,
    /// Directories from the root to the one that was added last.
    stack: Vec<u32>,
    /// Inodes that may have several names.
    links: HashMap<Nid, u32>,
    /// A name was refused.
    is_full: bool,
}

impl Visitor for Builder {
    fn groups(&mut self, member: Member<'_>) -> GroupIds {
        let inode = match member {
            Member::Packed => PACKED,
            Member::Metabox => METABOX,
            // Fits: at most `NAMES_MAX`.
            Member::Named(..) => HIDDEN_GROUPS + self.inodes.len() as u32,
        };
        GroupIds {
            inode: Some(inode),
            ..self.stats.groups(member)
        }
    }

    fn visit(&mut self, path: &[u8], inode: &Inode, found: &InodeSizes, first: bool) -> Result<()> {
        self.stats.visit(path, inode, found, first)?;
        self.add(path, inode, found)
    }
}

impl Builder {
    fn new(image: &Image, options: LayoutStatsOptions) -> Self {
        Self {
            stats: StatsBuilder::new(image, options),
            nodes: Vec::new(),
            names: Vec::new(),
            inodes: Vec::new(),
            dirs: 0,
            stack: Vec::new(),
            links: HashMap::new(),
            is_full: false,
        }
    }

    /// Adds a name. Names come in tree order.
    fn add(&mut self, path: &[u8], inode: &Inode, found: &InodeSizes) -> Result<()> {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let is_long = self.names.len() + name.len() > NAME_BYTES_MAX;
        if is_long || self.nodes.len() >= NAMES_MAX {
            self.is_full = true;
            let what = format_args!(
                "more than {NAMES_MAX} names, or {NAME_BYTES_MAX} bytes of names, the limit of this view"
            );
            return Err(Error::limit("", what));
        }
        let depth = match path {
            [] => 0,
            path => 1 + path.iter().filter(|b| **b == b'/').count(),
        };
        self.stack.truncate(depth);
        // Fits: at most `NAMES_MAX`, as are the numbers of inodes and directories.
        let id = self.nodes.len() as u32;
        let inode_index = self.add_inode(inode, found, NodeId(id));
        let dir = match inode.is_dir() {
            true => {
                self.dirs += 1;
                self.dirs - 1
            }
            false => NONE,
        };
        self.nodes.push(Node {
            parent: self.stack.last().copied().unwrap_or(NONE),
            end: id + 1,
            inode: inode_index,
            dir,
            // Fits: at most `NAME_BYTES_MAX`, and a name has at most 255 bytes.
            name_start: self.names.len() as u32,
            name_len: name.len() as u16,
        });
        self.names.extend_from_slice(name);
        if inode.is_dir() {
            self.stack.push(id);
        }
        Ok(())
    }

    fn add_inode(&mut self, inode: &Inode, found: &InodeSizes, node: NodeId) -> u32 {
        let several = !inode.is_dir() && inode.nlink() != 1;
        // Fits: at most `NAMES_MAX`.
        let next = self.inodes.len() as u32;
        if several {
            let index = *self.links.entry(inode.nid()).or_insert(next);
            if index != next {
                self.inodes[index as usize].names += 1;
                return index;
            }
        }
        self.inodes.push(InodeUsage {
            nid: inode.nid(),
            file_type: inode.file_type(),
            layout: inode.layout(),
            codings: found.codings,
            names: 1,
            sums: Sums {
                inodes: 1,
                bytes: if inode.has_data() { inode.size() } else { 0 },
                fragment_bytes: found.fragment_bytes,
                hole_bytes: found.hole_bytes,
                ..Sums::default()
            },
            node,
        });
        next
    }
}
