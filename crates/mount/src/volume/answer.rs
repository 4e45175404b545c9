//! What is asked, and what is said.

use super::request::{Fields, attr_out, failed, nid, now, set_attr, sized, write_op};
use super::serve::LONGEST_WRITE;
use super::{BEGIN_BLOCKS, Core, FOR_EVER, VolumeServer, project, seek};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{self, EntryOut, InHeader, init, op};
use tuff_fuse::transport::uring;
use tuff_iplfs::{
    Allocate, BLOCK_SIZE, Caller, Error, Nid, Rename, SetAttr, SetXattr, Volume, acl, mode,
};
use zerocopy::IntoBytes;

/// Features beside those in [`init`].
const BIG_WRITES: u64 = 1 << 5;
const DONT_MASK: u64 = 1 << 6;
const ASYNC_DIO: u64 = 1 << 15;
const WRITEBACK_CACHE: u64 = 1 << 16;
/// This server takes set-user-id, set-group-id and capabilities where content or owner change. Otherwise the kernel asks for the capabilities of a
/// file before each write to it.
const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
const SETXATTR_EXT: u64 = 1 << 29;

/// Of a WRITE: from the page cache, by nobody's request; the kernel took privileges when it was written there.
const WRITE_CACHE: u32 = 1 << 0;
/// Of a WRITE: by somebody who may not keep set-user-id and set-group-id.
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Requests of the page cache that the kernel sends before one of them is answered, for each thread. They are answered in turn with all others.
const IN_FLIGHT: usize = 3;

/// Of a SETXATTR: an access list that takes set-group-id away.
const ACL_KILL_SGID: u32 = 1;

/// Names of extended attributes that the kernel gives a meaning or a permission to. It passes others on without asking.
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

/// The body of a reply.
pub(super) enum Said {
    /// The kernel expects no reply.
    Nothing,
    Body(Vec<u8>),
    /// So many bytes at the start of the room there was for it.
    InPlace(usize),
}

impl VolumeServer {
    /// Answers one request, but for those that make something durable. `room` is for what is read.
    pub(super) fn answer(
        &self,
        header: &InHeader,
        mut f: Fields<'_>,
        room: &mut [u8],
    ) -> Result<Said> {
        let f = &mut f;
        let caller = Caller {
            now: now(),
            uid: header.uid,
            gid: header.gid,
        };
        match header.opcode {
            op::FORGET => {
                self.lock()?.forget(header.node, f.u64()?);
                return Ok(Said::Nothing);
            }
            op::BATCH_FORGET => {
                let (count, _) = (f.u32()?, f.u32()?);
                for _ in 0..count {
                    let (node, times) = (f.u64()?, f.u64()?);
                    // Taken anew each time: others want it more.
                    self.lock()?.forget(node, times);
                }
                return Ok(Said::Nothing);
            }
            op::INTERRUPT => return Ok(Said::Nothing),
            op::INIT => return self.init(f).map(Said::Body),
            // ENOSYS to these says "never ask again, and go on as if all was well".
            op::OPEN | op::OPENDIR | op::FLUSH | op::STATX => return Err(Errno::NOSYS),
            op::RELEASE | op::RELEASEDIR => return Ok(Said::Body(Vec::new())),
            _ => {}
        }
        let node = match header.opcode {
            op::STATFS => Nid::ROOT,
            _ => nid(header.node)?,
        };
        let reply = match header.opcode {
            op::READ => return self.read(node, f, room).map(Said::InPlace),
            op::LOOKUP
            | op::GETATTR
            | op::READLINK
            | op::GETXATTR
            | op::LISTXATTR
            | op::STATFS
            | op::READDIR
            | op::READDIRPLUS => self.look(node, header, f)?,
            write_op::SETATTR
            | write_op::WRITE
            | write_op::FALLOCATE
            | write_op::SETXATTR
            | write_op::REMOVEXATTR
            | write_op::IOCTL => self.change(node, header.opcode, f, &caller)?,
            _ => self.names(node, header.opcode, f, &caller)?,
        };
        Ok(Said::Body(reply))
    }

    fn init(&self, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        if major != protocol::MAJOR || minor < protocol::MINOR_MIN {
            self.log
                .line(format_args!("the kernel speaks FUSE {major}.{minor}"));
            return Err(Errno::PROTO);
        }
        let mut has = u64::from(low);
        if has & init::INIT_EXT != 0 {
            has |= u64::from(f.u32()?) << 32;
        }
        let offered = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | BIG_WRITES
            | ASYNC_DIO
            | WRITEBACK_CACHE
            | DONT_MASK
            | HANDLE_KILLPRIV_V2
            | SETXATTR_EXT
            | init::POSIX_ACL
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::NO_OPEN_SUPPORT
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::NO_OPENDIR_SUPPORT
            | init::INIT_EXT;
        let rings = match self.rings.load(Relaxed) {
            true => init::OVER_IO_URING,
            false => 0,
        };
        let both = has & (offered | rings);
        self.features.store(both, Relaxed);
        self.reports_holes.store(minor >= seek::MINOR_MIN, Relaxed);
        let pages = match both & init::OVER_IO_URING {
            0 => LONGEST_WRITE / 4096,
            _ => usize::from(uring::MAX_PAGES),
        };
        // All threads have something to do, and who waits for an answer waits for few others.
        let background = self.threads.load(Relaxed).saturating_mul(IN_FLIGHT);
        let background = u16::try_from(background).unwrap_or(u16::MAX);
        let reply = protocol::InitOut {
            major: protocol::MAJOR,
            minor: minor.min(protocol::MINOR),
            max_readahead,
            flags: both as u32, // the low half
            flags2: (both >> 32) as u32,
            max_background: background,
            congestion_threshold: background - background / 4,
            max_write: (pages * 4096) as u32, // fits: at most a megabyte
            time_gran: 1,
            max_pages: pages as u16, // fits: at most 256
            ..Default::default()
        };
        Ok(reply.as_bytes().to_vec())
    }

    /// Resolved under the lock, read outside it.
    fn read(&self, node: Nid, f: &mut Fields<'_>, room: &mut [u8]) -> Result<usize> {
        let (_, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
        let size = room.len().min(size as usize);
        let plan = self.lock()?.volume()?.plan_read(node, offset, size);
        plan.and_then(|plan| plan.run_into(room)).map_err(failed)
    }

    /// Operations that change nothing.
    fn look(&self, node: Nid, header: &InHeader, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        match header.opcode {
            op::LOOKUP => {
                let volume = core.volume()?;
                let found = volume.lookup(node, f.name()?);
                let attr = match found.and_then(|ino| volume.attr(ino)) {
                    Ok(attr) => attr,
                    Err(Error::Posix(tuff_iplfs::Errno::NotFound)) => {
                        // Node 0: the kernel remembers that there is no such name.
                        let none = EntryOut {
                            entry_valid: FOR_EVER,
                            ..Default::default()
                        };
                        return Ok(none.as_bytes().to_vec());
                    }
                    Err(e) => return Err(failed(e)),
                };
                Ok(core.tell(&attr)?.as_bytes().to_vec())
            }
            op::GETATTR => {
                let attr = core.volume()?.attr(node).map_err(failed)?;
                Ok(attr_out(&attr))
            }
            op::READLINK => core.volume()?.read_link(node).map_err(failed),
            op::GETXATTR => {
                let (size, _) = (f.u32()?, f.u32()?);
                let value = core.volume()?.get_xattr(node, f.name()?).map_err(failed)?;
                sized(size, value)
            }
            op::LISTXATTR => {
                let size = f.u32()?;
                let names = core.volume()?.xattrs(node).map_err(failed)?;
                // The kernel shows "trusted." to those with CAP_SYS_ADMIN; only the user is known here.
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
                list(
                    &mut core,
                    node,
                    cookie,
                    LONGEST_WRITE.min(size as usize),
                    plus,
                )
            }
        }
    }

    /// Operations that change one inode.
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
            write_op::WRITE => {
                let (_, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                let (flags, _owner, _open, _padding) = (f.u32()?, f.u64()?, f.u32()?, f.u32()?);
                // First: no content of others with privileges of before, whatever fails.
                if flags & WRITE_CACHE == 0 {
                    let ids = flags & WRITE_KILL_SUIDGID != 0;
                    volume
                        .drop_privileges(node, ids.then_some(caller), now())
                        .map_err(failed)?;
                }
                let n = volume
                    .write(node, offset, f.bytes(size)?, now())
                    .inspect_err(|_| self.reports_holes.store(false, Relaxed))
                    .map_err(failed)?;
                self.look_after(volume);
                let appended: u64 = volume.stats().appended_blocks.iter().sum();
                if appended - core.begun_blocks >= BEGIN_BLOCKS {
                    core.begun_blocks = appended;
                    self.behind().much = true;
                    self.much.notify_one();
                }
                // Fits: at most as long as the request.
                Ok([n as u32, 0].as_bytes().to_vec())
            }
            write_op::SETATTR => {
                let change = set_attr(f)?;
                if change.drops_capabilities {
                    volume
                        .drop_privileges(node, change.drops_ids.then_some(caller), change.time)
                        .map_err(failed)?;
                }
                let attr = volume.set_attr(node, &change.set, change.time);
                Ok(attr_out(&attr.map_err(failed)?))
            }
            write_op::FALLOCATE => {
                let (_, offset, len, how) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
                let how = match how {
                    0 => Allocate::Reserve,
                    1 => Allocate::KeepSize,
                    3 => Allocate::PunchHole,
                    0x10 => Allocate::ZeroRange { keep_size: false },
                    0x11 => Allocate::ZeroRange { keep_size: true },
                    _ => return Err(Errno::OPNOTSUPP),
                };
                // The kernel does not say whether he may keep set-user-id and set-group-id.
                let by = Some(caller).filter(|caller| caller.uid != 0);
                volume.drop_privileges(node, by, now()).map_err(failed)?;
                volume
                    .fallocate(node, how, offset, len, now())
                    .map_err(failed)?;
                Ok(Vec::new())
            }
            write_op::IOCTL => project::answer(volume, node, f),
            write_op::SETXATTR => {
                let (size, flags) = (f.u32()?, f.u32()?);
                let (more, _) = if self.features.load(Relaxed) & SETXATTR_EXT != 0 {
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
                    .map_err(failed)?;
                if more & ACL_KILL_SGID != 0 {
                    let set = SetAttr {
                        mode: Some(volume.attr(node).map_err(failed)?.mode & !0o2000),
                        ..SetAttr::default()
                    };
                    volume.set_attr(node, &set, now()).map_err(failed)?;
                }
                Ok(Vec::new())
            }
            _ => {
                let name = f.name()?;
                match volume.remove_xattr(node, name, now()) {
                    // That there is no access list is what was asked for.
                    Err(Error::Posix(tuff_iplfs::Errno::NoAttribute))
                        if [acl::ACCESS, acl::DEFAULT].contains(&name) => {}
                    other => other.map_err(failed)?,
                }
                Ok(Vec::new())
            }
        }
    }

    /// Operations that make, move and remove names.
    fn names(
        &self,
        node: Nid,
        opcode: u32,
        f: &mut Fields<'_>,
        caller: &Caller,
    ) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        self.look_after(volume);
        let attr = match opcode {
            write_op::MKNOD => {
                let (bits, rdev, umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let bits = masked(volume, node, bits, umask)?;
                volume.create(node, f.name()?, bits, rdev, caller)
            }
            write_op::MKDIR => {
                let (bits, umask) = (f.u32()?, f.u32()?);
                let bits = masked(volume, node, bits, umask)?;
                volume.create(node, f.name()?, bits & 0o7777 | mode::DIR, 0, caller)
            }
            write_op::SYMLINK => {
                let (name, target) = (f.name()?, f.name()?);
                volume.symlink(node, name, target, caller)
            }
            write_op::LINK => {
                let old = nid(f.u64()?)?;
                volume.link(old, node, f.name()?, caller)
            }
            write_op::CREATE | write_op::TMPFILE => {
                let (_flags, bits, umask, _) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                let bits = masked(volume, node, bits, umask)?;
                let attr = if opcode == write_op::CREATE {
                    volume.create(node, f.name()?, bits & 0o7777 | mode::FILE, 0, caller)
                } else {
                    volume.tmpfile(node, bits, caller)
                };
                let attr = attr.map_err(failed)?;
                let mut reply = core.tell(&attr)?.as_bytes().to_vec();
                if opcode == write_op::TMPFILE {
                    // It was born held once, and is held as a known one now.
                    core.volume()?.release(attr.ino);
                }
                // Handle, flags, nothing: there are no handles here.
                reply.extend_from_slice(&[0; 16]);
                return Ok(reply);
            }
            write_op::UNLINK => {
                volume.unlink(node, f.name()?, caller).map_err(failed)?;
                return Ok(Vec::new());
            }
            write_op::RMDIR => {
                volume.rmdir(node, f.name()?, caller).map_err(failed)?;
                return Ok(Vec::new());
            }
            write_op::RENAME | write_op::RENAME2 => {
                let to = nid(f.u64()?)?;
                let flags = if opcode == write_op::RENAME2 {
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
                    .map_err(failed)?;
                return Ok(Vec::new());
            }
            _ => return Err(Errno::NOSYS),
        };
        let attr = attr.map_err(failed)?;
        Ok(core.tell(&attr)?.as_bytes().to_vec())
    }
}

/// Permissions of what is made in a directory: a default list there takes the place of the umask.
fn masked(volume: &mut Volume, dir: Nid, bits: u32, umask: u32) -> Result<u32> {
    let listed = volume.has_default_acl(dir).map_err(failed)?;
    Ok(if listed { bits } else { bits & !umask })
}

/// Entries of a directory from `cookie` on, as many as `room` bytes hold.
fn list(core: &mut Core, dir: Nid, cookie: u64, room: usize, plus: bool) -> Result<Vec<u8>> {
    let head = if plus { size_of::<EntryOut>() } else { 0 };
    let fixed = head + size_of::<protocol::Dirent>();
    // More than fit are never asked for: names have a byte at least.
    let entries = core
        .volume()?
        .read_dir(dir, cookie, room / (fixed + 8))
        .map_err(failed)?;
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
            // Nothing is said of an inode that cannot be read: a look-up says why.
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
