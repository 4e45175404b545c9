//! Tables of the campaign: start times, and how often a memory limit was reached.

use crate::Result;
use crate::record::Record;
use crate::report::earlier;
use crate::report::plot::{self, LineChart};
use crate::report::table::{self, Columns, Figure, Table};

const START: Figure = Figure::new("start_ns", "from fork to exit, ms", 1e6);

/// Table of the medians.
pub(crate) const STARTS: Table = Table {
    title: "from fork to exit, ms",
    rows: &["program", "condition"],
    columns: Columns::Label("server", START),
    base: ("server", &["kernel EROFS", "kernel"]),
    spread: true,
    ..table::PLAIN
};

/// Table of the distributions, with a row for each server.
pub(crate) const DISTRIBUTION: Table = Table {
    title: "quantiles of the start time, ms",
    rows: &["program", "condition", "server"],
    columns: Columns::Quantiles(START, &[0.1, 0.25, 0.5, 0.75, 0.9, 0.99]),
    base: ("", &[]),
    spread: false,
    ..STARTS
};

/// Renders the tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    let hits = Table {
        title: "times that the memory limit was reached",
        only: &[("condition", "pressure")],
        rows: &["program"],
        columns: Columns::Label("server", Figure::new("limit_hits", "limit reached", 1.0)),
        base: ("", &[]),
        ..STARTS
    };
    let tables = STARTS.render(record) + &hits.render(record);
    let earlier = earlier::render(record, "server", &[START]);
    table::heading(record) + &tables + &earlier + &table::notes(record)
}

/// Draws the cumulative distribution of start times for each program and condition.
pub(crate) fn plot(record: &Record) -> Result<String> {
    plot::line_charts(&charts(record))
}

/// Returns the charts of [`plot`]: a row for each program, a column for each condition.
pub(crate) fn charts(record: &Record) -> Vec<Vec<LineChart>> {
    table::distributions(record, "program", "condition", "server", &START, "ms")
}
