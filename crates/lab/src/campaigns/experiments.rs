//! Runs the published experiments of `tuff-flash-sim` and writes their report, charts and raw samples.

use crate::report::plot::{LineChart, line_charts, short};
use crate::{Error, Result};
use std::fmt::Write as _;
use std::path::Path;
use tuff_flash_sim::experiment;
use tuff_flash_sim::experiment::definition::{Definition, Experiment};
use tuff_flash_sim::experiment::outcome::{Limit, Outcome};

/// Text of the definition in `benchmarks/definitions/experiment`.
pub const PUBLISHED: &str =
    include_str!("../../../../benchmarks/definitions/experiment/published.toml");

/// Parses the text of a definition.
pub fn parse(name: &str, text: &str) -> Result<Definition> {
    toml::from_str(text).map_err(|e| Error::Usage(format!("{name}: {e}")))
}

/// Runs the experiments in `only`, or all if it is empty, and writes `report.md`, charts and raw samples into the folder `out`.
///
/// Calls `progress` after each experiment. Returns the outcomes in the order of the definition.
pub fn run(
    definition: &Definition,
    only: &[String],
    scale: &str,
    out: &Path,
    work: &Path,
    progress: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>> {
    let known = |id: &String| definition.experiment.iter().any(|e| e.id == *id);
    if let Some(id) = only.iter().find(|id| !known(id)) {
        return Err(Error::Usage(format!("experiment '{id}' does not exist")));
    }
    let sizes = definition.scale(scale)?;
    for folder in [out, work] {
        std::fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
    }
    let mut outcomes = Vec::new();
    let selected = |e: &&Experiment| only.is_empty() || only.contains(&e.id);
    for e in definition.experiment.iter().filter(selected) {
        let outcome = experiment::run(e, &sizes, definition.seed, work)?;
        write(&outcome, out)?;
        progress(&outcome);
        outcomes.push(outcome);
    }
    let path = out.join("report.md");
    let text = report(definition, scale, &outcomes);
    std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    Ok(outcomes)
}

/// Returns the report: a table with a row for each experiment, then their sections.
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
    outcomes.iter().for_each(|o| text.push_str(&markdown(o)));
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Returns the file names of an outcome's charts.
fn chart_names(outcome: &Outcome) -> Vec<String> {
    let id = &outcome.experiment.id;
    match outcome.charts.len() {
        1 => vec![format!("{id}.svg")],
        n => (1..=n).map(|i| format!("{id}-{i}.svg")).collect(),
    }
}

fn limit_text(limit: Limit) -> String {
    match limit {
        Limit::AtMost(max) => format!("≤ {}", short(max)),
        Limit::AtLeast(min) => format!("≥ {}", short(min)),
        Limit::Between(min, max) => format!("{} to {}", short(min), short(max)),
    }
}

/// Returns the section of one experiment in Markdown.
pub fn markdown(outcome: &Outcome) -> String {
    let e = &outcome.experiment;
    let verdict = if outcome.passed() {
        "as published"
    } else {
        "**not as published**"
    };
    let mut out = format!(
        "## {}: {}\n\nPublished: {}. Here: {verdict}.\n\n",
        e.id, e.title, e.published
    );
    out.push_str("| | here | published | bar | |\n|---|--:|--:|--:|---|\n");
    for f in &outcome.figures {
        let bar = f.limit.map(limit_text).unwrap_or_default();
        let kept = match f.limit {
            Some(limit) if limit.is_met(f.ours) => "pass",
            Some(_) => "**FAIL**",
            None => "",
        };
        let (what, ours, published) = (&f.what, short(f.ours), &f.published);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {what} | {ours} | {published} | {bar} | {kept} |");
    }
    out.push('\n');
    for note in &outcome.notes {
        let _ = writeln!(out, "* {note}");
    }
    out.push('\n');
    for (chart, name) in outcome.charts.iter().zip(chart_names(outcome)) {
        let _ = writeln!(out, "![{}]({name})\n", chart.title);
    }
    out
}

/// Writes the charts and raw samples of an outcome into a folder.
fn write(outcome: &Outcome, folder: &Path) -> Result<()> {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
    };
    for (chart, name) in outcome.charts.iter().zip(chart_names(outcome)) {
        let chart = LineChart {
            title: chart.title.clone(),
            x: chart.x.clone(),
            y: chart.y.clone(),
            series: chart.series.clone(),
        };
        put(&name, &line_charts(&[vec![chart]])?)?;
    }
    let mut lines = String::new();
    for (run, samples) in &outcome.samples {
        for sample in samples {
            let line = serde_json::json!({ "run": run, "sample": sample });
            let _ = writeln!(lines, "{line}");
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    put(&format!("{}.jsonl", outcome.experiment.id), &lines)
}
