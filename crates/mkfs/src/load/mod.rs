//! Loading: reads sources into the tree, and hands file contents to the packer.

mod cpio;
pub(crate) mod fingerprint;
mod image;
mod index;
mod manifest;
mod memory;
mod stream;
mod tar;

use super::base::Bases;
use super::dedupe::auto::Choice;
use super::dedupe::{self, PackedFile};
use super::options::{Dedupe, Options};
use super::pack::content::FileContent;
use super::pack::memory_budget::{self, Budget};
use super::pack::piece::TailPolicy;
use super::pack::policies::Policies;
use super::pack::worker::Policy;
use super::pack::{FileSharing, Packer, Sparse, segment_size};
use super::patch::unchanged::Unchanged;
use super::progress::Progress;
use super::source::dir::{DirSource, Outputs, WalkOptions};
use super::source::error::Quoted;
use super::source::expansion::Expansion;
use super::source::file::{HostFile, SourceFile};
use super::source::image::ImageSource;
use super::source::spec::Source;
use super::source::tally::AffectedPaths;
use super::source::{Content, DataRun, Entry};
use super::tree::order::{PolicyId, data_order};
use super::tree::{InodeId, Tree, lossy};
use crate::tree::paths::common_dir;
use crate::{Error, Place, Result};
use std::ffi::OsStr;
use std::num::NonZeroU8;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_codec::Method;
use tuff_format::Nid;
use tuff_format::features::Feature;
use tuff_format::inode::FileType;
use xxhash_rust::xxh3::xxh3_64;

/// Minimum length of a tail that goes into the packed inode because of its similarity. Unit: bytes.
const TAIL_LEN_MIN: u64 = 16 << 10;
/// Inodes between two updates of the memory budget while a source is packed during loading.
const BUDGET_STEP: usize = 4096;

/// Source of file contents, by which the locations of one layer are resolved.
enum ContentProvider {
    Dir(Arc<DirSource>),
    /// `file` holds the members of a tar and plain ones of a cpio archive, `copy` those that were
    /// decompressed or read from a stream. Without both, all contents are elsewhere.
    Archive {
        file: Option<Arc<SourceFile>>,
        copy: Option<Arc<SourceFile>>,
    },
    Image(Arc<ImageSource>),
}

impl Default for ContentProvider {
    fn default() -> Self {
        Self::Archive {
            file: None,
            copy: None,
        }
    }
}

/// Decisions of the deduplication analysis about one file.
#[derive(Clone, Copy, Default)]
struct FileDecision<'a> {
    /// Data shared with other files.
    sharing: FileSharing<'a>,
    choice: Choice,
}

/// Loads sources and feeds the packer.
pub(crate) struct Loader<'a> {
    options: &'a Options,
    policies: &'a Policies,
    threads: usize,
    /// Directory for temporary files.
    temporary: &'a Path,
    base: Option<&'a Arc<Bases>>,
    outputs: Outputs,
    providers: Vec<ContentProvider>,
    /// For each source, the number of the base whose data it refers to in place.
    in_place: Vec<Option<u16>>,
    /// Warnings about entries that were left out or changed.
    pub(crate) warnings: Vec<String>,
    /// Everything was handed to the packer while the only source was loaded.
    packed: bool,
    /// Files and bytes for which the fast compression was chosen, and for which none was.
    pub(crate) chosen: [(u64, u64); 2],
    /// Files to pack last, because they go into the packed inode as a whole.
    deferred: Vec<InodeId>,
    /// The total content is smaller than the space that compression would save.
    tiny: bool,
    /// Inodes of a patched image that stay in place.
    unchanged: Option<Arc<Unchanged>>,
    /// Last directory that was found not to be excluded.
    kept_dir: Mutex<Vec<u8>>,
}

impl<'a> Loader<'a> {
    /// Creates a loader for these options.
    pub(crate) fn new(
        options: &'a Options,
        policies: &'a Policies,
        threads: usize,
        temporary: &'a Path,
        base: Option<&'a Arc<Bases>>,
        outputs: Outputs,
    ) -> Self {
        Self {
            options,
            policies,
            threads,
            temporary,
            base,
            outputs,
            providers: Vec::new(),
            in_place: Vec::new(),
            warnings: Vec::new(),
            packed: false,
            chosen: Default::default(),
            deferred: Vec::new(),
            tiny: false,
            unchanged: None,
            kept_dir: Mutex::default(),
        }
    }

    /// Leaves unchanged files of a patched image in place and packs the others by these options.
    pub(crate) fn keep(
        &mut self,
        unchanged: &Arc<Unchanged>,
        options: &'a Options,
        policies: &'a Policies,
    ) {
        self.unchanged = Some(Arc::clone(unchanged));
        (self.options, self.policies) = (options, policies);
    }

    /// Compression policy of a file, with its number.
    pub(crate) fn policy(&self, tree: &Tree, inode: InodeId) -> (PolicyId, &Arc<Policy>) {
        match self.tiny {
            true => (PolicyId::DEFAULT, &self.policies.stored),
            false => self.policies.of(|| tree.path(inode)),
        }
    }

    /// Adds a source to the tree. A tar stream that is the only source is packed while it is read.
    pub(crate) fn load(
        &mut self,
        source: &Source,
        only: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        // The only source is in the order of the image unless the options set another. Its contents
        // can be packed at once if they need no analysis first.
        let at_once = only
            && self.options.sources.order.is_empty()
            && self.options.sources.subtree.is_empty()
            && self.options.compression.auto.is_none()
            && self.options.metadata.fingerprints.is_none()
            && self.base.is_none();
        match source {
            _ if self.options.dedupe.tar_index => self.load_index(source, tree, packer, progress),
            Source::Dir(path) => self.load_dir(path, at_once, tree, packer, progress),
            Source::Manifest(path) => self.load_manifest(path, tree, progress),
            Source::Image { path, devices } => self.load_image(path, devices, tree, progress),
            Source::Tar(path) => self.load_tar_path(path, at_once, tree, packer, progress),
            Source::TarWithin {
                file,
                offset,
                len,
                unpacked,
                name,
            } => {
                let part = (*offset, *len);
                let digest = unpacked.as_ref();
                self.load_tar_within(file, part, digest, name, at_once, tree, packer, progress)
            }
            Source::Memory(memory) => self.load_memory(memory, tree, progress),
            Source::TarStream(stream) => {
                self.load_tar_stream(stream, at_once, tree, packer, progress)
            }
            Source::TarStdin => {
                let name = "standard input";
                let stdin = std::io::stdin().as_fd().try_clone_to_owned();
                let stdin = stdin.map_err(|e| Error::io(name, "cannot open", e))?;
                self.load_stream(name, stdin.into(), at_once, tree, packer, progress)
            }
        }
    }

    /// Walks a directory. Files go to the packer at once only without deduplication, which needs
    /// all sizes first.
    fn load_dir(
        &mut self,
        path: &Path,
        at_once: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let left_out = self.options.sources.keep_going.clone();
        let dir = Arc::new(DirSource::open(path)?.leaving_out(left_out));
        self.providers.push(ContentProvider::Dir(Arc::clone(&dir)));
        self.packed = at_once && self.options.dedupe.mode == Dedupe::Off;
        let mut deferred = Vec::new();
        let this = &*self;
        let exclude = |path: &[u8]| this.excluded(path);
        let options = WalkOptions {
            exclude: &exclude,
            one_file_system: this.options.sources.one_file_system,
            xattrs: tree.wants_xattrs(),
            // A second thread would only wait for the first, so one thread walks by itself.
            threads: if this.threads > 1 { this.threads } else { 0 },
            outputs: &this.outputs,
        };
        dir.walk(&options, tree, progress, &mut |tree, file| {
            if !this.packed {
                return Ok(());
            }
            if tree.len().is_multiple_of(BUDGET_STEP) {
                packer.set_in_flight(Budget::new(this.options, tree, this.threads).in_flight);
            }
            if !this.pack_file(tree, file, FileDecision::default(), packer)? {
                deferred.push(file);
            }
            Ok(())
        })
        .map_err(|e| in_source(e, path.display()))?;
        self.deferred = deferred;
        for inside in self.outputs.take() {
            self.warnings.push(format!(
                "{}: is written by this command, so it is left out of the image",
                Quoted(path.join(OsStr::from_bytes(&inside)).as_os_str().as_bytes())
            ));
        }
        Ok(())
    }

    /// Adds an entry of a tar, manifest or image, unless it is excluded.
    fn add(&self, entry: Entry, tree: &mut Tree, progress: &Progress) -> Result<Option<InodeId>> {
        progress.check()?;
        progress.add_entry();
        if self.is_left_out(&entry.path) {
            return Ok(None);
        }
        tree.add(entry)
    }

    /// True if a path, or a directory above it, is excluded.
    fn is_left_out(&self, path: &[u8]) -> bool {
        if self.options.sources.exclude.is_empty() && self.options.sources.exclude_also.is_empty() {
            return false;
        }
        let Some(end) = path.iter().rposition(|b| *b == b'/') else {
            return self.excluded(path);
        };
        let dir = &path[..end];
        let mut kept = self.kept_dir.lock().unwrap_or_else(PoisonError::into_inner);
        // The ancestors of a kept directory were kept, too.
        let known = common_dir(&kept, dir);
        let mut ends = (known..dir.len()).filter(|at| dir[*at] == b'/');
        if known < dir.len() {
            if ends.any(|end| end > known && self.excluded(&dir[..end])) || self.excluded(dir) {
                return true;
            }
            kept.clear();
            kept.extend_from_slice(dir);
        }
        self.excluded(path)
    }

    fn excluded(&self, path: &[u8]) -> bool {
        let as_path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(path);
        let also = &self.options.sources.exclude_also;
        self.options.sources.exclude.is_match(as_path)
            || also.iter().any(|paths| paths.is_match(path))
    }

    /// Content of a file. `None` if it has none or was packed from a stream.
    pub(crate) fn file_content(&self, tree: &Tree, inode: InodeId) -> Result<Option<FileContent>> {
        if tree.file_type(inode) != FileType::File {
            return Ok(None);
        }
        let of_host = |dir, path, mtime| {
            FileContent::Host(Arc::new(HostFile {
                dir,
                path,
                size: tree.size(inode),
                mtime,
            }))
        };
        let content = tree.content(inode);
        let (location, runs) = content.parts();
        let provider = self.providers.get(usize::from(tree.layer(inode)));
        Ok(Some(match (location, provider) {
            (Content::None | Content::Stream, _) => return Ok(None),
            (Content::Bytes(bytes), _) => FileContent::Bytes(Arc::clone(bytes)),
            (Content::Path(path), _) => of_host(None, path.as_os_str().as_bytes().into(), None),
            (Content::InSource, Some(ContentProvider::Dir(dir))) => {
                let meta = tree.meta(inode);
                let mtime = (meta.mtime, meta.mtime_nsec);
                of_host(Some(Arc::clone(dir)), tree.path(inode).into(), Some(mtime))
            }
            (Content::Range { offset: nid }, Some(ContentProvider::Image(source))) => {
                FileContent::Image {
                    source: Arc::clone(source),
                    nid: Nid(*nid),
                    path: tree.path(inode).into(),
                }
            }
            (
                Content::Range { offset },
                Some(ContentProvider::Archive {
                    file: Some(file), ..
                }),
            )
            | (
                Content::Copied { offset },
                Some(ContentProvider::Archive {
                    copy: Some(file), ..
                }),
            ) => {
                let (file, offset) = (Arc::clone(file), *offset);
                match runs.cloned() {
                    Some(runs) => FileContent::Runs { file, runs },
                    None => FileContent::Range { file, offset },
                }
            }
            _ => {
                let path = tree.path(inode);
                let what = match self.options.dedupe.tar_index {
                    true => "the tar of this index cannot be read a second time; give it as a file",
                    false => "content of another kind of source",
                };
                return Err(Error::usage(format_args!("{}: {what}", lossy(&path))));
            }
        }))
    }

    /// Hands every file's content to the packer, in the order of the data, unless that was done
    /// while loading.
    pub(crate) fn pack(
        &mut self,
        tree: &Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let budget = Budget::new(self.options, tree, self.threads);
        self.warnings.extend(budget.warning(self.options));
        packer.set_in_flight(budget.in_flight);
        if self.options.dedupe.tar_index {
            progress.stage("refer");
            return self.refer(tree, packer);
        }
        if self.packed {
            progress.stage("pack");
            let deferred = self.deferred.iter().map(|file| PackedFile {
                file: *file,
                from: 0,
                similar: false,
                cut: false,
            });
            return self.pack_deferred(tree, deferred, packer);
        }
        let mut absent = AffectedPaths::default();
        let mut order = data_order(tree, self.options, &mut absent);
        let absent = absent.warning("listed in the data order, but not in the tree");
        self.warnings.extend(absent);
        self.check_expansion(tree, &order)?;
        if let Some(unchanged) = &self.unchanged {
            order.retain(|inode| unchanged.nid(*inode).is_none());
        }
        let sizes = order.iter().map(|i| tree.size(*i));
        let total = sizes.fold(0, u64::saturating_add);
        progress.set_total(total);
        self.tiny = self.options.layout.inline_data
            && self.options.compression.rules.is_empty()
            && total <= self.options.block.size() / 2;
        progress.stage("compare");
        let settings = dedupe::DedupeSettings {
            dedupe: self.options.dedupe.mode,
            tail_len: self.tail_len(),
            fragment_cut: self.options.layout.fragment_cut,
            fragment_cluster: self.options.layout.fragment_cluster,
            memory: memory_budget::memory(self.options) / 16,
            base_memory: memory_budget::eighth(self.options),
            block: self.options.block.size(),
            threads: self.threads,
            shares_stored: self.options.layout.blob.is_none()
                && self.options.kernel.supports(Feature::CHUNKED_FILE),
            chunk: self.options.layout.chunk,
            sums: self.options.output.verify,
            progress,
            entropy_coding: (self.options.compression.default)
                .is_some_and(|c| !matches!(c.method, Method::Lz4 | Method::Lz4hc)),
            dense_and_fast: self.options.compression.auto.and_then(|a| {
                let (dense, fast) = (self.options.compression.default?, a.fast(self.options)?);
                Some(
                    [dense, fast]
                        .map(|c| self.options.encoder(c, self.options.compression.cluster)),
                )
            }),
        };
        let in_place = self.leave_in_place(tree, &order, &settings, packer)?;
        order.retain(|inode| !in_place.contains(inode));
        let mut kept = self.kept_clusters(tree, &order)?;
        let contents: Vec<dedupe::DedupeCandidate> = order
            .iter()
            .filter(|i| !self.is_sparse(tree, **i) && !kept.contains_key(*i))
            .map(|i| self.content(tree, *i))
            .collect();
        let of_others = self.in_place.iter().any(Option::is_none);
        // An image that stays in place is identified by inode, so its contents need no index.
        let known = self
            .base
            .filter(|_| of_others || !self.options.dedupe.bases.is_empty());
        let mut plan = dedupe::find_duplicates(contents, &settings, known, &|inode| {
            progress.check()?;
            dedupe::readable(self.file_content(tree, inode)?)
        })?;
        for (number, clusters) in plan.clusters.drain() {
            packer.add_clusters(number, clusters);
        }
        for (inode, choice) in &plan.choices {
            let (files, bytes) = &mut self.chosen[usize::from(*choice == Choice::Stored)];
            (*files, *bytes) = (*files + 1, *bytes + tree.size(*inode));
        }
        progress.stage("pack");
        for inode in order {
            if let Some(first) = plan.duplicates.get(&inode) {
                let size = tree.size(inode);
                progress.add_bytes(size);
                packer.add_same(inode, *first, size);
                continue;
            }
            if let (Some(base), Some((there, sum))) = (self.base, plan.in_base.get(&inode)) {
                let (size, stored) = (tree.size(inode), self.is_stored(tree, inode, &plan));
                let data = base.data(*there, stored)?;
                let data = data.expect("the plan contains only data that the base has");
                progress.add_bytes(size);
                packer.add_base_file(inode, size, data, *sum)?;
                continue;
            }
            if let Some(parts) = plan.stored_parts.remove(&inode)
                && let Some(content) = self.file_content(tree, inode)?
            {
                let policy = &self.policies.stored;
                progress.add_bytes(parts.shared_bytes(tree.size(inode), self.options.block));
                packer.add_stored_parts(inode, tree.size(inode), content, parts, policy)?;
                continue;
            }
            if let Some(kept) = kept.remove(&inode) {
                let kept_tail = kept.tail.as_ref().map(|(at, _)| *at);
                packer.add_clusters(kept.number, kept.clusters);
                if let Some((_, tail)) = kept.tail {
                    packer.keep_tail(inode, tail);
                }
                let decision = FileDecision {
                    sharing: FileSharing {
                        plan: Some(&kept.plan),
                        kept_tail,
                        ..FileSharing::default()
                    },
                    choice: Choice::Default,
                };
                self.pack_file(tree, inode, decision, packer)?;
                continue;
            }
            // Files of the packed inode follow at the end, in the order of the plan.
            let decision = FileDecision {
                sharing: FileSharing {
                    duplicate_key: None,
                    plan: plan.plans.get(&inode),
                    end: plan.tail_starts.get(&inode).copied(),
                    kept_tail: None,
                },
                choice: plan.choices.get(&inode).copied().unwrap_or_default(),
            };
            self.pack_file(tree, inode, decision, packer)?;
        }
        self.pack_deferred(tree, plan.packed.into_iter(), packer)
    }

    /// True if a file is stored uncompressed.
    fn is_stored(&self, tree: &Tree, inode: InodeId, plan: &dedupe::DedupePlan) -> bool {
        let choice = plan.choices.get(&inode).copied().unwrap_or_default();
        let policy = self.policies.chosen(choice);
        let policy = policy.unwrap_or_else(|| self.policy(tree, inode).1);
        policy.spec.is_none()
    }

    /// Hands files and tails for the packed inode to the packer.
    fn pack_deferred(
        &self,
        tree: &Tree,
        files: impl Iterator<Item = PackedFile>,
        packer: &mut Packer<'_>,
    ) -> Result<()> {
        for packed in files {
            if let Some(content) = self.file_content(tree, packed.file)? {
                packer.add_packed(packed, tree.size(packed.file), content)?;
            }
        }
        Ok(())
    }

    /// Hands a file's content to the packer. Returns false without doing so if the whole file goes
    /// into the packed inode.
    fn pack_file(
        &self,
        tree: &Tree,
        inode: InodeId,
        decision: FileDecision<'_>,
        packer: &mut Packer<'_>,
    ) -> Result<bool> {
        let policy = match self.policies.chosen(decision.choice) {
            Some(policy) => policy,
            None => self.policy(tree, inode).1,
        };
        let size = tree.size(inode);
        let sparse = self.sparse_runs(tree, inode);
        if sparse.is_none() && size > 0 && policy.packs_whole(size) {
            return Ok(false);
        }
        let Some(content) = self.file_content(tree, inode)? else {
            return Ok(true);
        };
        match sparse {
            Some(runs) => {
                let sparse = self.sparse(size, &runs);
                packer.add_sparse(inode, size, content, sparse, policy)?;
            }
            None => packer.add_file(inode, size, content, policy, &decision.sharing)?,
        }
        Ok(true)
    }

    /// Number of zeros that are written for the holes of a file. Unit: bytes.
    fn written_zeros(&self, size: u64, runs: &[DataRun]) -> u64 {
        let data: u64 = runs.iter().map(|run| run.len).sum();
        let written = match self.options.keeps_sparse(size, runs) {
            true => {
                let sparse = self.sparse(size, runs);
                let chunks: u64 = sparse.runs.iter().map(|run| run.count).sum();
                chunks.saturating_mul(self.options.block.size() << sparse.bits)
            }
            false => size,
        };
        written.saturating_sub(data)
    }

    /// Fails if the files to pack have far more content than their sources store.
    fn check_expansion(&self, tree: &Tree, files: &[InodeId]) -> Result<()> {
        let (mut stored, mut zeros) = (0u64, 0u64);
        let mut largest = (0, 0);
        for inode in files {
            let size = tree.size(*inode);
            let Some(runs) = tree.content(*inode).parts().1.cloned() else {
                stored = stored.saturating_add(size);
                continue;
            };
            let added = self.written_zeros(size, &runs);
            zeros = zeros.saturating_add(added);
            stored = stored.saturating_add(runs.iter().map(|run| run.len).sum());
            largest = largest.max((added, *inode));
        }
        let checked = Expansion::new(self.options.resources.max_expansion).check(zeros, stored);
        checked.map_err(|e| Error::from(e.in_member(&tree.path(largest.1))))
    }

    /// Chunks of a file that stays sparse.
    fn sparse(&self, size: u64, runs: &[DataRun]) -> Sparse {
        let bits = self.options.block;
        match self.options.layout.chunk {
            Some(chunk) => Sparse::of_size(size, runs, bits, (chunk >> bits.get()).ilog2()),
            None => Sparse::plan(size, runs, bits),
        }
    }

    /// Length of tails that may go into the packed inode because of their similarity. Unit: bytes.
    ///
    /// Each must lie in the LZ4 window of the tail before it, and at least one and a half must fit
    /// into a cluster.
    fn tail_len(&self) -> u64 {
        let most = self
            .options
            .compression
            .cluster
            .min(2 * self.options.similar_cluster());
        most.min(64 << 10) as u64 / 8 * 7
    }

    /// Properties of a file that the deduplication analysis uses.
    fn content(&self, tree: &Tree, inode: InodeId) -> dedupe::DedupeCandidate {
        let (number, policy) = self.policy(tree, inode);
        let size = tree.size(inode);
        let packed = policy.packs_whole(size);
        let cut = !packed && policy.spec.is_some_and(|s| size > s.cluster as u64);
        let tail_len = self.tail_len();
        dedupe::DedupeCandidate {
            file: inode,
            size,
            policy: number,
            packed,
            tail: cut
                && self.options.dedupe.mode == Dedupe::Content
                && matches!(policy.tail, TailPolicy::Fragment(_))
                && self.policies.packed.spec.is_some()
                && tail_len >= TAIL_LEN_MIN
                && (tail_len + self.options.block.size()..=segment_size(policy)).contains(&size),
            // The low bits of the hash are enough.
            name: xxh3_64(tree.last_name(inode)) as u16,
            segment_bits: if cut {
                // Fits: a segment is a power of two, a few MiB.
                NonZeroU8::new(segment_size(policy).ilog2() as u8)
            } else {
                None
            },
            algorithm: policy.spec.map(|s| s.method.algorithm()),
            auto: self.options.compression.auto.is_some()
                && number == PolicyId::DEFAULT
                && policy.spec.is_some(),
        }
    }

    /// True if a file stays sparse.
    pub(crate) fn is_sparse(&self, tree: &Tree, inode: InodeId) -> bool {
        self.sparse_runs(tree, inode).is_some()
    }

    fn sparse_runs(&self, tree: &Tree, inode: InodeId) -> Option<Arc<[DataRun]>> {
        let content = tree.content(inode);
        let runs = content.parts().1?;
        let keeps = self.options.keeps_sparse(tree.size(inode), runs);
        keeps.then(|| Arc::clone(runs))
    }
}

/// Adds the place in the source to an error about an entry.
fn in_source(e: Error, place: impl Into<Place>) -> Error {
    match e {
        Error::Source(_) => e.within(place),
        e => e,
    }
}
