//! Ordered walk over the tree of an image, used by listings, tar output and comparisons.
//!
//! Invariants:
//!
//! * Parents come before their children, siblings in the bytewise order of their names, and each directory
//!   immediately before its contents.
//! * Every directory is entered at most once, so that a walk over any image ends.
//! * Errors do not end a walk. Entries that depend on a broken structure are omitted, all other entries are
//!   returned. Only the limits on the number of names end it.

use crate::read::limits::WorkBudget;
use crate::read::{Image, Inode, Nid, ReadDir};
use crate::{Error, Place, Result};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Deref;
use tuff_format::dirent::is_name;

/// Name in the tree, with its inode.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path from the root without a leading slash. The root's path is empty.
    pub path: Vec<u8>,
    /// Inode that the name refers to.
    pub inode: Inode,
}

impl Entry {
    /// Returns the last component of the path.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|b| *b == b'/').next().unwrap_or(&[])
    }
}

/// Iterator over an inode and all its descendants: see [`Walk::new`]. `I` borrows or shares the image.
pub struct Walk<I> {
    image: I,
    /// First entry, until it is returned.
    start: Option<Entry>,
    /// Directories from the start of the walk to the current one.
    stack: Vec<Frame>,
    /// Remaining entries of the current directory.
    open: Option<ReadDir<I>>,
    /// Path of the current directory.
    path: Vec<u8>,
    entered: HashSet<Nid>,
    names: WorkBudget,
    /// Directory that was returned last and is not entered yet.
    pending: Option<(Inode, usize)>,
}

/// Directory on the stack of the walk.
struct Frame {
    inode: Inode,
    /// Position at which its listing continues.
    next: u64,
    /// Length of the path before this directory's name was added.
    path_len: usize,
    last_name: Vec<u8>,
}

impl<I: Deref<Target = Image> + Clone> Walk<I> {
    /// Starts a walk over `inode` at `path` and all its descendants.
    ///
    /// An error names the path at which it occurred, and the walk continues after it.
    pub fn new(image: I, path: Vec<u8>, inode: Inode) -> Self {
        Self {
            names: image.name_budget(),
            image,
            start: Some(Entry { path, inode }),
            stack: Vec::new(),
            open: None,
            path: Vec::new(),
            entered: HashSet::new(),
            pending: None,
        }
    }

    /// Starts a walk over the whole image.
    ///
    /// # Errors
    ///
    /// Fails if the root cannot be read.
    pub fn root(image: I) -> Result<Self> {
        let root = image.root()?;
        Ok(Self::new(image, Vec::new(), root))
    }

    /// Skips the descendants of the directory that was returned last.
    pub fn skip_below(&mut self) {
        if let Some((_, path_len)) = self.pending.take() {
            self.path.truncate(path_len);
        }
    }

    fn enter(&mut self, inode: Inode, path_len: usize) -> Result<()> {
        let result = self.check_enter(&inode);
        if let Err(e) = result {
            let place = Place::path(shown(&self.path));
            self.path.truncate(path_len);
            return Err(e.within(place));
        }
        self.stack.push(Frame {
            inode,
            next: 0,
            path_len,
            last_name: Vec::new(),
        });
        self.open = None;
        Ok(())
    }

    fn check_enter(&mut self, inode: &Inode) -> Result<()> {
        let limit = self.image.limits().depth;
        if self.stack.len() >= limit {
            return Err(Error::limit(
                "",
                format_args!("directories are nested deeper than the limit depth, {limit}"),
            ));
        }
        path_fits(&self.image, &self.path)?;
        if !self.entered.insert(inode.nid()) {
            return Err(Error::corrupt(
                inode.place(),
                "the directory has a second name",
            ));
        }
        Ok(())
    }

    /// Returns the next entry of the current directory. `None` at its end.
    fn step(&mut self) -> Result<Option<Entry>> {
        let Some(frame) = self.stack.last_mut() else {
            return Ok(None);
        };
        let open = match &mut self.open {
            Some(open) => open,
            None => self
                .open
                .insert(ReadDir::open(self.image.clone(), &frame.inode, frame.next)?),
        };
        loop {
            let Some(entry) = open.next().transpose()? else {
                return Ok(None);
            };
            frame.next = entry.next;
            if let Err(e) = self.names.take(1) {
                self.stack.clear();
                return Err(e);
            }
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            if !is_name(&entry.name) {
                return Err(Error::corrupt(
                    frame.inode.place(),
                    format_args!(
                        "entry {:?} is not a name",
                        String::from_utf8_lossy(&entry.name)
                    ),
                ));
            }
            if !frame.last_name.is_empty() && entry.name <= frame.last_name {
                return Err(Error::corrupt(
                    frame.inode.place(),
                    format_args!(
                        "entry {:?} is out of order",
                        String::from_utf8_lossy(&entry.name)
                    ),
                ));
            }
            frame.last_name.clone_from(&entry.name);
            let inode = self.image.inode(entry.nid).map_err(|e| {
                let mut path = self.path.clone();
                push_name(&mut path, &entry.name);
                e.within(Place::path(shown(&path)))
            })?;
            let path_len = self.path.len();
            let mut path = self.path.clone();
            push_name(&mut path, &entry.name);
            if inode.is_dir() {
                self.path.clone_from(&path);
                self.pending = Some((inode, path_len));
            }
            return Ok(Some(Entry { path, inode }));
        }
    }

    fn leave(&mut self) {
        if let Some(frame) = self.stack.pop() {
            self.path.truncate(frame.path_len);
        }
        self.open = None;
    }
}

impl<I: Deref<Target = Image> + Clone> Iterator for Walk<I> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(start) = self.start.take() {
            if start.inode.is_dir() {
                self.path.clone_from(&start.path);
                self.pending = Some((start.inode, start.path.len()));
            }
            return Some(Ok(start));
        }
        if let Some((inode, path_len)) = self.pending.take()
            && let Err(e) = self.enter(inode, path_len)
        {
            return Some(Err(e));
        }
        while !self.stack.is_empty() {
            match self.step() {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => self.leave(),
                Err(e) => {
                    let e = if e.place().begins_with_path() {
                        e
                    } else {
                        e.within(Place::path(shown(&self.path)))
                    };
                    // A listing that broke off is at its end already. One that could not be opened would be retried
                    // forever.
                    if self.open.is_none() {
                        self.leave();
                    }
                    return Some(Err(e));
                }
            }
        }
        None
    }
}

/// Fails with `Limit` if the path of a directory is too long to enter it.
pub(crate) fn path_fits(image: &Image, path: &[u8]) -> Result<()> {
    let limit = image.limits().path_len;
    if path.len() <= limit {
        return Ok(());
    }
    Err(Error::limit(
        "",
        format_args!(
            "a path of {} bytes, more than the limit path_len, {limit}",
            path.len()
        ),
    ))
}

/// Longest path that messages show in full. Unit: bytes.
const SHOWN_MAX: usize = 4096;

/// Formats a path for messages. The middle of a very long path is omitted.
pub fn shown(path: &[u8]) -> String {
    let mut out = String::from("/");
    for chunk in shortened(path).utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

/// Returns a path without its middle if it is too long for a message.
pub(crate) fn shortened(path: &[u8]) -> Cow<'_, [u8]> {
    if path.len() <= SHOWN_MAX {
        return Cow::Borrowed(path);
    }
    let (start, end) = (&path[..SHOWN_MAX / 4], &path[path.len() - SHOWN_MAX / 4..]);
    Cow::Owned([start, b"[...]", end].concat())
}

/// Appends a name to a path.
pub(crate) fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
