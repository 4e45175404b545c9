//! Reproducible pseudo-random numbers and distributions.

/// Pseudo-random generator of the crash tests, with the distributions of the workloads.
#[derive(Clone, Debug)]
pub struct Rng(tuff_testkit::Rng);

impl Rng {
    /// Creates a generator whose sequence depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(tuff_testkit::Rng::new(seed))
    }

    /// Returns a uniformly distributed 64-bit number.
    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// Returns a number below `n`, which must not be 0. The bias is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Zipf distribution over `n` items with scrambled ranks, as in YCSB: popular items are not
/// adjacent.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta_n: f64,
    eta: f64,
}

impl Zipf {
    /// Creates a distribution of skew `theta`, which must be below 1.
    pub fn new(n: u64, theta: f64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(theta)).sum::<f64>();
        let zeta_n = zeta(n);
        Self {
            n,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_n,
            eta: (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / zeta_n),
        }
    }

    /// Returns an item number below `n`.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta_n;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5_f64.powf(self.theta) {
            1
        } else {
            let share = (self.eta * u - self.eta + 1.0).powf(self.alpha);
            ((self.n as f64 * share) as u64).min(self.n - 1)
        };
        Rng::new(rank).below(self.n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_published_sequence() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.draw(), 6_457_827_717_110_365_317);
        assert_eq!(rng.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_most_popular_item_of_1000_has_its_theoretical_share() {
        let (zipf, mut rng) = (Zipf::new(1000, 0.99), Rng::new(1));
        let top = Rng::new(0).below(1000);
        let hits = (0..100_000).filter(|_| zipf.draw(&mut rng) == top).count();
        // 1 / (sum of i^-0.99 up to 1000) is 0.129.
        assert!((12_000..14_500).contains(&hits), "{hits}");
    }
}
