//! A finished tree, as all later stages see it.

use super::{Dentry, DentryId, InodeId, NodeKind, Place, ROOT, Tree, XattrSet, name_of};
use crate::source::{Content, Device, Meta};
use tuff_format::inode::FileType;

impl Tree {
    /// The name of a dentry.
    pub(crate) fn name(&self, d: &Dentry) -> &[u8] {
        name_of(&self.names, d)
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

    /// A directory that lies in more directories than `limit`, the root among them.
    pub(crate) fn deeper_than(&self, limit: usize) -> Option<InodeId> {
        let mut dirs = vec![(ROOT, 0)];
        while let Some((dir, depth)) = dirs.pop() {
            if depth > limit {
                return Some(dir);
            }
            // Two links: no directory lies in it.
            if self.nlink(dir) > 2 {
                let children = self.children(dir).iter().map(|d| d.inode);
                let below = children.filter(|i| self.file_type(*i) == FileType::Dir);
                dirs.extend(below.map(|i| (i, depth + 1)));
            }
        }
        None
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

    /// The last name of an inode's path; empty for the root.
    pub(crate) fn last_name(&self, inode: InodeId) -> &[u8] {
        if inode == ROOT {
            return &[];
        }
        self.name(&self.dentries[self.nodes[inode as usize].name as usize])
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
pub(super) struct Walk {
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
    /// The next name and its inode.
    pub(super) fn next(&mut self, tree: &Tree) -> Option<(DentryId, InodeId)> {
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

fn unpack_device(body: u64) -> Device {
    Device {
        major: (body >> 32) as u32,
        minor: body as u32,
    }
}
