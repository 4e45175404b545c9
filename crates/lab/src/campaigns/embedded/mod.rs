//! Filesystems for embedded systems, compared in a guest: the measurements of Lelong, "Filesystem considerations for
//! embedded devices" (Embedded Linux Conference 2015).
//!
//! ```text
//!  measure   one guest per filesystem: small root, large partition, fio, check, dm-flakey
//!  cut       guest: load ──► disk ──► power cut by the host ──► unmount, power, judgement, next load
//!            guest: load ──► flash ──► killed by the host ──► next guest: judgement, next load
//! ```
//!
//! Block filesystems lie on virtio disks. For power cuts, such a disk is the simulated one of
//! [`power_loss`](super::power_loss), which loses unflushed writes. JFFS2 and UBIFS lie on nandsim. For power cuts, JFFS2
//! lies on phram: memory of the host, which keeps all stores of the killed guest. UBIFS emulates its power cuts.

pub mod inside;
pub mod kind;
pub(crate) mod report;

use super::power_loss::disk::{self, Disk, Fault as DiskFault, Pages};
use super::power_loss::disk_file::DiskFile;
use crate::engines::filesystem::Filesystem;
use crate::guest::{Guest, Hardware, Initramfs, Machine, Message, Plan, Running};
use crate::measure::helper;
use crate::measure::root::{self, Root};
use crate::measure::workspace::Work;
use crate::options::{Emit, Options, need_root, select};
use crate::record::{Header, Line, labels};
use crate::{At, Error, Result};
use inside::{Answer, FAULTS, FLASH_FAULTS, Job, Round};
use kind::KINDS;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Share of the large partition that files fill, in percent.
const FILLED: u64 = 60;
/// Partitions on nandsim, which has 256 MiB and erase blocks of 128 KiB: 64 MiB, and the rest.
const NANDSIM: &str = "nandsim first_id_byte=0x20 second_id_byte=0xaa third_id_byte=0x00 fourth_id_byte=0x15 parts=512";
const FLASH_MIB: u64 = 192;
/// Size of a partition for the small root filesystem in MiB. mkfs.nilfs2 needs more than 128.
const ROOT_MIB: u64 = 160;
/// Size of the flash for power cuts in MiB.
const REGION_MIB: usize = 64;
/// Programs of the small root filesystem.
const ROOT_PROGRAMS: &str =
    "/bin/sh /bin/bash /bin/ls /bin/cat /bin/sed /bin/grep /bin/tar /usr/bin/find /usr/bin/awk";
/// Upper bound of the write at which the power is cut.
const CUT_WITHIN: usize = 400;
/// Upper bound of the time after which the power of a flash is cut, in milliseconds.
const CUT_FLASH_MS: usize = 2000;
/// Time after which the power is cut if that write was not reached.
const CUT_AFTER: Duration = Duration::from_secs(20);
/// Time after a power cut within which the filesystem has to be unmounted. The guest is killed otherwise.
const DOWN_WITHIN: Duration = Duration::from_secs(10);
const TIME_LIMIT: Duration = Duration::from_secs(900);

/// Part of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Times and speeds, which need a machine without other load, and faulty devices
    Figures,
    /// Power cuts
    Cuts,
}

/// Compare filesystems for embedded systems in a guest (Lelong, ELC 2015)
///
/// Start, mount, fio, kernel threads, overhead, check, power cuts and faulty devices, for EROFS, SquashFS, ext4, F2FS, NILFS2,
/// JFFS2 and UBIFS. Writes a record and prints its tables. Requires root. benchmarks/guest-packages installs QEMU, the kernel
/// and the tools.
#[derive(Debug, clap::Args)]
pub struct Conditions {
    /// Test only filesystems whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Run only this part
    #[arg(long, value_name = "NAME")]
    pub part: Option<Part>,
    /// Size of the large partition on a block device in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=8192), default_value_t = 512)]
    pub partition: u64,
    /// Rounds with a power cut for each filesystem and pace
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rounds: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Kernel of the guest.
    #[command(flatten)]
    pub machine: Machine,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Measures all filesystems, then cuts the power of those that can be written.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let only = conditions.only.as_ref();
    let kinds = select(&KINDS, |kind| kind.name().to_owned(), "--only", only)?;
    need_root("the simulated disk")?;
    let guest = conditions.machine.guest()?;
    let tuff = conditions.options.need("tuff")?;
    let work = Work::create(conditions.options.work())?;
    let mut root = Root::create(&work.path("root"))?;
    for program in ROOT_PROGRAMS.split(' ') {
        root.add(Path::new(program))?;
    }
    let mut list = Vec::new();
    root::list(root.folder(), &mut list)?;
    let root_bytes: u64 = list.iter().map(|(_, length)| length).sum();
    let settings = [
        ("guest kernel", guest.release().to_owned()),
        ("accelerator", crate::guest::accelerator().to_owned()),
        ("small root, KiB", (root_bytes / 1024).to_string()),
        ("large partition, MiB", conditions.partition.to_string()),
        ("large partition on flash, MiB", FLASH_MIB.to_string()),
        ("rounds with a power cut", conditions.rounds.to_string()),
        ("seed", conditions.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("embedded", settings)?))?;
    let mut bench = Bench {
        conditions,
        guest,
        tuff,
        work,
    };
    let root_image = bench.image(Filesystem::Erofs, "root")?;
    let is_chosen = |part| conditions.part.is_none_or(|only| only == part);
    for &kind in kinds.iter().filter(|_| is_chosen(Part::Figures)) {
        if let Err(e) = bench.measure(kind, &root_image, emit) {
            bench.failed(kind, "figures", e, emit)?;
        }
    }
    let written = kinds.into_iter().filter(|kind| !kind.is_image());
    for kind in written.filter(|_| is_chosen(Part::Cuts)) {
        if let Err(e) = bench.cuts(kind, emit) {
            bench.failed(kind, "power cuts", e, emit)?;
        }
    }
    Ok(true)
}

struct Bench<'a> {
    conditions: &'a Conditions,
    guest: Guest,
    tuff: PathBuf,
    work: Work,
}

impl Bench<'_> {
    /// Records a failed part. A request to stop ends the test.
    fn failed(
        &self,
        filesystem: Filesystem,
        part: &str,
        error: Error,
        emit: Emit<'_>,
    ) -> Result<()> {
        if let Error::Stopped = error {
            return Err(error);
        }
        let cell = labels([("filesystem", filesystem.name()), ("part", part)]);
        emit(&Line::failure(cell, error.to_string()))
    }

    /// Writes the initramfs for a filesystem.
    fn initramfs(&self, kind: Filesystem, flash: &str) -> Result<Initramfs> {
        let always = "crc32c_generic crc32_generic erofs dm_mod dm_flakey".split(' ');
        let mut modules: Vec<&str> = always.chain(kind::modules(kind)).collect();
        if kind.is_flash() {
            modules.push(flash);
        }
        let mut programs: Vec<PathBuf> = [
            "/usr/bin/fio",
            "/sbin/dmsetup",
            "/usr/sbin/chroot",
            "/bin/cp",
        ]
        .map(PathBuf::from)
        .into();
        programs.extend(kind::programs(kind));
        if kind == Filesystem::Erofs {
            programs.push(self.tuff.clone());
        }
        let plan = Plan {
            modules: &modules,
            programs: &programs,
        };
        self.guest.initramfs(&plan, self.work.folder())
    }

    /// Builds an image of a folder of the work directory.
    fn image(&self, kind: Filesystem, folder: &str) -> Result<PathBuf> {
        let (source, image) = (
            self.work.path(folder),
            self.work.path(&format!("{folder}.{kind:?}")),
        );
        let paths = [source.as_os_str(), image.as_os_str()];
        let words = |words: &'static [&str]| words.iter().map(OsStr::new);
        match kind {
            Filesystem::Squashfs => {
                let options = words(&["-quiet", "-no-progress", "-noappend"]);
                helper::output("mksquashfs", paths.into_iter().chain(options))?
            }
            _ => helper::output(&self.tuff, words(&["build", "--quiet"]).chain(paths))?,
        };
        Ok(image)
    }

    /// Measures a filesystem in one guest.
    fn measure(&mut self, kind: Filesystem, root_image: &Path, emit: Emit<'_>) -> Result<()> {
        let mib = match kind.is_flash() {
            true => FLASH_MIB,
            false => self.conditions.partition,
        };
        let fill = (mib << 20) * FILLED / 100;
        let mut disks = vec![root_image.to_owned()];
        if kind.is_image() {
            let files = self.work.path("files");
            if !files.exists() {
                let made =
                    std::fs::create_dir(&files).and_then(|()| inside::fill_directory(&files, fill));
                made.at("fill", &files)?;
            }
            disks.extend([self.image(kind, "root")?, self.image(kind, "files")?]);
        } else if !kind.is_flash() {
            for (name, mib) in [("small", ROOT_MIB), ("large", mib)] {
                let path = self.work.path(name);
                File::create(&path)
                    .and_then(|file| file.set_len(mib << 20))
                    .at("create", &path)?;
                disks.push(path);
            }
        }
        let job = Job::Measure {
            kind,
            fill,
            tuff: self.tuff.display().to_string(),
            faults: FAULTS
                .into_iter()
                .filter(|fault| !(kind.is_flash() || kind.is_image() && fault.is_of_writes()))
                .collect(),
        };
        let hardware = self.hardware(disks, None);
        self.boot(kind, NANDSIM, &hardware, &job, emit)?;
        for fault in FLASH_FAULTS.into_iter().filter(|_| kind.is_flash()) {
            let flash = format!("{NANDSIM} {}", fault.nandsim());
            self.boot(kind, &flash, &hardware, &Job::Flash { kind, fault }, emit)?;
        }
        Ok(())
    }

    /// Runs a job in a guest with the module `flash`, and emits the lines that it sends.
    fn boot(
        &self,
        kind: Filesystem,
        flash: &str,
        hardware: &Hardware,
        job: &Job,
        emit: Emit<'_>,
    ) -> Result<()> {
        let initramfs = self.initramfs(kind, flash)?;
        let mut running = self
            .guest
            .boot(&initramfs, hardware, self.work.folder(), job)?;
        while let Some(answer) = running.receive()? {
            if let Answer::Line(line) = answer {
                emit(&line)?;
            }
        }
        Ok(())
    }

    fn hardware(&self, disks: Vec<PathBuf>, region: Option<PathBuf>) -> Hardware {
        Hardware {
            disks,
            direct: false,
            region,
            memory_mib: 1024,
            time_limit: TIME_LIMIT,
        }
    }

    /// Runs all rounds with a power cut on a filesystem.
    fn cuts(&mut self, kind: Filesystem, emit: Emit<'_>) -> Result<()> {
        // UBI of Linux 6.1 does not attach to phram, so UBIFS emulates the cuts in the running guest.
        let is_emulated = kind == Filesystem::Ubifs;
        let flash = if is_emulated { NANDSIM } else { "phram" };
        let initramfs = self.initramfs(kind, flash)?;
        let folder = self.work.path("disk");
        std::fs::create_dir_all(&folder).at("create", &folder)?;
        let disk = Arc::new(Disk::new(disk::SIZE));
        disk.reset(&Pages::new());
        let file = DiskFile::serve(&disk, &folder)?;
        let hardware = match kind.is_flash() {
            false => Hardware {
                direct: true,
                ..self.hardware(vec![file.path()], None)
            },
            true if is_emulated => self.hardware(Vec::new(), None),
            true => {
                let region = self.work.path("region");
                // Erased flash holds ones.
                let written = std::fs::write(&region, vec![0xFF; REGION_MIB << 20]);
                written.at("write", &region)?;
                self.hardware(Vec::new(), Some(region))
            }
        };
        let (guest, work) = (&self.guest, self.work.folder());
        // All filesystems get the same seeds and therefore the same loads.
        let mut seeds = Rng::new(self.conditions.seed);
        let numbers = (1..=self.conditions.rounds).flat_map(|n| [(n, true), (n, false)]);
        let mut rounds: Vec<Round> = numbers
            .map(|(number, synced)| Round {
                number,
                seed: seeds.draw(),
                synced,
            })
            .collect();
        let mut started = None;
        while started.is_some() || !rounds.is_empty() {
            let job = Job::Cut {
                kind,
                started: started.take(),
                rounds: rounds.clone(),
            };
            let mut running = guest.boot(&initramfs, &hardware, work, &job)?;
            let limit = kind.is_flash().then_some(CUT_FLASH_MS);
            started = cut_rounds(&mut running, &disk, limit, &mut rounds, emit)?;
            drop(running);
            disk.give_power();
        }
        Ok(())
    }
}

/// Cuts the power in each round of a guest, and removes the rounds that it began. Returns the round in which the guest
/// has to be killed, with the number of operations that it reported. `flash_ms` limits the time to the cut if the power
/// of the disk does not stop the guest.
fn cut_rounds(
    running: &mut Running,
    disk: &Disk,
    flash_ms: Option<usize>,
    rounds: &mut Vec<Round>,
    emit: Emit<'_>,
) -> Result<Option<(Round, usize)>> {
    let mut round = None;
    let mut operations = 0;
    let mut cut_at = None;
    let mut down_by = None;
    loop {
        match running.poll()? {
            Some(Message::Result(Answer::Line(line))) => emit(&line)?,
            Some(Message::Result(Answer::Prepared)) => {
                let current = rounds.remove(0);
                let mut rng = Rng::new(!current.seed);
                let write = 1 + rng.below(CUT_WITHIN) as u64;
                disk.set(DiskFault::Cut { write, lies: false }, rng.draw());
                let delay = flash_ms.map(|ms| Duration::from_millis(rng.below(ms) as u64));
                cut_at = Some(Instant::now() + delay.unwrap_or(CUT_AFTER));
                (round, operations) = (Some(current), 0);
            }
            Some(Message::Result(Answer::Done(done))) => operations = done,
            Some(Message::Result(Answer::Down)) => {
                (round, cut_at, down_by) = (None, None, None);
                disk.give_power();
            }
            Some(Message::Failed(reason)) => return Err(Error::Command(reason)),
            Some(Message::End) => {
                rounds.clear();
                return Ok(None);
            }
            None => {}
        }
        let is_past = |end: Option<Instant>| end.is_some_and(|end| Instant::now() > end);
        if is_past(cut_at) {
            disk.cut();
        }
        if !disk.has_power() && down_by.is_none() {
            let time_limit = flash_ms.map_or(DOWN_WITHIN, |_| Duration::ZERO);
            down_by = Some(Instant::now() + time_limit);
        }
        if is_past(down_by) {
            return Ok(round.map(|round| (round, operations)));
        }
    }
}
