//! Statistics that a reader can check by hand: median, range, median absolute deviation.
//!
//! No means and no deviations from a mean: run times have a floor and a long tail, and one bad sample must not move the
//! figure.

/// Summary of one series of samples, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Middle value, or the mean of the two middle values.
    pub median: f64,
    /// Smallest of the samples.
    pub min: f64,
    /// Largest of the samples.
    pub max: f64,
    /// Median of the distances from the median.
    pub mad: f64,
    /// Number of samples, at least 1.
    pub count: usize,
}

impl Spread {
    /// The spread of `samples`; `None` without any.
    pub fn of(samples: &[f64]) -> Option<Spread> {
        let middle = median(samples)?;
        let distances: Vec<f64> = samples.iter().map(|s| (s - middle).abs()).collect();
        Some(Spread {
            median: middle,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            mad: median(&distances)?,
            count: samples.len(),
        })
    }
}

/// The middle of `samples`, which need not be sorted; `None` without any.
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

/// The smallest of `samples` that `share` of them (0 to 1) do not exceed; `None` without any.
pub fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0);
    // Saturates: a rank beyond the last is none.
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
    fn the_median_of_an_odd_number_is_its_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[7.0]), Some(7.0));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn nothing_has_no_spread() {
        assert_eq!(median(&[]), None);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn one_wild_sample_moves_the_range_but_not_the_median() {
        let spread = Spread::of(&[1.0, 2.0, 3.0, 4.0, 100.0]).unwrap();
        let expected = Spread {
            median: 3.0,
            min: 1.0,
            max: 100.0,
            mad: 1.0,
            count: 5,
        };
        assert_eq!(spread, expected);
    }
}
