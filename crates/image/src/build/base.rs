//! `--base`: an image whose data the new one refers to instead of holding it again.
//!
//! ```text
//!  unified addresses   0 ........ end of the new image │ end ........ end + blocks of the base
//!                      the new image's own blocks      │ the base, by the slot in the device table
//! ```
//!
//! A file with the content of one in the base takes over what that one's inode says: blocks and clusters at their places
//! in the base, an end behind the inode as a copy. What it has in the base's packed inode becomes part of the new image's
//! packed inode: pieces that lie in clusters of the base, behind its own.
//!
//! Invariants:
//!
//! * Contents are compared by BLAKE3 of what a reader of the base gets, not of what the base says about itself.
//! * Whatever is referred to lies inside the base's slot, in whole blocks.
//! * Which files are shared depends on both contents and the options alone.

use super::options::{Fragments, Options, algorithm_kernel};
use super::order::{ContentKey, content_key};
use super::pack::segment::ShortPiece;
use super::survey;
use crate::read::{Cluster, ClusterCoding, Extent, Image, Inode, OpenOptions, Source};
use crate::walk::Walk;
use crate::{Error, Result};
use hashbrown::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use tuff_format::cluster::{Coding, HeadKind};
use tuff_format::config::Configs;
use tuff_format::device::Slot;
use tuff_format::features::{Kernel, incompat};
use tuff_format::inode::Layout;
use tuff_format::{BlockBits, Nid};
use tuff_store::{FileStore, ReadAt};

/// Marks a block of the base among those of the new image.
pub(crate) const IN_BASE: u32 = 1 << 31;
/// Marks a position in the base's packed inode among those in the new image's.
pub(crate) const IN_BASE_PACKED: u64 = 1 << 62;
/// Files of the base that a thread takes at a time: neighbours share clusters of the packed inode.
const FILES: usize = 16;
/// What it takes to know a file of the base: its place, its number and its key. Unit: bytes.
const KNOWN_COST: u64 = 80;

/// The base, open.
pub(crate) struct Base {
    image: Image,
    store: Arc<dyn ReadAt>,
    name: String,
    bits: BlockBits,
    /// Unit: blocks.
    blocks: u32,
    kernel: Kernel,
    /// Algorithm of the packed inode, if there is one.
    packed: Option<u8>,
}

/// What the base has, by content.
#[derive(Default)]
pub(crate) struct Known {
    /// Lengths of files that were looked at. Unit: bytes.
    pub(crate) sizes: HashSet<u64>,
    keys: HashMap<ContentKey, Nid>,
}

impl Known {
    /// The file with this content.
    pub(crate) fn get(&self, key: &ContentKey) -> Option<Nid> {
        self.keys.get(key).copied()
    }
}

/// A piece in a cluster of the base: its block, marked, and its form.
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

/// Fails if an image at `target` would replace its own base.
pub(crate) fn keeps(base: &Path, target: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if id(base).is_some_and(|base| id(target) == Some(base)) {
        return Err(Error::usage(format_args!(
            "{}: an image cannot take the place of its base",
            target.display()
        )));
    }
    Ok(())
}

/// The key of a content, whatever its policy is.
pub(crate) fn base_key(size: u64, hasher: &blake3::Hasher) -> ContentKey {
    content_key(size, u32::MAX, &mut hasher.clone())
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
            blocks,
            kernel: options.kernel,
            packed,
            image,
        })
    }

    /// The store that it is in.
    pub(crate) fn store(&self) -> Arc<dyn ReadAt> {
        Arc::clone(&self.store)
    }

    /// Its length. Unit: blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// What its clusters need readers to know.
    pub(crate) fn configs(&self) -> &Configs {
        self.image.configs()
    }

    /// Its slot in the device table of an image whose own blocks end at `end`.
    pub(crate) fn slot(&self, end: u64) -> Slot {
        Slot {
            tag: crate::read::device_tag(&self.image.superblock().uuid),
            blocks: self.blocks.into(),
            uniaddr: end,
        }
    }

    /// Reads all files whose length is one of `sizes`, within so much memory for what tells them. Unit: bytes.
    pub(crate) fn known(&self, sizes: &HashSet<u64>, memory: u64, threads: usize) -> Result<Known> {
        self.learn(sizes, memory, threads)
            .map_err(|e| e.within(&self.name))
    }

    fn learn(&self, sizes: &HashSet<u64>, memory: u64, threads: usize) -> Result<Known> {
        let most = usize::try_from(memory / KNOWN_COST).unwrap_or(usize::MAX);
        let mut files: Vec<(u64, Nid)> = Vec::new();
        for entry in Walk::root(&self.image)? {
            let inode = entry?.inode;
            if inode.has_data() && sizes.contains(&inode.size()) && files.len() < most {
                files.push((self.place(&inode)?, inode.nid()));
            }
        }
        // In the order of the data, and files with several names once.
        files.sort_unstable();
        files.dedup();
        let groups: Vec<&[(u64, Nid)]> = files.chunks(FILES).collect();
        let look = |i: usize, tools: &mut survey::Tools, out: &mut Vec<(ContentKey, Nid)>| {
            for (_, nid) in groups[i] {
                let inode = self.image.inode(*nid)?;
                out.push((self.key(&inode, &mut tools.buf)?, *nid));
            }
            Ok(())
        };
        let mut keys = survey::parallel(groups.len(), threads, &look)?.concat();
        // Of several files with one content the one with the lowest number.
        keys.sort_unstable();
        keys.dedup_by_key(|(key, _)| *key);
        let sizes = files
            .iter()
            .map(|(_, nid)| Ok(self.image.inode(*nid)?.size()));
        Ok(Known {
            sizes: sizes.collect::<Result<_>>()?,
            keys: keys.into_iter().collect(),
        })
    }

    /// Where the data of a file begins, among that of others.
    fn place(&self, inode: &Inode) -> Result<u64> {
        let first = self.image.extents(inode, 0..1)?.next().transpose()?;
        Ok(match first.map(|e| e.source) {
            Some(Source::Raw { pos, .. } | Source::Cluster(Cluster { pos, .. })) => pos,
            Some(Source::Fragment { offset }) => 1 << 60 | offset,
            _ => 0,
        })
    }

    fn key(&self, inode: &Inode, buf: &mut Vec<u8>) -> Result<ContentKey> {
        const READ: usize = 1 << 20;
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < inode.size() {
            // Fits: the buffer does.
            let n = (inode.size() - at).min(READ as u64) as usize;
            if buf.len() < n {
                buf.resize(n, 0);
            }
            let n = self.image.read_at(inode, &mut buf[..n], at)?;
            if n == 0 {
                return Err(Error::corrupt(inode.place(), "data ends before its size"));
            }
            hasher.update(&buf[..n]);
            at += n as u64;
        }
        Ok(base_key(inode.size(), &hasher))
    }

    /// Where the data of a file is. `None` if the new image cannot say it, or is not to have a file compressed that
    /// the base has compressed. `stored`: it is to be stored as it is.
    pub(crate) fn data(&self, nid: Nid, stored: bool) -> Result<Option<BaseData>> {
        let data = || {
            let inode = self.image.inode(nid)?;
            match inode.layout() {
                Layout::CompressedFull | Layout::CompressedCompact if stored => Ok(None),
                Layout::CompressedFull | Layout::CompressedCompact => self.encoded(&inode),
                _ => self.flat(&inode),
            }
        };
        data().map_err(|e: Error| e.within(&self.name))
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
                    let Some((at, _)) = self.blocks_at(pos, len) else {
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
                } if last && len as usize <= self.inline_max() && self.kernel >= Kernel(5, 17) => {
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
            if extent.len < self.bits.size() && extent.end() != packed.size() {
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
        let (block, blocks) = self.blocks_at(cluster.pos, cluster.len.into())?;
        let (bits, end) = (self.bits.get(), extent.end());
        if !last && end >> bits == extent.offset >> bits {
            return None;
        }
        let piece = ShortPiece {
            len: u32::try_from(extent.len).ok()?,
            blocks: u16::try_from(blocks).ok()?,
            kind,
            partial: cluster.partial,
            // Others may have it, too.
            shared: self.image.superblock().has(incompat::FRAGMENTS),
        };
        Some((block, piece))
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

    /// These bytes as blocks: the first, marked, and how many.
    fn blocks_at(&self, pos: u64, len: u64) -> Option<(u32, u32)> {
        let size = self.bits.size();
        let end = pos.checked_add(len)? >> self.bits.get();
        let whole = pos.is_multiple_of(size) && len.is_multiple_of(size);
        // Fits: below `blocks`.
        (whole && len > 0 && end <= self.blocks.into())
            .then(|| ((pos / size) as u32 | IN_BASE, (len / size) as u32))
    }
}
