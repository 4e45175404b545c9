//! Table of the settings of a build.

use super::values::{
    block, bytes, flag, glob, length, mount_point, number, number_in, order, parse_kernel,
    parse_salt, parse_uuid, parse_verity_block, percent, rule, size, text,
};
use crate::options::{
    Auto, Compression, Dedupe, Fragments, InodeForm, Metadata, SparsePolicy, Verity,
};
use crate::start::types::Start;
use crate::tree::Whiteouts;
use crate::tree::file_contexts::Contexts;
use crate::tree::fs_config::FsConfig;
use crate::{Error, Options, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tuff_erofs::{THREADS_MAX, fingerprint};

/// Setting of a build.
pub struct Setting {
    /// Name: that of the flag of `tuff build`, if it has one.
    pub name: &'static str,
    /// Short form of the flag.
    pub short: Option<char>,
    /// Topic that the setting belongs to.
    pub heading: &'static str,
    help: &'static str,
    /// Form of the value.
    pub form: Form,
    /// Placeholder of the value in descriptions.
    pub placeholder: &'static str,
    /// All values, if they are few.
    pub choices: &'static [&'static str],
    /// Other names of choices.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Value that a build without the setting has, if it is a constant.
    pub default: Option<&'static str>,
    /// Value of the setting without one.
    pub value_if_missing: Option<&'static str>,
    /// The setting may have several values.
    pub repeats: bool,
    /// The command has no flag for it.
    pub is_rare: bool,
    /// Settings that contradict it.
    pub(super) conflicts: &'static [&'static str],
    /// Setting that it needs.
    pub(super) needs: Option<&'static str>,
    pub(super) apply: fn(&mut Options, &OsStr) -> Result<()>,
}

/// Form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `on` or `off`; `off` if absent.
    Flag,
    /// Path of a file, which is read when the options are made.
    File,
    /// Number, size, choice or text.
    Text,
}

impl Setting {
    /// Returns the setting with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Returns the description, with ranges and defaults that are not constants.
    pub fn help(&self) -> &'static str {
        // Comments begin with a space.
        self.help.trim_start()
    }

    /// Checks a value. Files are not read.
    ///
    /// # Errors
    /// `Usage` for an invalid value.
    pub fn check(&self, value: &OsStr) -> Result<()> {
        match self.form {
            Form::File => Ok(()),
            Form::Flag | Form::Text => (self.apply)(&mut Options::default(), value),
        }
    }
}

/// Row without modifiers.
const ROW: Setting = Setting {
    name: "",
    short: None,
    heading: "",
    help: "",
    form: Form::Text,
    placeholder: "",
    choices: &[],
    aliases: &[],
    default: None,
    value_if_missing: None,
    repeats: false,
    is_rare: false,
    conflicts: &[],
    needs: None,
    apply: |_, _| Ok(()),
};

/// Each row has description, name, parser and placeholder of the value, the function that applies a value, and further fields.
/// The names of the values are there if they are few, each with aliases that are not shown.
macro_rules! settings {
    ($($heading:literal: $(
        $(#[doc = $help:literal])+
        $name:literal $form:ident $($placeholder:literal)?
        $({ $($choice:literal $(| $alias:literal)* => $value:expr),+ $(,)? })?
        |$o:ident, $v:ident| $body:expr
        $(, $field:ident = $argument:expr)*;
    )+)+) => {
        /// Settings of a build, in the order in which they are applied.
        pub static SETTINGS: &[Setting] = &[$($(
            Setting {
                name: $name,
                heading: $heading,
                help: concat!($($help),+),
                form: form!($form),
                placeholder: concat!($($placeholder)?),
                choices: &[$($($choice),+)?],
                aliases: &[$($($(($alias, $choice),)*)+)?],
                apply: |$o, $v| {
                    let $v = parse!($form, $v);
                    $(let $v = match $v {
                        $($choice $(| $alias)* => $value,)+
                        other => return Err(Error::usage(format_args!(
                            "'{other}' is none of {}", [$($choice),+].join(", ")
                        ))),
                    };)?
                    $body;
                    Ok(())
                },
                $($field: $argument,)*
                ..ROW
            },
        )+)+];
    };
}

fn verity(options: &mut Options) -> &mut Verity {
    options.output.verity.get_or_insert_default()
}

macro_rules! form {
    (flag) => {
        Form::Flag
    };
    (file) => {
        Form::File
    };
    ($other:ident) => {
        Form::Text
    };
}

macro_rules! parse {
    (file, $v:expr) => {
        Path::new($v)
    };
    ($parser:ident, $v:expr) => {
        $parser(
            $v.to_str()
                .ok_or_else(|| Error::usage("a value is UTF-8"))?,
        )?
    };
}

settings! {
    "Format":
    /// Oldest Linux that must mount the image (default: 6.1, or newer if another option or the base needs it)
    "kernel" parse_kernel "KERNEL" |o, v| *o = Options::for_kernel(v);
    /// Block size: a power of two from 512 to 64K, at most the page size of the kernel that mounts the image (default: 4096; 512 with --tar-index)
    "block-size" block "SIZE" |o, v| { o.block = v; o.fit_clusters() }, short = Some('b');

    "Compression":
    /// Choose algorithm, cluster size and fragments from samples of the files; other options override the choice. The smallest image takes many times as long as the default
    "auto" text "AIM" { "size" => Auto::Size, "balanced" => Auto::Balanced, "speed" => Auto::Speed } |o, v| v.apply(o);
    /// Algorithm and level: none, lz4, lz4hc, deflate, lzma or zstd, such as zstd:9 (default: lz4hc:9, which reads fastest; zstd:3 builds faster and smaller for Linux 6.10)
    "compress" text "ALG[:LEVEL]" |o, v| { o.compression.default = Compression::parse(v)?; o.fit_clusters() }, short = Some('z');
    /// Largest image: try presets from the fastest to the densest, each with a build of its own, and keep the first that fits. The last ones take seconds per MiB
    "size-budget" size "SIZE" |o, v| o.output.size_budget = Some(v),
        conflicts = &["auto", "compress", "cluster", "window", "dict", "fragments", "fragment-cluster", "tail-packing"];
    /// Largest physical cluster, 4K to 1M
    "cluster" length "SIZE" |o, v| { o.set_cluster(v); o.fit_fragments() }, short = Some('C');
    /// Largest decompressed size of a cluster, up to 12M
    "window" length "SIZE" |o, v| o.compression.window = v;
    /// Algorithm and cluster size of the paths that match; the first matching rule wins
    "rule" rule "GLOB=ALG[:LEVEL][,CLUSTER]" |o, v| o.compression.rules.push(v), repeats = true;
    /// Dictionary size of LZMA, or window size of Zstandard
    "dict" length "SIZE" |o, v| o.set_dict(v);
    /// Store a file uncompressed if compression saves less than this share of its size
    "min-saving" percent "PERCENT" |o, v| o.compression.min_saving = (v * 10.0) as u32, default = Some("1"), is_rare = true;

    "Layout":
    /// Inline the tails of compressed files after their inodes (default: on without fragments, from Linux 5.17)
    "tail-packing" text "WHEN" { "on" => true, "off" => false } |o, v| o.layout.tail_packing = v;
    /// Inline the tails of uncompressed files after their inodes
    "inline-data" text "WHEN" { "on" => true, "off" => false } |o, v| o.layout.inline_data = v, default = Some("on");
    /// Pack into shared clusters: files up to one cluster (small), also the tails of larger files (tails), or all files (all) (default: tails from Linux 6.1)
    "fragments" text "WHAT" {
        "off" => Fragments::Off, "tails" | "on" => Fragments::Tails, "small" => Fragments::Small, "all" => Fragments::All,
    } |o, v| { o.layout.fragments = v; o.fit_fragments() };
    /// Cluster size of fragments (default: 16K, or a quarter of clusters above 64K; up to 64K where files are similar)
    "fragment-cluster" length "SIZE" |o, v| { o.layout.fragment_cluster = v; o.layout.similar_cluster_max = v };
    /// Start a cluster of fragments about every SIZE bytes of files where other versions of the image do, too, so that updates fetch less (default: as often as it costs half a percent of the image)
    "fragment-cut" size "SIZE" |o, v| o.layout.fragment_cut = Some(v), is_rare = true;
    /// Store once: identical files (files), or also equal parts of large files (content) (default: content from Linux 6.1)
    "dedupe" text "WHAT" { "off" => Dedupe::Off, "files" | "on" => Dedupe::Files, "content" => Dedupe::Content }
        |o, v| o.dedupe.mode = v;
    /// Base image: store only what it lacks. Mounting needs both images (tuff mount --device FILE). Each base is one extra device, in the given order
    "base" file "FILE" |o, v| o.dedupe.base_names.push(v.into()), repeats = true;
    /// Refer to the data of source images instead of copying it (Linux 5.16). Mounting needs them too (tuff mount, --device FILE for each, in the order of the sources)
    "image-index" flag |o, v| o.dedupe.image_index = v, conflicts = &["blob", "size-budget"];
    /// Store uncompressed files in chunks of this size: equal chunks once, zero chunks as holes (Linux 5.15)
    "chunk" length "SIZE" |o, v| o.layout.chunk = Some(v);
    /// Write the chunks to this file (Linux 5.16). Mounting needs both: the file appended to the image, or tuff mount --device FILE
    "blob" file "FILE" |o, v| o.layout.blob = Some(v.to_owned()), needs = Some("chunk"), conflicts = &["base", "size-budget"];
    /// Refer to the data inside SOURCE, a tar, instead of copying it (Linux 6.4). Mounting needs both: the tar appended to the image, or tuff mount --device TAR
    "tar-index" flag |o, v| if v { o.index_a_tar() }, conflicts = &[
        "auto", "size-budget", "compress", "cluster", "window", "dict", "rule", "tail-packing", "fragments", "fragment-cluster",
        "fragment-cut", "dedupe", "base", "image-index", "chunk", "sparse", "order", "start-with", "verify", "unaligned",
    ];
    /// Byte-packed clusters instead of block-aligned ones (Linux 6.15)
    "unaligned" flag |o, v| if v { (o.layout.unaligned, o.metadata.form) = (true, Metadata::Short) };
    /// Form of the cluster index of compressed files
    "index" text "FORM" { "compact" => true, "full" => false } |o, v| o.layout.compact_index = v, default = Some("compact"), is_rare = true;
    /// Form of inodes: the smallest that fits (auto), or always 64 bytes (extended)
    "inodes" text "FORM" { "auto" => InodeForm::Auto, "extended" => InodeForm::Extended }
        |o, v| o.metadata.inodes = v, default = Some("auto"), is_rare = true;
    /// Form of metadata: plain (any kernel), short (32-byte inodes with their own times, Linux 6.15) or compressed (in the metabox, Linux 6.17) (default: plain)
    "metadata" text "FORM" { "plain" => Metadata::Plain, "short" => Metadata::Short, "compressed" => Metadata::Compressed }
        |o, v| o.metadata.form = v;
    /// Cluster size of compressed metadata (default: 16K, at most the cluster size)
    "metadata-cluster" length "SIZE" |o, v| o.metadata.cluster = v, is_rare = true;
    /// Sparse files: keep all holes (keep), store them as zeros (fill), or keep those of files that are at least half holes (auto)
    "sparse" text "WHAT" { "auto" => SparsePolicy::Auto, "keep" => SparsePolicy::Keep, "fill" => SparsePolicy::Fill }
        |o, v| o.layout.sparse = v, default = Some("auto");
    /// Data order: a file with one path per line, or a profile, which gives the order of first use
    "order" file "FILE" |o, v| o.sources.order = order(v)?;
    /// Program of the image whose start is listed in the image, with the libraries, modules and settings that it reads, so that the first start needs few requests: a path inside the image, or none (default: the command of a container image)
    "start-with" file "PATH" |o, v| o.sources.start = Start::with(v.as_os_str().as_bytes());

    "Metadata":
    /// Time of every inode, in seconds since 1970 (default: the times of the sources, at most SOURCE_DATE_EPOCH)
    "timestamp" number "SECONDS" |o, v| o.metadata.timestamp = Some(v);
    /// Latest time of an inode, in seconds since 1970; later ones are set to it (default of the command: SOURCE_DATE_EPOCH)
    "clamp-mtime" number "SECONDS" |o, v| o.metadata.clamp = Some(v), is_rare = true;
    /// UUID of the image: a UUID, "zero", or "content" (derived from the content of the image)
    "uuid" parse_uuid "UUID" |o, v| o.metadata.uuid = v, default = Some("content");
    /// Volume label, up to 15 bytes
    "label" bytes "LABEL" |o, v| o.metadata.label = v, short = Some('L');
    /// Store hard links as separate files that share their data
    "no-hard-links" flag |o, v| o.sources.hard_links = !v;
    /// Set owner and group of every inode to root
    "all-root" flag |o, v| if v { (o.metadata.uid, o.metadata.gid) = (Some(0), Some(0)) }, conflicts = &["uid", "gid"];
    /// Set the owner of every inode
    "uid" number "UID" |o, v| o.metadata.uid = Some(v);
    /// Set the group of every inode
    "gid" number "GID" |o, v| o.metadata.gid = Some(v);
    /// Number added to every owner
    "uid-offset" number "N" |o, v| o.metadata.uid_offset = v, default = Some("0");
    /// Number added to every group
    "gid-offset" number "N" |o, v| o.metadata.gid_offset = v, default = Some("0");
    /// SELinux labels by path, from a file_contexts file; they replace those of the sources
    "file-contexts" file "FILE" |o, v| o.metadata.contexts = Some(Contexts::read(v)?), conflicts = &["no-xattrs"];
    /// Owner, mode and capabilities by path, from a canned fs_config file of Android
    "fs-config" file "FILE" |o, v| o.metadata.fs_config = Some(FsConfig::read(v)?),
        conflicts = &["all-root", "uid", "gid", "no-xattrs"];
    /// Mount point of the image: the path prefix used by --file-contexts and --fs-config
    "mount-point" file "PATH" |o, v| o.metadata.mount_point = mount_point(v.as_os_str().as_bytes()), default = Some("/");
    /// Omit extended attributes and ACLs
    "no-xattrs" flag |o, v| o.metadata.xattrs = !v;
    /// Store an attribute in the shared area if more than N inodes have it
    "xattr-share" number "N" |o, v| o.metadata.xattr_share = v, default = Some("2"), is_rare = true;
    /// Attribute name prefix to store once, such as trusted.overlay.
    "xattr-prefix" bytes "PREFIX" |o, v| o.metadata.xattr_prefixes.push(v), repeats = true;
    /// Store a digest of each file as an attribute. From Linux 7.0, equal files of several images share their page cache if the images use the same NAME
    "fingerprints" bytes "NAME" |o, v| o.metadata.fingerprints = Some(v), value_if_missing = Some(fingerprint::NAME);
    /// Omit the per-inode filter of attribute names
    "no-xattr-filter" flag |o, v| o.metadata.xattr_filter = !v, is_rare = true;
    /// Omit the checksum of the superblock
    "no-checksum" flag |o, v| o.metadata.checksum = !v;

    "Sources":
    /// Omit paths that match, with everything below them
    "exclude" glob "GLOB" |_o, _v| {}, repeats = true;
    /// File with patterns to exclude, one per line
    "exclude-from" file "FILE" |_o, _v| {}, repeats = true;
    /// Do not cross mount points
    "one-file-system" flag |o, v| o.sources.one_file_system = v;
    /// Meaning of whiteouts. Those of overlayfs are devices 0:0 and opaque directories, those of AUFS and OCI are files .wh.NAME and .wh..wh..opq. They delete entries of earlier sources if they are of overlayfs (overlay), of AUFS and OCI (aufs) or of either (both). With convert, those of either do, and are stored as whiteouts of overlayfs, for a layer of an overlay. With keep, they are ordinary entries (default: with several sources overlay, in tars both; with one source keep; in container images both)
    "whiteouts" text "KIND" {
        "overlay" => Whiteouts::Overlay, "aufs" => Whiteouts::Aufs, "both" => Whiteouts::Both, "convert" => Whiteouts::Convert,
        "keep" => Whiteouts::Keep,
    } |o, v| o.sources.whiteouts = Some(v);
    /// Directory of the archives and images that becomes the root of the image; the rest is left out
    "subtree" file "PATH" |o, v| o.sources.subtree = v.as_os_str().as_bytes().to_vec();

    "Work":
    /// Worker threads (default: the number of CPUs that the process may use)
    "threads" text "N" |o, v| o.resources.threads = Some(number_in(v, 1..=THREADS_MAX.into())? as usize), short = Some('j');
    /// Memory for buffers (default: 256M, or more if the workers need it for large clusters)
    "memory" size "SIZE" |o, v| o.resources.memory = Some(v);
    /// Largest content of a source in times of its stored bytes: zeros for holes, and compressed archives; 1 GiB is always allowed
    "max-expansion" number "N" |o, v| o.resources.max_expansion = Some(v), default = Some("4096");
    /// Read the finished image back and compare it with the sources before it replaces IMAGE
    "verify" flag |o, v| o.output.verify = v;
    /// Append a dm-verity hash tree to the image and print its root hash (see tuff verity)
    "verity" flag |o, v| o.output.verity = v.then(Default::default);
    /// Salt of the hash tree: at most 256 bytes in hexadecimal
    "verity-salt" parse_salt "HEX" |o, v| verity(o).salt = v, needs = Some("verity");
    /// Block size of the hash tree: a power of two from 512 to 4096
    "verity-block" parse_verity_block "BYTES" |o, v| verity(o).block = v, needs = Some("verity");
    /// Append Reed-Solomon parity after the hash tree, 2 to 24 bytes of every 255 (dm-verity FEC roots; see tuff verity repair)
    "verity-fec" text "ROOTS" |o, v| verity(o).parity = Some(number_in(v, 2..=24)?), needs = Some("verity");
    /// Flush the image to the disk before finishing
    "sync" flag |o, v| o.output.sync = v;
}
