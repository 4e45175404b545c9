//! Images as sources: their data is read, or stays where it is.

use super::{Loader, Provider, in_source};
use crate::Result;
use crate::base::BaseInode;
use crate::dedupe;
use crate::memory_budget;
use crate::pack::Packer;
use crate::progress::Progress;
use crate::source::image::ImageSource;
use crate::source::{Content, Entry, Kind};
use crate::tree::{InodeId, Tree};
use hashbrown::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::walk::shown;
use tuff_format::Nid;

impl Loader<'_> {
    /// The next source is this base, if any: its data stays where it is.
    pub(crate) fn in_place(&mut self, base: Option<u16>) {
        self.in_place.push(base);
    }

    /// An image: its entries now, its contents when they are packed.
    pub(super) fn load_image(
        &mut self,
        path: &Path,
        devices: &[PathBuf],
        tree: &mut Tree,
        progress: &Progress,
    ) -> Result<()> {
        let budget = usize::try_from(memory_budget::eighth(self.options)).unwrap_or(usize::MAX);
        let source = Arc::new(ImageSource::open(path, devices, budget)?);
        let mut content = source.content_budget();
        source.each(&mut |entry| {
            let place = || shown(&entry.path);
            content
                .take(self.read_len(&entry))
                .map_err(|e| in_source(e.within(place()), path.display()))?;
            let added = self.add(entry, tree, progress);
            added.map(drop).map_err(|e| in_source(e, path.display()))
        })?;
        self.providers.push(Provider::Image(source));
        Ok(())
    }

    /// Bytes of a file that are read.
    fn read_len(&self, entry: &Entry) -> u64 {
        match (&entry.kind, &entry.content) {
            (Kind::File { size }, Content::SparseInode { runs, .. }) => {
                match self.options.keeps_sparse(*size, runs) {
                    true => runs.iter().map(|run| run.len).sum(),
                    false => *size,
                }
            }
            (Kind::File { size }, _) => *size,
            _ => 0,
        }
    }

    /// What a file is in a base that is its source.
    fn inode_in_place(&self, tree: &Tree, inode: InodeId) -> Option<BaseInode> {
        let base = (*self.in_place.get(usize::from(tree.layer(inode)))?)?;
        match tree.content(inode) {
            Content::Range { offset: nid } | Content::SparseInode { nid, .. } => Some(BaseInode {
                base,
                nid: Nid(nid),
            }),
            _ => None,
        }
    }

    /// Has files refer to their data in sources that are bases: those that can.
    pub(super) fn leave_in_place(
        &self,
        tree: &Tree,
        order: &[InodeId],
        settings: &dedupe::Settings<'_>,
        packer: &mut Packer<'_>,
    ) -> Result<HashSet<InodeId>> {
        let mut done = HashSet::new();
        let Some(bases) = self.base else {
            return Ok(done);
        };
        let there = |inode: &InodeId| Some((*inode, self.inode_in_place(tree, *inode)?));
        let files: Vec<(InodeId, BaseInode)> = order.iter().filter_map(there).collect();
        let contents: Vec<(InodeId, u64)> = match self.options.output.verify {
            true => files.iter().map(|(i, _)| (*i, tree.size(*i))).collect(),
            false => Vec::new(),
        };
        let sums = dedupe::sums(&contents, settings, &|inode| {
            dedupe::readable(self.input(tree, inode)?.map(|(input, _)| input))
        })?;
        for (i, (inode, there)) in files.into_iter().enumerate() {
            settings.progress.check()?;
            if let Some(data) = bases.data(there, false)? {
                let size = tree.size(inode);
                settings.progress.add_bytes(size);
                packer.add_base_file(inode, size, data, sums.get(i).copied())?;
                done.insert(inode);
            }
        }
        Ok(done)
    }
}
