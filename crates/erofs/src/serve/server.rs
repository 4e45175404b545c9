//! The server: one for an image, shared by all threads.

use super::buffer_pool::{BufferPool, PoolBuffer};
use super::cluster_cache::ClusterCache;
use super::counters::{Count, Counters, Totals};
use super::index::Index;
use super::out::Out;
use super::policy::Strategy;
use super::record::Recorder;
use super::reply::{Reply, Rest};
use super::session::Session;
use super::stream::Streams;
use crate::Result;
use crate::read::cache::Cache;
use crate::read::{FileType, Image, Inode, Location, Nid, Spot, Xattr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How to serve an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Most memory for everything that is cached: clusters, decoded and compressed, extents, inodes, directories.
    /// What threads need to work comes on top. Unit: bytes, at least 1 MiB. Default: 48 MiB.
    pub budget: usize,
    /// One strategy for all clusters that it can decode, for measuring. Default: the policy picks.
    pub strategy: Option<Strategy>,
    /// Whether devices are told what a sequential reader will want next, and, when it has read much, what it will not want
    /// again: whoever asked keeps the decoded bytes, so the host need not keep the others beside them. Default: yes.
    pub read_ahead: bool,
    /// Whether clusters that readers who jump about come back to, and the next steps of those who go ahead in even steps,
    /// are offered to whoever has a cache in front of this one: see [`Server::take_rest`]. Default: no.
    pub hand_on: bool,
    /// Whether first uses are recorded: see [`Server::recorded`]. Default: no.
    pub record: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            budget: 48 << 20,
            strategy: None,
            read_ahead: true,
            hand_on: false,
            record: false,
        }
    }
}

/// The least budget. Unit: bytes.
const BUDGET_MIN: usize = 1 << 20;

/// No page cache has longer pieces. Unit: bytes.
const PIECE: u64 = 4 << 20;

/// What an inode in the cache is counted as. Unit: bytes.
const INODE_COST: usize = 256;

/// An image that is being served. Many threads use one at the same time, each with its own [`Session`].
pub struct Server {
    pub(crate) image: Image,
    pub(crate) options: ServeOptions,
    pub(crate) index: Index,
    inodes: Cache<Nid, Inode>,
    slabs: Arc<BufferPool>,
    pub(crate) decoded: ClusterCache,
    /// Compressed clusters that were needed in part only, by place and length.
    pub(crate) compressed: Cache<(Spot, u32), Arc<PoolBuffer>>,
    streams: Streams,
    pub(crate) recorder: Option<Recorder>,
    totals: Totals,
    sessions: AtomicUsize,
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
    /// Serves `image`. Its own caches are set to their shares of the budget.
    #[must_use]
    pub fn new(mut image: Image, mut options: ServeOptions) -> Self {
        options.budget = options.budget.max(BUDGET_MIN);
        // An eighth is for metadata: pieces of the image, maps, extents, inodes. The rest is for clusters.
        let metadata = (options.budget / 8).min(16 << 20);
        let clusters = options.budget - metadata;
        image.set_caches(metadata / 2, metadata / 8, metadata / 8);
        let slabs = BufferPool::new(clusters);
        let compressed = clusters / 6;
        Self {
            image,
            index: Index::new(metadata / 8),
            inodes: Cache::new(metadata / 8, 8),
            decoded: ClusterCache::new(slabs.clone(), clusters),
            // A shard holds a few of the longest.
            compressed: Cache::new(compressed, (compressed >> 22).clamp(1, 8)),
            slabs,
            recorder: options.record.then(Recorder::new),
            options,
            streams: Streams::new(),
            totals: Totals::new(),
            sessions: AtomicUsize::new(0),
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
        Session::new(self.sessions.fetch_add(1, Ordering::Relaxed))
    }

    /// The inode with this number.
    ///
    /// # Errors
    /// As [`Image::inode`].
    pub fn inode(&self, nid: Nid) -> Result<Inode> {
        if let Some(inode) = self.inodes.get(&nid) {
            return Ok(inode);
        }
        let inode = self.image.inode(nid)?;
        self.inodes.put(nid, inode, INODE_COST);
        Ok(inode)
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
        self.image.read_dir_from(dir, from)?.each(|entry| {
            show(Listed {
                nid: entry.nid,
                file_type: entry.file_type,
                name: entry.name,
                next: entry.next,
            })
        })
    }

    /// As [`list`](Self::list), with the inode of each entry. Inodes of a directory are mostly neighbours: they are taken
    /// from the pieces of metadata that they lie in, and not cached one by one.
    ///
    /// # Errors
    /// As `list`; an inode that cannot be read is an error of its entry only.
    pub fn list_inodes(
        &self,
        dir: &Inode,
        from: u64,
        mut show: impl FnMut(Listed<'_>, Result<Inode>) -> bool,
    ) -> Result<()> {
        let mut near = None;
        self.list(dir, from, |listed| {
            show(listed, self.image.inode_near(listed.nid, &mut near))
        })
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

    /// Reads bytes of an inode's data at `offset` into `buf`. Returns how many: fewer than asked only at the end. What
    /// follows them in `buf` may have changed.
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
        self.serve(session, inode, offset, buf, false)
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
    ) -> Result<Reply<'a>> {
        let n = self.serve(session, inode, offset, buf, true)?;
        Ok(Reply {
            buf: &buf[..n],
            lent: &session.lent,
        })
    }

    fn serve(
        &self,
        session: &mut Session,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
        lend: bool,
    ) -> Result<usize> {
        let start = Instant::now();
        session.lent.clear();
        session.rest = None;
        session.costly = false;
        let size = if inode.has_data() { inode.size() } else { 0 };
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let n = buf.len().min(left);
        let mut done = Ok(());
        if n > 0 {
            let access = self.streams.note(inode.nid(), offset, n as u64);
            session
                .tally
                .add(Count::Sequential, access.sequential.into());
            done = self.fill(
                session,
                inode,
                offset,
                &mut Out {
                    buf,
                    len: n,
                    base: 0,
                    lend,
                    hand_on: self.options.hand_on && access.stride.is_none(),
                    stride: access.stride,
                    clustered: access.sequential || n >= super::policy::CLUSTERED,
                },
            );
            if session.costly && self.options.hand_on && access.stride.is_some() {
                session.rest = Some(Rest {
                    offset,
                    len: n,
                    step: access.stride,
                });
            }
            let (from, to) = access.ahead;
            if self.options.read_ahead && done.is_ok() && from < to.min(size) {
                let told = self.tell(inode, (from, to.min(size)), |device, pos, len| {
                    self.image.devices.will_need(device, pos, len);
                });
                session.tally.add(Count::Ahead, told);
            }
            let (from, to) = access.behind;
            if self.options.read_ahead && done.is_ok() && from < to.min(size) {
                self.tell(inode, (from, to.min(size)), |device, pos, len| {
                    // Caches keep long pieces, and those that reach out of what they are told of: these are in it now.
                    let more = pos.min(PIECE);
                    self.image.devices.done_with(device, pos - more, len + more);
                });
            }
        }
        if done.is_err() {
            session.lent.clear();
            session.rest = None;
        }
        let (fetches, fetched) = session.worker.fetched.taken();
        let tally = &mut session.tally;
        tally.add(Count::Fetches, fetches);
        tally.add(Count::Fetched, fetched);
        match &done {
            Ok(()) => {
                tally.add(Count::Reads, 1);
                tally.add(Count::Returned, n as u64);
                if let (Some(recorder), true) = (&self.recorder, n > 0) {
                    recorder.note(inode.nid(), offset, n as u64);
                }
            }
            Err(_) => tally.add(Count::Errors, 1),
        }
        // Fits: five hundred years.
        let ns = start.elapsed().as_nanos() as u64;
        self.totals.add(session.cell, tally, ns);
        done.map(|()| n)
    }

    /// The part of the file that the last answer of this session is a piece of, if all of that should go to a cache in
    /// front of this one, which will then answer for it; or the step of a reader who goes ahead in even steps, each of
    /// which takes long to answer: [`read_rest`](Self::read_rest) gives any of them. Only with [`ServeOptions::hand_on`].
    pub fn take_rest(&self, session: &mut Session) -> Option<Rest> {
        session.rest.take()
    }

    /// Decodes such a part into `buf`, and says which whole pages it has: their place in the file, and in `buf`.
    /// Nothing of it is kept here.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_rest(
        &self,
        session: &mut Session,
        inode: &Inode,
        rest: &Rest,
        buf: &mut Vec<u8>,
    ) -> Result<(u64, Range<usize>)> {
        let size = if inode.has_data() { inode.size() } else { 0 };
        let end = rest.offset.checked_add(rest.len as u64);
        if end.is_none_or(|end| end > size) || rest.len > super::policy::BUFFER_MAX {
            return Ok((rest.offset, 0..0));
        }
        if buf.len() < rest.len {
            buf.resize(rest.len, 0);
        }
        let mut out = Out {
            buf,
            len: rest.len,
            base: 0,
            lend: false,
            hand_on: false,
            // Of a step, nothing but what it asks for is wanted.
            stride: rest.step.map(|_| u64::MAX),
            clustered: rest.step.is_none(),
        };
        self.fill(session, inode, rest.offset, &mut out)?;
        let pages = rest.pages(size);
        let (fetches, fetched) = session.worker.fetched.taken();
        let tally = &mut session.tally;
        tally.add(Count::Fetches, fetches);
        tally.add(Count::Fetched, fetched);
        tally.add(Count::HandedOn, pages.len() as u64);
        self.totals.add_uncounted(session.cell, tally);
        Ok((rest.offset + pages.start as u64, pages))
    }

    /// Tells the devices something about where a range of a file lies: device, position, length. What goes wrong here goes
    /// wrong again for who asks. Returns how many bytes that are.
    fn tell(&self, inode: &Inode, (from, to): (u64, u64), say: impl Fn(u16, u64, u64)) -> u64 {
        let Ok(mut cursor) = self.index.cursor(&self.image, inode, to) else {
            return 0;
        };
        // Clusters mostly follow each other: a few hints stand for all of them.
        let (mut at, mut run, mut told) = (from, None::<(u16, u64, u64)>, 0);
        let mut tell = |run: Option<(u16, u64, u64)>| {
            if let Some((device, pos, len)) = run {
                say(device, pos, len);
                told += len;
            }
        };
        while at < to {
            let Ok(extent) = cursor.extent(at) else { break };
            let (device, pos, len) = match extent.location {
                Location::Raw { device, pos } => (
                    device,
                    pos.saturating_add(at - extent.offset),
                    extent.end().min(to) - at,
                ),
                Location::Cluster(c) => (0, c.pos, u64::from(c.len)),
                _ => {
                    at = extent.end();
                    continue;
                }
            };
            at = extent.end();
            run = match run {
                Some((d, p, n)) if d == device && p.checked_add(n) == Some(pos) => {
                    Some((d, p, n + len))
                }
                run => {
                    tell(run);
                    Some((device, pos, len))
                }
            };
        }
        tell(run);
        told
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
            if (extent.location == Location::Hole) == hole {
                return Ok(Some(extent.offset.max(offset)));
            }
        }
        Ok(hole.then_some(size))
    }

    /// Gives memory back until at most `bytes` of it are cached, as far as it is neither pinned nor in use.
    pub fn shrink(&self, bytes: usize) {
        // Metadata is small and costly to get again; it keeps what it has within an eighth.
        let metadata = bytes / 8;
        self.index.shrink(metadata / 4);
        self.inodes.shrink(metadata / 8);
        self.image.shrink_caches(metadata / 2);
        let clusters = bytes - metadata;
        self.compressed.shrink(clusters / 6);
        self.decoded.make_room(0, clusters);
        self.slabs.trim(clusters);
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.totals.counters();
        counters.waits = self.decoded.waits() as u64;
        counters.pinned_bytes = self.decoded.pinned() as u64;
        counters.dropped = self.decoded.dropped() as u64;
        counters.held_bytes = self.slabs.held() as u64;
        let metadata = self.index.used() + self.inodes.used() + self.image.cached();
        counters.index_bytes = metadata as u64;
        counters
    }
}
