//! Options of a build.

use super::pack::grain::Grain;
use super::source::DataRun;
use super::source::input_image::InputImage;
use super::source::left_out::LeftOut;
use super::tree::Whiteouts;
use crate::start::types::Start;
use crate::tree::file_contexts::Contexts;
use crate::tree::fs_config::FsConfig;
use crate::tree::paths::Paths;
use crate::{Error, Remedy, Result};
use std::path::PathBuf;
use tuff_codec::{EncoderSpec, Method};
use tuff_format::BlockBits;
use tuff_format::features::{Feature, KernelVersion, min_kernel};

/// Cluster size of the packed inode in bytes beside clusters of 16 to 64 KiB: the amount that a read of a small file decodes.
const FRAGMENT_CLUSTER: usize = 16 << 10;

/// Default cluster size in bytes of the parts of the packed inode that hold similar files.
pub const SIMILAR_CLUSTER: usize = 64 << 10;

/// Default cluster size of compressed metadata in bytes: the amount that an inode look-up decodes.
pub const METADATA_CLUSTER: usize = 16 << 10;

/// Largest chunk size in bytes.
pub const CHUNK_MAX: usize = 8 << 20;

/// Compression algorithm and level, without cluster size and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Encoder of the clusters.
    pub method: Method,
    /// Level in the range of the method.
    pub level: i32,
    /// Dictionary or window size in bytes. `None` uses the default of the method.
    pub dict: Option<usize>,
}

/// Goal of the `--auto` settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// Smallest image, however slow the build.
    Size,
    /// Small image that is still read fast.
    Balanced,
    /// Fast build and fast reads.
    Speed,
}

/// Settings for the paths that match.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Paths that the rule applies to.
    pub paths: Paths,
    /// Compression of these files. `None` stores them.
    pub compression: Option<Compression>,
    /// Cluster size in bytes. `None` uses the size of other files.
    pub cluster: Option<usize>,
}

/// Files that go into the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// None: the image has no packed inode.
    Off,
    /// Files of at most a cluster, and the tails of larger ones.
    Tails,
    /// Files of at most a cluster.
    Small,
    /// All files, except files that match a rule and are larger than the rule's cluster.
    All,
}

/// Data that is stored once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedupe {
    /// All data is stored as often as it occurs.
    Off,
    /// Identical files share data.
    Files,
    /// Identical files share data, and so do equal parts of large files.
    #[default]
    Content,
}

/// Files with holes that stay sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparsePolicy {
    /// Files whose holes are at least half of their size.
    Auto,
    /// All files with holes.
    Keep,
    /// No files: holes are written as zeros.
    Fill,
}

/// Inode forms that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeForm {
    /// Compact inodes where all fields fit.
    Auto,
    /// Extended inodes for all files.
    Extended,
}

/// Storage of inodes and extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Readable by every kernel. An inode takes 64 bytes unless it has the most common time.
    Plain,
    /// 32 bytes for every time with the common nanoseconds: part of the 48-bit layout, Linux 6.15.
    Short,
    /// As [`Short`](Self::Short), compressed in the metabox; directories of more than a block stay outside. Linux 6.17.
    Compressed,
}

/// Array of conditions and values, one row each.
macro_rules! rows {
    ($($is:expr => $value:expr),+ $(,)?) => {
        [$(($is, $value)),+]
    };
}

/// Fails with the first reason that applies.
fn refuse<const N: usize>(reasons: [(bool, String); N]) -> Result<()> {
    match reasons.into_iter().find(|(is, _)| *is) {
        Some((_, what)) => Err(Error::usage(what)),
        None => Ok(()),
    }
}

/// Options of a build. [`Options::check`] validates all combinations.
#[derive(Clone)]
pub struct Options {
    /// Oldest kernel that must mount the image.
    pub kernel: KernelVersion,
    /// Block size of the image.
    pub block: BlockBits,
    /// Compression of file data.
    pub compression: CompressionOptions,
    /// Layout of file data.
    pub layout: LayoutOptions,
    /// Data that is stored once or not at all.
    pub dedupe: DedupeOptions,
    /// Inodes, extended attributes and the superblock.
    pub metadata: MetadataOptions,
    /// Reading of the sources.
    pub sources: SourceOptions,
    /// Threads, memory and temporary data.
    pub resources: ResourceOptions,
    /// Verification and size of the finished image.
    pub output: OutputOptions,
}

/// Compression of file data.
#[derive(Clone)]
pub struct CompressionOptions {
    /// Compression of files that no rule matches. `None` stores them.
    pub default: Option<Compression>,
    /// Largest cluster in bytes.
    pub cluster: usize,
    /// Largest input of a cluster in bytes.
    pub window: usize,
    /// Choose the compression of each file from a sample. Files that a rule matches are left out. Set by
    /// [`Auto::apply`].
    pub auto: Option<Auto>,
    /// Settings by path. The first rule that matches applies.
    pub rules: Vec<Rule>,
    /// Files that save less than this are stored. In thousandths of their size.
    pub min_saving: u32,
}

/// Layout of file data.
#[derive(Clone)]
pub struct LayoutOptions {
    /// Tails of stored files follow their inodes.
    pub inline_data: bool,
    /// Tails of compressed files follow their inodes (ztailpacking).
    pub tail_packing: bool,
    /// Files that go into the packed inode.
    pub fragments: Fragments,
    /// Longest tail, in bytes, that goes into the packed inode. `None` allows a cluster.
    pub fragment_end_max: Option<usize>,
    /// Cluster size of the packed inode in bytes.
    pub fragment_cluster: usize,
    /// Cluster size in bytes of the parts of the packed inode that hold similar files; see
    /// [`Options::similar_cluster`].
    pub similar_cluster_max: usize,
    /// Average number of bytes between two places of the packed inode at which a cluster starts in all versions of an image.
    /// `None` chooses it so that they cost at most about half a percent of the image.
    pub fragment_cut: Option<u64>,
    /// Chunk size of stored files in bytes. Equal chunks are stored once, chunks of zeros not at all.
    pub chunk: Option<usize>,
    /// Entries of chunk tables have 8 bytes with a device number, also where all data of the file is in the image.
    pub chunk_indexes: bool,
    /// File that receives the chunks. Readers need it and the image.
    pub blob: Option<PathBuf>,
    /// The length of the image is a multiple of this number of blocks, rounded up to a power of two.
    pub align_blocks: u32,
    /// Clusters start at any 32 bytes and take as many as they need instead of whole blocks: part of the 48-bit layout,
    /// Linux 6.15.
    pub unaligned: bool,
    /// Use COMPACT indexes where the format allows.
    pub compact_index: bool,
    /// Treatment of files with holes.
    pub sparse: SparsePolicy,
}

/// Data that is stored once or not at all.
#[derive(Clone, Default)]
pub struct DedupeOptions {
    /// Data that is stored once.
    pub mode: Dedupe,
    /// Images that hold data of the new image. Readers need all of them, in this order.
    pub bases: Vec<InputImage>,
    /// Bases that settings name. The caller opens them into `bases` (`tuff_open::open_bases`): a build fails if one is left.
    pub base_names: Vec<PathBuf>,
    /// Data of sources that are images stays there, as if they were the last bases.
    pub image_index: bool,
    /// Data stays in the only source, a tar. Readers need the tar and the image.
    pub tar_index: bool,
    /// Data of bases stays in place, also where Linux would read it from the wrong file because of its address. Only programs read
    /// such an image.
    pub keeps_collisions: bool,
}

/// Inodes, extended attributes and the superblock.
#[derive(Clone)]
pub struct MetadataOptions {
    /// Inode forms that are written.
    pub inodes: InodeForm,
    /// Storage of inodes and extended attributes.
    pub form: Metadata,
    /// Cluster size of compressed metadata in bytes.
    pub cluster: usize,
    /// Write extended attributes of the sources.
    pub xattrs: bool,
    /// An attribute is shared if more than this number of inodes have it.
    pub xattr_share: u32,
    /// Long prefixes of attribute names, for example `trusted.overlay.`.
    pub xattr_prefixes: Vec<Vec<u8>>,
    /// Name of an attribute that holds a digest of each file, by which Linux 7.0 and later share pages between mounts.
    /// Usually [`tuff_erofs::fingerprint::NAME`].
    pub fingerprints: Option<Vec<u8>>,
    /// Write the name filter of each inode.
    pub xattr_filter: bool,
    /// Modification time of all inodes.
    pub timestamp: Option<i64>,
    /// Latest modification time: later ones are set to it.
    pub clamp: Option<i64>,
    /// UUID of the image. `None` derives it from the content.
    pub uuid: Option<[u8; 16]>,
    /// Volume label of at most 15 bytes.
    pub label: Vec<u8>,
    /// Owner of all inodes.
    pub uid: Option<u32>,
    /// Group of all inodes.
    pub gid: Option<u32>,
    /// Number that is added to every owner.
    pub uid_offset: u32,
    /// Number that is added to every group.
    pub gid_offset: u32,
    /// SELinux labels by path. They replace labels of the sources.
    pub contexts: Option<Contexts>,
    /// Owners, modes and capabilities by path. They replace those of the sources.
    pub fs_config: Option<FsConfig>,
    /// Mount point of the image: the prefix of all paths in `contexts` and `fs_config`. Absolute or empty.
    pub mount_point: Vec<u8>,
    /// Write the checksum of the superblock.
    pub checksum: bool,
}

/// Reading of the sources.
#[derive(Clone)]
pub struct SourceOptions {
    /// Excluded paths, each with everything below it.
    pub exclude: globset::GlobSet,
    /// Further excluded paths, by pattern.
    pub exclude_also: Vec<Paths>,
    /// Files that the caller writes as well. They are left out of source directories, as is the image itself.
    pub outputs: Vec<PathBuf>,
    /// Keep hard links. Otherwise every name becomes a file of its own that shares the data.
    pub hard_links: bool,
    /// Paths in the order of their data. Other files follow.
    pub order: Vec<Vec<u8>>,
    /// Files that a start reads. They are listed in the image, and their data lie together.
    pub start: Start,
    /// Do not cross mount points of the source.
    pub one_file_system: bool,
    /// Leave the contents of directories with a valid `CACHEDIR.TAG` out, except for the tag. Tags of source directories are
    /// ignored.
    pub exclude_caches: bool,
    /// Directory of the merged sources that becomes the root of the image. Empty for all.
    pub subtree: Vec<u8>,
    /// Files of directories that cannot be read are left out and collected here. `None`: they are errors.
    pub keep_going: Option<LeftOut>,
    /// Meaning of whiteouts. `None`: `Both` in layers of container images; `Keep` for any other single source; for
    /// several sources `Both` in tars and `Overlay` elsewhere.
    pub whiteouts: Option<Whiteouts>,
}

/// Threads, memory and temporary data.
#[derive(Clone, Default)]
pub struct ResourceOptions {
    /// Worker threads. `None` uses the available CPUs.
    pub threads: Option<usize>,
    /// Memory for buffers in bytes. `None` uses 256 MiB, or more if the jobs of all workers need it.
    pub memory: Option<u64>,
    /// Largest size of the content of a source, in times of its stored bytes. 1 GiB is always allowed. It bounds holes
    /// that are written as zeros, and compressed archives. `None` uses [`EXPANSION_MAX`](crate::EXPANSION_MAX).
    pub max_expansion: Option<u64>,
    /// Directory of temporary files. `None` uses [`Output::scratch`](tuff_store::Output::scratch).
    pub temporary: Option<PathBuf>,
}

/// Verification and size of the finished image.
#[derive(Clone, Default)]
pub struct OutputOptions {
    /// Largest size of the image in bytes. The first of [`PRESETS`](super::presets::PRESETS) that fits sets
    /// compression, clusters and fragments.
    pub size_budget: Option<u64>,
    /// Read the finished image and compare it with the sources.
    pub verify: bool,
    /// Append a dm-verity hash tree.
    pub verity: Option<Verity>,
    /// Wait until the image is on stable storage.
    pub sync: bool,
}

/// Parameters of a dm-verity hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verity {
    /// Block size of data and tree in bytes: a power of two from 512 to 4096, because kernels accept no block larger
    /// than a page.
    pub block: u32,
    /// Salt of every digest, at most 256 bytes.
    pub salt: Vec<u8>,
    /// Parity bytes, 2 to 24, in each Reed-Solomon codeword of 255 bytes. `None` writes no parity.
    pub parity: Option<u32>,
}

impl Default for Verity {
    fn default() -> Self {
        Self {
            block: 4096,
            salt: Vec::new(),
            parity: None,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kernel: KernelVersion(6, 1),
            block: BlockBits::B4K,
            compression: CompressionOptions::default(),
            layout: LayoutOptions::default(),
            dedupe: DedupeOptions::default(),
            metadata: MetadataOptions::default(),
            sources: SourceOptions::default(),
            resources: ResourceOptions::default(),
            output: OutputOptions::default(),
        }
    }
}

impl Default for CompressionOptions {
    fn default() -> Self {
        Self {
            default: Some(Compression {
                method: Method::Lz4hc,
                level: Method::Lz4hc.default_level(),
                dict: None,
            }),
            cluster: 64 << 10,
            window: tuff_codec::INPUT_MAX,
            auto: None,
            rules: Vec::new(),
            min_saving: 10,
        }
    }
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self {
            inline_data: true,
            tail_packing: false,
            fragments: Fragments::Tails,
            fragment_end_max: None,
            fragment_cluster: FRAGMENT_CLUSTER,
            similar_cluster_max: SIMILAR_CLUSTER,
            fragment_cut: None,
            chunk: None,
            chunk_indexes: false,
            blob: None,
            align_blocks: 1,
            unaligned: false,
            compact_index: true,
            sparse: SparsePolicy::Auto,
        }
    }
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self {
            inodes: InodeForm::Auto,
            form: Metadata::Plain,
            cluster: METADATA_CLUSTER,
            xattrs: true,
            xattr_share: 2,
            xattr_prefixes: Vec::new(),
            fingerprints: None,
            xattr_filter: true,
            timestamp: None,
            clamp: None,
            uuid: None,
            label: Vec::new(),
            uid: None,
            gid: None,
            uid_offset: 0,
            gid_offset: 0,
            contexts: None,
            fs_config: None,
            mount_point: Vec::new(),
            checksum: true,
        }
    }
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            exclude: globset::GlobSet::empty(),
            exclude_also: Vec::new(),
            outputs: Vec::new(),
            hard_links: true,
            order: Vec::new(),
            start: Start::None,
            one_file_system: false,
            exclude_caches: false,
            subtree: Vec::new(),
            keep_going: None,
            whiteouts: None,
        }
    }
}

impl Options {
    /// Distances in bytes of [`LayoutOptions::fragment_cut`].
    pub const FRAGMENT_CUTS: std::ops::RangeInclusive<u64> = 16 << 10..=1 << 30;

    /// Returns the encoder of metadata. `None` if metadata is not compressed.
    pub(crate) fn metadata_encoder(&self) -> Option<EncoderSpec> {
        let compression = self.compression.default?;
        Some(self.encoder(compression, self.metadata.cluster))
    }

    /// Returns the defaults for a kernel: [`Options::default`] without features that it cannot mount.
    pub fn for_kernel(kernel: KernelVersion) -> Self {
        let mut options = Options {
            kernel,
            ..Self::default()
        };
        if !kernel.supports(Feature::FRAGMENTS) {
            options.layout.fragments = Fragments::Off;
            options.dedupe.mode = Dedupe::Files;
            options.layout.tail_packing = kernel.supports(Feature::ZTAILPACKING);
        }
        if !kernel.supports(Feature::BIG_PCLUSTER) {
            options.compression.cluster = options.block.size_usize();
        }
        options
    }

    /// Returns the cluster size in bytes of the parts of the packed inode that hold similar files. It is at least that
    /// of the packed inode and at most that of files, unless the former is larger.
    pub fn similar_cluster(&self) -> usize {
        let max = self
            .layout
            .similar_cluster_max
            .min(self.compression.cluster);
        self.layout.fragment_cluster.max(max)
    }

    /// Returns the unit of cluster addresses.
    pub(crate) fn grain(&self) -> Grain {
        Grain::new(self.block, self.layout.unaligned)
    }

    /// Returns the largest cluster in bytes that kernels accept for this method and block size.
    pub fn cluster_max(&self, method: Method) -> usize {
        // Linux limits LZ4 clusters by its page size, for any block size (6.18). An index counts to 2047 blocks.
        let blocks = match method {
            Method::Lz4 | Method::Lz4hc => 256,
            Method::Lzma | Method::Deflate | Method::Zstd => 2047,
        };
        (blocks * self.block.size_usize()).min(1 << 20)
    }

    /// Reduces all cluster sizes to a power of two that the compression allows, and raises them to a block.
    pub fn fit_clusters(&mut self) {
        let block = self.block.size_usize();
        let max = match self.compression.default {
            Some(compression) => 1 << self.cluster_max(compression.method).ilog2(),
            None => usize::MAX,
        };
        for cluster in [
            &mut self.compression.cluster,
            &mut self.layout.fragment_cluster,
            &mut self.metadata.cluster,
        ] {
            *cluster = (*cluster).min(max).max(block);
        }
    }

    /// Returns the default cluster size in bytes of the packed inode beside clusters of `cluster` bytes: a quarter, because a
    /// user of large clusters trades the speed of small reads for size.
    pub fn fragment_cluster(&self, cluster: usize) -> usize {
        let block = self.block.size_usize();
        let quarter = cluster / 4 / block * block;
        quarter.max(cluster.min(FRAGMENT_CLUSTER)).max(block)
    }

    /// Sets the cluster size of files in bytes, and adapts those of fragments and metadata.
    pub fn set_cluster(&mut self, cluster: usize) {
        let block = self.block.size_usize();
        self.compression.cluster = cluster;
        self.layout.fragment_cluster = self.fragment_cluster(cluster);
        self.metadata.cluster = cluster.min(METADATA_CLUSTER).max(block);
    }

    fn check_cluster(&self, what: &str, cluster: usize, method: Method) -> Result<()> {
        let (block, max) = (self.block.size_usize(), self.cluster_max(method));
        if cluster > 0 && cluster.is_multiple_of(block) && cluster <= max {
            return Ok(());
        }
        Err(Error::usage(format_args!(
            "{what} {cluster}: it must be a multiple of the block size {block}, up to {max}"
        )))
    }

    /// Returns the encoder of a compression with this cluster size.
    pub fn encoder(&self, compression: Compression, cluster: usize) -> EncoderSpec {
        let mut spec = EncoderSpec::new(compression.method, cluster).with_level(compression.level);
        spec.input_max = self.compression.window;
        spec.dict = compression.dict;
        spec
    }

    /// Lists every compression that may be used, with its largest cluster in bytes.
    fn compressions(&self) -> impl Iterator<Item = (Compression, usize)> {
        let rules = self.compression.rules.iter().filter_map(|r| {
            Some((
                r.compression?,
                r.cluster.unwrap_or(self.compression.cluster),
            ))
        });
        let fast = self.compression.auto.and_then(|a| a.fast(self));
        let usual = self.compression.default.into_iter().chain(fast);
        rules.chain(usual.map(|c| (c, self.compression.cluster)))
    }

    /// Sets the dictionary or window size of all compressions that have one. Unit: bytes.
    pub(crate) fn set_dict(&mut self, dict: usize) {
        let rules = self.compression.rules.iter_mut();
        let rules = rules.filter_map(|rule| rule.compression.as_mut());
        for compression in self.compression.default.iter_mut().chain(rules) {
            let has_dict = matches!(compression.method, Method::Lzma | Method::Zstd);
            compression.dict = Some(dict).filter(|_| has_dict);
        }
    }

    /// Sets the cluster size of the packed inode to that of files if it holds all of them.
    pub(crate) fn fit_fragments(&mut self) {
        if self.layout.fragments == Fragments::All {
            self.layout.fragment_cluster = self.compression.cluster;
        }
    }

    /// Returns true if a compression has a dictionary of its own size.
    pub(crate) fn has_dict(&self) -> bool {
        self.compressions()
            .any(|(compression, _)| compression.dict.is_some())
    }

    /// Lists the features that need a newer kernel than the oldest one, with names for messages.
    fn needs(&self) -> Vec<(&'static str, Feature)> {
        let block = self.block.size_usize();
        let small_blocks = block < 4096;
        let compresses = self.compressions().next().is_some();
        let prefixes =
            !self.metadata.xattr_prefixes.is_empty() || self.metadata.fingerprints.is_some();
        let mut needs = Vec::from(rows! {
            small_blocks => ("a block size below 4096 bytes", Feature::SUBPAGE_BLOCKS),
        });
        for (compression, cluster) in self.compressions() {
            let algorithm = match compression.method {
                Method::Lz4 | Method::Lz4hc => ("LZ4", Feature::LZ4),
                Method::Lzma => ("LZMA", Feature::LZMA),
                Method::Deflate => ("DEFLATE", Feature::DEFLATE),
                Method::Zstd => ("Zstandard", Feature::ZSTD),
            };
            needs.extend(rows! {
                small_blocks => ("compression with a block size below 4096 bytes", Feature::SUBPAGE_COMPRESSION),
                cluster > block => ("a cluster of several blocks", Feature::BIG_PCLUSTER),
                true => algorithm,
            });
        }
        needs.extend(rows! {
            self.layout.tail_packing && compresses => ("tail packing", Feature::ZTAILPACKING),
            self.layout.unaligned && compresses => ("letting clusters begin anywhere", Feature::ENCODED_EXTENTS),
            self.layout.fragments != Fragments::Off => ("fragments", Feature::FRAGMENTS),
            self.dedupe.mode == Dedupe::Content && compresses => ("sharing parts of files", Feature::DEDUPE),
            self.has_base() => ("a base", Feature::DEVICE_TABLE),
            self.layout.chunk.is_some() => ("storing files in chunks", Feature::CHUNKED_FILE),
            self.layout.blob.is_some() => ("a file of chunks", Feature::DEVICE_TABLE),
            self.metadata.form == Metadata::Short => ("the short form of metadata", Feature::BIT48),
            self.metadata.form == Metadata::Compressed => ("compressed metadata", Feature::METABOX),
            self.layout.sparse == SparsePolicy::Keep => ("keeping every hole", Feature::CHUNKED_FILE),
            prefixes => ("an attribute name prefix", Feature::XATTR_PREFIXES),
        });
        let used = needs.into_iter().filter(|(is_used, _)| *is_used);
        used.map(|(_, need)| need).collect()
    }

    /// Returns the oldest kernel that supports all options, whatever [`Options::kernel`] is.
    pub fn oldest_kernel(&self) -> KernelVersion {
        min_kernel(self.needs().into_iter().map(|(_, feature)| feature))
    }

    /// Raises [`Options::kernel`] to the oldest kernel that supports all options.
    pub fn raise_kernel(&mut self) {
        self.kernel = self.kernel.max(self.oldest_kernel());
    }

    /// Validates the options. The build calls it.
    ///
    /// # Errors
    /// `Usage` for options that contradict each other or need a newer kernel.
    pub fn check(&self) -> Result<()> {
        let block = self.block.size_usize();
        for (compression, cluster) in self.compressions() {
            self.check_cluster("cluster size", cluster, compression.method)?;
            let spec = self.encoder(compression, cluster);
            spec.check().map_err(Error::usage)?;
        }
        let kernel_min = self.kernel;
        let unmet = |(_, f): &(&str, Feature)| !kernel_min.supports(*f);
        if let Some((what, feature)) = self.needs().into_iter().find(unmet) {
            let kernel = feature.min_kernel;
            let e = Error::usage(format_args!(
                "{what} needs Linux {kernel}, but the image is for Linux {kernel_min}"
            ));
            return Err(e.with_remedy(Remedy::NewerKernel));
        }
        let layout = &self.layout;
        let compresses = self.compressions().next().is_some();
        let window = self.compression.window;
        let has_blob = layout.blob.is_some();
        let has_base = self.has_base();
        let packs_metadata = self.metadata.form == Metadata::Compressed;
        let converts = self.sources.whiteouts == Some(Whiteouts::Convert);
        let cuts = &Self::FRAGMENT_CUTS;
        let label = &self.metadata.label;
        refuse(rows! {
            layout.unaligned && compresses && layout.tail_packing =>
                "ends of files lie behind their inodes only where clusters begin at blocks".to_owned(),
            !(block..=tuff_codec::INPUT_MAX).contains(&window) => format!("window of {window} bytes: from one block to 12 MiB"),
            layout.fragment_cut.is_some_and(|cut| !cuts.contains(&cut)) =>
                format!("fragment cut of {} bytes: from 16 KiB to 1 GiB", layout.fragment_cut.unwrap_or_default()),
            layout.chunk.is_some_and(|chunk| !chunk.is_power_of_two() || !(block..=CHUNK_MAX).contains(&chunk)) => format!(
                "chunk size {}: it must be a power of two from the block size {block} up to {CHUNK_MAX}",
                layout.chunk.unwrap_or_default()
            ),
            has_blob && layout.chunk.is_none() => "a file of chunks needs a chunk size".to_owned(),
            has_blob && (has_base || self.output.size_budget.is_some()) =>
                "an image with a file of chunks has neither a base nor a size budget".to_owned(),
            packs_metadata && self.compression.default.is_none() =>
                "compressed metadata needs an algorithm, and the image has none".to_owned(),
            converts && !self.metadata.xattrs => "whiteouts are converted to attributes, and the image is to have none".to_owned(),
            label.len() > 15 || label.contains(&0) => format!("label of {} bytes: at most 15, none of them zero", label.len()),
        })?;
        let method = self.compression.default.map_or(Method::Zstd, |c| c.method);
        if layout.fragments != Fragments::Off {
            self.check_cluster("fragment cluster size", layout.fragment_cluster, method)?;
        }
        if packs_metadata {
            self.check_cluster("metadata cluster size", self.metadata.cluster, method)?;
        }
        if !self.dedupe.tar_index {
            return Ok(());
        }
        let of_tar = rows! {
            self.block.get() != 9 => "blocks of another size than 512 bytes, a tar's",
            self.compression.default.is_some() => "compression: the data stays as it is",
            layout.fragments != Fragments::Off => "fragments: the data stays where it is",
            self.dedupe.mode != Dedupe::Off => "dedupe: the data stays where it is",
            self.sources.start != Start::None => "a start list: the data stays where it is",
            has_base => "a base",
            layout.chunk.is_some() || has_blob => "chunks: the data stays where it is",
            self.output.size_budget.is_some() => "a size budget",
            packs_metadata => "compressed metadata",
            self.output.verify => "verifying: the image has no content of its own; check it together with the tar",
        };
        refuse(of_tar.map(|(is, what)| (is, format!("an index of a tar cannot have {what}"))))
    }

    /// Leaves all data in the tar that is the source: disables compression, the packed inode and deduplication.
    pub fn index_a_tar(&mut self) {
        self.dedupe.tar_index = true;
        self.compression.default = None;
        self.layout.tail_packing = false;
        self.layout.fragments = Fragments::Off;
        self.dedupe.mode = Dedupe::Off;
        self.layout.chunk = None;
    }

    /// Returns true if the image refers to other images.
    fn has_base(&self) -> bool {
        self.dedupe.image_index || !self.dedupe.bases.is_empty()
    }

    /// Returns true if a file of `size` bytes with data only in `runs` stays sparse.
    pub(crate) fn keeps_sparse(&self, size: u64, runs: &[DataRun]) -> bool {
        let data: u64 = runs.iter().map(|r| r.len).sum();
        let holes = size - data.min(size);
        self.kernel.supports(Feature::CHUNKED_FILE)
            && match self.layout.sparse {
                SparsePolicy::Auto => holes >= self.block.size() && holes >= size / 2,
                SparsePolicy::Keep => holes >= self.block.size(),
                SparsePolicy::Fill => false,
            }
    }
}

/// Number of CPUs that this process may use, limited by its affinity and the quota of its cgroup.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
