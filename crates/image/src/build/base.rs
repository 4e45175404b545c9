//! `--base`: an image whose data the new one refers to instead of holding it again.
//!
//! ```text
//!  unified addresses   0 ........ end of the new image │ end ........ end + blocks of the base
//!                      the new image's own blocks      │ the base, by the slot in the device table
//! ```
//!
//! A file with the content of one in the base takes over what that one's inode says: blocks and clusters at their places
//! in the base, an end behind the inode as a copy. What it has in the base's packed inode becomes part of the new image's
//! packed inode: pieces that lie in clusters of the base, behind its own. A file that has only stretches in common with one
//! in the base takes over the clusters that begin in them.
//!
//! Invariants:
//!
//! * What is compared is what a reader of the base gets, not what the base says about itself.
//! * Whatever is referred to lies inside the base's slot, in whole blocks.
//! * What is shared depends on both contents and the options alone.

use super::options::{Fragments, Options, algorithm_kernel};
use super::pack::grain::Grain;
use super::pack::segment::ShortPiece;
use super::pack::spans::{PartKey, Posted};
use crate::read::{Cluster, ClusterCoding, Extent, Image, Inode, OpenOptions, Source};
use crate::verity;
use crate::walk::Walk;
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use tuff_format::cluster::{Coding, HeadKind};
use tuff_format::config::Configs;
use tuff_format::device::Slot;
use tuff_format::features::{Kernel, incompat};
use tuff_format::inode::Layout;
use tuff_format::{BlockBits, Nid};
use tuff_store::{FileStore, ReadAt};

/// Marks a block or a grain of the base among those of the new image.
pub(crate) const IN_BASE: u32 = 1 << 31;
/// Marks a position in the base's packed inode among those in the new image's.
pub(crate) const IN_BASE_PACKED: u64 = 1 << 62;
/// The place of what lies in the packed inode: behind all else.
const PACKED_PLACE: u64 = 1 << 60;

/// The base, open.
pub(crate) struct Base {
    image: Image,
    store: Arc<dyn ReadAt>,
    name: String,
    bits: BlockBits,
    /// What clusters of the new image are counted in.
    grain: Grain,
    /// Unit: blocks.
    blocks: u32,
    /// Where it ends, with a hash tree behind it. Unit: blocks.
    behind: u32,
    kernel: Kernel,
    /// Algorithm of the packed inode, if there is one.
    packed: Option<u8>,
    /// The new image begins with it.
    in_image: bool,
}

/// A file of the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BaseFile {
    /// Where its data begins, among that of others.
    place: u64,
    pub(crate) nid: Nid,
    /// Unit: bytes.
    pub(crate) size: u64,
    /// It is compressed, and not as a whole in the packed inode.
    pub(crate) clusters: bool,
}

/// The clusters of a file of the base.
pub(crate) struct BaseClusters {
    /// Number of their algorithm, if they are not all stored.
    pub(crate) algorithm: Option<u8>,
    /// Back to back from the file's start on. Those that cannot be used have no grains.
    pub(crate) posted: Vec<Posted>,
    /// First grain of each, marked.
    pub(crate) places: Vec<u32>,
}

impl BaseClusters {
    /// Position of the first cluster that may be used and begins at `at` or later. Unit: bytes.
    pub(crate) fn begin(&self, at: u64) -> Option<u64> {
        let from = self.posted.partition_point(|p| p.at < at);
        let mut rest = self.posted[from..].iter();
        rest.find(|p| p.piece.grains > 0).map(|p| p.at)
    }

    /// Length of the data in clusters. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        self.posted
            .last()
            .map_or(0, |p| p.at + u64::from(p.piece.len))
    }
}

/// A piece in a cluster of the base: its first grain, marked, and its form.
pub(crate) type BasePiece = (u32, ShortPiece);

/// Where a file's data is.
pub(crate) enum BaseData {
    /// In consecutive blocks from this one on, if there are any, and behind the inode.
    Flat(Option<u32>, Vec<u8>),
    /// In clusters.
    Encoded {
        algorithm: u8,
        pieces: Vec<BasePiece>,
        tail: BaseTail,
    },
    /// In the packed inode as a whole.
    Fragment(BaseFragment),
}

/// Where the last piece of a compressed file is.
pub(crate) enum BaseTail {
    Cluster,
    Inline(Vec<u8>),
    Fragment(BaseFragment),
}

/// A part of the packed inode.
pub(crate) struct BaseFragment {
    /// Position there. Unit: bytes.
    pub(crate) offset: u64,
    /// The pieces that hold it, each with its position. Unit: bytes.
    pub(crate) pieces: Vec<(u64, BasePiece)>,
}

impl Base {
    /// Opens the base of an image with these options.
    ///
    /// # Errors
    /// `Usage` if no image with these options can refer to it; what opening an image gives.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self> {
        let name = path.display().to_string();
        let store = FileStore::open(path).map_err(|e| Error::io(&name, "cannot open", e))?;
        let store: Arc<dyn ReadAt> = Arc::new(store);
        let image = Image::open_shared(Arc::clone(&store), OpenOptions::default())
            .map_err(|e| e.within(&name))?;
        let sb = image.superblock();
        let bits = options.block;
        if sb.block_bits != bits {
            return Err(Error::usage(format_args!(
                "{name}: a base with blocks of {} bytes, but the image has blocks of {}",
                sb.block_bits.size(),
                bits.size()
            )));
        }
        if !image.slots().is_empty() {
            return Err(Error::usage(format_args!(
                "{name}: a base that has extra devices itself"
            )));
        }
        let there = store.size() >> bits.get();
        let blocks = u32::try_from(sb.blocks.min(there)).ok();
        let blocks = blocks
            .filter(|b| *b < IN_BASE)
            .ok_or_else(|| Error::usage(format_args!("{name}: a base of 2^31 blocks or more")))?;
        // With the packed inode come its compression and its place in the format.
        let own = options.compression.map(|c| c.method.algorithm() as u8);
        let packed = (options.fragments != Fragments::Off)
            .then_some(own)
            .flatten();
        Ok(Self {
            store,
            name,
            bits,
            grain: options.grain(),
            blocks,
            behind: blocks,
            kernel: options.kernel,
            packed,
            image,
            in_image: false,
        })
    }

    /// The image that is going to be the first part of the new one.
    ///
    /// # Errors
    /// What looking for a hash tree behind it gives.
    pub(crate) fn of_patch(mut self) -> Result<Self> {
        self.in_image = true;
        if let Some(tree) = verity::behind(&self.image).map_err(|e| e.within(&self.name))? {
            let end = u32::try_from(tree.end.div_ceil(self.bits.size())).ok();
            self.behind = end.filter(|b| *b < IN_BASE).ok_or_else(|| {
                Error::usage(format_args!(
                    "{}: with its hash tree it has 2^31 blocks or more",
                    self.name
                ))
            })?;
        }
        Ok(self)
    }

    /// True if the new image begins with it.
    pub(crate) fn in_image(&self) -> bool {
        self.in_image
    }

    /// The store that it is in, if that is another than the image's.
    pub(crate) fn store(&self) -> Option<Arc<dyn ReadAt>> {
        (!self.in_image).then(|| Arc::clone(&self.store))
    }

    /// Its length. Unit: blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Where a patch may begin: the tree that verifies what is there stays good until the patch counts. Unit: blocks.
    pub(crate) fn behind(&self) -> u32 {
        self.behind
    }

    /// What its clusters need readers to know.
    pub(crate) fn configs(&self) -> &Configs {
        self.image.configs()
    }

    /// Its slot in the device table of an image whose own blocks end at `end`, if it is a device of its own.
    pub(crate) fn slot(&self, end: u64) -> Option<Slot> {
        (!self.in_image).then(|| Slot {
            tag: crate::read::device_tag(&self.image.superblock().uuid),
            blocks: self.blocks.into(),
            uniaddr: end,
        })
    }

    /// Its files that are wanted and have data, in the order of that, those with several names once; at most so many.
    pub(crate) fn files(
        &self,
        most: usize,
        wanted: &dyn Fn(&Inode) -> bool,
    ) -> Result<Vec<BaseFile>> {
        let list = || {
            let mut files: Vec<BaseFile> = Vec::new();
            for entry in Walk::root(&self.image)? {
                let inode = entry?.inode;
                if files.len() < most && inode.has_data() && wanted(&inode) {
                    files.push(self.file(&inode)?);
                }
            }
            files.sort_unstable();
            files.dedup();
            Ok(files)
        };
        list().map_err(|e: Error| e.within(&self.name))
    }

    fn file(&self, inode: &Inode) -> Result<BaseFile> {
        let place = self.place(inode)?;
        Ok(BaseFile {
            place,
            nid: inode.nid(),
            size: inode.size(),
            clusters: is_compressed(inode) && place < PACKED_PLACE && self.can_share_clusters(),
        })
    }

    /// Fills `buf` from `offset` of a file, as a reader of the base gets it.
    pub(crate) fn read_exact(&self, nid: Nid, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut read = || {
            let inode = self.image.inode(nid)?;
            if self.image.read_at(&inode, buf, offset)? < buf.len() {
                return Err(Error::corrupt(inode.place(), "data ends before its size"));
            }
            Ok(())
        };
        read().map_err(|e| e.within(&self.name))
    }

    /// Where the data of a file begins, among that of others.
    fn place(&self, inode: &Inode) -> Result<u64> {
        let first = self.image.extents(inode, 0..1)?.next().transpose()?;
        Ok(match first.map(|e| e.source) {
            Some(Source::Raw { pos, .. } | Source::Cluster(Cluster { pos, .. })) => pos,
            Some(Source::Fragment { offset }) => PACKED_PLACE | offset,
            _ => 0,
        })
    }

    /// Where the data of a file is. `None` if the new image cannot say it, or is not to have a file compressed that
    /// the base has compressed. `stored`: it is to be stored as it is.
    pub(crate) fn data(&self, nid: Nid, stored: bool) -> Result<Option<BaseData>> {
        let data = || {
            let inode = self.image.inode(nid)?;
            match is_compressed(&inode) {
                true if stored => Ok(None),
                true => self.encoded(&inode),
                false => self.flat(&inode),
            }
        };
        data().map_err(|e: Error| e.within(&self.name))
    }

    /// Number of the first algorithm that clusters of a compressed file have. `None`: all are stored.
    pub(crate) fn algorithm(&self, nid: Nid) -> Result<Option<u8>> {
        let look = || {
            let inode = self.image.inode(nid)?;
            for extent in self.image.extents(&inode, 0..inode.size())? {
                if let Source::Cluster(cluster) = extent?.source
                    && let ClusterCoding::Compressed(id) = cluster.coding
                {
                    return Ok(Some(id));
                }
            }
            Ok(None)
        };
        look().map_err(|e: Error| e.within(&self.name))
    }

    /// The clusters of a compressed file, for others to use: under this number.
    pub(crate) fn clusters(&self, nid: Nid, number: u32) -> Result<BaseClusters> {
        let look = || {
            let inode = self.image.inode(nid)?;
            let (mut posted, mut places) = (Vec::new(), Vec::new());
            let mut algorithm = None;
            for extent in self.image.extents(&inode, 0..inode.size())? {
                let extent = extent?;
                let Ok(len) = u32::try_from(extent.len) else {
                    break;
                };
                let (place, piece) = match extent.source {
                    Source::Inline { .. } | Source::Fragment { .. } => break,
                    Source::Cluster(cluster) => self.piece(&extent, cluster, false, &mut algorithm),
                    _ => None,
                }
                .unwrap_or((0, ShortPiece::own(len as usize, 0, HeadKind::Plain)));
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
        look().map_err(|e: Error| e.within(&self.name))
    }

    /// Most bytes behind an inode: head and tail of a plain extended inode still share a block.
    fn inline_max(&self) -> usize {
        self.bits.size_usize() - 96
    }

    fn flat(&self, inode: &Inode) -> Result<Option<BaseData>> {
        let (mut block, mut tail) = (None, Vec::new());
        for extent in self.image.extents(inode, 0..inode.size())? {
            let extent = extent?;
            match extent.source {
                Source::Raw { device: 0, pos } if block.is_none() => {
                    let len = extent.len.next_multiple_of(self.bits.size());
                    let Some((at, _)) = self.within(self.bits.size_usize(), pos, len) else {
                        return Ok(None);
                    };
                    block = Some(at);
                }
                Source::Inline {
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
        Ok(Some(BaseData::Flat(block, tail)))
    }

    fn encoded(&self, inode: &Inode) -> Result<Option<BaseData>> {
        if !self.can_share_clusters() {
            return Ok(None);
        }
        let (mut pieces, mut algorithm) = (Vec::new(), None);
        let mut tail = BaseTail::Cluster;
        for extent in self.image.extents(inode, 0..inode.size())? {
            let extent = extent?;
            let last = extent.end() == inode.size();
            match extent.source {
                Source::Cluster(cluster) => {
                    let piece = self.piece(&extent, cluster, last, &mut algorithm);
                    let Some(piece) = piece else {
                        return Ok(None);
                    };
                    pieces.push(piece);
                }
                Source::Inline {
                    space,
                    pos,
                    len,
                    coding,
                } if last
                    && len as usize <= self.inline_max()
                    && self.kernel >= Kernel(5, 17)
                    && self.of_blocks() =>
                {
                    let Some(kind) = self.kind(coding.into(), &mut algorithm) else {
                        return Ok(None);
                    };
                    let Ok(whole) = u32::try_from(extent.len) else {
                        return Ok(None);
                    };
                    pieces.push((0, ShortPiece::own(whole as usize, 0, kind)));
                    tail = BaseTail::Inline(self.image.bytes(space, pos, len as usize)?.to_vec());
                }
                Source::Fragment { offset } if last => {
                    let Some(fragment) = self.fragment(offset, extent.len)? else {
                        return Ok(None);
                    };
                    if extent.offset == 0 {
                        return Ok(Some(BaseData::Fragment(fragment)));
                    }
                    let Ok(whole) = u32::try_from(extent.len) else {
                        return Ok(None);
                    };
                    pieces.push((0, ShortPiece::own(whole as usize, 0, HeadKind::Head1)));
                    tail = BaseTail::Fragment(fragment);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(BaseData::Encoded {
            // All pieces are stored: any algorithm will do.
            algorithm: algorithm.or(self.packed).unwrap_or(0),
            pieces,
            tail,
        }))
    }

    /// The pieces of the packed inode that hold `len` bytes at `offset`.
    fn fragment(&self, offset: u64, len: u64) -> Result<Option<BaseFragment>> {
        let (Some(own), Some(packed)) = (self.packed, self.image.packed()) else {
            return Ok(None);
        };
        let mut algorithm = Some(own);
        let mut pieces = Vec::new();
        for extent in self
            .image
            .extents(packed, offset..offset.saturating_add(len))?
        {
            let extent = extent?;
            let Source::Cluster(cluster) = extent.source else {
                return Ok(None);
            };
            // In the new packed inode it lies elsewhere: only a piece of a block ends in a later one for certain. The
            // last one stays the last.
            let short = self.of_blocks() && extent.len < self.bits.size();
            if short && extent.end() != packed.size() {
                return Ok(None);
            }
            let Some(piece) = self.piece(&extent, cluster, true, &mut algorithm) else {
                return Ok(None);
            };
            pieces.push((extent.offset, piece));
        }
        let end = pieces
            .last()
            .map_or(0, |(at, (_, p))| at + u64::from(p.len));
        Ok((end >= offset.saturating_add(len)).then_some(BaseFragment { offset, pieces }))
    }

    fn can_share_clusters(&self) -> bool {
        let sb = self.image.superblock();
        let needs = if self.bits.get() < 12 {
            Kernel(6, 8)
        } else if sb.has(incompat::FRAGMENTS) {
            Kernel(6, 1)
        } else {
            Kernel(5, 16)
        };
        sb.has(incompat::LZ4_0PADDING) && self.kernel >= needs
    }

    /// An extent in a cluster as a piece. `algorithm` is that of the pieces before.
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
        // An index of blocks stores them one by one; an unaligned base has longer ones.
        if self.of_blocks() && kind == HeadKind::Plain && grains > 1 {
            return None;
        }
        let piece = ShortPiece {
            len: u32::try_from(extent.len).ok()?,
            grains: u16::try_from(grains).ok()?,
            kind,
            partial: cluster.partial,
            // Others may have it, too.
            shared: self.image.superblock().has(incompat::FRAGMENTS),
        };
        Some((place, piece))
    }

    /// True if clusters of the new image begin at blocks, so that no block may hold the beginnings of two.
    fn of_blocks(&self) -> bool {
        self.grain.size() == self.bits.size_usize()
    }

    fn kind(&self, coding: ClusterCoding, algorithm: &mut Option<u8>) -> Option<HeadKind> {
        match coding {
            ClusterCoding::Stored => Some(HeadKind::Plain),
            ClusterCoding::Compressed(id)
                if *algorithm.get_or_insert(id) == id && self.kernel >= algorithm_kernel(id) =>
            {
                Some(HeadKind::Head1)
            }
            _ => None,
        }
    }

    /// So many grains from a marked one on.
    pub(crate) fn grains_from(&self, place: u32, count: u16) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::from(count) * self.grain.size()];
        self.store
            .read_exact_at(&mut bytes, self.grain.bytes(place & !IN_BASE))
            .map_err(|e| Error::io(&self.name, "cannot read", e))?;
        Ok(bytes)
    }

    /// These bytes in units of `size`: the first, marked, and how many.
    fn within(&self, size: usize, pos: u64, len: u64) -> Option<(u32, u32)> {
        let size = size as u64;
        let end = pos.checked_add(len)?;
        let whole = pos.is_multiple_of(size) && len.is_multiple_of(size);
        let inside = len > 0 && end <= u64::from(self.blocks) * self.bits.size();
        let first = u32::try_from(pos / size)
            .ok()
            .filter(|first| *first < IN_BASE);
        // Fits: a cluster, or below `blocks`.
        first
            .filter(|_| whole && inside)
            .map(|first| (first | IN_BASE, (len / size) as u32))
    }
}

fn is_compressed(inode: &Inode) -> bool {
    matches!(
        inode.layout(),
        Layout::CompressedFull | Layout::CompressedCompact
    )
}
