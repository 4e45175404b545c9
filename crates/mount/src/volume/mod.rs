//! An IPLFS volume under a directory: the operations of a writable filesystem.
//!
//! * The kernel is the only writer besides us, so it keeps names for ever and writes back its page cache when it likes.
//! * An inode is held for as long as the kernel knows its number; so open files without a name live on, and no OPEN is needed.
//! * One lock guards the volume. Data is read outside it, and several `fsync` share one flush of the device.
//! * A panic below ends as EIO, and so does everything after it: what the volume has in memory is then not to be trusted.

mod flushes;
mod request;

use crate::fs::Result;
use crate::handler::Request;
use crate::log::Log;
use crate::mountpoint::{self, Mountpoint};
use crate::proto::{self, EntryOut, init, op};
use crate::seat::Seat;
use flushes::Flushes;
use request::{Fields, attr_out, entry_of, failed, nid, now, set_attr, sized, write_op};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tuff_iplfs::{
    Allocate, BLOCK_SIZE, BlockDevice, Caller, Error, Nid, Rename, SetAttr, SetXattr, Volume, mode,
};
use zerocopy::IntoBytes;

/// Longest write. Unit: bytes.
const WRITE_MAX: u32 = 1 << 20;
/// Room for a request with such a write.
const REQUEST_MAX: usize = WRITE_MAX as usize + (16 << 10);
/// Names never change behind the kernel's back. Unit: seconds.
const FOR_EVER: u64 = i64::MAX as u64;
/// Attributes change when dirty pages are written: the space taken. Unit: seconds.
const ATTR_VALID: u64 = 1;
/// Blocks appended after which the device is to begin writing: 32 MiB.
const BEGIN_BLOCKS: u64 = 8192;
/// How often everything is made durable without being asked.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Features beside those in [`init`].
const BIG_WRITES: u64 = 1 << 5;
const DONT_MASK: u64 = 1 << 6;
const ASYNC_DIO: u64 = 1 << 15;
const WRITEBACK_CACHE: u64 = 1 << 16;
const SETXATTR_EXT: u64 = 1 << 29;

/// Of a SETXATTR: an access list that takes set-group-id away.
const ACL_KILL_SGID: u32 = 1;

/// The volume and what the kernel knows of it.
struct Core {
    /// `None` when it was unmounted.
    volume: Option<Volume>,
    /// How often the kernel was given each number.
    known: HashMap<Nid, u64>,
    /// Blocks appended when the device was last asked to begin writing.
    begun_blocks: u64,
}

/// Serves a volume.
pub struct VolumeServer {
    core: Mutex<Core>,
    device: Arc<dyn BlockDevice>,
    flushes: Flushes,
    log: Log,
    /// A SETXATTR has two more fields, as agreed at the start.
    long_setxattr: AtomicBool,
    ended: Mutex<bool>,
    wake: Condvar,
    /// Whether much was appended since the last flush, or the mount ends.
    behind: Mutex<Behind>,
    much: Condvar,
}

#[derive(Default)]
struct Behind {
    much: bool,
    ended: bool,
}

impl Core {
    fn volume(&mut self) -> Result<&mut Volume> {
        self.volume.as_mut().ok_or(Errno::IO)
    }

    /// The kernel is told of an inode once more.
    fn tell(&mut self, attr: &tuff_iplfs::Attr) -> Result<EntryOut> {
        if attr.ino != Nid::ROOT {
            let known = self.known.entry(attr.ino).or_default();
            *known += 1;
            if *known == 1 {
                self.volume()?.hold(attr.ino).map_err(failed)?;
            }
        }
        Ok(entry_of(attr))
    }

    /// The kernel forgot an inode so many times.
    fn forget(&mut self, node: u64, times: u64) {
        let Ok(ino) = nid(node) else { return };
        if let Some(known) = self.known.get_mut(&ino) {
            *known = known.saturating_sub(times);
            if *known == 0 {
                self.known.remove(&ino);
                if let Some(volume) = &mut self.volume {
                    volume.release(ino);
                }
            }
        }
    }
}

impl VolumeServer {
    /// A server of a volume that is mounted for writing.
    pub fn new(volume: Volume, log: Log) -> Self {
        Self {
            device: volume.device(),
            core: Mutex::new(Core {
                volume: Some(volume),
                known: HashMap::new(),
                begun_blocks: 0,
            }),
            flushes: Flushes::default(),
            log,
            long_setxattr: AtomicBool::new(false),
            ended: Mutex::new(false),
            wake: Condvar::new(),
            behind: Mutex::default(),
            much: Condvar::new(),
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Core>> {
        // Somebody panicked half-way through a change.
        self.core.lock().map_err(|_| Errno::IO)
    }

    /// Answers one request: the body of the reply, or `None` if the kernel expects nothing, or is told later.
    fn answer(&self, request: &Request<'_>, fuse: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
        let mut f = Fields(request.body);
        let header = &request.header;
        let caller = Caller {
            now: now(),
            uid: header.uid,
            gid: header.gid,
        };
        match header.opcode {
            op::FORGET => {
                self.lock()?.forget(header.node, f.u64()?);
                return Ok(None);
            }
            op::BATCH_FORGET => {
                let (count, _) = (f.u32()?, f.u32()?);
                let mut core = self.lock()?;
                for _ in 0..count {
                    let (node, times) = (f.u64()?, f.u64()?);
                    core.forget(node, times);
                }
                return Ok(None);
            }
            op::INTERRUPT => return Ok(None),
            op::INIT => return self.init(&mut f).map(Some),
            // ENOSYS to these says "never ask again, and go on as if all was well".
            op::OPEN | op::OPENDIR | op::FLUSH | op::STATX => return Err(Errno::NOSYS),
            op::RELEASE | op::RELEASEDIR => return Ok(Some(Vec::new())),
            _ => {}
        }
        let node = match header.opcode {
            op::STATFS | op::DESTROY => Nid::ROOT,
            _ => nid(header.node)?,
        };
        let reply = match header.opcode {
            op::READ => self.read(node, &mut f)?,
            write_op::FSYNC | write_op::FSYNCDIR => {
                return self.fsync(node, header.unique, fuse);
            }
            write_op::SYNCFS | op::DESTROY => {
                self.lock()?.volume()?.sync().map_err(failed)?;
                Vec::new()
            }
            op::LOOKUP
            | op::GETATTR
            | op::READLINK
            | op::GETXATTR
            | op::LISTXATTR
            | op::STATFS
            | op::LSEEK
            | op::READDIR
            | op::READDIRPLUS => self.look(node, request, &mut f)?,
            write_op::SETATTR
            | write_op::WRITE
            | write_op::FALLOCATE
            | write_op::SETXATTR
            | write_op::REMOVEXATTR => self.change(node, header.opcode, &mut f)?,
            _ => self.names(node, header.opcode, &mut f, &caller)?,
        };
        Ok(Some(reply))
    }

    fn init(&self, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        if major != proto::MAJOR || minor < proto::MINOR_MIN {
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
        let both = has & offered;
        self.long_setxattr.store(both & SETXATTR_EXT != 0, Relaxed);
        let reply = proto::InitOut {
            major: proto::MAJOR,
            minor: minor.min(proto::MINOR),
            max_readahead,
            flags: both as u32, // the low half
            flags2: (both >> 32) as u32,
            max_background: 64,
            congestion_threshold: 48,
            max_write: WRITE_MAX,
            time_gran: 1,
            max_pages: (WRITE_MAX / 4096) as u16, // fits: 256
            ..Default::default()
        };
        Ok(reply.as_bytes().to_vec())
    }

    /// Resolved under the lock, read outside it.
    fn read(&self, node: Nid, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let (_, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
        let size = size.min(WRITE_MAX) as usize;
        let plan = self.lock()?.volume()?.plan_read(node, offset, size);
        plan.and_then(|plan| plan.run()).map_err(failed)
    }

    /// Answers now, or lets the thread that flushes answer: then there is nothing to say yet.
    fn fsync(&self, node: Nid, unique: u64, fuse: BorrowedFd<'_>) -> Result<Option<Vec<u8>>> {
        let wait = self
            .lock()?
            .volume()?
            .fsync_unflushed(node)
            .map_err(failed)?;
        if !wait {
            return Ok(Some(Vec::new()));
        }
        self.flushes.join(
            unique,
            || self.device.flush(),
            |group, result| {
                if let Err(e) = result {
                    self.flush_failed(e);
                }
                let error = if result.is_ok() {
                    Ok(&[][..])
                } else {
                    Err(Errno::IO)
                };
                for unique in group {
                    // A kernel that does not wait any more is unmounting: the next read says so.
                    let _ = send(fuse, *unique, error);
                }
            },
        );
        Ok(None)
    }

    /// Nobody knows what the device still has: the volume takes no more changes.
    fn flush_failed(&self, e: &io::Error) {
        self.log.line(format_args!("a flush failed: {e}"));
        if let Ok(mut core) = self.lock()
            && let Some(volume) = &mut core.volume
        {
            volume.flush_failed(e);
        }
    }

    /// Operations that change nothing.
    fn look(&self, node: Nid, request: &Request<'_>, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        match request.header.opcode {
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
                let privileged = request.header.uid == 0;
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
                let reply = proto::StatfsOut {
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
            op::LSEEK => {
                let (_, offset, whence) = (f.u64()?, f.u64()?, f.u32()?);
                let volume = core.volume()?;
                let offset = match whence {
                    proto::SEEK_DATA => volume.seek_data(node, offset),
                    proto::SEEK_HOLE => volume.seek_hole(node, offset),
                    _ => return Err(Errno::INVAL),
                };
                let offset = offset.map_err(failed)?;
                Ok(proto::LseekOut { offset }.as_bytes().to_vec())
            }
            _ => {
                let (_, cookie, size) = (f.u64()?, f.u64()?, f.u32()?);
                let plus = request.header.opcode == op::READDIRPLUS;
                list(&mut core, node, cookie, size.min(WRITE_MAX) as usize, plus)
            }
        }
    }

    /// Operations that change one inode.
    fn change(&self, node: Nid, opcode: u32, f: &mut Fields<'_>) -> Result<Vec<u8>> {
        let mut core = self.lock()?;
        let volume = core.volume()?;
        match opcode {
            write_op::WRITE => {
                let (_, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                let (_flags, _owner, _open, _padding) = (f.u32()?, f.u64()?, f.u32()?, f.u32()?);
                let n = volume
                    .write(node, offset, f.bytes(size)?, now())
                    .map_err(failed)?;
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
                let (set, time) = set_attr(f)?;
                let attr = volume.set_attr(node, &set, time).map_err(failed)?;
                Ok(attr_out(&attr))
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
                volume
                    .fallocate(node, how, offset, len, now())
                    .map_err(failed)?;
                Ok(Vec::new())
            }
            write_op::SETXATTR => {
                let (size, flags) = (f.u32()?, f.u32()?);
                let (more, _) = if self.long_setxattr.load(Relaxed) {
                    (f.u32()?, f.u32()?)
                } else {
                    (0, 0)
                };
                let name = f.name()?;
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
                volume
                    .remove_xattr(node, f.name()?, now())
                    .map_err(failed)?;
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

    /// Answers on the calling thread until it is unmounted.
    fn serve(&self, fuse: impl AsFd) {
        let mut buffer = vec![0; REQUEST_MAX];
        let mut seat = Seat::new();
        while self.step(&fuse, &mut buffer, &mut seat).is_some() {}
    }

    /// One request. `None` if there will be no more; else whether it was answered well.
    fn step(&self, fuse: &impl AsFd, buffer: &mut [u8], seat: &mut Seat) -> Option<bool> {
        let n = match rustix::io::read(fuse, &mut *buffer) {
            Ok(n) => n,
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => return Some(true),
            Err(_) => return None,
        };
        let request = Request::new(&buffer[..n])?;
        seat.choose(&request);
        let fuse = fuse.as_fd();
        let reply = catch_unwind(AssertUnwindSafe(|| self.answer(&request, fuse)));
        let reply = reply.unwrap_or_else(|_| {
            let what = op::name(request.header.opcode);
            self.log.line(format_args!(
                "bug: {what} panicked; all that follows is EIO"
            ));
            Err(Errno::IO)
        });
        let body = match &reply {
            Ok(None) => return Some(true),
            Ok(Some(body)) => Ok(&body[..]),
            Err(e) => Err(*e),
        };
        send(fuse, request.header.unique, body).ok()?;
        Some(body.is_ok())
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the device write while more comes in, so that the next checkpoint finds little to wait for.
    fn begin_writing(&self) {
        loop {
            let mut behind = self.behind();
            while !behind.much && !behind.ended {
                behind = self
                    .much
                    .wait(behind)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if behind.ended {
                return;
            }
            behind.much = false;
            drop(behind);
            if let Err(e) = self.device.flush() {
                self.flush_failed(&e);
                return;
            }
        }
    }

    /// Makes everything durable from time to time, until the mount ends.
    fn keep(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            let (next, _) = self
                .wake
                .wait_timeout(ended, SYNC_EVERY)
                .unwrap_or_else(PoisonError::into_inner);
            ended = next;
            if let Ok(mut core) = self.lock()
                && let Some(volume) = &mut core.volume
                && let Err(e) = volume.sync()
            {
                self.log
                    .line(format_args!("cannot make changes durable: {e}"));
            }
        }
    }
}

/// Answers a request. An error if there will be no more: it is unmounted.
fn send(fuse: BorrowedFd<'_>, unique: u64, body: Result<&[u8]>) -> Result<()> {
    let (error, body) = match body {
        Ok(body) => (0, body),
        Err(e) => (-e.raw_os_error(), &[][..]),
    };
    let header = proto::OutHeader {
        len: (size_of::<proto::OutHeader>() + body.len()) as u32, // fits: at most a megabyte
        error,
        unique,
    };
    let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
    match rustix::io::writev(fuse, &parts) {
        // The asker gave up, or does not understand: that is no reason to end.
        Ok(_) | Err(Errno::INTR | Errno::NOENT | Errno::AGAIN | Errno::INVAL) => Ok(()),
        Err(e) => Err(e),
    }
}

/// A volume that is being served.
pub struct VolumeMount {
    server: Arc<VolumeServer>,
    threads: Vec<JoinHandle<()>>,
    keeper: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl VolumeMount {
    /// Serves `server` at `mountpoint` with so many threads.
    ///
    /// # Errors
    /// If the kernel cannot be served, or no thread can be started.
    pub fn start(server: VolumeServer, mountpoint: Mountpoint, threads: usize) -> io::Result<Self> {
        let (server, mountpoint) = (Arc::new(server), Arc::new(mountpoint));
        // The first request agrees on the protocol; nothing else is asked before it is answered.
        let mut buffer = vec![0; REQUEST_MAX];
        if server.step(&&*mountpoint, &mut buffer, &mut Seat::new()) != Some(true) {
            return Err(io::Error::other("the kernel's FUSE is too old"));
        }
        let mut handles = Vec::new();
        for seat in 0..threads.max(1) {
            let (server, mountpoint) = (server.clone(), mountpoint.clone());
            let name = format!("volume-{seat}");
            let serve = move || server.serve(&*mountpoint);
            handles.push(std::thread::Builder::new().name(name).spawn(serve)?);
        }
        // Only root may; without it reads are shorter.
        let _ = mountpoint::device_of(&mountpoint.dir).and_then(mountpoint::raise_read_ahead);
        let keeper = server.clone();
        let keeper = std::thread::Builder::new()
            .name("volume-keeper".to_owned())
            .spawn(move || keeper.keep())?;
        let writer = server.clone();
        let writer = std::thread::Builder::new()
            .name("volume-writer".to_owned())
            .spawn(move || writer.begin_writing())?;
        Ok(Self {
            server,
            threads: handles,
            keeper,
            writer,
        })
    }

    /// Waits until it is unmounted, and unmounts the volume.
    ///
    /// # Errors
    /// If something done was lost.
    pub fn wait(self) -> tuff_iplfs::Result<()> {
        for thread in self.threads {
            let _ = thread.join();
        }
        *self
            .server
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.server.wake.notify_all();
        let _ = self.keeper.join();
        self.server.behind().ended = true;
        self.server.much.notify_all();
        let _ = self.writer.join();
        let poisoned = || Error::Limit("a bug ended the service early; mount again".to_owned());
        let mut core = self.server.core.lock().map_err(|_| poisoned())?;
        let known: Vec<Nid> = core.known.drain().map(|(ino, _)| ino).collect();
        match core.volume.take() {
            Some(mut volume) => {
                known.into_iter().for_each(|ino| volume.release(ino));
                // What was deleted last goes back to the host now, and not at the next mount.
                volume.drain()?;
                volume.unmount()
            }
            None => Ok(()),
        }
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
    let fixed = head + size_of::<proto::Dirent>();
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
        let dirent = proto::Dirent {
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
