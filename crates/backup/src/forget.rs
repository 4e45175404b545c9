//! Which snapshots are kept.

use crate::run::seconds;
use crate::seen;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::{faults, files};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use tuff_mkfs::{Error, Result};

const DAY: i64 = 86_400;
/// Clocks of hosts that share a store may differ by this much. Unit: seconds.
const CLOCKS: i64 = 300;

/// Numbers of snapshots to keep of each series: the newest ones, and the newest one of each of the last periods that have one. Days
/// begin at midnight in UTC, weeks on Mondays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Number of newest snapshots.
    pub last: u32,
    /// Number of days to keep.
    pub daily: u32,
    /// Number of weeks to keep.
    pub weekly: u32,
    /// Number of months to keep.
    pub monthly: u32,
    /// Number of years to keep.
    pub yearly: u32,
}

/// Snapshot with what a policy says of it.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Snapshot that the policy judges.
    pub snapshot: Snapshot,
    /// False if the policy does not keep it.
    pub is_kept: bool,
    /// Why it is not counted, and kept in any case.
    pub doubt: Option<String>,
}

impl Store {
    /// Doubts about snapshots, by their numbers: those that lost most files of the ones before them, and those whose time is before
    /// that of their predecessor, or in the future of the store. [`confirm`](Self::confirm) ends a doubt.
    ///
    /// # Errors
    /// `Io` if the store cannot be listed.
    pub fn doubts(&self, snapshots: &[Snapshot]) -> Result<BTreeMap<u32, String>> {
        let confirmed = self.numbers("snapshots", ".confirmed")?;
        let now = seconds(faults::now());
        let mut doubts = BTreeMap::new();
        let mut before: Option<&Snapshot> = None;
        for snapshot in snapshots {
            let written = files::metadata(&self.snapshot_path(snapshot.number));
            let written = written.map_or(now, |metadata| metadata.mtime());
            let doubt = if confirmed.binary_search(&snapshot.number).is_ok() {
                None
            } else if snapshot.lost_most {
                Some("it has less than half of the files of the snapshot before".to_owned())
            } else if let Some(before) =
                before.filter(|before| snapshot.time.saturating_add(CLOCKS) < before.time)
            {
                Some(format!(
                    "its time is before that of snapshot {}",
                    before.number
                ))
            } else if snapshot.time > written.min(now).saturating_add(DAY) {
                Some("its time is in the future".to_owned())
            } else {
                None
            };
            match doubt {
                Some(doubt) => {
                    doubts.insert(snapshot.number, doubt);
                }
                None => before = Some(snapshot),
            }
        }
        Ok(doubts)
    }

    /// Says what a policy keeps of each series, or of one. The newest snapshot of a series that is not in doubt is always kept, and
    /// so are all that are in doubt.
    ///
    /// # Errors
    /// `Corrupt` for a damaged manifest; `Io` of the host.
    pub fn choose(&self, policy: Policy, series: Option<&str>) -> Result<Vec<Choice>> {
        let snapshots: Vec<Snapshot> = self.snapshots()?.into_iter().collect::<Result<_>>()?;
        let mut doubts = self.doubts(&snapshots)?;
        let mut rules: BTreeMap<String, Rules> = BTreeMap::new();
        let mut choices = Vec::new();
        for snapshot in snapshots.into_iter().rev() {
            if series.is_some_and(|series| series != snapshot.series) {
                continue;
            }
            let doubt = doubts.remove(&snapshot.number);
            let rules = rules
                .entry(snapshot.series.clone())
                .or_insert_with(|| Rules::new(policy));
            let is_kept = doubt.is_some() || rules.keep(snapshot.time);
            choices.push(Choice {
                snapshot,
                is_kept,
                doubt,
            });
        }
        choices.reverse();
        Ok(choices)
    }

    /// Removes the manifest of a snapshot, or what is left of one whose manifest is missing. `prune` frees what no other one names.
    /// The store must be open for writing.
    ///
    /// # Errors
    /// `Usage` if there is no such snapshot; `Io` of the host.
    pub fn forget(&mut self, number: u32) -> Result<()> {
        let is_there = self.snapshot_path(number).try_exists().unwrap_or(true);
        if !is_there && !self.missing_manifests()?.contains(&number) {
            return Err(Error::usage(format_args!(
                "{}: no snapshot {number}",
                self.path.display()
            )));
        }
        // The manifest last: what is left alone would tell of a snapshot that is lost, or confirm the next one of this number.
        files::remove(&seen::path(&self.path, number))?;
        let confirmed = format!("snapshots/{number:08}.confirmed");
        if self.path.join(&confirmed).try_exists().unwrap_or(true) {
            self.remove(&confirmed)?;
        }
        self.remove(&format!("snapshots/{number:08}.json"))?;
        self.note_newest()
    }

    /// Ends the doubt about a snapshot: it counts like others.
    ///
    /// # Errors
    /// `Usage` if there is no such snapshot; `Io` of the host.
    pub fn confirm(&mut self, number: u32) -> Result<()> {
        self.snapshot(number)?;
        self.replace(&format!("snapshots/{number:08}.confirmed"), b"")
    }
}

/// Number of snapshots that a rule still keeps, the period of the last one that it kept, and the period of a day.
type Rule = (u32, Option<i64>, fn(i64) -> i64);

/// Rules that still keep snapshots of a series, from the newest one back.
struct Rules {
    is_first: bool,
    rules: [Rule; 4],
    last: u32,
}

impl Rules {
    fn new(policy: Policy) -> Self {
        Self {
            is_first: true,
            last: policy.last,
            rules: [
                (policy.daily, None, |day| day),
                // 1 January 1970 was a Thursday.
                (policy.weekly, None, |day| (day + 3).div_euclid(7)),
                (policy.monthly, None, |day| month(day)),
                (policy.yearly, None, |day| month(day).div_euclid(12)),
            ],
        }
    }

    fn keep(&mut self, time: i64) -> bool {
        let day = time.div_euclid(DAY);
        let mut is_kept = std::mem::take(&mut self.is_first);
        if self.last > 0 {
            self.last -= 1;
            is_kept = true;
        }
        for (left, kept, period) in &mut self.rules {
            let period = period(day);
            if *left > 0 && *kept != Some(period) {
                *left -= 1;
                *kept = Some(period);
                is_kept = true;
            }
        }
        is_kept
    }
}

/// Months since the year 0 of a day since 1970, in the Gregorian calendar.
fn month(day: i64) -> i64 {
    // Years that begin in March have the leap day at their end.
    let day = day.saturating_add(719_468);
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    12 * (era * 400 + year) + month + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_follow_the_calendar() {
        let of = |year: i64, month: i64| 12 * year + month - 1;
        for (day, expected) in [
            (0, of(1970, 1)),
            (30, of(1970, 1)),
            (31, of(1970, 2)),
            (58, of(1970, 2)),
            (59, of(1970, 3)),
            (-1, of(1969, 12)),
            // 29 February and 1 March 2024.
            (19_782, of(2024, 2)),
            (19_783, of(2024, 3)),
            (20_089, of(2025, 1)),
        ] {
            assert_eq!(month(day), expected, "{day}");
        }
    }

    #[test]
    fn rules_keep_the_newest_of_each_period() {
        let policy = Policy {
            last: 1,
            daily: 2,
            weekly: 2,
            monthly: 2,
            yearly: 2,
        };
        let mut rules = Rules::new(policy);
        // Two snapshots a day, back from 31 December 2024, which is a Tuesday.
        let kept: Vec<i64> = (0..1600)
            .map(|half| 20_088 * DAY + 43_200 - half * 43_200)
            .filter(|time| rules.keep(*time))
            .map(|time| time / DAY - 20_088)
            .collect();
        // That day, the day before, Sunday, 30 November, and 31 December 2023.
        assert_eq!(kept, [0, -1, -2, -31, -366]);
    }
}
