//! Manifests as sources. Lines come in any order, so hard links wait until all other entries exist.

use super::{ContentProvider, Loader, in_source};
use crate::source::dir::runs_of;
use crate::source::manifest::ManifestReader;
use crate::source::{Content, Entry, Kind};
use crate::tree::Tree;
use crate::{Error, Result};
use hashbrown::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

impl Loader<'_, '_> {
    /// Loads all paths of a manifest.
    pub(super) fn load_manifest(&mut self, path: &Path) -> Result<()> {
        let mut manifest = ManifestReader::open(path).map_err(Error::from)?;
        let mut links = DeferredLinks::default();
        while let Some(mut entry) = manifest.next_entry().map_err(Error::from)? {
            if self.exclude.is_left_out(&entry.path) {
                continue;
            }
            let line = manifest.line();
            links.remove_replaced(&entry.path, &mut self.tree);
            if let Kind::Hardlink(target) = entry.kind {
                links.defer(entry.path, target, line);
                continue;
            }
            find_holes(&mut entry)?;
            self.add(entry, format_args!("{}: line {line}", path.display()))?;
        }
        self.add_links(links, |line| format!("{}: line {line}", path.display()))
    }

    /// Adds hard links after all other entries. `place` names a line in errors.
    pub(super) fn add_links(
        &mut self,
        links: DeferredLinks,
        place: impl Fn(u64) -> String,
    ) -> Result<()> {
        for (link, target, line) in links.in_order() {
            self.environment.progress.check()?;
            self.environment.progress.add_entry();
            let added = self.tree.add_link(&link, &target);
            added.map_err(|e| in_source(e, place(line)))?;
        }
        self.contents.layers.push(ContentProvider::Elsewhere);
        Ok(())
    }
}

/// Hard links by path, with target and line.
#[derive(Default)]
pub(super) struct DeferredLinks {
    waiting: HashMap<Vec<u8>, (Vec<u8>, u64)>,
}

impl DeferredLinks {
    /// Defers a link until all other entries exist. `line` orders the links.
    pub(super) fn defer(&mut self, link: Vec<u8>, target: Vec<u8>, line: u64) {
        self.waiting.insert(link, (target, line));
    }

    /// Removes deferred links that a later line replaces: one at its path, or at one of its parent
    /// directories.
    fn remove_replaced(&mut self, path: &[u8], tree: &mut Tree) {
        if self.waiting.is_empty() {
            return;
        }
        self.waiting.remove(path);
        for (at, _) in path.iter().enumerate().filter(|(_, b)| **b == b'/') {
            if self.waiting.remove(&path[..at]).is_some() {
                tree.replaced.add(|| path[..at].to_vec());
            }
        }
    }

    /// Links with targets and lines in the order of the manifest, except that targets come before
    /// their links.
    fn in_order(mut self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>, u64)> {
        let mut paths: Vec<_> = self.waiting.iter().map(|(p, l)| (l.1, p.clone())).collect();
        paths.sort_unstable();
        let mut paths = paths.into_iter();
        let mut chain = Vec::new();
        std::iter::from_fn(move || {
            while chain.is_empty() {
                let (_, mut path) = paths.next()?;
                // Ends: each link is removed. The last link of a circle has a missing target.
                while let Some((target, line)) = self.waiting.remove(&path) {
                    let next = target.clone();
                    chain.push((std::mem::replace(&mut path, next), target, line));
                }
            }
            chain.pop()
        })
    }
}

/// Finds the holes of a file of the host that an entry names.
pub(super) fn find_holes(entry: &mut Entry) -> Result<()> {
    let (Content::Path(path), Kind::File { size }) = (&entry.content, &entry.kind) else {
        return Ok(());
    };
    let fail = |what, e| Error::io(path.display(), what, e);
    let meta =
        tuff_store::retry(|| std::fs::metadata(path)).map_err(|e| fail("cannot examine", e))?;
    if meta.blocks().saturating_mul(512) >= *size {
        return Ok(());
    }
    let file = tuff_store::open_regular(path).map_err(|e| fail("cannot open", e))?;
    let runs = runs_of(&file, *size).map_err(|e| fail("cannot read", e.into()))?;
    if runs.iter().map(|r| r.len).sum::<u64>() < *size {
        entry.content = Content::Path(path.clone()).sparse(runs);
    }
    Ok(())
}
