//! Records of the second room, as JSON lines told apart by `kind`, raw and complete: a header, then an image before its
//! samples, a failure where a server dropped out.

use super::definition::{Bar, Cache};
use super::server::Used;
use super::workload::Answer;
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
    /// A workload begins on an image.
    Workload(WorkloadLine),
    /// One server, one mount, both passes.
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
    /// Servers in the order of a round, with what their programs call their versions.
    pub servers: Vec<(String, String)>,
    /// Seed of random offsets.
    pub seed: u64,
}

/// An image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageLine {
    /// Its name.
    pub image: String,
    /// The command that made it, without paths.
    pub command: String,
    /// Its size.
    pub image_bytes: u64,
}

/// A workload on an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkloadLine {
    /// Name of the workload.
    pub workload: String,
    /// Name of the image.
    pub image: String,
    /// What the source tree answers; every sample answers the same.
    pub answer: Answer,
    /// Bars that are for this image.
    pub bars: Vec<Bar>,
}

/// A sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SampleLine {
    /// Name of the workload.
    pub workload: String,
    /// Name of the image.
    pub image: String,
    /// Name of the server.
    pub server: String,
    /// Which round, from 1.
    pub round: u32,
    /// Time of the first pass after mounting.
    pub cold_ns: u64,
    /// Time of the second pass.
    pub warm_ns: u64,
    /// Processor time of who asked in the first pass; absent in older records.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cold_asker_ns: Option<u64>,
    /// The same of the second pass.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warm_asker_ns: Option<u64>,
    /// What the server used from its start to the end of the first pass.
    pub used: Used,
}

/// A server that dropped out of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailedLine {
    /// Name of the workload; empty when the image could not be made or served at all.
    pub workload: String,
    /// Name of the image.
    pub image: String,
    /// Name of the server; empty when the image could not be made.
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
