//! E1 and E2: random writes until cleaning begins, and further until the throughput is steady.

use crate::experiment::definition::{Experiment, Scale};
use crate::experiment::disk::{Discards, Disk, Shared};
use crate::experiment::error::Result;
use crate::experiment::f2fs::{Cleaner, F2fs, Mode, Options};
use crate::experiment::filesystem::{AREA_BITS, Fs, Iplfs, Shape};
use crate::experiment::outcome::{Chart, Outcome};
use crate::experiment::workload::{Meter, RandomWrite, Sample, drift, mean_rate, variation};
use crate::map::Interval;
use crate::{Nanos, Preset, Striping};

/// Blocks of 4 KiB in a GiB.
pub const GIB: u64 = 1 << 18;

/// A filesystem under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// An IPLFS volume on a device with an interval map.
    Iplfs,
    /// The F2FS model, with its allocation mode and cleaner.
    F2fs(Mode, Cleaner),
    /// The F2FS model with sections aligned to device zones.
    Zoned(Cleaner),
}

impl System {
    /// Name of the system in tables.
    pub fn name(self) -> &'static str {
        match self {
            System::Iplfs => "IPLFS",
            System::F2fs(Mode::Lfs, Cleaner::ReadAhead) => "F2FS",
            System::F2fs(Mode::Lfs, Cleaner::Synchronous) => "F2FS one by one",
            System::F2fs(Mode::Lfs, Cleaner::Batched) => "F2FS batched",
            System::F2fs(Mode::Ssr, Cleaner::ReadAhead) => "F2FS SSR",
            System::F2fs(Mode::Ssr, Cleaner::Synchronous) => "F2FS SSR one by one",
            System::F2fs(Mode::Ssr, Cleaner::Batched) => "F2FS SSR batched",
            System::Zoned(_) => "zoned F2FS",
        }
    }

    /// Creates an empty filesystem on a new device of `1 / divisor` of the preset's capacity.
    pub fn make(
        self,
        preset: Preset,
        divisor: u32,
        shape: Shape,
        discards: Discards,
    ) -> Result<Box<dyn Fs>> {
        let mut config = preset.config(divisor);
        let mut options = Options {
            section_blocks: section_blocks(shape.partition_blocks),
            mode: Mode::Lfs,
            cleaner: Cleaner::Synchronous,
            zoned: false,
        };
        match self {
            System::Iplfs => {
                let config = config.with_interval(Interval::new(AREA_BITS));
                let disk = Shared::new(Disk::new(config, discards), AREA_BITS);
                return Ok(Box::new(Iplfs::new(disk, shape)?));
            }
            System::F2fs(mode, cleaner) => (options.mode, options.cleaner) = (mode, cleaner),
            System::Zoned(cleaner) => {
                config.streams = 6;
                config.striping = Striping::InTurn;
                // A section is one erase block of every LUN.
                let g = config.geometry;
                options.section_blocks = u64::from(g.luns() * g.slots_per_block());
                (options.zoned, options.cleaner) = (true, cleaner);
            }
        }
        let disk = Shared::new(Disk::new(config, discards), 63);
        Ok(Box::new(F2fs::new(disk, shape, options)?))
    }
}

/// Section size for a partition. At least 3500 sections leave cleaning a choice of victims; the
/// maximum is F2FS's 512 blocks.
fn section_blocks(partition: u64) -> u64 {
    (1 << (partition / 3500).max(1).ilog2()).min(512)
}

/// Dimensions of a partition of `gib` GiB at the published scale, reduced by `divisor`.
pub fn shape(gib: f64, divisor: u32, dirty_max: u64) -> Shape {
    Shape {
        partition_blocks: (gib * GIB as f64) as u64 / u64::from(divisor),
        dirty_max,
        checkpoint_every: Nanos(60_000_000_000 / u64::from(divisor)),
    }
}

struct Run {
    samples: Vec<Sample>,
    /// Blocks appended to the logs before cleaning began, divided by the size of the partition.
    onset: Option<f64>,
    cleaned_reads: u64,
    moved: u64,
    device_moved: u64,
    device_reads: u64,
}

/// Writes random blocks of a file of `file` GiB until `fills` times the partition size is written.
fn run(
    system: System,
    scale: &Scale,
    partition: f64,
    file: f64,
    fills: f64,
    seed: u64,
) -> Result<Run> {
    // Memory for dirty blocks is proportional to the partition.
    let dirty_max = (scale.dirty_max as f64 * partition / 60.0).max(scale.dirty_max as f64);
    let shape = shape(partition, scale.divisor, dirty_max as u64);
    let mut fs = system.make(Preset::Openssd, scale.divisor, shape, Discards::Eager)?;
    let blocks = (file * GIB as f64) as u64 / u64::from(scale.divisor);
    let mut load = RandomWrite::new(&mut *fs, blocks, seed)?;
    let ops = (fills * shape.partition_blocks as f64) as u64;
    let reads_before = fs.disk().lock().sent.read_blocks;
    // Each sample covers whole rounds of write-back, so that samples are comparable.
    let mut meter = Meter::new(&*fs, (8 * shape.dirty_max).min(ops / 40));
    for _ in 0..ops {
        load.step(&mut *fs, &mut meter)?;
    }
    let cleaned = fs.cleaned();
    let disk = fs.disk().lock();
    Ok(Run {
        onset: cleaned
            .onset_blocks
            .map(|b| b as f64 / shape.partition_blocks as f64),
        cleaned_reads: cleaned.read_blocks,
        moved: cleaned.moved_blocks,
        device_moved: disk.flash.counters().moved_slots,
        device_reads: disk.sent.read_blocks - reads_before,
        samples: meter.samples,
    })
}

/// Selects samples by the amount of file data written, above `from` up to `to`. Unit: partition
/// sizes.
fn window(samples: &[Sample], partition: u64, from: f64, to: f64) -> Vec<Sample> {
    let fills = |s: &Sample| s.ops as f64 / partition as f64;
    let inside = samples.iter().filter(|s| fills(s) > from && fills(s) <= to);
    let found: Vec<Sample> = inside.copied().collect();
    if found.is_empty() {
        // The window is narrower than a sample: use the nearest sample.
        let near = |s: &&Sample| ((fills(s) - (from + to) / 2.0).abs() * 1e9) as u64;
        return samples
            .iter()
            .min_by_key(near)
            .into_iter()
            .copied()
            .collect();
    }
    found
}

fn chart(title: &str, runs: &[(System, Run)], gib_for_op: f64) -> Chart {
    let line = |r: &Run| {
        let point = |s: &Sample| (s.ops as f64 * gib_for_op, s.rate);
        r.samples.iter().map(point).collect()
    };
    Chart {
        title: title.to_owned(),
        x: "file data written, GiB of the published size".to_owned(),
        y: "writes in a virtual second".to_owned(),
        series: runs
            .iter()
            .map(|(s, r)| (s.name().to_owned(), line(r)))
            .collect(),
    }
}

/// Runs E1: random writes to a file of 28 GiB on a partition of 30 GiB.
pub fn e1(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let shape = shape(30.0, scale.divisor, scale.dirty_max);
    let part = shape.partition_blocks;
    let systems = [
        System::Iplfs,
        System::F2fs(Mode::Lfs, Cleaner::ReadAhead),
        System::F2fs(Mode::Lfs, Cleaner::Synchronous),
        System::F2fs(Mode::Lfs, Cleaner::Batched),
        System::F2fs(Mode::Ssr, Cleaner::ReadAhead),
    ];
    let runs: Vec<(System, Run)> = systems
        .into_iter()
        .map(|s| Ok((s, run(s, scale, 30.0, 28.0, 6.0, seed)?)))
        .collect::<Result<_>>()?;
    let last = |r: &Run| mean_rate(&r.samples[r.samples.len() * 7 / 8..]);
    let ours = &runs[0].1;
    let ours_last = last(ours);
    out.say(
        "IPLFS, first quarter of the first fill, writes/s",
        mean_rate(&window(&ours.samples, part, 0.0, 0.25)),
        "63.7k",
    );
    out.say(
        "IPLFS, last eighth of six fills, writes/s",
        ours_last,
        "57.8k",
    );
    out.at_most(
        "IPLFS: blocks moved by the filesystem or the device",
        (ours.moved + ours.device_moved) as f64,
        0.0,
        "0",
    );
    out.at_most(
        "IPLFS: blocks read to clean",
        ours.cleaned_reads as f64,
        0.0,
        "0",
    );
    out.say(
        "IPLFS: blocks read at all",
        ours.device_reads as f64,
        "8 commands",
    );
    out.at_most(
        "IPLFS: variation of the samples",
        variation(&ours.samples),
        e.bar("variation")?,
        "0.05",
    );
    for (system, r) in &runs[1..] {
        let name = system.name();
        let onset = r.onset.unwrap_or(0.0);
        let (fresh, aged) = (mean_rate(&window(&r.samples, part, 0.0, 0.75)), last(r));
        let after = mean_rate(&window(&r.samples, part, onset, onset + 0.5));
        if let System::F2fs(Mode::Lfs, cleaner) = system {
            let text = format!("{name}: onset of cleaning, log blocks / partition");
            let off = e.bar("onset")?;
            out.between(text, onset, [1.0 - off, 1.0 + off], "1.01");
            let text = format!("{name}: drop at the end, times");
            if *cleaner == Cleaner::Batched {
                out.at_least(text, fresh / aged, e.bar("drop_batched")?, "theory 7");
            } else {
                let half = format!("{name}: drop in the half fill after the onset, times");
                if *cleaner == Cleaner::Synchronous {
                    out.at_least(half, fresh / after, e.bar("drop_synchronous")?, "9.2");
                } else {
                    out.say(half, fresh / after, "9.2");
                }
                out.say(text, fresh / aged, "");
                out.say(
                    format!("IPLFS / {name} at the end, times"),
                    ours_last / aged,
                    "7.5 (headline 12.8)",
                );
            }
        } else {
            out.say(
                format!("{name}: onset of cleaning, log blocks / partition"),
                onset,
                "",
            );
            out.say(format!("{name}: drop at the end, times"), fresh / aged, "");
        }
        out.say(
            format!("{name}: blocks moved for each block written"),
            r.moved as f64 / r.samples.last().map_or(1.0, |s| s.ops as f64),
            "",
        );
    }
    steady(
        &mut out,
        e,
        runs.iter().map(|(s, r)| (s.name(), &r.samples[..])),
    )?;
    out.charts.push(chart(&e.title, &runs, 30.0 / part as f64));
    out.samples = runs
        .into_iter()
        .map(|(s, r)| (s.name().to_owned(), r.samples))
        .collect();
    Ok(out)
}

/// Adds a note for each run that tells whether its throughput is steady.
pub fn steady<'a>(
    out: &mut Outcome,
    e: &Experiment,
    runs: impl Iterator<Item = (&'a str, &'a [Sample])>,
) -> Result<()> {
    let limit = e.bar("drift")?;
    for (name, samples) in runs {
        let d = drift(samples);
        let word = if (d - 1.0).abs() <= limit {
            "steady"
        } else {
            "not steady"
        };
        out.note(format!(
            "{name}: the last eighth runs at {d:.3} of the eighth before: {word} (limit {limit})."
        ));
    }
    Ok(())
}

/// Runs E2: random writes to a file of 210 GiB on a partition of 230 GiB.
pub fn e2(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let part = shape(230.4, scale.divisor, scale.dirty_max).partition_blocks;
    let systems = [
        (System::Iplfs, 4.0),
        (System::F2fs(Mode::Lfs, Cleaner::Batched), 4.0),
        (System::F2fs(Mode::Lfs, Cleaner::Synchronous), 1.6),
    ];
    let runs: Vec<(System, Run)> = systems
        .into_iter()
        .map(|(s, fills)| Ok((s, run(s, scale, 230.4, 210.0, fills, seed)?)))
        .collect::<Result<_>>()?;
    for (i, (system, r)) in runs.iter().enumerate() {
        let name = system.name();
        // Device cleaning begins with the first sample that has blocks moved by the device.
        let first = r.samples.iter().find(|s| s.device_moved > 0);
        let device = first.map_or(f64::NAN, |s| s.ops as f64 / part as f64);
        let raw = Preset::Openssd.config(scale.divisor).geometry.raw_slots();
        out.say(
            format!("{name}: blocks the device was sent by then / its raw blocks"),
            first.map_or(f64::NAN, |s| s.host_blocks as f64 / raw as f64),
            if i == 0 {
                "0.90 of file data alone"
            } else {
                ""
            },
        );
        out.say(
            format!("{name}: the device begins to move blocks, file data / partition"),
            device,
            if i == 0 { "1.00" } else { "" },
        );
        let onset = match system {
            System::Iplfs => device,
            _ => r.onset.unwrap_or(device),
        };
        let fresh = mean_rate(&window(&r.samples, part, 0.0, 0.75));
        // The published run ends 8 % after the onset.
        let after = mean_rate(&window(&r.samples, part, onset, onset + 0.08)) / fresh;
        let text = format!("{name}: kept in the 8 % after the onset");
        match system {
            System::Iplfs => out.between(
                text,
                after,
                [e.bar("kept_least")?, e.bar("kept_most")?],
                "0.64 to 0.69",
            ),
            System::F2fs(_, Cleaner::Batched) => {
                out.at_most(text, after, e.bar("batched_most")?, "")
            }
            _ => out.at_most(text, after, e.bar("synchronous_most")?, "0.105"),
        }
        let tail = &r.samples[r.samples.len() * 7 / 8..];
        out.say(
            format!("{name}: kept at the end"),
            mean_rate(tail) / fresh,
            if i == 0 {
                "greedy cleaning: 1 / 2.6"
            } else {
                ""
            },
        );
        let wa = tail.iter().map(|s| s.amplification).sum::<f64>() / tail.len() as f64;
        out.say(
            format!("{name}: write amplification of the device at the end"),
            wa,
            if i == 0 { "greedy cleaning: 2.6" } else { "" },
        );
        out.say(
            format!("{name}: blocks the filesystem moved for each block written"),
            r.moved as f64 / r.samples.last().map_or(1.0, |s| s.ops as f64),
            if i == 0 { "0" } else { "" },
        );
    }
    out.note("IPLFS and the batched baseline run to four partition fills; the synchronous baseline to 1.6, as its shape shows at once.");
    steady(
        &mut out,
        e,
        runs.iter().map(|(s, r)| (s.name(), &r.samples[..])),
    )?;
    out.charts.push(chart(&e.title, &runs, 230.4 / part as f64));
    out.samples = runs
        .into_iter()
        .map(|(s, r)| (s.name().to_owned(), r.samples))
        .collect();
    Ok(out)
}
