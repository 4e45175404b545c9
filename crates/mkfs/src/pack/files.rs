//! Files of the tree as the builder stores them: content, policy and holes.

use super::content::FileContent;
use super::contents::Contents;
use super::policies::Policies;
use super::sparse::Sparse;
use super::worker::Policy;
use crate::options::Options;
use crate::source::DataRun;
use crate::source::expansion::Expansion;
use crate::tree::order::PolicyId;
use crate::tree::{InodeId, Tree};
use crate::{Error, Result};
use std::sync::Arc;

/// Files of a tree with the options by which they are stored.
#[derive(Clone, Copy)]
pub(crate) struct TreeFiles<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) contents: &'a Contents,
    pub(crate) options: &'a Options,
    pub(crate) policies: &'a Policies,
    /// Nothing is compressed: the total content is smaller than the space that compression would save.
    pub(crate) stores_all: bool,
}

impl TreeFiles<'_> {
    /// Returns the content of a file. `None` if it has none or was packed from a stream.
    pub(crate) fn content(&self, inode: InodeId) -> Result<Option<FileContent>> {
        self.contents.get(self.tree, inode)
    }

    /// Returns the compression policy of a file, with its number.
    pub(crate) fn policy(&self, inode: InodeId) -> (PolicyId, &Arc<Policy>) {
        match self.stores_all {
            true => (PolicyId::DEFAULT, &self.policies.stored),
            false => self.policies.by_path(|| self.tree.path(inode)),
        }
    }

    /// Returns true if a file stays sparse.
    pub(crate) fn is_sparse(&self, inode: InodeId) -> bool {
        self.sparse_runs(inode).is_some()
    }

    /// Returns the data runs of a file that stays sparse.
    pub(crate) fn sparse_runs(&self, inode: InodeId) -> Option<Arc<[DataRun]>> {
        let content = self.tree.content(inode);
        let runs = content.parts().1?;
        let keeps = self.options.keeps_sparse(self.tree.size(inode), runs);
        keeps.then(|| Arc::clone(runs))
    }

    /// Fails if the files to pack have far more content than their sources store.
    pub(crate) fn check_expansion(&self, files: &[InodeId]) -> Result<()> {
        let (mut stored, mut zeros) = (0u64, 0u64);
        let mut largest = (0, 0);
        for inode in files {
            let size = self.tree.size(*inode);
            let Some(runs) = self.tree.content(*inode).parts().1.cloned() else {
                stored = stored.saturating_add(size);
                continue;
            };
            let added = written_zeros(self.options, size, &runs);
            zeros = zeros.saturating_add(added);
            stored = stored.saturating_add(runs.iter().map(|run| run.len).sum());
            largest = largest.max((added, *inode));
        }
        let checked = Expansion::new(self.options.resources.max_expansion).check(zeros, stored);
        checked.map_err(|e| Error::from(e.in_member(&self.tree.path(largest.1))))
    }
}

/// Returns the chunks of a file that stays sparse.
pub(crate) fn sparse_chunks(options: &Options, size: u64, runs: &[DataRun]) -> Sparse {
    let bits = options.block;
    match options.layout.chunk {
        Some(chunk) => Sparse::of_size(size, runs, bits, (chunk >> bits.get()).ilog2()),
        None => Sparse::plan(size, runs, bits),
    }
}

/// Returns the number of zeros in bytes that are written for the holes of a file.
pub(crate) fn written_zeros(options: &Options, size: u64, runs: &[DataRun]) -> u64 {
    let data: u64 = runs.iter().map(|run| run.len).sum();
    let written = match options.keeps_sparse(size, runs) {
        true => {
            let sparse = sparse_chunks(options, size, runs);
            let chunks: u64 = sparse.runs.iter().map(|run| run.count).sum();
            chunks.saturating_mul(options.block.size() << sparse.bits)
        }
        false => size,
    };
    written.saturating_sub(data)
}
