//! Patching: an existing image receives another tree; its data stays in place.
//!
//! A file is copied, and the patched copy replaces it. A block device is patched itself.
//!
//! ```text
//! block 0       1 ..                       old end ..
//! superblock │  data and metadata so far │ new data, then new metadata
//!      └───────────────────────────────────────────────────────► root
//! ```
//!
//! The old image is the base of the new one, in the same file. Data that both trees share is read for comparison only;
//! it is neither encoded nor written. The superblock is written last, after a sync. Until then a device holds the old
//! image followed by unused data.
//!
//! If little has changed, inodes stay in place as well, and some are overwritten after the superblock; see
//! [`Unchanged`](super::unchanged::Unchanged).

use super::base::Bases;
use super::options::{Compression, Fragments, Metadata, Options, Verity};
use super::pipeline::{Summary, build, leaving_out, write};
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
use tuff_store::{Output, Target};

/// Length in bytes of the start of an image, which holds the superblock, compression records and device slots.
const HEAD: usize = 4096;

/// Replaces the tree of the image in the file or block device `image` by the sources, merged in order. Options are as
/// for [`build`](super::build()), but the block size must be that of the image; see [`like`].
///
/// # Errors
/// As `build`; `Usage` for an image with extra devices, `Io` if another process patches the image. The image is then
/// unchanged.
pub fn patch(
    sources: &[Source],
    options: &Options,
    image: &Path,
    progress: &Progress,
) -> Result<Summary> {
    leaving_out(sources, options, progress, &mut || {
        patch_once(sources, options, image, progress)
    })
}

fn patch_once(
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
            "a patched image has no base, no other device and no size budget; build a new one with 'tuff build'",
        ));
    }
    let name = image.display().to_string();
    let failed = |e| Error::io(&name, "cannot write behind the image", e);
    // The lock excludes other patches.
    let old = Output::grow(image, HEAD).map_err(failed)?;
    let copy = match old.is_device() {
        true => Ok(None),
        false => old.copy(image),
    };
    let copy = copy.map_err(|e| Error::io(&name, "cannot copy the image", e))?;
    let output = copy.as_ref().unwrap_or(&old);
    // Under the lock: another patch may just have ended.
    let base = Bases::of_patch(image, options)?;
    let old_bytes = options.block.size() * u64::from(base.behind());
    let places = Targets {
        image: output,
        blob: None,
    };
    let written = write(sources, options, Some(base), places, progress, &|| ())
        .map_err(|e| e.rename_place("image", &name))?;
    // After this point the image is changed.
    progress
        .check()
        .map_err(|e| e.rename_place("image", &name))?;
    let (finished, _lock) = match copy {
        Some(copy) => (copy.finish(written.bytes, true), Some(old)),
        None => (old.finish(written.bytes, true), None),
    };
    finished.map_err(|e| Error::io(&name, "cannot finish", e))?;
    Ok(written.summary(options, old_bytes))
}

/// Writes the tree of the image in the file `image` anew and replaces the file when the new image is complete. That gives
/// back the space of data and metadata that nothing refers to.
///
/// # Errors
/// As `build`; `Usage` for an image on a block device or with extra devices, `Io` if another process patches the image.
/// The image is then unchanged.
pub fn compact(options: &Options, image: &Path, progress: &Progress) -> Result<Summary> {
    let name = image.display().to_string();
    let failed = |e| Error::io(&name, "cannot replace the image", e);
    // The lock excludes patches. Nothing is written through this file.
    let old = Output::grow(image, HEAD).map_err(failed)?;
    let meta = old.file().metadata().map_err(failed)?;
    Bases::of_patch(image, options)?;
    let source = Source::Image {
        path: image.to_owned(),
        devices: Vec::new(),
    };
    let target = Target::Path(image.to_owned());
    let mut summary = build(&[source], options, &target, progress)?;
    std::fs::set_permissions(image, meta.permissions()).map_err(failed)?;
    summary.old_bytes = meta.len();
    Ok(summary)
}

/// Returns options like those of an image: its block size and label, the algorithm and cluster size of most of its
/// content, and a hash tree if it has one. They are for `kernel`, or for a newer kernel that the image needs.
///
/// # Errors
/// Errors of reading the image.
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
            options.layout.fragment_cluster = options.fragment_cluster(own);
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

/// Compression that an image uses.
#[derive(Default)]
struct Seen {
    /// Content bytes by algorithm.
    bytes: [u64; 4],
    /// Largest cluster in bytes.
    cluster: usize,
    /// Files have an index of extents, so clusters start anywhere.
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

    /// Returns the algorithm of most content.
    fn algorithm(&self) -> Option<Method> {
        // The clusters of LZ4HC and LZ4 look alike.
        const METHODS: [Method; 4] = [Method::Lz4hc, Method::Lzma, Method::Deflate, Method::Zstd];
        let (i, bytes) = (self.bytes.iter().enumerate()).max_by_key(|(_, bytes)| **bytes)?;
        (*bytes > 0).then(|| METHODS[i])
    }
}
