//! The parse of the thorough levels: of all ways through the next stretch the one that costs the fewest bits, by the
//! prices of now.
//!
//! ```text
//!  node 0      1      2      3      4      5          each node: the cheapest way there that is known
//!  ─┬──literal─┴──────┴──match──────┴...                so far, and what it does to the state
//!   └──repeat────────┘
//! ```
//!
//! Nodes are settled from left to right; from each lead a literal, repeats of the last four distances and matches, and, since
//! many a file differs from what it repeats in a byte here and there, each of those followed by a literal and a repeat.
//! The stretch ends where all ways meet, or where a match is long enough to be taken unseen.

use crate::bytes::{load2, match_len};

use super::match_finder::{Match, MatchFinder, Matches, SearchLimits};
use super::model::{LEN_MAX, LEN_MIN, Last, Model, Symbol, longest_repeat};
use super::parser::Parser;
use super::prices::Prices;
use super::range_coder::price::{self, INFINITE};

/// The longest stretch. Unit: bytes.
const NODES: usize = 4096;

/// In [`Nodes::step`]: the way has a lead.
const WITH_LEAD: u32 = 1 << 16;

/// What the model remembers at a node.
#[derive(Clone, Copy, Default)]
struct NodeState {
    last: Last,
    reps: [u32; 4],
}

impl NodeState {
    #[inline(always)]
    fn after(self, symbol: Symbol) -> Self {
        let Self { last, reps } = self;
        let [a, b, c, d] = reps;
        match symbol.from {
            Symbol::LITERAL => Self {
                last: last.literal(),
                reps,
            },
            0 if symbol.len == 1 => Self {
                last: last.short(),
                reps,
            },
            0 => Self {
                last: last.repeated(),
                reps,
            },
            1 => Self {
                last: last.repeated(),
                reps: [b, a, c, d],
            },
            2 => Self {
                last: last.repeated(),
                reps: [c, a, b, d],
            },
            3 => Self {
                last: last.repeated(),
                reps: [d, a, b, c],
            },
            from => Self {
                last: last.matched(),
                reps: [from - Symbol::REPEATS, a, b, c],
            },
        }
    }
}

/// The nodes of a stretch, quantity by quantity, so that many can be compared at once.
struct Nodes {
    price: Box<[u32; NODES]>,
    /// The last symbol of the cheapest way: from where.
    from: Box<[u32; NODES]>,
    /// Its length, and [`WITH_LEAD`] if a lead and a literal come before it.
    step: Box<[u32; NODES]>,
    /// The lead; of length 0 if the literal comes first.
    lead: Box<[Symbol; NODES]>,
    state: Box<[NodeState; NODES]>,
    /// The last node that can be reached.
    end: usize,
}

fn boxed<T: Copy>(value: T) -> Box<[T; NODES]> {
    match vec![value; NODES].into_boxed_slice().try_into() {
        Ok(nodes) => nodes,
        Err(_) => unreachable!("the slice has so many elements"),
    }
}

impl Nodes {
    fn new() -> Self {
        Self {
            price: boxed(0),
            from: boxed(0),
            step: boxed(0),
            lead: boxed(Symbol { from: 0, len: 0 }),
            state: boxed(NodeState::default()),
            end: 0,
        }
    }

    /// Begins a stretch.
    fn begin(&mut self, state: NodeState) {
        self.price[0] = 0;
        self.state[0] = state;
        self.end = 0;
    }

    /// Nodes up to `to` can be reached.
    #[inline(always)]
    fn reach(&mut self, to: usize) {
        if to > self.end {
            self.price[self.end + 1..=to].fill(INFINITE);
            self.end = to;
        }
    }

    /// A way to node `to`, if it is cheaper.
    #[inline(always)]
    fn relax(&mut self, to: usize, price: u32, symbol: Symbol) -> bool {
        let better = price < self.price[to];
        if better {
            self.price[to] = price;
            self.from[to] = symbol.from;
            self.step[to] = symbol.len;
        }
        better
    }

    /// A way with a lead, a literal and a repeat of the last distance.
    #[inline(always)]
    fn relax_with_lead(&mut self, to: usize, price: u32, lead: Symbol, len: usize) {
        self.reach(to);
        let repeat = Symbol {
            from: 0,
            len: len as u32 | WITH_LEAD,
        };
        if self.relax(to, price, repeat) {
            self.lead[to] = lead;
        }
    }

    /// Ways from node `cur` with one symbol of each length from `low` on: `base` and `prices` together are what they cost.
    #[inline(always)]
    fn relax_all(&mut self, cur: usize, low: usize, base: u32, prices: &[u32], from: u32) {
        let to = cur + low..cur + low + prices.len();
        let (costs, froms, steps) = (
            &mut self.price[to.clone()],
            &mut self.from[to.clone()],
            &mut self.step[to],
        );
        let nodes = costs.iter_mut().zip(froms).zip(steps);
        for (((cost, at_from), step), (price, len)) in nodes.zip(prices.iter().zip(low as u32..)) {
            let price = base + price;
            if price < *cost {
                *cost = price;
                *at_from = from;
                *step = len;
            }
        }
    }

    /// How node `cur` is reached: the node before, and up to three symbols.
    #[inline(always)]
    fn incoming(&self, cur: usize) -> (usize, [Option<Symbol>; 3]) {
        let (from, step) = (self.from[cur], self.step[cur]);
        if step & WITH_LEAD == 0 {
            let last = Symbol { from, len: step };
            return (cur - step as usize, [None, None, Some(last)]);
        }
        let len = step ^ WITH_LEAD;
        let lead = self.lead[cur];
        (
            cur - (len + 1 + lead.len) as usize,
            [
                (lead.len > 0).then_some(lead),
                Some(Symbol::literal()),
                Some(Symbol { from, len }),
            ],
        )
    }

    /// Whether the next node, or the last one, costs hardly more than node `cur`, so that ways over it are not worth a look. A node that
    /// cannot be reached costs more than any.
    #[inline(always)]
    fn is_overtaken(&self, cur: usize, margin: u32) -> bool {
        let most = self.price[cur] + margin;
        self.price[self.end] <= most || self.price[cur + 1] <= most
    }

    /// Node `cur` will not be reached in a cheaper way.
    #[inline(always)]
    fn finalize(&mut self, cur: usize) {
        let (from, step) = (self.from[cur], self.step[cur]);
        self.state[cur] = if step & WITH_LEAD == 0 {
            self.state[cur - step as usize].after(Symbol { from, len: step })
        } else {
            let (before, symbols) = self.incoming(cur);
            let symbols = symbols.into_iter().flatten();
            symbols.fold(self.state[before], NodeState::after)
        };
    }

    /// The symbols of the way to node `cur`.
    fn path(&self, mut cur: usize, path: &mut Vec<Symbol>) {
        while cur > 0 {
            let (before, symbols) = self.incoming(cur);
            path.extend(symbols.into_iter().rev().flatten());
            cur = before;
        }
        path.reverse();
    }
}

/// Decides stretch by stretch.
pub(crate) struct OptimalParser {
    nice: usize,
    /// A node that is reached with so much more is no reason to look at one before it. Unit: sixteenths of a bit.
    margin: u32,
    nodes: Nodes,
    prices: Prices,
    /// Matches at the place in front of the finder's.
    matches: Matches,
}

impl OptimalParser {
    pub(crate) fn new(limits: SearchLimits) -> Self {
        Self {
            nice: limits.nice,
            margin: limits.margin,
            nodes: Nodes::new(),
            prices: Prices::new(),
            matches: Matches::default(),
        }
    }
}

impl Parser for OptimalParser {
    fn begin(&mut self) {
        self.prices.forget();
    }

    fn parse(
        &mut self,
        data: &[u8],
        at: usize,
        finder: &mut impl MatchFinder,
        model: &Model,
        path: &mut Vec<Symbol>,
    ) {
        if finder.at() == at {
            finder.find(data, &mut self.matches);
        }
        if let Some(symbol) = self.obvious(data, at, model) {
            path.push(symbol);
            finder.skip(data, symbol.len as usize - 1);
        } else {
            self.prices.refresh(model);
            self.nodes.begin(NodeState {
                last: model.last,
                reps: model.reps,
            });
            let end = self.parse_segment(data, at, finder, model);
            self.nodes.path(end, path);
        }
        for symbol in path {
            self.prices.count(*symbol);
        }
    }
}

/// A place of the input with all that is asked about it.
struct PriceContext<'a> {
    data: &'a [u8],
    model: &'a Model,
    at: usize,
    state: NodeState,
    pos_state: usize,
}

impl PriceContext<'_> {
    /// What a literal costs at `at`, after `last` and with this last distance.
    #[inline(always)]
    fn literal(&self, at: usize, last: Last, rep0: u32) -> u32 {
        let (model, data) = (self.model, self.data);
        let before = if at == 0 { 0 } else { data[at - 1] };
        let alike = (!last.is_literal()).then(|| data[at - rep0 as usize - 1]);
        let pos_state = model.pos_state(at);
        price::bit(model.is_match[last.index()][pos_state], 0)
            + model.literal_price(at, before, data[at], alike)
    }

    /// What a match costs before its length and distance.
    #[inline(always)]
    fn matched(&self, last: Last, pos_state: usize) -> u32 {
        let (model, last) = (self.model, last.index());
        price::bit(model.is_match[last][pos_state], 1) + price::bit(model.is_rep[last], 0)
    }

    /// What a repeat costs before it is said which.
    #[inline(always)]
    fn repeated(&self, last: Last, pos_state: usize) -> u32 {
        let (model, last) = (self.model, last.index());
        price::bit(model.is_match[last][pos_state], 1) + price::bit(model.is_rep[last], 1)
    }

    /// What it costs to say that it is repeat `which`, of more than a byte.
    #[inline(always)]
    fn which(&self, which: usize, last: Last, pos_state: usize) -> u32 {
        let (model, last) = (self.model, last.index());
        let later = price::bit(model.is_rep0[last], 1);
        match which {
            0 => {
                price::bit(model.is_rep0[last], 0)
                    + price::bit(model.is_rep0_long[last][pos_state], 1)
            }
            1 => later + price::bit(model.is_rep1[last], 0),
            _ => {
                later
                    + price::bit(model.is_rep1[last], 1)
                    + price::bit(model.is_rep2[last], u32::from(which == 3))
            }
        }
    }
}

impl OptimalParser {
    /// Finds the ways through the stretch at `at`. Returns the node that all of them lead through.
    #[inline(always)]
    fn parse_segment(
        &mut self,
        data: &[u8],
        at: usize,
        finder: &mut impl MatchFinder,
        model: &Model,
    ) -> usize {
        let mut cur = 0;
        loop {
            self.extend(data, at, cur, model);
            cur = loop {
                cur += 1;
                if cur == self.nodes.end {
                    return cur;
                }
                if !self.nodes.is_overtaken(cur, self.margin) {
                    break cur;
                }
                finder.skip(data, 1);
            };
            finder.find(data, &mut self.matches);
            if self.matches.best().len as usize >= self.nice {
                return cur;
            }
            self.nodes.finalize(cur);
        }
    }

    /// The symbol, if there is nothing to weigh.
    #[inline(always)]
    fn obvious(&self, data: &[u8], at: usize, model: &Model) -> Option<Symbol> {
        let end = data.len().min(at + LEN_MAX);
        if at == 0 || at + LEN_MIN > end {
            return Some(Symbol::literal());
        }
        let repeat = longest_repeat(data, at, end, model.reps, LEN_MAX);
        if repeat.len as usize >= self.nice {
            return Some(repeat);
        }
        let Match { len, dist } = self.matches.best();
        if len as usize >= self.nice {
            return Some(Symbol {
                from: dist + Symbol::REPEATS,
                len,
            });
        }
        let alike = data[at] == data[at - model.reps[0] as usize - 1];
        (len < 2 && repeat.len < 2 && !alike).then_some(Symbol::literal())
    }

    /// Finds the ways that lead on from node `cur`, which is settled and whose matches are known.
    #[inline(always)]
    fn extend(&mut self, data: &[u8], start: usize, cur: usize, model: &Model) {
        let at = start + cur;
        let here = PriceContext {
            data,
            model,
            at,
            state: self.nodes.state[cur],
            pos_state: model.pos_state(at),
        };
        let full = (data.len() - at).min(NODES - 1 - cur);
        if full == 0 {
            return;
        }
        self.nodes.reach(cur + 1);
        let NodeState { last, reps } = here.state;
        let cost = self.nodes.price[cur];
        let literal = cost + here.literal(at, last, reps[0]);
        let mut to_next = self.nodes.relax(cur + 1, literal, Symbol::literal());
        let repeated = cost + here.repeated(last, here.pos_state);
        let alike = data[at] == data[at - reps[0] as usize - 1];
        if alike {
            let short = repeated
                + price::bit(model.is_rep0[last.index()], 0)
                + price::bit(model.is_rep0_long[last.index()][here.pos_state], 0);
            to_next |= self.nodes.relax(cur + 1, short, Symbol { from: 0, len: 1 });
        }
        if full < 2 {
            return;
        }
        if !to_next && !alike {
            self.then_repeat(&here, cur, full, literal, Symbol { from: 0, len: 0 });
        }
        let most = full.min(self.nice);
        let low = self.repeats(&here, cur, full, most, repeated);
        self.matches(&here, cur, full, most, low);
    }

    /// A repeat of the last distance behind a literal, which costs `cost` in all and stands behind the lead.
    #[inline(always)]
    fn then_repeat(
        &mut self,
        here: &PriceContext<'_>,
        cur: usize,
        full: usize,
        cost: u32,
        lead: Symbol,
    ) {
        let PriceContext { data, at, .. } = *here;
        let skipped = lead.len as usize + 1;
        if skipped + LEN_MIN > full {
            return;
        }
        let state = if lead.len == 0 {
            here.state
        } else {
            here.state.after(lead)
        };
        let (place, dist) = (at + skipped, state.reps[0] as usize + 1);
        // Two bytes are left.
        if load2(data, place) != load2(data, place - dist) {
            return;
        }
        let end = at + full.min(skipped + self.nice);
        let len = match_len(data, place, place - dist, end);
        if len < LEN_MIN {
            return;
        }
        let last = state.last.literal();
        let pos_state = here.model.pos_state(place);
        let price = cost
            + here.repeated(last, pos_state)
            + here.which(0, last, pos_state)
            + self.prices.repeated(pos_state)[len - LEN_MIN];
        self.nodes
            .relax_with_lead(cur + skipped + len, price, lead, len);
    }

    /// Repeats of the last distances. Returns the least length that a match must have to be worth a look.
    #[inline(always)]
    fn repeats(
        &mut self,
        here: &PriceContext<'_>,
        cur: usize,
        full: usize,
        most: usize,
        repeated: u32,
    ) -> usize {
        let PriceContext { data, at, .. } = *here;
        let mut low = LEN_MIN;
        let NodeState { last, reps } = here.state;
        for (which, dist) in reps.into_iter().enumerate() {
            let before = at - dist as usize - 1;
            // Two bytes are left.
            if load2(data, at) != load2(data, before) {
                continue;
            }
            let len = match_len(data, at, before, at + most);
            self.nodes.reach(cur + len);
            let base = repeated + here.which(which, last, here.pos_state);
            let prices = self.prices.repeated(here.pos_state);
            self.nodes
                .relax_all(cur, LEN_MIN, base, &prices[..len - 1], which as u32);
            if which == 0 {
                low = len + 1;
            }
            let cost = base + prices[len - LEN_MIN];
            let lead = Symbol {
                from: which as u32,
                len: len as u32,
            };
            self.lead(here, cur, full, cost, lead);
        }
        low
    }

    /// Matches of at least `low` bytes.
    #[inline(always)]
    fn matches(
        &mut self,
        here: &PriceContext<'_>,
        cur: usize,
        full: usize,
        most: usize,
        mut low: usize,
    ) {
        if (self.matches.best().len as usize) < low {
            return;
        }
        let base = self.nodes.price[cur] + here.matched(here.state.last, here.pos_state);
        self.nodes
            .reach(cur + most.min(self.matches.best().len as usize));
        for i in 0..self.matches.list().len() {
            let Match { len, dist } = self.matches.list()[i];
            let len = (len as usize).min(most);
            if len < low {
                continue;
            }
            let from = dist + Symbol::REPEATS;
            let prices = self.prices.matched(here.pos_state);
            while low < len.min(5) {
                let price = base + self.prices.dist(dist, low) + prices[low - LEN_MIN];
                let symbol = Symbol {
                    from,
                    len: low as u32,
                };
                self.nodes.relax(cur + low, price, symbol);
                low += 1;
            }
            let base = base + self.prices.dist(dist, len);
            self.nodes
                .relax_all(cur, low, base, &prices[low - LEN_MIN..len - 1], from);
            low = len + 1;
            let cost = base + prices[len - LEN_MIN];
            let lead = Symbol {
                from,
                len: len as u32,
            };
            self.lead(here, cur, full, cost, lead);
        }
    }

    /// What follows a match or repeat that ends only because one byte differs.
    #[inline(always)]
    fn lead(&mut self, here: &PriceContext<'_>, cur: usize, full: usize, cost: u32, lead: Symbol) {
        let PriceContext { data, at, .. } = *here;
        let len = lead.len as usize;
        if len + 1 + LEN_MIN > full {
            return;
        }
        let state = here.state.after(lead);
        let dist = state.reps[0] as usize + 1;
        let behind = at + len + 1;
        // Two bytes are left.
        if load2(data, behind) == load2(data, behind - dist) {
            let cost = cost + here.literal(at + len, state.last, state.reps[0]);
            self.then_repeat(here, cur, full, cost, lead);
        }
    }
}
