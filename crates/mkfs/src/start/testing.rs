//! Small images for tests.

use super::lookup::Files;
use crate::pack::contents::{ContentProvider, Contents};
use crate::source::{Content, Entry, Kind, Meta};
use crate::tree::{Tree, Whiteouts};
use std::collections::BTreeMap;

/// Image in memory: paths with what is there.
#[derive(Default)]
pub(super) struct Image(BTreeMap<String, Entry>);

impl Image {
    pub(super) fn file(&mut self, path: &str, bytes: &[u8]) {
        let content = match bytes {
            [] => Content::None,
            _ => Content::Bytes(bytes.into()),
        };
        let size = bytes.len() as u64;
        self.add(path, Kind::File { size }, content);
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.add(path, Kind::Symlink(target.into()), Content::None);
    }

    fn add(&mut self, path: &str, kind: Kind, content: Content) {
        let meta = Meta {
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime: 1000,
            mtime_nsec: 0,
        };
        let entry = Entry {
            path: path.into(),
            kind,
            meta,
            xattrs: Vec::new(),
            content,
        };
        self.0.insert(path.to_owned(), entry);
    }

    /// Returns the tree and its contents.
    pub(super) fn load(&self) -> (Tree, Contents) {
        let mut tree = Tree::new(Whiteouts::Keep);
        for entry in self.0.values() {
            tree.add(entry.clone()).unwrap();
        }
        tree.finish();
        let contents = Contents {
            layers: vec![ContentProvider::Elsewhere],
        };
        (tree, contents)
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&Files<'_>) -> T) -> T {
        let (tree, contents) = self.load();
        work(&Files::new(&tree, &contents))
    }
}
