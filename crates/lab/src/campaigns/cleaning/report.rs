//! Tables and charts of a record: speed, write amplification and moved blocks in each quarter of a run.

use crate::Result;
use crate::record::Record;
use crate::report::plot::{LineChart, Series, line_charts};
use crate::report::table::{self, Columns, Figure, Table, distinct};

const SPEED: Figure = Figure::new("bytes_s", "MiB/s", 1_048_576.0);
const AMPLIFICATION: Figure = Figure::new(
    "amplification",
    "bytes written to the disk / bytes overwritten",
    1.0,
);
const MOVED: Figure = Figure::new(
    "moved_share",
    "blocks moved by F2FS / blocks overwritten",
    1.0,
);

const fn quarters(figure: Figure, base: &'static [&'static str]) -> Table {
    Table {
        title: figure.title,
        rows: &["system"],
        columns: Columns::Label("time", figure),
        base: ("time", base),
        ..table::PLAIN
    }
}

/// Renders the tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    let tables = [
        quarters(SPEED, &["1st quarter"]),
        quarters(AMPLIFICATION, &[]),
        quarters(MOVED, &[]),
    ];
    let tables = tables.map(|table| table.render(record)).concat();
    table::heading(record) + &tables + &table::failures(record)
}

/// Draws speed, as a share of the first sample, and write amplification over the overwritten bytes.
pub(crate) fn plot(record: &Record) -> Result<String> {
    let systems = distinct(record.samples.iter().map(|s| s.cell["system"].clone()));
    let chart = |y: &str, value: &str, is_relative: bool| {
        let line = |system: &String| -> Series {
            let of = record
                .samples
                .iter()
                .filter(|s| s.cell["system"] == *system);
            let first = of.clone().map(|s| s.values[value]).next();
            let base = first.filter(|_| is_relative).unwrap_or(1.0);
            let point =
                |s: &crate::record::Sample| (s.values["overwritten_mib"], s.values[value] / base);
            (system.clone(), of.map(point).collect())
        };
        LineChart {
            title: y.to_owned(),
            x: "overwritten, MiB".to_owned(),
            y: y.to_owned(),
            series: systems.iter().map(line).collect(),
        }
    };
    let speed = chart("speed / speed of the first sample", SPEED.value, true);
    let amplification = chart(AMPLIFICATION.title, AMPLIFICATION.value, false);
    line_charts(&[vec![speed], vec![amplification]])
}
