//! Patching: an existing image receives another tree; its data stays in place.
//!
//! A file is copied, and the patched copy replaces it. A block device is patched itself.
//!
//! ```text
//! block 0       1 ..                       old end ..
//! superblock │  data and metadata so far │ new data, then new metadata
//!      └───────────────────────────────────────────────────────► root
//! ```
//!
//! The old image is the base of the new one, in the same file. Data that both trees share is read for comparison only;
//! it is neither encoded nor written. The superblock is written last, after a sync. Until then a device holds the old
//! image followed by unused data.
//!
//! If little has changed, inodes stay in place as well, and some are overwritten after the superblock; see
//! [`Unchanged`](super::patch::unchanged::Unchanged).

pub(crate) mod kept_clusters;
pub(crate) mod matching;
pub(crate) mod unchanged;

use super::base::Bases;
use super::emit::targets::Targets;
use super::options::Options;
use super::pipeline::{Summary, build, build_smaller, leaving_out, write};
use super::progress::Progress;
use super::source::spec::Source;
use crate::source::input_image::InputImage;
use crate::start::types::Start;
use crate::{Error, Place, Result};
use std::path::Path;
use tuff_store::{Output, Target};

/// Length in bytes of the start of an image, which holds the superblock, compression records and device slots.
const HEAD: usize = 4096;

/// Replaces the tree of the image in the file or block device `image` by the sources, merged in order. Options are as
/// for [`build`](super::build()), but the block size must be that of the image; see [`like`](super::like()).
///
/// # Errors
/// As `build`; `Usage` for an image with extra devices, `Io` if another process patches the image. The image is then
/// unchanged.
pub fn patch(
    sources: &[Source],
    options: &Options,
    image: &Path,
    progress: &Progress,
) -> Result<Summary> {
    leaving_out(sources, options, progress, &mut || {
        patch_once(sources, options, image, progress)
    })
}

fn patch_once(
    sources: &[Source],
    options: &Options,
    image: &Path,
    progress: &Progress,
) -> Result<Summary> {
    options.check()?;
    let elsewhere = !options.dedupe.bases.is_empty()
        || options.dedupe.image_index
        || options.dedupe.tar_index
        || options.layout.blob.is_some();
    if elsewhere || options.output.size_budget.is_some() {
        return Err(Error::usage(
            "a patched image has no base, no other device and no size budget; build a new one with 'tuff build'",
        ));
    }
    if options.sources.start != Start::None {
        return Err(Error::usage(
            "a patched image has no start list; build a new one with 'tuff build'",
        ));
    }
    let name = image.display().to_string();
    let failed = |e| Error::io(Place::file(&name), "cannot write behind the image", e);
    // The lock excludes other patches.
    let old = Output::grow(image, HEAD).map_err(failed)?;
    let copy = match old.is_device() {
        true => Ok(None),
        false => old.copy(image),
    };
    let copy = copy.map_err(|e| Error::io(Place::file(&name), "cannot copy the image", e))?;
    let output = copy.as_ref().unwrap_or(&old);
    // Under the lock: another patch may just have ended.
    let base = Bases::of_patch(image, options)?;
    let old_bytes = options.block.size() * u64::from(base.first_free());
    let places = Targets {
        image: output,
        blob: None,
    };
    let written = write(sources, options, Some(base), places, progress, &|| ())
        .map_err(|e| e.rename_place(Place::image(), Place::file(&name)))?;
    // After this point the image is changed.
    progress
        .check()
        .map_err(|e| e.rename_place(Place::image(), Place::file(&name)))?;
    let (finished, _lock) = match copy {
        Some(copy) => (copy.finish(written.bytes, true), Some(old)),
        None => (old.finish(written.bytes, true), None),
    };
    finished.map_err(|e| Error::io(Place::file(&name), "cannot finish", e))?;
    Ok(written.summary(options, old_bytes))
}

/// Writes the tree of the image in the file `image` anew and replaces the file when the new image is complete. That gives
/// back the space of data and metadata that nothing refers to. Options are usually those of
/// [`like_in_detail`](super::like_in_detail()).
///
/// Returns `None`, and leaves the file as it is, if the new image would not be smaller. With a size budget, the image is
/// replaced by one that meets the budget.
///
/// # Errors
/// As `build`; `Usage` for an image on a block device or with extra devices, `Io` if another process patches the image.
/// The image is then unchanged.
pub fn compact(options: &Options, image: &Path, progress: &Progress) -> Result<Option<Summary>> {
    let name = image.display().to_string();
    let failed = |e| Error::io(Place::file(&name), "cannot replace the image", e);
    // The lock excludes patches. Nothing is written through this file.
    let old = Output::grow(image, HEAD).map_err(failed)?;
    let meta = old.file().metadata().map_err(failed)?;
    Bases::of_patch(image, options)?;
    let source = Source::Image(InputImage::of_patch(image)?);
    let target = Target::Path(image.to_owned());
    let built = match options.output.size_budget {
        Some(_) => build(&[source], options, &target, progress).map(Some),
        None => build_smaller(&[source], options, &target, meta.len(), progress),
    };
    let Some(mut summary) = built? else {
        return Ok(None);
    };
    std::fs::set_permissions(image, meta.permissions()).map_err(failed)?;
    summary.old_bytes = meta.len();
    Ok(Some(summary))
}
