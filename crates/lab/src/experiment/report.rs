//! What came out of an experiment, and how it is told: Markdown, charts, raw samples as JSON lines.

use crate::experiment::define::Experiment;
use crate::experiment::load::Sample;
use crate::experiment::plot::{Chart, short};
use crate::{Error, Result};
use std::fmt::Write;
use std::path::Path;

/// One number beside the published one.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// What came out.
    pub ours: f64,
    /// What was published, empty if nothing was.
    pub published: String,
    /// The limit in words, and whether it was kept.
    pub bar: Option<(String, bool)>,
}

/// What came out of one experiment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was asked.
    pub experiment: Experiment,
    /// The numbers.
    pub figures: Vec<Figure>,
    /// The charts.
    pub charts: Vec<Chart>,
    /// What a reader must know: steady state, scale, what is not comparable.
    pub notes: Vec<String>,
    /// Raw samples, by the name of the run.
    pub samples: Vec<(String, Vec<Sample>)>,
}

impl Outcome {
    /// Nothing yet.
    pub fn new(experiment: &Experiment) -> Self {
        Self {
            experiment: experiment.clone(),
            figures: Vec::new(),
            charts: Vec::new(),
            notes: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// A number without a limit.
    pub fn say(&mut self, what: impl Into<String>, ours: f64, published: &str) {
        self.add(what.into(), ours, published, None);
    }

    /// A number that must not pass a limit.
    pub fn at_most(&mut self, what: impl Into<String>, ours: f64, limit: f64, published: &str) {
        let bar = (format!("≤ {}", short(limit)), ours <= limit);
        self.add(what.into(), ours, published, Some(bar));
    }

    /// A number that must reach a limit.
    pub fn at_least(&mut self, what: impl Into<String>, ours: f64, limit: f64, published: &str) {
        let bar = (format!("≥ {}", short(limit)), ours >= limit);
        self.add(what.into(), ours, published, Some(bar));
    }

    /// A number that must lie between two limits.
    pub fn between(
        &mut self,
        what: impl Into<String>,
        ours: f64,
        limits: [f64; 2],
        published: &str,
    ) {
        let text = format!("{} to {}", short(limits[0]), short(limits[1]));
        let kept = (limits[0]..=limits[1]).contains(&ours);
        self.add(what.into(), ours, published, Some((text, kept)));
    }

    fn add(&mut self, what: String, ours: f64, published: &str, bar: Option<(String, bool)>) {
        self.figures.push(Figure {
            what,
            ours,
            published: published.to_owned(),
            bar,
        });
    }

    /// A sentence below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// True if every limit was kept.
    pub fn passed(&self) -> bool {
        self.figures
            .iter()
            .all(|f| f.bar.as_ref().is_none_or(|b| b.1))
    }

    /// A number that was told, by what it is.
    pub fn figure(&self, what: &str) -> Option<f64> {
        self.figures.iter().find(|f| f.what == what).map(|f| f.ours)
    }

    /// Names of the chart files.
    fn chart_names(&self) -> Vec<String> {
        let id = &self.experiment.id;
        let many = self.charts.len() > 1;
        let name = |i| {
            if many {
                format!("{id}-{}.svg", i + 1)
            } else {
                format!("{id}.svg")
            }
        };
        (0..self.charts.len()).map(name).collect()
    }

    /// The section of a report.
    pub fn markdown(&self) -> String {
        let e = &self.experiment;
        let verdict = if self.passed() {
            "as published"
        } else {
            "**not as published**"
        };
        let mut out = format!(
            "## {}: {}\n\nPublished: {}. Here: {verdict}.\n\n",
            e.id, e.title, e.published
        );
        out.push_str("| | here | published | bar | |\n|---|--:|--:|--:|---|\n");
        for f in &self.figures {
            let (bar, kept) = match &f.bar {
                Some((bar, kept)) => (bar.as_str(), if *kept { "pass" } else { "**FAIL**" }),
                None => ("", ""),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "| {} | {} | {} | {bar} | {kept} |",
                f.what,
                short(f.ours),
                f.published
            );
        }
        out.push('\n');
        for note in &self.notes {
            let _ = writeln!(out, "* {note}");
        }
        out.push('\n');
        for (chart, name) in self.charts.iter().zip(self.chart_names()) {
            let _ = writeln!(out, "![{}]({name})\n", chart.title);
        }
        out
    }

    /// Writes charts and raw samples into a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let put = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
        };
        for (chart, name) in self.charts.iter().zip(self.chart_names()) {
            put(&name, &chart.svg())?;
        }
        let mut lines = String::new();
        for (run, samples) in &self.samples {
            for sample in samples {
                let line =
                    serde_json::to_string(&serde_json::json!({ "run": run, "sample": sample }));
                let line =
                    line.map_err(|e| Error::Command(format!("a sample cannot be written: {e}")))?;
                lines.push_str(&line);
                lines.push('\n');
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        put(&format!("{}.jsonl", self.experiment.id), &lines)
    }
}
