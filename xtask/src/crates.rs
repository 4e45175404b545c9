//! The crates that ARCHITECTURE.md draws are those of the workspace, with the dependencies that their manifests state.

use std::collections::BTreeMap;
use std::path::Path;

/// Document with the table of crates and the drawing of their dependencies.
const DOCUMENT: &str = "ARCHITECTURE.md";

/// Sign between crates and their dependencies in the drawing.
const ARROW: &str = "──►";

/// Findings about the table of crates and the drawing, a sentence each.
pub(crate) fn run(project: &Path) -> Vec<String> {
    let document = std::fs::read_to_string(project.join(DOCUMENT)).unwrap_or_default();
    findings(&document, &dependencies(project))
}

fn findings(document: &str, crates: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut findings = Vec::new();
    let drawn = drawing(document);
    for (name, used) in crates {
        let row = format!("`crates/{name}`");
        let mut rows = document
            .lines()
            .filter(|line| line.starts_with("| `crates/"));
        if !rows.any(|line| {
            line.split(" | ")
                .next()
                .is_some_and(|cell| cell.contains(&row))
        }) {
            findings.push(format!("{DOCUMENT}: the table has no row of crates/{name}"));
        }
        let lines = drawn.iter().filter(|(from, _)| from.contains(name));
        let mut to: Vec<String> = lines.flat_map(|(_, to)| to.clone()).collect();
        to.sort();
        if to != *used {
            findings.push(format!(
                "{DOCUMENT}: draws {name} {ARROW} {}; its Cargo.toml states {}",
                to.join(", "),
                used.join(", ")
            ));
        }
    }
    for (at, (from, to)) in drawn.iter().enumerate() {
        for name in from.iter().chain(to) {
            if !crates.contains_key(name) {
                findings.push(format!("{DOCUMENT}: draws {name}, which is no crate"));
            }
        }
        let below: Vec<&String> = drawn[at + 1..].iter().flat_map(|(from, _)| from).collect();
        for name in to {
            let is_leaf = crates.get(name).is_some_and(Vec::is_empty);
            if !is_leaf && !below.contains(&name) {
                findings.push(format!(
                    "{DOCUMENT}: draws {name} above a crate that uses it"
                ));
            }
        }
    }
    findings
}

/// Lines of the first drawing: crates, and what each of them uses.
fn drawing(document: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let names = |text: &str| -> Vec<String> {
        let names = text.split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect()
    };
    let lines = document.lines().skip_while(|line| !line.starts_with("```"));
    let lines = lines.skip(1).take_while(|line| !line.starts_with("```"));
    let arrows = lines.filter_map(|line| line.split_once(ARROW));
    arrows.map(|(from, to)| (names(from), names(to))).collect()
}

/// Crates of the workspace, and the others of it that each needs outside of tests, sorted.
fn dependencies(project: &Path) -> BTreeMap<String, Vec<String>> {
    let folders = std::fs::read_dir(project.join("crates"))
        .into_iter()
        .flatten()
        .flatten();
    let crates = folders.filter_map(|folder| {
        let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).ok()?;
        let name = folder.file_name().to_string_lossy().into_owned();
        Some((name, used(&manifest)))
    });
    crates.collect()
}

/// Folders of the project's crates that a manifest names as dependencies.
fn used(manifest: &str) -> Vec<String> {
    let mut is_inside = false;
    let mut used = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line == "[dependencies]" || line.ends_with(".dependencies]");
        } else if is_inside && let Some((name, _)) = line.split_once([' ', '.', '=']) {
            used.extend(name.strip_prefix("tuff-").map(str::to_owned));
        }
    }
    used.sort();
    used.dedup();
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates() -> BTreeMap<String, Vec<String>> {
        let used = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        BTreeMap::from([
            ("cli".to_owned(), used(&["erofs", "store"])),
            ("erofs".to_owned(), used(&["store"])),
            ("store".to_owned(), Vec::new()),
        ])
    }

    const TABLE: &str = "| `crates/cli` | a |\n| `crates/erofs`, `crates/store` | b |\n";

    #[test]
    fn the_drawing_of_the_project_is_that_of_its_manifests() {
        assert_eq!(run(crate::tidy::root()), Vec::<String>::new());
    }

    #[test]
    fn drawings_and_tables_that_lie_are_found() {
        let check =
            |drawing: &str| findings(&format!("{TABLE}```text\n{drawing}\n```\n"), &crates());
        assert_eq!(
            check("cli ──► erofs, store\nerofs ──► store"),
            Vec::<String>::new()
        );
        for (drawing, finding) in [
            ("cli ──► erofs\nerofs ──► store", "draws cli"),
            ("cli ──► erofs, store", "above a crate"),
            ("erofs ──► store\ncli ──► erofs, store", "above a crate"),
            (
                "cli ──► erofs, store\nerofs ──► store\nmkfs ──► store",
                "no crate",
            ),
        ] {
            let found = check(drawing);
            assert!(
                found.iter().any(|f| f.contains(finding)),
                "{drawing}: {found:?}"
            );
        }
        let without = findings(
            "```text\ncli ──► erofs, store\nerofs ──► store\n```",
            &crates(),
        );
        assert_eq!(without.len(), 3, "{without:?}");
    }

    #[test]
    fn a_manifest_states_dependencies_in_several_forms() {
        let manifest = "[package]\nname = \"tuff-a\"\n[dependencies]\ntuff-store = { workspace = true }\n\
            tuff-disk.workspace = true\nlibc = \"1\"\n[dev-dependencies]\ntuff-testkit = { workspace = true }\n";
        assert_eq!(used(manifest), ["disk", "store"]);
    }
}
