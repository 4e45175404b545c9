//! Robust statistics: median, range and quantiles.
//!
//! Means are not used: run times have a lower bound and a long tail, and a single outlier must not
//! affect the result.

/// Summary of one series of samples, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Middle value, or the mean of the two middle values.
    pub median: f64,
    /// Smallest of the samples.
    pub min: f64,
    /// Largest of the samples.
    pub max: f64,
}

impl Spread {
    /// Returns the summary of `samples`, `None` if there are none.
    pub fn from_samples(samples: &[f64]) -> Option<Spread> {
        Some(Spread {
            median: median(samples)?,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

/// Returns the median of unsorted `samples`, `None` if there are none.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted[sorted.len() / 2 - 1];
    Some(lower + (upper - lower) / 2.0)
}

/// Returns the smallest sample that is at least as large as the fraction `share` (0 to 1) of all;
/// `None` without samples.
pub fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0);
    // The cast saturates; a rank past the end gives `None`.
    sorted.get(rank as usize - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_samples() {
        let samples: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let found = [0.0, 0.1, 0.11, 0.9, 1.0].map(|share| quantile(&samples, share));
        assert_eq!(found, [1.0, 1.0, 2.0, 9.0, 10.0].map(Some));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn an_outlier_affects_the_range_but_not_the_median() {
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(Spread::from_samples(&[]), None);
        let spread = Spread::from_samples(&[1.0, 2.0, 3.0, 4.0, 100.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (3.0, 1.0, 100.0));
    }
}
