//! Ordered walk over the tree of an image: parents before children, siblings by the bytes of their names.

use crate::directory::DirState;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::inode::{Inode, InodeKind};
use std::collections::HashSet;

/// Longest path. Unit: bytes.
const PATH_MAX: usize = 256 << 10;

/// Memory of an entry beside its path. Unit: bytes.
const ENTRY_COST: u64 = 64;

/// Name in the tree with its inode.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path from the root without a leading slash. Empty for the root.
    pub path: Vec<u8>,
    /// Inode that the name refers to.
    pub inode: Inode,
}

/// Walk over all names of an image. Each directory is entered once, so it ends. An error ends it.
pub struct Walk<'a> {
    image: &'a Image,
    is_started: bool,
    is_over: bool,
    /// Directories from the root to the current one, with the lengths of their paths.
    stack: Vec<(DirState, usize)>,
    path: Vec<u8>,
    entered: HashSet<u64>,
}

impl Image {
    /// Starts a walk over all names.
    pub fn walk(&self) -> Walk<'_> {
        Walk {
            image: self,
            is_started: false,
            is_over: false,
            stack: Vec::new(),
            path: Vec::new(),
            entered: HashSet::new(),
        }
    }
}

impl Walk<'_> {
    fn step(&mut self) -> Result<Option<Entry>> {
        if !self.is_started {
            self.is_started = true;
            let root = self.image.root()?;
            if !root.is_dir() {
                return Err(Error::Corrupt("the root is no directory".into()));
            }
            return self.found(root).map(Some);
        }
        loop {
            let Some((directory, len)) = self.stack.last_mut() else {
                return Ok(None);
            };
            self.path.truncate(*len);
            let Some(dirent) = directory.next(&self.image.reader)? else {
                self.stack.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&dirent.name);
            let inode = self.image.inode(dirent.inode)?;
            if inode.number() != dirent.kind {
                return Err(Error::Corrupt(format!(
                    "an entry of type {} refers to an inode of type {}",
                    dirent.kind,
                    inode.number()
                )));
            }
            return self.found(inode).map(Some);
        }
    }

    fn found(&mut self, inode: Inode) -> Result<Entry> {
        let cost = ENTRY_COST + self.path.len() as u64;
        self.image.reader.metadata_budget.take(cost)?;
        if let InodeKind::Dir(listing) = &inode.kind {
            if self.path.len() > PATH_MAX {
                return Err(Error::Limit(format!(
                    "a path of more than {PATH_MAX} bytes"
                )));
            }
            if !self.entered.insert(inode.reference) {
                return Err(Error::Corrupt("the directory has a second name".into()));
            }
            self.stack.push((DirState::new(listing), self.path.len()));
        }
        Ok(Entry {
            path: self.path.clone(),
            inode,
        })
    }

    /// Path of the entry that was read last, or at which an error occurred.
    pub fn path(&self) -> &[u8] {
        &self.path
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let step = self.step();
        self.is_over = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}
