//! `cargo xtask release`: what a release consists of, made in `target/dist`. Nothing is published.
//!
//! | step | makes |
//! |---|---|
//! | `crates` | packages of the library crates, compiled as crates.io would offer them |
//! | `api` | comparison of the public interfaces with the record in `xtask/api` |
//! | `packages` | Debian and RPM packages |
//! | `static` | programs for x86-64 and aarch64 that need no library of the host |
//! | `image` | a directory for `docker build` and an EROFS image of it |
//! | `sizes` | comparison of the program and the libraries with their largest sizes |
//! | `sbom` | a list of all dependencies in the format of CycloneDX |
//! | `sums` | SHA256SUMS |
//!
//! Outputs depend on the sources and the compiler alone: paths are remapped, and the time is that of the last commit.

mod api;
mod build;
mod cut;
mod image;
mod library;
mod licenses;
mod manifests;
mod packages;
mod run;
mod sbom;
mod sizes;

use build::Build;
use run::{Result, heading};
use std::path::Path;

const USAGE: &str =
    "usage: cargo xtask release [all | STEP...] [--dev] [--write] | cut VERSION DATE";

/// Steps of a whole release, in order.
const STEPS: [&str; 8] = [
    "crates", "api", "packages", "static", "image", "sizes", "sbom", "sums",
];

/// Runs the steps that `args` name, and returns the findings, a line each.
pub(crate) fn run(root: &Path, args: &[String]) -> Vec<String> {
    if let [verb, version, date] = args
        && verb == "cut"
    {
        return cut::run(root, version, date).err().into_iter().collect();
    }
    let is_step = |arg: &&String| STEPS.contains(&arg.as_str());
    let (options, words): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with("--"));
    let is_all = words.is_empty() || words == ["all"];
    let known = options.iter().all(|o| *o == "--dev" || *o == "--write");
    if !known || (!is_all && !words.iter().all(is_step)) {
        return vec![USAGE.to_owned()];
    }
    let has = |name: &str| options.iter().any(|o| *o == name);
    let build = match Build::new(root, has("--dev")) {
        Ok(build) => build,
        Err(why) => return vec![why],
    };
    for step in STEPS {
        if !is_all && !words.iter().any(|word| *word == step) {
            continue;
        }
        heading(step);
        if let Err(why) = one(step, &build, has("--write")) {
            return vec![format!("{step}: {why}")];
        }
    }
    Vec::new()
}

fn one(step: &str, build: &Build, write: bool) -> Result<()> {
    match step {
        "crates" => manifests::dry_run(build),
        "api" => api::run_all(build, write),
        "packages" => packages::run_all(build).and_then(|()| library::run_all(build)),
        "static" => image::static_programs(build),
        "image" => image::run_all(build),
        "sizes" => sizes::run_all(build),
        "sbom" => sbom::run_all(build),
        _ => build.sums(),
    }
}
