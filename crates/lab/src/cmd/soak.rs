//! `tuff-lab soak`: reads one mount for a long time.

use super::options::{Programs, absolute};
use std::path::PathBuf;
use tuff_lab::campaigns::serve;
use tuff_lab::engines::settings::Size;
use tuff_lab::{Error, Result};

/// Read one mount for a long time under a memory limit; report memory growth, slowdown and wrong
/// data
///
/// Exit code 1 if there are findings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to mount and read
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Source tree of the image; large files in its root are read completely and in pages
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,
    /// Duration of the test
    #[arg(long, default_value_t = 30.0, value_name = "MINUTES")]
    minutes: f64,
    /// Memory limit for the server and the readers together
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    limit: Size,
    /// Control group (a folder) in which a child group is created
    #[arg(long, default_value = "/sys/fs/cgroup/memory", value_name = "DIR")]
    cgroup: PathBuf,
    /// Seed of the sequence of reads
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    #[command(flatten)]
    programs: Programs,
    /// Folder for the mount point
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Additional arguments for the server
    #[arg(last = true)]
    extra: Vec<String>,
}

/// Runs the command. Returns false if there are findings.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let outcome = serve::soak::run(&serve::soak::Soak {
        program: args.programs.tuff()?,
        extra: args.extra.clone(),
        image: absolute(&args.image)?,
        tree: absolute(&args.tree)?,
        length: std::time::Duration::try_from_secs_f64(args.minutes * 60.0)
            .map_err(|e| Error::Usage(format!("--minutes {}: {e}", args.minutes)))?,
        limit: args.limit.0,
        cgroup: args.cgroup.clone(),
        seed: args.seed,
        work: absolute(&args.work)?,
    })?;
    let text = serde_json::to_string_pretty(&outcome);
    println!(
        "{}",
        text.map_err(|e| Error::Command(format!("cannot encode the outcome: {e}")))?
    );
    Ok(outcome.findings.is_empty())
}
