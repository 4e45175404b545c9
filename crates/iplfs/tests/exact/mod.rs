//! What a device holds after a drain.

use crate::sound::sound;
use std::sync::Arc;
use tuff_iplfs::{BlockDevice, Report};

/// A device holds exactly what is reachable in a volume that a full check likes. `fixed_end`: where its fixed blocks end.
pub(crate) fn exact(device: &Arc<dyn BlockDevice>, fixed_end: u64) -> Report {
    let report = sound(device, "check");
    // Past the logs lies a copy of the superblock.
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
