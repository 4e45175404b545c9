//! Discard log: dead blocks until the device has released them.
//!
//! ```text
//!  dead ──checkpoint v──► logged(v) ──checkpoint v+1, no older reader──► issued ──flush──► forgotten
//! ```
//!
//! The numbered rules are in docs/design/discard.md. The invariants of this file:
//!
//! * A run is in the log of every committed checkpoint, from the one that logged it until a flush after its discard.
//! * A run logged by checkpoint v is issued only after v+1 is committed: then neither pack on the device refers to
//!   it.
//! * A run logged by v is not issued while a reader that started before v is active.

use crate::disk::address::BlockAddr;
use crate::disk::checkpoint::DiscardEntry;
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunState {
    Logged,
    Issued,
}

#[derive(Clone, Copy, Debug)]
struct LoggedRun {
    blocks: u64,
    /// Version of the first checkpoint that has the run in its log.
    logged: u64,
    state: RunState,
}

/// Runs in the discard log, by address. They never overlap.
#[derive(Default)]
pub(crate) struct DiscardLog {
    runs: BTreeMap<u64, LoggedRun>,
    blocks: u64,
}

impl DiscardLog {
    /// Adds runs that the checkpoint `version` logs.
    pub(crate) fn add(&mut self, runs: impl IntoIterator<Item = Range<u64>>, version: u64) {
        for run in runs {
            let blocks = run.end - run.start;
            debug_assert!(
                self.runs.range(run.clone()).next().is_none(),
                "blocks {run:?} were freed twice"
            );
            if let Some(old) = self.runs.insert(
                run.start,
                LoggedRun {
                    blocks,
                    logged: version,
                    state: RunState::Logged,
                },
            ) {
                self.blocks -= old.blocks;
            }
            self.blocks += blocks;
        }
    }

    /// Removes blocks that turned out to be live.
    pub(crate) fn remove_live(&mut self, alive: impl Fn(u64) -> bool) {
        for (start, run) in std::mem::take(&mut self.runs) {
            for at in (start..start + run.blocks).filter(|at| !alive(*at)) {
                match self.runs.range_mut(..at).next_back() {
                    Some((first, last)) if first + last.blocks == at && *first >= start => {
                        last.blocks += 1;
                    }
                    _ => _ = self.runs.insert(at, LoggedRun { blocks: 1, ..run }),
                }
            }
        }
        self.blocks = self.runs.values().map(|run| run.blocks).sum();
    }

    /// Number of blocks in the log.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns all runs, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs
            .iter()
            .map(|(start, run)| *start..start + run.blocks)
    }

    /// Returns the runs that may be issued: those logged before the version `before`. With `merge`, neighbours are
    /// joined.
    pub(crate) fn eligible(&self, before: u64, merge: bool) -> Vec<Range<u64>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        for (&start, run) in &self.runs {
            if run.state == RunState::Issued || run.logged >= before {
                continue;
            }
            match out.last_mut() {
                Some(last) if merge && last.end == start => last.end += run.blocks,
                _ => out.push(start..start + run.blocks),
            }
        }
        out
    }

    /// Marks a range as issued to the device. Runs are split where the range begins and ends.
    pub(crate) fn mark_issued(&mut self, range: Range<u64>) {
        self.split_at(range.start);
        self.split_at(range.end);
        for run in self.runs.range_mut(range).map(|(_, run)| run) {
            run.state = RunState::Issued;
        }
    }

    fn split_at(&mut self, at: u64) {
        let Some((&start, &run)) = self.runs.range(..at).next_back() else {
            return;
        };
        if start + run.blocks > at {
            let left = at - start;
            self.runs.insert(
                start,
                LoggedRun {
                    blocks: left,
                    ..run
                },
            );
            self.runs.insert(
                at,
                LoggedRun {
                    blocks: run.blocks - left,
                    ..run
                },
            );
        }
    }

    /// Removes issued runs, after a checkpoint became durable. The next checkpoint is the first without them in its
    /// log. It is flushed before it is sealed, and the discards with it.
    pub(crate) fn forget_issued(&mut self) {
        self.runs.retain(|_, run| run.state == RunState::Logged);
        self.blocks = self.runs.values().map(|run| run.blocks).sum();
    }

    /// Removes the runs that checkpoint `version` logged, because it failed.
    pub(crate) fn abort(&mut self, version: u64) {
        self.runs.retain(|_, run| run.logged != version);
        self.blocks = self.runs.values().map(|run| run.blocks).sum();
    }

    /// Returns whether the next checkpoint would allow discards or remove issued runs. `whole` selects the runs that
    /// the device can release.
    pub(crate) fn has_work(&self, version: u64, whole: impl Fn(&Range<u64>) -> bool) -> bool {
        self.runs.values().any(|run| run.state == RunState::Issued)
            || self.eligible(version + 1, true).iter().any(whole)
    }

    /// Removes all but the `keep` longest runs.
    pub(crate) fn keep_longest(&mut self, keep: usize) {
        let mut by_length: Vec<(u64, u64)> = self
            .runs
            .iter()
            .map(|(start, run)| (run.blocks, *start))
            .collect();
        by_length.sort_unstable();
        let drop = by_length.len().saturating_sub(keep);
        for (_, start) in by_length.into_iter().take(drop) {
            self.runs.remove(&start);
        }
        self.blocks = self.runs.values().map(|run| run.blocks).sum();
    }
}

/// Splits a run into log entries, whose length has 32 bits.
pub(crate) fn to_entries(run: Range<u64>) -> impl Iterator<Item = DiscardEntry> {
    const MAX: u64 = 1 << 31;
    let (start, end) = (run.start, run.end);
    (0..(end - start).div_ceil(MAX)).map(move |i| {
        let from = start + i * MAX;
        DiscardEntry {
            start: BlockAddr(from),
            blocks: (end - from).min(MAX) as u32,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_forgotten_only_after_issue_and_flush() {
        let mut pending = DiscardLog::default();
        pending.add(std::iter::once(10..20), 5);
        assert!(pending.eligible(5, true).is_empty());
        assert_eq!(pending.eligible(6, true), vec![10..20]);
        pending.forget_issued();
        assert_eq!(pending.blocks(), 10);
        pending.mark_issued(12..16);
        pending.forget_issued();
        assert_eq!(pending.iter().collect::<Vec<_>>(), vec![10..12, 16..20]);
        pending.mark_issued(10..12);
        pending.mark_issued(16..20);
        assert_eq!(pending.blocks(), 6);
        pending.forget_issued();
        assert_eq!(pending.blocks(), 0);
    }

    #[test]
    fn an_aborted_checkpoint_has_logged_nothing() {
        let mut pending = DiscardLog::default();
        pending.add(std::iter::once(10..12), 5);
        pending.add(std::iter::once(20..24), 6);
        pending.abort(6);
        assert_eq!(pending.iter().collect::<Vec<_>>(), vec![10..12]);
        assert!(pending.has_work(5, |_| true) && !pending.has_work(4, |_| true));
    }

    #[test]
    fn neighbours_of_different_checkpoints_are_joined() {
        let mut pending = DiscardLog::default();
        pending.add(std::iter::once(10..12), 5);
        pending.add(std::iter::once(12..16), 6);
        assert_eq!(pending.eligible(7, true), vec![10..16]);
        assert_eq!(pending.eligible(7, false), vec![10..12, 12..16]);
    }
}
