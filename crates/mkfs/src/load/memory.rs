//! Trees in memory as sources.

use super::manifest::{DeferredLinks, find_holes};
use super::{ContentProvider, Loader, in_source};
use crate::Result;
use crate::progress::Progress;
use crate::source::Kind;
use crate::source::memory::MemoryTree;
use crate::tree::Tree;

/// Name of the source in messages.
const NAME: &str = "tree in memory";

impl Loader<'_> {
    /// Loads all paths of a tree in memory.
    pub(super) fn load_memory(
        &mut self,
        memory: &MemoryTree,
        tree: &mut Tree,
        progress: &Progress,
    ) -> Result<()> {
        let mut links = DeferredLinks::default();
        for (n, entry) in (0..).zip(memory.entries()) {
            if self.is_left_out(&entry.path) {
                continue;
            }
            if let Kind::Hardlink(target) = &entry.kind {
                links.defer(entry.path.clone(), target.clone(), n);
                continue;
            }
            let mut entry = entry.clone();
            find_holes(&mut entry)?;
            self.add(entry, tree, progress)
                .map_err(|e| in_source(e, NAME))?;
        }
        for (link, target, _) in links.in_order() {
            progress.check()?;
            progress.add_entry();
            tree.add_link(&link, &target)
                .map_err(|e| in_source(e, NAME))?;
        }
        self.providers.push(ContentProvider::default());
        Ok(())
    }
}
