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

use crate::engines::filesystem::Filesystem;
use crate::guest::{Guest, Hardware, Machine, Plan};
use crate::measure::workspace::Work;
use crate::options::{Emit, Options};
use crate::record::{Header, Line, labels};
use crate::{At, Error, Result};
use inside::{Job, Load, SYSTEMS};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(1800);

/// Measure F2FS's cleaning in a guest, beside a volume (IPLFS, ATC 2022)
///
/// A file fills most of the disk, and its pages are overwritten at random. Speed and bytes written to the disk are sampled while
/// F2FS begins to clean. Writes a record and prints its tables. benchmarks/guest-packages installs QEMU, the kernel and the
/// tools.
#[derive(Debug, clap::Args)]
pub struct Conditions {
    /// Load of the disk.
    #[command(flatten)]
    pub load: Load,
    /// Kernel of the guest.
    #[command(flatten)]
    pub machine: Machine,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Measures each system in a guest of its own. A system that fails is recorded as such.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let guest = conditions.machine.guest()?;
    let tuff = conditions.options.need("tuff")?;
    let work = Work::create(conditions.options.work())?;
    let load = &conditions.load;
    let settings = [
        ("guest kernel", guest.release().to_owned()),
        ("accelerator", crate::guest::accelerator().to_owned()),
        ("disk, MiB", load.disk.to_string()),
        ("file, % of the disk", load.fill.to_string()),
        ("overwritten, times the disk", load.times.to_string()),
        ("seed", load.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("cleaning", settings)?))?;
    for (system, (name, ..)) in SYSTEMS.iter().enumerate() {
        match measure(&guest, &tuff, load, &work, system, emit) {
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(e) => {
                let cell = labels([("system", name)]);
                emit(&Line::failure(cell, e.to_string()))?;
            }
            Ok(()) => {}
        }
    }
    Ok(true)
}

fn measure(
    guest: &Guest,
    tuff: &Path,
    load: &Load,
    work: &Work,
    system: usize,
    emit: Emit<'_>,
) -> Result<()> {
    let disk = work.path("disk");
    File::create(&disk)
        .and_then(|file| file.set_len(load.disk << 20))
        .at("create", &disk)?;
    let programs = match SYSTEMS[system].1 {
        Filesystem::Volume => tuff.to_owned(),
        _ => PathBuf::from("/sbin/mkfs.f2fs"),
    };
    let plan = Plan {
        modules: &["crc32_generic", "crc32c_generic", "f2fs", "fuse"],
        programs: &[programs],
    };
    let initramfs = guest.initramfs(&plan, work.folder())?;
    let hardware = Hardware {
        disks: vec![disk],
        direct: false,
        region: None,
        memory_mib: 1024,
        time_limit: TIME_LIMIT,
    };
    let job = Job {
        system,
        tuff: tuff.display().to_string(),
        load: load.clone(),
    };
    let mut running = guest.boot(&initramfs, &hardware, work.folder(), &job)?;
    while let Some(line) = running.receive()? {
        emit(&line)?;
    }
    Ok(())
}
