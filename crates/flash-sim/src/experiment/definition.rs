//! Definition of the experiments: sizes and the limits that make up the published shape.

use super::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// All experiments and the scales to run them at.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Seed of every random number.
    pub seed: u64,
    /// Available scales by name.
    pub scale: BTreeMap<String, Scale>,
    /// Experiments in the order of a report.
    pub experiment: Vec<Experiment>,
}

/// Sizes of one scale.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Divisor of the published sizes.
    pub divisor: u32,
    /// Number of dirty blocks that starts write-back.
    pub dirty_max: u64,
    /// Measured database queries; twice as many warm up the pool first.
    pub queries: u64,
    /// Divisor for the fileserver, which runs once per utilisation.
    pub fileserver_divisor: u32,
    /// Utilisations of the file system under the fileserver, in percent.
    pub utilisations: Vec<u64>,
    /// Divisor for the memory of the map.
    pub map_divisor: u32,
    /// Length of the file of E9 in blocks.
    pub granule_blocks: u64,
    /// Number of rounds of the real-time measurements.
    pub micro_rounds: u32,
}

/// Parameters and limits of one experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Identifier, E1 to E10.
    pub id: String,
    /// Title of the section in a report.
    pub title: String,
    /// Published result in one sentence.
    pub published: String,
    /// Limits of the measured values, by name.
    pub bars: BTreeMap<String, f64>,
}

impl Definition {
    /// Returns the scale called `name`.
    pub fn scale(&self, name: &str) -> Result<Scale> {
        self.scale.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = self.scale.keys().map(String::as_str).collect();
            Error::Usage(format!(
                "scale '{name}' does not exist; available: {}",
                names.join(", ")
            ))
        })
    }
}

impl Experiment {
    /// Returns the limit called `name`.
    pub fn bar(&self, name: &str) -> Result<f64> {
        let bar = self.bars.get(name).copied();
        bar.ok_or_else(|| Error::Usage(format!("{}: no bar '{name}'", self.id)))
    }
}
