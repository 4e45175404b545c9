//! Campaign over images of random trees with random settings, which several judges verify.
//!
//! ```text
//!  seed ──► tree ──► settings ──► image ──► same bytes with other thread counts and from other sources
//!                                   │  └──► tuff check, tuff extract, tuff mount, the kernel, fsck.erofs
//!                                   └──► changed tree: a patched image, or a delta image ──► the same judges
//! ```
//!
//! | module | content |
//! |---|---|
//! | `plant` | random trees and their changes |
//! | `settings` | random options of a build |
//! | `case` | images of one seed |
//! | `judge` | verification of images |
//!
//! A judge reads the image with its own implementation. Its result is walked and compared with the tree,
//! facet by facet. The seed alone reproduces a case: tree and settings do not depend on the selected judges.

mod case;
mod judge;
mod options;
mod plant;
mod planted;
mod settings;
mod tally;

pub use options::{Judge, Options, Programs};
pub use tally::{Finding, Tally};

use crate::engines::{Found, Tool};
use crate::measure::workspace;
use crate::{At, Result};
use case::{Case, Failure};
use std::fs;
use std::path::Path;
use std::time::Instant;
use tuff_testkit::Rng;

/// Creates a random tree in an empty folder.
pub fn random_tree(rng: Rng, folder: &Path) -> Result<()> {
    plant::Gardener::new(rng, folder).plant()
}

/// Draws arguments of `tuff build`, without paths and without those that need further files.
pub fn random_settings(rng: &mut Rng) -> Vec<String> {
    let mut settings = settings::draw(rng);
    settings.retain(|argument| !argument.starts_with("--order="));
    settings
}

/// Runs the campaign. `tell` is called after each case. `tally` is valid even after an error.
pub fn run(options: &Options, tally: &mut Tally, tell: &mut dyn FnMut(&mut Tally)) -> Result<()> {
    let programs = &Programs {
        tuff: options.options.need("tuff")?,
        fsck: match options.options.program(Tool::FsckErofs.name()) {
            Some(path) => Some(Found::at(Tool::FsckErofs, path)?),
            None => None,
        },
    };
    let out = &options.out;
    fs::create_dir_all(out).at("create", out)?;
    let out = out.canonicalize().at("find", out)?;
    let start = Instant::now();
    let most = options.cases.or(options.minutes.is_none().then_some(200));
    let over = |cases: u64| {
        most.is_some_and(|most| cases >= most)
            || options.minutes.is_some_and(|most| start.elapsed() >= most)
    };
    while !over(tally.cases) {
        let seed = options.seed + tally.cases;
        tally.cases += 1;
        let folder = out.join(format!("case-{seed}"));
        workspace::remove(&folder)?;
        fs::create_dir(&folder).at("create", &folder)?;
        let mut case = Case::new(options, programs, &folder, tally);
        match case.run(&mut Rng::new(seed)) {
            Ok(()) => workspace::remove(&folder)?,
            Err(Failure::Found(what)) => {
                let commands = case.commands;
                tally.findings.push(Finding {
                    seed,
                    commands,
                    what,
                });
            }
            Err(Failure::Lab(e)) => {
                workspace::remove(&folder)?;
                return Err(e);
            }
        }
        tell(tally);
    }
    Ok(())
}
