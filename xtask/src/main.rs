//! Chores of the project.
//!
//! `cargo xtask tidy`   what no compiler checks: paths that documents name, recipes of test images, stray files

mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    match verb.as_str() {
        "tidy" => {
            let findings = tidy::run(tidy::root());
            for finding in &findings {
                eprintln!("{finding}");
            }
            if findings.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        _ => {
            eprintln!("usage: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}
