//! `tuff suggest`: compares build options on a sample of a tree.

use super::build_image::preset;
use crate::next_command::shell_word;
use crate::out::Out;
use crate::progress::{Meter, Show, set_on_signal};
use crate::units::{parse_size, size};
use serde_json::json;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};
use tuff_mkfs::presets::{PRESETS, Preset, Settings};
use tuff_mkfs::settings::parse_kernel;
use tuff_mkfs::suggest::{Estimate, Request, suggest};
use tuff_mkfs::{Auto, KernelVersion, Method, Options, Progress};

/// Compare build options on a sample of a directory
///
/// Sizes are extrapolated from the sample; duplicates outside of it are not counted. Times are measured on this machine and
/// only shown: the recommendations follow from sizes, from the algorithms, and from the bytes that a random read of 4 KiB
/// fetches and decodes with a cold cache. Settings that need a newer Linux than --kernel are named, not tried.
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
        let lines = picks.iter().flat_map(|pick| {
            let line = line(pick.estimate);
            pick.aims
                .iter()
                .map(move |aim| ((*aim).to_owned(), line.clone().into()))
        });
        let picks: serde_json::Map<String, serde_json::Value> = lines.collect();
        let newer: Vec<_> = not_tried(args.kernel)
            .map(|p| json!({"settings": preset::arguments(&p), "kernel": p.kernel.to_string()}))
            .collect();
        out.json(&json!({"files": sampled.files, "bytes": sampled.bytes, "sample_bytes": sampled.sample_bytes,
            "estimates": rows, "recommended": picks, "not_tried": newer}))?;
        return out.finish();
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
    for pick in &picks {
        out.line(format_args!("{}: {}", pick.aims.join(", "), pick.reason))?;
        out.line(format_args!("  {}", line(pick.estimate)))?;
    }
    let newer: Vec<Preset> = not_tried(args.kernel).collect();
    if let Some(kernel) = newer.iter().map(|preset| preset.kernel).max() {
        let mut names: Vec<String> = Vec::new();
        for preset in &newer {
            names.push(format!(
                "{} (Linux {})",
                preset::arguments(preset),
                preset.kernel
            ));
        }
        out.line(format_args!(
            "not tried for Linux {}: {}; --kernel {kernel} tries them",
            args.kernel,
            names.join(", ")
        ))?;
    }
    out.finish()
}

/// Recommended estimate, with the aims that it meets and the reason.
struct Pick<'a> {
    /// Aims, the first of [`AIMS`] first.
    aims: Vec<&'static str>,
    estimate: &'a Estimate,
    reason: String,
}

/// Aims of recommendations.
const AIMS: [&str; 3] = ["fastest", "small and fast", "smallest"];

/// Cost of decoding: the class of the algorithm, then what a random read decodes and fetches. It depends on the content
/// alone.
fn read_cost(e: &Estimate) -> (u8, u64) {
    (decoding_class(&e.preset), e.decoded + e.fetched)
}

/// Order of the algorithms by decoding speed: LZ4, Zstandard, LZMA.
fn decoding_class(preset: &Preset) -> u8 {
    let class = |method| match method {
        Method::Lz4 | Method::Lz4hc => 0,
        Method::Zstd | Method::Deflate => 1,
        Method::Lzma => 2,
    };
    match preset.settings {
        Settings::Plain(method, ..)
        | Settings::Packed(method, ..)
        | Settings::Unaligned(method, ..) => class(method),
        Settings::Auto(Auto::Speed) => 0,
        Settings::Auto(Auto::Balanced) => 1,
        Settings::Auto(Auto::Size) => 2,
    }
}

/// Recommendations: what decodes fastest, the smallest, and the smallest that decodes faster than LZMA, or with LZ4 where
/// that is the smallest. Measured times have no influence. Of equal candidates the first preset counts, and a
/// preset that meets several aims is listed once.
fn picks(all: &[Estimate]) -> Vec<Pick<'_>> {
    let least = |requested: &dyn Fn(&Estimate) -> bool| {
        // The first of equal ones.
        let fitting = all.iter().filter(|e| requested(e));
        fitting.min_by_key(|e| (e.image_bytes, read_cost(e)))
    };
    let fastest = all.iter().min_by_key(|e| (read_cost(e), e.image_bytes));
    let small = least(&|_| true);
    let limit = small.map_or(0, |e| decoding_class(&e.preset).max(1));
    let between = least(&|e| decoding_class(&e.preset) < limit);
    let mut picks: Vec<Pick<'_>> = Vec::new();
    for (aim, found) in AIMS.into_iter().zip([fastest, between, small]) {
        let Some(estimate) = found else { continue };
        let known = picks
            .iter_mut()
            .find(|p| p.estimate.preset == estimate.preset);
        match known {
            Some(pick) => pick.aims.push(aim),
            None => picks.push(Pick {
                aims: vec![aim],
                estimate,
                reason: reason(estimate),
            }),
        }
    }
    picks
}

/// Reason for a recommendation.
fn reason(e: &Estimate) -> String {
    let algorithm = match decoding_class(&e.preset) {
        0 => "LZ4, which decodes fastest",
        1 => "Zstandard, which decodes slower than LZ4 and faster than LZMA",
        _ => "LZMA where the kernel has it, which decodes slowest",
    };
    format!(
        "{algorithm}; {}; a random read decodes {}",
        size(e.image_bytes),
        size(e.decoded)
    )
}

/// Presets that need a newer kernel than the image is for.
fn not_tried(kernel: KernelVersion) -> impl Iterator<Item = Preset> {
    PRESETS
        .into_iter()
        .filter(move |preset| preset.kernel > kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(preset: Preset, image_bytes: u64, decoded: u64, sequential: f64) -> Estimate {
        Estimate {
            preset,
            image_bytes,
            build_seconds: sequential,
            fetched: 4096,
            decoded,
            sequential,
        }
    }

    fn named(all: &[Estimate]) -> Vec<(Vec<&'static str>, String)> {
        let named = |pick: Pick<'_>| (pick.aims, preset::arguments(&pick.estimate.preset));
        picks(all).into_iter().map(named).collect()
    }

    #[test]
    fn recommendations_do_not_depend_on_measured_times() {
        let of = |times: [f64; 4]| {
            let [a, b, c, d] = times;
            named(&[
                estimate(PRESETS[1], 900, 30_000, a),
                estimate(PRESETS[2], 800, 90_000, b),
                estimate(PRESETS[5], 600, 120_000, c),
                estimate(PRESETS[8], 500, 400_000, d),
            ])
        };
        let expected = [
            (vec!["fastest"], "-z lz4hc -C 16K".to_owned()),
            (vec!["small and fast"], "-z zstd:9 -C 64K".to_owned()),
            (vec!["smallest"], "-z lzma:6 -C 128K".to_owned()),
        ];
        assert_eq!(of([1.0, 2.0, 3.0, 4.0]), expected);
        assert_eq!(of([4.0, 3.0, 2.0, 1.0]), expected);
    }

    #[test]
    fn equal_candidates_are_recommended_once() {
        let all = [
            estimate(PRESETS[0], 700, 9000, 1.0),
            estimate(PRESETS[1], 700, 9000, 2.0),
            estimate(PRESETS[8], 700, 9000, 3.0),
        ];
        let expected = [(AIMS.to_vec(), "-z lz4 -C 64K".to_owned())];
        assert_eq!(named(&all), expected);
    }

    #[test]
    fn settings_for_newer_kernels_are_named() {
        let named = |kernel| {
            let newer = not_tried(kernel).map(|p| preset::arguments(&p));
            newer.collect::<Vec<_>>().join(", ")
        };
        assert!(named(KernelVersion(6, 1)).contains("-z zstd:9 -C 64K"));
        assert_eq!(named(KernelVersion(6, 18)), "");
    }
}
