//! From sources to the tree, and from the tree to the packer.

use super::options::{Fragments, Options};
use super::order::{ContentKey, data_order, twins};
use super::pack::input::Input;
use super::pack::segment::TailPolicy;
use super::pack::work::Policy;
use super::pack::{Packer, Sparse};
use super::progress::Progress;
use super::source::dir::{DirSource, WalkOptions};
use super::source::{Content, DataRun, Entry, Kind};
use super::tree::{InodeId, NodeKind, Tree, lossy};
use super::Source;
use crate::{Error, Result};
use hashbrown::HashMap;
use std::fs::File;
use std::sync::Arc;

/// Settings per rule, made once.
pub struct Policies {
    default: Arc<Policy>,
    rules: Vec<(globset::GlobMatcher, Arc<Policy>)>,
    packed: Arc<Policy>,
}

impl Policies {
    /// The policies of these options.
    pub fn new(options: &Options) -> Self {
        let block = options.block.size_usize();
        // Head and tail of a plain extended inode still share a block.
        let room = block - 96;
        let policy = |compression: Option<super::Compression>, cluster: usize| {
            let tail = match options.fragments {
                Fragments::Tails => TailPolicy::Fragment(cluster),
                Fragments::Off if options.tail_packing => TailPolicy::Inline(room),
                Fragments::Off => TailPolicy::Cluster,
            };
            Arc::new(Policy {
                spec: compression.map(|c| options.encoder(c, cluster)),
                tail,
                inline_max: if options.inline_data { room } else { 0 },
                min_saving: options.min_saving,
            })
        };
        let mut packed = (*policy(options.compression, options.fragment_cluster)).clone();
        packed.tail = TailPolicy::Cluster;
        packed.min_saving = 0;
        Self {
            default: policy(options.compression, options.cluster),
            rules: options
                .rules
                .iter()
                .map(|r| (r.glob.clone(), policy(r.compression, r.cluster.unwrap_or(options.cluster))))
                .collect(),
            packed: Arc::new(packed),
        }
    }

    /// The policy of a path, and its number.
    fn of(&self, path: impl FnOnce() -> Vec<u8>) -> (u32, &Arc<Policy>) {
        if self.rules.is_empty() {
            return (0, &self.default);
        }
        let path = path();
        let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&path[..]);
        let found = self.rules.iter().enumerate().find(|(_, (glob, _))| glob.is_match(path));
        found.map_or((0, &self.default), |(i, (_, policy))| (i as u32 + 1, policy))
    }

    /// How the packed inode is stored.
    pub fn packed(&self) -> Arc<Policy> {
        Arc::clone(&self.packed)
    }
}

/// Where the contents of a source's files are.
enum Provider {
    Dir(Arc<DirSource>),
    Tar(Arc<File>, Arc<str>),
    Elsewhere,
}

/// Loads sources and feeds the packer.
pub struct Loader<'a> {
    options: &'a Options,
    policies: &'a Policies,
    threads: usize,
    providers: Vec<Provider>,
    /// What was left out or changed.
    pub warnings: Vec<String>,
    /// Contents of a stream that are packed already.
    streamed: HashMap<ContentKey, InodeId>,
    packed: hashbrown::HashSet<InodeId>,
}

impl<'a> Loader<'a> {
    /// A loader for these options.
    pub fn new(options: &'a Options, policies: &'a Policies, threads: usize) -> Self {
        Self {
            options,
            policies,
            threads,
            providers: Vec::new(),
            warnings: Vec::new(),
            streamed: HashMap::new(),
            packed: hashbrown::HashSet::new(),
        }
    }

    /// Adds a source to the tree. A tar stream that is the only source is packed on the way.
    pub fn load(
        &mut self,
        source: &Source,
        _only: bool,
        tree: &mut Tree,
        _packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        match source {
            Source::Dir(path) => {
                let dir = Arc::new(DirSource::open(path)?);
                let exclude = |path: &[u8]| self.excluded(path);
                let options = WalkOptions {
                    exclude: &exclude,
                    one_file_system: self.options.one_file_system,
                    xattrs: self.options.xattrs,
                };
                dir.walk(&options, &mut |entry| {
                    progress.check()?;
                    progress.add_entry();
                    tree.add(entry).map(|_| ())
                })?;
                self.providers.push(Provider::Dir(dir));
            }
            Source::Tar(_) | Source::TarStdin | Source::Manifest(_) => return Err(Error::usage("not yet")),
        }
        Ok(())
    }

    fn excluded(&self, path: &[u8]) -> bool {
        let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(path);
        self.options.exclude.is_match(path)
    }

    /// The content of a file and the number of its policy. `None`: it was packed from a stream.
    pub fn input(&self, tree: &Tree, inode: InodeId) -> Result<Option<(Input, u32)>> {
        let node = &tree.nodes[inode as usize];
        let NodeKind::File { size, content } = &node.kind else { return Ok(None) };
        let (number, _) = self.policies.of(|| tree.path(inode));
        let provider = self.providers.get(usize::from(node.layer)).unwrap_or(&Provider::Elsewhere);
        let input = match (content, provider) {
            (Content::InSource, Provider::Dir(source)) | (Content::Sparse(_), Provider::Dir(source)) => Input::Host {
                source: Arc::clone(source),
                path: tree.path(inode).into(),
                seen: (*size, node.meta.mtime),
            },
            (Content::Range { offset }, Provider::Tar(file, name)) => {
                Input::Range { file: Arc::clone(file), name: Arc::clone(name), offset: *offset }
            }
            (Content::Sparse(runs), Provider::Tar(file, name)) => {
                Input::Runs { file: Arc::clone(file), name: Arc::clone(name), runs: Arc::clone(runs) }
            }
            (Content::Path(path), _) => Input::Path(Arc::new(path.clone())),
            (Content::Bytes(bytes), _) => Input::Bytes(Arc::clone(bytes)),
            (Content::Stream | Content::SparseStream(_) | Content::None, _) => return Ok(None),
            _ => return Err(Error::usage(format_args!("{}: content of another kind of source", lossy(&tree.path(inode))))),
        };
        Ok(Some((input, number)))
    }

    /// Hands every file's content to the packer, in the order of the data.
    pub fn pack(&mut self, tree: &Tree, packer: &mut Packer<'_>, progress: &Progress) -> Result<()> {
        let mut order = data_order(tree, self.options);
        order.retain(|i| !self.packed.contains(i));
        let size_of = |inode: InodeId| match &tree.nodes[inode as usize].kind {
            NodeKind::File { size, .. } => *size,
            _ => 0,
        };
        progress.set_total(order.iter().map(|i| size_of(*i)).sum());
        let keys = if self.options.dedupe { twins(tree, &order, self, self.threads)? } else { HashMap::new() };
        let mut first: HashMap<ContentKey, InodeId> = HashMap::new();
        for inode in order {
            let size = size_of(inode);
            if let Some(key) = keys.get(&inode) {
                match first.entry(*key) {
                    hashbrown::hash_map::Entry::Occupied(e) => {
                        packer.add_same(inode, *e.get(), size);
                        continue;
                    }
                    hashbrown::hash_map::Entry::Vacant(e) => _ = e.insert(inode),
                }
            }
            let Some((input, _)) = self.input(tree, inode)? else { continue };
            let (_, policy) = self.policies.of(|| tree.path(inode));
            match self.sparse_runs(tree, inode, size) {
                Some(runs) => {
                    let sparse = Sparse::plan(size, runs, self.options.block);
                    packer.add_sparse(inode, size, input, sparse, policy)?;
                }
                None => packer.add_file(inode, size, input, policy)?,
            }
        }
        Ok(())
    }

    fn sparse_runs<'t>(&self, tree: &'t Tree, inode: InodeId, size: u64) -> Option<&'t [DataRun]> {
        match &tree.nodes[inode as usize].kind {
            NodeKind::File { content: Content::Sparse(runs), .. } if self.options.keeps_sparse(size, runs) => Some(runs),
            _ => None,
        }
    }
}

/// True for an entry that has content of its own to store.
pub fn has_content(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::File { size } if size > 0)
}
