//! Jobs of the guest and their results.

use super::super::kind::Kind;
use crate::record::Line;
use serde::{Deserialize, Serialize};

/// Job of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case")]
pub enum Job {
    /// Measures a filesystem. Disks: root files, tested root, large partition.
    Measure {
        /// Filesystem that is tested.
        kind: Kind,
        /// Bytes of the files that fill the large partition.
        fill: u64,
        /// Path of `tuff` in the guest.
        tuff: String,
        /// Faults of the device to test.
        faults: Vec<Fault>,
    },
    /// Runs rounds with a power cut of the first disk or flash.
    Cut {
        /// Filesystem that is tested.
        kind: Kind,
        /// Round that another guest began, with the number of operations that it reported. It is judged first.
        begun: Option<(Round, usize)>,
        /// Rounds to run.
        rounds: Vec<Round>,
    },
}

/// Round with a power cut.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round, starting at 1.
    pub number: u32,
    /// Seed of the load.
    pub seed: u64,
    /// True if every operation is synced.
    pub synced: bool,
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

/// Result that the guest sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Line of the record.
    Line(Line),
    /// The initial files of a load are synced.
    Prepared,
    /// Number of finished operations of a load.
    Done(usize),
    /// The power is off, and the filesystem is unmounted.
    Down,
}

/// Result whose error is a reason for people.
pub(super) type Reason<T> = std::result::Result<T, String>;

/// Drops the page cache.
pub(super) fn forget() -> Reason<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3\n").map_err(|e| format!("drop caches: {e}"))
}
