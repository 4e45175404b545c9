//! Histogram of durations with a bounded relative error.

use crate::clock::Nanos;

/// Buckets per doubling, as a power of two. 32 buckets limit the relative width to 1/32.
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;

/// Histogram with bucket widths that grow with the value: exact below 32 ns, within 1/32 (3 %)
/// above.
///
/// A bucket number combines the shift and the top six bits of a value, so buckets have the same
/// order as their values.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    max: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Returns an empty histogram.
    pub fn new() -> Self {
        Self {
            counts: vec![0; (64 - SUB_BITS as usize + 1) * SUB],
            total: 0,
            sum: 0,
            max: Nanos(0),
        }
    }

    /// Adds one duration to its bucket.
    pub fn add(&mut self, value: Nanos) {
        self.counts[bucket(value.0)] += 1;
        self.total += 1;
        self.sum += u128::from(value.0);
        self.max = self.max.max(value);
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Number of recorded durations.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Longest duration, exact. Zero if the histogram is empty.
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// Mean duration, exact. Zero if the histogram is empty.
    pub fn mean(&self) -> Nanos {
        Nanos((self.sum / u128::from(self.total.max(1))) as u64)
    }

    /// Upper bound of the quantile `q` (0 to 1), at most 1/32 too high. Zero if the histogram is
    /// empty.
    pub fn quantile(&self, q: f64) -> Nanos {
        let rank = ((q.clamp(0.0, 1.0) * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(upper(i)).min(self.max);
            }
        }
        self.max
    }
}

fn bucket(value: u64) -> usize {
    let shift = (64 - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    // The top bit of a shifted value is implied by the shift, so the two add up without a gap.
    (shift as usize) * SUB + (value >> shift) as usize
}

/// Largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < 2 * SUB {
        return bucket as u64;
    }
    let shift = bucket / SUB - 1;
    let top = (bucket % SUB + SUB) as u128;
    (((top + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_width_is_at_most_a_32nd_of_the_value() {
        for value in (0..70)
            .chain((6..64).flat_map(|b| [(1 << b) - 1, 1 << b, (1 << b) + 3]))
            .chain([u64::MAX])
        {
            let top = upper(bucket(value));
            assert!(top >= value, "{value} is above its bucket, {top}");
            assert!(top - value <= value / 32, "{value} is far below {top}");
        }
    }

    #[test]
    fn buckets_are_in_the_order_of_their_values() {
        let mut last = 0;
        for value in 0..100_000 {
            let at = bucket(value);
            assert!(at == last || at == last + 1, "bucket {at} after {last}");
            last = at;
        }
    }

    #[test]
    fn quantiles_of_the_numbers_to_1000_are_exact_within_a_bucket() {
        let mut h = Histogram::new();
        (1..=1000).for_each(|v| h.add(Nanos(v)));
        assert_eq!(
            (h.count(), h.max(), h.mean()),
            (1000, Nanos(1000), Nanos(500))
        );
        for (q, exact) in [(0.5, 500), (0.95, 950), (0.999, 999)] {
            let found = h.quantile(q).0;
            assert!(
                found >= exact && found <= exact + exact / 32,
                "{q}: {found}"
            );
        }
        assert_eq!(h.quantile(0.0), Nanos(1));
    }

    #[test]
    fn an_empty_histogram_has_quantile_zero() {
        assert_eq!(Histogram::new().quantile(0.99), Nanos(0));
    }
}
