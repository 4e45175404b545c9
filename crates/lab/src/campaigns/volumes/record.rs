//! Records of the fifth room, as JSON lines: a header, then samples.

use super::load::Load;
use super::place::Kind;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Once, first.
    Header(Header),
    /// One load in one place, with the right answer.
    Sample(Sample),
}

/// Where and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`crate::record::FORMAT`].
    pub format: u32,
    /// The machine.
    pub machine: Machine,
    /// Kind of the filesystem that holds everything.
    pub host: String,
    /// Rounds asked for.
    pub rounds: u32,
}

/// What a load cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which round, from 1.
    pub round: u32,
    /// Where.
    pub place: Kind,
    /// What.
    pub load: Load,
    /// Unit: that of the load, nanoseconds for one of what it does.
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
