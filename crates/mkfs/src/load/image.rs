//! Images as sources: their data is read, or stays in place.

use super::{ContentProvider, Loader, in_source};
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
    /// Registers the next source as this base, whose data stays in place. `None` for other sources.
    pub(crate) fn in_place(&mut self, base: Option<u16>) {
        self.in_place.push(base);
    }

    /// Loads the entries of an image. Contents are read when they are packed.
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
        self.providers.push(ContentProvider::Image(source));
        Ok(())
    }

    /// Number of bytes of a file that are read. Unit: bytes.
    fn read_len(&self, entry: &Entry) -> u64 {
        match (&entry.kind, entry.content.parts()) {
            (Kind::File { size }, (_, Some(runs))) if self.options.keeps_sparse(*size, runs) => {
                runs.iter().map(|run| run.len).sum()
            }
            (Kind::File { size }, _) => *size,
            _ => 0,
        }
    }

    /// Base inode of a file whose source is a base.
    fn inode_in_place(&self, tree: &Tree, inode: InodeId) -> Option<BaseInode> {
        let base = (*self.in_place.get(usize::from(tree.layer(inode)))?)?;
        match tree.content(inode).parts().0 {
            Content::Range { offset: nid } => Some(BaseInode {
                base,
                nid: Nid(*nid),
            }),
            _ => None,
        }
    }

    /// Lets files of base sources refer to their data in place, where possible. Returns these
    /// files.
    pub(super) fn leave_in_place(
        &self,
        tree: &Tree,
        order: &[InodeId],
        settings: &dedupe::DedupeSettings<'_>,
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
            dedupe::readable(self.file_content(tree, inode)?)
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
