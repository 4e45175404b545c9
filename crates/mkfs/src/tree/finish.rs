//! Sorting of the complete tree.

use super::view::TreeWalk;
use super::{DentryId, InodeId, NONE, Node, Tree, name_of};
use hashbrown::HashMap;
use tuff_format::inode::FileType;

impl Tree {
    /// Sorts the names and removes dead ones. The tree is then ready for packing and layout.
    pub(crate) fn finish(&mut self) {
        self.table = None;
        self.xattr_set_ids = HashMap::new();
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
            let mut walk = TreeWalk::default();
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

    /// Gives every name but the first of each inode an inode of its own, as if it were a copy. The tree must be
    /// finished.
    pub(crate) fn split_hard_links(&mut self) -> crate::Result<()> {
        let mut walk = TreeWalk::default();
        let mut more: Vec<(DentryId, InodeId)> = Vec::new();
        while let Some((dentry, inode)) = walk.next(self) {
            let node = &self.nodes[inode as usize];
            if node.file_type != FileType::Dir && node.name != dentry {
                more.push((dentry, inode));
            }
        }
        for (dentry, inode) in more {
            let node = &mut self.nodes[inode as usize];
            node.nlink -= 1;
            let own = Node {
                nlink: 1,
                name: dentry,
                ..node.clone()
            };
            let own = self.push(own)?;
            self.dentries[dentry as usize].inode = own;
        }
        Ok(())
    }
}
