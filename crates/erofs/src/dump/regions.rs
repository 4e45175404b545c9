//! Ranges of bytes that belong to a structure, collected by a walk over everything reachable.

use super::area::{Area, area_of, area_size};
use super::attribution::{GroupId, Use, Uses};
use super::limits::REFERENCES_MAX;
use super::sharing::References;
use crate::read::limits::WorkBudget;
use crate::read::map::{Extents, FileMap};
use crate::read::{
    ClusterCoding, DeviceId, Extent, FileType, Image, Inode, Location, Nid, StartList,
};
use crate::walk::{Walk, shown};
use crate::{Error, Place, Result};
use std::collections::HashSet;
use tuff_format::cluster::Coding;
use tuff_format::device::SLOT_LEN;
use tuff_format::features::{compat, incompat};
use tuff_format::inode::Layout;
use tuff_format::superblock::OFFSET;
use tuff_format::units::round_up;
use tuff_format::xattr::{Body, Entry};

/// Kind of structure or data in a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Bytes that precede the superblock.
    Boot,
    /// Superblock with its extension slots.
    Superblock,
    /// Configuration records of the compression algorithms.
    Configs,
    /// Device table with the extra devices.
    Devices,
    /// Table of long xattr name prefixes.
    Prefixes,
    /// Shared xattr with its ID.
    SharedXattr(u32),
    /// Inode, compact or extended.
    Inode,
    /// Inline xattr body of an inode.
    Xattrs,
    /// Chunk table of a chunk-based inode.
    Chunks,
    /// Map header and index of a compressed inode.
    Index,
    /// Inline tail of a file after its inode, or all of its data.
    Tail,
    /// Inline last cluster of a file after its index, by algorithm.
    InlineCluster(u8),
    /// Blocks of directory entries.
    Directory,
    /// Uncompressed data of an inode that is not compressed.
    Raw,
    /// Uncompressed cluster of a compressed inode.
    Stored,
    /// Compressed cluster, by algorithm.
    Cluster(u8),
}

impl Kind {
    /// Returns the name of the kind, for dumps.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot area",
            Self::Superblock => "superblock",
            Self::Configs => "compression records",
            Self::Devices => "device table",
            Self::Prefixes => "attribute name prefixes",
            Self::SharedXattr(_) => "shared attribute",
            Self::Inode => "inode",
            Self::Xattrs => "attributes",
            Self::Chunks => "chunk table",
            Self::Index => "index",
            Self::Tail => "inline data",
            Self::InlineCluster(_) => "inline cluster",
            Self::Directory => "directory",
            Self::Raw => "data",
            Self::Stored => "stored cluster",
            Self::Cluster(_) => "cluster",
        }
    }

    /// Returns true for data, which several owners may share or overlap in.
    pub fn is_data(self) -> bool {
        matches!(self, Self::Raw | Self::Stored | Self::Cluster(_))
    }
}

/// Contiguous range of bytes that belongs to a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Area that contains the range.
    pub area: Area,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset past the last byte.
    pub end: u64,
    /// Kind of structure or data.
    pub kind: Kind,
    /// Inode that owns the range. The lowest nid if there are several.
    pub nid: Option<Nid>,
    /// For data: offset in the file of that inode, in bytes.
    pub offset: u64,
    /// For data: decoded length in the file, in bytes. For a cluster shared by several files: the maximum.
    pub len: u64,
    /// True for a cluster of which only the start is used.
    pub partial: bool,
    /// Number of extents that refer to exactly this range.
    pub refs: u32,
}

impl Region {
    fn new(area: Area, start: u64, end: u64, kind: Kind) -> Self {
        Self {
            area,
            start,
            end,
            kind,
            nid: None,
            offset: 0,
            len: 0,
            partial: false,
            refs: 1,
        }
    }

    /// Returns true if both regions have the same range and kind.
    fn same_as(&self, other: &Self) -> bool {
        (self.area, self.start, self.end, self.kind)
            == (other.area, other.start, other.end, other.kind)
    }
}

/// All regions of an image in order, and the errors found while collecting them.
#[derive(Debug, Default)]
pub struct Regions {
    /// Regions by area and position. Several identical references to a range are merged.
    pub list: Vec<Region>,
    /// Errors from damaged structures. Regions reachable only through them are missing from the list.
    pub errors: Vec<Error>,
}

/// Encodings of an inode's data, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings(u8);

impl Codings {
    /// Set of uncompressed data alone.
    pub const PLAIN: Self = Self(1 << 4);

    /// Returns the set of one algorithm, by its number in the format.
    pub fn of_algorithm(id: u8) -> Self {
        Self(1 << id.min(3))
    }

    /// Adds the members of another set.
    pub fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Returns true if the sets have a member in common.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Sizes and encodings of the data of an inode, collected along with its regions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InodeSizes {
    pub(super) hole_bytes: u64,
    pub(super) fragment_bytes: u64,
    pub(super) codings: Codings,
}

/// Groups that the data of an inode is attributed to, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupIds {
    /// Group of the type and extension.
    pub(super) kind: Option<GroupId>,
    /// Group of the inode alone, whose references are collected as well.
    pub(super) inode: Option<GroupId>,
}

/// Receiver of the inodes and names that a walk visits.
pub(super) trait Visitor {
    /// Returns the groups of a member, before its data is collected.
    fn groups(&mut self, member: Member<'_>) -> GroupIds;

    /// Receives a name: its path, inode, collected sizes, and true for the first name of the inode. An error ends the
    /// walk.
    fn visit(&mut self, path: &[u8], inode: &Inode, found: &InodeSizes, first: bool) -> Result<()>;
}

/// Visitor that ignores everything.
struct Ignore;

impl Visitor for Ignore {
    fn groups(&mut self, _: Member<'_>) -> GroupIds {
        GroupIds::default()
    }

    fn visit(&mut self, _: &[u8], _: &Inode, _: &InodeSizes, _: bool) -> Result<()> {
        Ok(())
    }
}

impl Regions {
    /// Collects the regions of the whole image.
    pub fn collect(image: &Image) -> Self {
        let mut collector = Collector::new(image);
        collector.tables();
        collector.tree(&mut Ignore);
        collector.finish()
    }

    /// Collects the regions of one inode, including its shared xattrs.
    pub fn of_inode(image: &Image, inode: &Inode) -> Self {
        let mut collector = Collector::new(image);
        collector.inode(inode, Place::default);
        collector.finish()
    }
}

/// Collects regions during a walk over an image.
pub(super) struct Collector<'a> {
    image: &'a Image,
    list: Vec<Region>,
    errors: Vec<Error>,
    shared: HashSet<u32>,
    /// Length of the list at which it is merged next.
    merge_at: usize,
    attribution: Option<Attribution>,
}

/// Inode that a walk visits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Member<'a> {
    Packed,
    Metabox,
    /// Inode in the tree, with its path and type.
    Named(&'a [u8], FileType),
}

/// Attribution of data to groups of files.
struct Attribution {
    by_kind: Uses,
    by_inode: Uses,
    references: References,
    /// Groups of the current inode.
    groups: GroupIds,
    /// The current inode is the packed inode.
    is_packed: bool,
    /// Remaining bytes of fragments that are looked up. Bounds files that share a large fragment.
    fragments: WorkBudget,
}

/// Maximum number of directory blocks in one region. It limits the rows of an item.
const DIR_BLOCKS: u64 = 16;
/// Minimum length of a list that is merged before it is complete.
const MERGE_AT: usize = 1 << 20;

impl<'a> Collector<'a> {
    pub(super) fn new(image: &'a Image) -> Self {
        Self {
            image,
            list: Vec::new(),
            errors: Vec::new(),
            shared: HashSet::new(),
            merge_at: MERGE_AT,
            attribution: None,
        }
    }

    /// Attributes the data of the next inode to `groups`. The packed inode receives only what no file uses.
    fn attribute_to(&mut self, groups: GroupIds, is_packed: bool) {
        if groups == GroupIds::default() {
            return;
        }
        let attribution = self.attribution.get_or_insert_with(|| Attribution {
            by_kind: Uses::new(usize::MAX),
            by_inode: Uses::new(REFERENCES_MAX),
            references: References::default(),
            groups,
            is_packed,
            fragments: self.image.content_budget(),
        });
        (attribution.groups, attribution.is_packed) = (groups, is_packed);
    }

    /// Returns the uses of data by type and by inode, and the references of the inodes.
    pub(super) fn take_uses(&mut self) -> Option<(Uses, Uses, References)> {
        let attribution = self.attribution.take()?;
        let Attribution {
            by_kind,
            by_inode,
            references,
            ..
        } = attribution;
        Some((by_kind, by_inode, references))
    }

    pub(super) fn finish(mut self) -> Regions {
        self.merge();
        Regions {
            list: self.list,
            errors: self.errors,
        }
    }

    /// Sorts the list and merges identical regions.
    fn merge(&mut self) {
        let key = |r: &Region| (r.area, r.start, r.end, r.kind, r.nid, r.offset);
        self.list.sort_unstable_by_key(key);
        self.list.dedup_by(|later, first| {
            let same = first.same_as(later);
            if same {
                first.refs = first.refs.saturating_add(later.refs);
                first.len = first.len.max(later.len);
                first.partial &= later.partial;
            }
            same
        });
    }

    /// Adds a region. Merging bounds the memory for many inodes that refer to the same ranges.
    fn push(&mut self, region: Region) {
        if self.list.len() >= self.merge_at {
            self.merge();
            self.merge_at = MERGE_AT.max(2 * self.list.len());
        }
        self.list.push(region);
    }

    /// Collects the regions that belong to no inode.
    pub(super) fn tables(&mut self) {
        let (image, sb) = (self.image, self.image.superblock());
        let primary = Area::Store(0);
        self.push(Region::new(primary, 0, OFFSET, Kind::Boot));
        let end = OFFSET + sb.len() as u64;
        self.push(Region::new(primary, OFFSET, end, Kind::Superblock));
        let configs = image.configs().encode().len() as u64;
        if configs > 0 {
            self.push(Region::new(primary, end, end + configs, Kind::Configs));
        }
        if !image.slots().is_empty() {
            let start = u64::from(sb.devt_slotoff) * SLOT_LEN as u64;
            let end = start + (image.slots().len() * SLOT_LEN) as u64;
            self.push(Region::new(primary, start, end, Kind::Devices));
        }
        let table: u64 = image
            .prefixes()
            .iter()
            .map(|p| (3 + p.infix.len() as u64).next_multiple_of(4))
            .sum();
        let area = if sb.has_compat(compat::PLAIN_XATTR_PFX) {
            Some(primary)
        } else if sb.has(incompat::METABOX) {
            Some(Area::Metabox)
        } else if sb.packed.is_some() {
            None // inside the packed inode's data
        } else {
            Some(primary)
        };
        if let (Some(area), true) = (area, table > 0) {
            let start = u64::from(sb.xattr_prefix_start) * 4;
            self.push(Region::new(area, start, start + table, Kind::Prefixes));
        }
    }

    /// Visits each inode once, and all names.
    pub(super) fn tree(&mut self, visitor: &mut impl Visitor) {
        // It belongs to no group. One that is damaged takes its space as well.
        if !matches!(StartList::read(self.image), Ok(None))
            && let Ok(Some(inode)) = StartList::inode(self.image)
        {
            self.inode(&inode, || "start list".into());
        }
        for (inode, name, member) in [
            (self.image.packed(), "packed inode", Member::Packed),
            (self.image.metabox(), "metabox inode", Member::Metabox),
        ] {
            if let Some(inode) = inode.copied() {
                self.attribute_to(visitor.groups(member), member == Member::Packed);
                self.inode(&inode, || name.into());
            }
        }
        let walk = match Walk::root(self.image) {
            Ok(walk) => walk,
            Err(e) => return self.errors.push(e),
        };
        let mut seen = HashSet::new();
        for entry in walk {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    self.errors.push(e);
                    continue;
                }
            };
            let several = !entry.inode.is_dir() && entry.inode.nlink() != 1;
            let first = !several || seen.insert(entry.inode.nid());
            let found = if first {
                let member = Member::Named(&entry.path, entry.inode.file_type());
                self.attribute_to(visitor.groups(member), false);
                self.inode(&entry.inode, || Place::path(shown(&entry.path)))
            } else {
                InodeSizes::default()
            };
            if let Err(e) = visitor.visit(&entry.path, &entry.inode, &found, first) {
                return self.errors.push(e);
            }
        }
    }

    /// Collects all regions of an inode.
    pub(super) fn inode(&mut self, inode: &Inode, place: impl FnOnce() -> Place) -> InodeSizes {
        let mut found = InodeSizes::default();
        if let Err(e) = self.try_inode(inode, &mut found) {
            self.errors.push(e.within(place()));
        }
        found
    }

    fn try_inode(&mut self, inode: &Inode, found: &mut InodeSizes) -> Result<()> {
        let area = area_of(inode.space());
        let after = inode.payload_position();
        self.add(
            inode,
            area,
            inode.position(),
            inode.xattr_position(),
            Kind::Inode,
        );
        self.add(inode, area, inode.xattr_position(), after, Kind::Xattrs);
        let xattrs = self.shared_xattrs(inode);
        let map = self.image.map_once(inode)?;
        match &map {
            FileMap::Chunks(chunks) if inode.layout() == Layout::ChunkBased => {
                let end = chunks.table_end(after);
                // Entries have 4 or 8 bytes, and the table is aligned to them.
                let format = tuff_format::chunk::Format::decode(inode.raw().u)
                    .map_err(|e| Error::format(inode.place(), e))?;
                let start = round_up(after, format.entry_len() as u64);
                self.add(inode, area, start, end, Kind::Chunks);
            }
            FileMap::Clusters(clusters) => {
                let end = clusters.map.inline_pos();
                self.add(inode, area, round_up(after, 8), end, Kind::Index);
            }
            _ => {}
        }
        for extent in Extents::new(self.image, inode.nid(), map, 0..inode.size()) {
            let extent = extent?;
            self.extent(inode, &extent, found)?;
            if let Some(attribution) = &mut self.attribution {
                attribution.extent(self.image, &extent)?;
            }
        }
        xattrs
    }

    fn extent(&mut self, inode: &Inode, extent: &Extent, found: &mut InodeSizes) -> Result<()> {
        let (device, pos, len, kind, partial) = match extent.location {
            Location::Hole => {
                found.hole_bytes += extent.len;
                return Ok(());
            }
            Location::Fragment { .. } => {
                found.fragment_bytes += extent.len;
                return Ok(());
            }
            Location::Inline {
                space,
                pos,
                len,
                coding,
            } => {
                let kind = match coding {
                    Coding::Compressed(id) => Kind::InlineCluster(id),
                    _ => Kind::Tail,
                };
                found.codings.add(codings_of(coding));
                let mut region =
                    Region::new(area_of(space), pos, pos.saturating_add(len.into()), kind);
                region.nid = Some(inode.nid());
                (region.offset, region.len) = (extent.offset, extent.len);
                self.push(region);
                return Ok(());
            }
            Location::Raw { device, pos } => {
                found.codings.add(Codings::PLAIN);
                let kind = if inode.is_dir() {
                    Kind::Directory
                } else {
                    Kind::Raw
                };
                (device, pos, extent.len, kind, false)
            }
            Location::Cluster(cluster) => {
                found.codings.add(codings_of(cluster.coding.into()));
                let kind = match cluster.coding {
                    ClusterCoding::Compressed(id) => Kind::Cluster(id),
                    _ => Kind::Stored,
                };
                let (device, len) = (DeviceId::PRIMARY, cluster.len.into());
                (device, cluster.pos, len, kind, cluster.partial)
            }
        };
        let piece = match kind {
            Kind::Directory => DIR_BLOCKS << self.image.superblock().block_bits.get(),
            _ => u64::MAX,
        };
        let (mut at, mut left, mut offset) = (pos, len, extent.offset);
        while left > 0 {
            let (spot, run) = self.image.devices.locate(device, at)?;
            // Blocks claimed past the end of the area form a single region, so that a claimed size takes no memory.
            let available = spot.pos < area_size(self.image, Area::Store(spot.store));
            let piece = if available { piece } else { u64::MAX };
            let n = left.min(run.max(1)).min(piece);
            let mut region = Region::new(
                Area::Store(spot.store),
                spot.pos,
                spot.pos.saturating_add(n),
                kind,
            );
            region.nid = Some(inode.nid());
            region.offset = offset;
            region.len = if kind.is_data() && kind != Kind::Raw {
                extent.len
            } else {
                n
            };
            region.partial = partial;
            self.push(region);
            at = at.saturating_add(n);
            offset = offset.saturating_add(n);
            left -= n;
        }
        Ok(())
    }

    /// Collects the shared xattrs of an inode.
    fn shared_xattrs(&mut self, inode: &Inode) -> Result<()> {
        if !inode.has_xattrs() {
            return Ok(());
        }
        let body = self.image.xattr_body(inode)?;
        let body = Body::new(&body).map_err(|e| Error::format(inode.place(), e))?;
        for id in body.shared_ids() {
            if !self.shared.insert(id) {
                continue;
            }
            let (space, start) = self.image.shared_position(id);
            let bytes = self.image.shared_xattr(id);
            let bytes = bytes.map_err(|e| e.within(inode.place()))?;
            let (entry, _) = Entry::decode(&bytes).map_err(|e| Error::format(inode.place(), e))?;
            let end = start.saturating_add(entry.encoded_len() as u64);
            self.push(Region::new(
                area_of(space),
                start,
                end,
                Kind::SharedXattr(id),
            ));
        }
        Ok(())
    }

    fn add(&mut self, inode: &Inode, area: Area, start: u64, end: u64, kind: Kind) {
        if end > start {
            let mut region = Region::new(area, start, end, kind);
            region.nid = Some(inode.nid());
            self.push(region);
        }
    }
}

fn codings_of(coding: Coding) -> Codings {
    match coding {
        Coding::Compressed(id) => Codings::of_algorithm(id),
        Coding::Stored | Coding::Interlaced => Codings::PLAIN,
    }
}

impl Attribution {
    /// Attributes the data of an extent to the current groups. A fragment uses extents of the packed inode.
    fn extent(&mut self, image: &Image, extent: &Extent) -> Result<()> {
        if let Some(group) = self.groups.inode.filter(|_| !self.is_packed) {
            self.references.push(image, extent, group)?;
        }
        let Location::Fragment { offset } = extent.location else {
            return self.data(image, extent, extent.offset, extent.end());
        };
        self.fragments.take(extent.len)?;
        let (packed, map) = image.packed_map()?;
        let (from, to) = (offset, offset.saturating_add(extent.len));
        for extent in Extents::new(image, packed.nid(), map.clone(), from..to) {
            let extent = extent?;
            let (from, to) = (from.max(extent.offset), to.min(extent.end()));
            self.data(image, &extent, from, to)?;
        }
        Ok(())
    }

    /// Attributes the bytes `from` to `to` of an extent that has a place in the image.
    fn data(&mut self, image: &Image, extent: &Extent, from: u64, to: u64) -> Result<()> {
        let used = to - from;
        let (device, mut at, mut left) = match extent.location {
            Location::Hole | Location::Fragment { .. } => return Ok(()),
            Location::Inline {
                space, pos, len, ..
            } => {
                return self.push(area_of(space), pos, len.into(), used);
            }
            // Only uncompressed data has a place for each byte.
            Location::Raw { device, pos } => {
                (device, pos.saturating_add(from - extent.offset), used)
            }
            Location::Cluster(cluster) => (DeviceId::PRIMARY, cluster.pos, cluster.len.into()),
        };
        let whole = u128::from(left);
        while left > 0 {
            let (spot, run) = image.devices.locate(device, at)?;
            let area = Area::Store(spot.store);
            let n = left.min(run.max(1));
            // Bytes claimed past the end of the area take no space.
            let available = n.min(area_size(image, area).saturating_sub(spot.pos));
            // Fits: at most `used`. A cluster on two devices is rare, and its parts are not independent.
            let bytes = (u128::from(used) * u128::from(n) / whole) as u64;
            self.push(area, spot.pos, available, bytes)?;
            at = at.saturating_add(n);
            left -= n;
        }
        Ok(())
    }

    fn push(&mut self, area: Area, start: u64, len: u64, bytes: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        for (uses, group) in [
            (&mut self.by_kind, self.groups.kind),
            (&mut self.by_inode, self.groups.inode),
        ] {
            let Some(group) = group else { continue };
            uses.push(Use {
                area,
                start,
                end: start.saturating_add(len),
                group,
                bytes: if self.is_packed { 0 } else { bytes.max(1) },
                refs: 1,
            })?;
        }
        Ok(())
    }
}
