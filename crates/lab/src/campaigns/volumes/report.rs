//! Table of the campaign: the cost of each load in each place, beside ext4 or the host.

use super::load::{DELETE, FDATASYNC, MAKE, OVERWRITE, READ, WRITE};
use super::place::{EXT4, HOST, Kind, ZONES};
use crate::Result;
use crate::record::{Bar, Record, labels};
use crate::report::table::{self, Columns, Figure, Table};

const COST: Figure = Figure::new("cost_ns", "cost, us", 1e3);
const SPACE: Figure = Figure::new("held_bytes", "", 1_048_576.0);

const COSTS: Table = Table {
    title: "cost of an operation, us",
    rows: &["load"],
    columns: Columns::Label("place", COST),
    base: ("place", &[EXT4.name, ZONES.name]),
    spread: true,
    ..table::PLAIN
};

const HELD: Table = Table {
    title: "space on the host, MiB",
    rows: &["time"],
    columns: Columns::Label("place", SPACE),
    ..COSTS
};

/// Returns the bars: the longest permitted cost of a load in zone files, as a multiple of another place's.
pub(super) fn bars() -> Vec<Bar> {
    let bar = |load: &str, other: Kind, at_most| Bar {
        cell: labels([("load", load), ("place", ZONES.name)]),
        value: COST.value.to_owned(),
        against: Some(labels([("place", other.name)])),
        at_most: Some(at_most),
        at_least: None,
    };
    vec![
        bar(WRITE, EXT4, 1.0 / 0.8),
        bar(READ, EXT4, 1.0 / 0.8),
        bar(MAKE, EXT4, 2.0),
        bar(DELETE, EXT4, 2.0),
        bar(OVERWRITE, EXT4, 2.0),
        bar(FDATASYNC, HOST, 1.5),
    ]
}

/// Renders the tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    table::heading(record)
        + &COSTS.render(record)
        + &HELD.render(record)
        + &table::bars(record, &[COST])
}

/// Draws the costs of each load as bars.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(record, &["load"], "place", Some(&COST), "us")
}
