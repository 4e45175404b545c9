//! `mkfs.erofs`: builds an image.
//!
//! `parse` reads the options into `args`, `extended` those of `-E`. `job` converts them to options of the library,
//! `placement` writes the image to its offset, and `vmdk` and `blocks` write the files that accompany it.

mod args;
mod blocks;
mod companion_file;
mod extended;
mod hints;
mod job;
mod parse;
mod placement;
mod vmdk;

use super::getopt::{self, OptionTable};
use super::tool::Tool;
use crate::cmd::build_image::{summary, watched};
use crate::overwrite;
use crate::progress::Show;
use args::MkfsArgs;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::Result;
use tuff_mkfs::Progress;

static OPTIONS: OptionTable = OptionTable {
    letters: "Vh",
    valued_letters: "CELTUbdmxz",
    flags: b"\0all-root\0all-time\0aufs\0force\0hard-dereference\0help\0ignore-mtime\0mkfs-time\0preserve-mtime\0quiet\0version\0",
    valued: b"\0async-queue-limit\0block-list-file\0blobdev\0chunksize\0compress-hints\0dsunit\0exclude-path\0exclude-regex\0\
        file-contexts\0force-gid\0force-uid\0fs-config-file\0fsalignblks\0gid-offset\0max-extent-bytes\0mount-point\0offset\0\
        product-out\0root-xattr-isize\0s3\0sort\0uid-offset\0vmdk-desc\0workers\0xattr-prefix\0zfeature-bits\0",
    optional: b"\0MZ\0clean\0gzinfo\0gzip\0incremental\0oci\0ovlfs-strip\0tar\0ungzip\0unlzma\0unxz\0xattr-inode-digest\0zD\0",
};

pub(super) fn run(raw: &[OsString]) -> Result<ExitCode> {
    let args = MkfsArgs::read(&getopt::parse(raw, &OPTIONS)?)?;
    if args.version {
        return Tool::Mkfs.version(Some(
            "available compressors: lz4, lz4hc, lzma, deflate, libdeflate, zstd",
        ));
    }
    if args.help {
        return Tool::print(include_bytes!("help.txt"));
    }
    let job = job::job(args)?;
    if !job.quiet {
        for note in &job.notes {
            eprintln!("mkfs.erofs: note: {note}");
        }
    }
    if !job.force {
        overwrite::check_device(&job.image, job.offset)?;
        if let Some(blob) = &job.options.layout.blob {
            overwrite::check_device(blob, 0)?;
        }
    }
    let show = if job.quiet { Show::Quiet } else { Show::Auto };
    let progress = Arc::new(Progress::default());
    let (summary, seconds) = watched(&progress, show, |progress| {
        placement::write_image(&job, |target| {
            tuff_mkfs::build(&job.sources, &job.options, target, progress)
        })
    })?;
    if let Some(path) = &job.vmdk {
        vmdk::describe(path, &job.image, &summary.devices)?;
    }
    if let Some(path) = &job.block_list {
        let left_out = blocks::list(
            path,
            &job.image,
            job.offset,
            &job.options.metadata.mount_point,
        )?;
        if left_out > 0 && !job.quiet {
            eprintln!(
                "mkfs.erofs: warning: --block-list-file: files with white space in their paths: {left_out} left out"
            );
        }
    }
    if !job.quiet {
        for warning in &summary.stats.warnings {
            eprintln!("mkfs.erofs: warning: {warning}");
        }
        let mut out = crate::out::Out::new();
        let image = (job.offset == 0).then_some(job.image.as_path());
        out.lines(&summary::text(&summary, seconds, &[], image))?;
        out.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}
