//! Options that an image was apparently built with, for patches and for compaction.
//!
//! An image records block size, algorithms and the form of its metadata. The other options follow from its content:
//!
//! | option | follows from |
//! |---|---|
//! | cluster sizes | lengths of clusters that occur more than once |
//! | fragments, tail packing | the places of whole files and of tails |
//! | level | the sampled clusters, encoded again at each level |
//! | dictionary | the compression records |
//! | rules | algorithms of files other than the most common one |
//! | chunks | blocks that several files, or several parts of a file, share |
//! | sparse files | holes that make up less than half of a file |
//! | shared attributes, name prefixes | reference counts of shared attributes, the table of prefixes |

use super::base::check_no_devices;
use super::options::{Compression, Fragments, Metadata, Options, Rule, SparsePolicy, Verity};
use crate::tree::paths::Paths;
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tuff_codec::{EncoderSpec, Method};
use tuff_erofs::read::{ClusterCoding, Image, Inode, Layout, Location};
use tuff_erofs::verity;
use tuff_erofs::walk::Walk;
use tuff_format::features::{Feature, KernelVersion, compat, flags_of, incompat, min_kernel};
use tuff_format::xattr::{self, Body};

/// Returns options like those of an image: its block size and label, the algorithm and cluster sizes of most of its
/// content, its fragments and metadata, and a hash tree if it has one. They are for `kernel`, or for a newer kernel that
/// the image needs.
///
/// # Errors
/// Errors of reading the image.
pub fn like(image: &Image, kernel: KernelVersion) -> Result<Options> {
    Survey::new(image)?.options(image, kernel)
}

/// As [`like`], with the level of the compression, rules for files of other algorithms, and what else a build of the same
/// tree needs to be as small as the image.
///
/// # Errors
/// As for [`like`]; `Usage` for an image with extra devices, which cannot be patched.
pub fn like_in_detail(image: &Image, kernel: KernelVersion) -> Result<Options> {
    // Data on a device that was not given cannot be read.
    check_no_devices(image)?;
    let survey = Survey::new(image)?;
    let mut options = survey.options(image, kernel)?;
    survey.add_details(image, &mut options)?;
    Ok(options)
}

/// Lengths of clusters, rounded up to blocks, with the number of clusters that have them.
#[derive(Default)]
struct Lengths(BTreeMap<usize, u64>);

impl Lengths {
    fn add(&mut self, len: usize) {
        *self.0.entry(len).or_default() += 1;
    }

    /// Returns the largest length. 0 if there are no clusters.
    fn largest(&self) -> usize {
        self.0.last_key_value().map_or(0, |(len, _)| *len)
    }

    /// Returns true if the largest length is a limit and no accident.
    fn is_limit(&self) -> bool {
        self.0.last_key_value().is_some_and(|(_, count)| *count > 1)
    }

    /// Returns the most frequent length that occurs more than once, the larger one of two.
    fn usual(&self) -> Option<usize> {
        let repeated = self.0.iter().filter(|(_, count)| **count > 1);
        repeated
            .max_by_key(|(_, count)| **count)
            .map(|(len, _)| *len)
    }
}

/// Content with one algorithm.
#[derive(Default)]
struct Content {
    /// Number of bytes.
    bytes: u64,
    /// Clusters of this algorithm.
    lengths: Lengths,
}

/// Cluster whose content is known.
#[derive(Clone, Copy)]
struct Sample {
    inode: Inode,
    algorithm: u8,
    /// Range of the inode's data that the cluster holds. Unit: bytes.
    offset: u64,
    len: u64,
    /// Stored length. Unit: bytes.
    stored: usize,
}

/// Number of clusters that are kept as samples. More of them replace earlier ones.
const SAMPLES: usize = 64;
/// Largest number of input bytes that are encoded to find a level. Unit: bytes.
const SAMPLED_MAX: u64 = 1 << 20;
/// Largest cluster of the format. Unit: bytes.
const CLUSTER_MAX: usize = 1 << 20;
/// Shortest cluster that tells a level. Unit: bytes.
const ENCODED_MIN: usize = 512;
/// Input behind a cluster that an encoder may look at. Unit: bytes.
const LOOKAHEAD: u64 = 128 << 10;

/// Content of an image, as far as options follow from it.
#[derive(Default)]
struct Survey {
    /// Files with clusters of their own, by algorithm.
    own: [Content; 4],
    /// Content of the packed inode, by algorithm.
    packed: [Content; 4],
    /// Size of the largest file that is in the packed inode as a whole. Unit: bytes.
    largest_whole: u64,
    /// Tails of compressed files follow their inodes.
    has_inline_tails: bool,
    /// Tails of files with clusters are in the packed inode.
    has_tail_fragments: bool,
    /// Files have an index of extents, so clusters start anywhere.
    unaligned: bool,
    /// Holes of a file make up less than half of it.
    keeps_holes: bool,
    /// Data of files with chunks: ranges of devices. Unit: bytes.
    chunks: HashSet<Vec<(u16, u64, u64)>>,
    /// Number of inodes that refer to a shared attribute.
    shared_xattrs: HashMap<u32, u32>,
    samples: Vec<Sample>,
    /// Number of clusters that could be samples.
    candidates: u64,
}

impl Survey {
    fn new(image: &Image) -> Result<Self> {
        let mut survey = Self::default();
        for entry in Walk::root(image)? {
            let inode = entry?.inode;
            survey.add_xattrs(image, &inode)?;
            if inode.has_data() {
                match inode.layout() {
                    Layout::CompressedFull | Layout::CompressedCompact => {
                        survey.add_compressed(image, &inode)?;
                    }
                    Layout::ChunkBased => survey.add_chunks(image, &inode)?,
                    _ => {}
                }
            }
        }
        if let Some(packed) = image.packed() {
            survey.add_packed(image, packed)?;
        }
        Ok(survey)
    }

    fn add_xattrs(&mut self, image: &Image, inode: &Inode) -> Result<()> {
        if inode.has_xattrs() {
            let bytes = image.xattr_body(inode)?;
            let body = Body::new(&bytes)
                .map_err(|e| Error::format(format_args!("{}: attributes", inode.place()), e))?;
            for id in body.shared_ids() {
                *self.shared_xattrs.entry(id).or_default() += 1;
            }
        }
        Ok(())
    }

    fn add_compressed(&mut self, image: &Image, inode: &Inode) -> Result<()> {
        self.unaligned |= image.has_encoded_extents(inode)?;
        let mut algorithm = None;
        for extent in image.extents(inode, 0..inode.size())? {
            let extent = extent?;
            match extent.location {
                Location::Fragment { .. } if extent.offset == 0 => {
                    self.largest_whole = self.largest_whole.max(inode.size());
                }
                Location::Fragment { .. } => self.has_tail_fragments = true,
                Location::Inline { .. } => self.has_inline_tails = true,
                Location::Cluster(cluster) => {
                    let ClusterCoding::Compressed(id) = cluster.coding else {
                        continue;
                    };
                    algorithm.get_or_insert(id);
                    let sample = Sample {
                        inode: *inode,
                        algorithm: id,
                        offset: extent.offset,
                        len: extent.len,
                        stored: cluster.len as usize,
                    };
                    let stored = self.stored_len(image, cluster.len);
                    if let Some(content) = self.own.get_mut(usize::from(id)) {
                        content.lengths.add(stored);
                    }
                    if !cluster.partial {
                        self.add_sample(sample);
                    }
                }
                _ => {}
            }
        }
        if let Some(content) = algorithm.and_then(|id| self.own.get_mut(usize::from(id))) {
            content.bytes += inode.size();
        }
        Ok(())
    }

    fn add_packed(&mut self, image: &Image, packed: &Inode) -> Result<()> {
        self.unaligned |= image.has_encoded_extents(packed)?;
        for extent in image.extents(packed, 0..packed.size())? {
            let extent = extent?;
            let Location::Cluster(cluster) = extent.location else {
                continue;
            };
            let ClusterCoding::Compressed(id) = cluster.coding else {
                continue;
            };
            let stored = self.stored_len(image, cluster.len);
            if let Some(content) = self.packed.get_mut(usize::from(id)) {
                content.lengths.add(stored);
                content.bytes += extent.len;
            }
            if !cluster.partial {
                self.add_sample(Sample {
                    inode: *packed,
                    algorithm: id,
                    offset: extent.offset,
                    len: extent.len,
                    stored: cluster.len as usize,
                });
            }
        }
        Ok(())
    }

    /// Keeps a sample of all clusters, evenly distributed.
    fn add_sample(&mut self, sample: Sample) {
        // No encoder puts more into a cluster.
        if sample.len > tuff_codec::INPUT_MAX as u64 {
            return;
        }
        let n = self.candidates;
        self.candidates += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(sample);
            return;
        }
        // Reservoir sampling with a fixed sequence: the result depends on the image alone.
        let random = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
        if let Ok(i) = usize::try_from(random % (n + 1))
            && let Some(slot) = self.samples.get_mut(i)
        {
            *slot = sample;
        }
    }

    /// Returns the stored length of a cluster in whole blocks. Unit: bytes.
    fn stored_len(&self, image: &Image, len: u32) -> usize {
        (len as usize).next_multiple_of(image.superblock().block_bits.size_usize())
    }

    fn add_chunks(&mut self, image: &Image, inode: &Inode) -> Result<()> {
        let block = image.superblock().block_bits;
        let (mut holes, mut ranges) = (0, Vec::new());
        for extent in image.extents(inode, 0..inode.size())? {
            let extent = extent?;
            match extent.location {
                Location::Hole => holes += extent.len,
                Location::Raw { device, pos } => ranges.push((device.0, pos, extent.len)),
                _ => {}
            }
        }
        self.keeps_holes |= holes >= block.size() && holes < inode.size() / 2;
        self.chunks.insert(ranges);
        Ok(())
    }

    /// Returns true if files with chunks share some of them. Whole files are shared without chunks as well.
    fn shares_chunks(&self) -> bool {
        let mut all: Vec<_> = self.chunks.iter().flatten().copied().collect();
        all.sort_unstable();
        let overlap = |pair: &[(u16, u64, u64)]| match pair {
            [(device, pos, len), (next, at, _)] => device == next && pos.saturating_add(*len) > *at,
            _ => false,
        };
        all.windows(2).any(overlap)
    }

    /// Returns the algorithm of the packed inode, or that of most content.
    fn algorithm(&self) -> Option<u8> {
        let most = |contents: &[Content; 4]| {
            let (id, content) = (0..).zip(contents).max_by_key(|(_, c)| c.bytes)?;
            (content.bytes > 0).then_some(id)
        };
        most(&self.packed).or_else(|| most(&self.own))
    }

    fn options(&self, image: &Image, kernel: KernelVersion) -> Result<Options> {
        let sb = image.superblock();
        let used = |content: &Content| content.bytes > 0;
        let ids = (0..4).filter(|i| used(&self.own[*i]) || used(&self.packed[*i]));
        let algorithms: Vec<_> = ids
            .filter_map(|id| Feature::of_algorithm(id as u8))
            .collect();
        let block_size = Feature::of_block_size(sb.block_bits, !algorithms.is_empty());
        let used = flags_of(0, sb.incompat).chain(algorithms).chain(block_size);
        let mut options = Options::for_kernel(kernel.max(min_kernel(used)));
        options.block = sb.block_bits;
        options.metadata.checksum = sb.has_compat(compat::SB_CHKSUM);
        options.metadata.fingerprints = image.fingerprint_name();
        let end = sb.label.iter().position(|b| *b == 0);
        options.metadata.label = sb.label[..end.unwrap_or(sb.label.len())].to_vec();
        options.compression.default = self.algorithm().map(|id| compression(method(id)));
        options.layout.unaligned = self.unaligned;
        options.metadata.form = match (sb.has(incompat::METABOX), sb.has(incompat::BIT48)) {
            (true, _) if options.compression.default.is_some() => Metadata::Compressed,
            (_, true) => Metadata::Short,
            _ => Metadata::Plain,
        };
        self.set_clusters(image, &mut options);
        options.output.verity = verity::appended_tree(image)?.map(|tree| Verity {
            block: tree.header.data_block,
            salt: tree.header.salt,
            parity: tree.parity,
        });
        options.fit_clusters();
        Ok(options)
    }

    /// Sets cluster sizes, fragments and tail packing.
    fn set_clusters(&self, image: &Image, options: &mut Options) {
        let usual = options.compression.cluster;
        let own = (self.own.iter())
            .map(|content| &content.lengths)
            .max_by_key(|lengths| lengths.largest());
        let (own_max, own_limit) = own.map_or((0, false), |l| (l.largest(), l.is_limit()));
        let has_packed = image.packed().is_some();
        // A single cluster may be as short as its content.
        let cluster = match own_limit {
            true => own_max,
            false => usual.max(own_max),
        };
        let whole = usize::try_from(self.largest_whole).unwrap_or(usize::MAX);
        options.layout.tail_packing |= self.has_inline_tails;
        if !has_packed {
            options.layout.fragments = Fragments::Off;
            options.set_cluster(cluster);
            return;
        }
        let packed = (self.packed.iter().map(|content| &content.lengths))
            .max_by_key(|lengths| lengths.largest());
        let (packed_max, packed_usual) = packed.map_or((0, None), |l| (l.largest(), l.usual()));
        let is_all = own_max == 0 && whole > usual || whole > CLUSTER_MAX;
        options.layout.fragments = match (is_all, self.has_inline_tails) {
            (true, _) => Fragments::All,
            (_, true) if !self.has_tail_fragments => Fragments::Small,
            _ => Fragments::Tails,
        };
        // A file of at most a cluster is in the packed inode as a whole.
        let cluster = match is_all {
            true => packed_max,
            false => cluster.max(whole.next_power_of_two()),
        };
        options.set_cluster(cluster);
        if is_all {
            options.layout.fragment_cluster = cluster;
        }
        if let Some(usual) = packed_usual {
            options.layout.fragment_cluster = usual.max(options.block.size_usize());
        }
        // Parts with similar files have larger clusters.
        if packed_max > options.similar_cluster() {
            options.layout.similar_cluster_max = packed_max;
            options.compression.cluster = options.compression.cluster.max(packed_max);
        }
    }

    fn add_details(&self, image: &Image, options: &mut Options) -> Result<()> {
        let configs = image.configs();
        if let Some(id) = self.algorithm()
            && let Some(default) = &mut options.compression.default
        {
            let distance =
                EncoderSpec::new(default.method, options.compression.cluster).match_distance_max();
            let recorded = match id {
                1 => configs.lzma_dict_size.map(|size| size as usize),
                3 => configs.zstd_window_log.map(|log| 1 << log),
                _ => None,
            };
            default.dict = recorded.filter(|recorded| *recorded > distance);
            let samples = self.samples.iter().filter(|s| s.algorithm == id);
            let samples: Vec<Sample> = samples.copied().collect();
            *default = best_level(image, &samples, id, default.dict)?.unwrap_or(*default);
        }
        self.add_rules(image, options)?;
        if self.shares_chunks() {
            // Tables of consecutive chunks have fewer and larger ones, so the size that was given is not known. Blocks find
            // everything that it found.
            options.layout.chunk = Some(options.block.size_usize());
        }
        if self.keeps_holes {
            options.layout.sparse = SparsePolicy::Keep;
        }
        if let Some(metabox) = image.metabox() {
            let mut lengths = Lengths::default();
            for extent in image.extents(metabox, 0..metabox.size())? {
                if let Location::Cluster(cluster) = extent?.location {
                    lengths.add(self.stored_len(image, cluster.len));
                }
            }
            options.metadata.cluster = options.metadata.cluster.max(lengths.largest());
        }
        if let Some(least) = self.shared_xattrs.values().min() {
            // An attribute is shared if more inodes than this number have it.
            let share = &mut options.metadata.xattr_share;
            *share = (*share).min(least.saturating_sub(1));
        }
        let fingerprints = image.fingerprint_name();
        let names = image.prefixes().iter().filter_map(|prefix| {
            let base = xattr::prefix(prefix.base)?;
            Some([base, &prefix.infix[..]].concat())
        });
        // The build adds the name of the fingerprints itself.
        let is_other = |name: &Vec<u8>| fingerprints.as_ref() != Some(name);
        options.metadata.xattr_prefixes = names.filter(is_other).collect();
        options.fit_clusters();
        Ok(())
    }

    /// Adds a rule for the files of each algorithm other than the default.
    fn add_rules(&self, image: &Image, options: &mut Options) -> Result<()> {
        let Some(default) = self.algorithm() else {
            return Ok(());
        };
        let others = (0..4u8).filter(|id| *id != default && self.own[usize::from(*id)].bytes > 0);
        let others: Vec<u8> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        let mut paths: [HashSet<Vec<u8>>; 4] = Default::default();
        for entry in Walk::root(image)? {
            let entry = entry?;
            let inode = &entry.inode;
            if inode.has_data()
                && matches!(
                    inode.layout(),
                    Layout::CompressedFull | Layout::CompressedCompact
                )
                && let Some(extent) = image.extents(inode, 0..1)?.next().transpose()?
                && let Location::Cluster(cluster) = extent.location
                && let ClusterCoding::Compressed(id) = cluster.coding
                && let Some(paths) = paths.get_mut(usize::from(id))
            {
                paths.insert(entry.path.clone());
            }
        }
        for id in others {
            let content = &self.own[usize::from(id)];
            let samples = self.samples.iter().filter(|s| s.algorithm == id);
            let samples: Vec<Sample> = samples.copied().collect();
            let found = best_level(image, &samples, id, None)?;
            options.compression.rules.push(Rule {
                paths: Paths::Any(Arc::new(std::mem::take(&mut paths[usize::from(id)]))),
                compression: Some(found.unwrap_or(compression(method(id)))),
                cluster: Some(content.lengths.largest()).filter(|_| content.lengths.is_limit()),
            });
        }
        Ok(())
    }
}

/// Returns the usual method of an algorithm. The clusters of LZ4HC and LZ4 look alike.
fn method(id: u8) -> Method {
    match id {
        0 => Method::Lz4hc,
        1 => Method::Lzma,
        2 => Method::Deflate,
        _ => Method::Zstd,
    }
}

fn compression(method: Method) -> Compression {
    Compression {
        method,
        level: method.default_level(),
        dict: None,
    }
}

/// Returns the method and level whose clusters hold as much input as those of the samples. `None` without samples.
fn best_level(
    image: &Image,
    samples: &[Sample],
    id: u8,
    dict: Option<usize>,
) -> Result<Option<Compression>> {
    let Some(largest) = samples
        .iter()
        .map(|s| s.stored)
        .max()
        .filter(|len| *len >= ENCODED_MIN)
    else {
        return Ok(None);
    };
    // The last cluster of a file may be shorter than the limit.
    let full = samples.iter().filter(|s| s.stored == largest);
    let mut inputs: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut total = 0;
    for sample in full {
        let rest = sample.inode.size().saturating_sub(sample.offset);
        let len = rest.min(sample.len.saturating_add(LOOKAHEAD));
        if total > 0 && total + len > SAMPLED_MAX {
            break;
        }
        total += len;
        let len = usize::try_from(len).map_err(|_| Error::limit("sample", "too long"))?;
        let mut bytes = vec![0; len];
        let read = image.read_at(&sample.inode, &mut bytes, sample.offset)?;
        bytes.truncate(read);
        inputs.push((bytes, sample.len));
    }
    let methods: &[Method] = match id {
        0 => &[Method::Lz4, Method::Lz4hc],
        1 => &[Method::Lzma],
        2 => &[Method::Deflate],
        _ => &[Method::Zstd],
    };
    let levels = methods.iter().flat_map(|method| {
        let levels = method.levels().filter(|level| method.has_level(*level));
        levels.map(|level| Compression {
            method: *method,
            level,
            dict,
        })
    });
    // From the fastest to the densest.
    let levels: Vec<Compression> = levels.collect();
    let usual = compression(method(id));
    let is_usual = |c: &Compression| (c.method, c.level) == (usual.method, usual.level);
    let start = levels.iter().position(is_usual).unwrap_or(0);
    let mut fit = Fit {
        inputs: &inputs,
        out: vec![0; largest],
    };
    let first = fit.difference(levels[start])?;
    let (mut best, mut least) = (start, first.distance);
    // Denser levels hold more input in a cluster.
    let order: Vec<usize> = match first.is_denser {
        true => (0..start).rev().collect(),
        false => (start + 1..levels.len()).collect(),
    };
    let mut worse = 0;
    for i in order {
        if least == 0 || worse == WORSE_MAX {
            break;
        }
        let found = fit.difference(levels[i])?;
        // The input of a cluster does not always grow with the level: a denser level that still holds less is no reason
        // to stop.
        let is_past = first.is_denser || found.is_denser;
        match found.distance < least {
            true => (best, least, worse) = (i, found.distance, 0),
            false => worse += u32::from(is_past),
        }
    }
    Ok(levels.get(best).copied())
}

/// Number of levels past the clusters that fit worse, after which no further ones are tried.
const WORSE_MAX: u32 = 2;

/// Comparison of a level with the clusters of an image.
struct Fit<'a> {
    /// Inputs from the start of a cluster on, each with the length that the cluster holds. Unit: bytes.
    inputs: &'a [(Vec<u8>, u64)],
    out: Vec<u8>,
}

/// Difference of a level from the clusters of an image.
struct Difference {
    /// Sum of the differences of all clusters. Unit: bytes of input.
    distance: u64,
    /// The level puts more input into clusters than they hold.
    is_denser: bool,
}

impl Fit<'_> {
    fn difference(&mut self, compression: Compression) -> Result<Difference> {
        let mut spec =
            EncoderSpec::new(compression.method, self.out.len()).with_level(compression.level);
        spec.dict = compression.dict;
        let mut encoder = spec.build().map_err(Error::usage)?;
        let (mut distance, mut held, mut encoded) = (0, 0, 0);
        for (bytes, len) in self.inputs {
            encoder.reset();
            let consumed = encoder.fit(bytes, 0, &mut self.out).consumed as u64;
            distance += len.abs_diff(consumed);
            held += len;
            encoded += consumed;
        }
        Ok(Difference {
            distance,
            is_denser: encoded > held,
        })
    }
}
