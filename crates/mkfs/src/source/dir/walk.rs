//! A directory and all below it, listed on several threads and seen in one order.
//!
//! ```text
//!  directories to list ──► [threads] ──► chunks of entries, by directory ──► the caller, in the order of the tree
//!          ▲                   │
//!          └── subdirectories ─┘
//! ```
//!
//! Invariants:
//!
//! * The caller sees each directory before what lies in it, names ascending, a directory's entries together and before
//!   what lies deeper, directories in depth-first order: what one thread would see. So the first error it sees is
//!   the same, too.
//! * A directory that nobody has begun when the caller needs it is listed by the caller. So the walk goes on whatever
//!   the threads do, and without threads it is the serial walk.
//! * No more than [`AHEAD_MAX`] entries wait for the caller, and no more descriptors are open than there are threads.

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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tuff_erofs::threads;
use tuff_store::{FileId, retry};

/// Entries that may wait for the caller. A test gets there with fewer.
const AHEAD_MAX: usize = if cfg!(test) { 1 << 10 } else { 32 << 10 };
/// Entries of a directory that are handed over together.
const CHUNK: usize = if cfg!(test) { 1 << 5 } else { 1 << 10 };
/// Buffer for names from the kernel. Unit: bytes.
const NAMES_BUFFER: usize = 32 << 10;

/// What to leave out of a walk, and how to do it.
pub(crate) struct WalkOptions<'a> {
    /// Called with the path of each entry; true leaves it out, with all below it.
    pub(crate) exclude: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// Do not enter directories on other filesystems; they stay as empty directories.
    pub(crate) one_file_system: bool,
    /// Write extended attributes of the sources.
    pub(crate) xattrs: bool,
    /// Threads beside the caller's own.
    pub(crate) threads: usize,
    /// Files that are being written, which the walk leaves out.
    pub(crate) outputs: &'a Outputs,
}

/// The files that a build writes or replaces.
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

    /// True for one of the files, which is noted.
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

    /// The paths that were found since the last call, ascending.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        let found = self.found.lock();
        let mut found = std::mem::take(&mut *found.unwrap_or_else(PoisonError::into_inner));
        found.sort_unstable();
        found
    }
}

/// One entry of a directory.
struct Found {
    /// Where its name lies in the chunk's names, without the NUL.
    name: std::ops::Range<usize>,
    kind: Kind,
    meta: Meta,
    xattrs: Pairs,
    content: Content,
    /// Device and inode number, if it has several names.
    links: Option<(u64, u64)>,
    /// It is a directory to be listed.
    enter: bool,
}

/// Some entries of a directory, names ascending.
struct Chunk {
    names: Vec<u8>,
    entries: Vec<Found>,
    /// Number of the first directory to be listed among them; the others follow.
    first_dir: u64,
}

/// A directory to be listed: the path of its parent, and its name.
struct Task {
    parent: Arc<[u8]>,
    name: Box<[u8]>,
}

impl Task {
    fn path(&self) -> Vec<u8> {
        let mut path = self.parent.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.name);
        path
    }
}

/// A directory on its way from unknown to seen.
enum Slot {
    /// Nobody has begun.
    Waiting(Task),
    /// A thread lists it; chunks that the caller has not seen.
    Begun(VecDeque<Chunk>),
    /// All of it is there, or what went wrong.
    Listed(VecDeque<Chunk>, Result<()>),
}

#[derive(Default)]
struct State {
    /// By number. The caller takes away what it has seen.
    slots: HashMap<u64, Slot>,
    /// Numbers of directories that are waiting; those already taken by the caller are among them.
    stack: Vec<u64>,
    next_dir: u64,
    /// Entries that wait for the caller.
    ahead: usize,
    /// What the caller waits for.
    wanted: Option<u64>,
    closed: bool,
}

impl State {
    /// Gives the directories of a chunk numbers and puts them up for listing.
    fn open(&mut self, path: &Arc<[u8]>, chunk: &mut Chunk) -> usize {
        chunk.first_dir = self.next_dir;
        for found in chunk.entries.iter().filter(|f| f.enter) {
            let task = Task {
                parent: Arc::clone(path),
                name: chunk.names[found.name.clone()].into(),
            };
            self.slots.insert(self.next_dir, Slot::Waiting(task));
            self.next_dir += 1;
        }
        // The first of them on top: it is needed first.
        self.stack.extend((chunk.first_dir..self.next_dir).rev());
        (self.next_dir - chunk.first_dir) as usize
    }
}

impl State {
    /// True if the caller waits for this directory and has nothing of it.
    fn starves(&self, id: u64) -> bool {
        let nothing = matches!(self.slots.get(&id), Some(Slot::Begun(chunks)) if chunks.is_empty());
        self.wanted == Some(id) && nothing
    }
}

struct Shared {
    state: Mutex<State>,
    /// For the threads: a directory waits, there is room again, or it is over.
    work: Condvar,
    /// For the caller: something of what it wants is there.
    ready: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock but allocation.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait<'a>(on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    on.wait(state).unwrap_or_else(PoisonError::into_inner)
}

/// Tells the threads that it is over, however the caller ends.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

impl DirSource {
    /// Adds the root and everything below it to `tree`, and calls `file` after each regular file that came with its first
    /// name.
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
            xattrs = Attributes::default()
                .of(self.root.as_fd(), None)
                .map_err(|e| self.fail(b"", "cannot read attributes", e))?;
        }
        tree.describe(ROOT, meta(&root), xattrs)?;
        progress.add_entry();
        let shared = Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
        };
        let lister = || Lister {
            source: self,
            options,
            device: root.st_dev,
            attributes: Attributes::default(),
            buffer: Vec::with_capacity(NAMES_BUFFER),
        };
        let root = Task {
            parent: Arc::from(&[][..]),
            name: Box::default(),
        };
        {
            let mut state = shared.lock();
            state.slots.insert(0, Slot::Waiting(root));
            state.stack.push(0);
            state.next_dir = 1;
        }
        std::thread::scope(|scope| {
            let _close = Close(&shared);
            threads::start(scope, "walk", options.threads, || {
                let mut lister = lister();
                if options.xattrs {
                    lister.attributes.own_directory();
                }
                work(&shared, lister);
            });
            let mut merge = Merge {
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

/// A thread: lists what waits, as far ahead of the caller as it may.
fn work(shared: &Shared, mut lister: Lister<'_>) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            return;
        }
        let next = if state.ahead < AHEAD_MAX {
            state.stack.pop()
        } else {
            None
        };
        let Some(id) = next else {
            state = wait(&shared.work, state);
            continue;
        };
        let Some(slot @ Slot::Waiting(_)) = state.slots.get_mut(&id) else {
            // The caller was faster.
            continue;
        };
        let Slot::Waiting(task) = std::mem::replace(slot, Slot::Begun(VecDeque::new())) else {
            unreachable!("matched above")
        };
        drop(state);
        let path: Arc<[u8]> = task.path().into();
        let listed = catch_unwind(AssertUnwindSafe(|| {
            lister.list(&path, &mut |mut chunk| {
                let mut state = shared.lock();
                // Another directory may be wanted before this one, and take all the room.
                while state.ahead >= AHEAD_MAX && !state.starves(id) && !state.closed {
                    state = wait(&shared.work, state);
                }
                if state.open(&path, &mut chunk) > 0 {
                    shared.work.notify_all();
                }
                state.ahead += chunk.entries.len();
                if let Some(Slot::Begun(chunks)) = state.slots.get_mut(&id) {
                    chunks.push_back(chunk);
                }
                if state.wanted == Some(id) {
                    shared.ready.notify_one();
                }
                Ok(!state.closed)
            })
        }));
        let listed = listed.unwrap_or_else(|_| {
            Err(Error::limit(
                "build",
                "a walking thread failed for a reason of its own; this is a bug",
            ))
        });
        state = shared.lock();
        if let Some(slot) = state.slots.get_mut(&id)
            && let Slot::Begun(chunks) = slot
        {
            let chunks = std::mem::take(chunks);
            *slot = Slot::Listed(chunks, listed);
        }
        if state.wanted == Some(id) {
            shared.ready.notify_one();
        }
    }
}

/// The caller's side: takes directories in the order of the tree.
struct Merge<'a> {
    tree: &'a mut Tree,
    progress: &'a Progress,
    file: &'a mut dyn FnMut(&Tree, InodeId) -> Result<()>,
    /// First inode of each file of the source that has several names.
    links: HashMap<(u64, u64), InodeId>,
    /// Directories to come, the next one last. Without an inode: below one that was a whiteout.
    dirs: Vec<(u64, Option<InodeId>)>,
}

impl Merge<'_> {
    fn run(&mut self, shared: &Shared, mut lister: Lister<'_>) -> Result<()> {
        while let Some((id, dir)) = self.dirs.pop() {
            let before = self.dirs.len();
            let mut state = shared.lock();
            match state.slots.remove(&id) {
                Some(Slot::Waiting(task)) => {
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
                begun => {
                    if let Some(slot) = begun {
                        state.slots.insert(id, slot);
                    }
                    state.wanted = Some(id);
                    drop(state);
                    self.take(shared, id, dir)?;
                }
            }
            self.dirs[before..].reverse();
        }
        Ok(())
    }

    /// Takes a directory that a thread lists, chunk by chunk.
    fn take(&mut self, shared: &Shared, id: u64, dir: Option<InodeId>) -> Result<()> {
        let mut state = shared.lock();
        loop {
            let slot = state.slots.get_mut(&id);
            let chunk = match slot {
                Some(Slot::Begun(chunks) | Slot::Listed(chunks, _)) => chunks.pop_front(),
                _ => None,
            };
            if let Some(chunk) = chunk {
                let full = state.ahead >= AHEAD_MAX;
                state.ahead -= chunk.entries.len();
                if full && state.ahead < AHEAD_MAX {
                    shared.work.notify_all();
                }
                drop(state);
                self.add(dir, chunk)?;
                state = shared.lock();
                continue;
            }
            if let Some(Slot::Listed(..)) = state.slots.get(&id) {
                state.wanted = None;
                if let Some(Slot::Listed(_, end)) = state.slots.remove(&id) {
                    return end;
                }
            }
            // It may wait for room although it is the one that is wanted.
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

/// Lists directories.
struct Lister<'a> {
    source: &'a DirSource,
    options: &'a WalkOptions<'a>,
    /// The root's filesystem.
    device: u64,
    attributes: Attributes,
    buffer: Vec<u8>,
}

impl Lister<'_> {
    /// Calls `each` with the entries of a directory until it says false.
    fn list(&mut self, dir_path: &[u8], each: &mut dyn FnMut(Chunk) -> Result<bool>) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = self
            .source
            .open_at(dir_path, flags)
            .map_err(|e| self.source.fail(dir_path, "cannot open directory", e))?;
        self.attributes.enter(&dir);
        let (names, mut order) = self
            .names_of(&dir)
            .map_err(|e| self.source.fail(dir_path, "cannot list directory", e))?;
        let name = |at: u32| {
            CStr::from_bytes_until_nul(&names[at as usize..]).expect("each name ends with a NUL")
        };
        order.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
        let mut path = dir_path.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let stem = path.len();
        for part in order.chunks(CHUNK) {
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
                if let Some(found) = self.examine(&dir, name, range, &path)? {
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

    /// The names in a directory, each with a NUL behind it, and where they begin.
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

    /// The entry, unless it is an output of the build.
    fn examine(
        &mut self,
        dir: &OwnedFd,
        name: &CStr,
        range: std::ops::Range<usize>,
        path: &[u8],
    ) -> Result<Option<Found>> {
        let fail = |what: &str, e: Errno| self.source.fail(path, what, e);
        let stat = retry(|| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
            .map_err(|e| fail("vanished or cannot be examined", e))?;
        if self.options.outputs.has(&stat, path) {
            return Ok(None);
        }
        let kind = kind_of(dir, name, &stat).map_err(|e| fail("cannot read symbolic link", e))?;
        let mut xattrs = Pairs::new();
        if self.options.xattrs {
            xattrs = self
                .attributes
                .of(dir.as_fd(), Some(name))
                .map_err(|e| fail("cannot read attributes", e))?;
        }
        let content = match kind {
            Kind::File { size } if size > 0 => {
                // Fewer blocks than its size: it may have holes.
                let mut content = Content::InSource;
                if (stat.st_blocks as u64).saturating_mul(512) < size {
                    let runs = data_runs(dir, name, size).map_err(|e| fail("cannot read", e))?;
                    if runs.iter().map(|r| r.len).sum::<u64>() < size {
                        content = Content::Sparse(runs.into());
                    }
                }
                content
            }
            _ => Content::None,
        };
        Ok(Some(Found {
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

/// The runs of a file that hold data. Where the filesystem cannot tell, all of it.
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

/// Reads attributes, with buffers that are used again.
///
/// There is no call of old that takes a directory and a name, so a path has to lead there: a name alone, where this thread has a
/// working directory to itself and is in that one; else by the directory's handle, which takes three times as long.
#[derive(Default)]
struct Attributes {
    /// The thread's working directory is nobody else's.
    owns_directory: bool,
    /// It is the directory whose entries are asked for.
    is_inside: bool,
    path: Vec<u8>,
    names: Vec<u8>,
    value: Vec<u8>,
}

/// Longest list of names, and longest value, that Linux gives. Unit: bytes.
const XATTR_MAX: usize = 65536;

impl Attributes {
    /// Gives the calling thread, which does nothing but list, a working directory of its own. Where that is not allowed, all goes by handles.
    #[expect(
        deprecated,
        reason = "what is unsafe is to part with open files, which is not asked for"
    )]
    fn own_directory(&mut self) {
        self.owns_directory = rustix::thread::unshare(UnshareFlags::FS).is_ok();
    }

    /// The entries of `dir` come next.
    fn enter(&mut self, dir: &OwnedFd) {
        self.is_inside = self.owns_directory && rustix::process::fchdir(dir).is_ok();
    }

    /// All attributes of `name` in `dir`, which was [`enter`](Self::enter)ed, or of `dir` itself, sorted.
    fn of(&mut self, dir: BorrowedFd<'_>, name: Option<&CStr>) -> Result<Pairs, Errno> {
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
            // Follows the link that stands for the handle, and no other.
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
                // Taken away between the two calls, or one that only some may read.
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

    /// Directories `d0` and so on with so many files in each.
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

    /// Walks, and returns the paths of files in the order in which they came.
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

    /// The caller stands still at the first file until the threads are as far ahead as they may be; they never get further,
    /// and everything comes in the order of one thread.
    #[test]
    fn threads_stay_within_their_lead() {
        let root = directories(6, 600);
        let all = walk(root.path(), 0, &|_| false, &Progress::default(), &mut || ()).unwrap();
        assert_eq!(all.len(), 3600);
        for threads in [1, 3] {
            let (listed, progress) = (AtomicUsize::new(0), Progress::default());
            // A chunk that each examines, also the caller; one that goes over the edge, one that the caller needs in spite
            // of it, and one that it is at.
            let most = AHEAD_MAX + (threads + 4) * CHUNK;
            let exclude = |_: &[u8]| {
                let ahead = listed.fetch_add(1, SeqCst) + 1;
                let ahead = ahead - (progress.snapshot().entries as usize).min(ahead);
                assert!(ahead <= most, "{ahead} of {most}");
                false
            };
            let mut first = true;
            let paths = walk(root.path(), threads, &exclude, &progress, &mut || {
                while first && listed.load(SeqCst) < AHEAD_MAX {
                    std::thread::yield_now();
                }
                first = false;
            });
            assert_eq!(paths.unwrap(), all);
        }
    }

    /// Files vanish between their listing and their examination, in two directories: the error is the first in the order of
    /// the tree, whoever met which first.
    #[test]
    fn the_first_error_in_the_order_of_the_tree_is_the_one() {
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
                let said = end.unwrap_err().to_string();
                assert!(said.contains("/d3/f1: vanished"), "{said}");
            }
        }
    }

    #[test]
    fn a_directory_that_is_gone_is_an_error_of_the_walk() {
        let root = directories(2, 1);
        let exclude = |path: &[u8]| {
            if path == b"d0/f0" {
                std::fs::remove_dir_all(root.path().join("d1")).unwrap();
            }
            false
        };
        let end = walk(root.path(), 0, &exclude, &Progress::default(), &mut || ());
        let said = end.unwrap_err().to_string();
        assert!(said.contains("/d1: cannot open directory: "), "{said}");
    }

    /// An error of the caller's own, and a request to stop, end it with threads at work.
    #[test]
    fn the_callers_error_and_a_stop_end_the_walk() {
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
    fn a_thread_that_panics_is_an_error_of_the_walk() {
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
        let said = end.unwrap_err().to_string();
        assert!(said.contains("a walking thread failed"), "{said}");
    }
}
