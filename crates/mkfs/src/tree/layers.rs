//! Layers: whiteouts and opaque directories, and their conversion for an image that is a layer
//! itself.

use super::insert::{bad_name, pack_device};
use super::overlay::{is_opaque, overlay};
use super::{
    Attrs, ContentKind, Dentry, DentryId, InodeId, NONE, NewEntry, Node, Pairs, ROOT, Tree,
    Whiteouts,
};
use crate::source::error::SourceError;
use crate::source::{Device, Kind, Meta};
use crate::{Error, Result};
use hashbrown::HashSet;
use tuff_format::inode::FileType;

impl Tree {
    /// Starts the next source. Its entries replace those of earlier sources, and its whiteouts
    /// delete them.
    pub(crate) fn next_layer(&mut self) -> Result<()> {
        self.layer = self
            .layer
            .checked_add(1)
            .ok_or_else(|| Error::usage("more than 65535 sources"))?;
        self.in_order = false;
        self.deleted.clear();
        self.hidden.clear();
        self.drop_aufs_directories();
        Ok(())
    }

    /// Removes the directories in which AUFS kept data of its own. Files in them that have other names stay.
    fn drop_aufs_directories(&mut self) {
        for id in std::mem::take(&mut self.aufs_directories) {
            self.remove(id);
        }
    }

    /// Sets the interpretation of whiteouts for the following sources.
    pub(crate) fn read_whiteouts(&mut self, whiteouts: Whiteouts) {
        self.whiteouts = whiteouts;
    }

    /// Sets the overlayfs attribute of opaque directories. Call it after all sources were read.
    pub(crate) fn mark_opaque(&mut self) -> Result<()> {
        self.drop_aufs_directories();
        if !self.opaque_roots.is_empty() {
            // Overlayfs ignores an opaque root, so its directories become opaque.
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

    /// Applies a whiteout and returns true; returns false for an ordinary entry. `null` marks an
    /// overlayfs whiteout, and `time` is the entry's modification time.
    pub(super) fn is_whiteout(
        &mut self,
        parent: InodeId,
        name: &[u8],
        null: bool,
        time: (i64, u32),
    ) -> Result<bool> {
        let kind = self.whiteouts;
        let aufs = name.strip_prefix(b".wh.").filter(|_| kind.reads_aufs());
        let target = match aufs {
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
            // Other names with the double prefix are internal to AUFS.
            Some(target) if target.starts_with(b".wh.") => return Ok(true),
            Some(target) => target,
            None if null && kind.reads_overlay() => name,
            None => return Ok(false),
        };
        let old = match self.find(parent, target) {
            Some(old) if self.hide_lower(old) => Some(old),
            Some(_) | None => None,
        };
        if kind == Whiteouts::Convert {
            self.in_order = false;
            match old.map(|d| self.dentries[d as usize].inode) {
                // The same source has an entry of this name, which then hides the lower one.
                Some(inode) if self.file_type(inode) == FileType::Dir => {
                    self.opaque.insert(inode);
                }
                Some(_) => {}
                None => self.add_whiteout(parent, target, time)?,
            }
        }
        Ok(true)
    }

    /// Removes a name of an earlier source and what earlier sources have below it. Returns true if the name stays
    /// because the current source has it, or names below it.
    ///
    /// The whiteouts of a layer delete entries of the layers below it, wherever they stand among the entries of the
    /// layer. A directory that only leads to entries of the layer gets default attributes, as if the whiteout had come
    /// first.
    fn hide_lower(&mut self, id: DentryId) -> bool {
        // Names of earlier sources, each after that of its directory.
        let mut lower = Vec::new();
        let mut kept = HashSet::new();
        if self.dentries[id as usize].layer == self.layer {
            return true;
        }
        lower.push(id);
        let mut at = 0;
        while let Some(d) = lower.get(at).map(|id| self.dentries[*id as usize]) {
            at += 1;
            if self.file_type(d.inode) != FileType::Dir {
                continue;
            }
            let mut child = self.first_child(d.inode);
            while child != NONE {
                let name = &self.dentries[child as usize];
                match (name.dead, name.layer == self.layer) {
                    (true, _) => {}
                    (false, true) => _ = kept.insert(d.inode),
                    (false, false) => lower.push(child),
                }
                child = name.next;
            }
        }
        for id in lower.iter().rev() {
            let d = self.dentries[*id as usize];
            let is_described = self.layer(d.inode) == self.layer;
            let is_dir = self.file_type(d.inode) == FileType::Dir;
            if !is_dir || !is_described && !kept.contains(&d.inode) {
                self.remove(*id);
                continue;
            }
            kept.insert(d.parent);
            self.dentries[*id as usize].layer = self.layer;
            if !is_described {
                let node = self.unnamed_dir();
                let old = &mut self.nodes[d.inode as usize];
                (old.attrs, old.mtime, old.mtime_nsec) = (node.attrs, node.mtime, node.mtime_nsec);
            }
        }
        !self.dentries[id as usize].dead
    }

    /// Adds an overlayfs whiteout.
    fn add_whiteout(
        &mut self,
        parent: InodeId,
        name: &[u8],
        (mtime, mtime_nsec): (i64, u32),
    ) -> Result<()> {
        if !tuff_format::dirent::is_name(name) {
            return Err(bad_name(&self.path_of(parent, name), name));
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
            content_kind: ContentKind::None,
        };
        let inode = self.push(node)?;
        self.link(parent, name, inode)
    }

    /// Handles an opaque root in a converted layer. Each name in the root from earlier sources
    /// becomes a whiteout, because it may exist below the image, too.
    fn hide_below_root(&mut self, time: (i64, u32)) -> Result<()> {
        let earlier = self.live_children(ROOT).filter(|d| d.layer < self.layer);
        let mut names: Vec<Vec<u8>> = earlier.map(|d| self.name(d).to_vec()).collect();
        names.sort_unstable();
        self.hide_children(ROOT);
        self.in_order = false;
        for name in names {
            if self.find(ROOT, &name).is_none() {
                self.add_whiteout(ROOT, &name, time)?;
            }
        }
        if self.opaque_roots.last() != Some(&self.layer) {
            self.opaque_roots.push(self.layer);
        }
        Ok(())
    }

    /// Live entries of a directory, during collection.
    pub(super) fn live_children(&self, dir: InodeId) -> impl Iterator<Item = &Dentry> {
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

    /// Removes what earlier sources have in a directory.
    pub(super) fn hide_children(&mut self, dir: InodeId) {
        if !self.hidden.insert(dir) {
            return;
        }
        let mut at = self.first_child(dir);
        while at != NONE {
            let d = self.dentries[at as usize];
            if !d.dead {
                self.hide_lower(at);
            }
            at = d.next;
        }
    }

    /// Rejects entries whose content or directory overlayfs would look up in another layer or path.
    pub(super) fn reject_split_content(
        &self,
        parent: InodeId,
        name: &[u8],
        new: &NewEntry,
    ) -> Result<()> {
        if !self.whiteouts.reads_overlay() {
            return Ok(());
        }
        let (attribute, found, what) = match new {
            NewEntry::Other(Kind::File { .. }, _, xattrs, _) => {
                let found = overlay(xattrs, b"metacopy");
                ("metacopy", found, "the file's content is in another layer")
            }
            // An opaque directory has no lower contents.
            NewEntry::Dir(_, xattrs) if self.layer > 0 && !is_opaque(xattrs) => {
                let found = overlay(xattrs, b"redirect");
                ("redirect", found, "the directory's other half is elsewhere")
            }
            _ => return Ok(()),
        };
        if found.is_none() {
            return Ok(());
        }
        let error = SourceError::unsupported(format!(
            "overlay.{attribute}: {what}, and merging layers does not follow it; mount the overlay and build from that"
        ));
        Err(Error::from(error.in_member(&self.path_of(parent, name))))
    }
}
