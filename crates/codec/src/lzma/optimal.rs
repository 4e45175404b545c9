//! Optimal parser of the thorough levels: the path through the next segment that costs the fewest bits, at current
//! prices.
//!
//! ```text
//!  node 0      1      2      3      4      5          each node: the cheapest known path to it
//!  ─┬──literal─┴──────┴──match──────┴...                and the state it leaves the model in
//!   └──repeat────────┘
//! ```
//!
//! Nodes are finalized from left to right. From each one lead a literal, repeats of the last four distances, and
//! matches. Many files differ from earlier data in single bytes, so each of those is also tried followed by a literal
//! and a repeat. The segment ends where all paths meet, or at a match that is long enough to be taken
//! unconditionally.

use crate::bytes::{load2, match_len};

use super::match_finder::{Match, MatchFinder, Matches, SearchLimits};
use super::model::{LEN_MAX, LEN_MIN, Last, Model, Symbol, longest_repeat};
use super::parser::Parser;
use super::prices::Prices;
use super::range_coder::price::{self, INFINITE};

/// Longest segment. Unit: bytes.
const NODES: usize = 4096;

/// Flag in [`Nodes::step`]: the path has a lead.
const WITH_LEAD: u32 = 1 << 16;

/// State of the model at a node.
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

/// Nodes of a segment as one array per field, so that comparisons vectorise.
struct Nodes {
    price: Box<[u32; NODES]>,
    /// Source of the last symbol on the cheapest path.
    from: Box<[u32; NODES]>,
    /// Length of the last symbol, and [`WITH_LEAD`] if a lead and a literal precede it.
    step: Box<[u32; NODES]>,
    /// Symbol before the literal; of length 0 if the literal comes first.
    lead: Box<[Symbol; NODES]>,
    state: Box<[NodeState; NODES]>,
    /// Last node that can be reached.
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

    /// Starts a segment with the model in this state.
    fn begin(&mut self, state: NodeState) {
        self.price[0] = 0;
        self.state[0] = state;
        self.end = 0;
    }

    /// Makes nodes up to `to` reachable.
    #[inline(always)]
    fn reach(&mut self, to: usize) {
        if to > self.end {
            self.price[self.end + 1..=to].fill(INFINITE);
            self.end = to;
        }
    }

    /// Records a path to node `to` if it is cheaper.
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

    /// Records a path with a lead, a literal and a repeat of the last distance.
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

    /// Records paths from node `cur` with one symbol of each length from `low` on. The price is `base` plus that of
    /// the length.
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

    /// Returns the previous node on the path to `cur`, and up to three symbols from there.
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

    /// Returns true if the next node, or the last one, costs hardly more than node `cur`, so that paths through it
    /// can be ignored. An unreachable node has an infinite price.
    #[inline(always)]
    fn is_overtaken(&self, cur: usize, margin: u32) -> bool {
        let most = self.price[cur] + margin;
        self.price[self.end] <= most || self.price[cur + 1] <= most
    }

    /// Computes the state of node `cur`, whose path is final.
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

    /// Collects the symbols of the path to node `cur`.
    fn path(&self, mut cur: usize, path: &mut Vec<Symbol>) {
        while cur > 0 {
            let (before, symbols) = self.incoming(cur);
            path.extend(symbols.into_iter().rev().flatten());
            cur = before;
        }
        path.reverse();
    }
}

/// Parser that decides segment by segment.
pub(crate) struct OptimalParser {
    nice: usize,
    /// Price difference below which a later node makes an earlier one irrelevant. Unit: sixteenths of a bit.
    margin: u32,
    nodes: Nodes,
    prices: Prices,
    /// Matches at the position before the finder's.
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

/// Position of the input with the data needed to compute prices there.
struct PriceContext<'a> {
    data: &'a [u8],
    model: &'a Model,
    at: usize,
    state: NodeState,
    pos_state: usize,
}

impl PriceContext<'_> {
    /// Returns the price of a literal at `at`, after `last` and with this last distance.
    #[inline(always)]
    fn literal(&self, at: usize, last: Last, rep0: u32) -> u32 {
        let (model, data) = (self.model, self.data);
        let before = if at == 0 { 0 } else { data[at - 1] };
        let alike = (!last.is_literal()).then(|| data[at - rep0 as usize - 1]);
        let pos_state = model.pos_state(at);
        price::bit(model.is_match[last.index()][pos_state], 0)
            + model.literal_price(at, before, data[at], alike)
    }

    /// Returns the price of a match without its length and distance.
    #[inline(always)]
    fn matched(&self, last: Last, pos_state: usize) -> u32 {
        let (model, last) = (self.model, last.index());
        price::bit(model.is_match[last][pos_state], 1) + price::bit(model.is_rep[last], 0)
    }

    /// Returns the price of a repeat without its index and length.
    #[inline(always)]
    fn repeated(&self, last: Last, pos_state: usize) -> u32 {
        let (model, last) = (self.model, last.index());
        price::bit(model.is_match[last][pos_state], 1) + price::bit(model.is_rep[last], 1)
    }

    /// Returns the price of selecting repeat `which`, of more than a byte.
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
    /// Finds the cheapest paths through the segment at `at`. Returns the node on which all of them meet.
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

    /// Returns the symbol if there is only one sensible choice.
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

    /// Records the paths that lead on from node `cur`, which is final and whose matches are known.
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

    /// Records a repeat of the last distance after a literal. `cost` is the price up to and including the literal.
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
        // At least two bytes remain.
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

    /// Records repeats of the last distances. Returns the shortest length of a match that is worth considering.
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
            // At least two bytes remain.
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

    /// Records matches of at least `low` bytes.
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

    /// Records the continuation of a match or repeat that ends only because one byte differs.
    #[inline(always)]
    fn lead(&mut self, here: &PriceContext<'_>, cur: usize, full: usize, cost: u32, lead: Symbol) {
        let PriceContext { data, at, .. } = *here;
        let len = lead.len as usize;
        if len + 1 + LEN_MIN > full {
            return;
        }
        let state = here.state.after(lead);
        let dist = state.reps[0] as usize + 1;
        let next_at = at + len + 1;
        // At least two bytes remain.
        if load2(data, next_at) == load2(data, next_at - dist) {
            let cost = cost + here.literal(at + len, state.last, state.reps[0]);
            self.then_repeat(here, cur, full, cost, lead);
        }
    }
}
