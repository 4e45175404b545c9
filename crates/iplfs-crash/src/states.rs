//! Builds the states that a power loss could leave from a record of events.

use crate::disk::Event;
use std::ops::Range;
use std::sync::Arc;
use tuff_iplfs::backend::Blocks;
use tuff_iplfs::{BLOCK_SIZE, Block};
use tuff_testkit::Rng;

/// Part of a record that reaches the medium independently of others.
enum PendingUnit {
    Write(u64, Arc<Block>),
    Discard(Range<u64>),
}

/// Effect of a power loss on a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Lost,
    Done,
    /// Partially applied: the sectors of a write that are new, or every other block of a discard.
    Torn(u8),
}

/// Maximum number of units that are enumerated exhaustively; more are sampled.
const EXHAUSTIVE: usize = 6;

/// Calls `visit` with each state, and with the number of events that are durable in it. `samples` bounds the sampled
/// states per flush epoch. Stops at the first error.
pub fn states<E>(
    base: &Blocks,
    events: &[Event],
    samples: usize,
    rng: &mut Rng,
    mut visit: impl FnMut(Blocks, usize) -> Result<(), E>,
) -> Result<(), E> {
    let mut durable = base.clone();
    let mut from = 0;
    while from <= events.len() {
        let end = events[from..]
            .iter()
            .position(|e| matches!(e, Event::Flush))
            .map_or(events.len(), |n| from + n);
        let units = units_of(&events[from..end]);
        let last = end == events.len();
        for outcomes in choices(&units, samples, last, rng) {
            let mut blocks = durable.clone();
            apply(&mut blocks, &units, &outcomes);
            visit(blocks, from)?;
        }
        apply(&mut durable, &units, &vec![Outcome::Done; units.len()]);
        from = end + 1;
    }
    Ok(())
}

fn units_of(events: &[Event]) -> Vec<PendingUnit> {
    let mut units = Vec::new();
    for event in events {
        match event {
            Event::Write(addr, blocks) => {
                units.extend(
                    blocks
                        .iter()
                        .enumerate()
                        .map(|(i, b)| PendingUnit::Write(addr + i as u64, b.clone())),
                );
            }
            Event::Discard(range) => units.push(PendingUnit::Discard(range.clone())),
            Event::Flush => {}
        }
    }
    units
}

fn choices(units: &[PendingUnit], samples: usize, last: bool, rng: &mut Rng) -> Vec<Vec<Outcome>> {
    let n = units.len();
    let pick = |bits: u64| {
        (0..n)
            .map(|i| {
                if bits >> (i % 64) & 1 == 1 {
                    Outcome::Done
                } else {
                    Outcome::Lost
                }
            })
            .collect()
    };
    let mut out: Vec<Vec<Outcome>> = Vec::new();
    // The complete epoch equals the empty choice of the next one, unless it is the last.
    if n <= EXHAUSTIVE {
        out.extend(
            (0..1u64 << n)
                .filter(|bits| last || n == 0 || *bits + 1 < 1 << n)
                .map(pick),
        );
    } else {
        out.push(vec![Outcome::Lost; n]);
        for _ in 0..samples {
            let mut outcomes: Vec<Outcome> = vec![
                if rng.below(2) == 0 {
                    Outcome::Done
                } else {
                    Outcome::Lost
                };
                n
            ];
            match rng.below(3) {
                0 => {
                    let at = rng.below(n);
                    outcomes[at] = if outcomes[at] == Outcome::Done {
                        Outcome::Lost
                    } else {
                        Outcome::Done
                    };
                }
                1 => outcomes[rng.below(n)..].fill(Outcome::Lost),
                _ => outcomes.iter_mut().for_each(|f| {
                    *f = if rng.below(2) == 0 {
                        Outcome::Done
                    } else {
                        Outcome::Lost
                    }
                }),
            }
            out.push(outcomes);
        }
        if last {
            out.push(vec![Outcome::Done; n]);
        }
    }
    // Torn units: each one, or a sample of many, with the others present or lost.
    for at in 0..n.min(samples) {
        let torn = if n <= samples { at } else { rng.below(n) };
        let others = if rng.below(2) == 0 {
            Outcome::Done
        } else {
            Outcome::Lost
        };
        let mut outcomes = vec![others; n];
        outcomes[torn] = Outcome::Torn((rng.draw() % 254 + 1) as u8);
        out.push(outcomes);
    }
    out
}

fn apply(blocks: &mut Blocks, units: &[PendingUnit], outcomes: &[Outcome]) {
    for (unit, outcome) in units.iter().zip(outcomes) {
        match (unit, outcome) {
            (_, Outcome::Lost) => {}
            (PendingUnit::Write(addr, block), Outcome::Done) => {
                blocks.insert(*addr, block.clone());
            }
            (PendingUnit::Write(addr, block), Outcome::Torn(sectors)) => {
                let mut mixed = blocks.get(addr).map_or([0; BLOCK_SIZE], |old| **old);
                for sector in (0..8).filter(|s| sectors >> s & 1 == 1) {
                    mixed[sector * 512..][..512].copy_from_slice(&block[sector * 512..][..512]);
                }
                blocks.insert(*addr, Arc::new(mixed));
            }
            (PendingUnit::Discard(range), outcome) => {
                for addr in range
                    .clone()
                    .filter(|addr| *outcome == Outcome::Done || addr % 2 == 0)
                {
                    blocks.remove(&addr);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subset_of_a_small_epoch_is_visited() {
        let block = |fill: u8| Arc::new([fill; BLOCK_SIZE]);
        let events = [
            Event::Write(1, vec![block(1), block(2)]),
            Event::Flush,
            Event::Write(9, vec![block(3)]),
        ];
        let mut seen = std::collections::BTreeSet::new();
        let mut rng = Rng::new(1);
        states(&Blocks::new(), &events, 0, &mut rng, |blocks, from| {
            seen.insert((from, blocks.keys().copied().collect::<Vec<_>>()));
            Ok::<(), ()>(())
        })
        .unwrap();
        let want = [
            (0, vec![]),
            (0, vec![1]),
            (0, vec![2]),
            (2, vec![1, 2]),
            (2, vec![1, 2, 9]),
        ];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), want);
    }
}
