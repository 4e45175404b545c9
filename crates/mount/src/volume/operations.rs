//! Operations of a volume: one function per group of requests.

use super::fields::{FOR_EVER, attr_out, errno_of, nid, now, set_attr, sized};
use super::project;
use super::server::{ServerState, VolumeServer};
use super::service::Work;
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use tuff_fuse::fields::Fields;
use tuff_fuse::filesystem::{Parts, Result};
use tuff_fuse::handler::REPLY_MAX;
use tuff_fuse::negotiation::{MAX_PAGES, Offer};
use tuff_fuse::protocol::{self, EntryOut, InHeader, init, op};
use tuff_fuse::service::Reply;
use tuff_iplfs::{
    Allocate, BLOCK_SIZE, Caller, Error, Nid, Rename, SetAttr, SetXattr, Volume, acl, mode,
};
use zerocopy::IntoBytes;

/// WRITE flag: write-back of the page cache. The kernel cleared privileges when the page was written.
const WRITE_CACHE: u32 = 1 << 0;
/// WRITE flag: the writer may not keep set-user-id and set-group-id.
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

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
    | init::INIT_EXT;

/// Blocks appended after which the device starts to write: 32 MiB.
const BEGIN_BLOCKS: u64 = 8192;

/// Maximum page-cache requests under way per thread. They share the queue with all other requests.
const IN_FLIGHT: usize = 3;

/// SETXATTR flag: the access list clears set-group-id.
const ACL_KILL_SGID: u32 = 1;

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
    /// Answers one request, except for those that make data durable. `room` receives the data of a read.
    pub(super) fn answer<'a>(
        &self,
        header: &InHeader,
        mut f: Fields<'_>,
        room: &'a mut [u8],
    ) -> Result<Reply<'a, Work>> {
        let f = &mut f;
        let caller = Caller {
            now: now(),
            uid: header.uid,
            gid: header.gid,
        };
        match header.opcode {
            op::FORGET => {
                self.lock()?.forget(header.node, f.u64()?);
                return Ok(Reply::Nothing);
            }
            op::BATCH_FORGET => {
                let (count, _) = (f.u32()?, f.u32()?);
                for _ in 0..count {
                    let (node, times) = (f.u64()?, f.u64()?);
                    // Locked for each inode, so that other requests can run in between.
                    self.lock()?.forget(node, times);
                }
                return Ok(Reply::Nothing);
            }
            op::INTERRUPT => return Ok(Reply::Nothing),
            op::INIT => return self.init(f.0).map(owned),
            // ENOSYS means: the kernel does not send this operation again, and treats it as successful.
            op::OPEN | op::OPENDIR | op::FLUSH | op::STATX => return Err(Errno::NOSYS),
            op::RELEASE | op::RELEASEDIR => return Ok(Reply::Body(Parts::default())),
            _ => {}
        }
        let node = match header.opcode {
            op::STATFS => Nid::ROOT,
            _ => nid(header.node)?,
        };
        let reply = match header.opcode {
            op::READ => {
                let len = self.read(node, f, room)?;
                return Ok(Reply::Body(Parts::One(&room[..len])));
            }
            op::LOOKUP
            | op::GETATTR
            | op::READLINK
            | op::GETXATTR
            | op::LISTXATTR
            | op::STATFS
            | op::READDIR
            | op::READDIRPLUS => self.look(node, header, f)?,
            op::SETATTR
            | op::WRITE
            | op::FALLOCATE
            | op::SETXATTR
            | op::REMOVEXATTR
            | op::IOCTL => self.change(node, header.opcode, f, &caller)?,
            _ => self.names(node, header.opcode, f, &caller)?,
        };
        Ok(owned(reply))
    }

    fn init(&self, body: &[u8]) -> Result<Vec<u8>> {
        // All threads have work, and other requests wait for few of these.
        let background = self.negotiation.threads().saturating_mul(IN_FLIGHT);
        let offer = Offer {
            features: FEATURES,
            writable: true,
            max_background: u16::try_from(background).unwrap_or(u16::MAX),
            max_pages: MAX_PAGES,
        };
        let reply = self.negotiation.negotiate(body, &offer, &self.log)?;
        Ok(reply.as_bytes().to_vec())
    }

    /// Plans a read under the lock and runs it outside.
    fn read(&self, node: Nid, f: &mut Fields<'_>, room: &mut [u8]) -> Result<usize> {
        let (_, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
        let size = room.len().min(size as usize);
        let plan = self.lock()?.volume()?.plan_read(node, offset, size);
        plan.and_then(|plan| plan.run_into(room)).map_err(errno_of)
    }

    /// Answers operations without changes.
    fn look(&self, node: Nid, header: &InHeader, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        match header.opcode {
            op::LOOKUP => {
                let volume = core.volume()?;
                let found = volume.lookup(node, f.name()?);
                let attr = match found.and_then(|ino| volume.attr(ino)) {
                    Ok(attr) => attr,
                    Err(Error::Posix(tuff_iplfs::Errno::NotFound)) => {
                        // Node 0: the kernel caches that there is no such name.
                        let none = EntryOut {
                            entry_valid: FOR_EVER,
                            ..Default::default()
                        };
                        return Ok(none.as_bytes().to_vec());
                    }
                    Err(e) => return Err(errno_of(e)),
                };
                Ok(core.tell(&attr)?.as_bytes().to_vec())
            }
            op::GETATTR => {
                let attr = core.volume()?.attr(node).map_err(errno_of)?;
                Ok(attr_out(&attr))
            }
            op::READLINK => core.volume()?.read_link(node).map_err(errno_of),
            op::GETXATTR => {
                let (size, _) = (f.u32()?, f.u32()?);
                let value = core
                    .volume()?
                    .get_xattr(node, f.name()?)
                    .map_err(errno_of)?;
                sized(size, value)
            }
            op::LISTXATTR => {
                let size = f.u32()?;
                let names = core.volume()?.xattrs(node).map_err(errno_of)?;
                // The kernel shows "trusted." to processes with CAP_SYS_ADMIN. Only the user is known here.
                let privileged = header.uid == 0;
                let mut list = Vec::new();
                for name in names
                    .keys()
                    .filter(|n| privileged || !n.starts_with(b"trusted."))
                {
                    list.extend_from_slice(name);
                    list.push(0);
                }
                sized(size, list)
            }
            op::STATFS => {
                let space = core.volume()?.space();
                let available = space.available();
                let reply = protocol::StatfsOut {
                    blocks: space.quota - space.reserve,
                    bfree: available,
                    bavail: available,
                    files: space.inodes + available,
                    ffree: available,
                    bsize: BLOCK_SIZE as u32,
                    namelen: 255,
                    frsize: BLOCK_SIZE as u32,
                    ..Default::default()
                };
                Ok(reply.as_bytes().to_vec())
            }
            _ => {
                let (_, cookie, size) = (f.u64()?, f.u64()?, f.u32()?);
                let plus = header.opcode == op::READDIRPLUS;
                list(&mut core, node, cookie, REPLY_MAX.min(size as usize), plus)
            }
        }
    }

    /// Answers operations that change one inode.
    fn change(
        &self,
        node: Nid,
        opcode: u32,
        f: &mut Fields<'_>,
        caller: &Caller,
    ) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        match opcode {
            op::WRITE => {
                let (_, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                let (flags, _owner, _open, _padding) = (f.u32()?, f.u64()?, f.u32()?, f.u32()?);
                // Privileges are cleared first, even if the write fails.
                if flags & WRITE_CACHE == 0 {
                    let ids = flags & WRITE_KILL_SUIDGID != 0;
                    volume
                        .drop_privileges(node, ids.then_some(caller), now())
                        .map_err(errno_of)?;
                }
                let n = volume
                    .write(node, offset, f.bytes(size)?, now())
                    .inspect_err(|_| self.write_failed.store(true, Relaxed))
                    .map_err(errno_of)?;
                self.notice_pressure(volume);
                let appended: u64 = volume.stats().appended_blocks.iter().sum();
                if appended - core.begun_blocks >= BEGIN_BLOCKS {
                    core.begun_blocks = appended;
                    self.behind().much = true;
                    self.much.notify_one();
                }
                // Fits: not longer than the request.
                Ok([n as u32, 0].as_bytes().to_vec())
            }
            op::SETATTR => {
                let change = set_attr(f)?;
                if change.drops_capabilities {
                    volume
                        .drop_privileges(node, change.drops_ids.then_some(caller), change.time)
                        .map_err(errno_of)?;
                }
                let attr = volume.set_attr(node, &change.set, change.time);
                Ok(attr_out(&attr.map_err(errno_of)?))
            }
            op::FALLOCATE => {
                let (_, offset, len, how) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
                let how = match how {
                    0 => Allocate::Reserve,
                    1 => Allocate::KeepSize,
                    3 => Allocate::PunchHole,
                    0x10 => Allocate::ZeroRange { keep_size: false },
                    0x11 => Allocate::ZeroRange { keep_size: true },
                    _ => return Err(Errno::OPNOTSUPP),
                };
                // The kernel does not report whether the caller may keep set-user-id and set-group-id.
                let by = Some(caller).filter(|caller| caller.uid != 0);
                volume.drop_privileges(node, by, now()).map_err(errno_of)?;
                volume
                    .fallocate(node, how, offset, len, now())
                    .map_err(errno_of)?;
                Ok(Vec::new())
            }
            op::IOCTL => project::answer(volume, node, f),
            op::SETXATTR => {
                let (size, flags) = (f.u32()?, f.u32()?);
                let (more, _) = if self.negotiation.features() & init::SETXATTR_EXT != 0 {
                    (f.u32()?, f.u32()?)
                } else {
                    (0, 0)
                };
                let name = f.name()?;
                known_namespace(name)?;
                let how = match flags {
                    0 => SetXattr::Any,
                    1 => SetXattr::Create,
                    2 => SetXattr::Replace,
                    _ => return Err(Errno::INVAL),
                };
                volume
                    .set_xattr(node, name, f.bytes(size)?, how, now())
                    .map_err(errno_of)?;
                if more & ACL_KILL_SGID != 0 {
                    let set = SetAttr {
                        mode: Some(volume.attr(node).map_err(errno_of)?.mode & !0o2000),
                        ..SetAttr::default()
                    };
                    volume.set_attr(node, &set, now()).map_err(errno_of)?;
                }
                Ok(Vec::new())
            }
            _ => {
                let name = f.name()?;
                match volume.remove_xattr(node, name, now()) {
                    // A missing access list is the requested result.
                    Err(Error::Posix(tuff_iplfs::Errno::NoAttribute))
                        if [acl::ACCESS, acl::DEFAULT].contains(&name) => {}
                    other => other.map_err(errno_of)?,
                }
                Ok(Vec::new())
            }
        }
    }

    /// Answers operations that create, rename and remove names.
    fn names(
        &self,
        node: Nid,
        opcode: u32,
        f: &mut Fields<'_>,
        caller: &Caller,
    ) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        self.notice_pressure(volume);
        let attr = match opcode {
            op::MKNOD => {
                let (bits, rdev, umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let bits = masked(volume, node, bits, umask)?;
                volume.create(node, f.name()?, bits, rdev, caller)
            }
            op::MKDIR => {
                let (bits, umask) = (f.u32()?, f.u32()?);
                let bits = masked(volume, node, bits, umask)?;
                volume.create(node, f.name()?, bits & 0o7777 | mode::DIR, 0, caller)
            }
            op::SYMLINK => {
                let (name, target) = (f.name()?, f.name()?);
                volume.symlink(node, name, target, caller)
            }
            op::LINK => {
                let old = nid(f.u64()?)?;
                volume.link(old, node, f.name()?, caller)
            }
            op::CREATE | op::TMPFILE => {
                let (_flags, bits, umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let bits = masked(volume, node, bits, umask)?;
                let attr = if opcode == op::CREATE {
                    volume.create(node, f.name()?, bits & 0o7777 | mode::FILE, 0, caller)
                } else {
                    volume.tmpfile(node, bits, caller)
                };
                let attr = attr.map_err(errno_of)?;
                let mut reply = core.tell(&attr)?.as_bytes().to_vec();
                if opcode == op::TMPFILE {
                    // The new inode is held once, and once more as an inode known to the kernel.
                    core.volume()?.release(attr.ino);
                }
                // Handle, flags and padding: there are no file handles.
                reply.extend_from_slice(&[0; 16]);
                return Ok(reply);
            }
            op::UNLINK => {
                volume.unlink(node, f.name()?, caller).map_err(errno_of)?;
                return Ok(Vec::new());
            }
            op::RMDIR => {
                volume.rmdir(node, f.name()?, caller).map_err(errno_of)?;
                return Ok(Vec::new());
            }
            op::RENAME | op::RENAME2 => {
                let to = nid(f.u64()?)?;
                let flags = if opcode == op::RENAME2 {
                    let (flags, _) = (f.u32()?, f.u32()?);
                    flags
                } else {
                    0
                };
                let how = match flags {
                    0 => Rename::Replace,
                    1 => Rename::NoReplace,
                    2 => Rename::Exchange,
                    4 => Rename::Whiteout,
                    _ => return Err(Errno::INVAL),
                };
                let (name, new) = (f.name()?, f.name()?);
                volume
                    .rename(node, name, to, new, how, caller)
                    .map_err(errno_of)?;
                return Ok(Vec::new());
            }
            _ => return Err(Errno::NOSYS),
        };
        let attr = attr.map_err(errno_of)?;
        Ok(core.tell(&attr)?.as_bytes().to_vec())
    }
}

fn owned<'a>(body: Vec<u8>) -> Reply<'a, Work> {
    Reply::Body(Parts::Owned(body))
}

/// Returns the permissions of a new inode. A default access list of the directory replaces the umask.
fn masked(volume: &mut Volume, dir: Nid, bits: u32, umask: u32) -> Result<u32> {
    let listed = volume.has_default_acl(dir).map_err(errno_of)?;
    Ok(if listed { bits } else { bits & !umask })
}

/// Returns entries of a directory from `cookie` on, as many as `room` bytes hold.
fn list(core: &mut ServerState, dir: Nid, cookie: u64, room: usize, plus: bool) -> Result<Vec<u8>> {
    let head = if plus { size_of::<EntryOut>() } else { 0 };
    let fixed = head + size_of::<protocol::Dirent>();
    // Never more than fit: each name has a byte at least.
    let entries = core
        .volume()?
        .read_dir(dir, cookie, room / (fixed + 8))
        .map_err(errno_of)?;
    let mut out = Vec::with_capacity(room);
    for entry in entries {
        let len = (fixed + entry.name.len()).next_multiple_of(8);
        if out.len() + len > room {
            break;
        }
        let end = out.len() + len;
        if plus {
            let dots = matches!(&entry.name[..], b"." | b"..");
            let attr = if dots {
                None
            } else {
                core.volume()?.attr(entry.ino).ok()
            };
            // An inode that cannot be read has no attributes here. A look-up reports the error.
            let told = match attr {
                Some(attr) => core.tell(&attr)?,
                None => EntryOut::default(),
            };
            out.extend_from_slice(told.as_bytes());
        }
        let dirent = protocol::Dirent {
            ino: u64::from(entry.ino.0),
            off: entry.cookie,
            name_len: entry.name.len() as u32, // fits: at most 255
            kind: u32::from(entry.kind),
        };
        out.extend_from_slice(dirent.as_bytes());
        out.extend_from_slice(&entry.name);
        out.resize(end, 0);
    }
    Ok(out)
}
