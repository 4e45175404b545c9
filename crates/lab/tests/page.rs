//! The page of requirements is complete, up to date, and names documents that exist.

use std::path::{Path, PathBuf};
use tuff_lab::definition::Definition as _;
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
fn documents_of_the_page_exist() {
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
    }
}
