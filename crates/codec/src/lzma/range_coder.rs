//! Range coder: encodes bits with probabilities into an output of fixed size.
//!
//! ```text
//!  out[..at]       held back: one byte and a run of 0xFF,     low: 32 bits and a carry
//!                  which a carry may still change
//! ```

/// Precision of a probability. Unit: bits.
const PROB_BITS: u32 = 11;

/// Probability that a bit is 0, of 2048.
pub(crate) type Prob = u16;

/// Probability of one half.
pub(crate) const EVEN: Prob = 1 << (PROB_BITS - 1);

/// Adaptation rate of a probability, as a shift.
const MOVE_BITS: u32 = 5;

/// Value below which the range is extended by a byte.
const TOP: u32 = 1 << 24;

/// Bytes that flushing adds: the coder ends on the exact low end of its range, as decoders require. Unit: bytes.
const TAIL: usize = 4;

/// State of the coder without its output, sufficient to undo later bits.
#[derive(Clone, Copy)]
pub(crate) struct RangeCoderState {
    low: u64,
    range: u32,
    cache: u8,
    /// Number of bytes held back, including `cache`.
    held: usize,
    /// Number of bytes written.
    at: usize,
}

/// Encoder of bits into `out`.
pub(crate) struct RangeCoder<'a> {
    state: RangeCoderState,
    out: &'a mut [u8],
}

impl<'a> RangeCoder<'a> {
    /// Creates a coder. The first byte of a stream is always 0; the caller replaces it.
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self {
            state: RangeCoderState {
                low: 0,
                range: u32::MAX,
                cache: 0,
                held: 1,
                at: 0,
            },
            out,
        }
    }

    /// Returns the length of the stream if it ended here. Unit: bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.state.at + self.state.held + TAIL
    }

    /// Returns the current state.
    pub(crate) fn state(&self) -> RangeCoderState {
        self.state
    }

    /// Undoes everything encoded since `state`, even if it exceeded the output.
    pub(crate) fn restore(&mut self, state: RangeCoderState) {
        self.state = state;
    }

    /// Ends the stream, which fits. Returns its length. Unit: bytes.
    pub(crate) fn finish(mut self) -> usize {
        for _ in 0..5 {
            self.shift_low();
        }
        debug_assert!(self.state.at <= self.out.len());
        self.state.at
    }

    /// Writes a byte if it fits. Bytes that do not fit are undone later.
    #[inline(always)]
    fn put(&mut self, byte: u8) {
        if let Some(place) = self.out.get_mut(self.state.at) {
            *place = byte;
        }
        self.state.at += 1;
    }

    fn shift_low(&mut self) {
        let carry = (self.state.low >> 32) as u8;
        if (self.state.low as u32) < 0xff00_0000 || carry != 0 {
            self.put(self.state.cache.wrapping_add(carry));
            for _ in 1..self.state.held {
                self.put(0xff_u8.wrapping_add(carry));
            }
            self.state.cache = (self.state.low >> 24) as u8;
            self.state.held = 0;
        }
        self.state.held += 1;
        self.state.low = (self.state.low & 0x00ff_ffff) << 8;
    }

    #[inline(always)]
    fn widen(&mut self) {
        if self.state.range < TOP {
            self.state.range <<= 8;
            self.shift_low();
        }
    }

    /// Encodes a bit, 0 or 1, and adapts the probability.
    #[inline(always)]
    pub(crate) fn bit(&mut self, prob: &mut Prob, bit: u32) {
        let p = i32::from(*prob);
        let bound = (self.state.range >> PROB_BITS) * p as u32;
        let one = 0_u32.wrapping_sub(bit);
        self.state.low += u64::from(bound & one);
        self.state.range = if bit == 0 {
            bound
        } else {
            self.state.range - bound
        };
        let toward = if bit == 0 {
            1 << PROB_BITS
        } else {
            (1 << MOVE_BITS) - 1
        };
        *prob = (p + ((toward - p) >> MOVE_BITS)) as Prob;
        self.widen();
    }

    /// Encodes the lowest `count` bits of a value, highest first, with even probabilities.
    #[inline(always)]
    pub(crate) fn direct(&mut self, value: u32, count: u32) {
        for i in (0..count).rev() {
            self.state.range >>= 1;
            let one = 0_u32.wrapping_sub(value >> i & 1);
            self.state.low += u64::from(self.state.range & one);
            self.widen();
        }
    }

    /// Encodes `count` bits of a symbol, highest first, in a tree of `1 << count` probabilities.
    #[inline(always)]
    pub(crate) fn tree(&mut self, probs: &mut [Prob], symbol: u32, count: u32) {
        let mut node = 1_usize;
        for i in (0..count).rev() {
            let bit = symbol >> i & 1;
            self.bit(&mut probs[node], bit);
            node = node << 1 | bit as usize;
        }
    }

    /// Encodes `count` bits of a symbol in such a tree, lowest first.
    #[inline(always)]
    pub(crate) fn tree_reverse(&mut self, probs: &mut [Prob], symbol: u32, count: u32) {
        let mut node = 1_usize;
        for i in 0..count {
            let bit = symbol >> i & 1;
            self.bit(&mut probs[node], bit);
            node = node << 1 | bit as usize;
        }
    }
}

/// Prices of bits. Unit: sixteenths of a bit.
pub(crate) mod price {
    use super::{PROB_BITS, Prob};

    /// Number of price units per bit, as a shift.
    pub(crate) const BIT_SHIFT: u32 = 4;

    /// Number of probabilities that share a price, as a shift.
    const STEP_SHIFT: u32 = 4;

    /// Price above that of any path.
    pub(crate) const INFINITE: u32 = 1 << 30;

    static PRICES: [u8; 1 << (PROB_BITS - STEP_SHIFT)] = prices();

    /// Computes `-log2` of the middle of each step by squaring four times: each overflow past 16 bits is a digit.
    const fn prices() -> [u8; 1 << (PROB_BITS - STEP_SHIFT)] {
        let mut out = [0; 1 << (PROB_BITS - STEP_SHIFT)];
        let mut i = 0;
        while i < out.len() {
            let mut w: u32 = ((i as u32) << STEP_SHIFT) + (1 << (STEP_SHIFT - 1));
            let mut digits = 0;
            let mut round = 0;
            while round < BIT_SHIFT {
                w *= w;
                digits <<= 1;
                while w >= 1 << 16 {
                    w >>= 1;
                    digits += 1;
                }
                round += 1;
            }
            out[i] = ((PROB_BITS << BIT_SHIFT) - 15 - digits) as u8;
            i += 1;
        }
        out
    }

    /// Returns the price of a bit, 0 or 1.
    #[inline(always)]
    pub(crate) fn bit(prob: Prob, bit: u32) -> u32 {
        let flip = 0_u32.wrapping_sub(bit) & ((1 << PROB_BITS) - 1);
        let step = (u32::from(prob) ^ flip) >> STEP_SHIFT;
        u32::from(PRICES[step as usize & (PRICES.len() - 1)])
    }

    /// Returns the price of `count` bits of a symbol in a tree.
    #[inline(always)]
    pub(crate) fn tree(probs: &[Prob], symbol: u32, count: u32) -> u32 {
        let mut node = symbol | 1 << count;
        let mut sum = 0;
        while node > 1 {
            let low = node & 1;
            node >>= 1;
            sum += bit(probs[node as usize], low);
        }
        sum
    }

    /// Returns the price of `count` bits of a symbol in a tree with the lowest bit first.
    #[inline(always)]
    pub(crate) fn tree_reverse(probs: &[Prob], symbol: u32, count: u32) -> u32 {
        let mut node = 1;
        let mut sum = 0;
        for i in 0..count {
            let low = symbol >> i & 1;
            sum += bit(probs[node as usize], low);
            node = node << 1 | low;
        }
        sum
    }

    /// Returns the price of `count` direct bits.
    pub(crate) const fn direct(count: u32) -> u32 {
        count << BIT_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_prices_are_logarithms_of_probabilities() {
        for prob in (8..2048).step_by(16) {
            let bits = -(f64::from(prob) / 2048.0).log2() * 16.0;
            let price = f64::from(price::bit(prob as Prob, 0));
            assert!((price - bits).abs() <= 1.0, "{prob}: {price}, {bits}");
            let mirrored = price::bit(2047 - prob as Prob, 1);
            assert_eq!(f64::from(mirrored), price);
        }
    }

    #[test]
    fn restoring_the_range_coder_removes_speculative_output() {
        let code = |out: &mut [u8], detour: bool| {
            let mut probs = [EVEN; 64];
            let mut coder = RangeCoder::new(out);
            for i in 0..200_u32 {
                let symbol = i.wrapping_mul(0x9e37_79b9) >> 26;
                if detour {
                    let (state, before) = (coder.state(), probs);
                    for _ in 0..300 {
                        coder.tree(&mut probs, 63 - symbol, 6);
                        coder.direct(symbol, 7);
                    }
                    coder.restore(state);
                    probs = before;
                }
                coder.tree(&mut probs, symbol, 6);
            }
            assert!(coder.len() <= 400);
            coder.finish()
        };
        let (mut plain, mut detoured) = ([0; 400], [0; 400]);
        let len = code(&mut plain, false);
        assert_eq!(code(&mut detoured, true), len);
        assert_eq!(plain[..len], detoured[..len]);
    }
}
