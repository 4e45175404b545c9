//! Tables of a record: counts of outcomes by failure and filesystem.

use super::outcome::OUTCOMES;
use crate::Result;
use crate::record::Record;
use crate::report::table::{self, Columns, Table};

/// Rounds by outcome. Samples have the labels `failure`, `filesystem` and `outcome`.
pub(in crate::campaigns) const ROUNDS: Table = Table {
    title: "rounds by outcome",
    rows: &["failure", "filesystem"],
    columns: Columns::Count("outcome", &OUTCOMES),
    ..table::PLAIN
};

/// Renders the table as Markdown, after the conditions. Deviations of single rounds are in the record only.
pub(crate) fn render(record: &Record) -> String {
    table::heading(record) + &ROUNDS.render(record) + &table::failures(record)
}

/// Draws the outcomes of each failure and filesystem as bars.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(
        record,
        &["filesystem", "failure"],
        "outcome",
        None,
        "rounds",
    )
}
