//! Walk over the tree: every directory, entry and inode once.

use super::data::Jobs;
use super::finding::{Rule, Severity};
use super::marks::{DataMap, Owner, SlotMap};
use super::report::Totals;
use super::shared::Shared;
use crate::Place;
use crate::read::dir::{Dir, type_of};
use crate::read::limits::WorkBudget;
use crate::read::{FileType, Image, Inode, Nid, Space, StartList};
use crate::walk::{path_fits, shortened};
use std::collections::HashMap;
use tuff_format::dirent::{Dirent, in_order, is_name};
use tuff_format::superblock::OFFSET;

/// Results of the walk for rules that need the whole image.
#[derive(Default)]
pub(super) struct Marks {
    pub(super) image: SlotMap,
    pub(super) metabox: SlotMap,
    pub(super) used: Used,
}

/// Features that the image uses.
#[derive(Default)]
pub(super) struct Used {
    pub(super) compressed: bool,
    pub(super) big_cluster: bool,
    pub(super) chunks: bool,
    pub(super) device: bool,
    pub(super) head2: bool,
    pub(super) inline_cluster: bool,
    pub(super) fragment: bool,
    pub(super) partial: bool,
    pub(super) interlaced: bool,
    pub(super) long_prefix: bool,
    pub(super) bit48: bool,
    pub(super) metabox: bool,
    /// Longest LZ4 cluster in bytes.
    pub(super) lz4_len: u64,
}

/// Walk over the tree.
pub(super) struct Walk<'a, 'p> {
    pub(super) image: &'a Image,
    pub(super) shared: &'a Shared,
    pub(super) jobs: Jobs<'a>,
    pub(super) marks: Marks,
    progress: &'p mut dyn FnMut(&Totals),
    /// Directories from the root to the current one.
    stack: Vec<Frame>,
    /// Path of the current entry, for findings.
    path: Vec<u8>,
    /// Seen names and link count of files with several names.
    links: HashMap<Nid, (u32, u32)>,
    names: WorkBudget,
}

/// Directory on the stack of the walk.
struct Frame {
    inode: Inode,
    parent: Nid,
    block: u64,
    index: usize,
    /// Length of the path without the name of this directory.
    path_len: usize,
    last_name: Vec<u8>,
    subdirs: u64,
    /// Number of unreadable blocks.
    bad_blocks: u32,
    dot: bool,
    dotdot: bool,
}

/// Number of unreadable blocks after which the rest of a directory is skipped.
const BAD_BLOCKS: u32 = 64;

impl<'a, 'p> Walk<'a, 'p> {
    pub(super) fn new(
        image: &'a Image,
        shared: &'a Shared,
        jobs: Jobs<'a>,
        progress: &'p mut dyn FnMut(&Totals),
    ) -> Self {
        Self {
            image,
            shared,
            jobs,
            marks: Marks::default(),
            progress,
            stack: Vec::new(),
            path: Vec::new(),
            links: HashMap::new(),
            names: image.name_budget(),
        }
    }

    /// Returns the path of the current entry.
    pub(super) fn path(&self) -> String {
        format!("/{}", String::from_utf8_lossy(&shortened(&self.path)))
    }

    /// Returns path and inode, for findings.
    pub(super) fn place(&self, inode: &Inode) -> String {
        format!("{}: {}", self.path(), inode.place())
    }

    pub(super) fn run(&mut self) {
        for hidden in [self.image.packed(), self.image.metabox()] {
            if let Some(inode) = hidden.copied() {
                self.visit(&inode);
            }
        }
        self.marks.used.fragment |= self.image.packed().is_some();
        self.marks.used.metabox |= self.image.metabox().is_some();
        self.marks.used.device |= !self.image.slots().is_empty();
        let root = match self.image.root() {
            Ok(root) => root,
            Err(e) => return self.shared.failed(Rule::Root, "", &e),
        };
        self.visit(&root);
        self.check_start_list();
        self.enter(root, root.nid(), 0);
        while let Some(mut frame) = self.stack.pop() {
            match self.step(&mut frame) {
                Step::Enter(child, path_len) => {
                    let parent = frame.inode.nid();
                    self.stack.push(frame);
                    self.enter(child, parent, path_len);
                }
                Step::Done => {
                    self.leave(&frame);
                    self.path.truncate(frame.path_len);
                }
                Step::End => return,
            }
        }
    }

    /// Checks the start list, if the image has one. Kernels do not read it.
    fn check_start_list(&mut self) {
        const PLACE: &str = "start list";
        let list = StartList::read(self.image);
        let inode = match (&list, StartList::inode(self.image)) {
            (Ok(None), _) | (_, Ok(None) | Err(_)) => return,
            (_, Ok(Some(inode))) => inode,
        };
        let marks = match inode.space() {
            Space::Image => &mut self.marks.image,
            Space::Metabox => &mut self.marks.metabox,
        };
        // It counts as no inode of the image.
        if marks.start(inode.position()) {
            self.check_inode(&inode);
        }
        let outside = match &list {
            Ok(Some(list @ StartList::Unknown { .. })) => {
                let what = list.skipped().unwrap_or_default();
                return (self.shared).add(Severity::Note, Rule::StartList, PLACE, what);
            }
            Ok(Some(StartList::Known { outside, .. })) => *outside,
            Ok(None) => 0,
            Err(e) => return self.shared.warning(Rule::StartList, PLACE, e.what()),
        };
        if outside > 0 {
            let what = format_args!("{outside} ranges reach past the end of their device");
            self.shared.warning(Rule::StartList, PLACE, what);
        }
    }

    fn enter(&mut self, inode: Inode, parent: Nid, path_len: usize) {
        if self.stack.len() >= self.image.limits().depth {
            let limit = self.image.limits().depth;
            let what = format_args!("nested deeper than the limit depth, {limit}");
            self.shared.error(Rule::Depth, self.place(&inode), what);
            self.path.truncate(path_len);
            return;
        }
        if let Err(e) = path_fits(self.image, &self.path) {
            self.shared.failed(Rule::Depth, inode.place(), &e);
            self.path.truncate(path_len);
            return;
        }
        self.stack.push(Frame {
            dot: inode.raw().dot_omitted(),
            dotdot: false,
            inode,
            parent,
            block: 0,
            index: 0,
            path_len,
            last_name: Vec::new(),
            subdirs: 0,
            bad_blocks: 0,
        });
    }

    /// Continues in a directory until a subdirectory or the end.
    fn step(&mut self, frame: &mut Frame) -> Step {
        let dir = match self.image.dir(&frame.inode) {
            Ok(dir) => dir,
            Err(e) => {
                frame.bad_blocks += 1;
                self.shared
                    .failed(Rule::DirBlock, Place::path(self.path()), &e);
                return Step::Done;
            }
        };
        while frame.block < dir.blocks() && frame.bad_blocks < BAD_BLOCKS {
            if let Some(step) = self.step_block(frame, &dir) {
                return step;
            }
            frame.block += 1;
            frame.index = 0;
        }
        Step::Done
    }

    fn step_block(&mut self, frame: &mut Frame, dir: &Dir<&Image>) -> Option<Step> {
        let held = match dir.block(frame.block) {
            Ok(held) => held,
            Err(e) => {
                frame.bad_blocks += 1;
                self.shared
                    .failed(Rule::DirBlock, Place::path(self.path()), &e);
                return None;
            }
        };
        // Never fails: the block was checked when it was read.
        let view = held.view().ok()?;
        let rest = view.used().map_or(&[][..], |used| &held.bytes()[used..]);
        if frame.index == 0 && rest.iter().any(|b| *b != 0) {
            let what = "bytes after the last name are not zero";
            self.shared
                .warning(Rule::DirBlock, self.block_place(frame), what);
        }
        while frame.index < view.count() {
            let i = frame.index;
            frame.index += 1;
            if let Err(e) = self.names.take(1) {
                self.shared
                    .failed(Rule::Limit, Place::path(self.path()), &e);
                return Some(Step::End);
            }
            match view.entry(i) {
                Ok(entry) => {
                    if let Some((child, path_len)) = self.entry(frame, &entry) {
                        return Some(Step::Enter(child, path_len));
                    }
                }
                Err(e) => {
                    let place = format!("{}: entry {i}", self.block_place(frame));
                    self.shared.error(Rule::DirBlock, place, e);
                }
            }
        }
        None
    }

    fn block_place(&self, frame: &Frame) -> String {
        format!(
            "{}: directory block {}",
            self.place(&frame.inode),
            frame.block
        )
    }

    /// Checks an entry and its inode. Returns a new directory with the length of the path before it.
    fn entry(&mut self, frame: &mut Frame, entry: &Dirent<'_>) -> Option<(Inode, usize)> {
        let shared = self.shared;
        if !frame.last_name.is_empty() && !in_order(&frame.last_name, entry.name) {
            let (name, last) = (
                String::from_utf8_lossy(entry.name),
                String::from_utf8_lossy(&frame.last_name),
            );
            let what = if frame.last_name == entry.name {
                format!("duplicate name {name:?}")
            } else {
                format!("{name:?} follows {last:?}, names are not in order")
            };
            shared.error(Rule::NameOrder, self.block_place(frame), what);
        }
        frame.last_name.clear();
        frame.last_name.extend_from_slice(entry.name);
        if entry.file_type >= 8 {
            let what = format_args!("type {}, expected 0 to 7", entry.file_type);
            shared.error(Rule::EntryType, self.block_place(frame), what);
        }
        if matches!(entry.name, b"." | b"..") {
            self.dots(frame, entry);
            return None;
        }
        let path_len = self.path.len();
        if path_len > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(entry.name);
        if !is_name(entry.name) {
            shared.error(
                Rule::Name,
                self.path(),
                "the name contains a slash or a NUL",
            );
        }
        let entered = self.child(frame, entry);
        if entered.is_none() {
            self.path.truncate(path_len);
        }
        entered.map(|inode| (inode, path_len))
    }

    fn dots(&mut self, frame: &mut Frame, entry: &Dirent<'_>) {
        let (seen, expected, name) = if entry.name == b"." {
            (&mut frame.dot, frame.inode.nid(), ".")
        } else {
            (&mut frame.dotdot, frame.parent, "..")
        };
        let again = std::mem::replace(seen, true);
        let place = || self.place(&frame.inode);
        if again {
            let what = format_args!("unexpected or duplicate {name:?}");
            self.shared.error(Rule::Dots, place(), what);
        }
        if entry.nid != expected {
            let what = format_args!("{name:?} refers to nid {}, expected {expected}", entry.nid);
            self.shared.error(Rule::Dots, place(), what);
        }
        if !matches!(type_of(entry.file_type), None | Some(FileType::Dir)) {
            let what = format_args!("the type of {name:?} is not directory");
            self.shared.error(Rule::EntryType, place(), what);
        }
    }

    fn child(&mut self, frame: &mut Frame, entry: &Dirent<'_>) -> Option<Inode> {
        let shared = self.shared;
        let inode = match self.jobs.inode(entry.nid) {
            Ok(inode) => inode,
            Err(e) => {
                shared.failed(Rule::Inode, Place::path(self.path()), &e);
                return None;
            }
        };
        let claimed = type_of(entry.file_type);
        if claimed != Some(inode.file_type()) {
            let what = format_args!(
                "the type of the entry is {}, the type of the inode is {}",
                claimed.map_or("unknown", FileType::name),
                inode.file_type().name()
            );
            shared.error(Rule::EntryType, self.place(&inode), what);
        }
        let new = self.visit(&inode);
        if !inode.is_dir() {
            if !new || inode.nlink() != 1 {
                let links = self
                    .links
                    .entry(inode.nid())
                    .or_insert((u32::from(!new && inode.nlink() == 1), inode.nlink()));
                links.0 = links.0.saturating_add(1);
            }
            return None;
        }
        frame.subdirs += 1;
        if !new {
            let what = "the directory has two names or contains itself";
            shared.error(Rule::TreeShape, self.place(&inode), what);
            return None;
        }
        Some(inode)
    }

    /// Checks an inode. Returns false if it was checked before.
    fn visit(&mut self, inode: &Inode) -> bool {
        let map = match inode.space() {
            Space::Image => &mut self.marks.image,
            Space::Metabox => &mut self.marks.metabox,
        };
        if !map.start(inode.position()) {
            return false;
        }
        let totals = &mut self.jobs.totals;
        totals.inodes += 1;
        match inode.file_type() {
            FileType::Dir => totals.directories += 1,
            // A damaged image may claim any size.
            FileType::File => totals.file_bytes = totals.file_bytes.wrapping_add(inode.size()),
            _ => {}
        }
        if totals.inodes == 1024 {
            self.shared.totals.add(&std::mem::take(totals));
            (self.progress)(&self.shared.totals.get());
        }
        self.check_inode(inode);
        true
    }

    fn leave(&self, frame: &Frame) {
        if frame.bad_blocks > 0 {
            return; // A damaged block may contain the missing entry.
        }
        let shared = self.shared;
        let place = || self.place(&frame.inode);
        if !frame.dot {
            shared.error(Rule::Dots, place(), "entry \".\" is missing");
        }
        if !frame.dotdot {
            shared.error(Rule::Dots, place(), "entry \"..\" is missing");
        }
        let (nlink, expected) = (u64::from(frame.inode.nlink()), frame.subdirs + 2);
        // 1 means "not counted".
        if nlink != expected && nlink != 1 {
            let what = format_args!("link count {nlink}, expected {expected}");
            shared.warning(Rule::LinkCount, place(), what);
        }
    }

    /// Closes the queue of jobs without waiting, then checks the rules that need the whole image.
    pub(super) fn finish(self) -> Marks {
        for (nid, (found, nlink)) in &self.links {
            if found != nlink {
                let what = format_args!("link count {nlink}, but {found} names");
                self.shared
                    .warning(Rule::LinkCount, format_args!("nid {nid}"), what);
            }
        }
        let (image, shared, marks) = (self.image, self.shared, self.marks);
        let data = self.jobs.finish();
        data_in_metadata(image, shared, &marks, &data);
        marks
    }
}

enum Step {
    Enter(Inode, usize),
    Done,
    /// A limit ends the walk.
    End,
}

/// Checks that no block of data holds metadata.
fn data_in_metadata(image: &Image, shared: &Shared, marks: &Marks, data: &DataMap) {
    let bits = image.superblock().block_bits;
    let end = OFFSET + image.superblock().len() as u64;
    let runs = marks.image.spans().chain([(OFFSET, end)]);
    let mut blocks: Vec<u64> = runs
        .flat_map(|(start, end)| start >> bits.get()..bits.count(end))
        .filter(|block| data.get(0, *block) != Owner::Free)
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    for block in blocks {
        shared.error(
            Rule::Overlap,
            format_args!("byte {:#x}", block << bits.get()),
            "the block holds both file data and metadata",
        );
    }
}
