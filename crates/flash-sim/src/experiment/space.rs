//! E4, E5, E9 and E10: discard policies, memory of the map, and allocated space.

use crate::experiment::cleaning::{GIB, System, shape};
use crate::experiment::definition::{Experiment, Scale};
use crate::experiment::disk::Discards;
use crate::experiment::error::{Error, Result, failed};
use crate::experiment::f2fs::{Cleaner, Mode};
use crate::experiment::filesystem::{AREA_BITS, Fs};
use crate::experiment::outcome::{Chart, Outcome};
use crate::experiment::random::Rng;
use crate::experiment::workload::{FileServer, Meter, drift, mean_rate};
use crate::map::{Compaction, Interval, IntervalMap, Map, Region};
use crate::{Lba, Nanos, Payload, Preset, Slot};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::backend::{FileDevice, ZoneDir};
use tuff_iplfs::{
    BLOCK_SIZE, BlockAddr, BlockDevice, Caller, FormatOptions, Geometry, Log, MountOptions, Nid,
    Volume, mode,
};

/// Result of a fileserver run.
struct Served {
    /// Write amplification of the device in the second fill.
    wa: f64,
    rate: f64,
    drift: f64,
    idle_discards: u64,
    samples: Vec<crate::experiment::workload::Sample>,
}

/// Runs a fileserver for two partition fills and measures the second.
fn serve(fs: &mut dyn Fs, live: u64, partition_blocks: u64, seed: u64) -> Result<Served> {
    let mut server = FileServer::new(fs, live, 512, seed)?;
    let written = |fs: &dyn Fs| fs.disk().lock().flash.counters();
    let start = written(fs);
    let mut meter = Meter::new(fs, 40);
    let mut middle = None;
    loop {
        server.step(fs, &mut meter)?;
        let host = written(fs).since(&start).host_slots;
        if host > partition_blocks && middle.is_none() {
            middle = Some((written(fs), meter.samples.len()));
        }
        if host > 2 * partition_blocks {
            break;
        }
    }
    let (counters, at) = middle.unwrap_or((start, 0));
    let idle_discards = fs.disk().lock().sent.idle_discards;
    Ok(Served {
        wa: written(fs).since(&counters).write_amplification(),
        rate: mean_rate(&meter.samples[at.min(meter.samples.len() - 1)..]),
        drift: drift(&meter.samples),
        idle_discards,
        samples: meter.samples,
    })
}

/// Runs E4: eager, paced and idle-only discards on the same filesystem.
pub fn e4(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let divisor = scale.fileserver_divisor;
    let shape = shape(230.4, divisor, scale.dirty_max);
    let slow = |ns: u64| Nanos(ns / u64::from(divisor));
    let batches = |round, idle| Discards::Idle {
        round,
        interval: slow(50_000_000),
        idle,
        // The device must not become full of blocks that the volume has already discarded.
        forced_above: shape.partition_blocks - shape.partition_blocks / 50 - 2 * shape.dirty_max,
    };
    let idle = batches(8, slow(5_000_000_000));
    // `tuff volume mount --discard polite` and `--discard dispatch`.
    let polite = batches(8, slow(50_000_000));
    let dispatch = batches(16, Nanos(0));
    let names = ["eager", "idle only", "polite", "dispatch"];
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        names.map(|name| (name.to_owned(), Vec::new())).into();
    for &percent in &scale.utilisations {
        // Freed blocks wait for two checkpoints, so a volume at 95 % has no room for more dirty
        // blocks.
        let live = shape.partition_blocks * percent / 100
            - if percent > 93 {
                4 * shape.dirty_max.min(shape.partition_blocks / 400)
            } else {
                0
            };
        let mut found = Vec::new();
        for (i, policy) in [Discards::Eager, idle, polite, dispatch]
            .into_iter()
            .enumerate()
        {
            let mut fs = System::Iplfs.make(Preset::Openssd, divisor, shape, policy)?;
            let served = serve(&mut *fs, live, shape.partition_blocks, seed)?;
            lines[i].1.push((percent as f64, served.wa));
            let name = format!("{percent} %, {}", lines[i].0);
            out.samples.push((name, served.samples.clone()));
            found.push(served);
        }
        let (eager, idle_only) = (&found[0], &found[1]);
        let below = |a: f64, b: f64| {
            if a < b || (a == 1.0 && b == 1.0) {
                1.0
            } else {
                0.0
            }
        };
        for (name, served) in names.iter().zip(&found) {
            let what = format!("{percent} %: write amplification, {name}");
            out.say(what, served.wa, "");
        }
        for (name, served) in names.iter().zip(&found).skip(2) {
            let what = format!("{percent} %: throughput, eager / {name}");
            out.say(what, eager.rate / served.rate, "");
        }
        out.at_least(
            format!("{percent} %: eager is lower"),
            below(eager.wa, idle_only.wa),
            1.0,
            "yes",
        );
        let gain = eager.rate / idle_only.rate;
        if percent == 90 {
            out.at_least(
                format!("{percent} %: throughput, eager / idle only"),
                gain,
                e.bar("throughput_at_90")?,
                "",
            );
            // The published value compares two filesystems.
            let f2fs = System::F2fs(Mode::Lfs, Cleaner::ReadAhead);
            let mut fs = f2fs.make(Preset::Openssd, divisor, shape, idle)?;
            let served = serve(&mut *fs, live, shape.partition_blocks, seed)?;
            out.say(
                "90 %: throughput, IPLFS eager / F2FS idle only",
                eager.rate / served.rate,
                "1.24",
            );
            out.say(
                "90 %: write amplification of the device, F2FS idle only",
                served.wa,
                "",
            );
            out.samples
                .push(("90 %, F2FS idle only".to_owned(), served.samples));
        } else {
            out.say(
                format!("{percent} %: throughput, eager / idle only"),
                gain,
                "",
            );
        }
        out.note(format!(
            "{percent} %: {} discards found the device idle; drift {:.2} and {:.2}.",
            idle_only.idle_discards, eager.drift, idle_only.drift
        ));
    }
    out.note("The second of two partition fills after filling counts. Idle-only discards are forced when the device is 98 % mapped, because a volume never writes an address again.");
    out.charts.push(Chart {
        title: "Write amplification of the device".to_owned(),
        x: "utilisation, %".to_owned(),
        y: "write amplification".to_owned(),
        series: lines,
    });
    Ok(out)
}

/// Sparse memory device that applies its writes and discards to several maps.
struct Watched {
    state: Mutex<WatchedState>,
}

struct WatchedState {
    blocks: BTreeMap<u64, Payload>,
    maps: Vec<IntervalMap>,
    next_page: u64,
    /// Only addresses of this area reach the maps; the published trace is of warm data.
    area: u64,
    peaks: Vec<u64>,
}

impl Watched {
    fn lock(&self) -> std::sync::MutexGuard<'_, WatchedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for Watched {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        for (i, out) in buf.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            match state.blocks.get(&(addr.0 + i as u64)) {
                Some(payload) => payload.copy_to(out),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        for (i, bytes) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let lba = addr.0 + i as u64;
            state.blocks.insert(lba, Payload::from_bytes(bytes));
            if lba >> AREA_BITS != state.area {
                continue;
            }
            // A flash page of 16 KiB holds four consecutive blocks.
            if lba.is_multiple_of(4) {
                state.next_page = (state.next_page + 1) % (1 << 28);
            }
            let slot = Slot((state.next_page << 2 | lba & 3) as u32);
            for map in &mut state.maps {
                map.set(Lba(lba), slot).map_err(io::Error::other)?;
                map.maintain();
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        let bytes: Vec<u64> = state.maps.iter().map(Map::bytes).collect();
        for (peak, bytes) in state.peaks.iter_mut().zip(bytes) {
            *peak = bytes.max(*peak);
        }
        Ok(())
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        let mut state = self.lock();
        let dead: Vec<u64> = state
            .blocks
            .range(blocks.clone())
            .map(|(lba, _)| *lba)
            .collect();
        for lba in &dead {
            state.blocks.remove(lba);
        }
        for map in &mut state.maps {
            map.clear(blocks.clone(), &mut |_| ());
            for _ in 0..dead.len().min(1024) {
                map.maintain();
            }
        }
        Ok(())
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        Ok(vec![blocks])
    }

    fn knows_allocated(&self) -> bool {
        false
    }
}

/// Writes three times `live` blocks, as many files being created as deleted. Returns what was written, in times of `live`, and
/// the bytes of each map, from the first fill on.
fn overwrite(
    watched: &Watched,
    volume: &mut Volume,
    live: u64,
    seed: u64,
) -> Result<Vec<(f64, Vec<u64>)>> {
    let mut rng = Rng::new(seed);
    let mut files: Vec<(u64, u64, Nid)> = Vec::new();
    let (mut next, mut total, mut written) = (0_u64, 0, 0);
    let mut word = 0_u64;
    let error = |what: &'static str| move |e: tuff_iplfs::Error| failed(what, &e);
    let mut growth: Vec<(f64, Vec<u64>)> = Vec::new();
    while written < live * 3 {
        // Create a file while there is room; otherwise delete a random one.
        if total < live {
            let blocks = rng.below(512) + rng.below(512) + 1;
            let caller = Caller::default();
            let made = volume.create(
                Nid::ROOT,
                format!("f{next}").as_bytes(),
                mode::FILE | 0o644,
                0,
                &caller,
            );
            let ino = made.map_err(error("create"))?.ino;
            for at in (0..blocks).step_by(256) {
                let count = (blocks - at).min(256);
                let mut bytes = Vec::with_capacity(count as usize * BLOCK_SIZE);
                for _ in 0..count {
                    word += 1;
                    (0..BLOCK_SIZE / 8).for_each(|_| bytes.extend_from_slice(&word.to_le_bytes()));
                }
                volume
                    .write(ino, at * BLOCK_SIZE as u64, &bytes, caller.now)
                    .map_err(error("write"))?;
            }
            files.push((next, blocks, ino));
            next += 1;
            total += blocks;
            written += blocks;
        } else {
            let (name, blocks, _) = files.swap_remove(rng.below(files.len() as u64) as usize);
            let gone = volume.unlink(Nid::ROOT, format!("f{name}").as_bytes(), &Caller::default());
            gone.map_err(error("unlink"))?;
            total -= blocks;
        }
        // Appends of 16 KiB, as in the fileserver.
        if files.len() > 4 && rng.below(2) == 0 {
            let i = rng.below(files.len() as u64) as usize;
            let (_, blocks, ino) = files[i];
            let bytes = vec![word as u8; 4 * BLOCK_SIZE];
            let wrote = volume.write(
                ino,
                blocks * BLOCK_SIZE as u64,
                &bytes,
                Caller::default().now,
            );
            wrote.map_err(error("append"))?;
            files[i].1 += 4;
            total += 4;
            written += 4;
        }
        if written >= live && written / (live / 16).max(1) > growth.len() as u64 + 15 {
            let state = watched.lock();
            growth.push((
                written as f64 / live as f64,
                state.maps.iter().map(Map::bytes).collect(),
            ));
        }
    }
    Ok(growth)
}

/// Runs E5: a fileserver on a volume, with several maps applied to its warm data.
pub fn e5(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let divisor = u64::from(scale.map_divisor);
    let interval = |unit_bits, compaction, region| Interval {
        unit_bits,
        compaction,
        region,
        ..Interval::new(AREA_BITS)
    };
    let on = Compaction::STEADY;
    // Region sizes from 64 KiB to 16 MiB, as log2 of blocks.
    let regions = [4, 6, 7, 8, 10, 11, 12];
    let mut hows = Vec::new();
    for unit in [2, 0] {
        hows.push(interval(unit, Compaction::Off, Region::Adaptive));
        hows.push(interval(unit, on, Region::Adaptive));
        hows.push(interval(unit, on, Region::Smallest));
    }
    hows.extend(regions.map(|bits| interval(2, on, Region::Fixed(bits))));
    let watched = Arc::new(Watched {
        state: Mutex::new(WatchedState {
            blocks: BTreeMap::new(),
            maps: hows.iter().map(|h| IntervalMap::new(*h)).collect(),
            next_page: 0,
            area: Log::WarmData as u64,
            peaks: vec![0; hows.len()],
        }),
    });
    // 142 GiB of live files of 2 MiB; the total written is three times as much.
    let live = 142 * GIB / divisor;
    let error = |what: &'static str| move |e: tuff_iplfs::Error| failed(what, &e);
    let options = FormatOptions::new([3; 16], [4; 16], live * 2 + 65536);
    Volume::format(watched.clone(), &options).map_err(error("format"))?;
    let mount = MountOptions {
        dirty_pages_max: scale.dirty_max,
        node_cache_max: 1 << 20,
        ..MountOptions::default()
    };
    let mut volume = Volume::mount(watched.clone(), mount).map_err(error("mount"))?;
    let growth = overwrite(&watched, &mut volume, live, seed)?;
    volume.drain().map_err(error("drain"))?;
    let state = watched.lock();
    state.maps.iter().for_each(Map::assert_sound);
    let mb: Vec<f64> = state
        .maps
        .iter()
        .map(|m| m.bytes() as f64 * divisor as f64 / 1e6)
        .collect();
    for (at, unit, with, without) in [(0, "16 KiB", "44", "84"), (3, "4 KiB", "142", "298")] {
        out.say(
            format!("{unit}: without compaction, MB at the published size"),
            mb[at],
            without,
        );
        out.say(format!("{unit}: with compaction, MB"), mb[at + 1], with);
        out.say(
            format!("{unit}: with the packed form, too, MB"),
            mb[at + 2],
            "",
        );
        let saved = 1.0 - mb[at + 1] / mb[at];
        let published = if at == 0 { "0.48" } else { "0.52" };
        out.at_least(
            format!("{unit}: saved by compaction"),
            saved,
            e.bar("saved")?,
            published,
        );
        let flat =
            state.maps[at].mapped() as f64 * divisor as f64 * if at == 0 { 1.0 } else { 4.0 } / 1e6;
        out.say(
            format!("{unit}: a flat table of what is live, MB"),
            flat,
            "",
        );
    }
    let published = [47.7, 43.3, 42.6, 42.4, 44.4, f64::NAN, 59.3];
    let sweep: Vec<(f64, f64)> = regions
        .iter()
        .zip(&mb[6..])
        .map(|(bits, mb)| (f64::from(*bits), *mb))
        .collect();
    for ((bits, mb), published) in sweep.iter().zip(published) {
        let kib = (1_u64 << *bits as u32) * 4;
        let text = if published.is_nan() {
            "49.8".to_owned()
        } else {
            published.to_string()
        };
        out.say(format!("16 KiB, regions of {kib} KiB, MB"), *mb, &text);
    }
    // Region sizes from 256 KiB to 4 MiB, for which the published memory use is nearly constant.
    let flat: Vec<f64> = sweep
        .iter()
        .filter(|(b, _)| (6.0..=10.0).contains(b))
        .map(|p| p.1)
        .collect();
    let least = sweep.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let widest = flat.iter().copied().fold(0.0, f64::max);
    out.at_most(
        "worst of 256 KiB to 4 MiB / best of all",
        widest / least,
        e.bar("flat")?,
        "1.05",
    );
    let line = |name: &str, i: usize| {
        let points = growth
            .iter()
            .map(|(x, b)| (*x, b[i] as f64 * divisor as f64 / 1e6));
        (name.to_owned(), points.collect::<Vec<_>>())
    };
    let (first, last) = (growth.first(), growth.last());
    if let (Some(first), Some(last)) = (first, last) {
        out.say(
            "4 KiB, without compaction: growth from one fill to three, times",
            last.1[3] as f64 / first.1[3] as f64,
            "with the interval",
        );
        out.say(
            "4 KiB, with compaction: the same",
            last.1[4] as f64 / first.1[4] as f64,
            "",
        );
    }
    out.note(format!("142 GiB live, 1/{divisor} of it in the run; memory is multiplied back. Files of 2 MiB, as many made as deleted, until three times the live size was written."));
    out.note("Blocks die here with their files; for blocks that die one by one see the map of E7.");
    out.charts.push(Chart {
        title: "Memory of the map, 4 KiB entries".to_owned(),
        x: "written / live".to_owned(),
        y: "MB at the published size".to_owned(),
        series: vec![line("without", 3), line("regions", 4), line("packed", 5)],
    });
    Ok(out)
}

/// Runs E9: random overwrites on a device that frees space in granules.
pub fn e9(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let blocks = scale.granule_blocks;
    let mut points = (Vec::new(), Vec::new());
    for granule in [1_u64, 4, 16, 256] {
        // The number of granules must be large enough to neglect edge effects.
        if granule * 32 > blocks {
            continue;
        }
        let device = Arc::new(MemDevice::with(granule, None));
        let error = |what: &'static str| move |e: tuff_iplfs::Error| failed(what, &e);
        let options = FormatOptions::new([5; 16], [6; 16], blocks * 16 + 65536);
        Volume::format(device.clone(), &options).map_err(error("format"))?;
        let mount = MountOptions {
            dirty_pages_max: (blocks / 64).max(64),
            ..MountOptions::default()
        };
        let mut volume = Volume::mount(device.clone(), mount).map_err(error("mount"))?;
        let caller = Caller::default();
        let made = volume.create(Nid::ROOT, b"file", mode::FILE | 0o644, 0, &caller);
        let ino = made.map_err(error("create"))?.ino;
        let mut rng = Rng::new(seed ^ granule);
        // Old granules live for ln k plus a few turnovers, and the file must be full.
        let writes = blocks * 12;
        let page = vec![7; BLOCK_SIZE];
        for i in 0..writes {
            let at = if i < blocks { i } else { rng.below(blocks) };
            volume
                .write(ino, at * BLOCK_SIZE as u64, &page, caller.now)
                .map_err(error("write"))?;
        }
        volume.drain().map_err(error("drain"))?;
        let area = (Log::WarmData as u64) << 48..(Log::WarmData as u64 + 1) << 48;
        let runs = device.allocated(area).map_err(|e| failed("look", &e))?;
        // A granule is allocated as a whole if any of its blocks is in use.
        let mut granules: Vec<u64> = runs
            .iter()
            .flat_map(|r| r.start / granule..=(r.end - 1) / granule)
            .collect();
        granules.dedup();
        let found = (granules.len() as u64 * granule) as f64 / blocks as f64;
        let law: f64 = (1..=granule).map(|i| 1.0 / i as f64).sum();
        points.0.push((granule.ilog2().into(), found));
        points.1.push((granule.ilog2().into(), law));
        let text = format!("granule of {} KiB: allocated / live", granule * 4);
        let off = e.bar("off")?;
        out.between(
            text,
            found,
            [law * (1.0 - off), law * (1.0 + off)],
            &format!("{law:.2}"),
        );
    }
    out.note("A volume on a device in memory; the first fill in order, then eleven times its size at random, sync and drain.");
    out.charts.push(Chart {
        title: e.title.clone(),
        x: "blocks of a granule, as a power of two".to_owned(),
        y: "allocated / live".to_owned(),
        series: vec![
            ("volume".to_owned(), points.0),
            ("harmonic number".to_owned(), points.1),
        ],
    });
    Ok(out)
}

/// Space allocated by the host for a directory tree. Unit: bytes.
fn host_bytes(path: &Path) -> Result<u64> {
    let meta = std::fs::symlink_metadata(path).map_err(|e| Error::io("look at", path, e))?;
    let mut total = meta.blocks() * 512;
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|e| Error::io("list", path, e))? {
            total += host_bytes(&entry.map_err(|e| Error::io("list", path, e))?.path())?;
        }
    }
    Ok(total)
}

/// Runs E10: volumes in files of the host filesystem in the folder `work`.
pub fn e10(e: &Experiment, scale: &Scale, seed: u64, work: &Path) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let live = 2 * GIB / u64::from(scale.divisor).min(GIB / 2048);
    for name in ["zone files", "one file"] {
        let path = work.join(name.replace(' ', "-"));
        let device: Arc<dyn BlockDevice> = if name == "zone files" {
            let made = ZoneDir::create(&path, 1 << 12);
            Arc::new(made.map_err(|e| Error::io("create", &path, e))?)
        } else {
            let made = FileDevice::create(&path);
            Arc::new(made.map_err(|e| Error::io("create", &path, e))?)
        };
        let error = |what: &'static str| move |e: tuff_iplfs::Error| failed(what, &e);
        let format = FormatOptions {
            geometry: Geometry {
                // The maximum file size of ext4 is 16 TiB.
                area_bits: 29,
                section_bits: 18,
                zone_bits: 12,
                pack_blocks: 256,
            },
            ..FormatOptions::new([7; 16], [8; 16], live * 2 + 65536)
        };
        Volume::format(device.clone(), &format).map_err(error("format"))?;
        let mut volume = Volume::mount(device, MountOptions::default()).map_err(error("mount"))?;
        let caller = Caller::default();
        let mut rng = Rng::new(seed);
        let mut files: Vec<(u64, Nid, u64)> = Vec::new();
        let (mut next, mut total) = (0, 0);
        let mut buffer = vec![0; BLOCK_SIZE];
        for _ in 0..6 * live / 16 {
            if total < live / 2 || files.is_empty() || rng.below(3) == 0 && total < live {
                let ino = volume.create(
                    Nid::ROOT,
                    format!("f{next}").as_bytes(),
                    mode::FILE | 0o644,
                    0,
                    &caller,
                );
                let ino = ino.map_err(error("create"))?.ino;
                let blocks = 1 + rng.below(64);
                for i in 0..blocks {
                    buffer.fill(rng.draw() as u8 | 1);
                    volume
                        .write(ino, i * BLOCK_SIZE as u64, &buffer, caller.now)
                        .map_err(error("write"))?;
                }
                files.push((next, ino, blocks));
                (next, total) = (next + 1, total + blocks);
            } else if rng.below(3) == 0 {
                let (name, _, blocks) = files.swap_remove(rng.below(files.len() as u64) as usize);
                volume
                    .unlink(Nid::ROOT, format!("f{name}").as_bytes(), &caller)
                    .map_err(error("unlink"))?;
                total -= blocks;
            } else {
                let (_, ino, blocks) = files[rng.below(files.len() as u64) as usize];
                for _ in 0..8 {
                    buffer.fill(rng.draw() as u8 | 1);
                    let at = rng.below(blocks) * BLOCK_SIZE as u64;
                    volume
                        .write(ino, at, &buffer, caller.now)
                        .map_err(error("write"))?;
                }
            }
        }
        volume.drain().map_err(error("drain"))?;
        let live_bytes = volume.space().live * BLOCK_SIZE as u64;
        drop(volume);
        let taken = host_bytes(&path)? as f64;
        let limit =
            live_bytes as f64 * (1.0 + e.bar("share")?) + e.bar("fixed_mib")? * f64::from(1 << 20);
        let mib = f64::from(1 << 20);
        out.say(format!("{name}: live, MiB"), live_bytes as f64 / mib, "");
        out.at_most(
            format!("{name}: allocated on the host, MiB"),
            taken / mib,
            limit / mib,
            "",
        );
        let remove = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        remove.map_err(|e| Error::io("remove", &path, e))?;
    }
    out.note("On the filesystem of the work folder; run again with `--work` elsewhere for others.");
    Ok(out)
}
