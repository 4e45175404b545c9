//! Places in an image that several extents refer to: shared clusters, chunks and fragments.

use super::attribution::GroupId;
use super::limits::REFERENCES_MAX;
use crate::read::{DeviceId, Extent, Image, Location};
use crate::{Error, Result};

/// Address space of references to the data of the packed inode.
const PACKED: u32 = u32::MAX;

/// Reference of an extent to a range of stored or packed bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    /// Number of the store, or [`PACKED`].
    space: u32,
    group: GroupId,
    start: u64,
    end: u64,
    /// Length of the extent, in bytes.
    len: u64,
}

impl Reference {
    fn place(&self) -> (u32, u64, u64) {
        (self.space, self.start, self.end)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.space == other.space && self.start < other.end && other.start < self.end
    }
}

/// References of extents, collected during a walk.
#[derive(Default)]
pub(super) struct References(Vec<Reference>);

impl References {
    /// Adds the reference of an extent of `group`, if its data can be shared.
    pub(super) fn push(&mut self, image: &Image, extent: &Extent, group: GroupId) -> Result<()> {
        let (space, start, len) = match extent.location {
            Location::Hole | Location::Inline { .. } => return Ok(()),
            Location::Fragment { offset } => (PACKED, offset, extent.len),
            Location::Raw { device, pos } => {
                let (spot, _) = image.devices.locate(device, pos)?;
                (u32::from(spot.store), spot.pos, extent.len)
            }
            Location::Cluster(cluster) => {
                let (spot, _) = image.devices.locate(DeviceId::PRIMARY, cluster.pos)?;
                (u32::from(spot.store), spot.pos, cluster.len.into())
            }
        };
        if self.0.len() >= REFERENCES_MAX {
            let what = format_args!(
                "more than {REFERENCES_MAX} references to data, the limit of this view"
            );
            return Err(Error::limit("", what));
        }
        self.0.push(Reference {
            space,
            group,
            start,
            end: start.saturating_add(len),
            len: extent.len,
        });
        Ok(())
    }

    /// Returns true if a reference may have been refused.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= REFERENCES_MAX
    }

    /// Sorts the references by place.
    pub(super) fn sorted(mut self) -> Sharing {
        let key = |r: &Reference| (r.place(), r.group, r.len);
        self.0.sort_unstable_by_key(key);
        Sharing(self.0)
    }
}

/// References of extents, sorted by place.
#[derive(Default)]
pub(super) struct Sharing(Vec<Reference>);

impl Sharing {
    /// Calls `f` with the group and length of each extent whose place another extent refers to as well.
    pub(super) fn each_shared(&self, mut f: impl FnMut(GroupId, u64)) {
        let (mut space, mut end) = (0, 0);
        for (i, r) in self.0.iter().enumerate() {
            if r.space != space {
                (space, end) = (r.space, 0);
            }
            let follows = r.start < end;
            let precedes = self.0.get(i + 1).is_some_and(|next| next.overlaps(r));
            if follows || precedes {
                f(r.group, r.len);
            }
            end = end.max(r.end);
        }
    }

    /// Returns at most `max` groups that refer to places of `group`, in order.
    pub(super) fn sharers(&self, group: GroupId, max: usize) -> Vec<GroupId> {
        let mut out = Vec::new();
        // Places of the group that the rest of the list may still overlap, as one range.
        let mut own: Option<Reference> = None;
        // References since the start of the range, which a place of the group may still overlap.
        let mut open: Vec<Reference> = Vec::new();
        for r in &self.0 {
            open.retain(|o| o.overlaps(r));
            if r.group == group {
                out.extend(open.iter().map(|o| o.group));
                own = Some(match own {
                    Some(o) if o.overlaps(r) => Reference {
                        end: o.end.max(r.end),
                        ..o
                    },
                    _ => *r,
                });
            } else if own.is_some_and(|o| o.overlaps(r)) {
                out.push(r.group);
            } else if open.len() < OPEN_MAX {
                open.push(*r);
            }
        }
        out.sort_unstable();
        out.dedup();
        out.truncate(max);
        out
    }
}

/// Maximum number of overlapping references that a search keeps.
const OPEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn sharing(list: &[(u32, u64, u64, GroupId)]) -> Sharing {
        let list = list.iter().map(|&(space, start, end, group)| Reference {
            space,
            group,
            start,
            end,
            len: 10 * (end - start),
        });
        References(list.collect()).sorted()
    }

    fn shared(list: &[(u32, u64, u64, GroupId)]) -> Vec<(GroupId, u64)> {
        let mut out = Vec::new();
        sharing(list).each_shared(|group, len| out.push((group, len)));
        out
    }

    #[test]
    fn equal_and_overlapping_places_are_shared() {
        let equal = [(0, 0, 4, 1), (0, 4, 8, 2), (0, 4, 8, 3), (0, 8, 9, 4)];
        assert_eq!(shared(&equal), [(2, 40), (3, 40)]);
        let overlapping = [(0, 0, 9, 1), (0, 2, 3, 2), (0, 5, 6, 3), (0, 9, 10, 4)];
        assert_eq!(shared(&overlapping), [(1, 90), (2, 10), (3, 10)]);
        let spaces = [(0, 0, 4, 1), (1, 0, 4, 2), (PACKED, 0, 4, 3)];
        assert_eq!(shared(&spaces), []);
    }

    #[test]
    fn sharers_are_the_other_groups_at_the_same_places() {
        let list = [
            (0, 0, 4, 1),
            (0, 0, 4, 2),
            (0, 4, 8, 3),
            (0, 6, 7, 1),
            (0, 8, 9, 5),
            (1, 0, 4, 6),
        ];
        assert_eq!(sharing(&list).sharers(1, 9), [2, 3]);
        assert_eq!(sharing(&list).sharers(3, 9), [1]);
        assert_eq!(sharing(&list).sharers(5, 9), []);
        assert_eq!(sharing(&list).sharers(1, 1), [2]);
    }
}
