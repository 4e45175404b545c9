//! Outcome of an experiment: figures with their limits, charts, notes and raw samples.

use super::definition::Experiment;
use super::workload::Sample;

/// Limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The value must not exceed this limit.
    AtMost(f64),
    /// The value must not be below this limit.
    AtLeast(f64),
    /// Lower and upper limit, both inclusive.
    Between(f64, f64),
}

impl Limit {
    /// Returns true if `value` keeps the limit. NaN keeps none.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Limit::AtMost(max) => value <= max,
            Limit::AtLeast(min) => value >= min,
            Limit::Between(min, max) => (min..=max).contains(&value),
        }
    }
}

/// Measured number beside the published one.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Quantity, with its unit.
    pub what: String,
    /// Value measured in this run.
    pub ours: f64,
    /// Published value; empty if none was published.
    pub published: String,
    /// Limit of the measured value.
    pub limit: Option<Limit>,
}

/// Line chart as data.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Quantity and unit of the horizontal axis.
    pub x: String,
    /// Quantity and unit of the vertical axis.
    pub y: String,
    /// Lines of the chart: name and points.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Outcome of one experiment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Definition of the experiment.
    pub experiment: Experiment,
    /// Figures in the order of the report.
    pub figures: Vec<Figure>,
    /// Charts in the order of the report.
    pub charts: Vec<Chart>,
    /// Remarks on steady state, scale and comparability.
    pub notes: Vec<String>,
    /// Raw samples, by the name of the run.
    pub samples: Vec<(String, Vec<Sample>)>,
}

impl Outcome {
    /// Returns an outcome without figures.
    pub fn new(experiment: &Experiment) -> Self {
        Self {
            experiment: experiment.clone(),
            figures: Vec::new(),
            charts: Vec::new(),
            notes: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Adds a figure without a limit.
    pub fn say(&mut self, what: impl Into<String>, ours: f64, published: &str) {
        self.add(what.into(), ours, published, None);
    }

    /// Adds a figure with an upper limit.
    pub fn at_most(&mut self, what: impl Into<String>, ours: f64, limit: f64, published: &str) {
        self.add(what.into(), ours, published, Some(Limit::AtMost(limit)));
    }

    /// Adds a figure with a lower limit.
    pub fn at_least(&mut self, what: impl Into<String>, ours: f64, limit: f64, published: &str) {
        self.add(what.into(), ours, published, Some(Limit::AtLeast(limit)));
    }

    /// Adds a figure with a lower and an upper limit.
    pub fn between(
        &mut self,
        what: impl Into<String>,
        ours: f64,
        [min, max]: [f64; 2],
        published: &str,
    ) {
        let limit = Limit::Between(min, max);
        self.add(what.into(), ours, published, Some(limit));
    }

    fn add(&mut self, what: String, ours: f64, published: &str, limit: Option<Limit>) {
        self.figures.push(Figure {
            what,
            ours,
            published: published.to_owned(),
            limit,
        });
    }

    /// Adds a remark below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Returns true if every limit is kept.
    pub fn passed(&self) -> bool {
        self.figures
            .iter()
            .all(|f| f.limit.is_none_or(|limit| limit.is_met(f.ours)))
    }

    /// Returns the value of the figure called `what`.
    pub fn figure(&self, what: &str) -> Option<f64> {
        self.figures.iter().find(|f| f.what == what).map(|f| f.ours)
    }
}
