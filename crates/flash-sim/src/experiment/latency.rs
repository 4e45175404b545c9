//! E3, E7 and E8: query latency of databases, map maintenance, zoned devices.

use crate::experiment::cleaning::{GIB, System, shape};
use crate::experiment::definition::{Experiment, Scale};
use crate::experiment::disk::{Discards, Disk, Shared};
use crate::experiment::error::Result;
use crate::experiment::f2fs::{Cleaner, Mode};
use crate::experiment::filesystem::{AREA_BITS, Fs, Iplfs};
use crate::experiment::outcome::{Chart, Outcome};
use crate::experiment::workload::{
    Database, FileServer, Meter, Queries, RandomWrite, Sample, drift, mean_rate,
};
use crate::map::{Compaction, Interval};
use crate::{Histogram, Nanos, Preset};
use std::collections::VecDeque;

const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 0.999];

struct Answers {
    reads: Histogram,
    updates: Histogram,
    samples: Vec<Sample>,
    rate: f64,
}

/// Number of database clients. Each waits for its reply before the next query.
const CLIENTS: usize = 8;

/// Runs `3 * queries` queries and measures the last third.
///
/// The filesystem serves one query at a time, in order; a query that hits the buffer pool does not
/// use it. The latency of any other query is the time since the previous reply to the same client.
/// That is the reply `CLIENTS` uses of the filesystem earlier. While the filesystem cleans for one
/// query, the other clients wait.
fn query(fs: &mut dyn Fs, db: &mut Database, queries: u64) -> Result<Answers> {
    let mut meter = Meter::new(fs, (queries / 50).max(1));
    let mut completions: VecDeque<Nanos> = VecDeque::new();
    let mut answers = Answers {
        reads: Histogram::new(),
        updates: Histogram::new(),
        samples: Vec::new(),
        rate: 0.0,
    };
    let mut warm = 0;
    for i in 0..3 * queries {
        if i == 2 * queries {
            warm = meter.samples.len();
        }
        let answer = db.step(fs, &mut meter)?;
        let mut took = answer.took;
        if answer.needed_fs {
            let now = fs.disk().lock().now();
            completions.push_back(now);
            if completions.len() > CLIENTS
                && let Some(before) = completions.pop_front()
            {
                took = now - before;
            }
        }
        if i >= 2 * queries {
            let times = if answer.update {
                &mut answers.updates
            } else {
                &mut answers.reads
            };
            times.add(took);
        }
    }
    answers.rate = mean_rate(&meter.samples[warm..]);
    answers.samples = meter.samples;
    Ok(answers)
}

/// Runs E3: YCSB-A, half reads and half updates.
pub fn e3(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    let shape = shape(230.4, scale.divisor, scale.dirty_max);
    let systems = [
        System::Iplfs,
        System::F2fs(Mode::Lfs, Cleaner::ReadAhead),
        System::F2fs(Mode::Lfs, Cleaner::Synchronous),
        System::F2fs(Mode::Lfs, Cleaner::Batched),
        System::F2fs(Mode::Ssr, Cleaner::ReadAhead),
    ];
    let mut all: Vec<(System, Answers)> = Vec::new();
    for system in systems {
        let mut fs = system.make(Preset::Openssd, scale.divisor, shape, Discards::Eager)?;
        let blocks = fs.capacity() * 9 / 10;
        let queries = Queries::Ycsb { updates: 0.5 };
        let mut db = Database::new(&mut *fs, blocks, 0.03, queries, seed)?;
        all.push((system, query(&mut *fs, &mut db, scale.queries)?));
    }
    let ours = &all[0].1;
    for (system, theirs) in &all[1..] {
        let name = system.name();
        let bar = *system == System::F2fs(Mode::Lfs, Cleaner::ReadAhead);
        let mut put = |text: String, value: f64, bar_name: &str, published: &str| -> Result<()> {
            if bar {
                out.at_least(text, value, e.bar(bar_name)?, published);
            } else {
                out.say(text, value, "");
            }
            Ok(())
        };
        put(
            format!("throughput of IPLFS / {name}"),
            ours.rate / theirs.rate,
            "throughput",
            "3.73",
        )?;
        for (q, bar_name, published) in [(0.95, "p95", "5.2"), (0.99, "p99", "5.0")] {
            // The published value covers reads and updates together.
            let both = |a: &Answers| {
                let mut h = a.reads.clone();
                h.merge(&a.updates);
                h.quantile(q).0.max(1) as f64
            };
            put(
                format!("{bar_name} of {name} / IPLFS"),
                both(theirs) / both(ours),
                bar_name,
                published,
            )?;
        }
    }
    for (system, a) in &all {
        let ms = |h: &Histogram| {
            QUANTILES
                .map(|q| format!("{:.2}", h.quantile(q).0 as f64 / 1e6))
                .join(" / ")
        };
        out.note(format!(
            "{}: {:.0} queries/s; p50 / p95 / p99 / p99.9 in ms: reads {}, updates {}; drift {:.3}.",
            system.name(), a.rate, ms(&a.reads), ms(&a.updates), drift(&a.samples)
        ));
    }
    out.note("Eight clients, the filesystem serving one at a time; the pool holds 3 % of the pages; pages are flushed 16 at a time through a double-write file, in the query that needs the room.");
    out.charts.push(Chart {
        title: e.title.clone(),
        x: "queries".to_owned(),
        y: "queries in a virtual second".to_owned(),
        series: all
            .iter()
            .map(|(s, a)| {
                (
                    s.name().to_owned(),
                    a.samples.iter().map(|s| (s.ops as f64, s.rate)).collect(),
                )
            })
            .collect(),
    });
    out.samples = all
        .into_iter()
        .map(|(s, a)| (s.name().to_owned(), a.samples))
        .collect();
    Ok(out)
}

/// Number of databases in E7, each with its own seed.
const ROUNDS: u64 = 3;

/// Runs E7: map maintenance off, incremental, and all nodes at a time.
pub fn e7(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    // Random discards of small blocks in a large database are the worst case for the map.
    let shape = shape(230.4, scale.divisor, scale.dirty_max);
    let ways = [
        ("off", Compaction::Off),
        ("incremental", Compaction::STEADY),
        ("at once", Compaction::AtOnce),
    ];
    struct Way {
        queries: Histogram,
        commands: Histogram,
        writes: Histogram,
        stall: Nanos,
        map: u64,
        entries: u64,
    }
    let mut all: Vec<Way> = Vec::new();
    for (name, compaction) in ways {
        let make = |interval| -> Result<Iplfs> {
            let mut config = Preset::Nvme.config(scale.divisor).with_interval(interval);
            // Once per second at the published size.
            config.cleaning.map_period = Nanos(1_000_000_000 / u64::from(scale.divisor));
            let disk = Shared::new(Disk::new(config, Discards::Eager), AREA_BITS);
            Iplfs::new(disk, shape)
        };
        let interval = Interval {
            compaction,
            ..Interval::new(AREA_BITS)
        };
        // Four of five queries are updates. Several databases are measured, because the time of a
        // checkpoint dominates the tail of a single one.
        let (mut queries, mut stall) = (Histogram::new(), Nanos(0));
        for round in 0..ROUNDS {
            let mut fs = make(interval)?;
            let blocks = fs.capacity() * 7 / 10;
            let updates = Queries::Ycsb { updates: 0.8 };
            let mut db = Database::new(&mut fs, blocks, 0.03, updates, seed + round)?;
            let answers = query(&mut fs, &mut db, scale.queries)?;
            queries.merge(&answers.reads);
            queries.merge(&answers.updates);
            stall = stall.max(fs.disk().lock().flash.counters().map_stall_max);
        }
        // Random writes of single blocks fragment the map most.
        let mut fs = make(interval)?;
        let file = fs.capacity() * 7 / 10;
        let mut load = RandomWrite::new(&mut fs, file, seed)?;
        let mut meter = Meter::new(&fs, (8 * shape.dirty_max).min(file / 20));
        for _ in 0..2 * file {
            load.step(&mut fs, &mut meter)?;
        }
        let disk = fs.disk().lock();
        let counters = disk.flash.counters();
        all.push(Way {
            queries,
            commands: disk.flash.write_times().clone(),
            writes: meter.times.clone(),
            stall: stall.max(counters.map_stall_max),
            map: counters.map_bytes_max,
            entries: counters.map_entries,
        });
        out.samples.push((name.to_owned(), meter.samples.clone()));
    }
    let p = |h: &Histogram, q: f64| h.quantile(q).0.max(1) as f64;
    let (off, ours, at_once) = (&all[0], &all[1], &all[2]);
    let limit = e.bar("p999")?;
    for (what, pick) in [
        (
            "query of the database",
            (|w: &Way| &w.queries) as fn(&Way) -> &Histogram,
        ),
        ("write command at the device", |w| &w.commands),
        ("buffered write of the application", |w| &w.writes),
    ] {
        out.at_most(
            format!("p99.9 of a {what}: incremental / off"),
            p(pick(ours), 0.999) / p(pick(off), 0.999),
            limit,
            "",
        );
        out.say(
            format!("p99.9 of a {what}: at once / off"),
            p(pick(at_once), 0.999) / p(pick(off), 0.999),
            "",
        );
        out.say(
            format!("longest {what}: incremental / off"),
            p(pick(ours), 1.0) / p(pick(off), 1.0),
            "",
        );
    }
    out.at_most(
        "longest stop by one piece of upkeep, incremental, ms",
        ours.stall.0 as f64 / 1e6,
        e.bar("stall_ms")?,
        "",
    );
    let full = at_once.stall.0 as f64 / 1e6 * f64::from(scale.divisor);
    out.say(
        "longest stop, at once, ms at this size",
        at_once.stall.0 as f64 / 1e6,
        "",
    );
    out.say(
        "longest stop, at once, ms at the published size",
        full,
        "1100",
    );
    let mib = |w: &Way| w.map as f64 / (1 << 20) as f64 * f64::from(scale.divisor);
    let flat = 4.0 * 256.0 * GIB as f64 / (1 << 20) as f64;
    out.say("largest map, off, MiB at the published size", mib(off), "");
    out.say(
        "largest map, incremental, MiB at the published size",
        mib(ours),
        "392",
    );
    out.say("flat page map, MiB", flat, "256");
    out.note(format!(
        "Incremental upkeep looked at or moved {} entries in all, off {}, at once {}.",
        ours.entries, off.entries, at_once.entries
    ));
    out.note("A stop of all at once grows with the map, so it is given at the published size, too; one node at a time is the same at any size.");
    let curve = |h: &Histogram| {
        let at = |i: u32| {
            (
                f64::from(i) / 10.0,
                p(h, 1.0 - 10_f64.powf(-f64::from(i) / 10.0)) / 1e3,
            )
        };
        (0..=40).map(at).collect::<Vec<_>>()
    };
    out.charts.push(Chart {
        title: "Write commands at the device: time by quantile".to_owned(),
        x: "nines (3 is p99.9)".to_owned(),
        y: "µs".to_owned(),
        series: ways
            .iter()
            .zip(&all)
            .map(|((name, _), w)| ((*name).to_owned(), curve(&w.commands)))
            .collect(),
    });
    Ok(out)
}

/// Runs E8: three workloads on F2FS, zoned F2FS and IPLFS.
pub fn e8(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    // Smaller divisors leave too few zones to choose from; a test runs shorter instead.
    let divisor = scale.divisor.min(256);
    let fills = if divisor < scale.divisor { 1 } else { 3 };
    // 256 GB with 7 % spare exports 223 GiB.
    let shape = shape(222.0, divisor, scale.dirty_max);
    let cleaner = Cleaner::ReadAhead;
    let systems = [
        System::F2fs(Mode::Lfs, cleaner),
        System::Zoned(cleaner),
        System::Iplfs,
    ];
    let published = [
        ("fio", [120.0, 127.0, 161.0]),
        ("TPC-C-like", [5164.0, 8459.0, 9549.0]),
        ("fileserver", [2065.0, 2067.0, 2632.0]),
    ];
    for (workload, rates) in published {
        let mut found = Vec::new();
        for system in systems {
            let mut fs = system.make(Preset::Nvme, divisor, shape, Discards::Eager)?;
            let live = (168.0 * GIB as f64) as u64 / u64::from(divisor);
            let samples = match workload {
                "fio" => {
                    let mut load = RandomWrite::new(&mut *fs, live, seed)?;
                    let mut meter = Meter::new(&*fs, (8 * shape.dirty_max).min(live / 20));
                    for _ in 0..fills * shape.partition_blocks {
                        load.step(&mut *fs, &mut meter)?;
                    }
                    meter.samples
                }
                "TPC-C-like" => {
                    let mut db = Database::new(&mut *fs, live, 0.03, Queries::TpcC, seed)?;
                    let queries = (scale.queries / 5).max(500);
                    query(&mut *fs, &mut db, queries)?.samples
                }
                _ => {
                    // Mean file size of 4 MiB.
                    let mut server = FileServer::new(&mut *fs, live, 1024, seed)?;
                    let start = fs.disk().lock().flash.counters().host_slots;
                    let mut meter = Meter::new(&*fs, 40);
                    while fs.disk().lock().flash.counters().host_slots - start
                        < fills * shape.partition_blocks
                    {
                        server.step(&mut *fs, &mut meter)?;
                    }
                    meter.samples
                }
            };
            found.push(mean_rate(&samples[samples.len() * 2 / 3..]));
            out.note(format!(
                "{workload}, {}: drift {:.3}.",
                system.name(),
                drift(&samples)
            ));
            out.samples
                .push((format!("{workload}, {}", system.name()), samples));
        }
        let ratio = e.bar("ratio")?;
        for (i, j) in [(0, 1), (1, 2)] {
            let text = format!("{workload}: {} / {}", systems[j].name(), systems[i].name());
            out.at_least(
                text,
                found[j] / found[i],
                ratio,
                &format!("{:.2}", rates[j] / rates[i]),
            );
        }
    }
    out.note("Both baselines clean with read-ahead, in the foreground, and discard eagerly; the last third of each run counts.");
    Ok(out)
}
