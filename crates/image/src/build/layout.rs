//! Where every inode and every block of metadata goes.
//!
//! ```text
//! block 0          superblock, compression records
//! 1 ..             file data, in the order it was packed
//! then             whole blocks of directories and long symbolic links
//! then             shared attributes, attribute prefixes
//! then             inodes: each with attributes, index and inline tail; the root first
//! ```
//!
//! Data comes first because the length of the metadata is known only when all data is packed; the inodes come last and
//! together, so that a walk reads one run of blocks. `meta_blkaddr` is the block before the inodes: that keeps number 0
//! free and the root's number small. Inodes that fit behind the superblock in block 0 lie there instead.
//!
//! Invariants:
//!
//! * No two inodes overlap; each starts at a multiple of 32 bytes.
//! * An inline tail does not cross a block.

use super::base::{Base, IN_BASE};
use super::options::{InodeForm, Options};
use super::pack::{FileData, FileTail, PACKED, Packed};
use super::source::error::Quoted;
use super::tree::{InodeId, NodeKind, Tree};
use super::xattrs::Xattrs;
use crate::{Error, Result};
use tuff_format::cluster::write::{header_pos, index_len};
use tuff_format::device::SLOT_LEN;
use tuff_format::dirent::Fill;
use tuff_format::inode::{ALIGN, COMPACT_LEN, EXTENDED_LEN, Layout};
use tuff_format::units::round_up;
use tuff_format::{BlockBits, Nid, superblock};

/// The most that comes before the inodes of block 0: 1024 bytes, superblock and records of 256 bytes at most, a device slot.
/// Unit: bytes.
pub(crate) const SUPERBLOCK_END: u64 = superblock::OFFSET + 256 + SLOT_LEN as u64;

/// Everything placed.
pub(crate) struct Plan {
    /// Position of each inode in the inode zone, by inode. Unit: [`ALIGN`].
    positions: Vec<u32>,
    /// Position of the packed inode.
    pub(crate) packed_position: Option<u64>,
    /// First whole block of each directory or long link that has some, in the order of `with_blocks`.
    pub(crate) block_of: hashbrown::HashMap<InodeId, u32>,
    /// First block of shared attributes and prefixes.
    pub(crate) xattr_block: u32,
    /// First block of inodes; 0 if they lie behind the superblock.
    pub(crate) zone_block: u32,
    /// Length of the image. Unit: blocks.
    pub(crate) end_block: u32,
    /// Number of inodes.
    pub(crate) inodes: u64,
    /// First block of the base, if there is one.
    base_block: u32,
    /// Base time of compact inodes.
    pub(crate) epoch: (i64, u32),
    /// Serial number of each inode, 1 for the root.
    pub(crate) serials: Vec<u32>,
}

/// How one inode is written: sizes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// 64 bytes.
    pub(crate) extended: bool,
    /// Data layout.
    pub(crate) layout: Layout,
    /// Data size.
    pub(crate) size: u64,
    /// Bytes from the inode's start to its inline tail.
    pub(crate) before_tail: u64,
    /// Inline bytes.
    pub(crate) tail: u64,
}

/// All that layout and emit look at.
pub(crate) struct Parts<'a> {
    /// The tree.
    pub(crate) tree: &'a Tree,
    /// Inodes in the order of the zone.
    pub(crate) order: &'a [InodeId],
    /// The data.
    pub(crate) packed: &'a Packed,
    /// The attributes.
    pub(crate) xattrs: &'a Xattrs,
    /// The options.
    pub(crate) options: &'a Options,
    /// The image that some of the data is in.
    pub(crate) base: Option<&'a Base>,
    /// Shared attributes and the prefix table: bytes of the attribute area.
    pub(crate) xattr_area: u64,
}

impl Parts<'_> {
    fn bits(&self) -> BlockBits {
        self.options.block
    }

    /// The data of a file, identical files resolved.
    pub(crate) fn data(&self, inode: InodeId) -> &FileData {
        if inode == PACKED {
            return &self.packed.packed;
        }
        let file = self.packed.files.get(self.first(inode) as usize);
        file.unwrap_or(&FileData::None)
    }

    /// The file whose data a file has: itself, unless it is identical to another.
    pub(crate) fn first(&self, inode: InodeId) -> InodeId {
        match self.packed.files.get(inode as usize) {
            Some(FileData::Same(first)) => self.first(*first),
            _ => inode,
        }
    }

    /// Attributes behind an inode.
    pub(crate) fn body(&self, inode: InodeId) -> &[u8] {
        if inode == PACKED {
            &[]
        } else {
            &self.xattrs.bodies[self.tree.xattrs(inode) as usize]
        }
    }

    /// Time of an inode, as the options want it.
    pub(crate) fn time(&self, inode: InodeId) -> (i64, u32) {
        let meta = self.tree.meta(inode);
        match (self.options.timestamp, self.options.clamp) {
            (Some(t), _) => (t, 0),
            (None, Some(t)) if meta.mtime >= t => (t, 0),
            _ => (meta.mtime, meta.mtime_nsec),
        }
    }

    /// Owner and group of an inode, as the options want them.
    pub(crate) fn owner(&self, inode: InodeId) -> (u32, u32) {
        let o = self.options;
        let [uid, gid] = owner(self.tree, o, inode);
        // Fit: `check_owners` was here.
        (uid + o.uid_offset, gid + o.gid_offset)
    }

    /// How an inode is written.
    pub(crate) fn form(&self, inode: InodeId, epoch: (i64, u32)) -> Form {
        let size = self.size(inode);
        let extended = self.extended(inode, size, epoch);
        let inode_len = if extended { EXTENDED_LEN } else { COMPACT_LEN };
        let head = (inode_len + self.body(inode).len()) as u64;
        let flat = |tail: u64| Form {
            extended,
            layout: if tail > 0 {
                Layout::FlatInline
            } else {
                Layout::FlatPlain
            },
            size,
            before_tail: head,
            tail,
        };
        let kind = if inode == PACKED {
            None
        } else {
            Some(self.tree.kind(inode))
        };
        match kind {
            Some(NodeKind::Dir | NodeKind::Symlink(_)) => flat(self.inline_part(size, head)),
            Some(NodeKind::Char(_) | NodeKind::Block(_) | NodeKind::Fifo | NodeKind::Socket) => {
                flat(0)
            }
            None | Some(NodeKind::File { .. }) => match self.data(inode) {
                FileData::None | FileData::Same(_) => flat(0),
                FileData::Flat { tail, .. } => flat(tail.map_or(0, |t| t.len() as u64)),
                FileData::WholeFragment { .. } => Form {
                    extended,
                    layout: Layout::CompressedFull,
                    size,
                    before_tail: header_pos(head) + 16,
                    tail: 0,
                },
                FileData::Chunked(chunked) => {
                    let chunk = self.bits().size() << chunked.bits;
                    let table = 4 * size.div_ceil(chunk);
                    let layout = Layout::ChunkBased;
                    Form {
                        extended,
                        layout,
                        size,
                        before_tail: round_up(head, 4) + table,
                        tail: 0,
                    }
                }
                data => {
                    let data = data.compressed().expect("all others were matched");
                    let header = header_pos(head);
                    let compact = self.options.compact_index && data.is_contiguous();
                    let big = data.pieces().any(|(_, p)| p.blocks > 1);
                    let index = index_len(size, header, self.bits(), compact, big);
                    let tail = match data.tail {
                        FileTail::Inline(t) => t.len() as u64,
                        _ => 0,
                    };
                    let layout = if compact {
                        Layout::CompressedCompact
                    } else {
                        Layout::CompressedFull
                    };
                    Form {
                        extended,
                        layout,
                        size,
                        before_tail: header + index,
                        tail,
                    }
                }
            },
        }
    }

    /// Bytes of a directory's or link's data that go behind the inode.
    fn inline_part(&self, size: u64, head: u64) -> u64 {
        let tail = self.bits().within(size);
        // A place exists where head and tail leave the tail in one block.
        if tail > 0 && head % ALIGN + tail <= self.bits().size() {
            tail
        } else {
            0
        }
    }

    fn size(&self, inode: InodeId) -> u64 {
        if inode == PACKED {
            return self.packed.packed_size;
        }
        match self.tree.kind(inode) {
            NodeKind::File { size } => size,
            NodeKind::Symlink(target) => target.len() as u64,
            NodeKind::Dir => self.dir_size(inode),
            _ => 0,
        }
    }

    fn dir_size(&self, dir: InodeId) -> u64 {
        let mut fill = Fill::new(self.bits().size_usize());
        dir_names(self.tree, dir, &mut |name, _| _ = fill.add(name.len()));
        fill.size()
    }

    fn extended(&self, inode: InodeId, size: u64, epoch: (i64, u32)) -> bool {
        if inode == PACKED {
            return size > u32::MAX.into() || self.options.inodes == InodeForm::Extended;
        }
        let (uid, gid) = self.owner(inode);
        let nlink = self.tree.nlink(inode);
        self.options.inodes == InodeForm::Extended
            || size > u32::MAX.into()
            || uid > 0xFFFF
            || gid > 0xFFFF
            || nlink > 0xFFFF
            || self.time(inode) != epoch
    }
}

/// Owner and group of an inode, before offsets are added.
fn owner(tree: &Tree, options: &Options, inode: InodeId) -> [u32; 2] {
    let meta = tree.meta(inode);
    [
        options.uid.unwrap_or(meta.uid),
        options.gid.unwrap_or(meta.gid),
    ]
}

/// Offsets must not lead beyond the highest owner: what follows there is root.
pub(crate) fn check_owners(tree: &Tree, options: &Options) -> Result<()> {
    let offsets = [options.uid_offset, options.gid_offset];
    if offsets == [0, 0] {
        return Ok(());
    }
    for inode in tree.inode_order() {
        let ids = owner(tree, options, inode);
        for (what, (id, offset)) in ["uid", "gid"].iter().zip(ids.into_iter().zip(offsets)) {
            if id.checked_add(offset).is_none() {
                let path = tree.path(inode);
                let path = Quoted(if path.is_empty() { b"." } else { &path });
                return Err(Error::usage(format_args!(
                    "{path}: {what} {id} and an offset of {offset} are more than {}",
                    u32::MAX
                )));
            }
        }
    }
    Ok(())
}

impl super::pack::Encoded<'_> {
    /// True if it uses clusters of other files.
    pub(crate) fn shares(&self) -> bool {
        self.pieces().any(|(_, p)| p.shared)
    }

    /// True if all clusters lie back to back, so that a COMPACT index can say it.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut next = None;
        for (block, piece) in self.pieces() {
            if next.is_some_and(|n| n != block) || piece.partial {
                return false;
            }
            next = Some(block + u32::from(piece.blocks));
        }
        !matches!(self.tail, FileTail::Fragment(offset) if offset >> 32 != 0)
    }
}

/// Calls `each` with every name of a directory in order, "." and ".." among them, and what it names.
pub(crate) fn dir_names<'t>(tree: &'t Tree, dir: InodeId, each: &mut dyn FnMut(&'t [u8], InodeId)) {
    let parent = tree.parent(dir);
    let dots: [(&'t [u8], InodeId); 2] = [(b".", dir), (b"..", parent)];
    let mut dots = dots.into_iter().peekable();
    for d in tree.children(dir) {
        let name = tree.name(d);
        while let Some((dot, inode)) = dots.next_if(|(dot, _)| *dot < name) {
            each(dot, inode);
        }
        each(name, d.inode);
    }
    for (dot, inode) in dots {
        each(dot, inode);
    }
}

impl Plan {
    /// Places everything behind the data.
    pub(crate) fn new(parts: &Parts<'_>) -> Result<Self> {
        let bits = parts.bits();
        let tree = parts.tree;
        let order = parts.order;
        let epoch = common_time(parts);
        let mut positions = vec![u32::MAX; tree.len()];
        let mut serials = vec![0; tree.len()];
        let front = fits_in_front(parts, epoch);
        let mut zone = match front {
            true => Zone::behind_superblock(bits.size()),
            false => Zone::new(bits.size()),
        };
        let mut next_block = u64::from(parts.packed.end_block);
        let mut block_of = hashbrown::HashMap::new();
        for (i, inode) in order.iter().enumerate() {
            let form = parts.form(*inode, epoch);
            let position = zone.place(form.before_tail, form.tail) / ALIGN;
            positions[*inode as usize] = u32::try_from(position)
                .map_err(|_| Error::limit("image", "more than 128 GiB of inodes"))?;
            serials[*inode as usize] = i as u32 + 1;
            if matches!(tree.kind(*inode), NodeKind::Dir | NodeKind::Symlink(_)) {
                let blocks = bits.count(form.size - form.tail);
                if blocks > 0 {
                    block_of.insert(*inode, block32(next_block)?);
                    next_block += blocks;
                }
            }
        }
        let mut inodes = order.len() as u64;
        let mut packed_position = None;
        if parts.packed.packed_size > 0 {
            let form = parts.form(PACKED, epoch);
            packed_position = Some(zone.place(form.before_tail, form.tail));
            inodes += 1;
        }
        let xattr_block = block32(next_block)?;
        let area_end = block32(next_block + bits.count(parts.xattr_area))?;
        let (zone_block, end_block) = match front {
            true => (0, area_end),
            false => (
                area_end,
                block32(u64::from(area_end) + bits.count(zone.end))?,
            ),
        };
        // The base lies right behind, unless the image begins with it.
        let base_block = match parts.base {
            Some(base) if base.in_image() => 0,
            _ => end_block,
        };
        block32(u64::from(base_block) + parts.base.map_or(0, |base| base.blocks().into()))?;
        Ok(Self {
            positions,
            packed_position,
            block_of,
            xattr_block,
            zone_block,
            end_block,
            base_block,
            inodes,
            epoch,
            serials,
        })
    }

    /// Number of an inode.
    pub(crate) fn nid(&self, inode: InodeId, bits: BlockBits) -> Nid {
        self.nid_at(self.position(inode), bits)
    }

    /// Number of what lies at a position in the inode zone.
    pub(crate) fn nid_at(&self, position: u64, bits: BlockBits) -> Nid {
        let before = match self.zone_block {
            0 => 0,
            _ => bits.size(),
        };
        Nid((before + position) / ALIGN)
    }

    /// Position of an inode in the inode zone. Unit: bytes.
    pub(crate) fn position(&self, inode: InodeId) -> u64 {
        u64::from(self.positions[inode as usize]) * ALIGN
    }

    /// Block of number 0: one before the inodes, or that of the superblock.
    pub(crate) fn meta_blkaddr(&self) -> u32 {
        self.zone_block.saturating_sub(1)
    }

    /// The address of a block of data, which may be one of the base.
    pub(crate) fn address(&self, block: u32) -> u32 {
        match block & IN_BASE {
            0 => block,
            // Fits: the base ends below 2^31 blocks.
            _ => self.base_block + (block & !IN_BASE),
        }
    }
}

/// True if all inodes find room behind the superblock, in its block.
fn fits_in_front(parts: &Parts<'_>, epoch: (i64, u32)) -> bool {
    let block = parts.bits().size();
    // What lies in the first block of an image that grows stays until the superblock is written.
    if parts.base.is_some_and(Base::in_image)
        || block < 2 * SUPERBLOCK_END
        || parts.order.len() as u64 > block / ALIGN
    {
        return false;
    }
    let mut zone = Zone::behind_superblock(block);
    let packed = (parts.packed.packed_size > 0).then_some(PACKED);
    parts.order.iter().copied().chain(packed).all(|inode| {
        let form = parts.form(inode, epoch);
        zone.place(form.before_tail, form.tail);
        zone.end == block
    })
}

fn block32(block: u64) -> Result<u32> {
    let fits = u32::try_from(block).ok().filter(|b| *b < 1 << 31);
    fits.ok_or_else(|| Error::limit("image", "larger than 2^31 blocks"))
}

/// The time that most inodes have: theirs can be compact.
fn common_time(parts: &Parts<'_>) -> (i64, u32) {
    let mut counts: hashbrown::HashMap<(i64, u32), u32> = hashbrown::HashMap::new();
    for inode in parts.order {
        *counts.entry(parts.time(*inode)).or_default() += 1;
    }
    // The smallest of equally common ones, so that the order of the map does not matter.
    counts
        .into_iter()
        .max_by_key(|(time, n)| (*n, std::cmp::Reverse(*time)))
        .map_or((0, 0), |(time, _)| time)
}

/// The inode zone while it fills.
struct Zone {
    block: u64,
    /// Everything before is given away or listed in `gaps`. A block border.
    end: u64,
    /// Free runs inside blocks: position and length.
    gaps: Vec<(u64, u64)>,
}

/// Gaps that are remembered: enough to fill well, few enough to keep neighbours together.
const GAPS_MAX: usize = 48;

impl Zone {
    fn new(block: u64) -> Self {
        Self {
            block,
            end: 0,
            gaps: Vec::new(),
        }
    }

    /// The zone in block 0.
    fn behind_superblock(block: u64) -> Self {
        Self {
            block,
            end: block,
            gaps: vec![(SUPERBLOCK_END, block - SUPERBLOCK_END)],
        }
    }

    /// Finds room for `before` bytes and a tail that must not cross a block.
    fn place(&mut self, before: u64, tail: u64) -> u64 {
        let len = before + tail;
        if len <= self.block {
            let fitting = self
                .gaps
                .iter()
                .enumerate()
                .filter(|(_, (_, free))| *free >= len);
            if let Some((i, _)) = fitting.min_by_key(|(_, (at, free))| (*free, *at)) {
                let (at, free) = self.gaps.swap_remove(i);
                self.give_back(
                    at + round_up(len, ALIGN),
                    free.saturating_sub(round_up(len, ALIGN)),
                );
                return at;
            }
        }
        let mut start = self.end;
        let within = (start + before) % self.block;
        if tail > 0 && within + tail > self.block {
            let shift = round_up(self.block - within, ALIGN);
            self.give_back(start, shift);
            start += shift;
        }
        let stop = round_up(start + len, ALIGN);
        self.end = round_up(stop, self.block);
        self.give_back(stop, self.end - stop);
        start
    }

    fn give_back(&mut self, at: u64, len: u64) {
        if len < ALIGN {
            return;
        }
        if self.gaps.len() >= GAPS_MAX {
            // The smallest is of the least use.
            if let Some((i, _)) = self
                .gaps
                .iter()
                .enumerate()
                .min_by_key(|(_, (at, free))| (*free, *at))
            {
                self.gaps.swap_remove(i);
            }
        }
        self.gaps.push((at, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_tails_do_not_cross_blocks() {
        let mut zone = Zone::new(4096);
        let mut seed = 3u64;
        let mut placed = Vec::new();
        for _ in 0..5000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let before = 32 + (seed >> 40) % 200 * if seed >> 60 == 0 { 100 } else { 1 };
            let tail = if seed >> 33 & 1 == 0 {
                0
            } else {
                (seed >> 20) % 4064
            };
            let at = zone.place(before, tail);
            assert_eq!(at % 32, 0);
            assert!(tail == 0 || (at + before) % 4096 + tail <= 4096);
            placed.push((at, at + before + tail));
        }
        placed.sort_unstable();
        assert!(placed.windows(2).all(|w| w[0].1 <= w[1].0));
        assert!(placed.last().unwrap().1 <= zone.end);
        let used: u64 = placed.iter().map(|(a, b)| b - a).sum();
        assert!(used * 10 > zone.end * 9, "{used} of {}", zone.end);
    }
}
