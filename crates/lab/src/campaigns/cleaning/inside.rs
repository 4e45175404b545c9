//! Part of the measurement that runs inside the guest.

use crate::guest::inside::{POINT, Port, attach, command, detach, disk, run_apart};
use crate::record::{Line, Sample, labels};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use tuff_testkit::Rng;

/// Length of an overwrite. Unit: bytes.
const PAGE: u64 = 4096;
/// Number of overwrites between two fdatasync calls.
const GROUP: u64 = 256;
/// Number of samples in a run of one system.
const SAMPLES: u64 = 40;
/// Names of the quarters of a run.
const QUARTERS: [&str; 4] = ["1st quarter", "2nd quarter", "3rd quarter", "4th quarter"];

/// Filesystem with its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// F2FS with its defaults.
    F2fs,
    /// F2FS that only appends, `mode=lfs`.
    F2fsLogs,
    /// A volume on the disk.
    Volume,
}

/// All systems in the order of a run.
pub const SYSTEMS: [System; 3] = [System::F2fs, System::F2fsLogs, System::Volume];

impl System {
    /// Returns the name of the system in tables.
    pub fn name(self) -> &'static str {
        match self {
            System::F2fs => "F2FS",
            System::F2fsLogs => "F2FS, mode=lfs",
            System::Volume => "volume",
        }
    }

    /// Creates the filesystem on the disk and mounts it.
    fn make(self, device: &str, tuff: &str) -> std::result::Result<(), String> {
        let options = match self {
            System::Volume => {
                run_apart(&[tuff, "volume", "create", "--force", device])?;
                return run_apart(&[tuff, "volume", "mount", device, POINT]);
            }
            System::F2fs => "",
            System::F2fsLogs => "mode=lfs",
        };
        command(0, &["mkfs.f2fs", "-q", "-f", device])?;
        attach("f2fs", device, POINT, options, false)
    }

    fn unmount(self, tuff: &str) -> std::result::Result<(), String> {
        match self {
            System::Volume => run_apart(&[tuff, "umount", POINT]),
            System::F2fs | System::F2fsLogs => detach(POINT),
        }
    }
}

/// Job of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case")]
pub enum Job {
    /// Fills the first disk with one file and overwrites pages of it.
    Overwrite {
        /// Filesystem that is measured.
        system: System,
        /// Path of `tuff` in the guest.
        tuff: String,
        /// Size of the disk in MiB.
        disk_mib: u64,
        /// Share of the disk that the file fills, in percent.
        fill_percent: u64,
        /// Bytes that are overwritten, as a multiple of the size of the disk.
        times: u64,
        /// Seed of the overwritten places.
        seed: u64,
    },
}

/// Counters at the end of a sample.
#[derive(Clone, Copy)]
struct Counters {
    time: Instant,
    /// Bytes that the disk received.
    disk: u64,
    /// Blocks that F2FS moved.
    moved: u64,
}

/// Runs a job and sends a line of the record after each part of the overwrites.
pub fn run(job: &Job, port: &mut Port) -> Result<()> {
    let Job::Overwrite {
        system,
        tuff,
        disk_mib,
        fill_percent,
        times,
        seed,
    } = job;
    let device = disk(0);
    system.make(&device, tuff).map_err(Error::Command)?;
    let path = Path::new(POINT).join("file");
    let failed = |e| Error::io("overwrite", &path, e);
    let pages = (disk_mib << 20) * fill_percent / 100 / PAGE;
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(failed)?;
    let mut rng = Rng::new(*seed);
    for _ in 0..pages {
        file.write_all(&page(&mut rng)).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    let groups = (times * (disk_mib << 20) / PAGE / SAMPLES / GROUP).max(1);
    let mut last = counters(&device)?;
    for number in 0..SAMPLES {
        for _ in 0..groups {
            for _ in 0..GROUP {
                // Fits: the file is much smaller than the limit of the type.
                let at = rng.below(pages as usize) as u64 * PAGE;
                file.write_all_at(&page(&mut rng), at).map_err(failed)?;
            }
            file.sync_data().map_err(failed)?;
        }
        let now = counters(&device)?;
        let written = (groups * GROUP * PAGE) as f64;
        let quarter = QUARTERS[(number * 4 / SAMPLES) as usize];
        let values = [
            (
                "overwritten_mib",
                written * (number + 1) as f64 / 1_048_576.0,
            ),
            ("bytes_s", written / (now.time - last.time).as_secs_f64()),
            ("amplification", (now.disk - last.disk) as f64 / written),
            (
                "moved_share",
                ((now.moved - last.moved) * PAGE) as f64 / written,
            ),
        ];
        let sample = Sample {
            cell: labels([("system", system.name()), ("time", quarter)]),
            // Fits: there are few samples.
            round: number as u32 + 1,
            values: values.map(|(name, v)| (name.to_owned(), v)).into(),
        };
        port.send(&Line::Sample(sample))?;
        last = now;
    }
    drop(file);
    system.unmount(tuff).map_err(Error::Command)
}

/// Returns a page that does not compress.
fn page(rng: &mut Rng) -> Vec<u8> {
    let words = (0..PAGE / 8).flat_map(|_| rng.draw().to_le_bytes());
    words.collect()
}

fn counters(device: &str) -> Result<Counters> {
    let name = device.trim_start_matches("/dev/");
    let path = format!("/sys/block/{name}/stat");
    let text =
        std::fs::read_to_string(&path).map_err(|e| Error::io("read", Path::new(&path), e))?;
    // The seventh field is the number of sectors written.
    let sectors: u64 = text
        .split_whitespace()
        .nth(6)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| Error::Command(format!("{path} has no number of sectors")))?;
    // A kernel without these counters, and a volume, moves nothing that they could count.
    let moved = ["moved_blocks_foreground", "moved_blocks_background"].map(|counter| {
        let text = std::fs::read_to_string(format!("/sys/fs/f2fs/{name}/{counter}"));
        text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    });
    Ok(Counters {
        time: Instant::now(),
        disk: sectors * 512,
        moved: moved.iter().sum(),
    })
}
