//! Content-defined chunking: cut points depend only on the bytes around them, so equal data is cut
//! equally at any position.
//!
//! The cut points come from a Gear hash, a rolling sum over a table of random words. Each byte
//! shifts the sum by one bit, so the upper bits depend on the last 64 bytes. A chunk ends where
//! enough of these bits are zero: more bits below the average length, fewer above it. This keeps
//! lengths close to the average.

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

/// Number of bytes that the upper bits of the rolling sum depend on.
const HASH_WINDOW: usize = 64;

/// Chunker with a given average chunk length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunker {
    /// log2 of the average length in bytes, from 10 to 24.
    bits: u32,
}

impl Chunker {
    /// Creates a chunker for chunks of about `1 << bits` bytes.
    pub(crate) fn new(bits: u32) -> Self {
        Self {
            bits: bits.clamp(10, 24),
        }
    }

    /// Minimum length of all chunks but the last. Unit: bytes.
    pub(crate) fn min(self) -> usize {
        1 << (self.bits - 2)
    }

    /// Maximum length of a chunk. Unit: bytes.
    pub(crate) fn max(self) -> usize {
        1 << (self.bits + 2)
    }

    /// Returns the length of the first chunk of `data`, or its whole length if there is no cut
    /// point. Pass at least [`max`](Self::max) bytes, except at the end of the content.
    pub(crate) fn cut(self, data: &[u8]) -> usize {
        let (min, max) = (self.min(), self.max().min(data.len()));
        if data.len() <= min {
            return data.len();
        }
        let strict = !0u64 << (64 - self.bits - 1);
        let lax = !0u64 << (64 - self.bits + 1);
        let average = (1usize << self.bits).min(max);
        let mut sum = 0u64;
        for byte in &data[min - HASH_WINDOW.min(min)..min] {
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

/// Similarity sketch of a small file: for each of four hash functions, the maximum over the sampled
/// positions.
pub(crate) type Sketch = [u32; 4];

/// Sampling rate: one position in this many, a power of two.
const SAMPLED: u32 = 32;

/// Computes the sketch of a content. Contents that share most of their text share most of the four
/// values.
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
            // Use only the bits of the sum that depend on the last 24 bytes, fewer than most lines
            // have.
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
    use tuff_testkit::content::noise;

    fn cuts(cutter: Chunker, data: &[u8]) -> Vec<usize> {
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
            let cutter = Chunker::new(bits);
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
    fn equal_data_is_cut_equally_at_any_position() {
        let cutter = Chunker::new(12);
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
    fn similar_contents_have_similar_sketches() {
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
