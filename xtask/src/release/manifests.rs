//! Crates that are published, and what their manifests have.

use super::build::Build;
use super::run::{Result, at, run};
use std::path::Path;

/// A crate of the workspace that can be published.
pub(super) struct Crate {
    pub(super) name: String,
    /// Folder below the project's root.
    #[cfg(test)]
    folder: String,
    /// Text of the manifest, Cargo.toml.
    #[cfg(test)]
    manifest: String,
}

/// Address of the project in manifests until a release replaces it.
const PLACEHOLDER: &str = "https://tuff.invalid";

/// Crates that may be published, by folder.
pub(super) fn published(root: &Path) -> Result<Vec<Crate>> {
    let dir = root.join("crates");
    let mut folders: Vec<String> = std::fs::read_dir(&dir)
        .map_err(at(&dir))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    folders.sort();
    let mut out = Vec::new();
    for folder in folders {
        let path = dir.join(&folder).join("Cargo.toml");
        let Ok(manifest) = std::fs::read_to_string(&path) else {
            continue;
        };
        let is_kept = |line: &str| line == "publish.workspace = true" || line == "publish = false";
        if manifest.lines().any(is_kept) {
            continue;
        }
        let name = value(&manifest, "name").ok_or_else(|| format!("{folder} has no name"))?;
        out.push(Crate {
            name: name.to_owned(),
            #[cfg(test)]
            folder: format!("crates/{folder}"),
            #[cfg(test)]
            manifest,
        });
    }
    Ok(out)
}

/// Value of a string in a manifest.
fn value<'a>(manifest: &'a str, key: &str) -> Option<&'a str> {
    let start = format!("{key} = \"");
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix(&start))?;
    line.strip_suffix('"')
}

/// Fails if the address of the project is the placeholder.
fn has_address(root: &Path) -> Result<()> {
    for file in ["Cargo.toml", "crates/capi/js/package.json"] {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).map_err(at(&path))?;
        if text.contains(PLACEHOLDER) {
            return Err(format!(
                "{file}: {PLACEHOLDER} is a placeholder; put the address of the project in its place"
            ));
        }
    }
    Ok(())
}

/// Packs the crates in the order of their dependencies and compiles the packages. With `--dev` they are not compiled.
pub(super) fn dry_run(build: &Build) -> Result<()> {
    if !build.is_dev() {
        has_address(&build.root)?;
    }
    let mut cargo = build.cargo(&["publish", "--workspace", "--dry-run", "--allow-dirty"]);
    cargo.arg("--locked");
    if build.is_dev() {
        cargo.arg("--no-verify");
    }
    // Tests and benchmarks are left out, and cargo says so for each of them.
    run(cargo.arg("--quiet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::root;

    #[test]
    fn a_release_refuses_the_placeholder_of_the_address() {
        let dir = std::env::temp_dir().join(format!("xtask-address-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("crates/capi/js")).unwrap();
        let package = dir.join("crates/capi/js/package.json");
        std::fs::write(dir.join("Cargo.toml"), "homepage = \"https://example.org\"").unwrap();
        std::fs::write(&package, "{\"homepage\": \"https://example.org\"}").unwrap();
        assert_eq!(has_address(&dir), Ok(()));
        std::fs::write(&package, format!("{{\"homepage\": \"{PLACEHOLDER}\"}}")).unwrap();
        assert!(
            has_address(&dir)
                .unwrap_err()
                .starts_with("crates/capi/js/package.json: ")
        );
        std::fs::remove_dir_all(dir).unwrap();
    }

    const KEYS: [&str; 11] = [
        "description = ",
        "version.workspace = true",
        "rust-version.workspace = true",
        "license.workspace = true",
        "repository.workspace = true",
        "homepage.workspace = true",
        "readme = \"README.md\"",
        "documentation = ",
        "keywords = [",
        "categories = [",
        "[package.metadata.docs.rs]",
    ];

    #[test]
    fn published_crates_describe_themselves() {
        let crates = published(root()).unwrap();
        assert!(crates.len() >= 10);
        let mut missing = Vec::new();
        for krate in &crates {
            for key in KEYS {
                if !krate.manifest.lines().any(|line| line.starts_with(key)) {
                    missing.push(format!("{}: no line {key}", krate.folder));
                }
            }
            for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
                if !root().join(&krate.folder).join(file).exists() {
                    missing.push(format!("{}: no {file}", krate.folder));
                }
            }
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    #[test]
    fn versions_of_internal_dependencies_are_that_of_the_workspace() {
        let text = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let version = format!("version = {:?}", value(&text, "version").unwrap());
        for krate in published(root()).unwrap() {
            let start = format!("{} = {{", krate.name);
            let line = text.lines().find(|line| line.starts_with(&start)).unwrap();
            assert!(line.contains(&version), "{line}");
        }
    }
}
