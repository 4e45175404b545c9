//! The page of requirements is complete, up to date, and names tests and documents that exist.

use std::path::{Path, PathBuf};
use tuff_lab::definition::Definition as _;
use tuff_lab::measure::root;
use tuff_lab::report::document;
use tuff_lab::report::page::{self, Claims};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn claims() -> Claims {
    Claims::read(&project().join("benchmarks/claims.toml")).unwrap()
}

#[test]
fn the_page_is_up_to_date() {
    let text = std::fs::read_to_string(project().join("benchmarks/README.md")).unwrap();
    let page = page::render(&claims(), &project()).unwrap();
    let spliced = document::splice(&text, "requirements", &page).unwrap();
    assert!(!spliced.changed, "run tuff-lab page");
    let missing = text.matches(page::NOT_RECORDED).count();
    if missing > 0 {
        tuff_testkit::note(format_args!(
            "{missing} outputs are not recorded; run tuff-lab page --run"
        ));
    }
}

#[test]
fn every_requirement_has_a_row() {
    let rows: Vec<String> = claims().claim.into_iter().map(|c| c.row).collect();
    for area in "B10 R12 P2 V10 L8 S8 A4".split(' ') {
        let (letter, count) = area.split_at(1);
        for number in 1..=count.parse::<u32>().unwrap() {
            let row = format!("{letter}{number}");
            assert!(rows.contains(&row), "{row} is missing");
        }
    }
}

#[test]
fn tests_and_documents_of_the_page_exist() {
    for claim in claims().claim {
        if let Some(see) = &claim.see {
            let path = project().join("benchmarks").join(see);
            assert!(
                path.exists(),
                "{}: {} is missing",
                claim.row,
                path.display()
            );
        }
        let Some(arguments) = claim.command.strip_prefix("cargo test -p ") else {
            continue;
        };
        let mut words = arguments.split(' ');
        let name = words.next().unwrap_or_default();
        let folder = match name.strip_prefix("tuff") {
            Some("") => "cli",
            Some(rest) => rest.trim_start_matches('-'),
            None => name,
        };
        let folder = project().join("crates").join(folder);
        assert!(folder.is_dir(), "{}: {}", claim.row, claim.command);
        while let Some(word) = words.next() {
            match word {
                "--lib" => {}
                "--test" => {
                    let test = folder.join("tests").join(words.next().unwrap_or_default());
                    let exists =
                        test.with_extension("rs").exists() || test.join("main.rs").exists();
                    assert!(exists, "{}: {}", claim.row, claim.command);
                }
                filter => assert!(
                    names(&folder, filter.rsplit("::").next().unwrap_or_default()),
                    "{}: no test is called {filter}",
                    claim.row
                ),
            }
        }
    }
}

/// Returns true if a function or a module of a crate has a name that contains `filter`, or is it.
fn names(folder: &Path, filter: &str) -> bool {
    let mut files = Vec::new();
    for part in ["src", "tests"].map(|part| folder.join(part)) {
        // Not every crate has both.
        let _ = root::list(&part, &mut files);
    }
    let is_named = |line: &str| line.trim_start().starts_with("fn ") && line.contains(filter);
    files.iter().any(|(path, _)| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        path.file_stem().is_some_and(|stem| *stem == *filter) || text.lines().any(is_named)
    })
}
