//! Records of the comparison of filesystems for embedded systems, as JSON lines.

use super::kind::Kind;
use crate::campaigns::power_loss::record::Outcome;
use crate::measure::machine::Machine;
use crate::record::RecordLine;
use serde::{Deserialize, Serialize};

/// Line of a record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// First line, exactly once.
    Header(Header),
    /// Figure of a filesystem.
    Figure(Figure),
    /// Part of the test that does not exist for a filesystem, or failed.
    Without(Without),
    /// Round with a power cut.
    Cut(Cut),
    /// Round with a device that fails.
    Fault(FaultRound),
}

/// Machine, guest and settings of the test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Format version of the record: [`crate::record::FORMAT`].
    pub format: u32,
    /// Machine that ran the guests.
    pub machine: Machine,
    /// Release of the guest's kernel.
    pub guest: String,
    /// Size of the large partition on a block device in MiB.
    pub partition_mib: u64,
    /// Size of the large partition on raw flash in MiB.
    pub flash_mib: u64,
    /// Bytes of the small root filesystem's files.
    pub root_bytes: u64,
    /// Rounds with a power cut for each filesystem and pace.
    pub rounds: u32,
    /// Seed of all random decisions.
    pub seed: u64,
}

/// Measured figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Time from the start of the kernel to process 1, in microseconds.
    KernelBoot,
    /// Time to mount the small root filesystem, in microseconds.
    RootMount,
    /// Time from a mounted root to the end of its first program, in microseconds.
    RootStart,
    /// Share of an empty partition that files cannot use, in millionths.
    Overhead,
    /// Time to mount the large partition, in microseconds.
    Mount,
    /// Sequential reads of 128 KiB, in KiB/s.
    FioRead,
    /// Random reads of 4 KiB, in KiB/s.
    FioRandomRead,
    /// Sequential writes of 128 KiB, in KiB/s.
    FioWrite,
    /// Random writes of 4 KiB, in KiB/s.
    FioRandomWrite,
    /// Random writes of 4 KiB with fsync after each, in KiB/s.
    FioSyncWrite,
    /// CPU time of kernel threads while fio runs, in microseconds.
    ThreadsBusy,
    /// CPU time of kernel threads in five seconds after the last write, in microseconds.
    ThreadsIdle,
    /// Time to check the large partition, in microseconds.
    Check,
}

/// Figure of a filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the filesystem.
    pub filesystem: Kind,
    /// Measured quantity.
    pub figure: Quantity,
    /// All samples, in the unit of the quantity.
    pub samples: Vec<u64>,
}

/// Part of the test without a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Without {
    /// Name of the filesystem.
    pub filesystem: Kind,
    /// Part of the test.
    pub part: String,
    /// Reason why it was left out.
    pub reason: String,
}

/// Result of a power cut.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cut {
    /// Number of the round, starting at 1.
    pub round: u32,
    /// Filesystem that was tested.
    pub filesystem: Kind,
    /// True if the load synced every operation.
    pub synced: bool,
    /// Seed of the round.
    pub seed: u64,
    /// Operations that the guest reported before the cut.
    pub operations: usize,
    /// Outcome of the round.
    pub outcome: Outcome,
    /// First deviation. None if the round is clean.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub found: Option<String>,
}

/// Fault of a device, injected below the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Every write returns an error.
    WriteErrors,
    /// One byte of every write is wrong.
    WrongWrites,
    /// Every read and write returns an error.
    ReadErrors,
    /// One byte in every 32 KiB of the device is wrong.
    WrongReads,
}

/// All faults in the order of a test.
pub const FAULTS: [Fault; 4] = [
    Fault::WriteErrors,
    Fault::WrongWrites,
    Fault::ReadErrors,
    Fault::WrongReads,
];

impl Fault {
    /// Name of the table row.
    pub fn name(self) -> &'static str {
        match self {
            Fault::WriteErrors => "writes fail",
            Fault::WrongWrites => "writes store a wrong byte",
            Fault::ReadErrors => "reads fail",
            Fault::WrongReads => "reads return wrong bytes",
        }
    }

    /// True if files are written during the fault.
    pub fn is_of_writes(self) -> bool {
        matches!(self, Fault::WriteErrors | Fault::WrongWrites)
    }
}

/// Result of a fault. Files are those that were synced without an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Files read.
    pub files: u32,
    /// Operations during the fault that returned an error.
    pub errors: u32,
    /// True if the filesystem turned read-only during the fault.
    pub read_only: bool,
    /// Error of the mount after the fault, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mount_error: Option<String>,
    /// Files that return an error or are missing. After faults of writes: after a mount without the fault.
    pub lost: u32,
    /// Files with wrong content and no error.
    pub wrong: u32,
}

/// Result of a fault on a filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultRound {
    /// Filesystem that was tested.
    pub filesystem: Kind,
    /// Fault that was injected.
    pub fault: Fault,
    /// Result of the fault.
    pub seen: Seen,
}

impl RecordLine for Line {
    fn format(&self) -> Option<u32> {
        match self {
            Line::Header(header) => Some(header.format),
            _ => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Line::Figure(_) | Line::Cut(_) | Line::Fault(_))
    }
}
