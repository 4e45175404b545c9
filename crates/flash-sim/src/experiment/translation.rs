//! E6: cost of an address translation, in real time and in the model.

use crate::experiment::definition::{Experiment, Scale};
use crate::experiment::error::Result;
use crate::experiment::error::failed;
use crate::experiment::outcome::Outcome;
use crate::experiment::random::Rng;
use crate::map::{Interval, IntervalMap, Map, PageMap};
use crate::{Flash, Histogram, Lba, Nanos, Payload, Preset, Slot};
use std::hint::black_box;
use std::time::Instant;

/// Blocks of 10 GiB, the published file.
const BLOCKS: u64 = 10 << 18;

/// Returns the real time per step of `work`, which performs `steps`. Unit: nanoseconds.
fn time(steps: u64, work: impl FnOnce() -> u64) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_nanos() as f64 / steps as f64
}

/// Returns a random permutation of the numbers below `n` that is a single cycle.
fn cycle(n: u64, rng: &mut Rng) -> Vec<u32> {
    // Fits: slot addresses have 32 bits.
    let mut next: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        next.swap(i as usize, rng.below(i) as usize);
    }
    next
}

/// Returns the median, NaN without samples. Of an even number of samples it is the mean of the middle two.
fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (lower, upper) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match (sorted.get(lower), sorted.get(upper)) {
        (Some(lower), Some(upper)) => lower + (upper - lower) / 2.0,
        _ => f64::NAN,
    }
}

/// Runs E6: real time of look-ups and insertions, and direct I/O on both devices in virtual time.
pub fn e6(e: &Experiment, scale: &Scale, seed: u64) -> Result<Outcome> {
    let mut out = Outcome::new(e);
    // The maps need little time, so only tests reduce them.
    let blocks = BLOCKS / u64::from(scale.divisor / 128).max(1);
    let base = 2_u64 << 48;
    let (mut gets, mut sets) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    let mut many = (Vec::new(), Vec::new());
    for round in 0..scale.micro_rounds {
        let mut rng = Rng::new(seed + u64::from(round));
        let order: Vec<u64> = (0..blocks).map(|_| rng.below(blocks)).collect();
        let next = cycle(blocks, &mut rng);
        let mut page = PageMap::new(blocks);
        let mut interval = IntervalMap::new(Interval::new(48));
        let set = |map: &mut dyn Map, base: u64| -> u64 {
            (0..blocks)
                .map(|n| u64::from(map.set(Lba(base + n), Slot(next[n as usize])).is_ok()))
                .sum()
        };
        let get = |map: &dyn Map, base: u64| -> u64 {
            order
                .iter()
                .map(|n| map.get(Lba(base + n)).map_or(0, |s| u64::from(s.0)))
                .sum()
        };
        let follow = |map: &dyn Map, base: u64| -> u64 {
            (0..blocks).fold(0, |at, _| {
                map.get(Lba(base + at)).map_or(0, |s| u64::from(s.0))
            })
        };
        // A page map is overwritten and an interval map is appended to, as their filesystems use
        // them.
        set(&mut page, 0);
        sets.0.push(time(blocks, || {
            order
                .iter()
                .map(|n| u64::from(page.set(Lba(*n), Slot(next[*n as usize])).is_ok()))
                .sum()
        }));
        sets.1.push(time(blocks, || set(&mut interval, base)));
        gets.0.push(time(blocks, || follow(&page, 0)));
        gets.1.push(time(blocks, || follow(&interval, base)));
        many.0.push(time(blocks, || get(&page, 0)));
        many.1.push(time(blocks, || get(&interval, base)));
    }
    let middle = |samples: &[f64]| {
        let centre = median(samples);
        let distances: Vec<f64> = samples.iter().map(|s| (s - centre).abs()).collect();
        (centre, median(&distances))
    };
    let ((get_page, a), (get_interval, b)) = (middle(&gets.0), middle(&gets.1));
    let ((set_page, c), (set_interval, d)) = (middle(&sets.0), middle(&sets.1));
    out.say("look-up, page map, ns of this machine", get_page, "");
    out.say("look-up, interval map, ns", get_interval, "");
    let (many_page, many_interval) = (middle(&many.0).0, middle(&many.1).0);
    out.say("look-ups that overlap, page map, ns", many_page, "");
    out.say("look-ups that overlap, interval map, ns", many_interval, "");
    out.say("insert, page map, ns", set_page, "");
    out.say("insert, interval map, ns", set_interval, "");
    out.between(
        "look-up, interval / page",
        get_interval / get_page,
        [e.bar("get_least")?, e.bar("get_most")?],
        "1.88",
    );
    out.at_most(
        "insert, interval / page",
        set_interval / set_page,
        e.bar("set_most")?,
        "3.3",
    );
    out.note("A look-up is timed as the published one was, for its latency: each begins with what the one before it found, as on a core that does one after the other. A large processor overlaps look-ups that do not depend on each other, and those of a page map, which are one load, better than others.");
    out.note(format!(
        "Real time, the only numbers here that differ between runs: medians of {} rounds over {blocks} blocks in random order, median deviations {a:.1}, {b:.1}, {c:.1}, {d:.1} ns.",
        scale.micro_rounds
    ));

    let (page, interval) = (
        direct(false, scale.divisor, seed)?,
        direct(true, scale.divisor, seed)?,
    );
    for (i, what) in ["write", "read"].iter().enumerate() {
        let mean = |h: &[Histogram; 2]| h[i].mean().0 as f64;
        let off = (mean(&interval) / mean(&page) - 1.0).abs();
        out.say(
            format!("direct {what}, page map, mean µs in the model"),
            mean(&page) / 1e3,
            "",
        );
        out.say(
            format!("direct {what}, interval map, mean µs in the model"),
            mean(&interval) / 1e3,
            "",
        );
        out.at_most(
            format!("direct {what}: difference"),
            off,
            e.bar("end_to_end")?,
            "practically none",
        );
    }
    out.note("In the model a look-up takes 100 ns with the page map and 1.88 times that with the interval map, a change 3.3 times: the published ratios on an assumed base.");
    Ok(out)
}

/// Measures direct I/O on 28 GiB, scaled: appending writes, which suit both maps, followed by
/// random reads.
fn direct(interval: bool, divisor: u32, seed: u64) -> Result<[Histogram; 2]> {
    let mut config = Preset::Openssd.config(divisor);
    if interval {
        config = config.with_interval(Interval::new(48));
    }
    let mut flash = Flash::new(config);
    let blocks = (28_u64 << 18) / u64::from(divisor);
    let mut now = Nanos(0);
    let mut rng = Rng::new(seed);
    let (mut writes, mut reads) = (Histogram::new(), Histogram::new());
    for lba in 0..blocks {
        let done = flash.write(now, Lba(lba), vec![Payload::Fill(lba)], 0);
        let done = done.map_err(|e| failed("write", &e))?;
        writes.add(done - now);
        now = done;
    }
    for _ in 0..blocks {
        let (done, _) = flash
            .read(now, Lba(rng.below(blocks)), 1)
            .map_err(|e| failed("read", &e))?;
        reads.add(done - now);
        now = done;
    }
    Ok([writes, reads])
}
