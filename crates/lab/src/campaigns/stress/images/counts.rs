//! Counters of a campaign over images.

use super::super::rounds;
use super::options::Judge;
use std::collections::BTreeMap;
use std::fmt;

/// Counters of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Counts {
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
}

impl rounds::Counts for Counts {
    const UNIT: &'static str = "cases";

    fn count(&self) -> u64 {
        self.cases
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} images, {} settings rejected, {} patches interrupted",
            self.images, self.refused, self.stopped
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
