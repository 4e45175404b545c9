//! Namespace operations: create, link, unlink, rename.
//!
//! Every operation first reads and verifies all it needs, then changes memory in one `mutate`. An ordinary error or a
//! failed read therefore changes nothing.

use crate::disk::address::Nid;
use crate::disk::dentry::NAME_MAX;
use crate::disk::inode::{Content, INLINE_MAX, Inode, mode};
use crate::disk::node::NodeBody;
use crate::disk::xattr;
use crate::error::{Errno, Error, Result};
use crate::options::Caller;
use crate::quota::Owners;
use crate::vfs::acl;
use crate::vfs::attr::Attr;
use crate::vfs::dir::{FoundEntry, check_name, kind_of};
use crate::vfs::file::TARGET_MAX;
use crate::volume::state::Volume;

/// Maximum number of links of an inode.
const NLINK_MAX: u32 = 1 << 30;
/// Maximum depth of a directory that a rename examines.
const ANCESTORS_MAX: usize = 1 << 16;

/// Behaviour of `rename` towards the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rename {
    /// Replace the target, if it exists.
    #[default]
    Replace,
    /// Fail with EEXIST if the target exists.
    NoReplace,
    /// Exchange the two names.
    Exchange,
    /// Replace the target, and leave a character device 0:0 under the old name, as overlay filesystems mark a
    /// deletion.
    Whiteout,
}

impl Volume {
    /// Returns the inode of a name. "." is the inode itself, of any type: so the kernel finds the inode of a file handle.
    /// ".." is the parent of a directory.
    pub fn lookup(&mut self, dir: Nid, name: &[u8]) -> Result<Nid> {
        if name == b"." {
            self.inode(dir)?;
            return Ok(dir);
        }
        self.require_dir(dir)?;
        if name == b".." {
            return Ok(self.inode(dir)?.parent);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NameTooLong.into());
        }
        self.find(dir, name)?
            .map(|found| found.ino)
            .ok_or_else(|| Errno::NotFound.into())
    }

    fn find_existing(&mut self, dir: Nid, name: &[u8]) -> Result<FoundEntry> {
        self.require_dir(dir)?;
        check_name(name)?;
        self.find(dir, name)?.ok_or_else(|| Errno::NotFound.into())
    }

    fn require_absent(&mut self, dir: Nid, name: &[u8]) -> Result<()> {
        self.require_dir(dir)?;
        check_name(name)?;
        if self.find(dir, name)?.is_some() {
            return Err(Errno::Exists.into());
        }
        if self.inode(dir)?.nlink == 0 {
            return Err(Errno::NotFound.into());
        }
        Ok(())
    }

    pub(crate) fn new_inode(
        &mut self,
        dir: Nid,
        mode_bits: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Nid> {
        let parent = self.inode(dir)?;
        let gid = parent.inherited_gid(caller.gid);
        let mut inode = Inode::new(mode_bits, caller.uid, gid, caller.now);
        if inode.is_dir() {
            inode.mode |= parent.mode & 0o2000;
        }
        inode.project = parent.project;
        inode.rdev = rdev;
        inode.generation = self.next_generation;
        inode.parent = dir;
        self.next_generation = self.next_generation.wrapping_add(1);
        if inode.is_dir() {
            inode.size = INLINE_MAX as u64;
        }
        let owners = Owners::from_inode(&inode);
        let ino = self.new_node(None, 0, NodeBody::Inode(Box::new(inode)))?;
        self.inodes += 1;
        self.quotas.charge(owners, 1, 1);
        self.roll_forward.changes.created.insert(ino);
        Ok(ino)
    }

    /// Returns the encoded attributes and the permissions that a new inode inherits.
    fn inherited(&mut self, dir: Nid, mode_bits: u32) -> Result<(Option<Vec<u8>>, u32)> {
        let kind = mode_bits & mode::TYPE;
        if kind == mode::LINK {
            return Ok((None, mode_bits));
        }
        let directory = self.xattrs(dir)?;
        Ok(
            match acl::inherit(&directory, mode_bits, kind == mode::DIR)? {
                Some((xattrs, bits)) => (Some(xattr::encode(&xattrs)), bits),
                None => (None, mode_bits),
            },
        )
    }

    /// Creates a file, directory, device node, pipe or socket, by the type bits of `mode_bits`. It inherits the
    /// default access list of the directory.
    pub fn create(
        &mut self,
        dir: Nid,
        name: &[u8],
        mode_bits: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Attr> {
        self.make(dir, name, mode_bits, rdev, &[], caller)
    }

    /// Creates a symbolic link.
    pub fn symlink(
        &mut self,
        dir: Nid,
        name: &[u8],
        target: &[u8],
        caller: &Caller,
    ) -> Result<Attr> {
        if target.is_empty() || target.contains(&0) {
            return Err(Errno::Invalid.into());
        }
        if target.len() > TARGET_MAX {
            return Err(Errno::NameTooLong.into());
        }
        self.make(dir, name, mode::LINK | 0o777, 0, target, caller)
    }

    fn make(
        &mut self,
        dir: Nid,
        name: &[u8],
        mode_bits: u32,
        rdev: u32,
        content: &[u8],
        caller: &Caller,
    ) -> Result<Attr> {
        self.writable()?;
        let kind = mode_bits & mode::TYPE;
        if ![
            mode::FILE,
            mode::DIR,
            mode::LINK,
            mode::CHAR,
            mode::BLOCK,
            mode::FIFO,
            mode::SOCKET,
        ]
        .contains(&kind)
        {
            return Err(Errno::Invalid.into());
        }
        self.require_absent(dir, name)?;
        if kind == mode::DIR && self.inode(dir)?.nlink >= NLINK_MAX {
            return Err(Errno::TooManyLinks.into());
        }
        let (xattrs, mode_bits) = self.inherited(dir, mode_bits)?;
        let target = u64::from(content.len() > INLINE_MAX);
        let owners = Owners::in_dir(self.inode(dir)?, caller);
        self.check_quota_to_create(dir, name, owners, 1 + target)?;
        self.admit(14, false)?;
        self.mutate(|v| {
            let ino = v.new_inode(dir, mode_bits, rdev, caller)?;
            if let Some(xattrs) = xattrs {
                v.put_xattrs(ino, xattrs)?;
            }
            let inode = v.inode_mut(ino)?;
            inode.name = name.to_vec();
            inode.nlink = if kind == mode::DIR { 2 } else { 1 };
            if kind == mode::LINK {
                inode.size = content.len() as u64;
                if content.len() <= INLINE_MAX {
                    inode.content = Content::Inline(content.to_vec());
                } else {
                    v.store_link_target(ino, content)?;
                }
            }
            let attr = v.attr(ino)?;
            v.insert_entry(dir, name, ino, kind_of(mode_bits))?;
            if kind == mode::DIR {
                v.inode_mut(dir)?.nlink += 1;
            }
            v.touch(dir, caller.now)?;
            Ok(attr)
        })
    }

    /// Creates a file without a name, held once. It is freed with the release of that hold, unless `link` gave it a
    /// name.
    pub fn tmpfile(&mut self, dir: Nid, mode_bits: u32, caller: &Caller) -> Result<Attr> {
        self.writable()?;
        self.require_dir(dir)?;
        let (xattrs, mode_bits) = self.inherited(dir, mode::FILE | mode_bits & 0o7777)?;
        let owners = Owners::in_dir(self.inode(dir)?, caller);
        self.quotas.check(owners, 1, 1)?;
        self.admit(8, false)?;
        self.mutate(|v| {
            let ino = v.new_inode(dir, mode_bits, 0, caller)?;
            if let Some(xattrs) = xattrs {
                v.put_xattrs(ino, xattrs)?;
            }
            v.orphans.insert(ino);
            v.roll_forward.changes.renamed.insert(ino);
            *v.holds.entry(ino).or_default() += 1;
            v.attr(ino)
        })
    }

    /// Adds a name to an inode.
    pub fn link(&mut self, ino: Nid, dir: Nid, name: &[u8], caller: &Caller) -> Result<Attr> {
        self.writable()?;
        self.require_absent(dir, name)?;
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Errno::NotPermitted.into());
        }
        if inode.nlink >= NLINK_MAX {
            return Err(Errno::TooManyLinks.into());
        }
        let (kind, nlink) = (kind_of(inode.mode), inode.nlink);
        if nlink == 0 && !self.orphans.contains(&ino) {
            return Err(Errno::NotFound.into());
        }
        self.check_quota_to_enter(dir, name)?;
        self.admit(8, false)?;
        self.mutate(|v| {
            v.insert_entry(dir, name, ino, kind)?;
            v.orphans.remove(&ino);
            v.roll_forward.changes.renamed.insert(ino);
            let inode = v.inode_mut(ino)?;
            if inode.nlink == 0 {
                inode.parent = dir;
                inode.name = name.to_vec();
            }
            inode.nlink += 1;
            inode.ctime = caller.now;
            let attr = Attr::from_inode(ino, inode);
            v.touch(dir, caller.now)?;
            Ok(attr)
        })
    }

    /// Removes a name of an inode other than a directory. The inode is freed with its last name and hold.
    pub fn unlink(&mut self, dir: Nid, name: &[u8], caller: &Caller) -> Result<()> {
        self.writable()?;
        let found = self.find_existing(dir, name)?;
        if self.inode(found.ino)?.is_dir() {
            return Err(Errno::IsDirectory.into());
        }
        self.remove_name(dir, name, &found, caller)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: Nid, name: &[u8], caller: &Caller) -> Result<()> {
        self.writable()?;
        let found = self.find_existing(dir, name)?;
        let inode = self.inode(found.ino)?;
        if !inode.is_dir() {
            return Err(Errno::NotDirectory.into());
        }
        if inode.entries > 0 {
            return Err(Errno::NotEmpty.into());
        }
        self.remove_name(dir, name, &found, caller)
    }

    fn remove_name(
        &mut self,
        dir: Nid,
        name: &[u8],
        found: &FoundEntry,
        caller: &Caller,
    ) -> Result<()> {
        self.admit(8, true)?;
        self.mutate(|v| {
            v.remove_entry(dir, found.position, name.len())?;
            v.touch(dir, caller.now)?;
            v.drop_link(dir, name, found.ino, caller)
        })?;
        self.evict_if_unused(found.ino);
        Ok(())
    }

    /// Drops the link from the entry `name` of `dir` to `ino`. An inode without names becomes an orphan.
    pub(crate) fn drop_link(
        &mut self,
        dir: Nid,
        name: &[u8],
        ino: Nid,
        caller: &Caller,
    ) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.ctime = caller.now;
        if inode.is_dir() {
            inode.nlink = 0;
            self.orphans.insert(ino);
            // The older checkpoint may have entries in it, which roll-forward must not drop with it.
            self.roll_forward
                .changes
                .vacated
                .insert((dir, name.to_vec()));
            let parent = self.inode_mut(dir)?;
            parent.nlink = parent.nlink.saturating_sub(1);
            return Ok(());
        }
        inode.nlink = inode.nlink.saturating_sub(1);
        let left = inode.nlink;
        self.roll_forward.changes.renamed.insert(ino);
        if left == 0 {
            self.orphans.insert(ino);
        } else {
            self.roll_forward
                .changes
                .vacated
                .insert((dir, name.to_vec()));
        }
        Ok(())
    }

    /// Holds an inode, as an open file does: it stays after it has lost its last name.
    pub fn hold(&mut self, ino: Nid) -> Result<()> {
        self.inode(ino)?;
        *self.holds.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Releases one hold of an inode.
    pub fn release(&mut self, ino: Nid) {
        if let Some(holds) = self.holds.get_mut(&ino) {
            *holds -= 1;
            if *holds == 0 {
                self.holds.remove(&ino);
                self.evict_if_unused(ino);
            }
        }
    }

    /// Frees an orphan without holds. If its nodes cannot be read it stays an orphan for the next check; its name is
    /// gone in any case.
    pub(crate) fn evict_if_unused(&mut self, ino: Nid) {
        if !self.orphans.contains(&ino) || self.holds.contains_key(&ino) || self.writable().is_err()
        {
            return;
        }
        if self.load_tree(ino).is_err() {
            self.needs_trim = true;
            return;
        }
        let _ = self.mutate(|v| v.evict(ino));
    }

    /// Reads every node of an inode, so that freeing them cannot fail half-way.
    fn load_tree(&mut self, ino: Nid) -> Result<()> {
        if matches!(self.inode(ino)?.content, Content::Map(_)) {
            let mut at = 0;
            while let Some(index) = self.next_allocated(ino, at)? {
                at = index + 1;
            }
        }
        Ok(())
    }

    fn evict(&mut self, ino: Nid) -> Result<()> {
        self.pages.truncate(ino, 0);
        if matches!(self.inode(ino)?.content, Content::Map(_)) {
            self.truncate_blocks(ino, 0)?;
        }
        let xattr_nid = self.inode(ino)?.xattr_nid;
        if xattr_nid != Nid::NONE {
            self.free_node(xattr_nid)?;
        }
        let inode = self.inode(ino)?;
        let (owners, blocks) = (Owners::from_inode(inode), inode.blocks as i64 + 1);
        self.quotas.charge(owners, -blocks, -1);
        self.free_node(ino)?;
        self.inodes -= 1;
        self.orphans.remove(&ino);
        self.roll_forward.changes.created.remove(&ino);
        Ok(())
    }

    /// Returns whether `dir` is `top` or inside it.
    fn is_under(&mut self, mut dir: Nid, top: Nid) -> Result<bool> {
        for _ in 0..ANCESTORS_MAX {
            if dir == top {
                return Ok(true);
            }
            if dir == Nid::ROOT {
                return Ok(false);
            }
            dir = self.inode(dir)?.parent;
        }
        Err(Error::corrupt(
            format_args!("directory {dir}"),
            "no way up to the root",
        ))
    }

    /// Moves, exchanges or replaces names atomically: a crash leaves all of the change or nothing.
    pub fn rename(
        &mut self,
        from: Nid,
        name: &[u8],
        to: Nid,
        new: &[u8],
        how: Rename,
        caller: &Caller,
    ) -> Result<()> {
        self.writable()?;
        let source = self.find_existing(from, name)?;
        self.require_dir(to)?;
        check_name(new)?;
        if self.inode(to)?.nlink == 0 {
            return Err(Errno::NotFound.into());
        }
        let target = self.find(to, new)?;
        let source_inode = self.inode(source.ino)?;
        let source_dir = source_inode.is_dir();
        let source_kind = kind_of(source_inode.mode);
        if source_dir && self.is_under(to, source.ino)? {
            return Err(Errno::Invalid.into());
        }
        if how == Rename::Exchange {
            let target = target.ok_or(Errno::NotFound)?;
            return self.exchange((from, name, source), (to, new, target), caller);
        }
        if let Some(target) = target {
            if how == Rename::NoReplace {
                return Err(Errno::Exists.into());
            }
            if target.ino == source.ino {
                return Ok(());
            }
            let inode = self.inode(target.ino)?;
            match (source_dir, inode.is_dir()) {
                (true, false) => return Err(Errno::NotDirectory.into()),
                (false, true) => return Err(Errno::IsDirectory.into()),
                (true, true) if inode.entries > 0 => return Err(Errno::NotEmpty.into()),
                _ => {}
            }
        } else if source_dir && from != to && self.inode(to)?.nlink >= NLINK_MAX {
            return Err(Errno::TooManyLinks.into());
        }
        if target.is_none() {
            self.check_quota_to_enter(to, new)?;
        }
        if how == Rename::Whiteout {
            let owners = Owners::in_dir(self.inode(from)?, caller);
            self.quotas.check(owners, 1, 1)?;
        }
        self.admit(20, false)?;
        self.mutate(|v| {
            if let Some(target) = target {
                v.retarget_entry(to, target.position, source.ino, source_kind)?;
                v.drop_link(to, new, target.ino, caller)?;
            } else {
                v.insert_entry(to, new, source.ino, source_kind)?;
            }
            if how == Rename::Whiteout {
                let ino = v.new_inode(from, mode::CHAR, 0, caller)?;
                let inode = v.inode_mut(ino)?;
                inode.nlink = 1;
                inode.name = name.to_vec();
                // Roll-forward may not restore it alone: the name belonged to an inode that lives on.
                v.roll_forward.changes.renamed.insert(ino);
                let source = v.find(from, name)?.ok_or(Errno::Stale)?;
                v.retarget_entry(from, source.position, ino, kind_of(mode::CHAR))?;
            } else {
                // The insertion may have converted the inline directory.
                let source = v.find(from, name)?.ok_or(Errno::Stale)?;
                v.remove_entry(from, source.position, name.len())?;
            }
            v.roll_forward.changes.vacated.insert((from, name.to_vec()));
            v.update_parent(source.ino, from, to, new, caller)?;
            v.touch(from, caller.now)?;
            v.touch(to, caller.now)
        })?;
        if let Some(target) = target {
            self.evict_if_unused(target.ino);
        }
        Ok(())
    }

    /// Records the new parent and name of an inode.
    fn update_parent(
        &mut self,
        ino: Nid,
        from: Nid,
        to: Nid,
        new: &[u8],
        caller: &Caller,
    ) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.ctime = caller.now;
        inode.parent = to;
        inode.name = new.to_vec();
        let is_dir = inode.is_dir();
        self.roll_forward.changes.renamed.insert(ino);
        if is_dir {
            self.roll_forward.changes.directory_moved = true;
            if from != to {
                let old = self.inode_mut(from)?;
                old.nlink = old.nlink.saturating_sub(1);
                self.inode_mut(to)?.nlink += 1;
            }
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        a: (Nid, &[u8], FoundEntry),
        b: (Nid, &[u8], FoundEntry),
        caller: &Caller,
    ) -> Result<()> {
        let ((dir_a, name_a, a), (dir_b, name_b, b)) = (a, b);
        if a.ino == b.ino {
            return Ok(());
        }
        let kind_a = kind_of(self.inode(a.ino)?.mode);
        let kind_b = kind_of(self.inode(b.ino)?.mode);
        if self.inode(b.ino)?.is_dir() && self.is_under(dir_a, b.ino)? {
            return Err(Errno::Invalid.into());
        }
        self.admit(16, false)?;
        self.mutate(|v| {
            v.retarget_entry(dir_a, a.position, b.ino, kind_b)?;
            v.retarget_entry(dir_b, b.position, a.ino, kind_a)?;
            v.roll_forward
                .changes
                .vacated
                .insert((dir_a, name_a.to_vec()));
            v.roll_forward
                .changes
                .vacated
                .insert((dir_b, name_b.to_vec()));
            v.update_parent(a.ino, dir_a, dir_b, name_b, caller)?;
            v.update_parent(b.ino, dir_b, dir_a, name_a, caller)?;
            v.touch(dir_a, caller.now)?;
            v.touch(dir_b, caller.now)
        })
    }
}
