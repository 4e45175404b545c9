//! Part of the measurement that runs inside the guest.

use crate::engines::filesystem::{Filesystem, Place};
use crate::guest::inside::{POINT, Port, disk};
use crate::measure::helper::noise;
use crate::record::{Line, labels};
use crate::{At, Error, Result};
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

/// Names of systems, their filesystems and options of mount, in the order of a run.
pub const SYSTEMS: [(&str, Filesystem, &str); 3] = [
    ("F2FS", Filesystem::F2fs, ""),
    ("F2FS, mode=lfs", Filesystem::F2fs, "mode=lfs"),
    ("volume", Filesystem::Volume, ""),
];

/// Load of the disk.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct Load {
    /// Size of the disk in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(128..=8192), default_value_t = 512)]
    pub disk: u64,
    /// Share of the disk that the file fills, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=90), default_value_t = 70)]
    pub fill: u64,
    /// Bytes to overwrite, as a multiple of the size of the disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100), default_value_t = 1)]
    pub times: u64,
    /// Seed of the overwritten places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Job of a guest: fills the first disk with one file and overwrites pages of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Number of the system in [`SYSTEMS`].
    pub system: usize,
    /// Path of `tuff` in the guest.
    pub tuff: String,
    /// Load of the disk.
    pub load: Load,
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
    let Job { system, tuff, load } = job;
    let (name, kind, options) = SYSTEMS[*system];
    let device = disk(0);
    let place = Place {
        kind,
        tuff: Path::new(tuff),
        device: &device,
        point: POINT,
    };
    let made = place.make().and_then(|()| place.mount(options));
    made.map_err(Error::Command)?;
    let path = Path::new(POINT).join("file");
    let pages = (load.disk << 20) * load.fill / 100 / PAGE;
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .at("overwrite", &path)?;
    let mut rng = Rng::new(load.seed);
    for _ in 0..pages {
        file.write_all(&noise(&mut rng, PAGE as usize))
            .at("overwrite", &path)?;
    }
    file.sync_all().at("overwrite", &path)?;
    let groups = (load.times * (load.disk << 20) / PAGE / SAMPLES / GROUP).max(1);
    let mut last = counters(&device)?;
    for number in 0..SAMPLES {
        for _ in 0..groups {
            for _ in 0..GROUP {
                // Fits: the file is much smaller than the limit of the type.
                let at = rng.below(pages as usize) as u64 * PAGE;
                file.write_all_at(&noise(&mut rng, PAGE as usize), at)
                    .at("overwrite", &path)?;
            }
            file.sync_data().at("overwrite", &path)?;
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
        let cell = labels([("system", name), ("time", quarter)]);
        // Fits: there are few samples.
        port.send(&Line::sample(cell, number as u32 + 1, values))?;
        last = now;
    }
    drop(file);
    place.unmount().map_err(Error::Command)
}

fn counters(device: &str) -> Result<Counters> {
    let name = device.trim_start_matches("/dev/");
    let path = format!("/sys/block/{name}/stat");
    let text = std::fs::read_to_string(&path).at("read", Path::new(&path))?;
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
