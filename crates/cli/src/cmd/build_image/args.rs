//! Arguments of `tuff build` and `tuff patch`, and the parsers of their values.

use super::choices::{
    AUTO, DEDUPE, FRAGMENTS, INDEX, INODES, METADATA, SPARSE, SWITCH, WHITEOUTS, choices,
};
use crate::text::unhex;
use crate::units::parse_size;
use clap::{ArgAction, ValueEnum};
use std::path::PathBuf;
use tuff_erofs::THREADS_MAX;
use tuff_mkfs::{
    Auto, Compression, Dedupe, EXPANSION_MAX, Fragments, InodeForm, KernelVersion, Metadata,
    SparsePolicy, Whiteouts,
};

/// The arguments that `tuff build` and `tuff patch` have in common.
// The two kinds of paths are one argument because options may stand between them: clap gives a last argument of its own
// the first path that an option follows.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One or more SOURCEs, then IMAGE unless -o names it
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// Image to write; every PATH is then a source
    #[arg(short = 'o', long, value_name = "IMAGE")]
    pub(super) output: Option<PathBuf>,

    /// Oldest Linux that must mount the image (default: 6.1, or newer if another option or the base needs it)
    #[arg(long, value_parser = parse_kernel, help_heading = "Format")]
    pub(super) kernel: Option<KernelVersion>,
    /// Block size: a power of two from 512 to 64K, at most the page size of the kernel that mounts the image (default: 4096;
    /// 512 with --tar-index)
    #[arg(short = 'b', long, value_parser = parse_size, value_name = "SIZE", help_heading = "Format")]
    pub(super) block_size: Option<u64>,
    /// Algorithm and level: none, lz4, lz4hc, deflate, lzma or zstd, such as zstd:9 (default: lz4hc:9, which reads fastest; zstd:3 builds faster and smaller for Linux 6.10)
    #[arg(short = 'z', long, value_parser = parse_compression, value_name = "ALG[:LEVEL]", help_heading = "Compression")]
    pub(super) compress: Option<MaybeCompression>,
    /// Choose algorithm, cluster size and fragments from samples of the files; other options override the choice. The
    /// smallest image takes many times as long as the default
    #[arg(long, value_parser = choices(AUTO), value_name = "AIM", help_heading = "Compression")]
    pub(super) auto: Option<Auto>,
    /// Largest image: try presets from the fastest to the densest, each with a build of its own, and keep the first that fits.
    /// The last ones take seconds per MiB
    #[arg(long, value_parser = parse_size, value_name = "SIZE", conflicts_with_all = ["auto", "compress", "cluster", "window", "dict", "fragments", "fragment_cluster", "tail_packing"], help_heading = "Compression")]
    pub(super) size_budget: Option<u64>,
    /// Largest physical cluster, 4K to 1M
    #[arg(short = 'C', long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    pub(super) cluster: Option<u64>,
    /// Largest decompressed size of a cluster, up to 12M
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    pub(super) window: Option<u64>,
    /// Dictionary size of LZMA, or window size of Zstandard
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Compression")]
    pub(super) dict: Option<u64>,
    /// Algorithm and cluster size of the paths that match; the first matching rule wins
    #[arg(
        long,
        value_name = "GLOB=ALG[:LEVEL][,CLUSTER]",
        help_heading = "Compression"
    )]
    pub(super) rule: Vec<String>,
    /// Store a file uncompressed if compression saves less than this share of its size
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "PERCENT",
        help_heading = "Compression"
    )]
    pub(super) min_saving: f64,
    /// Inline the tails of compressed files after their inodes (default: on without fragments, from Linux 5.17)
    #[arg(long, value_parser = choices(SWITCH), value_name = "WHEN", help_heading = "Layout")]
    pub(super) tail_packing: Option<bool>,
    /// Inline the tails of uncompressed files after their inodes
    #[arg(action = ArgAction::Set,
        long,
        value_parser = choices(SWITCH),
        default_value = "on",
        value_name = "WHEN",
        help_heading = "Layout"
    )]
    pub(super) inline_data: bool,
    /// Pack into shared clusters: files up to one cluster (small), also the tails of larger files (tails), or all files (all)
    /// (default: tails from Linux 6.1)
    #[arg(long, value_parser = choices(FRAGMENTS), value_name = "WHAT", help_heading = "Layout")]
    pub(super) fragments: Option<Fragments>,
    /// Cluster size of fragments (default: 16K, or a quarter of clusters above 64K; up to 64K where files are similar)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) fragment_cluster: Option<u64>,
    /// Start a cluster of fragments about every SIZE bytes of files where other versions of the image do, too, so that updates
    /// fetch less (default: as often as it costs half a percent of the image)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) fragment_cut: Option<u64>,
    /// Store once: identical files (files), or also equal parts of large files (content) (default: content from Linux 6.1)
    #[arg(long, value_parser = choices(DEDUPE), value_name = "WHAT", help_heading = "Layout")]
    pub(super) dedupe: Option<Dedupe>,
    /// Base image: store only what it lacks. Mounting needs both images (tuff mount --device FILE). Each base is one extra
    /// device, in the given order
    #[arg(long, value_name = "FILE", help_heading = "Layout")]
    pub(super) base: Vec<PathBuf>,
    /// Refer to the data of source images instead of copying it (Linux 5.16). Mounting needs them too (tuff mount, --device
    /// FILE for each, in the order of the sources)
    #[arg(long, conflicts_with_all = ["blob", "size_budget"], help_heading = "Layout")]
    pub(super) image_index: bool,
    /// Store uncompressed files in chunks of this size: equal chunks once, zero chunks as holes (Linux 5.15)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) chunk: Option<u64>,
    /// Write the chunks to this file (Linux 5.16). Mounting needs both: the file appended to the image, or tuff mount --device
    /// FILE
    #[arg(
        long,
        value_name = "FILE",
        requires = "chunk",
        conflicts_with_all = ["base", "size_budget"],
        help_heading = "Layout"
    )]
    pub(super) blob: Option<PathBuf>,
    /// Refer to the data inside SOURCE, a tar, instead of copying it (Linux 6.4). Mounting needs both: the tar appended to the
    /// image, or tuff mount --device TAR
    #[arg(long, conflicts_with_all = ["auto", "size_budget", "compress", "cluster", "window", "dict", "rule", "tail_packing", "fragments", "fragment_cluster", "fragment_cut", "dedupe", "base", "image_index", "chunk", "sparse", "order", "verify"], help_heading = "Layout")]
    pub(super) tar_index: bool,
    /// Byte-packed clusters instead of block-aligned ones (Linux 6.15)
    #[arg(long, conflicts_with = "tar_index", help_heading = "Layout")]
    pub(super) unaligned: bool,
    /// Form of the cluster index of compressed files
    #[arg(action = ArgAction::Set, long, value_parser = choices(INDEX), default_value = "compact", help_heading = "Layout")]
    pub(super) index: bool,
    /// Form of inodes: the smallest that fits (auto), or always 64 bytes (extended)
    #[arg(long, value_parser = choices(INODES), default_value = "auto", help_heading = "Layout")]
    pub(super) inodes: InodeForm,
    /// Form of metadata: plain (any kernel), short (32-byte inodes with their own times, Linux 6.15) or compressed (in the
    /// metabox, Linux 6.17) (default: plain)
    #[arg(long, value_parser = choices(METADATA), value_name = "FORM", help_heading = "Layout")]
    pub(super) metadata: Option<Metadata>,
    /// Cluster size of compressed metadata (default: 16K, at most the cluster size)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Layout")]
    pub(super) metadata_cluster: Option<u64>,
    /// Sparse files: keep all holes (keep), store them as zeros (fill), or keep those of files that are at least half holes
    /// (auto)
    #[arg(long, value_parser = choices(SPARSE), default_value = "auto", help_heading = "Layout")]
    pub(super) sparse: SparsePolicy,
    /// Data order: a file with one path per line, or a profile, which gives the order of first use
    #[arg(long, value_name = "FILE", help_heading = "Layout")]
    pub(super) order: Option<PathBuf>,

    /// Time of every inode, in seconds since 1970 (default: the times of the sources, at most SOURCE_DATE_EPOCH)
    #[arg(
        long,
        value_name = "SECONDS",
        allow_hyphen_values = true,
        help_heading = "Metadata"
    )]
    pub(super) timestamp: Option<i64>,
    /// UUID of the image: a UUID, "zero", or "content" (derived from the content of the image)
    #[arg(long, default_value = "content", value_parser = parse_uuid, help_heading = "Metadata")]
    pub(super) uuid: Uuid,
    /// Volume label, up to 15 bytes
    #[arg(short = 'L', long, default_value = "", help_heading = "Metadata")]
    pub(super) label: String,
    /// Store hard links as separate files that share their data
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_hard_links: bool,
    /// Set owner and group of every inode to root
    #[arg(long, conflicts_with_all = ["uid", "gid"], help_heading = "Metadata")]
    pub(super) all_root: bool,
    /// Set the owner of every inode
    #[arg(long, help_heading = "Metadata")]
    pub(super) uid: Option<u32>,
    /// Set the group of every inode
    #[arg(long, help_heading = "Metadata")]
    pub(super) gid: Option<u32>,
    /// Number added to every owner
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Metadata")]
    pub(super) uid_offset: u32,
    /// Number added to every group
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = "Metadata")]
    pub(super) gid_offset: u32,
    /// SELinux labels by path, from a file_contexts file; they replace those of the sources
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "no_xattrs",
        help_heading = "Metadata"
    )]
    pub(super) file_contexts: Option<PathBuf>,
    /// Owner, mode and capabilities by path, from a canned fs_config file of Android
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all_root", "uid", "gid", "no_xattrs"], help_heading = "Metadata")]
    pub(super) fs_config: Option<PathBuf>,
    /// Mount point of the image: the path prefix used by --file-contexts and --fs-config
    #[arg(
        long,
        default_value = "/",
        value_name = "PATH",
        help_heading = "Metadata"
    )]
    pub(super) mount_point: PathBuf,
    /// Omit extended attributes and ACLs
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_xattrs: bool,
    /// Store an attribute in the shared area if more than N inodes have it
    #[arg(long, default_value_t = 2, value_name = "N", help_heading = "Metadata")]
    pub(super) xattr_share: u32,
    /// Attribute name prefix to store once, such as trusted.overlay.
    #[arg(long, value_name = "PREFIX", help_heading = "Metadata")]
    pub(super) xattr_prefix: Vec<String>,
    /// Store a digest of each file as an attribute. From Linux 7.0, equal files of several images share their page cache if
    /// the images use the same NAME
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = tuff_erofs::fingerprint::NAME,
        help_heading = "Metadata"
    )]
    pub(super) fingerprints: Option<String>,
    /// Omit the per-inode filter of attribute names
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_xattr_filter: bool,
    /// Omit the checksum of the superblock
    #[arg(long, help_heading = "Metadata")]
    pub(super) no_checksum: bool,

    /// Omit paths that match, with everything below them
    #[arg(long, value_name = "GLOB", help_heading = "Sources")]
    pub(super) exclude: Vec<String>,
    /// File with patterns to exclude, one per line
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    pub(super) exclude_from: Vec<PathBuf>,
    /// Do not cross mount points
    #[arg(long, help_heading = "Sources")]
    pub(super) one_file_system: bool,
    /// Meaning of whiteouts (default: with several sources overlay, in tars both; with one source keep; in container images both)
    #[arg(long, value_parser = choices(WHITEOUTS), value_name = "KIND", help_heading = "Sources")]
    pub(super) whiteouts: Option<Whiteouts>,
    /// Kind of every source instead of detecting it; tar includes cpio
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Sources")]
    pub(super) source_type: Option<SourceType>,
    /// Extra device of a base or source image, once for each slot of its device table; those of bases come first
    #[arg(long, value_name = "FILE", help_heading = "Sources")]
    pub(super) source_device: Vec<PathBuf>,
    /// Platform of a container image: OS/ARCHITECTURE[/VARIANT] (default: linux on this machine's architecture)
    #[arg(long, value_name = "PLATFORM", help_heading = "Sources")]
    pub(super) platform: Option<String>,

    /// Directory of the archives and images that becomes the root of the image; the rest is left out
    #[arg(long, value_name = "PATH", help_heading = "Sources")]
    pub(super) subtree: Option<PathBuf>,
    /// Leave out files and directories of directory sources that cannot be read, vanish or change, list them, and exit
    /// with code 1
    #[arg(short, long, help_heading = "Sources")]
    pub(super) keep_going: bool,

    /// Worker threads (default: the number of CPUs that the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()),
        help_heading = "Work")]
    pub(super) threads: Option<u16>,
    /// Memory for buffers (default: 256M, or more if the workers need it for large clusters)
    #[arg(long, value_parser = parse_size, value_name = "SIZE", help_heading = "Work")]
    pub(super) memory: Option<u64>,
    /// Largest content of a source in times of its stored bytes: zeros for holes, and compressed archives; 1 GiB is always
    /// allowed
    #[arg(long, value_name = "N", default_value_t = EXPANSION_MAX, help_heading = "Work")]
    pub(super) max_expansion: u64,
    /// Read the finished image back and compare it with the sources before it replaces IMAGE
    #[arg(long, help_heading = "Work")]
    pub(super) verify: bool,
    /// Append a dm-verity hash tree to the image and print its root hash (see tuff verity)
    #[arg(long, help_heading = "Work")]
    pub(super) verity: bool,
    /// Salt of the hash tree: at most 256 bytes in hexadecimal
    #[arg(long, value_parser = parse_salt, value_name = "HEX", help_heading = "Work")]
    pub(super) verity_salt: Option<Salt>,
    /// Block size of the hash tree: a power of two from 512 to 4096
    #[arg(long, value_parser = parse_verity_block, value_name = "BYTES", help_heading = "Work")]
    pub(super) verity_block: Option<u32>,
    /// Append Reed-Solomon parity after the hash tree, 2 to 24 bytes of every 255 (dm-verity FEC roots; see tuff verity repair)
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=24), value_name = "ROOTS", help_heading = "Work")]
    pub(super) verity_fec: Option<u32>,
    /// Flush the image to the disk before finishing
    #[arg(long, help_heading = "Work")]
    pub(super) sync: bool,
    /// Add the time of each stage to the summary
    #[arg(long, help_heading = "Work")]
    pub(super) stats: bool,
    /// Print neither progress nor summary
    #[arg(short = 'q', long, help_heading = "Work")]
    pub(super) quiet: bool,
    /// Print progress as JSON lines to standard error, and the summary as one JSON object to standard output
    #[arg(long, conflicts_with = "quiet", help_heading = "Work")]
    pub(super) json: bool,
}

/// Kind of a source, if it is not detected.
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
    let parsed = Compression::parse(text).map(MaybeCompression);
    parsed.map_err(|e| e.what().to_owned())
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
}
