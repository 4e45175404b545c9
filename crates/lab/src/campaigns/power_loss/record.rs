//! Records of power-loss tests, as JSON lines: a header, then rounds.

use super::kind::Kind;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// First line, exactly once.
    Header(Header),
    /// Filesystem that was left out, with the reason.
    Without(Without),
    /// Result of a round.
    Round(Round),
}

/// Machine, filesystems and settings of the test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the record: [`crate::record::FORMAT`].
    pub format: u32,
    /// Machine that ran the test.
    pub machine: Machine,
    /// Tested filesystems with the version lines of their tools.
    pub filesystems: Vec<(Kind, String)>,
    /// Rounds of each failure on each filesystem.
    pub rounds: u32,
    /// Seed from which the seeds of rounds are drawn.
    pub seed: u64,
}

/// Filesystem that was left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Without {
    /// Name of the filesystem.
    pub filesystem: Kind,
    /// Reason why it was left out.
    pub reason: String,
}

/// Failure that a round injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// Power cut; every operation is synced before the next one
    CutSync,
    /// Power cut; one operation in 24 is synced
    CutAsync,
    /// Power cut as in cut-sync, but the disk ignores flushes
    CutLying,
    /// After a random write, one write in 16 has a bit error
    BitsForever,
    /// Eight consecutive writes have a bit error each
    BitsBurst,
}

/// All failures in the order of a round.
pub const FAILURES: [Failure; 5] = [
    Failure::CutSync,
    Failure::CutAsync,
    Failure::CutLying,
    Failure::BitsForever,
    Failure::BitsBurst,
];

impl Failure {
    /// Name of the table column or row.
    pub fn name(self) -> &'static str {
        match self {
            Failure::CutSync => "power cut, every operation synced",
            Failure::CutAsync => "power cut, one operation in 24 synced",
            Failure::CutLying => "power cut, every operation synced, the disk ignores flushes",
            Failure::BitsForever => "bit errors in one of 16 writes",
            Failure::BitsBurst => "bit errors in eight consecutive writes",
        }
    }

    /// True if the failure is a power cut.
    pub fn is_cut(self) -> bool {
        matches!(
            self,
            Failure::CutSync | Failure::CutAsync | Failure::CutLying
        )
    }
}

/// Outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It mounts, all promises hold, and the check finds nothing.
    Clean,
    /// Clean after the automatic repair of the filesystem.
    AutoFixed,
    /// Clean after a manual repair.
    NeedsFsck,
    /// Promised data is lost even after a repair, and errors report it.
    Fatal,
    /// Promised data is missing or wrong, and no error reports it.
    Silent,
}

/// All outcomes from best to worst.
pub const OUTCOMES: [Outcome; 5] = [
    Outcome::Clean,
    Outcome::AutoFixed,
    Outcome::NeedsFsck,
    Outcome::Fatal,
    Outcome::Silent,
];

impl Outcome {
    /// Name of the table column or row.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Clean => "clean",
            Outcome::AutoFixed => "auto-fixed",
            Outcome::NeedsFsck => "needs fsck",
            Outcome::Fatal => "fatal",
            Outcome::Silent => "silent",
        }
    }
}

/// Result of one failure on one filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Filesystem that was tested.
    pub filesystem: Kind,
    /// Failure that was injected.
    pub failure: Failure,
    /// Seed of the round.
    pub seed: u64,
    /// Number of writes to the disk during the load.
    pub writes: u64,
    /// Number of flipped bits.
    pub wrong_bits: u64,
    /// Outcome of the round.
    pub outcome: Outcome,
    /// First deviation. None if the round is clean.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found: Option<String>,
}

impl RecordLine for Line {
    fn format(&self) -> Option<u32> {
        match self {
            Line::Header(header) => Some(header.format),
            _ => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Line::Round(_))
    }
}
