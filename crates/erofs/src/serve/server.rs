//! Server for one image, shared by all threads.

use super::buffer_pool::{BufferPool, PoolBuffer};
use super::cluster_cache::ClusterCache;
use super::counters::{Count, Counters, Totals};
use super::index::ExtentIndex;
use super::out::OutputBuffer;
use super::policy::Policy;
use super::record::Recorder;
use super::reply::{PushRange, Reply};
use super::session::Session;
use super::stream::Streams;
use crate::Result;
use crate::read::cache::Cache;
use crate::read::{DeviceId, FileType, Image, Inode, Location, Nid, StorePosition, Xattr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Options for serving an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Maximum memory of all caches: decoded and compressed clusters, extents, inodes, directories.
    /// Sessions need additional memory. Unit: bytes, at least 1 MiB. Default: 48 MiB.
    pub budget: usize,
    /// Policy that chooses a decoding strategy. All but the default are for measurements.
    pub policy: Policy,
    /// Sends hints to devices: readahead for sequential readers, and drop hints after long
    /// sequential runs. The client's cache has the decoded bytes, so the host need not keep the
    /// compressed ones. Default: true.
    pub read_ahead: bool,
    /// Offers ranges to push to a cache above the server: clusters that random readers return to,
    /// and the next steps of strided readers. See [`Server::take_push`]. Default: false.
    pub push: bool,
    /// Records first uses: see [`Server::recorded`]. Default: false.
    pub record: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            budget: 48 << 20,
            policy: Policy::Adaptive,
            read_ahead: true,
            push: false,
            record: false,
        }
    }
}

/// Minimum budget. Unit: bytes.
const BUDGET_MIN: usize = 1 << 20;

/// Upper bound of the length of large folios in the page cache. Unit: bytes.
const PIECE: u64 = 4 << 20;

/// Memory accounted for a cached inode. Unit: bytes.
const INODE_COST: usize = 256;

/// Server for an image. Threads share it, and each uses its own [`Session`].
pub struct Server {
    pub(crate) image: Image,
    pub(crate) options: ServeOptions,
    pub(crate) index: ExtentIndex,
    inodes: Cache<Nid, Inode>,
    slabs: Arc<BufferPool>,
    pub(crate) decoded: ClusterCache,
    /// Compressed clusters that were needed only in part, by position and length.
    pub(crate) compressed: Cache<(StorePosition, u32), Arc<PoolBuffer>>,
    streams: Streams,
    pub(crate) recorder: Option<Recorder>,
    totals: Totals,
    sessions: AtomicUsize,
}

/// Directory entry, borrowed for the duration of the callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEntry<'a> {
    /// Inode number of the entry.
    pub nid: Nid,
    /// File type in the entry, which may differ from that of the inode. `None`: unknown.
    pub file_type: Option<FileType>,
    /// File name: 1 to 255 bytes of any value.
    pub name: &'a [u8],
    /// Position after this entry, to continue the listing. Never 0.
    pub next: u64,
}

impl Server {
    /// Creates a server for `image`, and sets the image's caches to their shares of the budget.
    #[must_use]
    pub fn new(mut image: Image, mut options: ServeOptions) -> Self {
        options.budget = options.budget.max(BUDGET_MIN);
        // Metadata gets an eighth: windows of the image, maps, extents, inodes. The rest is for
        // clusters.
        let metadata = (options.budget / 8).min(16 << 20);
        let clusters = options.budget - metadata;
        image.set_caches(metadata / 2, metadata / 8, metadata / 8);
        let slabs = BufferPool::new(clusters);
        let compressed = clusters / 6;
        Self {
            image,
            index: ExtentIndex::new(metadata / 8),
            inodes: Cache::new(metadata / 8, 8),
            decoded: ClusterCache::new(slabs.clone(), clusters),
            // Each shard can hold several of the longest clusters.
            compressed: Cache::new(compressed, (compressed >> 22).clamp(1, 8)),
            slabs,
            recorder: options.record.then(Recorder::new),
            options,
            streams: Streams::new(),
            totals: Totals::new(),
            sessions: AtomicUsize::new(0),
        }
    }

    /// Image that is served.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Options of the server. The budget is at least 1 MiB.
    #[must_use]
    pub fn options(&self) -> &ServeOptions {
        &self.options
    }

    /// Creates a session. Each thread needs its own.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(self.sessions.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the inode with this number.
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

    /// Returns the inode number of the entry `name` of a directory. `None` if there is no such
    /// entry.
    ///
    /// # Errors
    /// As [`Image::lookup`].
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Nid>> {
        self.image.lookup(dir, name)
    }

    /// Passes the entries of a directory to `show` until it returns false. Starts at position
    /// `from`; 0 is the start.
    ///
    /// # Errors
    /// As [`Image::read_dir_from`]. Entries before the damage were passed to `show`.
    pub fn list(
        &self,
        dir: &Inode,
        from: u64,
        mut show: impl FnMut(ListedEntry<'_>) -> bool,
    ) -> Result<()> {
        self.image.read_dir_from(dir, from)?.each(|entry| {
            show(ListedEntry {
                nid: entry.nid,
                file_type: entry.file_type,
                name: entry.name,
                next: entry.next,
            })
        })
    }

    /// Same as [`list`](Self::list), with the inode of each entry. Inodes of a directory are mostly
    /// adjacent. They are parsed from shared windows of metadata and bypass the inode cache.
    ///
    /// # Errors
    /// As `list`. An inode that cannot be read is an error of its entry only.
    pub fn list_inodes(
        &self,
        dir: &Inode,
        from: u64,
        mut show: impl FnMut(ListedEntry<'_>, Result<Inode>) -> bool,
    ) -> Result<()> {
        let mut near = None;
        self.list(dir, from, |listed| {
            show(listed, self.image.inode_near(listed.nid, &mut near))
        })
    }

    /// Returns the target of a symlink.
    ///
    /// # Errors
    /// As [`Image::readlink`].
    pub fn readlink(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.image.readlink(inode)
    }

    /// Returns all extended attributes of an inode that users can see.
    ///
    /// # Errors
    /// As [`Image::xattrs`].
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        self.image.xattrs(inode)
    }

    /// Returns the value of an extended attribute. `None` if the inode does not have it.
    ///
    /// # Errors
    /// As [`Image::xattr`].
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.image.xattr(inode, name)
    }

    /// Reads data of an inode at `offset` into `buf`. Returns the number of bytes read, which is
    /// less than the length of `buf` only at the end of the file. Bytes of `buf` after them may
    /// have changed.
    ///
    /// # Errors
    /// `Corrupt` or `Io` with the inode, the cluster and the cause. Other ranges may still be
    /// readable.
    pub fn read(
        &self,
        session: &mut Session,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.serve(session, inode, offset, buf, false)
    }

    /// Same as [`read`](Self::read), but long ranges of cached clusters are returned by reference
    /// instead of copied. The length of `buf` is the requested length, as for `read`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_by_reference<'a>(
        &self,
        session: &'a mut Session,
        inode: &Inode,
        offset: u64,
        buf: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        let n = self.serve(session, inode, offset, buf, true)?;
        Ok(Reply {
            buf: &buf[..n],
            references: &session.references,
        })
    }

    fn serve(
        &self,
        session: &mut Session,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
        by_reference: bool,
    ) -> Result<usize> {
        let start = Instant::now();
        session.references.clear();
        session.push = None;
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
                &mut OutputBuffer {
                    buf,
                    len: n,
                    base: 0,
                    by_reference,
                    push: self.options.push && access.stride.is_none(),
                    stride: access.stride,
                    clustered: access.sequential || n >= super::policy::CLUSTERED,
                },
            );
            if session.costly && self.options.push && access.stride.is_some() {
                session.push = Some(PushRange {
                    offset,
                    len: n,
                    step: access.stride,
                });
            }
            let (from, to) = access.readahead;
            if self.options.read_ahead && done.is_ok() && from < to.min(size) {
                let hinted = self.send_hints(inode, (from, to.min(size)), |device, pos, len| {
                    self.image.devices.will_need(device, pos, len);
                });
                session.tally.add(Count::Ahead, hinted);
            }
            let (from, to) = access.consumed;
            if self.options.read_ahead && done.is_ok() && from < to.min(size) {
                self.send_hints(inode, (from, to.min(size)), |device, pos, len| {
                    // The page cache keeps a large folio if only a part of it is to be dropped.
                    // Folios at the start of this range reach back into the previous one.
                    let more = pos.min(PIECE);
                    self.image.devices.done_with(device, pos - more, len + more);
                });
            }
        }
        if done.is_err() {
            session.references.clear();
            session.push = None;
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

    /// Returns the range to push after the last reply of this session, if any. Read it with
    /// [`read_pushed`](Self::read_pushed). Only with [`ServeOptions::push`].
    ///
    /// The range is the rest of the cluster that the last reply was decoded from, or the current
    /// step of a strided reader whose requests are costly. In the second case, the following steps
    /// can be read, too.
    pub fn take_push(&self, session: &mut Session) -> Option<PushRange> {
        session.push.take()
    }

    /// Decodes a range to push into `buf`. Returns the file offset of its whole pages, and their
    /// position in `buf`. No pages are returned for ranges longer than 1 MiB.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_pushed(
        &self,
        session: &mut Session,
        inode: &Inode,
        range: &PushRange,
        buf: &mut Vec<u8>,
    ) -> Result<(u64, Range<usize>)> {
        let size = if inode.has_data() { inode.size() } else { 0 };
        let end = range.offset.checked_add(range.len as u64);
        if end.is_none_or(|end| end > size) || range.len > super::policy::BUFFER_MAX {
            return Ok((range.offset, 0..0));
        }
        if buf.len() < range.len {
            buf.resize(range.len, 0);
        }
        let mut out = OutputBuffer {
            buf,
            len: range.len,
            base: 0,
            by_reference: false,
            push: false,
            // For a strided reader, only the range itself is needed.
            stride: range.step.map(|_| u64::MAX),
            clustered: range.step.is_none(),
        };
        self.fill(session, inode, range.offset, &mut out)?;
        let pages = range.pages(size);
        let (fetches, fetched) = session.worker.fetched.taken();
        let tally = &mut session.tally;
        tally.add(Count::Fetches, fetches);
        tally.add(Count::Fetched, fetched);
        tally.add(Count::Pushed, pages.len() as u64);
        self.totals.add_uncounted(session.cell, tally);
        Ok((range.offset + pages.start as u64, pages))
    }

    /// Sends a hint for each run of device bytes in a range of a file: device, position, length.
    /// Errors are ignored; a request for the range reports them. Returns the number of bytes in the
    /// hints.
    fn send_hints(
        &self,
        inode: &Inode,
        (from, to): (u64, u64),
        hint: impl Fn(DeviceId, u64, u64),
    ) -> u64 {
        let Ok(mut cursor) = self.index.cursor(&self.image, inode, to) else {
            return 0;
        };
        // Clusters are mostly adjacent, so that few hints cover the range.
        let (mut at, mut run, mut hinted) = (from, None::<(DeviceId, u64, u64)>, 0);
        let mut tell = |run: Option<(DeviceId, u64, u64)>| {
            if let Some((device, pos, len)) = run {
                hint(device, pos, len);
                hinted += len;
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
                Location::Cluster(c) => (DeviceId::PRIMARY, c.pos, u64::from(c.len)),
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
        hinted
    }

    /// Returns the next offset at or after `offset` that is data (`hole` false) or in a hole
    /// (`hole` true). The end of the file counts as a hole. `None` if there is no such offset, or
    /// `offset` is at or after the end.
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

    /// Evicts cached data until at most `bytes` bytes are cached. Pinned clusters and those in use
    /// stay.
    pub fn shrink(&self, bytes: usize) {
        // Metadata is small and expensive to load again; it keeps an eighth.
        let metadata = bytes / 8;
        self.index.shrink(metadata / 4);
        self.inodes.shrink(metadata / 8);
        self.image.shrink_caches(metadata / 2);
        let clusters = bytes - metadata;
        self.compressed.shrink(clusters / 6);
        self.decoded.make_room(0, clusters);
        self.slabs.trim(clusters);
    }

    /// Returns the totals since the start of the server.
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
