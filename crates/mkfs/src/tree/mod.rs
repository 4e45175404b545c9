//! In-memory file tree of the image: an arena of inodes and one of names.
//!
//! Invariants:
//!
//! * Inode 0 is the root directory. After [`Tree::finish`], every other inode has at least one live
//!   name.
//! * A directory has exactly one name. Other inodes may have many: hard links are merged when they
//!   are added.
//! * After `finish`, the children of a directory are consecutive [`Dentry`] values in ascending
//!   bytewise order.
//!
//! There may be millions of entries, so they are small: 40 bytes per inode, and 20 bytes plus the
//! name per dentry. Rare and shared properties are stored in separate tables.

pub(crate) mod file_contexts;
mod finish;
pub(crate) mod fs_config;
mod insert;
mod layers;
pub(crate) mod order;
mod overlay;
pub(crate) mod paths;
mod view;

use super::source::tally::AffectedPaths;
use super::source::{Content, Device, Kind, Meta};
use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};
use std::hash::Hash;
use tuff_format::inode::FileType;

/// Index of an inode in the tree.
pub(crate) type InodeId = u32;
type DentryId = u32;
/// Marks a missing inode or name.
const NONE: u32 = u32::MAX;
/// Root directory of the tree.
pub(crate) const ROOT: InodeId = 0;
/// Packed inode, which no directory contains.
pub(crate) const PACKED: InodeId = InodeId::MAX - 1;
/// Metabox inode, which no directory contains.
pub(crate) const METABOX: InodeId = PACKED - 1;

/// Inode of the start list, which no directory contains. Unlike the other two it is written by functions of its own.
pub(crate) const START_LIST: InodeId = METABOX - 1;

/// Returns true for the packed inode and the metabox inode.
pub(crate) fn is_hidden(inode: InodeId) -> bool {
    inode >= METABOX
}

/// Stored form of one inode. [`Tree`] has an accessor for each property.
#[derive(Clone, Debug)]
struct Node {
    /// Depends on the type. File: size. Directory: first child, or start and number of children.
    /// Symbolic link: position and length of the target in `names`. Device: device number.
    body: u64,
    mtime: i64,
    mtime_nsec: u32,
    /// Number of live names. For a directory: 2 plus one per subdirectory.
    nlink: u32,
    /// First name in tree order.
    name: DentryId,
    /// Attributes: an index into `attrs`.
    attrs: u32,
    /// Index into `offsets` or `contents`.
    content: u32,
    file_type: FileType,
    content_kind: ContentKind,
}

/// Table that holds the content of a file; see [`Content`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentKind {
    None,
    InSource,
    Stream,
    /// A position in `offsets`.
    Range,
    /// Anything else, in `contents`.
    Other,
}

/// Attributes that many inodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attrs {
    mode: u16,
    layer: u16,
    uid: u32,
    gid: u32,
    xattrs: u32,
}

/// Type of an inode, with the data of that type.
#[derive(Debug)]
pub(crate) enum NodeKind<'a> {
    File {
        size: u64,
    },
    Dir,
    /// Target of the symbolic link.
    Symlink(&'a [u8]),
    Char(Device),
    Block(Device),
    Fifo,
    Socket,
}

/// Directory entry: one name in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dentry {
    /// Directory that contains the entry.
    pub(crate) parent: InodeId,
    /// Inode that the entry names.
    pub(crate) inode: InodeId,
    name_at: u32,
    name_len: u8,
    dead: bool,
    layer: u16,
    next: DentryId,
}

/// Interpretation of whiteouts in later sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// Overlayfs whiteouts. A character device 0:0 or an empty file with `trusted.overlay.whiteout`
    /// deletes; `trusted.overlay.opaque` hides the lower contents of a directory.
    Overlay,
    /// AUFS whiteouts, as in OCI layers: `.wh.NAME` deletes, `.wh..wh..opq` hides.
    Aufs,
    /// Whiteouts of overlayfs and of AUFS.
    Both,
    /// Like `Both`, but the image is a layer itself: it keeps the whiteouts, converted to those of
    /// overlayfs.
    Convert,
    /// No whiteouts: such entries are ordinary.
    Keep,
}

impl Whiteouts {
    fn reads_overlay(self) -> bool {
        matches!(self, Self::Overlay | Self::Both | Self::Convert)
    }

    fn reads_aufs(self) -> bool {
        matches!(self, Self::Aufs | Self::Both | Self::Convert)
    }
}

/// Names and values of extended attributes.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Full name and value of an extended attribute.
pub(crate) type Xattr = (Box<[u8]>, Box<[u8]>);

/// Sorted set of extended attributes.
pub(crate) type XattrSet = Box<[Xattr]>;

/// Entry without its path, for [`Tree::add_child`].
pub(crate) enum NewEntry {
    /// Directory with its attributes.
    Dir(Meta, Pairs),
    /// Further name of an existing inode.
    Link(InodeId),
    /// Any other inode; `Kind` is neither `Dir` nor `Hardlink`.
    Other(Kind, Meta, Pairs, Content),
}

/// Tree of the image, during collection and after [`finish`](Tree::finish).
pub(crate) struct Tree {
    /// All inodes. After `finish`, only those reachable from the root have a name.
    nodes: Vec<Node>,
    /// All names; after `finish`, grouped by directory and sorted.
    dentries: Vec<Dentry>,
    /// Distinct extended attribute sets. Set 0 is empty.
    xattr_sets: Vec<XattrSet>,
    attrs: Vec<Attrs>,
    /// Positions of contents in a tar.
    offsets: Vec<u64>,
    contents: Vec<Content>,
    /// Names of entries and targets of symbolic links.
    names: Vec<u8>,
    /// Live dentries by parent and name, built on the first lookup.
    table: Option<HashTable<DentryId>>,
    hasher: DefaultHashBuilder,
    xattr_set_ids: HashMap<XattrSet, u32>,
    attr_ids: HashMap<Attrs, u32>,
    layer: u16,
    whiteouts: Whiteouts,
    /// Store extended attributes in the image, instead of only interpreting those of overlayfs.
    keeps_xattrs: bool,
    /// Paths that were no directories and were replaced by one because a later entry lies below.
    pub(crate) replaced: AffectedPaths,
    /// Directories with entries of the same source that a later entry of another type replaced.
    pub(crate) dropped: AffectedPaths,
    /// Directories that hide their contents in layers below the image.
    opaque: HashSet<InodeId>,
    /// Sources whose root hides all layers below the image. Overlayfs ignores an opaque root, so it
    /// needs special treatment.
    pub(crate) opaque_roots: Vec<u16>,
    /// Paths of the whiteouts in the current source.
    deleted: HashSet<Vec<u8>>,
    /// Directories whose names of earlier sources the current source has hidden.
    hidden: HashSet<InodeId>,
    /// Directories of the current source in which AUFS kept data of its own.
    aufs_directories: Vec<DentryId>,
    last_dir: (Vec<u8>, InodeId),
    /// Every directory was added completely and in order, so there is nothing to sort.
    in_order: bool,
}

impl Tree {
    /// Creates an empty tree whose root directory has default attributes.
    pub(crate) fn new(whiteouts: Whiteouts) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            dentries: Vec::new(),
            xattr_sets: vec![Box::default()],
            attrs: Vec::new(),
            offsets: Vec::new(),
            contents: Vec::new(),
            names: Vec::new(),
            table: None,
            hasher: DefaultHashBuilder::default(),
            xattr_set_ids: HashMap::new(),
            attr_ids: HashMap::new(),
            layer: 0,
            whiteouts,
            opaque: HashSet::new(),
            opaque_roots: Vec::new(),
            keeps_xattrs: true,
            replaced: AffectedPaths::default(),
            dropped: AffectedPaths::default(),
            deleted: HashSet::new(),
            hidden: HashSet::new(),
            aufs_directories: Vec::new(),
            last_dir: (Vec::new(), ROOT),
            in_order: true,
        };
        tree.xattr_set_ids.insert(Box::default(), 0);
        let root = tree.unnamed_dir();
        tree.nodes.push(root);
        tree
    }

    /// Drops extended attributes, after those of overlayfs were interpreted.
    pub(crate) fn leave_xattrs_out(&mut self) {
        self.keeps_xattrs = false;
    }

    /// True if sources must provide extended attributes.
    pub(crate) fn wants_xattrs(&self) -> bool {
        self.keeps_xattrs || self.whiteouts.reads_overlay()
    }

    /// Number of inodes, including those without a name.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Estimated memory of the tree. Unit: bytes. The same on every machine.
    pub(crate) fn footprint(&self) -> u64 {
        let of = |n: usize, size: usize| n as u64 * size as u64;
        let table = self.table.as_ref().map_or(0, |t| of(t.len(), 8));
        let sets = self.xattr_sets.iter().flatten();
        of(self.nodes.len(), size_of::<Node>())
            + of(self.dentries.len(), size_of::<Dentry>())
            + of(self.offsets.len(), 8)
            + of(self.contents.len(), size_of::<Content>())
            + of(self.names.len(), 1)
            + of(self.attrs.len(), 3 * size_of::<Attrs>())
            + sets
                .map(|(n, v)| 2 * of(n.len() + v.len() + 48, 1))
                .sum::<u64>()
            + table
    }
}

fn name_of<'a>(names: &'a [u8], d: &Dentry) -> &'a [u8] {
    let at = d.name_at as usize;
    &names[at..at + usize::from(d.name_len)]
}

/// Converts a path for a message.
pub(crate) fn lossy(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}

#[cfg(test)]
mod tests;
