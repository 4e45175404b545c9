//! What a build did, in numbers.

use super::pack::grain::Grain;
use super::pack::piece::ShortPiece;
use super::pack::segment::Tail;
use super::pack::shared_clusters::PartKey;
use tuff_format::BlockBits;
use tuff_format::cluster::HeadKind;

/// Counters of a build. Bytes are bytes of file content unless the name says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub specials: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Content of all regular files, each name's inode once.
    pub content_bytes: u64,
    /// Per algorithm (LZ4, LZMA, DEFLATE, Zstandard).
    pub algorithms: [AlgorithmStats; 4],
    /// Content that is stored in files without compression.
    pub stored_bytes: u64,
    /// Blocks of such files.
    pub stored_blocks: u64,
    /// Clusters of compressed files that are stored.
    pub plain_clusters: u64,
    /// Files whose data another file has.
    pub dedupe_files: u64,
    /// Their content.
    pub dedupe_bytes: u64,
    /// Files whose data the base has.
    pub base_files: u64,
    /// Their content.
    pub base_bytes: u64,
    /// Content of extents that use clusters of the base, in files that it has not.
    pub base_part_bytes: u64,
    /// Files whose data is on the extra device: in the tar that the image is an index of, or in the file of chunks.
    pub external_files: u64,
    /// Their content there, without holes, and equal chunks once.
    pub external_bytes: u64,
    /// Length of the file of chunks. Unit: bytes.
    pub blob_bytes: u64,
    /// Content of extents that use another file's clusters.
    pub shared_bytes: u64,
    /// Ends of files and small files in the packed inode.
    pub fragments: u64,
    /// Those of them that are ends of files which are much alike others.
    pub similar_tails: u64,
    /// Their content.
    pub fragment_bytes: u64,
    /// Content of fragments that were there before.
    pub fragment_dedupe_bytes: u64,
    /// Ends of files behind their inodes.
    pub inline_tails: u64,
    /// What they take there. Unit: bytes of image.
    pub inline_bytes: u64,
    /// Files and their content that [`Auto`](super::Auto) stores with the faster of two compressions.
    pub auto_fast: (u64, u64),
    /// Files and their content that it stores as they are.
    pub auto_stored: (u64, u64),
    /// Sparse files.
    pub sparse_files: u64,
    /// Content in holes.
    pub hole_bytes: u64,
    /// LZ4 clusters that were tried for decoding in place.
    pub in_place_tried: u64,
    /// Those that can be.
    pub in_place: u64,
    /// Clusters by length: up to 4 KiB, 8 KiB, ... 1 MiB. Unit of the index: doublings of the block size.
    pub cluster_histogram: [u64; 12],
    /// Blocks of metadata: inodes, directories, attributes, indexes.
    pub meta_blocks: u64,
    /// Blocks of the image.
    pub image_blocks: u64,
    /// Block size. Unit: bytes.
    pub block_size: u64,
    /// What was left out or changed, in sentences.
    pub warnings: Vec<String>,
}

/// What one algorithm did.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlgorithmStats {
    /// Content.
    pub input_bytes: u64,
    /// Clusters.
    pub clusters: u64,
    /// What they take. Unit: bytes of image.
    pub image_bytes: u64,
}

/// Names of the algorithms by number.
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
            Tail::Later(_) => {}
        }
        let Some(of) = self.algorithms.get_mut(usize::from(algorithm)) else {
            return;
        };
        let mut homes = homes.iter();
        let fragment = matches!(tail, Tail::Fragment(_) | Tail::Later(_));
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
