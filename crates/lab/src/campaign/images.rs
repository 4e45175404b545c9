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
mod plant;
mod settings;

pub use judge::{JUDGES, Judge};

use crate::engine::Found;
use crate::{Error, Result};
use case::{Case, Failure};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// How much, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fixes every case.
    pub seed: u64,
    /// Cases; without a number as many as there is time for.
    pub cases: Option<u64>,
    /// No case begins later.
    pub time: Option<Duration>,
    /// Who judges.
    pub judges: Vec<Judge>,
    /// The program under test.
    pub tuff: PathBuf,
    /// Another judge.
    pub fsck: Option<Found>,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Cases begun.
    pub cases: u64,
    /// Images made, those of changed trees included.
    pub images: u64,
    /// Settings that were refused as wrong usage.
    pub refused: u64,
    /// Patches that were stopped, which may have been over by then.
    pub stopped: u64,
    /// Images that each judge saw.
    pub judged: BTreeMap<Judge, u64>,
    /// Why a judge did not see an image, and how often.
    pub skipped: BTreeMap<String, u64>,
    /// Whatever is wrong.
    pub findings: Vec<Finding>,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The case's own seed.
    pub seed: u64,
    /// Command lines, in the folder that is left.
    pub commands: Vec<String>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        for command in &self.commands {
            writeln!(f, "  {command}")?;
        }
        Ok(())
    }
}

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

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", folder, e)),
        _ => Ok(()),
    }
}
