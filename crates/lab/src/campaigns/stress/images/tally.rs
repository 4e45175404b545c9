//! Counters and findings of a campaign over images.

use super::super::rounds;
use super::options::Judge;
use std::collections::BTreeMap;
use std::fmt;

/// Counters and findings of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of started cases.
    pub cases: u64,
    /// Number of built images, including those of changed trees.
    pub images: u64,
    /// Number of settings that were refused as wrong usage.
    pub refused: u64,
    /// Number of patches that got a signal. Some may have finished before it.
    pub stopped: u64,
    /// Number of images that each judge verified.
    pub judged: BTreeMap<Judge, u64>,
    /// Reasons why a judge skipped images, with the number of images.
    pub skipped: BTreeMap<String, u64>,
    /// Failures in the order in which they were found.
    pub findings: Vec<Finding>,
}

/// Failure of a case.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seed of the case.
    pub seed: u64,
    /// Command lines of the case. They run in its folder, which is kept.
    pub commands: Vec<String>,
    /// Description of the failure.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        for command in &self.commands {
            writeln!(f, "  {command}")?;
        }
        Ok(())
    }
}

impl rounds::Tally for Tally {
    type Finding = Finding;

    fn count(&self) -> u64 {
        self.cases
    }

    fn unit(&self) -> &'static str {
        "cases"
    }

    fn findings(&mut self) -> &mut Vec<Finding> {
        &mut self.findings
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} cases, {} images, {} settings rejected, {} patches interrupted, {} findings",
            self.cases,
            self.images,
            self.refused,
            self.stopped,
            self.findings.len()
        )?;
        for (judge, images) in &self.judged {
            writeln!(f, "{judge}: {images} images")?;
        }
        for (why, images) in &self.skipped {
            writeln!(f, "not verified: {why} ({images} images)")?;
        }
        Ok(())
    }
}
