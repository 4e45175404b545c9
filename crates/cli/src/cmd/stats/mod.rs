//! `tuff stats`: counters of a mount.

mod counters;
mod start;

use crate::out::Out;
use crate::units::{percent, size};
use counters::counters;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::Result;

/// Show the counters of a mount that tuff serves
///
/// Prints a name and a number per line: requests, errors, bytes and time by operation, histograms of latencies and of the
/// sizes of reads, and the bytes fetched and decoded. A table of the sizes of reads with their shares follows. The counters
/// are read from the attribute user.tuff.stats of the root directory, so every user who can read that directory can read
/// them. For an image behind a URL that the kernel has mounted, they come from the serving process.
///
/// With --start, prints the requests of the start of an image behind a URL instead: a line per request with the times since the
/// mount began, the reason, the bytes of the answer, those that programs have used, and a bar; then a line per reason with its sums.
/// Used are bytes in chunks of 32 KiB, or 128 KiB without a hash tree, of which a part was read.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point of an image or volume; with --start, also a file that tuff mount --trace has written
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Show the requests of the start of an image behind a URL
    #[arg(long)]
    start: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.start {
        return start::run(&args.dir, args.json);
    }
    let text = counters(&args.dir)?;
    let pairs = pairs(&text);
    let mut out = Out::new();
    if args.json {
        let pairs = pairs.map(|(name, number)| (name.to_owned(), Value::from(number)));
        out.json(&Value::Object(pairs.collect::<Map<_, _>>()))?;
    } else {
        for (name, number) in pairs {
            out.line(format_args!("{name} {number}"))?;
        }
        let rows = read_sizes(&text);
        if !rows.is_empty() {
            out.line("")?;
            out.line("reads by size")?;
        }
        for row in rows {
            out.line(row)?;
        }
    }
    out.finish()
}

/// Names and numbers of counters. Other lines are none: every user can mount a filesystem of this type.
fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        Some((is_name.then_some(name)?, number.parse().ok()?))
    })
}

/// Returns a row per size class of reads that occurred: its upper bound, number and share of requests.
fn read_sizes(counters: &str) -> Vec<String> {
    let classes: Vec<(String, u64)> = counters
        .lines()
        .filter_map(|line| {
            let (name, number) = line.strip_prefix("read.")?.split_once(' ')?;
            let number = number.parse().ok()?;
            if name == "longer" {
                return Some((name.to_owned(), number));
            }
            let max = name.strip_prefix("up_to_")?.strip_suffix("_bytes")?;
            Some((format!("up to {}", size(max.parse().ok()?)), number))
        })
        .collect();
    let all = classes.iter().map(|(_, number)| number).sum();
    let row = |(name, number): (String, u64)| {
        let share = percent(number, all);
        format!("  {name:<16} {number:>12} {share:>8}")
    };
    classes.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_counters_are_not_printed() {
        let text = "reads 1\n\x1b[2Jreads 2\nreads x\nreads -1\n 5\nreads\nwrites 3\n";
        let found: Vec<_> = pairs(text).collect();
        assert_eq!(found, [("reads", 1), ("writes", 3)]);
    }

    #[test]
    fn reads_by_size_are_shares_of_all_reads() {
        let counters = "\
uptime_seconds 5
read.requests 200
read.below_10_us 200
read.up_to_512_bytes 10
read.up_to_4096_bytes 90
read.up_to_131072_bytes 99
read.longer 1
";
        assert_eq!(
            read_sizes(counters),
            [
                "  up to 512 B                10    5.0 %",
                "  up to 4.0 KiB              90   45.0 %",
                "  up to 128.0 KiB            99   49.5 %",
                "  longer                      1    0.5 %",
            ]
        );
        assert!(read_sizes("uptime_seconds 5\n").is_empty());
    }
}
