//! Counters and findings of a campaign over images.

use super::options::Judge;
use std::collections::BTreeMap;
use std::fmt;

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cases begun.
    pub cases: u64,
    /// Images made, those of changed trees included.
    pub images: u64,
    /// Settings that were refused as wrong usage.
    pub refused: u64,
    /// Patches that were stopped, which may have been over by then.
    pub stopped: u64,
    /// Images that each judge saw.
    pub judged: BTreeMap<Judge, u64>,
    /// Why a judge did not see an image, and how often.
    pub skipped: BTreeMap<String, u64>,
    /// Whatever is wrong.
    pub findings: Vec<Finding>,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The case's own seed.
    pub seed: u64,
    /// Command lines, in the folder that is left.
    pub commands: Vec<String>,
    /// What is wrong.
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
