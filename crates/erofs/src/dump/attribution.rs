//! Attribution of stored bytes to groups of files.
//!
//! A physical cluster may hold data of several files: through fragments in the packed inode, or because files share it.
//! Its bytes in the image are divided among the files in proportion to the uncompressed bytes that each has in it.
//! A file that refers to a cluster twice counts twice. Uncompressed ranges that overlap without being equal are divided
//! where they overlap, equally among the references.
//!
//! The shares are whole bytes and their sum is exact: every byte of data in the image belongs to one group.

use super::area::Area;
use crate::{Error, Result};

/// Index of a group of files.
pub(super) type GroupId = u32;

/// Use of a range of stored bytes by a group of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub(super) area: Area,
    /// Offset of the first byte.
    pub(super) start: u64,
    /// Offset past the last byte.
    pub(super) end: u64,
    pub(super) group: GroupId,
    /// Uncompressed bytes that the group has in the range. Zero for an owner that receives only what no other uses.
    pub(super) bytes: u64,
    /// Number of references.
    pub(super) refs: u64,
}

/// Uses of stored ranges, collected during a walk. Equal ranges of a group are merged.
pub(super) struct Uses {
    list: Vec<Use>,
    /// Length of the list at which it is merged next.
    merge_at: usize,
    /// Maximum length of a merged list.
    max: usize,
}

/// Minimum length of a list that is merged before it is complete.
const MERGE_AT: usize = 1 << 20;

impl Uses {
    /// Returns an empty list of at most `max` uses.
    pub(super) fn new(max: usize) -> Self {
        Self {
            list: Vec::new(),
            merge_at: MERGE_AT.min(max),
            max,
        }
    }

    /// Adds a use. Merging bounds the memory for many files in the same clusters.
    ///
    /// # Errors
    /// `Limit` if the list is full.
    pub(super) fn push(&mut self, one: Use) -> Result<()> {
        if self.list.len() >= self.merge_at {
            self.merge();
            if self.list.len() >= self.max {
                let what = format_args!(
                    "more than {} references to data, the limit of this view",
                    self.max
                );
                return Err(Error::limit("", what));
            }
            self.merge_at = MERGE_AT.max(2 * self.list.len()).min(self.max);
        }
        self.list.push(one);
        Ok(())
    }

    /// Returns true if a use may have been refused.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= self.max
    }

    fn merge(&mut self) {
        self.list.sort_unstable();
        self.list.dedup_by(|later, first| {
            let same = range(first) == range(later) && first.group == later.group;
            if same {
                first.bytes = first.bytes.saturating_add(later.bytes);
                first.refs = first.refs.saturating_add(later.refs);
            }
            same
        });
    }

    /// Returns the stored bytes of each group below `groups`. Their sum is the number of bytes in the union of all
    /// ranges.
    pub(super) fn stored_bytes(mut self, groups: usize) -> Vec<u64> {
        self.merge();
        let mut out = vec![0; groups];
        let mut rest = &self.list[..];
        while let Some(first) = rest.first() {
            let mut end = first.end;
            let touching = rest.iter().position(|u| {
                let separate = u.area != first.area || u.start >= end;
                end = end.max(u.end);
                separate
            });
            let (unit, others) = rest.split_at(touching.unwrap_or(rest.len()));
            rest = others;
            divide_unit(unit, &mut out);
        }
        out
    }
}

fn range(u: &Use) -> (Area, u64, u64) {
    (u.area, u.start, u.end)
}

/// Divides a run of overlapping ranges: first among the ranges, then the part of each among its groups.
fn divide_unit(unit: &[Use], out: &mut [u64]) {
    let ranges: Vec<&[Use]> = unit.chunk_by(|a, b| range(a) == range(b)).collect();
    if let [only] = ranges[..] {
        return divide_range(only, only[0].end - only[0].start, out);
    }
    let mut bounds: Vec<u64> = unit.iter().flat_map(|u| [u.start, u.end]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let place = |at: u64| bounds.partition_point(|b| *b < at);
    // Number of references to each interval, as differences.
    let mut changes = vec![0i128; bounds.len()];
    for u in unit.iter().filter(|u| u.bytes > 0) {
        changes[place(u.start)] += i128::from(u.refs);
        changes[place(u.end)] -= i128::from(u.refs);
    }
    // Bytes before each bound, per reference and in ranges without references. Unit of the first: 2^-64 bytes.
    let (mut per_reference, mut unused) = (vec![0u128], vec![0]);
    let (mut refs, mut shared, mut idle) = (0, 0, 0);
    for (pair, change) in bounds.windows(2).zip(&changes) {
        refs += change;
        let len = pair[1] - pair[0];
        match u128::try_from(refs) {
            Ok(refs) if refs > 0 => shared += (u128::from(len) << 64) / refs,
            _ => idle += len,
        }
        per_reference.push(shared);
        unused.push(idle);
    }
    let part = |of: &[Use]| {
        let (from, to) = (place(of[0].start), place(of[0].end));
        let refs: u64 = of.iter().filter(|u| u.bytes > 0).map(|u| u.refs).sum();
        match refs {
            0 => unused[to] - unused[from],
            // Fits: at most the length of the range.
            _ => {
                let one = per_reference[to] - per_reference[from];
                (((one >> 32) * u128::from(refs)) >> 32) as u64
            }
        }
    };
    let parts: Vec<u64> = ranges.iter().map(|of| part(of)).collect();
    // Rounding down loses less than a byte per range.
    let all = bounds[bounds.len() - 1] - bounds[0];
    let mut lost = all.saturating_sub(parts.iter().sum());
    for (of, part) in ranges.iter().zip(parts) {
        let used = of.iter().any(|u| u.bytes > 0);
        let extra = u64::from(used && lost > 0);
        lost -= extra;
        divide_range(of, part + extra, out);
    }
}

/// Divides `stored` bytes among the groups that use one range.
fn divide_range(uses: &[Use], stored: u64, out: &mut [u64]) {
    let total: u128 = uses.iter().map(|u| u128::from(u.bytes)).sum();
    let (mut before, mut given) = (0u128, 0);
    for u in uses {
        before += u128::from(u.bytes);
        let until = match total {
            0 => stored,
            // Fits: at most `stored`.
            _ => (u128::from(stored) * before / total) as u64,
        };
        out[u.group as usize] += until - given;
        given = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(uses: &[(u64, u64, GroupId, u64)]) -> Vec<u64> {
        let mut all = Uses::new(usize::MAX);
        for &(start, end, group, bytes) in uses {
            let one = Use {
                area: Area::Store(0),
                start,
                end,
                group,
                bytes,
                refs: 1,
            };
            all.push(one).unwrap();
        }
        all.stored_bytes(4)
    }

    #[test]
    fn a_cluster_is_divided_by_uncompressed_bytes() {
        // Two fragments of group 0, one each of the groups 1 and 2: 6000, 3000 and 1000 bytes of 10,000.
        let cluster = [
            (4096, 8192, 0, 2000),
            (4096, 8192, 0, 4000),
            (4096, 8192, 1, 3000),
            (4096, 8192, 2, 1000),
            (4096, 8192, 3, 0),
        ];
        // 2457.6, 1228.8 and 409.6 bytes, with the sums rounded down: 2457, 3686, 4096.
        assert_eq!(stored(&cluster), [2457, 1229, 410, 0]);
    }

    #[test]
    fn clusters_are_divided_one_by_one() {
        // A cluster of 4 KiB from 40,960 bytes, and one from 4096: the second is not averaged with the first.
        let clusters = [(0, 4096, 0, 40_960), (4096, 8192, 1, 4096)];
        assert_eq!(stored(&clusters), [4096, 4096, 0, 0]);
    }

    #[test]
    fn unused_clusters_go_to_their_owner() {
        let clusters = [(0, 4096, 3, 0), (4096, 8192, 3, 0), (4096, 8192, 1, 7)];
        assert_eq!(stored(&clusters), [0, 4096, 0, 4096]);
    }

    #[test]
    fn overlapping_ranges_are_divided_where_they_overlap() {
        // Bytes 0 to 90 belong to group 0, 90 to 100 to both, 100 to 120 to group 1.
        let ranges = [(0, 100, 0, 100), (90, 120, 1, 30)];
        assert_eq!(stored(&ranges), [95, 25, 0, 0]);
        // An owner of all of it gets what is left: 50 to 60, and 80 to 100.
        let ranges = [(0, 100, 3, 0), (0, 50, 0, 50), (60, 80, 1, 20)];
        assert_eq!(stored(&ranges), [50, 20, 0, 30]);
        // Three references to 100 bytes: 33 for each, and one byte lost by rounding.
        let ranges = [(0, 100, 0, 100), (0, 100, 1, 100), (0, 100, 2, 100)];
        assert_eq!(stored(&ranges), [33, 33, 34, 0]);
    }

    #[test]
    fn a_full_list_takes_equal_uses_only() {
        let one = |start| Use {
            area: Area::Store(0),
            start,
            end: start + 1,
            group: 0,
            bytes: 1,
            refs: 1,
        };
        let mut all = Uses::new(2);
        for start in [0, 0, 0, 1] {
            all.push(one(start)).unwrap();
        }
        let e = all.push(one(2)).unwrap_err().to_string();
        assert!(e.contains("more than 2 references"), "{e}");
    }

    #[test]
    fn sums_are_exact_at_any_length() {
        let far = u64::MAX - 1;
        let ranges = [(0, far, 0, far), (1, far, 1, far), (2, far, 2, far)];
        assert_eq!(stored(&ranges).iter().sum::<u64>(), far);
    }
}
