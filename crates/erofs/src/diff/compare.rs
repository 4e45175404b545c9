//! Comparison of two trees. One thread walks both trees, worker threads compare contents, and differences are reported
//! in tree order.

use super::content::{Part, Workers};
use super::node::Node;
use super::side::Side;
use crate::open_files;
use crate::read::limits::WorkBudget;
use crate::read::{FileType, Image, Xattr};
use crate::walk::{path_fits, push_name, shown};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet, VecDeque};

/// Maximum number of pending steps per thread. A file takes two steps or more.
const WAITING: usize = 512;
/// Maximum number of pending steps if they keep host files open. Each open file has two steps or more.
const WAITING_OPEN: u64 = 384;
/// Maximum depth of nested directories.
const DEPTH_MAX: usize = 1 << 16;

/// Options of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Compares only names, types, contents, symlink targets and device numbers.
    pub content_only: bool,
    /// Number of threads that compare contents. 0 means the parallelism available to the process.
    pub threads: usize,
}

/// Difference between A and B in one attribute. The value of A comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// File type. If it differs, nothing else is compared.
    Type(FileType, FileType),
    /// Permission bits of the mode.
    Mode(u16, u16),
    /// User ID of the owner.
    Uid(u32, u32),
    /// Group ID of the owner.
    Gid(u32, u32),
    /// Modification time in seconds and nanoseconds.
    Mtime((i64, u32), (i64, u32)),
    /// Link count of an inode other than a directory.
    Nlink(u64, u64),
    /// Path of the first link to the same inode, if it differs from this path.
    LinkTo(Option<Vec<u8>>, Option<Vec<u8>>),
    /// File size in bytes.
    Size(u64, u64),
    /// Device number, major and minor.
    Device((u32, u32), (u32, u32)),
    /// Target of a symlink.
    Target(Vec<u8>, Vec<u8>),
    /// Extended attribute: its name, and its value on each side that has it.
    Xattr(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>),
    /// Content: offset of the first differing byte.
    Content(u64),
}

/// Change of a path from A to B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The path exists only in B.
    Added(FileType),
    /// The path exists only in A.
    Removed(FileType),
    /// The path exists in both trees and differs. The list is not empty.
    Changed(Vec<Difference>),
}

/// Counters of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Number of paths that exist in both trees.
    pub compared: u64,
    /// Number of paths that exist only in B.
    pub added: u64,
    /// Number of paths that exist only in A.
    pub removed: u64,
    /// Number of paths that differ.
    pub changed: u64,
    /// Number of content bytes compared.
    pub content_bytes: u64,
}

impl Totals {
    /// Returns true if nothing differs.
    pub fn same(&self) -> bool {
        self.added + self.removed + self.changed == 0
    }
}

/// Compares two trees. Calls `report` with each path that differs, in tree order.
///
/// # Errors
/// Returns an error for damage in an image or a failure of the host, and any error from `report`.
pub fn diff<'a>(
    a: &mut Side<'a>,
    b: &mut Side<'a>,
    options: &Options,
    report: &mut dyn FnMut(&[u8], &Change) -> Result<()>,
) -> Result<Totals> {
    let (root_a, root_b) = (a.root()?, b.root()?);
    std::thread::scope(|scope| {
        let workers = Workers::start(scope, options.threads);
        let most = match a.is_host() || b.is_host() {
            // Fits: a few hundred.
            true => open_files::half(WAITING_OPEN) as usize,
            false => workers.count * WAITING,
        };
        let mut run = Run {
            options,
            report,
            totals: Totals::default(),
            links: [HashMap::new(), HashMap::new()],
            entered: [HashSet::new(), HashSet::new()],
            workers,
            most,
            waiting: VecDeque::new(),
            completed: 0,
            content: Part::default(),
            listed: [&*a, &*b].map(|side| side.image().map(Image::name_budget)),
            read: [&*a, &*b].map(|side| side.image().map(Image::content_budget)),
            sides: [a, b],
        };
        let walked = run.run(root_a, root_b);
        // Steps that precede the failure may have failed, too. Their error is reported first.
        run.settle(0)?;
        walked.map(|()| run.totals)
    })
}

/// Pending step of the ordered output.
enum Step {
    /// Path with a complete change.
    Change(Vec<u8>, Change),
    /// Part of the next file. `None` until its result arrives.
    Part(Option<Result<Part>>),
    /// End of a file, after its parts, with its other differences.
    File(Vec<u8>, Vec<Difference>),
}

struct Run<'r, 'a> {
    sides: [&'r mut Side<'a>; 2],
    options: &'r Options,
    report: &'r mut dyn FnMut(&[u8], &Change) -> Result<()>,
    totals: Totals,
    /// Links to inodes with several names, for each side.
    links: [HashMap<(u64, u64), Links>; 2],
    /// Directories entered on each side. None is entered twice.
    entered: [HashSet<(u64, u64)>; 2],
    workers: Workers<'a>,
    /// Maximum number of pending steps.
    most: usize,
    waiting: VecDeque<Step>,
    /// Number of completed steps, which is also the ticket of the first pending step.
    completed: u64,
    /// Accumulated result of the parts of the file at the front.
    content: Part,
    /// Remaining limits of each side that is an image: names listed, and bytes read.
    listed: [Option<WorkBudget>; 2],
    read: [Option<WorkBudget>; 2],
}

/// Links to one inode.
struct Links {
    first: Vec<u8>,
}

/// Directory on the current path, present on one side or both.
struct Frame {
    nodes: [Option<Node>; 2],
    /// Remaining names on each side, in reverse order.
    names: [Vec<Vec<u8>>; 2],
    /// Length of the path before the name of this directory was appended.
    path_len: usize,
}

impl<'a> Run<'_, 'a> {
    fn run(&mut self, root_a: Node, root_b: Node) -> Result<()> {
        let mut path = Vec::new();
        self.compare(&[], &[], &path, &root_a, &root_b)?;
        let mut stack = vec![self.enter(&path, [Some(root_a), Some(root_b)], 0)?];
        while let Some(frame) = stack.last_mut() {
            let [a, b] = &mut frame.names;
            let (in_a, in_b) = match (a.last(), b.last()) {
                (None, None) => {
                    path.truncate(frame.path_len);
                    stack.pop();
                    continue;
                }
                (Some(a), Some(b)) => (a <= b, b <= a),
                (a, b) => (a.is_some(), b.is_some()),
            };
            let from_a = a.pop_if(|_| in_a);
            let from_b = b.pop_if(|_| in_b);
            let Some(name) = from_a.or(from_b) else {
                continue; // one of them is there
            };
            let mut nodes = [None, None];
            for (i, is_in) in [in_a, in_b].into_iter().enumerate() {
                if let (true, Some(dir)) = (is_in, &frame.nodes[i]) {
                    nodes[i] = Some(self.sides[i].node(&path, dir, &name)?);
                }
            }
            let path_len = path.len();
            let parent = path.clone();
            push_name(&mut path, &name);
            let below = match nodes {
                [Some(a), Some(b)] => {
                    self.compare(&parent, &name, &path, &a, &b)?;
                    match (a.kind == FileType::Dir, b.kind == FileType::Dir) {
                        (true, true) => [Some(a), Some(b)],
                        (true, false) => [Some(a), None],
                        (false, true) => [None, Some(b)],
                        (false, false) => [None, None],
                    }
                }
                [Some(a), None] => {
                    self.note_link(0, &a, &path);
                    self.totals.removed += 1;
                    self.wait(Step::Change(path.clone(), Change::Removed(a.kind)))?;
                    [Some(a).filter(|n| n.kind == FileType::Dir), None]
                }
                [None, Some(b)] => {
                    self.note_link(1, &b, &path);
                    self.totals.added += 1;
                    self.wait(Step::Change(path.clone(), Change::Added(b.kind)))?;
                    [None, Some(b).filter(|n| n.kind == FileType::Dir)]
                }
                [None, None] => [None, None],
            };
            if below.iter().all(Option::is_none) {
                path.truncate(path_len);
                continue;
            }
            if stack.len() >= DEPTH_MAX {
                let what = format_args!("directories are nested deeper than {DEPTH_MAX}");
                return Err(Error::limit(shown(&path), what));
            }
            let frame = self.enter(&path, below, path_len)?;
            stack.push(frame);
        }
        Ok(())
    }

    fn enter(&mut self, path: &[u8], nodes: [Option<Node>; 2], path_len: usize) -> Result<Frame> {
        let mut names = [Vec::new(), Vec::new()];
        for (i, node) in nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            // Bind mounts on a host may show a directory twice. In an image this is damage.
            if !self.entered[i].insert(node.id) && !self.sides[i].is_host() {
                let e = Error::corrupt("", "the directory has a second name");
                return Err(self.sides[i].failed(path, e));
            }
            let side = &mut self.sides[i];
            if let Some(image) = side.image() {
                path_fits(image, path).map_err(|e| side.failed(path, e))?;
            }
            names[i] = side.names(path, node)?;
            if let Some(listed) = &mut self.listed[i] {
                let taken = listed.take(names[i].len() as u64);
                taken.map_err(|e| side.failed(path, e))?;
            }
            names[i].reverse();
        }
        Ok(Frame {
            nodes,
            names,
            path_len,
        })
    }

    /// Compares the entry `name` of the directory `dir`. The root has an empty name.
    fn compare(&mut self, dir: &[u8], name: &[u8], path: &[u8], a: &Node, b: &Node) -> Result<()> {
        self.totals.compared += 1;
        let links = [self.note_link(0, a, path), self.note_link(1, b, path)];
        let mut found = Vec::new();
        if a.kind != b.kind {
            found.push(Difference::Type(a.kind, b.kind));
        } else {
            if !self.options.content_only {
                self.attributes(a, b, &mut found);
                let [first_a, first_b] = links;
                if first_a != first_b {
                    found.push(Difference::LinkTo(first_a, first_b));
                }
                let xattrs_a = self.sides[0].xattrs(dir, name, a)?;
                let xattrs_b = self.sides[1].xattrs(dir, name, b)?;
                xattrs(&xattrs_a, &xattrs_b, &mut found);
            }
            self.content(dir, name, (a, b), &mut found)?;
            if a.kind == FileType::File {
                self.parts(dir, name, (a, b))?;
                return self.wait(Step::File(path.to_vec(), found));
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        self.wait(Step::Change(path.to_vec(), Change::Changed(found)))
    }

    /// Records a link to an inode that has several. Returns the path of the first link if it is a different one.
    fn note_link(&mut self, side: usize, node: &Node, path: &[u8]) -> Option<Vec<u8>> {
        if node.kind == FileType::Dir || node.nlink == 1 {
            return None;
        }
        let mut first = None;
        self.links[side]
            .entry(node.id)
            .and_modify(|l| first = Some(l.first.clone()))
            .or_insert_with(|| Links {
                first: path.to_vec(),
            });
        first
    }

    fn attributes(&self, a: &Node, b: &Node, found: &mut Vec<Difference>) {
        if a.mode != b.mode {
            found.push(Difference::Mode(a.mode, b.mode));
        }
        if a.uid != b.uid {
            found.push(Difference::Uid(a.uid, b.uid));
        }
        if a.gid != b.gid {
            found.push(Difference::Gid(a.gid, b.gid));
        }
        if a.mtime != b.mtime {
            found.push(Difference::Mtime(a.mtime, b.mtime));
        }
        // The link count of a host also includes links outside the tree, so only links inside the tree are compared.
        let counted = !self.sides.iter().any(|s| s.is_host());
        if counted && a.kind != FileType::Dir && a.nlink != b.nlink {
            found.push(Difference::Nlink(a.nlink, b.nlink));
        }
    }

    /// Compares the type-specific attributes: size, symlink target and device number. Contents are compared separately.
    fn content(
        &mut self,
        dir: &[u8],
        name: &[u8],
        (a, b): (&Node, &Node),
        found: &mut Vec<Difference>,
    ) -> Result<()> {
        match a.kind {
            FileType::File => {
                if a.size != b.size {
                    found.push(Difference::Size(a.size, b.size));
                }
            }
            FileType::Symlink => {
                let target_a = self.sides[0].target(dir, name, a)?;
                let target_b = self.sides[1].target(dir, name, b)?;
                if target_a != target_b {
                    found.push(Difference::Target(target_a, target_b));
                }
            }
            _ => {
                if let (Some(a), Some(b)) = (a.device, b.device)
                    && a != b
                {
                    found.push(Difference::Device(a, b));
                }
            }
        }
        Ok(())
    }

    /// Queues a content comparison of two files, part by part.
    fn parts(&mut self, dir: &[u8], name: &[u8], (a, b): (&Node, &Node)) -> Result<()> {
        let size = a.size.min(b.size);
        if size == 0 {
            return Ok(());
        }
        let [side_a, side_b] = &mut self.sides;
        let sides = [side_a.content(dir, name, a)?, side_b.content(dir, name, b)?];
        let mut parts = self.workers.parts(sides, size);
        loop {
            let ticket = self.completed + self.waiting.len() as u64;
            let Some(part) = self.workers.next(&mut parts, ticket) else {
                return Ok(());
            };
            self.wait(Step::Part(part))?;
        }
    }

    /// Appends a pending step. It is processed immediately if no other step precedes it.
    fn wait(&mut self, step: Step) -> Result<()> {
        self.waiting.push_back(step);
        self.settle(self.most)
    }

    /// Processes steps in order until at most `most` are pending. After an error, the pending steps are discarded.
    fn settle(&mut self, most: usize) -> Result<()> {
        let done = self.try_settle(most);
        if done.is_err() {
            self.waiting.clear();
        }
        done
    }

    fn try_settle(&mut self, most: usize) -> Result<()> {
        loop {
            while !matches!(self.waiting.front(), None | Some(Step::Part(None))) {
                let step = self.waiting.pop_front();
                self.completed += 1;
                step.map_or(Ok(()), |step| self.step(step))?;
            }
            if self.waiting.len() <= most {
                return Ok(());
            }
            for (ticket, part) in self.workers.answers()? {
                // Fits: the index of a pending step.
                let i = (ticket - self.completed) as usize;
                if let Some(step) = self.waiting.get_mut(i) {
                    *step = Step::Part(Some(part));
                }
            }
        }
    }

    fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Change(path, change) => self.report(&path, &change),
            Step::Part(None) => Ok(()),
            // Parts past the first difference are skipped or ignored.
            Step::Part(Some(_)) if self.content.differs.is_some() => Ok(()),
            Step::Part(Some(part)) => {
                let part = part?;
                for read in self.read.iter_mut().flatten() {
                    read.take(part.bytes)?;
                }
                self.content.bytes += part.bytes;
                self.content.differs = part.differs;
                Ok(())
            }
            Step::File(path, mut found) => {
                let content = std::mem::take(&mut self.content);
                self.totals.content_bytes += content.bytes;
                found.extend(content.differs.map(Difference::Content));
                match found.is_empty() {
                    true => Ok(()),
                    false => self.report(&path, &Change::Changed(found)),
                }
            }
        }
    }

    fn report(&mut self, path: &[u8], change: &Change) -> Result<()> {
        self.totals.changed += u64::from(matches!(change, Change::Changed(_)));
        (self.report)(path, change)
    }
}

/// Adds the differences between two sorted lists of xattrs to `found`.
fn xattrs(a: &[Xattr], b: &[Xattr], found: &mut Vec<Difference>) {
    let (mut i, mut j) = (0, 0);
    loop {
        let (x, y) = (a.get(i), b.get(j));
        let order = match (x, y) {
            (None, None) => return,
            (Some(x), Some(y)) => x.name.cmp(&y.name),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
        };
        let (x, y) = (x.filter(|_| order.is_le()), y.filter(|_| order.is_ge()));
        i += usize::from(x.is_some());
        j += usize::from(y.is_some());
        let (value_x, value_y) = (x.map(|x| &x.value), y.map(|y| &y.value));
        if let (true, Some(either)) = (value_x != value_y, x.or(y)) {
            found.push(Difference::Xattr(
                either.name.clone(),
                value_x.cloned(),
                value_y.cloned(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr(name: &str, value: &str) -> Xattr {
        Xattr {
            name: name.into(),
            value: value.into(),
        }
    }

    #[test]
    fn attributes_are_merged_by_name() {
        let a = [
            xattr("user.a", "1"),
            xattr("user.b", "2"),
            xattr("user.d", ""),
        ];
        let b = [
            xattr("user.b", "3"),
            xattr("user.c", "4"),
            xattr("user.d", ""),
        ];
        let mut found = Vec::new();
        xattrs(&a, &b, &mut found);
        let expected = [
            Difference::Xattr(b"user.a".into(), Some(b"1".into()), None),
            Difference::Xattr(b"user.b".into(), Some(b"2".into()), Some(b"3".into())),
            Difference::Xattr(b"user.c".into(), None, Some(b"4".into())),
        ];
        assert_eq!(found, expected);
    }
}
