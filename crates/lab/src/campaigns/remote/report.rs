//! Tables and the chart of a record.

use super::complete::LOCAL;
use super::starts::DOWNLOAD;
use crate::Result;
use crate::record::Record;
use crate::report::earlier;
use crate::report::table::{self, Columns, Figure, Table};

const COLD: Figure = Figure::new("cold_ms", "from the mount to the exit, ms", 1.0);
const READ: Figure = Figure::new("read_ms", "time to read, ms", 1.0);
const MIB: f64 = 1_048_576.0;
/// Figures of starts, with a column for each way.
const STARTS: [Figure; 9] = [
    COLD,
    Figure::new("start_ms", "the program alone, ms", 1.0),
    Figure::new("sent_bytes", "sent by the server, MiB", MIB),
    Figure::new("sent_ratio", "sent / read from a local disk", 1.0),
    Figure::new("requests", "requests", 1.0),
    Figure::new(
        "demand_misses",
        "reads that needed a request of their own",
        1.0,
    ),
    Figure::new("demand_waits", "reads that waited for the network", 1.0),
    Figure::new("daemon_cpu_us", "CPU time of the mount, ms", 1e3),
    Figure::new("daemon_peak_bytes", "memory of the mount, MiB", MIB),
];
/// Figures with a row for each way.
const WAYS: [Figure; 5] = [
    Figure::new("cpu_ms_per_gb", "CPU time for 1 GB, ms", 1.0),
    Figure::new("p50_ms", "median, ms", 1.0),
    Figure::new("p99_ms", "p99, ms", 1.0),
    Figure::new("more_requests_percent", "second requests, %", 1.0),
    Figure::new(
        "requests_before_mount",
        "requests before the mount returns",
        1.0,
    ),
];
const MEMORY: [Figure; 3] = [
    Figure::new("image_bytes", "image, MiB", MIB),
    Figure::new("daemon_peak_bytes", "peak memory of the daemon, MiB", MIB),
    Figure::new("beside_cache_bytes", "without its cache, MiB", MIB),
];

/// Renders the tables that a record has samples for.
pub(crate) fn render(record: &Record) -> String {
    let by_way = |figure: Figure, row: &'static [&'static str], base: &'static [&'static str]| {
        let table = Table {
            title: figure.title,
            rows: row,
            columns: Columns::Label("way", figure),
            base: ("way", base),
            spread: !base.is_empty(),
            ..table::PLAIN
        };
        table.render(record)
    };
    let starts = STARTS.map(|figure| match figure.value == COLD.value {
        true => by_way(figure, &["program"], &[DOWNLOAD]),
        false => by_way(figure, &["program"], &[]),
    });
    let rows = |rows, columns| {
        let table = Table {
            rows,
            columns,
            ..table::PLAIN
        };
        table.render(record)
    };
    let mut out = table::heading(record);
    out += &starts.concat();
    out += &earlier::render(record, "way", &[COLD]);
    out += &by_way(READ, &["read"], &[LOCAL]);
    out += &rows(&["way"], Columns::Figures(&WAYS));
    if record
        .samples
        .iter()
        .any(|s| s.values.contains_key("beside_cache_bytes"))
    {
        out += &rows(&["image", "way"], Columns::Figures(&MEMORY[1..]));
        out += &rows(&["image"], Columns::Figures(&MEMORY[..1]));
    }
    let figures = [&STARTS[..], &[READ], &WAYS, &MEMORY].concat();
    out += &table::bars(record, &figures);
    out + &table::notes(record)
}

/// Draws the time of each program in each way as bars, or that of each kind of reads.
pub(crate) fn plot(record: &Record) -> Result<String> {
    match record
        .samples
        .iter()
        .any(|s| s.values.contains_key(COLD.value))
    {
        true => table::bar_plot(record, &["program"], "way", Some(&COLD), "ms"),
        false => table::bar_plot(record, &["read"], "way", Some(&READ), "ms"),
    }
}
