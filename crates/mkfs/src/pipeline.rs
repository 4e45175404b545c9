//! The build: sources, tree, dedupe, pack, layout, emit; see the crate's documentation.

use crate::base::Bases;
use crate::dedupe::Cuts;
use crate::emit::targets::{Blob, Targets};
use crate::emit::{metabox, targets};
use crate::layout::xattrs;
use crate::layout::{Plan, Wanted};
use crate::load::Loader;
use crate::load::fingerprint;
use crate::options::{Fragments, Metadata, Options};
use crate::pack::memory_budget;
use crate::pack::policies::Policies;
use crate::pack::{PackOptions, Packer};
use crate::patch::matching::find_unchanged;
use crate::progress::Progress;
use crate::source::dir::Outputs;
use crate::source::error::{Quoted, SourceError};
use crate::source::left_out::LeftOut;
use crate::source::spec::Source;
use crate::source::tally::AffectedPaths;
use crate::stats::Stats;
use crate::tree::Whiteouts;
use crate::tree::{InodeId, NodeKind, Tree};
use crate::tree::{file_contexts, fs_config};
use crate::{Error, Place, Remedy, Result};
use crate::{emit, layout, presets, source, tree, verify, verity};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tuff_erofs::read::Limits;
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

fn is_read_once(source: &Source) -> bool {
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

/// Applies SELinux labels and fs_config to every path. Returns a warning.
fn described(tree: &mut Tree, options: &Options) -> Result<Option<String>> {
    let (contexts, config) = (&options.metadata.contexts, &options.metadata.fs_config);
    if contexts.is_none() && config.is_none() {
        return Ok(None);
    }
    let mount_point = options.metadata.mount_point.trim_ascii_end();
    let mount_point = mount_point.strip_suffix(b"/").unwrap_or(mount_point);
    let (mut unlabelled, mut unknown) = (AffectedPaths::default(), AffectedPaths::default());
    tree.describe_all(|_, path, file_type, meta, xattrs| {
        if let Some(config) = config {
            match config.owner(mount_point, path) {
                Some(owner) => {
                    (meta.uid, meta.gid, meta.mode) = (owner.uid, owner.gid, owner.mode);
                    set(xattrs, fs_config::CAPABILITY, owner.capability());
                }
                None => unknown.add(|| path.to_vec()),
            }
        }
        if let Some(contexts) = contexts {
            let full = match (mount_point, path) {
                ([], []) => b"/".to_vec(),
                (_, []) => mount_point.to_vec(),
                _ => [mount_point, path].join(&b'/'),
            };
            let label = contexts.label(&full, file_type).map(<[u8]>::to_vec);
            if label.is_none() {
                unlabelled.add(|| path.to_vec());
            }
            set(xattrs, file_contexts::LABEL, label);
        }
    })?;
    match unknown.warning("not in the fs_config table") {
        Some(what) => Err(Error::from(SourceError::corrupt(what))),
        None => Ok(unlabelled.warning("no label: no line of the file_contexts file matches")),
    }
}

/// Replaces or removes an extended attribute.
fn set(xattrs: &mut tree::Pairs, name: &[u8], value: Option<Vec<u8>>) {
    xattrs.retain(|(n, _)| n != name);
    xattrs.extend(value.map(|value| (name.to_vec(), value)));
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
    let output = places.image;
    let bits = options.block;
    // Layers in tars mostly have AUFS whiteouts, as OCI specifies.
    let whiteouts = |source: &Source| match (options.sources.whiteouts, source) {
        (Some(whiteouts), _) => whiteouts,
        (None, Source::TarWithin { .. }) => Whiteouts::Both,
        (None, _) if sources.len() == 1 => Whiteouts::Keep,
        (None, Source::Tar(_) | Source::TarStdin | Source::TarStream(_)) => Whiteouts::Both,
        (None, Source::Dir(_) | Source::Manifest(_) | Source::Image { .. } | Source::Memory(_)) => {
            Whiteouts::Overlay
        }
    };
    let (small_options, small_policies);
    let policies = Policies::new(options);
    let base = base.map(Arc::new);
    let grown = base.as_ref().filter(|base| base.in_image());
    let slots = base.as_ref().map_or(0, |base| base.slot_count());
    let head_blocks = emit::first_data_block(bits, slots);
    let first_block = grown.map_or(head_blocks, |base| base.behind());
    let memory_limit = tuff_store::memory_limit();
    let threads = memory_budget::threads(options, memory_limit);
    let temporary = options.resources.temporary.clone();
    let temporary = temporary.unwrap_or_else(|| output.scratch());
    let mut packer = Packer::new(
        PackOptions {
            bits,
            grain: options.grain(),
            threads,
            // The tree has not taken its share yet.
            in_flight: memory_budget::Budget::first(options, threads),
            spill: usize::try_from(memory_budget::eighth(options)).unwrap_or(usize::MAX),
            temporary: temporary.clone(),
            first_block,
            packed: policies.packed(),
            similar: policies.similar(),
            cuts: Cuts::of_stream(options.layout.fragment_cut, options.layout.fragment_cluster),
            chunk: options.layout.chunk,
            // About 40 bytes per entry.
            known_max: usize::try_from(memory_budget::eighth(options) / 40).unwrap_or(usize::MAX),
            sums: options.output.verify,
            size_max: options.output.size_budget,
            continued: options.metadata.form == Metadata::Compressed,
        },
        output,
        progress,
    )?;
    if let Some(blob) = places.blob {
        packer.set_blob(blob);
    }
    let prefixes = xattrs::prefixes(options)?;
    let table = xattrs::prefix_table(&prefixes);
    // Kernels read the prefix table from the metabox if there is one, else from the packed inode.
    let boxed = options.metadata.form == Metadata::Compressed;
    let table_in_packed =
        !prefixes.is_empty() && options.layout.fragments != Fragments::Off && !boxed;
    if table_in_packed {
        packer.start_packed(&table)?;
    }

    progress.stage("walk");
    let mut tree = Tree::new(Whiteouts::Keep);
    if !options.metadata.xattrs {
        tree.leave_xattrs_out();
    }
    let mut loader = Loader::new(
        options,
        &policies,
        threads,
        &temporary,
        base.as_ref(),
        Outputs::new(places.file_ids(options)),
    );
    for (i, source) in sources.iter().enumerate() {
        if i > 0 {
            tree.next_layer()?;
        }
        tree.read_whiteouts(whiteouts(source));
        loader.in_place(Bases::of_source(i, options, sources));
        loader.load(source, sources.len() == 1, &mut tree, &mut packer, progress)?;
    }
    loader.warnings.extend(tree.replaced.warning(
        "no directory at first, but a later path leads through it: it is one now, with mode 0755, owner 0 and time 0 unless it is described",
    ));
    loader.warnings.extend(tree.dropped.warning(
        "a directory at first, with entries of the same source, but a later entry replaces it: what was in it is left out",
    ));
    for layer in &tree.opaque_roots {
        let source = sources.get(usize::from(*layer)).map(Source::name);
        loader.warnings.push(format!(
            "{}: its root is opaque (.wh..wh..opq), which overlayfs does not ask of a layer: names in the root of layers below the image that no source has stay visible",
            source.unwrap_or_default()
        ));
    }
    let subtree = &options.sources.subtree;
    if !subtree.is_empty() {
        if let Some(dir) = sources.iter().find(|s| matches!(s, Source::Dir(_))) {
            return Err(Error::usage(format_args!(
                "{}: a subtree is one of archives and images; give this directory's own subdirectory as source",
                dir.name()
            )));
        }
        tree.take_subtree(subtree)?;
    }
    tree.mark_opaque()?;
    tree.finish();
    if !options.sources.hard_links {
        tree.split_hard_links()?;
    }
    loader.warnings.extend(source::container::hint(&tree));
    loader.warnings.extend(described(&mut tree, options)?);
    layout::check_owners(&tree, options)?;
    // Readers refuse deeper trees and longer paths.
    let limits = Limits::default();
    if let Some((dir, is_depth)) = tree.deeper_than(limits.depth - 1, limits.path_len) {
        let path = tree.path(dir);
        let what = match is_depth {
            true => format!(
                "directories are nested deeper than the limit depth, {}",
                limits.depth
            ),
            false => format!(
                "the path of a directory is longer than the limit path_len, {} bytes",
                limits.path_len
            ),
        };
        return Err(Error::limit(Place::path(Quoted(&path)), what));
    }

    if let Some(name) = &options.metadata.fingerprints {
        fingerprint::set_fingerprints(&mut tree, name, &loader, threads, progress)?;
    }
    let mut options = options;
    let mut unchanged = None;
    if let Some(base) = grown {
        progress.stage("match");
        unchanged = find_unchanged(
            &tree,
            base,
            options,
            output.is_atomic(),
            &loader,
            threads,
            progress,
        )?;
    }
    let unchanged = unchanged.map(Arc::new);
    if let Some(unchanged) = &unchanged {
        small_options = unchanged.options(options);
        small_policies = Policies::new(&small_options);
        options = &small_options;
        loader.keep(unchanged, options, &small_policies);
        packer.keep_packed();
    }
    let sizes = tree.inode_order().into_iter().map(|i| tree.size(i));
    let content = sizes.fold(0, u64::saturating_add);
    let short = memory_budget::limit_warning(options, memory_limit, content);
    loader.warnings.extend(short);
    loader.pack(&tree, &mut packer, progress)?;
    let mut packed = packer.finish(base.as_deref())?;

    progress.stage("write");
    let mut warnings = loader.warnings;
    let order = tree.inode_order();
    let xattrs = xattrs::Xattrs::plan(&tree, &order, options, &prefixes, &mut warnings)?;
    let mut area = xattrs.shared.clone();
    let table_at = area.len() as u64;
    if !table_in_packed {
        area.extend_from_slice(&table);
    }
    count(&tree, &order, &mut packed.stats);
    let settled;
    let mut wanted = Wanted {
        tree: &tree,
        order: &order,
        xattrs: &xattrs,
        options,
        base: base.as_deref(),
        xattr_area: area.len() as u64,
        unchanged: unchanged.as_ref(),
    };
    if let Some(unchanged) = &unchanged {
        let epoch = layout::old_epoch(unchanged.superblock(), options);
        let misfits = wanted.with(&packed, None).misfits(epoch);
        settled = Arc::new(unchanged.without(&misfits));
        wanted.unchanged = Some(&settled);
    }
    let mut plan = Plan::new(&wanted.with(&packed, None))?;
    let mut metabox = None;
    if let Some(size) = plan.metabox_size {
        let means = metabox::Means {
            threads,
            temporary: &temporary,
            output,
            progress,
        };
        let directories = metabox::pack_directories(&wanted.with(&packed, None), &plan, &means)?;
        if let Some(directories) = directories {
            packed.append(directories);
        }
        let made = metabox::place(&wanted, &packed, &mut plan, size, &area, &means)?;
        metabox = Some(made);
    }
    let parts = wanted.with(&packed, metabox.as_ref());
    let table_pos = if table_in_packed {
        0
    } else {
        u64::from(plan.xattr_block) * bits.size() + table_at
    };
    let prefixes = (!prefixes.is_empty()).then_some(emit::Prefixes {
        at: table_pos,
        // Fits: at most 128 prefixes.
        count: prefixes.len() as u8,
        fingerprints: xattrs::fingerprint_prefix(options, &prefixes),
    });
    let mut bytes = u64::from(plan.len_blocks) * bits.size();
    let all = match &options.output.verity {
        Some(verity) => verity::end(verity, bytes)?,
        None => bytes,
    };
    if options.output.size_budget.is_some_and(|max| all > max) {
        return Err(super::pack::grain::over_budget());
    }
    let head = emit::emit(&parts, &plan, &area, prefixes, threads, output)?;
    let mut tree_behind = None;
    if let Some(verity) = &options.output.verity {
        progress.stage("hash tree");
        let made = verity::append(verity, &head, bytes, threads, output, progress)?;
        bytes = made.end;
        tree_behind = Some(made);
    }
    head.write(output)?;
    written();
    if options.output.verify {
        progress.stage("verify");
        verify::verify(&parts, &plan, threads, output, places.blob, progress)?;
    }
    let mut stats = packed.stats.clone();
    stats.image_blocks = plan.len_blocks.into();
    stats.meta_blocks = stats.image_blocks - u64::from(packed.end_block) + u64::from(head_blocks);
    stats.block_size = bits.size();
    stats.blob_bytes = places.blob.map_or(0, |_| {
        u64::from(packed.external.unwrap_or_default()) * bits.size()
    });
    stats.warnings = warnings;
    [stats.auto_fast, stats.auto_stored] = loader.chosen;
    Ok(Written {
        stats,
        bytes,
        devices: devices(sources, options, base.as_deref()),
        verity: tree_behind,
    })
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
