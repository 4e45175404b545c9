//! Pseudo-random numbers that depend on the seed alone.

/// SplitMix64 generator: 64 bits of state, the same sequence on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0. The bias is below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        self.below_u64(n as u64) as usize
    }

    /// Returns a number below `n`, or 0 if `n` is 0, like [`below`](Self::below).
    pub fn below_u64(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.draw(), 6_457_827_717_110_365_317);
        assert_eq!(rng.draw(), 3_203_168_211_198_807_973);
    }
}
