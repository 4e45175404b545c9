//! Recorder of the ranges of files that are read, in the order of their first use.

use crate::read::Nid;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Granularity of recorded ranges: the kernel's page size. Unit: bytes.
const PAGE: u64 = 4096;

/// Maximum number of recorded uses, about 20 MB of memory. Later uses are ignored.
const USES_MAX: usize = 1 << 18;

/// First use of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedUse {
    /// Inode of the file.
    pub nid: Nid,
    /// File offset. Unit: bytes, a multiple of 4096.
    pub offset: u64,
    /// Length. Unit: bytes, a multiple of 4096. The last page of a file counts as a whole page.
    pub len: u64,
    /// Time since the start of the server. Unit: microseconds.
    pub when_us: u64,
}

/// Thread-safe recorder of first uses.
pub(crate) struct Recorder {
    start: Instant,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    uses: Vec<RecordedUse>,
    /// End of each range of used bytes, by inode and start. Ranges are disjoint and not adjacent.
    runs: BTreeMap<(Nid, u64), u64>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            record: Mutex::default(),
        }
    }

    pub(crate) fn note(&self, nid: Nid, offset: u64, len: u64) {
        // Fits: half a million years.
        let when_us = self.start.elapsed().as_micros() as u64;
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.note(nid, offset, len, when_us);
    }

    pub(crate) fn uses(&self) -> Vec<RecordedUse> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.uses.clone()
    }
}

impl Record {
    fn note(&mut self, nid: Nid, offset: u64, len: u64, when_us: u64) {
        let from = offset / PAGE * PAGE;
        let end = offset.saturating_add(len).next_multiple_of(PAGE);
        let mut at = from;
        // Skip the part that an earlier range covers at the start.
        if let Some((_, to)) = self.runs.range((nid, 0)..=(nid, from)).next_back() {
            at = at.max(*to);
        }
        while at < end {
            if self.uses.len() >= USES_MAX {
                return;
            }
            let next = self.runs.range((nid, at)..(nid, end)).next();
            let next = next.map(|((_, start), to)| (*start, *to));
            let stop = next.map_or(end, |(start, _)| start);
            if stop > at {
                self.add(RecordedUse {
                    nid,
                    offset: at,
                    len: stop - at,
                    when_us,
                });
            }
            at = next.map_or(end, |(_, to)| to);
        }
    }

    /// Adds a use of bytes that are in no range.
    fn add(&mut self, new: RecordedUse) {
        let end = new.offset + new.len;
        match self.uses.last_mut() {
            // A sequential reader is recorded as one use.
            Some(last) if last.nid == new.nid && last.offset + last.len == new.offset => {
                last.len += new.len;
            }
            _ => self.uses.push(new),
        }
        let mut run = (new.offset, end);
        if let Some(to) = self.runs.remove(&(new.nid, end)) {
            run.1 = to;
        }
        let before = self
            .runs
            .range_mut((new.nid, 0)..=(new.nid, new.offset))
            .next_back();
        match before {
            Some((_, to)) if *to == run.0 => *to = run.1,
            _ => {
                self.runs.insert((new.nid, run.0), run.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_recorded_once_in_the_order_of_first_use() {
        let mut record = Record::default();
        let mut note = |nid, page: u64, pages: u64, when| {
            record.note(Nid(nid), page * PAGE + 5, pages * PAGE - 5, when);
        };
        note(1, 0, 2, 10);
        note(1, 2, 1, 20); // sequential
        note(2, 4, 1, 30);
        note(1, 1, 3, 40); // one new page
        note(1, 8, 1, 50);
        note(1, 0, 12, 60); // two gaps
        note(1, 3, 5, 70); // nothing new
        let got: Vec<_> = record
            .uses
            .iter()
            .map(|u| (u.nid.0, u.offset / PAGE, u.len / PAGE, u.when_us))
            .collect();
        assert_eq!(
            got,
            [
                (1, 0, 3, 10),
                (2, 4, 1, 30),
                (1, 3, 1, 40),
                (1, 8, 1, 50),
                (1, 4, 4, 60),
                (1, 9, 3, 60)
            ]
        );
        assert_eq!(record.runs.len(), 2, "one run per inode");
    }
}
