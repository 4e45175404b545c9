//! Parallel walk of a directory tree in deterministic order.
//!
//! ```text
//! directories to list ──► [threads] ──► chunks of entries, by directory ──► the caller, in the order of the tree
//!       ▲                   │
//!       └── subdirectories ─┘
//! ```
//!
//! Invariants:
//!
//! * The caller sees the order of a serial walk: a directory before its entries, which come
//!   together and by name; directories in depth-first order. The first error is the same, too.
//! * If no thread has begun a directory that the caller needs, the caller lists it. The walk
//!   therefore makes progress without any threads, as the serial walk.
//! * At most [`QUEUED_ENTRIES_MAX`] entries wait for the caller, and each thread has at most one
//!   open directory.

use super::DirSource;
use crate::progress::Progress;
use crate::source::{Content, DataRun, Device, Kind, Meta};
use crate::tree::{InodeId, NewEntry, Pairs, ROOT, Tree};
use crate::{Error, Result};
use hashbrown::HashMap;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tuff_erofs::threads;
use tuff_store::{FileId, retry};

/// Maximum number of entries that wait for the caller. Tests use fewer.
const QUEUED_ENTRIES_MAX: usize = if cfg!(test) { 1 << 10 } else { 32 << 10 };
/// Number of entries of a directory that are handed over together.
const CHUNK_ENTRIES: usize = if cfg!(test) { 1 << 5 } else { 1 << 10 };
/// Name of the file that marks a directory as a cache, and the bytes with which it begins (<https://bford.info/cachedir/>).
const CACHE_TAG: &CStr = c"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8; 43] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// Buffer for `getdents64`. Unit: bytes.
const NAMES_BUFFER: usize = 32 << 10;

/// Options of a walk.
pub(crate) struct WalkOptions<'a> {
    /// Called with the path of each entry. Returning true excludes it with everything below.
    pub(crate) exclude: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// Do not enter directories on other filesystems; they stay as empty directories.
    pub(crate) one_file_system: bool,
    /// Leave the contents of directories with a valid `CACHEDIR.TAG` out, except for the tag. Tags of the root are ignored.
    pub(crate) exclude_caches: bool,
    /// Include extended attributes of entries.
    pub(crate) xattrs: bool,
    /// Number of threads besides the caller's own.
    pub(crate) threads: usize,
    /// Files that are being written, which the walk leaves out.
    pub(crate) outputs: &'a Outputs,
}

/// Files that a build writes or replaces.
#[derive(Default)]
pub(crate) struct Outputs {
    files: Vec<FileId>,
    /// Paths below the source at which a walk found one of them.
    found: Mutex<Vec<Vec<u8>>>,
}

impl Outputs {
    pub(crate) fn new(files: Vec<FileId>) -> Self {
        let found = Mutex::default();
        Self { files, found }
    }

    /// True if the file is an output; its path is recorded.
    fn has(&self, stat: &Stat, path: &[u8]) -> bool {
        let is_output = self.files.contains(&(stat.st_dev, stat.st_ino));
        if is_output {
            let found = self.found.lock();
            found
                .unwrap_or_else(PoisonError::into_inner)
                .push(path.to_vec());
        }
        is_output
    }

    /// Returns the paths recorded since the last call, ascending.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        let found = self.found.lock();
        let mut found = std::mem::take(&mut *found.unwrap_or_else(PoisonError::into_inner));
        found.sort_unstable();
        found
    }
}

/// Listed entry of a directory.
struct ListedEntry {
    /// Range of its name in the chunk's names, without the NUL.
    name: std::ops::Range<usize>,
    kind: Kind,
    meta: Meta,
    xattrs: Pairs,
    content: Content,
    /// Device and inode number of a file with several names.
    links: Option<(u64, u64)>,
    /// The entry is a directory to be listed.
    enter: bool,
}

/// Consecutive entries of a directory, by ascending name.
struct Chunk {
    names: Vec<u8>,
    entries: Vec<ListedEntry>,
    /// Number of the first directory among them to be listed; the others follow.
    first_dir: u64,
}

/// Directory to be listed: path of its parent, and its name.
struct PendingDir {
    parent: Arc<[u8]>,
    name: Box<[u8]>,
}

impl PendingDir {
    fn path(&self) -> Vec<u8> {
        let mut path = self.parent.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.name);
        path
    }
}

/// State of a directory's listing.
enum Listing {
    /// The listing has not begun.
    Waiting(PendingDir),
    /// A thread lists the directory. Holds chunks that the caller has not taken.
    InProgress(VecDeque<Chunk>),
    /// The listing ended with this result.
    Listed(VecDeque<Chunk>, Result<()>),
}

#[derive(Default)]
struct WalkState {
    /// Listings by number. The caller removes them as it takes them.
    listings: HashMap<u64, Listing>,
    /// Numbers of directories to be listed, including some already taken by the caller.
    stack: Vec<u64>,
    next_dir: u64,
    /// Number of entries that wait for the caller.
    queued: usize,
    /// Directory that the caller waits for.
    awaited: Option<u64>,
    closed: bool,
}

impl WalkState {
    /// Assigns numbers to the directories of a chunk and queues them for listing.
    fn open(&mut self, path: &Arc<[u8]>, chunk: &mut Chunk) -> usize {
        chunk.first_dir = self.next_dir;
        for found in chunk.entries.iter().filter(|f| f.enter) {
            let task = PendingDir {
                parent: Arc::clone(path),
                name: chunk.names[found.name.clone()].into(),
            };
            self.listings.insert(self.next_dir, Listing::Waiting(task));
            self.next_dir += 1;
        }
        // The first directory is on top, because it is needed first.
        self.stack.extend((chunk.first_dir..self.next_dir).rev());
        (self.next_dir - chunk.first_dir) as usize
    }
}

impl WalkState {
    /// True if the caller waits for this directory and no chunk is ready.
    fn is_starving(&self, id: u64) -> bool {
        let nothing = matches!(self.listings.get(&id), Some(Listing::InProgress(chunks)) if chunks.is_empty());
        self.awaited == Some(id) && nothing
    }
}

struct WalkShared {
    state: Mutex<WalkState>,
    /// Signals the threads: a directory is queued, the queue has shrunk, or the walk has ended.
    work: Condvar,
    /// Signals the caller: a chunk of the directory it waits for is ready.
    ready: Condvar,
}

impl WalkShared {
    fn lock(&self) -> MutexGuard<'_, WalkState> {
        // Only allocation can panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait<'a>(on: &Condvar, state: MutexGuard<'a, WalkState>) -> MutexGuard<'a, WalkState> {
    on.wait(state).unwrap_or_else(PoisonError::into_inner)
}

/// Ends the threads when the caller returns for any reason.
struct CloseOnDrop<'a>(&'a WalkShared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

impl DirSource {
    /// Adds the root and everything below it to `tree`. Calls `file` after the first name of each
    /// regular file.
    pub(crate) fn walk(
        &self,
        options: &WalkOptions<'_>,
        tree: &mut Tree,
        progress: &Progress,
        file: &mut dyn FnMut(&Tree, InodeId) -> Result<()>,
    ) -> Result<()> {
        let root = retry(|| rustix::fs::fstat(&self.root))
            .map_err(|e| self.fail(b"", "cannot examine", e))?;
        let mut xattrs = Pairs::new();
        if options.xattrs {
            xattrs = XattrReader::default()
                .read(self.root.as_fd(), None)
                .map_err(|e| self.fail(b"", "cannot read attributes", e))?;
        }
        tree.describe(ROOT, meta(&root), xattrs)?;
        progress.add_entry();
        let shared = WalkShared {
            state: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
        };
        let lister = || Lister {
            source: self,
            options,
            device: root.st_dev,
            attributes: XattrReader::default(),
            buffer: Vec::with_capacity(NAMES_BUFFER),
        };
        let root = PendingDir {
            parent: Arc::from(&[][..]),
            name: Box::default(),
        };
        {
            let mut state = shared.lock();
            state.listings.insert(0, Listing::Waiting(root));
            state.stack.push(0);
            state.next_dir = 1;
        }
        std::thread::scope(|scope| {
            let _close = CloseOnDrop(&shared);
            threads::start(scope, "walk", options.threads, || {
                let mut lister = lister();
                if options.xattrs {
                    lister.attributes.own_directory();
                }
                work(&shared, lister);
            });
            let mut merge = OrderedMerge {
                tree,
                progress,
                file,
                links: HashMap::new(),
                dirs: vec![(0, Some(ROOT))],
            };
            merge.run(&shared, lister())
        })
    }

    fn fail(&self, path: &[u8], what: &str, e: Errno) -> Error {
        Error::io(self.display(path), what, e.into())
    }
}

/// Body of a thread: lists queued directories until the queue of entries is full.
fn work(shared: &WalkShared, mut lister: Lister<'_>) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            return;
        }
        let next = if state.queued < QUEUED_ENTRIES_MAX {
            state.stack.pop()
        } else {
            None
        };
        let Some(id) = next else {
            state = wait(&shared.work, state);
            continue;
        };
        let Some(listing @ Listing::Waiting(_)) = state.listings.get_mut(&id) else {
            // The caller has taken this directory.
            continue;
        };
        let Listing::Waiting(task) =
            std::mem::replace(listing, Listing::InProgress(VecDeque::new()))
        else {
            unreachable!("matched above")
        };
        drop(state);
        let path: Arc<[u8]> = task.path().into();
        let listed = catch_unwind(AssertUnwindSafe(|| {
            lister.list(&path, &mut |mut chunk| {
                let mut state = shared.lock();
                // Another directory may be needed first and fill the queue.
                while state.queued >= QUEUED_ENTRIES_MAX && !state.is_starving(id) && !state.closed
                {
                    state = wait(&shared.work, state);
                }
                if state.open(&path, &mut chunk) > 0 {
                    shared.work.notify_all();
                }
                state.queued += chunk.entries.len();
                if let Some(Listing::InProgress(chunks)) = state.listings.get_mut(&id) {
                    chunks.push_back(chunk);
                }
                if state.awaited == Some(id) {
                    shared.ready.notify_one();
                }
                Ok(!state.closed)
            })
        }));
        let listed = listed.unwrap_or_else(|_| {
            Err(Error::limit(
                "build",
                "a thread of the directory walk panicked; this is a bug",
            ))
        });
        state = shared.lock();
        if let Some(listing) = state.listings.get_mut(&id)
            && let Listing::InProgress(chunks) = listing
        {
            let chunks = std::mem::take(chunks);
            *listing = Listing::Listed(chunks, listed);
        }
        if state.awaited == Some(id) {
            shared.ready.notify_one();
        }
    }
}

/// The caller's side: takes directories in the order of the tree.
struct OrderedMerge<'a> {
    tree: &'a mut Tree,
    progress: &'a Progress,
    file: &'a mut dyn FnMut(&Tree, InodeId) -> Result<()>,
    /// First inode of each source file that has several names.
    links: HashMap<(u64, u64), InodeId>,
    /// Stack of pending directories. Those below a whiteout have no inode.
    dirs: Vec<(u64, Option<InodeId>)>,
}

impl OrderedMerge<'_> {
    fn run(&mut self, shared: &WalkShared, mut lister: Lister<'_>) -> Result<()> {
        while let Some((id, dir)) = self.dirs.pop() {
            let before = self.dirs.len();
            let mut state = shared.lock();
            match state.listings.remove(&id) {
                Some(Listing::Waiting(task)) => {
                    drop(state);
                    let path: Arc<[u8]> = task.path().into();
                    lister.list(&path, &mut |mut chunk| {
                        if shared.lock().open(&path, &mut chunk) > 0 {
                            shared.work.notify_all();
                        }
                        self.add(dir, chunk)?;
                        Ok(true)
                    })?;
                }
                other => {
                    if let Some(listing) = other {
                        state.listings.insert(id, listing);
                    }
                    state.awaited = Some(id);
                    drop(state);
                    self.take(shared, id, dir)?;
                }
            }
            self.dirs[before..].reverse();
        }
        Ok(())
    }

    /// Takes a directory that a thread lists, chunk by chunk.
    fn take(&mut self, shared: &WalkShared, id: u64, dir: Option<InodeId>) -> Result<()> {
        let mut state = shared.lock();
        loop {
            let listing = state.listings.get_mut(&id);
            let chunk = match listing {
                Some(Listing::InProgress(chunks) | Listing::Listed(chunks, _)) => {
                    chunks.pop_front()
                }
                _ => None,
            };
            if let Some(chunk) = chunk {
                let full = state.queued >= QUEUED_ENTRIES_MAX;
                state.queued -= chunk.entries.len();
                if full && state.queued < QUEUED_ENTRIES_MAX {
                    shared.work.notify_all();
                }
                drop(state);
                self.add(dir, chunk)?;
                state = shared.lock();
                continue;
            }
            if let Some(Listing::Listed(..)) = state.listings.get(&id) {
                state.awaited = None;
                if let Some(Listing::Listed(_, end)) = state.listings.remove(&id) {
                    return end;
                }
            }
            // The thread may be blocked by the limit although its directory is needed.
            shared.work.notify_all();
            state = wait(&shared.ready, state);
        }
    }

    fn add(&mut self, dir: Option<InodeId>, chunk: Chunk) -> Result<()> {
        let mut id = chunk.first_dir;
        for found in chunk.entries {
            self.progress.check()?;
            let mut inode = None;
            if let Some(dir) = dir {
                self.progress.add_entry();
                let first = found.links.and_then(|l| self.links.get(&l).copied());
                let is_file = matches!(found.kind, Kind::File { .. });
                let new = match (first, found.kind) {
                    (Some(first), _) => NewEntry::Link(first),
                    (None, Kind::Dir) => NewEntry::Dir(found.meta, found.xattrs),
                    (None, kind) => NewEntry::Other(kind, found.meta, found.xattrs, found.content),
                };
                inode = self.tree.add_child(dir, &chunk.names[found.name], new)?;
                if let (Some(inode), None) = (inode, first) {
                    if let Some(links) = found.links {
                        self.links.insert(links, inode);
                    }
                    if is_file {
                        (self.file)(self.tree, inode)?;
                    }
                }
            }
            if found.enter {
                self.dirs.push((id, inode));
                id += 1;
            }
        }
        Ok(())
    }
}

/// Reader of directories, with reusable buffers.
struct Lister<'a> {
    source: &'a DirSource,
    options: &'a WalkOptions<'a>,
    /// Device of the root's filesystem.
    device: u64,
    attributes: XattrReader,
    buffer: Vec<u8>,
}

impl Lister<'_> {
    /// Calls `each` with the entries of a directory until it returns false.
    fn list(&mut self, dir_path: &[u8], each: &mut dyn FnMut(Chunk) -> Result<bool>) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.source.open_at(dir_path, flags);
        let Some(dir) = self.readable(dir_path, "cannot open directory", opened)? else {
            return Ok(());
        };
        self.attributes.enter(&dir);
        let listed = self.names_of(&dir);
        let Some((names, mut order)) = self.readable(dir_path, "cannot list directory", listed)?
        else {
            return Ok(());
        };
        let name = |at: u32| {
            CStr::from_bytes_until_nul(&names[at as usize..]).expect("each name ends with a NUL")
        };
        if self.options.exclude_caches
            && !dir_path.is_empty()
            && order.iter().any(|at| name(*at) == CACHE_TAG)
            && is_cache_tag(&dir)
        {
            order.retain(|at| name(*at) == CACHE_TAG);
        }
        order.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
        let mut path = dir_path.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let stem = path.len();
        for part in order.chunks(CHUNK_ENTRIES) {
            let mut chunk = Chunk {
                names: Vec::new(),
                entries: Vec::with_capacity(part.len()),
                first_dir: 0,
            };
            for at in part {
                let name = name(*at);
                path.truncate(stem);
                path.extend_from_slice(name.to_bytes());
                if (self.options.exclude)(&path) {
                    continue;
                }
                let start = chunk.names.len();
                let range = start..start + name.count_bytes();
                let examined = self.examine(&dir, name, range, &path);
                let found = match examined {
                    Ok(found) => found,
                    Err((what, e)) => self.readable(&path, what, Err(e))?,
                };
                if let Some(found) = found {
                    chunk.names.extend_from_slice(name.to_bytes());
                    chunk.entries.push(found);
                }
            }
            if !each(chunk)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns `None` if a path that cannot be read is left out.
    fn readable<T>(&self, path: &[u8], what: &str, read: Result<T, Errno>) -> Result<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(e) if self.source.leaves_out(path, what, &e.into()) => Ok(None),
            Err(e) => Err(self.source.fail(path, what, e)),
        }
    }

    /// NUL-terminated names of a directory, and the start of each.
    fn names_of(&mut self, dir: &OwnedFd) -> Result<(Vec<u8>, Vec<u32>), Errno> {
        let (mut names, mut starts) = (Vec::new(), Vec::new());
        let mut list = RawDir::new(dir, self.buffer.spare_capacity_mut());
        while let Some(entry) = list.next() {
            let entry = match entry {
                Err(Errno::INTR) => continue,
                entry => entry?,
            };
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                starts.push(u32::try_from(names.len()).map_err(|_| Errno::OVERFLOW)?);
                names.extend_from_slice(name.to_bytes_with_nul());
            }
        }
        Ok((names, starts))
    }

    /// Reads the metadata of an entry. `None` if it is an output of the build, or was left
    /// out. An error comes with what failed.
    fn examine(
        &mut self,
        dir: &OwnedFd,
        name: &CStr,
        range: std::ops::Range<usize>,
        path: &[u8],
    ) -> Result<Option<ListedEntry>, (&'static str, Errno)> {
        let failed = |what: &'static str| move |e: Errno| (what, e);
        let stat = retry(|| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
            .map_err(failed("vanished or cannot be examined"))?;
        if self.options.outputs.has(&stat, path) || self.source.is_left_out(path) {
            return Ok(None);
        }
        let kind = kind_of(dir, name, &stat).map_err(failed("cannot read symbolic link"))?;
        let mut xattrs = Pairs::new();
        if self.options.xattrs {
            xattrs = self
                .attributes
                .read(dir.as_fd(), Some(name))
                .map_err(failed("cannot read attributes"))?;
        }
        let content = match kind {
            Kind::File { size } if size > 0 => {
                // Fewer blocks than the size requires: the file may have holes.
                let mut content = Content::InSource;
                if (stat.st_blocks as u64).saturating_mul(512) < size {
                    let runs = data_runs(dir, name, size).map_err(failed("cannot read"))?;
                    if runs.iter().map(|r| r.len).sum::<u64>() < size {
                        content = content.sparse(runs);
                    }
                }
                content
            }
            _ => Content::None,
        };
        if content == Content::InSource && self.source.may_leave_out() {
            self.source
                .open_named(dir, name)
                .map_err(failed("cannot open"))?;
        }
        Ok(Some(ListedEntry {
            name: range,
            links: (stat.st_nlink > 1 && kind != Kind::Dir).then_some((stat.st_dev, stat.st_ino)),
            enter: kind == Kind::Dir
                && !(self.options.one_file_system && stat.st_dev != self.device),
            kind,
            meta: meta(&stat),
            xattrs,
            content,
        }))
    }
}

/// True if the tag in a directory marks it as a cache. A tag that cannot be read does not.
fn is_cache_tag(dir: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(tag) = retry(|| rustix::fs::openat(dir, CACHE_TAG, flags, Mode::empty())) else {
        return false;
    };
    let is_file = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let mut start = [0; CACHE_SIGNATURE.len()];
    rustix::fs::fstat(&tag).is_ok_and(is_file)
        && File::from(tag).read_exact_at(&mut start, 0).is_ok()
        && start == *CACHE_SIGNATURE
}

fn meta(stat: &Stat) -> Meta {
    Meta {
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
        mtime_nsec: stat.st_mtime_nsec as u32,
    }
}

fn kind_of(dir: &OwnedFd, name: &CStr, stat: &Stat) -> Result<Kind, Errno> {
    let device = Device {
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink(
            retry(|| rustix::fs::readlinkat(dir, name, Vec::with_capacity(256)))?.into_bytes(),
        ),
        FileType::CharacterDevice => Kind::Char(device),
        FileType::BlockDevice => Kind::Block(device),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::RegularFile | FileType::Unknown => Kind::File {
            size: stat.st_size as u64,
        },
    })
}

fn data_runs(dir: &OwnedFd, name: &CStr, size: u64) -> Result<Vec<DataRun>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = retry(|| rustix::fs::openat(dir, name, flags, Mode::empty()))?;
    runs_of(&file, size)
}

/// Data runs of a file. If the filesystem does not support `SEEK_DATA`, the whole file is one run.
pub(crate) fn runs_of(file: impl AsFd, size: u64) -> Result<Vec<DataRun>, Errno> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match retry(|| rustix::fs::seek(&file, SeekFrom::Data(at))) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            Err(e) => return Err(e),
        };
        let end = match retry(|| rustix::fs::seek(&file, SeekFrom::Hole(start))) {
            Ok(end) => end.min(size),
            Err(Errno::INVAL) => size,
            Err(e) => return Err(e),
        };
        if start >= size || end <= start {
            break;
        }
        runs.push(DataRun {
            file_offset: start,
            source_offset: start,
            len: end - start,
        });
        at = end;
    }
    Ok(runs)
}

/// Reader of extended attributes, with reusable buffers.
///
/// The system calls have no `*at` variants, so entries need a path. A name alone suffices where the
/// thread has its own working directory and changed to the parent. Otherwise the path goes through
/// `/proc/self/fd`, which takes three times as long.
#[derive(Default)]
struct XattrReader {
    /// The thread has a working directory of its own.
    owns_directory: bool,
    /// The working directory is the directory being listed.
    is_inside: bool,
    path: Vec<u8>,
    names: Vec<u8>,
    value: Vec<u8>,
}

/// Maximum length of a name list and of a value in Linux. Unit: bytes.
const XATTR_MAX: usize = 65536;

impl XattrReader {
    /// Gives the calling thread its own working directory. If that is not permitted, paths go
    /// through `/proc/self/fd`.
    #[expect(
        deprecated,
        reason = "only unsharing of file descriptors is unsafe, which is not requested"
    )]
    fn own_directory(&mut self) {
        self.owns_directory = rustix::thread::unshare(UnshareFlags::FS).is_ok();
    }

    /// Prepares for reading attributes of entries in `dir`.
    fn enter(&mut self, dir: &OwnedFd) {
        self.is_inside = self.owns_directory && rustix::process::fchdir(dir).is_ok();
    }

    /// Sorted attributes of `name` in the directory that was [`enter`](Self::enter)ed, or of `dir`
    /// itself.
    fn read(&mut self, dir: BorrowedFd<'_>, name: Option<&CStr>) -> Result<Pairs, Errno> {
        self.path.clear();
        if name.is_none() || !self.is_inside {
            self.path.extend_from_slice(b"/proc/self/fd/");
            self.path
                .extend_from_slice(dir.as_raw_fd().to_string().as_bytes());
            self.path.push(b'/');
        }
        if let Some(name) = name {
            self.path.extend_from_slice(name.to_bytes());
        }
        self.names.resize(1024, 0);
        let path = &self.path[..];
        let list = |names: &mut [u8]| match name {
            // Follows the `/proc` link, but no other link.
            None => retry(|| rustix::fs::listxattr(path, &mut *names)),
            Some(_) => retry(|| rustix::fs::llistxattr(path, &mut *names)),
        };
        let n = match list(&mut self.names[..]) {
            Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(Errno::RANGE) => {
                self.names.resize(XATTR_MAX, 0);
                list(&mut self.names[..])?
            }
            other => other?,
        };
        let mut out = Vec::new();
        for attribute in self.names[..n].split(|b| *b == 0).filter(|n| !n.is_empty()) {
            self.value.resize(256, 0);
            let get = |value: &mut [u8]| match name {
                None => retry(|| rustix::fs::getxattr(path, attribute, &mut *value)),
                Some(_) => retry(|| rustix::fs::lgetxattr(path, attribute, &mut *value)),
            };
            let n = match get(&mut self.value[..]) {
                Err(Errno::RANGE) => {
                    self.value.resize(XATTR_MAX, 0);
                    get(&mut self.value[..])?
                }
                // The attribute was removed in between, or needs privileges.
                Err(Errno::NODATA) => continue,
                other => other?,
            };
            out.push((attribute.to_vec(), self.value[..n].to_vec()));
        }
        out.sort_unstable();
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Whiteouts;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// Creates directories `d0`, `d1`, ... with `files` files each.
    fn directories(dirs: usize, files: usize) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for d in 0..dirs {
            let dir = root.path().join(format!("d{d}"));
            std::fs::create_dir(&dir).unwrap();
            for f in 0..files {
                std::fs::write(dir.join(format!("f{f}")), "").unwrap();
            }
        }
        root
    }

    /// Walks a tree and returns the paths of its files in order.
    fn walk(
        root: &Path,
        threads: usize,
        exclude: &(dyn Fn(&[u8]) -> bool + Sync),
        progress: &Progress,
        each: &mut dyn FnMut(),
    ) -> Result<Vec<String>> {
        let options = WalkOptions {
            exclude,
            one_file_system: false,
            exclude_caches: false,
            xattrs: true,
            threads,
            outputs: &Outputs::default(),
        };
        let mut paths = Vec::new();
        let mut tree = Tree::new(Whiteouts::Keep);
        DirSource::open(root)?.walk(&options, &mut tree, progress, &mut |tree, file| {
            each();
            paths.push(String::from_utf8(tree.path(file)).unwrap());
            Ok(())
        })?;
        Ok(paths)
    }

    fn on_a_walking_thread() -> bool {
        let current = std::thread::current();
        current.name().is_some_and(|n| n.starts_with("walk-"))
    }

    /// The caller stops at the first file until the threads reach the limit. They never exceed it,
    /// and the order is that of one thread.
    #[test]
    fn threads_do_not_exceed_the_queue_limit() {
        let root = directories(6, 600);
        let all = walk(root.path(), 0, &|_| false, &Progress::default(), &mut || ()).unwrap();
        assert_eq!(all.len(), 3600);
        for threads in [1, 3] {
            let (listed, progress) = (AtomicUsize::new(0), Progress::default());
            // The limit, plus chunks in progress: one per thread and caller, one that exceeds the
            // limit, one that the caller needs in spite of it, and the current one.
            let most = QUEUED_ENTRIES_MAX + (threads + 4) * CHUNK_ENTRIES;
            let exclude = |_: &[u8]| {
                let queued = listed.fetch_add(1, SeqCst) + 1;
                let queued = queued - (progress.snapshot().entries as usize).min(queued);
                assert!(queued <= most, "{queued} of {most}");
                false
            };
            let mut first = true;
            let paths = walk(root.path(), threads, &exclude, &progress, &mut || {
                while first && listed.load(SeqCst) < QUEUED_ENTRIES_MAX {
                    std::thread::yield_now();
                }
                first = false;
            });
            assert_eq!(paths.unwrap(), all);
        }
    }

    /// Files in two directories vanish between listing and examination. The error is the first in
    /// the order of the tree, independent of timing.
    #[test]
    fn the_first_error_in_tree_order_is_reported() {
        for threads in [0, 1, 3] {
            for _ in 0..20 {
                let root = directories(8, 3);
                let exclude = |path: &[u8]| {
                    if matches!(path, b"d3/f1" | b"d6/f0") {
                        let path = std::str::from_utf8(path).unwrap();
                        std::fs::remove_file(root.path().join(path)).unwrap();
                    }
                    false
                };
                let end = walk(
                    root.path(),
                    threads,
                    &exclude,
                    &Progress::default(),
                    &mut || (),
                );
                let message = end.unwrap_err().to_string();
                assert!(message.contains("/d3/f1: vanished"), "{message}");
            }
        }
    }

    #[test]
    fn a_vanished_directory_is_an_error() {
        let root = directories(2, 1);
        let exclude = |path: &[u8]| {
            if path == b"d0/f0" {
                std::fs::remove_dir_all(root.path().join("d1")).unwrap();
            }
            false
        };
        let end = walk(root.path(), 0, &exclude, &Progress::default(), &mut || ());
        let message = end.unwrap_err().to_string();
        assert!(
            message.contains("/d1: cannot open directory: "),
            "{message}"
        );
    }

    /// An error of the callback and a stop request both end the walk while threads run.
    #[test]
    fn a_callback_error_and_a_stop_request_end_the_walk() {
        let root = directories(6, 600);
        for threads in [0, 3] {
            let progress = Progress::default();
            let stop = walk(root.path(), threads, &|_| false, &progress, &mut || {
                progress.stop();
            });
            let is_stop = |e: &Error| matches!(e, Error::Io(_, e) if e.kind() == std::io::ErrorKind::Interrupted);
            assert!(stop.is_err_and(|e| is_stop(&e)));
            let options = WalkOptions {
                exclude: &|_| false,
                one_file_system: false,
                exclude_caches: false,
                xattrs: false,
                threads,
                outputs: &Outputs::default(),
            };
            let mut tree = Tree::new(Whiteouts::Keep);
            let source = DirSource::open(root.path()).unwrap();
            let progress = Progress::default();
            let end = source.walk(&options, &mut tree, &progress, &mut |_, _| {
                Err(Error::usage("enough"))
            });
            assert_eq!(
                end.unwrap_err().to_string(),
                Error::usage("enough").to_string()
            );
        }
    }

    /// The caller waits in the first directory until a thread has failed in another one.
    #[test]
    fn a_panicking_thread_is_an_error() {
        let root = directories(8, 3);
        let failed = AtomicBool::new(false);
        let exclude = |path: &[u8]| {
            if path.contains(&b'/') && on_a_walking_thread() {
                failed.store(true, SeqCst);
                panic!("a test of what happens then");
            }
            while path.contains(&b'/') && !failed.load(SeqCst) {
                std::thread::yield_now();
            }
            false
        };
        let end = walk(root.path(), 2, &exclude, &Progress::default(), &mut || ());
        let message = end.unwrap_err().to_string();
        assert!(
            message.contains("a thread of the directory walk panicked"),
            "{message}"
        );
    }
}
