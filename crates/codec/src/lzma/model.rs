//! Model of an LZMA stream: literals, matches and repeats with their probabilities.
//!
//! Source: the LZMA specification (`lzma-specification.txt` of the LZMA SDK, in the public domain).

use crate::bytes::{load2, match_len};

use super::range_coder::{EVEN, Prob, RangeCoder, price};

/// Shortest match. Unit: bytes.
pub(crate) const LEN_MIN: usize = 2;

/// Longest match. Unit: bytes.
pub(crate) const LEN_MAX: usize = 273;

/// Number of states of the machine that tracks the kinds of the last symbols.
pub(crate) const STATES: usize = 12;

/// Largest number of position states.
pub(crate) const POS_STATES: usize = 16;

/// Number of length classes with their own distance slot trees.
pub(crate) const DIST_STATES: usize = 4;

/// Number of distance slots.
pub(crate) const SLOTS: usize = 64;

/// First slot whose distances have direct middle bits.
pub(crate) const SLOT_DIRECT: u32 = 14;

/// Number of lowest bits of such a distance that are modelled.
pub(crate) const ALIGN_BITS: u32 = 4;

/// Number of lengths in the low tree, and in the middle tree.
const LEN_LOW: usize = 8;

/// Properties that select the probabilities of literals and positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Props {
    /// Number of highest bits of the previous byte that select a literal's probabilities.
    pub(crate) lc: u32,
    /// Number of lowest bits of the position that select a literal's probabilities.
    pub(crate) lp: u32,
    /// Number of lowest bits of the position that select all other probabilities.
    pub(crate) pb: u32,
}

impl Props {
    /// Default of LZMA encoders: code and tables consist of four-byte words.
    pub(crate) const USUAL: Props = Props {
        lc: 3,
        lp: 0,
        pb: 2,
    };

    /// Properties for data without four-byte alignment.
    pub(crate) const ANYWHERE: Props = Props {
        lc: 3,
        lp: 0,
        pb: 0,
    };

    /// Output size up to which one set of probabilities learns faster than four. Unit: bytes.
    const SMALL: usize = 16 << 10;

    /// Number of bytes inspected to recognise text. Unit: bytes.
    const SAMPLE_LEN: usize = 4096;

    /// Returns the properties for an output of `room` bytes of `data`.
    pub(crate) fn choose(data: &[u8], room: usize) -> Self {
        let is_text = !data[..data.len().min(Self::SAMPLE_LEN)].contains(&0);
        if room <= Self::SMALL || is_text {
            Self::ANYWHERE
        } else {
            Self::USUAL
        }
    }

    /// Encodes the properties as a byte below 225.
    pub(crate) fn byte(self) -> u8 {
        ((self.pb * 5 + self.lp) * 9 + self.lc) as u8
    }
}

/// Kinds of the last symbols: 0 to 6 after a literal, 7 to 11 after a match or repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Last(u8);

impl Last {
    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline(always)]
    pub(crate) fn is_literal(self) -> bool {
        self.0 < 7
    }

    #[inline(always)]
    pub(crate) fn literal(self) -> Self {
        const NEXT: [u8; 16] = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 4, 5, 0, 0, 0, 0];
        Self(NEXT[usize::from(self.0 & 15)])
    }

    #[inline(always)]
    pub(crate) fn matched(self) -> Self {
        Self(if self.is_literal() { 7 } else { 10 })
    }

    #[inline(always)]
    pub(crate) fn repeated(self) -> Self {
        Self(if self.is_literal() { 8 } else { 11 })
    }

    #[inline(always)]
    pub(crate) fn short(self) -> Self {
        Self(if self.is_literal() { 9 } else { 11 })
    }
}

/// One symbol of a stream, with its length and distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Symbol {
    /// [`Symbol::LITERAL`]; below 4 one of the last four distances; otherwise a distance of `from - 3`.
    pub(crate) from: u32,
    /// Length; 1 for a literal and for a short repeat of the last distance. Unit: bytes.
    pub(crate) len: u32,
}

impl Symbol {
    /// Value of `from` for a literal.
    pub(crate) const LITERAL: u32 = u32::MAX;
    /// Number of values of `from` that stand for repeats.
    pub(crate) const REPEATS: u32 = 4;

    pub(crate) fn literal() -> Self {
        Self {
            from: Self::LITERAL,
            len: 1,
        }
    }
}

/// Returns the longest repeat at `at`, or the first of at least `enough` bytes; of length 0 if there is none. `at` is
/// not the first position, and `end` is at least two bytes further.
#[inline(always)]
pub(crate) fn longest_repeat(
    data: &[u8],
    at: usize,
    end: usize,
    reps: [u32; 4],
    enough: usize,
) -> Symbol {
    let mut longest = Symbol { from: 0, len: 0 };
    for (from, dist) in (0..).zip(reps) {
        let before = at - dist as usize - 1;
        // At least two bytes remain.
        if load2(data, at) != load2(data, before) {
            continue;
        }
        let len = match_len(data, at, before, end) as u32;
        if len > longest.len {
            longest = Symbol { from, len };
        }
        if longest.len as usize >= enough {
            break;
        }
    }
    longest
}

/// Returns the slot of a distance, which counts from 0.
#[inline(always)]
pub(crate) fn slot_of(dist: u32) -> u32 {
    if dist < 4 {
        return dist;
    }
    let top = dist.ilog2();
    top << 1 | dist >> (top - 1) & 1
}

/// Returns the number of footer bits of a slot and its base distance, for slots from 4 on.
#[inline(always)]
pub(crate) fn footer_of(slot: u32) -> (u32, u32) {
    let bits = (slot >> 1) - 1;
    (bits, (2 | slot & 1) << bits)
}

/// Returns the length class that selects the distance slot tree.
#[inline(always)]
pub(crate) fn dist_state(len: usize) -> usize {
    (len - LEN_MIN).min(DIST_STATES - 1)
}

/// Probabilities of match lengths.
pub(crate) struct Lengths {
    pub(crate) choice: Prob,
    pub(crate) choice2: Prob,
    pub(crate) low: [[Prob; LEN_LOW]; POS_STATES],
    pub(crate) mid: [[Prob; LEN_LOW]; POS_STATES],
    pub(crate) high: [Prob; 256],
}

impl Lengths {
    const NEW: Lengths = Lengths {
        choice: EVEN,
        choice2: EVEN,
        low: [[EVEN; LEN_LOW]; POS_STATES],
        mid: [[EVEN; LEN_LOW]; POS_STATES],
        high: [EVEN; 256],
    };

    fn code(&mut self, coder: &mut RangeCoder<'_>, len: usize, pos_state: usize) {
        let symbol = (len - LEN_MIN) as u32;
        let low = LEN_LOW as u32;
        if symbol < low {
            coder.bit(&mut self.choice, 0);
            coder.tree(&mut self.low[pos_state], symbol, 3);
            return;
        }
        coder.bit(&mut self.choice, 1);
        if symbol < 2 * low {
            coder.bit(&mut self.choice2, 0);
            coder.tree(&mut self.mid[pos_state], symbol - low, 3);
        } else {
            coder.bit(&mut self.choice2, 1);
            coder.tree(&mut self.high, symbol - 2 * low, 8);
        }
    }
}

/// Number of probabilities of one literal context: plain ones, then those for a matched byte that continues with bit
/// 0 and 1.
pub(crate) const LITERAL: usize = 0x300;

/// All probabilities, and the state of the stream.
pub(crate) struct Model {
    pub(crate) is_match: [[Prob; POS_STATES]; STATES],
    pub(crate) is_rep: [Prob; STATES],
    pub(crate) is_rep0: [Prob; STATES],
    pub(crate) is_rep1: [Prob; STATES],
    pub(crate) is_rep2: [Prob; STATES],
    pub(crate) is_rep0_long: [[Prob; POS_STATES]; STATES],
    pub(crate) slots: [[Prob; SLOTS]; DIST_STATES],
    /// Trees of the slots 4 to 13; that of slot `s` with base `b` starts at `b - s`.
    pub(crate) special: [Prob; 128],
    pub(crate) align: [Prob; 1 << ALIGN_BITS],
    pub(crate) match_len: Lengths,
    pub(crate) rep_len: Lengths,
    pub(crate) literals: Vec<[Prob; LITERAL]>,
    pub(crate) last: Last,
    /// Last four distances, latest first, counted from 0.
    pub(crate) reps: [u32; 4],
    props: Props,
}

impl Model {
    pub(crate) fn new(props: Props) -> Self {
        let contexts = 1 << (props.lc + props.lp);
        Self::with(props, vec![[EVEN; LITERAL]; contexts])
    }

    /// Returns to the initial state without reallocation.
    pub(crate) fn reset(&mut self, props: Props) {
        let mut literals = std::mem::take(&mut self.literals);
        literals.clear();
        literals.resize(1 << (props.lc + props.lp), [EVEN; LITERAL]);
        *self = Self::with(props, literals);
    }

    fn with(props: Props, literals: Vec<[Prob; LITERAL]>) -> Self {
        Self {
            is_match: [[EVEN; POS_STATES]; STATES],
            is_rep: [EVEN; STATES],
            is_rep0: [EVEN; STATES],
            is_rep1: [EVEN; STATES],
            is_rep2: [EVEN; STATES],
            is_rep0_long: [[EVEN; POS_STATES]; STATES],
            slots: [[EVEN; SLOTS]; DIST_STATES],
            special: [EVEN; 128],
            align: [EVEN; 1 << ALIGN_BITS],
            match_len: Lengths::NEW,
            rep_len: Lengths::NEW,
            literals,
            last: Last::default(),
            reps: [0; 4],
            props,
        }
    }

    #[inline(always)]
    pub(crate) fn pos_state(&self, at: usize) -> usize {
        at & ((1 << self.props.pb) - 1) & (POS_STATES - 1)
    }

    /// Returns the number of position states.
    pub(crate) fn pos_states(&self) -> usize {
        1 << self.props.pb
    }

    /// Returns the index of the literal probabilities at a position after this byte.
    #[inline(always)]
    pub(crate) fn context(&self, at: usize, before: u8) -> usize {
        let Props { lc, lp, .. } = self.props;
        let low = at & ((1 << lp) - 1);
        low << lc | usize::from(before) >> (8 - lc)
    }

    /// Encodes a symbol for position `at` of `data` and updates the state.
    #[inline(always)]
    pub(crate) fn code(
        &mut self,
        coder: &mut RangeCoder<'_>,
        data: &[u8],
        at: usize,
        symbol: Symbol,
    ) {
        let state = self.last.index();
        let pos_state = self.pos_state(at);
        let is_match = &mut self.is_match[state][pos_state];
        if symbol.from == Symbol::LITERAL {
            coder.bit(is_match, 0);
            self.code_literal(coder, data, at);
            return;
        }
        coder.bit(is_match, 1);
        let len = symbol.len as usize;
        if symbol.from < Symbol::REPEATS {
            coder.bit(&mut self.is_rep[state], 1);
            self.code_repeat(coder, symbol.from as usize, len, pos_state);
        } else {
            coder.bit(&mut self.is_rep[state], 0);
            self.match_len.code(coder, len, pos_state);
            self.code_dist(coder, symbol.from - Symbol::REPEATS, len);
        }
    }

    #[inline(always)]
    fn code_literal(&mut self, coder: &mut RangeCoder<'_>, data: &[u8], at: usize) {
        let before = if at == 0 { 0 } else { data[at - 1] };
        let context = self.context(at, before);
        let probs = &mut self.literals[context];
        let byte = u32::from(data[at]);
        if self.last.is_literal() {
            coder.tree(&mut probs[..0x100], byte, 8);
        } else {
            // As long as the bits equal those of the byte at the last distance, that byte's bits select the
            // probabilities, too.
            let mut alike = u32::from(data[at - self.reps[0] as usize - 1]);
            let mut offset = 0x100;
            let mut node = 1_u32;
            for i in (0..8).rev() {
                alike <<= 1;
                let bit = byte >> i & 1;
                let index = offset + (alike & offset) + node;
                coder.bit(&mut probs[index as usize], bit);
                node = node << 1 | bit;
                offset &= !(alike ^ 0_u32.wrapping_sub(bit));
            }
        }
        self.last = self.last.literal();
    }

    /// Returns the price of a literal after the byte `before`. After a match or repeat it includes the byte at the
    /// last distance. Unit: sixteenths of a bit.
    #[inline(always)]
    pub(crate) fn literal_price(&self, at: usize, before: u8, byte: u8, alike: Option<u8>) -> u32 {
        let probs = &self.literals[self.context(at, before)];
        let byte = u32::from(byte);
        let Some(alike) = alike else {
            return price::tree(&probs[..0x100], byte, 8);
        };
        let mut alike = u32::from(alike);
        let (mut offset, mut node, mut sum) = (0x100, 1, 0);
        for i in (0..8).rev() {
            alike <<= 1;
            let bit = byte >> i & 1;
            let index = offset + (alike & offset) + node;
            sum += price::bit(probs[index as usize], bit);
            node = node << 1 | bit;
            offset &= !(alike ^ 0_u32.wrapping_sub(bit));
        }
        sum
    }

    fn code_repeat(
        &mut self,
        coder: &mut RangeCoder<'_>,
        which: usize,
        len: usize,
        pos_state: usize,
    ) {
        let state = self.last.index();
        if which == 0 {
            coder.bit(&mut self.is_rep0[state], 0);
            let long = u32::from(len > 1);
            coder.bit(&mut self.is_rep0_long[state][pos_state], long);
        } else {
            coder.bit(&mut self.is_rep0[state], 1);
            coder.bit(&mut self.is_rep1[state], u32::from(which > 1));
            if which > 1 {
                coder.bit(&mut self.is_rep2[state], u32::from(which > 2));
            }
            self.reps[..=which].rotate_right(1);
        }
        if len == 1 {
            self.last = self.last.short();
        } else {
            self.rep_len.code(coder, len, pos_state);
            self.last = self.last.repeated();
        }
    }

    fn code_dist(&mut self, coder: &mut RangeCoder<'_>, dist: u32, len: usize) {
        let slot = slot_of(dist);
        coder.tree(&mut self.slots[dist_state(len)], slot, 6);
        if slot >= 4 {
            let (bits, base) = footer_of(slot);
            let rest = dist - base;
            if slot < SLOT_DIRECT {
                let probs = &mut self.special[(base - slot) as usize..];
                coder.tree_reverse(probs, rest, bits);
            } else {
                coder.direct(rest >> ALIGN_BITS, bits - ALIGN_BITS);
                coder.tree_reverse(&mut self.align, rest & 15, ALIGN_BITS);
            }
        }
        self.reps = [dist, self.reps[0], self.reps[1], self.reps[2]];
        self.last = self.last.matched();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_base_and_footer_encode_every_distance() {
        for dist in (0..5000).chain([1 << 20, (1 << 23) - 1, u32::MAX - 1]) {
            let slot = slot_of(dist);
            assert!(slot < SLOTS as u32);
            if slot >= 4 {
                let (bits, base) = footer_of(slot);
                assert!(base <= dist && dist - base < 1 << bits, "{dist}");
                assert!(slot >= SLOT_DIRECT || base - slot + (1 << bits) <= 128);
            } else {
                assert_eq!(slot, dist);
            }
        }
    }

    #[test]
    fn lzma_properties_differ_between_binary_words_and_text() {
        let (words, text) = ([7, 0, 0, 0].repeat(2000), [b'x'; 8000]);
        assert_eq!(Props::choose(&words, 65536).byte(), 93);
        assert_eq!(Props::choose(&text, 65536).byte(), 3);
        assert_eq!(Props::choose(&words, 4096).byte(), 3);
    }
}
