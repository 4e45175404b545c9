//! Ranges of the image that a profile names, for prefetching from a slow store.

use super::profile::Profile;
use crate::Result;
use crate::read::{DeviceId, Image, Inode, Location, Space};
use std::ops::Range;

/// Range of one of the stores of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRange {
    /// Store number: 0 is the primary store, n the n-th extra store.
    pub store: u16,
    /// Bytes of the store.
    pub range: Range<u64>,
}

impl Profile {
    /// Ranges of the stores of an image that hold what the profile names, in the order of first use. A range that
    /// continues the one before it is merged with it.
    ///
    /// Uses of files that are missing or damaged are left out.
    #[must_use]
    pub fn physical_ranges(&self, image: &Image) -> Vec<StoreRange> {
        let mut ranges = Vec::new();
        for part in &self.uses {
            let inode = image.resolve(&part.path);
            let Some(inode) = inode.ok().filter(Inode::has_data) else {
                continue;
            };
            let end = part.offset.saturating_add(part.len).min(inode.size());
            // As in `file_ranges`.
            let _ = add(image, &inode, part.offset..end, &mut ranges);
        }
        ranges
    }
}

/// Ranges of the stores of an image that hold a part of a file. A range that continues the one before it is merged with it.
/// Those of a part that is damaged are left out.
#[must_use]
pub fn file_ranges(image: &Image, inode: &Inode, part: Range<u64>) -> Vec<StoreRange> {
    let mut ranges = Vec::new();
    if inode.has_data() {
        // Damage is reported to the program that reads the file.
        let _ = add(
            image,
            inode,
            part.start..part.end.min(inode.size()),
            &mut ranges,
        );
    }
    ranges
}

/// Adds the ranges of a part of a file.
fn add(image: &Image, inode: &Inode, part: Range<u64>, out: &mut Vec<StoreRange>) -> Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    for extent in image.extents(inode, part.clone())? {
        let extent = extent?;
        let skip = part.start.saturating_sub(extent.offset);
        let len = extent.end().min(part.end) - extent.offset - skip;
        let (device, pos, len) = match extent.location {
            Location::Raw { device, pos } => (device, pos.saturating_add(skip), len),
            Location::Cluster(cluster) => (DeviceId::PRIMARY, cluster.pos, u64::from(cluster.len)),
            Location::Inline {
                space: Space::Image,
                pos,
                len,
                ..
            } => (DeviceId::PRIMARY, pos, u64::from(len)),
            Location::Fragment { offset } => {
                let from = offset.saturating_add(skip);
                if let Some(packed) = image.packed().filter(|p| p.nid() != inode.nid()) {
                    // One level of recursion: the packed inode has no fragments.
                    let to = from.saturating_add(len).min(packed.size());
                    add(image, packed, from..to, out)?;
                }
                continue;
            }
            Location::Hole | Location::Inline { .. } => continue,
        };
        let (at, left) = image.locate(device, pos)?;
        let range = at.pos..at.pos.saturating_add(len.min(left));
        push(out, at.store, range);
    }
    Ok(())
}

/// Adds a range, merged with the last one if it continues it.
fn push(out: &mut Vec<StoreRange>, store: u16, range: Range<u64>) {
    match out.last_mut() {
        Some(StoreRange {
            store: of,
            range: last,
        }) if *of == store && last.start <= range.start && range.start <= last.end => {
            last.end = last.end.max(range.end);
        }
        _ => out.push(StoreRange { store, range }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_go_on_are_merged() {
        let mut out = Vec::new();
        for range in [10..20, 20..30, 12..14, 40..50, 10..20] {
            push(&mut out, 0, range);
        }
        push(&mut out, 1, 20..30);
        let of = |store, range| StoreRange { store, range };
        let expected = [of(0, 10..30), of(0, 40..50), of(0, 10..20), of(1, 20..30)];
        assert_eq!(out, expected);
    }
}
