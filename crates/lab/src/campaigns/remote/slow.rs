//! Latency of reads at a server of which some answers are late, with and without second requests (hedging).

use super::network::{Fault, Remote};
use super::session::{PATH, Session, bar};
use crate::measure::stats::quantile;
use crate::measure::stop;
use crate::options::Emit;
use crate::record::{Line, labels};
use crate::{At, Result};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;
use tuff_testkit::Rng;

/// Distance of two reads in bytes: no request fetches what two of them need.
const STEP: u64 = 2 << 20;
/// Number of reads in a round.
const READS: u64 = 600;
/// Answers of 1000 that come 200 ms later.
const SLOW: usize = 20;
/// Names of the two ways in tables.
const WITHOUT: &str = "one request";
const WITH: &str = "second request";

pub(super) fn run(session: &Session<'_>, emit: Emit<'_>) -> Result<bool> {
    let tree = session.noise(STEP * READS)?;
    let (image, _) = session.verified_image(&tree, &["-z", "none"])?;
    let source = tree.join("content");
    let source = File::open(&source).at("open", &source)?;
    emit(&bar("way", (WITH, Some(WITHOUT)), "p99_ms", 0.6))?;
    emit(&bar("way", (WITH, None), "more_requests_percent", 5.0))?;
    let mut network = session.conditions.network.clone();
    network.fault = vec![(Fault::Slow, SLOW)];
    let mut fine = true;
    for round in 1..=session.conditions.rounds() {
        for (way, option) in [(WITHOUT, Some("--no-hedging")), (WITH, None)] {
            let remote = Remote::serve(PATH, &image, &network, u64::from(round))?;
            let options: Vec<String> = option.map(str::to_owned).into_iter().collect();
            let served = session.mount_remote(&remote, &options)?;
            let path = served.point().join("content");
            let file = File::open(&path).at("open", &path)?;
            fadvise(&file, 0, None, Advice::Random).at("open", &path)?;
            remote.take_requests(PATH);
            let (mut times, mut is_same) = (Vec::new(), true);
            for step in order(READS, u64::from(round)) {
                stop::check()?;
                let (mut found, mut expected) = ([0; 4096], [0; 4096]);
                let begin = Instant::now();
                file.read_exact_at(&mut found, step * STEP)
                    .at("read", &path)?;
                times.push(begin.elapsed().as_secs_f64() * 1e3);
                source
                    .read_exact_at(&mut expected, step * STEP)
                    .at("read", &path)?;
                is_same &= found == expected;
            }
            let cell = labels([("way", way)]);
            if !is_same {
                fine = false;
                emit(&Line::failure(
                    cell,
                    "other bytes than in the tree".to_owned(),
                ))?;
                continue;
            }
            let sent = remote.take_requests(PATH) as f64;
            let hedged = session.counter(served.point(), "remote_hedged_requests");
            let hedged = hedged.unwrap_or(0.0);
            let more = 100.0 * hedged / (sent - hedged).max(1.0);
            let at = |share| quantile(&times, share).unwrap_or(0.0);
            let values = [
                ("p50_ms", at(0.5)),
                ("p99_ms", at(0.99)),
                ("requests", sent),
                ("more_requests_percent", more),
            ];
            eprintln!("{way}: p99 {:.0} ms", at(0.99));
            emit(&Line::sample(cell, round, values))?;
        }
    }
    Ok(fine)
}

/// Returns the numbers below `count` in a random order.
fn order(count: u64, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut drawn: Vec<(u64, u64)> = (0..count).map(|n| (rng.draw(), n)).collect();
    drawn.sort_unstable();
    drawn.into_iter().map(|(_, n)| n).collect()
}
