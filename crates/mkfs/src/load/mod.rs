//! The load stage: reads all sources into one tree.
//!
//! The contents of files are read later, when they are packed. Only two kinds of sources are packed while they are
//! loaded, if they are the only one and no decision depends on later files: a tar stream, and a directory without
//! deduplication.

pub(crate) mod complete;
mod cpio;
mod exclude;
pub(crate) mod fingerprint;
mod image;
mod index;
mod manifest;
mod memory;
mod squashfs;
mod stream;
mod tar;

use crate::dedupe::auto::Choice;
use crate::environment::Environment;
use crate::options::{Dedupe, Options};
use crate::pack::contents::{ContentProvider, Contents};
use crate::pack::files::TreeFiles;
use crate::pack::memory_budget::Budget;
use crate::pack::policies::Policies;
use crate::pack::stage::pack_file;
use crate::pack::{FileSharing, Packer};
use crate::source::Entry;
use crate::source::dir::{DirSource, Outputs, WalkOptions};
use crate::source::error::Quoted;
use crate::source::spec::Source;
use crate::start::types::Start;
use crate::tree::{InodeId, Tree, Whiteouts};
use crate::{Error, Place, Result};
use exclude::Exclude;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Inodes between two updates of the memory budget while a source is packed during loading.
const BUDGET_STEP: usize = 4096;

/// Result of the load stage.
pub(crate) struct Loaded {
    /// Entries of all sources.
    pub(crate) tree: Tree,
    /// Contents of its files.
    pub(crate) contents: Contents,
    /// Everything was handed to the packer, except for these files, which go into the packed inode as a whole.
    pub(crate) packed: Option<Vec<InodeId>>,
    /// Warnings about entries that were left out or changed.
    pub(crate) warnings: Vec<String>,
}

/// Reads the sources into a tree, merged in order. `has_base` states that contents are compared with those of a base.
pub(crate) fn load(
    sources: &[Source],
    options: &Options,
    policies: &Policies,
    has_base: bool,
    environment: &Environment<'_>,
    packer: &mut Packer<'_>,
) -> Result<Loaded> {
    environment.progress.stage("walk");
    let mut tree = Tree::new(Whiteouts::Keep);
    if !options.metadata.xattrs {
        tree.leave_xattrs_out();
    }
    // The only source is in the order of the image unless the options set another.
    let packs_at_once = sources.len() == 1
        && options.sources.order.is_empty()
        && options.sources.subtree.is_empty()
        && options.sources.start == Start::None
        && options.compression.auto.is_none()
        && options.metadata.fingerprints.is_none()
        && !has_base;
    let mut loader = Loader {
        options,
        policies,
        environment,
        packer,
        packs_at_once,
        outputs: Outputs::new(environment.targets.file_ids(options)),
        exclude: Exclude::new(&options.sources),
        tree,
        contents: Contents::default(),
        packed: None,
        warnings: Vec::new(),
    };
    for (i, source) in sources.iter().enumerate() {
        if i > 0 {
            loader.tree.next_layer()?;
        }
        let whiteouts = whiteouts(source, options, sources.len() == 1);
        loader.tree.read_whiteouts(whiteouts);
        loader.load(source)?;
    }
    Ok(Loaded {
        tree: loader.tree,
        contents: loader.contents,
        packed: loader.packed,
        warnings: loader.warnings,
    })
}

/// Returns the form of a source's whiteouts. Layers in tars mostly have those of AUFS, as OCI specifies.
fn whiteouts(source: &Source, options: &Options, only: bool) -> Whiteouts {
    match (options.sources.whiteouts, source) {
        (Some(whiteouts), _) => whiteouts,
        (None, Source::TarWithin { .. }) => Whiteouts::Both,
        (None, _) if only => Whiteouts::Keep,
        (None, Source::Tar(_) | Source::TarStdin | Source::TarStream(_)) => Whiteouts::Both,
        (
            None,
            Source::Dir(_)
            | Source::Manifest(_)
            | Source::Image(_)
            | Source::SquashFs(_)
            | Source::Memory(_)
            | Source::Placed(_),
        ) => Whiteouts::Overlay,
    }
}

/// State of the load stage.
struct Loader<'a, 'p> {
    options: &'a Options,
    policies: &'a Policies,
    environment: &'a Environment<'a>,
    packer: &'a mut Packer<'p>,
    /// The contents of the only source can be packed at once if they need no analysis first.
    packs_at_once: bool,
    outputs: Outputs,
    exclude: Exclude<'a>,
    tree: Tree,
    contents: Contents,
    packed: Option<Vec<InodeId>>,
    warnings: Vec<String>,
}

impl Loader<'_, '_> {
    /// Adds a source to the tree.
    fn load(&mut self, source: &Source) -> Result<()> {
        match source {
            _ if self.options.dedupe.tar_index => self.load_index(source),
            Source::Dir(path) => self.load_dir(path),
            Source::Manifest(path) => self.load_manifest(path),
            Source::Image(image) => self.load_image(image),
            Source::SquashFs(path) => self.load_squashfs(path),
            Source::Tar(path) => self.load_tar_path(path),
            Source::TarWithin {
                file,
                offset,
                len,
                unpacked,
                name,
            } => self.load_tar_within(file, (*offset, *len), unpacked.as_ref(), name),
            Source::Memory(memory) => self.load_memory(memory),
            Source::Placed(tree) => {
                self.contents.layers.push(ContentProvider::Elsewhere);
                tree.each(&mut |entry| self.add(entry, || tree.name().into()).map(drop))
            }
            Source::TarStream(stream) => self.load_tar_stream(stream),
            Source::TarStdin => {
                let name = "standard input";
                let stdin = std::io::stdin().as_fd().try_clone_to_owned();
                let stdin = stdin.map_err(|e| Error::io(name, "cannot open", e))?;
                self.load_stream(name, stdin.into())
            }
        }
    }

    /// Walks a directory. Files go to the packer at once only without deduplication, which needs all sizes first.
    fn load_dir(&mut self, path: &Path) -> Result<()> {
        let left_out = self.options.sources.keep_going.clone();
        let dir = Arc::new(DirSource::open(path)?.leaving_out(left_out));
        let provider = ContentProvider::Dir(Arc::clone(&dir));
        self.contents.layers.push(provider);
        let packs = self.packs_at_once && self.options.dedupe.mode == Dedupe::Off;
        let threads = self.environment.threads;
        let exclude = |path: &[u8]| self.exclude.matches(path);
        let options = WalkOptions {
            exclude: &exclude,
            one_file_system: self.options.sources.one_file_system,
            exclude_caches: self.options.sources.exclude_caches,
            xattrs: self.tree.wants_xattrs(),
            // A second thread would only wait for the first, so one thread walks by itself.
            threads: if threads > 1 { threads } else { 0 },
            outputs: &self.outputs,
        };
        let mut deferred = Vec::new();
        let mut pack = |tree: &Tree, file: InodeId| {
            if !packs {
                return Ok(());
            }
            if tree.len().is_multiple_of(BUDGET_STEP) {
                let budget = Budget::new(self.options, tree, threads);
                self.packer.set_in_flight(budget.in_flight);
            }
            let files = TreeFiles {
                tree,
                contents: &self.contents,
                options: self.options,
                policies: self.policies,
                stores_all: false,
            };
            let sharing = FileSharing::default();
            if !pack_file(&files, file, Choice::Default, &sharing, self.packer)? {
                deferred.push(file);
            }
            Ok(())
        };
        let progress = self.environment.progress;
        let walked = dir.walk(&options, &mut self.tree, progress, &mut |tree, file| {
            pack(tree, file)
        });
        walked.map_err(|e| in_source(e, path.display()))?;
        self.packed = packs.then_some(deferred);
        for inside in self.outputs.take() {
            self.warnings.push(format!(
                "{}: is written by this command, so it is left out of the image",
                Quoted(path.join(OsStr::from_bytes(&inside)).as_os_str().as_bytes())
            ));
        }
        Ok(())
    }

    /// Adds an entry to the tree, unless it is excluded. Returns its inode. `place` names the entry in errors.
    fn add(&mut self, entry: Entry, place: impl FnOnce() -> Place) -> Result<Option<InodeId>> {
        self.environment.progress.check()?;
        self.environment.progress.add_entry();
        if self.exclude.is_left_out(&entry.path) {
            return Ok(None);
        }
        self.tree.add(entry).map_err(|e| in_source(e, place()))
    }
}

/// Adds the place in the source to an error about an entry.
fn in_source(e: Error, place: impl Into<Place>) -> Error {
    match e {
        Error::Source(_) => e.within(place),
        e => e,
    }
}
