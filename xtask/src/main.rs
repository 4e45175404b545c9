//! Checks that no compiler makes.
//!
//! | command | checks |
//! |---|---|
//! | `cargo xtask tidy` | paths that documents name, recipes of binary files, unreached sources, silent skips |
//! | `cargo xtask circles [CRATE]` | modules that depend on each other in a circle, and crates that ARCHITECTURE.md draws wrongly; CRATE is a folder, such as `crates/mkfs` |
//! | `cargo xtask release [STEP...]` | makes what a release consists of, in `target/dist` |
//! | `cargo xtask site` | makes the website in `target/site/html`: every document is a page, every link leads somewhere |
//! | `cargo xtask language [UNIT]` | names, and wording of comments and documents; UNIT is a crate's folder or a document |

mod circles;
mod crates;
mod language;
mod modules;
mod release;
mod site;
mod source;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let verb = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let only = rest.first();
    let findings: Vec<String> = match verb.as_str() {
        "tidy" => tidy::run(tidy::root()),
        "circles" => circles::run(tidy::root())
            .into_iter()
            .filter(|circle| only.is_none_or(|only| *only == circle.krate))
            .map(|circle| circle.report)
            .chain(crates::run(tidy::root()))
            .collect(),
        "language" => language::run(tidy::root())
            .into_iter()
            .filter(|(unit, _)| only.is_none_or(|only| only == unit))
            .flat_map(|(_, findings)| findings)
            .collect(),
        "release" => release::run(tidy::root(), &rest),
        "site" => site::run(tidy::root()),
        _ => {
            eprintln!(
                "usage: cargo xtask tidy | circles [CRATE] | language [UNIT] | release [STEP...] | site"
            );
            return ExitCode::from(2);
        }
    };
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
