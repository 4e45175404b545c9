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
mod counts;
mod judge;
mod options;
mod plant;
mod planted;
mod settings;

pub use counts::Counts;
pub use options::{Judge, Options, Programs};

use super::rounds::{Campaign, Tally};
use crate::Result;
use crate::engines::{Found, Tool};
use crate::measure::workspace::Work;
use case::{Case, Failure};
use std::path::Path;
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

impl Campaign for Options {
    type Counts = Counts;

    fn run(&self, tally: &mut Tally<Counts>) -> Result<()> {
        let common = &self.common;
        let programs = &Programs {
            tuff: common.options.need("tuff")?,
            fsck: match common.options.program(Tool::FsckErofs.name()) {
                Some(path) => Some(Found::at(Tool::FsckErofs, path)?),
                None => None,
            },
        };
        let work = Work::create(common.options.work())?;
        let default = if common.minutes.is_some() {
            u64::MAX
        } else {
            200
        };
        let place = ("case", self.cases.unwrap_or(default), &work);
        common.run(place, tally, |seed, folder, counts| {
            counts.cases += 1;
            let mut case = Case::new(self, programs, folder, counts);
            match case.run(&mut Rng::new(seed)) {
                Ok(()) => Ok(Vec::new()),
                Err(Failure::Found(what)) => {
                    let commands = case.commands.iter();
                    let commands = commands.map(|command| format!("\n  {command}"));
                    Ok(vec![what + &commands.collect::<String>()])
                }
                Err(Failure::Lab(e)) => Err(e),
            }
        })
    }
}
