//! Price tables of lengths and distances for the current model, rebuilt from time to time.

use super::model::{
    ALIGN_BITS, DIST_STATES, LEN_MAX, LEN_MIN, Lengths, Model, POS_STATES, SLOT_DIRECT, SLOTS,
    Symbol, dist_state, footer_of, slot_of,
};
use super::range_coder::price;

/// Number of distances whose price is tabulated.
const NEAR: usize = 128;

/// Numbers of matches, long distances and lengths between rebuilds of a table. The first intervals are shorter, from
/// an eighth on, because the probabilities still change fast.
const MATCHES_DUE: u32 = 128;
const FAR_DUE: u32 = 16;
const LENGTHS_DUE: u32 = 64;

/// Prices of lengths from [`LEN_MIN`] on.
pub(crate) type LengthPrices = [u32; LEN_MAX - LEN_MIN + 1];

/// Price tables. Unit: sixteenths of a bit.
pub(crate) struct Prices {
    near: [[u32; NEAR]; DIST_STATES],
    slots: [[u32; SLOTS]; DIST_STATES],
    align: [u32; 1 << ALIGN_BITS],
    matched: [LengthPrices; POS_STATES],
    repeated: [LengthPrices; POS_STATES],
    /// Counters since the dependent tables were built: matches, distances with aligned bits, lengths of matches and
    /// lengths of repeats.
    matches: RefreshCounter,
    far: RefreshCounter,
    matched_lengths: RefreshCounter,
    repeated_lengths: RefreshCounter,
}

/// Decides when a table is rebuilt.
struct RefreshCounter {
    /// Number of symbols encoded since the last rebuild.
    count: u32,
    due: u32,
    due_max: u32,
}

impl RefreshCounter {
    const fn new(due_max: u32) -> Self {
        Self {
            count: 0,
            due: 0,
            due_max,
        }
    }

    /// Returns true if the table is due for a rebuild, and then restarts the count.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        let is_due = self.count >= self.due;
        if is_due {
            self.count = 0;
            self.due = (2 * self.due).clamp(self.due_max / 8, self.due_max);
        }
        is_due
    }
}

impl Prices {
    pub(crate) fn new() -> Self {
        Self {
            near: [[0; NEAR]; DIST_STATES],
            slots: [[0; SLOTS]; DIST_STATES],
            align: [0; 1 << ALIGN_BITS],
            matched: [[0; LEN_MAX - LEN_MIN + 1]; POS_STATES],
            repeated: [[0; LEN_MAX - LEN_MIN + 1]; POS_STATES],
            matches: RefreshCounter::new(MATCHES_DUE),
            far: RefreshCounter::new(FAR_DUE),
            matched_lengths: RefreshCounter::new(LENGTHS_DUE),
            repeated_lengths: RefreshCounter::new(LENGTHS_DUE),
        }
    }

    /// Makes all tables due.
    pub(crate) fn forget(&mut self) {
        self.matches = RefreshCounter::new(MATCHES_DUE);
        self.far = RefreshCounter::new(FAR_DUE);
        self.matched_lengths = RefreshCounter::new(LENGTHS_DUE);
        self.repeated_lengths = RefreshCounter::new(LENGTHS_DUE);
    }

    /// Counts an encoded symbol.
    #[inline(always)]
    pub(crate) fn count(&mut self, symbol: Symbol) {
        if symbol.from == Symbol::LITERAL {
            return;
        }
        if symbol.from >= Symbol::REPEATS {
            let dist = symbol.from - Symbol::REPEATS;
            self.matches.count += 1;
            self.matched_lengths.count += 1;
            self.far.count += u32::from(dist >= NEAR as u32);
        } else {
            self.repeated_lengths.count += u32::from(symbol.len > 1);
        }
    }

    /// Rebuilds the tables that are due.
    pub(crate) fn refresh(&mut self, model: &Model) {
        if self.matches.is_due() {
            self.refresh_slots(model);
        }
        if self.far.is_due() {
            for (symbol, to) in (0..).zip(&mut self.align) {
                *to = price::tree_reverse(&model.align, symbol, ALIGN_BITS);
            }
        }
        if self.matched_lengths.is_due() {
            lengths(&model.match_len, &mut self.matched[..model.pos_states()]);
        }
        if self.repeated_lengths.is_due() {
            lengths(&model.rep_len, &mut self.repeated[..model.pos_states()]);
        }
    }

    fn refresh_slots(&mut self, model: &Model) {
        let mut footers = [0; NEAR];
        for (dist, to) in (0_u32..).zip(&mut footers).skip(4) {
            let (bits, base) = footer_of(slot_of(dist));
            let from = (base - slot_of(dist)) as usize;
            *to = price::tree_reverse(&model.special[from..], dist - base, bits);
        }
        for state in 0..DIST_STATES {
            let slots = &mut self.slots[state];
            let mut nodes = [0; SLOTS];
            tree(&model.slots[state], &mut nodes, slots);
            for (dist, to) in (0..).zip(&mut self.near[state]) {
                *to = slots[slot_of(dist as u32) as usize] + footers[dist];
            }
            for (slot, to) in (0..).zip(slots).skip(SLOT_DIRECT as usize) {
                *to += price::direct(footer_of(slot).0 - ALIGN_BITS);
            }
        }
    }

    /// Returns the price of a distance, counted from 0, with a length.
    #[inline(always)]
    pub(crate) fn dist(&self, dist: u32, len: usize) -> u32 {
        let state = dist_state(len);
        match self.near[state].get(dist as usize) {
            Some(price) => *price,
            None => self.slots[state][slot_of(dist) as usize] + self.align[dist as usize & 15],
        }
    }

    #[inline(always)]
    pub(crate) fn matched(&self, pos_state: usize) -> &LengthPrices {
        &self.matched[pos_state & (POS_STATES - 1)]
    }

    #[inline(always)]
    pub(crate) fn repeated(&self, pos_state: usize) -> &LengthPrices {
        &self.repeated[pos_state & (POS_STATES - 1)]
    }
}

/// Computes the prices of all symbols of a tree, visiting each node once. `nodes` and `out` are as long as the tree.
fn tree(probs: &[u16], nodes: &mut [u32], out: &mut [u32]) {
    let count = out.len();
    nodes[1] = 0;
    for node in 1..count {
        for bit in 0..2 {
            let cost = nodes[node] + price::bit(probs[node], bit);
            let below = node << 1 | bit as usize;
            match below.checked_sub(count) {
                Some(symbol) => out[symbol] = cost,
                None => nodes[below] = cost,
            }
        }
    }
}

fn lengths(model: &Lengths, to: &mut [LengthPrices]) {
    let mut nodes = [0; 256];
    let not_low = price::bit(model.choice, 1);
    let (mid, high) = (
        not_low + price::bit(model.choice2, 0),
        not_low + price::bit(model.choice2, 1),
    );
    let mut long = [0; 256];
    tree(&model.high, &mut nodes, &mut long);
    for (pos_state, to) in to.iter_mut().enumerate() {
        tree(&model.low[pos_state], &mut nodes, &mut to[..8]);
        tree(&model.mid[pos_state], &mut nodes, &mut to[8..16]);
        for to in &mut to[..8] {
            *to += price::bit(model.choice, 0);
        }
        for to in &mut to[8..16] {
            *to += mid;
        }
        for (to, long) in to[16..].iter_mut().zip(&long) {
            *to = long + high;
        }
    }
}
