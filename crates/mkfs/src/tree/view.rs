//! Accessors of the finished tree, for all later stages.

use super::{ContentKind, Dentry, DentryId, InodeId, NodeKind, ROOT, Tree, XattrSet, name_of};
use crate::source::{Content, Device, Meta};
use tuff_format::inode::FileType;

impl Tree {
    /// Name of a dentry.
    pub(crate) fn name(&self, d: &Dentry) -> &[u8] {
        name_of(&self.names, d)
    }

    /// Sorted children of a directory in a finished tree.
    pub(crate) fn children(&self, dir: InodeId) -> &[Dentry] {
        let node = &self.nodes[dir as usize];
        if node.file_type != FileType::Dir {
            return &[];
        }
        let (start, count) = (node.body as u32 as usize, (node.body >> 32) as usize);
        &self.dentries[start..start + count]
    }

    /// Visits every live name of a finished tree in the order of the image's inodes. The children
    /// of a directory come together and before deeper entries; directories come in depth-first
    /// order.
    pub(crate) fn walk(&self, mut visit: impl FnMut(&Dentry)) {
        let mut walk = TreeWalk::default();
        while let Some((dentry, _)) = walk.next(self) {
            visit(&self.dentries[dentry as usize]);
        }
    }

    /// Inodes in the order of the image: the root, then the children of each directory together.
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

    /// Returns a directory that is nested deeper than `depth` or whose path is longer than `path_len`, if there is one,
    /// and whether its depth is the reason.
    pub(crate) fn deeper_than(&self, depth: usize, path_len: usize) -> Option<(InodeId, bool)> {
        let mut dirs = vec![(ROOT, 0, 0)];
        while let Some((dir, level, len)) = dirs.pop() {
            if level > depth || len > path_len {
                return Some((dir, level > depth));
            }
            // A link count of two means no subdirectory.
            if self.nlink(dir) > 2 {
                for d in self.children(dir) {
                    if self.file_type(d.inode) == FileType::Dir {
                        let slash = usize::from(level > 0);
                        dirs.push((d.inode, level + 1, len + slash + self.name(d).len()));
                    }
                }
            }
        }
        None
    }

    /// Path of an inode by its first name, without a leading slash. Empty for the root.
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

    /// Last component of an inode's path; empty for the root.
    pub(crate) fn last_name(&self, inode: InodeId) -> &[u8] {
        if inode == ROOT {
            return &[];
        }
        self.name(&self.dentries[self.nodes[inode as usize].name as usize])
    }

    /// Type of an inode with its data.
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

    /// File type of an inode.
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

    /// Location of a file's content.
    pub(crate) fn content(&self, inode: InodeId) -> Content {
        let node = &self.nodes[inode as usize];
        match node.content_kind {
            ContentKind::None => Content::None,
            ContentKind::InSource => Content::InSource,
            ContentKind::Stream => Content::Stream,
            ContentKind::Range => Content::Range {
                offset: self.offsets[node.content as usize],
            },
            ContentKind::Other => self.contents[node.content as usize].clone(),
        }
    }

    /// Mode, owner and modification time.
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

    /// Number of live names. For a directory: 2 plus one per subdirectory.
    pub(crate) fn nlink(&self, inode: InodeId) -> u32 {
        self.nodes[inode as usize].nlink
    }

    /// Number of an inode's extended attribute set.
    pub(crate) fn xattrs(&self, inode: InodeId) -> u32 {
        self.attrs[self.nodes[inode as usize].attrs as usize].xattrs
    }

    /// Distinct extended attribute sets by number; set 0 is empty.
    pub(crate) fn xattr_sets(&self) -> &[XattrSet] {
        &self.xattr_sets
    }

    /// Number of the source that an inode comes from.
    pub(crate) fn layer(&self, inode: InodeId) -> u16 {
        self.attrs[self.nodes[inode as usize].attrs as usize].layer
    }

    /// Parent of a directory. The root is its own parent.
    pub(crate) fn parent(&self, dir: InodeId) -> InodeId {
        if dir == ROOT {
            return ROOT;
        }
        self.dentries[self.nodes[dir as usize].name as usize].parent
    }
}

/// Iterator over a finished tree that does not borrow it.
pub(super) struct TreeWalk {
    dirs: Vec<InodeId>,
    /// Remaining names of the current directory.
    remaining: std::ops::Range<u32>,
    /// Number of pending directories when the current one was entered; its own follow.
    pending_before: usize,
}

impl Default for TreeWalk {
    fn default() -> Self {
        Self {
            dirs: vec![ROOT],
            remaining: 0..0,
            pending_before: 0,
        }
    }
}

impl TreeWalk {
    /// Returns the next name and its inode.
    pub(super) fn next(&mut self, tree: &Tree) -> Option<(DentryId, InodeId)> {
        let id = loop {
            if let Some(id) = self.remaining.next() {
                break id;
            }
            self.dirs[self.pending_before..].reverse();
            let node = &tree.nodes[self.dirs.pop()? as usize];
            self.pending_before = self.dirs.len();
            let start = node.body as u32;
            self.remaining = start..start + (node.body >> 32) as u32;
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
