//! Outputs of a build, and protection of its inputs from being overwritten.

use crate::options::Options;
use crate::source::input_image::InputImage;
use crate::source::spec::Source;
use crate::{Error, Place, Result};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tuff_store::{FileId, Output, Target, file_id, is_same};

/// Outputs of a build.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    pub(crate) image: &'a Output,
    pub(crate) blob: Option<&'a Output>,
}

impl Targets<'_> {
    /// Returns the ids of the regular files that are written or replaced.
    pub(crate) fn file_ids(&self, options: &Options) -> Vec<FileId> {
        let mut ids = self.image.file_ids();
        ids.extend(self.blob.iter().flat_map(|blob| blob.file_ids()));
        ids.extend(
            options
                .sources
                .outputs
                .iter()
                .filter_map(|path| file_id(path)),
        );
        ids
    }
}

/// Output of chunks outside the image.
pub(crate) struct Blob {
    pub(crate) output: Output,
    pub(crate) name: String,
}

impl Blob {
    pub(crate) fn create(path: &Path, in_place: bool) -> Result<Self> {
        let name = path.display().to_string();
        let output = Output::create(&match in_place {
            true => Target::InPlace(path.to_owned()),
            false => Target::Path(path.to_owned()),
        });
        let output = output.map_err(|e| Error::io(Place::file(&name), "cannot create", e))?;
        Ok(Self { output, name })
    }

    /// Moves the blob to its name.
    pub(crate) fn finish(self, bytes: u64, sync: bool) -> Result<()> {
        let done = self.output.finish(bytes, sync);
        done.map_err(|e| Error::io(Place::file(&self.name), "cannot finish", e))
    }
}

/// Fails if the output would overwrite an input, a base or a source, or if sources and options contradict each other.
pub(crate) fn check(sources: &[Source], options: &Options, target: &Target) -> Result<()> {
    check_sources(sources, options)?;
    check_target(sources, options, target)
}

/// Fails if sources and options contradict each other.
pub(crate) fn check_sources(sources: &[Source], options: &Options) -> Result<()> {
    if let Some(base) = options.dedupe.base_names.first() {
        return Err(Error::usage(format_args!(
            "{}: a base that its caller has not opened",
            base.display()
        )));
    }
    if options.dedupe.tar_index && sources.len() != 1 {
        return Err(Error::usage("an index is one of a single tar"));
    }
    if options.dedupe.tar_index && options.output.verity.is_some() {
        return Err(Error::usage(
            "behind an index comes its tar, not a hash tree: put the tar there first, then the tree (tuff verity add)",
        ));
    }
    if options.dedupe.image_index && !sources.iter().any(|s| matches!(s, Source::Image(_))) {
        return Err(Error::usage(
            "an index of images needs an image among its sources",
        ));
    }
    Ok(())
}

/// Fails if the output would overwrite an input.
fn check_target(sources: &[Source], options: &Options, target: &Target) -> Result<()> {
    let (Target::Path(path) | Target::InPlace(path)) = target else {
        return Ok(());
    };
    let in_place = matches!(target, Target::InPlace(_));
    let fails = |what: &str| Err(Error::usage(format_args!("{}: {what}", path.display())));
    let is_read = |image: &InputImage| image.names().iter().any(|file| is_same(file, path));
    let is_disk = |image: &InputImage| image.names().iter().any(|file| is_same_disk(file, path));
    if options.dedupe.bases.iter().any(is_read) {
        return fails("an image cannot take the place of its base");
    }
    if options
        .layout
        .blob
        .as_ref()
        .is_some_and(|blob| is_same(blob, path))
    {
        return fails("an image and its chunks cannot be one file");
    }
    for source in sources {
        match source {
            Source::Tar(tar) if options.dedupe.tar_index && is_same(tar, path) => {
                return fails("an index cannot take the place of the tar that holds its data");
            }
            Source::Image(image) if options.dedupe.image_index && is_read(image) => {
                return fails("an index cannot take the place of an image that holds its data");
            }
            // A file is replaced when everything is written; a device is overwritten at once.
            Source::Image(image) if is_disk(image) => {
                return fails("an image cannot be read from the device that it is written to");
            }
            Source::SquashFs(image) if is_same_disk(image, path) => {
                return fails("an image cannot be read from the device that it is written to");
            }
            Source::Tar(file)
            | Source::TarWithin { file, .. }
            | Source::Manifest(file)
            | Source::SquashFs(file)
                if in_place && is_same(file, path) =>
            {
                return fails("a source cannot be read from the file that is written in place");
            }
            Source::Image(image) if in_place && is_same(image.name(), path) => {
                return fails("a source cannot be read from the file that is written in place");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns true if two paths name the same block device.
fn is_same_disk(a: &Path, b: &Path) -> bool {
    let disk = |m: &Metadata| m.file_type().is_block_device().then(|| m.rdev());
    let device = |path: &Path| path.metadata().ok().and_then(|m| disk(&m));
    device(a).is_some_and(|a| device(b) == Some(a))
}
