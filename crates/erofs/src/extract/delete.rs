//! Deletion of entries that an image lacks, below the directories that were extracted.
//!
//! Invariants:
//!
//! * Nothing outside of the selected directories is touched: neither their siblings nor the directories above them.
//! * No symlink is followed and no mount is entered, neither of another filesystem nor of another directory.

use super::shared::Shared;
use super::target::open_dir;
use crate::read::Inode;
use crate::{Error, Result};
use rustix::fs::{
    self, AtFlags, Dir, FileType, OFlags, StatxAttributes, StatxFlags, Timespec, Timestamps,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use tuff_store::retry;

/// Most directories that are open at once, one in the other.
const DEPTH_MAX: usize = 200;

/// Deletes what the image lacks in the directories at `paths` of the target, and below.
pub(super) fn delete(shared: &Shared<'_>, paths: &[Vec<u8>]) -> Result<()> {
    for path in paths {
        let inode = shared.image.resolve(path)?;
        if inode.is_dir()
            && let Err(e) = below(shared, path, inode)
        {
            shared.fail(path.clone(), e)?;
        }
    }
    Ok(())
}

fn below(shared: &Shared<'_>, path: &[u8], inode: Inode) -> Result<()> {
    let mut stack = vec![(path.to_vec(), inode)];
    while let Some((path, inode)) = stack.pop() {
        if shared.stopped() {
            return Err(shared.interrupted());
        }
        let failed = |e: Errno| Error::io("", "deleting what the image lacks", e.into());
        let dir = open_below(shared.root.fd(), &path).map_err(failed)?;
        let before = retry(|| fs::fstat(&dir)).map_err(failed)?;
        let mut has_changed = false;
        for name in names(&dir).map_err(failed)? {
            let path = join(&path, &name);
            let Some(nid) = shared.image.lookup(&inode, &name)? else {
                has_changed = true;
                remove(shared, dir.as_fd(), &name, &path, 0);
                continue;
            };
            let child = shared.image.inode(nid)?;
            if !child.is_dir() {
                continue;
            }
            match kind(dir.as_fd(), &name).map_err(failed)? {
                Kind::Dir => stack.push((path, child)),
                Kind::Mount => shared.problem(path, MOUNTED),
                Kind::Other => {}
            }
        }
        if has_changed && shared.options.times {
            let times = Timestamps {
                last_access: Timespec {
                    tv_sec: before.st_atime,
                    tv_nsec: before.st_atime_nsec as _,
                },
                last_modification: Timespec {
                    tv_sec: before.st_mtime,
                    tv_nsec: before.st_mtime_nsec as _,
                },
            };
            if let Err(e) = retry(|| fs::futimens(&dir, &times)) {
                shared.problem(path, format_args!("times not restored: {e}"));
            }
        }
    }
    Ok(())
}

const MOUNTED: &str = "something is mounted here; nothing is deleted in it";

/// Removes an entry with everything below it. What fails is a problem of the report.
fn remove(shared: &Shared<'_>, above: BorrowedFd<'_>, name: &[u8], path: &[u8], depth: usize) {
    let refused = |e: Errno| shared.problem(path.to_vec(), format_args!("not deleted: {e}"));
    let flags = match kind(above, name) {
        Ok(Kind::Mount) => return shared.problem(path.to_vec(), MOUNTED),
        Ok(Kind::Other) => AtFlags::empty(),
        Ok(Kind::Dir) if depth == DEPTH_MAX => return refused(Errno::MFILE),
        Ok(Kind::Dir) => {
            let listed = open_dir(above, name).and_then(|dir| Ok((names(&dir)?, dir)));
            let (names, dir) = match listed {
                Ok(listed) => listed,
                Err(e) => return refused(e),
            };
            for name in names {
                remove(shared, dir.as_fd(), &name, &join(path, &name), depth + 1);
            }
            AtFlags::REMOVEDIR
        }
        Err(e) => return refused(e),
    };
    match retry(|| fs::unlinkat(above, name, flags)) {
        Ok(()) => _ = shared.totals.deleted.fetch_add(1, Relaxed),
        Err(e) => refused(e),
    }
}

/// Kind of an entry of the target.
enum Kind {
    /// Directory of the same mount as the one above it.
    Dir,
    /// Directory on which something is mounted.
    Mount,
    Other,
}

fn kind(above: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Kind> {
    let stat = retry(|| fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(Kind::Other);
    }
    if stat.st_dev != retry(|| fs::fstat(above))?.st_dev {
        return Ok(Kind::Mount);
    }
    // A directory of the same filesystem may be mounted. Kernels before 5.8 do not tell.
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let found = retry(|| fs::statx(above, name, flags, StatxFlags::TYPE));
    match found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
        true => Ok(Kind::Mount),
        false => Ok(Kind::Dir),
    }
}

/// Opens a directory below the target, component by component.
fn open_below(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = retry(|| fs::openat(root, c".", flags, fs::Mode::empty()))?;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        dir = open_dir(&dir, name)?;
    }
    Ok(dir)
}

fn names(dir: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let entries = Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let names: rustix::io::Result<Vec<Vec<u8>>> = entries.collect();
    let mut names = names?;
    names.retain(|name| !matches!(&name[..], b"." | b".."));
    names.sort_unstable();
    Ok(names)
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"" => name.to_vec(),
        dir => [dir, b"/", name].concat(),
    }
}
