//! Trees in memory as sources.

use super::Loader;
use super::manifest::{DeferredLinks, find_holes};
use crate::Result;
use crate::source::Kind;
use crate::source::memory::MemoryTree;

/// Name of the source in messages.
const NAME: &str = "tree in memory";

impl Loader<'_, '_> {
    /// Loads all paths of a tree in memory.
    pub(super) fn load_memory(&mut self, memory: &MemoryTree) -> Result<()> {
        let mut links = DeferredLinks::default();
        for (n, entry) in (0..).zip(memory.entries()) {
            if self.exclude.is_left_out(&entry.path) {
                continue;
            }
            if let Kind::Hardlink(target) = &entry.kind {
                links.defer(entry.path.clone(), target.clone(), n);
                continue;
            }
            let mut entry = entry.clone();
            find_holes(&mut entry)?;
            self.add(entry, NAME)?;
        }
        self.add_links(links, |_| NAME.to_owned())
    }
}
