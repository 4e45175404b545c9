//! Page cache: dirty blocks of files and directories, and clean blocks of directories.

use crate::disk::address::{Block, Nid};
use foldhash::fast::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Default)]
struct FilePages {
    pages: BTreeMap<u64, Box<Block>>,
    dirty: BTreeSet<u64>,
}

/// Cached pages of all inodes.
#[derive(Default)]
pub(crate) struct PageCache {
    files: HashMap<Nid, FilePages, RandomState>,
    dirty_files: BTreeSet<Nid>,
    dirty: u64,
    total: u64,
}

impl PageCache {
    pub(crate) fn get(&self, ino: Nid, index: u64) -> Option<&Block> {
        self.files.get(&ino)?.pages.get(&index).map(|page| &**page)
    }

    /// Returns a page to change, and marks it as dirty.
    pub(crate) fn get_mut(&mut self, ino: Nid, index: u64) -> Option<&mut Block> {
        let file = self.files.get_mut(&ino)?;
        let page = file.pages.get_mut(&index)?;
        if file.dirty.insert(index) {
            self.dirty += 1;
            self.dirty_files.insert(ino);
        }
        Some(page)
    }

    /// Inserts or replaces a page.
    pub(crate) fn insert(&mut self, ino: Nid, index: u64, page: Box<Block>, dirty: bool) {
        let file = self.files.entry(ino).or_default();
        if file.pages.insert(index, page).is_none() {
            self.total += 1;
        }
        if dirty && file.dirty.insert(index) {
            self.dirty += 1;
            self.dirty_files.insert(ino);
        }
    }

    /// Removes a page, dirty or clean.
    pub(crate) fn remove(&mut self, ino: Nid, index: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            self.total -= u64::from(file.pages.remove(&index).is_some());
            self.dirty -= u64::from(file.dirty.remove(&index));
            if file.dirty.is_empty() {
                self.dirty_files.remove(&ino);
            }
            if file.pages.is_empty() {
                self.files.remove(&ino);
            }
        }
    }

    /// Removes the pages from `first` on.
    pub(crate) fn truncate(&mut self, ino: Nid, first: u64) {
        let removed: Vec<u64> = match self.files.get(&ino) {
            Some(file) => file.pages.range(first..).map(|(index, _)| *index).collect(),
            None => return,
        };
        for index in removed {
            self.remove(ino, index);
        }
    }

    /// Marks a dirty page as written. With `keep` it stays as a clean page.
    pub(crate) fn written(&mut self, ino: Nid, index: u64, keep: bool) {
        if !keep {
            return self.remove(ino, index);
        }
        if let Some(file) = self.files.get_mut(&ino) {
            self.dirty -= u64::from(file.dirty.remove(&index));
            if file.dirty.is_empty() {
                self.dirty_files.remove(&ino);
            }
        }
    }

    pub(crate) fn dirty_of(&self, ino: Nid) -> Vec<u64> {
        self.files
            .get(&ino)
            .map(|file| file.dirty.iter().copied().collect())
            .unwrap_or_default()
    }

    pub(crate) fn dirty_inos(&self) -> Vec<Nid> {
        self.dirty_files.iter().copied().collect()
    }

    pub(crate) fn has_dirty(&self, ino: Nid) -> bool {
        self.dirty_files.contains(&ino)
    }

    /// Number of dirty pages of all inodes.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Number of clean pages of all inodes.
    pub(crate) fn clean(&self) -> u64 {
        self.total - self.dirty
    }

    pub(crate) fn drop_clean(&mut self) {
        for file in self.files.values_mut() {
            let dirty = &file.dirty;
            file.pages.retain(|index, _| dirty.contains(index));
        }
        self.files.retain(|_, file| !file.pages.is_empty());
        self.total = self.dirty;
    }
}
