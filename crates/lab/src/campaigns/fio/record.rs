//! Records of measurements with fio, as JSON lines: a header, then samples, costs and failures by round and
//! place.

use super::cell::{Cell, Figures};
use super::place::{Cost, Where};
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// First line, exactly once.
    Header(Header),
    /// Result of a cell in a place, verified.
    Sample(Sample),
    /// Costs of a place in one round.
    Costs(Costs),
    /// A place that failed in a cell or in a whole round.
    Failed(Failed),
}

/// Machine, programs and conditions of the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the record: [`crate::record::FORMAT`].
    pub format: u32,
    /// Machine that ran the measurement.
    pub machine: Machine,
    /// Type of the host filesystem that stores all data.
    pub host: String,
    /// Names of programs with their version lines.
    pub programs: Vec<(String, String)>,
    /// Length of the test file. Unit: MiB.
    pub file_mib: u64,
    /// Number of requested rounds.
    pub rounds: u32,
}

/// Result of one cell in one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Place that was measured.
    pub place: Where,
    /// Cell that was measured.
    pub cell: Cell,
    /// Figures of the cell.
    pub figures: Figures,
}

/// Costs of a place that are measured outside of cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Place that was measured.
    pub place: Where,
    /// Costs with their values. The unit is that of the [`Cost`].
    pub costs: Vec<(Cost, f64)>,
}

/// Failure of a place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Place that was measured.
    pub place: Where,
    /// Name of the cell. None if the whole round failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cell: Option<String>,
    /// Reason of the failure.
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
