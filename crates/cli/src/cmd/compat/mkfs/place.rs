//! Where the image goes: a file or device, perhaps behind so many bytes of it, perhaps with room behind it.

use super::job::Job;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use tuff_image::build::Summary;
use tuff_image::{Error, Result};
use tuff_store::Target;

/// Builds the image, and puts it into its place.
pub(super) fn place(job: &Job, build: impl FnOnce(&Target) -> Result<Summary>) -> Result<Summary> {
    let failed = |what: &'static str| {
        let name = job.image.display().to_string();
        move |e| Error::io(name, what, e)
    };
    let is_device = std::fs::metadata(&job.image).is_ok_and(|m| m.file_type().is_block_device());
    let summary = if job.offset == 0 {
        build(&Target::Path(job.image.clone()))?
    } else {
        let beside = Temporary::beside(job, is_device);
        let summary = build(&Target::Path(beside.0.clone()))?;
        let mut from = File::open(&beside.0).map_err(failed("cannot read what goes into it"))?;
        let mut options = OpenOptions::new();
        options.write(true).create(!is_device).truncate(!is_device);
        let mut to = options.open(&job.image).map_err(failed("cannot open"))?;
        to.seek(SeekFrom::Start(job.offset))
            .and_then(|_| std::io::copy(&mut from, &mut to))
            .map_err(failed("cannot write"))?;
        summary
    };
    // At least one.
    let step = job.align_blocks.max(1).next_power_of_two() * job.options.block.size();
    let end = summary.image_bytes.next_multiple_of(step);
    if end > summary.image_bytes && !is_device {
        let file = OpenOptions::new().write(true).open(&job.image);
        file.and_then(|file| file.set_len(job.offset + end))
            .map_err(failed("cannot make it longer"))?;
    }
    Ok(summary)
}

/// A file that is gone when this is.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(job: &Job, is_device: bool) -> Self {
        let name = format!(".tuff-{}.erofs", std::process::id());
        Self(match is_device {
            true => std::env::temp_dir().join(name),
            false => job.image.with_file_name(name),
        })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing to report to: a build that failed has left none.
        let _ = std::fs::remove_file(&self.0);
    }
}
