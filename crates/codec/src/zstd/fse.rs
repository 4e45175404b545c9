//! Finite state entropy (FSE) coding: normalized counts, their description in a stream, and encoding tables.
//!
//! Source: RFC 8878, section 4.1.

use super::bits::{BIT, BitString, BitWriter, log2};

/// Largest number of symbols of a table: the match length codes.
pub(super) const SYMBOLS: usize = 53;

/// Number of cells of the largest table.
const CELLS: usize = 1 << 9;

/// Smallest power of two that is at least the number of symbols.
const TRANSFORMS: usize = SYMBOLS.next_power_of_two();

/// State transition of a symbol.
#[derive(Clone, Copy, Default)]
struct SymbolTransform {
    /// Added to the state, gives the number of bits in the upper half.
    bits: u32,
    /// Added to the rest of the state, gives the index of the next state.
    find: i32,
}

/// Distribution of a table's cells among the symbols.
#[derive(Clone)]
pub(super) struct NormalizedCounts {
    /// Number of cells per symbol; -1 is one cell at the end of the table.
    pub(super) norm: [i16; SYMBOLS],
    /// One more than the last symbol that has a share.
    pub(super) symbols: usize,
    /// Size of the table. Unit: log2 of cells.
    pub(super) log: u32,
}

impl NormalizedCounts {
    /// Creates a predefined distribution.
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

    /// Normalizes `counts`, of which at least two are not zero and whose sum is `total`.
    pub(super) fn normalise(counts: &[u32], total: u32, log_max: u32) -> Self {
        let mut present = [0u8; SYMBOLS + 1];
        let mut used = 0;
        for (symbol, &n) in counts.iter().enumerate() {
            present[used] = symbol as u8;
            used += usize::from(n > 0);
        }
        let present = &present[..used];
        let symbols = present.last().map_or(0, |&last| usize::from(last) + 1);
        // A large table is exact but costs more to describe: a quarter of a cell per occurrence is enough.
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
        // Rounding leaves a few cells, or takes too many: adjust the symbols for which it matters least.
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

    /// Returns the price of encoding the counted symbols. `None` if one of them has no share. Unit: 1 / BIT.
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

    /// Writes the description; returns the position after it.
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

/// Returns the multiplicative inverse of an odd number, modulo the largest table size.
const fn inverse(odd: usize) -> usize {
    // Right in three bits; each round doubles them.
    let mut found = odd;
    while found.wrapping_mul(odd) % CELLS != 1 {
        found = found.wrapping_mul(2usize.wrapping_sub(found.wrapping_mul(odd)));
    }
    found
}

/// State transitions that encode a distribution.
pub(super) struct FseTable {
    states: [u16; CELLS],
    /// Transitions by symbol; a power of two, so that no index is out of bounds.
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

    /// Creates the table of a distribution.
    pub(super) fn from_counts(counts: &NormalizedCounts) -> Self {
        let mut this = Self::new();
        this.build(counts);
        this
    }

    /// Fills the table for a distribution.
    pub(super) fn build(&mut self, counts: &NormalizedCounts) {
        let log = counts.log;
        let size = 1usize << log;
        let mask = size - 1;
        self.log = log;
        let mut from = [0usize; SYMBOLS + 1];
        // All symbols, each repeated by its number of cells, and the last cells, whose symbols have one cell.
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
        // Consecutive symbols of the list are this number of cells apart, modulo the table size, skipping the last
        // cells.
        let step = (size >> 1) + (size >> 3) + 3;
        let mut next = from;
        let mut take = |symbol: u8, cell: usize| {
            let slot = &mut next[usize::from(symbol)];
            self.states[*slot & (CELLS - 1)] = (size + cell) as u16;
            *slot += 1;
        };
        if high == size {
            // The inverse: the list index of the symbol in a cell.
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

    /// Fills the table for a single symbol, which costs no bits.
    pub(super) fn build_single(&mut self, symbol: u8) {
        self.log = 0;
        self.states[0] = 0;
        self.transforms[usize::from(symbol) % TRANSFORMS] = SymbolTransform { bits: 0, find: 0 };
    }

    /// Returns the initial state for the last symbol, which is encoded first.
    #[inline(always)]
    pub(super) fn start(&self, symbol: u8) -> u32 {
        let SymbolTransform { bits, find } = self.transforms[usize::from(symbol) % TRANSFORMS];
        let n = (bits + (1 << 15)) >> 16;
        let value = (n << 16).wrapping_sub(bits);
        u32::from(self.states[((value >> n) as i32 + find) as usize & (CELLS - 1)])
    }

    /// Encodes one symbol in at most 9 bits.
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
    fn normalized_counts_sum_to_the_table_size_and_keep_every_symbol() {
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
