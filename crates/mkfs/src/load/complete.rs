//! End of the load stage: the tree becomes the one that the image stores.

use crate::layout::check_owners;
use crate::load::Loaded;
use crate::options::Options;
use crate::source::container;
use crate::source::error::{Quoted, SourceError};
use crate::source::spec::Source;
use crate::source::tally::AffectedPaths;
use crate::tree::{Pairs, Tree, file_contexts, fs_config};
use crate::{Error, Result};
use tuff_erofs::read::Limits;

/// Resolves layers and hard links, and applies the options that name paths.
pub(crate) fn complete(loaded: &mut Loaded, sources: &[Source], options: &Options) -> Result<()> {
    let Loaded { tree, warnings, .. } = loaded;
    warnings.extend(tree.replaced.warning(
        "no directory at first, but a later path leads through it: it is one now, with mode 0755, owner 0 and time 0 unless it is described",
    ));
    warnings.extend(tree.dropped.warning(
        "a directory at first, with entries of the same source, but a later entry replaces it: what was in it is left out",
    ));
    for layer in &tree.opaque_roots {
        let source = sources.get(usize::from(*layer)).map(Source::name);
        warnings.push(format!(
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
    warnings.extend(container::hint(tree));
    warnings.extend(apply_attribute_files(tree, options)?);
    check_owners(tree, options)?;
    check_depth(tree)
}

/// Fails if readers refuse the tree for its depth or the length of its paths.
fn check_depth(tree: &Tree) -> Result<()> {
    let limits = Limits::default();
    let Some((dir, is_depth)) = tree.deeper_than(limits.depth - 1, limits.path_len) else {
        return Ok(());
    };
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
    Err(Error::limit(Quoted(&tree.path(dir)), what))
}

/// Applies SELinux labels and fs_config to every path. Returns a warning.
fn apply_attribute_files(tree: &mut Tree, options: &Options) -> Result<Option<String>> {
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
fn set(xattrs: &mut Pairs, name: &[u8], value: Option<Vec<u8>>) {
    xattrs.retain(|(n, _)| n != name);
    xattrs.extend(value.map(|value| (name.to_vec(), value)));
}
