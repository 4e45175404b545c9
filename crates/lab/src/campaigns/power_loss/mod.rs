//! The seventh room: what is left when the power goes while somebody writes, and when a disk gets bits wrong.
//!
//! ```text
//!  load ──► filesystem ──► loop device ──► file behind FUSE ──► disk
//!  what is    ours, ext4,     of the kernel    in this process     in memory: forgets what was not flushed,
//!  promised   XFS, Btrfs                                           or flips bits
//! ```
//!
//! A round: a fresh filesystem, a load, a failure, and then what somebody finds who comes back. All filesystems go through the same door; the
//! disk keeps the contract of a disk with a write cache, and no more; one that lies about flushes shows that what is looked for can be found.

mod device;
mod disk;
pub mod kind;
mod load;
pub mod record;
pub mod report;

use crate::measure::machine::Machine;
use crate::measure::stop;
use crate::measure::workspace::Work;
use crate::{Error, Result};
use device::Device;
use disk::{Disk, Fault, Pages, SIZE};
use kind::{KINDS, Kind, Said};
use load::{Pace, Promise, Verdict};
use record::{FAILURES, Failure, Header, Line, Outcome, Round, Without};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// The power goes with one of so many writes.
const CUT_WITHIN: usize = 600;
/// The power goes then, if that write has not come.
const CUT_AFTER: Duration = Duration::from_secs(3);
/// Operations beside which bits are wrong.
const OPERATIONS: usize = 300;
/// Bits begin to be wrong with one of so many writes.
const WRONG_WITHIN: usize = 200;
/// Writes of a burst.
const BURST: u64 = 8;
/// Of those with wrong bits for ever, one in so many.
const ONE_IN: usize = 16;

/// What to do.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Our program.
    pub tuff: PathBuf,
    /// Rounds of each failure on each filesystem.
    pub rounds: u32,
    /// What all chance comes from.
    pub seed: u64,
    /// Only filesystems whose name contains this.
    pub only: Option<String>,
    /// Only these failures; all without any.
    pub failures: Vec<Failure>,
    /// Folder for mount points.
    pub work: PathBuf,
}

impl Conditions {
    /// Which filesystems, and which failures.
    ///
    /// # Errors
    /// If that is nothing, or cannot be done by this user.
    pub fn plan(&self) -> Result<(Vec<Kind>, Vec<Failure>)> {
        let only = self.only.as_deref().unwrap_or_default().to_lowercase();
        let chosen = KINDS
            .into_iter()
            .filter(|kind| kind.name().to_lowercase().contains(&only));
        let kinds: Vec<Kind> = chosen.collect();
        if kinds.is_empty() {
            let names = KINDS.map(Kind::name).join(", ");
            return Err(Error::Usage(format!(
                "nothing to do: no filesystem has a name that contains what --only says; there are {names}"
            )));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage(
                "filesystems are mounted through a loop device, which takes root".to_owned(),
            ));
        }
        let failures = match self.failures.as_slice() {
            [] => FAILURES.to_vec(),
            some => some.to_vec(),
        };
        Ok((kinds, failures))
    }
}

/// Does all rounds. A filesystem whose program is not there is left out, and said to be.
pub fn run(conditions: &Conditions, emit: &mut dyn FnMut(&Line) -> Result<()>) -> Result<()> {
    let (kinds, failures) = conditions.plan()?;
    let mut bench = Bench::set_up(conditions)?;
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind.version(&conditions.tuff) {
            Some(version) => there.push((kind, version)),
            None => missing.push(Without {
                filesystem: kind,
                reason: format!("{} is not found", kind.program().0),
            }),
        }
    }
    emit(&Line::Header(Header {
        format: crate::record::FORMAT,
        machine: Machine::inspect()?,
        filesystems: there.clone(),
        rounds: conditions.rounds,
        seed: conditions.seed,
    }))?;
    for without in missing {
        emit(&Line::Without(without))?;
    }
    let mut seeds = Rng::new(conditions.seed);
    for round in 1..=conditions.rounds {
        for &failure in &failures {
            // The same for all, so that they see the same load.
            let seed = seeds.draw();
            for &(filesystem, _) in &there {
                stop::check()?;
                let (outcome, found) = bench.round(filesystem, failure, seed)?;
                let (writes, wrong_bits) = bench.counts;
                emit(&Line::Round(Round {
                    round,
                    filesystem,
                    failure,
                    seed,
                    writes,
                    wrong_bits,
                    outcome,
                    found,
                }))?;
            }
        }
    }
    Ok(())
}

/// One disk, on which one filesystem after another is.
struct Bench<'a> {
    conditions: &'a Conditions,
    disk: Arc<Disk>,
    device: Device,
    /// Fresh filesystems, as their makers leave them.
    fresh: HashMap<Kind, Pages>,
    point: PathBuf,
    /// Writes and wrong bits of the last load.
    counts: (u64, u64),
    // Last: its folder goes when nothing is mounted there any more.
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

    /// A fresh filesystem, a failure, and what it came to.
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
        let device = self.device.attach(kind.is_thin())?;
        kind.make(&self.conditions.tuff, device.path())?;
        drop(device);
        self.flush();
        self.fresh.insert(kind, self.disk.flushed());
        Ok(())
    }

    /// Has the disk keep what it holds; one without power keeps what survived.
    fn flush(&self) {
        if self.disk.has_power() {
            // refused only without power
            let _ = self.disk.flush();
        }
    }

    /// Loads it until the failure is over, and leaves it unmounted.
    fn fail(&self, kind: Kind, failure: Failure, seed: u64) -> Result<Promise> {
        let (tuff, point) = (&self.conditions.tuff, &self.point);
        let mut rng = Rng::new(seed);
        let device = self.device.attach(kind.is_thin())?;
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

    /// What somebody finds who comes back.
    fn judge(&self, kind: Kind, promise: &Promise) -> Result<(Outcome, Option<String>)> {
        let tuff = &self.conditions.tuff;
        let first = match self.look(kind, promise)? {
            Ok(verdict) if verdict.right() => {
                let device = self.device.attach(kind.is_thin())?;
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
            // Wrong bytes count even where other files answer with errors.
            Ok(Verdict {
                silent: Some(what), ..
            }) if what.contains("nobody wrote") => return Ok((Outcome::Silent, Some(what))),
            Ok(Verdict { told, .. }) => told.unwrap_or_default(),
            Err(refused) => refused,
        };
        let device = self.device.attach(kind.is_thin())?;
        let repaired = kind.repair(tuff, device.path())?;
        drop(device);
        // What a repair that fails leaves may be right nevertheless; it is not trusted.
        let after = match (repaired, self.look(kind, promise)?) {
            (Said::Fine, Ok(verdict)) if verdict.right() => {
                return Ok((Outcome::NeedsFsck, Some(first)));
            }
            (Said::Wrong(what), _) => what,
            (_, Ok(Verdict { told, silent })) => {
                let loud = told.is_some();
                let what = told.or(silent).unwrap_or_default();
                if !loud && what.contains("nobody wrote") {
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

    /// Mounts it, reads everything, unmounts it. The inner error says why it does not mount.
    fn look(&self, kind: Kind, promise: &Promise) -> Result<Result<Verdict, String>> {
        let (tuff, point) = (&self.conditions.tuff, &self.point);
        let device = self.device.attach(kind.is_thin())?;
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

/// The place of the failure, which chance decides.
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
