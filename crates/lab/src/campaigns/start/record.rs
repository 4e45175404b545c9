//! Records of the start campaign: JSON lines distinguished by `kind`, with all raw samples. The header comes
//! first, images and programs before their samples.

use super::definition::Condition;
use super::inside::Answer;
use crate::campaigns::serve::definition::Cache;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Machine and conditions of the record; the first line.
    Header(Header),
    /// Image that was built.
    Image(ImageLine),
    /// Program that takes part.
    Program(ProgramLine),
    /// Program, server, image or condition that does not take part.
    Without(WithoutLine),
    /// Measurement of one start.
    Sample(SampleLine),
    /// Server that dropped out.
    Failed(FailedLine),
}

/// Machine and conditions of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format, [`crate::record::FORMAT`].
    pub format: u32,
    /// Name of the definition.
    pub definition: String,
    /// Description of the machine.
    pub machine: Machine,
    /// State of the image file's pages before each mount.
    pub cache: Cache,
    /// Type of the filesystem that holds the images.
    pub work_filesystem: String,
    /// Names and versions of the servers, in the order of the definition.
    pub servers: Vec<(String, String)>,
    /// Number of starts requested.
    pub starts: u32,
    /// Number of files in the tree, and their total size in bytes.
    pub tree: (u64, u64),
    /// Whether the tree was assembled from local programs.
    pub tree_made: bool,
    /// Seed of the background reads.
    pub seed: u64,
}

/// Image that was built.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageLine {
    /// Name of the image.
    pub image: String,
    /// Command line without local paths.
    pub command: String,
    /// Version of the program that built it.
    pub version: String,
    /// Allocated size in bytes.
    pub image_bytes: u64,
}

/// Program that takes part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramLine {
    /// Name of the program.
    pub program: String,
    /// Path of the program in the tree, then its arguments.
    pub command: Vec<String>,
    /// Exit status and output with the source tree as its root. Every sample has the same answer.
    pub answer: Answer,
    /// Limit of the control group under memory pressure, in bytes. None if the program has no limit.
    pub limit: Option<u64>,
}

/// Item that does not take part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WithoutLine {
    /// Name of the program, server, image or condition.
    pub what: String,
    /// Reason for which it does not take part.
    pub reason: String,
}

/// Measurement of one start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleLine {
    /// Name of the program.
    pub program: String,
    /// Load on the machine during the start.
    pub condition: Condition,
    /// Name of the server.
    pub server: String,
    /// Number of the round, from 1.
    pub round: u32,
    /// Time from fork to exit in nanoseconds.
    pub ns: u64,
    /// Number of times that the control group reached its limit in this time. None without a group.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit_hits: Option<u64>,
}

/// Server that dropped out for a program and condition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailedLine {
    /// Name of the program.
    pub program: String,
    /// Load on the machine during the start.
    pub condition: Condition,
    /// Name of the server.
    pub server: String,
    /// Reason for which the server dropped out.
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
