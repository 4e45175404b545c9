//! Records of images mounted by the kernel of a guest, as JSON lines: a header, then images.

use crate::measure::machine::Machine;
use crate::record::RecordLine;
use crate::verify::tree::Difference;
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// First line, exactly once.
    Header(Header),
    /// Result of an image.
    Image(Image),
}

/// Machine, guest and settings of the test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the record: [`crate::record::FORMAT`].
    pub format: u32,
    /// Machine that ran the guest.
    pub machine: Machine,
    /// Release of the guest's kernel.
    pub guest: String,
    /// Version line of `tuff`.
    pub tuff: String,
    /// Seed of the random trees and settings.
    pub seed: u64,
}

/// Outcome that a mounted image has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// All facets of all files match the source.
    Same,
    /// It mounts, and these facets differ.
    Different(Vec<Difference>),
    /// The kernel refuses to mount it, with this error.
    Refused(String),
    /// It mounts, and a read returns this error.
    ReadError(String),
}

/// Outcome that the table of features promises for this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// The kernel supports all features.
    Same,
    /// The kernel is older than a feature, or built without it.
    Refused,
    /// A block does not match its hash.
    ReadError,
}

/// Result of an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Image {
    /// Name of the settings. `random` for drawn ones.
    pub name: String,
    /// Number of the tree, from which its seed follows.
    pub tree: u32,
    /// Arguments of `tuff build`, without paths.
    pub settings: Vec<String>,
    /// Oldest kernel that mounts the image, as `tuff info` reports it.
    pub lowest_kernel: String,
    /// Paths in the tree, the root included.
    pub entries: u64,
    /// Length of the image in bytes.
    pub bytes: u64,
    /// Promised outcome.
    pub expected: Expected,
    /// Observed outcome.
    pub outcome: Outcome,
}

impl Image {
    /// True if the outcome is the promised one. Distributions and stable kernels take over features from newer
    /// kernels, so an image that need not mount may also be read correctly.
    pub fn is_right(&self) -> bool {
        matches!(
            (self.expected, &self.outcome),
            (Expected::Same | Expected::Refused, Outcome::Same)
                | (Expected::Refused, Outcome::Refused(_))
                | (Expected::ReadError, Outcome::ReadError(_))
        )
    }
}

impl RecordLine for Line {
    fn format(&self) -> Option<u32> {
        match self {
            Line::Header(header) => Some(header.format),
            Line::Image(_) => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Line::Image(_))
    }
}
