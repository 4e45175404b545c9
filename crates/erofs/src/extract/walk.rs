//! Walk over the tree from the root down. Creates directories immediately and splits files into pieces.

use super::batch::Queue;
use super::filter::{Filter, Verdict};
use super::piece::{BATCH, Piece, PieceSource, Task};
use super::report::Totals;
use super::shared::Shared;
use super::target::{Dir, check_name, create, remove_leftover, show, stage_name};
use super::write::Writer;
use crate::check::marks::SlotMap;
use crate::read::decode;
use crate::read::limits::WorkBudget;
use crate::read::map::{ClusterCoding, Extent, Extents, FileMap, Location};
use crate::read::{DeviceId, FileType, Image, Inode, Nid, Space};
use crate::walk::{path_fits, shortened};
use crate::{Error, Place, Remedy, Result};
use rustix::fs::{self, AtFlags, Mode};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tuff_format::dirent::is_name;
use tuff_store::retry;

/// Maximum length of a piece of uncompressed data, in bytes.
const RAW: u64 = 4 << 20;
/// Number of finished directories that may wait for their attributes before the queue is drained for them.
const DONE: usize = 1 << 14;

/// Number of unreadable blocks after which the rest of a directory is skipped. A damaged directory may claim any number
/// of blocks.
const BAD_BLOCKS: u32 = 64;

/// State of the walk over the tree.
pub(super) struct Walk<'a, 'q> {
    shared: &'a Shared<'a>,
    image: &'a Image,
    filter: &'a Filter,
    queue: &'q Queue<'q>,
    writer: Writer<'a>,
    progress: &'q mut dyn FnMut(&Totals),
    pieces: Vec<Piece>,
    /// Directories with all entries created or queued, leaves first.
    done: Vec<Arc<Dir>>,
    /// Directories that have a temporary name.
    staged: Vec<Arc<Dir>>,
    /// Hard links to create once the file they refer to is complete.
    links: Vec<(Arc<Dir>, Box<[u8]>, Nid)>,
    /// First names of files with several links.
    first: HashMap<Nid, First>,
    seen: [SlotMap; 2],
    path: Vec<u8>,
    names: u64,
    bytes: u64,
    /// Remaining limits of the image.
    listed: WorkBudget,
    content: WorkBudget,
}

/// First name of a file with several links.
struct First {
    dir: Arc<Dir>,
    name: Box<[u8]>,
    /// Number of links not yet found.
    left: u32,
}

/// Returns true for the errors of filesystems without hard links, and of files that have as many as possible.
fn is_refusal(e: &io::Error) -> bool {
    let refusals = [Errno::PERM, Errno::MLINK, Errno::OPNOTSUPP, Errno::NOSYS];
    Errno::from_io_error(e).is_some_and(|e| refusals.contains(&e))
}

/// Reason why [`Walk::step`] left a directory.
enum StepError {
    /// A directory block is unreadable.
    Damage(Error),
    /// An entry failed and ends the extraction. The error names the entry.
    End(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Damage(error)
    }
}

struct Frame {
    inode: Inode,
    dir: Arc<Dir>,
    verdict: Verdict,
    depth: usize,
    block: u64,
    index: usize,
    path_len: usize,
    /// True if the target directory does not represent this inode, so its attributes are not set.
    alias: bool,
    bad_blocks: u32,
}

impl<'a, 'q> Walk<'a, 'q> {
    pub(super) fn new(
        shared: &'a Shared<'a>,
        filter: &'a Filter,
        queue: &'q Queue<'q>,
        progress: &'q mut dyn FnMut(&Totals),
    ) -> Self {
        Self {
            shared,
            image: shared.image,
            filter,
            queue,
            writer: Writer::new(shared),
            progress,
            pieces: Vec::new(),
            done: Vec::new(),
            staged: Vec::new(),
            links: Vec::new(),
            first: HashMap::new(),
            seen: [SlotMap::default(), SlotMap::default()],
            path: Vec::new(),
            names: 0,
            bytes: 0,
            listed: shared.image.name_budget(),
            content: shared.image.content_budget(),
        }
    }

    /// Extracts the tree. If this ends early for any reason, no incomplete file remains.
    pub(super) fn run(mut self) -> Result<()> {
        let result = self.tree();
        if result.is_err() {
            self.shared.stop.store(true, Relaxed);
            let pieces = std::mem::take(&mut self.pieces);
            self.writer.abandon_all(&pieces);
            self.queue.drain(&mut self.writer);
        }
        // Complete files remain, also in incomplete directories.
        let (root, handles) = (&self.shared.root, &mut self.writer.handles);
        let mut named = Ok(());
        for dir in &self.staged {
            let done = handles.finish(root, dir);
            named = named.and(done.map_err(|e| e.within(show(dir, &[]))));
        }
        result.and(named).and(root.finish())
    }

    fn tree(&mut self) -> Result<()> {
        let root = self.image.root()?;
        self.first_visit(&root);
        // The target gets the attributes of the root only if it represents the whole image.
        let mut stack = vec![Frame {
            dir: Dir::top(root.nid(), &self.shared.root),
            inode: root,
            verdict: self.filter.root(),
            depth: 0,
            block: 0,
            index: 0,
            path_len: 0,
            alias: self.shared.options.strip > 0 || !self.filter.is_all(),
            bad_blocks: 0,
        }];
        while let Some(mut frame) = stack.pop() {
            self.go_on()?;
            let entered = match self.step(&mut frame) {
                Ok(entered) => entered,
                Err(StepError::End(e)) => return Err(e),
                Err(StepError::Damage(e)) => {
                    self.shared.fail(self.path.clone(), e)?;
                    // Skip the rest of this block.
                    frame.block += 1;
                    frame.index = 0;
                    frame.bad_blocks = frame.bad_blocks.saturating_add(1);
                    if frame.bad_blocks < BAD_BLOCKS {
                        stack.push(frame);
                        continue;
                    }
                    None
                }
            };
            match entered {
                Some(child) => {
                    stack.push(frame);
                    if stack.len() >= self.image.limits().depth {
                        let limit = self.image.limits().depth;
                        let what = format_args!("nested deeper than the limit depth, {limit}");
                        let path = shortened(&self.path);
                        return Err(Error::limit(
                            Place::path(String::from_utf8_lossy(&path)),
                            what,
                        ));
                    }
                    stack.push(child);
                }
                None => {
                    self.path.truncate(frame.path_len);
                    if !frame.alias {
                        self.done.push(frame.dir);
                    }
                    if self.done.len() >= DONE {
                        self.settle()?;
                    }
                }
            }
        }
        self.settle()
    }

    /// Fails if the extraction is to stop.
    fn go_on(&self) -> Result<()> {
        match self.shared.stopped() {
            true => Err(self.shared.interrupted()),
            false => Ok(()),
        }
    }

    /// Drains the queue, creates hard links and sets the attributes of finished directories.
    fn settle(&mut self) -> Result<()> {
        self.flush();
        self.queue.drain(&mut self.writer);
        self.go_on()?;
        for (dir, name, nid) in std::mem::take(&mut self.links) {
            self.go_on()?;
            if let Err(e) = self.link(&dir, &name, nid) {
                self.shared.fail(dir.path(&name), e)?;
            }
        }
        // Copies instead of links.
        self.flush();
        self.queue.drain(&mut self.writer);
        self.go_on()?;
        for dir in std::mem::take(&mut self.done) {
            self.go_on()?;
            if !dir.is_made() || dir.is_kept() {
                continue;
            }
            if let Err(e) = self.finish_dir(&dir) {
                self.shared.fail(dir.path(&[]), e)?;
            }
        }
        self.staged.retain(|dir| dir.is_staged());
        (self.progress)(&self.shared.totals.get());
        Ok(())
    }

    fn finish_dir(&mut self, dir: &Arc<Dir>) -> Result<()> {
        let inode = self.image.inode(dir.nid)?;
        let fd = self.writer.handles.get(&self.shared.root, dir)?;
        self.shared.set_open(fd.as_fd(), &inode, dir, &[]);
        self.writer.handles.finish(&self.shared.root, dir)
    }

    fn flush(&mut self) {
        if !self.pieces.is_empty() {
            self.queue.add(&mut self.pieces, &mut self.writer);
        }
    }

    /// Continues in a directory until a subdirectory must be entered or no entry is left.
    fn step(&mut self, frame: &mut Frame) -> Result<Option<Frame>, StepError> {
        let dir = self.image.dir(&frame.inode).inspect_err(|_| {
            // The error would be the same for each block.
            frame.bad_blocks = BAD_BLOCKS;
        })?;
        while frame.block < dir.blocks() {
            let held = dir.block(frame.block)?;
            let view = held.view()?;
            while frame.index < view.count() {
                let i = frame.index;
                frame.index += 1;
                let place = || format!("{}: directory block {}", frame.inode.place(), frame.block);
                let entry = view.entry(i).map_err(|e| Error::format(place(), e))?;
                self.listed.take(1).map_err(StepError::End)?;
                self.go_on().map_err(StepError::End)?;
                if matches!(entry.name, b"." | b"..") {
                    continue;
                }
                let path_len = self.path.len();
                if path_len > 0 {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(entry.name);
                let made = if is_name(entry.name) {
                    self.entry(frame, entry.name, entry.nid, path_len)
                } else {
                    Err(Error::corrupt(place(), "a name contains a slash or a NUL"))
                };
                let child = match made {
                    Ok(child) => child,
                    Err(e) => {
                        self.shared
                            .fail(self.path.clone(), e)
                            .map_err(StepError::End)?;
                        None
                    }
                };
                match child {
                    Some(child) => return Ok(Some(child)),
                    None => self.path.truncate(path_len),
                }
            }
            frame.block += 1;
            frame.index = 0;
        }
        Ok(None)
    }

    /// Creates an entry or queues it. Returns the directory to enter, if any.
    fn entry(
        &mut self,
        frame: &Frame,
        name: &[u8],
        nid: Nid,
        path_len: usize,
    ) -> Result<Option<Frame>> {
        let verdict = self.filter.ask(&self.path, frame.verdict);
        if verdict == Verdict::No {
            return Ok(None);
        }
        let inode = self.image.inode(nid)?;
        let depth = frame.depth + 1;
        let stripped = depth <= self.shared.options.strip;
        if inode.is_dir() {
            if !self.first_visit(&inode) {
                let what = "the directory has two names or contains itself";
                return Err(Error::corrupt(inode.place(), what));
            }
            path_fits(self.image, &self.path)?;
            let dir = if stripped {
                frame.dir.clone()
            } else {
                let is_above = verdict == Verdict::Inside && self.shared.options.keep_above;
                Dir::child(&frame.dir, name, nid, is_above)
            };
            if verdict == Verdict::Yes && !stripped {
                self.make_dir(&dir)?;
            }
            return Ok(Some(Frame {
                inode,
                dir,
                verdict,
                depth,
                block: 0,
                index: 0,
                path_len,
                alias: stripped,
                bad_blocks: 0,
            }));
        }
        if verdict == Verdict::Yes && !stripped {
            self.make_dir(&frame.dir)?;
            check_name(&frame.dir, name)?;
            self.count()?;
            match inode.file_type() {
                FileType::File => self.file(&frame.dir, name, &inode)?,
                _ => self.special(&frame.dir, name, &inode)?,
            }
        }
        Ok(None)
    }

    fn count(&mut self) -> Result<()> {
        self.names += 1;
        let limit = self.shared.options.files;
        if self.names > limit {
            let e = Error::limit("", format_args!("more names than {limit}"));
            return Err(e.with_remedy(Remedy::MoreFiles));
        }
        Ok(())
    }

    fn make_dir(&mut self, dir: &Arc<Dir>) -> Result<()> {
        if dir.is_made() {
            return Ok(());
        }
        self.count()?;
        // With stripped components, two directories may be merged into one.
        let merge = self.shared.options.strip > 0;
        let overwrite = self.shared.options.overwrite;
        let handles = &mut self.writer.handles;
        let staged = handles.make(&self.shared.root, dir, overwrite, merge)?;
        self.staged.extend(staged);
        self.shared.totals.directories.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Returns true on the first visit of a directory.
    fn first_visit(&mut self, inode: &Inode) -> bool {
        let map = match inode.space() {
            Space::Image => &mut self.seen[0],
            Space::Metabox => &mut self.seen[1],
        };
        map.start(inode.position())
    }

    fn special(&mut self, dir: &Arc<Dir>, name: &[u8], inode: &Inode) -> Result<()> {
        if self.known(dir, name, inode) {
            return Ok(());
        }
        let above = self.writer.handles.get(&self.shared.root, dir)?;
        let overwrite = self.shared.options.overwrite;
        let totals = &self.shared.totals;
        if inode.file_type() == FileType::Symlink {
            let target = self.image.readlink(inode)?;
            create(&*above, name, overwrite, "creating the symlink", || {
                retry(|| fs::symlinkat(&target[..], &*above, name))
            })?;
            totals.symlinks.fetch_add(1, Relaxed);
        } else {
            let kind = match inode.file_type() {
                FileType::Char => fs::FileType::CharacterDevice,
                FileType::Block => fs::FileType::BlockDevice,
                FileType::Fifo => fs::FileType::Fifo,
                _ => fs::FileType::Socket,
            };
            let (major, minor) = inode.device().unwrap_or((0, 0));
            let device = fs::makedev(major, minor);
            let made = create(
                &*above,
                name,
                overwrite,
                "creating the special file",
                || retry(|| fs::mknodat(&*above, name, kind, Mode::RUSR | Mode::WUSR, device)),
            );
            match made {
                Ok(()) => {}
                // Restricted to root: a refusal, not a failure.
                Err(Error::Io(_, e)) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    self.first.remove(&inode.nid());
                    let kind = inode.file_type().name();
                    let what = format_args!("{kind} not created: {e}");
                    self.shared.problem(dir.path(name), what);
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
            totals.specials.fetch_add(1, Relaxed);
        }
        self.shared.set_entry(above.as_fd(), inode, dir, name);
        Ok(())
    }

    /// Returns true if the inode already has a name. The link to it is then created later.
    fn known(&mut self, dir: &Arc<Dir>, name: &[u8], inode: &Inode) -> bool {
        if inode.nlink() < 2 {
            return false;
        }
        if self.first.contains_key(&inode.nid()) {
            self.links.push((dir.clone(), name.into(), inode.nid()));
            return true;
        }
        let first = First {
            dir: dir.clone(),
            name: name.into(),
            left: inode.nlink() - 1,
        };
        self.first.insert(inode.nid(), first);
        false
    }

    fn link(&mut self, dir: &Arc<Dir>, name: &[u8], nid: Nid) -> Result<()> {
        let Some(first) = self.first.get_mut(&nid) else {
            return Err(Error::usage("the file that it links to was not created"));
        };
        first.left = first.left.saturating_sub(1);
        let last = first.left == 0;
        let (first_dir, first_name) = (first.dir.clone(), first.name.clone());
        let root = &self.shared.root;
        let from = self.writer.handles.get(root, &first_dir)?;
        let to = self.writer.handles.get(root, dir)?;
        let overwrite = self.shared.options.overwrite;
        let linked = create(&*to, name, overwrite, "creating the hard link", || {
            retry(|| fs::linkat(&*from, &*first_name, &*to, name, AtFlags::empty()))
        });
        match linked {
            Ok(()) => {}
            Err(Error::Io(_, e)) if is_refusal(&e) => {
                if last {
                    self.first.remove(&nid);
                }
                return self.copy_link(dir, name, nid, &e);
            }
            Err(e) => {
                let first = show(&first_dir, &first_name);
                return Err(e.within(format_args!("link to {first}")));
            }
        }
        if last {
            self.first.remove(&nid);
        }
        self.shared.totals.links.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Creates a copy of an inode where the filesystem refuses another hard link to it. The content of a file follows in pieces.
    fn copy_link(&mut self, dir: &Arc<Dir>, name: &[u8], nid: Nid, why: &io::Error) -> Result<()> {
        let inode = self.image.inode(nid)?;
        match inode.file_type() {
            FileType::File => self.new_file(dir, name, &inode)?,
            FileType::Symlink => {
                let target = self.image.readlink(&inode)?;
                let above = self.writer.handles.get(&self.shared.root, dir)?;
                let overwrite = self.shared.options.overwrite;
                create(&*above, name, overwrite, "creating the symlink", || {
                    retry(|| fs::symlinkat(&target[..], &*above, name))
                })?;
                self.shared.set_entry(above.as_fd(), &inode, dir, name);
            }
            _ => {
                let e = io::Error::new(why.kind(), why.to_string());
                return Err(Error::io("", "creating the hard link", e));
            }
        }
        let what = format_args!("a copy instead of a hard link: {why}");
        self.shared.problem(dir.path(name), what);
        Ok(())
    }

    /// Splits a file into pieces.
    fn file(&mut self, dir: &Arc<Dir>, name: &[u8], inode: &Inode) -> Result<()> {
        if self.known(dir, name, inode) {
            return Ok(());
        }
        if self.shared.options.update {
            let above = self.writer.handles.get(&self.shared.root, dir)?;
            if self.shared.is_complete(above.as_fd(), inode, name) {
                let overwrite = self.shared.options.overwrite;
                if let Some(temporary) = stage_name(dir, name, inode.size(), overwrite) {
                    remove_leftover(&self.shared.root, above.as_fd(), &temporary)?;
                }
                self.shared.totals.files.fetch_add(1, Relaxed);
                self.shared.totals.kept.fetch_add(1, Relaxed);
                return Ok(());
            }
        }
        self.new_file(dir, name, inode)
    }

    fn new_file(&mut self, dir: &Arc<Dir>, name: &[u8], inode: &Inode) -> Result<()> {
        let task = Task::new(dir, name, *inode, self.shared.options.overwrite);
        let cut = self.image.map_once(inode).and_then(|map| {
            let extents = Extents::new(self.image, inode.nid(), map, 0..inode.size());
            self.cut(&task, extents)
        });
        let made = match task.has_pieces.load(Relaxed) {
            true => Ok(()),
            false => self.push(&task, (0, 0), PieceSource::Nothing),
        };
        let cut = cut.and(made);
        task.damaged.fetch_or(cut.is_err(), Relaxed);
        if cut.as_ref().is_err_and(|e| self.shared.ends(e)) {
            task.failed.store(true, Relaxed);
        }
        // Release the count held by the walk. If all pieces are written already, this completes the file.
        self.writer.complete(&task, 1);
        cut
    }

    fn cut(&mut self, task: &Arc<Task>, extents: Extents<'_>) -> Result<()> {
        for extent in extents {
            let extent = extent?;
            self.go_on()?;
            let last = extent.end() == task.inode.size();
            if extent.location == Location::Hole {
                task.ends_in_hole.fetch_or(last, Relaxed);
                continue;
            }
            match extent.location {
                Location::Fragment { offset } => self.fragment(task, &extent, offset)?,
                _ => self.part(task, &extent, 0, extent.len, extent.offset)?,
            }
        }
        Ok(())
    }

    /// Splits a fragment into pieces of the extents of the packed inode.
    fn fragment(&mut self, task: &Arc<Task>, extent: &Extent, offset: u64) -> Result<()> {
        let (packed, map) = self.image.packed_map()?;
        let end = offset.checked_add(extent.len);
        let end = end.filter(|end| *end <= packed.size()).ok_or_else(|| {
            Error::corrupt(
                format_args!("fragment at {offset}"),
                format_args!(
                    "{} bytes reach past the packed inode's end, {}",
                    extent.len,
                    packed.size()
                ),
            )
        })?;
        let map: FileMap = map.clone();
        let mut at = offset;
        for inner in Extents::new(self.image, packed.nid(), map, offset..end) {
            self.go_on()?;
            let inner = inner?;
            let skip = at - inner.offset;
            let len = inner.end().min(end) - at;
            let to = extent.offset + (at - offset);
            if inner.location == Location::Hole {
                let last = to + len == task.inode.size();
                task.ends_in_hole.fetch_or(last, Relaxed);
            } else {
                self.part(task, &inner, skip, len, to)?;
            }
            at += len;
        }
        Ok(())
    }

    /// Adds bytes `[skip, skip + len)` of an extent as a piece at offset `to` of a file.
    fn part(
        &mut self,
        task: &Arc<Task>,
        extent: &Extent,
        skip: u64,
        len: u64,
        to: u64,
    ) -> Result<()> {
        match extent.location {
            Location::Raw { device, pos } => {
                self.raw(task, device, pos.saturating_add(skip), len, to)
            }
            Location::Inline {
                space,
                pos,
                len: src_len,
                coding,
            } => {
                let source = PieceSource::Inline {
                    space,
                    pos,
                    src_len,
                    coding,
                    extent: (extent.offset, extent.len),
                    skip,
                };
                self.push(task, (to, len), source)
            }
            Location::Cluster(cluster) => match cluster.coding {
                ClusterCoding::Stored => {
                    let pos = cluster.pos.saturating_add(skip);
                    self.raw(task, DeviceId::PRIMARY, pos, len, to)
                }
                ClusterCoding::Interlaced => {
                    let bits = self.image.superblock().block_bits;
                    let (la, whole) = (extent.offset, extent.len);
                    let plen = cluster.len.into();
                    for (from, at) in decode::interlaced(bits, la, whole, plen, skip, len) {
                        let pos = cluster.pos.saturating_add(from.start);
                        let (len, to) = (at.end - at.start, to + at.start);
                        self.raw(task, DeviceId::PRIMARY, pos, len, to)?;
                    }
                    Ok(())
                }
                ClusterCoding::Compressed(_) => {
                    let source = PieceSource::Cluster {
                        cluster,
                        extent_len: extent.len,
                        skip,
                    };
                    self.push(task, (to, len), source)
                }
            },
            Location::Hole | Location::Fragment { .. } => Ok(()),
        }
    }

    /// Adds uncompressed data as pieces. Data past the end of the device becomes a single piece that fails to
    /// read, so that a false length costs nothing.
    fn raw(
        &mut self,
        task: &Arc<Task>,
        device: DeviceId,
        pos: u64,
        len: u64,
        to: u64,
    ) -> Result<()> {
        let available = self.image.devices.available(device, pos, len);
        let mut done = 0;
        while done < len {
            let left = if done < available { available } else { len } - done;
            let n = left.min(RAW);
            let source = PieceSource::Raw {
                device,
                pos: pos.saturating_add(done),
            };
            self.push(task, (to + done, n), source)?;
            if done >= available {
                break;
            }
            done += n;
        }
        Ok(())
    }

    fn push(&mut self, task: &Arc<Task>, (to, len): (u64, u64), source: PieceSource) -> Result<()> {
        self.bytes = self.bytes.saturating_add(len);
        let limit = self.shared.options.bytes;
        if self.bytes > limit {
            let e = Error::limit("", format_args!("more bytes than {limit}"));
            return Err(e.with_remedy(Remedy::MoreBytes));
        }
        self.content.take(len)?;
        self.go_on()?;
        task.add_piece();
        self.pieces.push(Piece {
            task: task.clone(),
            to,
            len,
            source,
        });
        if self.pieces.len() >= BATCH {
            self.flush();
            (self.progress)(&self.shared.totals.get());
        }
        Ok(())
    }
}
