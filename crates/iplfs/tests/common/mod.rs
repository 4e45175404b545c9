//! A small volume with content, for tests of snapshots and streams.

use std::sync::Arc;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{BlockDevice, FormatOptions, Geometry, MountOptions, Time, Volume};
use tuff_iplfs_crash::workload::base;

/// Small zones and packs, which little work fills.
pub(crate) const GEOMETRY: Geometry = Geometry {
    area_bits: 29,
    section_bits: 8,
    zone_bits: 4,
    pack_blocks: 8,
};

/// Time of all operations.
pub(crate) const NOW: Time = Time { sec: 1, nsec: 0 };

/// Small windows and journals, which little work fills.
pub(crate) fn options() -> MountOptions {
    MountOptions {
        window_blocks: 512,
        journal_max: 8,
        ..MountOptions::default()
    }
}

/// Mounts a volume for writing.
pub(crate) fn mount<D: BlockDevice + 'static>(device: &Arc<D>) -> Volume {
    Volume::mount(device.clone(), options()).unwrap()
}

/// Creates a volume with the base of the crash tests, and unmounts it.
pub(crate) fn device() -> Arc<MemDevice> {
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
