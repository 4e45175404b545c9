//! Tables of the campaign: time of each read, and the resources it used.

use crate::Result;
use crate::record::Record;
use crate::report::earlier;
use crate::report::table::{self, Columns, Figure, Table};

const COLD: Figure = Figure::new("cold_ns", "first read, ms", 1e6);
const WARM: Figure = Figure::new("warm_ns", "second read, ms", 1e6);
const CLIENT: Figure = Figure::new(
    "cold_client_ns",
    "first read, CPU time of the client, ms",
    1e6,
);
const MEMORY: Figure = Figure::new(
    "daemon_peak_bytes",
    "memory of the server, MiB",
    1_048_576.0,
);
const DEVICE: Figure = Figure::new("device_bytes", "read from the device, MiB", 1_048_576.0);

/// Figures with a table each.
const FIGURES: [Figure; 5] = [COLD, WARM, CLIENT, MEMORY, DEVICE];

/// Renders a table for each figure, the bars, and the images.
pub(crate) fn render(record: &Record) -> String {
    let table = |figure: &Figure| {
        let is_time = [COLD.value, WARM.value].contains(&figure.value);
        let table = Table {
            title: figure.title,
            rows: &["read", "image"],
            columns: Columns::Label("server", *figure),
            base: ("server", if is_time { &["kernel"] } else { &[] }),
            spread: is_time,
            ..table::PLAIN
        };
        table.render(record)
    };
    let tables: String = FIGURES.iter().map(table).collect();
    let earlier = earlier::render(record, "server", &[COLD, WARM]);
    table::heading(record)
        + &tables
        + &earlier
        + &table::bars(record, &FIGURES)
        + &table::notes(record)
}

/// Draws the times of the first pass as bars.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(record, &["read", "image"], "server", Some(&COLD), "ms")
}
