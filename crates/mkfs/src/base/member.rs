//! One base, with its devices and addresses.

use super::types::{BaseFile, BaseInode, DataPosition};
use crate::options::{Fragments, Options};
use crate::pack::address::{ADDRESS_LIMIT, FragmentAddr};
use crate::pack::grain::Grain;
use crate::source::input_image::InputImage;
use crate::{Error, Place, Remedy, Result};
use std::path::PathBuf;
use std::sync::Arc;
use tuff_erofs::read::{Cluster, Image, Inode, Location};
use tuff_erofs::verity;
use tuff_erofs::walk::Walk;
use tuff_format::config::Configs;
use tuff_format::device::Slot;
use tuff_format::features::KernelVersion;
use tuff_format::inode::Layout;
use tuff_format::{BlockAddr, BlockBits, DeviceId, Nid};
use tuff_store::ReadAt;

/// Base with its open stores.
pub(super) struct Member {
    pub(super) image: Image,
    /// The base itself, then its own devices if they are separate files.
    stores: Vec<Arc<dyn ReadAt>>,
    /// Paths of the stores.
    paths: Vec<PathBuf>,
    pub(super) name: String,
    number: u16,
    pub(super) bits: BlockBits,
    /// Unit of cluster addresses of the new image.
    pub(super) grain: Grain,
    /// First block of the base, counted over all bases.
    origin: u32,
    /// The new image starts with the base (a patch).
    pub(super) in_image: bool,
    /// Device number of the base in the new image.
    first_slot: u16,
    /// Start of its packed inode in bytes, counted over all bases.
    pub(super) packed_origin: u64,
    /// End of its packed inode in bytes, counted over all bases.
    packed_end: u64,
    /// Length in blocks, without its own devices.
    own: u32,
    /// Length in blocks, with its own devices.
    blocks: u32,
    /// End in blocks, with the hash tree that follows it.
    first_free: u32,
    pub(super) kernel: KernelVersion,
    /// Algorithm of new clusters of the new packed inode, if there is one.
    pub(super) packed: Option<u8>,
    /// Another algorithm that clusters of the new packed inode may have.
    pub(super) second: Option<u8>,
    /// True for the last base.
    pub(super) last: bool,
}

impl Member {
    /// Opens base `number`. Earlier bases end at block `origin`, at byte `packed_origin` of
    /// their packed inodes and at device number `last_slot`.
    ///
    /// # Errors
    /// `Usage` if an image with these options cannot refer to it; errors of opening an image.
    pub(super) fn open(
        number: u16,
        input: &InputImage,
        options: &Options,
        (origin, packed_origin, last_slot): (u32, u64, u16),
    ) -> Result<Self> {
        let name = input.name().display().to_string();
        let image = input.reopen()?;
        let (stores, paths) = (image.stores(), input.names().to_vec());
        let bits = options.block;
        let its_bits = image.superblock().block_bits;
        if its_bits != bits {
            return Err(Error::usage(format_args!(
                "{name}: a base with blocks of {} bytes, but the image has blocks of {}",
                its_bits.size(),
                bits.size()
            )));
        }
        let (own, blocks) = span(&image, &stores).map_err(|e| e.within(Place::file(&name)))?;
        if u64::from(origin) + blocks >= ADDRESS_LIMIT.into() {
            return Err(Error::usage(format_args!(
                "{name}: bases of 2^31 blocks or more"
            )));
        }
        // Its packed inode needs the compression of the new one and a place in the format.
        let packed_len = image.packed().map_or(0, Inode::size);
        let packed_end = packed_origin.saturating_add(packed_len);
        let packed = (options.compression.default)
            .filter(|_| {
                options.layout.fragments != Fragments::Off && packed_end < FragmentAddr::LIMIT
            })
            .map(|c| c.method.algorithm() as u8);
        let slots = u16::try_from(stores.len()).ok();
        if slots.and_then(|n| last_slot.checked_add(n)).is_none() {
            return Err(Error::limit("device table", "more than 65,535 devices"));
        }
        Ok(Self {
            stores,
            paths,
            name,
            number,
            in_image: false,
            first_slot: last_slot + 1,
            bits,
            grain: options.grain(),
            origin,
            packed_origin,
            packed_end,
            // Fits: no more than `blocks`, which was compared with the limit.
            own: own as u32,
            blocks: blocks as u32,
            first_free: blocks as u32,
            kernel: options.kernel,
            packed,
            second: None,
            image,
            last: false,
        })
    }

    /// Fails if some of its data is on a device that was not given.
    pub(super) fn has_devices(&self) -> Result<()> {
        let name = &self.name;
        let missing = |e: Error| {
            e.within(Place::file(name))
                .with_remedy(Remedy::SourceDevices)
        };
        self.image.has_devices().map_err(missing)
    }

    /// Marks the last base.
    pub(super) fn set_last(&mut self) {
        self.last = true;
    }

    /// Marks the base that the new image starts with.
    pub(super) fn set_in_image(&mut self) {
        self.in_image = true;
    }

    /// Finds the hash tree that follows the base; it stays until the patch takes effect.
    pub(super) fn skip_hash_tree(&mut self) -> Result<()> {
        check_no_devices(&self.image).map_err(|e| e.within(Place::file(&self.name)))?;
        if let Some(tree) =
            verity::appended_tree(&self.image).map_err(|e| e.within(Place::file(&self.name)))?
        {
            let end = u32::try_from(tree.end.div_ceil(self.bits.size())).ok();
            self.first_free = end.filter(|b| *b < ADDRESS_LIMIT).ok_or_else(|| {
                Error::usage(format_args!(
                    "{}: with its hash tree it has 2^31 blocks or more",
                    self.name
                ))
            })?;
        }
        Ok(())
    }

    /// Returns the first block of the base, counted over all bases.
    pub(super) fn origin(&self) -> u32 {
        self.origin
    }

    /// Returns the start of the next base: in blocks, and in bytes of packed inodes.
    pub(super) fn end(&self) -> (u32, u64) {
        // Fits: compared with the limit in `open`.
        (self.origin + self.blocks, self.packed_end)
    }

    /// Returns the last device number of the base and its devices in the new image.
    pub(super) fn end_slot(&self) -> u16 {
        // Fits: compared with the limit in `open`.
        self.first_slot + (self.stores.len() - 1) as u16
    }

    /// Returns the end in blocks, with the hash tree that follows it.
    pub(super) fn first_free(&self) -> u32 {
        self.first_free
    }

    /// Returns the compression records of the base.
    pub(super) fn configs(&self) -> &Configs {
        self.image.configs()
    }

    /// Returns the stores of the base, one per slot.
    pub(super) fn stores(&self) -> impl Iterator<Item = Arc<dyn ReadAt>> {
        self.stores.iter().cloned()
    }

    /// Returns the paths of the stores.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Returns the slots of the base and its devices, in an image whose addresses for bases start at block `at`.
    pub(super) fn slots(&self, at: u64) -> impl Iterator<Item = Slot> {
        let at = at + u64::from(self.origin);
        let inner = match self.stores.len() {
            1 => &[],
            _ => self.image.slots(),
        };
        let own = Slot {
            tag: tuff_erofs::read::device_tag(&self.image.superblock().uuid),
            blocks: self.own.into(),
            uniaddr: BlockAddr(at),
        };
        let inner = inner.iter().map(move |slot| Slot {
            uniaddr: BlockAddr(at + slot.uniaddr.0),
            ..slot.clone()
        });
        std::iter::once(own).chain(inner)
    }

    /// Lists at most `count_max` files with data that match `filter`, in the order of their data. A file with several names
    /// is listed once.
    pub(super) fn files(
        &self,
        count_max: usize,
        filter: &dyn Fn(&Inode) -> bool,
    ) -> Result<Vec<BaseFile>> {
        let list = || {
            let mut files: Vec<BaseFile> = Vec::new();
            for entry in Walk::root(&self.image)? {
                let inode = entry?.inode;
                if files.len() < count_max && inode.has_data() && filter(&inode) {
                    files.push(self.file(&inode)?);
                }
            }
            files.sort_unstable();
            files.dedup();
            Ok(files)
        };
        list().map_err(|e: Error| e.within(Place::file(&self.name)))
    }

    fn file(&self, inode: &Inode) -> Result<BaseFile> {
        let position = self.data_position(inode)?;
        let in_clusters = is_compressed(inode) && matches!(position, DataPosition::Device(_));
        Ok(BaseFile {
            position,
            inode: BaseInode {
                base: self.number,
                nid: inode.nid(),
            },
            size: inode.size(),
            clusters: in_clusters && self.can_share_clusters(),
            stored: !is_compressed(inode),
        })
    }

    /// Fills `buf` from `offset` of a file, as a reader of the base gets it.
    pub(super) fn read_exact(&self, nid: Nid, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut read = || {
            let inode = self.image.inode(nid)?;
            if self.image.read_at(&inode, buf, offset)? < buf.len() {
                return Err(Error::corrupt(inode.place(), "data ends before its size"));
            }
            Ok(())
        };
        read().map_err(|e| e.within(Place::file(&self.name)))
    }

    /// Returns the position of the first byte of a file's data.
    pub(super) fn data_position(&self, inode: &Inode) -> Result<DataPosition> {
        let first = self.image.extents(inode, 0..1)?.next().transpose()?;
        Ok(match first.map(|e| e.location) {
            Some(Location::Raw { pos, .. } | Location::Cluster(Cluster { pos, .. })) => {
                DataPosition::Device(pos)
            }
            Some(Location::Fragment { offset }) => DataPosition::Packed(offset),
            _ => DataPosition::Device(0),
        })
    }

    /// Converts byte `pos` of a device to a position in the unified address space of the base.
    pub(super) fn unified(&self, device: DeviceId, pos: u64) -> Option<u64> {
        let Some(slot) = device.slot() else {
            return Some(pos);
        };
        let slot = self.image.slots().get(slot)?;
        let inside = pos < slot.blocks.checked_mul(self.bits.size())?;
        let start = slot.uniaddr.position(self.bits)?;
        start.checked_add(pos).filter(|_| inside)
    }

    /// Reads `count` grains from `grain` on.
    pub(super) fn grains_from(&self, grain: u32, count: u16) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::from(count) * self.grain.size()];
        let pos = self.position(grain);
        let read = self.image.read_device(DeviceId::PRIMARY, pos, &mut bytes);
        read.map_err(|e| e.within(Place::file(&self.name)))?;
        Ok(bytes)
    }

    /// Returns the device of the new image that holds a block, and the block's number there.
    pub(super) fn block_on_device(&self, block: u32) -> (DeviceId, u32) {
        let pos = u64::from(block - self.origin) * self.bits.size();
        match self.image.locate(DeviceId::PRIMARY, pos) {
            // Fits: slots and blocks were counted when the base was opened.
            Ok((spot, _)) => (
                DeviceId(self.first_slot + spot.store),
                (spot.pos >> self.bits.get()) as u32,
            ),
            Err(_) => unreachable!("it was found before"),
        }
    }

    /// Returns the device number of the base's own that holds a position in its unified address space.
    pub(super) fn store_of(&self, pos: u64) -> Result<u16> {
        Ok(self.image.locate(DeviceId::PRIMARY, pos)?.0.store)
    }

    /// Returns the position of a grain in the unified address space of the base. Unit: bytes.
    fn position(&self, grain: u32) -> u64 {
        self.grain.bytes(grain) - u64::from(self.origin) * self.bits.size()
    }

    /// Converts bytes of the base to units of `size`: the first one, counted over all bases, and their number. `None` unless the
    /// units are whole and lie on one device.
    pub(super) fn within(&self, size: usize, pos: u64, len: u64) -> Option<(u32, u32)> {
        let size = size as u64;
        let end = pos.checked_add(len)?;
        let whole = pos.is_multiple_of(size) && len.is_multiple_of(size);
        let inside = len > 0 && end <= u64::from(self.blocks) * self.bits.size();
        if !whole || !inside || self.image.locate(DeviceId::PRIMARY, pos).ok()?.1 < len {
            return None;
        }
        let origin = u64::from(self.origin) * self.bits.size();
        let first = u32::try_from((origin + pos) / size)
            .ok()
            .filter(|first| *first < ADDRESS_LIMIT)?;
        // Fits: a cluster, or below `blocks`.
        Some((first, (len / size) as u32))
    }
}

/// Returns the length of a base in blocks of the unified address space, without its own devices and with them.
fn span(image: &Image, stores: &[Arc<dyn ReadAt>]) -> Result<(u64, u64)> {
    let sb = image.superblock();
    let stored_blocks = stores[0].size() >> sb.block_bits.get();
    let mut end = sb.blocks.min(stored_blocks);
    if stores.len() == 1 {
        // By its slots, the devices follow the image in the same file.
        let ends = image
            .slots()
            .iter()
            .map(|slot| slot.uniaddr.0 + slot.blocks);
        end = ends.fold(end, u64::max);
        return Ok((end, end));
    }
    let first = image.slots().iter().map(|slot| slot.uniaddr.0).min();
    let own = end.min(first.unwrap_or(end));
    for (slot, number) in image.slots().iter().zip(1..) {
        if slot.uniaddr.0 < own {
            return Err(Error::usage(format_args!(
                "a base whose device {number} has no addresses of its own"
            )));
        }
        end = end.max(slot.uniaddr.saturating_add(slot.blocks).0);
    }
    Ok((own, end))
}

/// Fails for an image with extra devices.
pub(crate) fn check_no_devices(image: &Image) -> Result<()> {
    match image.slots().is_empty() {
        true => Ok(()),
        false => Err(Error::usage(
            "an image with extra devices cannot be patched",
        )),
    }
}

pub(crate) fn is_compressed(inode: &Inode) -> bool {
    matches!(
        inode.layout(),
        Layout::CompressedFull | Layout::CompressedCompact
    )
}
