//! `tuff stats`: what a mount did so far.

use super::umount::mounted;
use crate::out::Out;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};
use tuff_mount::handler::STATS_XATTR;

/// Show what a mount did so far.
///
/// A name and a number per line: requests, errors, bytes and time by operation, requests by how long they took, and what
/// was fetched and decoded for them. The mount itself is asked (attribute user.tuff.stats of its root), so whoever may
/// read the directory may see it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = mounted(&args.dir)?;
    let failed = |e: rustix::io::Errno| match e {
        rustix::io::Errno::NODATA => Error::usage(format_args!(
            "{}: mounted by the kernel, which keeps no counters",
            dir.display()
        )),
        e => Error::io(dir.display(), "cannot ask for counters", e.into()),
    };
    // The most that an attribute can hold.
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
