//! Ranges of the image that a profile names, for prefetching from a slow store.

use super::profile::Profile;
use crate::Result;
use crate::read::{DeviceId, Image, Inode, Location, Space};
use std::ops::Range;

impl Profile {
    /// Ranges of the image that hold what the profile names, in the order of first use. A range that continues the one
    /// before it is merged with it. Unit: bytes.
    ///
    /// Uses of files that are missing or damaged are left out, and so is data on extra devices.
    #[must_use]
    pub fn physical_ranges(&self, image: &Image) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for part in &self.uses {
            let inode = image.resolve(&part.path);
            let Some(inode) = inode.ok().filter(Inode::has_data) else {
                continue;
            };
            let end = part.offset.saturating_add(part.len).min(inode.size());
            // Damage is reported to the program that reads the file.
            let _ = add(image, &inode, part.offset..end, &mut ranges);
        }
        ranges
    }
}

/// Adds the ranges of a part of a file.
fn add(image: &Image, inode: &Inode, part: Range<u64>, out: &mut Vec<Range<u64>>) -> Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    for extent in image.extents(inode, part.clone())? {
        let extent = extent?;
        let skip = part.start.saturating_sub(extent.offset);
        let len = extent.end().min(part.end) - extent.offset - skip;
        let (pos, len) = match extent.location {
            Location::Raw { device, pos } if device == DeviceId::PRIMARY => {
                (pos.saturating_add(skip), len)
            }
            Location::Cluster(cluster) => (cluster.pos, u64::from(cluster.len)),
            Location::Inline {
                space: Space::Image,
                pos,
                len,
                ..
            } => (pos, u64::from(len)),
            Location::Fragment { offset } => {
                let from = offset.saturating_add(skip);
                if let Some(packed) = image.packed().filter(|p| p.nid() != inode.nid()) {
                    // One level of recursion: the packed inode has no fragments.
                    let to = from.saturating_add(len).min(packed.size());
                    add(image, packed, from..to, out)?;
                }
                continue;
            }
            Location::Hole | Location::Raw { .. } | Location::Inline { .. } => continue,
        };
        push(out, pos..pos.saturating_add(len));
    }
    Ok(())
}

/// Adds a range, merged with the last one if it continues it.
fn push(out: &mut Vec<Range<u64>>, range: Range<u64>) {
    match out.last_mut() {
        Some(last) if last.start <= range.start && range.start <= last.end => {
            last.end = last.end.max(range.end);
        }
        _ => out.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_go_on_are_merged() {
        let mut out = Vec::new();
        for range in [10..20, 20..30, 12..14, 40..50, 10..20] {
            push(&mut out, range);
        }
        assert_eq!(out, [10..30, 40..50, 10..20]);
    }
}
