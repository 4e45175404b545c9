//! Tables and the chart of a record.

use crate::Result;
use crate::measure::stats::median;
use crate::record::{Labels, Record};
use crate::report::table::{self, Columns, Figure, Table, distinct, number};
use std::fmt::Write as _;

const START: Figure = Figure::new("start_ms", "start, ms", 1.0);
const MIB: f64 = 1_048_576.0;
/// Columns of a cell.
const FIGURES: [Figure; 15] = [
    START,
    Figure::new("median_ms", "median mount, ms", 1.0),
    Figure::new("mount_ms", "mounted, ms", 1.0),
    Figure::new("sent_bytes", "sent, MiB", MIB),
    Figure::new("requests", "requests", 1.0),
    Figure::new("refused", "answers 429", 1.0),
    Figure::new("connections", "connections", 1.0),
    Figure::new("daemon_cpu_us", "CPU, ms", 1e3),
    Figure::new("daemon_peak_bytes", "memory, MiB", MIB),
    Figure::new("all_ms", "read everything, ms", 1.0),
    Figure::new("all_bytes", "sent for everything, MiB", MIB),
    Figure::new("all_cpu_us", "CPU for everything, ms", 1e3),
    Figure::new("second_ms", "second start, ms", 1.0),
    Figure::new("second_requests", "its requests", 1.0),
    Figure::new("offline_ms", "offline, ms", 1.0),
];

/// Renders a table of starts for each block, then one of all figures.
pub(crate) fn render(record: &Record) -> String {
    let starts = Table {
        title: START.title,
        rows: &["block", "image", "link"],
        columns: Columns::Label("way", START),
        ..table::PLAIN
    };
    let cells = Table {
        rows: &["block", "image", "link", "way", "format"],
        columns: Columns::Figures(&FIGURES),
        ..table::PLAIN
    };
    let mut out = table::heading(record);
    out += &best(record);
    out += &starts.render(record);
    out += &cells.render(record);
    out + &table::notes(record)
}

/// Renders the ratios of our starts to that of the best other program in each cell, without and with a recording, and to that of a
/// download.
fn best(record: &Record) -> String {
    const DOWNLOAD: &str = "download";
    const RECORDING: &str = "recording";
    let label = |cell: &Labels, name: &str| cell.get(name).cloned().unwrap_or_default();
    let key = |cell: &Labels| ["block", "image", "link"].map(|name| label(cell, name));
    let mut out = String::new();
    for row in distinct(record.samples.iter().map(|sample| key(&sample.cell))) {
        let of: Vec<_> = record
            .samples
            .iter()
            .filter(|s| key(&s.cell) == row)
            .collect();
        let starts = |way: &str| {
            let of = of.iter().filter(|sample| label(&sample.cell, "way") == way);
            median(
                &of.filter_map(|s| s.values.get(START.value).copied())
                    .collect::<Vec<_>>(),
            )
        };
        let ways = distinct(of.iter().map(|sample| label(&sample.cell, "way")));
        let download = starts(DOWNLOAD);
        for is_recorded in [false, true] {
            let ways = ways
                .iter()
                .filter(|way| way.ends_with(RECORDING) == is_recorded);
            let (ours, others): (Vec<_>, Vec<_>) = ways
                .filter(|way| *way != DOWNLOAD)
                .filter_map(|way| Some((way, starts(way)?)))
                .partition(|(way, _)| way.starts_with("tuff"));
            let best = others.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
            let (Some((name, best)), false) = (best, ours.is_empty()) else {
                continue;
            };
            for (way, start) in ours {
                let of_download =
                    download.map_or("–".to_owned(), |d| format!("{:.2}", start / d));
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "| {} | {way} | {} | {name} | {} | {:.2} | {of_download} |",
                    row.join(" | "),
                    number(start),
                    number(best),
                    start / best
                );
            }
        }
    }
    if out.is_empty() {
        return out;
    }
    format!(
        "\n| block | image | link | way | start, ms | best other | its start, ms | ratio | of the download |\n\
         |---|---|---|---|--:|---|--:|--:|--:|\n{out}"
    )
}

/// Draws the time of a start in each way as bars, in a group for each cell.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(
        record,
        &["block", "image", "link"],
        "way",
        Some(&START),
        "ms",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, Line, labels};

    #[test]
    fn a_cell_has_a_row_for_each_way_with_its_format() {
        let sample = |way, format, start, sent: f64| {
            let cell = labels([
                ("block", "links"),
                ("image", "python, 1 layer"),
                ("link", "20 ms, 100 Mbit/s"),
                ("way", way),
                ("format", format),
            ]);
            Line::sample(cell, 1, [("start_ms", start), ("sent_bytes", sent * MIB)])
        };
        let lines = [
            Line::Header(Header::here("peers", []).unwrap()),
            sample("tuff", "EROFS", 900.0, 8.0),
            sample("stargz", "eStargz", 1800.0, 9.0),
            sample("SOCI", "tar, gzip", 3600.0, 9.0),
            sample("stargz, recording", "eStargz", 100.0, 9.0),
        ];
        let text = render(&Record::collect(lines).unwrap());
        for row in [
            "| links | python, 1 layer | 20 ms, 100 Mbit/s | tuff | 900 | stargz | 1800 | 0.50 | – |",
            "| start, ms | image | link | tuff | stargz | SOCI | stargz, recording |",
            "| links | python, 1 layer | 20 ms, 100 Mbit/s | 900 | 1800 | 3600 | 100 |",
            "| block | image | link | way | format | start, ms | sent, MiB |",
            "| links | python, 1 layer | 20 ms, 100 Mbit/s | stargz | eStargz | 1800 | 9 |",
        ] {
            assert!(text.contains(&format!("\n{row}\n")), "{row}: {text}");
        }
    }
}
