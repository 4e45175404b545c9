//! Converts the arguments of `mkfs.erofs` to sources and options of the library.

use super::args::MkfsArgs;
use super::hints;
use super::parse::{refused, to_usize};
use crate::cmd::build_image::options::source_date_epoch;
use crate::cmd::build_image::paths::is_image;
use crate::cmd::build_image::referenced_images::ReferencedImages;
use crate::image::input;
use std::path::PathBuf;
use std::time::SystemTime;
use tuff_erofs::{Error, Result};
use tuff_format::features::Feature;
use tuff_mkfs::{
    Dedupe, Fragments, KernelVersion, Metadata, Options, Source, SparsePolicy, Whiteouts,
};

/// Everything needed to build one image.
pub(super) struct Job {
    pub(super) sources: Vec<Source>,
    pub(super) image: PathBuf,
    pub(super) options: Options,
    /// Offset of the image in the file `image`. Unit: bytes.
    pub(super) offset: u64,
    /// Alignment of the image length, rounded up to a power of two. Unit: blocks.
    pub(super) align_blocks: u64,
    /// Path of the VMDK descriptor.
    pub(super) vmdk: Option<PathBuf>,
    /// Path of the block list.
    pub(super) block_list: Option<PathBuf>,
    pub(super) quiet: bool,
    pub(super) force: bool,
    pub(super) notes: Vec<String>,
}

/// Creates the job of a command line.
pub(super) fn job(mut args: MkfsArgs) -> Result<Job> {
    let (image, sources) = places(&args)?;
    let mut o = args.options.clone();
    o.dedupe.image_index = matches!(sources[..], [Source::Image(_), ..]) && !args.data;
    let layers = ReferencedImages::new(&[], &sources, o.dedupe.image_index);
    let like = layers.like(KernelVersion::FIRST)?;
    let usual = like.as_ref().map_or(4096, |like| like.block.size());
    let block = args.block.unwrap_or(if args.index { 512 } else { usual });
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(Error::usage(format_args!(
            "-b {block}: a power of two from 512 to 65536 is needed"
        )));
    }
    o.block = tuff_format::BlockBits::new(block.trailing_zeros() as u8).map_err(Error::usage)?;
    compression(&mut args, &mut o)?;
    if args.index {
        index(&mut args, &mut o)?;
    }
    if let Some(like) = &like {
        like_layers(&args, like, &mut o);
    }
    if let Some(blob) = &o.layout.blob {
        if *blob == image {
            return Err(Error::usage(format_args!(
                "--blobdev {}: it is FILE, too",
                blob.display()
            )));
        }
        if o.layout.chunk.is_none() {
            return Err(Error::usage("--blobdev: it needs --chunksize"));
        }
    }
    if args.blockmap && !o.layout.chunk_indexes && (o.layout.blob.is_some() || o.dedupe.image_index)
    {
        return Err(refused(
            "-E force-inode-blockmap with --blobdev or with source images",
            "leave it out: a block map has no device numbers",
        ));
    }
    if let Some(list) = &args.block_list
        && [Some(&image), o.layout.blob.as_ref(), args.vmdk.as_ref()].contains(&Some(list))
    {
        return Err(Error::usage(format_args!(
            "--block-list-file {}: it is another output, too",
            list.display()
        )));
    }
    // Extra devices follow the image in the unified address space, so the image is aligned instead of padded.
    if args.index || o.layout.blob.is_some() || o.dedupe.image_index {
        let align = u32::try_from(std::mem::replace(&mut args.align_blocks, 1));
        o.layout.align_blocks = align.map_err(Error::usage)?;
    }
    times(&mut args, &mut o)?;
    o.sources.whiteouts = Some(match (args.aufs, args.strip_overlay) {
        (false, false) => Whiteouts::Keep,
        (true, false) => Whiteouts::Convert,
        // With a single source there is nothing to delete: whiteouts are dropped.
        (false, true) => Whiteouts::Overlay,
        (true, true) => Whiteouts::Both,
    });
    if o.sources.whiteouts == Some(Whiteouts::Convert) && !o.metadata.xattrs {
        return Err(refused(
            "--aufs with -x below 0",
            "what it writes are attributes; leave one of them out",
        ));
    }
    let boxed = o.layout.fragments != Fragments::Off || o.metadata.form == Metadata::Compressed;
    if args.vmdk.is_some() && args.offset > 0 {
        return Err(refused(
            "--vmdk-desc with --offset",
            "leave one of them out",
        ));
    }
    if args.plain_prefixes && boxed && !o.metadata.xattr_prefixes.is_empty() {
        return Err(refused(
            "-E plain-xattr-prefixes with fragments or -m",
            "leave it out: Linux looks for them there",
        ));
    }
    if args.product_out && o.metadata.fs_config.is_none() {
        let note =
            "--product-out without --fs-config-file: owners and modes are those of the source";
        args.notes.push(note.to_owned());
    }
    o.kernel = o.oldest_kernel().max(layers.kernel());
    // Files that are mostly holes keep them, in a feature of that kernel. Images without such files do not use it.
    o.kernel = o.kernel.max(Feature::CHUNKED_FILE.min_kernel);
    o.check()?;
    // With an offset the build writes a temporary file first.
    o.sources.outputs = [&args.vmdk, &args.block_list]
        .into_iter()
        .flatten()
        .cloned()
        .chain([image.clone()])
        .collect();
    Ok(Job {
        sources,
        image,
        options: o,
        offset: args.offset,
        align_blocks: args.align_blocks,
        vmdk: args.vmdk,
        block_list: args.block_list,
        quiet: args.quiet,
        force: args.force,
        notes: args.notes,
    })
}

/// Data that layers store in other forms can be referred to only in the same forms.
fn like_layers(args: &MkfsArgs, like: &Options, o: &mut Options) {
    if !args.algorithms.is_empty() {
        return;
    }
    o.layout.unaligned = like.layout.unaligned;
    if o.layout.unaligned {
        o.metadata.form = Metadata::Short;
    }
    if like.layout.fragments != Fragments::Off {
        o.compression.default = like.compression.default;
        o.layout.fragments = Fragments::Tails;
        (o.compression.cluster, o.layout.fragment_cluster) =
            (like.compression.cluster, like.layout.fragment_cluster);
        o.layout.similar_cluster_max = like.layout.fragment_cluster;
    }
}

/// Returns the path of the image and its sources.
fn places(args: &MkfsArgs) -> Result<(PathBuf, Vec<Source>)> {
    let source = |path: &PathBuf| {
        let is_stdin = |name| path.as_os_str() == name;
        if args.tar {
            let stdin = ["/dev/stdin", "/proc/self/fd/0", "/dev/fd/0"];
            return Ok(match stdin.into_iter().any(is_stdin) {
                true => Source::TarStdin,
                false => Source::Tar(path.clone()),
            });
        }
        let meta = tuff_store::retry(|| std::fs::metadata(path))
            .map_err(|e| Error::io(path.display(), "cannot open the source", e))?;
        if meta.is_dir() {
            return Ok(Source::Dir(path.clone()));
        }
        if is_image(path, &meta)? {
            return Ok(Source::Image(input(path.clone().into(), Vec::new(), None)?));
        }
        Err(refused(
            &format!(
                "{}: this source is neither a directory nor an image",
                path.display()
            ),
            "for a tar say --tar=f",
        ))
    };
    let places: Vec<PathBuf> = args.operands.iter().map(PathBuf::from).collect();
    match &places[..] {
        [] => Err(Error::usage("FILE, the image to make, is missing")),
        [image] if args.tar => Ok((image.clone(), vec![Source::TarStdin])),
        [_] => Err(Error::usage("SOURCE, the directory to take, is missing")),
        [image, paths @ ..] => {
            let sources: Vec<Source> = paths.iter().map(source).collect::<Result<_>>()?;
            let other = |source: &Source| !matches!(source, Source::Image(_));
            match sources.iter().position(other) {
                Some(i) if sources.len() > 1 => Err(refused(
                    &format!(
                        "{}: with several sources each must be an image",
                        paths[i].display()
                    ),
                    "use tuff build, which merges all kinds",
                )),
                _ => Ok((image.clone(), sources)),
            }
        }
    }
}

/// Uses the block size of a tar, whatever `-b` is, and no compression, as mkfs.erofs does.
fn index(args: &mut MkfsArgs, o: &mut Options) -> Result<()> {
    if o.layout.blob.is_some() {
        return Err(refused("--blobdev with --tar=i", "leave one of them out"));
    }
    if o.metadata.form == Metadata::Compressed {
        return Err(refused(
            "-m, and --zD, with --tar=i",
            "leave one of them out",
        ));
    }
    if args.block.is_some_and(|block| block != 512) {
        let note = "-b: the blocks of an index are of 512 bytes, as those of its tar";
        args.notes.push(note.to_owned());
    }
    if o.compression.default.is_some() {
        let note = "-z: nothing is compressed, since all data stays in the tar";
        args.notes.push(note.to_owned());
    }
    o.block = tuff_format::BlockBits::new(9).map_err(Error::usage)?;
    o.compression.rules.clear();
    o.index_a_tar();
    Ok(())
}

fn compression(args: &mut MkfsArgs, o: &mut Options) -> Result<()> {
    o.compression.default = args.algorithms.first().copied();
    o.compression.cluster = to_usize("-C", args.cluster.unwrap_or(o.block.size()))?;
    let fragment_cluster = args
        .fragment_cluster
        .map(|size| to_usize("-E fragments", size));
    o.layout.fragment_cluster = fragment_cluster
        .transpose()?
        .unwrap_or(o.compression.cluster);
    o.layout.similar_cluster_max = o.layout.fragment_cluster;
    // As in mkfs.erofs: every tail that does not fill a cluster.
    o.layout.fragment_end_max = Some(usize::MAX);
    if o.metadata.form == Metadata::Compressed {
        if o.compression.default.is_none() {
            return Err(refused(
                "-m, and --zD, without -z",
                "add -z: metadata is compressed with its first algorithm",
            ));
        }
        o.metadata.cluster = o.metadata.cluster.max(o.block.size_usize());
    }
    // Without compression the kernel cannot decode a packed inode.
    if o.compression.default.is_none() {
        // Holes are detected without reading them.
        if o.layout.chunk.is_some() {
            o.layout.sparse = SparsePolicy::Keep;
        }
        (o.layout.fragments, o.layout.tail_packing) = (Fragments::Off, false);
    }
    o.dedupe.mode = args.dedupe.unwrap_or(match o.layout.fragments {
        Fragments::Off => Dedupe::Off,
        _ if args.fragment_dedupe => Dedupe::Content,
        _ => Dedupe::Off,
    });
    // Names of one file and copies of it give the same image, with the data once.
    if !o.sources.hard_links && o.dedupe.mode == Dedupe::Off {
        o.dedupe.mode = Dedupe::Files;
    }
    if let Some(file) = &args.hints {
        let rules = hints::rules(
            file,
            &args.algorithms,
            o.block.size_usize(),
            &mut args.notes,
        )?;
        if o.compression.default.is_some() {
            o.compression.rules = rules;
        }
    }
    Ok(())
}

/// Sets the times of inodes. With SOURCE_DATE_EPOCH, earlier times are kept, whatever `-T` is.
fn times(args: &mut MkfsArgs, o: &mut Options) -> Result<()> {
    let epoch = source_date_epoch()?;
    let fixed = epoch.or(args.time);
    if args.ignore_mtime {
        let now = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            // A clock before 1970 is wrong.
            since.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
        };
        o.metadata.timestamp = Some(fixed.unwrap_or_else(now));
        return Ok(());
    }
    match (args.time, epoch) {
        (Some(time), None) if !args.mkfs_time => o.metadata.timestamp = Some(time),
        (Some(time), Some(epoch)) if !args.mkfs_time && time != epoch => {
            args.notes.push(format!(
                "-T {time}: SOURCE_DATE_EPOCH is set, so times stay that are not later than {epoch}"
            ));
            o.metadata.clamp = Some(epoch);
        }
        _ => o.metadata.clamp = epoch,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::getopt;
    use super::super::OPTIONS;
    use super::*;

    fn options(line: &str) -> Result<Options> {
        let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
        let args = MkfsArgs::read(&getopt::parse(&words, &OPTIONS)?)?;
        Ok(job(args)?.options)
    }

    #[test]
    fn the_oldest_kernel_is_what_options_need() {
        for (line, kernel) in [
            ("o .", KernelVersion(5, 15)),
            ("o . -zlz4hc,9", KernelVersion(5, 15)),
            ("o . -zlz4hc -C65536", KernelVersion(5, 15)),
            ("o . -zlzma,6", KernelVersion(5, 16)),
            ("o . -zlz4 -Eztailpacking", KernelVersion(5, 17)),
            (
                "o . -zlz4hc,12 -C65536 -Efragments,ztailpacking",
                KernelVersion(6, 1),
            ),
            ("o . -zdeflate,9", KernelVersion(6, 6)),
            ("o . -zlz4:zstd,level=22 -C65536", KernelVersion(5, 15)),
            (
                "o . -zzstd,8 -Ededupe,all-fragments -C 65536",
                KernelVersion(6, 10),
            ),
            ("o . --chunksize 4096", KernelVersion(5, 15)),
            ("o . -E48bit", KernelVersion(6, 15)),
            ("o . -zlz4 -m4096", KernelVersion(6, 17)),
            ("o . -b512", KernelVersion(6, 4)),
        ] {
            assert_eq!(options(line).unwrap().kernel, kernel, "{line}");
        }
    }

    #[test]
    fn nothing_is_compressed_packed_or_shared_unasked() {
        let o = options("o .").unwrap();
        assert_eq!(o.compression.default, None);
        assert_eq!(
            (o.layout.fragments, o.dedupe.mode),
            (Fragments::Off, Dedupe::Off)
        );
        let o = options("o . -zlz4hc").unwrap();
        assert_eq!(
            (
                o.compression.cluster,
                o.layout.fragments,
                o.layout.tail_packing
            ),
            (4096, Fragments::Off, false)
        );
    }
}
