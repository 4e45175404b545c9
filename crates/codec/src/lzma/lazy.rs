//! Lazy parser of the fast levels: the longest match, unless a repeat is nearly as long or the next position has a
//! better match.

use super::match_finder::{Match, MatchFinder, Matches, SearchLimits};
use super::model::{LEN_MAX, Model, Symbol, longest_repeat};
use super::parser::Parser;

/// Parser that decides position by position.
pub(crate) struct LazyParser {
    nice: usize,
    /// Matches at the position before the finder's.
    matches: Matches,
}

impl LazyParser {
    pub(crate) fn new(limits: SearchLimits) -> Self {
        Self {
            nice: limits.nice,
            matches: Matches::default(),
        }
    }
}

/// Returns true if a distance is so much larger than another that an extra byte of length does not pay.
fn much_farther(dist: u32, than: u32) -> bool {
    dist >> 7 > than
}

/// Returns the longest match, or a shorter one that is much nearer.
fn choose(matches: &[Match]) -> Match {
    let Some((&last, shorter)) = matches.split_last() else {
        return Match::default();
    };
    let mut best = last;
    for &other in shorter.iter().rev() {
        if best.len == other.len + 1 && much_farther(best.dist, other.dist) {
            best = other;
        } else {
            break;
        }
    }
    if best.len == 2 && best.dist >= 0x80 {
        return Match::default();
    }
    best
}

/// Returns true if a repeat of `len` bytes saves more than the match gains.
fn repeat_is_better(len: u32, than: Match) -> bool {
    len >= 2
        && (len + 1 >= than.len
            || (len + 2 >= than.len && than.dist > 1 << 9)
            || (len + 3 >= than.len && than.dist > 1 << 15))
}

/// Returns true if the match one byte later justifies a literal.
fn next_is_better(next: Match, than: Match) -> bool {
    next.len >= 2
        && ((next.len >= than.len && next.dist < than.dist)
            || (next.len == than.len + 1 && !much_farther(next.dist, than.dist))
            || next.len > than.len + 1
            || (next.len + 1 >= than.len && than.len >= 3 && much_farther(than.dist, next.dist)))
}

impl Parser for LazyParser {
    fn begin(&mut self) {}

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
        let symbol = self.symbol(data, at, finder, model);
        let entered = finder.at() - at;
        finder.skip(data, (symbol.len as usize).saturating_sub(entered));
        path.push(symbol);
    }
}

impl LazyParser {
    #[inline(always)]
    fn symbol(
        &mut self,
        data: &[u8],
        at: usize,
        finder: &mut impl MatchFinder,
        model: &Model,
    ) -> Symbol {
        let end = data.len().min(at + LEN_MAX);
        if at == 0 || at + 2 > end {
            return Symbol::literal();
        }
        let repeat = longest_repeat(data, at, end, model.reps, self.nice);
        if repeat.len as usize >= self.nice {
            return repeat;
        }
        let longest = self.matches.best();
        let as_match = |m: Match| Symbol {
            from: m.dist + Symbol::REPEATS,
            len: m.len,
        };
        if longest.len as usize >= self.nice {
            return as_match(longest);
        }
        let best = choose(self.matches.list());
        if repeat_is_better(repeat.len, best) {
            return repeat;
        }
        if best.len < 2 || at + 2 >= end {
            return Symbol::literal();
        }
        finder.find(data, &mut self.matches);
        if next_is_better(self.matches.best(), best) {
            return Symbol::literal();
        }
        // A repeat at the next position that is at least as good.
        let enough = (best.len as usize - 1).max(2);
        let is_repeat = |dist: u32| {
            let before = at - dist as usize;
            data.get(at + 1..at + 1 + enough) == Some(&data[before..before + enough])
        };
        if model.reps.into_iter().any(is_repeat) {
            return Symbol::literal();
        }
        as_match(best)
    }
}
