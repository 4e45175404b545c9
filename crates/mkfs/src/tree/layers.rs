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
        Ok(())
    }

    /// Sets the interpretation of whiteouts for the following sources.
    pub(crate) fn read_whiteouts(&mut self, whiteouts: Whiteouts) {
        self.whiteouts = whiteouts;
    }

    /// Sets the overlayfs attribute of opaque directories. Call it after all sources were read.
    pub(crate) fn mark_opaque(&mut self) -> Result<()> {
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
            // Other names with the double prefix are internal to AUFS.
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
                // The same source has an entry of this name, which then hides the lower one.
                Some(inode) if self.file_type(inode) == FileType::Dir => {
                    self.opaque.insert(inode);
                }
                Some(_) => {}
                None => self.add_whiteout(parent, target, old, time)?,
            }
            return Ok(true);
        }
        // The first source has nothing to delete.
        if let Some(old) = old.filter(|_| !is_here) {
            self.remove(old);
        }
        Ok(true)
    }

    /// Adds an overlayfs whiteout in place of `old`.
    fn add_whiteout(
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
            self.add_whiteout(ROOT, &name, None, time)?;
        }
        if self.opaque_roots.last() != Some(&self.layer) {
            self.opaque_roots.push(self.layer);
        }
        Ok(())
    }

    /// Live entries of a directory, during collection.
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

    pub(super) fn hide_children(&mut self, dir: InodeId) {
        let mut at = self.first_child(dir);
        while at != NONE {
            let d = self.dentries[at as usize];
            if !d.dead && d.layer < self.layer {
                self.remove(at);
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
