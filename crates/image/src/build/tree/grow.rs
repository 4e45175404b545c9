//! Entries in: directories that appear on the way, hard links, whiteouts, and what is kept once for many.

use super::{
    Attrs, Dentry, DentryId, InodeId, NONE, New, Node, Pairs, Place, ROOT, Tree, Whiteouts, name_of,
};
use crate::build::source::error::{Quoted, SourceError};
use crate::build::source::{Content, Device, Entry, Kind, Meta};
use crate::{Error, Result};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::{BuildHasher, Hash, Hasher};
use tuff_format::inode::FileType;

/// Longest target of a symbolic link. Unit: bytes.
const TARGET_MAX: usize = 4095;

impl Tree {
    /// Starts the next source: its entries win over those of earlier ones, its whiteouts act on them.
    pub(crate) fn next_layer(&mut self) -> Result<()> {
        self.layer = self
            .layer
            .checked_add(1)
            .ok_or_else(|| Error::usage("more than 65535 sources"))?;
        self.in_order = false;
        self.deleted.clear();
        Ok(())
    }

    /// What whiteouts mean from here on.
    pub(crate) fn read_whiteouts(&mut self, whiteouts: Whiteouts) {
        self.whiteouts = whiteouts;
    }

    /// Gives directories that are opaque the attribute that says so: when all sources are read.
    pub(crate) fn mark_opaque(&mut self) -> Result<()> {
        if !self.opaque_roots.is_empty() {
            // The root cannot say it, but what is in it can.
            let dirs: Vec<InodeId> = self.live_children(ROOT).map(|d| d.inode).collect();
            let dirs = dirs.into_iter();
            let dirs: Vec<InodeId> = dirs
                .filter(|inode| self.file_type(*inode) == FileType::Dir)
                .collect();
            self.opaque.extend(dirs);
        }
        let mut opaque: Vec<InodeId> = self.opaque.drain().collect();
        opaque.sort_unstable();
        for inode in opaque {
            let attrs = self.attrs[self.nodes[inode as usize].attrs as usize];
            let set = &self.xattr_sets[attrs.xattrs as usize];
            let mut xattrs: Pairs = set.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            if is_opaque(&xattrs) {
                continue;
            }
            xattrs.push((b"trusted.overlay.opaque".to_vec(), b"y".to_vec()));
            let attrs = Attrs {
                xattrs: self.intern(xattrs)?,
                ..attrs
            };
            self.nodes[inode as usize].attrs = self.attrs_id(attrs);
        }
        Ok(())
    }

    /// Lets `change` change what every inode has, by its first path. Once the tree is finished.
    pub(crate) fn describe_all(
        &mut self,
        mut change: impl FnMut(&[u8], FileType, &mut Meta, &mut Pairs),
    ) -> Result<()> {
        // Fits: numbers were given in 32 bits.
        let sets = self.xattr_sets.iter().enumerate();
        self.set_ids = sets.map(|(id, set)| (set.clone(), id as u32)).collect();
        let attrs = self.attrs.iter().enumerate();
        self.attr_ids = attrs.map(|(id, attrs)| (*attrs, id as u32)).collect();
        for inode in self.inode_order() {
            let mut meta = self.meta(inode);
            let attrs = self.attrs[self.nodes[inode as usize].attrs as usize];
            let set = &self.xattr_sets[attrs.xattrs as usize];
            let mut xattrs: Pairs = set.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            change(
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
        self.set_ids = HashMap::new();
        self.attr_ids = HashMap::new();
        Ok(())
    }

    /// A directory that is only known because something lies in it.
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
        if let Kind::Hardlink(target) = &kind {
            return self.add_link(&path, target);
        }
        let (parent, name) = self.place_of(&path)?;
        let new = match kind {
            Kind::Dir => New::Dir(meta, xattrs),
            kind => New::Other(kind, meta, xattrs, content),
        };
        let added = self.add_child(parent, name, new)?;
        if added.is_none() {
            self.deleted.insert(path);
        }
        Ok(added)
    }

    /// Adds another name of what is at `target`. Returns its inode, or `None` for a whiteout.
    pub(crate) fn add_link(&mut self, path: &[u8], target: &[u8]) -> Result<Option<InodeId>> {
        let (parent, name) = self.place_of(path)?;
        // A whiteout may have the name of anything.
        if self.is_whiteout(parent, name, false, (0, 0))? {
            return Ok(None);
        }
        let inode = self.resolve(target);
        if inode.is_none() && self.deleted.contains(target) {
            // Overlayfs links its whiteouts to each other.
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
            Some(inode) if what.is_empty() => self.add_child(parent, name, New::Link(inode)),
            _ => {
                let target = Quoted(target);
                Err(wrong(
                    path,
                    format!("hard link to {target}, which is {what}"),
                ))
            }
        }
    }

    /// The directory that a path lies in, and its name there.
    fn place_of<'a>(&mut self, path: &'a [u8]) -> Result<(InodeId, &'a [u8])> {
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

    /// Adds what `name` in `parent` is. A caller that adds each directory's children together, in the order of their names,
    /// and directories in the order of [`walk`](Self::walk), to a tree that was empty, finds nothing to sort later.
    pub(crate) fn add_child(
        &mut self,
        parent: InodeId,
        name: &[u8],
        new: New,
    ) -> Result<Option<InodeId>> {
        let zero = Device { major: 0, minor: 0 };
        let null = match &new {
            New::Other(Kind::Char(device), ..) => *device == zero,
            New::Other(Kind::File { size: 0 }, _, xattrs, _) => {
                overlay(xattrs, b"whiteout").is_some()
            }
            _ => false,
        };
        let time = match &new {
            New::Other(_, meta, ..) => (meta.mtime, meta.mtime_nsec),
            _ => (0, 0),
        };
        if self.is_whiteout(parent, name, null, time)? {
            return Ok(None);
        }
        self.must_be_whole(parent, name, &new)?;
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
                if self.whiteouts == Whiteouts::Convert && old.is_some() {
                    // What it replaces hid what layers below the image have there.
                    self.opaque.insert(inode);
                }
                inode
            }
            New::Other(kind, meta, xattrs, content) => {
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

    /// What overlayfs would take from another path, or another layer, is not looked for there: it is an error.
    fn must_be_whole(&self, parent: InodeId, name: &[u8], new: &New) -> Result<()> {
        if !self.whiteouts.reads_overlay() {
            return Ok(());
        }
        let (attribute, found, what) = match new {
            New::Other(Kind::File { .. }, _, xattrs, _) => {
                let found = overlay(xattrs, b"metacopy");
                ("metacopy", found, "the file's content is in another layer")
            }
            // What is opaque has nothing below it, wherever that would be.
            New::Dir(_, xattrs) if self.layer > 0 && !is_opaque(xattrs) => {
                let found = overlay(xattrs, b"redirect");
                ("redirect", found, "the directory's other half is elsewhere")
            }
            _ => return Ok(()),
        };
        if found.is_none() {
            return Ok(());
        }
        let error = SourceError::unsupported(format!(
            "overlay.{attribute}: {what}, which layers that are merged do not find; mount the overlay and build from that"
        ));
        Err(Error::source(error.in_member(&self.path_of(parent, name))))
    }

    /// The path of `name` in `parent`.
    fn path_of(&self, parent: InodeId, name: &[u8]) -> Vec<u8> {
        let mut path = self.path(parent);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Sets a directory's attributes; an opaque one hides what earlier sources put into it. Overlayfs does not ask a
    /// layer's root.
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

    /// Acts on a whiteout; `null` says that the entry is one of overlayfs. False: the entry is an ordinary one, as those of
    /// overlayfs are where they are kept. `time` is the entry's.
    fn is_whiteout(
        &mut self,
        parent: InodeId,
        name: &[u8],
        null: bool,
        time: (i64, u32),
    ) -> Result<bool> {
        let kind = self.whiteouts;
        let aufs = || {
            let target = name.strip_prefix(b".wh.");
            target
                .filter(|_| matches!(kind, Whiteouts::Aufs | Whiteouts::Both | Whiteouts::Convert))
        };
        let target = match aufs() {
            Some(b".wh..opq") if kind == Whiteouts::Convert && parent == ROOT => {
                self.hide_below_root(time)?;
                return Ok(true);
            }
            Some(b".wh..opq") => {
                self.hide_children(parent);
                if kind == Whiteouts::Convert {
                    self.opaque.insert(parent);
                }
                return Ok(true);
            }
            // Other names with the double prefix are AUFS's own bookkeeping.
            Some(target) if target.starts_with(b".wh.") => return Ok(true),
            Some(target) => target,
            None if null && kind.reads_overlay() => name,
            None => return Ok(false),
        };
        let old = self.find(parent, target);
        let is_here = old.is_some_and(|d| self.dentries[d as usize].layer == self.layer);
        if kind == Whiteouts::Convert {
            self.in_order = false;
            let here = old.filter(|_| is_here);
            match here.map(|d| self.dentries[d as usize].inode) {
                // The same source has something there: it hides what lies below.
                Some(inode) if self.file_type(inode) == FileType::Dir => {
                    self.opaque.insert(inode);
                }
                Some(_) => {}
                None => self.add_null(parent, target, old, time)?,
            }
            return Ok(true);
        }
        // The first source has nothing to delete.
        if let Some(old) = old.filter(|_| !is_here) {
            self.remove(old);
        }
        Ok(true)
    }

    /// A whiteout of overlayfs in the place of `old`.
    fn add_null(
        &mut self,
        parent: InodeId,
        name: &[u8],
        old: Option<DentryId>,
        (mtime, mtime_nsec): (i64, u32),
    ) -> Result<()> {
        if !tuff_format::dirent::is_name(name) {
            return Err(bad_name(&self.path_of(parent, name), name));
        }
        if let Some(old) = old {
            self.remove(old);
        }
        let meta = Meta {
            mode: 0,
            uid: 0,
            gid: 0,
            mtime,
            mtime_nsec,
        };
        let node = Node {
            body: pack_device(Device { major: 0, minor: 0 }),
            mtime,
            mtime_nsec,
            nlink: 0,
            name: NONE,
            attrs: self.intern_attrs(meta, 0),
            content: 0,
            file_type: FileType::Char,
            place: Place::None,
        };
        let inode = self.push(node)?;
        self.link(parent, name, inode)
    }

    /// An opaque root where whiteouts are kept: each name that earlier sources have there becomes one, for it may be below the
    /// image, too.
    fn hide_below_root(&mut self, time: (i64, u32)) -> Result<()> {
        let earlier = self.live_children(ROOT).filter(|d| d.layer < self.layer);
        let mut names: Vec<Vec<u8>> = earlier.map(|d| self.name(d).to_vec()).collect();
        names.sort_unstable();
        self.hide_children(ROOT);
        self.in_order = false;
        for name in names {
            self.add_null(ROOT, &name, None, time)?;
        }
        if self.opaque_roots.last() != Some(&self.layer) {
            self.opaque_roots.push(self.layer);
        }
        Ok(())
    }

    /// What is in a directory, while the tree is collected.
    fn live_children(&self, dir: InodeId) -> impl Iterator<Item = &Dentry> {
        let mut at = self.first_child(dir);
        std::iter::from_fn(move || {
            while at != NONE {
                let d = &self.dentries[at as usize];
                at = d.next;
                if !d.dead {
                    return Some(d);
                }
            }
            None
        })
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
                return Err(bad_name(path, name));
            }
            let old = self.find(dir, name);
            let inode = old.map(|d| self.dentries[d as usize].inode);
            dir = match inode {
                Some(inode) if self.file_type(inode) == FileType::Dir => inode,
                // Something else stands where a directory is needed: the later wins.
                _ => {
                    if let Some(old) = old {
                        let path = self.path_of(dir, name);
                        self.replaced.add(|| path);
                        self.remove(old);
                    }
                    let node = self.unnamed_dir();
                    let inode = self.push(node)?;
                    if self.whiteouts == Whiteouts::Convert && old.is_some() {
                        self.opaque.insert(inode);
                    }
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
        if xattrs.is_empty() || !self.keeps_xattrs {
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
        self.attrs_id(Attrs {
            mode: meta.mode,
            layer: self.layer,
            uid: meta.uid,
            gid: meta.gid,
            xattrs,
        })
    }

    fn attrs_id(&mut self, attrs: Attrs) -> u32 {
        *self.attr_ids.entry(attrs).or_insert_with(|| {
            self.attrs.push(attrs);
            // Fits: no more of them than inodes.
            self.attrs.len() as u32 - 1
        })
    }
}

/// Something that no image can hold, or that makes no sense, in the source that `path` is from.
fn wrong(path: &[u8], what: String) -> Error {
    Error::source(SourceError::corrupt(what).in_member(path))
}

fn bad_name(path: &[u8], name: &[u8]) -> Error {
    let len = name.len();
    wrong(path, format!("a name of {len} bytes; names have 1 to 255"))
}

/// The name of an attribute of overlayfs, without what all of them begin with.
fn overlay_name(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"trusted.overlay.")
        .or_else(|| name.strip_prefix(b"user.overlay."))
}

/// What an attribute of overlayfs says.
fn overlay<'a>(xattrs: &'a Pairs, name: &[u8]) -> Option<&'a [u8]> {
    let mut found = xattrs.iter().filter(|(n, _)| overlay_name(n) == Some(name));
    found.next().map(|(_, value)| &value[..])
}

/// A value of `x` only says that there are whiteouts that are files.
fn is_opaque(xattrs: &Pairs) -> bool {
    overlay(xattrs, b"opaque") == Some(b"y")
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
