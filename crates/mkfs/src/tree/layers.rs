//! Layers: what whiteouts of either kind delete, what opaque directories hide, and what is kept of both.

use super::insert::{bad_name, pack_device};
use super::overlay::{is_opaque, overlay};
use super::{
    Attrs, Dentry, DentryId, InodeId, NONE, New, Node, Pairs, Place, ROOT, Tree, Whiteouts,
};
use crate::source::error::SourceError;
use crate::source::{Device, Kind, Meta};
use crate::{Error, Result};
use tuff_format::inode::FileType;

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

    /// Acts on a whiteout; `null` says that the entry is one of overlayfs. False: the entry is an ordinary one, as those of
    /// overlayfs are where they are kept. `time` is the entry's.
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

    /// What overlayfs would take from another path, or another layer, is not looked for there: it is an error.
    pub(super) fn must_be_whole(&self, parent: InodeId, name: &[u8], new: &New) -> Result<()> {
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
        Err(Error::from(error.in_member(&self.path_of(parent, name))))
    }
}
