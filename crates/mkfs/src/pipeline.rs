//! The build: load, dedupe, pack, layout, emit, a function each; see the crate's documentation.

use crate::base::Bases;
use crate::dedupe::{Cuts, PackedFile, StoredData, decide};
use crate::emit::targets::{self, Blob, Targets};
use crate::emit::{self, metabox};
use crate::environment::Environment;
use crate::layout::xattrs::{PrefixTable, Xattrs};
use crate::layout::{LayoutInput, ListPlan, Metabox, Parts, Plan};
use crate::load::complete::complete;
use crate::load::fingerprint::set_fingerprints;
use crate::load::{Loaded, load};
use crate::options::{Metadata, Options};
use crate::pack::files::TreeFiles;
use crate::pack::memory_budget::{self, Budget};
use crate::pack::policies::Policies;
use crate::pack::stage::{pack_files, pack_fragments};
use crate::pack::tar_index::refer_to_tar;
use crate::pack::{PackOptions, Packed, Packer};
use crate::patch::matching::find_unchanged;
use crate::progress::Progress;
use crate::source::left_out::LeftOut;
use crate::source::spec::Source;
use crate::source::tally::AffectedPaths;
use crate::start_list::Listed;
use crate::stats::Stats;
use crate::tree::order::data_order;
use crate::tree::{InodeId, NodeKind, Tree};
use crate::{Error, Place, Remedy, Result};
use crate::{presets, start, verify, verity};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tuff_erofs::verity::HashTree;
use tuff_format::features::KernelVersion;
use tuff_store::{Output, Target};

/// Result of a build.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Counters of the stages.
    pub stats: Stats,
    /// Length of the image in bytes.
    pub image_bytes: u64,
    /// Length in bytes of the image that was patched. 0 for a new image.
    pub old_bytes: u64,
    /// Oldest kernel that mounts the image.
    pub kernel: KernelVersion,
    /// Block size in bytes. Kernels mount the image if their pages are at least as large.
    pub block_bytes: u64,
    /// Files that hold data of the image, in the order of its device table, as far as they have names.
    pub devices: Vec<PathBuf>,
    /// Preset that met the size budget, if there was one.
    pub preset: Option<presets::Preset>,
    /// Appended hash tree, if one was requested.
    pub verity: Option<HashTree>,
}

/// Builds an image from sources, merged in order, and writes it to `target`.
///
/// The output appears under its name only when it is complete. The same sources and options give the same bytes, at any
/// number of threads.
///
/// # Errors
///
/// * `Usage`: the options contradict each other, or no image can hold the tree.
/// * `Io`: a source or the target failed. A stopped build is `Io` with kind `Interrupted`.
/// * `Limit`: something exceeds the format.
pub fn build(
    sources: &[Source],
    options: &Options,
    target: &Target,
    progress: &Progress,
) -> Result<Summary> {
    options.check()?;
    targets::check(sources, options, target)?;
    build_at(sources, options, Destination::Target(target), progress)
}

/// As [`build`], but returns `None` and leaves the target as it is if the image would have `limit` bytes or more.
pub(crate) fn build_smaller(
    sources: &[Source],
    options: &Options,
    target: &Target,
    limit: u64,
    progress: &Progress,
) -> Result<Option<Summary>> {
    options.check()?;
    targets::check(sources, options, target)?;
    let mut options = options.clone();
    options.output.size_budget = Some(limit.saturating_sub(1));
    let mut destination = Destination::Target(target);
    match build_once(sources, &options, &mut destination, progress) {
        Err(e) if is_over_budget(&e) => Ok(None),
        built => built.map(Some),
    }
}

/// Builds an image from sources, merged in order, and writes it to `writer` when it is complete. Until then it is in an
/// unnamed temporary file.
///
/// ```
/// use tuff_mkfs::{Options, Progress, Source, TarStream, build_to};
///
/// let tar = std::io::empty(); // any reader of a tar, plain or compressed
/// # let tar = std::io::Cursor::new(vec![0; 1024]);
/// let sources = [Source::TarStream(TarStream::new("layer", tar))];
/// let mut image = Vec::new();
/// let summary = build_to(&sources, &Options::default(), &mut image, &Progress::default())?;
/// assert_eq!(image.len() as u64, summary.image_bytes);
/// # Ok::<(), tuff_mkfs::Error>(())
/// ```
///
/// # Errors
///
/// As for [`build`], and `Io` if `writer` fails.
pub fn build_to(
    sources: &[Source],
    options: &Options,
    writer: &mut dyn Write,
    progress: &Progress,
) -> Result<Summary> {
    options.check()?;
    targets::check_sources(sources, options)?;
    build_at(sources, options, Destination::Writer(writer), progress)
}

/// Destination of an image.
enum Destination<'a> {
    Target(&'a Target),
    Writer(&'a mut dyn Write),
}

fn build_at(
    sources: &[Source],
    options: &Options,
    mut destination: Destination<'_>,
    progress: &Progress,
) -> Result<Summary> {
    let mut build = |options: &Options| {
        leaving_out(sources, options, progress, &mut || {
            build_once(sources, options, &mut destination, progress)
        })
    };
    let Some(budget) = options.output.size_budget else {
        return build(options);
    };
    if let Some(stream) = sources.iter().find(|source| is_read_once(source)) {
        return Err(Error::usage(format_args!(
            "an image within a size budget may take several builds: {} can be read only once, so name a file",
            stream.name()
        )));
    }
    let fits = |preset: &presets::Preset| preset.kernel <= options.kernel;
    let presets = presets::PRESETS.into_iter().filter(fits);
    // Fits: there are few presets.
    let count = presets.clone().count() as u32;
    for (number, preset) in (1..).zip(presets) {
        let mut options = options.clone();
        if !preset.apply(&mut options) {
            continue;
        }
        progress.set_attempt(number, count);
        match build(&options) {
            Err(e) if is_over_budget(&e) => {}
            done => {
                return done.map(|mut summary| {
                    summary.preset = Some(preset);
                    summary
                });
            }
        }
    }
    Err(Error::limit(
        Place::image(),
        format_args!(
            "no settings for Linux {} make it as small as {budget} bytes",
            options.kernel
        ),
    ))
}

fn is_over_budget(e: &Error) -> bool {
    e.remedy() == Some(Remedy::LargerBudget)
}

pub(crate) fn is_read_once(source: &Source) -> bool {
    matches!(source, Source::TarStdin | Source::TarStream(_))
}

/// Repeats a build that fails because of files that may be left out: each attempt leaves out those of the attempts
/// before it. A file can vanish after its name was taken into the tree.
pub(crate) fn leaving_out<T>(
    sources: &[Source],
    options: &Options,
    progress: &Progress,
    build: &mut dyn FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        let count = || {
            options
                .sources
                .keep_going
                .as_ref()
                .map_or(0, LeftOut::count)
        };
        let before = count();
        let done = build();
        if done.is_ok() || count() == before || sources.iter().any(is_read_once) {
            return done;
        }
        progress.check()?;
    }
}

fn build_once(
    sources: &[Source],
    options: &Options,
    destination: &mut Destination<'_>,
    progress: &Progress,
) -> Result<Summary> {
    let (name, output) = match destination {
        Destination::Target(target) => (target_name(target), Output::create(target)),
        Destination::Writer(_) => ("image".to_owned(), Output::temporary()),
    };
    let output = output.map_err(|e| Error::io(Place::file(&name), "cannot create", e))?;
    let base = Bases::open(options, sources)?;
    let in_place = matches!(destination, Destination::Target(Target::InPlace(_)));
    let blob = (options.layout.blob.as_deref())
        .map(|path| Blob::create(path, in_place))
        .transpose()?;
    let blob_name = blob.as_ref().map_or("blob", |blob| &blob.name);
    let renamed = |e: Error| {
        e.rename_place(Place::image(), Place::file(&name))
            .rename_place(Place::blob(), Place::file(blob_name))
    };
    let places = Targets {
        image: &output,
        blob: blob.as_ref().map(|blob| &blob.output),
    };
    let written = write(sources, options, base, places, progress, &|| ()).map_err(renamed)?;
    progress.stage("finish");
    // After this point the image gets its name.
    progress.check().map_err(renamed)?;
    // The blob comes first: an image that has its name has its data.
    if let Some(blob) = blob {
        blob.finish(written.stats.blob_bytes, options.output.sync)?;
    }
    match destination {
        Destination::Target(_) => output.finish(written.bytes, options.output.sync),
        Destination::Writer(writer) => output.copy_to(written.bytes, writer),
    }
    .map_err(|e| Error::io(Place::file(&name), "cannot finish", e))?;
    Ok(written.summary(options, 0))
}

fn target_name(target: &Target) -> String {
    match target {
        Target::Path(path) | Target::InPlace(path) => path.display().to_string(),
        Target::Stdout => "standard output".to_owned(),
    }
}

/// Image that is written but has no name yet.
pub(crate) struct Written {
    pub(crate) stats: Stats,
    /// Length of the image with its hash tree. Unit: bytes.
    pub(crate) bytes: u64,
    devices: Vec<PathBuf>,
    verity: Option<HashTree>,
}

impl Written {
    pub(crate) fn summary(self, options: &Options, old_bytes: u64) -> Summary {
        Summary {
            stats: self.stats,
            image_bytes: self.bytes,
            old_bytes,
            kernel: options.kernel,
            block_bytes: options.block.size(),
            devices: self.devices,
            preset: None,
            verity: self.verity,
        }
    }
}

/// Writes the image and calls `written` before verification; tests damage the image there.
pub(crate) fn write(
    sources: &[Source],
    options: &Options,
    base: Option<Bases>,
    places: Targets<'_>,
    progress: &Progress,
    written: &dyn Fn(),
) -> Result<Written> {
    let environment = &Environment::new(options, places, progress);
    let base = base.map(Arc::new);
    let policies = Policies::new(options);
    let prefixes = PrefixTable::new(options)?;
    let mut packer = start_packer(options, &policies, base.as_deref(), environment)?;
    if prefixes.in_packed {
        packer.start_packed(&prefixes.bytes)?;
    }

    let has_base = base.is_some();
    let mut loaded = load(
        sources,
        options,
        &policies,
        has_base,
        environment,
        &mut packer,
    )?;
    complete(&mut loaded, sources, options)?;
    if let Some(name) = &options.metadata.fingerprints {
        set_fingerprints(&mut loaded.tree, name, &loaded.contents, environment)?;
    }
    let start = start::files(&mut loaded, options)?;
    let Loaded {
        tree,
        contents,
        packed,
        mut warnings,
    } = loaded;
    let files = TreeFiles {
        tree: &tree,
        contents: &contents,
        options,
        policies: &policies,
        stores_all: false,
    };

    // Layers and patches keep the places of their data, and a patch keeps those of its inodes.
    let is_whole = base.is_none() && !options.dedupe.tar_index && options.layout.blob.is_none();
    let is_patch = base.as_ref().is_some_and(|base| base.in_image());
    let start = if is_patch { Vec::new() } else { start };
    let listed = Listed::new(&tree, &start, is_whole && options.sources.order.is_empty());
    let patched = base.as_ref().filter(|base| base.in_image());
    let unchanged = patched.map(|base| find_unchanged(&files, base, environment));
    let unchanged = unchanged.transpose()?.flatten().map(Arc::new);
    let small = unchanged.as_ref().map(|unchanged| {
        packer.keep_packed();
        let options = unchanged.options(options);
        (Policies::new(&options), options)
    });
    let (policies, options) = small.as_ref().map_or((&policies, options), |(p, o)| (p, o));
    let files = TreeFiles {
        options,
        policies,
        ..files
    };
    let stored = StoredData {
        bases: base.as_ref(),
        in_place: Bases::of_sources(options, sources),
        unchanged: unchanged.as_deref(),
        placed: match sources {
            [Source::Placed(tree)] => Some(&**tree),
            _ => None,
        },
    };
    let mut packed = pack(
        files,
        &stored,
        (packed, &listed),
        packer,
        environment,
        &mut warnings,
    )?;

    progress.stage("write");
    let mut order = tree.inode_order();
    let needed = listed.order_inodes(&mut order);
    count(&tree, &order, &mut packed.stats);
    let xattrs = Xattrs::plan(&tree, &order, options, &prefixes.prefixes, &mut warnings)?;
    let input = LayoutInput {
        tree: &tree,
        order: &order,
        xattrs: &xattrs,
        options,
        base: base.as_deref(),
        area: &prefixes.area(&xattrs),
        unchanged: unchanged.as_ref(),
        start: None,
    };
    let list = listed.list(&input.with(&packed, None));
    let list = list.map(|list| ListPlan { list, needed });
    let unchanged = (unchanged.as_ref())
        .map(|unchanged| Arc::new(unchanged.without(&input.with(&packed, None).misfits())));
    let input = LayoutInput {
        unchanged: unchanged.as_ref(),
        start: list.as_ref(),
        ..input
    };
    let (plan, metabox) = lay_out(&input, &mut packed, environment)?;

    let parts = input.with(&packed, metabox.as_ref());
    let (bytes, verity) = emit(&parts, &plan, &prefixes, environment, written)?;
    let mut stats = packed.stats.clone();
    stats.image_blocks = plan.len_blocks.into();
    let head_blocks = head_blocks(options, base.as_deref());
    stats.meta_blocks = stats.image_blocks - u64::from(packed.end_block) + u64::from(head_blocks);
    stats.block_size = options.block.size();
    stats.blob_bytes = places.blob.map_or(0, |_| {
        u64::from(packed.external.unwrap_or_default()) * options.block.size()
    });
    stats.warnings = warnings;
    Ok(Written {
        stats,
        bytes,
        devices: devices(sources, options, base.as_deref()),
        verity,
    })
}

/// Returns the number of blocks before the data of an image.
fn head_blocks(options: &Options, base: Option<&Bases>) -> u32 {
    emit::first_data_block(options.block, base.map_or(0, Bases::slot_count))
}

/// Starts the packer of file contents.
pub(crate) fn start_packer<'a>(
    options: &Options,
    policies: &Policies,
    base: Option<&Bases>,
    environment: &Environment<'a>,
) -> Result<Packer<'a>> {
    let eighth = usize::try_from(memory_budget::eighth(options)).unwrap_or(usize::MAX);
    let patched = base.filter(|base| base.in_image());
    let pack_options = PackOptions {
        bits: options.block,
        grain: options.grain(),
        threads: environment.threads,
        // The tree has not taken its share yet.
        in_flight: memory_budget::Budget::first(options, environment.threads),
        spill: eighth,
        temporary: environment.temporary.clone(),
        first_block: patched.map_or_else(|| head_blocks(options, base), Bases::first_free),
        packed: policies.packed(),
        similar: policies.similar(),
        cuts: Cuts::of_stream(options.layout.fragment_cut, options.layout.fragment_cluster),
        chunk: options.layout.chunk,
        keeps_collisions: options.dedupe.keeps_collisions,
        // About 40 bytes per entry.
        known_max: eighth / 40,
        sums: options.output.verify,
        size_max: options.output.size_budget,
        continued: options.metadata.form == Metadata::Compressed,
    };
    let targets = environment.targets;
    let mut packer = Packer::new(pack_options, targets.image, environment.progress)?;
    if let Some(blob) = targets.blob {
        packer.set_blob(blob);
    }
    Ok(packer)
}

/// Stages dedupe and pack. `packed` lists the files that still go into the packed inode if all others were packed while
/// they were loaded, and `listed` those that a start reads.
fn pack(
    mut files: TreeFiles<'_>,
    stored: &StoredData<'_>,
    (packed, listed): (Option<Vec<InodeId>>, &Listed),
    mut packer: Packer<'_>,
    environment: &Environment<'_>,
    warnings: &mut Vec<String>,
) -> Result<Packed> {
    let (tree, options, progress) = (files.tree, files.options, environment.progress);
    let total = |inodes: &[InodeId]| {
        let sizes = inodes.iter().map(|i| tree.size(*i));
        sizes.fold(0, u64::saturating_add)
    };
    let all = total(&tree.inode_order());
    warnings.extend(memory_budget::limit_warning(
        options,
        environment.memory_limit,
        all,
    ));
    let budget = Budget::new(options, tree, environment.threads);
    warnings.extend(budget.warning(options));
    packer.set_in_flight(budget.in_flight);
    let mut chosen = Default::default();
    if options.dedupe.tar_index {
        progress.stage("refer");
        refer_to_tar(&files, &mut packer)?;
    } else if let Some(whole) = packed {
        progress.stage("pack");
        let whole = whole.into_iter().map(PackedFile::whole);
        pack_fragments(&files, whole, &mut packer)?;
    } else {
        let mut absent = AffectedPaths::default();
        let mut order = data_order(tree, options, &mut absent);
        warnings.extend(absent.warning("listed in the data order, but not in the tree"));
        files.check_expansion(&order)?;
        if let Some(unchanged) = stored.unchanged {
            order.retain(|inode| unchanged.nid(*inode).is_none());
        }
        let listed = listed.order_data(&mut order);
        let total = total(&order);
        progress.set_total(total);
        files.stores_all = options.layout.inline_data
            && options.compression.rules.is_empty()
            && total <= options.block.size() / 2;
        let decisions = decide(&files, order, listed, stored, environment)?;
        chosen = decisions.chosen(&files);
        pack_files(&files, decisions, stored, &mut packer, progress)?;
    }
    let mut packed = packer.finish(stored.bases.map(Arc::as_ref))?;
    [packed.stats.auto_fast, packed.stats.auto_stored] = chosen;
    Ok(packed)
}

/// Stage layout. Compressed metadata is packed here, after the data of all files:
///
/// ```text
/// plan ──► directories ──► packed inode ──► inodes, attributes ──► metabox ──► rest of the plan
///              pack                               pack, again if addresses change
/// ```
fn lay_out(
    input: &LayoutInput<'_>,
    packed: &mut Packed,
    environment: &Environment<'_>,
) -> Result<(Plan, Option<Metabox>)> {
    let mut plan = Plan::new(&input.with(packed, None))?;
    let Some(size) = plan.metabox_size else {
        return Ok((plan, None));
    };
    let directories = metabox::pack_directories(&input.with(packed, None), &plan, environment)?;
    if let Some(directories) = directories {
        packed.append(directories);
    }
    let metabox = metabox::place(input, packed, &mut plan, size, environment)?;
    Ok((plan, Some(metabox)))
}

/// Stages emit, verity and verify. Returns the length of the image in bytes, with its hash tree.
fn emit(
    parts: &Parts<'_>,
    plan: &Plan,
    prefixes: &PrefixTable,
    environment: &Environment<'_>,
    written: &dyn Fn(),
) -> Result<(u64, Option<HashTree>)> {
    let (options, progress) = (parts.options, environment.progress);
    let (threads, output) = (environment.threads, environment.targets.image);
    let bytes = u64::from(plan.len_blocks) * options.block.size();
    let all = match &options.output.verity {
        Some(verity) => verity::end(verity, bytes)?,
        None => bytes,
    };
    if options.output.size_budget.is_some_and(|max| all > max) {
        return Err(super::pack::grain::over_budget());
    }
    let head = emit::emit(parts, plan, prefixes, environment)?;
    let mut tree = None;
    if let Some(verity) = &options.output.verity {
        progress.stage("hash tree");
        let appended = verity::append(verity, &head, bytes, threads, output, progress)?;
        tree = Some(appended);
    }
    head.write(output)?;
    written();
    if options.output.verify {
        progress.stage("verify");
        verify::verify(parts, plan, environment)?;
    }
    Ok((tree.as_ref().map_or(bytes, |tree| tree.end), tree))
}

/// Lists the files that hold data of the image, in the order of its device table.
fn devices(sources: &[Source], options: &Options, base: Option<&Bases>) -> Vec<PathBuf> {
    let tar = sources.iter().filter_map(|source| match source {
        Source::Tar(tar) if options.dedupe.tar_index => Some(tar),
        _ => None,
    });
    let bases = base.into_iter().flat_map(Bases::paths);
    tar.chain(&options.layout.blob)
        .cloned()
        .chain(bases)
        .collect()
}

fn count(tree: &Tree, order: &[InodeId], stats: &mut Stats) {
    for (i, inode) in order.iter().enumerate() {
        let kind = tree.kind(*inode);
        match kind {
            NodeKind::File { size } => {
                stats.files += 1;
                stats.content_bytes += size;
            }
            NodeKind::Dir => stats.dirs += 1,
            NodeKind::Symlink(_) => stats.symlinks += 1,
            _ => stats.specials += 1,
        }
        if i > 0 && !matches!(kind, NodeKind::Dir) {
            stats.hard_links += u64::from(tree.nlink(*inode) - 1);
        }
    }
}
