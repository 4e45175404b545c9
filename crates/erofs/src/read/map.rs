//! Mapping of file offsets to extents, for every data layout.

pub(crate) use super::extent::{
    Chunks, Cluster, ClusterCoding, Clusters, Extent, FileMap, Location,
};
use super::fetch::{Bytes, Space};
use super::image::Image;
use super::inode::Inode;
use crate::{Error, Place, Result};
use std::ops::Range;
use std::sync::Arc;
use tuff_format::cluster::{self, Coding, Data};
use tuff_format::inode::Layout;
use tuff_format::units::round_up;
use tuff_format::{BlockAddr, DeviceId, Nid, chunk};

impl Image {
    /// Returns the extents that overlap `range` of an inode's data, in order and without gaps. The first and
    /// the last are not clipped.
    ///
    /// # Errors
    /// If the index cannot be read, or is longer than [`Limits::index_size`](super::Limits::index_size). The
    /// iterator ends after its first error.
    pub fn extents(&self, inode: &Inode, range: Range<u64>) -> Result<Extents<'_>> {
        let map = self.map(inode)?;
        Ok(Extents::new(self, inode.nid(), map, range))
    }

    /// Returns the map of an inode's data, through the cache of indexes.
    pub(crate) fn map(&self, inode: &Inode) -> Result<FileMap> {
        let place = |e: Error| e.within(inode.place());
        match inode.layout() {
            _ if !inode.has_data() => Ok(FileMap::Empty),
            Layout::FlatPlain | Layout::FlatInline => self.flat_map(inode).map_err(place),
            _ => {
                if let Some(map) = self.maps.get(&inode.nid()) {
                    return Ok(map);
                }
                let (map, weight) = self.load_map(inode).map_err(place)?;
                self.maps.put(inode.nid(), map.clone(), weight);
                Ok(map)
            }
        }
    }

    /// Returns the map of an inode's data without the cache, for callers that visit each inode once.
    pub(crate) fn map_once(&self, inode: &Inode) -> Result<FileMap> {
        let place = |e: Error| e.within(inode.place());
        match inode.layout() {
            _ if !inode.has_data() => Ok(FileMap::Empty),
            Layout::FlatPlain | Layout::FlatInline => self.flat_map(inode).map_err(place),
            _ => Ok(self.load_map(inode).map_err(place)?.0),
        }
    }

    fn flat_map(&self, inode: &Inode) -> Result<FileMap> {
        let bits = self.superblock().block_bits;
        let (size, raw, tail_pos) = (inode.size(), inode.raw(), inode.payload_position());
        let inline = inode.layout() == Layout::FlatInline;
        // With an inline tail, the last block is stored after the inode, even if it is full.
        let in_blocks = if inline {
            (bits.count(size) - 1) << bits.get()
        } else {
            size
        };
        if inline && bits.within(tail_pos) + (size - in_blocks) > bits.size() {
            return Err(Error::corrupt(
                format_args!("inline data at byte {tail_pos:#x}"),
                format_args!(
                    "{} bytes cross the end of their block, expected at most {}",
                    size - in_blocks,
                    bits.size() - bits.within(tail_pos)
                ),
            ));
        }
        let start = if raw.no_start && !inline {
            None
        } else {
            Some(
                BlockAddr(raw.u)
                    .position(bits)
                    .ok_or_else(|| Error::corrupt("start block", raw.u))?,
            )
        };
        Ok(FileMap::Flat {
            size,
            start,
            in_blocks,
            space: inode.space(),
            tail_pos,
        })
    }

    fn load_map(&self, inode: &Inode) -> Result<(FileMap, usize)> {
        let sb = self.superblock();
        let (space, after) = (inode.space(), inode.payload_position());
        if inode.layout() == Layout::ChunkBased {
            let format =
                chunk::Format::decode(inode.raw().u).map_err(|e| Error::format("chunks", e))?;
            let entry = format.entry_len() as u64;
            let chunks = format.chunk_count(inode.size(), sb.block_bits);
            let len = self.index_limit(chunks.checked_mul(entry), "chunk table")?;
            let table = self
                .index_bytes(space, round_up(after, entry), len)
                .map_err(|e| e.within("chunk table"))?;
            let chunks = Chunks {
                size: inode.size(),
                format,
                bits: sb.block_bits,
                table,
            };
            return Ok((FileMap::Chunks(Arc::new(chunks)), len + 256));
        }
        let header_pos = round_up(after, 8);
        let header = self
            .bytes(space, header_pos, 8)
            .map_err(|e| e.within("map header"))?;
        let map = cluster::Map::new(sb, inode.layout(), inode.size(), &header, header_pos)
            .map_err(|e| Error::format(format_args!("map header at byte {header_pos:#x}"), e))?;
        let len = self.index_limit(Some(map.index_len()), "index of clusters")?;
        let index = self
            .index_bytes(space, map.index_pos(), len)
            .map_err(|e| e.within("index of clusters"))?;
        let (map, index) = widen(map, index);
        let clusters = Clusters { map, index, space };
        Ok((FileMap::Clusters(Arc::new(clusters)), len + 256))
    }

    fn index_limit(&self, len: Option<u64>, what: &'static str) -> Result<usize> {
        let limit = self.limits().index_size;
        match len {
            // Fits a usize: the limit bounds memory.
            Some(len) if len <= limit => Ok(len as usize),
            _ => Err(Error::limit(
                what,
                format_args!(
                    "{} bytes long, more than the limit index_size, {limit}",
                    len.unwrap_or(u64::MAX)
                ),
            )),
        }
    }

    /// Copies an index out of its metadata window, so that a cached map does not keep the window in memory.
    fn index_bytes(&self, space: Space, pos: u64, len: usize) -> Result<Bytes> {
        let bytes = self.bytes(space, pos, len)?;
        Ok(Bytes::own(bytes.to_vec()))
    }
}

/// Converts an index of 4-byte records to records of 16 or 32 bytes. A 4-byte record has no position, so a
/// lookup would have to add up the lengths of all records before it.
fn widen(mut map: cluster::Map, index: Bytes) -> (cluster::Map, Bytes) {
    let cluster::Form::Extents(table) = map.form else {
        return (map, index);
    };
    let (4, Some((start, lens))) = (table.record, index.split_first_chunk::<8>()) else {
        return (map, index);
    };
    let record = if map.size > 1 << 32 { 32 } else { 16 };
    let mut wide = Vec::with_capacity(lens.len() / 4 * usize::from(record));
    let mut pos = u64::from_le_bytes(*start);
    let count = lens.len() / 4;
    for (i, len) in lens.as_chunks::<4>().0.iter().enumerate() {
        // The 4-byte word of a fragment is its complete position; this form has no high half.
        let fragment = table.fragment && i + 1 == count;
        let word = u32::from_le_bytes(*len);
        let la = (i as u64) << table.extent_bits.min(63);
        wide.extend_from_slice(len);
        wide.extend_from_slice(&(if fragment { 0 } else { pos }).to_le_bytes());
        wide.extend_from_slice(&la.to_le_bytes()[..if record == 16 { 4 } else { 8 }]);
        wide.resize((i + 1) * usize::from(record), 0);
        pos = pos.saturating_add((word & 0x1F_FFFF).into());
    }
    map.form = cluster::Form::Extents(cluster::extent::Table { record, ..table });
    (map, Bytes::own(wide))
}

impl FileMap {
    /// Returns the extent that contains byte `offset`, which must be below the size. Contiguous chunks are
    /// merged only up to `until`.
    pub(crate) fn extent_at(&self, image: &Image, offset: u64, until: u64) -> Result<Extent> {
        match self {
            Self::Empty => Err(Error::usage("no data")),
            Self::Flat {
                size,
                start,
                in_blocks,
                space,
                tail_pos,
            } => {
                if offset >= *in_blocks {
                    let len = size - in_blocks;
                    return Ok(Extent {
                        offset: *in_blocks,
                        len,
                        location: Location::Inline {
                            space: *space,
                            pos: *tail_pos,
                            len: len as u32, // fits: at most a block
                            coding: Coding::Stored,
                        },
                    });
                }
                let source = match start {
                    None => Location::Hole,
                    Some(pos) => Location::Raw {
                        device: DeviceId::PRIMARY,
                        pos: *pos,
                    },
                };
                Ok(Extent {
                    offset: 0,
                    len: *in_blocks,
                    location: source,
                })
            }
            Self::Chunks(chunks) => chunks.extent_at(image, offset, until),
            Self::Clusters(c) => {
                let extent = c.map.extent_at(&c.index, offset);
                let extent = extent.map_err(|e| {
                    Error::format(format_args!("extent at file offset {offset}"), e)
                })?;
                Ok(c.convert(extent))
            }
        }
    }

    /// Returns the map of a compressed inode with its encoded index. `None` for other layouts.
    pub(crate) fn clusters(&self) -> Option<&Clusters> {
        match self {
            Self::Clusters(c) => Some(c),
            _ => None,
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Flat { size, .. } => *size,
            Self::Chunks(c) => c.size,
            Self::Clusters(c) => c.map.size,
        }
    }
}

impl Chunks {
    /// Returns the position after the chunk table of an inode whose extended attributes end at `after`. Unit:
    /// bytes.
    pub(crate) fn table_end(&self, after: u64) -> u64 {
        round_up(after, self.format.entry_len() as u64).saturating_add(self.table.len() as u64)
    }

    /// Returns the run of contiguous chunks that starts with the chunk of `offset`, merged up to `until`.
    fn extent_at(&self, image: &Image, offset: u64, until: u64) -> Result<Extent> {
        let chunk_size = self.format.chunk_size(self.bits).0;
        let i = offset / chunk_size;
        let first = self.chunk(image, i)?;
        let mut n = 1;
        while (i + n) * chunk_size < self.size.min(until) {
            let next = self.chunk(image, i + n)?;
            let follows = match (first, next) {
                (Location::Hole, Location::Hole) => true,
                (Location::Raw { device, pos }, Location::Raw { device: d, pos: p }) => {
                    device == d && pos.checked_add(n * chunk_size) == Some(p)
                }
                _ => false,
            };
            if !follows {
                break;
            }
            n += 1;
        }
        let start = i * chunk_size;
        Ok(Extent {
            offset: start,
            len: (n * chunk_size).min(self.size - start),
            location: first,
        })
    }

    fn chunk(&self, image: &Image, i: u64) -> Result<Location> {
        let place = |e: Error| e.within(format_args!("chunk {i}"));
        // Fits: the table is held in memory.
        let entry = self.format.entry(&self.table, i as usize);
        match entry.map_err(|e| place(Error::format("", e)))? {
            chunk::Chunk::Hole => Ok(Location::Hole),
            chunk::Chunk::Data { device, block } => {
                let device = image.devices.device_id(device).map_err(place)?;
                let pos = block.position(self.bits);
                let pos = pos.ok_or_else(|| place(Error::corrupt("block address", block)))?;
                Ok(Location::Raw { device, pos })
            }
        }
    }
}

impl Clusters {
    fn convert(&self, extent: cluster::Extent) -> Extent {
        let source = match extent.data {
            Data::Cluster {
                pa,
                plen,
                coding,
                partial,
            } => Location::Cluster(Cluster {
                pos: pa,
                len: plen,
                coding: coding.into(),
                partial,
            }),
            Data::Inline { len, coding } => Location::Inline {
                space: self.space,
                pos: self.map.inline_pos(),
                len,
                coding,
            },
            Data::Fragment { offset } => Location::Fragment { offset },
            Data::Hole => Location::Hole,
        };
        Extent {
            offset: extent.la,
            len: extent.len,
            location: source,
        }
    }
}

/// Iterator over the extents of a range; see [`Image::extents`].
#[derive(Clone)]
pub struct Extents<'a> {
    image: &'a Image,
    nid: Nid,
    map: FileMap,
    next: u64,
    end: u64,
}

impl<'a> Extents<'a> {
    pub(crate) fn new(image: &'a Image, nid: Nid, map: FileMap, range: Range<u64>) -> Self {
        let end = range.end.min(map.size());
        Self {
            image,
            nid,
            map,
            next: range.start,
            end,
        }
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        match self.map.extent_at(self.image, self.next, self.end) {
            // Makes progress: the extent contains `next`.
            Ok(extent) => {
                self.next = extent.end();
                Some(Ok(extent))
            }
            Err(e) => {
                self.next = self.end;
                Some(Err(e.within(Place::nid(self.nid))))
            }
        }
    }
}

/// Contiguous range of a file that is data or a hole.
#[derive(Clone, Debug)]
pub struct Run {
    /// File offsets. Unit: bytes.
    pub range: Range<u64>,
    /// True for a hole, false for data.
    pub is_hole: bool,
}

/// Iterator over the data and holes of a range; see [`Image::runs`]. The holes of the packed inode inside a
/// fragment are reported as holes of the file.
pub struct Runs<'a> {
    image: &'a Image,
    outer: Extents<'a>,
    range: Range<u64>,
    /// Extents of the current fragment, its range in the packed inode, and its file offset.
    fragment: Option<(Extents<'a>, Range<u64>, u64)>,
}

impl Image {
    /// Returns true if the data of `inode` is indexed by encoded extents.
    ///
    /// # Errors
    /// As for [`extents`](Self::extents).
    pub fn has_encoded_extents(&self, inode: &Inode) -> Result<bool> {
        let map = self.map(inode)?;
        let form = map.clusters().map(|clusters| &clusters.map.form);
        Ok(matches!(form, Some(cluster::Form::Extents(_))))
    }

    /// Returns the length in bytes of an inode with its attributes, index and inline tail.
    ///
    /// # Errors
    /// As for [`extents`](Self::extents).
    pub fn stored_len(&self, inode: &Inode) -> Result<u64> {
        let after = inode.payload_position();
        let end = match (self.map(inode)?, inode.layout()) {
            (FileMap::Chunks(chunks), _) => {
                let entry = chunks.format.entry_len() as u64;
                round_up(after, entry) + chunks.table.len() as u64
            }
            (FileMap::Clusters(clusters), _) => match clusters.map.form {
                // Builders reserve the place of an empty index.
                cluster::Form::WholeFragment { .. } => round_up(after, 8) + 16,
                _ => clusters.map.inline_pos() + u64::from(clusters.map.inline_len()),
            },
            (FileMap::Flat { .. }, Layout::FlatInline) => {
                after + self.superblock().block_bits.within(inode.size())
            }
            _ => after,
        };
        Ok(end - inode.position())
    }

    /// Returns the data and holes of `range` of an inode's data, in order, without gaps, clipped to `range`.
    ///
    /// # Errors
    /// As for [`extents`](Self::extents).
    pub fn runs(&self, inode: &Inode, range: Range<u64>) -> Result<Runs<'_>> {
        Ok(Runs {
            image: self,
            outer: self.extents(inode, range.clone())?,
            range,
            fragment: None,
        })
    }
}

impl Image {
    /// Returns false only if the data of `inode` has no holes. Compressed files can have holes only in
    /// encoded extents and in the packed inode, so other indexes are not read.
    ///
    /// # Errors
    /// `Corrupt` for blocks past the end of the image; otherwise as for [`extents`](Self::extents).
    pub fn may_have_holes(&self, inode: &Inode) -> Result<bool> {
        if !inode.has_data() {
            return Ok(false);
        }
        Ok(match inode.layout() {
            Layout::ChunkBased => true,
            Layout::FlatPlain | Layout::FlatInline => match self.map(inode)? {
                FileMap::Flat { start: None, .. } => true,
                FileMap::Flat {
                    start: Some(start),
                    in_blocks,
                    ..
                } => {
                    let present = self.devices.has(DeviceId::PRIMARY, start, in_blocks);
                    present.map_err(|e| e.within(inode.place()))?;
                    false
                }
                _ => false,
            },
            Layout::CompressedFull | Layout::CompressedCompact => {
                let header_pos = round_up(inode.payload_position(), 8);
                let header = self.bytes(inode.space(), header_pos, 8);
                let header = header.map_err(|e| e.within(inode.place()))?;
                let (size, layout) = (inode.size(), inode.layout());
                let sb = self.superblock();
                let Ok(map) = cluster::Map::new(sb, layout, size, &header, header_pos) else {
                    // Reading the data reports the error.
                    return Ok(false);
                };
                let fragment = map.advise() & cluster::header::FRAGMENT != 0
                    || matches!(map.form, cluster::Form::WholeFragment { .. });
                matches!(map.form, cluster::Form::Extents(_)) || fragment && self.packed_has_holes()
            }
        })
    }

    /// Returns true if the packed inode may have holes.
    fn packed_has_holes(&self) -> bool {
        self.packed_map().is_ok_and(|(_, map)| match map {
            FileMap::Empty => false,
            FileMap::Flat { start, .. } => start.is_none(),
            FileMap::Chunks(_) => true,
            FileMap::Clusters(c) => matches!(c.map.form, cluster::Form::Extents(_)),
        })
    }
}

impl Runs<'_> {
    fn step(&mut self) -> Result<Option<Run>> {
        if let Some((extents, packed, at)) = &mut self.fragment {
            if let Some(extent) = extents.next().transpose()? {
                let start = extent.offset.max(packed.start);
                let end = extent.end().min(packed.end);
                return Ok(Some(Run {
                    range: *at + (start - packed.start)..*at + (end - packed.start),
                    is_hole: extent.location == Location::Hole,
                }));
            }
            self.fragment = None;
        }
        let Some(extent) = self.outer.next().transpose()? else {
            return Ok(None);
        };
        let start = extent.offset.max(self.range.start);
        let end = extent.end().min(self.range.end);
        if let Location::Fragment { offset } = extent.location
            && let Ok((packed, map)) = self.image.packed_map()
            && let Some(first) = offset.checked_add(start - extent.offset)
            && let Some(last) = first.checked_add(end - start)
            && last <= packed.size()
        {
            let range = first..last;
            let extents = Extents::new(self.image, packed.nid(), map.clone(), range.clone());
            self.fragment = Some((extents, range, start));
            return self.step();
        }
        // A fragment outside the packed inode counts as data, so that reading it reports the error.
        Ok(Some(Run {
            range: start..end,
            is_hole: extent.location == Location::Hole,
        }))
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<Run>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.outer.next = self.outer.end;
            self.fragment = None;
        }
        step.transpose()
    }
}
