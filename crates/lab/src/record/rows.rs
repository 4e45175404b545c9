//! Lines of a record, the same for all campaigns: a header, then samples, notes, failures and bars.
//!
//! A sample belongs to a cell: a set of labels, such as `{"image": "lz4 64K", "server": "kernel"}`. It has one or
//! more values, whose names contain their units, such as `cold_ms`.

use crate::measure::machine::Machine;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the record format, increased by incompatible changes.
pub const FORMAT: u32 = 2;

/// Names of dimensions, such as `image`, and their values.
pub type Labels = BTreeMap<String, String>;

/// Returns labels from pairs of a name and a value.
pub fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.into()
}

/// Line of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Machine and conditions: the first line, exactly once.
    Header(Header),
    /// Measurement of a cell, verified against the source.
    Sample(Sample),
    /// Measurement that does not count, such as one beside other work. A counted sample or a failure follows.
    Rejected(Sample),
    /// Description of a cell, such as a command line, a size or a version.
    Note(Note),
    /// Reason for which a cell has no samples.
    Failure(Note),
    /// Requirement for the samples.
    Bar(Bar),
}

/// Machine and conditions of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the record format: [`FORMAT`].
    pub format: u32,
    /// Name of the campaign, which selects the report.
    pub campaign: String,
    /// Machine that ran the campaign.
    pub machine: Machine,
    /// Conditions that the tables state, such as versions, sizes and the seed.
    #[serde(default)]
    pub conditions: BTreeMap<String, String>,
}

impl Header {
    /// Returns the header of a record that this machine makes.
    pub fn here<const N: usize>(campaign: &str, conditions: [(&str, String); N]) -> Result<Header> {
        Ok(Header {
            format: FORMAT,
            campaign: campaign.to_owned(),
            machine: Machine::inspect()?,
            conditions: conditions
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        })
    }
}

/// Measurement of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Cell of the measurement.
    pub cell: Labels,
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Measured values. Names contain the unit.
    pub values: BTreeMap<String, f64>,
}

/// Text about a cell. Contains no path of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Cell, or the part of its labels to which the text applies.
    pub cell: Labels,
    /// Text without a full stop.
    pub text: String,
}

/// Requirement: a limit of a median, or of the ratio of two medians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Labels of the cells to which the bar applies.
    #[serde(default)]
    pub cell: Labels,
    /// Name of the value.
    pub value: String,
    /// Labels that lead from a cell to the base of the ratio. None compares the median itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Labels>,
    /// Upper limit, in the unit of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Lower limit, in the unit of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

impl Line {
    /// Returns a sample of a cell from pairs of a name and a value.
    pub fn sample<N: Into<String>>(
        cell: Labels,
        round: u32,
        values: impl IntoIterator<Item = (N, f64)>,
    ) -> Line {
        let values = values.into_iter().map(|(name, value)| (name.into(), value));
        Line::Sample(Sample {
            cell,
            round,
            values: values.collect(),
        })
    }

    /// Returns the reason for which a cell has no samples.
    pub fn failure(cell: Labels, text: impl Into<String>) -> Line {
        let text = text.into();
        Line::Failure(Note { cell, text })
    }

    /// Returns a description of a cell.
    pub fn note(cell: Labels, text: impl Into<String>) -> Line {
        let text = text.into();
        Line::Note(Note { cell, text })
    }

    /// Returns true for a measurement or a failure. A record without one is removed.
    pub(super) fn is_result(&self) -> bool {
        matches!(self, Line::Sample(_) | Line::Failure(_))
    }
}

/// Lines of one or more records of a campaign.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Headers, at least one.
    pub headers: Vec<Header>,
    /// Samples in the order of their measurement.
    pub samples: Vec<Sample>,
    /// Samples that do not count, in the same order.
    pub rejected: Vec<Sample>,
    /// Descriptions of cells, in the order of the record.
    pub notes: Vec<Note>,
    /// Reasons for cells without samples.
    pub failures: Vec<Note>,
    /// Requirements, without repetition.
    pub bars: Vec<Bar>,
}

impl Record {
    /// Collects the lines of one or more records of a campaign.
    pub fn collect(lines: impl IntoIterator<Item = Line>) -> Result<Record> {
        let mut record = Record::default();
        for line in lines {
            match line {
                Line::Header(header) => record.headers.push(header),
                Line::Sample(sample) => record.samples.push(sample),
                Line::Rejected(sample) => record.rejected.push(sample),
                Line::Note(note) => record.notes.push(note),
                Line::Failure(note) => record.failures.push(note),
                Line::Bar(bar) if !record.bars.contains(&bar) => record.bars.push(bar),
                Line::Bar(_) => {}
            }
        }
        let Some(first) = record.headers.first() else {
            return Err(Error::Corrupt("line 1: not a header".to_owned()));
        };
        match record.headers.iter().find(|h| h.campaign != first.campaign) {
            Some(other) => Err(Error::Usage(format!(
                "the records are of different campaigns: '{}' and '{}'",
                first.campaign, other.campaign
            ))),
            None => Ok(record),
        }
    }

    /// Returns the name of the campaign.
    pub fn campaign(&self) -> &str {
        &self.headers[0].campaign
    }
}
