//! `tuff stats`: counters of a mount.

use super::umount::mounted;
use crate::out::Out;
use crate::units::{percent, size};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Map, Value};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::{Error, Place, Result};
use tuff_fuse::handler::STATS_XATTR;
use tuff_fuse::mountpoint;
use tuff_mount::counters_socket;

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

/// Returns the counters of the mount at `dir`.
fn counters(dir: &Path) -> Result<String> {
    let shown = dir.display();
    let failed = |e: Errno| Error::io(Place::file(&shown), "cannot read the counters", e.into());
    for _ in 0..100 {
        let dir = mounted(dir)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Holds the filesystem, so that its device number is not given to another one.
        let held = rustix::fs::open(&dir, flags, Mode::empty()).map_err(failed)?;
        let device = mountpoint::device_of(&held).map_err(|e| failed(errno(&e)))?;
        let found = mountpoint::find(&dir).map_err(|e| failed(errno(&e)))?;
        // The kernel's mount may take the place of the first one meanwhile.
        let Some(mount) = found.filter(|mount| mount.device == device) else {
            continue;
        };
        if mount.is_served() {
            return from_attribute(&held).map_err(failed);
        }
        return counters_socket::read(device).ok_or_else(|| {
            Error::usage(format_args!(
                "{shown}: mounted by the kernel, which keeps no counters; mount it without --kernel"
            ))
        });
    }
    Err(failed(Errno::AGAIN))
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

fn from_attribute(root: &OwnedFd) -> rustix::io::Result<String> {
    // Largest value of an attribute.
    let mut value = vec![0; 64 << 10];
    // The descriptor itself is none for reading.
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    let n = rustix::fs::getxattr(path, STATS_XATTR, &mut value[..])?;
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
