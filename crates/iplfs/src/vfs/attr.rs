//! Attributes and extended attributes of inodes.

use crate::disk::address::Nid;
use crate::disk::inode::{INLINE_XATTR, Inode, Time, mode};
use crate::disk::node::{NodeBody, XATTR_MAX};
use crate::disk::xattr::{self, Xattrs};
use crate::error::{Errno, Error, Result};
use crate::options::Caller;
use crate::quota::{self, Owners};
use crate::vfs::acl;
use crate::vfs::file::SIZE_MAX;
use crate::volume::state::Volume;

/// Attributes that `stat` reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Number of the inode.
    pub ino: Nid,
    /// Type and permission bits, as POSIX defines them.
    pub mode: u32,
    /// Number of links to the inode.
    pub nlink: u32,
    /// User that owns the inode.
    pub uid: u32,
    /// Group that owns the inode.
    pub gid: u32,
    /// Length of the content. Unit: bytes.
    pub size: u64,
    /// Space used, including the inode. Unit: blocks of 4 KiB.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: Time,
    /// Time of the last change of content.
    pub mtime: Time,
    /// Time of the last change of content or attributes.
    pub ctime: Time,
    /// Time at which the inode was created.
    pub btime: Time,
    /// Device number of a device node.
    pub rdev: u32,
    /// Distinguishes two inodes that had the same number.
    pub generation: u32,
    /// Flags that applications set; the filesystem only stores them.
    pub flags: u32,
    /// Project that the inode is charged to.
    pub project: u32,
}

impl Attr {
    pub(crate) fn from_inode(ino: Nid, inode: &Inode) -> Self {
        Self {
            ino,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            blocks: inode.blocks + 1,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            rdev: inode.rdev,
            generation: inode.generation,
            flags: inode.flags,
            project: inode.project,
        }
    }
}

/// Changes of attributes; `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// New permissions; type bits are ignored.
    pub mode: Option<u32>,
    /// New owner of the inode.
    pub uid: Option<u32>,
    /// New group of the inode.
    pub gid: Option<u32>,
    /// New length. Unit: bytes.
    pub size: Option<u64>,
    /// New time of the last read.
    pub atime: Option<Time>,
    /// New time of the last change of content.
    pub mtime: Option<Time>,
    /// New flags of applications.
    pub flags: Option<u32>,
    /// New project of the inode.
    pub project: Option<u32>,
    /// Marks data written later as rarely overwritten or read.
    pub cold: Option<bool>,
}

/// Attribute in which the kernel stores the capabilities of a file.
const CAPABILITIES: &[u8] = b"security.capability";

/// Mask that clears set-user-id, and set-group-id if the group may execute. Without group execution that bit marks
/// mandatory locking.
fn without_ids(mode: u32) -> u32 {
    match mode & 0o010 {
        0 => !0o4000,
        _ => !0o6000,
    }
}

/// Condition for setting an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetXattr {
    /// The attribute may or may not exist.
    #[default]
    Any,
    /// The attribute must not exist (EEXIST).
    Create,
    /// The attribute must exist (ENODATA).
    Replace,
}

impl Volume {
    /// Returns the attributes of an inode.
    pub fn attr(&mut self, ino: Nid) -> Result<Attr> {
        Ok(Attr::from_inode(ino, self.inode(ino)?))
    }

    /// Changes attributes. A change of owner clears set-user-id and set-group-id of files, as POSIX requires. A
    /// change of length may have to clear them, depending on the caller: the mode is then part of the change, or
    /// [`drop_privileges`](Self::drop_privileges) follows.
    pub fn set_attr(&mut self, ino: Nid, set: &SetAttr, now: Time) -> Result<Attr> {
        self.writable()?;
        let inode = self.inode(ino)?;
        let (old_size, has) = (inode.size, inode.blocks + 1);
        let before = Owners::from_inode(inode);
        let after = Owners::new(
            set.uid.unwrap_or(inode.uid),
            set.gid.unwrap_or(inode.gid),
            set.project.unwrap_or(inode.project),
        );
        if let Some(size) = set.size {
            if inode.is_dir() {
                return Err(Errno::IsDirectory.into());
            }
            if !inode.is_file() {
                return Err(Errno::Invalid.into());
            }
            if size > SIZE_MAX {
                return Err(Errno::FileTooBig.into());
            }
        }
        self.quotas.check_transfer(before, after, has)?;
        let shrinks = set.size.is_some_and(|size| size < old_size);
        let acl = self.acl_after(ino, set)?;
        // The new node replaces one. Clients send times of data that they already wrote, so this must not fail.
        self.admit(16, true)?;
        if let Some(size) = set.size.filter(|_| shrinks) {
            // The block that is partially cut is read before anything changes.
            self.plan_read(ino, size, 1)?.run()?;
        }
        self.mutate(|v| {
            if let Some(size) = set.size {
                v.set_size(ino, size)?;
                if size != old_size || set.mtime.is_none() {
                    v.inode_mut(ino)?.mtime = now;
                }
            }
            let inode = v.inode_mut(ino)?;
            inode.ctime = now;
            if (set.uid.is_some() || set.gid.is_some()) && !inode.is_dir() {
                inode.mode &= without_ids(inode.mode);
            }
            if let Some(new) = set.mode {
                inode.mode = inode.mode & mode::TYPE | new & 0o7777;
            }
            if let Some(bytes) = acl {
                v.put_xattrs(ino, bytes)?;
            }
            let inode = v.inode_mut(ino)?;
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            inode.atime = set.atime.unwrap_or(inode.atime);
            inode.mtime = set.mtime.unwrap_or(inode.mtime);
            inode.flags = set.flags.unwrap_or(inode.flags);
            inode.project = set.project.unwrap_or(inode.project);
            inode.heat = set.cold.map_or(inode.heat, u8::from);
            let (attr, now_has) = (Attr::from_inode(ino, inode), inode.blocks as i64 + 1);
            v.quotas.transfer(before, after, now_has);
            Ok(attr)
        })
    }

    /// Drops the privileges of a file after a change of content or owner: its capabilities, and set-user-id and
    /// set-group-id if the user `by` may not keep them. A member of the file's group loses set-group-id only if the
    /// group may execute the file.
    ///
    /// # Errors
    /// Those of a change of attributes. Nothing is changed if there are no privileges.
    pub fn drop_privileges(&mut self, ino: Nid, by: Option<&Caller>, now: Time) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Ok(());
        }
        let stays = |by: &Caller| match by.uid == 0 || by.gid == inode.gid {
            true => without_ids(inode.mode),
            false => !0o6000,
        };
        let left = inode.mode & by.map_or(!0, stays);
        if left != inode.mode {
            let set = SetAttr {
                mode: Some(left),
                ..SetAttr::default()
            };
            self.set_attr(ino, &set, now)?;
        }
        if self.xattrs(ino)?.contains_key(CAPABILITIES) {
            self.remove_xattr(ino, CAPABILITIES, now)?;
        }
        Ok(())
    }

    /// Encodes the extended attributes after a change of permissions, if an access list changes with it.
    fn acl_after(&mut self, ino: Nid, set: &SetAttr) -> Result<Option<Vec<u8>>> {
        let Some(mode) = set.mode else {
            return Ok(None);
        };
        let mut xattrs = self.xattrs(ino)?;
        Ok(acl::chmod(&mut xattrs, mode)?.then(|| xattr::encode(&xattrs)))
    }

    /// Returns whether new inodes in a directory inherit an access list, so that no umask applies.
    pub fn has_default_acl(&mut self, dir: Nid) -> Result<bool> {
        Ok(self.xattrs(dir)?.contains_key(acl::DEFAULT))
    }

    /// Returns all extended attributes of an inode.
    pub fn xattrs(&mut self, ino: Nid) -> Result<Xattrs> {
        let inode = self.inode(ino)?;
        let nid = inode.xattr_nid;
        if nid == Nid::NONE {
            return xattr::decode(&inode.xattr);
        }
        let node = self.node(nid)?;
        match &node.body {
            NodeBody::Xattr(bytes) if node.ino == ino => xattr::decode(bytes),
            _ => Err(Error::corrupt(
                format_args!("node {nid}"),
                format_args!("holds no attributes of inode {ino}"),
            )),
        }
    }

    /// Returns the value of an extended attribute.
    pub fn get_xattr(&mut self, ino: Nid, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs(ino)?
            .remove(name)
            .ok_or_else(|| Errno::NoAttribute.into())
    }

    /// Sets an extended attribute. The name includes its namespace, such as `user.`. An access list also changes the
    /// permission bits.
    pub fn set_xattr(
        &mut self,
        ino: Nid,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        now: Time,
    ) -> Result<()> {
        self.writable()?;
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return Err(Errno::Invalid.into());
        }
        let mut xattrs = self.xattrs(ino)?;
        match (how, xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(Errno::Exists.into()),
            (SetXattr::Replace, false) => return Err(Errno::NoAttribute.into()),
            _ => {}
        }
        if value.len() > XATTR_MAX {
            return Err(Errno::TooBig.into());
        }
        if ino == Nid::ROOT {
            quota::verify(name, value)?;
        }
        let mut bits = None;
        if [acl::ACCESS, acl::DEFAULT].contains(&name) {
            let is_dir = self.inode(ino)?.is_dir();
            bits = acl::set(&mut xattrs, name, value, is_dir)?;
        } else {
            xattrs.insert(name.to_vec(), value.to_vec());
        }
        self.store_xattrs(ino, &xattrs, bits, now)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, ino: Nid, name: &[u8], now: Time) -> Result<()> {
        self.writable()?;
        let mut xattrs = self.xattrs(ino)?;
        if xattrs.remove(name).is_none() {
            return Err(Errno::NoAttribute.into());
        }
        self.store_xattrs(ino, &xattrs, None, now)
    }

    /// Stores attributes. `bits` are permission bits that change with them.
    fn store_xattrs(
        &mut self,
        ino: Nid,
        xattrs: &Xattrs,
        bits: Option<u32>,
        now: Time,
    ) -> Result<()> {
        let bytes = xattr::encode(xattrs);
        if bytes.len() > XATTR_MAX {
            return Err(Errno::NoSpace.into());
        }
        let inode = self.inode(ino)?;
        if bytes.len() > INLINE_XATTR && inode.xattr_nid == Nid::NONE {
            let owners = Owners::from_inode(inode);
            self.quotas.check(owners, 1, 0)?;
        }
        self.admit(8, false)?;
        self.mutate(|v| {
            v.put_xattrs(ino, bytes)?;
            let inode = v.inode_mut(ino)?;
            inode.mode = bits.map_or(inode.mode, |bits| inode.mode & !0o777 | bits);
            inode.ctime = now;
            Ok(())
        })?;
        if ino == Nid::ROOT {
            self.load_quotas()?;
        }
        Ok(())
    }

    /// Stores encoded attributes inline or in a node.
    pub(crate) fn put_xattrs(&mut self, ino: Nid, bytes: Vec<u8>) -> Result<()> {
        let old = self.inode(ino)?.xattr_nid;
        if bytes.len() <= INLINE_XATTR {
            if old != Nid::NONE {
                self.free_node(old)?;
                self.count_blocks(ino, -1)?;
            }
            let inode = self.inode_mut(ino)?;
            inode.xattr = bytes;
            inode.xattr_nid = Nid::NONE;
            return Ok(());
        }
        if old == Nid::NONE {
            let nid = self.new_node(Some(ino), 0, NodeBody::Xattr(bytes))?;
            self.inode_mut(ino)?.xattr_nid = nid;
            self.count_blocks(ino, 1)?;
        } else {
            self.node_mut(old)?.body = NodeBody::Xattr(bytes);
        }
        self.inode_mut(ino)?.xattr = Vec::new();
        Ok(())
    }
}
