//! Tables of a record: speed, latency and CPU time of each cell and place, and the costs of places.

use super::cell::{CPU, MEDIAN, SPEED, TAIL};
use super::place::{CHECK, EMPTY, IMAGE, MOUNT, WITHHELD};
use crate::Result;
use crate::record::Record;
use crate::report::table::{self, Columns, Figure, Table};

/// Groups of places that are compared with each other.
pub(super) const DISKS: &str = "volumes and filesystems";
pub(super) const IMAGES: &str = "images";

/// Places that the others are compared with.
const BASES: [&str; 2] = ["ext4", "image, kernel EROFS"];

const fn cells(group: &'static [(&'static str, &'static str)], figure: Figure) -> Table {
    Table {
        title: figure.title,
        only: group,
        rows: &["workload"],
        columns: Columns::Label("place", figure),
        base: ("place", &BASES),
        ..table::PLAIN
    }
}

const COSTS: Table = Table {
    title: "place",
    rows: &["place"],
    columns: Columns::Figures(&[MOUNT, CHECK, EMPTY, WITHHELD, IMAGE]),
    ..table::PLAIN
};

/// Renders all tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    let mut out = table::heading(record);
    for group in [&[("group", DISKS)], &[("group", IMAGES)]] {
        for figure in [SPEED, MEDIAN, TAIL, CPU] {
            out.push_str(&cells(group, figure).render(record));
        }
    }
    out + &COSTS.render(record) + &table::failures(record)
}

/// Draws the speed of each cell and place as bars.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(
        record,
        &["group", "workload"],
        "place",
        Some(&SPEED),
        "MB/s",
    )
}
