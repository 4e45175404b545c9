//! `tuff stats`: counters of a mount.

use super::umount::mounted;
use crate::counters_socket;
use crate::out::Out;
use crate::units::{percent, size};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::{Error, Result};
use tuff_fuse::handler::STATS_XATTR;
use tuff_fuse::mountpoint;

/// Show the counters of a mount that tuff serves
///
/// Prints a name and a number per line: requests, errors, bytes and time by operation, histograms of latencies and of the
/// sizes of reads, and the bytes fetched and decoded. A table of the sizes of reads with their shares follows. The counters
/// are read from the attribute user.tuff.stats of the root directory, so every user who can read that directory can read
/// them. For an image behind a URL that the kernel has mounted, they come from the serving process.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point of an image or volume
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = mounted(&args.dir)?;
    let failed = |e: rustix::io::Errno| match e {
        rustix::io::Errno::NODATA => Error::usage(format_args!(
            "{}: mounted by the kernel, which keeps no counters; mount it without --kernel",
            dir.display()
        )),
        e => Error::io(dir.display(), "cannot read the counters", e.into()),
    };
    // The kernel's mount may take the place of the one with the attribute meanwhile.
    let text = from_attribute(&dir).or_else(|e| from_server(&dir).ok_or(e));
    let text = text.map_err(failed)?;
    let mut out = Out::new();
    if args.json {
        let pairs = text.lines().filter_map(|line| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), Value::from(number.parse::<u64>().ok()?)))
        });
        out.line(Value::Object(pairs.collect::<Map<_, _>>()))?;
    } else {
        out.bytes(text.as_bytes())?;
        let rows = read_sizes(&text);
        if !rows.is_empty() {
            out.line("\nreads by size")?;
        }
        for row in rows {
            out.line(row)?;
        }
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the counters of a mount by the kernel, if its server keeps them.
fn from_server(dir: &Path) -> Option<String> {
    let mount = mountpoint::find(dir).ok()??;
    counters_socket::read(mount.device).ok()
}

fn from_attribute(dir: &Path) -> rustix::io::Result<String> {
    // Largest value of an attribute.
    let mut value = vec![0; 64 << 10];
    let n = rustix::fs::getxattr(dir, STATS_XATTR, &mut value[..])?;
    Ok(String::from_utf8_lossy(&value[..n]).into_owned())
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
