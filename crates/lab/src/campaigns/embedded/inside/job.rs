//! Jobs of the guest and their results.

use crate::engines::filesystem::Filesystem;
use crate::record::Line;
use serde::{Deserialize, Serialize};

/// Job of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case")]
pub enum Job {
    /// Measures a filesystem. Disks: root files, tested root, large partition.
    Measure {
        /// Filesystem that is tested.
        kind: Filesystem,
        /// Bytes of the files that fill the large partition.
        fill: u64,
        /// Path of `tuff` in the guest.
        tuff: String,
        /// Faults of the device to test.
        faults: Vec<Fault>,
    },
    /// Tests a filesystem on nandsim, which has a fault.
    Flash {
        /// Filesystem that is tested.
        kind: Filesystem,
        /// Fault of the flash.
        fault: Fault,
    },
    /// Runs rounds with a power cut of the first disk or flash.
    Cut {
        /// Filesystem that is tested.
        kind: Filesystem,
        /// Round that another guest began, with the number of operations that it reported. It is judged first.
        started: Option<(Round, usize)>,
        /// Rounds to run.
        rounds: Vec<Round>,
    },
}

/// Round with a power cut.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round, which starts at 1.
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
    /// Flash: one bit of a page is wrong in one of 1024 reads.
    FlippedBit,
    /// Flash: up to 16 bits of a page are wrong in one of 1024 reads.
    FlippedBits,
    /// Flash: blocks are marked bad from the beginning.
    BadBlocks,
    /// Flash: blocks cannot be erased.
    WeakBlocks,
    /// Flash: pages cannot be written.
    WeakPages,
    /// Flash: pages cannot be read after three reads.
    GravePages,
}

/// All faults of raw flash.
pub const FLASH_FAULTS: [Fault; 6] = [
    Fault::FlippedBit,
    Fault::FlippedBits,
    Fault::BadBlocks,
    Fault::WeakBlocks,
    Fault::WeakPages,
    Fault::GravePages,
];

/// Distance of blocks with a fault, and their number. Kernels take at most 1024 characters for a parameter.
const FLASH_STRIDE: u32 = 5;
const FLASH_BLOCKS: u32 = 100;
/// Number of pages in a block, and the page of a block that has a fault.
const BLOCK_PAGES: u32 = 64;
const FAULTY_PAGE: u32 = 20;

/// All faults of block devices in the order of a test.
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
            Fault::FlippedBit => "one bit flips in one of 1024 page reads",
            Fault::FlippedBits => "up to 16 bits flip in one of 1024 page reads",
            Fault::BadBlocks => "one block in 5 is bad from the beginning",
            Fault::WeakBlocks => "one block in 5 cannot be erased",
            Fault::WeakPages => "one block in 5 has a page that cannot be written",
            Fault::GravePages => "one block in 5 has a page that is lost after 3 reads",
        }
    }

    /// Returns the parameter of nandsim that causes the fault. Empty for a fault of a block device.
    pub fn nandsim(self) -> String {
        let blocks = (0..FLASH_BLOCKS).map(|n| n * FLASH_STRIDE + 1);
        let list = |name: &str, number: fn(u32) -> String| {
            let numbers: Vec<String> = blocks.map(number).collect();
            format!("{name}={}", numbers.join(","))
        };
        match self {
            Fault::FlippedBit => "bitflips=1".to_owned(),
            Fault::FlippedBits => "bitflips=16".to_owned(),
            Fault::BadBlocks => list("badblocks", |block| block.to_string()),
            Fault::WeakBlocks => list("weakblocks", |block| format!("{block}:0")),
            Fault::WeakPages => list("weakpages", |block| format!("{}:0", page(block))),
            Fault::GravePages => list("gravepages", |block| format!("{}:3", page(block))),
            _ => String::new(),
        }
    }

    /// True if files are written during the fault.
    pub fn is_of_writes(self) -> bool {
        matches!(self, Fault::WriteErrors | Fault::WrongWrites)
    }
}

/// Returns the number of the faulty page of a block.
fn page(block: u32) -> u32 {
    block * BLOCK_PAGES + FAULTY_PAGE
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

/// Returns the length of a device in bytes. MTD devices have a number instead of a path.
pub(super) fn size(device: &str) -> Reason<u64> {
    let (file, unit) = match device.strip_prefix("/dev/") {
        Some(name) => (format!("/sys/block/{name}/size"), 512),
        None => (format!("/sys/class/mtd/mtd{device}/size"), 1),
    };
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let number: u64 = text.trim().parse().map_err(|e| format!("{file}: {e}"))?;
    Ok(number * unit)
}
