//! Records of the serve campaign: JSON lines distinguished by `kind`, with all raw samples. The header comes
//! first, an image before its workloads, and a workload before its samples.

use super::definition::{Bar, Cache};
use super::server::Used;
use super::workload::Answer;
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
    /// Start of a workload on an image.
    Workload(WorkloadLine),
    /// Measurement of one server and mount, both passes.
    Sample(SampleLine),
    /// Server that dropped out of a workload.
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
    /// Names and versions of the servers, in the order of a round.
    pub servers: Vec<(String, String)>,
    /// Seed of the random offsets.
    pub seed: u64,
}

/// Image that was built.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageLine {
    /// Name of the image.
    pub image: String,
    /// Command line without local paths.
    pub command: String,
    /// Size of the image in bytes.
    pub image_bytes: u64,
}

/// Start of a workload on an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkloadLine {
    /// Name of the workload.
    pub workload: String,
    /// Name of the image.
    pub image: String,
    /// Answer of the source tree. Every sample has the same answer.
    pub answer: Answer,
    /// Bars that apply to this image.
    pub bars: Vec<Bar>,
}

/// Measurement of one server and mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleLine {
    /// Name of the workload.
    pub workload: String,
    /// Name of the image.
    pub image: String,
    /// Name of the server.
    pub server: String,
    /// Number of the round, from 1.
    pub round: u32,
    /// Duration of the first pass after mounting, in nanoseconds.
    pub cold_ns: u64,
    /// Duration of the second pass, in nanoseconds.
    pub warm_ns: u64,
    /// Processor time of the client in the first pass, in nanoseconds. None in older records.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cold_asker_ns: Option<u64>,
    /// Processor time of the client in the second pass, in nanoseconds. None in older records.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warm_asker_ns: Option<u64>,
    /// Resources used by the server from its start to the end of the first pass.
    pub used: Used,
}

/// Server that dropped out of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailedLine {
    /// Name of the workload. Empty if the image could not be built.
    pub workload: String,
    /// Name of the image.
    pub image: String,
    /// Name of the server; empty when the image could not be made.
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
