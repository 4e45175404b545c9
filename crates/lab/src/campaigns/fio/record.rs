//! Records of the eighth room, as JSON lines: a header, then samples and costs by round and place, and what dropped out.

use super::cell::{Cell, Figures};
use super::place::{Cost, Where};
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Once, first.
    Header(Header),
    /// One cell in one place, with the right answer.
    Sample(Sample),
    /// What a place cost in a round.
    Costs(Costs),
    /// A place dropped out, of a cell or of a round.
    Failed(Failed),
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
    /// Programs, with what they call their version.
    pub programs: Vec<(String, String)>,
    /// Length of the file. Unit: MiB.
    pub file_mib: u64,
    /// Rounds asked for.
    pub rounds: u32,
}

/// A cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which round, from 1.
    pub round: u32,
    /// Where.
    pub place: Where,
    /// What.
    pub cell: Cell,
    /// What it took.
    pub figures: Figures,
}

/// Costs apart from cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// Which round, from 1.
    pub round: u32,
    /// Where.
    pub place: Where,
    /// Each with its value, in its own unit.
    pub costs: Vec<(Cost, f64)>,
}

/// What dropped out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Which round, from 1.
    pub round: u32,
    /// Where.
    pub place: Where,
    /// Name of the cell; without one, all of the round.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cell: Option<String>,
    /// Why.
    pub reason: String,
}

impl RecordLine for Line {
    fn format(&self) -> Option<u32> {
        match self {
            Line::Header(header) => Some(header.format),
            _ => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Line::Sample(_) | Line::Failed(_))
    }
}
