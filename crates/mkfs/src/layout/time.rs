//! Choice of the base time.

use super::epoch::Epoch;
use super::parts::Parts;
use crate::options::Metadata;

/// Returns the most common time of all inodes. If compact inodes store seconds after it: the earliest time with the
/// most common nanoseconds.
pub(super) fn common_time(parts: &Parts<'_>) -> Epoch {
    let counts = parts.options.metadata.form != Metadata::Plain;
    let mut times: Vec<(i64, u32)> = Vec::with_capacity(parts.order.len());
    times.extend(parts.order.iter().map(|inode| {
        let (seconds, nanos) = parts.time(*inode);
        (if counts { 0 } else { seconds }, nanos)
    }));
    // Sorted, they take a fifth of the memory of a map. The smallest of equally common times is used.
    times.sort_unstable();
    let most = times.chunk_by(|a, b| a == b);
    let most = most.max_by_key(|same| (same.len(), std::cmp::Reverse(same[0])));
    let (mut seconds, nanos) = most.map_or((0, 0), |same| same[0]);
    drop(times);
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

/// Returns the first second of the 136 years that hold most of `times`, so that a single outlier does not make all
/// inodes extended.
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
}
