//! Scenarios that need a discard rule which no crash of a small workload exercises. Each is a property that a correct
//! volume has, and a volume without the rule violates. The rules are in docs/design/discard.md.

use crate::oracle::Failure;
use crate::workload::{Op, at, base};
use std::sync::Arc;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{
    BlockAddr, BlockDevice, Caller, CheckOptions, DiscardRule, Errno, Error, FormatOptions,
    Geometry, MountOptions, Nid, SetAttr, Time, Volume, check, mode,
};

const CALLER: Caller = Caller {
    now: Time { sec: 7, nsec: 0 },
    uid: 0,
    gid: 0,
};

fn geometry() -> Geometry {
    Geometry {
        area_bits: 29,
        section_bits: 8,
        zone_bits: 4,
        pack_blocks: 4,
    }
}

fn format(device: &Arc<MemDevice>) -> Result<(), Error> {
    let options = FormatOptions {
        geometry: geometry(),
        reserve_blocks: 256,
        ..FormatOptions::new([3; 16], [5; 16], 8192)
    };
    Volume::format(device.clone(), &options)
}

fn mount(device: &Arc<MemDevice>, broken_rule: Option<DiscardRule>) -> Result<Volume, Error> {
    Volume::mount(
        device.clone(),
        MountOptions {
            window_blocks: 1024,
            broken_rule,
            ..MountOptions::default()
        },
    )
}

fn failed(e: Error) -> Failure {
    e.to_string()
}

fn file(volume: &mut Volume, name: &str, blocks: usize, fill: u8) -> Result<Nid, Error> {
    let ino = volume
        .create(Nid::ROOT, name.as_bytes(), mode::FILE | 0o644, 0, &CALLER)?
        .ino;
    volume.write(ino, 0, &vec![fill; blocks * 4096], CALLER.now)?;
    Ok(ino)
}

fn holds(device: &Arc<MemDevice>, granule: u64) -> Result<(), Failure> {
    let dev: Arc<dyn BlockDevice> = device.clone();
    let report = check(
        &dev,
        CheckOptions {
            data: true,
            fallback: false,
        },
    )
    .map_err(failed)?;
    if let Some(finding) = report.findings.first() {
        return Err(finding.to_string());
    }
    let g = geometry();
    let held = dev
        .allocated(g.fixed_end()..7 << g.area_bits)
        .map_err(|e| e.to_string())?;
    // A granule may be held if one of its blocks is reachable, or if the log has not passed it yet.
    let live: std::collections::HashSet<u64> =
        report.reachable.iter().map(|addr| addr / granule).collect();
    let extra: Vec<u64> = held
        .into_iter()
        .flatten()
        .filter(|addr| !live.contains(&(addr / granule)))
        .collect();
    if extra.is_empty() {
        Ok(())
    } else {
        Err(format!("the device still holds {:x?}", extra))
    }
}

/// Rule 2: if the newest checkpoint is damaged, the one before it is intact, whatever was discarded later.
pub fn the_older_checkpoint_stays_intact(broken_rule: Option<DiscardRule>) -> Result<(), Failure> {
    let device = Arc::new(MemDevice::new());
    let run = || -> Result<Vec<u8>, Error> {
        format(&device)?;
        let mut volume = mount(&device, broken_rule)?;
        for (now, op) in base().iter().enumerate() {
            op.volume(&mut volume, now as i64)?;
        }
        volume.sync()?;
        let ino = at(&mut volume, "/b")?;
        let old = volume.read(ino, 0, 9000)?;
        Op::Write("/b", 0, 9000).volume(&mut volume, 50)?;
        Op::Unlink("/big").volume(&mut volume, 51)?;
        volume.sync()?;
        // Damage the body of the pack that this sync wrote.
        let start = geometry().pack_start(volume.checkpoint_pack());
        drop(volume);
        let mut block = vec![0; 4096];
        device
            .read(BlockAddr(start.0 + 2), &mut block)
            .and_then(|()| {
                block[5] ^= 1;
                device.write(BlockAddr(start.0 + 2), &block)
            })
            .map_err(|e| Error::Io(e, "damaging a pack".to_owned()))?;
        Ok(old)
    };
    let old = run().map_err(failed)?;
    match mount(&device, broken_rule) {
        Err(Error::Corrupt(_)) => {}
        Err(e) => return Err(format!("a damaged checkpoint gives {e}")),
        Ok(_) => return Err("a damaged checkpoint is not reported".to_string()),
    }
    let options = MountOptions {
        fallback: true,
        broken_rule,
        ..MountOptions::default()
    };
    let mut volume = Volume::mount(device.clone(), options).map_err(failed)?;
    let ino = at(&mut volume, "/b").map_err(failed)?;
    if volume.read(ino, 0, 9000).map_err(failed)? != old {
        return Err("/b differs from the older checkpoint".to_string());
    }
    at(&mut volume, "/big").map_err(failed)?;
    volume.drain().map_err(failed)?;
    drop(volume);
    holds(&device, 1)
}

/// Rule 5: a reader that has resolved its addresses reads the bytes that it resolved, whatever is overwritten and
/// drained meanwhile.
pub fn readers_see_the_bytes_they_resolved(
    broken_rule: Option<DiscardRule>,
) -> Result<(), Failure> {
    let device = Arc::new(MemDevice::new());
    format(&device).map_err(failed)?;
    let mut volume = mount(&device, broken_rule).map_err(failed)?;
    let ino = file(&mut volume, "f", 8, 1).map_err(failed)?;
    volume.sync().map_err(failed)?;
    let plan = volume.plan_read(ino, 0, 8 * 4096).map_err(failed)?;
    volume
        .write(ino, 0, &[2; 8 * 4096], CALLER.now)
        .map_err(failed)?;
    volume.drain().map_err(failed)?;
    let bytes = plan.run().map_err(|e| format!("a slow reader: {e}"))?;
    if bytes.iter().any(|byte| *byte != 1) {
        return Err("a slow reader sees other bytes".to_string());
    }
    drop(plan);
    volume.drain().map_err(failed)?;
    holds(&device, 1)
}

/// Rule 6: a zone is released as a whole once it is dead and the log has passed it.
pub fn only_dead_zones_are_released(broken_rule: Option<DiscardRule>) -> Result<(), Failure> {
    let device = Arc::new(MemDevice::with(1, Some(16)));
    format(&device).map_err(failed)?;
    let mut volume = mount(&device, broken_rule).map_err(failed)?;
    file(&mut volume, "gone", 40, 1).map_err(failed)?;
    let kept = file(&mut volume, "kept", 3, 2).map_err(failed)?;
    volume.sync().map_err(failed)?;
    volume.unlink(Nid::ROOT, b"gone", &CALLER).map_err(failed)?;
    volume.drain().map_err(failed)?;
    if volume
        .read(kept, 0, 3 * 4096)
        .map_err(|e| format!("a live block went with its zone: {e}"))?
        != [2; 3 * 4096]
    {
        return Err("a live block went with its zone".to_string());
    }
    // The log of this area starts at its first block, so the first two zones held only the deleted file.
    let first = (2 << geometry().area_bits) / 16;
    let zones = device.zones(first..first + 3).map_err(|e| e.to_string())?;
    if zones != [first + 2] {
        return Err(format!(
            "zones left: {zones:?}, expected only {}",
            first + 2
        ));
    }
    // A zone that is dead before its log has passed it is released when the head leaves it.
    let before = device
        .zones(first..first + 100)
        .map_err(|e| e.to_string())?
        .len();
    for n in 0..20 {
        let name = format!("n{n}");
        file(&mut volume, &name, 3, 1).map_err(failed)?;
        volume.sync().map_err(failed)?;
        volume
            .unlink(Nid::ROOT, name.as_bytes(), &CALLER)
            .map_err(failed)?;
        volume.drain().map_err(failed)?;
    }
    let zones = device
        .zones(first..first + 100)
        .map_err(|e| e.to_string())?;
    if zones.len() > before + 1 {
        return Err(format!("zones left: {zones:?}, before {before}"));
    }
    drop(volume);
    holds(&device, 1)
}

/// Rule 7: on a device that reclaims four blocks at a time, blocks that die one by one are released after their
/// neighbours died too.
pub fn granules_are_released_after_their_last_block_died(
    broken_rule: Option<DiscardRule>,
) -> Result<(), Failure> {
    let device = Arc::new(MemDevice::with(4, None));
    format(&device).map_err(failed)?;
    let mut volume = mount(&device, broken_rule).map_err(failed)?;
    let ino = file(&mut volume, "f", 16, 1).map_err(failed)?;
    volume.sync().map_err(failed)?;
    for index in [0, 5, 2, 7, 1, 4, 6, 3] {
        volume
            .write(ino, index * 4096, &[9; 4096], CALLER.now)
            .map_err(failed)?;
        volume.drain().map_err(failed)?;
    }
    drop(volume);
    // Blocks of the file, the first of its area. The first eight are dead.
    let start = 2 << geometry().area_bits;
    let held = device
        .allocated(start..start + 8)
        .map_err(|e| e.to_string())?;
    if held.is_empty() {
        Ok(())
    } else {
        Err(format!("the device still holds {held:x?}"))
    }
}

/// Makes a hundred holes in a file, so that the discard log does not fit its pack of two blocks.
fn overflow(device: &Arc<MemDevice>, options: &MountOptions) -> Result<(), Error> {
    format(device)?;
    let mut volume = Volume::mount(device.clone(), options.clone())?;
    let ino = file(&mut volume, "f", 1400, 1)?;
    volume.sync()?;
    for index in (0..1400).step_by(2) {
        volume.write(ino, index * 4096, &[3; 4096], CALLER.now)?;
    }
    volume.sync()?;
    // Crash before the discards of that checkpoint are issued: the next mount knows only the pack.
    drop(volume);
    let mut volume = Volume::mount(device.clone(), options.clone())?;
    volume.drain()?;
    volume.unmount()
}

/// Rule 8, first half: a discard log that does not fit its pack continues elsewhere without a loss.
pub fn a_long_discard_log_overflows_without_a_leak(
    broken_rule: Option<DiscardRule>,
) -> Result<(), Failure> {
    let device = Arc::new(MemDevice::new());
    let options = MountOptions {
        window_blocks: 4096,
        broken_rule,
        ..MountOptions::default()
    };
    overflow(&device, &options).map_err(failed)?;
    holds(&device, 1)
}

/// Rule 8, second half, and rule 9: if the rest of the log does not fit anywhere, the leak is recorded, and a trim
/// finds it.
pub fn unavoidable_leaks_are_found_by_trim(
    broken_rule: Option<DiscardRule>,
) -> Result<(), Failure> {
    let device = Arc::new(MemDevice::new());
    let options = MountOptions {
        window_blocks: 4096,
        overflow_blocks_max: 0,
        broken_rule,
        ..MountOptions::default()
    };
    overflow(&device, &options).map_err(failed)?;
    if holds(&device, 1).is_ok() {
        return Err("the scenario leaks nothing".to_string());
    }
    let mut volume = mount(&device, broken_rule).map_err(failed)?;
    if !volume.space().needs_trim {
        return Err("the leak is not recorded".to_string());
    }
    volume.trim().map_err(failed)?;
    let ino = volume.lookup(Nid::ROOT, b"f").map_err(failed)?;
    let bytes = volume
        .read(ino, 0, 1400 * 4096)
        .map_err(|e| format!("after the trim: {e}"))?;
    if bytes
        .chunks(8192)
        .any(|pair| pair[0] != 3 || pair[4096] != 1)
    {
        return Err("the trim took live blocks".to_string());
    }
    if volume.space().needs_trim {
        return Err("the volume still requires a trim".to_string());
    }
    volume.unmount().map_err(failed)?;
    holds(&device, 1)
}

/// Admission: with every admitted block in use, deletes still work and release everything.
pub fn a_full_volume_can_be_emptied() -> Result<(), Failure> {
    let device = Arc::new(MemDevice::new());
    format(&device).map_err(failed)?;
    device.set_capacity(Some(8192));
    let mut volume = mount(&device, None).map_err(failed)?;
    let mut files = 0;
    let full = loop {
        match file(&mut volume, &format!("f{files}"), 100, 1) {
            Ok(_) => files += 1,
            Err(e) => break e,
        }
    };
    if !matches!(full, Error::Posix(Errno::NoSpace)) {
        return Err(format!("a full volume fails with {full}"));
    }
    let ino = volume.lookup(Nid::ROOT, b"f0").map_err(failed)?;
    // Shrinking and deleting must not need free space, not even with a checkpoint after each.
    volume
        .set_attr(
            ino,
            &SetAttr {
                size: Some(5),
                ..SetAttr::default()
            },
            CALLER.now,
        )
        .map_err(failed)?;
    for i in 0..files {
        volume
            .unlink(Nid::ROOT, format!("f{i}").as_bytes(), &CALLER)
            .map_err(|e| format!("deleting: {e}"))?;
        volume.sync().map_err(failed)?;
    }
    let last = format!("f{files}");
    if volume.lookup(Nid::ROOT, last.as_bytes()).is_ok() {
        volume
            .unlink(Nid::ROOT, last.as_bytes(), &CALLER)
            .map_err(failed)?;
    }
    volume.drain().map_err(failed)?;
    let live = volume.space().live;
    if live > 8 {
        return Err(format!("{live} blocks live in an empty volume"));
    }
    drop(volume);
    holds(&device, 1)
}
