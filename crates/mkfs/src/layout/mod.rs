//! Positions of all inodes and blocks of metadata.
//!
//! ```text
//! block 0          superblock, compression records
//! 1 ..             file data, in the order it was packed
//! then             whole blocks of directories and long symbolic links
//! then             shared attributes, attribute prefixes
//! then             inodes: each with attributes, index and inline tail; the root first
//! ```
//!
//! * Data comes first, because the length of the metadata is known only when all data is packed.
//! * The inodes come last and together, so that a walk reads one range of blocks.
//! * `meta_blkaddr` is the block before the inodes. That keeps nid 0 free and the nid of the root small.
//! * Inodes that fit into block 0 after the superblock are placed there instead.
//! * The inode of a start list follows that of the root, then come the inodes that the start reads, with the packed inode.
//!   Directories with whole blocks that it reads are the last ones.
//!
//! With compressed metadata ([`Metadata::Compressed`]) the attributes and inodes of the tree are data of the metabox
//! inode, back to back. Directories that do not fit as inline data go into the packed inode, if there is one:
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
//! * An encoded inline tail does not start a block: kernels (6.18) fail to read one in the second block of a page.

mod epoch;
mod parts;
mod time;
pub(crate) mod xattrs;
mod zone;

pub(crate) use epoch::{Epoch, old_epoch};
pub(crate) use parts::{
    LayoutInput, ListPlan, Metabox, Parts, check_owners, dir_names, dir_size, index, stored_owner,
    stored_time,
};
pub(crate) use zone::SUPERBLOCK_END;

use super::base::Bases;
use super::options::Metadata;
use super::pack::address::{DataBlock, GrainAddr, Location};
use super::pack::grain::Grain;
use super::patch::unchanged::Unchanged;
use super::tree::{InodeId, METABOX, NodeKind, PACKED, ROOT, START_LIST};
use crate::{Error, Place, Result};
use std::sync::Arc;
use time::common_time;
use tuff_format::inode::{ALIGN, COMPACT_LEN, Layout};
use tuff_format::units::round_up;
use tuff_format::{BlockAddr, BlockBits, Nid};
use zone::Zone;

/// Place of the start list.
#[derive(Clone)]
pub(crate) struct StartPlace {
    /// Position of its inode, as of those of the tree. Unit: bytes.
    pub(crate) position: u64,
    /// The list follows its inode. Otherwise it has blocks of its own.
    pub(crate) is_inline: bool,
    /// Encoded list.
    pub(crate) bytes: Vec<u8>,
}

/// Positions of all inodes and blocks.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Position of each inode in the inode zone or the metabox, by inode, in units of [`ALIGN`].
    positions: Vec<u32>,
    /// Positions of the packed inode and the metabox inode in the inode zone, in bytes.
    hidden: [Option<u64>; 2],
    /// Size of the metabox data in bytes, if the inodes of the tree are there.
    pub(crate) metabox_size: Option<u64>,
    /// First whole block of each directory or long link that has any. Before placement: the number of blocks.
    pub(crate) block_of: hashbrown::HashMap<InodeId, u32>,
    /// Directories in the packed inode, with their positions in bytes.
    pub(crate) packed_dirs: Vec<(InodeId, u64)>,
    /// First block of shared attributes and prefixes, of the image or of the metabox.
    pub(crate) xattr_block: u32,
    /// First block of the inode zone. 0 if it follows the superblock.
    pub(crate) zone_block: u32,
    /// End of the written blocks.
    pub(crate) end_block: u32,
    /// Length of the image in blocks.
    pub(crate) len_blocks: u32,
    /// Number of inodes in the image.
    pub(crate) inodes: u64,
    /// First block of the bases, if there are any. 0 until it is known.
    pub(crate) base_block: u32,
    /// Base time of compact inodes.
    pub(crate) epoch: Epoch,
    /// Some compact inodes have times of their own.
    pub(crate) has_delays: bool,
    serials: Vec<u32>,
    /// Inodes of the patched image that stay in place.
    unchanged: Option<Arc<Unchanged>>,
    /// Start list, if the image has one.
    pub(crate) start: Option<StartPlace>,
}

impl Plan {
    /// Places everything after the data. A metabox is placed later by [`place_metabox`](Self::place_metabox).
    pub(crate) fn new(parts: &Parts<'_>) -> Result<Self> {
        let bits = parts.bits();
        let tree = parts.tree;
        let order = parts.order;
        let epoch = match parts.unchanged {
            Some(unchanged) => old_epoch(&unchanged.superblock, parts.options),
            None => common_time(parts),
        };
        let boxed = parts.options.metadata.form == Metadata::Compressed;
        let front = !boxed && fits_in_front(parts, epoch, parts.order);
        let mut zone = match boxed {
            true => Zone::after(parts.area.len() as u64, bits.size()),
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
            len_blocks: 0,
            inodes: order.len() as u64,
            base_block: 0,
            epoch,
            has_delays: false,
            serials: vec![0; tree.len()],
            unchanged: parts.unchanged.cloned(),
            start: None,
        };
        let mut serial = 0;
        if let Some(unchanged) = parts.unchanged {
            serial = unchanged.last_serial;
        }
        let mut old_blocks = Vec::new();
        let mut next_packed = parts.packed.packed_size;
        for (i, inode) in order.iter().enumerate() {
            if !boxed && parts.start.is_some_and(|start| start.needed == i) {
                plan.place_packed(parts, &mut zone);
            }
            if parts.is_unchanged(*inode) {
                continue;
            }
            let form = parts.form(*inode, epoch);
            if let Some(place) = parts.place(*inode) {
                plan.serials[*inode as usize] = place.inode.raw().ino;
            } else {
                let position = zone.place(&form) / ALIGN;
                plan.positions[*inode as usize] = u32::try_from(position)
                    .map_err(|_| Error::limit(Place::image(), "more than 128 GiB of inodes"))?;
                serial += 1;
                plan.serials[*inode as usize] = serial;
                if let Some(start) = parts.start.filter(|_| *inode == ROOT) {
                    let root_end = position * ALIGN + form.before_tail + form.tail;
                    plan.start = Some(place_start(start, root_end, &mut zone));
                }
            }
            plan.has_delays |= !form.extended && epoch.delay(parts.time(*inode)) != Some(0);
            let has_names = matches!(tree.kind(*inode), NodeKind::Dir | NodeKind::Symlink(_));
            if has_names && form.layout == Layout::CompressedFull {
                plan.packed_dirs.push((*inode, next_packed));
                next_packed += form.size;
            } else if let Some(block) = parts.old_block(*inode, &form) {
                old_blocks.push((*inode, block));
            } else if has_names && form.size > form.tail {
                let blocks = bits.count(form.size - form.tail);
                plan.block_of.insert(*inode, block32(blocks)?);
            }
        }
        if let Some(start) = plan.start.as_ref().filter(|start| !start.is_inline) {
            let blocks = block32(bits.count(start.bytes.len() as u64))?;
            plan.block_of.insert(START_LIST, blocks);
        }
        if boxed {
            plan.metabox_size = Some(zone.end);
            return Ok(plan);
        }
        plan.place_blocks(parts)?;
        plan.block_of.extend(old_blocks);
        plan.xattr_block = match parts.unchanged {
            Some(unchanged) => block32(unchanged.superblock.xattr_blkaddr.0)?,
            None => plan.end_block,
        };
        let area = bits.count(parts.area.len() as u64);
        plan.end_block = block32(u64::from(plan.end_block) + area)?;
        plan.end_zone(parts, zone, front)?;
        Ok(plan)
    }

    /// Places the whole blocks of directories and long links after the data.
    pub(crate) fn place_blocks(&mut self, parts: &Parts<'_>) -> Result<()> {
        self.end_block = parts.packed.end_block;
        // Those that a start reads adjoin the inodes.
        let needed = parts.start.map_or(0, |start| start.needed);
        let (needed, others) = parts.order.split_at(needed);
        for inode in others.iter().chain(needed).chain(&[START_LIST]) {
            if let Some(block) = self.block_of.get_mut(inode) {
                let end = u64::from(self.end_block) + u64::from(*block);
                *block = std::mem::replace(&mut self.end_block, block32(end)?);
            }
        }
        Ok(())
    }

    /// Places the metabox, which follows everything that is placed, and what comes after it.
    pub(crate) fn place_metabox(&mut self, parts: &Parts<'_>, metabox: &Metabox) -> Result<()> {
        let front = fits_in_front(parts, self.epoch, &[]);
        self.end_block = metabox.end_block;
        let zone = Zone::of_image(front, parts.bits().size());
        self.end_zone(parts, zone, front)
    }

    /// Places the hidden inodes and the inode zone at the end. `front` puts the zone after the superblock.
    fn end_zone(&mut self, parts: &Parts<'_>, mut zone: Zone, front: bool) -> Result<()> {
        for inode in hidden(parts) {
            let place = &mut self.hidden[(PACKED - inode) as usize];
            if place.is_none() {
                *place = Some(zone.place(&parts.form(inode, self.epoch)));
            }
            self.inodes += 1;
        }
        self.inodes += u64::from(self.old_packed().is_some());
        if !front {
            self.zone_block = self.end_block;
            let blocks = parts.bits().count(zone.end);
            self.end_block = block32(u64::from(self.end_block) + blocks)?;
        }
        // Inodes in the metabox may contain the first block of the bases.
        self.len_blocks = aligned(parts, self.end_block.max(self.base_block).into())?;
        // The first base follows the image, unless the image starts with it.
        self.base_block = match parts.base {
            Some(base) if base.in_image() => 0,
            _ => self.len_blocks,
        };
        let base_blocks = parts.base.map_or(0, Bases::blocks);
        let after = parts.packed.external.unwrap_or(base_blocks);
        block32(u64::from(self.base_block) + u64::from(after))?;
        self.name_metadata(parts);
        Ok(())
    }

    /// Places the packed inode among the inodes that a start reads.
    fn place_packed(&mut self, parts: &Parts<'_>, zone: &mut Zone) {
        if parts.packed.packed_size > 0 && self.hidden[0].is_none() {
            self.hidden[0] = Some(zone.place(&parts.form(PACKED, self.epoch)));
        }
    }

    /// Writes into the start list which metadata a start reads. It is unknown if the metadata is compressed.
    fn name_metadata(&mut self, parts: &Parts<'_>) {
        let (Some(list), None) = (parts.start, self.metabox_size) else {
            return;
        };
        let bits = parts.bits();
        let needed = &parts.order[..list.needed];
        let blocks = needed.iter().chain(&[START_LIST]);
        let first = blocks.filter_map(|inode| self.block_of.get(inode)).min();
        let area = (!parts.area.is_empty()).then_some(&self.xattr_block);
        let first = match (self.zone_block, first.or(area)) {
            // The inodes are in the block of the superblock.
            (0, _) | (_, None) => self.zone_block,
            (_, Some(first)) => *first,
        };
        let ends = needed.iter().chain(&[PACKED]).map(|inode| {
            let form = parts.form(*inode, self.epoch);
            self.position(*inode) + form.before_tail + form.tail
        });
        let end = ends.chain([self.position(START_LIST) + ALIGN]).max();
        // Fits: within the image.
        let blocks = self.zone_block + bits.count(end.unwrap_or_default()) as u32 - first;
        let mut list = list.list.clone();
        list.meta = (BlockAddr::from(first), blocks);
        if let Some(start) = &mut self.start {
            start.bytes = list.encode();
        }
    }

    /// Returns the nid of an inode of the tree.
    pub(crate) fn nid(&self, inode: InodeId, bits: BlockBits) -> Nid {
        if let Some(nid) = self.unchanged.as_ref().and_then(|u| u.old_nid(inode)) {
            return nid;
        }
        let position = self.position(inode);
        match self.metabox_size {
            Some(_) => Nid::in_the_metabox(position / ALIGN),
            None => self.nid_at(position, bits),
        }
    }

    /// Returns the nid of the packed inode, if there is one.
    pub(crate) fn packed_nid(&self, bits: BlockBits) -> Option<Nid> {
        let new = self.hidden[0].map(|at| self.nid_at(at, bits));
        new.or(self.old_packed())
    }

    /// Returns the nid of the patched image's packed inode, if it stays.
    fn old_packed(&self) -> Option<Nid> {
        self.unchanged.as_ref()?.superblock.packed
    }

    /// Returns the nid of the metabox inode, if there is one.
    pub(crate) fn metabox_nid(&self, bits: BlockBits) -> Option<Nid> {
        self.hidden[1].map(|at| self.nid_at(at, bits))
    }

    /// Returns the nid of a position in the inode zone.
    fn nid_at(&self, position: u64, bits: BlockBits) -> Nid {
        let before = u64::from(self.zone_block - self.meta_blkaddr()) * bits.size();
        Nid((before + position) / ALIGN)
    }

    /// Returns the position in bytes of an inode in the inode zone, or in the metabox for inodes of the tree.
    pub(crate) fn position(&self, inode: InodeId) -> u64 {
        match inode {
            PACKED => self.hidden[0].unwrap_or_default(),
            METABOX => self.hidden[1].unwrap_or_default(),
            START_LIST => self.start.as_ref().map_or(0, |start| start.position),
            _ => u64::from(self.positions[inode as usize]) * ALIGN,
        }
    }

    /// Returns the serial number of an inode, 1 for the root.
    pub(crate) fn serial(&self, inode: InodeId) -> u32 {
        match inode {
            // The hidden inodes have the last numbers.
            PACKED => self.inodes as u32 - u32::from(self.hidden[1].is_some()),
            METABOX => self.inodes as u32,
            _ => self.serials[inode as usize],
        }
    }

    /// Returns the block of nid 0: the one before the inodes, or that of the superblock.
    pub(crate) fn meta_blkaddr(&self) -> u32 {
        match &self.unchanged {
            // Fits: below the end of the image.
            Some(unchanged) => unchanged.superblock.meta_blkaddr.0 as u32,
            None => self.zone_block.saturating_sub(1),
        }
    }

    /// Returns the block address of data in the unified address space.
    pub(crate) fn block_address(&self, block: DataBlock) -> u32 {
        self.address(block.location())
    }

    fn address(&self, block: Location) -> u32 {
        match block {
            Location::Image(block) => block,
            // Fits: the base ends below 2^31 blocks.
            Location::Base(block) => self.base_block + block,
        }
    }

    /// Returns the position of a cluster in the unified address space. Unit: bytes.
    pub(crate) fn cluster_position(
        &self,
        cluster: GrainAddr,
        bits: BlockBits,
        grain: Grain,
    ) -> u64 {
        match cluster.location() {
            Location::Image(at) => grain.bytes(at),
            Location::Base(at) => u64::from(self.base_block) * bits.size() + grain.bytes(at),
        }
    }
}

/// Places the start list behind the root, which ends at `root_end` and was placed last.
fn place_start(start: &ListPlan, root_end: u64, zone: &mut Zone) -> StartPlace {
    let position = round_up(root_end, ALIGN);
    let bytes = start.encode();
    let (inode, all) = (COMPACT_LEN as u64, (COMPACT_LEN + bytes.len()) as u64);
    let is_inline = all <= zone.room_at(position);
    zone.place_at(position, if is_inline { all } else { inode });
    StartPlace {
        position,
        is_inline,
        bytes,
    }
}

/// Lists the inodes that no directory names, other than a start list.
pub(crate) fn hidden(parts: &Parts<'_>) -> impl Iterator<Item = InodeId> {
    let packed = (parts.packed.packed_size > 0).then_some(PACKED);
    let metabox = parts.metabox.map(|_| METABOX);
    packed.into_iter().chain(metabox)
}

/// Returns true if these inodes and the hidden ones fit into the block of the superblock.
fn fits_in_front(parts: &Parts<'_>, epoch: Epoch, inodes: &[InodeId]) -> bool {
    let block = parts.bits().size();
    // The first block of a patched image stays as it is until the superblock is written.
    if (parts.base).is_some_and(|base| base.in_image() || base.slot_count() > 1)
        || block < 2 * SUPERBLOCK_END
        || inodes.len() as u64 > block / ALIGN
    {
        return false;
    }
    let mut zone = Zone::after_superblock(block);
    // As the plan places them.
    let list = parts.start.filter(|_| !inodes.is_empty());
    let (needed, others) = inodes.split_at(list.map_or(0, |list| list.needed));
    let (packed, last): (Vec<_>, Vec<_>) = hidden(parts).partition(|_| list.is_some());
    let all = needed.iter().chain(&packed).chain(others).chain(&last);
    all.copied().all(|inode| {
        let form = parts.form(inode, epoch);
        let position = zone.place(&form);
        if let Some(list) = list.filter(|_| inode == ROOT) {
            place_start(list, position + form.before_tail + form.tail, &mut zone);
        }
        zone.end == block
    })
}

/// Returns the length in blocks of an image that needs `blocks`.
pub(crate) fn aligned(parts: &Parts<'_>, blocks: u64) -> Result<u32> {
    let align = u64::from(parts.options.layout.align_blocks.max(1)).next_power_of_two();
    block32(blocks.next_multiple_of(align))
}

fn block32(block: u64) -> Result<u32> {
    let fits = u32::try_from(block).ok().filter(|b| *b < 1 << 31);
    fits.ok_or_else(|| Error::limit(Place::image(), "larger than 2^31 blocks"))
}
