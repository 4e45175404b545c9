//! Power-loss and bit-error tests of volumes, ext4, XFS and Btrfs: verify the content after a power cut
//! during writes, and after the disk stored wrong bits.
//!
//! ```text
//!  load ──► filesystem ──► loop device ──► FUSE file ──► disk
//!  records    volume, ext4,   of the kernel    served by       in memory: loses unflushed writes
//!  promises   XFS, Btrfs                       this process    or flips bits
//! ```
//!
//! A round creates a filesystem, runs a load, injects a failure, mounts the filesystem again and verifies the
//! content. All filesystems use the same disk, which has exactly the guarantees of a disk with a write cache.
//! The failure [`Failure::CutLying`] ignores flushes: it proves that the test detects losses.

pub(super) mod disk;
pub(super) mod disk_file;
pub(super) mod load;
pub mod outcome;
pub(crate) mod report;

use crate::engines::filesystem::{Filesystem, Place};
use crate::engines::{search, version};
use crate::measure::device::Device;
use crate::measure::stop;
use crate::measure::workspace::Work;
use crate::options::{Emit, Options, need_root, select};
use crate::record::{Header, Line, labels};
use crate::{At, Error, Result};
use clap::ValueEnum as _;
use disk::{Disk, Fault, Pages, SIZE};
use disk_file::DiskFile;
use load::{Pace, Promise};
use outcome::{Failure, Outcome};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// All filesystems in the order of tables.
const FILESYSTEMS: [Filesystem; 4] = [
    Filesystem::Volume,
    Filesystem::Ext4,
    Filesystem::Xfs,
    Filesystem::Btrfs,
];
/// Upper bound of the write at which the power is cut.
const CUT_WITHIN: usize = 600;
/// Time after which the power is cut if that write was not reached.
const CUT_AFTER: Duration = Duration::from_secs(3);
/// Operations of a load with bit errors.
const OPERATIONS: usize = 300;
/// Upper bound of the number of writes before the first bit error.
const WRONG_WITHIN: usize = 200;
/// Consecutive writes with a bit error in [`Failure::BitsBurst`].
const BURST: u64 = 8;
/// In [`Failure::BitsForever`], one write in this many has a bit error.
const ONE_IN: usize = 16;

/// Simulate power cuts and bit errors during writes: volumes compared with ext4, XFS and Btrfs
///
/// Each round creates a filesystem on a simulated disk that loses unflushed writes or flips bits. The filesystem is then
/// mounted, compared with the data that must have survived, checked, and repaired if necessary. Writes a record and prints its
/// table. Exit code 1 if a volume is not clean after a cut, or returns wrong data without an error. Requires root for the loop
/// device.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Number of rounds for each failure and filesystem
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 20)]
    pub rounds: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Test only filesystems whose name contains TEXT: volume, ext4, XFS, Btrfs
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Test only this failure; may be repeated
    #[arg(long, value_name = "NAME")]
    pub failure: Vec<Failure>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Runs all rounds. A filesystem whose program is missing is left out and recorded as such. Returns false if a volume failed.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let only = conditions.only.as_ref();
    let kinds = select(&FILESYSTEMS, |kind| kind.name().to_owned(), "--only", only)?;
    need_root("the loop device")?;
    let failures = match conditions.failure.as_slice() {
        [] => Failure::value_variants().to_vec(),
        some => some.to_vec(),
    };
    let tuff = conditions.options.need("tuff")?;
    let (mut present, mut versions) = (Vec::new(), Vec::new());
    let mut missing = Vec::new();
    for kind in kinds {
        let program = match kind {
            Filesystem::Volume => Some(tuff.clone()),
            _ => kind.maker().and_then(search),
        };
        match program {
            Some(program) => {
                present.push(kind);
                versions.push(version(&program));
            }
            None => missing.push(Line::failure(
                labels([("filesystem", kind.name())]),
                format!("{} is not found", kind.maker().unwrap_or_default()),
            )),
        }
    }
    let settings = [
        ("programs", versions.join("; ")),
        ("rounds", conditions.rounds.to_string()),
        ("seed", conditions.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("power-loss", settings)?))?;
    missing.iter().try_for_each(&mut *emit)?;
    let mut bench = Bench::set_up(tuff, conditions.options.work())?;
    let mut seeds = Rng::new(conditions.seed);
    let mut fine = true;
    for round in 1..=conditions.rounds {
        for &failure in &failures {
            // All filesystems of a round get the same seed and therefore the same load.
            let seed = seeds.draw();
            for &kind in &present {
                stop::check()?;
                let (outcome, found) = bench.round(kind, failure, seed)?;
                let (writes, wrong_bits) = bench.counts;
                let cell = labels([
                    ("failure", failure.name()),
                    ("filesystem", kind.name()),
                    ("outcome", outcome.name()),
                ]);
                // Counts are far below the limit of exact numbers.
                let values = [("writes", writes as f64), ("wrong_bits", wrong_bits as f64)];
                emit(&Line::sample(cell.clone(), round, values))?;
                let Some(found) = found else { continue };
                let text = format!("round {round}, seed {seed}: {found}");
                if kind == Filesystem::Volume && !failure.permits(outcome) {
                    let (failure, outcome) = (failure.name(), outcome.name());
                    eprintln!("tuff-lab: a volume failed: {failure}: {outcome}, {text}");
                    fine = false;
                }
                emit(&Line::note(cell, text))?;
            }
        }
    }
    Ok(fine)
}

/// Disk that holds the filesystem under test, one after another.
struct Bench {
    tuff: PathBuf,
    disk: Arc<Disk>,
    file: DiskFile,
    /// Content of the disk after mkfs, by filesystem.
    fresh: HashMap<Filesystem, Pages>,
    point: String,
    /// Writes and wrong bits of the last load.
    counts: (u64, u64),
    // Dropped last: its folder is removed after everything in it was unmounted.
    _work: Work,
}

impl Bench {
    fn set_up(tuff: PathBuf, work: &Path) -> Result<Self> {
        let work = Work::create(work)?;
        let (point, folder) = (work.path("mount"), work.path("disk"));
        for path in [&point, &folder] {
            std::fs::create_dir(path).at("create", path)?;
        }
        let disk = Arc::new(Disk::new(SIZE));
        let file = DiskFile::serve(&disk, &folder)?;
        Ok(Self {
            tuff,
            disk,
            file,
            fresh: HashMap::new(),
            point: point.to_string_lossy().into_owned(),
            counts: (0, 0),
            _work: work,
        })
    }

    /// Calls `what` with a filesystem on a new loop device.
    fn on<T>(&self, kind: Filesystem, what: impl FnOnce(&Place<'_>) -> T) -> Result<T> {
        let device = Device::attach(&self.file.path(), &[])?;
        Ok(what(&Place {
            kind,
            tuff: &self.tuff,
            device: &device.path().to_string_lossy(),
            point: &self.point,
        }))
    }

    /// Runs a round on a fresh filesystem. Returns the outcome and the first deviation.
    fn round(
        &mut self,
        kind: Filesystem,
        failure: Failure,
        seed: u64,
    ) -> Result<(Outcome, Option<String>)> {
        self.make(kind)?;
        let promise = self.on(kind, |place| self.fail(place, failure, seed))??;
        self.flush();
        self.counts = self.disk.counts();
        self.disk.give_power();
        self.on(kind, |place| Outcome::determine(place, &promise))
    }

    fn make(&mut self, kind: Filesystem) -> Result<()> {
        if let Some(pages) = self.fresh.get(&kind) {
            self.disk.reset(pages);
            return Ok(());
        }
        self.disk.reset(&Pages::new());
        let made = self.on(kind, |place| place.make())?;
        made.map_err(|what| Error::Command(format!("cannot create {}: {what}", kind.name())))?;
        self.flush();
        self.fresh.insert(kind, self.disk.flushed());
        Ok(())
    }

    /// Flushes the disk. Without power it keeps what survived.
    fn flush(&self) {
        if self.disk.has_power() {
            // refused only without power
            let _ = self.disk.flush();
        }
    }

    /// Runs a load with a failure and leaves the filesystem unmounted. Returns the promises of the load.
    fn fail(&self, place: &Place<'_>, failure: Failure, seed: u64) -> Result<Promise> {
        let point = Path::new(place.point);
        let mut rng = Rng::new(seed);
        place.mount("").map_err(|what| {
            let name = place.kind.name();
            Error::Command(format!("a fresh {name} does not mount: {what}"))
        })?;
        let prepared = load::prepare(point, &mut rng);
        let mut promise = match prepared {
            Ok(promise) => promise,
            Err(e) => {
                place.unmount().map_err(Error::Command)?;
                return Err(e);
            }
        };
        self.disk.set(fault(failure, &mut rng), rng.draw());
        let start = Instant::now();
        let pace = match failure {
            Failure::CutAsync => Pace::Async,
            _ => Pace::Sync,
        };
        let loaded = promise.load(point, pace, &mut rng, |done| match failure.is_cut() {
            true => self.disk.has_power() && start.elapsed() < CUT_AFTER,
            false => done < OPERATIONS,
        });
        if failure.is_cut() {
            self.disk.cut();
        }
        let unmounted = place.unmount();
        if !failure.is_cut() && loaded.is_ok() && unmounted.is_ok() {
            promise.settle();
        }
        Ok(promise)
    }
}

/// Draws the position of a failure.
fn fault(failure: Failure, rng: &mut Rng) -> Fault {
    match failure {
        Failure::CutSync | Failure::CutAsync | Failure::CutLying => Fault::Cut {
            write: 1 + rng.below(CUT_WITHIN) as u64,
            lies: failure == Failure::CutLying,
        },
        Failure::BitsForever => Fault::Bits {
            from: rng.below(WRONG_WITHIN) as u64,
            to: u64::MAX,
            one_in: ONE_IN,
        },
        Failure::BitsBurst => {
            let from = rng.below(WRONG_WITHIN) as u64;
            Fault::Bits {
                from,
                to: from + BURST,
                one_in: 1,
            }
        }
    }
}
