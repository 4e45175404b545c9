//! Names of one file within an archive.

use super::super::{Content, Entry, Kind};
use super::header::Inode;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// What is known of files with several names.
#[derive(Default)]
pub(super) struct Links {
    /// The name that came first of what is there already.
    firsts: HashMap<Inode, Vec<u8>>,
    /// Names without data, as they came; `None` for those that are done.
    waiting: Vec<Option<(Inode, Entry)>>,
    by_inode: HashMap<Inode, Vec<usize>>,
    by_path: HashMap<Vec<u8>, usize>,
}

impl Links {
    /// The first name of a file, if it came.
    pub(super) fn first(&self, inode: Inode) -> Option<&Vec<u8>> {
        self.firsts.get(&inode)
    }

    /// Keeps a name until there is data for it.
    pub(super) fn wait(&mut self, inode: Inode, entry: Entry) {
        let n = self.waiting.len();
        self.by_inode.entry(inode).or_default().push(n);
        self.by_path.insert(entry.path.clone(), n);
        self.waiting.push(Some((inode, entry)));
    }

    /// A member has this path now: what waited under it is replaced.
    pub(super) fn give_way(&mut self, path: &[u8]) {
        if let Some(n) = self.by_path.remove(path) {
            self.waiting[n] = None;
        }
    }

    /// The file is there, under this name. Returns those that waited for it.
    pub(super) fn found(&mut self, inode: Inode, path: &[u8]) -> VecDeque<Entry> {
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

    /// The archive ends. Returns what still waits: empty files, and their names.
    pub(super) fn end(&mut self) -> Vec<Entry> {
        let mut left = std::mem::take(self);
        let mut entries = Vec::new();
        for n in 0..left.waiting.len() {
            if let Some((inode, entry)) = left.waiting[n].take() {
                let path = entry.path.clone();
                entries.push(entry);
                entries.extend(left.found(inode, &path));
            }
        }
        entries
    }
}
