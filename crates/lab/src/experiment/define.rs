//! What the experiments are, how large, and what counts as the published shape: data.

use crate::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The definition that ships.
pub const PUBLISHED: &str =
    include_str!("../../../../benchmarks/definitions/experiment/published.toml");

/// All experiments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// What all chance comes from.
    pub seed: u64,
    /// Sizes to run at, by name.
    pub scale: BTreeMap<String, Scale>,
    /// The experiments, in the order of a report.
    pub experiment: Vec<Experiment>,
}

/// How large to run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Published sizes are divided by this.
    pub divisor: u32,
    /// Dirty blocks that start write-back.
    pub dirty_max: u64,
    /// Queries of a database that are measured, after twice as many to warm up.
    pub queries: u64,
    /// As `divisor`, for the fileserver, which runs many times.
    pub fileserver_divisor: u32,
    /// How full the fileserver makes the filesystem. Unit: percent.
    pub utilisations: Vec<u64>,
    /// As `divisor`, for the memory of the map.
    pub map_divisor: u32,
    /// Blocks of the file of E9.
    pub granule_blocks: u64,
    /// Rounds of what is measured in real time.
    pub micro_rounds: u32,
}

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// E1 to E10.
    pub id: String,
    /// What it is about.
    pub title: String,
    /// What was published, in a sentence.
    pub published: String,
    /// Limits, by name.
    pub bars: BTreeMap<String, f64>,
}

impl Definition {
    /// Reads a definition.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|e| Error::Usage(format!("{name}: {e}")))
    }

    /// The scale of this name.
    pub fn scale(&self, name: &str) -> Result<Scale> {
        self.scale.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = self.scale.keys().map(String::as_str).collect();
            Error::Usage(format!(
                "there is no scale '{name}'; there are {}",
                names.join(", ")
            ))
        })
    }
}

impl Experiment {
    /// A limit.
    pub fn bar(&self, name: &str) -> Result<f64> {
        let bar = self.bars.get(name).copied();
        bar.ok_or_else(|| Error::Usage(format!("{}: no bar '{name}'", self.id)))
    }
}
