//! Records of the fifth room, as JSON lines: a header, then samples.

use super::load::Load;
use super::place::Kind;
use crate::machine::Machine;
use crate::{Error, Result, record};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Version of the format below.
pub const FORMAT: u32 = 1;

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
    /// [`FORMAT`].
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

/// Reads a record file. The error names the line.
pub fn read(path: &Path) -> Result<(Header, Vec<Sample>)> {
    let format = |line: &Line| match line {
        Line::Header(header) => Some(header.format),
        Line::Sample(_) => None,
    };
    let (mut header, mut samples) = (None, Vec::new());
    for line in record::lines(path, format, FORMAT)? {
        match line {
            Line::Header(found) => header = Some(found),
            Line::Sample(sample) => samples.push(sample),
        }
    }
    // The first line is one.
    let header = header.ok_or_else(|| Error::Corrupt(format!("{}: no header", path.display())))?;
    Ok((header, samples))
}
