//! The server: one for an image, shared by all threads.

use super::answer::Answer;
use super::counters::Counters;
use super::policy::Strategy;
use super::session::Session;
use crate::Result;
use crate::read::{FileType, Image, Inode, Nid, Xattr};
use std::sync::atomic::{AtomicU64, Ordering};

/// How to serve an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Most memory for everything that is cached: decoded clusters, compressed ones, extents, inodes, directories.
    /// Unit: bytes. Default: 48 MiB.
    pub budget: usize,
    /// One strategy for all clusters that it can decode, for measuring. Default: the policy picks.
    pub strategy: Option<Strategy>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            budget: 48 << 20,
            strategy: None,
        }
    }
}

/// An image that is being served. Many threads use one at the same time, each with its own [`Session`].
pub struct Server {
    image: Image,
    options: ServeOptions,
    reads: AtomicU64,
    errors: AtomicU64,
    returned_bytes: AtomicU64,
}

/// One entry of a directory, as long as it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The inode.
    pub nid: Nid,
    /// The type as the entry claims it. `None`: unknown.
    pub file_type: Option<FileType>,
    /// 1 to 255 bytes of any value.
    pub name: &'a [u8],
    /// Where the listing goes on behind this entry. Never 0.
    pub next: u64,
}

impl Server {
    /// Serves `image`.
    #[must_use]
    pub fn new(image: Image, options: ServeOptions) -> Self {
        Self {
            image,
            options,
            reads: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            returned_bytes: AtomicU64::new(0),
        }
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// How it is served.
    #[must_use]
    pub fn options(&self) -> &ServeOptions {
        &self.options
    }

    /// A session for one more thread.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::default()
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// As [`Image::inode`].
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        self.image.inode(nid)
    }

    /// The entry `name` of a directory.
    ///
    /// # Errors
    /// As [`Image::lookup`].
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Nid>> {
        self.image.lookup(dir, name)
    }

    /// Shows the entries of a directory from a place on (0: the start) to `show`, until it returns false.
    ///
    /// # Errors
    /// As [`Image::read_dir_from`]. Entries before the damage were shown.
    pub fn list(
        &self,
        dir: &Inode,
        from: u64,
        mut show: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<()> {
        for entry in self.image.read_dir_from(dir, from)? {
            let entry = entry?;
            let listed = Listed {
                nid: entry.nid,
                file_type: entry.file_type,
                name: &entry.name,
                next: entry.next,
            };
            if !show(listed) {
                break;
            }
        }
        Ok(())
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// As [`Image::readlink`].
    pub fn readlink(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.image.readlink(inode)
    }

    /// All attributes of an inode that users can see.
    ///
    /// # Errors
    /// As [`Image::xattrs`].
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        self.image.xattrs(inode)
    }

    /// The value of one attribute.
    ///
    /// # Errors
    /// As [`Image::xattr`].
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.image.xattr(inode, name)
    }

    /// Reads bytes of an inode's data at `offset` into `buf`. Returns how many: fewer than asked only at the end.
    ///
    /// # Errors
    /// `Corrupt` or `Io` with the inode, the cluster and what is wrong with it. Other ranges may still be fine.
    pub fn read(
        &self,
        session: &mut Session,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        session.lent.clear();
        let read = self.image.read_at(inode, buf, offset);
        match &read {
            Ok(n) => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                self.returned_bytes.fetch_add(*n as u64, Ordering::Relaxed);
            }
            Err(_) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
        read
    }

    /// As [`read`](Self::read), but long runs of bytes that the server holds anyway are lent instead of copied. `buf`
    /// has room for all of them nevertheless: its length is how much is asked for.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_lent<'a>(
        &self,
        session: &'a mut Session,
        inode: &Inode,
        offset: u64,
        buf: &'a mut [u8],
    ) -> Result<Answer<'a>> {
        let n = self.read(session, inode, offset, buf)?;
        Ok(Answer {
            buf: &buf[..n],
            lent: &session.lent,
        })
    }

    /// The next byte at or behind `offset` that is data (`hole` false) or in a hole (`hole` true; the end of the file is
    /// one). `None`: there is none, or `offset` is at or behind the end.
    ///
    /// # Errors
    /// As [`Image::extents`].
    pub fn seek(&self, inode: &Inode, offset: u64, hole: bool) -> Result<Option<u64>> {
        let size = inode.size();
        if offset >= size {
            return Ok(None);
        }
        for extent in self.image.extents(inode, offset..size)? {
            let extent = extent?;
            if (extent.source == crate::read::Source::Hole) == hole {
                return Ok(Some(extent.offset.max(offset)));
            }
        }
        Ok(hole.then_some(size))
    }

    /// Gives memory back until at most `bytes` of it are cached. What is in use right now stays.
    pub fn shrink(&self, bytes: usize) {
        let _ = bytes; // nothing is cached yet
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            reads: get(&self.reads),
            errors: get(&self.errors),
            returned_bytes: get(&self.returned_bytes),
        }
    }
}
