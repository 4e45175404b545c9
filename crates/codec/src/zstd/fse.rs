//! Finite-state entropy coding: normalised counts, their description in a stream, and the encoder's tables.
//!
//! Source: RFC 8878, section 4.1.

use super::bits::{BIT, BitString, BitWriter, log2};

/// The most symbols that a table here has: match length codes.
pub(super) const SYMBOLS: usize = 53;

/// The largest table has 2^9 cells.
const CELLS: usize = 1 << 9;

/// At least as many as there are symbols.
const TRANSFORMS: usize = SYMBOLS.next_power_of_two();

/// How a symbol moves the state.
#[derive(Clone, Copy, Default)]
struct SymbolTransform {
    /// Added to the state, gives the number of bits in the upper half.
    bits: u32,
    /// Added to the rest of the state, gives the index of the next state.
    find: i32,
}

/// Shares of a table's cells.
#[derive(Clone)]
pub(super) struct NormalizedCounts {
    /// Cells per symbol; -1 is one cell at the end of the table.
    pub(super) norm: [i16; SYMBOLS],
    /// One more than the last symbol that has a share.
    pub(super) symbols: usize,
    /// The table has 2^log cells.
    pub(super) log: u32,
}

impl NormalizedCounts {
    /// A distribution of the format.
    pub(super) const fn fixed(given: &[i16], log: u32) -> Self {
        let mut norm = [0; SYMBOLS];
        let mut i = 0;
        while i < given.len() {
            norm[i] = given[i];
            i += 1;
        }
        Self {
            norm,
            symbols: given.len(),
            log,
        }
    }

    /// Shares in proportion to `counts`, of which at least two are not zero and whose sum is `total`.
    pub(super) fn normalise(counts: &[u32], total: u32, log_max: u32) -> Self {
        let mut present = [0u8; SYMBOLS + 1];
        let mut used = 0;
        for (symbol, &n) in counts.iter().enumerate() {
            present[used] = symbol as u8;
            used += usize::from(n > 0);
        }
        let present = &present[..used];
        let symbols = present.last().map_or(0, |&last| usize::from(last) + 1);
        // A large table is exact, and costs more to describe: a quarter of a cell per occurrence is enough.
        let enough = (total - 1).max(1).ilog2().saturating_sub(1);
        let log = enough.min(log_max).max(used.ilog2() + 1).clamp(5, log_max);
        let mut norm = [0i16; SYMBOLS];
        let mut left = 1i32 << log;
        let scale = (1 << (32 + log)) / u64::from(total);
        for &symbol in present {
            let symbol = usize::from(symbol);
            let share = (u64::from(counts[symbol]) * scale + (1 << 31)) >> 32;
            // fits: at most 2^9
            norm[symbol] = (share as i16).max(1);
            left -= i32::from(norm[symbol]);
        }
        // Rounding leaves a few cells over, or takes a few too many: move those that matter least.
        let step = left.signum() as i16;
        let gain = |symbol: u8, norm: &[i16; SYMBOLS]| {
            let share = f64::from(norm[usize::from(symbol)]);
            let n = f64::from(counts[usize::from(symbol)]);
            if step > 0 {
                n / (share + 0.5)
            } else if share < 2.0 {
                -1.0
            } else {
                (share - 0.5) / n
            }
        };
        let mut gains = [-1.0; SYMBOLS];
        if left != 0 {
            for (slot, &symbol) in gains.iter_mut().zip(present) {
                *slot = gain(symbol, &norm);
            }
        }
        while left != 0 {
            let mut best = (0, -1.0);
            for (i, &gain) in gains[..used].iter().enumerate() {
                if gain > best.1 {
                    best = (i, gain);
                }
            }
            let symbol = present[best.0];
            norm[usize::from(symbol)] += step;
            gains[best.0] = gain(symbol, &norm);
            left -= i32::from(step);
        }
        Self { norm, symbols, log }
    }

    /// What it costs to code so many of each symbol. `None` if one of them has no share. Unit: 1 / BIT.
    pub(super) fn price(&self, counts: &[u32]) -> Option<u64> {
        let mut sum = 0;
        for (symbol, &n) in counts.iter().enumerate() {
            if n > 0 {
                let share = match self.norm[symbol] {
                    0 => return None,
                    share => u32::from(share.unsigned_abs()),
                };
                sum += u64::from(n) * (u64::from(self.log) * BIT - log2(share));
            }
        }
        Some(sum)
    }

    /// Writes the description; returns the position behind it.
    pub(super) fn describe(&self, out: &mut [u8], pos: usize) -> usize {
        let mut bits = BitWriter::new(out, pos);
        bits.add(u64::from(self.log - 5), 4);
        let mut remaining = (1i32 << self.log) + 1;
        let mut threshold = 1i32 << self.log;
        let mut width = self.log + 1;
        let mut symbol = 0;
        let mut after_zero = false;
        while remaining > 1 {
            if after_zero {
                let start = symbol;
                while self.norm[symbol] == 0 {
                    symbol += 1;
                }
                let mut zeros = symbol - start;
                while zeros >= 3 {
                    bits.add(3, 2);
                    bits.flush();
                    zeros -= 3;
                }
                bits.add(zeros as u64, 2);
            }
            let share = i32::from(self.norm[symbol]);
            symbol += 1;
            let max = 2 * threshold - 1 - remaining;
            remaining -= share.abs();
            let mut value = share + 1;
            if value >= threshold {
                value += max;
            }
            bits.add(value as u64, width - u32::from(value < max));
            bits.flush();
            after_zero = share == 0;
            while remaining < threshold {
                width -= 1;
                threshold >>= 1;
            }
        }
        bits.finish()
    }
}

/// What an odd number is multiplied by to give 1, in all the bits that a table's cells are counted with.
const fn inverse(odd: usize) -> usize {
    // Right in three bits; each round doubles them.
    let mut found = odd;
    while found.wrapping_mul(odd) % CELLS != 1 {
        found = found.wrapping_mul(2usize.wrapping_sub(found.wrapping_mul(odd)));
    }
    found
}

/// The encoder's table.
pub(super) struct FseTable {
    states: [u16; CELLS],
    /// By symbol; a power of two, so that no index is out of bounds.
    transforms: [SymbolTransform; TRANSFORMS],
    log: u32,
}

impl FseTable {
    pub(super) fn new() -> Self {
        Self {
            states: [0; CELLS],
            transforms: [SymbolTransform::default(); TRANSFORMS],
            log: 0,
        }
    }

    /// The table of these shares.
    pub(super) fn of(counts: &NormalizedCounts) -> Self {
        let mut this = Self::new();
        this.build(counts);
        this
    }

    /// Fills the table for these shares.
    pub(super) fn build(&mut self, counts: &NormalizedCounts) {
        let log = counts.log;
        let size = 1usize << log;
        let mask = size - 1;
        self.log = log;
        let mut from = [0usize; SYMBOLS + 1];
        // The symbols, each as often as it has cells, and the last cells, whose symbols have but one.
        let mut listed = [0u8; CELLS];
        let mut last = [0u8; CELLS];
        let (mut end, mut high) = (0, size);
        for (symbol, &share) in counts.norm[..counts.symbols].iter().enumerate() {
            from[symbol + 1] = from[symbol] + usize::from(share.unsigned_abs());
            if share == -1 {
                high -= 1;
                last[high] = symbol as u8;
            }
            let share = usize::from(share.max(0).unsigned_abs());
            listed[end..end + share].fill(symbol as u8);
            end += share;
        }
        // From one symbol of the list to the next it is a step of so many cells, around the table, over the last ones.
        let step = (size >> 1) + (size >> 3) + 3;
        let mut next = from;
        let mut take = |symbol: u8, cell: usize| {
            let slot = &mut next[usize::from(symbol)];
            self.states[*slot & (CELLS - 1)] = (size + cell) as u16;
            *slot += 1;
        };
        if high == size {
            // The way back: which symbol of the list comes to a cell.
            let back = inverse(step) & mask;
            let mut at = 0;
            for cell in 0..size {
                take(listed[at & (CELLS - 1)], cell);
                at = (at + back) & mask;
            }
        } else {
            let mut at = 0;
            for &symbol in &listed[..end] {
                last[at] = symbol;
                at = (at + step) & mask;
                while at >= high {
                    at = (at + step) & mask;
                }
            }
            for (cell, &symbol) in last[..size].iter().enumerate() {
                take(symbol, cell);
            }
        }
        for (symbol, &total) in from[..counts.symbols].iter().enumerate() {
            let total = total as i32;
            self.transforms[symbol] = match counts.norm[symbol] {
                0 => SymbolTransform::default(),
                -1 | 1 => SymbolTransform {
                    bits: (log << 16) - (1 << log),
                    find: total - 1,
                },
                share => {
                    let share = share as u32;
                    let most = log - (share - 1).ilog2();
                    SymbolTransform {
                        bits: (most << 16) - (share << most),
                        find: total - share as i32,
                    }
                }
            };
        }
    }

    /// The table of a single symbol, which costs no bits.
    pub(super) fn build_single(&mut self, symbol: u8) {
        self.log = 0;
        self.states[0] = 0;
        self.transforms[usize::from(symbol) % TRANSFORMS] = SymbolTransform { bits: 0, find: 0 };
    }

    /// The state that the last symbol, which is coded first, starts with.
    #[inline(always)]
    pub(super) fn start(&self, symbol: u8) -> u32 {
        let SymbolTransform { bits, find } = self.transforms[usize::from(symbol) % TRANSFORMS];
        let n = (bits + (1 << 15)) >> 16;
        let value = (n << 16).wrapping_sub(bits);
        u32::from(self.states[((value >> n) as i32 + find) as usize & (CELLS - 1)])
    }

    /// Codes one more symbol: with so few bits, at most 9.
    #[inline(always)]
    pub(super) fn code(&self, state: &mut u32, symbol: u8) -> BitString {
        let SymbolTransform { bits, find } = self.transforms[usize::from(symbol) % TRANSFORMS];
        let n = state.wrapping_add(bits) >> 16;
        let few = BitString::low((*state).into(), n);
        *state = u32::from(self.states[((*state >> n) as i32 + find) as usize & (CELLS - 1)]);
        few
    }

    /// Writes the last state.
    #[inline(always)]
    pub(super) fn end(&self, state: u32, out: &mut BitWriter<'_>) {
        out.add(u64::from(state), self.log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_follow_the_counts() {
        let mut seed = 1u32;
        for _ in 0..2000 {
            let mut counts = [0u32; SYMBOLS];
            for n in &mut counts {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *n = if seed >> 30 == 0 {
                    (seed >> 8) % (1 << (seed % 14))
                } else {
                    0
                };
            }
            counts[3] += 1;
            counts[5] += 2;
            let total = counts.iter().sum();
            let made = NormalizedCounts::normalise(&counts, total, 9);
            let cells: i32 = made.norm.iter().map(|&n| i32::from(n).abs()).sum();
            assert_eq!(cells, 1 << made.log);
            for (n, share) in counts.iter().zip(made.norm) {
                assert_eq!(*n > 0, share > 0);
            }
        }
    }
}
