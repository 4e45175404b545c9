//! `cargo xtask release cut VERSION DATE`: closes the changelog's *Unreleased* section under a version, and sets that version.

use super::run::{Result, at};
use std::path::Path;

const UNRELEASED: &str = "## [Unreleased]\n";

/// Rewrites CHANGELOG.md, Cargo.toml, the dependencies between the packages and the version of the npm package.
pub(super) fn run(root: &Path, version: &str, date: &str) -> Result<()> {
    check(version, date)?;
    edit(&root.join("CHANGELOG.md"), |text| {
        closed(text, version, date)
    })?;
    edit(&root.join("Cargo.toml"), |text| with_version(text, version))?;
    edit(&root.join("crates/cli/Cargo.toml"), |text| {
        with_exact_dependencies(text, version)
    })?;
    edit(&root.join("crates/capi/js/package.json"), |text| {
        replaced(text, "\"version\": \"", "\"", version)
    })?;
    println!(
        "version {version}; next: cargo update --workspace --offline, commit, git tag v{version}"
    );
    Ok(())
}

fn check(version: &str, date: &str) -> Result<()> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is = |text: &str, separator: char| {
        let parts: Vec<&str> = text.split(separator).collect();
        parts.len() == 3 && parts.into_iter().all(is_number)
    };
    match (is(version, '.'), is(date, '-')) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("{version}: expected a version such as 0.2.0")),
        _ => Err(format!("{date}: expected a date such as 2026-11-25")),
    }
}

fn edit(path: &Path, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let text = std::fs::read_to_string(path).map_err(at(path))?;
    let text = change(&text).map_err(|why| format!("{}: {why}", path.display()))?;
    std::fs::write(path, text).map_err(at(path))
}

fn closed(text: &str, version: &str, date: &str) -> Result<String> {
    let heading = format!("## [{version}]");
    if text.contains(&heading) {
        return Err(format!("has a section {heading}"));
    }
    let (before, after) = text
        .split_once(UNRELEASED)
        .ok_or("has no section [Unreleased]")?;
    Ok(format!("{before}{UNRELEASED}\n{heading} - {date}\n{after}"))
}

/// Replaces the workspace's version in all lines that state it.
fn with_version(text: &str, version: &str) -> Result<String> {
    let old = text
        .lines()
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .ok_or("has no version")?;
    let lines = text.lines().map(|line| {
        let is_ours = line.starts_with("version = ") || line.starts_with("tuff-");
        match is_ours {
            true => line.replace(
                &format!("version = \"{old}\""),
                &format!("version = \"{version}\""),
            ),
            false => line.to_owned(),
        }
    });
    Ok(lines.map(|line| line + "\n").collect())
}

/// Replaces the versions that the packages of names need of those with the program.
fn with_exact_dependencies(text: &str, version: &str) -> Result<String> {
    let deb = replaced(text, "depends = \"tuff (= ", "-1)", version)?;
    replaced(&deb, "\ntuff = \"= ", "\"", version)
}

/// Replaces what is between two texts.
fn replaced(text: &str, start: &str, end: &str, version: &str) -> Result<String> {
    let none = || format!("has no line {}", start.trim());
    let (before, after) = text.split_once(start).ok_or_else(none)?;
    let (_, after) = after.split_once(end).ok_or_else(none)?;
    Ok(format!("{before}{start}{version}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreleased_changes_get_a_version_and_a_date() {
        let text =
            "# Changelog\n\n## [Unreleased]\n\n### Added\n\n* x\n\n## [0.1.0] - 2026-01-01\n";
        let new = closed(text, "0.2.0", "2026-11-25").unwrap();
        assert!(new.contains("## [Unreleased]\n\n## [0.2.0] - 2026-11-25\n\n### Added\n"));
        assert!(closed(&new, "0.2.0", "2026-11-25").is_err());
    }

    #[test]
    fn a_version_is_set_for_the_workspace_and_its_own_crates_only() {
        let text = "version = \"0.1.0\"\ntuff-x = { version = \"0.1.0\", path = \"x\" }\nserde = { version = \"0.1.0\" }\n";
        let new = with_version(text, "0.2.0").unwrap();
        assert_eq!(
            new,
            "version = \"0.2.0\"\ntuff-x = { version = \"0.2.0\", path = \"x\" }\nserde = { version = \"0.1.0\" }\n"
        );
        let packages = "depends = \"tuff (= 0.1.0-1)\"\n\ntuff = \"= 0.1.0\"\n";
        let new = with_exact_dependencies(packages, "0.2.0").unwrap();
        assert_eq!(
            new,
            "depends = \"tuff (= 0.2.0-1)\"\n\ntuff = \"= 0.2.0\"\n"
        );
    }

    #[test]
    fn versions_and_dates_of_another_form_are_refused() {
        assert!(check("0.2", "2026-11-25").is_err());
        assert!(check("v0.2.0", "2026-11-25").is_err());
        assert!(check("0.2.0", "today").is_err());
        assert!(check("0.2.0", "2026-11-25").is_ok());
    }
}
