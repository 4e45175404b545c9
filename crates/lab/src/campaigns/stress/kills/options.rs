//! Options of the campaign and its result.

use super::super::rounds;
use std::collections::BTreeMap;
use std::fmt;

/// Kill every verb that writes at random moments, and run it again
///
/// After a kill each output has its old or its new content, or does not exist. The next run succeeds, and leaves its output and
/// nothing else. On a finding, keeps the folder and exits with 1.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of processes that are killed
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub kills: u64,
    /// Kill only this verb; may be repeated
    #[arg(long, value_name = "VERB")]
    pub only: Vec<String>,
    /// Folder, seed, time and programs.
    #[command(flatten)]
    pub common: rounds::Options,
}

/// Number of runs of a verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Runs that were killed.
    pub kills: u64,
    /// Kills that left the output complete.
    pub complete: u64,
    /// Runs that ended before they were killed.
    pub late: u64,
    /// Kills with a finding.
    pub wrong: u64,
}

/// Counters of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Number of runs of each verb.
    pub verbs: BTreeMap<&'static str, Row>,
}

impl rounds::Counts for Counts {
    const UNIT: &'static str = "kills";

    fn count(&self) -> u64 {
        self.verbs.values().map(|row| row.kills).sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| verb | kills | output complete | ended before | findings |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|")?;
        for (verb, row) in &self.verbs {
            let Row {
                kills,
                complete,
                late,
                wrong,
            } = row;
            writeln!(f, "| {verb} | {kills} | {complete} | {late} | {wrong} |")?;
        }
        Ok(())
    }
}
