//! An EROFS image as a filesystem, with the attributes that the kernel's mount of the same image shows.

use crate::errno::errno;
use crate::neighbours::{Neighbours, OnMiss, Parents, Reading, RequestRanges};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tuff_erofs::read::{FileType, Inode, Layout, Nid};
use tuff_erofs::serve::{ListedEntry, Server, Session};
use tuff_format::features::incompat;
use tuff_format::inode::encode_device;
use tuff_fuse::filesystem::{
    Entry, Filesystem, LookupResult, Node, Parts, PushRange, Reader, Result, Seek,
};
use tuff_fuse::log::Log;
use tuff_fuse::protocol::{Attr, ROOT, StatfsOut};
use tuff_fuse::reply::xattr_list;

/// Owners that replace those of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerOverride {
    /// User that owns all files.
    pub uid: Option<u32>,
    /// Group that owns all files.
    pub gid: Option<u32>,
}

/// EROFS image as a read-only filesystem.
#[derive(Clone)]
pub struct ImageFs {
    server: Arc<Server>,
    root: Nid,
    show: OwnerOverride,
    log: Log,
    /// Number of blocks repaired by parity, if it is counted.
    repaired: Option<Arc<AtomicU64>>,
    /// Counters of the store of the image, if it has some.
    store_counters: Option<StoreCounters>,
    /// Requests of the store, if it sends some.
    store_requests: Option<StoreRequests>,
    /// Directories of files, if what belongs to them is requested.
    parents: Option<Arc<Parents>>,
}

/// Callback that returns counters with their names.
pub type StoreCounters = Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// Callback that returns requests of a store as lines of JSON, at most a number of bytes.
pub type StoreRequests = Arc<dyn Fn(usize) -> String + Send + Sync>;

/// Image and the session of one thread.
struct ImageReader {
    fs: ImageFs,
    session: Session,
    /// Node of the last read.
    node: Node,
}

impl ImageFs {
    /// Creates a filesystem from `server`. Damage is reported to `log`.
    ///
    /// # Errors
    /// Fails if the root directory cannot be read.
    pub fn new(server: Server, show: OwnerOverride, log: Log) -> tuff_erofs::Result<Self> {
        let root = server.image().root()?.nid();
        Ok(Self {
            server: Arc::new(server),
            root,
            show,
            log,
            repaired: None,
            store_counters: None,
            store_requests: None,
            parents: None,
        })
    }

    /// Adds a counter of blocks that parity repaired.
    #[must_use]
    pub fn with_repaired(self, repaired: Option<Arc<AtomicU64>>) -> Self {
        Self { repaired, ..self }
    }

    /// Adds the counters of the store that the image is read from.
    #[must_use]
    pub fn with_store_counters(self, store_counters: Option<StoreCounters>) -> Self {
        Self {
            store_counters,
            ..self
        }
    }

    /// Adds the requests of the store that the image is read from.
    #[must_use]
    pub fn with_store_requests(self, store_requests: Option<StoreRequests>) -> Self {
        Self {
            store_requests,
            ..self
        }
    }

    /// Requests what belongs to files that had to be fetched: with `ahead` the rest of a file that a program reads, with `near`
    /// other files. [`Neighbours::run`] does so in a thread of its own. The store of the image calls the callback.
    #[must_use]
    pub fn follow_misses(
        self,
        ahead: RequestRanges,
        near: RequestRanges,
    ) -> (Self, Neighbours, OnMiss) {
        let server = Arc::clone(&self.server);
        let (neighbours, parents, on_miss) = Neighbours::new(server, ahead, near);
        let followed = Self {
            parents: Some(parents),
            ..self
        };
        (followed, neighbours, on_miss)
    }

    /// Returns the server of the image.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    fn node(&self, nid: Nid) -> Node {
        // 0 means "no node" and 1 the root. A nid that wraps around has no position in an image, so the kernel never
        // requests it.
        if nid == self.root {
            ROOT
        } else {
            nid.0.wrapping_add(2)
        }
    }

    fn nid(&self, node: Node) -> Nid {
        if node == ROOT {
            self.root
        } else {
            Nid(node.wrapping_sub(2))
        }
    }

    /// Returns the inode number that users see. As in the kernel it is the nid, with bit 63 (metabox) folded into
    /// bit 31.
    fn ino(&self, nid: Nid) -> u64 {
        if !self.server.image().superblock().has(incompat::METABOX) {
            return nid.0;
        }
        (nid.0 << 1 & 0xFFFF_FFFF_0000_0000) | (nid.0 & 0x7FFF_FFFF) | (nid.0 >> 63 << 31)
    }

    fn inode(&self, node: Node) -> Result<Inode> {
        self.reported(self.server.inode(self.nid(node)))
    }

    fn dir(&self, node: Node) -> Result<Inode> {
        let dir = self.inode(node)?;
        if dir.is_dir() {
            Ok(dir)
        } else {
            Err(Errno::NOTDIR)
        }
    }

    fn entry<'a>(&self, dir: &Inode, entry: ListedEntry<'a>) -> Entry<'a> {
        Entry {
            name: entry.name,
            node: self.node(entry.nid),
            ino: self.ino(entry.nid),
            kind: entry
                .file_type
                .map_or(0, |t| u32::from(t.mode_bits()) >> 12),
            // After the last entry the kernel's offset is the end of the directory, not of its last block.
            next: entry.next.min(dir.size()),
        }
    }

    /// Reports an error to the log and returns its number.
    fn reported<T>(&self, result: tuff_erofs::Result<T>) -> Result<T> {
        result.map_err(|e| {
            self.log.line(&e);
            errno(&e)
        })
    }

    fn attr_of(&self, inode: &Inode) -> Attr {
        let bits = self.server.image().superblock().block_bits;
        let (sec, nsec) = inode.mtime();
        let sec = sec.cast_unsigned();
        let blocks = match inode.layout() {
            // The number of blocks takes the place of an address. The kernel keeps 32 bits of it.
            Layout::CompressedFull | Layout::CompressedCompact => inode.raw().u & 0xFFFF_FFFF,
            _ => bits.count(inode.size()),
        };
        Attr {
            ino: self.ino(inode.nid()),
            size: inode.size(),
            blocks: blocks << (bits.get() - 9),
            atime: sec,
            mtime: sec,
            ctime: sec,
            atime_nsec: nsec,
            mtime_nsec: nsec,
            ctime_nsec: nsec,
            mode: inode.mode().into(),
            nlink: inode.nlink(),
            uid: self.show.uid.unwrap_or(inode.uid()),
            gid: self.show.gid.unwrap_or(inode.gid()),
            rdev: inode
                .device()
                .map_or(0, |(major, minor)| encode_device(major, minor)),
            blksize: bits.size() as u32, // fits: at most 64 KiB
            flags: 0,
        }
    }
}

impl Filesystem for ImageFs {
    fn lookup(&self, dir: Node, name: &[u8]) -> Result<Option<LookupResult>> {
        let dir = self.inode(dir)?;
        let nid = if name == b"." {
            Some(dir.nid())
        } else if !dir.is_dir() {
            return Err(Errno::NOTDIR);
        } else {
            self.reported(self.server.lookup(&dir, name))?
        };
        let Some(nid) = nid else { return Ok(None) };
        let inode = self.reported(self.server.inode(nid))?;
        if let Some(parents) = &self.parents {
            parents.note(dir.nid(), nid);
        }
        Ok(Some(LookupResult {
            node: self.node(nid),
            attr: self.attr_of(&inode),
        }))
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        Ok(self.attr_of(&self.inode(node)?))
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        let inode = self.inode(node)?;
        self.reported(self.server.readlink(&inode))
    }

    fn allows_idmapped_mounts(&self) -> bool {
        true
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ImageReader {
            fs: self.clone(),
            session: self.server.session(),
            node: ROOT,
        })
    }

    fn readdir(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.dir(dir)?;
        let show = |entry: ListedEntry<'_>| each(&self.entry(&dir, entry));
        self.reported(self.server.list(&dir, offset, show))
    }

    fn readdir_plus(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>, Option<Attr>) -> bool,
    ) -> Result<()> {
        let dir = self.dir(dir)?;
        let show = |entry: ListedEntry<'_>, inode| {
            if let Some(parents) = &self.parents {
                parents.note(dir.nid(), entry.nid);
            }
            let entry = self.entry(&dir, entry);
            let attr = match entry.is_dots() {
                true => None,
                false => self.reported(inode).ok().map(|inode| self.attr_of(&inode)),
            };
            each(&entry, attr)
        };
        self.reported(self.server.list_inodes(&dir, offset, show))
    }

    fn getxattr(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        if tuff_format::xattr::split(name).is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        let inode = self.inode(node)?;
        self.reported(self.server.xattr(&inode, name))?
            .ok_or(Errno::NODATA)
    }

    fn listxattr(&self, node: Node, privileged: bool) -> Result<Vec<u8>> {
        let inode = self.inode(node)?;
        let xattrs = self.reported(self.server.xattrs(&inode))?;
        let names = xattrs.iter().map(|xattr| &xattr.name[..]);
        Ok(xattr_list(names, privileged))
    }

    fn statfs(&self) -> Result<StatfsOut> {
        let sb = self.server.image().superblock();
        let extra: u64 = self
            .server
            .image()
            .slots()
            .iter()
            .map(|slot| slot.blocks)
            .sum();
        let bsize = sb.block_bits.size() as u32; // fits: at most 64 KiB
        Ok(StatfsOut {
            blocks: sb.blocks.saturating_add(extra),
            // The kernel subtracts the number of inodes from the largest number to get the free ones.
            files: u64::MAX,
            ffree: u64::MAX - sb.inodes,
            bsize,
            frsize: bsize,
            namelen: 255,
            ..Default::default()
        })
    }

    fn seek(&self, node: Node, offset: u64, what: Seek) -> Result<u64> {
        let inode = self.inode(node)?;
        if inode.file_type() != FileType::File {
            return Err(Errno::NXIO);
        }
        let hole = what == Seek::Hole;
        self.reported(self.server.seek(&inode, offset, hole))?
            .ok_or(Errno::NXIO)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = counters_of(&self.server);
        let repaired = self.repaired.as_ref().map(|n| n.load(Ordering::Relaxed));
        counters.extend(repaired.map(|n| ("repaired_blocks", n)));
        counters.extend(self.store_counters.iter().flat_map(|read| read()));
        counters
    }

    fn requests(&self, max: usize) -> String {
        let requests = self.store_requests.as_ref();
        requests.map_or_else(String::new, |requests| requests(max))
    }
}

/// Returns the counters of the server, by the names that `tuff stats` shows.
fn counters_of(server: &Server) -> Vec<(&'static str, u64)> {
    let c = server.counters();
    let mut out = vec![
        ("reads", c.reads),
        ("read_errors", c.errors),
        ("returned_bytes", c.returned_bytes),
        ("zero_copy_bytes", c.zero_copy_bytes),
        ("fetches", c.fetches),
        ("fetched_bytes", c.fetched_bytes),
        ("decoded_bytes", c.decoded_bytes),
        ("cluster_hits", c.hits),
        ("compressed_hits", c.compressed_hits),
        ("cluster_waits", c.waits),
        ("sequential_reads", c.sequential),
        ("ahead_bytes", c.ahead_bytes),
        ("pushed_bytes", c.pushed_bytes),
        ("dropped_clusters", c.dropped),
        ("held_bytes", c.held_bytes),
        ("pinned_bytes", c.pinned_bytes),
        ("index_bytes", c.index_bytes),
    ];
    let names = [
        "decodes_gathered",
        "decodes_buffer",
        "decodes_rolling",
        "decodes_in_place",
    ];
    out.extend(names.into_iter().zip(c.decodes));
    out
}

impl Reader for ImageReader {
    fn read<'a>(
        &'a mut self,
        node: Node,
        offset: u64,
        buf: &'a mut [u8],
        lend: bool,
    ) -> Result<Parts<'a>> {
        let inode = self.fs.inode(node)?;
        self.node = node;
        let is_followed = self.fs.parents.is_some();
        let _reading = is_followed.then(|| Reading::start(inode.nid()));
        let (fs, session) = (&self.fs, &mut self.session);
        if !lend {
            let n = fs.reported(fs.server.read(session, &inode, offset, buf))?;
            return Ok(Parts::One(&buf[..n]));
        }
        let answer = fs.reported(fs.server.read_by_reference(session, &inode, offset, buf))?;
        Ok(Parts::Many(answer.parts().collect()))
    }

    fn take_push(&mut self) -> Option<PushRange> {
        let range = self.fs.server.take_push(&mut self.session)?;
        Some(PushRange {
            node: self.node,
            offset: range.offset,
            len: range.len,
            step: range.step,
        })
    }

    fn read_pushed<'a>(
        &mut self,
        range: &PushRange,
        buf: &'a mut Vec<u8>,
    ) -> Result<(u64, &'a [u8])> {
        let inode = self.fs.inode(range.node)?;
        let pushed = tuff_erofs::serve::PushRange {
            offset: range.offset,
            len: range.len,
            step: range.step,
        };
        let read = self
            .fs
            .server
            .read_pushed(&mut self.session, &inode, &pushed, buf);
        let (offset, pages) = self.fs.reported(read)?;
        Ok((offset, &buf[pages]))
    }
}
