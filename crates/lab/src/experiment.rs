//! The third room: the published experiments, in virtual time on the flash model.
//!
//! ```text
//!  workload ──► fs: a volume of crates/iplfs | f2fs: the baseline ──► disk: queue, discards ──► crates/flash
//! ```
//!
//! Everything runs from a seed; no result depends on a real clock, except the nanoseconds of E6, which say so.

pub mod cleaning;
pub mod define;
pub mod disk;
pub mod f2fs;
pub mod fs;
pub mod load;
pub mod plot;
pub mod report;
pub mod rng;
pub mod space;
pub mod tails;
pub mod translate;

use crate::{Error, Result};
use define::{Definition, Experiment};
use report::Outcome;
use std::fmt::Display;
use std::path::Path;

/// Runs experiments, all or those named, at a scale, and writes `report.md`, charts and raw samples into a folder. `told` hears of each when
/// it is done. Returns what came out.
pub fn run(
    definition: &Definition,
    only: &[String],
    scale: &str,
    out: &Path,
    work: &Path,
    told: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let known = |id: &String| definition.experiment.iter().any(|e| e.id == *id);
    if let Some(id) = only.iter().find(|id| !known(id)) {
        return Err(Error::Usage(format!("there is no experiment '{id}'")));
    }
    let sizes = definition.scale(scale)?;
    for folder in [out, work] {
        std::fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
    }
    let mut outcomes = Vec::new();
    let asked = |e: &&Experiment| only.is_empty() || only.contains(&e.id);
    for e in definition.experiment.iter().filter(asked) {
        let seed = definition.seed;
        let outcome = match e.id.as_str() {
            "E1" => cleaning::e1(e, &sizes, seed),
            "E2" => cleaning::e2(e, &sizes, seed),
            "E3" => tails::e3(e, &sizes, seed),
            "E4" => space::e4(e, &sizes, seed),
            "E5" => space::e5(e, &sizes, seed),
            "E6" => translate::e6(e, &sizes, seed),
            "E7" => tails::e7(e, &sizes, seed),
            "E8" => tails::e8(e, &sizes, seed),
            "E9" => space::e9(e, &sizes, seed),
            "E10" => space::e10(e, &sizes, seed, work),
            other => Err(Error::Usage(format!("nobody knows how to run '{other}'"))),
        }?;
        outcome.write(out)?;
        told(&outcome);
        outcomes.push(outcome);
    }
    let path = out.join("report.md");
    let text = report(definition, scale, &outcomes);
    std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    Ok(outcomes)
}

/// The report: a line for each experiment, then a section.
fn report(definition: &Definition, scale: &str, outcomes: &[Outcome]) -> String {
    let divisor = definition.scale.get(scale).map_or(1, |s| s.divisor);
    let mut text = format!(
        "# Experiments\n\nScale `{scale}` (1/{divisor} of the published sizes), seed {}. Time is virtual: it is moved by the flash model \
         alone, so the figures are the same on every machine, those of E6 in nanoseconds excepted.\n\n| | | |\n|---|---|---|\n",
        definition.seed
    );
    for o in outcomes {
        let verdict = if o.passed() { "pass" } else { "**FAIL**" };
        text.push_str(&format!(
            "| {} | {} | {verdict} |\n",
            o.experiment.id, o.experiment.title
        ));
    }
    text.push('\n');
    outcomes.iter().for_each(|o| text.push_str(&o.markdown()));
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// A step that an experiment cannot do without failed.
fn failed(what: &str, why: &dyn Display) -> Error {
    Error::Command(format!("experiment: {what}: {why}"))
}
