//! The tree of an image to be: one arena of inodes, one of names.
//!
//! Invariants:
//!
//! * Inode 0 is the root directory. Every other inode has at least one live name once [`Tree::finish`] has run.
//! * A directory has exactly one name. Other inodes may have many: hard links are folded when they are added.
//! * After `finish`, the children of a directory are one run of [`Dentry`] values in ascending bytewise order.
//!
//! There may be millions of entries, so they are small: 40 bytes per inode, 20 per name and the name itself. What few
//! entries have, and what many share, lies in tables of its own.

mod finish;
mod insert;
mod layers;
mod overlay;
mod view;

use super::source::{Content, Device, Kind, Meta};
use super::tally::Tally;
use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};
use std::hash::Hash;
use tuff_format::inode::FileType;

/// Index of an inode.
pub(crate) type InodeId = u32;
type DentryId = u32;
/// No inode, no name.
const NONE: u32 = u32::MAX;
/// The root directory.
pub(crate) const ROOT: InodeId = 0;
/// The packed inode, which no directory names.
pub(crate) const PACKED: InodeId = InodeId::MAX - 1;
/// The metabox inode, which no directory names.
pub(crate) const METABOX: InodeId = PACKED - 1;

/// Returns true for the packed inode and the metabox inode.
pub(crate) fn is_hidden(inode: InodeId) -> bool {
    inode >= METABOX
}

/// One inode, as it is kept. [`Tree`] has a method for each thing that one may ask of it.
#[derive(Clone, Debug)]
struct Node {
    /// By type. File: its size. Directory: its first child, or where they start and how many there are. Link: where its
    /// target lies among the names, and its length. Device: its number.
    body: u64,
    mtime: i64,
    mtime_nsec: u32,
    /// Live names. For a directory: 2 and one per subdirectory.
    nlink: u32,
    /// First name in tree order.
    name: DentryId,
    /// Index into `attrs`.
    attrs: u32,
    /// Index into `offsets` or `contents`.
    content: u32,
    file_type: FileType,
    place: Place,
}

/// Where the content of a file is kept; see [`Content`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    InSource,
    Stream,
    /// In `offsets`.
    Range,
    /// In `contents`.
    Other,
}

/// What many inodes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attrs {
    mode: u16,
    layer: u16,
    uid: u32,
    gid: u32,
    xattrs: u32,
}

/// What an inode is, with what only that type has.
#[derive(Debug)]
pub(crate) enum NodeKind<'a> {
    /// A regular file.
    File {
        /// Unit: bytes.
        size: u64,
    },
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink(&'a [u8]),
    /// A character device.
    Char(Device),
    /// A block device.
    Block(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dentry {
    /// The directory.
    pub(crate) parent: InodeId,
    /// What it names.
    pub(crate) inode: InodeId,
    name_at: u32,
    name_len: u8,
    dead: bool,
    layer: u16,
    next: DentryId,
}

/// What whiteouts in later sources mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// Overlayfs: a character device 0:0 deletes, and so does an empty file with `trusted.overlay.whiteout`;
    /// `trusted.overlay.opaque` hides what lies below a directory.
    Overlay,
    /// AUFS, as in OCI layers: `.wh.NAME` deletes, `.wh..wh..opq` hides.
    Aufs,
    /// Those of overlayfs and those of AUFS.
    Both,
    /// As `Both`, and they are in the image, too, as those of overlayfs: it is a layer itself.
    Convert,
    /// They are ordinary entries.
    Keep,
}

impl Whiteouts {
    fn reads_overlay(self) -> bool {
        matches!(self, Self::Overlay | Self::Both | Self::Convert)
    }
}

/// Names and values of attributes.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Full name and value of an extended attribute.
pub(crate) type Xattr = (Box<[u8]>, Box<[u8]>);

/// A set of extended attributes, sorted.
pub(crate) type XattrSet = Box<[Xattr]>;

/// An entry without its path: what [`Tree::add_child`] takes.
pub(crate) enum New {
    /// A directory.
    Dir(Meta, Pairs),
    /// Another name of an inode that is there.
    Link(InodeId),
    /// Anything else; `Kind` is neither of the two above.
    Other(Kind, Meta, Pairs, Content),
}

/// The tree while it is collected, and after [`finish`](Tree::finish).
pub(crate) struct Tree {
    /// All inodes. After `finish` only those reached from the root have a name.
    nodes: Vec<Node>,
    /// All names; after `finish` grouped by directory and sorted.
    dentries: Vec<Dentry>,
    /// Distinct attribute sets. 0 is the empty one.
    xattr_sets: Vec<XattrSet>,
    attrs: Vec<Attrs>,
    /// Positions of contents in a tar.
    offsets: Vec<u64>,
    contents: Vec<Content>,
    /// Names and targets of links.
    names: Vec<u8>,
    /// All live dentries by parent and name, made when the first one is looked up.
    table: Option<HashTable<DentryId>>,
    hasher: DefaultHashBuilder,
    set_ids: HashMap<XattrSet, u32>,
    attr_ids: HashMap<Attrs, u32>,
    layer: u16,
    whiteouts: Whiteouts,
    /// Attributes are for the image, not only for what overlayfs says with them.
    keeps_xattrs: bool,
    /// Paths of what was no directory, and had to become one because something lies in it.
    pub(crate) replaced: Tally,
    /// Directories that hide what layers below the image have there.
    opaque: HashSet<InodeId>,
    /// Sources whose root hides all below the image, which overlayfs does not ask a layer's root for.
    pub(crate) opaque_roots: Vec<u16>,
    /// Paths of this source's whiteouts.
    deleted: HashSet<Vec<u8>>,
    last_dir: (Vec<u8>, InodeId),
    /// So far every directory came whole and in order: nothing is left to sort.
    in_order: bool,
}

impl Tree {
    /// An empty tree with a root directory that nobody has described yet.
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
            set_ids: HashMap::new(),
            attr_ids: HashMap::new(),
            layer: 0,
            whiteouts,
            opaque: HashSet::new(),
            opaque_roots: Vec::new(),
            keeps_xattrs: true,
            replaced: Tally::default(),
            deleted: HashSet::new(),
            last_dir: (Vec::new(), ROOT),
            in_order: true,
        };
        tree.set_ids.insert(Box::default(), 0);
        let root = tree.unnamed_dir();
        tree.nodes.push(root);
        tree
    }

    /// Has no attributes from here on, but acts on those of layers.
    pub(crate) fn leave_xattrs_out(&mut self) {
        self.keeps_xattrs = false;
    }

    /// True if attributes have to be read.
    pub(crate) fn wants_xattrs(&self) -> bool {
        self.keeps_xattrs || self.whiteouts.reads_overlay()
    }

    /// Number of inodes, those without a name among them.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What the tree takes, for each entry and name that there is. Unit: bytes. The same on every machine.
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

/// Bytes of a path for a message.
pub(crate) fn lossy(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}

#[cfg(test)]
mod tests;
