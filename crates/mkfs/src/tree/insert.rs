//! Insertion of entries: implicit directories, hard links, and interning of attributes.

use super::overlay::{is_opaque, overlay, overlay_name};
use super::{
    Attrs, ContentKind, Dentry, DentryId, InodeId, NONE, NewEntry, Node, NodeKind, Pairs, ROOT,
    Tree, Whiteouts, name_of,
};
use crate::source::error::{Quoted, SourceError};
use crate::source::{Content, Device, Entry, Kind, Meta};
use crate::tree::paths::common_dir;
use crate::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, Hasher};
use tuff_format::inode::FileType;

/// Maximum length of a symbolic link target. Unit: bytes.
const TARGET_MAX: usize = 4095;

/// Maximum number of symbolic links on the way to an entry, as in Linux.
const LINKS_MAX: usize = 40;

/// Maximum length of a path in which symbolic links were replaced. Unit: bytes.
const LINKED_PATH_MAX: usize = 64 << 10;

impl Tree {
    /// Lets `change` modify the attributes of every inode, given by number and first path. The tree
    /// must be finished.
    pub(crate) fn describe_all(
        &mut self,
        mut change: impl FnMut(InodeId, &[u8], FileType, &mut Meta, &mut Pairs),
    ) -> Result<()> {
        // Fits: numbers have 32 bits.
        let sets = self.xattr_sets.iter().enumerate();
        self.xattr_set_ids = sets.map(|(id, set)| (set.clone(), id as u32)).collect();
        let attrs = self.attrs.iter().enumerate();
        self.attr_ids = attrs.map(|(id, attrs)| (*attrs, id as u32)).collect();
        for inode in self.inode_order() {
            let mut meta = self.meta(inode);
            let attrs = self.attrs[self.nodes[inode as usize].attrs as usize];
            let set = &self.xattr_sets[attrs.xattrs as usize];
            let mut xattrs: Pairs = set.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            change(
                inode,
                &self.path(inode),
                self.file_type(inode),
                &mut meta,
                &mut xattrs,
            );
            let attrs = Attrs {
                mode: meta.mode,
                uid: meta.uid,
                gid: meta.gid,
                xattrs: self.intern(xattrs)?,
                ..attrs
            };
            self.nodes[inode as usize].attrs = self.attrs_id(attrs);
        }
        self.xattr_set_ids = HashMap::new();
        self.attr_ids = HashMap::new();
        Ok(())
    }

    /// Directory with default attributes, created because an entry lies below it.
    pub(super) fn unnamed_dir(&mut self) -> Node {
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
            content_kind: ContentKind::None,
        }
    }

    /// Adds an entry. Returns its inode, or `None` for a whiteout.
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
        if let Kind::Hardlink(target) = &kind {
            return self.add_link(&path, target);
        }
        let (parent, name) = self.parent_and_name(&path)?;
        let new = match kind {
            Kind::Dir => NewEntry::Dir(meta, xattrs),
            kind => NewEntry::Other(kind, meta, xattrs, content),
        };
        let added = self.add_child(parent, name, new)?;
        if added.is_none() {
            self.deleted.insert(path);
        }
        Ok(added)
    }

    /// Adds a hard link to the inode at `target`. Returns the inode, or `None` for a whiteout.
    pub(crate) fn add_link(&mut self, path: &[u8], target: &[u8]) -> Result<Option<InodeId>> {
        let (parent, name) = self.parent_and_name(path)?;
        // A hard link may have the name of an AUFS whiteout.
        if self.is_whiteout(parent, name, false, (0, 0))? {
            return Ok(None);
        }
        let inode = self.resolve(target)?;
        if inode.is_none() && self.deleted.contains(target) {
            // Overlayfs creates its whiteouts as hard links of one inode.
            self.is_whiteout(parent, name, true, (0, 0))?;
            self.deleted.insert(path.to_vec());
            return Ok(None);
        }
        let what = match inode.map(|inode| self.file_type(inode)) {
            Some(FileType::Dir) => "a directory",
            Some(_) => "",
            None => "not there",
        };
        match inode {
            Some(inode) if what.is_empty() => self.add_child(parent, name, NewEntry::Link(inode)),
            _ => {
                let target = Quoted(target);
                Err(wrong(
                    path,
                    format!("hard link to {target}, which is {what}"),
                ))
            }
        }
    }

    /// Parent directory of a path, and the name in it.
    fn parent_and_name<'a>(&mut self, path: &'a [u8]) -> Result<(InodeId, &'a [u8])> {
        let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        if !tuff_format::dirent::is_name(name) {
            return Err(bad_name(path, name));
        }
        self.in_order = false;
        Ok((self.directory(dir)?, name))
    }

    /// Adds the entry `name` to `parent`. Returns its inode, or `None` for a whiteout.
    ///
    /// No sorting is needed later if the tree was empty and entries arrive in final order: the
    /// children of a directory together and by name, and directories in the order of
    /// [`walk`](Self::walk).
    pub(crate) fn add_child(
        &mut self,
        parent: InodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<Option<InodeId>> {
        let zero = Device { major: 0, minor: 0 };
        let null = match &new {
            NewEntry::Other(Kind::Char(device), ..) => *device == zero,
            NewEntry::Other(Kind::File { size: 0 }, _, xattrs, _) => {
                overlay(xattrs, b"whiteout").is_some()
            }
            _ => false,
        };
        let time = match &new {
            NewEntry::Other(_, meta, ..) => (meta.mtime, meta.mtime_nsec),
            _ => (0, 0),
        };
        if self.is_whiteout(parent, name, null, time)? {
            return Ok(None);
        }
        self.reject_split_content(parent, name, &new)?;
        let old = if self.in_order {
            None
        } else {
            self.find(parent, name)
        };
        let inode = match new {
            NewEntry::Link(inode) => {
                if let Some(old) = old
                    && self.dentries[old as usize].inode == inode
                {
                    // The name is one of this source.
                    self.dentries[old as usize].layer = self.layer;
                    return Ok(Some(inode));
                }
                inode
            }
            NewEntry::Dir(meta, xattrs) => {
                if let Some(inode) = old.map(|d| self.dentries[d as usize].inode)
                    && self.file_type(inode) == FileType::Dir
                {
                    self.describe(inode, meta, xattrs)?;
                    return Ok(Some(inode));
                }
                let node = self.unnamed_dir();
                let inode = self.push(node)?;
                self.describe(inode, meta, xattrs)?;
                if self.whiteouts == Whiteouts::Convert && old.is_some() {
                    // The replaced entry hid the contents of layers below the image.
                    self.opaque.insert(inode);
                }
                inode
            }
            NewEntry::Other(kind, meta, xattrs, content) => {
                if let Kind::Symlink(target) = &kind
                    && (!(1..=TARGET_MAX).contains(&target.len()) || target.contains(&0))
                {
                    let what = format!(
                        "symbolic link target of {} bytes; it must have 1 to {TARGET_MAX} and no NUL",
                        target.len()
                    );
                    return Err(wrong(&self.path_of(parent, name), what));
                }
                let (file_type, body) = match kind {
                    Kind::File { size } => (FileType::File, size),
                    Kind::Symlink(target) => (FileType::Symlink, self.store_target(&target)?),
                    Kind::Char(device) => (FileType::Char, pack_device(device)),
                    Kind::Block(device) => (FileType::Block, pack_device(device)),
                    Kind::Fifo => (FileType::Fifo, 0),
                    Kind::Socket => (FileType::Socket, 0),
                    Kind::Dir | Kind::Hardlink(_) => unreachable!("the caller says so"),
                };
                let (content_kind, content) = self.store_content(content)?;
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
                    content_kind,
                };
                self.push(node)?
            }
        };
        if let Some(old) = old {
            let replaced = self.dentries[old as usize].inode;
            if self.has_own_children(replaced) {
                let path = self.path_of(parent, name);
                self.dropped.add(|| path);
            }
            self.remove(old);
        }
        self.link(parent, name, inode)?;
        Ok(Some(inode))
    }

    fn store_target(&mut self, target: &[u8]) -> Result<u64> {
        let at = self.store_name(target)?;
        // Fits: the total length of names is counted in 32 bits.
        Ok(u64::from(at) | (target.len() as u64) << 32)
    }

    /// Stores bytes in `names` and returns their position.
    fn store_name(&mut self, name: &[u8]) -> Result<u32> {
        let too_many = || Error::limit("tree", "more than 4 GiB of names");
        let at = u32::try_from(self.names.len()).map_err(|_| too_many())?;
        u32::try_from(self.names.len() + name.len()).map_err(|_| too_many())?;
        self.names.extend_from_slice(name);
        Ok(at)
    }

    fn store_content(&mut self, content: Content) -> Result<(ContentKind, u32)> {
        let index =
            |n: usize| u32::try_from(n).map_err(|_| Error::limit("tree", "contents of files"));
        Ok(match content {
            Content::None => (ContentKind::None, 0),
            Content::InSource => (ContentKind::InSource, 0),
            Content::Stream => (ContentKind::Stream, 0),
            Content::Range { offset } => {
                self.offsets.push(offset);
                (ContentKind::Range, index(self.offsets.len() - 1)?)
            }
            other => {
                self.contents.push(other);
                (ContentKind::Other, index(self.contents.len() - 1)?)
            }
        })
    }

    /// Path of `name` in `parent`.
    pub(super) fn path_of(&self, parent: InodeId, name: &[u8]) -> Vec<u8> {
        let mut path = self.path(parent);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Sets a directory's attributes. An opaque directory hides what earlier sources put into it,
    /// except for the root, which overlayfs ignores.
    pub(crate) fn describe(&mut self, inode: InodeId, meta: Meta, mut xattrs: Pairs) -> Result<()> {
        if self.whiteouts.reads_overlay() {
            if inode != ROOT && is_opaque(&xattrs) {
                self.hide_children(inode);
                if self.whiteouts == Whiteouts::Convert {
                    self.opaque.insert(inode);
                }
            }
            xattrs.retain(|(n, _)| overlay_name(n) != Some(b"opaque"));
        }
        let set = self.intern(xattrs)?;
        let attrs = self.intern_attrs(meta, set);
        let node = &mut self.nodes[inode as usize];
        node.attrs = attrs;
        node.mtime = meta.mtime;
        node.mtime_nsec = meta.mtime_nsec;
        Ok(())
    }

    /// True for a directory with names of the current source.
    fn has_own_children(&self, inode: InodeId) -> bool {
        self.file_type(inode) == FileType::Dir
            && self.live_children(inode).any(|d| d.layer == self.layer)
    }

    /// First of a directory's linked list of names, during collection.
    pub(super) fn first_child(&self, dir: InodeId) -> DentryId {
        self.nodes[dir as usize].body as u32
    }

    pub(super) fn push(&mut self, node: Node) -> Result<InodeId> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|id| *id < NONE - 1);
        let id = id.ok_or_else(|| Error::limit("tree", "more than 4294967293 inodes"))?;
        self.nodes.push(node);
        Ok(id)
    }

    pub(super) fn find(&mut self, parent: InodeId, name: &[u8]) -> Option<DentryId> {
        if self.table.is_none() {
            let mut table = HashTable::with_capacity(self.dentries.len());
            for (id, d) in self.dentries.iter().enumerate().filter(|(_, d)| !d.dead) {
                let hash = hash(&self.hasher, d.parent, name_of(&self.names, d));
                // Fits: checked on insertion.
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

    pub(super) fn link(&mut self, parent: InodeId, name: &[u8], inode: InodeId) -> Result<()> {
        let name_at = self.store_name(name)?;
        let id = u32::try_from(self.dentries.len())
            .ok()
            .filter(|id| *id != NONE)
            .ok_or_else(|| Error::limit("tree", "more than 4294967294 names"))?;
        let next = self.first_child(parent);
        self.nodes[parent as usize].body = id.into();
        // Fits: the caller checked the name.
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

    /// Removes a name and everything below it.
    pub(super) fn remove(&mut self, id: DentryId) {
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

    /// Directory at `path`. Missing directories are created with default attributes. Symbolic links lead to their
    /// targets within the tree.
    fn directory(&mut self, path: &[u8]) -> Result<InodeId> {
        if self.last_dir.0 == path {
            return Ok(self.last_dir.1);
        }
        let (mut dir, mut at) = self.nearest(path);
        let mut links = LinkedPath::new(path);
        while let Some(name) = links.next_name(&mut at) {
            if name == b".." && links.followed > 0 {
                dir = self.parent(dir);
                continue;
            }
            if !tuff_format::dirent::is_name(name) {
                return Err(bad_name(path, name));
            }
            let old = self.find(dir, name);
            let inode = old.map(|d| self.dentries[d as usize].inode);
            if let Some(inode) = inode
                && self.file_type(inode) == FileType::Dir
            {
                dir = inode;
                continue;
            }
            if let Some(inode) = inode
                && let NodeKind::Symlink(target) = self.kind(inode)
            {
                links.follow(target, &mut at)?;
                if target.starts_with(b"/") {
                    dir = ROOT;
                }
                continue;
            }
            dir = self.new_directory(dir, name, old, &links)?;
        }
        let path = match links.followed {
            0 => path.to_vec(),
            _ => self.path(dir),
        };
        self.last_dir = (path, dir);
        Ok(dir)
    }

    /// Creates the directory `name` on the way to an entry. It replaces a file `old`, since the later entry wins.
    fn new_directory(
        &mut self,
        parent: InodeId,
        name: &[u8],
        old: Option<DentryId>,
        links: &LinkedPath<'_>,
    ) -> Result<InodeId> {
        if let Some(old) = old {
            let path = self.path_of(parent, name);
            let inode = self.dentries[old as usize].inode;
            if !self.is_null_device(inode) {
                if links.followed > 0 {
                    let file = Quoted(&path);
                    let what = format!(
                        "a symbolic link on the way leads to {file}, which is no directory"
                    );
                    return Err(wrong(links.path, what));
                }
                self.replaced.add(|| path);
            }
            self.remove(old);
        }
        let node = self.unnamed_dir();
        let inode = self.push(node)?;
        if self.whiteouts == Whiteouts::Convert && old.is_some() {
            self.opaque.insert(inode);
        }
        self.link(parent, name, inode)?;
        if name.starts_with(b".wh..wh.") && self.whiteouts.reads_aufs() {
            // Fits: `link` checked the number.
            self.aufs_directories.push(self.dentries.len() as u32 - 1);
        }
        Ok(inode)
    }

    /// True for a whiteout of overlayfs, in a layer that keeps them.
    fn is_null_device(&self, inode: InodeId) -> bool {
        let null = Device { major: 0, minor: 0 };
        matches!(self.kind(inode), NodeKind::Char(device) if device == null)
            && self.whiteouts == Whiteouts::Convert
    }

    /// Deepest common ancestor of `path` and the last directory, and the length of its path.
    fn nearest(&self, path: &[u8]) -> (InodeId, usize) {
        let (last, mut dir) = (&self.last_dir.0, self.last_dir.1);
        let known = common_dir(last, path);
        let below = last[known..].split(|b| *b == b'/');
        for _ in below.filter(|name| !name.is_empty()) {
            dir = self.parent(dir);
        }
        (dir, known)
    }

    /// Makes the directory at `path` the root, and drops everything else. Hard links to files elsewhere stay.
    pub(crate) fn take_subtree(&mut self, path: &[u8]) -> Result<()> {
        let found = self.resolve(path)?;
        let is_dir = |inode: &InodeId| self.file_type(*inode) == FileType::Dir;
        let Some(dir) = found.filter(is_dir) else {
            let path = Quoted(path);
            return Err(Error::usage(format_args!(
                "subtree {path}: the sources have no such directory"
            )));
        };
        if dir == ROOT {
            return Ok(());
        }
        // The names below stay, so they are taken out before everything else is removed.
        let first = std::mem::replace(&mut self.nodes[dir as usize].body, NONE.into());
        let all: Vec<DentryId> = self.child_ids(ROOT).collect();
        let top = self.nodes[dir as usize].clone();
        for id in all {
            self.remove(id);
        }
        let root = &mut self.nodes[ROOT as usize];
        *root = Node {
            body: first,
            name: root.name,
            ..top
        };
        let mut at = self.first_child(ROOT);
        while at != NONE {
            self.dentries[at as usize].parent = ROOT;
            at = self.dentries[at as usize].next;
        }
        // Its keys have the parents.
        self.table = None;
        Ok(())
    }

    /// Numbers of the names in a directory, during collection.
    fn child_ids(&self, dir: InodeId) -> impl Iterator<Item = DentryId> {
        let next = |at: &DentryId| Some(self.dentries[*at as usize].next).filter(|at| *at != NONE);
        let first = Some(self.first_child(dir)).filter(|at| *at != NONE);
        std::iter::successors(first, next)
    }

    /// Inode at `path`, during collection. Symbolic links on the way lead to their targets within the tree.
    fn resolve(&mut self, path: &[u8]) -> Result<Option<InodeId>> {
        let (mut found, mut at) = (ROOT, 0);
        let mut links = LinkedPath::new(path);
        while let Some(name) = links.next_name(&mut at) {
            if name == b".." && links.followed > 0 {
                found = self.parent(found);
                continue;
            }
            let Some(child) = self.find(found, name) else {
                return Ok(None);
            };
            let child = self.dentries[child as usize].inode;
            match self.kind(child) {
                NodeKind::Symlink(target) if !links.is_at_end(at) => {
                    links.follow(target, &mut at)?;
                    if target.starts_with(b"/") {
                        found = ROOT;
                    }
                }
                NodeKind::Dir => found = child,
                _ if links.is_at_end(at) => found = child,
                _ => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    pub(super) fn intern(&mut self, xattrs: Pairs) -> Result<u32> {
        if xattrs.is_empty() || !self.keeps_xattrs {
            return Ok(0);
        }
        let mut set: Vec<_> = xattrs
            .into_iter()
            .map(|(n, v)| (n.into_boxed_slice(), v.into_boxed_slice()))
            .collect();
        set.sort_unstable();
        let set = set.into_boxed_slice();
        if let Some(id) = self.xattr_set_ids.get(&set) {
            return Ok(*id);
        }
        let id = u32::try_from(self.xattr_sets.len())
            .map_err(|_| Error::limit("tree", "attribute sets"))?;
        self.xattr_set_ids.insert(set.clone(), id);
        self.xattr_sets.push(set);
        Ok(id)
    }

    pub(super) fn intern_attrs(&mut self, meta: Meta, xattrs: u32) -> u32 {
        self.attrs_id(Attrs {
            mode: meta.mode,
            layer: self.layer,
            uid: meta.uid,
            gid: meta.gid,
            xattrs,
        })
    }

    pub(super) fn attrs_id(&mut self, attrs: Attrs) -> u32 {
        *self.attr_ids.entry(attrs).or_insert_with(|| {
            self.attrs.push(attrs);
            // Fits: there are no more attribute sets than inodes.
            self.attrs.len() as u32 - 1
        })
    }
}

/// Path on which symbolic links are replaced by their targets.
struct LinkedPath<'a> {
    /// Path as the entry has it.
    path: &'a [u8],
    /// Path in which links were replaced; the components before the position are done.
    current: Cow<'a, [u8]>,
    /// Number of links that were replaced.
    followed: usize,
}

impl<'a> LinkedPath<'a> {
    fn new(path: &'a [u8]) -> Self {
        Self {
            path,
            current: Cow::Borrowed(path),
            followed: 0,
        }
    }

    /// Next component from position `at` on, which moves behind it. Skips `.` and empty components.
    fn next_name(&self, at: &mut usize) -> Option<&[u8]> {
        loop {
            let rest = self.current.get(*at..).filter(|rest| !rest.is_empty())?;
            let len = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
            *at += len + 1;
            match &rest[..len] {
                b"" | b"." => {}
                name => return Some(name),
            }
        }
    }

    /// True if no component follows.
    fn is_at_end(&self, at: usize) -> bool {
        let mut at = at;
        self.next_name(&mut at).is_none()
    }

    /// Continues with the target of a link, followed by the rest of the path.
    fn follow(&mut self, target: &[u8], at: &mut usize) -> Result<()> {
        self.followed += 1;
        let rest = self.current.get(*at..).unwrap_or(&[]);
        let what = if self.followed > LINKS_MAX {
            format!(
                "the path leads through more than {LINKS_MAX} symbolic links, or a circle of them"
            )
        } else if target.len() + rest.len() > LINKED_PATH_MAX {
            format!("with its symbolic links the path has more than {LINKED_PATH_MAX} bytes")
        } else {
            self.current = Cow::Owned([target, rest].join(&b'/'));
            *at = 0;
            return Ok(());
        };
        Err(wrong(self.path, what))
    }
}

/// Error about an entry that no image can hold, or that is inconsistent, with its path.
fn wrong(path: &[u8], what: String) -> Error {
    Error::from(SourceError::corrupt(what).in_member(path))
}

pub(super) fn bad_name(path: &[u8], name: &[u8]) -> Error {
    let len = name.len();
    wrong(path, format!("a name of {len} bytes; names have 1 to 255"))
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

pub(super) fn pack_device(device: Device) -> u64 {
    u64::from(device.major) << 32 | u64::from(device.minor)
}
