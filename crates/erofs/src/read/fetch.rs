//! Access to devices, the unified address space, and the windows of the metadata cache.

use super::cache::Cache;
use crate::{Error, Place, Remedy, Result};
use std::ops::{Deref, Range};
use std::sync::Arc;
use tuff_format::device::Slot;
use tuff_format::{BlockAddr, BlockBits, DeviceId};
use tuff_store::ReadAt;

/// Length of the aligned windows in which metadata is read and cached. Small, because some writers store file
/// data between inodes. Unit: bytes.
pub(crate) const WINDOW: u64 = 16 << 10;

/// Primary and extra devices, and the translation of addresses to them.
///
/// With extra devices, slot n of the device table is `extra[n - 1]`. An address of the primary device inside the range
/// of a slot belongs to that slot. Without extra devices ("flat" mode), everything is on the primary device, as far as
/// that has room for a slot. A device for which it has none is absent: reading its data is an error.
pub(crate) struct Devices {
    primary: Arc<dyn ReadAt>,
    extra: Vec<Arc<dyn ReadAt>>,
    slots: Vec<Slot>,
    bits: BlockBits,
}

/// Prefix of the tag of a device that holds an image. The UUID follows in hexadecimal.
pub(crate) const TAG: &[u8] = b"erofs:";

/// Returns the UUID of a tag that starts with [`TAG`].
pub(crate) fn tagged(tag: &[u8; 64]) -> String {
    tag[TAG.len()..TAG.len() + 32].escape_ascii().to_string()
}

/// Position on one of the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePosition {
    /// Store number: 0 is the primary store, n the n-th extra store.
    pub store: u16,
    /// Byte position on the store.
    pub pos: u64,
}

impl Devices {
    pub(crate) fn new(
        primary: Arc<dyn ReadAt>,
        extra: Vec<Arc<dyn ReadAt>>,
        slots: Vec<Slot>,
        bits: BlockBits,
    ) -> Self {
        Self {
            primary,
            extra,
            slots,
            bits,
        }
    }

    pub(crate) fn primary(&self) -> &Arc<dyn ReadAt> {
        &self.primary
    }

    /// Returns the primary store, then the extra ones.
    pub(crate) fn stores(&self) -> Vec<Arc<dyn ReadAt>> {
        std::iter::once(&self.primary)
            .chain(&self.extra)
            .cloned()
            .collect()
    }

    pub(crate) fn primary_size(&self) -> u64 {
        self.primary.size()
    }

    /// Returns the size of all stores together. Unit: bytes.
    pub(crate) fn total_size(&self) -> u64 {
        let extra = self.extra.iter().map(|store| store.size());
        extra.fold(self.primary.size(), u64::saturating_add)
    }

    /// Returns the size of a store, 0 if it does not exist. It may differ from the device table. Unit: bytes.
    pub(crate) fn size(&self, store: u16) -> u64 {
        self.store(store).map_or(0, |s| s.size())
    }

    /// Translates the stored device id of a chunk to a device.
    pub(crate) fn device_id(&self, raw: DeviceId) -> Result<DeviceId> {
        let count = self.slots.len() as u32;
        let id = u32::from(raw.0) & ((count + 1).next_power_of_two() - 1);
        match u16::try_from(id) {
            Ok(id) if u32::from(id) <= count => Ok(DeviceId(id)),
            _ => Err(Error::corrupt(
                "",
                format_args!("device id {id}, expected at most {count}"),
            )),
        }
    }

    /// Translates byte `pos` of a device to a store. Also returns the number of bytes from there that are on
    /// the same store.
    pub(crate) fn locate(&self, device: DeviceId, pos: u64) -> Result<(StorePosition, u64)> {
        let base = |slot: &Slot| slot.uniaddr.position(self.bits);
        let range = |slot: &Slot| Some((base(slot)?, self.bits.len_of(slot.blocks)?.0));
        if self.extra.is_empty() {
            if let Some(absent) = self.absent_at(device, pos) {
                return Ok(absent);
            }
            let slot = device.slot().and_then(|slot| self.slots.get(slot));
            let shift = match device {
                DeviceId::PRIMARY => Some(0),
                _ => slot.and_then(base),
            };
            let pos = shift.and_then(|s| s.checked_add(pos)).ok_or_else(|| {
                Error::corrupt(
                    format_args!("device {device}"),
                    format_args!("byte {pos} is past any device"),
                )
            })?;
            return Ok((StorePosition { store: 0, pos }, u64::MAX - pos));
        }
        if device != DeviceId::PRIMARY {
            let store = device.0;
            return Ok((StorePosition { store, pos }, u64::MAX - pos));
        }
        let mut left = u64::MAX - pos;
        for (slot, store) in self.slots.iter().zip(1u16..) {
            if slot.uniaddr == BlockAddr(0) {
                continue;
            }
            if let Some((start, len)) = range(slot) {
                if pos >= start && pos - start < len {
                    let pos = pos - start;
                    return Ok((StorePosition { store, pos }, len - pos));
                }
                if start > pos {
                    left = left.min(start - pos);
                }
            }
        }
        Ok((StorePosition { store: 0, pos }, left))
    }

    /// Fills `buf` from byte `pos` of a device.
    pub(crate) fn read(&self, device: DeviceId, mut pos: u64, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let (spot, left) = self.locate(device, pos)?;
            let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (now, rest) = buf.split_at_mut(n);
            self.read_spot(spot, now)?;
            buf = rest;
            pos = pos.saturating_add(n as u64);
        }
        Ok(())
    }

    /// Gives the start of what a cluster of the primary device holds, if its store decodes clusters; see [`ReadAt::content_at`].
    pub(crate) fn content(
        &self,
        pos: u64,
        len: u32,
        used: Range<usize>,
        dst: &mut [u8],
    ) -> Option<Result<()>> {
        let (spot, left) = self.locate(DeviceId::PRIMARY, pos).ok()?;
        if left < u64::from(len) {
            return None;
        }
        let store = self.store(spot.store).ok()?;
        let read = store.content_at(spot.pos, len, used, dst)?;
        Some(read.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => Error::corrupt("", e),
            _ => Self::failed(spot, len.into(), e),
        }))
    }

    /// Makes the stores read a range without returning its bytes. Fails where [`read`](Self::read) fails.
    pub(crate) fn touch(&self, device: DeviceId, mut pos: u64, mut len: u64) -> Result<()> {
        while len > 0 {
            let (spot, left) = self.locate(device, pos)?;
            let n = len.min(left);
            self.bounds(spot, n)?;
            let store = self.store(spot.store)?;
            store
                .touch(spot.pos, n)
                .map_err(|e| Self::failed(spot, n, e))?;
            len -= n;
            pos = pos.saturating_add(n);
        }
        Ok(())
    }

    /// Checks that `len` bytes at `pos` of a device exist, before memory is allocated for them.
    pub(crate) fn has(&self, device: DeviceId, pos: u64, len: u64) -> Result<()> {
        // An inode whose data is all inline may have no address.
        if len == 0 {
            return Ok(());
        }
        let (spot, left) = self.locate(device, pos)?;
        self.bounds(spot, len.min(left))
    }

    /// Returns the number of contiguous bytes available at `pos`, at most `len`.
    pub(crate) fn available(&self, device: DeviceId, pos: u64, len: u64) -> u64 {
        let mut available = 0;
        while available < len {
            let Ok((spot, left)) = self.locate(device, pos.saturating_add(available)) else {
                break;
            };
            let run = left.min(len - available);
            let on_store = self.size(spot.store).saturating_sub(spot.pos);
            available += run.min(on_store);
            if on_store < run || run == 0 {
                break;
            }
        }
        available
    }

    /// Hints the stores that these bytes will be read soon.
    pub(crate) fn will_need(&self, device: DeviceId, pos: u64, len: u64) {
        if let Ok((spot, left)) = self.locate(device, pos)
            && let Ok(store) = self.store(spot.store)
        {
            store.will_need(spot.pos, len.min(left));
        }
    }

    /// Hints the stores that these bytes are not needed soon.
    pub(crate) fn done_with(&self, device: DeviceId, pos: u64, len: u64) {
        if let Ok((spot, left)) = self.locate(device, pos)
            && let Ok(store) = self.store(spot.store)
        {
            store.done_with(spot.pos, len.min(left));
        }
    }

    /// Returns the index of the first slot whose data is not accessible. `None` with extra devices, or if the
    /// primary store is large enough for all slots.
    pub(crate) fn missing(&self) -> Option<usize> {
        if !self.extra.is_empty() {
            return None;
        }
        self.slots
            .iter()
            .position(|slot| !self.is_within_primary(slot))
    }

    /// Returns true if the primary store holds all data of a slot.
    fn is_within_primary(&self, slot: &Slot) -> bool {
        let start = slot.uniaddr.position(self.bits);
        let len = self.bits.len_of(slot.blocks);
        let end = start
            .zip(len)
            .and_then(|(start, len)| start.checked_add(len.0));
        slot.uniaddr > BlockAddr(0) && end.is_some_and(|end| end <= self.primary.size())
    }

    /// As [`locate`](Self::locate), for a position on a device that was not given: its store does not exist. Whatever
    /// else the primary store has at that position, such as a hash tree, is not the data.
    fn absent_at(&self, device: DeviceId, pos: u64) -> Option<(StorePosition, u64)> {
        let absent = |i: usize, pos: u64, left: u64| {
            // Fits: a device table has at most 65,535 slots.
            let store = i as u16 + 1;
            let is_absent = !self.is_within_primary(&self.slots[i]);
            is_absent.then_some((StorePosition { store, pos }, left))
        };
        if let Some(i) = device.slot() {
            return absent(self.slots.get(i).map(|_| i)?, pos, u64::MAX - pos);
        }
        self.slots.iter().enumerate().find_map(|(i, slot)| {
            let start = slot.uniaddr.position(self.bits).filter(|at| *at > 0)?;
            let len = self.bits.len_of(slot.blocks)?.0;
            let pos = pos.checked_sub(start).filter(|pos| *pos < len)?;
            absent(i, pos, len - pos)
        })
    }

    /// Returns the error that names an absent device.
    pub(crate) fn absent(&self, i: usize) -> Error {
        let tag = &self.slots[i].tag;
        let which = match tag.starts_with(TAG) {
            true => format!(", the image with UUID {}", tagged(tag)),
            false => String::new(),
        };
        let what = format_args!("data is on device {}{which}: it was not given", i + 1);
        Error::usage(what).with_remedy(Remedy::Devices)
    }

    fn bounds(&self, spot: StorePosition, len: u64) -> Result<()> {
        let size = self.store(spot.store)?.size();
        if spot.pos.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::corrupt(
                Place::byte_of(spot.store, spot.pos),
                format_args!("{len} bytes reach past the end, byte {size}"),
            ));
        }
        Ok(())
    }

    /// Fills `buf` from one store.
    pub(crate) fn read_spot(&self, spot: StorePosition, buf: &mut [u8]) -> Result<()> {
        self.bounds(spot, buf.len() as u64)?;
        let store = self.store(spot.store)?;
        store
            .read_exact_at(buf, spot.pos)
            .map_err(|e| Self::failed(spot, buf.len() as u64, e))
    }

    fn failed(spot: StorePosition, len: u64, e: std::io::Error) -> Error {
        Error::read(Place::byte_of(spot.store, spot.pos), len, e)
    }

    fn store(&self, n: u16) -> Result<&Arc<dyn ReadAt>> {
        match n {
            0 => Ok(&self.primary),
            n => self.extra.get(usize::from(n) - 1).ok_or_else(|| {
                if self.extra.is_empty() && usize::from(n) <= self.slots.len() {
                    return self.absent(usize::from(n) - 1);
                }
                Error::corrupt("", format_args!("device {n} is not in the device table"))
            }),
        }
    }
}

/// Address space of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The primary device, without the ranges of extra devices.
    Image,
    /// Decoded data of the metabox inode.
    Metabox,
}

/// Shared byte range: part of a metadata window, or an owned buffer.
#[derive(Clone)]
pub struct Bytes {
    whole: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Bytes {
    /// Returns the bytes of `range`, which must be inside `whole`.
    pub(crate) fn part(whole: Arc<Vec<u8>>, range: Range<usize>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= whole.len());
        Self { whole, range }
    }

    pub(crate) fn own(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self {
            whole: Arc::new(bytes),
            range,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole[self.range.clone()]
    }
}

/// Cache of metadata windows, keyed by space and window number.
pub(crate) type Windows = Cache<(Space, u64), Arc<Vec<u8>>>;

/// Buffer of the last read for clusters. Adjacent clusters are fetched with one read.
#[derive(Default)]
pub(crate) struct Fetched {
    device: DeviceId,
    pos: u64,
    len: usize,
    bytes: Vec<u8>,
    /// Number of reads and bytes since the last call of `taken`.
    taken: (u64, u64),
}

/// Maximum length of one read for adjacent clusters. Unit: bytes.
pub(crate) const FETCH_MAX: u64 = 256 << 10;

impl Fetched {
    /// Returns the number of reads and bytes since the last call, and resets both.
    pub(crate) fn taken(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.taken)
    }

    /// Returns true if the buffer holds the range.
    pub(crate) fn holds(&self, device: DeviceId, pos: u64, len: usize) -> bool {
        device == self.device
            && pos >= self.pos
            && pos.saturating_add(len as u64) <= self.pos.saturating_add(self.len as u64)
    }

    /// Returns the `len` bytes at `pos`. If they are not buffered, reads `run()` bytes, at least `len`, or
    /// only `len` if the device ends first.
    pub(crate) fn get(
        &mut self,
        devices: &Devices,
        device: DeviceId,
        pos: u64,
        len: usize,
        run: impl FnOnce() -> u64,
    ) -> Result<&[u8]> {
        if !self.holds(device, pos, len) {
            let run = usize::try_from(run()).unwrap_or(len).max(len);
            let run = match devices.has(device, pos, run as u64) {
                Ok(()) => run,
                Err(_) => len,
            };
            devices.has(device, pos, len as u64)?;
            self.len = 0;
            if self.bytes.len() < run {
                self.bytes.resize(run, 0);
            }
            devices.read(device, pos, &mut self.bytes[..run])?;
            (self.device, self.pos, self.len) = (device, pos, run);
            self.taken.0 += 1;
            self.taken.1 += run as u64;
        }
        // Fits: the buffer holds the range.
        let from = (pos - self.pos) as usize;
        Ok(&self.bytes[from..from + len])
    }
}
