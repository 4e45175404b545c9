//! Loads with a power cut, and the judgement after it.

use super::job::{Answer, Reason, Round};
use crate::campaigns::power_loss::load::{self as workload, Pace, Promise};
use crate::campaigns::power_loss::outcome::{Failure, Outcome};
use crate::engines::filesystem::{Filesystem, Place, attach, detach};
use crate::guest::inside::{POINT, Port, disk};
use crate::record::{Line, labels};
use crate::{At, Error, Result};
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
    kind: Filesystem,
    started: Option<(Round, usize)>,
    rounds: &[Round],
    port: &mut Port,
) -> Result<()> {
    let place = Place {
        kind,
        tuff: Path::new(""),
        device: &first_device(kind).map_err(Error::Command)?,
        point: POINT,
    };
    if let Some((round, operations)) = started {
        let promise = replay(round, operations)?;
        judge(&place, round, operations, &promise, port)?;
    }
    if kind == Filesystem::Ubifs {
        let debug = "/sys/kernel/debug";
        attach("debugfs", "debugfs", debug, "", false).map_err(Error::Command)?;
    }
    for &round in rounds {
        let (promise, operations) = match kind {
            Filesystem::Ubifs => ubifs_load(&place, round)?,
            _ => load(&place, round, port)?,
        };
        judge(&place, round, operations, &promise, port)?;
    }
    Ok(())
}

/// Formats the device, runs a load until the power is cut, unmounts the filesystem and waits for the power. Returns
/// the promise of the load and the number of its operations.
fn load(place: &Place<'_>, round: Round, port: &mut Port) -> Result<(Promise, usize)> {
    let device = place.device;
    let mounted = place.make().and_then(|()| place.mount(""));
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
    place.unmount().map_err(Error::Command)?;
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
fn ubifs_load(place: &Place<'_>, round: Round) -> Result<(Promise, usize)> {
    for _ in 0..UBIFS_LOADS {
        let mounted = place.make().and_then(|()| place.mount(""));
        mounted.map_err(Error::Command)?;
        let mut rng = Rng::new(round.seed);
        let mut promise = workload::prepare(Path::new(POINT), &mut rng)?;
        fs::write(UBIFS_CUT, "1").at("write", Path::new(UBIFS_CUT))?;
        let started = Instant::now();
        let mut operations = 0;
        let loaded = promise.load(Path::new(POINT), round.pace(), &mut rng, |done| {
            operations = done;
            started.elapsed() < UBIFS_PATIENCE
        });
        place.unmount().map_err(Error::Command)?;
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
    place: &Place<'_>,
    round: Round,
    operations: usize,
    promise: &Promise,
    port: &mut Port,
) -> Result<()> {
    let (outcome, found) = Outcome::determine(place, promise);
    let failure = match round.synced {
        true => Failure::CutSync,
        false => Failure::CutAsync,
    };
    let cell = labels([
        ("failure", failure.name()),
        ("filesystem", place.kind.name()),
        ("outcome", outcome.name()),
    ]);
    if let Some(found) = found {
        let text = format!("seed {}: {found}", round.seed);
        port.send(&Answer::Line(Line::note(cell.clone(), text)))?;
    }
    // A count is far below the limit of exact numbers.
    let values = [("operations", operations as f64)];
    port.send(&Answer::Line(Line::sample(cell, round.number, values)))
}

/// Returns the device of a load: the first disk, or an MTD partition on the memory region.
fn first_device(kind: Filesystem) -> Reason<String> {
    match kind {
        Filesystem::Ubifs => return Ok("0".to_owned()),
        Filesystem::Jffs2 => {}
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

/// Repeats a load in memory to learn what it promised. Operations that may have begun promise nothing.
fn replay(round: Round, operations: usize) -> Result<Promise> {
    fs::create_dir_all(REPLAY).at("create", Path::new(REPLAY))?;
    attach("tmpfs", "tmpfs", REPLAY, "", false).map_err(Error::Command)?;
    let top = Path::new(REPLAY);
    let mut rng = Rng::new(round.seed);
    let mut promise = workload::prepare(top, &mut rng)?;
    promise
        .load(top, round.pace(), &mut rng, |done| done < operations)
        .at("replay the load in", top)?;
    promise
        .load(top, Pace::Never, &mut rng, |done| done < UNREPORTED)
        .at("replay the load in", top)?;
    detach(REPLAY).map_err(Error::Command)?;
    Ok(promise)
}
