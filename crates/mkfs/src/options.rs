//! What a build can be told.

use super::file_contexts::Contexts;
use super::fs_config::FsConfig;
use super::pack::grain::Grain;
use super::paths::Paths;
use super::source::DataRun;
use super::tree::Whiteouts;
use crate::{Error, Result};
use std::path::PathBuf;
use tuff_codec::{EncoderSpec, Method};
use tuff_format::BlockBits;
use tuff_format::features::{Feature, KernelVersion, min_kernel};

/// Cluster size of the packed inode, where larger ones are not asked for: what a read of a small file decodes. Unit: bytes.
pub const FRAGMENT_CLUSTER: usize = 16 << 10;

/// The usual largest cluster of the packed inode where files are much alike. Unit: bytes.
pub const SIMILAR_CLUSTER: usize = 64 << 10;

/// Usual cluster size of compressed metadata: what looking an inode up decodes. Unit: bytes.
pub const METADATA_CLUSTER: usize = 16 << 10;

/// Largest size of chunks. Unit: bytes.
pub const CHUNK_MAX: usize = 8 << 20;

/// How to compress, without cluster and window size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Method.
    pub method: Method,
    /// Level.
    pub level: i32,
    /// Dictionary or window, if given. Unit: bytes.
    pub dict: Option<usize>,
}

/// What an image is to be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// As small as can be.
    Size,
    /// Small, and read fast.
    Balanced,
    /// Built and read fast.
    Speed,
}

/// An image that another one refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseImage {
    /// In a file or on a block device.
    pub path: PathBuf,
    /// Its extra devices, in the order of its device table. None: it has none, or they lie behind it.
    pub devices: Vec<PathBuf>,
}

impl From<PathBuf> for BaseImage {
    fn from(path: PathBuf) -> Self {
        let devices = Vec::new();
        Self { path, devices }
    }
}

/// Different settings for some paths.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which paths.
    pub paths: Paths,
    /// How to compress; `None` stores.
    pub compression: Option<Compression>,
    /// Cluster size, if it differs. Unit: bytes.
    pub cluster: Option<usize>,
}

/// What goes into the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Nothing: there is none.
    Off,
    /// Files that are not larger than a cluster, and ends of larger ones.
    Tails,
    /// Files that are not larger than a cluster.
    Small,
    /// All files, but those that a rule speaks of and that are larger than their cluster.
    All,
}

/// What is stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedupe {
    /// Nothing is looked for.
    Off,
    /// Identical files.
    Files,
    /// Identical files, and parts of large files that another has.
    Content,
}

/// Which files with holes stay sparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparsePolicy {
    /// Those with holes in at least half of their size.
    Auto,
    /// All.
    Keep,
    /// None: holes are zeros.
    Fill,
}

/// Which inode forms to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeForm {
    /// Compact where it can say everything.
    Auto,
    /// Extended always.
    Extended,
}

/// How inodes and attributes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// For every kernel: an inode has 64 bytes unless its time is the one that most have.
    Plain,
    /// 32 bytes whatever the time, as far as nanoseconds are equal: part of the 48-bit layout, from Linux 6.15 on.
    Short,
    /// The same, compressed, but for directories of more than a block: the metabox, from Linux 6.17 on.
    Compressed,
}

/// Options of a build. [`Options::check`] validates all combinations.
#[derive(Clone)]
pub struct Options {
    /// Oldest kernel that must mount the image.
    pub kernel: KernelVersion,
    /// Block size.
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
    /// The finished image.
    pub output: OutputOptions,
}

/// Compression of file data.
#[derive(Clone)]
pub struct CompressionOptions {
    /// How to compress; `None` stores everything.
    pub default: Option<Compression>,
    /// Largest cluster. Unit: bytes.
    pub cluster: usize,
    /// Most input of a cluster. Unit: bytes.
    pub window: usize,
    /// Each file that no rule speaks of is stored as a sample of it suggests; set by [`Auto::apply`].
    pub auto: Option<Auto>,
    /// The first that matches wins.
    pub rules: Vec<Rule>,
    /// Save less than so much and be stored. Unit: thousandths.
    pub min_saving: u32,
}

/// Layout of file data.
#[derive(Clone)]
pub struct LayoutOptions {
    /// Ends of stored files go behind their inodes.
    pub inline_data: bool,
    /// Ends of compressed files go behind their inodes.
    pub tail_packing: bool,
    /// The packed inode.
    pub fragments: Fragments,
    /// What is left of a file behind its full clusters goes into the packed inode up to this length; `None`: up to a cluster's.
    /// Unit: bytes.
    pub fragment_end_max: Option<usize>,
    /// Cluster size of the packed inode. Unit: bytes.
    pub fragment_cluster: usize,
    /// Cluster size of those parts of it whose files are much alike; see [`alike_cluster`](Self::alike_cluster). Unit: bytes.
    pub similar_cluster_max: usize,
    /// Files that are stored as they are consist of chunks of this size; equal ones are stored once, those of zeros not at all.
    /// Unit: bytes.
    pub chunk: Option<usize>,
    /// These chunks go into a file of their own: readers of the image need both.
    pub blob: Option<PathBuf>,
    /// The image's length is a multiple of so many blocks, rounded up to a power of two.
    pub align_blocks: u32,
    /// Clusters begin anywhere and take as many bytes as they need, not whole blocks: part of the 48-bit layout, from Linux
    /// 6.15 on.
    pub unaligned: bool,
    /// COMPACT indexes where they can be used.
    pub compact_index: bool,
    /// Files with holes.
    pub sparse: SparsePolicy,
}

/// Data that is stored once or not at all.
#[derive(Clone)]
pub struct DedupeOptions {
    /// What is stored once.
    pub mode: Dedupe,
    /// Images whose data is referred to and not held again: readers need them all, in this order.
    pub bases: Vec<BaseImage>,
    /// The data of sources that are images stays where it is, as if they were bases behind the others.
    pub image_index: bool,
    /// The data stays in the only source, a tar: the image refers to it there, and its readers need both.
    pub tar_index: bool,
}

/// Inodes, extended attributes and the superblock.
#[derive(Clone)]
pub struct MetadataOptions {
    /// Inode form.
    pub inodes: InodeForm,
    /// How inodes and attributes are stored.
    pub form: Metadata,
    /// Cluster size of compressed metadata. Unit: bytes.
    pub cluster: usize,
    /// Attributes.
    pub xattrs: bool,
    /// An attribute of more inodes than this is shared.
    pub xattr_share: u32,
    /// Long name prefixes, full: `trusted.overlay.`.
    pub xattr_prefixes: Vec<Vec<u8>>,
    /// Name of an attribute with a digest of each file, by which kernels from 7.0 on share pages between mounts:
    /// [`fingerprint::NAME`](super::fingerprint::NAME).
    pub fingerprints: Option<Vec<u8>>,
    /// The per-inode name filter.
    pub xattr_filter: bool,
    /// Every inode gets this time.
    pub timestamp: Option<i64>,
    /// No inode gets a later time.
    pub clamp: Option<i64>,
    /// UUID; `None` derives it from the content.
    pub uuid: Option<[u8; 16]>,
    /// At most 15 bytes.
    pub label: Vec<u8>,
    /// Owner of everything.
    pub uid: Option<u32>,
    /// Group of everything.
    pub gid: Option<u32>,
    /// Added to every owner.
    pub uid_offset: u32,
    /// Added to every group.
    pub gid_offset: u32,
    /// Labels by path: they replace those of the sources.
    pub contexts: Option<Contexts>,
    /// Owners, modes and capabilities by path: they replace those of the sources.
    pub fs_config: Option<FsConfig>,
    /// Where the image will be mounted: both have it in front of their paths. Absolute, or empty.
    pub mount_point: Vec<u8>,
    /// Checksum of the superblock.
    pub checksum: bool,
}

/// Reading of the sources.
#[derive(Clone)]
pub struct SourceOptions {
    /// Paths that are left out, with all below them.
    pub exclude: globset::GlobSet,
    /// So are these.
    pub exclude_also: Vec<Paths>,
    /// Files that the caller writes beside the image. Directories among the sources are read without them, as they are
    /// without the image itself.
    pub outputs: Vec<PathBuf>,
    /// Names of one file stay names of one file; else each is a file of its own, with the same data.
    pub hard_links: bool,
    /// Paths in the order their data should lie; all others follow.
    pub order: Vec<Vec<u8>>,
    /// Stay on the source's filesystem.
    pub one_file_system: bool,
    /// Meaning of whiteouts; `None`: for several sources `Both` in tars and else `Overlay`, `Keep` for one.
    pub whiteouts: Option<Whiteouts>,
}

/// Threads, memory and temporary data.
#[derive(Clone)]
pub struct ResourceOptions {
    /// Workers; `None`: as many as the process may use.
    pub threads: Option<usize>,
    /// Memory for buffers. `None`: 256 MiB, and what as many large jobs as there are workers need beyond that. Unit: bytes.
    pub memory: Option<u64>,
    /// Where temporary data goes. `None`: where [`Output::scratch`](tuff_store::Output::scratch) says.
    pub temporary: Option<PathBuf>,
}

/// The finished image.
#[derive(Clone)]
pub struct OutputOptions {
    /// The first of [`LADDER`](super::ladder::LADDER) whose image is not larger: compression, clusters and fragments
    /// are then the ladder's. Unit: bytes.
    pub size_budget: Option<u64>,
    /// Read the finished image again and compare it with what went in.
    pub verify: bool,
    /// A hash tree of dm-verity behind the image.
    pub verity: Option<Verity>,
    /// Wait until the image is on the disk.
    pub sync: bool,
}

/// How to make a hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verity {
    /// What a digest covers, and what digests are gathered in: a power of two from 512 to 4096, for kernels take no block that is
    /// larger than their pages. Unit: bytes.
    pub block: u32,
    /// Goes into every digest: at most 256 bytes.
    pub salt: Vec<u8>,
    /// Parity behind the tree: so many bytes, 2 to 24, for each 255 less as many.
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
            window: tuff_codec::WINDOW_MAX,
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
            chunk: None,
            blob: None,
            align_blocks: 1,
            unaligned: false,
            compact_index: true,
            sparse: SparsePolicy::Auto,
        }
    }
}

impl Default for DedupeOptions {
    fn default() -> Self {
        Self {
            mode: Dedupe::Content,
            bases: Vec::new(),
            image_index: false,
            tar_index: false,
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
            one_file_system: false,
            whiteouts: None,
        }
    }
}

impl Default for ResourceOptions {
    fn default() -> Self {
        Self {
            threads: None,
            memory: None,
            temporary: None,
        }
    }
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            size_budget: None,
            verify: false,
            verity: None,
            sync: false,
        }
    }
}

impl Options {
    /// Returns how metadata is compressed, if it is.
    pub(crate) fn metadata_encoder(&self) -> Option<EncoderSpec> {
        let compression = self.compression.default?;
        Some(self.encoder(compression, self.metadata.cluster))
    }

    /// The defaults for a kernel: those of [`Options::default`] as far as it can mount them.
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

    /// Cluster size where the files of the packed inode are much alike: neither smaller than elsewhere, nor larger than
    /// that of files, unless it is larger elsewhere. Unit: bytes.
    pub fn similar_cluster(&self) -> usize {
        let max = self
            .layout
            .similar_cluster_max
            .min(self.compression.cluster);
        self.layout.fragment_cluster.max(max)
    }

    /// What clusters are counted in.
    pub(crate) fn grain(&self) -> Grain {
        Grain::new(self.block, self.layout.unaligned)
    }

    /// The largest cluster that kernels take with this method and the options' block size. Unit: bytes.
    pub fn cluster_max(&self, method: Method) -> usize {
        // Linux compares LZ4's with its pages, however large blocks are (seen in 6.18); an index counts to 2047.
        let blocks = match method {
            Method::Lz4 | Method::Lz4hc => 256,
            Method::Lzma | Method::Deflate | Method::Zstd => 2047,
        };
        (blocks * self.block.size_usize()).min(1 << 20)
    }

    /// Makes clusters of all files smaller, to a power of two, or larger, to a block, where the compression and the block
    /// size ask for it.
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

    /// Sets the cluster size of files, and that of fragments and metadata as far as it goes with it. Unit: bytes.
    pub fn set_cluster(&mut self, cluster: usize) {
        let block = self.block.size_usize();
        self.compression.cluster = cluster;
        self.layout.fragment_cluster = cluster.min(FRAGMENT_CLUSTER).max(block);
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

    /// The encoder for a compression and cluster size, as the options shape it.
    pub fn encoder(&self, compression: Compression, cluster: usize) -> EncoderSpec {
        let mut spec = EncoderSpec::new(compression.method, cluster).with_level(compression.level);
        spec.window = self.compression.window;
        spec.dict = compression.dict;
        spec
    }

    /// Every compression that may be used, and its largest cluster. Unit: bytes.
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

    /// What is asked for that not every kernel can, and the oldest that can.
    fn needs(&self) -> Vec<(&'static str, Feature)> {
        let block = self.block.size_usize();
        let compresses = self.compressions().next().is_some();
        let mut needs = Vec::new();
        let mut need = |what, feature, is_used| {
            if is_used {
                needs.push((what, feature));
            }
        };
        let small_blocks = block < 4096;
        need(
            "a block size below 4096 bytes",
            Feature::SUBPAGE_BLOCKS,
            small_blocks,
        );
        for (compression, cluster) in self.compressions() {
            need(
                "compression with a block size below 4096 bytes",
                Feature::SUBPAGE_COMPRESSION,
                small_blocks,
            );
            need(
                "a cluster of several blocks",
                Feature::BIG_PCLUSTER,
                cluster > block,
            );
            let (name, algorithm) = match compression.method {
                Method::Lz4 | Method::Lz4hc => ("LZ4", Feature::LZ4),
                Method::Lzma => ("LZMA", Feature::LZMA),
                Method::Deflate => ("DEFLATE", Feature::DEFLATE),
                Method::Zstd => ("Zstandard", Feature::ZSTD),
            };
            need(name, algorithm, true);
        }
        let tails = self.layout.tail_packing && compresses;
        need("tail packing", Feature::ZTAILPACKING, tails);
        let anywhere = self.layout.unaligned && compresses;
        need(
            "letting clusters begin anywhere",
            Feature::ENCODED_EXTENTS,
            anywhere,
        );
        let fragments = self.layout.fragments != Fragments::Off;
        need("fragments", Feature::FRAGMENTS, fragments);
        let parts = self.dedupe.mode == Dedupe::Content && compresses;
        need("sharing parts of files", Feature::DEDUPE, parts);
        need("a base", Feature::DEVICE_TABLE, self.has_base());
        need(
            "storing files in chunks",
            Feature::CHUNKED_FILE,
            self.layout.chunk.is_some(),
        );
        need(
            "a file of chunks",
            Feature::DEVICE_TABLE,
            self.layout.blob.is_some(),
        );
        let short = self.metadata.form == Metadata::Short;
        need("the short form of metadata", Feature::BIT48, short);
        let packed = self.metadata.form == Metadata::Compressed;
        need("compressed metadata", Feature::METABOX, packed);
        let holes = self.layout.sparse == SparsePolicy::Keep;
        need("keeping every hole", Feature::CHUNKED_FILE, holes);
        let prefixes =
            !self.metadata.xattr_prefixes.is_empty() || self.metadata.fingerprints.is_some();
        need(
            "an attribute name prefix",
            Feature::XATTR_PREFIXES,
            prefixes,
        );
        needs
    }

    /// The oldest kernel that can have what is asked for, whatever [`Options::kernel`] says.
    pub fn oldest_kernel(&self) -> KernelVersion {
        min_kernel(self.needs().into_iter().map(|(_, feature)| feature))
    }

    /// Makes the image one for newer kernels, if what is asked for needs that.
    pub fn raise_kernel(&mut self) {
        self.kernel = self.kernel.max(self.oldest_kernel());
    }

    /// Says what does not fit together, or needs a newer kernel than was asked for. Called by the build itself.
    pub fn check(&self) -> Result<()> {
        let block = self.block.size_usize();
        for (compression, cluster) in self.compressions() {
            self.check_cluster("cluster size", cluster, compression.method)?;
            let spec = self.encoder(compression, cluster);
            spec.check().map_err(Error::usage)?;
        }
        let asked = self.kernel;
        let unmet = |(_, f): &(&str, Feature)| !asked.supports(*f);
        if let Some((what, feature)) = self.needs().into_iter().find(unmet) {
            let kernel = feature.min_kernel;
            return Err(Error::usage(format_args!(
                "{what} needs Linux {kernel}, but the image is for Linux {asked}"
            )));
        }
        let compresses = self.compressions().next().is_some();
        if self.layout.unaligned && compresses && self.layout.tail_packing {
            return Err(Error::usage(
                "ends of files lie behind their inodes only where clusters begin at blocks",
            ));
        }
        if self.compression.window < block || self.compression.window > tuff_codec::WINDOW_MAX {
            return Err(Error::usage(format_args!(
                "window of {} bytes: from one block to 12 MiB",
                self.compression.window
            )));
        }
        if self.layout.fragments != Fragments::Off {
            let method = self.compression.default.map_or(Method::Zstd, |c| c.method);
            self.check_cluster(
                "fragment cluster size",
                self.layout.fragment_cluster,
                method,
            )?;
        }
        if self.dedupe.tar_index {
            self.check_tar_index()?;
        }
        if let Some(chunk) = self.layout.chunk
            && (!chunk.is_power_of_two() || chunk < block || chunk > CHUNK_MAX)
        {
            return Err(Error::usage(format_args!(
                "chunk size {chunk}: it must be a power of two from the block size {block} up to {CHUNK_MAX}"
            )));
        }
        if self.layout.blob.is_some() {
            if self.layout.chunk.is_none() {
                return Err(Error::usage("a file of chunks needs a chunk size"));
            }
            if self.has_base() || self.output.size_budget.is_some() {
                return Err(Error::usage(
                    "an image with a file of chunks has neither a base nor a size budget",
                ));
            }
        }
        if self.metadata.form == Metadata::Compressed {
            let Some(compression) = self.compression.default else {
                return Err(Error::usage(
                    "compressed metadata needs an algorithm, and the image has none",
                ));
            };
            let cluster = self.metadata.cluster;
            self.check_cluster("metadata cluster size", cluster, compression.method)?;
        }
        if self.metadata.label.len() > 15 || self.metadata.label.contains(&0) {
            return Err(Error::usage(format_args!(
                "label of {} bytes: at most 15, none of them zero",
                self.metadata.label.len()
            )));
        }
        Ok(())
    }

    /// Leaves all data in the tar that is the source: nothing is compressed, packed or shared.
    pub fn index_a_tar(&mut self) {
        self.dedupe.tar_index = true;
        self.compression.default = None;
        self.layout.tail_packing = false;
        self.layout.fragments = Fragments::Off;
        self.dedupe.mode = Dedupe::Off;
        self.layout.chunk = None;
    }

    /// Says what does not fit together with an image whose data stays in a tar.
    fn check_tar_index(&self) -> Result<()> {
        let wrong = [
            (
                self.block.get() != 9,
                "blocks of another size than 512 bytes, a tar's",
            ),
            (
                self.compression.default.is_some(),
                "compression: the data stays as it is",
            ),
            (
                self.layout.fragments != Fragments::Off,
                "fragments: the data stays where it is",
            ),
            (
                self.dedupe.mode != Dedupe::Off,
                "dedupe: the data stays where it is",
            ),
            (self.has_base(), "a base"),
            (
                self.layout.chunk.is_some() || self.layout.blob.is_some(),
                "chunks: the data stays where it is",
            ),
            (self.output.size_budget.is_some(), "a size budget"),
            (
                self.metadata.form == Metadata::Compressed,
                "compressed metadata",
            ),
            (
                self.output.verify,
                "verifying: the image has no content of its own; check it together with the tar",
            ),
        ];
        match wrong.iter().find(|(is, _)| *is) {
            Some((_, what)) => Err(Error::usage(format_args!(
                "an index of a tar cannot have {what}"
            ))),
            None => Ok(()),
        }
    }

    /// True if it refers to other images.
    fn has_base(&self) -> bool {
        self.dedupe.image_index || !self.dedupe.bases.is_empty()
    }

    /// True if a file of `size` bytes with data only in `runs` stays sparse.
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
