//! Opening an image, and access to its metadata.

use super::cache::Cache;
use super::decode::Workers;
use super::devices::{assign, is_named, read_slots, read_some, tag_of};
use super::extent::FileMap;
use super::fetch::{Bytes, Devices, Space, StorePosition, WINDOW, Windows};
use super::inode::Inode;
use super::limits::{Limits, WorkBudget};
use crate::{Error, Place, Remedy, Result};
use std::sync::{Arc, OnceLock};
use tuff_format::config::Configs;
use tuff_format::device::Slot;
use tuff_format::features::{compat, incompat};
use tuff_format::inode::FileType;
use tuff_format::superblock::{self, Superblock};
use tuff_format::xattr::LongPrefix;
use tuff_format::{DeviceId, Nid, cluster};
use tuff_store::ReadAt;

/// Options for opening an image with [`Image::open`].
pub struct OpenOptions {
    /// Stores for the slots of the device table. Stores of images that the table names by UUID may come in any order, all
    /// others in the order of their slots. If empty, all data is on the primary store ("flat" mode).
    pub devices: Vec<Arc<dyn ReadAt>>,
    /// Limits on the resources that reading may take.
    pub limits: Limits,
    /// Whether a wrong superblock checksum is an error. Default: true, as in the kernel.
    pub verify_checksum: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            limits: Limits::default(),
            verify_checksum: true,
        }
    }
}

/// Image opened for reading. It can be shared by threads.
///
/// Bytes of the image are not trusted: each structure is validated when it is decoded, and sizes are compared
/// with the [`Limits`] before they are used.
pub struct Image {
    pub(crate) devices: Devices,
    sb: Superblock,
    checksum_ok: Option<bool>,
    configs: Configs,
    slots: Vec<Slot>,
    prefixes: Vec<LongPrefix>,
    limits: Limits,
    windows: Windows,
    pub(crate) maps: Cache<Nid, FileMap>,
    /// Cache of decoded clusters, keyed by position, length and coding.
    pub(crate) decoded: Cache<super::extent::ClusterKey, Arc<Vec<u8>>>,
    pub(crate) workers: Workers,
    metabox: Option<(Inode, FileMap)>,
    packed: Option<(Inode, FileMap)>,
    /// Root once it is read. A patch overwrites it in place, and an open image keeps its tree.
    pub(super) root: OnceLock<Inode>,
}

impl Image {
    /// Opens the image in `store`.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` for an image that a kernel refuses to mount. `Usage` if the number of
    /// devices is wrong. `Io` if the store fails.
    pub fn open(store: impl ReadAt + 'static, options: OpenOptions) -> Result<Self> {
        Self::open_shared(Arc::new(store), options)
    }

    /// As [`open`](Self::open), for a store that is already shared.
    pub fn open_shared(store: Arc<dyn ReadAt>, options: OpenOptions) -> Result<Self> {
        let place = "superblock (byte 1024)";
        let head = read_some(&*store, superblock::OFFSET, 4096 - 1024)?;
        let sb = Superblock::decode(&head).map_err(|e| Error::format(place, e))?;
        let checksum_ok = checksum_ok(&*store, &sb)?;
        if options.verify_checksum && checksum_ok == Some(false) {
            let what = format_args!(
                "checksum {:#010x} does not match the bytes it covers",
                sb.checksum
            );
            return Err(Error::corrupt(place, what).with_remedy(Remedy::IgnoreChecksum));
        }
        let configs = read_configs(&*store, &sb)?;
        let slots = read_slots(&*store, &sb)?;
        let given = options.devices.len();
        if given != 0 && given != slots.len() {
            return Err(Error::usage(format_args!(
                "the image has {} extra devices, {given} were given",
                slots.len()
            )));
        }
        let tag = |device: &Arc<dyn ReadAt>| tag_of(&**device);
        let (extra, _) = assign(&slots, options.devices, tag);
        let extra: Vec<Arc<dyn ReadAt>> = extra.into_iter().flatten().collect();
        for ((slot, device), n) in slots.iter().zip(&extra).zip(1..) {
            is_named(slot, &**device, n)?;
        }
        let devices = Devices::new(store, extra, slots.clone(), sb.block_bits);
        let limits = options.limits;
        let mut image = Self {
            devices,
            checksum_ok,
            configs,
            slots,
            prefixes: Vec::new(),
            windows: Cache::new(limits.metadata_cache, shards(limits.metadata_cache, WINDOW)),
            maps: Cache::new(limits.index_cache, shards(limits.index_cache, 1 << 18)),
            decoded: Cache::new(limits.cluster_cache, shards(limits.cluster_cache, 2 << 20)),
            workers: Workers::default(),
            limits,
            metabox: None,
            packed: None,
            root: OnceLock::new(),
            sb,
        };
        image.packed = image.hidden(image.sb.packed, "packed inode")?;
        image.metabox = image.hidden(image.sb.metabox, "metabox inode")?;
        image.prefixes = image
            .read_prefixes()
            .map_err(|e| e.within("table of attribute name prefixes"))?;
        Ok(image)
    }

    /// Opens the image again from the same stores, with caches of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn reopen(&self) -> Result<Self> {
        let mut stores = self.stores();
        let store = stores.remove(0);
        let options = OpenOptions {
            devices: stores,
            limits: self.limits.clone(),
            verify_checksum: self.checksum_ok != Some(false),
        };
        Self::open_shared(store, options)
    }

    /// Returns the stores of the image: its own, then that of each slot of the device table, if devices were given.
    pub fn stores(&self) -> Vec<Arc<dyn ReadAt>> {
        self.devices.stores()
    }

    /// Replaces the caches of metadata, indexes and decoded clusters by empty ones of these capacities. Unit:
    /// bytes.
    pub(crate) fn set_caches(&mut self, metadata: usize, index: usize, clusters: usize) {
        self.windows = Cache::new(metadata, shards(metadata, WINDOW));
        self.maps = Cache::new(index, shards(index, 1 << 18));
        self.decoded = Cache::new(clusters, shards(clusters, 2 << 20));
    }

    /// Evicts from the caches until they hold at most `bytes`.
    pub(crate) fn shrink_caches(&self, bytes: usize) {
        self.windows.shrink(bytes / 2);
        self.maps.shrink(bytes / 4);
        self.decoded.shrink(bytes / 4);
    }

    /// Returns the size of the cached data. Unit: bytes.
    pub(crate) fn cached(&self) -> usize {
        self.windows.used() + self.maps.used() + self.decoded.used()
    }

    /// Returns the decoded superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Returns whether the checksum of the superblock is right. `None` if the image has no checksum.
    pub fn checksum_ok(&self) -> Option<bool> {
        self.checksum_ok
    }

    /// Returns the compression configurations, which bound the parameters of the compressed data.
    pub fn configs(&self) -> &Configs {
        &self.configs
    }

    /// Returns the slots of the device table.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Checks that each device that holds data was given.
    ///
    /// # Errors
    /// `Usage` with the number of the first missing device.
    pub fn has_devices(&self) -> Result<()> {
        let Some(i) = self.devices.missing() else {
            return Ok(());
        };
        Err(self.devices.absent(i))
    }

    /// Returns the long prefixes of extended attribute names.
    pub fn prefixes(&self) -> &[LongPrefix] {
        &self.prefixes
    }

    /// Returns the limits given at opening.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the size of the primary store. Unit: bytes.
    pub fn store_size(&self) -> u64 {
        self.devices.primary_size()
    }

    /// Returns the size of all stores together. Unit: bytes.
    fn total_size(&self) -> u64 {
        self.devices.total_size()
    }

    /// Fills `buf` from byte `pos` of a device; the primary device stands for the unified address space.
    ///
    /// # Errors
    /// `Corrupt` for a position that no device has, `Io` for a failed read.
    pub fn read_device(&self, device: DeviceId, pos: u64, buf: &mut [u8]) -> Result<()> {
        self.devices.read(device, pos, buf)
    }

    /// Returns the store that holds byte `pos` of a device, and the number of bytes from there to the end of that store.
    ///
    /// # Errors
    /// `Corrupt` for a position that no device has.
    pub fn locate(&self, device: DeviceId, pos: u64) -> Result<(StorePosition, u64)> {
        self.devices.locate(device, pos)
    }

    /// Returns the budget of names for one walk.
    pub(crate) fn name_budget(&self) -> WorkBudget {
        WorkBudget::names(&self.limits, self.total_size())
    }

    /// Returns the budget of content bytes for one operation.
    pub fn content_budget(&self) -> WorkBudget {
        WorkBudget::content(&self.limits, self.total_size())
    }

    /// Returns the primary store.
    pub(crate) fn store(&self) -> &Arc<dyn ReadAt> {
        self.devices.primary()
    }

    /// Returns the parameters that all clusters of the image share.
    pub(crate) fn form(&self) -> super::decode::Form {
        super::decode::Form {
            bits: self.sb.block_bits,
            right_aligned: self.sb.has(incompat::LZ4_0PADDING),
        }
    }

    /// Returns the root directory.
    ///
    /// # Errors
    /// As for [`inode`](Self::inode), and `Corrupt` if it is not a directory.
    pub fn root(&self) -> Result<Inode> {
        let root = self.inode(self.sb.root).map_err(|e| e.within("root"))?;
        let root = *self.root.get_or_init(|| root);
        if !root.is_dir() {
            return Err(Error::corrupt(
                root.place(),
                format_args!("the root is a {}", root.file_type().name()),
            ));
        }
        Ok(root)
    }

    /// Returns the packed inode, whose data holds the fragments. `None` if the image has none.
    pub fn packed(&self) -> Option<&Inode> {
        self.packed.as_ref().map(|(inode, _)| inode)
    }

    /// Returns the metabox inode, whose data holds other inodes. `None` if the image has none.
    pub fn metabox(&self) -> Option<&Inode> {
        self.metabox.as_ref().map(|(inode, _)| inode)
    }

    pub(crate) fn packed_map(&self) -> Result<(&Inode, &FileMap)> {
        let packed = self
            .packed
            .as_ref()
            .ok_or_else(|| Error::corrupt("", "a fragment, but no packed inode"))?;
        Ok((&packed.0, &packed.1))
    }

    /// Loads an inode that only the superblock refers to, with its map. `what` names it in errors.
    fn hidden(&self, nid: Option<Nid>, what: &'static str) -> Result<Option<(Inode, FileMap)>> {
        let Some(nid) = nid else { return Ok(None) };
        let inode = self.inode(nid).map_err(|e| e.within(what))?;
        let place = |e: Error| e.within(what);
        if inode.file_type() != FileType::File {
            let kind = inode.file_type().name();
            let what = format_args!("is a {kind}, expected a regular file");
            return Err(place(Error::corrupt(inode.place(), what)));
        }
        let map = self.map_once(&inode).map_err(place)?;
        let fragment = map.clusters().is_some_and(|c| {
            c.map.advise() & cluster::header::FRAGMENT != 0
                || matches!(c.map.form, cluster::Form::WholeFragment { .. })
        });
        // The metabox may refer to fragments of the packed inode; the packed inode cannot contain its own
        // tail.
        if fragment && Some(nid) == self.sb.packed {
            let what = "the packed inode is itself a fragment";
            return Err(place(Error::corrupt(inode.place(), what)));
        }
        Ok(Some((inode, map)))
    }

    fn read_prefixes(&self) -> Result<Vec<LongPrefix>> {
        let sb = &self.sb;
        let mut at = u64::from(sb.xattr_prefix_start) * 4;
        let from_packed = !sb.has_compat(compat::PLAIN_XATTR_PFX)
            && !sb.has(incompat::METABOX)
            && sb.packed.is_some();
        let in_metabox = !sb.has_compat(compat::PLAIN_XATTR_PFX) && sb.has(incompat::METABOX);
        let mut out = Vec::new();
        for _ in 0..sb.xattr_prefix_count {
            // The encoded length of a prefix is at most 258 bytes.
            let bytes = if from_packed {
                let (inode, map) = self.packed_map()?;
                let mut bytes = vec![0; 258];
                let n = self.read_mapped(inode, map, &mut bytes, at)?;
                bytes.truncate(n);
                Bytes::own(bytes)
            } else if in_metabox {
                self.bytes_up_to(Space::Metabox, at, 258)?
            } else {
                self.bytes_up_to(Space::Image, at, 258)?
            };
            let (prefix, len) =
                LongPrefix::decode(&bytes).map_err(|e| Error::format(Place::byte(at), e))?;
            out.push(prefix);
            at = (at + len as u64).next_multiple_of(4);
        }
        Ok(out)
    }

    /// Returns the size of an address space. Unit: bytes.
    pub(crate) fn space_size(&self, space: Space) -> Result<u64> {
        match space {
            Space::Image => Ok(self.devices.primary_size()),
            Space::Metabox => Ok(self.metabox_map()?.0.size()),
        }
    }

    fn metabox_map(&self) -> Result<(&Inode, &FileMap)> {
        let (inode, map) = self
            .metabox
            .as_ref()
            .ok_or_else(|| Error::corrupt("", "inside the metabox, but the image has none"))?;
        Ok((inode, map))
    }

    /// Returns `len` bytes at `pos` of an address space, through the metadata cache.
    ///
    /// # Errors
    /// `Corrupt` if the range ends past the end of the space.
    pub fn bytes(&self, space: Space, pos: u64, len: usize) -> Result<Bytes> {
        let size = self.space_size(space)?;
        if pos.checked_add(len as u64).is_none_or(|end| end > size) {
            let what = match pos < size {
                true => format!("{len} bytes reach past the end, byte {size}"),
                false => format!("past the end, byte {size}: the image may be truncated"),
            };
            return Err(Error::corrupt(Place::byte(pos), what));
        }
        if len == 0 {
            return Ok(Bytes::own(Vec::new()));
        }
        let (first, last) = (pos / WINDOW, (pos + len as u64 - 1) / WINDOW);
        if last > first + 1 {
            // Spans more than two windows: not cached.
            return self.uncached(space, pos, len);
        }
        // Fits: less than WINDOW.
        let from = (pos % WINDOW) as usize;
        let Ok(window) = self.window(space, first, size) else {
            // The requested bytes may be readable even if another part of the window is not.
            return self.uncached(space, pos, len);
        };
        if first == last {
            return Ok(Bytes::part(window, from..from + len));
        }
        let Ok(next) = self.window(space, last, size) else {
            return self.uncached(space, pos, len);
        };
        let mut both = Vec::with_capacity(len);
        both.extend_from_slice(&window[from..]);
        both.extend_from_slice(&next[..len - both.len()]);
        Ok(Bytes::own(both))
    }

    /// As [`bytes`](Self::bytes), but shorter if the space ends first. Returns at least 1 byte.
    pub(crate) fn bytes_up_to(&self, space: Space, pos: u64, len: usize) -> Result<Bytes> {
        let left = self.space_size(space)?.saturating_sub(pos).max(1);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        self.bytes(space, pos, len)
    }

    /// Returns all bytes of metadata window `n`.
    pub(crate) fn window_of(&self, space: Space, n: u64) -> Result<Bytes> {
        let size = self.space_size(space)?;
        if n.checked_mul(WINDOW).is_none_or(|start| start >= size) {
            return Err(Error::corrupt("", "past the end"));
        }
        let window = self.window(space, n, size)?;
        let len = window.len();
        Ok(Bytes::part(window, 0..len))
    }

    fn window(&self, space: Space, n: u64, size: u64) -> Result<Arc<Vec<u8>>> {
        if let Some(window) = self.windows.get(&(space, n)) {
            return Ok(window);
        }
        let start = n * WINDOW;
        // Fits: at most WINDOW. Not empty: the callers request a byte inside the window.
        let len = (size - start).min(WINDOW) as usize;
        let window = Arc::new(self.read_space(space, start, len)?);
        self.windows.put((space, n), window.clone(), len);
        Ok(window)
    }

    fn uncached(&self, space: Space, pos: u64, len: usize) -> Result<Bytes> {
        Ok(Bytes::own(self.read_space(space, pos, len)?))
    }

    fn read_space(&self, space: Space, pos: u64, len: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0; len];
        match space {
            Space::Image => {
                let spot = super::fetch::StorePosition { store: 0, pos };
                self.devices.read_spot(spot, &mut buf)?;
            }
            Space::Metabox => {
                let (inode, map) = self.metabox_map()?;
                self.read_mapped(inode, map, &mut buf, pos)?;
            }
        }
        Ok(buf)
    }

    /// Returns `len` bytes at `offset` of an inode's data, for metadata such as directories. Inline data and
    /// data on the primary device go through the metadata cache.
    pub(crate) fn data_bytes(
        &self,
        inode: &Inode,
        map: &FileMap,
        offset: u64,
        len: usize,
    ) -> Result<Bytes> {
        if let FileMap::Flat {
            start,
            in_blocks,
            space,
            tail_pos,
            ..
        } = map
        {
            if offset >= *in_blocks {
                return self.bytes(*space, tail_pos.saturating_add(offset - in_blocks), len);
            }
            if let (Some(start), true) = (start, offset + len as u64 <= *in_blocks) {
                let pos = start.saturating_add(offset);
                let (spot, left) = self.devices.locate(DeviceId::PRIMARY, pos)?;
                if spot.store == 0 && left >= len as u64 {
                    return self.bytes(Space::Image, spot.pos, len);
                }
            }
        }
        let mut buf = vec![0; len];
        self.read_mapped(inode, map, &mut buf, offset)?;
        Ok(Bytes::own(buf))
    }
}

/// Number of shards such that each can hold at least four of the largest values; 1 to 8.
fn shards(budget: usize, largest: u64) -> usize {
    (budget / (4 * largest as usize)).clamp(1, 8)
}

fn checksum_ok(store: &dyn ReadAt, sb: &Superblock) -> Result<Option<bool>> {
    if !sb.has_compat(compat::SB_CHKSUM) {
        return Ok(None);
    }
    let len = superblock::checksum_len(sb.block_bits);
    let covered = read_some(store, superblock::OFFSET, len)?;
    Ok(Some(
        covered.len() == len && superblock::checksum(&covered) == sb.checksum,
    ))
}

fn read_configs(store: &dyn ReadAt, sb: &Superblock) -> Result<Configs> {
    if !sb.has(incompat::COMPR_CFGS) {
        return Ok(Configs::default());
    }
    let base = superblock::OFFSET + sb.len() as u64;
    // The four records take about 50 bytes, but each may declare up to 65,535 bytes to skip.
    let mut result = Ok((Configs::default(), 0));
    for len in [512, 4 * (4 + 65535)] {
        let bytes = read_some(store, base, len)?;
        result = Configs::decode(&bytes, base, sb.algs_or_distance);
        if result.is_ok() {
            break;
        }
    }
    let (configs, _) = result
        .map_err(|e| Error::format(format_args!("compression records (byte {base:#x})"), e))?;
    Ok(configs)
}
