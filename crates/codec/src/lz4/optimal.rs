//! LZ4 encoder with optimal parsing, for the highest levels.
//!
//! The parse runs forward: the price of a position is the smallest output that encodes everything before it. To fill
//! a fixed output, the last position that fits is the answer. Two properties of LZ4 make this exact and fast:
//!
//! * A match costs the same at any distance, and every prefix of a match is a match. The best match that ends at a
//!   position is therefore the one that starts earliest, cut to one of three lengths: up to 18 (no extension byte),
//!   up to 273 (one), or all of it.
//! * A match that reaches further than all known ones contains the four bytes right before the frontier. Instead of a
//!   search at every position, only the hash chain of these four bytes is walked and matches are extended
//!   *backwards*. The one that starts earliest is the next event. Positions between events need no search.
//!
//! ```text
//!   start           p (earliest start)        g    R (frontier)        e (reach)
//!   |----------------|=========================|gram|===================|
//!                    ^ for every j in R+1..=e: the match from p is the best that reaches j
//! ```
//!
//! Positions are indexed once per input: a table of latest positions by hash, and a ring of distances to the previous
//! position with the same hash. A cluster never searches before its start, so that nothing is cleared between
//! clusters.
//!
//! Source: LZ4 block format description (sequences, end rules).

use match_finder::{DISTANCE, HEADS, INDEX_BATCH, find_match, index_positions};
use path::{
    COMMITTED, Cell, CommittedMatch, LAST_LITERALS, LAST_MATCH, LITERAL_RUN, MatchEvent,
    NO_EXTENSION_CELLS, NO_EXTENSION_MAX, ONE_EXTENSION_MAX, PathTable, STRIDE, Sequence, cheaper,
    collect_sequences, emit, end_of_block, fill, literal, literals, match_cost, matched,
    with_length,
};

use super::truncate::trim_tail;
use crate::bytes::zeroed;
use crate::encode::bounded_input;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};
use std::ops::RangeInclusive;

mod match_finder;
mod path;

/// Smallest output size with the large index. Unit: bytes.
const LARGE: usize = 32 << 10;

/// Largest number of attempts for which only verified positions are searched. A short search should not spend
/// attempts on hash collisions, even if it misses some matches past them.
const FEW_ATTEMPTS: usize = 20;

/// Match length from which on everything before the match is committed and only its result is kept. Unit: bytes.
const COMMIT_LEN: usize = 2048;

/// Number of cells that may be written past the valid ones.
const SLACK: usize = NO_EXTENSION_CELLS + 2;

/// Distance before the end of a committed match at which the next match may start. Unit: bytes.
const KEPT_CELLS: usize = 512;

/// Count at which the index is emptied, before it outgrows 32 bits.
const COUNT_MAX: usize = 1 << 30;

/// Encoder with its index and its tables of paths.
pub(crate) struct OptimalEncoder {
    /// Latest position of each hash, as counted by the index, plus one.
    heads: Box<[u32; HEADS]>,
    /// Distance to the previous position with the same hash, 0 for none.
    ring: Box<[u16; DISTANCE]>,
    /// Position that the index counts as `bias`.
    ///
    /// Positions indexed earlier are out of reach, which has the effect of an empty table at much less cost. The bias
    /// is at least [`DISTANCE`], so that an empty head is out of reach, too.
    origin: usize,
    bias: usize,
    /// Next position to index.
    next: usize,
    cells: Vec<Cell>,
    events: Vec<MatchEvent>,
    seqs: Vec<Sequence>,
    tail: Vec<Sequence>,
    /// Chain entries visited per event.
    attempts: usize,
    /// True if the index is large and reports verified matches only.
    compare: bool,
    input_max: usize,
    fit: fn(&mut OptimalEncoder, &[u8], usize, &mut [u8]) -> Fit,
}

impl OptimalEncoder {
    /// Creates an encoder that visits up to `attempts` earlier positions for each event.
    pub(crate) fn new(spec: &EncoderSpec, attempts: usize) -> Self {
        Self {
            heads: zeroed(),
            ring: zeroed(),
            origin: 0,
            bias: DISTANCE,
            next: 0,
            cells: Vec::new(),
            events: Vec::new(),
            seqs: Vec::new(),
            tail: Vec::new(),
            attempts,
            compare: spec.cluster >= LARGE && attempts <= FEW_ATTEMPTS,
            input_max: spec.input_max,
            fit: best_fit(),
        }
    }

    /// Prepares the index for a cluster that starts at `at`.
    fn begin(&mut self, at: usize) {
        if self.next > at + DISTANCE || at < self.origin || at - self.origin > COUNT_MAX {
            self.clear(at);
        }
        self.next = self.next.max(at);
    }

    /// Discards all positions and starts to index at `at`.
    fn clear(&mut self, at: usize) {
        self.bias += self.next - self.origin + DISTANCE;
        self.origin = at;
        self.next = at;
        if self.bias > COUNT_MAX {
            self.heads.fill(0);
            self.bias = DISTANCE;
        }
    }
}

impl Encoder for OptimalEncoder {
    fn reset(&mut self) {
        self.clear(0);
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        (self.fit)(self, input, at, dst)
    }

    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let fit = self.fit(input, at, dst);
        trim_tail(&input[at..], fit, dst, trim)
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

/// Returns the variant for this machine: the same code, compiled for its instruction set.
fn best_fit() -> fn(&mut OptimalEncoder, &[u8], usize, &mut [u8]) -> Fit {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("lzcnt")
        && std::arch::is_x86_feature_detected!("avx2")
    {
        // SAFETY: the features were detected a line above.
        return |encoder, input, at, dst| unsafe { fit_avx2(encoder, input, at, dst) };
    }
    fit_portable
}

fn fit_portable(encoder: &mut OptimalEncoder, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
    fit(encoder, input, at, dst)
}

/// Runs [`fit`] compiled for AVX2 and BMI instructions.
///
/// # Safety
/// The machine has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
unsafe fn fit_avx2(encoder: &mut OptimalEncoder, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
    fit(encoder, input, at, dst)
}

/// Search for the matches that reach past the frontier.
struct Search<'a> {
    input: &'a [u8],
    /// Input from the start of the cluster.
    src: &'a [u8],
    /// Start of the cluster in the input.
    at: usize,
    heads: &'a mut [u32; HEADS],
    ring: &'a mut [u16; DISTANCE],
    shift: usize,
    compare: bool,
    attempts: usize,
    match_end: usize,
    match_start_end: usize,
    /// Next position to index.
    indexed: usize,
    /// Set of positions among the 64 from `batch` on that may have an earlier match. Other positions are unknown.
    batch: usize,
    pending: u64,
}

impl Search<'_> {
    /// Searches at the frontier `reach`. Returns the match, as `find_match` does, or the number of positions without one.
    #[inline(always)]
    fn next(&mut self, base: usize, reach: usize) -> (usize, Option<(usize, usize, usize)>) {
        if reach < 3 || reach - 3 >= self.match_start_end || reach >= self.match_end {
            return (1, None);
        }
        let g = reach - 3;
        let position = self.at + g;
        if self.indexed <= position {
            // Indexes a batch at a time, so that table accesses overlap. The last four bytes end with the input at the
            // latest.
            let to = (position + INDEX_BATCH).min(self.input.len() - 3);
            let index_positions = if self.compare {
                index_positions::<true>
            } else {
                index_positions::<false>
            };
            let (heads, ring, input) = (&mut *self.heads, &mut *self.ring, self.input);
            index_positions(
                heads,
                ring,
                input,
                (self.indexed..position, self.at),
                self.shift,
            );
            self.pending = index_positions(heads, ring, input, (position..to, self.at), self.shift);
            (self.batch, self.indexed) = (position, to);
        }
        let known = match position - self.batch {
            past @ ..INDEX_BATCH => self.pending >> past,
            _ => u64::MAX,
        };
        let quiet = (known.trailing_zeros() as usize).min(self.indexed - position);
        if quiet == 0 {
            let bounds = (base, self.match_end);
            let found = find_match(self.src, self.at, g, bounds, self.ring, self.attempts);
            return (1, found);
        }
        let quiet = quiet.min(self.match_start_end - g);
        (quiet.min(self.match_end - reach), None)
    }
}

/// Fills the cells of the positions `range` in a committed match from `start`, of which the start costs `first`.
#[inline(always)]
fn fill_committed(cells: &mut [Cell], first: u32, start: usize, range: RangeInclusive<usize>) {
    for (cell, j) in cells.iter_mut().zip(range) {
        *cell = Cell {
            cost: first + match_cost(j - start),
            link: COMMITTED,
        };
    }
}

/// Fills the cells after the frontier `reach` of a match from `start` to `end` up to its first extension byte, where at
/// most two literals are cheaper. Returns the last cell and the new frontier. All candidate cells are written and then
/// selected without branches, which would be unpredictable.
#[inline(always)]
fn fill_short(
    fill: &mut [Cell],
    last: Cell,
    cell: Cell,
    (start, reach, end): (usize, usize, usize),
) -> (Cell, usize) {
    let one = literal(last);
    let two = literal(one);
    let cheaper = usize::from(one.cost < cell.cost) + usize::from(two.cost < cell.cost);
    let cheaper = cheaper.min(end - reach);
    (fill[0], fill[1]) = (one, two);
    fill[cheaper..][..NO_EXTENSION_CELLS].fill(cell);
    let literal = [last, one, two][cheaper];
    let until = end.min(start + NO_EXTENSION_MAX);
    match until > reach + cheaper {
        true => (cell, until),
        false => (literal, until),
    }
}

/// Fills the cells after the frontier `reach` of a match from `start` to `end` that needs extension bytes. Returns the
/// last cell, the new frontier, and true if the output is full.
#[inline(always)]
fn fill_extended(
    cells: &mut [Cell],
    base: usize,
    (start, end, first): (usize, usize, u32),
    mut reach: usize,
    mut last: Cell,
    limit: u32,
) -> (Cell, usize, bool) {
    // A later start saves the extension byte if reaching it costs nothing.
    while reach < end && cells[reach + 1 - NO_EXTENSION_MAX - base].cost == first {
        reach += 1;
        last = Cell {
            cost: first + 3,
            link: (reach - NO_EXTENSION_MAX) as u32,
        };
        cells[reach - base] = last;
    }
    let until = end.min(start + ONE_EXTENSION_MAX);
    if until > reach {
        last = Cell {
            cost: first + 4,
            link: start as u32,
        };
        if last.cost >= limit {
            return (last, reach, true);
        }
        fill(&mut cells[reach + 1 - base..until + STRIDE - base], last);
        reach = until;
    }
    while reach < end {
        let j = reach + 1;
        last = cheaper(matched(cells, base, start, first, j), literal(last));
        if last.cost >= limit {
            return (last, reach, true);
        }
        reach = j;
        cells[j - base] = last;
    }
    (last, reach, false)
}

#[inline(always)]
fn fit(encoder: &mut OptimalEncoder, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
    let src = bounded_input(input, at, encoder.input_max);
    let room = dst.len();
    if src.is_empty() || room == 0 {
        return Fit::NOTHING;
    }
    encoder.begin(at);
    let OptimalEncoder {
        heads,
        ring,
        origin,
        bias,
        next,
        cells: store,
        events,
        seqs,
        tail,
        attempts,
        compare,
        ..
    } = encoder;
    seqs.clear();
    events.clear();

    let len = src.len();
    let match_start_end = (len + 1).saturating_sub(LAST_MATCH);
    let mut search = Search {
        input,
        src,
        at,
        heads,
        ring,
        shift: bias.wrapping_sub(*origin),
        compare: *compare,
        attempts: *attempts,
        match_end: len.saturating_sub(LAST_LITERALS),
        match_start_end,
        indexed: *next,
        batch: at,
        pending: u64::MAX,
    };
    // A cell of this cost leaves no space for the last token.
    let limit = room as u32;
    let mut committed = None;
    let mut cells = with_length(store, 1);
    cells[0] = Cell {
        cost: 0,
        link: LITERAL_RUN,
    };
    let mut base = 0;
    // The frontier: all positions from `base` up to this one have a cell.
    let mut reach = 0;
    let mut last = cells[0];
    'fill: while reach < len {
        let (quiet, found) = search.next(base, reach);
        let Some((back, ahead, distance)) = found else {
            if reach - base + quiet + STRIDE >= cells.len() {
                cells = with_length(store, reach - base + quiet + 1 + STRIDE);
            }
            let done = literals(&mut last, &mut cells[reach - base + 1..], quiet, limit);
            reach += done;
            if done < quiet {
                break;
            }
            continue;
        };
        let g = reach - 3;
        let (start, end) = ((g - back).max(base), g + 4 + ahead);
        events.push(MatchEvent {
            reach: end as u32,
            distance: distance as u32,
        });
        let first = cells[start - base].cost;
        if end - reach >= COMMIT_LEN && first + match_cost(end - start) < limit {
            // The match is so long that every path leads through its start: keep the path to it and discard the rest.
            let paths = PathTable { cells, base };
            collect_sequences(paths, start, events, committed, tail, seqs);
            committed = Some(CommittedMatch {
                start,
                literals: paths.run(start),
                distance: distance as u32,
            });
            base = end - KEPT_CELLS;
            cells = with_length(store, KEPT_CELLS + 1);
            fill_committed(cells, first, start, base..=end);
            reach = end;
            last = cells[KEPT_CELLS];
            continue;
        }
        if end - base + SLACK >= cells.len() {
            cells = with_length(store, end - base + 1 + SLACK);
        }
        let cell = Cell {
            cost: first + 3,
            link: start as u32,
        };
        if reach + 2 <= start + NO_EXTENSION_MAX && end < match_start_end && last.cost + 4 < limit {
            let fill = &mut cells[reach + 1 - base..][..2 + NO_EXTENSION_CELLS];
            (last, reach) = fill_short(fill, last, cell, (start, reach, end));
            if reach == end {
                continue;
            }
        } else {
            // Cell by cell while literals are cheaper. Once the match is cheaper it remains so up to the second
            // extension byte.
            loop {
                if reach == end {
                    continue 'fill;
                }
                let j = reach + 1;
                let (cell, next) = (matched(cells, base, start, first, j), literal(last));
                last = if next.cost < cell.cost || cell.link as usize >= match_start_end {
                    next
                } else if j <= start + ONE_EXTENSION_MAX && end < match_start_end {
                    break;
                } else {
                    cell
                };
                if last.cost >= limit {
                    break 'fill;
                }
                reach = j;
                cells[j - base] = last;
            }
            if cell.cost >= limit {
                break;
            }
            let until = end.min(start + NO_EXTENSION_MAX);
            if until > reach {
                last = cell;
                fill(&mut cells[reach + 1 - base..until + STRIDE - base], last);
                reach = until;
            }
        }
        let is_full;
        (last, reach, is_full) =
            fill_extended(cells, base, (start, end, first), reach, last, limit);
        if is_full {
            break;
        }
    }
    let paths = PathTable {
        cells: &cells[..=reach - base],
        base,
    };

    *next = search.indexed;

    let Some((position, end, cost)) = end_of_block(paths, committed, len, limit) else {
        return Fit::NOTHING;
    };
    collect_sequences(paths, position, events, committed, tail, seqs);
    let written = emit(seqs, &src[..end], dst);
    debug_assert_eq!(written, cost as usize + 1, "the price is what was written");
    Fit {
        consumed: end,
        written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    /// Words of a small set, with some noise and long runs.
    fn input(len: usize) -> Vec<u8> {
        let mut seed = 7u64;
        let mut next = move |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let mut out = Vec::new();
        while out.len() < len {
            match next(300) {
                0 => out.extend((0..next(3000)).map(|_| next(256) as u8)),
                1 => out.extend(std::iter::repeat_n(b'x', next(9000))),
                2 if out.len() > 5000 => {
                    let from = next(out.len() - 5000);
                    out.extend_from_within(from..from + 5000);
                }
                _ => out.extend_from_slice(
                    &b"the quick brown fox jumps over a lazy dog "[next(20)..20 + next(20)],
                ),
            }
        }
        out.truncate(len);
        out
    }

    /// Regression: `tuff build -z lz4hc -C 64K` of a tree of more than 16,000 files panicked with overflow checks,
    /// and read bytes before the input without. Counts restarted at 0, where an empty head was as near as the start
    /// of the input.
    #[test]
    fn output_is_unchanged_after_the_position_counter_restarts() {
        let input = input(200_000);
        let spec = EncoderSpec::new(Method::Lz4hc, LARGE);
        let expected = all(OptimalEncoder::new(&spec, FEW_ATTEMPTS), &input, LARGE);
        let again = COUNT_MAX / DISTANCE;
        for resets in again - 2..=again + 2 {
            let mut used = OptimalEncoder::new(&spec, FEW_ATTEMPTS);
            (0..resets).for_each(|_| used.reset());
            assert!(all(used, &input, LARGE) == expected, "{resets} resets");
        }
    }

    fn all(mut encoder: OptimalEncoder, input: &[u8], room: usize) -> Vec<u8> {
        encoder.reset();
        let (mut at, mut out) = (0, Vec::new());
        while at < input.len() {
            let mut dst = vec![0; room];
            let fit = encoder.fit(input, at, &mut dst);
            at += fit.consumed;
            out.extend_from_slice(&dst[..fit.written]);
        }
        out
    }

    #[test]
    fn portable_code_writes_the_same_block() {
        let input = input(600_000);
        for room in [500, 4096, 65536] {
            let spec = EncoderSpec::new(Method::Lz4hc, 65536);
            let portable = OptimalEncoder {
                fit: fit_portable,
                ..OptimalEncoder::new(&spec, 64)
            };
            assert!(
                all(OptimalEncoder::new(&spec, 64), &input, room) == all(portable, &input, room),
                "output {room}"
            );
        }
    }

    #[test]
    fn output_is_unchanged_after_many_resets() {
        let spec = EncoderSpec::new(Method::Lz4hc, 4096);
        let input = input(20_000);
        let mut encoder = OptimalEncoder::new(&spec, 16);
        let mut dst = vec![0; 4096];
        let fresh = encoder.fit(&input, 0, &mut dst);
        let expected = dst.clone();
        for _ in 0..30_000 {
            // Each reset leaves a distance, so that the count starts over in this loop.
            encoder.reset();
        }
        assert_eq!(encoder.fit(&input, 0, &mut dst), fresh);
        assert!(dst == expected);
    }
}
