//! An image in numbers.

use super::item::layout_name;
use super::regions::{Area, Collector, Found, Kind, Region};
use super::space::SpaceTable;
use crate::Error;
use crate::read::decode::strip;
use crate::read::{FileType, Image, Inode, Spot};
use std::collections::BTreeMap;

/// How much work to spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayoutStatsOptions {
    /// Statistics per file type and per name extension.
    pub files: bool,
    /// Read all LZ4 clusters, to tell which can be decoded in place.
    pub in_place: bool,
}

/// Clusters of one algorithm, each counted once however many files use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmStats {
    /// Clusters in blocks of their own.
    pub clusters: u64,
    /// Clusters behind their inodes.
    pub inline_clusters: u64,
    /// What they take in the image. Unit: bytes.
    pub stored_bytes: u64,
    /// What they decode to, as far as files use it. Unit: bytes.
    pub decoded_bytes: u64,
}

/// Files of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Inodes.
    pub inodes: u64,
    /// Their sizes. Unit: bytes.
    pub bytes: u64,
    /// What their data takes: clusters that several files use count for each of them, packed data with its share of the
    /// packed inode. Unit: bytes.
    pub stored_bytes: u64,
}

/// An image in numbers.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct LayoutStats {
    /// Inodes that have a name, by type in the order of [`Survey::TYPES`].
    pub types: [u64; 7],
    /// Names, the root not counted.
    pub names: u64,
    /// Inodes of the 64-byte form.
    pub extended: u64,
    /// Inodes with attributes.
    pub with_xattrs: u64,
    /// Inodes with data, by layout.
    pub layouts: BTreeMap<&'static str, u64>,
    /// Sizes of all regular files, each inode once. Unit: bytes.
    pub file_bytes: u64,
    /// LZ4, LZMA, DEFLATE, Zstandard.
    pub algorithms: [AlgorithmStats; 4],
    /// Stored clusters of compressed files.
    pub stored_clusters: u64,
    /// Clusters by length: up to one block, two, four and so on.
    pub histogram: [u64; 12],
    /// Data behind inodes: ends of files and inline clusters.
    pub inline_tails: u64,
    /// What they take. Unit: bytes.
    pub inline_bytes: u64,
    /// Files with data in the packed inode.
    pub fragments: u64,
    /// That data, as files count it. Unit: bytes.
    pub fragment_bytes: u64,
    /// Size of the packed inode's data. Unit: bytes.
    pub packed_bytes: u64,
    /// Files with holes.
    pub sparse_files: u64,
    /// Holes. Unit: bytes.
    pub hole_bytes: u64,
    /// Runs of data and clusters that more than one extent names.
    pub shared_runs: u64,
    /// What would be there a second time without sharing. Unit: bytes of image.
    pub shared_saved_bytes: u64,
    /// LZ4 clusters that were looked at, and those that can be decoded in place. Only if asked for.
    pub in_place: Option<(u64, u64)>,
    /// By file type, if asked for.
    pub by_type: BTreeMap<&'static str, GroupStats>,
    /// Regular files by the ending of their names, if asked for. Without one: empty.
    pub by_extension: BTreeMap<Vec<u8>, GroupStats>,
    /// Bytes by purpose.
    pub space: Vec<SpaceTable>,
    /// What could not be read.
    pub errors: Vec<Error>,
}

/// Longest name extension that counts as one. Unit: bytes.
const EXTENSION_MAX: usize = 12;

impl LayoutStats {
    /// The order of [`types`](Self::types).
    pub const TYPES: [FileType; 7] = [
        FileType::File,
        FileType::Dir,
        FileType::Symlink,
        FileType::Char,
        FileType::Block,
        FileType::Fifo,
        FileType::Socket,
    ];

    /// Surveys an image: reads all metadata, and data only if the options ask for it.
    pub fn of(image: &Image, options: LayoutStatsOptions) -> Self {
        let mut out = Self {
            packed_bytes: image.packed().map_or(0, Inode::size),
            ..Self::default()
        };
        let mut collector = Collector::new(image);
        collector.tables();
        // Hidden inodes come first; what they take is known when the first file is seen.
        let packed_stored = image.packed().map_or(0, |packed| {
            let mut alone = Collector::new(image);
            alone.inode(packed, || "packed inode".to_owned()).stored
        });
        let packed_ratio = (packed_stored, out.packed_bytes);
        collector.tree(|path, inode, found, first| {
            out.names += u64::from(!path.is_empty());
            if first {
                out.inode(path, inode, found, packed_ratio, options.files);
            }
        });
        let regions = collector.finish();
        for region in &regions.list {
            out.region(image, region);
        }
        if options.in_place {
            out.in_place = Some(in_place(image, &regions.list, &mut out.errors));
        }
        out.space = SpaceTable::of(image, &regions.list);
        out.errors.extend(regions.errors);
        out
    }

    /// Inodes that have a name.
    pub fn inodes(&self) -> u64 {
        self.types.iter().sum()
    }

    /// Further names of inodes that have one already.
    pub fn hard_links(&self) -> u64 {
        // The root has no name.
        (self.names + 1).saturating_sub(self.inodes())
    }

    fn inode(
        &mut self,
        path: &[u8],
        inode: &Inode,
        found: &Found,
        (packed_stored, packed_bytes): (u64, u64),
        files: bool,
    ) {
        let kind = inode.file_type();
        for (count, of) in self.types.iter_mut().zip(Self::TYPES) {
            *count += u64::from(of == kind);
        }
        self.extended += u64::from(inode.raw().extended);
        self.with_xattrs += u64::from(inode.has_xattrs());
        if inode.has_data() {
            *self.layouts.entry(layout_name(inode.layout())).or_default() += 1;
        }
        self.hole_bytes += found.hole_bytes;
        self.sparse_files += u64::from(found.hole_bytes > 0);
        self.fragment_bytes += found.fragment_bytes;
        self.fragments += u64::from(found.fragment_bytes > 0);
        if kind == FileType::File {
            self.file_bytes += inode.size();
        }
        if !files {
            return;
        }
        let share = u128::from(found.fragment_bytes) * u128::from(packed_stored)
            / u128::from(packed_bytes.max(1));
        let add = |group: &mut GroupStats| {
            group.inodes += 1;
            group.bytes += if inode.has_data() { inode.size() } else { 0 };
            group.stored_bytes += found.stored + share as u64;
        };
        add(self.by_type.entry(kind.name()).or_default());
        if kind == FileType::File {
            add(self.by_extension.entry(extension(path)).or_default());
        }
    }

    fn region(&mut self, image: &Image, region: &Region) {
        let len = region.end - region.start;
        match region.kind {
            Kind::Tail | Kind::InlineCluster(_) => {
                self.inline_tails += 1;
                self.inline_bytes += len;
            }
            Kind::Stored => self.stored_clusters += 1,
            _ => {}
        }
        if let Kind::Cluster(id) | Kind::InlineCluster(id) = region.kind
            && let Some(a) = self.algorithms.get_mut(usize::from(id))
        {
            let inline = matches!(region.kind, Kind::InlineCluster(_));
            a.clusters += u64::from(!inline);
            a.inline_clusters += u64::from(inline);
            a.stored_bytes += len;
            a.decoded_bytes += region.len;
        }
        if matches!(region.kind, Kind::Stored | Kind::Cluster(_)) {
            let blocks = image.superblock().block_bits.count(len).max(1);
            let i = blocks.next_power_of_two().trailing_zeros() as usize;
            self.histogram[i.min(11)] += 1;
        }
        if region.kind.is_data() && region.refs > 1 {
            self.shared_runs += 1;
            self.shared_saved_bytes += len * u64::from(region.refs - 1);
        }
    }
}

/// The ending of a name, in lower case: what stands behind its last dot, if that is not its first byte.
fn extension(path: &[u8]) -> Vec<u8> {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    match name.iter().rposition(|b| *b == b'.') {
        Some(at) if at > 0 && name.len() - at - 1 <= EXTENSION_MAX => {
            name[at + 1..].to_ascii_lowercase()
        }
        _ => Vec::new(),
    }
}

/// How many LZ4 clusters there are of which all is used, and how many of them can be decoded in place.
fn in_place(image: &Image, regions: &[Region], errors: &mut Vec<Error>) -> (u64, u64) {
    let bits = image.superblock().block_bits;
    let (mut seen, mut possible) = (0, 0);
    let mut buf = Vec::new();
    for region in regions {
        let Area::Store(store) = region.area else {
            continue;
        };
        if region.kind != Kind::Cluster(0) || region.partial || !image.form().right_aligned {
            continue;
        }
        // Fits: a cluster has at most 1 MiB.
        buf.resize((region.end - region.start) as usize, 0);
        let spot = Spot {
            store,
            pos: region.start,
        };
        if let Err(e) = image.devices.read_spot(spot, &mut buf) {
            errors.push(e);
            continue;
        }
        seen += 1;
        let stream = strip(&buf, bits).unwrap_or(&[]);
        possible += u64::from(tuff_codec::lz4_decodes_in_place(
            stream,
            region.len as usize,
        ));
    }
    (seen, possible)
}

#[cfg(test)]
mod tests {
    use super::extension;

    #[test]
    fn extensions_are_what_follows_the_last_dot() {
        assert_eq!(extension(b"a/b.TAR.Gz"), b"gz");
        assert_eq!(extension(b"a.d/name"), b"");
        assert_eq!(extension(b".hidden"), b"");
        assert_eq!(extension(b"lib.so.6"), b"6");
        assert_eq!(extension(b"x.averyveryverylongending"), b"");
    }
}
