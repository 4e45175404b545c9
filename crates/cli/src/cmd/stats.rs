//! `tuff stats`: counters of a mount.

use super::umount::mounted;
use crate::out::Out;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};
use tuff_fuse::handler::STATS_XATTR;

/// Show the counters of a FUSE mount
///
/// Prints a name and a number per line: requests, errors, bytes and time by operation, a histogram of latencies, and the
/// bytes fetched and decoded. The counters are read from the attribute user.tuff.stats of the root directory, so every user
/// who can read that directory can read them.
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
            "{}: mounted by the kernel, which keeps no counters",
            dir.display()
        )),
        e => Error::io(dir.display(), "cannot read the counters", e.into()),
    };
    // Largest value of an attribute.
    let mut value = vec![0; 64 << 10];
    let n = rustix::fs::getxattr(&dir, STATS_XATTR, &mut value[..]).map_err(failed)?;
    let text = String::from_utf8_lossy(&value[..n]);
    let mut out = Out::new();
    if args.json {
        let pairs = text.lines().filter_map(|line| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), Value::from(number.parse::<u64>().ok()?)))
        });
        out.line(Value::Object(pairs.collect::<Map<_, _>>()))?;
    } else {
        out.bytes(text.as_bytes())?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}
