//! Runs the published experiments of `tuff-flash-sim`. Every experiment adds its figures, limits, charts and raw samples
//! to the record when it ends.
//!
//! | samples with the label | content |
//! |---|---|
//! | `figure` | figure beside the published one |
//! | `chart` | point of a line chart |
//! | `run` | raw sample of a run |

use crate::measure::stop;
use crate::options::{Emit, Options};
use crate::record::{Bar, Header, Labels, Line, Record, Sample, labels};
use crate::report::plot::{LineChart, Series, line_charts};
use crate::report::table::{self, distinct};
use crate::{At, Error, Result};
use std::fmt::Write as _;
use tuff_flash_sim::experiment;
use tuff_flash_sim::experiment::definition::{Definition, Experiment};
use tuff_flash_sim::experiment::outcome::{Limit, Outcome};

/// Text of the definition in `benchmarks/definitions/experiment`.
const PUBLISHED: &str =
    include_str!("../../../../benchmarks/definitions/experiment/published.toml");
/// Name of a figure's value.
const HERE: &str = "here";
/// Number of charts beside each other.
const CHART_COLUMNS: usize = 2;

/// Run the published experiments on the flash model, in virtual time
///
/// Each experiment adds its figures, charts and raw samples to a record when it ends, so an interrupted run keeps those before.
/// Prints the record's tables. Exit code 1 if a result violates its limit.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Experiments, E1 to E10 (default: all)
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Scale of the experiments: tiny, quick, full, large
    #[arg(long, default_value = "quick", value_name = "NAME")]
    pub scale: String,
    /// Seed of the random numbers (default: that of the definition)
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Runs the selected experiments. Returns true if all limits are kept.
///
/// # Errors
/// `Usage` if an experiment or the scale does not exist.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let definition: Definition = toml::from_str(PUBLISHED)
        .map_err(|e| Error::Usage(format!("the definition of the experiments: {e}")))?;
    let work = conditions.options.work();
    let ids: Vec<String> = conditions.ids.iter().map(|id| id.to_uppercase()).collect();
    let all = &definition.experiment;
    if let Some(id) = ids.iter().find(|id| !all.iter().any(|e| e.id == **id)) {
        return Err(Error::Usage(format!("experiment '{id}' does not exist")));
    }
    let selected = |e: &&Experiment| ids.is_empty() || ids.contains(&e.id);
    let scale = definition.scale(&conditions.scale)?;
    let seed = conditions.seed.unwrap_or(definition.seed);
    std::fs::create_dir_all(work).at("create", work)?;
    let divisor = definition.scale.get(&conditions.scale);
    let divisor = divisor.map_or(1, |s| s.divisor);
    let settings = [
        (
            "scale",
            format!("{}, 1/{divisor} of the published sizes", conditions.scale),
        ),
        ("seed", seed.to_string()),
    ];
    emit(&Line::Header(Header::here("experiment", settings)?))?;
    let mut passed = true;
    for e in all.iter().filter(selected) {
        stop::check()?;
        let outcome = experiment::run(e, &scale, seed, work)?;
        passed &= outcome.passed();
        lines(&outcome)?.iter().try_for_each(&mut *emit)?;
    }
    Ok(passed)
}

/// Returns the lines of an outcome.
fn lines(outcome: &Outcome) -> Result<Vec<Line>> {
    let e = &outcome.experiment;
    let note = |text: String| Line::note(labels([("experiment", &e.id)]), text);
    let mut lines = vec![note(format!("{}. Published: {}", e.title, e.published))];
    lines.extend(outcome.notes.iter().cloned().map(note));
    for figure in &outcome.figures {
        let mut cell = labels([("experiment", &e.id), ("figure", &figure.what)]);
        if let Some(limit) = figure.limit {
            let (at_least, at_most) = match limit {
                Limit::AtMost(max) => (None, Some(max)),
                Limit::AtLeast(min) => (Some(min), None),
                Limit::Between(min, max) => (Some(min), Some(max)),
            };
            lines.push(Line::Bar(Bar {
                cell: cell.clone(),
                value: HERE.to_owned(),
                against: None,
                at_most,
                at_least,
            }));
        }
        cell.insert("published".to_owned(), figure.published.clone());
        lines.push(Line::sample(cell, 1, [(HERE, figure.ours)]));
    }
    for chart in &outcome.charts {
        for (series, points) in &chart.series {
            let cell = labels([
                ("experiment", &e.id),
                ("chart", &chart.title),
                ("x", &chart.x),
                ("y", &chart.y),
                ("series", series),
            ]);
            for (round, (x, y)) in (1..).zip(points) {
                lines.push(Line::sample(cell.clone(), round, [("x", *x), ("y", *y)]));
            }
        }
    }
    for (run, samples) in &outcome.samples {
        for (round, raw) in (1..).zip(samples) {
            let value = serde_json::to_value(raw)
                .map_err(|e| Error::Command(format!("cannot encode a sample: {e}")))?;
            let fields = value.as_object().into_iter().flatten();
            let numbers = fields.filter_map(|(name, v)| Some((name.clone(), v.as_f64()?)));
            let cell = labels([("experiment", e.id.as_str()), ("run", run)]);
            lines.push(Line::sample(cell, round, numbers));
        }
    }
    Ok(lines)
}

/// Renders a section for each experiment: figures beside the published ones, limits, and notes.
pub(super) fn render(record: &Record) -> String {
    let mut out = table::heading(record);
    out.push_str(
        "\nTime is virtual: the flash model alone moves it, so the figures are the same on every machine, \
         those of E6 in nanoseconds excepted.\n",
    );
    let figures = || {
        record
            .samples
            .iter()
            .filter(|s| s.cell.contains_key("figure"))
    };
    for id in distinct(figures().map(|s| &s.cell["experiment"])) {
        let of = |cell: &Labels| cell.get("experiment") == Some(id);
        let notes = record.notes.iter().filter(|n| of(&n.cell));
        let mut notes = notes.map(|n| n.text.as_str());
        // The first note is the title. Writing to a String cannot fail.
        let _ = writeln!(out, "\n### {id}: {}.\n", notes.next().unwrap_or_default());
        out.push_str("| | here | published | bar | |\n|---|--:|--:|--:|---|\n");
        for figure in figures().filter(|s| of(&s.cell)) {
            let (what, here) = (&figure.cell["figure"], figure.values[HERE]);
            let is_of = |bar: &&Bar| bar.cell.iter().all(|(l, v)| figure.cell.get(l) == Some(v));
            let bar = record.bars.iter().find(is_of);
            let (limit, verdict) = match bar {
                None => (String::new(), ""),
                Some(bar) => (table::limit(bar, 1.0), table::verdict(bar, here)),
            };
            let (here, published) = (table::number(here), &figure.cell["published"]);
            let _ = writeln!(
                out,
                "| {what} | {here} | {published} | {limit} | {verdict} |"
            );
        }
        out.push('\n');
        for note in notes {
            let _ = writeln!(out, "* {note}");
        }
    }
    out
}

/// Draws the line charts of all experiments.
pub(super) fn plot(record: &Record) -> Result<String> {
    let points: Vec<&Sample> = record
        .samples
        .iter()
        .filter(|s| s.cell.contains_key("chart"))
        .collect();
    let key = |s: &Sample| ["experiment", "chart", "x", "y"].map(|l| s.cell[l].clone());
    let charts: Vec<LineChart> = distinct(points.iter().map(|s| key(s)))
        .into_iter()
        .map(|chart| {
            let of: Vec<&&Sample> = points.iter().filter(|s| key(s) == chart).collect();
            let series = distinct(of.iter().map(|s| &s.cell["series"]));
            let line = |name: &String| -> Series {
                let of = of.iter().filter(|s| s.cell["series"] == *name);
                let points = of.map(|s| (s.values["x"], s.values["y"])).collect();
                (name.clone(), points)
            };
            let series = series.into_iter().map(line).collect();
            let [id, title, x, y] = chart;
            LineChart {
                title: format!("{id}: {title}"),
                x,
                y,
                series,
            }
        })
        .collect();
    let mut rows: Vec<Vec<LineChart>> = Vec::new();
    for chart in charts {
        match rows.last_mut().filter(|row| row.len() < CHART_COLUMNS) {
            Some(row) => row.push(chart),
            None => rows.push(vec![chart]),
        }
    }
    line_charts(&rows)
}
