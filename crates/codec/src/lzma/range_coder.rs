//! The range coder: bits with probabilities to bytes, into an output of fixed size.
//!
//! ```text
//!  out[..at]       held back: one byte and a run of 0xFF,     low: 32 bits and a carry
//!                  which a carry may still change
//! ```

/// Bits of a probability.
const PROB_BITS: u32 = 11;

/// The probability that a bit is 0, of 2048.
pub(crate) type Prob = u16;

/// As likely as not.
pub(crate) const EVEN: Prob = 1 << (PROB_BITS - 1);

/// How fast a probability follows what it sees.
const MOVE_BITS: u32 = 5;

/// Below this the range is made wider, by a byte.
const TOP: u32 = 1 << 24;

/// What flushing adds: the coder ends on the exact low end of its range, as decoders insist. Unit: bytes.
const TAIL: usize = 4;

/// State of the coder but for its output: enough to take back what was coded since.
#[derive(Clone, Copy)]
pub(crate) struct RangeCoderState {
    low: u64,
    range: u32,
    cache: u8,
    /// Bytes held back, `cache` included.
    held: usize,
    /// Bytes written.
    at: usize,
}

/// Codes bits into `out`.
pub(crate) struct RangeCoder<'a> {
    state: RangeCoderState,
    out: &'a mut [u8],
}

impl<'a> RangeCoder<'a> {
    /// The first byte of a stream is always 0; it is the caller's to replace.
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

    /// Length of the stream if it ended here. Unit: bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.state.at + self.state.held + TAIL
    }

    /// Where the coder is.
    pub(crate) fn state(&self) -> RangeCoderState {
        self.state
    }

    /// Takes back what was coded since `state`. What was coded may have been more than the output holds.
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

    /// Writes a byte, if there is room: what does not fit is taken back.
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

    /// Codes a bit, 0 or 1, and lets the probability learn from it.
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

    /// Codes the lowest `count` bits of a value, the highest of them first, each as likely as not.
    #[inline(always)]
    pub(crate) fn direct(&mut self, value: u32, count: u32) {
        for i in (0..count).rev() {
            self.state.range >>= 1;
            let one = 0_u32.wrapping_sub(value >> i & 1);
            self.state.low += u64::from(self.state.range & one);
            self.widen();
        }
    }

    /// Codes `count` bits of a symbol, the highest first, in a tree of `1 << count` probabilities.
    #[inline(always)]
    pub(crate) fn tree(&mut self, probs: &mut [Prob], symbol: u32, count: u32) {
        let mut node = 1_usize;
        for i in (0..count).rev() {
            let bit = symbol >> i & 1;
            self.bit(&mut probs[node], bit);
            node = node << 1 | bit as usize;
        }
    }

    /// The same, the lowest bit first.
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

/// What bits cost. Unit: sixteenths of a bit.
pub(crate) mod price {
    use super::{PROB_BITS, Prob};

    /// The scale: so many units are one bit, as a shift.
    pub(crate) const BIT_SHIFT: u32 = 4;

    /// Probabilities that share a price, as a shift.
    const STEP_SHIFT: u32 = 4;

    /// More than anything costs.
    pub(crate) const INFINITE: u32 = 1 << 30;

    static PRICES: [u8; 1 << (PROB_BITS - STEP_SHIFT)] = prices();

    /// `-log2` of the middle of each step, by squaring four times: each time what goes beyond 16 bits is a digit.
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

    /// What a bit, 0 or 1, costs.
    #[inline(always)]
    pub(crate) fn bit(prob: Prob, bit: u32) -> u32 {
        let flip = 0_u32.wrapping_sub(bit) & ((1 << PROB_BITS) - 1);
        let step = (u32::from(prob) ^ flip) >> STEP_SHIFT;
        u32::from(PRICES[step as usize & (PRICES.len() - 1)])
    }

    /// What `count` bits of a symbol cost in a tree.
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

    /// The same for a tree whose lowest bit comes first.
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

    /// What `count` direct bits cost.
    pub(crate) const fn direct(count: u32) -> u32 {
        count << BIT_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_logarithms() {
        for prob in (8..2048).step_by(16) {
            let bits = -(f64::from(prob) / 2048.0).log2() * 16.0;
            let price = f64::from(price::bit(prob as Prob, 0));
            assert!((price - bits).abs() <= 1.0, "{prob}: {price}, {bits}");
            let mirrored = price::bit(2047 - prob as Prob, 1);
            assert_eq!(f64::from(mirrored), price);
        }
    }

    #[test]
    fn what_is_taken_back_leaves_no_trace() {
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
