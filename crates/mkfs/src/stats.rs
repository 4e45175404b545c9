//! Statistics of a build.

use super::pack::grain::Grain;
use super::pack::piece::ShortPiece;
use super::pack::segment::Tail;
use super::pack::shared_clusters::PartKey;
use tuff_format::BlockBits;
use tuff_format::cluster::HeadKind;

/// Counters of a build. Bytes are bytes of file content unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Number of regular files.
    pub files: u64,
    /// Number of directories in the image.
    pub dirs: u64,
    /// Number of symbolic links.
    pub symlinks: u64,
    /// Number of devices, pipes and sockets.
    pub specials: u64,
    /// Number of names of files beyond the first.
    pub hard_links: u64,
    /// Content of all regular files, hard links counted once.
    pub content_bytes: u64,
    /// Statistics per algorithm (LZ4, LZMA, DEFLATE, Zstandard).
    pub algorithms: [AlgorithmStats; 4],
    /// Content of files that are stored uncompressed.
    pub stored_bytes: u64,
    /// Blocks of uncompressed files.
    pub stored_blocks: u64,
    /// Uncompressed clusters of compressed files.
    pub plain_clusters: u64,
    /// Files that use the data of another file.
    pub dedupe_files: u64,
    /// Content of files that use the data of another file.
    pub dedupe_bytes: u64,
    /// Files that use the data of a file in the base.
    pub base_files: u64,
    /// Content of files that use the data of a file in the base.
    pub base_bytes: u64,
    /// Content of extents that use clusters of the base, in files that the base does not have.
    pub base_part_bytes: u64,
    /// Files whose data is on the extra device: the tar of an index, or the chunk file.
    pub external_files: u64,
    /// Content on the extra device, without holes; equal chunks count once.
    pub external_bytes: u64,
    /// Length of the chunk file. Unit: bytes.
    pub blob_bytes: u64,
    /// Content of extents that use clusters of another file.
    pub shared_bytes: u64,
    /// Number of fragments: tails and small files in the packed inode.
    pub fragments: u64,
    /// Fragments that are tails packed because of their similarity.
    pub similar_tails: u64,
    /// Content stored as fragments.
    pub fragment_bytes: u64,
    /// Content of fragments that equals earlier fragments.
    pub fragment_dedupe_bytes: u64,
    /// Tails stored inline with their inode.
    pub inline_tails: u64,
    /// Size of inline tails. Unit: bytes of image.
    pub inline_bytes: u64,
    /// Files, and their content, for which [`Auto`](super::Auto) chose the faster compression.
    pub auto_fast: (u64, u64),
    /// Files, and their content, for which it chose no compression.
    pub auto_stored: (u64, u64),
    /// Number of sparse files.
    pub sparse_files: u64,
    /// Total length of holes.
    pub hole_bytes: u64,
    /// LZ4 clusters tested for in-place decoding.
    pub in_place_tried: u64,
    /// LZ4 clusters that support in-place decoding.
    pub in_place: u64,
    /// Clusters by length: up to 4 KiB, 8 KiB, ... 1 MiB. The index is log2 of the length in
    /// blocks.
    pub cluster_histogram: [u64; 12],
    /// Blocks of metadata: inodes, directories, extended attributes, indexes.
    pub meta_blocks: u64,
    /// Number of blocks in the image.
    pub image_blocks: u64,
    /// Block size. Unit: bytes.
    pub block_size: u64,
    /// Warnings about entries that were left out or changed.
    pub warnings: Vec<String>,
}

/// Statistics of one algorithm.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlgorithmStats {
    /// Bytes of content compressed.
    pub input_bytes: u64,
    /// Number of compressed clusters.
    pub clusters: u64,
    /// Size of the clusters. Unit: bytes of image.
    pub image_bytes: u64,
}

/// Names of the algorithms, by number.
pub const ALGORITHM_NAMES: [&str; 4] = ["lz4", "lzma", "deflate", "zstd"];

impl Stats {
    pub(crate) fn add_flat(&mut self, len: u64, blocks: u32, inline: usize) {
        self.stored_bytes += len;
        self.stored_blocks += u64::from(blocks);
        self.inline_tails += u64::from(inline > 0);
        self.inline_bytes += inline as u64;
    }

    pub(crate) fn add_encoded(
        &mut self,
        algorithm: u8,
        pieces: &[ShortPiece],
        homes: &[(PartKey, u32)],
        tail: &Tail,
        in_place: (u32, u32),
        (bits, grain): (BlockBits, Grain),
    ) {
        self.in_place_tried += u64::from(in_place.0);
        self.in_place += u64::from(in_place.1);
        match tail {
            Tail::Cluster => {}
            Tail::Inline(bytes) => {
                self.inline_tails += 1;
                self.inline_bytes += bytes.len() as u64;
            }
            Tail::Fragment(bytes) => self.fragment_bytes += bytes.len() as u64,
            Tail::Later(_) | Tail::Kept(_) => {}
        }
        let Some(of) = self.algorithms.get_mut(usize::from(algorithm)) else {
            return;
        };
        let mut homes = homes.iter();
        let fragment = matches!(tail, Tail::Fragment(_) | Tail::Later(_) | Tail::Kept(_));
        for (i, p) in pieces.iter().enumerate() {
            if fragment && i + 1 == pieces.len() {
                continue;
            }
            if p.shared {
                let in_base = matches!(homes.next(), Some((PartKey::Base(_), _)));
                let bytes = match in_base {
                    true => &mut self.base_part_bytes,
                    false => &mut self.shared_bytes,
                };
                *bytes += u64::from(p.len);
                continue;
            }
            of.input_bytes += u64::from(p.len);
            let bytes = grain.bytes(p.grains.into());
            of.image_bytes += bytes;
            if p.kind == HeadKind::Plain {
                self.plain_clusters += 1;
            } else {
                of.clusters += 1;
            }
            if bytes > 0 {
                let slot = bits.count(bytes).next_power_of_two().trailing_zeros() as usize;
                self.cluster_histogram[slot.min(11)] += 1;
            }
        }
    }
}
