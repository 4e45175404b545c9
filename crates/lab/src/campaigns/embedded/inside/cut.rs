//! Loads with a power cut, and the judgement after it.

use super::super::kind::Kind;
use super::job::{Answer, Reason, Round};
use crate::campaigns::power_loss::load::{self as workload, NEVER_WRITTEN, Pace, Promise};
use crate::campaigns::power_loss::outcome::{Failure, Outcome};
use crate::guest::inside::{self, POINT, Port, detach, disk};
use crate::record::{Line, Note, Sample, labels};
use crate::{Error, Result};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Mount point on which a load is replayed in memory.
const REPLAY: &str = "/replay";
/// Operations after the last reported one that may have begun before a power cut.
const UNREPORTED: usize = 256;

/// File that starts the power cut emulation of UBIFS on the first volume of the first device. It cuts after a random
/// number of writes or a random time, and stores a part of the last write.
const UBIFS_CUT: &str = "/sys/kernel/debug/ubifs/ubi0_0/tst_recovery";
/// Time after which a load begins again because UBIFS has not cut the power, and the largest number of loads.
const UBIFS_PATIENCE: Duration = Duration::from_secs(15);
const UBIFS_LOADS: usize = 12;
/// Interval at which the guest looks for the power.
const POLL: Duration = Duration::from_millis(10);

/// Judges the round that another guest began, then runs the other rounds.
pub(super) fn run(
    kind: Kind,
    begun: Option<(Round, usize)>,
    rounds: &[Round],
    port: &mut Port,
) -> Result<()> {
    let device = first_device(kind).map_err(Error::Command)?;
    if let Some((round, operations)) = begun {
        let promise = replay(round, operations)?;
        judge(kind, &device, round, operations, &promise, port)?;
    }
    if kind == Kind::Ubifs {
        let debug = "/sys/kernel/debug";
        inside::attach("debugfs", "debugfs", debug, "", false).map_err(Error::Command)?;
    }
    for &round in rounds {
        let (promise, operations) = match kind {
            Kind::Ubifs => ubifs_load(&device, round)?,
            _ => load(kind, &device, round, port)?,
        };
        judge(kind, &device, round, operations, &promise, port)?;
    }
    Ok(())
}

/// Formats the device, runs a load until the power is cut, unmounts the filesystem and waits for the power. Returns
/// the promise of the load and the number of its operations.
fn load(kind: Kind, device: &str, round: Round, port: &mut Port) -> Result<(Promise, usize)> {
    let mounted = kind.format(device).and_then(|()| kind.mount(device, POINT));
    mounted.map_err(Error::Command)?;
    let mut rng = Rng::new(round.seed);
    let mut promise = workload::prepare(Path::new(POINT), &mut rng)?;
    port.send(&Answer::Prepared)?;
    let mut operations = 0;
    // The disk without power returns errors, which end the load.
    let _ = promise.load(Path::new(POINT), round.pace(), &mut rng, |done| {
        operations = done;
        port.send(&Answer::Done(done)).is_ok()
    });
    kind.unmount(device, POINT).map_err(Error::Command)?;
    port.send(&Answer::Down)?;
    let has_power = || File::open(device)?.read_exact(&mut [0; 4096]);
    while has_power().is_err() {
        std::thread::sleep(POLL);
    }
    // The kernel reports an error of writeback to the next fsync, even after the power is back.
    let _ = File::open(device).and_then(|file| file.sync_all());
    Ok((promise, operations))
}

/// Formats the flash and runs a load until UBIFS emulates a power cut, after which it refuses writes. Returns the promise of
/// the load and the number of its operations.
fn ubifs_load(device: &str, round: Round) -> Result<(Promise, usize)> {
    let kind = Kind::Ubifs;
    for _ in 0..UBIFS_LOADS {
        let mounted = kind.format(device).and_then(|()| kind.mount(device, POINT));
        mounted.map_err(Error::Command)?;
        let mut rng = Rng::new(round.seed);
        let mut promise = workload::prepare(Path::new(POINT), &mut rng)?;
        fs::write(UBIFS_CUT, "1").map_err(|e| Error::io("write", Path::new(UBIFS_CUT), e))?;
        let begun = Instant::now();
        let mut operations = 0;
        let loaded = promise.load(Path::new(POINT), round.pace(), &mut rng, |done| {
            operations = done;
            begun.elapsed() < UBIFS_PATIENCE
        });
        kind.unmount(device, POINT).map_err(Error::Command)?;
        if loaded.is_err() {
            return Ok((promise, operations));
        }
    }
    let text = "UBIFS emulated no power cut in time".to_owned();
    Err(Error::Command(text))
}

impl Round {
    fn pace(self) -> Pace {
        match self.synced {
            true => Pace::Sync,
            false => Pace::Async,
        }
    }
}

/// Determines the outcome of a power cut and sends it.
fn judge(
    kind: Kind,
    device: &str,
    round: Round,
    operations: usize,
    promise: &Promise,
    port: &mut Port,
) -> Result<()> {
    let (outcome, found) = outcome(kind, device, promise);
    let failure = match round.synced {
        true => Failure::CutSync,
        false => Failure::CutAsync,
    };
    let cell = labels([
        ("failure", failure.name()),
        ("filesystem", kind.name()),
        ("outcome", outcome.name()),
    ]);
    if let Some(found) = found {
        let (cell, text) = (cell.clone(), format!("seed {}: {found}", round.seed));
        port.send(&Answer::Line(Line::Note(Note { cell, text })))?;
    }
    port.send(&Answer::Line(Line::Sample(Sample {
        cell,
        round: round.number,
        // A count is far below the limit of exact numbers.
        values: [("operations".to_owned(), operations as f64)].into(),
    })))
}

/// Returns the device of a load: the first disk, or an MTD partition on the memory region.
fn first_device(kind: Kind) -> Reason<String> {
    match kind {
        Kind::Ubifs => return Ok("0".to_owned()),
        Kind::Jffs2 => {}
        _ => return Ok(disk(0)),
    }
    for entry in fs::read_dir("/sys/bus/pci/devices")
        .map_err(|e| e.to_string())?
        .flatten()
    {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("vendor").trim() != "0x1af4" || read("device").trim() != "0x1110" {
            continue;
        }
        fs::write(entry.path().join("enable"), "1")
            .map_err(|e| format!("enable the region: {e}"))?;
        let resources = read("resource");
        // The third line is the memory itself: first and last address.
        let line = resources.lines().nth(2).unwrap_or_default();
        let mut ends = line
            .split(' ')
            .filter_map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok());
        let (Some(start), Some(end)) = (ends.next(), ends.next()) else {
            return Err("the region has no address".to_owned());
        };
        let flash = format!("flash,{start:#x},{:#x},0x20000", end - start + 1);
        fs::write("/sys/module/phram/parameters/phram", flash)
            .map_err(|e| format!("phram: {e}"))?;
        return Ok("0".to_owned());
    }
    Err("the memory region is missing".to_owned())
}

/// Determines the outcome of a power cut, and the first deviation.
fn outcome(kind: Kind, device: &str, promise: &Promise) -> (Outcome, Option<String>) {
    let found = match look(kind, device, promise) {
        Ok((None, None)) => match kind.check(device, "") {
            None | Some(Ok(())) => return (Outcome::Clean, None),
            Some(Err(found)) => {
                let repaired = kind.repair(device, false).is_some_and(|r| r.is_ok());
                if repaired && matches!(look(kind, device, promise), Ok((None, None))) {
                    return (Outcome::AutoFixed, Some(found));
                }
                found
            }
        },
        Ok((None, Some(silent))) if silent.contains(NEVER_WRITTEN) => {
            return (Outcome::Silent, Some(silent));
        }
        Ok((told, silent)) => told.or(silent).unwrap_or_default(),
        Err(refused) => refused,
    };
    let repaired = kind.repair(device, true);
    let after = match (&repaired, look(kind, device, promise)) {
        (Some(Ok(())), Ok((None, None))) => return (Outcome::NeedsFsck, Some(found)),
        (_, Ok((None, Some(_)))) => return (Outcome::Silent, Some(found)),
        (_, Ok((told, _))) => told.unwrap_or_default(),
        (_, Err(refused)) => refused,
    };
    let found = format!("{found}; after repair {after}");
    (Outcome::Fatal, Some(found))
}

/// Repeats a load in memory to learn what it promised. Operations that may have begun promise nothing.
fn replay(round: Round, operations: usize) -> Result<Promise> {
    fs::create_dir_all(REPLAY).map_err(|e| Error::io("create", Path::new(REPLAY), e))?;
    inside::attach("tmpfs", "tmpfs", REPLAY, "", false).map_err(Error::Command)?;
    let top = Path::new(REPLAY);
    let mut rng = Rng::new(round.seed);
    let mut promise = workload::prepare(top, &mut rng)?;
    let failed = |e| Error::io("replay the load in", top, e);
    promise
        .load(top, round.pace(), &mut rng, |done| done < operations)
        .map_err(failed)?;
    promise
        .load(top, Pace::Never, &mut rng, |done| done < UNREPORTED)
        .map_err(failed)?;
    detach(REPLAY).map_err(Error::Command)?;
    Ok(promise)
}

/// Mounts the filesystem and compares it with the promise. Returns the first reported and the first silent
/// deviation.
fn look(kind: Kind, device: &str, promise: &Promise) -> Reason<(Option<String>, Option<String>)> {
    kind.mount(device, POINT)?;
    let verdict = promise.judge(Path::new(POINT));
    let unmounted = kind.unmount(device, POINT);
    Ok((verdict.told.or(unmounted.err()), verdict.silent))
}
