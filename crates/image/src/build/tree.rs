//! The tree of an image to be: one arena of inodes, one of names.
//!
//! Invariants:
//!
//! * Inode 0 is the root directory. Every other inode has at least one live name once [`Tree::finish`] has run.
//! * A directory has exactly one name. Other inodes may have many: hard links are folded when they are added.
//! * After `finish`, the children of a directory are one run of [`Dentry`] values in ascending bytewise order.

use super::source::{Content, Device, Entry, Kind, Meta};
use crate::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::{BuildHasher, Hash, Hasher};
use tuff_format::inode::FileType;

/// Index of an inode.
pub type InodeId = u32;
type DentryId = u32;
/// No inode, no name.
pub const NONE: u32 = u32::MAX;
/// The root directory.
pub const ROOT: InodeId = 0;

/// One inode.
#[derive(Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Attributes.
    pub meta: Meta,
    /// Index into [`Tree::xattr_sets`].
    pub xattrs: u32,
    /// Live names. For a directory: 2 and one per subdirectory.
    pub nlink: u32,
    /// The parent, for a directory.
    pub parent: InodeId,
    /// First name in tree order; set by `finish`.
    pub name: DentryId,
    /// Which source it came from.
    pub layer: u16,
    first_child: DentryId,
}

/// What an inode is, with what only that type has.
#[derive(Debug)]
pub enum NodeKind {
    /// A regular file.
    File {
        /// Unit: bytes.
        size: u64,
        /// Where its bytes are.
        content: Content,
    },
    /// A directory; after `finish`, its children are `dentries[start..start + count]`.
    Dir {
        /// First child.
        start: u32,
        /// Number of children.
        count: u32,
    },
    /// A symbolic link.
    Symlink(Box<[u8]>),
    /// A character device.
    Char(Device),
    /// A block device.
    Block(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Node {
    /// The type.
    pub fn file_type(&self) -> FileType {
        match self.kind {
            NodeKind::File { .. } => FileType::File,
            NodeKind::Dir { .. } => FileType::Dir,
            NodeKind::Symlink(_) => FileType::Symlink,
            NodeKind::Char(_) => FileType::Char,
            NodeKind::Block(_) => FileType::Block,
            NodeKind::Fifo => FileType::Fifo,
            NodeKind::Socket => FileType::Socket,
        }
    }
}

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Dentry {
    /// The directory.
    pub parent: InodeId,
    /// What it names.
    pub inode: InodeId,
    name_at: u32,
    name_len: u8,
    dead: bool,
    layer: u16,
    next: DentryId,
}

/// What whiteouts in later sources mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// Overlayfs: a character device 0:0 deletes, `trusted.overlay.opaque` hides what lies below a directory.
    Overlay,
    /// AUFS, as in OCI layers: `.wh.NAME` deletes, `.wh..wh..opq` hides.
    Aufs,
    /// They are ordinary entries.
    Keep,
}

/// A set of extended attributes: full names and values, sorted.
pub type XattrSet = Box<[(Box<[u8]>, Box<[u8]>)]>;

/// The tree while it is collected, and after [`finish`](Tree::finish).
pub struct Tree {
    /// All inodes. After `finish` only those reached from the root have a name.
    pub nodes: Vec<Node>,
    /// All names; after `finish` grouped by directory and sorted.
    pub dentries: Vec<Dentry>,
    /// Distinct attribute sets. 0 is the empty one.
    pub xattr_sets: Vec<XattrSet>,
    names: Vec<u8>,
    table: HashTable<DentryId>,
    hasher: DefaultHashBuilder,
    set_ids: HashMap<XattrSet, u32>,
    layer: u16,
    whiteouts: Whiteouts,
    last_dir: (Vec<u8>, InodeId),
}

impl Tree {
    /// An empty tree with a root directory that nobody has described yet.
    pub fn new(whiteouts: Whiteouts) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            dentries: Vec::new(),
            xattr_sets: vec![Box::default()],
            names: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            set_ids: HashMap::new(),
            layer: 0,
            whiteouts,
            last_dir: (Vec::new(), ROOT),
        };
        tree.set_ids.insert(Box::default(), 0);
        tree.nodes.push(tree.unnamed_dir());
        tree
    }

    /// Starts the next source: its entries win over those of earlier ones, its whiteouts act on them.
    pub fn next_layer(&mut self) -> Result<()> {
        self.layer = self
            .layer
            .checked_add(1)
            .ok_or_else(|| Error::usage("more than 65535 sources"))?;
        Ok(())
    }

    /// A directory that is only known because something lies in it.
    fn unnamed_dir(&self) -> Node {
        Node {
            kind: NodeKind::Dir { start: 0, count: 0 },
            meta: Meta {
                mode: 0o755,
                uid: 0,
                gid: 0,
                mtime: 0,
                mtime_nsec: 0,
            },
            xattrs: 0,
            nlink: 2,
            parent: ROOT,
            name: NONE,
            layer: self.layer,
            first_child: NONE,
        }
    }

    /// Adds an entry. Returns its inode, or `None` for a whiteout. A regular file's inode is the place for its data.
    pub fn add(&mut self, entry: Entry) -> Result<Option<InodeId>> {
        if entry.path.is_empty() {
            if entry.kind != Kind::Dir {
                return Err(Error::usage("the root of a source is not a directory"));
            }
            self.describe(ROOT, entry.meta, entry.xattrs)?;
            return Ok(Some(ROOT));
        }
        let (dir, name) = match entry.path.iter().rposition(|b| *b == b'/') {
            Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
            None => (&[][..], &entry.path[..]),
        };
        if !tuff_format::dirent::is_name(name) {
            return Err(Error::usage(format_args!(
                "{}: a name of {} bytes; names have 1 to 255",
                lossy(&entry.path),
                name.len()
            )));
        }
        let parent = self.directory(dir)?;
        if self.is_whiteout(parent, name, &entry) {
            return Ok(None);
        }
        let old = self.find(parent, name);
        let inode = match entry.kind {
            Kind::Hardlink(ref target) => {
                let missing = || {
                    let (link, target) = (lossy(&entry.path), lossy(target));
                    Error::usage(format_args!(
                        "{link}: hard link to {target}, which is not there before it"
                    ))
                };
                let inode = self.resolve(target).ok_or_else(missing)?;
                if self.nodes[inode as usize].file_type() == FileType::Dir {
                    let (link, target) = (lossy(&entry.path), lossy(target));
                    return Err(Error::usage(format_args!(
                        "{link}: hard link to {target}, which is a directory"
                    )));
                }
                if old.is_some_and(|d| self.dentries[d as usize].inode == inode) {
                    return Ok(Some(inode));
                }
                inode
            }
            Kind::Dir => {
                if let Some(inode) = old.map(|d| self.dentries[d as usize].inode)
                    && self.nodes[inode as usize].file_type() == FileType::Dir
                {
                    self.describe(inode, entry.meta, entry.xattrs)?;
                    return Ok(Some(inode));
                }
                let mut node = self.unnamed_dir();
                node.parent = parent;
                let inode = self.push(node)?;
                self.describe(inode, entry.meta, entry.xattrs)?;
                inode
            }
            kind => {
                let kind = match kind {
                    Kind::File { size } => NodeKind::File {
                        size,
                        content: entry.content,
                    },
                    Kind::Symlink(target) => NodeKind::Symlink(target.into()),
                    Kind::Char(device) => NodeKind::Char(device),
                    Kind::Block(device) => NodeKind::Block(device),
                    Kind::Fifo => NodeKind::Fifo,
                    Kind::Socket => NodeKind::Socket,
                    Kind::Dir | Kind::Hardlink(_) => unreachable!("handled above"),
                };
                let xattrs = self.intern(entry.xattrs)?;
                let (parent, layer) = (NONE, self.layer);
                let node = Node {
                    kind,
                    meta: entry.meta,
                    xattrs,
                    nlink: 0,
                    parent,
                    name: NONE,
                    layer,
                    first_child: NONE,
                };
                self.push(node)?
            }
        };
        if let Some(old) = old {
            self.remove(old);
        }
        self.link(parent, name, inode)?;
        Ok(Some(inode))
    }

    /// Sets a directory's attributes; an opaque one hides what earlier sources put into it.
    fn describe(
        &mut self,
        inode: InodeId,
        meta: Meta,
        mut xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        if self.whiteouts == Whiteouts::Overlay {
            let opaque = |n: &[u8]| matches!(n, b"trusted.overlay.opaque" | b"user.overlay.opaque");
            if xattrs.iter().any(|(n, v)| opaque(n) && v == b"y") {
                self.hide_children(inode);
            }
            xattrs.retain(|(n, _)| !opaque(n));
        }
        let set = self.intern(xattrs)?;
        let node = &mut self.nodes[inode as usize];
        node.meta = meta;
        node.xattrs = set;
        node.layer = self.layer;
        Ok(())
    }

    /// Acts on a whiteout. False: the entry is an ordinary one.
    fn is_whiteout(&mut self, parent: InodeId, name: &[u8], entry: &Entry) -> bool {
        let target = match self.whiteouts {
            Whiteouts::Keep => return false,
            Whiteouts::Overlay if entry.kind == Kind::Char(Device { major: 0, minor: 0 }) => name,
            Whiteouts::Overlay => return false,
            Whiteouts::Aufs if name == b".wh..wh..opq" => {
                self.hide_children(parent);
                return true;
            }
            // Other names with the double prefix are AUFS's own bookkeeping.
            Whiteouts::Aufs if name.starts_with(b".wh..wh.") => return true,
            Whiteouts::Aufs => match name.strip_prefix(b".wh.") {
                Some(target) => target,
                None => return false,
            },
        };
        if let Some(old) = self.find(parent, target)
            && self.dentries[old as usize].layer < self.layer
        {
            self.remove(old);
        }
        true
    }

    fn hide_children(&mut self, dir: InodeId) {
        let mut at = self.nodes[dir as usize].first_child;
        while at != NONE {
            let d = self.dentries[at as usize];
            if !d.dead && d.layer < self.layer {
                self.remove(at);
            }
            at = d.next;
        }
    }

    fn push(&mut self, node: Node) -> Result<InodeId> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|id| *id != NONE);
        let id = id.ok_or_else(|| Error::limit("tree", "more than 4294967294 inodes"))?;
        self.nodes.push(node);
        Ok(id)
    }

    fn hash(&self, parent: InodeId, name: &[u8]) -> u64 {
        let mut h = self.hasher.build_hasher();
        parent.hash(&mut h);
        h.write(name);
        h.finish()
    }

    fn find(&self, parent: InodeId, name: &[u8]) -> Option<DentryId> {
        let hash = self.hash(parent, name);
        let same = |id: &DentryId| {
            let d = &self.dentries[*id as usize];
            d.parent == parent && self.name(d) == name
        };
        self.table.find(hash, same).copied()
    }

    /// The name of a dentry.
    pub fn name(&self, d: &Dentry) -> &[u8] {
        let at = d.name_at as usize;
        &self.names[at..at + usize::from(d.name_len)]
    }

    fn link(&mut self, parent: InodeId, name: &[u8], inode: InodeId) -> Result<()> {
        let too_many = || Error::limit("tree", "more than 4 GiB of names");
        let name_at = u32::try_from(self.names.len()).map_err(|_| too_many())?;
        let id = u32::try_from(self.dentries.len())
            .ok()
            .filter(|id| *id != NONE)
            .ok_or_else(too_many)?;
        self.names.extend_from_slice(name);
        let next = std::mem::replace(&mut self.nodes[parent as usize].first_child, id);
        // Fits: checked by `is_name` in `add`, and directories on the way are checked below.
        let name_len = name.len() as u8;
        self.dentries.push(Dentry {
            parent,
            inode,
            name_at,
            name_len,
            dead: false,
            layer: self.layer,
            next,
        });
        let hash = self.hash(parent, name);
        let (dentries, names, hasher) = (&self.dentries, &self.names, &self.hasher);
        self.table.insert_unique(hash, id, |id| {
            let d = &dentries[*id as usize];
            let mut h = hasher.build_hasher();
            d.parent.hash(&mut h);
            h.write(&names[d.name_at as usize..d.name_at as usize + usize::from(d.name_len)]);
            h.finish()
        });
        let node = &mut self.nodes[inode as usize];
        if node.file_type() == FileType::Dir {
            self.nodes[parent as usize].nlink += 1;
        } else {
            node.nlink += 1;
        }
        Ok(())
    }

    /// Takes a name away, and all that lies below it.
    fn remove(&mut self, id: DentryId) {
        self.last_dir = (Vec::new(), ROOT);
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let d = self.dentries[id as usize];
            if d.dead {
                continue;
            }
            let hash = self.hash(d.parent, self.name(&d));
            if let Ok(found) = self.table.find_entry(hash, |other| *other == id) {
                found.remove();
            }
            self.dentries[id as usize].dead = true;
            if self.nodes[d.inode as usize].file_type() == FileType::Dir {
                self.nodes[d.parent as usize].nlink -= 1;
                let mut at = self.nodes[d.inode as usize].first_child;
                while at != NONE {
                    stack.push(at);
                    at = self.dentries[at as usize].next;
                }
            } else {
                self.nodes[d.inode as usize].nlink -= 1;
            }
        }
    }

    /// The directory at `path`, made on the way where nobody has described it yet.
    fn directory(&mut self, path: &[u8]) -> Result<InodeId> {
        if self.last_dir.0 == path {
            return Ok(self.last_dir.1);
        }
        let mut dir = ROOT;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            if !tuff_format::dirent::is_name(name) {
                let path = lossy(path);
                return Err(Error::usage(format_args!(
                    "{path}: a name of {} bytes; names have 1 to 255",
                    name.len()
                )));
            }
            let old = self.find(dir, name);
            let inode = old.map(|d| self.dentries[d as usize].inode);
            dir = match inode {
                Some(inode) if self.nodes[inode as usize].file_type() == FileType::Dir => inode,
                // A file of an earlier source stands where this one needs a directory: the later wins.
                _ => {
                    if let Some(old) = old {
                        self.remove(old);
                    }
                    let mut node = self.unnamed_dir();
                    node.parent = dir;
                    let inode = self.push(node)?;
                    self.link(dir, name, inode)?;
                    inode
                }
            };
        }
        self.last_dir = (path.to_vec(), dir);
        Ok(dir)
    }

    /// The inode at `path`.
    pub fn resolve(&self, path: &[u8]) -> Option<InodeId> {
        let mut at = ROOT;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            at = self.dentries[self.find(at, name)? as usize].inode;
        }
        Some(at)
    }

    fn intern(&mut self, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Result<u32> {
        if xattrs.is_empty() {
            return Ok(0);
        }
        let mut set: Vec<_> = xattrs
            .into_iter()
            .map(|(n, v)| (n.into_boxed_slice(), v.into_boxed_slice()))
            .collect();
        set.sort_unstable();
        let set = set.into_boxed_slice();
        if let Some(id) = self.set_ids.get(&set) {
            return Ok(*id);
        }
        let id = u32::try_from(self.xattr_sets.len())
            .map_err(|_| Error::limit("tree", "attribute sets"))?;
        self.set_ids.insert(set.clone(), id);
        self.xattr_sets.push(set);
        Ok(id)
    }

    /// Sorts the names and forgets what is dead. The tree is then ready for packing and layout.
    pub fn finish(&mut self) {
        self.table = HashTable::new();
        self.set_ids = HashMap::new();
        self.dentries.retain(|d| !d.dead);
        let names = &self.names;
        let name =
            |d: &Dentry| &names[d.name_at as usize..d.name_at as usize + usize::from(d.name_len)];
        self.dentries
            .sort_unstable_by(|a, b| (a.parent, name(a)).cmp(&(b.parent, name(b))));
        let mut at = 0;
        while at < self.dentries.len() {
            let parent = self.dentries[at].parent;
            let end = at
                + self.dentries[at..]
                    .iter()
                    .take_while(|d| d.parent == parent)
                    .count();
            // Fits: the number of dentries was checked when they were added.
            self.nodes[parent as usize].kind = NodeKind::Dir {
                start: at as u32,
                count: (end - at) as u32,
            };
            at = end;
        }
        let mut order = Vec::new();
        self.walk(|_, dentry, inode| order.push((dentry, inode)));
        for (dentry, inode) in order {
            let node = &mut self.nodes[inode as usize];
            if node.name == NONE {
                node.name = dentry;
            }
        }
    }

    /// The children of a directory, sorted.
    pub fn children(&self, dir: InodeId) -> &[Dentry] {
        match self.nodes[dir as usize].kind {
            NodeKind::Dir { start, count } => {
                &self.dentries[start as usize..(start + count) as usize]
            }
            _ => &[],
        }
    }

    /// Visits every live name, a directory's children together and before what lies deeper, directories in depth-first
    /// order. The order of inodes in the image.
    pub fn walk(&self, mut visit: impl FnMut(&Self, DentryId, InodeId)) {
        let mut stack = vec![ROOT];
        while let Some(dir) = stack.pop() {
            let NodeKind::Dir { start, count } = self.nodes[dir as usize].kind else {
                continue;
            };
            let before = stack.len();
            for id in start..start + count {
                let inode = self.dentries[id as usize].inode;
                visit(self, id, inode);
                if matches!(self.nodes[inode as usize].kind, NodeKind::Dir { .. }) {
                    stack.push(inode);
                }
            }
            stack[before..].reverse();
        }
    }

    /// The path of an inode by its first name, without a leading slash. Empty for the root.
    pub fn path(&self, inode: InodeId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = inode;
        while at != ROOT {
            let d = &self.dentries[self.nodes[at as usize].name as usize];
            parts.push(self.name(d));
            at = d.parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

/// Bytes of a path for a message.
pub fn lossy(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            mode: 0o644,
            uid: 1,
            gid: 2,
            mtime: 3,
            mtime_nsec: 4,
        }
    }

    fn entry(path: &str, kind: Kind) -> Entry {
        Entry {
            path: path.into(),
            kind,
            meta: meta(),
            xattrs: Vec::new(),
            content: Content::None,
        }
    }

    fn file(path: &str) -> Entry {
        entry(path, Kind::File { size: 1 })
    }

    fn paths(mut tree: Tree) -> Vec<String> {
        tree.finish();
        let mut out = Vec::new();
        tree.walk(|t, d, _| {
            let d = &t.dentries[d as usize];
            let mut path = t.path(d.parent);
            path.push(b'/');
            path.extend_from_slice(t.name(d));
            out.push(String::from_utf8(path).unwrap());
        });
        out
    }

    #[test]
    fn names_come_out_in_bytewise_order_with_children_together() {
        let mut tree = Tree::new(Whiteouts::Keep);
        for p in ["b/z", "b/a/x", "a", "b/-", "B", "c/d"] {
            tree.add(file(p)).unwrap();
        }
        assert_eq!(
            paths(tree),
            ["/B", "/a", "/b", "/c", "b/-", "b/a", "b/z", "b/a/x", "c/d"]
        );
    }

    #[test]
    fn a_later_source_wins_and_its_whiteouts_delete() {
        let mut tree = Tree::new(Whiteouts::Aufs);
        for p in ["keep", "gone", "dir/old", "opaque/old", "file"] {
            tree.add(file(p)).unwrap();
        }
        tree.next_layer().unwrap();
        for p in [
            ".wh.gone",
            "opaque/new",
            "opaque/.wh..wh..opq",
            "file/now-a-dir",
            "dir/.wh.mine",
            "dir/mine",
        ] {
            tree.add(file(p)).unwrap();
        }
        assert_eq!(
            paths(tree),
            [
                "/dir",
                "/file",
                "/keep",
                "/opaque",
                "dir/mine",
                "dir/old",
                "file/now-a-dir",
                "opaque/new"
            ]
        );
    }

    #[test]
    fn overlay_whiteouts_and_opaque_directories_are_understood() {
        let mut tree = Tree::new(Whiteouts::Overlay);
        for p in ["a", "d/x", "e/y"] {
            tree.add(file(p)).unwrap();
        }
        tree.next_layer().unwrap();
        tree.add(entry("a", Kind::Char(Device { major: 0, minor: 0 })))
            .unwrap();
        let mut opaque = entry("d", Kind::Dir);
        opaque
            .xattrs
            .push((b"trusted.overlay.opaque".to_vec(), b"y".to_vec()));
        tree.add(opaque).unwrap();
        assert_eq!(paths(tree), ["/d", "/e", "e/y"]);
    }

    #[test]
    fn hard_links_share_an_inode_and_count() {
        let mut tree = Tree::new(Whiteouts::Keep);
        let a = tree.add(file("a")).unwrap().unwrap();
        let b = tree
            .add(entry("d/b", Kind::Hardlink(b"a".to_vec())))
            .unwrap()
            .unwrap();
        assert_eq!(a, b);
        assert_eq!(tree.nodes[a as usize].nlink, 2);
        tree.add(file("a")).unwrap();
        assert_eq!(tree.nodes[a as usize].nlink, 1);
        assert!(
            tree.add(entry("x", Kind::Hardlink(b"nothing".to_vec())))
                .is_err()
        );
        assert!(tree.add(entry("x", Kind::Hardlink(b"d".to_vec()))).is_err());
        assert_eq!(tree.nodes[ROOT as usize].nlink, 3);
    }
}
