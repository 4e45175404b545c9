//! The arguments of `tuff build`, and how their values are read.

use crate::text::unhex;
use crate::units::parse_size;
use clap::ValueEnum;
use std::path::PathBuf;
use tuff_erofs::THREADS_MAX;
use tuff_mkfs::{Compression, KernelVersion, Method};

/// The arguments that `tuff build` and `tuff patch` have in common.
// The two kinds of paths are one argument because options may stand between them: clap gives a last argument of its own
// the first path that an option follows.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One or more SOURCE, then IMAGE unless -o names it
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// The image; all PATHs are then sources
    #[arg(short = 'o', long, value_name = "IMAGE")]
    pub(super) output: Option<PathBuf>,

    /// Oldest Linux that must mount the image (default: 6.1, or what the other options and the base need)
    #[arg(long, value_parser = parse_kernel, help_heading = "Format")]
    pub(super) kernel: Option<KernelVersion>,
    /// Block size: a power of two from 512 to 64K; a kernel mounts none larger than its pages (default: 4096; 512 with
    /// --tar-index)
    #[arg(short = 'b', long, value_parser = parse_size, value_name = "SIZE", help_heading = "Format")]
    pub(super) block_size: Option<u64>,
    /// Algorithm: none, lz4, lz4hc, deflate, lzma or zstd, with an optional level (lz4hc:12)
    #[arg(short = 'z', long, value_parser = parse_compression, value_name = "ALG[:LEVEL]", help_heading = "Compression")]
    pub(super) compress: Option<MaybeCompression>,
    /// Choose algorithm, cluster size and what is packed, and for each file how it is stored, from samples; other options come on top
    #[arg(long, value_enum, value_name = "AIM", help_heading = "Compression")]
    pub(super) auto: Option<Aim>,
    /// The fastest-reading image that is not larger: builds with denser and denser settings until it fits
    #[arg(long, value_parser = parse_size, value_name = "SIZE", conflicts_with_all = ["auto", "compress", "cluster", "window", "dict", "fragments", "fragment_cluster", "tail_packing"], help_heading = "Compression")]
    pub(super) size_budget: Option<u64>,
    /// Largest compressed cluster, 4K to 1M
    #[arg(short = 'C', long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    pub(super) cluster: Option<u64>,
    /// Most input of one cluster, up to 12M
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    pub(super) window: Option<u64>,
    /// Dictionary or window of LZMA and Zstandard
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    pub(super) dict: Option<u64>,
    /// Settings for some paths; the first rule that matches wins
    #[arg(
        long,
        value_name = "GLOB=ALG[:LEVEL][,CLUSTER]",
        help_heading = "Compression"
    )]
    pub(super) rule: Vec<String>,
    /// Store a file that saves less than this share of its size
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "PERCENT",
        help_heading = "Compression"
    )]
    pub(super) min_saving: f64,
    /// Ends of compressed files behind their inodes (default: on if there are no fragments and the kernel can)
    #[arg(long, value_enum, value_name = "WHEN", help_heading = "Layout")]
    pub(super) tail_packing: Option<Switch>,
    /// Ends of stored files behind their inodes
    #[arg(
        long,
        value_enum,
        default_value = "on",
        value_name = "WHEN",
        help_heading = "Layout"
    )]
    pub(super) inline_data: Switch,
    /// What is packed together: files up to one cluster, those and ends of others, or all files (default: tails for 6.1 and newer)
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Layout")]
    pub(super) fragments: Option<Packed>,
    /// Cluster size of packed fragments (default: 16K, or the cluster size if that is smaller, and up to 64K where files are much alike)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) fragment_cluster: Option<u64>,
    /// What is stored once: identical files, or also parts of large files that another has (default: content for 6.1 and newer)
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Layout")]
    pub(super) dedupe: Option<Shared>,
    /// An image whose files, and parts of them, are not stored again: mounting the new one takes both (tuff mount
    /// --device FILE); of several each is a device, in their order
    #[arg(long, value_name = "FILE", help_heading = "Layout")]
    pub(super) base: Vec<PathBuf>,
    /// Leave all data in the images among SOURCE that the new one can refer to there (5.16): mounting it takes them, too, in
    /// their order (tuff mount, --device FILE for each)
    #[arg(long, conflicts_with_all = ["blob", "size_budget"], help_heading = "Layout")]
    pub(super) image_index: bool,
    /// Store files that are not compressed in chunks of this size, equal ones once and zeros not at all (5.15)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) chunk: Option<u64>,
    /// Put these chunks into a file of their own (5.16): mounting the image takes both, that file behind it in one, or tuff mount --device FILE
    #[arg(
        long,
        value_name = "FILE",
        requires = "chunk",
        conflicts_with_all = ["base", "size_budget"],
        help_heading = "Layout"
    )]
    pub(super) blob: Option<PathBuf>,
    /// Leave all data in SOURCE, a tar (6.4): mounting the image takes both, the tar behind it in one file, or tuff mount --device TAR
    #[arg(long, conflicts_with_all = ["auto", "size_budget", "compress", "cluster", "window", "dict", "rule", "tail_packing", "fragments", "fragment_cluster", "dedupe", "base", "image_index", "chunk", "sparse", "order", "verify"], help_heading = "Layout")]
    pub(super) tar_index: bool,
    /// Let clusters begin anywhere and take no more bytes than they need, instead of whole blocks (6.15)
    #[arg(long, conflicts_with = "tar_index", help_heading = "Layout")]
    pub(super) unaligned: bool,
    /// Index form of compressed files
    #[arg(long, value_enum, default_value = "compact", help_heading = "Layout")]
    pub(super) index: IndexForm,
    /// Inode form
    #[arg(long, value_enum, default_value = "auto", help_heading = "Layout")]
    pub(super) inodes: Inodes,
    /// How inodes and attributes are stored: plain for every kernel, short (Linux 6.15: inodes of 32 bytes with times of
    /// their own), compressed (Linux 6.17: the metabox) (default: plain)
    #[arg(long, value_enum, value_name = "FORM", help_heading = "Layout")]
    pub(super) metadata: Option<MetadataForm>,
    /// Cluster size of compressed metadata (default: 16K, or the cluster size if that is smaller)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) metadata_cluster: Option<u64>,
    /// Files with holes: keep all sparse, fill all, or keep those that are at least half holes
    #[arg(long, value_enum, default_value = "auto", help_heading = "Layout")]
    pub(super) sparse: Sparse,
    /// File with paths, one per line, in the order their data should lie; or a profile, for the order of first use
    #[arg(long, value_name = "FILE", help_heading = "Layout")]
    pub(super) order: Option<PathBuf>,

    /// Time of every inode, in seconds since 1970 (default: times as they are; SOURCE_DATE_EPOCH is an upper bound)
    #[arg(
        long,
        value_name = "SECONDS",
        allow_hyphen_values = true,
        help_heading = "Metadata"
    )]
    pub(super) timestamp: Option<i64>,
    /// UUID: a UUID, "zero", or "content" (derived from the image's content)
    #[arg(long, default_value = "content", value_parser = parse_uuid, help_heading = "Metadata")]
    pub(super) uuid: Uuid,
    /// Volume label, up to 15 bytes
    #[arg(short = 'L', long, default_value = "", help_heading = "Metadata")]
    pub(super) label: String,
    /// Names of one file become files of their own, which share their data
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_hard_links: bool,
    /// Everything belongs to root
    #[arg(long, conflicts_with_all = ["uid", "gid"], help_heading = "Metadata")]
    pub(super) all_root: bool,
    /// Owner of everything
    #[arg(long, help_heading = "Metadata")]
    pub(super) uid: Option<u32>,
    /// Group of everything
    #[arg(long, help_heading = "Metadata")]
    pub(super) gid: Option<u32>,
    /// Added to every owner
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Metadata")]
    pub(super) uid_offset: u32,
    /// Added to every group
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Metadata")]
    pub(super) gid_offset: u32,
    /// SELinux labels by path, from a file_contexts file: instead of those of the sources
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "no_xattrs",
        help_heading = "Metadata"
    )]
    pub(super) file_contexts: Option<PathBuf>,
    /// Owner, mode and capabilities of every path, from a canned fs_config file of Android
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all_root", "uid", "gid", "no_xattrs"], help_heading = "Metadata")]
    pub(super) fs_config: Option<PathBuf>,
    /// Where the image will be mounted: what these two have in front of its paths
    #[arg(
        long,
        default_value = "/",
        value_name = "PATH",
        help_heading = "Metadata"
    )]
    pub(super) mount_point: PathBuf,
    /// Store no extended attributes
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_xattrs: bool,
    /// Share an attribute that more inodes than this have
    #[arg(long, default_value_t = 2, value_name = "N", help_heading = "Metadata")]
    pub(super) xattr_share: u32,
    /// A long attribute name prefix to store once, such as trusted.overlay.
    #[arg(long, value_name = "PREFIX", help_heading = "Metadata")]
    pub(super) xattr_prefix: Vec<String>,
    /// Give every file a digest of its content as an attribute, by which kernels from 7.0 on let files of several images share
    /// their pages in memory; all these images need the same NAME
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = tuff_erofs::fingerprint::NAME,
        help_heading = "Metadata"
    )]
    pub(super) fingerprints: Option<String>,
    /// Leave the per-inode attribute name filter out
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_xattr_filter: bool,
    /// Leave the superblock checksum out
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_checksum: bool,

    /// Leave out paths that match, with all below them
    #[arg(long, value_name = "GLOB", help_heading = "Sources")]
    pub(super) exclude: Vec<String>,
    /// File with such patterns, one per line
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    pub(super) exclude_from: Vec<PathBuf>,
    /// Do not enter other filesystems
    #[arg(long, help_heading = "Sources")]
    pub(super) one_file_system: bool,
    /// What whiteouts mean (default: for several sources overlay, and in tars both; keep for one)
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Sources")]
    pub(super) whiteouts: Option<WhiteoutKind>,
    /// Take every source for this kind; a cpio is one of tar
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Sources")]
    pub(super) source_type: Option<SourceType>,
    /// Extra device of a base or a source that is an image, once for each slot of its device table; those of bases first, of
    /// several images in their order
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    pub(super) source_device: Vec<PathBuf>,
    /// Which container image of several: OS/ARCHITECTURE, perhaps with /VARIANT (default: Linux on this machine's processor)
    #[arg(long, value_name = "PLATFORM", help_heading = "Sources")]
    pub(super) platform: Option<String>,

    /// Worker threads (default: as many as the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()),
        help_heading = "Work")]
    pub(super) threads: Option<u16>,
    /// Memory for buffers (default: 256M, and more where so many workers need it for clusters so large)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Work")]
    pub(super) memory: Option<u64>,
    /// Read the finished image again and compare all of it with what went in, before it gets its name
    #[arg(long, help_heading = "Work")]
    pub(super) verify: bool,
    /// Put a hash tree of dm-verity behind the image and say its root hash (veritysetup, tuff verity, --verity of other
    /// verbs)
    #[arg(long, help_heading = "Work")]
    pub(super) verity: bool,
    /// Salt of the hash tree: hexadecimal digits of at most 256 bytes
    #[arg(long, value_parser = parse_salt, value_name = "HEX", help_heading = "Work")]
    pub(super) verity_salt: Option<Salt>,
    /// Block size of the hash tree: a power of two from 512 to 4096
    #[arg(long, value_parser = parse_verity_block, value_name = "BYTES", help_heading = "Work")]
    pub(super) verity_block: Option<u32>,
    /// Parity behind the hash tree, 2 to 24 bytes for each 255, that damaged blocks are mended with (dm-verity's FEC, its
    /// roots; tuff verity repair)
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=24), value_name = "ROOTS", help_heading = "Work")]
    pub(super) verity_fec: Option<u32>,
    /// Wait until the image is on the disk
    #[arg(long, help_heading = "Work")]
    pub(super) sync: bool,
    /// Time per stage in the summary
    #[arg(long, help_heading = "Work")]
    pub(super) stats: bool,
    /// No progress, no summary
    #[arg(short = 'q', long, help_heading = "Work")]
    pub(super) quiet: bool,
    /// Progress as JSON lines on standard error, the summary as one JSON object on standard output
    #[arg(long, conflicts_with = "quiet", help_heading = "Work")]
    pub(super) json: bool,
}

/// What an image is to be good at.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Aim {
    Size,
    Balanced,
    Speed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

/// What goes into the packed inode.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Packed {
    Off,
    #[value(alias = "on")]
    Tails,
    Small,
    All,
}

/// What is stored once.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shared {
    Off,
    #[value(alias = "on")]
    Files,
    Content,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum IndexForm {
    Compact,
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Inodes {
    Auto,
    Extended,
}

/// How inodes and attributes are stored.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MetadataForm {
    Plain,
    Short,
    Compressed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Sparse {
    Auto,
    Keep,
    Fill,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WhiteoutKind {
    /// Those of overlayfs (device 0:0, opaque directories) delete what earlier sources have
    Overlay,
    /// Those of AUFS and OCI (.wh.NAME, .wh..wh..opq) do
    Aufs,
    /// Both do
    Both,
    /// Both do, and are in the image as those of overlayfs: for a layer of an overlay
    Convert,
    /// They are ordinary entries
    Keep,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SourceType {
    Dir,
    Tar,
    Manifest,
    Image,
}

#[derive(Clone, Copy)]
pub(crate) struct MaybeCompression(pub(crate) Option<Compression>);

#[derive(Clone, Copy)]
pub(crate) struct Uuid(pub(crate) Option<[u8; 16]>);

/// Reads a version of Linux that can mount images at all.
pub(crate) fn parse_kernel(text: &str) -> Result<KernelVersion, String> {
    match KernelVersion::from_release(text) {
        Some(kernel) if kernel >= KernelVersion::FIRST => Ok(kernel),
        Some(kernel) => Err(format!(
            "EROFS images are for Linux {} and newer, not {kernel}",
            KernelVersion::FIRST
        )),
        None => Err("write it as 6.1, or as uname -r prints it".to_owned()),
    }
}

pub(crate) fn parse_compression(text: &str) -> Result<MaybeCompression, String> {
    if matches!(text, "none" | "stored") {
        return Ok(MaybeCompression(None));
    }
    let (name, level) = match text.split_once([':', ',']) {
        Some((name, level)) => (name, Some(level.trim_start_matches("level="))),
        None => (text, None),
    };
    let method = Method::from_name(name).ok_or_else(|| {
        format!("'{name}' is not an algorithm; known are none, lz4, lz4hc, deflate, lzma and zstd")
    })?;
    let level = match level {
        None => method.default_level(),
        Some(level) => level
            .parse()
            .ok()
            .filter(|l| method.has_level(*l))
            .ok_or_else(|| format!("{name} has no level '{level}'; it has {}", levels(method)))?,
    };
    Ok(MaybeCompression(Some(Compression {
        method,
        level,
        dict: None,
    })))
}

fn levels(method: Method) -> String {
    let range = method.levels();
    match method {
        Method::Lzma => "0 to 9, and 100 to 109 for their extreme forms".to_owned(),
        _ => format!("{} to {}", range.start(), range.end()),
    }
}

/// Salt of a hash tree.
#[derive(Clone)]
pub(crate) struct Salt(pub(crate) Vec<u8>);

pub(crate) fn parse_salt(text: &str) -> Result<Salt, String> {
    match unhex(text) {
        Some(bytes) if bytes.len() <= 256 => Ok(Salt(bytes)),
        Some(_) => Err("a salt has at most 256 bytes".to_owned()),
        None => Err(format!("'{text}' is not a row of hexadecimal digits")),
    }
}

pub(crate) fn parse_verity_block(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    match u32::try_from(size) {
        Ok(n) if n.is_power_of_two() && (512..=4096).contains(&n) => Ok(n),
        _ => Err("a power of two from 512 to 4096 is needed".to_owned()),
    }
}

pub(crate) fn parse_uuid(text: &str) -> Result<Uuid, String> {
    match text {
        "content" => return Ok(Uuid(None)),
        "zero" | "clear" => return Ok(Uuid(Some([0; 16]))),
        _ => {}
    }
    let bytes = unhex(&text.replace('-', ""));
    match bytes.and_then(|b| <[u8; 16]>::try_from(b).ok()) {
        Some(uuid) => Ok(Uuid(Some(uuid))),
        None => Err(format!(
            "'{text}' is not a UUID; write 32 hexadecimal digits, zero or content"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_and_levels_are_checked() {
        assert!(parse_compression("lz4hc:12").is_ok());
        assert!(parse_compression("lz4hc,12").is_ok());
        assert!(parse_compression("zstd,level=22").is_ok());
        assert!(parse_compression("none").is_ok_and(|c| c.0.is_none()));
        assert!(parse_compression("lz5").is_err());
        assert!(parse_compression("lz4hc:13").is_err());
        assert!(parse_compression("lzma:50").is_err());
    }

    #[test]
    fn releases_of_kernels_are_versions() {
        for (text, kernel) in [
            ("5.4", Some(KernelVersion(5, 4))),
            ("6.12", Some(KernelVersion(6, 12))),
            ("6.12.0", Some(KernelVersion(6, 12))),
            ("6.18.44-fc-v657", Some(KernelVersion(6, 18))),
            ("6.1.0-18-amd64", Some(KernelVersion(6, 1))),
            ("6.15-rc3", Some(KernelVersion(6, 15))),
            ("6.6+", Some(KernelVersion(6, 6))),
            ("4.19.0-26-amd64", None),
            ("6", None),
            ("6.", None),
            ("six.1", None),
            ("6.1x", None),
            ("-6.1", None),
            ("+6.1", None),
            ("", None),
        ] {
            assert_eq!(parse_kernel(text).ok(), kernel, "{text}");
        }
    }

    #[test]
    fn uuids_are_read() {
        assert!(
            parse_uuid("00112233-4455-6677-8899-aabbccddeeff")
                .is_ok_and(|u| u.0.unwrap()[15] == 0xff)
        );
        assert!(parse_uuid("0011").is_err());
        assert!(parse_uuid("zz112233-4455-6677-8899-aabbccddeeff").is_err());
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        crate::Cli::command().debug_assert();
    }
}
