//! Conversion of indexes of a base to those of the new image.

use super::member::{Member, is_compressed};
use super::types::{BaseChunks, BaseClusters, BaseData, BaseFragment, BasePiece, BaseTail};
use crate::pack::address::{DataBlock, GrainAddr};
use crate::pack::piece::ShortPiece;
use crate::pack::shared_clusters::{PartKey, Posted};
use crate::pack::sparse::ChunkRun;
use crate::{Error, Place, Result};
use tuff_erofs::read::{Cluster, ClusterCoding, Extent, Inode, Location};
use tuff_format::Nid;
use tuff_format::cluster::{Coding, HeadKind};
use tuff_format::features::{Feature, incompat};

impl Member {
    /// Returns the places of a file's data. `None` if the new image cannot express them, or if the file is to be
    /// `stored` and the base has it compressed. `stays` is set if the packed inode of the base is that of the new image.
    pub(super) fn data(&self, nid: Nid, stored: bool, stays: bool) -> Result<Option<BaseData>> {
        let data = || {
            let inode = self.image.inode(nid)?;
            match is_compressed(&inode) {
                true if stored => Ok(None),
                true => self.encoded(&inode, stays),
                false => self.flat(&inode),
            }
        };
        data().map_err(|e: Error| e.within(Place::file(&self.name)))
    }

    /// Returns the algorithm of the first compressed cluster of the packed inode. `None` if there is none.
    pub(super) fn packed_algorithm(&self) -> Result<Option<u8>> {
        match self.image.packed() {
            Some(packed) => self.first_algorithm(packed),
            None => Ok(None),
        }
    }

    /// Returns the algorithm of the first compressed cluster of a file. `None` if all clusters are stored.
    pub(super) fn algorithm(&self, nid: Nid) -> Result<Option<u8>> {
        let inode = self.image.inode(nid);
        let inode = inode.map_err(|e: Error| e.within(Place::file(&self.name)))?;
        self.first_algorithm(&inode)
    }

    fn first_algorithm(&self, inode: &Inode) -> Result<Option<u8>> {
        let find = || {
            for extent in self.image.extents(inode, 0..inode.size())? {
                if let Location::Cluster(cluster) = extent?.location
                    && let ClusterCoding::Compressed(id) = cluster.coding
                {
                    return Ok(Some(id));
                }
            }
            Ok(None)
        };
        find().map_err(|e: Error| e.within(Place::file(&self.name)))
    }

    /// Returns the clusters of a compressed file for use by other files, under the key `number`.
    pub(super) fn clusters(&self, nid: Nid, number: u32) -> Result<BaseClusters> {
        let find = || {
            let inode = self.image.inode(nid)?;
            let (mut posted, mut places) = (Vec::new(), Vec::new());
            let mut algorithm = None;
            for extent in self.image.extents(&inode, 0..inode.size())? {
                let extent = extent?;
                let Ok(len) = u32::try_from(extent.len) else {
                    break;
                };
                let (place, piece) = match extent.location {
                    Location::Inline { .. } | Location::Fragment { .. } => break,
                    Location::Cluster(cluster) => {
                        self.piece(&extent, cluster, false, &mut algorithm)
                    }
                    _ => None,
                }
                .unwrap_or((
                    GrainAddr::NONE,
                    ShortPiece::own(len as usize, 0, HeadKind::Plain),
                ));
                // Fits: clusters of a file are counted in 32 bits.
                let home = (PartKey::Base(number), posted.len() as u32);
                posted.push(Posted {
                    at: extent.offset,
                    piece,
                    full: len,
                    home,
                });
                places.push(place);
            }
            Ok(BaseClusters {
                algorithm,
                posted,
                places,
            })
        };
        find().map_err(|e: Error| e.within(Place::file(&self.name)))
    }

    /// Returns the longest inline tail in bytes that still shares a block with an extended inode.
    fn inline_max(&self) -> usize {
        self.bits.size_usize() - 96
    }

    /// Converts a stored file: consecutive blocks or chunks, and the inline tail.
    fn flat(&self, inode: &Inode) -> Result<Option<BaseData>> {
        let mut runs: Vec<(u64, u32, u32)> = Vec::new();
        let mut tail = Vec::new();
        let mut last_store = 0;
        for extent in self.image.extents(inode, 0..inode.size())? {
            let extent = extent?;
            match extent.location {
                Location::Hole => {}
                Location::Raw { device, pos } => {
                    let len = extent.len.checked_next_multiple_of(self.bits.size());
                    let Some((pos, len)) = self.unified(device, pos).zip(len) else {
                        return Ok(None);
                    };
                    let Some((at, blocks)) = self.within(self.bits.size_usize(), pos, len) else {
                        return Ok(None);
                    };
                    let store = self.store_of(pos)?;
                    match runs.last_mut() {
                        // The extent continues the one before it.
                        Some((offset, first, count))
                            if *offset + u64::from(*count) * self.bits.size() == extent.offset
                                && *first + *count == at
                                && last_store == store =>
                        {
                            *count += blocks;
                        }
                        _ => runs.push((extent.offset, at, blocks)),
                    }
                    last_store = store;
                }
                Location::Inline {
                    space,
                    pos,
                    len,
                    coding: Coding::Stored,
                } if len as usize <= self.inline_max() => {
                    tail = self.image.bytes(space, pos, len as usize)?.to_vec();
                }
                _ => return Ok(None),
            }
        }
        let tail_len = tail.len() as u64;
        Ok(match runs[..] {
            [] if tail_len == inode.size() => Some(BaseData::Flat(None, tail)),
            [(0, at, count)]
                if self.in_image
                    && u64::from(count) * self.bits.size() + tail_len >= inode.size() =>
            {
                Some(BaseData::Flat(Some(DataBlock::base(at)), tail))
            }
            // A flat file has no device number. Some readers look for its data in the image alone.
            _ if (tail.is_empty() || !self.in_image)
                && self.kernel.supports(Feature::CHUNKED_FILE) =>
            {
                let bits = self.bits.get();
                let run = |(offset, at, count): (u64, u32, u32)| {
                    let (first, count) = (offset >> bits, count.into());
                    (ChunkRun { first, count }, DataBlock::base(at))
                };
                let chunks = BaseChunks {
                    count: self.bits.count(inode.size()),
                    runs: runs.into_iter().map(run).collect(),
                    tail,
                };
                // The base states the size of a hole.
                chunks.is_dense().then_some(BaseData::Chunks(chunks))
            }
            _ => None,
        })
    }

    fn encoded(&self, inode: &Inode, stays: bool) -> Result<Option<BaseData>> {
        if !self.can_share_clusters() {
            return Ok(None);
        }
        let (mut pieces, mut algorithm) = (Vec::new(), None);
        let mut tail = BaseTail::Cluster;
        for extent in self.image.extents(inode, 0..inode.size())? {
            let extent = extent?;
            let last = extent.end() == inode.size();
            match extent.location {
                Location::Cluster(cluster) => {
                    let piece = self.piece(&extent, cluster, last, &mut algorithm);
                    let Some(piece) = piece else {
                        return Ok(None);
                    };
                    pieces.push(piece);
                }
                Location::Inline {
                    space,
                    pos,
                    len,
                    coding,
                } if last
                    && len as usize <= self.inline_max()
                    && self.kernel.supports(Feature::ZTAILPACKING)
                    && self.of_blocks() =>
                {
                    let Some(kind) = self.kind(coding.into(), &mut algorithm) else {
                        return Ok(None);
                    };
                    let Ok(whole) = u32::try_from(extent.len) else {
                        return Ok(None);
                    };
                    pieces.push((GrainAddr::NONE, ShortPiece::own(whole as usize, 0, kind)));
                    tail = BaseTail::Inline(self.image.bytes(space, pos, len as usize)?.to_vec());
                }
                Location::Fragment { offset } if last => {
                    let fragment = match stays {
                        true => Some(BaseFragment {
                            offset,
                            pieces: Vec::new(),
                        }),
                        false => self.fragment(offset, extent.len)?,
                    };
                    let Some(fragment) = fragment else {
                        return Ok(None);
                    };
                    if extent.offset == 0 {
                        return Ok(Some(BaseData::Fragment(fragment)));
                    }
                    let Ok(whole) = u32::try_from(extent.len) else {
                        return Ok(None);
                    };
                    pieces.push((
                        GrainAddr::NONE,
                        ShortPiece::own(whole as usize, 0, HeadKind::Head1),
                    ));
                    tail = BaseTail::Fragment(fragment);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(BaseData::Encoded {
            // All pieces are stored, so any algorithm is correct.
            algorithm: algorithm.or(self.packed).unwrap_or(0),
            pieces,
            tail,
        }))
    }

    /// Returns the pieces of the packed inode that hold `len` bytes at `offset`.
    fn fragment(&self, offset: u64, len: u64) -> Result<Option<BaseFragment>> {
        let (Some(own), Some(packed)) = (self.packed, self.image.packed()) else {
            return Ok(None);
        };
        let mut pieces = Vec::new();
        for extent in self
            .image
            .extents(packed, offset..offset.saturating_add(len))?
        {
            let extent = extent?;
            let Location::Cluster(cluster) = extent.location else {
                return Ok(None);
            };
            // The fragment moves in the new packed inode. Only a piece of at least a block certainly ends in a later
            // block there. The last piece stays the last.
            let short = self.of_blocks() && extent.len < self.bits.size();
            if short && !(self.last && extent.end() == packed.size()) {
                return Ok(None);
            }
            let is_second =
                matches!(cluster.coding, ClusterCoding::Compressed(id) if Some(id) == self.second);
            let mut algorithm = if is_second { self.second } else { Some(own) };
            let Some(mut piece) = self.piece(&extent, cluster, true, &mut algorithm) else {
                return Ok(None);
            };
            if is_second {
                piece.1.kind = HeadKind::Head2;
            }
            pieces.push((self.packed_origin + extent.offset, piece));
        }
        let offset = self.packed_origin + offset;
        let end = pieces
            .last()
            .map_or(0, |(at, (_, p))| at + u64::from(p.len));
        Ok((end >= offset.saturating_add(len)).then_some(BaseFragment { offset, pieces }))
    }

    fn supports_algorithm(&self, id: u8) -> bool {
        Feature::of_algorithm(id).is_some_and(|f| self.kernel.supports(f))
    }

    pub(super) fn can_share_clusters(&self) -> bool {
        let sb = self.image.superblock();
        let needs = if self.bits.get() < 12 {
            Feature::SUBPAGE_COMPRESSION
        } else if sb.has(incompat::FRAGMENTS) {
            Feature::DEDUPE
        } else {
            Feature::DEVICE_TABLE
        };
        sb.has(incompat::LZ4_0PADDING) && self.kernel.supports(needs)
    }

    /// Converts an extent in a cluster. `algorithm` is that of the earlier pieces.
    fn piece(
        &self,
        extent: &Extent,
        cluster: Cluster,
        last: bool,
        algorithm: &mut Option<u8>,
    ) -> Option<BasePiece> {
        let kind = self.kind(cluster.coding, algorithm)?;
        let (place, grains) = self.within(self.grain.size(), cluster.pos, cluster.len.into())?;
        let (bits, end) = (self.bits.get(), extent.end());
        if self.of_blocks() && !last && end >> bits == extent.offset >> bits {
            return None;
        }
        // An index of whole blocks stores raw blocks one by one; an unaligned base has longer stored pieces.
        if self.of_blocks() && kind == HeadKind::Plain && grains > 1 {
            return None;
        }
        let piece = ShortPiece {
            len: u32::try_from(extent.len).ok()?,
            grains: u16::try_from(grains).ok()?,
            kind,
            partial: cluster.partial,
            // Other files may use the cluster as well.
            shared: self.image.superblock().has(incompat::FRAGMENTS),
        };
        Some((GrainAddr::base(place), piece))
    }

    /// Returns true if clusters of the new image start at blocks, so that a block holds the start of at most one.
    fn of_blocks(&self) -> bool {
        self.grain.size() == self.bits.size_usize()
    }

    fn kind(&self, coding: ClusterCoding, algorithm: &mut Option<u8>) -> Option<HeadKind> {
        match coding {
            ClusterCoding::Stored => Some(HeadKind::Plain),
            ClusterCoding::Compressed(id)
                if *algorithm.get_or_insert(id) == id && self.supports_algorithm(id) =>
            {
                Some(HeadKind::Head1)
            }
            _ => None,
        }
    }
}
