//! Images of random trees at random settings, before several judges.
//!
//! ```text
//!  seed ──► tree ──► settings ──► image ──► the same bytes by other threads, from other sources
//!                                   │  └──► tuff check, tuff extract, tuff mount, the kernel, fsck.erofs
//!                                   └──► the tree changes: a patch of it, or another image over it ──► the same judges
//! ```
//!
//! | room | what it is |
//! |---|---|
//! | `plant` | the tree, and how it changes |
//! | `settings` | options of a build |
//! | `case` | the images that one seed leads to |
//! | `judge` | who looks at them |
//!
//! A judge reads the image by its own means, and what it gives is walked and compared with the tree facet by facet. A case is
//! made again by its seed alone: whoever judges, tree and settings are the same.

mod case;
mod judge;
mod options;
mod plant;
mod planted;
mod settings;
mod tally;

pub use judge::JUDGES;
pub use options::{Judge, Options};
pub use tally::{Finding, Tally};

use crate::{Error, Result};
use case::{Case, Failure, clear};
use std::fs;
use std::path::Path;
use std::time::Instant;
use tuff_testkit::Rng;

/// Runs the campaign; the folders of cases with findings stay in `out`. `tell` hears of each case. What was counted is there
/// after an error, too.
pub fn run(
    options: &Options,
    out: &Path,
    tally: &mut Tally,
    tell: &mut dyn FnMut(&Tally),
) -> Result<()> {
    fs::create_dir_all(out).map_err(|e| Error::io("make", out, e))?;
    let out = out.canonicalize().map_err(|e| Error::io("find", out, e))?;
    let start = Instant::now();
    let over = |cases: u64| {
        options.cases.is_some_and(|most| cases >= most)
            || options.time.is_some_and(|most| start.elapsed() >= most)
    };
    while !over(tally.cases) {
        let seed = options.seed + tally.cases;
        tally.cases += 1;
        let folder = out.join(format!("case-{seed}"));
        clear(&folder)?;
        fs::create_dir(&folder).map_err(|e| Error::io("make", &folder, e))?;
        let mut case = Case::new(options, &folder, tally);
        match case.run(&mut Rng::new(seed)) {
            Ok(()) => clear(&folder)?,
            Err(Failure::Found(what)) => {
                let commands = case.commands;
                tally.findings.push(Finding {
                    seed,
                    commands,
                    what,
                });
            }
            Err(Failure::Lab(e)) => {
                clear(&folder)?;
                return Err(e);
            }
        }
        tell(tally);
    }
    Ok(())
}
