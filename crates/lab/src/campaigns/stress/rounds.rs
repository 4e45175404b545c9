//! Rounds of a campaign: each has a seed and a folder, which is kept if a rule is violated.

use super::finding::Finding;
use crate::measure::workspace::{self, Work};
use crate::measure::{helper, stop};
use crate::options::{self, minutes};
use crate::{At, Result};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
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

/// Result of a campaign, shown while it runs.
pub trait Tally: Default + fmt::Display {
    /// Violation of a rule.
    type Finding: fmt::Display;

    /// Returns the number of rounds that count.
    fn count(&self) -> u64;

    /// Returns the name of a round, in the plural.
    fn unit(&self) -> &'static str;

    /// Returns the violations of rules so far.
    fn findings(&mut self) -> &mut Vec<Self::Finding>;
}

impl Options {
    /// Runs rounds until `count` of them count. `round` gets seed and folder, and returns subjects and descriptions of findings.
    /// `tell` is called after each round. `tally` is valid even after an error.
    pub(super) fn run<T: Tally<Finding = Finding>>(
        &self,
        (name, count, work): (&str, u64, &Work),
        tally: &mut T,
        tell: &mut dyn FnMut(&mut T),
        mut round: impl FnMut(u64, &Path, &mut T) -> Result<Vec<(&'static str, String)>>,
    ) -> Result<()> {
        let begin = Instant::now();
        let folder = work.path("round");
        let is_over = || self.minutes.is_some_and(|limit| begin.elapsed() >= limit);
        let mut seed = self.seed;
        while tally.count() < count && !is_over() {
            stop::check()?;
            let found = round(seed, &folder, tally)?;
            if !found.is_empty() {
                let kept = self.out.join(format!("{name}-{seed}"));
                fs::create_dir_all(&self.out).at("create", &self.out)?;
                workspace::remove(&kept)?;
                let words = [OsStr::new("-a"), folder.as_os_str(), kept.as_os_str()];
                helper::output("cp", words)?;
            }
            let findings = found.into_iter().map(|(subject, what)| Finding {
                seed,
                subject,
                what,
            });
            tally.findings().extend(findings);
            tell(tally);
            seed = seed.wrapping_add(1);
        }
        Ok(())
    }
}
