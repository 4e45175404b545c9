//! Hard links within an archive.

use super::super::{Content, Entry, Kind};
use super::header::Inode;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// State of files with several names.
#[derive(Default)]
pub(super) struct LinkTracker {
    /// First name of each file that was returned.
    firsts: HashMap<Inode, Vec<u8>>,
    /// Names without data, in order; `None` for those already returned.
    waiting: Vec<Option<(Inode, Entry)>>,
    by_inode: HashMap<Inode, Vec<usize>>,
    by_path: HashMap<Vec<u8>, usize>,
}

impl LinkTracker {
    /// First name of a file, if it was returned.
    pub(super) fn first(&self, inode: Inode) -> Option<&Vec<u8>> {
        self.firsts.get(&inode)
    }

    /// Keeps a name until its data arrives.
    pub(super) fn defer(&mut self, inode: Inode, entry: Entry) {
        let n = self.waiting.len();
        self.by_inode.entry(inode).or_default().push(n);
        self.by_path.insert(entry.path.clone(), n);
        self.waiting.push(Some((inode, entry)));
    }

    /// Drops a waiting name that a member with the same path replaces.
    pub(super) fn remove_replaced(&mut self, path: &[u8]) {
        if let Some(n) = self.by_path.remove(path) {
            self.waiting[n] = None;
        }
    }

    /// Registers a file under this name. Returns the names that waited for it as hard links.
    pub(super) fn resolve(&mut self, inode: Inode, path: &[u8]) -> VecDeque<Entry> {
        self.firsts.insert(inode, path.to_vec());
        let names = self.by_inode.remove(&inode).unwrap_or_default();
        let mut links = VecDeque::new();
        for n in names {
            if let Some((_, mut entry)) = self.waiting[n].take() {
                self.by_path.remove(&entry.path);
                entry.kind = Kind::Hardlink(path.to_vec());
                entry.content = Content::None;
                links.push_back(entry);
            }
        }
        links
    }

    /// Ends the archive. Returns the names that still wait: empty files with their hard links.
    pub(super) fn end(&mut self) -> Vec<Entry> {
        let mut left = std::mem::take(self);
        let mut entries = Vec::new();
        for n in 0..left.waiting.len() {
            if let Some((inode, entry)) = left.waiting[n].take() {
                let path = entry.path.clone();
                entries.push(entry);
                entries.extend(left.resolve(inode, &path));
            }
        }
        entries
    }
}
