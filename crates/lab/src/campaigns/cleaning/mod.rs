//! Cleaning under random overwrites, measured in a guest: F2FS of the guest's kernel beside a volume, each on the same disk.
//!
//! ```text
//!  host                            guest
//!  sparse file ── virtio disk ──►  filesystem with one file, overwritten page by page until cleaning is in steady state
//! ```
//!
//! Each round of overwrites is a sample: speed, bytes that the disk received for each byte that the load wrote, and
//! blocks that F2FS moved. The CPU of the guest may be emulated, so speeds are compared with the first quarter of the same
//! filesystem only.

pub mod inside;
pub(crate) mod report;

use crate::guest::{Guest, Hardware, Plan};
use crate::measure::workspace::Work;
use crate::record::{Header, Line, Note, labels};
use crate::{Error, Result};
use inside::{Job, SYSTEMS, System};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(1800);

/// Settings of a measurement.
#[derive(Debug)]
pub struct Conditions {
    /// Path of the program `tuff`.
    pub tuff: PathBuf,
    /// Kernel of the guest.
    pub guest: Guest,
    /// Size of the disk in MiB.
    pub disk_mib: u64,
    /// Share of the disk that the file fills, in percent.
    pub fill_percent: u64,
    /// Bytes that are overwritten, as a multiple of the size of the disk.
    pub times: u64,
    /// Seed of the overwritten places.
    pub seed: u64,
    /// Folder for the disk and the initramfs.
    pub work: PathBuf,
}

/// Measures each system in a guest of its own. A system that fails is recorded as such.
pub fn run(conditions: &Conditions, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<()> {
    let work = Work::create(&conditions.work)?;
    let settings = [
        ("guest kernel", conditions.guest.release().to_owned()),
        ("accelerator", crate::guest::accelerator().to_owned()),
        ("disk, MiB", conditions.disk_mib.to_string()),
        ("file, % of the disk", conditions.fill_percent.to_string()),
        ("overwritten, times the disk", conditions.times.to_string()),
        ("seed", conditions.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("cleaning", settings)?))?;
    for system in SYSTEMS {
        match measure(conditions, &work, system, emit) {
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(e) => emit(&Line::Failure(Note {
                cell: labels([("system", system.name())]),
                text: e.to_string(),
            }))?,
            Ok(()) => {}
        }
    }
    Ok(())
}

fn measure(
    conditions: &Conditions,
    work: &Work,
    system: System,
    emit: &mut dyn FnMut(&Line) -> Result<()>,
) -> Result<()> {
    let disk = work.path("disk");
    let made = File::create(&disk).and_then(|file| file.set_len(conditions.disk_mib << 20));
    made.map_err(|e| Error::io("create", &disk, e))?;
    let programs = match system {
        System::Volume => conditions.tuff.clone(),
        System::F2fs | System::F2fsLogs => PathBuf::from("/sbin/mkfs.f2fs"),
    };
    let plan = Plan {
        modules: &["crc32_generic", "crc32c_generic", "f2fs", "fuse"],
        programs: &[programs],
    };
    let initramfs = conditions.guest.initramfs(&plan, work.folder())?;
    let hardware = Hardware {
        disks: vec![disk],
        direct: false,
        region: None,
        memory_mib: 1024,
        patience: PATIENCE,
    };
    let job = Job::Overwrite {
        system,
        tuff: conditions.tuff.display().to_string(),
        disk_mib: conditions.disk_mib,
        fill_percent: conditions.fill_percent,
        times: conditions.times,
        seed: conditions.seed,
    };
    let guest = &conditions.guest;
    let mut running = guest.boot(&initramfs, &hardware, work.folder(), &job)?;
    while let Some(line) = running.receive()? {
        emit(&line)?;
    }
    Ok(())
}
