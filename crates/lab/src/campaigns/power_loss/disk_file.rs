//! File that this process serves through FUSE: the simulated disk, for a loop device of the kernel or a guest.
//!
//! Flushes of the loop device arrive as fsync, discards as fallocate with hole punching. The file is opened
//! with direct I/O, so no cache is in between.

use super::disk::Disk;
use crate::{At, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Name and inode of the served file, which maps the disk.
const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// Lifetime of entries and attributes in the kernel's cache. They never change.
const LIFETIME: Duration = Duration::from_secs(3600);

/// FUSE server of the disk. It stops when dropped; all loop devices must be detached before.
pub(in crate::campaigns) struct DiskFile {
    folder: PathBuf,
    session: Option<BackgroundSession>,
}

impl DiskFile {
    /// Serves a disk in an existing folder.
    pub(in crate::campaigns) fn serve(disk: &Arc<Disk>, folder: &Path) -> Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("tuff-lab".to_owned())];
        let session = fuser::spawn_mount(Served(Arc::clone(disk)), folder, &config)
            .at("serve a disk in", folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            session: Some(session),
        })
    }

    /// Returns the path of the file.
    pub(in crate::campaigns) fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.session.take().map(BackgroundSession::umount_and_join) {
            eprintln!("tuff-lab: warning: cannot unmount the disk: {e}");
        }
    }
}

struct Served(Arc<Disk>);

impl Served {
    fn attributes(inode: INodeNo) -> FileAttr {
        let (kind, size, nlink) = match inode {
            FILE => (FileType::RegularFile, super::disk::SIZE, 1),
            _ => (FileType::Directory, 0, 2),
        };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&LIFETIME, &Self::attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &Self::attributes(ino));
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match ino {
            INodeNo::ROOT => reply.error(Errno::EISDIR),
            _ => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write(offset, data) {
            // Fits: sizes in the protocol have 32 bits.
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        answer(self.0.flush(), reply);
    }

    /// Supports hole punching and zeroing, the modes that a loop device uses.
    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        use rustix::fs::FallocateFlags;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        match mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
            true => answer(self.0.discard(offset, length), reply),
            false => reply.error(Errno::EOPNOTSUPP),
        }
    }
}

fn answer(result: Result<(), super::disk::Refused>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(_) => reply.error(Errno::EIO),
    }
}
