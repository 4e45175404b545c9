//! Property tests of the device against a table of the written blocks: every read returns the last
//! write.

use std::collections::HashMap;
use tuff_flash_sim::map::{Compaction, Interval, Region};
use tuff_flash_sim::{Config, Error, Faults, Flash, Geometry, Lba, Nanos, Payload, Preset};
use tuff_testkit::Rng;

fn small(streams: u32) -> Config {
    let geometry = Geometry {
        channels: 2,
        luns_per_channel: 2,
        blocks_per_lun: 24,
        pages_per_block: 4,
        slots_per_page: 4,
        exported_slots: 1100,
    };
    let mut config = Preset::Nvme.config(1024);
    config.geometry = geometry;
    config.timing.buffer_slots = 24;
    config.streams = streams;
    config
}

/// Applies random overwrites, discards and reads. `place` maps a number below `exported` to an
/// address.
fn churn(config: Config, seed: u64, steps: u32, place: impl Fn(u64) -> u64) -> Flash {
    let streams = u64::from(config.streams);
    let exported = config.geometry.exported_slots;
    let mut flash = Flash::new(config);
    let mut rng = Rng::new(seed);
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut now = Nanos(0);
    for step in 0..steps {
        let first = rng.below_u64(exported);
        let count = (1 + rng.below_u64(9)).min(exported - first);
        match rng.below_u64(10) {
            0..6 => {
                for n in first..first + count {
                    let word = rng.draw();
                    let data = vec![Payload::Fill(word)];
                    let stream = rng.below_u64(streams) as u32;
                    now = flash.write(now, Lba(place(n)), data, stream).unwrap();
                    model.insert(place(n), word);
                }
            }
            6..8 => {
                for n in first..first + count {
                    now = flash.discard(now, place(n)..place(n) + 1).unwrap();
                    model.remove(&place(n));
                }
            }
            8 => {
                let (done, data) = flash.read(now, Lba(place(first)), 1).unwrap();
                assert!(done > now, "time stands still");
                now = done;
                let want = model.get(&place(first)).map(|w| Payload::Fill(*w));
                assert_eq!(data, [want], "block {first} in step {step}, seed {seed}");
            }
            _ => now = flash.flush(now),
        }
        if step % 500 == 0 {
            flash.assert_sound();
        }
    }
    flash.assert_sound();
    assert_eq!(flash.mapped(), model.len() as u64);
    for n in 0..exported {
        let (_, data) = flash.read(now, Lba(place(n)), 1).unwrap();
        assert_eq!(
            data,
            [model.get(&place(n)).map(|w| Payload::Fill(*w))],
            "block {n}, seed {seed}"
        );
    }
    flash
}

/// Spreads numbers over six trees, many segments and zones.
fn spread(n: u64) -> u64 {
    ((1 + n % 6) << 48) + n * 37 % 1100 * 5000
}

#[test]
fn a_page_map_returns_the_last_write() {
    for seed in 0..4 {
        let flash = churn(small(1), seed, 5000, |n| n);
        assert!(flash.counters().moved_slots > 0, "never cleaned");
        assert!(flash.counters().write_amplification() > 1.0);
    }
}

#[test]
fn an_interval_map_returns_the_last_write() {
    let forms = [Region::Fixed(8), Region::Adaptive, Region::Smallest];
    let times = [
        Compaction::Off,
        Compaction::Incremental(64),
        Compaction::AtOnce,
    ];
    for (i, (region, compaction)) in forms
        .iter()
        .flat_map(|r| times.map(|c| (*r, c)))
        .enumerate()
    {
        let interval = Interval {
            region,
            compaction,
            ..Interval::new(48)
        };
        let mut config = small(3).with_interval(interval);
        config.cleaning.map_period = Nanos::millis(1);
        // The dense layout fills and empties segments; the spread layout leaves one block in most
        // segments.
        churn(config.clone(), i as u64, 3000, |n| (2 << 48) + n * 61);
        churn(config, i as u64, 1000, spread);
    }
}

#[test]
fn appending_and_discarding_moves_no_block_and_takes_constant_memory() {
    let mut flash = Flash::new(small(1).with_interval(Interval::new(48)));
    let mut now = Nanos(0);
    let (window, mut peak) = (800, 0);
    for lba in 0..200_000 {
        now = flash
            .write(now, Lba((5 << 48) + lba), vec![Payload::Fill(lba)], 0)
            .unwrap();
        if lba >= window {
            let dead = (5 << 48) + lba - window;
            now = flash.discard(now, dead..dead + 1).unwrap();
        }
        peak = peak.max(flash.map_bytes());
    }
    flash.assert_sound();
    assert_eq!(flash.counters().moved_slots, 0);
    assert!(peak < 3 * 16_400 + 8300 + 256, "{peak} bytes of map");
    assert!(flash.wear().erases > 2000);
}

#[test]
fn a_full_device_rejects_new_blocks_and_accepts_overwrites() {
    let mut flash = Flash::new(small(1).with_interval(Interval::new(48)));
    let mut now = Nanos(0);
    for lba in 0..1100 {
        now = flash
            .write(now, Lba(lba), vec![Payload::Fill(lba)], 0)
            .unwrap();
    }
    let full = flash.write(now, Lba(1100), vec![Payload::Fill(0)], 0);
    assert_eq!(full, Err(Error::Full { exported: 1100 }));
    let mut rng = Rng::new(1);
    for _ in 0..5000 {
        now = flash
            .write(now, Lba(rng.below_u64(1100)), vec![Payload::Fill(9)], 0)
            .unwrap();
    }
    flash.discard(now, 0..1).unwrap();
    flash
        .write(now, Lba(1100), vec![Payload::Fill(0)], 0)
        .unwrap();
    flash.assert_sound();
}

#[test]
fn a_device_stays_usable_if_all_discards_affect_one_lun() {
    let mut flash = Flash::new(small(1));
    let mut now = Nanos(0);
    for round in 0..200 {
        for lba in 0..1100 {
            if flash.mapped() < 1100 {
                now = flash
                    .write(now, Lba(lba), vec![Payload::Fill(round)], 0)
                    .unwrap();
            }
        }
        // Pages of four slots are written to the LUNs in turn, so every fourth group of four blocks
        // is on the same LUN.
        for lba in (0..1100).filter(|lba| lba / 4 % 4 == round % 4) {
            now = flash.discard(now, lba..lba + 1).unwrap();
        }
    }
    flash.assert_sound();
}

#[test]
fn failed_programs_and_erases_lose_no_data() {
    for seed in 0..6 {
        let mut config = small(2);
        config.geometry.exported_slots = 900;
        config.faults = Faults {
            programs: (0..8).map(|i| 150 + i * 97 + seed).collect(),
            erases: (0..4).map(|i| 20 + i * 31).collect(),
            ..Faults::default()
        };
        let flash = churn(config, seed, 4000, |n| n);
        assert_eq!(flash.wear().retired, 12, "seed {seed}");
    }
}

#[test]
fn a_failed_read_reports_the_block_and_loses_no_data() {
    let mut config = small(1);
    config.faults.reads = [0].into();
    let mut flash = Flash::new(config);
    let data = (0..8).map(Payload::Fill).collect();
    let now = flash.write(Nanos(0), Lba(3), data, 0).unwrap();
    let failed = flash.read(now, Lba(4), 2);
    assert!(
        matches!(failed, Err(Error::Uncorrectable { lba: Lba(4), .. })),
        "{failed:?}"
    );
    let (_, data) = flash.read(now, Lba(4), 2).unwrap();
    assert_eq!(data, [Some(Payload::Fill(1)), Some(Payload::Fill(2))]);
}

#[test]
fn the_same_commands_take_the_same_time() {
    let run = || {
        let flash = churn(small(2).with_interval(Interval::new(48)), 7, 3000, |n| {
            (3 << 48) + n
        });
        (
            flash.idle_at(),
            flash.counters(),
            flash.write_times().quantile(0.999),
        )
    };
    assert_eq!(run(), run());
}

#[test]
fn random_overwrites_have_the_write_amplification_of_greedy_cleaning() {
    // At 80 % occupancy, uniform overwrites under greedy cleaning have a write amplification of
    // about 2.6. It grows with the size of the device.
    let mut config = Preset::Nvme.config(512);
    config.geometry.exported_slots = config.geometry.raw_slots() * 8 / 10;
    let n = config.geometry.exported_slots;
    let mut flash = Flash::new(config);
    let mut rng = Rng::new(3);
    let mut now = Nanos(0);
    for lba in 0..n {
        now = flash
            .write(now, Lba(lba), vec![Payload::Fill(0)], 0)
            .unwrap();
    }
    for _ in 0..3 * n {
        now = flash
            .write(now, Lba(rng.below_u64(n)), vec![Payload::Fill(0)], 0)
            .unwrap();
    }
    let before = flash.counters();
    for _ in 0..n {
        now = flash
            .write(now, Lba(rng.below_u64(n)), vec![Payload::Fill(0)], 0)
            .unwrap();
    }
    let wa = flash.counters().since(&before).write_amplification();
    assert!((2.2..3.2).contains(&wa), "{wa}");
    flash.assert_sound();
}

#[test]
fn write_bandwidth_is_limited_by_the_dies() {
    let config = Preset::Nvme.config(256);
    let (slots, timing) = (100_000, config.timing);
    let page = timing.program + timing.channel_slot.times(8);
    let bound = Nanos(page.0 * slots / 8 / 16);
    let mut flash = Flash::new(config);
    let mut now = Nanos(0);
    for lba in (0..slots).step_by(4) {
        // A queue of 32 commands hides the latency of each.
        let data = (0..4).map(Payload::Fill).collect();
        let done = flash.write(now, Lba(lba), data, 0).unwrap();
        now = now.max(done.since(Nanos::micros(200)));
    }
    let took = now.0 as f64 / bound.0 as f64;
    assert!((0.95..1.1).contains(&took), "{took} of what the dies need");
}
