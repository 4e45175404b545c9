//! From a record of events to the states a power failure could leave.

use crate::disk::Event;
use std::ops::Range;
use std::sync::Arc;
use tuff_iplfs::backend::Blocks;
use tuff_iplfs::{BLOCK_SIZE, Block};
use tuff_testkit::Rng;

/// What may or may not have reached the medium on its own.
enum Unit {
    Write(u64, Arc<Block>),
    Discard(Range<u64>),
}

/// How much of a unit reached the medium.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Done,
    /// For a write, the sectors that are new; for a discard, every other block.
    Torn(u8),
}

/// Units that are enumerated completely; more are sampled.
const EXHAUSTIVE: usize = 6;

/// Calls `visit` with each state and the number of events before which the crash must have happened at the earliest: everything up to there is
/// durable. `samples` bounds the states per flush epoch beyond the exhaustive ones. Stops at the first error.
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
        for fates in choices(&units, samples, last, rng) {
            let mut blocks = durable.clone();
            apply(&mut blocks, &units, &fates);
            visit(blocks, from)?;
        }
        apply(&mut durable, &units, &vec![Fate::Done; units.len()]);
        from = end + 1;
    }
    Ok(())
}

fn units_of(events: &[Event]) -> Vec<Unit> {
    let mut units = Vec::new();
    for event in events {
        match event {
            Event::Write(addr, blocks) => {
                units.extend(
                    blocks
                        .iter()
                        .enumerate()
                        .map(|(i, b)| Unit::Write(addr + i as u64, b.clone())),
                );
            }
            Event::Discard(range) => units.push(Unit::Discard(range.clone())),
            Event::Flush => {}
        }
    }
    units
}

fn choices(units: &[Unit], samples: usize, last: bool, rng: &mut Rng) -> Vec<Vec<Fate>> {
    let n = units.len();
    let pick = |bits: u64| {
        (0..n)
            .map(|i| {
                if bits >> (i % 64) & 1 == 1 {
                    Fate::Done
                } else {
                    Fate::Lost
                }
            })
            .collect()
    };
    let mut out: Vec<Vec<Fate>> = Vec::new();
    // The whole epoch is the empty choice of the next one, unless there is none.
    if n <= EXHAUSTIVE {
        out.extend(
            (0..1u64 << n)
                .filter(|bits| last || n == 0 || *bits + 1 < 1 << n)
                .map(pick),
        );
    } else {
        out.push(vec![Fate::Lost; n]);
        for _ in 0..samples {
            let mut fates: Vec<Fate> = vec![
                if rng.below(2) == 0 {
                    Fate::Done
                } else {
                    Fate::Lost
                };
                n
            ];
            match rng.below(3) {
                0 => {
                    let at = rng.below(n);
                    fates[at] = if fates[at] == Fate::Done {
                        Fate::Lost
                    } else {
                        Fate::Done
                    };
                }
                1 => fates[rng.below(n)..].fill(Fate::Lost),
                _ => fates.iter_mut().for_each(|f| {
                    *f = if rng.below(2) == 0 {
                        Fate::Done
                    } else {
                        Fate::Lost
                    }
                }),
            }
            out.push(fates);
        }
        if last {
            out.push(vec![Fate::Done; n]);
        }
    }
    // Torn: each unit once, or a few of many, with the others there or not.
    for at in 0..n.min(samples) {
        let torn = if n <= samples { at } else { rng.below(n) };
        let others = if rng.below(2) == 0 {
            Fate::Done
        } else {
            Fate::Lost
        };
        let mut fates = vec![others; n];
        fates[torn] = Fate::Torn((rng.draw() % 254 + 1) as u8);
        out.push(fates);
    }
    out
}

fn apply(blocks: &mut Blocks, units: &[Unit], fates: &[Fate]) {
    for (unit, fate) in units.iter().zip(fates) {
        match (unit, fate) {
            (_, Fate::Lost) => {}
            (Unit::Write(addr, block), Fate::Done) => {
                blocks.insert(*addr, block.clone());
            }
            (Unit::Write(addr, block), Fate::Torn(sectors)) => {
                let mut mixed = blocks.get(addr).map_or([0; BLOCK_SIZE], |old| **old);
                for sector in (0..8).filter(|s| sectors >> s & 1 == 1) {
                    mixed[sector * 512..][..512].copy_from_slice(&block[sector * 512..][..512]);
                }
                blocks.insert(*addr, Arc::new(mixed));
            }
            (Unit::Discard(range), fate) => {
                for addr in range
                    .clone()
                    .filter(|addr| *fate == Fate::Done || addr % 2 == 0)
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
