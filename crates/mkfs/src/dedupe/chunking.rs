//! Content-defined chunks: cut points that depend on the bytes around them alone, so that equal data is cut alike wherever
//! it lies.
//!
//! A rolling sum over a table of random words (Gear): each byte shifts it by one bit, so that the upper bits depend on the
//! last 64 bytes. A chunk ends where enough of them are zero: more bits below the average length, fewer above it, which
//! keeps lengths close to the average.

/// Random words, one per byte value: the outputs of splitmix64 from seed 1.
static GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let (mut state, mut i) = (1u64, 0);
    while i < 256 {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[i] = z ^ (z >> 31);
        i += 1;
    }
    table
};

/// Bytes that the upper bits of the rolling sum depend on.
const REACH: usize = 64;

/// How long chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cutter {
    /// log2 of the average length in bytes: 10 to 24.
    bits: u32,
}

impl Cutter {
    /// Chunks of about `1 << bits` bytes.
    pub(crate) fn new(bits: u32) -> Self {
        Self {
            bits: bits.clamp(10, 24),
        }
    }

    /// No chunk but a last one is shorter. Unit: bytes.
    pub(crate) fn min(self) -> usize {
        1 << (self.bits - 2)
    }

    /// No chunk is longer. Unit: bytes.
    pub(crate) fn max(self) -> usize {
        1 << (self.bits + 2)
    }

    /// Length of the first chunk of `data`, all of it if no cut point is found: then more than [`max`](Self::max) bytes must
    /// be given unless the content ends with them.
    pub(crate) fn cut(self, data: &[u8]) -> usize {
        let (min, max) = (self.min(), self.max().min(data.len()));
        if data.len() <= min {
            return data.len();
        }
        let strict = !0u64 << (64 - self.bits - 1);
        let lax = !0u64 << (64 - self.bits + 1);
        let average = (1usize << self.bits).min(max);
        let mut sum = 0u64;
        for byte in &data[min - REACH.min(min)..min] {
            sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        }
        for (i, byte) in data[min..average].iter().enumerate() {
            sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
            if sum & strict == 0 {
                return min + i + 1;
            }
        }
        for (i, byte) in data[average..max].iter().enumerate() {
            sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
            if sum & lax == 0 {
                return average + i + 1;
            }
        }
        max
    }
}

/// What stands for a small file when files are compared for likeness: the largest of four mixes over sampled places.
pub(crate) type Sketch = [u32; 4];

/// One place in so many is sampled, a power of two.
const SAMPLED: u32 = 32;

/// The sketch of some content. Contents that share most of their text share most of the four numbers.
pub(crate) fn sketch(data: &[u8]) -> Sketch {
    const MIX: [u64; 4] = [
        0x9E37_79B9_7F4A_7C15,
        0xC2B2_AE3D_27D4_EB4F,
        0x1656_67B1_9E37_79F9,
        0xD6E8_FEB8_6659_FD93,
    ];
    let mask = !0u64 << (64 - SAMPLED.trailing_zeros());
    let (mut sum, mut found) = (0u64, [0; 4]);
    for byte in data {
        sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if sum & mask == 0 {
            // Of the sum only bits that 24 bytes decide: shorter than most lines.
            let seen = sum & 0xFF_FFFF;
            for (slot, mix) in found.iter_mut().zip(MIX) {
                *slot = (*slot).max((seen.wrapping_add(1).wrapping_mul(mix) >> 32) as u32);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::noise;

    fn cuts(cutter: Cutter, data: &[u8]) -> Vec<usize> {
        let (mut at, mut all) = (0, Vec::new());
        while at < data.len() {
            at += cutter.cut(&data[at..]);
            all.push(at);
        }
        all
    }

    #[test]
    fn lengths_stay_in_their_bounds_and_near_the_average() {
        for bits in [10, 12, 16] {
            let cutter = Cutter::new(bits);
            let data = noise(4 << 20, 3);
            let all = cuts(cutter, &data);
            let mut last = 0;
            for (i, cut) in all.iter().enumerate() {
                assert!(cut - last <= cutter.max());
                assert!(cut - last >= cutter.min() || i + 1 == all.len());
                last = *cut;
            }
            let average = data.len() / all.len();
            assert!((1 << bits) / 2 < average && average < (1 << bits) * 2);
        }
    }

    #[test]
    fn equal_data_is_cut_alike_wherever_it_lies() {
        let cutter = Cutter::new(12);
        let shared = noise(200_000, 1);
        let ends = |before: usize| {
            let mut data = noise(before, 2);
            data.extend(&shared);
            let all = cuts(cutter, &data);
            all.into_iter()
                .filter(|c| *c > before + 40_000)
                .map(|c| c - before)
                .collect::<Vec<_>>()
        };
        assert_eq!(ends(0), ends(12_345));
        assert!(ends(777).len() > 20);
    }

    #[test]
    fn like_contents_have_like_sketches() {
        let old = noise(20_000, 9);
        let mut new = old.clone();
        new.splice(7_000..7_040, *b"one line was changed in the new version");
        let same = |a: &[u8], b: &[u8]| {
            sketch(a)
                .iter()
                .zip(sketch(b))
                .filter(|(a, b)| **a == *b)
                .count()
        };
        assert!(same(&old, &new) >= 3);
        assert_eq!(same(&old, &noise(20_000, 10)), 0);
    }
}
