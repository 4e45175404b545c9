//! Map of an area in cells of equal length: the bytes of each purpose in each cell.

use super::area::{Area, area_size};
use super::regions::{Kind, Region};
use crate::read::Image;

/// Purpose of bytes in a [`SpaceMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Superblock, compression records, device table and name prefixes.
    Tables,
    /// Inodes with their extended attributes, the metabox and shared attributes.
    Inodes,
    /// Blocks of directory entries.
    Directories,
    /// Indexes of clusters and chunk tables.
    Indexes,
    /// Tails of files and clusters that follow their inode.
    Inline,
    /// Data of files that is not compressed.
    Plain,
    /// Data of files in compressed clusters.
    Compressed,
    /// Data of the packed inode.
    Packed,
    /// Padding and bytes that nothing refers to.
    Unused,
}

impl Purpose {
    /// All purposes, in the order of [`SpaceMap::cells`].
    pub const ALL: [Self; 9] = [
        Self::Tables,
        Self::Inodes,
        Self::Directories,
        Self::Indexes,
        Self::Inline,
        Self::Plain,
        Self::Compressed,
        Self::Packed,
        Self::Unused,
    ];

    /// Returns the name of the purpose.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tables => "superblock and tables",
            Self::Inodes => "inodes and attributes",
            Self::Directories => "directories",
            Self::Indexes => "indexes",
            Self::Inline => "inline data",
            Self::Plain => "uncompressed data",
            Self::Compressed => "compressed data",
            Self::Packed => "fragments",
            Self::Unused => "unused",
        }
    }

    fn from_region(image: &Image, region: &Region) -> Self {
        let is = |inode: Option<&crate::read::Inode>| {
            region.nid.is_some() && region.nid == inode.map(|i| i.nid())
        };
        match region.kind {
            Kind::Boot | Kind::Superblock | Kind::Configs | Kind::Devices | Kind::Prefixes => {
                Self::Tables
            }
            Kind::Inode | Kind::Xattrs | Kind::SharedXattr(_) => Self::Inodes,
            Kind::Index | Kind::Chunks => Self::Indexes,
            Kind::Directory => Self::Directories,
            Kind::Tail | Kind::InlineCluster(_) => Self::Inline,
            Kind::Raw | Kind::Stored | Kind::Cluster(_) if is(image.packed()) => Self::Packed,
            Kind::Raw | Kind::Stored | Kind::Cluster(_) if is(image.metabox()) => Self::Inodes,
            Kind::Raw | Kind::Stored => Self::Plain,
            Kind::Cluster(_) => Self::Compressed,
        }
    }
}

/// Bytes by purpose in one cell.
type Cell = [u64; Purpose::ALL.len()];

/// Purposes of an area in cells of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceMap {
    /// Size of the area, in bytes.
    pub size: u64,
    /// Length of a cell, in bytes. The last one may be shorter.
    pub cell_len: u64,
    /// Cells in the order of their positions. Each has its bytes in the order of [`Purpose::ALL`].
    pub cells: Vec<[u64; Purpose::ALL.len()]>,
}

impl SpaceMap {
    /// Returns the map of an area in at most `cells_max` cells of whole blocks. `regions` are sorted, as in
    /// [`Regions`](super::Regions). Bytes in several regions count for the first.
    pub fn collect(image: &Image, regions: &[Region], area: Area, cells_max: u64) -> Self {
        let size = area_size(image, area);
        let block = image.superblock().block_bits.size();
        let cell_len = size
            .div_ceil(cells_max.max(1))
            .next_multiple_of(block)
            .max(block);
        // Fits: at most `cells_max`.
        let count = size.div_ceil(cell_len) as usize;
        let mut out = Self {
            size,
            cell_len,
            cells: vec![Cell::default(); count],
        };
        let mut cursor = 0;
        for region in regions.iter().filter(|r| r.area == area) {
            let start = region.start.max(cursor).min(size);
            let end = region.end.min(size);
            if start < end {
                out.add(cursor, start, Purpose::Unused);
                out.add(start, end, Purpose::from_region(image, region));
                cursor = end;
            }
        }
        out.add(cursor, size, Purpose::Unused);
        out
    }

    fn add(&mut self, start: u64, end: u64, purpose: Purpose) {
        let at = Purpose::ALL.iter().position(|p| *p == purpose);
        let at = at.unwrap_or(Purpose::ALL.len() - 1);
        self.each_cell(start, end, |cell, bytes| cell[at] += bytes);
    }

    fn each_cell(&mut self, start: u64, end: u64, mut f: impl FnMut(&mut Cell, u64)) {
        let mut at = start;
        while at < end {
            let i = at / self.cell_len;
            let next = ((i + 1) * self.cell_len).min(end);
            // Fits: below the number of cells, because `end` is at most the size of the area.
            if let Some(cell) = self.cells.get_mut(i as usize) {
                f(cell, next - at);
            }
            at = next;
        }
    }

    /// Returns the number of bytes of `ranges` in each cell. Bytes in several ranges count once.
    pub fn overlay(&self, ranges: &[std::ops::Range<u64>]) -> Vec<u64> {
        let mut sorted: Vec<_> = ranges.to_vec();
        sorted.sort_unstable_by_key(|r| (r.start, r.end));
        let mut out = Self {
            cells: vec![Cell::default(); self.cells.len()],
            ..*self
        };
        let mut cursor = 0;
        for range in sorted {
            let (start, end) = (range.start.max(cursor), range.end.min(self.size));
            out.each_cell(start, end, |cell, bytes| cell[0] += bytes);
            cursor = cursor.max(end);
        }
        out.cells.iter().map(|cell| cell[0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlays_count_bytes_once() {
        let map = SpaceMap {
            size: 100,
            cell_len: 40,
            cells: vec![Cell::default(); 3],
        };
        let ranges = [50..90, 0..10, 5..20, 95..300];
        assert_eq!(map.overlay(&ranges), [20, 30, 15]);
        assert_eq!(map.overlay(&[]), [0, 0, 0]);
    }
}
