//! `tuff suggest`: compares build options on a sample of a tree.

use super::build_image::{parse_kernel, preset};
use crate::next_command::shell_word;
use crate::out::Out;
use crate::progress::{Meter, Show, set_on_signal};
use crate::units::{parse_size, size};
use serde_json::json;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};
use tuff_mkfs::suggest::{Estimate, Request, suggest};
use tuff_mkfs::{KernelVersion, Options, Progress};

/// Compare build options on a sample of a directory
///
/// Sizes are extrapolated from the sample; duplicates outside of it are not counted. Times are measured on this machine.
/// A random read is one of 4 KiB with a cold cache.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to take the sample from
    dir: PathBuf,
    /// Oldest Linux that must mount the image
    #[arg(long, default_value_t = Options::default().kernel, value_parser = parse_kernel)]
    kernel: KernelVersion,
    /// Size of the sample
    #[arg(long, default_value = "32M", value_parser = parse_size, value_name = "SIZE")]
    sample: u64,
    /// Do not print progress
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let meter = Meter::start("sampling", Show::unless(args.quiet || args.json));
    let request = Request {
        dir: args.dir.clone(),
        kernel: args.kernel,
        sample: args.sample,
        temporary: std::env::temp_dir(),
    };
    let progress = Progress::default();
    set_on_signal(&progress.stop_flag());
    let result = suggest(&request, &progress, |preset| {
        let stage = preset.map_or_else(|| "sampling".to_owned(), preset::arguments);
        meter.counter().set(stage, 0, 0);
    });
    let (sampled, estimates) = result.map_err(|e| match e {
        Error::Io(_, e) if e.kind() == ErrorKind::Interrupted => {
            Error::io(args.dir.display(), "stopped", e)
        }
        e => e,
    })?;
    drop(meter);
    let mut out = Out::new();
    let picks = picks(&estimates);
    let line = |e: &Estimate| {
        format!(
            "tuff build --kernel {} {} {} IMAGE",
            args.kernel,
            preset::arguments(&e.preset),
            shell_word(&args.dir)
        )
    };
    if args.json {
        let rows: Vec<serde_json::Value> = estimates
            .iter()
            .map(|e| {
                json!({"settings": preset::arguments(&e.preset), "kernel": e.preset.kernel.to_string(), "image_bytes": e.image_bytes,
                    "build_seconds": e.build_seconds, "random_read_fetched_bytes": e.fetched,
                    "random_read_decoded_bytes": e.decoded, "sequential_bytes_per_second": e.sequential})
            })
            .collect();
        let picks: serde_json::Map<String, serde_json::Value> = (picks.iter())
            .map(|(what, e)| ((*what).to_owned(), line(e).into()))
            .collect();
        out.json(&json!({"files": sampled.files, "bytes": sampled.bytes, "sample_bytes": sampled.sample_bytes,
            "estimates": rows, "recommended": picks}))?;
        return out.finish().map(|()| ExitCode::SUCCESS);
    }
    out.line(format_args!(
        "{} in {} files, tried with {} of it",
        size(sampled.bytes),
        sampled.files,
        size(sampled.sample_bytes)
    ))?;
    out.line("")?;
    out.line(format_args!(
        "{:<36} {:>10} {:>7} {:>8} {:>19} {:>12} {:>7}",
        "settings", "image", "", "build", "random read", "in order", "Linux"
    ))?;
    for e in &estimates {
        out.line(format_args!(
            "{:<36} {:>10} {:>7} {:>8} {:>19} {:>12} {:>7}",
            preset::arguments(&e.preset),
            size(e.image_bytes),
            crate::units::percent(e.image_bytes, sampled.bytes),
            format!("{:.1} s", e.build_seconds),
            format!("{} > {}", size(e.fetched), size(e.decoded)),
            format!("{}/s", size(e.sequential as u64)),
            e.preset.kernel.to_string(),
        ))?;
    }
    out.line("")?;
    for (what, e) in &picks {
        out.line(format_args!("{what}:"))?;
        out.line(format_args!("  {}", line(e)))?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Recommendations: the fastest in sequential reads, the smallest, and the smallest that reads at least half as fast as
/// the fastest.
fn picks(all: &[Estimate]) -> Vec<(&'static str, &Estimate)> {
    let fastest = all
        .iter()
        .max_by(|a, b| a.sequential.total_cmp(&b.sequential));
    let enough = fastest.map_or(0.0, |e| e.sequential / 2.0);
    let smallest = all.iter().min_by_key(|e| e.image_bytes);
    let fast = all.iter().filter(|e| e.sequential >= enough);
    let between = fast.min_by_key(|e| e.image_bytes);
    [
        ("fastest", fastest),
        ("smallest of those at least half as fast", between),
        ("smallest", smallest),
    ]
    .into_iter()
    .filter_map(|(what, e)| Some((what, e?)))
    .collect()
}
