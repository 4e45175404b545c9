//! Public interfaces of the library crates, compared with the record in `xtask/api`, so that no change is made unseen.
//!
//! rustdoc's JSON output is unstable, so the compiler is told to accept it. Its format belongs to a compiler version;
//! cargo-public-api says so if it does not understand it.

use super::build::Build;
use super::manifests::{Crate, published};
use super::run::{Result, at, installed, output, run};
use std::os::unix::fs::PermissionsExt;

/// Compares all interfaces, or records them.
pub(super) fn run_all(build: &Build, write: bool) -> Result<()> {
    installed("cargo-public-api")?;
    let interfaces = match interfaces(build) {
        Ok(interfaces) => interfaces,
        Err(why) if build.is_dev() && !write => {
            println!(
                "NOT CHECKED: public interfaces, which this compiler describes in another way: {why}"
            );
            return Ok(());
        }
        Err(why) => return Err(why),
    };
    let dir = build.root.join("xtask/api");
    let mut changed = Vec::new();
    for (name, new) in interfaces {
        let path = dir.join(format!("{name}.txt"));
        if write {
            std::fs::write(&path, &new).map_err(at(&path))?;
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(old) => changed.extend(difference(&name, &old, &new)),
            Err(_) => changed.push(format!("{name}: not recorded")),
        }
    }
    match changed.is_empty() {
        true => Ok(()),
        false => Err(advice(&changed)),
    }
}

fn advice(changed: &[String]) -> String {
    format!(
        "public interfaces differ from the record in xtask/api:\n{}\nA line with - breaks programs that use the item. \
         If the change is intended, describe it in CHANGELOG.md and record it: cargo xtask release api --write",
        changed.join("\n")
    )
}

/// Returns the interface of every published crate, by name.
fn interfaces(build: &Build) -> Result<Vec<(String, String)>> {
    describe(build)?;
    let crates = published(&build.root)?.into_iter();
    crates
        .map(|krate| Ok((krate.name.clone(), interface(build, &krate)?)))
        .collect()
}

/// Describes all crates of the workspace by rustdoc. The selection is that of `cargo doc --workspace`, so that what was
/// compiled for it is used again.
fn describe(build: &Build) -> Result<()> {
    // Only rustdoc sees the variable: build scripts of dependencies look at it, and would run anew.
    let rustdoc = build.target_dir().join("rustdoc-json");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    std::fs::write(&rustdoc, script).map_err(at(&rustdoc))?;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&rustdoc, mode).map_err(at(&rustdoc))?;
    let mut doc = build.cargo(&[
        "doc",
        "--workspace",
        "--lib",
        "--no-deps",
        "--locked",
        "--quiet",
    ]);
    doc.arg("--target-dir").arg(build.target_dir());
    doc.env("RUSTDOC", &rustdoc);
    run(doc.env("RUSTDOCFLAGS", "-Zunstable-options --output-format json"))
}

fn interface(build: &Build, krate: &Crate) -> Result<String> {
    let name = krate.name.replace('-', "_");
    let json = build.target_dir().join("doc").join(format!("{name}.json"));
    let mut list = build.cargo(&["public-api", "-sss", "--color", "never", "--rustdoc-json"]);
    output(list.arg(json))
}

/// Lines that only one side has.
fn difference(name: &str, old: &str, new: &str) -> Vec<String> {
    let only = |sign: &str, side: &str, other: &str| -> Vec<String> {
        let other: std::collections::BTreeSet<&str> = other.lines().collect();
        side.lines()
            .filter(|line| !other.contains(line))
            .map(|line| format!("{name}: {sign} {line}"))
            .collect()
    };
    let mut out = only("-", old, new);
    out.extend(only("+", new, old));
    out
}

#[cfg(test)]
mod tests {
    use super::{advice, difference};

    #[test]
    fn removed_and_added_items_are_listed() {
        let found = difference("x", "pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n");
        assert_eq!(found, ["x: - pub fn a()", "x: + pub fn c()"]);
        assert!(difference("x", "pub fn a()\n", "pub fn a()\n").is_empty());
        let text = advice(&found);
        assert!(text.contains("x: - pub fn a()") && text.contains("release api --write"));
    }
}
