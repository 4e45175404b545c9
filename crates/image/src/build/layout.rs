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
//! With compressed metadata ([`Metadata::Compressed`]) the tree's attributes and inodes lie in what the metabox inode
//! decodes to, back to back, and directories that do not fit behind their inodes go into the packed inode, if there is one:
//!
//! ```text
//! image    superblock │ file data, directories │ long links │ metabox's clusters │ packed inode, metabox inode
//! metabox  shared attributes, attribute prefixes │ inodes: the root first
//! ```
//!
//! Invariants:
//!
//! * No two inodes overlap; each starts at a multiple of 32 bytes.
//! * An inline tail does not cross a block.

use super::base::{Base, IN_BASE};
use super::metabox::Metabox;
use super::options::{Fragments, InodeForm, Metadata, Options};
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

/// Number of the metabox inode among inodes; it is in no tree, like the packed one.
pub(crate) const METABOX: InodeId = PACKED - 1;

/// True for an inode that no directory names: the packed one and the metabox.
pub(crate) fn is_hidden(inode: InodeId) -> bool {
    inode >= METABOX
}

/// Everything placed.
pub(crate) struct Plan {
    /// Position of each inode in the inode zone or in the metabox, by inode. Unit: [`ALIGN`].
    positions: Vec<u32>,
    /// Positions of the packed inode and the metabox, where they are, in the inode zone. Unit: bytes.
    hidden: [Option<u64>; 2],
    /// What the metabox holds, if the tree's inodes lie there. Unit: bytes.
    pub(crate) metabox_size: Option<u64>,
    /// First whole block of each directory or long link that has some; before they are placed, how many.
    pub(crate) block_of: hashbrown::HashMap<InodeId, u32>,
    /// Directories in the packed inode, and where they are. Unit: bytes.
    pub(crate) packed_dirs: Vec<(InodeId, u64)>,
    /// First block of shared attributes and prefixes, of the image or of the metabox.
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
    pub(crate) epoch: Epoch,
    /// Some compact inodes have times of their own.
    pub(crate) has_delays: bool,
    serials: Vec<u32>,
}

/// The time that compact inodes have, or count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Seconds since 1970.
    pub(crate) seconds: i64,
    /// Nanoseconds, the same for all compact inodes.
    pub(crate) nanos: u32,
    /// A compact inode may say how many seconds later its own time is.
    counts: bool,
}

impl Epoch {
    /// What a compact inode with this time says of it. `None`: it cannot. Unit: seconds.
    pub(crate) fn delay(self, (seconds, nanos): (i64, u32)) -> Option<u32> {
        let delay = u32::try_from(seconds.checked_sub(self.seconds)?).ok()?;
        (nanos == self.nanos && (self.counts || delay == 0)).then_some(delay)
    }
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

/// What is to be written, but for the data.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The tree.
    pub(crate) tree: &'a Tree,
    /// Inodes in the order of the zone.
    pub(crate) order: &'a [InodeId],
    /// The attributes.
    pub(crate) xattrs: &'a Xattrs,
    /// The options.
    pub(crate) options: &'a Options,
    /// The image that some of the data is in.
    pub(crate) base: Option<&'a Base>,
    /// Shared attributes and the prefix table: bytes of the attribute area.
    pub(crate) xattr_area: u64,
}

impl<'a> Wanted<'a> {
    /// All parts, with the data and, once it is made, the metabox.
    pub(crate) fn with<'b>(self, packed: &'b Packed, metabox: Option<&'b Metabox>) -> Parts<'b>
    where
        'a: 'b,
    {
        let Self {
            tree,
            order,
            xattrs,
            options,
            base,
            xattr_area,
        } = self;
        Parts {
            tree,
            order,
            packed,
            xattrs,
            options,
            base,
            xattr_area,
            metabox,
        }
    }
}

/// All that layout and emit look at.
pub(crate) struct Parts<'a> {
    /// As in [`Wanted`].
    pub(crate) tree: &'a Tree,
    /// As in [`Wanted`].
    pub(crate) order: &'a [InodeId],
    /// The data.
    pub(crate) packed: &'a Packed,
    /// As in [`Wanted`].
    pub(crate) xattrs: &'a Xattrs,
    /// As in [`Wanted`].
    pub(crate) options: &'a Options,
    /// As in [`Wanted`].
    pub(crate) base: Option<&'a Base>,
    /// As in [`Wanted`].
    pub(crate) xattr_area: u64,
    /// The metabox, once it is made.
    pub(crate) metabox: Option<&'a Metabox>,
}

impl Parts<'_> {
    fn bits(&self) -> BlockBits {
        self.options.block
    }

    /// The data of a file, identical files resolved.
    pub(crate) fn data(&self, inode: InodeId) -> &FileData {
        match (inode, self.metabox) {
            (PACKED, _) => return &self.packed.packed,
            (METABOX, Some(metabox)) => return &metabox.data,
            _ => {}
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
        if is_hidden(inode) {
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
    pub(crate) fn form(&self, inode: InodeId, epoch: Epoch) -> Form {
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
        let whole_fragment = || Form {
            extended,
            layout: Layout::CompressedFull,
            size,
            before_tail: header_pos(head) + 16,
            tail: 0,
        };
        let kind = if is_hidden(inode) {
            None
        } else {
            Some(self.tree.kind(inode))
        };
        match kind {
            Some(NodeKind::Dir) => match self.inline_part(size, head) {
                tail if tail < size && self.packs_directories() => whole_fragment(),
                tail => flat(tail),
            },
            Some(NodeKind::Symlink(_)) => flat(self.inline_part(size, head)),
            Some(NodeKind::Char(_) | NodeKind::Block(_) | NodeKind::Fifo | NodeKind::Socket) => {
                flat(0)
            }
            None | Some(NodeKind::File { .. }) => match self.data(inode) {
                FileData::None | FileData::Same(_) => flat(0),
                FileData::Flat { tail, .. } => flat(tail.map_or(0, |t| t.len() as u64)),
                FileData::WholeFragment { .. } => whole_fragment(),
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

    /// True if directories that do not fit behind their inodes go into the packed inode.
    fn packs_directories(&self) -> bool {
        let o = self.options;
        // Behind a piece of the base that ends inside a block no other may begin.
        let at_block = self.bits().within(self.packed.packed_size) == 0;
        o.metadata == Metadata::Compressed && o.fragments != Fragments::Off && at_block
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
        match (inode, self.metabox) {
            (PACKED, _) => return self.packed.packed_size,
            (METABOX, Some(metabox)) => return metabox.size,
            _ => {}
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

    fn extended(&self, inode: InodeId, size: u64, epoch: Epoch) -> bool {
        if is_hidden(inode) {
            return size > u32::MAX.into() || self.options.inodes == InodeForm::Extended;
        }
        let (uid, gid) = self.owner(inode);
        let nlink = self.tree.nlink(inode);
        self.options.inodes == InodeForm::Extended
            || size > u32::MAX.into()
            || uid > 0xFFFF
            || gid > 0xFFFF
            || nlink > 0xFFFF
            || epoch.delay(self.time(inode)).is_none()
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
    /// Places everything behind the data; where there is to be a metabox, all but it: see
    /// [`place_metabox`](Self::place_metabox).
    pub(crate) fn new(parts: &Parts<'_>) -> Result<Self> {
        let bits = parts.bits();
        let tree = parts.tree;
        let order = parts.order;
        let epoch = common_time(parts);
        let boxed = parts.options.metadata == Metadata::Compressed;
        let front = !boxed && fits_in_front(parts, epoch, parts.order);
        let mut zone = match boxed {
            true => Zone::behind(parts.xattr_area, bits.size()),
            false => Zone::of_image(front, bits.size()),
        };
        let mut plan = Self {
            positions: vec![u32::MAX; tree.len()],
            hidden: [None; 2],
            metabox_size: None,
            block_of: hashbrown::HashMap::new(),
            packed_dirs: Vec::new(),
            xattr_block: 0,
            zone_block: 0,
            end_block: 0,
            inodes: order.len() as u64,
            base_block: 0,
            epoch,
            has_delays: false,
            serials: vec![0; tree.len()],
        };
        let mut next_packed = parts.packed.packed_size;
        for (i, inode) in order.iter().enumerate() {
            let form = parts.form(*inode, epoch);
            let position = zone.place(form.before_tail, form.tail) / ALIGN;
            plan.positions[*inode as usize] = u32::try_from(position)
                .map_err(|_| Error::limit("image", "more than 128 GiB of inodes"))?;
            plan.serials[*inode as usize] = i as u32 + 1;
            plan.has_delays |= !form.extended && epoch.delay(parts.time(*inode)) != Some(0);
            let has_names = matches!(tree.kind(*inode), NodeKind::Dir | NodeKind::Symlink(_));
            if has_names && form.layout == Layout::CompressedFull {
                plan.packed_dirs.push((*inode, next_packed));
                next_packed += form.size;
            } else if has_names && form.size > form.tail {
                let blocks = bits.count(form.size - form.tail);
                plan.block_of.insert(*inode, block32(blocks)?);
            }
        }
        if boxed {
            plan.metabox_size = Some(zone.end);
            return Ok(plan);
        }
        plan.place_blocks(parts)?;
        plan.xattr_block = plan.end_block;
        let area = bits.count(parts.xattr_area);
        plan.end_block = block32(u64::from(plan.end_block) + area)?;
        plan.end_zone(parts, zone, front)?;
        Ok(plan)
    }

    /// Places the whole blocks of directories and long links behind the data.
    pub(crate) fn place_blocks(&mut self, parts: &Parts<'_>) -> Result<()> {
        self.end_block = parts.packed.end_block;
        for inode in parts.order {
            if let Some(block) = self.block_of.get_mut(inode) {
                let end = u64::from(self.end_block) + u64::from(*block);
                *block = std::mem::replace(&mut self.end_block, block32(end)?);
            }
        }
        Ok(())
    }

    /// Places the metabox, which was made and lies behind all that was placed before, and what lies behind it.
    pub(crate) fn place_metabox(&mut self, parts: &Parts<'_>, metabox: &Metabox) -> Result<()> {
        let front = fits_in_front(parts, self.epoch, &[]);
        self.end_block = metabox.end_block;
        let zone = Zone::of_image(front, parts.bits().size());
        self.end_zone(parts, zone, front)
    }

    /// Places the hidden inodes, and the inode zone behind all else. `front`: it lies behind the superblock.
    fn end_zone(&mut self, parts: &Parts<'_>, mut zone: Zone, front: bool) -> Result<()> {
        for inode in hidden(parts) {
            let form = parts.form(inode, self.epoch);
            let position = zone.place(form.before_tail, form.tail);
            self.hidden[(PACKED - inode) as usize] = Some(position);
            self.inodes += 1;
        }
        if !front {
            self.zone_block = self.end_block;
            let blocks = parts.bits().count(zone.end);
            self.end_block = block32(u64::from(self.end_block) + blocks)?;
        }
        // The base lies right behind, unless the image begins with it.
        self.base_block = match parts.base {
            Some(base) if base.in_image() => 0,
            _ => self.end_block,
        };
        let base_blocks = parts.base.map_or(0, |base| base.blocks().into());
        block32(u64::from(self.base_block) + base_blocks)?;
        Ok(())
    }

    /// Number of an inode of the tree.
    pub(crate) fn nid(&self, inode: InodeId, bits: BlockBits) -> Nid {
        let position = self.position(inode);
        match self.metabox_size {
            Some(_) => Nid::in_the_metabox(position / ALIGN),
            None => self.nid_at(position, bits),
        }
    }

    /// Number of the packed inode, if there is one.
    pub(crate) fn packed_nid(&self, bits: BlockBits) -> Option<Nid> {
        self.hidden[0].map(|at| self.nid_at(at, bits))
    }

    /// Number of the metabox inode, if there is one.
    pub(crate) fn metabox_nid(&self, bits: BlockBits) -> Option<Nid> {
        self.hidden[1].map(|at| self.nid_at(at, bits))
    }

    /// Number of what lies at a position in the inode zone.
    fn nid_at(&self, position: u64, bits: BlockBits) -> Nid {
        let before = match self.zone_block {
            0 => 0,
            _ => bits.size(),
        };
        Nid((before + position) / ALIGN)
    }

    /// Position of an inode in the inode zone, or in the metabox for one of the tree if there is one. Unit: bytes.
    pub(crate) fn position(&self, inode: InodeId) -> u64 {
        match inode {
            PACKED => self.hidden[0].unwrap_or_default(),
            METABOX => self.hidden[1].unwrap_or_default(),
            _ => u64::from(self.positions[inode as usize]) * ALIGN,
        }
    }

    /// Serial number of an inode, 1 for the root.
    pub(crate) fn serial(&self, inode: InodeId) -> u32 {
        match inode {
            // The last ones.
            PACKED => self.inodes as u32 - u32::from(self.hidden[1].is_some()),
            METABOX => self.inodes as u32,
            _ => self.serials[inode as usize],
        }
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

/// The inodes that no directory names.
pub(crate) fn hidden(parts: &Parts<'_>) -> impl Iterator<Item = InodeId> {
    let packed = (parts.packed.packed_size > 0).then_some(PACKED);
    let metabox = parts.metabox.map(|_| METABOX);
    packed.into_iter().chain(metabox)
}

/// True if these inodes and the hidden ones find room behind the superblock, in its block.
fn fits_in_front(parts: &Parts<'_>, epoch: Epoch, inodes: &[InodeId]) -> bool {
    let block = parts.bits().size();
    // What lies in the first block of an image that grows stays until the superblock is written.
    if parts.base.is_some_and(Base::in_image)
        || block < 2 * SUPERBLOCK_END
        || inodes.len() as u64 > block / ALIGN
    {
        return false;
    }
    let mut zone = Zone::behind_superblock(block);
    inodes.iter().copied().chain(hidden(parts)).all(|inode| {
        let form = parts.form(inode, epoch);
        zone.place(form.before_tail, form.tail);
        zone.end == block
    })
}

fn block32(block: u64) -> Result<u32> {
    let fits = u32::try_from(block).ok().filter(|b| *b < 1 << 31);
    fits.ok_or_else(|| Error::limit("image", "larger than 2^31 blocks"))
}

/// The time that most inodes have: theirs can be compact. Where compact inodes count from it, the earliest of those with the
/// same nanoseconds.
fn common_time(parts: &Parts<'_>) -> Epoch {
    let counts = parts.options.metadata != Metadata::Plain;
    let mut uses: hashbrown::HashMap<(i64, u32), u32> = hashbrown::HashMap::new();
    for inode in parts.order {
        let (seconds, nanos) = parts.time(*inode);
        let key = (if counts { 0 } else { seconds }, nanos);
        *uses.entry(key).or_default() += 1;
    }
    // The smallest of equally common ones, so that the order of the map does not matter.
    let most = uses.into_iter();
    let most = most.max_by_key(|(time, n)| (*n, std::cmp::Reverse(*time)));
    let ((mut seconds, nanos), _) = most.unwrap_or_default();
    if counts {
        let same = parts.order.iter().map(|inode| parts.time(*inode));
        let mut same: Vec<i64> = same.filter(|t| t.1 == nanos).map(|t| t.0).collect();
        seconds = earliest(&mut same);
    }
    Epoch {
        seconds,
        nanos,
        counts,
    }
}

/// Of some times the first of the 136 years that hold most of them: a stray one does not make all others long.
fn earliest(times: &mut [i64]) -> i64 {
    times.sort_unstable();
    let within = |first: i64| {
        let end = first.saturating_add(u32::MAX.into());
        times.partition_point(|t| *t <= end) - times.partition_point(|t| *t < first)
    };
    let mut best = (0, 0);
    for first in times.chunk_by(|a, b| a == b).map(|same| same[0]) {
        let n = within(first);
        if n > best.0 {
            best = (n, first);
        }
        if n == times.len() {
            break;
        }
    }
    best.1
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

    /// A zone behind so many bytes, the first of which start a block.
    fn behind(len: u64, block: u64) -> Self {
        let mut zone = Self::new(block);
        zone.end = round_up(len, block);
        let start = round_up(len, ALIGN);
        zone.give_back(start, zone.end - start);
        zone
    }

    /// The zone of an image, perhaps in block 0.
    fn of_image(front: bool, block: u64) -> Self {
        match front {
            true => Self::behind_superblock(block),
            false => Self::new(block),
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
    fn a_stray_time_is_no_epoch() {
        assert_eq!(earliest(&mut []), 0);
        assert_eq!(earliest(&mut [7]), 7);
        assert_eq!(earliest(&mut [1_700_000_000, 0, 1_600_000_000]), 0);
        assert_eq!(earliest(&mut [i64::MIN, 5, 3, i64::MAX]), 3);
        let far = i64::from(u32::MAX);
        assert_eq!(earliest(&mut [0, far, far + 1, far + 2]), far);
    }

    #[test]
    fn compact_inodes_count_from_the_epoch_where_kernels_do() {
        let mut epoch = Epoch {
            seconds: 100,
            nanos: 5,
            counts: true,
        };
        let last = 100 + i64::from(u32::MAX);
        assert_eq!(epoch.delay((last, 5)), Some(u32::MAX));
        for time in [(last + 1, 5), (99, 5), (100, 6), (i64::MIN, 5)] {
            assert_eq!(epoch.delay(time), None, "{time:?}");
        }
        epoch.counts = false;
        assert_eq!(epoch.delay((100, 5)), Some(0));
        assert_eq!(epoch.delay((101, 5)), None);
    }

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
