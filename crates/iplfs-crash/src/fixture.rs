//! A small volume with content, which tests of snapshots and streams share.

use crate::workload::base;
use std::sync::Arc;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{BlockDevice, FormatOptions, Geometry, MountOptions, Time, Volume};

/// Small zones and packs, which little work fills.
pub const GEOMETRY: Geometry = Geometry {
    area_bits: 29,
    section_bits: 8,
    zone_bits: 4,
    pack_blocks: 8,
};

/// Time of operations in tests.
pub const NOW: Time = Time { sec: 1, nsec: 0 };

/// Small windows and journals, which little work fills.
pub fn options() -> MountOptions {
    MountOptions {
        window_blocks: 512,
        journal_max: 8,
        ..MountOptions::default()
    }
}

/// Mounts a volume for writing, with small windows.
///
/// # Panics
/// If an operation fails.
pub fn mount<D: BlockDevice + 'static>(device: &Arc<D>) -> Volume {
    Volume::mount(device.clone(), options()).unwrap()
}

/// Creates a volume with the base of the crash tests, and unmounts it.
///
/// # Panics
/// If an operation fails.
pub fn device() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new());
    let format = FormatOptions {
        geometry: GEOMETRY,
        reserve_blocks: 256,
        ..FormatOptions::new([3; 16], [5; 16], 8192)
    };
    Volume::format(device.clone(), &format).unwrap();
    let mut v = mount(&device);
    for (now, op) in base().iter().enumerate() {
        op.volume(&mut v, now as i64).unwrap();
    }
    v.unmount().unwrap();
    device
}
