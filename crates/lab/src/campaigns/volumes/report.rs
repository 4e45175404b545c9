//! Table of the campaign: the cost of each load in each place, beside ext4 or the host.

use super::load::Load;
use super::place::Kind;
use crate::Result;
use crate::record::{Bar, Record, labels};
use crate::report::table::{self, Columns, Figure, Table};

const COST: Figure = Figure {
    value: "cost_ns",
    title: "cost, us",
    divisor: 1e3,
};

const COSTS: Table = Table {
    title: "cost of an operation, us",
    rows: &["load"],
    columns: Columns::Label("place", COST),
    base: ("place", &["ext4, loop device", Kind::Zones.name()]),
    spread: true,
    ..table::PLAIN
};

const HELD: Table = Table {
    title: "space on the host, MiB",
    rows: &["time"],
    columns: Columns::Label(
        "place",
        Figure {
            value: "held_bytes",
            title: "",
            divisor: 1_048_576.0,
        },
    ),
    ..COSTS
};

/// Returns the bars: the longest permitted cost of a load in zone files, as a multiple of another place's.
pub(super) fn bars() -> Vec<Bar> {
    let bar = |load: Load, other: Kind, at_most| Bar {
        cell: labels([("load", load.name()), ("place", Kind::Zones.name())]),
        value: COST.value.to_owned(),
        against: Some(labels([("place", other.name())])),
        at_most: Some(at_most),
        at_least: None,
    };
    vec![
        bar(Load::Write, Kind::Ext4, 1.0 / 0.8),
        bar(Load::Read, Kind::Ext4, 1.0 / 0.8),
        bar(Load::Make, Kind::Ext4, 2.0),
        bar(Load::Delete, Kind::Ext4, 2.0),
        bar(Load::Overwrite, Kind::Ext4, 2.0),
        bar(Load::Fdatasync, Kind::Host, 1.5),
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
