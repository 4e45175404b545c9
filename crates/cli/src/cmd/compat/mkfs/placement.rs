//! Writes the image to a file or device, at an offset and with padding if requested.

use super::job::Job;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Summary;
use tuff_store::{Output, Target, TemporaryDir};

/// Size of a copy step. Unit: bytes.
const PIECE: usize = 1 << 20;

/// Builds the image, and copies it to its offset if necessary.
pub(super) fn write_image(
    job: &Job,
    build: impl FnOnce(&Target) -> Result<Summary>,
) -> Result<Summary> {
    let failed = |what: &'static str| {
        let name = job.image.display().to_string();
        move |e| Error::io(name, what, e)
    };
    // At least one block.
    let step = job.align_blocks.max(1).next_power_of_two() * job.options.block.size();
    let is_device = std::fs::metadata(&job.image).is_ok_and(|m| m.file_type().is_block_device());
    let target = Target::InPlace(job.image.clone());
    if job.offset == 0 && (is_device || job.align_blocks <= 1) {
        return build(&target);
    }
    let parent = match job.image.parent() {
        _ if is_device => std::env::temp_dir(),
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => ".".into(),
    };
    let dir = TemporaryDir::create(&parent);
    let dir = dir.map_err(|e| Error::io(parent.display(), "cannot create a directory", e))?;
    let beside = dir.path().join("image");
    let summary = build(&Target::Path(beside.clone()))?;
    let from = File::open(&beside).map_err(failed("cannot read what goes into it"))?;
    let output = Output::create(&target).map_err(failed("cannot create"))?;
    let len = job.offset + summary.image_bytes.next_multiple_of(step);
    output.reserve(len).map_err(failed("cannot write"))?;
    let mut piece = vec![0; PIECE];
    // The superblock is copied last: a partial copy is not an image.
    for n in (0..summary.image_bytes.div_ceil(PIECE as u64)).rev() {
        let at = n * PIECE as u64;
        // Fits: at most `PIECE`.
        let n = (summary.image_bytes - at).min(PIECE as u64) as usize;
        from.read_exact_at(&mut piece[..n], at)
            .map_err(failed("cannot read what goes into it"))?;
        output
            .write_at(&piece[..n], job.offset + at)
            .map_err(failed("cannot write"))?;
    }
    output.finish(len, false).map_err(failed("cannot finish"))?;
    Ok(summary)
}
