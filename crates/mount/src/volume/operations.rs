//! Operations of a volume: one function or arm per request.

use super::fields::{Change, attr_out, nid, now};
use super::project;
use super::server::{PendingWriteBack, StaleNotice, VolumeServer};
use super::service::Work;
use super::statx::statx_out;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use tuff_fuse::filesystem::{Entry, Parts, Result};
use tuff_fuse::negotiation::Offer;
use tuff_fuse::protocol::{
    CreateOut, EntryOut, FOREVER, FallocateIn, InitIn, MAX_PAGES, ReadIn, SETXATTR_ACL_KILL_SGID,
    SetxattrIn, StatfsOut, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn, init,
};
use tuff_fuse::reply::{Listing, xattr_list};
use tuff_fuse::request::{NO_USER, Operation, Request};
use tuff_iplfs::{
    Allocate, Attr, Caller, Error, Nid, Rename, SetAttr, SetXattr, Volume, acl, mode,
};
use zerocopy::{Immutable, IntoBytes};

type Reply<'a> = tuff_fuse::reply::Reply<'a, Work>;

/// Features of a writable filesystem.
///
/// With HANDLE_KILLPRIV_V2 the server removes set-user-id, set-group-id and capabilities where content or owner change.
/// Otherwise the kernel requests the capabilities of a file before each write to it.
const FEATURES: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::WRITEBACK_CACHE
    | init::DONT_MASK
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::POSIX_ACL
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::ALLOW_IDMAP
    | init::INIT_EXT;

/// Blocks appended after which the device starts to write: 32 MiB.
const BEGIN_BLOCKS: u64 = 8192;

/// Maximum page-cache requests under way per thread. They share the queue with all other requests.
const IN_FLIGHT: usize = 3;

/// Checks the namespace of an extended attribute. The kernel passes unknown namespaces on without a permission
/// check.
fn known_namespace(name: &[u8]) -> Result<()> {
    if [acl::ACCESS, acl::DEFAULT].contains(&name) {
        return Ok(());
    }
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match prefixes.iter().find_map(|p| name.strip_prefix(*p)) {
        None => Err(Errno::OPNOTSUPP),
        Some(b"") => Err(Errno::INVAL),
        Some(_) => Ok(()),
    }
}

impl VolumeServer {
    /// Answers one request, except for those that wait for the device or the kernel.
    pub(super) fn answer<'a>(
        &self,
        worker: &mut StaleNotice,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        let node = request.header.node;
        match request.operation? {
            Operation::Init(kernel, features) => self.init((kernel, features), out),
            Operation::Forget(lookups) => {
                self.lock()?.forget(node, lookups);
                Ok(Reply::Nothing)
            }
            Operation::BatchForget(forgets) => {
                for forget in forgets {
                    // Locked for each inode, so that other requests can run in between.
                    let (node, lookups) = (forget.node.get(), forget.lookups.get());
                    self.lock()?.forget(node, lookups);
                }
                Ok(Reply::Nothing)
            }
            Operation::Interrupt => Ok(Reply::Nothing),
            Operation::Release => Ok(Reply::empty()),
            Operation::Other => Err(Errno::NOSYS),
            Operation::Statfs => self.statfs(out),
            Operation::Write(write, data) => self.write(worker, (&write, data), request, out),
            operation => self.answer_node(nid(node)?, operation, request, out),
        }
    }

    /// Answers a request that reads or changes an inode.
    fn answer_node<'a>(
        &self,
        node: Nid,
        operation: Operation<'_>,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        // The owner of an inode that the request makes.
        let caller = &Caller {
            now: now(),
            uid: request.header.uid,
            gid: request.header.gid,
        };
        match operation {
            Operation::Read(read) => self.read(node, &read, out),
            Operation::Lookup(name) => self.lookup(node, name, out),
            Operation::Getattr(_) => {
                let mut core = self.lock()?;
                let attr = core.volume()?.attr(node)?;
                Reply::structure(out, &attr_out(&attr, core.attr_valid(&attr)))
            }
            Operation::Statx(_) => {
                let mut core = self.lock()?;
                let attr = core.volume()?.attr(node)?;
                Reply::structure(out, &statx_out(&attr, core.attr_valid(&attr)))
            }
            Operation::Readlink => {
                let target = self.lock()?.volume()?.read_link(node)?;
                Reply::bytes(out, &target)
            }
            Operation::Getxattr(size, name) => {
                let value = self.lock()?.volume()?.get_xattr(node, name)?;
                Reply::xattr(out, size, &value)
            }
            Operation::Listxattr(size) => {
                let xattrs = self.lock()?.volume()?.xattrs(node)?;
                let names = xattrs.keys().map(|name| &name[..]);
                Reply::xattr(out, size, &xattr_list(names, request.is_by_root()))
            }
            Operation::Readdir(read) => self.list(node, &read, false, out),
            Operation::Readdirplus(read) => self.list(node, &read, true, out),
            Operation::Setattr(change) => self.set_attr(change.into(), request, out),
            Operation::Fallocate(range) => self.fallocate(&range, request),
            Operation::Ioctl(ioctl, data) => {
                let reply = project::answer(self.lock()?.volume()?, node, ioctl.command, data)?;
                Reply::bytes(out, &reply)
            }
            Operation::Setxattr(set, name, value) => self.set_xattr(node, &set, name, value),
            Operation::Removexattr(name) => self.remove_xattr(node, name),
            Operation::Mknod(new, name) => self.enter::<EntryOut>(out, |volume| {
                let mode = masked(volume, node, new.mode, new.umask)?;
                volume.create(node, name, mode, new.rdev, caller)
            }),
            Operation::Mkdir(new, name) => self.enter::<EntryOut>(out, |volume| {
                let mode = masked(volume, node, new.mode, new.umask)? & 0o7777 | mode::DIR;
                volume.create(node, name, mode, 0, caller)
            }),
            Operation::Symlink(name, target) => {
                self.enter::<EntryOut>(out, |volume| volume.symlink(node, name, target, caller))
            }
            Operation::Link(old, name) => {
                let old = nid(old)?;
                self.enter::<EntryOut>(out, |volume| volume.link(old, node, name, caller))
            }
            Operation::Tmpfile(new) => {
                let mut ino = node;
                let reply = self.enter::<CreateOut>(out, |volume| {
                    let mode = masked(volume, node, new.mode, new.umask)?;
                    let attr = volume.tmpfile(node, mode, caller)?;
                    ino = attr.ino;
                    Ok(attr)
                })?;
                // The new inode is held once, and once more as an inode known to the kernel.
                self.lock()?.volume()?.release(ino);
                Ok(reply)
            }
            Operation::Unlink(name) => self.change(|volume| volume.unlink(node, name, caller)),
            Operation::Rmdir(name) => self.change(|volume| volume.rmdir(node, name, caller)),
            Operation::Rename(rename, name, new) => {
                let (to, how) = (nid(rename.new_dir)?, renaming(rename.flags)?);
                self.change(|volume| volume.rename(node, name, to, new, how, caller))
            }
            // CREATE, too: the kernel sends MKNOD instead, and no RELEASE after it.
            _ => Err(Errno::NOSYS),
        }
    }

    fn init<'a>(&self, kernel: (InitIn, u64), out: &'a mut [u8]) -> Result<Reply<'a>> {
        // All threads have work, and other requests wait for few of these.
        let background = self.negotiation.threads().saturating_mul(IN_FLIGHT);
        let offer = Offer {
            features: FEATURES,
            writable: true,
            max_background: u16::try_from(background).unwrap_or(u16::MAX),
            max_pages: MAX_PAGES,
        };
        let reply = self.negotiation.negotiate(kernel, &offer, &self.log)?;
        Reply::structure(out, &reply)
    }

    fn statfs<'a>(&self, out: &'a mut [u8]) -> Result<Reply<'a>> {
        let space = self.lock()?.volume()?.statfs();
        let reply = StatfsOut {
            blocks: space.total,
            bfree: space.free,
            bavail: space.available,
            files: space.inodes + space.inodes_free,
            ffree: space.inodes_free,
            bsize: space.block_size,
            namelen: 255,
            frsize: space.block_size,
            ..Default::default()
        };
        Reply::structure(out, &reply)
    }

    /// Plans a read under the lock and runs it outside.
    fn read<'a>(&self, node: Nid, read: &ReadIn, out: &'a mut [u8]) -> Result<Reply<'a>> {
        let size = out.len().min(read.size as usize);
        let plan = self.lock()?.volume()?.plan_read(node, read.offset, size)?;
        let len = plan.run_into(out)?;
        Ok(Reply::Body(Parts::One(&out[..len])))
    }

    fn lookup<'a>(&self, dir: Nid, name: &[u8], out: &'a mut [u8]) -> Result<Reply<'a>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        let found = volume.lookup(dir, name).and_then(|ino| volume.attr(ino));
        let entry = match found {
            Ok(attr) => core.count_lookup(&attr)?,
            // Node 0: the kernel caches that there is no such name.
            Err(Error::Posix(tuff_iplfs::Errno::NotFound)) => EntryOut {
                entry_valid: FOREVER,
                ..Default::default()
            },
            Err(e) => return Err(e.into()),
        };
        Reply::structure(out, &entry)
    }

    /// Lists a directory from a position on.
    fn list<'a>(
        &self,
        dir: Nid,
        read: &ReadIn,
        plus: bool,
        out: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        let mut core = self.lock()?;
        let mut listing = Listing::new(out, read.size, plus);
        let entries = core
            .volume()?
            .read_dir(dir, read.offset, listing.entries_max())?;
        for entry in entries {
            if !listing.fits(&entry.name) {
                break;
            }
            let dirent = Entry {
                name: &entry.name,
                node: u64::from(entry.ino.0),
                ino: u64::from(entry.ino.0),
                kind: u32::from(entry.kind),
                next: entry.cookie,
            };
            // An inode that cannot be read has no attributes here. A look-up reports the error.
            let attributes = match plus && !dirent.is_dots() {
                true => core.volume()?.attr(entry.ino).ok(),
                false => None,
            };
            let attributes = attributes.map(|attr| core.count_lookup(&attr));
            listing.add(&dirent, &attributes.transpose()?.unwrap_or_default());
        }
        listing.finish(Ok(()))
    }

    fn write<'a>(
        &self,
        worker: &mut StaleNotice,
        (write, data): (&WriteIn, &[u8]),
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        let node = nid(request.header.node)?;
        let drops_ids = write.write_flags & WRITE_KILL_SUIDGID != 0;
        let by = drops_ids.then(|| caller_of(request));
        let mut core = self.lock()?;
        let volume = core.volume()?;
        let mut changed = false;
        let n = if write.write_flags & WRITE_CACHE != 0 {
            // The kernel reports EDQUOT of pages as EIO.
            volume
                .write_back(node, write.offset, data, now())
                .map_err(|e| match Errno::from(e) {
                    Errno::DQUOT => Errno::NOSPC,
                    e => e,
                })
        } else {
            // Privileges are cleared first, even if the write fails.
            changed = drop_privileges(volume, node, by)?;
            let written = volume.write(node, write.offset, data, now());
            written.map_err(Errno::from)
        };
        let n = n.inspect_err(|_| self.write_failed.store(true, Relaxed))?;
        self.notice_pressure(volume);
        let appended: u64 = volume.stats().appended_blocks.iter().sum();
        if appended - core.begun_blocks >= BEGIN_BLOCKS {
            core.begun_blocks = appended;
            self.early_flush().is_due = true;
            self.early_flush_wake.notify_one();
        }
        self.watch_space(&mut core)?;
        let written = [n as u32, 0]; // fits: not longer than the request
        if changed {
            let reply = written.as_bytes().to_vec();
            self.send_write_back(PendingWriteBack::Changed(node, request.pending(), reply))?;
            return Ok(Reply::Later(None));
        }
        worker.0 = core.forget_attributes(node).then_some(node);
        Reply::structure(out, &written)
    }

    fn set_attr<'a>(
        &self,
        change: Change,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        let node = nid(request.header.node)?;
        let by = change.drops_ids.then(|| caller_of(request));
        let mut core = self.lock()?;
        let volume = core.volume()?;
        if change.drops_capabilities {
            volume.drop_privileges(node, by.as_ref(), change.time)?;
        }
        let attr = volume.set_attr(node, &change.set, change.time)?;
        Reply::structure(out, &attr_out(&attr, core.attr_valid(&attr)))
    }

    fn fallocate<'a>(&self, range: &FallocateIn, request: &Request<'_>) -> Result<Reply<'a>> {
        let node = nid(request.header.node)?;
        let how = allocation(FallocateFlags::from_bits_retain(range.mode))?;
        // The kernel does not report whether the caller may keep set-user-id and set-group-id.
        let by = Some(caller_of(request)).filter(|caller| caller.uid != 0);
        let mut core = self.lock()?;
        let volume = core.volume()?;
        let changed = drop_privileges(volume, node, by)?;
        volume.fallocate(node, how, range.offset, range.length, now())?;
        self.watch_space(&mut core)?;
        if changed {
            self.send_write_back(PendingWriteBack::Changed(
                node,
                request.pending(),
                Vec::new(),
            ))?;
            return Ok(Reply::Later(None));
        }
        Ok(Reply::empty())
    }

    fn set_xattr<'a>(
        &self,
        node: Nid,
        set: &SetxattrIn,
        name: &[u8],
        value: &[u8],
    ) -> Result<Reply<'a>> {
        known_namespace(name)?;
        let how = match XattrFlags::from_bits_retain(set.flags) {
            f if f.is_empty() => SetXattr::Any,
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL),
        };
        let mut core = self.lock()?;
        let volume = core.volume()?;
        volume.set_xattr(node, name, value, how, now())?;
        if set.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            let set = SetAttr {
                mode: Some(volume.attr(node)?.mode & !0o2000),
                ..SetAttr::default()
            };
            volume.set_attr(node, &set, now())?;
        }
        // The attribute may be a quota.
        self.watch_space(&mut core)?;
        Ok(Reply::empty())
    }

    fn remove_xattr<'a>(&self, node: Nid, name: &[u8]) -> Result<Reply<'a>> {
        match self.lock()?.volume()?.remove_xattr(node, name, now()) {
            // A missing access list is the requested result.
            Err(Error::Posix(tuff_iplfs::Errno::NoAttribute))
                if [acl::ACCESS, acl::DEFAULT].contains(&name) => {}
            removed => removed?,
        }
        Ok(Reply::empty())
    }

    /// Removes or renames an entry.
    fn change<'a>(
        &self,
        change: impl FnOnce(&mut Volume) -> tuff_iplfs::Result<()>,
    ) -> Result<Reply<'a>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        self.notice_pressure(volume);
        change(volume)?;
        Ok(Reply::empty())
    }

    /// Makes an inode or a name, and replies with the entry.
    fn enter<'a, T: From<EntryOut> + IntoBytes + Immutable>(
        &self,
        out: &'a mut [u8],
        make: impl FnOnce(&mut Volume) -> tuff_iplfs::Result<Attr>,
    ) -> Result<Reply<'a>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        self.notice_pressure(volume);
        let attr = make(volume)?;
        self.watch_space(&mut core)?;
        Reply::structure(out, &T::from(core.count_new(&attr)?))
    }
}

/// Returns who changes a file. An unknown process has no rights.
fn caller_of(request: &Request<'_>) -> Caller {
    let (uid, gid) = request.user_and_group().unwrap_or((NO_USER, NO_USER));
    Caller {
        now: now(),
        uid,
        gid,
    }
}

/// Clears set-user-id, set-group-id and capabilities before content changes. Returns true if the mode has changed, which
/// the kernel does not expect from writes past its cache and from fallocate.
fn drop_privileges(volume: &mut Volume, node: Nid, by: Option<Caller>) -> Result<bool> {
    let mode = volume.attr(node)?.mode;
    volume.drop_privileges(node, by.as_ref(), now())?;
    Ok(volume.attr(node)?.mode != mode)
}

/// Returns the permissions of a new inode. A default access list of the directory replaces the umask.
fn masked(volume: &mut Volume, dir: Nid, bits: u32, umask: u32) -> tuff_iplfs::Result<u32> {
    let listed = volume.has_default_acl(dir)?;
    Ok(if listed { bits } else { bits & !umask })
}

fn renaming(flags: u32) -> Result<Rename> {
    match RenameFlags::from_bits_retain(flags) {
        f if f.is_empty() => Ok(Rename::Replace),
        RenameFlags::NOREPLACE => Ok(Rename::NoReplace),
        RenameFlags::EXCHANGE => Ok(Rename::Exchange),
        RenameFlags::WHITEOUT => Ok(Rename::Whiteout),
        _ => Err(Errno::INVAL),
    }
}

fn allocation(mode: FallocateFlags) -> Result<Allocate> {
    let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
    match mode - FallocateFlags::KEEP_SIZE {
        f if f.is_empty() && keep_size => Ok(Allocate::KeepSize),
        f if f.is_empty() => Ok(Allocate::Reserve),
        FallocateFlags::PUNCH_HOLE if keep_size => Ok(Allocate::PunchHole),
        FallocateFlags::ZERO_RANGE => Ok(Allocate::ZeroRange { keep_size }),
        _ => Err(Errno::OPNOTSUPP),
    }
}
