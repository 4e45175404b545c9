//! Blocks on a device after a drain.

use crate::sound::sound;
use std::sync::Arc;
use tuff_iplfs::{BlockDevice, Report};

/// Verifies that a check finds nothing, and that the device holds exactly the reachable blocks. `fixed_end` is the
/// end of its fixed blocks.
pub(crate) fn exact(device: &Arc<dyn BlockDevice>, fixed_end: u64) -> Report {
    let report = sound(device, "check");
    // A copy of the superblock lies past the logs.
    let spare = tuff_iplfs::read_superblock(&**device)
        .unwrap()
        .geometry
        .spare_superblock()
        .0;
    let held = device.allocated(fixed_end..spare).unwrap();
    let held: Vec<u64> = held.into_iter().flatten().collect();
    assert_eq!(held, report.reachable);
    report
}
