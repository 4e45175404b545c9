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

pub(super) mod device;
pub(super) mod disk;
pub mod kind;
pub(super) mod load;
pub mod outcome;
pub(crate) mod report;

use crate::measure::stop;
use crate::measure::workspace::Work;
use crate::record::{Header, Line, Note, Sample, labels};
use crate::{Error, Result};
use device::Device;
use disk::{Disk, Fault, Pages, SIZE};
use kind::{KINDS, Kind, Said};
use load::{NEVER_WRITTEN, Pace, Promise, Verdict};
use outcome::{FAILURES, Failure, Outcome};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

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

/// Selection and settings of a test.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Path of the program `tuff`.
    pub tuff: PathBuf,
    /// Rounds of each failure on each filesystem.
    pub rounds: u32,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Selects filesystems whose name contains this text. None selects all.
    pub only: Option<String>,
    /// Failures to inject. Empty selects all.
    pub failures: Vec<Failure>,
    /// Folder in which mount points are created.
    pub work: PathBuf,
}

impl Conditions {
    /// Returns the selected filesystems and failures.
    ///
    /// # Errors
    /// `Usage` if no filesystem is selected or the user is not root.
    pub fn plan(&self) -> Result<(Vec<Kind>, Vec<Failure>)> {
        let only = self.only.as_deref().unwrap_or_default().to_lowercase();
        let chosen = KINDS
            .into_iter()
            .filter(|kind| kind.name().to_lowercase().contains(&only));
        let kinds: Vec<Kind> = chosen.collect();
        if kinds.is_empty() {
            let names = KINDS.map(Kind::name).join(", ");
            return Err(Error::Usage(format!(
                "--only matches no filesystem; available: {names}"
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage("loop devices and mounts need root".to_owned()));
        }
        let failures = match self.failures.as_slice() {
            [] => FAILURES.to_vec(),
            some => some.to_vec(),
        };
        Ok((kinds, failures))
    }
}

/// Runs all rounds. A filesystem whose program is missing is left out and recorded as such. Returns a description
/// of the first round in which a volume failed.
pub fn run(
    conditions: &Conditions,
    emit: &mut dyn FnMut(&Line) -> Result<()>,
) -> Result<Option<String>> {
    let (kinds, failures) = conditions.plan()?;
    let mut bench = Bench::set_up(conditions)?;
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind.version(&conditions.tuff) {
            Some(version) => there.push((kind, version)),
            None => missing.push(Line::Failure(Note {
                cell: labels([("filesystem", kind.name())]),
                text: format!("{} is not found", kind.program().0),
            })),
        }
    }
    let versions: Vec<&str> = there.iter().map(|(_, version)| version.as_str()).collect();
    let settings = [
        ("programs", versions.join("; ")),
        ("rounds", conditions.rounds.to_string()),
        ("seed", conditions.seed.to_string()),
    ];
    emit(&Line::Header(Header::here("power-loss", settings)?))?;
    missing.iter().try_for_each(&mut *emit)?;
    let mut seeds = Rng::new(conditions.seed);
    let mut failed = None;
    for round in 1..=conditions.rounds {
        for &failure in &failures {
            // All filesystems of a round get the same seed and therefore the same load.
            let seed = seeds.draw();
            for (filesystem, _) in &there {
                stop::check()?;
                let (outcome, found) = bench.round(*filesystem, failure, seed)?;
                let (writes, wrong_bits) = bench.counts;
                let cell = labels([
                    ("failure", failure.name()),
                    ("filesystem", filesystem.name()),
                    ("outcome", outcome.name()),
                ]);
                let values = [("writes", writes), ("wrong_bits", wrong_bits)];
                emit(&Line::Sample(Sample {
                    cell: cell.clone(),
                    round,
                    // Counts are far below the limit of exact numbers.
                    values: values.map(|(name, v)| (name.to_owned(), v as f64)).into(),
                }))?;
                let text = format!(
                    "round {round}, seed {seed}: {}",
                    found.as_deref().unwrap_or("no deviation")
                );
                if *filesystem == Kind::Volume && !failure.permits(outcome) {
                    let (failure, outcome) = (failure.name(), outcome.name());
                    failed.get_or_insert(format!("{failure}: {outcome}, {text}"));
                }
                if found.is_some() {
                    emit(&Line::Note(Note { cell, text }))?;
                }
            }
        }
    }
    Ok(failed)
}

/// Disk that holds the filesystem under test, one after another.
struct Bench<'a> {
    conditions: &'a Conditions,
    disk: Arc<Disk>,
    device: Device,
    /// Content of the disk after mkfs, by filesystem.
    fresh: HashMap<Kind, Pages>,
    point: PathBuf,
    /// Writes and wrong bits of the last load.
    counts: (u64, u64),
    // Dropped last: its folder is removed after everything in it was unmounted.
    _work: Work,
}

impl<'a> Bench<'a> {
    fn set_up(conditions: &'a Conditions) -> Result<Self> {
        let work = Work::create(&conditions.work)?;
        let (point, folder) = (work.path("mount"), work.path("disk"));
        for path in [&point, &folder] {
            std::fs::create_dir(path).map_err(|e| Error::io("create", path, e))?;
        }
        let disk = Arc::new(Disk::new(SIZE));
        let device = Device::serve(&disk, &folder)?;
        Ok(Self {
            conditions,
            disk,
            device,
            fresh: HashMap::new(),
            point,
            counts: (0, 0),
            _work: work,
        })
    }

    /// Runs a round on a fresh filesystem. Returns the outcome and the first deviation.
    fn round(
        &mut self,
        kind: Kind,
        failure: Failure,
        seed: u64,
    ) -> Result<(Outcome, Option<String>)> {
        self.make(kind)?;
        let promise = self.fail(kind, failure, seed)?;
        self.counts = self.disk.counts();
        self.disk.give_power();
        self.judge(kind, &promise)
    }

    fn make(&mut self, kind: Kind) -> Result<()> {
        if let Some(pages) = self.fresh.get(&kind) {
            self.disk.reset(pages);
            return Ok(());
        }
        self.disk.reset(&Pages::new());
        let device = self.device.attach()?;
        kind.make(&self.conditions.tuff, device.path())?;
        drop(device);
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
    fn fail(&self, kind: Kind, failure: Failure, seed: u64) -> Result<Promise> {
        let (tuff, point) = (&self.conditions.tuff, &self.point);
        let mut rng = Rng::new(seed);
        let device = self.device.attach()?;
        if let Said::Wrong(what) = kind.mount(tuff, device.path(), point)? {
            return Err(Error::Command(format!(
                "a fresh {} does not mount: {what}",
                kind.name()
            )));
        }
        let prepared = load::prepare(point, &mut rng);
        let mut promise = match prepared {
            Ok(promise) => promise,
            Err(e) => {
                kind.unmount(tuff, point)?;
                return Err(e);
            }
        };
        self.disk.set(fault(failure, &mut rng), rng.draw());
        let begun = Instant::now();
        let pace = match failure {
            Failure::CutAsync => Pace::Async,
            _ => Pace::Sync,
        };
        let loaded = promise.load(point, pace, &mut rng, |done| match failure.is_cut() {
            true => self.disk.has_power() && begun.elapsed() < CUT_AFTER,
            false => done < OPERATIONS,
        });
        if failure.is_cut() {
            self.disk.cut();
        }
        let unmounted = kind.unmount(tuff, point)?;
        drop(device);
        if !failure.is_cut() && loaded.is_ok() && unmounted.fine() {
            promise.settle();
        }
        self.flush();
        Ok(promise)
    }

    /// Determines the outcome of a round after the power is back.
    fn judge(&self, kind: Kind, promise: &Promise) -> Result<(Outcome, Option<String>)> {
        let tuff = &self.conditions.tuff;
        let first = match self.look(kind, promise)? {
            Ok(verdict) if verdict.right() => {
                let device = self.device.attach()?;
                let Said::Wrong(found) = kind.check(tuff, device.path())? else {
                    return Ok((Outcome::Clean, None));
                };
                let mended = kind.mend(tuff, device.path(), &self.point)?;
                if mended.fine() && kind.check(tuff, device.path())?.fine() {
                    drop(device);
                    let right = self.look(kind, promise)?.is_ok_and(|v| v.right());
                    if right {
                        return Ok((Outcome::AutoFixed, Some(found)));
                    }
                }
                found
            }
            Ok(Verdict {
                told: None,
                silent: Some(what),
            }) => return Ok((Outcome::Silent, Some(what))),
            // Wrong bytes count even if other files return errors.
            Ok(Verdict {
                silent: Some(what), ..
            }) if what.contains(NEVER_WRITTEN) => return Ok((Outcome::Silent, Some(what))),
            Ok(Verdict { told, .. }) => told.unwrap_or_default(),
            Err(refused) => refused,
        };
        let device = self.device.attach()?;
        let repaired = kind.repair(tuff, device.path())?;
        drop(device);
        // The result of a failed repair is not trusted, even if the content is right.
        let after = match (repaired, self.look(kind, promise)?) {
            (Said::Fine, Ok(verdict)) if verdict.right() => {
                return Ok((Outcome::NeedsFsck, Some(first)));
            }
            (Said::Wrong(what), _) => what,
            (_, Ok(Verdict { told, silent })) => {
                let loud = told.is_some();
                let what = told.or(silent).unwrap_or_default();
                if !loud && what.contains(NEVER_WRITTEN) {
                    let found = format!("{first}; after repair {what}");
                    return Ok((Outcome::Silent, Some(found)));
                }
                what
            }
            (_, Err(refused)) => refused,
        };
        Ok((
            Outcome::Fatal,
            Some(format!("{first}; after repair {after}")),
        ))
    }

    /// Mounts the filesystem, verifies everything and unmounts it. The inner error is the reason of a failed
    /// mount.
    fn look(&self, kind: Kind, promise: &Promise) -> Result<Result<Verdict, String>> {
        let (tuff, point) = (&self.conditions.tuff, &self.point);
        let device = self.device.attach()?;
        if let Said::Wrong(what) = kind.mount(tuff, device.path(), point)? {
            return Ok(Err(what));
        }
        let mut verdict = promise.judge(point);
        if let Said::Wrong(what) = kind.unmount(tuff, point)? {
            verdict.told.get_or_insert(what);
        }
        Ok(Ok(verdict))
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
