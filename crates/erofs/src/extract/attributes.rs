//! Owner, mode, extended attributes and times, set in an order in which no step undoes an earlier one.

use super::shared::Shared;
use super::target::Dir;
use crate::read::{FileType, Inode, Xattr};
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use tuff_store::retry;

/// Set-user-ID and set-group-ID bits of a mode.
const SUID_SGID: u32 = 0o6000;

/// ACL attributes that an entry inherits from the default ACL of its directory. Only directories inherit the second
/// one.
const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// User or group ID that `chown` interprets as "unchanged". An image may contain it as an owner.
const NOBODY: u32 = u32::MAX;

impl Shared<'_> {
    /// Sets the attributes of an open file or directory.
    pub(super) fn set_open(&self, fd: BorrowedFd<'_>, inode: &Inode, dir: &Dir, name: &[u8]) {
        let problem = |what: &str, e: Errno| self.refused(dir, name, what, e);
        let set = |attribute: &[u8], value: &[u8]| {
            retry(|| fs::fsetxattr(fd, attribute, value, XattrFlags::empty()))
        };
        let (users, others): (Vec<_>, Vec<_>) =
            (self.xattrs(inode, dir, name).into_iter()).partition(|x| x.name.starts_with(b"user."));
        // `user.` attributes require write permission, so they are set before the mode.
        self.set_xattrs(users, dir, name, set);
        let mut mode = self.mode(inode);
        if self.owners {
            let chown = |uid, gid| retry(|| fs::fchown(fd, uid, gid));
            if !self.set_owner(inode, dir, name, chown) {
                mode &= !SUID_SGID;
            }
        } else if mode & SUID_SGID != 0 && inode.file_type() == FileType::File {
            // With a different owner, these bits would grant different rights.
            mode &= !SUID_SGID;
            self.problem(
                dir.path(name),
                "set-user-ID and set-group-ID bits not restored, because the owner is not",
            );
        }
        // Before the mode, which would otherwise grant access to the users listed in the inherited ACL.
        let acls = if inode.is_dir() {
            &ACLS[..]
        } else {
            &ACLS[..1]
        };
        let has = |acl: &str| retry(|| fs::fgetxattr_query(fd, acl)).is_ok();
        self.disinherit(dir, name, acls, has, |acl| {
            retry(|| fs::fremovexattr(fd, acl))
        });
        // After the owner, because `chown` clears mode bits.
        if let Err(e) = retry(|| fs::fchmod(fd, Mode::from_raw_mode(mode))) {
            problem("mode", e);
        }
        // After the owner, because `chown` clears capabilities, and after the mode, which is part of an ACL.
        self.set_xattrs(others, dir, name, set);
        // Entries of a directory above the selected paths are missing, which makes its time another.
        let has_time = !(dir.is_above && name.is_empty());
        let times =
            (self.options.times && has_time).then(|| retry(|| fs::futimens(fd, &times(inode))));
        if let Some(Err(e)) = times {
            problem("times", e);
        }
    }

    /// Returns the permissions of an extracted inode.
    fn mode(&self, inode: &Inode) -> u32 {
        u32::from(inode.mode()) & 0o7777 & !self.options.umask
    }

    /// Returns true if a file exists with the length and all attributes that [`set_open`](Self::set_open) would set.
    pub(super) fn is_complete(&self, above: BorrowedFd<'_>, inode: &Inode, name: &[u8]) -> bool {
        // On any error the file is extracted again. A persistent error is reported there.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = retry(|| fs::openat(above, name, flags, Mode::empty())) else {
            return false;
        };
        let Ok(found) = retry(|| fs::fstat(&file)) else {
            return false;
        };
        let bits = match self.owners {
            true => 0o7777,
            false => 0o7777 & !SUID_SGID,
        };
        let time = times(inode).last_modification;
        let same = fs::FileType::from_raw_mode(found.st_mode) == fs::FileType::RegularFile
            && found.st_mode & 0o7777 == self.mode(inode) & bits
            && u64::try_from(found.st_size) == Ok(inode.size())
            // An unexpected second link belongs to a different file of the image.
            && (found.st_nlink == 1 || inode.nlink() > 1)
            && (found.st_mtime, found.st_mtime_nsec as i64) == (time.tv_sec, time.tv_nsec);
        let owner = |own: u32, image: u32| !self.owners || image == NOBODY || own == image;
        let mut buf = Vec::new();
        let mut has = |x: &Xattr| {
            // One byte more than the value, so that a longer value does not compare equal.
            buf.resize(x.value.len() + 1, 0);
            let value = retry(|| fs::fgetxattr(&file, &x.name[..], &mut buf[..]));
            value.is_ok_and(|len| buf[..len] == x.value[..])
        };
        same && owner(found.st_uid, inode.uid())
            && owner(found.st_gid, inode.gid())
            && (!self.options.xattrs
                || self
                    .image
                    .xattrs(inode)
                    .is_ok_and(|all| all.iter().all(&mut has)))
    }

    /// Sets the attributes of an entry that cannot be opened: a symlink, device, fifo or socket.
    pub(super) fn set_entry(&self, above: BorrowedFd<'_>, inode: &Inode, dir: &Dir, name: &[u8]) {
        let problem = |what: &str, e: Errno| self.refused(dir, name, what, e);
        if self.owners {
            self.set_owner(inode, dir, name, |uid, gid| {
                retry(|| fs::chownat(above, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW))
            });
        }
        // No system call takes a directory handle and a name. The path through the handle follows no symlink.
        let mut path = format!("/proc/self/fd/{}/", above.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        if inode.file_type() != FileType::Symlink {
            let has = |acl: &str| retry(|| fs::lgetxattr_query(&path[..], acl)).is_ok();
            let remove = |acl: &str| retry(|| fs::lremovexattr(&path[..], acl));
            self.disinherit(dir, name, &ACLS[..1], has, remove);
            if let Err(e) = chmod_entry(above, name, inode.mode(), self.mode(inode)) {
                problem("mode", e);
            }
        }
        let all = self.xattrs(inode, dir, name);
        self.set_xattrs(all, dir, name, |attribute, value| {
            retry(|| fs::lsetxattr(&path[..], attribute, value, XattrFlags::empty()))
        });
        if self.options.times {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            if let Err(e) = retry(|| fs::utimensat(above, name, &times(inode), flags)) {
                problem("times", e);
            }
        }
    }

    /// Extended attributes to restore. Empty if they are disabled or unreadable.
    fn xattrs(&self, inode: &Inode, dir: &Dir, name: &[u8]) -> Vec<Xattr> {
        if !self.options.xattrs || !inode.has_xattrs() {
            return Vec::new();
        }
        self.image.xattrs(inode).unwrap_or_else(|e| {
            self.problem(dir.path(name), e);
            Vec::new()
        })
    }

    fn set_xattrs(
        &self,
        attributes: Vec<Xattr>,
        dir: &Dir,
        name: &[u8],
        set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
    ) {
        for x in attributes {
            if let Err(e) = set(&x.name, &x.value) {
                let what = format!("attribute {}", String::from_utf8_lossy(&x.name));
                self.refused(dir, name, &what, e);
            }
        }
    }

    /// Sets the owner by `chown`. Returns false, and records a problem, if the owner is not fully restored.
    fn set_owner(
        &self,
        inode: &Inode,
        dir: &Dir,
        name: &[u8],
        chown: impl FnOnce(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
    ) -> bool {
        let (uid, gid) = (inode.uid(), inode.gid());
        let (user, group) = (uid != NOBODY, gid != NOBODY);
        let changed = chown(
            user.then(|| Uid::from_raw(uid)),
            group.then(|| Gid::from_raw(gid)),
        );
        let all = user && group;
        match changed {
            Err(e) => self.refused(dir, name, "owner", e),
            Ok(()) if !all => {
                let what = format_args!("owner not restored: no user or group can be {NOBODY}");
                self.problem(dir.path(name), what);
            }
            Ok(()) => {}
        }
        changed.is_ok() && all
    }

    /// Removes the inherited ACLs in `acls` from an entry.
    fn disinherit(
        &self,
        dir: &Dir,
        name: &[u8],
        acls: &[&str],
        has: impl Fn(&str) -> bool,
        remove: impl Fn(&str) -> rustix::io::Result<()>,
    ) {
        for acl in acls.iter().filter(|acl| has(acl)) {
            if let Err(e) = remove(acl) {
                let what = format_args!("inherited attribute {acl} not removed: {e}");
                self.problem(dir.path(name), what);
            }
        }
    }

    fn refused(&self, dir: &Dir, name: &[u8], what: &str, e: Errno) {
        self.problem(dir.path(name), format_args!("{what} not restored: {e}"));
    }
}

/// Changes the permissions of an entry of a type, given by a mode, without following a symlink that may have replaced it.
fn chmod_entry(
    above: BorrowedFd<'_>,
    name: &[u8],
    file_type: u16,
    mode: u32,
) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = retry(|| fs::openat(above, name, flags, Mode::empty()))?;
    let found = retry(|| fs::fstat(&fd))?.st_mode;
    if found & 0o170_000 != u32::from(file_type) & 0o170_000 {
        return Err(Errno::INVAL);
    }
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    retry(|| fs::chmod(&*path, Mode::from_raw_mode(mode)))
}

fn times(inode: &Inode) -> Timestamps {
    let (tv_sec, nsec) = inode.mtime();
    // Values of a second or more are damage. `utimensat` would interpret some of them as `UTIME_NOW` or `UTIME_OMIT`.
    let tv_nsec = if nsec < 1_000_000_000 { nsec.into() } else { 0 };
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
