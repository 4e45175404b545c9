//! Rounds of a campaign: each has a seed and a folder, which is kept if a rule is violated.

use crate::measure::workspace::{self, Work};
use crate::measure::{helper, stop};
use crate::options::{self, minutes};
use crate::{At, Result};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Options of campaigns that run in rounds.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Folder for the files of findings
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Seed of the first round; each following round uses the next number
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Time after which no round is started
    #[arg(long, value_name = "N", value_parser = minutes)]
    pub minutes: Option<Duration>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: options::Options,
}

/// Campaign that searches for violations of rules.
pub trait Campaign {
    /// Counters of the result.
    type Counts: Counts;

    /// Runs the campaign. `tally` is valid even after an error.
    fn run(&self, tally: &mut Tally<Self::Counts>) -> Result<()>;
}

/// Counters of a campaign.
pub trait Counts: Default + fmt::Display {
    /// Name of a round, in the plural.
    const UNIT: &'static str;

    /// Returns the number of rounds that count.
    fn count(&self) -> u64;
}

/// Result of a campaign, shown while it runs.
#[derive(Clone, Debug, Default)]
pub struct Tally<C> {
    /// Counters.
    pub counts: C,
    /// Descriptions of violations of rules.
    pub findings: Vec<String>,
    /// Number of findings that were printed. None prints nothing.
    printed: Option<usize>,
}

impl<C: Counts> Tally<C> {
    /// Runs a campaign and prints its progress: a line on a terminal, and each finding once. Returns false if there are findings.
    pub fn print(campaign: &impl Campaign<Counts = C>) -> Result<bool> {
        let mut tally = Tally {
            printed: Some(0),
            ..Tally::default()
        };
        let result = campaign.run(&mut tally);
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        print!("{tally}");
        result.map(|()| tally.findings.is_empty())
    }

    /// Prints the progress after a round.
    pub(super) fn show(&mut self) {
        let Some(printed) = &mut self.printed else {
            return;
        };
        for finding in &self.findings[*printed..] {
            println!("{finding}");
        }
        *printed = self.findings.len();
        if std::io::stderr().is_terminal() {
            eprint!("\r{} {}, {printed} findings ", self.counts.count(), C::UNIT);
        }
    }
}

impl<C: Counts> fmt::Display for Tally<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, found) = (self.counts.count(), self.findings.len());
        writeln!(f, "{}\n{count} {}, {found} findings", self.counts, C::UNIT)
    }
}

impl Options {
    /// Runs rounds until `count` of them count. `round` gets the seed and an empty folder with a subfolder `tmp`, and returns
    /// findings. The folder of a finding is kept as `name` with the seed.
    pub(super) fn run<C: Counts>(
        &self,
        (name, count, work): (&str, u64, &Work),
        tally: &mut Tally<C>,
        mut round: impl FnMut(u64, &Path, &mut C) -> Result<Vec<String>>,
    ) -> Result<()> {
        let begin = Instant::now();
        let folder = work.path("round");
        let mut seed = self.seed;
        while tally.counts.count() < count && !self.is_over(begin) {
            stop::check()?;
            workspace::remove(&folder)?;
            fs::create_dir_all(folder.join("tmp")).at("create", &folder)?;
            let found = round(seed, &folder, &mut tally.counts)?;
            if !found.is_empty() {
                let kept = self.out.join(format!("{name}-{seed}"));
                fs::create_dir_all(&self.out).at("create", &self.out)?;
                workspace::remove(&kept)?;
                let words = [OsStr::new("-a"), folder.as_os_str(), kept.as_os_str()];
                helper::output("cp", words)?;
            }
            let findings = found.iter().map(|what| format!("seed {seed}: {what}"));
            tally.findings.extend(findings);
            tally.show();
            seed = seed.wrapping_add(1);
        }
        Ok(())
    }

    /// Returns whether the time of a campaign that began at `begin` is over.
    pub(super) fn is_over(&self, begin: Instant) -> bool {
        self.minutes.is_some_and(|limit| begin.elapsed() >= limit)
    }
}
