//! Statistics of the layout of an image.

use super::area::Area;
use super::attribution::{GroupId, Uses};
use super::item::layout_name;
use super::regions::{Collector, GroupIds, InodeSizes, Kind, Member, Region, Regions, Visitor};
use super::space::SpaceTable;
use crate::read::decode::strip;
use crate::read::{FileType, Image, Inode, StorePosition};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Options that select the more expensive statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayoutStatsOptions {
    /// Collects statistics per file type and per name extension.
    pub files: bool,
    /// Reads all LZ4 clusters to determine which support in-place decoding.
    pub in_place: bool,
}

/// Statistics of the clusters of one algorithm. A cluster shared by several files counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmStats {
    /// Number of clusters in blocks of their own.
    pub clusters: u64,
    /// Number of clusters stored inline after their inodes.
    pub inline_clusters: u64,
    /// Size of the clusters in the image, in bytes.
    pub stored_bytes: u64,
    /// Decoded size of the clusters, as far as files use it, in bytes.
    pub decoded_bytes: u64,
}

/// Statistics of one group of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Number of inodes in the group.
    pub inodes: u64,
    /// Total file size, in bytes.
    pub bytes: u64,
    /// Total size of their data in the image, in bytes. The bytes of a cluster with data of several files are divided
    /// among them in proportion to the uncompressed bytes that each has in it.
    pub stored_bytes: u64,
}

/// Statistics of an image.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct LayoutStats {
    /// Number of inodes that have a name, by type in the order of [`LayoutStats::TYPES`].
    pub types: [u64; 7],
    /// Number of names, excluding the root.
    pub names: u64,
    /// Number of extended inodes (64 bytes).
    pub extended: u64,
    /// Number of inodes with extended attributes.
    pub with_xattrs: u64,
    /// Number of inodes with data, by layout.
    pub layouts: BTreeMap<&'static str, u64>,
    /// Total size of all regular files, in bytes. Each inode counts once.
    pub file_bytes: u64,
    /// Cluster statistics of LZ4, LZMA, DEFLATE and Zstandard, in this order.
    pub algorithms: [AlgorithmStats; 4],
    /// Number of uncompressed clusters in compressed files.
    pub stored_clusters: u64,
    /// Histogram of cluster lengths: up to one block, two, four and so on.
    pub histogram: [u64; 12],
    /// Number of inodes with inline data: tails of files and inline clusters.
    pub inline_tails: u64,
    /// Total size of inline data, in bytes.
    pub inline_bytes: u64,
    /// Number of files with data in the packed inode.
    pub fragments: u64,
    /// Total size of that data, summed over the files, in bytes.
    pub fragment_bytes: u64,
    /// Size of the packed inode's data, in bytes.
    pub packed_bytes: u64,
    /// Number of files with holes.
    pub sparse_files: u64,
    /// Total size of holes, in bytes.
    pub hole_bytes: u64,
    /// Number of data ranges and clusters that several extents refer to.
    pub shared_runs: u64,
    /// Space saved by sharing, in bytes of the image.
    pub shared_saved_bytes: u64,
    /// Number of LZ4 clusters examined, and of those that support in-place decoding. `None` unless requested.
    pub in_place: Option<(u64, u64)>,
    /// Statistics by file type, if requested. The stored bytes add up to all data of the image: `packed` is data of the
    /// packed inode that no file uses, `metabox` the data of the metabox inode.
    pub by_type: BTreeMap<&'static str, GroupStats>,
    /// Statistics of regular files by name extension, if requested. The key is empty for names without one. The sums
    /// are those of regular files in `by_type`.
    pub by_extension: BTreeMap<Vec<u8>, GroupStats>,
    /// Space by purpose, one table per area.
    pub space: Vec<SpaceTable>,
    /// Errors from structures that could not be read.
    pub errors: Vec<Error>,
}

/// Maximum length of a name extension, in bytes. A longer suffix does not count as one.
const EXTENSION_MAX: usize = 12;

impl LayoutStats {
    /// Order of the file types in [`types`](Self::types).
    pub const TYPES: [FileType; 7] = [
        FileType::File,
        FileType::Dir,
        FileType::Symlink,
        FileType::Char,
        FileType::Block,
        FileType::Fifo,
        FileType::Socket,
    ];

    /// Collects the statistics of an image. Reads all metadata, but data only if the options request it.
    pub fn collect(image: &Image, options: LayoutStatsOptions) -> Self {
        let mut collector = Collector::new(image);
        collector.tables();
        let mut builder = StatsBuilder::new(image, options);
        collector.tree(&mut builder);
        let by_kind = collector.take_uses().map(|(by_kind, ..)| by_kind);
        let mut regions = collector.finish();
        builder.finish(image, by_kind, &mut regions)
    }

    /// Returns the number of inodes that have a name.
    pub fn inodes(&self) -> u64 {
        self.types.iter().sum()
    }

    /// Returns the number of names in excess of one per inode.
    pub fn hard_links(&self) -> u64 {
        // The root has no name.
        (self.names + 1).saturating_sub(self.inodes())
    }

    fn inode(&mut self, path: &[u8], inode: &Inode, found: &InodeSizes, files: bool) {
        let kind = inode.file_type();
        for (count, of) in self.types.iter_mut().zip(Self::TYPES) {
            *count += u64::from(of == kind);
        }
        self.extended += u64::from(inode.raw().extended);
        self.with_xattrs += u64::from(inode.has_xattrs());
        if inode.has_data() {
            *self.layouts.entry(layout_name(inode.layout())).or_default() += 1;
        }
        self.hole_bytes = self.hole_bytes.saturating_add(found.hole_bytes);
        self.sparse_files += u64::from(found.hole_bytes > 0);
        self.fragment_bytes = self.fragment_bytes.saturating_add(found.fragment_bytes);
        self.fragments += u64::from(found.fragment_bytes > 0);
        if kind == FileType::File {
            self.file_bytes = self.file_bytes.saturating_add(inode.size());
        }
        if !files {
            return;
        }
        let add = |group: &mut GroupStats| {
            group.inodes += 1;
            let bytes = if inode.has_data() { inode.size() } else { 0 };
            group.bytes = group.bytes.saturating_add(bytes);
        };
        add(self.by_type.entry(kind.name()).or_default());
        if kind == FileType::File {
            add(self.by_extension.entry(extension(path)).or_default());
        }
    }

    /// Adds the bytes that the groups use in the image.
    fn stored(&mut self, groups: Groups, uses: Uses) {
        let stored = uses.stored_bytes(groups.ids.len());
        for ((kind, extension), id) in groups.ids {
            let bytes = stored[id as usize];
            if bytes > 0 {
                self.by_type.entry(kind).or_default().stored_bytes += bytes;
            }
            if let (Some(extension), true) = (extension, bytes > 0) {
                self.by_extension.entry(extension).or_default().stored_bytes += bytes;
            }
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

/// Statistics of an image while its walk is under way.
pub(super) struct StatsBuilder {
    options: LayoutStatsOptions,
    out: LayoutStats,
    groups: Groups,
}

impl StatsBuilder {
    pub(super) fn new(image: &Image, options: LayoutStatsOptions) -> Self {
        Self {
            options,
            out: LayoutStats {
                packed_bytes: image.packed().map_or(0, Inode::size),
                ..LayoutStats::default()
            },
            groups: Groups::default(),
        }
    }

    /// Completes the statistics from the collected uses and regions, and takes the errors of the regions.
    pub(super) fn finish(
        self,
        image: &Image,
        by_kind: Option<Uses>,
        regions: &mut Regions,
    ) -> LayoutStats {
        let mut out = self.out;
        if let Some(uses) = by_kind {
            out.stored(self.groups, uses);
        }
        for region in &regions.list {
            out.region(image, region);
        }
        if self.options.in_place {
            out.in_place = Some(in_place(image, &regions.list, &mut out.errors));
        }
        out.space = SpaceTable::collect(image, &regions.list);
        out.errors.append(&mut regions.errors);
        out
    }
}

impl Visitor for StatsBuilder {
    fn groups(&mut self, member: Member<'_>) -> GroupIds {
        GroupIds {
            kind: self.options.files.then(|| self.groups.id_of(member)),
            inode: None,
        }
    }

    fn visit(&mut self, path: &[u8], inode: &Inode, found: &InodeSizes, first: bool) -> Result<()> {
        self.out.names += u64::from(!path.is_empty());
        if first {
            self.out.inode(path, inode, found, self.options.files);
        }
        Ok(())
    }
}

/// Groups of inodes by type, and of regular files by extension as well.
#[derive(Default)]
struct Groups {
    ids: BTreeMap<(&'static str, Option<Vec<u8>>), GroupId>,
}

impl Groups {
    fn id_of(&mut self, member: Member<'_>) -> GroupId {
        let key = match member {
            Member::Packed => ("packed", None),
            Member::Metabox => ("metabox", None),
            Member::Named(path, FileType::File) => (FileType::File.name(), Some(extension(path))),
            Member::Named(_, kind) => (kind.name(), None),
        };
        // Fits: a group has at least one inode in memory.
        let next = self.ids.len() as GroupId;
        *self.ids.entry(key).or_insert(next)
    }
}

/// Returns the extension of a name in lower case, that is, the text after its last dot. A leading dot does not count, nor do
/// numbers at the end, which are versions and sections of manuals.
fn extension(path: &[u8]) -> Vec<u8> {
    let mut name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    while let Some(at) = name.iter().rposition(|b| *b == b'.')
        && name[at + 1..].iter().all(u8::is_ascii_digit)
    {
        name = &name[..at];
    }
    match name.iter().rposition(|b| *b == b'.') {
        Some(at) if at > 0 && name.len() - at - 1 <= EXTENSION_MAX => {
            name[at + 1..].to_ascii_lowercase()
        }
        _ => Vec::new(),
    }
}

/// Counts the LZ4 clusters that are used completely, and those of them that support in-place decoding.
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
        let spot = StorePosition {
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
        assert_eq!(extension(b"lib.so.6"), b"so");
        assert_eq!(extension(b"lib.so.1.2.3"), b"so");
        assert_eq!(extension(b"mount.8"), b"");
        assert_eq!(extension(b"mount.8.gz"), b"gz");
        assert_eq!(extension(b".9"), b"");
        assert_eq!(extension(b"a.7z"), b"7z");
        assert_eq!(extension(b"x.averyveryverylongending"), b"");
    }
}
