//! Records of the seventh room, as JSON lines: a header, then rounds.

use super::kind::Kind;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Once, first.
    Header(Header),
    /// A filesystem does not take part, and why.
    Without(Without),
    /// One round.
    Round(Round),
}

/// Where and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`crate::record::FORMAT`].
    pub format: u32,
    /// The machine.
    pub machine: Machine,
    /// What takes part, with what its tools call their version.
    pub filesystems: Vec<(Kind, String)>,
    /// Rounds of each failure on each filesystem.
    pub rounds: u32,
    /// What every round's own seed comes from.
    pub seed: u64,
}

/// What is missing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Without {
    /// Which.
    pub filesystem: Kind,
    /// Why.
    pub reason: String,
}

/// What goes wrong in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The power goes while every operation is made durable before the next.
    CutSync,
    /// The power goes while one operation of many is made durable.
    CutAsync,
    /// As the first, on a disk that answers flushes and does nothing.
    CutLying,
    /// From some write on, one in 16 has a wrong bit.
    BitsForever,
    /// Eight writes in a row have a wrong bit each.
    BitsBurst,
}

/// In the order of a round.
pub const FAILURES: [Failure; 5] = [
    Failure::CutSync,
    Failure::CutAsync,
    Failure::CutLying,
    Failure::BitsForever,
    Failure::BitsBurst,
];

impl Failure {
    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Failure::CutSync => "power cut, every operation synced",
            Failure::CutAsync => "power cut, one operation in 24 synced",
            Failure::CutLying => "power cut, every operation synced, the disk ignores flushes",
            Failure::BitsForever => "wrong bits from some write on",
            Failure::BitsBurst => "wrong bits in eight writes",
        }
    }

    /// Does the power go?
    pub fn is_cut(self) -> bool {
        matches!(
            self,
            Failure::CutSync | Failure::CutAsync | Failure::CutLying
        )
    }
}

/// What a failure came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It mounts, everything is as promised, the check finds nothing.
    Clean,
    /// As clean, after what mends by itself.
    AutoFixed,
    /// As clean, after a repair that somebody has to start.
    NeedsFsck,
    /// Something promised is lost, also after repair, and errors said so.
    Fatal,
    /// Something promised is missing or wrong, and no error said so.
    Silent,
}

/// From best to worst.
pub const OUTCOMES: [Outcome; 5] = [
    Outcome::Clean,
    Outcome::AutoFixed,
    Outcome::NeedsFsck,
    Outcome::Fatal,
    Outcome::Silent,
];

impl Outcome {
    /// What tables call it.
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

/// One failure on one filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Which round, from 1.
    pub round: u32,
    /// What was on the disk.
    pub filesystem: Kind,
    /// What went wrong.
    pub failure: Failure,
    /// Its own seed.
    pub seed: u64,
    /// Writes that the disk saw while it was loaded.
    pub writes: u64,
    /// Bits that went wrong.
    pub wrong_bits: u64,
    /// What it came to.
    pub outcome: Outcome,
    /// The first thing that was not as it should be.
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
