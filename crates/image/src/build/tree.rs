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

use super::source::{Content, Device, Entry, Kind, Meta};
use crate::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::{BuildHasher, Hash, Hasher};
use tuff_format::inode::FileType;

/// Index of an inode.
pub(crate) type InodeId = u32;
type DentryId = u32;
/// No inode, no name.
const NONE: u32 = u32::MAX;
/// The root directory.
pub(crate) const ROOT: InodeId = 0;

/// One inode, as it is kept. [`Tree`] has a method for each thing that one may ask of it.
#[derive(Debug)]
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
    /// Overlayfs: a character device 0:0 deletes, `trusted.overlay.opaque` hides what lies below a directory.
    Overlay,
    /// AUFS, as in OCI layers: `.wh.NAME` deletes, `.wh..wh..opq` hides.
    Aufs,
    /// They are ordinary entries.
    Keep,
}

/// Names and values of attributes.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A set of extended attributes: full names and values, sorted.
pub(crate) type XattrSet = Box<[(Box<[u8]>, Box<[u8]>)]>;

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
            last_dir: (Vec::new(), ROOT),
            in_order: true,
        };
        tree.set_ids.insert(Box::default(), 0);
        let root = tree.unnamed_dir();
        tree.nodes.push(root);
        tree
    }

    /// Starts the next source: its entries win over those of earlier ones, its whiteouts act on them.
    pub(crate) fn next_layer(&mut self) -> Result<()> {
        self.layer = self
            .layer
            .checked_add(1)
            .ok_or_else(|| Error::usage("more than 65535 sources"))?;
        self.in_order = false;
        Ok(())
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

    /// A directory that is only known because something lies in it.
    fn unnamed_dir(&mut self) -> Node {
        let meta = Meta {
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: 0,
            mtime_nsec: 0,
        };
        Node {
            body: NONE.into(),
            mtime: 0,
            mtime_nsec: 0,
            nlink: 2,
            name: NONE,
            attrs: self.intern_attrs(meta, 0),
            content: 0,
            file_type: FileType::Dir,
            place: Place::None,
        }
    }

    /// Adds an entry. Returns its inode, or `None` for a whiteout. A regular file's inode is the place for its data.
    pub(crate) fn add(&mut self, entry: Entry) -> Result<Option<InodeId>> {
        let Entry {
            path,
            kind,
            meta,
            xattrs,
            content,
        } = entry;
        if path.is_empty() {
            if kind != Kind::Dir {
                return Err(Error::usage("the root of a source is not a directory"));
            }
            self.describe(ROOT, meta, xattrs)?;
            return Ok(Some(ROOT));
        }
        let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], &path[..]),
        };
        let bad_name = || {
            Error::usage(format_args!(
                "{}: a name of {} bytes; names have 1 to 255",
                lossy(&path),
                name.len()
            ))
        };
        if !tuff_format::dirent::is_name(name) {
            return Err(bad_name());
        }
        self.in_order = false;
        let parent = self.directory(dir)?;
        let new = match kind {
            Kind::Dir => New::Dir(meta, xattrs),
            // A whiteout may have the name of anything.
            Kind::Hardlink(_) if self.is_whiteout(parent, name, false) => return Ok(None),
            Kind::Hardlink(target) => {
                let fail = |what: &str| {
                    let (link, target) = (lossy(&path), lossy(&target));
                    Error::usage(format_args!(
                        "{link}: hard link to {target}, which is {what}"
                    ))
                };
                let inode = self
                    .resolve(&target)
                    .ok_or_else(|| fail("not there before it"))?;
                if self.file_type(inode) == FileType::Dir {
                    return Err(fail("a directory"));
                }
                New::Link(inode)
            }
            kind => New::Other(kind, meta, xattrs, content),
        };
        self.add_child(parent, name, new)
    }

    /// Adds what `name` in `parent` is. A caller that adds each directory's children together, in the order of their names,
    /// and directories in the order of [`walk`](Self::walk), to a tree that was empty, finds nothing to sort later.
    pub(crate) fn add_child(
        &mut self,
        parent: InodeId,
        name: &[u8],
        new: New,
    ) -> Result<Option<InodeId>> {
        let zero = Device { major: 0, minor: 0 };
        let null = matches!(&new, New::Other(Kind::Char(device), ..) if *device == zero);
        if self.is_whiteout(parent, name, null) {
            return Ok(None);
        }
        let old = if self.in_order {
            None
        } else {
            self.find(parent, name)
        };
        let inode = match new {
            New::Link(inode) => {
                if old.is_some_and(|d| self.dentries[d as usize].inode == inode) {
                    return Ok(Some(inode));
                }
                inode
            }
            New::Dir(meta, xattrs) => {
                if let Some(inode) = old.map(|d| self.dentries[d as usize].inode)
                    && self.file_type(inode) == FileType::Dir
                {
                    self.describe(inode, meta, xattrs)?;
                    return Ok(Some(inode));
                }
                let node = self.unnamed_dir();
                let inode = self.push(node)?;
                self.describe(inode, meta, xattrs)?;
                inode
            }
            New::Other(kind, meta, xattrs, content) => {
                let (file_type, body) = match kind {
                    Kind::File { size } => (FileType::File, size),
                    Kind::Symlink(target) => (FileType::Symlink, self.keep_target(&target)?),
                    Kind::Char(device) => (FileType::Char, pack_device(device)),
                    Kind::Block(device) => (FileType::Block, pack_device(device)),
                    Kind::Fifo => (FileType::Fifo, 0),
                    Kind::Socket => (FileType::Socket, 0),
                    Kind::Dir | Kind::Hardlink(_) => unreachable!("the caller says so"),
                };
                let (place, content) = self.keep_content(content)?;
                let set = self.intern(xattrs)?;
                let node = Node {
                    body,
                    mtime: meta.mtime,
                    mtime_nsec: meta.mtime_nsec,
                    nlink: 0,
                    name: NONE,
                    attrs: self.intern_attrs(meta, set),
                    content,
                    file_type,
                    place,
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

    fn keep_target(&mut self, target: &[u8]) -> Result<u64> {
        let at = self.keep_name(target)?;
        // Fits: all names together are counted in 32 bits.
        Ok(u64::from(at) | (target.len() as u64) << 32)
    }

    /// Puts bytes among the names and says where.
    fn keep_name(&mut self, name: &[u8]) -> Result<u32> {
        let too_many = || Error::limit("tree", "more than 4 GiB of names");
        let at = u32::try_from(self.names.len()).map_err(|_| too_many())?;
        u32::try_from(self.names.len() + name.len()).map_err(|_| too_many())?;
        self.names.extend_from_slice(name);
        Ok(at)
    }

    fn keep_content(&mut self, content: Content) -> Result<(Place, u32)> {
        let index =
            |n: usize| u32::try_from(n).map_err(|_| Error::limit("tree", "contents of files"));
        Ok(match content {
            Content::None => (Place::None, 0),
            Content::InSource => (Place::InSource, 0),
            Content::Stream => (Place::Stream, 0),
            Content::Range { offset } => {
                self.offsets.push(offset);
                (Place::Range, index(self.offsets.len() - 1)?)
            }
            other => {
                self.contents.push(other);
                (Place::Other, index(self.contents.len() - 1)?)
            }
        })
    }

    /// Sets a directory's attributes; an opaque one hides what earlier sources put into it.
    pub(crate) fn describe(&mut self, inode: InodeId, meta: Meta, mut xattrs: Pairs) -> Result<()> {
        if self.whiteouts == Whiteouts::Overlay {
            let opaque = |n: &[u8]| matches!(n, b"trusted.overlay.opaque" | b"user.overlay.opaque");
            if xattrs.iter().any(|(n, v)| opaque(n) && v == b"y") {
                self.hide_children(inode);
            }
            xattrs.retain(|(n, _)| !opaque(n));
        }
        let set = self.intern(xattrs)?;
        let attrs = self.intern_attrs(meta, set);
        let node = &mut self.nodes[inode as usize];
        node.attrs = attrs;
        node.mtime = meta.mtime;
        node.mtime_nsec = meta.mtime_nsec;
        Ok(())
    }

    /// Acts on a whiteout; `null` says that the entry is a character device 0:0. False: the entry is an ordinary one.
    fn is_whiteout(&mut self, parent: InodeId, name: &[u8], null: bool) -> bool {
        let target = match self.whiteouts {
            Whiteouts::Keep => return false,
            Whiteouts::Overlay if null => name,
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
        // The first source has nothing to delete.
        if self.layer > 0
            && let Some(old) = self.find(parent, target)
            && self.dentries[old as usize].layer < self.layer
        {
            self.remove(old);
        }
        true
    }

    fn hide_children(&mut self, dir: InodeId) {
        let mut at = self.first_child(dir);
        while at != NONE {
            let d = self.dentries[at as usize];
            if !d.dead && d.layer < self.layer {
                self.remove(at);
            }
            at = d.next;
        }
    }

    /// First of the chain of a directory's names, while the tree is collected.
    fn first_child(&self, dir: InodeId) -> DentryId {
        self.nodes[dir as usize].body as u32
    }

    fn push(&mut self, node: Node) -> Result<InodeId> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|id| *id < NONE - 1);
        let id = id.ok_or_else(|| Error::limit("tree", "more than 4294967293 inodes"))?;
        self.nodes.push(node);
        Ok(id)
    }

    fn find(&mut self, parent: InodeId, name: &[u8]) -> Option<DentryId> {
        if self.table.is_none() {
            let mut table = HashTable::with_capacity(self.dentries.len());
            for (id, d) in self.dentries.iter().enumerate().filter(|(_, d)| !d.dead) {
                let hash = hash(&self.hasher, d.parent, name_of(&self.names, d));
                // Fits: checked when it was added.
                insert(
                    &mut table,
                    &self.dentries,
                    &self.names,
                    &self.hasher,
                    hash,
                    id as u32,
                );
            }
            self.table = Some(table);
        }
        let same = |id: &DentryId| {
            let d = &self.dentries[*id as usize];
            d.parent == parent && self.name(d) == name
        };
        let hash = hash(&self.hasher, parent, name);
        self.table.as_ref()?.find(hash, same).copied()
    }

    /// The name of a dentry.
    pub(crate) fn name(&self, d: &Dentry) -> &[u8] {
        name_of(&self.names, d)
    }

    fn link(&mut self, parent: InodeId, name: &[u8], inode: InodeId) -> Result<()> {
        let name_at = self.keep_name(name)?;
        let id = u32::try_from(self.dentries.len())
            .ok()
            .filter(|id| *id != NONE)
            .ok_or_else(|| Error::limit("tree", "more than 4294967294 names"))?;
        let next = self.first_child(parent);
        self.nodes[parent as usize].body = id.into();
        // Fits: names were checked by whoever called.
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
        if let Some(table) = &mut self.table {
            let hash = hash(&self.hasher, parent, name);
            insert(table, &self.dentries, &self.names, &self.hasher, hash, id);
        }
        let node = &mut self.nodes[inode as usize];
        if node.name == NONE {
            node.name = id;
        }
        if node.file_type == FileType::Dir {
            self.nodes[parent as usize].nlink += 1;
        } else {
            node.nlink += 1;
        }
        Ok(())
    }

    /// Takes a name away, and all that lies below it.
    fn remove(&mut self, id: DentryId) {
        self.last_dir = (Vec::new(), ROOT);
        self.in_order = false;
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let d = self.dentries[id as usize];
            if d.dead {
                continue;
            }
            let hash = hash(&self.hasher, d.parent, self.name(&d));
            if let Some(table) = &mut self.table
                && let Ok(found) = table.find_entry(hash, |other| *other == id)
            {
                found.remove();
            }
            self.dentries[id as usize].dead = true;
            if self.file_type(d.inode) == FileType::Dir {
                self.nodes[d.parent as usize].nlink -= 1;
                let mut at = self.first_child(d.inode);
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
                Some(inode) if self.file_type(inode) == FileType::Dir => inode,
                // A file of an earlier source stands where this one needs a directory: the later wins.
                _ => {
                    if let Some(old) = old {
                        self.remove(old);
                    }
                    let node = self.unnamed_dir();
                    let inode = self.push(node)?;
                    self.link(dir, name, inode)?;
                    inode
                }
            };
        }
        self.last_dir = (path.to_vec(), dir);
        Ok(dir)
    }

    /// The inode at `path`, while the tree is collected.
    fn resolve(&mut self, path: &[u8]) -> Option<InodeId> {
        let mut at = ROOT;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let found = self.find(at, name)?;
            at = self.dentries[found as usize].inode;
        }
        Some(at)
    }

    fn intern(&mut self, xattrs: Pairs) -> Result<u32> {
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

    fn intern_attrs(&mut self, meta: Meta, xattrs: u32) -> u32 {
        let attrs = Attrs {
            mode: meta.mode,
            layer: self.layer,
            uid: meta.uid,
            gid: meta.gid,
            xattrs,
        };
        *self.attr_ids.entry(attrs).or_insert_with(|| {
            self.attrs.push(attrs);
            // Fits: no more of them than inodes.
            self.attrs.len() as u32 - 1
        })
    }

    /// Sorts the names and forgets what is dead. The tree is then ready for packing and layout.
    pub(crate) fn finish(&mut self) {
        self.table = None;
        self.set_ids = HashMap::new();
        self.attr_ids = HashMap::new();
        let in_order = self.in_order;
        if !in_order {
            let names = &self.names;
            self.dentries.retain(|d| !d.dead);
            self.dentries.sort_unstable_by(|a, b| {
                (a.parent, name_of(names, a)).cmp(&(b.parent, name_of(names, b)))
            });
        }
        for node in &mut self.nodes {
            if node.file_type == FileType::Dir {
                node.body = 0;
            }
            if !in_order {
                node.name = NONE;
            }
        }
        let mut at = 0;
        while at < self.dentries.len() {
            let parent = self.dentries[at].parent;
            let rest = &self.dentries[at..];
            let count = rest.iter().take_while(|d| d.parent == parent).count();
            // Fits: the number of dentries was checked when they were added.
            self.nodes[parent as usize].body = at as u64 | (count as u64) << 32;
            at += count;
        }
        if !in_order {
            let mut walk = Walk::default();
            while let Some((dentry, inode)) = walk.next(self) {
                let node = &mut self.nodes[inode as usize];
                if node.name == NONE {
                    node.name = dentry;
                }
            }
        }
        debug_assert!(
            self.dentries
                .windows(2)
                .all(|w| { w[0].parent != w[1].parent || self.name(&w[0]) < self.name(&w[1]) })
        );
    }

    /// The children of a directory of a finished tree, sorted.
    pub(crate) fn children(&self, dir: InodeId) -> &[Dentry] {
        let node = &self.nodes[dir as usize];
        if node.file_type != FileType::Dir {
            return &[];
        }
        let (start, count) = (node.body as u32 as usize, (node.body >> 32) as usize);
        &self.dentries[start..start + count]
    }

    /// Visits every live name of a finished tree, a directory's children together and before what lies deeper, directories
    /// in depth-first order. The order of inodes in the image.
    pub(crate) fn walk(&self, mut visit: impl FnMut(&Dentry)) {
        let mut walk = Walk::default();
        while let Some((dentry, _)) = walk.next(self) {
            visit(&self.dentries[dentry as usize]);
        }
    }

    /// Inodes in the order of the image: the root, then every directory's children together.
    pub(crate) fn inode_order(&self) -> Vec<InodeId> {
        let mut order = Vec::with_capacity(self.nodes.len());
        order.push(ROOT);
        let mut seen = vec![false; self.nodes.len()];
        self.walk(|d| {
            if !std::mem::replace(&mut seen[d.inode as usize], true) {
                order.push(d.inode);
            }
        });
        order
    }

    /// The path of an inode by its first name, without a leading slash. Empty for the root.
    pub(crate) fn path(&self, inode: InodeId) -> Vec<u8> {
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

    /// What an inode is.
    pub(crate) fn kind(&self, inode: InodeId) -> NodeKind<'_> {
        let node = &self.nodes[inode as usize];
        match node.file_type {
            FileType::File => NodeKind::File { size: node.body },
            FileType::Dir => NodeKind::Dir,
            FileType::Symlink => {
                let at = node.body as u32 as usize;
                NodeKind::Symlink(&self.names[at..at + (node.body >> 32) as usize])
            }
            FileType::Char => NodeKind::Char(unpack_device(node.body)),
            FileType::Block => NodeKind::Block(unpack_device(node.body)),
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
        }
    }

    /// The type of an inode.
    pub(crate) fn file_type(&self, inode: InodeId) -> FileType {
        self.nodes[inode as usize].file_type
    }

    /// Size of a regular file; 0 for anything else. Unit: bytes.
    pub(crate) fn size(&self, inode: InodeId) -> u64 {
        let node = &self.nodes[inode as usize];
        if node.file_type == FileType::File {
            node.body
        } else {
            0
        }
    }

    /// Where the bytes of a file are.
    pub(crate) fn content(&self, inode: InodeId) -> Content {
        let node = &self.nodes[inode as usize];
        match node.place {
            Place::None => Content::None,
            Place::InSource => Content::InSource,
            Place::Stream => Content::Stream,
            Place::Range => Content::Range {
                offset: self.offsets[node.content as usize],
            },
            Place::Other => self.contents[node.content as usize].clone(),
        }
    }

    /// Owner, times and the rest.
    pub(crate) fn meta(&self, inode: InodeId) -> Meta {
        let node = &self.nodes[inode as usize];
        let attrs = &self.attrs[node.attrs as usize];
        Meta {
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            mtime: node.mtime,
            mtime_nsec: node.mtime_nsec,
        }
    }

    /// Live names. For a directory: 2 and one per subdirectory.
    pub(crate) fn nlink(&self, inode: InodeId) -> u32 {
        self.nodes[inode as usize].nlink
    }

    /// Number of an inode's attribute set.
    pub(crate) fn xattrs(&self, inode: InodeId) -> u32 {
        self.attrs[self.nodes[inode as usize].attrs as usize].xattrs
    }

    /// Distinct attribute sets by number; 0 is the empty one.
    pub(crate) fn xattr_sets(&self) -> &[XattrSet] {
        &self.xattr_sets
    }

    /// Which source an inode came from.
    pub(crate) fn layer(&self, inode: InodeId) -> u16 {
        self.attrs[self.nodes[inode as usize].attrs as usize].layer
    }

    /// The directory that a directory lies in; the root lies in itself.
    pub(crate) fn parent(&self, dir: InodeId) -> InodeId {
        if dir == ROOT {
            return ROOT;
        }
        self.dentries[self.nodes[dir as usize].name as usize].parent
    }
}

/// A walk over a finished tree that does not borrow it.
struct Walk {
    dirs: Vec<InodeId>,
    /// Names of the current directory that are still to come.
    left: std::ops::Range<u32>,
    /// Directories found in it are behind this one.
    before: usize,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            dirs: vec![ROOT],
            left: 0..0,
            before: 0,
        }
    }
}

impl Walk {
    fn next(&mut self, tree: &Tree) -> Option<(DentryId, InodeId)> {
        let id = loop {
            if let Some(id) = self.left.next() {
                break id;
            }
            self.dirs[self.before..].reverse();
            let node = &tree.nodes[self.dirs.pop()? as usize];
            self.before = self.dirs.len();
            let start = node.body as u32;
            self.left = start..start + (node.body >> 32) as u32;
        };
        let inode = tree.dentries[id as usize].inode;
        if tree.file_type(inode) == FileType::Dir {
            self.dirs.push(inode);
        }
        Some((id, inode))
    }
}

fn name_of<'a>(names: &'a [u8], d: &Dentry) -> &'a [u8] {
    let at = d.name_at as usize;
    &names[at..at + usize::from(d.name_len)]
}

fn hash(hasher: &DefaultHashBuilder, parent: InodeId, name: &[u8]) -> u64 {
    let mut h = hasher.build_hasher();
    parent.hash(&mut h);
    h.write(name);
    h.finish()
}

fn insert(
    table: &mut HashTable<DentryId>,
    dentries: &[Dentry],
    names: &[u8],
    hasher: &DefaultHashBuilder,
    of: u64,
    id: DentryId,
) {
    table.insert_unique(of, id, |id| {
        let d = &dentries[*id as usize];
        hash(hasher, d.parent, name_of(names, d))
    });
}

fn pack_device(device: Device) -> u64 {
    u64::from(device.major) << 32 | u64::from(device.minor)
}

fn unpack_device(body: u64) -> Device {
    Device {
        major: (body >> 32) as u32,
        minor: body as u32,
    }
}

/// Bytes of a path for a message.
pub(crate) fn lossy(path: &[u8]) -> std::borrow::Cow<'_, str> {
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
        tree.walk(|d| {
            let mut path = tree.path(d.parent);
            path.push(b'/');
            path.extend_from_slice(tree.name(d));
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
        assert_eq!(tree.nlink(a), 2);
        tree.add(file("a")).unwrap();
        assert_eq!(tree.nlink(a), 1);
        assert!(
            tree.add(entry("x", Kind::Hardlink(b"nothing".to_vec())))
                .is_err()
        );
        assert!(tree.add(entry("x", Kind::Hardlink(b"d".to_vec()))).is_err());
        assert_eq!(tree.nlink(ROOT), 3);
    }
}
