//! Device presets of scalable size.

use crate::clock::{Nanos, Timing};
use crate::device::{Cleaning, Config, Striping};
use crate::geometry::Geometry;
use crate::nand::Faults;

/// A device configuration based on published measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// Samsung 970 Pro as modelled by NVMeVirt: 8 channels of 2 LUNs, 32 KiB pages, 256 GB, 7 %
    /// spare. The erase time is 3.5 ms; NVMeVirt does not model it.
    Nvme,
    /// Cosmos+ OpenSSD as configured in the IPLFS paper: 8 channels of 4 LUNs, 16 KiB pages in SLC
    /// mode, 256 GiB, 10 % spare. The geometry is published. The latencies are assumptions, chosen
    /// so that 4 KiB random writes reach the published 60,000 per second.
    Openssd,
}

impl Preset {
    /// Returns the configuration scaled to `1 / divisor` of the capacity. Erase blocks become fewer
    /// and smaller; dies, channels and latencies stay the same. The erase time is scaled with the
    /// pages of a block. A `divisor` of 1 gives the full size.
    pub fn config(self, divisor: u32) -> Config {
        let (geometry, timing) = match self {
            Preset::Nvme => nvme(divisor),
            Preset::Openssd => openssd(divisor),
        };
        Config {
            geometry,
            timing,
            streams: 1,
            cleaning: Cleaning::default(),
            striping: Striping::LeastBusy,
            interval: None,
            faults: Faults::default(),
        }
    }
}

/// Divides a LUN of `pages` pages into erase blocks and returns their number and size. Blocks have
/// their full size if the LUN has at least 256 of them, otherwise a smaller power of two.
fn cut(pages: u32, block_pages: u32, divisor: u32) -> (u32, u32) {
    let pages = (pages / divisor).max(256);
    let per_block = (1 << (pages / 256).ilog2()).clamp(4, block_pages);
    (pages / per_block, per_block)
}

/// Erase time of a block with `pages_per_block` pages, in proportion to `whole` for 128 pages.
fn erase(whole: Nanos, pages_per_block: u32) -> Nanos {
    Nanos(whole.0 * u64::from(pages_per_block) / 128)
}

fn nvme(divisor: u32) -> (Geometry, Timing) {
    // 256 GB in 16 LUNs is 16 GB each: 488,281 pages of 32 KiB.
    let (blocks_per_lun, pages_per_block) = cut(488_281, 128, divisor);
    let mut geometry = Geometry {
        channels: 8,
        luns_per_channel: 2,
        blocks_per_lun,
        pages_per_block,
        slots_per_page: 8,
        exported_slots: 0,
    };
    geometry.exported_slots = geometry.raw_slots() * 100 / 107;
    let timing = Timing {
        read_slot: Nanos(41_800),
        read_page: Nanos(42_000),
        program: Nanos::micros(185),
        erase: erase(Nanos::micros(3500), pages_per_block),
        channel_slot: Nanos(5120),
        link_slot: Nanos(1219),
        read_latency: Nanos(21_500),
        write_latency: Nanos(4000),
        write_latency_slot: Nanos(460),
        flush: Nanos::micros(10),
        command: Nanos(300),
        buffer_slots: 256,
        map_get: Nanos(40),
        map_set: Nanos(40),
        map_entry: Nanos(10),
    };
    (geometry, timing)
}

fn openssd(divisor: u32) -> (Geometry, Timing) {
    // 256 GiB in 32 LUNs is 8 GiB each: 524,288 pages of 16 KiB.
    let (blocks_per_lun, pages_per_block) = cut(524_288, 128, divisor);
    let mut geometry = Geometry {
        channels: 8,
        luns_per_channel: 4,
        blocks_per_lun,
        pages_per_block,
        slots_per_page: 4,
        exported_slots: 0,
    };
    geometry.exported_slots = geometry.raw_slots() * 9 / 10;
    let timing = Timing {
        read_slot: Nanos::micros(60),
        read_page: Nanos::micros(60),
        program: Nanos::micros(1700),
        erase: erase(Nanos::millis(5), pages_per_block),
        channel_slot: Nanos(24_000),
        link_slot: Nanos(2560),
        read_latency: Nanos::micros(20),
        write_latency: Nanos::micros(10),
        write_latency_slot: Nanos::micros(1),
        flush: Nanos::micros(20),
        command: Nanos(1000),
        buffer_slots: 512,
        map_get: Nanos(100),
        map_set: Nanos(100),
        map_entry: Nanos(10),
    };
    (geometry, timing)
}
