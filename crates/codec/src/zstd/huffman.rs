//! Huffman coding of literals: code lengths up to 11 bits, table description, and streams.
//!
//! Source: RFC 8878, section 4.2.

use super::bits::{BitString, BitWriter};
use super::fse::{FseTable, NormalizedCounts, SYMBOLS};

/// Longest code. Unit: bits.
const LENGTH_MAX: u32 = 11;

/// Power of two above the longest code, so that no index is out of bounds.
const LENGTHS: usize = (LENGTH_MAX as usize + 1).next_power_of_two();

/// Largest description: a length byte and 127 bytes. Unit: bytes.
const DESCRIPTION_MAX: usize = 128;

/// Index of the first inner node: after the 256 leaves, with a gap between.
const INNER: usize = 512;

/// Huffman table with its description.
#[derive(Clone)]
pub(super) struct HuffmanTable {
    /// Code and length of each symbol: the length in the low byte, the code above. Zero without a code.
    codes: [u32; 256],
    description: [u8; DESCRIPTION_MAX + 8],
    description_len: usize,
}

impl HuffmanTable {
    /// Creates the table for these counts, of which at least two are not zero. `None` if the format cannot describe
    /// it.
    pub(super) fn new(counts: &[u32; 256], total: u32) -> Option<Self> {
        let mut all = [0u32; 256];
        let mut used = 0;
        for (symbol, &n) in counts.iter().enumerate() {
            // fits: a block has at most 2^17 literals
            all[used] = n << 8 | symbol as u32;
            used += usize::from(n > 0);
        }
        let entries = &all[..used];
        let mut sorted = [0; 256];
        let order = &mut sorted[..used];
        sort(entries, order);
        // Short texts gain little from long codes, which cost more to describe.
        let enough = (total - 1).max(1).ilog2().saturating_sub(1).max(1);
        let limit = enough
            .min(LENGTH_MAX)
            .max(used.ilog2() + 1)
            .clamp(5, LENGTH_MAX);
        let mut lengths = [0u8; 256];
        assign(order, limit, &mut lengths);
        Self::from_lengths(&lengths, entries)
    }

    /// Creates the table from code lengths. The symbols are the low bytes of `entries`, in order.
    fn from_lengths(lengths: &[u8; 256], entries: &[u32]) -> Option<Self> {
        let symbols = entries.iter().map(|entry| (entry & 0xff) as usize);
        // Codes of one length are consecutive in symbol order, and the longest codes begin at zero.
        let mut per_length = [0u32; LENGTHS];
        for symbol in symbols.clone() {
            per_length[usize::from(lengths[symbol]) % LENGTHS] += 1;
        }
        let longest = per_length.iter().rposition(|&n| n > 0)?;
        let mut next = [0u32; LENGTHS];
        let mut value = 0;
        for length in (1..=longest).rev() {
            next[length] = value;
            value = (value + per_length[length]) >> 1;
        }
        let mut codes = [0; 256];
        for symbol in symbols {
            let length = lengths[symbol];
            let next = &mut next[usize::from(length) % LENGTHS];
            codes[symbol] = *next << 8 | u32::from(length);
            *next += 1;
        }
        let mut this = Self {
            codes,
            description: [0; DESCRIPTION_MAX + 8],
            description_len: 0,
        };
        this.describe(lengths, entries, longest as u8)?;
        Some(this)
    }

    fn describe(&mut self, lengths: &[u8; 256], entries: &[u32], longest: u8) -> Option<()> {
        let last = (entries.last()? & 0xff) as usize;
        let weights = lengths.map(|length| match length {
            0 => 0,
            length => longest + 1 - length,
        });
        // The last weight follows from the others.
        let weights = &weights[..last];
        let plain = (last <= 128).then(|| 1 + last.div_ceil(2));
        let packed = pack(weights, &mut self.description);
        match (plain, packed) {
            (plain, Some(packed)) if plain.is_none_or(|plain| packed < plain) => {
                self.description_len = packed
            }
            (Some(plain), _) => {
                self.description[0] = 127 + last as u8;
                for (byte, pair) in self.description[1..].iter_mut().zip(weights.chunks(2)) {
                    *byte = pair[0] << 4 | pair.get(1).copied().unwrap_or(0);
                }
                self.description_len = plain;
            }
            (None, _) => return None,
        }
        Some(())
    }

    /// Returns the length of each symbol's code, 0 for none. Unit: bits.
    pub(super) fn lengths(&self) -> [u32; 256] {
        self.codes.map(|code| code & 0xff)
    }

    /// Returns the table description.
    pub(super) fn description(&self) -> &[u8] {
        &self.description[..self.description_len]
    }

    /// Returns the price of encoding the counted symbols. `None` if one of them has no code. Unit: bits.
    pub(super) fn price(&self, counts: &[u32; 256]) -> Option<u64> {
        let (mut sum, mut missing) = (0, 0);
        for (&code, &n) in self.codes.iter().zip(counts) {
            let length = code & 0xff;
            missing |= if length == 0 { n } else { 0 };
            sum += u64::from(n * length);
        }
        (missing == 0).then_some(sum)
    }

    /// Encodes `literals` as one stream; returns the position after it.
    #[inline(always)]
    pub(super) fn stream(&self, literals: &[u8], out: &mut [u8], pos: usize) -> usize {
        let mut bits = BitWriter::new(out, pos);
        let few = |byte: u8| {
            let code = self.codes[usize::from(byte)];
            BitString::clean(u64::from(code >> 8), code & 0xff)
        };
        let chunks = literals.rchunks_exact(5);
        let rest = chunks.remainder();
        for five in chunks {
            // At most 55 bits, with at most 7 pending.
            let pair = |i: usize| few(five[i]).then(few(five[i - 1]));
            bits.put(pair(4).then(pair(2)).then(few(five[0])));
            bits.flush();
        }
        for &byte in rest.iter().rev() {
            bits.put(few(byte));
        }
        bits.flush();
        bits.close()
    }
}

/// Sorts entries, given in symbol order, by count and symbol.
fn sort(entries: &[u32], sorted: &mut [u32]) {
    // A stable counting sort. The few most frequent symbols share the last bucket at first.
    const OFTEN: usize = 255;
    let place = |entry: u32| ((entry >> 8) as usize).min(OFTEN);
    let mut next = [0u16; OFTEN + 1];
    for &entry in entries {
        next[place(entry)] += 1;
    }
    let mut before = 0;
    for slot in &mut next {
        before += std::mem::replace(slot, before);
    }
    let often = usize::from(next[OFTEN]);
    for &entry in entries {
        let slot = &mut next[place(entry)];
        sorted[usize::from(*slot)] = entry;
        *slot += 1;
    }
    sorted[often..].sort_unstable();
}

/// Computes code lengths of up to `limit` bits for the entries in `order`: count and symbol, rarest first.
fn assign(order: &[u32], limit: u32, lengths: &mut [u8; 256]) {
    let n = order.len();
    // Two queues: the leaves in order, and the inner nodes, which are created in order. Missing nodes weigh more than
    // any other, so that the choice of the next needs no branch.
    let mut weight = [u32::MAX; 2 * INNER];
    let mut parent = [0u16; 2 * INNER];
    for (weight, &leaf) in weight.iter_mut().zip(order) {
        *weight = leaf >> 8;
    }
    let (mut leaf, mut inner) = (0, INNER);
    for node in INNER..INNER + n - 1 {
        let mut sum = 0;
        for _ in 0..2 {
            let take_leaf = weight[leaf] <= weight[inner % (2 * INNER)];
            let taken = if take_leaf { leaf } else { inner } % (2 * INNER);
            leaf += usize::from(take_leaf);
            inner += usize::from(!take_leaf);
            sum += weight[taken];
            parent[taken] = node as u16;
        }
        weight[node] = sum;
    }
    let mut depth = [0u8; 2 * INNER];
    for node in (INNER..INNER + n - 2).rev().chain(0..n) {
        depth[node] = depth[usize::from(parent[node])].saturating_add(1);
    }
    // Codes that are too long are cut, which exceeds the code space; other codes become longer, cheapest first.
    let limit = limit as u8;
    let room = 1u32 << limit;
    let mut taken = 0;
    for depth in &mut depth[..n] {
        *depth = (*depth).min(limit);
        taken += 1 << (limit - *depth);
    }
    // The longest code below the limit costs least to extend, and of these the rarest symbol. Lengths fall from the
    // rarest to the most frequent symbol, so this is the first one, until it reaches the limit.
    let mut victim = depth[..n].partition_point(|&depth| depth == limit);
    while taken > room {
        // present: while the code space is exceeded, some code is shorter than the limit, because 2^limit exceeds the
        // number of symbols
        taken -= 1 << (limit - depth[victim] - 1);
        depth[victim] += 1;
        victim += usize::from(depth[victim] == limit);
    }
    // Space left over goes to the most frequent symbols that can use it.
    let mut spare = room - taken;
    for depth in depth[..n].iter_mut().rev() {
        while spare > 0 && *depth > 1 && 1 << (limit - *depth) <= spare {
            spare -= 1 << (limit - *depth);
            *depth -= 1;
        }
    }
    for (&entry, &depth) in order.iter().zip(&depth[..n]) {
        lengths[(entry & 0xff) as usize] = depth;
    }
}

/// Encodes the weights with FSE. Returns the size of the description; `None` if the format does not permit it.
fn pack(weights: &[u8], out: &mut [u8; DESCRIPTION_MAX + 8]) -> Option<usize> {
    let mut counts = [0u32; SYMBOLS];
    for &weight in weights {
        counts[usize::from(weight)] += 1;
    }
    let total = weights.len() as u32;
    let used = counts.iter().filter(|&&n| n > 0).count();
    if total < 3 || used < 2 {
        return None;
    }
    let shares = NormalizedCounts::normalise(&counts, total, 6);
    // Many different weights may exceed the largest description.
    let estimate = shares.price(&counts)? / super::bits::BIT / 8 + 16;
    if estimate as usize > DESCRIPTION_MAX - 1 {
        return None;
    }
    let mut table = FseTable::new();
    table.build(&shares);
    let mut buffer = [0u8; 2 * DESCRIPTION_MAX];
    let pos = shares.describe(&mut buffer, 1);
    let mut bits = BitWriter::new(&mut buffer, pos);
    // Two states alternate, the first at even positions; encoding runs backwards.
    let mut states = [None; 2];
    for (i, &weight) in weights.iter().enumerate().rev() {
        match &mut states[i & 1] {
            Some(state) => bits.put(table.code(state, weight)),
            slot => *slot = Some(table.start(weight)),
        }
        bits.flush();
    }
    // present: there are at least three weights
    table.end(states[1]?, &mut bits);
    table.end(states[0]?, &mut bits);
    bits.flush();
    let end = bits.close();
    if end > DESCRIPTION_MAX {
        return None;
    }
    buffer[0] = (end - 1) as u8;
    out[..end].copy_from_slice(&buffer[..end]);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_lengths_form_a_complete_code_for_any_counts() {
        let mut seed = 1u64;
        for round in 0..3000 {
            let symbols = 2 + round % 255;
            let mut counts = [0u32; 256];
            for n in &mut counts[..symbols] {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *n = 1 + ((seed >> 50) as u32 >> (seed >> 33 & 15));
            }
            let total = counts.iter().sum();
            let Some(code) = HuffmanTable::new(&counts, total) else {
                panic!("round {round}")
            };
            let mut room = 0;
            for (&n, &code) in counts.iter().zip(&code.codes) {
                let length = code & 0xff;
                assert_eq!(n > 0, length > 0);
                assert!(length <= 11);
                room += if length > 0 { 1 << (11 - length) } else { 0 };
            }
            assert_eq!(room, 1 << 11, "round {round}");
        }
    }
}
