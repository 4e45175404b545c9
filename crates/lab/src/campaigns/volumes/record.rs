//! Records of volume measurements, as JSON lines: a header, then samples.

use super::load::Load;
use super::place::Kind;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// First line, exactly once.
    Header(Header),
    /// Result of a load in a place, verified.
    Sample(Sample),
}

/// Machine and conditions of the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the record: [`crate::record::FORMAT`].
    pub format: u32,
    /// Machine that ran the measurement.
    pub machine: Machine,
    /// Type of the host filesystem that stores all data.
    pub host: String,
    /// Number of requested rounds.
    pub rounds: u32,
}

/// Cost of a load in a place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Place that was measured.
    pub place: Kind,
    /// Load that was measured.
    pub load: Load,
    /// Time for one operation of the load. Unit: nanoseconds.
    pub cost: f64,
}

impl RecordLine for Line {
    fn format(&self) -> Option<u32> {
        match self {
            Line::Header(header) => Some(header.format),
            _ => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Line::Sample(_))
    }
}

/// Splits the lines of a record into its header and its samples.
pub fn split(lines: Vec<Line>) -> Result<(Header, Vec<Sample>)> {
    let (mut header, mut samples) = (None, Vec::new());
    for line in lines {
        match line {
            Line::Header(found) => header = Some(found),
            Line::Sample(sample) => samples.push(sample),
        }
    }
    let header = header.ok_or_else(|| Error::Corrupt("line 1: not a header".to_owned()))?;
    Ok((header, samples))
}
