//! Start list of an image: what the start of its command reads, as the author of the image states it.

use super::image::Image;
use super::inode::Inode;
use crate::{Error, Result};
use std::ops::Range;
use tuff_format::DeviceId;
use tuff_format::inode::Layout;
use tuff_format::start_list::{self, Decoded};

/// Longest data of [`first_reads`], with the metadata. Unit: bytes.
const FIRST_READS_MAX: u64 = 8 << 20;
/// Bytes between two listed ranges that are read with them.
const GAP_MAX: u64 = 128 << 10;

/// Bytes of a device that a start reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// Device that holds the bytes; the primary device is the image itself.
    pub device: DeviceId,
    /// Positions on the device. Unit: bytes.
    pub bytes: Range<u64>,
}

/// Start list of an image. It is a hint of the image's author: its ranges may be useless, but they lie within their devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartList {
    /// List of the known version.
    Known {
        /// Number of listed files that have data.
        files: u32,
        /// Ranges of data in the order in which they are wanted. They may overlap.
        ranges: Vec<DeviceRange>,
        /// Metadata that the start reads, in the image itself. Empty if the list does not name it.
        metadata: Range<u64>,
        /// Number of ranges that the list states, before they are cut at the ends of their devices.
        entries: usize,
        /// Number of them that reach past the end of their device.
        outside: usize,
    },
    /// List of another version, which this program skips.
    Unknown {
        /// Version of the list.
        version: u16,
    },
}

impl StartList {
    /// Reads the list of an image. `None` if it has none.
    ///
    /// # Errors
    /// `Corrupt` for a list that is damaged, `Io` if the store fails.
    pub fn read(image: &Image) -> Result<Option<Self>> {
        let Some(inode) = Self::inode(image)? else {
            return Ok(None);
        };
        // Fits: at most `start_list::LEN_MAX`.
        let mut bytes = vec![0; inode.size() as usize];
        image.read_at(&inode, &mut bytes, 0)?;
        let decoded = start_list::StartList::decode(&bytes)
            .map_err(|e| Error::format(inode.place(), e).within("start list"))?;
        Ok(match decoded {
            None => None,
            Some(Decoded::Unknown { version }) => Some(Self::Unknown { version }),
            Some(Decoded::List(list)) => Some(Self::known(image, &list)),
        })
    }

    /// Returns the inode that holds the list, if there is one. Its content is not read.
    ///
    /// # Errors
    /// As for [`Image::root`].
    pub fn inode(image: &Image) -> Result<Option<Inode>> {
        let root = image.root()?;
        // A root that cannot be read has no list.
        let nid = image.stored_len(&root).ok();
        let nid = nid.and_then(|len| start_list::nid(root.nid(), len));
        let Some(nid) = nid.filter(|nid| nid.in_metabox() == root.nid().in_metabox()) else {
            return Ok(None);
        };
        // In images without a list other bytes are there.
        let found = image.inode(nid).ok();
        let plain =
            |inode: &Inode| matches!(inode.layout(), Layout::FlatPlain | Layout::FlatInline);
        Ok(found.filter(|inode| start_list::may_hold(inode.raw()) && plain(inode)))
    }

    fn known(image: &Image, list: &start_list::StartList) -> Self {
        let bits = image.superblock().block_bits;
        let clipped = |device: DeviceId, start: u64, blocks: u32| {
            let size = device_size(image, device);
            let position = |block: u64| block.saturating_mul(bits.size()).min(size);
            position(start)..position(start.saturating_add(blocks.into()))
        };
        let ranges = list.ranges.iter().map(|range| DeviceRange {
            device: range.device,
            bytes: clipped(range.device, range.start.0, range.blocks),
        });
        let is_outside = |range: &&start_list::Range| {
            let bytes = clipped(range.device, range.start.0, range.blocks);
            bytes.end - bytes.start != u64::from(range.blocks).saturating_mul(bits.size())
        };
        let (start, blocks) = list.meta;
        Self::Known {
            files: list.files,
            ranges: ranges.filter(|range| !range.bytes.is_empty()).collect(),
            metadata: clipped(DeviceId::PRIMARY, start.0, blocks),
            entries: list.ranges.len(),
            outside: list.ranges.iter().filter(is_outside).count(),
        }
    }

    /// Returns the ranges of data in the order in which they are wanted; none for a list of another version.
    pub fn ranges(&self) -> &[DeviceRange] {
        match self {
            Self::Known { ranges, .. } => ranges,
            Self::Unknown { .. } => &[],
        }
    }

    /// Returns the message about a list that this program skips. `None` for a list of the known version.
    pub fn skipped(&self) -> Option<String> {
        match self {
            Self::Known { .. } => None,
            Self::Unknown { version } => Some(format!(
                "the start list of the image has version {version}, which this program does not know, so it is not used"
            )),
        }
    }

    /// Returns the number of bytes in the ranges. Bytes in several ranges count several times.
    pub fn bytes(&self) -> u64 {
        let lens = self.ranges().iter().map(|r| r.bytes.end - r.bytes.start);
        lens.fold(0, u64::saturating_add)
    }
}

/// Returns the size of a device in bytes, 0 if the image has no such device.
fn device_size(image: &Image, device: DeviceId) -> u64 {
    let sb = image.superblock();
    let blocks = match device.slot() {
        None => sb.blocks,
        Some(slot) => image.slots().get(slot).map_or(0, |slot| slot.blocks),
    };
    let stated = blocks.saturating_mul(sb.block_bits.size());
    match device.slot() {
        None => stated.min(image.store_size()),
        Some(_) => stated,
    }
}

/// Returns at most three ranges of the image's own bytes that a start reads before anything else: the superblock, the
/// metadata that the list names, and listed data, together at most 8 MiB beside the superblock. They are in ascending order
/// and do not overlap. An image without a list has only the first range.
///
/// # Errors
/// As for [`StartList::read`].
pub fn first_reads(image: &Image) -> Result<Vec<Range<u64>>> {
    let size = image.store_size();
    let head = 0..image.superblock().block_bits.size().max(4096).min(size);
    let Some(StartList::Known {
        ranges, metadata, ..
    }) = StartList::read(image)?
    else {
        return Ok(vec![head]);
    };
    Ok(choose(head, metadata, &ranges))
}

/// Chooses the first reads: metadata, the data before it, and the data that is wanted first.
fn choose(head: Range<u64>, metadata: Range<u64>, ranges: &[DeviceRange]) -> Vec<Range<u64>> {
    let own = ranges.iter().filter(|r| r.device == DeviceId::PRIMARY);
    let own: Vec<Range<u64>> = own.map(|r| r.bytes.clone()).collect();
    let areas = joined(own.clone());
    let len = |range: &Range<u64>| range.end - range.start;
    let mut left = FIRST_READS_MAX;
    let mut chosen = vec![head];
    if !metadata.is_empty() && len(&metadata) <= left {
        left -= len(&metadata);
        chosen.push(metadata.clone());
    }
    // As a whole, because its first bytes are wanted first and its last ones adjoin the metadata.
    let adjoins = |area: &&Range<u64>| {
        area.end <= metadata.start
            && metadata.start - area.end <= GAP_MAX
            && metadata.start - area.start <= left
    };
    let before = areas.iter().rfind(adjoins);
    if let Some(area) = before {
        left -= metadata.start - area.start;
        chosen.push(area.start..metadata.start);
    }
    let area_of = |range: &Range<u64>| areas.iter().find(|area| area.contains(&range.start));
    let first_area = own
        .iter()
        .filter_map(area_of)
        .find(|area| Some(*area) != before);
    if let Some(area) = first_area {
        chosen.push(area.start..area.end.min(area.start.saturating_add(left)));
    }
    joined(chosen)
}

/// Returns the union of ranges in ascending order, with the gaps between neighbours.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_MAX) => {
                last.end = last.end.max(range.end);
            }
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    fn own(bytes: Range<u64>) -> DeviceRange {
        let device = DeviceId::PRIMARY;
        DeviceRange { device, bytes }
    }

    const M: u64 = 1 << 20;

    #[test]
    fn first_reads_are_superblock_wanted_data_and_metadata_with_the_data_before_it() {
        let ranges = [
            own(20 * M..21 * M),
            own(49 * M..50 * M),
            own(21 * M..22 * M),
        ];
        let chosen = choose(0..4096, 50 * M..51 * M, &ranges);
        assert_eq!(chosen, [0..4096, 20 * M..22 * M, 49 * M..51 * M]);
    }

    #[test]
    fn first_reads_have_at_most_8_mib_beside_the_superblock() {
        let ranges = [own(49 * M..50 * M), own(20 * M..40 * M)];
        let chosen = choose(0..4096, 50 * M..51 * M, &ranges);
        assert_eq!(chosen, [0..4096, 20 * M..26 * M, 49 * M..51 * M]);
        let ranges = [own(20 * M..21 * M), own(30 * M..50 * M)];
        let chosen = choose(0..4096, 50 * M..51 * M, &ranges);
        assert_eq!(chosen, [0..4096, 20 * M..21 * M, 50 * M..51 * M]);
        let chosen = choose(0..4096, 0..u64::MAX, &[own(0..u64::MAX)]);
        assert_eq!(chosen, slice::from_ref(&(0..8 * M)));
        let other = DeviceRange {
            device: DeviceId(1),
            bytes: 0..M,
        };
        assert_eq!(choose(0..4096, 0..0, &[other]), slice::from_ref(&(0..4096)));
    }
}
