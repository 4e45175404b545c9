//! List of dependencies (SBOM) in the format of CycloneDX.

use super::build::Build;
use super::run::{Result, at, installed, run};

/// Writes the list of the program's dependencies.
pub(super) fn run_all(build: &Build) -> Result<()> {
    installed("cargo-cyclonedx")?;
    let mut cargo = build.cargo(&["cyclonedx", "--format", "json", "--spec-version", "1.5"]);
    cargo.args([
        "--manifest-path",
        "crates/cli/Cargo.toml",
        "--no-build-deps",
    ]);
    cargo.args(["--override-filename", "tuff-sbom.cdx", "--quiet"]);
    run(&mut cargo)?;
    // It writes a file into the folder of each crate of the workspace.
    let crates = build.root.join("crates");
    for entry in std::fs::read_dir(&crates).map_err(at(&crates))?.flatten() {
        let path = entry.path().join("tuff-sbom.cdx.json");
        if !path.exists() {
            continue;
        }
        if entry.file_name() == "cli" {
            let to = build.dist.join(format!("tuff-{}.cdx.json", build.version));
            let text = std::fs::read_to_string(&path).map_err(at(&path))?;
            // Paths of this machine say nothing about the program.
            let root = format!("file://{}", build.root.display());
            std::fs::write(&to, text.replace(&root, "file:///tuff")).map_err(at(&to))?;
        }
        std::fs::remove_file(&path).map_err(at(&path))?;
    }
    let own = build.root.join("xtask/tuff-sbom.cdx.json");
    match own.exists() {
        true => std::fs::remove_file(&own).map_err(at(&own)),
        false => Ok(()),
    }
}
