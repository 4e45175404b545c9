//! Bit strings and a bit writer, lowest bit first, and fixed-point logarithms for prices.

/// A short string of bits. Strings are concatenated before they are added to a buffer, so that only the last step
/// depends on the buffer.
#[derive(Clone, Copy)]
pub(super) struct BitString {
    value: u64,
    n: u32,
}

impl BitString {
    /// Takes the lowest `n` bits of `value`, fewer than 64.
    #[inline(always)]
    pub(super) fn low(value: u64, n: u32) -> Self {
        Self::clean(value & ((1 << n) - 1), n)
    }

    /// Takes the lowest `n` bits of a value without higher bits.
    #[inline(always)]
    pub(super) fn clean(value: u64, n: u32) -> Self {
        Self { value, n }
    }

    /// Appends `above` as the higher bits; fewer than 64 in all.
    #[inline(always)]
    pub(super) fn then(self, above: Self) -> Self {
        Self {
            value: self.value | above.value << self.n,
            n: self.n + above.n,
        }
    }

    /// Returns the number of bits.
    #[inline(always)]
    pub(super) fn len(self) -> u32 {
        self.n
    }
}

/// Writer of bits into a buffer.
pub(super) struct BitWriter<'a> {
    out: &'a mut [u8],
    pos: usize,
    bits: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    /// Starts at `pos` in `out`, which has to be eight bytes longer than the output.
    pub(super) fn new(out: &'a mut [u8], pos: usize) -> Self {
        Self {
            out,
            pos,
            bits: 0,
            count: 0,
        }
    }

    /// Adds the lowest `n` bits of `value`. At most 56 bits may be added between two calls of `flush`.
    #[inline(always)]
    pub(super) fn add(&mut self, value: u64, n: u32) {
        self.bits |= (value & ((1 << n) - 1)) << self.count;
        self.count += n;
    }

    /// Adds a bit string, under the same limit.
    #[inline(always)]
    pub(super) fn put(&mut self, few: BitString) {
        self.bits |= few.value << self.count;
        self.count += few.n;
    }

    /// Moves whole bytes to the buffer.
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        self.out[self.pos..self.pos + 8].copy_from_slice(&self.bits.to_le_bytes());
        let bytes = self.count / 8;
        self.pos += bytes as usize;
        self.bits >>= bytes * 8;
        self.count &= 7;
    }

    /// Ends with a one bit, which marks the end for a reader that starts there. Returns the position after the last
    /// byte.
    pub(super) fn close(mut self) -> usize {
        self.add(1, 1);
        self.finish()
    }

    /// Ends with zero bits. Returns the position after the last byte.
    pub(super) fn finish(mut self) -> usize {
        self.flush();
        self.pos + usize::from(self.count > 0)
    }
}

/// Price of one bit.
pub(super) const BIT: u64 = 1 << 12;

/// Number of mantissas for which `log2` is tabulated.
const STEPS: usize = 1 << 10;

/// `log2(1 + i / STEPS)`. Unit: 1 / BIT.
const LOG2: &[u16; STEPS] = &log2_table();

const fn log2_table() -> [u16; STEPS] {
    let mut table = [0; STEPS];
    let mut i = 0;
    while i < STEPS {
        // Squaring a number in [1, 2) yields its logarithm bit by bit.
        let mut x = ((STEPS + i) as u128) << 50;
        let mut log = 0u16;
        let mut bit = 0;
        while bit < 12 {
            x = (x * x) >> 60;
            log <<= 1;
            if x >= 2 << 60 {
                x >>= 1;
                log |= 1;
            }
            bit += 1;
        }
        table[i] = log;
        i += 1;
    }
    table
}

/// Returns `log2` of a number that is not zero. Unit: 1 / BIT. Integer arithmetic gives the same result on every
/// machine.
#[inline]
pub(super) const fn log2(n: u32) -> u64 {
    let high = n.ilog2();
    let mantissa = if high >= 10 {
        n >> (high - 10)
    } else {
        n << (10 - high)
    } as usize
        & (STEPS - 1);
    high as u64 * BIT + LOG2[mantissa] as u64
}

/// Number of counts for which `n * log2(n)` is tabulated; most counts are smaller.
const FEW: usize = 1 << 11;

/// Table of `n * log2(n)`. Unit: 1 / BIT.
static FEW_LOG2: [u32; FEW] = {
    let mut table = [0; FEW];
    let mut n = 1;
    while n < FEW {
        // fits: less than 2^11 * 11 * 2^12
        table[n] = (n as u64 * log2(n as u32)) as u32;
        n += 1;
    }
    table
};

/// Returns `n * log2(n)`, and 0 for 0. Unit: 1 / BIT.
#[inline(always)]
pub(super) fn times_log2(n: u32) -> u64 {
    match FEW_LOG2.get(n as usize) {
        Some(&product) => product.into(),
        None => u64::from(n) * log2(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_have_an_error_below_8_units() {
        for n in 1..200_000u32 {
            let exact = f64::from(n).log2() * BIT as f64;
            assert!((log2(n) as f64 - exact).abs() < 8.0, "{n}");
            assert_eq!(times_log2(n), u64::from(n) * log2(n));
        }
    }

    #[test]
    fn bits_are_written_from_the_lowest() {
        let mut out = [0; 16];
        let mut bits = BitWriter::new(&mut out, 1);
        bits.add(0b101, 3);
        bits.add(0xff, 4);
        bits.flush();
        bits.add(0b1_0110, 5);
        assert_eq!(bits.close(), 3);
        assert_eq!(out[..4], [0, 0b0111_1101, 0b1_1011, 0]);
    }
}
