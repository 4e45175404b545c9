//! Images as sources: their data is read, or stays in place.

use super::{ContentProvider, Loader, in_source};
use crate::Place;
use crate::Result;
use crate::base::BaseInode;
use crate::dedupe;
use crate::options::Dedupe;
use crate::pack::memory_budget;
use crate::pack::{Packer, segment_size};
use crate::patch::kept_clusters::{self, KeptClusters, NewForm};
use crate::progress::Progress;
use crate::source::image::ImageSource;
use crate::source::{Content, Entry, Kind};
use crate::tree::{InodeId, Tree};
use hashbrown::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::walk::shown;
use tuff_format::Nid;
use tuff_format::cluster::compact::Geometry;
use tuff_format::cluster::write::header_pos;
use tuff_format::inode::Layout;

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
        let opener = |path: &Path| self.options.resources.open(path);
        let source = Arc::new(ImageSource::open(path, devices, &opener, budget)?);
        let mut content = source.content_budget();
        source.each(&mut |entry| {
            let place = || shown(&entry.path);
            content
                .take(self.read_len(&entry))
                .map_err(|e| in_source(e.within(Place::path(place())), path.display()))?;
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

    /// Selects the clusters that edited files of a patched image keep.
    pub(super) fn kept_clusters(
        &self,
        tree: &Tree,
        order: &[InodeId],
    ) -> Result<HashMap<InodeId, KeptClusters>> {
        let mut all = HashMap::new();
        let (Some(bases), Some(unchanged)) = (self.base, &self.unchanged) else {
            return Ok(all);
        };
        if self.options.dedupe.mode != Dedupe::Content {
            return Ok(all);
        }
        let bits = self.options.block;
        for inode in order {
            let Some((place, edits)) = unchanged.edited(*inode) else {
                continue;
            };
            let (size, policy) = (tree.size(*inode), self.policy(tree, *inode).1);
            let there = BaseInode {
                base: 0,
                nid: place.inode.nid(),
            };
            let (Some(spec), Some(data)) = (policy.spec, bases.patched_data(there)?) else {
                continue;
            };
            let header = header_pos((place.inode.raw().len() + place.body.len()) as u64);
            let geometry = Geometry::new(
                header + 8,
                bits.count(size),
                bits.get() <= 12,
                bits.get(),
                false,
            );
            let is_compact = place.inode.layout() == Layout::CompressedCompact;
            let form = NewForm {
                size,
                algorithm: spec.method.algorithm() as u8,
                segment: segment_size(policy),
                block: bits.size(),
                compact: geometry.ok().filter(|_| is_compact),
            };
            // Files of the deduplication are numbered from 0.
            let number = u32::MAX - all.len() as u32;
            if let Some(kept) = kept_clusters::keep(data, edits, number, &form) {
                all.insert(*inode, kept);
            }
        }
        Ok(all)
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
        let unchanged = self.unchanged.as_deref();
        let there = |inode: &InodeId| {
            let same = || {
                unchanged?
                    .same_content(*inode)
                    .filter(|_| tree.size(*inode) > 0)
            };
            let there = self.inode_in_place(tree, *inode).or_else(same);
            Some((*inode, there?))
        };
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
            let data = match unchanged {
                Some(_) => bases.patched_data(there)?,
                None => bases.data(there, false)?,
            };
            if let Some(data) = data {
                let size = tree.size(inode);
                settings.progress.add_bytes(size);
                packer.add_base_file(inode, size, data, sums.get(i).copied())?;
                done.insert(inode);
            }
        }
        Ok(done)
    }
}
