//! Jobs of the guest and their results.

use super::super::kind::Kind;
use super::super::record::{Fault, Quantity, Seen};
use crate::campaigns::power_loss::record::Outcome;
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
    /// Formats the first disk or flash and runs a load on it until the host cuts the power.
    Load {
        /// Filesystem that is tested.
        kind: Kind,
        /// Seed of the load.
        seed: u64,
        /// True if every operation is synced.
        synced: bool,
    },
    /// Judges the first disk or flash after a power cut.
    Judge {
        /// Filesystem that is tested.
        kind: Kind,
        /// Seed of the load.
        seed: u64,
        /// True if every operation is synced.
        synced: bool,
        /// Operations that were reported before the cut.
        operations: usize,
    },
}

/// Result that the guest sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Samples of a quantity.
    Figure(Quantity, Vec<u64>),
    /// A part has no result: its name and the reason.
    Without(String, String),
    /// Result of a faulty device.
    Fault(Fault, Seen),
    /// The initial files of a load are synced.
    Prepared,
    /// Number of finished operations of a load.
    Done(usize),
    /// Outcome after a power cut, with the first deviation.
    Judged(Outcome, Option<String>),
}

/// Result whose error is a reason for people.
pub(super) type Reason<T> = std::result::Result<T, String>;

/// Drops the page cache.
pub(super) fn forget() -> Reason<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3\n").map_err(|e| format!("drop caches: {e}"))
}
