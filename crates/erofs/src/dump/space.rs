//! Table of the space in an image by purpose.

use super::area::{Area, area_size};
use super::regions::{Kind, Region};
use crate::read::Image;

/// Row of the table: the space of one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Human-readable name of the purpose.
    pub name: &'static str,
    /// Space used for this purpose, in bytes.
    pub bytes: u64,
    /// Number of ranges with this purpose.
    pub count: u64,
}

/// Space in an area by purpose. The rows add up to the size of the area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceTable {
    /// Area that the table describes.
    pub area: Area,
    /// Size of the area, in bytes.
    pub size: u64,
    /// Purposes that take space, in a fixed order.
    pub rows: Vec<Row>,
}

const NAMES: [&str; 21] = [
    "superblock and tables",
    "inodes",
    "attributes",
    "shared attributes",
    "indexes",
    "chunk tables",
    "directories",
    "inline data",
    "inline clusters",
    "data, as it is",
    "data, stored clusters",
    "data, lz4",
    "data, lzma",
    "data, deflate",
    "data, zstd",
    "packed, stored",
    "packed, lz4",
    "packed, lzma",
    "packed, deflate",
    "packed, zstd",
    "padding and unused",
];
const UNUSED: usize = 20;

impl SpaceTable {
    /// Returns the table of each area that has regions. `regions` are sorted.
    pub fn collect(image: &Image, regions: &[Region]) -> Vec<Self> {
        let mut out = Vec::new();
        for of_area in regions.chunk_by(|a, b| a.area == b.area) {
            let Some(area) = of_area.first().map(|r| r.area) else {
                continue;
            };
            let size = area_size(image, area);
            let mut rows = [(0u64, 0u64); NAMES.len()];
            let mut cursor = 0;
            for region in of_area {
                let start = region.start.max(cursor).min(size);
                let end = region.end.min(size);
                if start > cursor {
                    rows[UNUSED].0 += start - cursor;
                    rows[UNUSED].1 += 1;
                }
                let row = &mut rows[row_of(image, region)];
                row.0 += end.saturating_sub(start);
                row.1 += 1;
                cursor = cursor.max(end);
            }
            if size > cursor {
                rows[UNUSED].0 += size - cursor;
                rows[UNUSED].1 += 1;
            }
            let rows = NAMES
                .into_iter()
                .zip(rows)
                .filter(|(_, (bytes, _))| *bytes > 0)
                .map(|(name, (bytes, count))| Row { name, bytes, count })
                .collect();
            out.push(Self { area, size, rows });
        }
        out
    }
}

fn row_of(image: &Image, region: &Region) -> usize {
    let packed = image.packed().map(|i| i.nid());
    let data = if region.nid.is_some() && region.nid == packed {
        15
    } else {
        10
    };
    match region.kind {
        Kind::Boot | Kind::Superblock | Kind::Configs | Kind::Devices | Kind::Prefixes => 0,
        Kind::Inode => 1,
        Kind::Xattrs => 2,
        Kind::SharedXattr(_) => 3,
        Kind::Index => 4,
        Kind::Chunks => 5,
        Kind::Directory => 6,
        Kind::Tail => 7,
        Kind::InlineCluster(_) => 8,
        Kind::Raw if data == 10 => 9,
        Kind::Raw | Kind::Stored => data,
        Kind::Cluster(id) => data + 1 + usize::from(id.min(3)),
    }
}
