//! Patching: an image is made to hold another tree, and what it has stays where it is.
//!
//! ```text
//!  block 0       1 ..                       old end ..
//!  superblock │  data and metadata so far │ data that was not there, then all metadata
//!      └───────────────────────────────────────────────────────► root
//! ```
//!
//! The old image is the base of the new one, in the same file. What the new tree has in common with it is not read from the
//! tree's files again but to compare it, not encoded and not written. The superblock comes last, after a sync: until then
//! the file is the old image with something behind its end, whatever happens.

use super::base::Bases;
use super::options::{Compression, FRAGMENT_CLUSTER, Fragments, Metadata, Options, Verity};
use super::pipeline::{Summary, write};
use super::progress::Progress;
use super::source::spec::Source;
use super::targets::Targets;
use crate::{Error, Result};
use std::path::Path;
use tuff_codec::Method;
use tuff_erofs::read::{ClusterCoding, Image, Location};
use tuff_erofs::verity;
use tuff_erofs::walk::Walk;
use tuff_format::features::{Feature, KernelVersion, compat, flags_of, incompat, min_kernel};
use tuff_store::Output;

/// Bytes of an image's start that hold its superblock, with all that belongs to it. Unit: bytes.
const HEAD: usize = 4096;

/// Makes the image in the file or block device `image` hold what the sources have, merged in order. Options as for
/// [`build`](super::build()), but that the block size must be the image's; see [`like`].
///
/// # Errors
///
/// As `build`; `Usage` for an image with extra devices, `Io` for one that another process patches. The image is then what it
/// was.
pub fn patch(
    sources: &[Source],
    options: &Options,
    image: &Path,
    progress: &Progress,
) -> Result<Summary> {
    options.check()?;
    let elsewhere = !options.dedupe.bases.is_empty()
        || options.dedupe.image_index
        || options.dedupe.tar_index
        || options.layout.blob.is_some();
    if elsewhere || options.output.size_budget.is_some() {
        return Err(Error::usage(
            "a patched image has no base, no other device and no size budget",
        ));
    }
    let name = image.display().to_string();
    let failed = |e| Error::io(&name, "cannot write behind the image", e);
    let output = Output::grow(image, HEAD).map_err(failed)?;
    // Behind the lock: another patch may just have ended.
    let base = Bases::of_patch(image, options)?;
    let old_bytes = options.block.size() * u64::from(base.behind());
    let places = Targets {
        image: &output,
        blob: None,
    };
    let written = write(sources, options, Some(base), places, progress, &|| ())
        .map_err(|e| e.rename_place("image", &name))?;
    // The last chance: behind it the image is another.
    progress
        .check()
        .map_err(|e| e.rename_place("image", &name))?;
    output
        .finish(written.bytes, true)
        .map_err(|e| Error::io(&name, "cannot finish", e))?;
    Ok(written.summary(options, old_bytes))
}

/// Options that make what an image seems to be made of: its block size and label, the algorithm and the cluster size that
/// most of its content has, a hash tree if there is one behind it, for `kernel` or what the image needs.
///
/// # Errors
/// What reading the image gives.
pub fn like(image: &Image, kernel: KernelVersion) -> Result<Options> {
    let sb = image.superblock();
    let (mut seen, mut in_packed) = (Seen::default(), Seen::default());
    for entry in Walk::root(image)? {
        let inode = entry?.inode;
        if inode.has_data() {
            seen.look(image, &inode)?;
        }
    }
    if let Some(packed) = image.packed() {
        in_packed.look(image, packed)?;
    }
    for (all, more) in seen.bytes.iter_mut().zip(in_packed.bytes) {
        *all += more;
    }
    let ids = (0..).zip(seen.bytes).filter(|(_, bytes)| *bytes > 0);
    let algorithms: Vec<_> = ids
        .filter_map(|(id, _)| Feature::of_algorithm(id))
        .collect();
    let block_size = Feature::of_block_size(sb.block_bits, !algorithms.is_empty());
    let used = flags_of(0, sb.incompat).chain(algorithms).chain(block_size);
    let mut options = Options::for_kernel(kernel.max(min_kernel(used)));
    options.block = sb.block_bits;
    options.metadata.checksum = sb.has_compat(compat::SB_CHKSUM);
    options.metadata.fingerprints = image.fingerprint_name();
    let end = sb.label.iter().position(|b| *b == 0);
    options.metadata.label = sb.label[..end.unwrap_or(sb.label.len())].to_vec();
    options.compression.default = seen.algorithm().map(|method| Compression {
        method,
        level: method.default_level(),
        dict: None,
    });
    options.layout.unaligned = seen.unaligned || in_packed.unaligned;
    options.metadata.form = match (sb.has(incompat::METABOX), sb.has(incompat::BIT48)) {
        (true, _) if options.compression.default.is_some() => Metadata::Compressed,
        (_, true) => Metadata::Short,
        _ => Metadata::Plain,
    };
    match (seen.cluster, in_packed.cluster) {
        (0, 0) => options.layout.fragments = Fragments::Off,
        (0, packed) => {
            options.layout.fragments = Fragments::All;
            (options.compression.cluster, options.layout.fragment_cluster) = (packed, packed);
        }
        (own, packed) => {
            options.compression.cluster = own;
            options.layout.fragment_cluster = own.min(FRAGMENT_CLUSTER);
            if packed == 0 {
                options.layout.fragments = Fragments::Off;
            }
        }
    }
    options.output.verity = verity::appended_tree(image)?.map(|behind| Verity {
        block: behind.header.data_block,
        salt: behind.header.salt,
        parity: behind.parity,
    });
    options.fit_clusters();
    Ok(options)
}

/// What files are compressed with.
#[derive(Default)]
struct Seen {
    /// Content of files by algorithm. Unit: bytes.
    bytes: [u64; 4],
    /// The largest cluster. Unit: bytes.
    cluster: usize,
    /// Clusters are told by extents, so that they may begin anywhere.
    unaligned: bool,
}

impl Seen {
    fn look(&mut self, image: &Image, inode: &tuff_erofs::read::Inode) -> Result<()> {
        let first = image.extents(inode, 0..1)?.next().transpose()?;
        let Some(Location::Cluster(cluster)) = first.map(|e| e.location) else {
            return Ok(());
        };
        if let ClusterCoding::Compressed(id) = cluster.coding
            && let Some(bytes) = self.bytes.get_mut(usize::from(id))
        {
            *bytes += inode.size();
            let block = image.superblock().block_bits.size_usize();
            let len = (cluster.len as usize).next_multiple_of(block);
            self.cluster = self.cluster.max(len);
            self.unaligned |= image.has_encoded_extents(inode)?;
        }
        Ok(())
    }

    /// The one that most content has.
    fn algorithm(&self) -> Option<Method> {
        // What LZ4HC makes cannot be told from what LZ4 does.
        const METHODS: [Method; 4] = [Method::Lz4hc, Method::Lzma, Method::Deflate, Method::Zstd];
        let (i, bytes) = (self.bytes.iter().enumerate()).max_by_key(|(_, bytes)| **bytes)?;
        (*bytes > 0).then(|| METHODS[i])
    }
}
