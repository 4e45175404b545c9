//! Records of the sixth room, as JSON lines told apart by `kind`, raw and complete: a header, then images and programs before
//! their samples, a failure where a server dropped out, a line for what was left out.

use super::definition::Condition;
use super::inside::Answer;
use crate::campaigns::serve::definition::Cache;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// Once, first.
    Header(Header),
    /// An image was made.
    Image(ImageLine),
    /// A program takes part.
    Program(ProgramLine),
    /// A program, server or condition does not take part.
    Without(WithoutLine),
    /// One start.
    Sample(SampleLine),
    /// A server does not take part any more.
    Failed(FailedLine),
}

/// Where and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`crate::record::FORMAT`].
    pub format: u32,
    /// Name of the definition.
    pub definition: String,
    /// The machine.
    pub machine: Machine,
    /// State of the image's pages before each mount.
    pub cache: Cache,
    /// Kind of the filesystem that holds the images.
    pub work_filesystem: String,
    /// Servers in the order of the definition, with what their programs call their versions.
    pub servers: Vec<(String, String)>,
    /// Starts asked for.
    pub starts: u32,
    /// Files of the tree, and their bytes.
    pub tree: (u64, u64),
    /// Was the tree made of this machine's programs?
    pub tree_made: bool,
    /// Seed of what is read in the background.
    pub seed: u64,
}

/// An image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageLine {
    /// Its name.
    pub image: String,
    /// The command that made it, without paths.
    pub command: String,
    /// What its maker calls its version.
    pub version: String,
    /// What it takes on the disk. Unit: bytes.
    pub image_bytes: u64,
}

/// A program that takes part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramLine {
    /// Its name.
    pub program: String,
    /// Its command.
    pub command: Vec<String>,
    /// How it ends and what it says with the tree as its root; the same in every sample.
    pub answer: Answer,
    /// Limit of its control group under memory pressure. Unit: bytes.
    pub limit: Option<u64>,
}

/// What is missing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WithoutLine {
    /// What.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// A start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleLine {
    /// Name of the program.
    pub program: String,
    /// What else went on.
    pub condition: Condition,
    /// Name of the server.
    pub server: String,
    /// Which round, from 1.
    pub round: u32,
    /// From fork to exit.
    pub ns: u64,
    /// How often the control group came to its limit in that time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit_hits: Option<u64>,
}

/// A server that dropped out of a program and condition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailedLine {
    /// Name of the program.
    pub program: String,
    /// What else went on.
    pub condition: Condition,
    /// Name of the server.
    pub server: String,
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
