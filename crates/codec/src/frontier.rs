//! LZ4 with an exact parse: the high-compression encoder for the levels that search most.
//!
//! What makes a parse that fills a fixed output cheap is that it runs forward: the price of a position is the least
//! output that encodes everything before it, so the answer is the last position that still fits. Two facts about LZ4
//! make it exact and fast:
//!
//! * A match costs the same at any distance, and every end of a match is a match. So the best match that reaches a
//!   position is the one that starts earliest, cut to one of three lengths: up to 18 (no extension byte), up to 273
//!   (one), or all of it.
//! * A match that reaches further than all known ones contains the four bytes right at the frontier. So there is no
//!   search at every position: only the chain of that one gram is walked, matches are extended *backwards*, and the one
//!   that starts earliest is the next event. Positions between events need no search at all.
//!
//! ```text
//!   start           p (earliest start)        g    R (frontier)        e (reach)
//!   |----------------|=========================|gram|===================|
//!                    ^ for every j in R+1..=e: the match from p is the best that reaches j
//! ```
//!
//! Positions are indexed once per input: a table of latest positions by hash, and a ring of distances to the one before
//! with the same hash. A cluster never looks in front of its start, so that nothing has to be cleared between clusters.
//!
//! Source: LZ4 block format description (sequences, end rules).

use std::ops::Range;

use crate::bytes::{backward, forward, load4, zeros};
use crate::lz4::piece;
use crate::{EncodeFit, EncoderSpec, Fit};

/// The index has so many heads, of which so many are used where chains are followed far or are short anyway: they stay
/// closer to the processor. Unit: bits.
const HASH_LOG: u32 = 17;
const HASH_LOG_SMALL: u32 = 16;
const HEADS: usize = 1 << HASH_LOG;

/// Outputs from here on are large. Unit: bytes.
const LARGE: usize = 32 << 10;

/// Who looks at so few positions had better not look at those that only share a hash, even if some behind them are missed.
const FEW: usize = 20;

/// Distances that can be coded, and positions that the ring remembers. Unit: bytes.
const DISTANCE: usize = 1 << 16;

/// The last bytes of a block are literals. Unit: bytes.
const LAST_LITERALS: usize = 5;

/// The last match starts so far before the end of a block. Unit: bytes.
const LAST_MATCH: usize = 12;

/// The longest match without an extension byte, and with one.
const SHORT: usize = 18;
const MEDIUM: usize = 273;

/// From such a length on everything before a match is settled, and forgotten but for the result.
const LONG: usize = 2048;

/// Positions are indexed so many at a time, ahead of the search. Matches are that much shorter-sighted, so that what
/// lies ahead never takes the place of what is still in reach. As many as a word has bits. Unit: bytes.
const AHEAD: usize = 64;

/// Cells are filled so many at a time.
const STRIDE: usize = 4;

/// The ends beyond the frontier of a match that costs as much as the shortest: in strides.
const SHORT_CELLS: usize = (SHORT - 3usize).next_multiple_of(STRIDE);

/// Cells that may be written behind those that count.
const SLACK: usize = SHORT_CELLS + 2;

/// Few literals are copied so many at a time where there is room. Unit: bytes.
const COPY: usize = 16;

/// How far before the end of a settled match the next one may start.
const KEPT: usize = 512;

/// The index starts over before its count outgrows 32 bits.
const COUNT_MAX: usize = 1 << 30;

/// The cheapest way to a position.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// Output for everything before the position, without the token of the literals in front of it. Unit: bytes.
    cost: u32,
    /// How it ends: the start of a match, or [`RUN`] and the number of literals behind the last match.
    link: u32,
}

/// Marks a link as a number of literals.
const RUN: u32 = 1 << 31;

/// The start of a settled match, which lies in front of all cells.
const SETTLED: u32 = RUN - 1;

/// The match that reaches furthest up to `reach`.
#[derive(Clone, Copy)]
struct Event {
    /// Unit: bytes, from the start of the cluster.
    reach: u32,
    distance: u32,
}

/// Literals, then a match.
#[derive(Clone, Copy)]
struct Seq {
    literals: u32,
    matched: u32,
    distance: u32,
}

/// The encoder.
pub(crate) struct Frontier {
    /// Latest position of each hash, as the index counts, plus one.
    heads: Box<[u32; HEADS]>,
    /// Distance to the position before with the same hash, 0 for none.
    ring: Box<[u16; DISTANCE]>,
    /// The position that the index counts as `bias`. What was indexed before lies so far back that nothing reaches it,
    /// which is as good as an empty table and much cheaper.
    origin: usize,
    bias: usize,
    /// The next position to index.
    next: usize,
    cells: Vec<Cell>,
    events: Vec<Event>,
    seqs: Vec<Seq>,
    tail: Vec<Seq>,
    /// Chain entries looked at per event.
    attempts: usize,
    /// The index is large, and only speaks of what it has compared.
    compare: bool,
    window: usize,
    fit: fn(&mut Frontier, &[u8], usize, &mut [u8]) -> Fit,
}

impl Frontier {
    /// An encoder that looks at up to `attempts` earlier positions for each event.
    pub(crate) fn new(spec: &EncoderSpec, attempts: usize) -> Self {
        Self {
            heads: zeros(),
            ring: zeros(),
            origin: 0,
            bias: 0,
            next: 0,
            cells: Vec::new(),
            events: Vec::new(),
            seqs: Vec::new(),
            tail: Vec::new(),
            attempts,
            compare: spec.cluster >= LARGE && attempts <= FEW,
            window: spec.window,
            fit: best_fit(),
        }
    }

    /// Forgets all positions and starts to index at `at`.
    fn clear(&mut self, at: usize) {
        self.bias += self.next - self.origin + DISTANCE;
        self.origin = at;
        self.next = at;
        if self.bias > COUNT_MAX {
            self.heads.fill(0);
            self.bias = 0;
        }
    }
}

impl EncodeFit for Frontier {
    fn reset(&mut self) {
        self.clear(0);
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        (self.fit)(self, input, at, dst)
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// The version for this machine: the same code, compiled for what it has.
fn best_fit() -> fn(&mut Frontier, &[u8], usize, &mut [u8]) -> Fit {
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

fn fit_portable(encoder: &mut Frontier, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
    fit(encoder, input, at, dst)
}

/// # Safety
/// The machine has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
unsafe fn fit_avx2(encoder: &mut Frontier, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
    fit(encoder, input, at, dst)
}

#[inline(always)]
fn hash(gram: u32, log: u32) -> usize {
    (gram.wrapping_mul(2_654_435_761) >> (32 - log)) as usize % HEADS
}

/// Offset, token and extension bytes of a match.
#[inline(always)]
fn match_cost(len: usize) -> u32 {
    if len <= SHORT {
        3
    } else {
        4 + ((len - SHORT - 1) / 255) as u32
    }
}

/// Cells of one cluster: those of the positions `base..base + cells.len()`, as far as they are filled. Positions are
/// counted from the start of the cluster.
#[derive(Clone, Copy)]
struct Paths<'a> {
    cells: &'a [Cell],
    base: usize,
}

impl Paths<'_> {
    fn at(&self, position: usize) -> Cell {
        self.cells[position - self.base]
    }

    /// Literals right before a position.
    fn run(&self, position: usize) -> u32 {
        match self.at(position).link {
            link if link & RUN != 0 => link & !RUN,
            _ => 0,
        }
    }
}

/// The next position by one more literal.
#[inline(always)]
fn literal(last: Cell) -> Cell {
    // A match is followed by the first literal of a run.
    let n = if last.link & RUN == 0 {
        1
    } else {
        (last.link & !RUN) + 1
    };
    // A byte more whenever the length outgrows the token or an extension byte.
    let extra = n >= 15 && (n - 15).is_multiple_of(255);
    Cell {
        cost: last.cost + 1 + u32::from(extra),
        link: RUN | n,
    }
}

/// The cheaper of two ways.
#[inline(always)]
fn cheaper(a: Cell, b: Cell) -> Cell {
    if b.cost < a.cost { b } else { a }
}

/// A match whose start everything behind it leads through.
#[derive(Clone, Copy)]
struct Settled {
    start: usize,
    /// Literals in front of it.
    literals: u32,
    distance: u32,
}

#[inline(always)]
fn fit(encoder: &mut Frontier, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
    let src = piece(input, at, encoder.window);
    let room = dst.len();
    if src.is_empty() || room == 0 {
        return Fit::NOTHING;
    }
    if encoder.next > at + DISTANCE || at < encoder.origin || at - encoder.origin > COUNT_MAX {
        encoder.clear(at);
    }
    encoder.next = encoder.next.max(at);
    let Frontier {
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
    let (heads, ring, attempts): (&mut [u32; HEADS], &mut [u16; DISTANCE], usize) =
        (heads, ring, *attempts);
    let shift = bias.wrapping_sub(*origin);
    let mut indexed = *next;
    seqs.clear();
    events.clear();

    let len = src.len();
    let match_end = len.saturating_sub(LAST_LITERALS);
    let match_start_end = (len + 1).saturating_sub(LAST_MATCH);
    // A cell that costs this leaves no room for the last token.
    let limit = room as u32;
    let mut settled = None;
    let mut cells = grown(store, 1);
    cells[0] = Cell { cost: 0, link: RUN };
    let mut base = 0;
    // The frontier: all positions from `base` up to here have a cell, this is the last one.
    let mut reach = 0;
    let mut last = cells[0];
    // Which of the 64 positions from `batch` on may have an equal gram before them; of others nothing is known.
    let (mut batch, mut pending) = (at, u64::MAX);
    'fill: while reach < len {
        let mut quiet = 1;
        let mut found = None;
        if reach >= 3 && reach - 3 < match_start_end && reach < match_end {
            let g = reach - 3;
            if indexed <= at + g {
                // In steps: the table's answers take long, and come side by side. The last gram ends where the input
                // does at the latest.
                let to = (at + g + AHEAD).min(input.len() - 3);
                let index = if *compare {
                    index::<true>
                } else {
                    index::<false>
                };
                index(heads, ring, input, (indexed..at + g, at), shift);
                pending = index(heads, ring, input, (at + g..to, at), shift);
                (batch, indexed) = (at + g, to);
            }
            let known = match at + g - batch {
                past @ ..AHEAD => pending >> past,
                _ => u64::MAX,
            };
            quiet = (known.trailing_zeros() as usize).min(indexed - at - g);
            if quiet == 0 {
                found = search(src, at, g, (base, match_end), ring, attempts);
                quiet = 1;
            } else {
                quiet = quiet.min(match_start_end - g).min(match_end - reach);
            }
        }
        let Some((back, ahead, distance)) = found else {
            if reach - base + quiet + STRIDE >= cells.len() {
                cells = grown(store, reach - base + quiet + 1 + STRIDE);
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
        events.push(Event {
            reach: end as u32,
            distance: distance as u32,
        });
        let first = cells[start - base].cost;
        if end - reach >= LONG && first + match_cost(end - start) < limit {
            // The match is so long that every way leads through its start: keep the way there and forget the rest.
            let paths = Paths { cells, base };
            trace(paths, start, events, settled, tail, seqs);
            settled = Some(Settled {
                start,
                literals: paths.run(start),
                distance: distance as u32,
            });
            base = end - KEPT;
            cells = grown(store, KEPT + 1);
            for (cell, j) in cells.iter_mut().zip(base..=end) {
                *cell = Cell {
                    cost: first + match_cost(j - start),
                    link: SETTLED,
                };
            }
            reach = end;
            last = cells[KEPT];
            continue;
        }
        if end - base + SLACK >= cells.len() {
            cells = grown(store, end - base + 1 + SLACK);
        }
        let cell = Cell {
            cost: first + 3,
            link: start as u32,
        };
        if reach + 2 <= start + SHORT && end < match_start_end && last.cost + 4 < limit {
            // At most two literals are cheaper. All cells that may come are written and then chosen from, without branches,
            // which would be hard to predict.
            let one = literal(last);
            let two = literal(one);
            let cheaper = usize::from(one.cost < cell.cost) + usize::from(two.cost < cell.cost);
            let cheaper = cheaper.min(end - reach);
            let fill = &mut cells[reach + 1 - base..][..2 + SHORT_CELLS];
            (fill[0], fill[1]) = (one, two);
            fill[cheaper..][..SHORT_CELLS].fill(cell);
            let literal = [last, one, two][cheaper];
            reach += cheaper;
            let until = end.min(start + SHORT);
            last = if until > reach { cell } else { literal };
            reach = until;
            if reach == end {
                continue;
            }
        } else {
            // Cell by cell as long as literals are cheaper. Once the match is the cheaper way it stays it, up to the second
            // extension byte.
            loop {
                if reach == end {
                    continue 'fill;
                }
                let j = reach + 1;
                let (cell, next) = (matched(cells, base, start, first, j), literal(last));
                last = if next.cost < cell.cost || cell.link as usize >= match_start_end {
                    next
                } else if j <= start + MEDIUM && end < match_start_end {
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
            let until = end.min(start + SHORT);
            if until > reach {
                last = cell;
                fill(&mut cells[reach + 1 - base..until + STRIDE - base], last);
                reach = until;
            }
        }
        // A start further on saves the extension byte where getting there costs nothing.
        while reach < end && cells[reach + 1 - SHORT - base].cost == first {
            reach += 1;
            last = Cell {
                cost: first + 3,
                link: (reach - SHORT) as u32,
            };
            cells[reach - base] = last;
        }
        let until = end.min(start + MEDIUM);
        if until > reach {
            last = Cell {
                cost: first + 4,
                link: start as u32,
            };
            if last.cost >= limit {
                break;
            }
            fill(&mut cells[reach + 1 - base..until + STRIDE - base], last);
            reach = until;
        }
        while reach < end {
            let j = reach + 1;
            last = cheaper(matched(cells, base, start, first, j), literal(last));
            if last.cost >= limit {
                break 'fill;
            }
            reach = j;
            cells[j - base] = last;
        }
    }
    let paths = Paths {
        cells: &cells[..=reach - base],
        base,
    };

    *next = indexed;

    let Some((position, end, cost)) = end_of_block(paths, settled, len, limit) else {
        return Fit::NOTHING;
    };
    trace(paths, position, events, settled, tail, seqs);
    let written = emit(seqs, &src[..end], dst);
    debug_assert_eq!(written, cost as usize + 1, "the price is what was written");
    Fit {
        consumed: end,
        written,
    }
}

/// Indexes positions. Of up to 64, returns a bit for each that has an earlier one with the same hash, not in front of
/// `at`. `COMPARE`: with the same gram; those behind it are then missed where two grams share a hash, which is rare.
#[inline(always)]
fn index<const COMPARE: bool>(
    heads: &mut [u32; HEADS],
    ring: &mut [u16; DISTANCE],
    input: &[u8],
    (positions, at): (Range<usize>, usize),
    shift: usize,
) -> u64 {
    let mut known = 0;
    for (i, position) in positions.enumerate() {
        let gram = load4(input, position);
        let log = if COMPARE { HASH_LOG } else { HASH_LOG_SMALL };
        let slot = &mut heads[hash(gram, log)];
        let count = position.wrapping_add(shift) as u32 + 1;
        let delta = count - *slot;
        *slot = count;
        let delta = if delta < DISTANCE as u32 { delta } else { 0 };
        ring[position % DISTANCE] = delta as u16;
        let near = (delta as usize).wrapping_sub(1) < position - at;
        let near = near & (!COMPARE || load4(input, position - delta as usize) == gram);
        known |= u64::from(near) << (i % AHEAD);
    }
    known
}

/// Goes `n` literals on from `last`, as far as the output holds them, and fills their cells; `cells` is longer than they
/// are by a stride. Returns how far it got.
#[inline(always)]
fn literals(last: &mut Cell, cells: &mut [Cell], n: usize, limit: u32) -> usize {
    let run = if last.link & RUN == 0 {
        0
    } else {
        last.link & !RUN
    };
    if run as usize + n < 15 && last.cost + (n as u32) < limit {
        let cell = |i: usize| Cell {
            cost: last.cost + i as u32,
            link: (RUN | run) + i as u32,
        };
        for (i, stride) in cells[..n + STRIDE - 1].chunks_exact_mut(STRIDE).enumerate() {
            for (k, slot) in stride.iter_mut().enumerate() {
                *slot = cell(i * STRIDE + k + 1);
            }
        }
        *last = cell(n);
        return n;
    }
    for (i, slot) in cells[..n].iter_mut().enumerate() {
        let next = literal(*last);
        if next.cost >= limit {
            return i;
        }
        *last = next;
        *slot = next;
    }
    n
}

/// The cheapest way to `j` by a match that could come from `start`: the earliest start for each number of extension bytes.
#[inline(always)]
fn matched(cells: &[Cell], base: usize, start: usize, first: u32, j: usize) -> Cell {
    let length = j - start;
    let mut cell = Cell {
        cost: first + match_cost(length),
        link: start as u32,
    };
    if length > SHORT {
        let from = j - SHORT;
        cell = cheaper(
            cell,
            Cell {
                cost: cells[from - base].cost + 3,
                link: from as u32,
            },
        );
        if length > MEDIUM {
            let from = j - MEDIUM;
            cell = cheaper(
                cell,
                Cell {
                    cost: cells[from - base].cost + 4,
                    link: from as u32,
                },
            );
        }
    }
    cell
}

/// Fills cells in strides, of which the last may be too long: cheaper than to know how many. The slice is longer than
/// what counts, by a stride but for one cell.
#[inline(always)]
fn fill(cells: &mut [Cell], cell: Cell) {
    for stride in cells.chunks_exact_mut(STRIDE) {
        stride.fill(cell);
    }
}

/// The cells, at least so many.
fn grown(store: &mut Vec<Cell>, len: usize) -> &mut [Cell] {
    if store.len() < len {
        store.resize(len + len / 2 + 4096, Cell::default());
    }
    store
}

/// Finds the position from which the last literals get furthest: usually the last one, but there may be too few
/// literals behind its last match. Returns the position, the end of the block and what
/// it takes but for the last token.
fn end_of_block(
    paths: Paths<'_>,
    settled: Option<Settled>,
    len: usize,
    limit: u32,
) -> Option<(usize, usize, u32)> {
    let mut best: Option<(usize, usize, u32)> = None;
    for (back, &cell) in paths.cells.iter().enumerate().rev() {
        if best.is_some() && back + 64 < paths.cells.len() {
            break;
        }
        let position = paths.base + back;
        let run = paths.run(position) as usize;
        let matched_at = position - run;
        let needed = if matched_at == 0 {
            0
        } else {
            let start = match (paths.at(matched_at).link, settled) {
                (SETTLED, Some(settled)) => settled.start,
                (start, _) => start as usize,
            };
            LAST_LITERALS
                .max(LAST_MATCH.saturating_sub(matched_at - start))
                .saturating_sub(run)
        };
        let mut more = 0;
        let mut state = cell;
        while position + more < len {
            let next = literal(state);
            if next.cost >= limit {
                break;
            }
            state = next;
            more += 1;
        }
        let end = position + more;
        let better =
            best.is_none_or(|(_, far, cost)| end > far || (end == far && state.cost < cost));
        if more >= needed && end > 0 && better {
            best = Some((position, end, state.cost));
        }
    }
    best
}

/// Finds the match over the gram at `g` that starts earliest, but not before `base`, and of these the one that ends
/// last, but not behind `match_end`. Returns bytes before the gram, bytes behind it and the distance.
///
/// The gram ends at `match_end` at the latest, which is within `src`; that bounds all loads at `g` and in front of it,
/// and so those at the earlier `c`.
#[inline(always)]
fn search(
    src: &[u8],
    at: usize,
    g: usize,
    (base, match_end): (usize, usize),
    ring: &[u16; DISTANCE],
    attempts: usize,
) -> Option<(usize, usize, usize)> {
    let gram = load4(src, g);
    let most = g.min(DISTANCE - AHEAD);
    let mut distance = 0;
    let mut left = attempts;
    // The latest one.
    let c = loop {
        let delta = usize::from(ring[(at + g - distance) % DISTANCE]);
        distance += delta;
        if delta == 0 || distance > most || left == 0 {
            return None;
        }
        left -= 1;
        let c = g - distance;
        if load4(src, c) == gram {
            break c;
        }
    };
    let mut back = backward(src, g, c, c.min(g - base));
    let mut ahead = forward(src, g + 4, c + 4, match_end);
    let mut best = distance;
    while left > 0 {
        // What a better one has in common right before the best so far, or right behind.
        let before = load4(src, (g - back).saturating_sub(1));
        let behind = load4(src, g + ahead + 1);
        let c = loop {
            let delta = usize::from(ring[(at + g - distance) % DISTANCE]);
            distance += delta;
            left -= 1;
            if delta == 0 || distance > most || distance + back >= g {
                return Some((back, ahead, best));
            }
            let c = g - distance;
            // Must start earlier, or end later.
            if (load4(src, c - back - 1) == before) | (load4(src, c + ahead + 1) == behind)
                && load4(src, c) == gram
            {
                break c;
            }
            if left == 0 {
                return Some((back, ahead, best));
            }
        };
        let back_here = backward(src, g, c, c.min(g - base));
        if back_here < back {
            continue;
        }
        let ahead_here = forward(src, g + 4, c + 4, match_end);
        if back_here > back || ahead_here > ahead {
            (back, ahead) = (back_here, ahead_here);
            best = distance;
        }
    }
    Some((back, ahead, best))
}

/// Collects the sequences on the way to `position`; those behind `base` are already in `seqs`.
#[inline(never)]
fn trace(
    paths: Paths<'_>,
    mut position: usize,
    events: &[Event],
    settled: Option<Settled>,
    tail: &mut Vec<Seq>,
    seqs: &mut Vec<Seq>,
) {
    tail.clear();
    let mut event = events.len();
    loop {
        let cell = paths.at(position);
        if cell.link & RUN != 0 {
            let run = (cell.link & !RUN) as usize;
            if run == 0 || run == position {
                break;
            }
            position -= run;
            continue;
        }
        if cell.link == SETTLED {
            // present: only a settled match leaves such a link
            if let Some(Settled {
                start,
                literals,
                distance,
            }) = settled
            {
                tail.push(Seq {
                    literals,
                    matched: (position - start) as u32,
                    distance,
                });
            }
            break;
        }
        let start = cell.link as usize;
        let literals = paths.run(start);
        // The first event that reaches the position.
        while event > 0 && events[event - 1].reach as usize >= position {
            event -= 1;
        }
        tail.push(Seq {
            literals,
            matched: (position - start) as u32,
            distance: events[event].distance,
        });
        position = start;
    }
    seqs.extend(tail.drain(..).rev());
}

/// Writes a block that decodes to `src`. Returns its size.
#[inline(never)]
fn emit(seqs: &[Seq], src: &[u8], dst: &mut [u8]) -> usize {
    let (mut read, mut write) = (0, 0);
    for seq in seqs {
        let (literals, extension) = (seq.literals as usize, seq.matched as usize - 4);
        dst[write] = ((literals.min(15) << 4) | extension.min(15)) as u8;
        write = extend(literals, dst, write + 1);
        if literals <= COPY && read + COPY <= src.len() && write + COPY <= dst.len() {
            dst[write..write + COPY].copy_from_slice(&src[read..read + COPY]);
        } else {
            dst[write..write + literals].copy_from_slice(&src[read..read + literals]);
        }
        write += literals;
        read += literals + seq.matched as usize;
        dst[write..write + 2].copy_from_slice(&(seq.distance as u16).to_le_bytes());
        write = extend(extension, dst, write + 2);
    }
    let rest = &src[read..];
    dst[write] = (rest.len().min(15) << 4) as u8;
    write = extend(rest.len(), dst, write + 1);
    dst[write..write + rest.len()].copy_from_slice(rest);
    write + rest.len()
}

/// Writes the extension bytes of a length.
#[inline(always)]
fn extend(len: usize, dst: &mut [u8], mut write: usize) -> usize {
    if len >= 15 {
        let mut rest = len - 15;
        while rest >= 255 {
            dst[write] = 255;
            write += 1;
            rest -= 255;
        }
        dst[write] = rest as u8;
        write += 1;
    }
    write
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    /// Words from a small set, with a noisy stretch and a long run now and then.
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

    fn all(mut encoder: Frontier, input: &[u8], room: usize) -> Vec<u8> {
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
    fn the_portable_version_writes_the_same() {
        let input = input(600_000);
        for room in [500, 4096, 65536] {
            let spec = EncoderSpec::new(Method::Lz4hc, 65536);
            let portable = Frontier {
                fit: fit_portable,
                ..Frontier::new(&spec, 64)
            };
            assert!(
                all(Frontier::new(&spec, 64), &input, room) == all(portable, &input, room),
                "output {room}"
            );
        }
    }

    #[test]
    fn the_index_outlives_many_resets() {
        let spec = EncoderSpec::new(Method::Lz4hc, 4096);
        let input = input(20_000);
        let mut encoder = Frontier::new(&spec, 16);
        let mut dst = vec![0; 4096];
        let fresh = encoder.fit(&input, 0, &mut dst);
        let expected = dst.clone();
        for _ in 0..30_000 {
            // Each leaves a distance behind, so that the count starts over on the way.
            encoder.reset();
        }
        assert_eq!(encoder.fit(&input, 0, &mut dst), fresh);
        assert!(dst == expected);
    }
}
