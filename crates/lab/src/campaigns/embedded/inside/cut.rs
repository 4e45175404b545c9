//! Load before a power cut, and the judgement after it.

use super::super::kind::Kind;
use super::job::{Answer, Reason};
use crate::campaigns::power_loss::load::{self as workload, NEVER_WRITTEN, Pace, Promise};
use crate::campaigns::power_loss::record::Outcome;
use crate::guest::inside::{self, POINT, Port, detach, disk};
use crate::{Error, Result};
use std::fs;
use std::path::Path;
use tuff_testkit::Rng;

/// Mount point on which a load is replayed in memory.
const REPLAY: &str = "/replay";
/// Operations after the last reported one that may have begun before a power cut.
const UNREPORTED: usize = 256;

/// Formats the device and runs a load until the power is cut.
pub(super) fn load(kind: Kind, seed: u64, synced: bool, port: &mut Port) -> Result<()> {
    let device = first_device(kind).map_err(Error::Command)?;
    let mounted = kind
        .format(&device)
        .and_then(|()| kind.mount(&device, POINT));
    mounted.map_err(Error::Command)?;
    let mut rng = Rng::new(seed);
    let mut promise = workload::prepare(Path::new(POINT), &mut rng)?;
    port.send(&Answer::Prepared)?;
    let mut lost = None;
    let ended = promise.load(Path::new(POINT), pace(synced), &mut rng, |done| {
        lost = port.send(&Answer::Done(done)).err();
        lost.is_none()
    });
    // The disk without power returns errors. The host ends this guest.
    ended.map_err(|e| Error::Io("write after the power cut".to_owned(), e))
}

fn pace(synced: bool) -> Pace {
    match synced {
        true => Pace::Sync,
        false => Pace::Async,
    }
}

/// Returns the device of a load: the first disk, or an MTD partition on the memory region.
fn first_device(kind: Kind) -> Reason<String> {
    if !kind.is_flash() {
        return Ok(disk(0));
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

/// Determines the outcome of a power cut.
pub(super) fn judge(
    kind: Kind,
    seed: u64,
    synced: bool,
    operations: usize,
) -> Result<(Outcome, Option<String>)> {
    let device = first_device(kind).map_err(Error::Command)?;
    let promise = replay(seed, synced, operations)?;
    let found = match look(kind, &device, &promise) {
        Ok((None, None)) => match kind.check(&device, "") {
            None | Some(Ok(())) => return Ok((Outcome::Clean, None)),
            Some(Err(found)) => {
                let repaired = kind.repair(&device, false).is_some_and(|r| r.is_ok());
                if repaired && matches!(look(kind, &device, &promise), Ok((None, None))) {
                    return Ok((Outcome::AutoFixed, Some(found)));
                }
                found
            }
        },
        Ok((None, Some(silent))) if silent.contains(NEVER_WRITTEN) => {
            return Ok((Outcome::Silent, Some(silent)));
        }
        Ok((told, silent)) => told.or(silent).unwrap_or_default(),
        Err(refused) => refused,
    };
    let repaired = kind.repair(&device, true);
    let after = match (&repaired, look(kind, &device, &promise)) {
        (Some(Ok(())), Ok((None, None))) => return Ok((Outcome::NeedsFsck, Some(found))),
        (_, Ok((None, Some(_)))) => return Ok((Outcome::Silent, Some(found))),
        (_, Ok((told, _))) => told.unwrap_or_default(),
        (_, Err(refused)) => refused,
    };
    Ok((
        Outcome::Fatal,
        Some(format!("{found}; after repair {after}")),
    ))
}

/// Repeats a load in memory to learn what it promised. Operations that may have begun promise nothing.
fn replay(seed: u64, synced: bool, operations: usize) -> Result<Promise> {
    fs::create_dir_all(REPLAY).map_err(|e| Error::io("create", Path::new(REPLAY), e))?;
    inside::attach("tmpfs", "tmpfs", REPLAY, "", false).map_err(Error::Command)?;
    let top = Path::new(REPLAY);
    let mut rng = Rng::new(seed);
    let mut promise = workload::prepare(top, &mut rng)?;
    let failed = |e| Error::io("replay the load in", top, e);
    promise
        .load(top, pace(synced), &mut rng, |done| done < operations)
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
