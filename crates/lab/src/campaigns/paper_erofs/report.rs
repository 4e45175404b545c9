//! Tables and charts of the record, with published figures as rows of their own.

use crate::Result;
use crate::campaigns::start::report as start;
use crate::measure::stats::median;
use crate::record::{Record, Sample, labels};
use crate::report::plot::{self, LineChart};
use crate::report::table::{self, Columns, Figure, Table};

const MIB: f64 = 1_048_576.0;

const SPEED: Figure = Figure::new("mib_per_s", "MiB/s", 1.0);
const SAVED: Figure = Figure::new(super::SAVING.0, "space saved, %", 1.0);
const SAVED_BY_IMAGE: Figure = Figure::new(super::SAVING.1, "space saved, %", 1.0);
const IN_PLACE: Figure = Figure::new("in_place_percent", "decodable in place, % of clusters", 1.0);
const DEVICE: Figure = Figure::new("device_ratio", "MiB read for 16 MiB requested", 1.0 / 16.0);
const SUM: Figure = Figure::new("memory_bytes", "memory, MiB", MIB);
const MEMORY: &[Figure] = &[
    Figure::new("content_bytes", "page cache of the file", MIB),
    Figure::new("other_cache_bytes", "other page cache", MIB),
    Figure::new("kernel_bytes", "kernel objects", MIB),
    Figure::new("daemon_bytes", "server", MIB),
];

const TEXT: (&str, &str) = ("corpus", "text");
const MIXED: (&str, &str) = ("corpus", "mixed");
const READS: (&str, &str) = ("part", "reads");

const FIGURES: Table = Table {
    rows: &["filesystem"],
    ..table::PLAIN
};
const SPEEDS: Table = Table {
    columns: Columns::Label("read", SPEED),
    base: ("filesystem", &["ext4"]),
    spread: true,
    ..FIGURES
};

const TABLES: [Table; 10] = [
    Table {
        title: "5.2, text: throughput, MiB/s (of ext4)",
        only: &[READS, TEXT],
        ..SPEEDS
    },
    Table {
        title: "5.2, mixed: throughput, MiB/s (of ext4)",
        only: &[READS, MIXED],
        ..SPEEDS
    },
    Table {
        title: "5.3: space saved, %",
        only: &[READS],
        columns: Columns::Label("corpus", SAVED),
        ..FIGURES
    },
    Table {
        title: "5.3: memory after reading the file, MiB (of ext4)",
        only: &[READS, ("read", "sequential")],
        columns: Columns::Label("corpus", SUM),
        ..SPEEDS
    },
    Table {
        title: "5.3, text: parts of the memory, MiB",
        only: &[READS, TEXT, ("read", "sequential")],
        columns: Columns::Figures(MEMORY),
        ..FIGURES
    },
    Table {
        title: "5.4, text: MiB read from the device for 16 MiB requested",
        only: &[READS, TEXT],
        columns: Columns::Label("read", DEVICE),
        ..FIGURES
    },
    Table {
        title: "5.5, text: random reads and space saved",
        only: &[READS, TEXT, ("read", "random")],
        columns: Columns::Figures(&[SAVED_BY_IMAGE, SPEED]),
        base: ("", &[]),
        ..SPEEDS
    },
    Table {
        title: "5.6: clusters decodable in place, %",
        only: &[READS],
        columns: Columns::Label("corpus", IN_PLACE),
        ..FIGURES
    },
    Table {
        title: "5.6, text: decode strategies, MiB/s (of adaptive)",
        only: &[("part", "strategies")],
        base: ("filesystem", &["EROFS lz4 4K, tuff, adaptive"]),
        ..SPEEDS
    },
    Table {
        title: "5.6, text: scheduling, MiB/s",
        only: &[("part", "scheduling")],
        base: ("", &[]),
        ..SPEEDS
    },
];

/// Lines of the charts: name, beginning and end of the name of a filesystem. A filesystem belongs to the first that matches.
const FAMILIES: [(&str, &str, &str); 5] = [
    ("EROFS, tuff", "EROFS", ", tuff"),
    ("EROFS, kernel", "EROFS", ""),
    ("SquashFS", "SquashFS", ""),
    ("Btrfs", "Btrfs", ""),
    ("ext4", "ext4", ""),
];

/// Renders the tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    let mut all = record.clone();
    all.samples.extend(published());
    let figures = [SUM, SPEED, DEVICE];
    let tables: String = TABLES.iter().map(|t| t.render(&all)).collect();
    let within = |table: Table, title| Table { title, ..table }.render(record);
    table::heading(record)
        + &tables
        + &within(
            start::STARTS,
            "5.7: from fork to exit, ms (of kernel EROFS)",
        )
        + &within(start::DISTRIBUTION, "5.7: quantiles of the start time, ms")
        + &table::bars(record, &figures)
        + &table::notes(record)
}

/// Returns the published figures as samples, with enwik9 as the corpus.
fn published() -> Vec<Sample> {
    let sample = |filesystem: &str, read: &str, value: &str, figure| Sample {
        cell: labels([
            READS,
            TEXT,
            ("filesystem", &format!("published: {filesystem}")),
            ("read", read),
        ]),
        round: 1,
        values: [(value.to_owned(), figure)].into(),
    };
    let device = |read, mib: f64| sample("SquashFS 128K", read, DEVICE.value, mib / 16.0);
    vec![
        device("sequential", 7.25),
        device("random", 165.27),
        device("stride", 203.91),
        sample("EROFS", "sequential", IN_PLACE.value, 99.6),
    ]
}

/// Draws throughput over the space saved, for each kind of read of each corpus, and the distributions of start times.
pub(crate) fn plot(record: &Record) -> Result<String> {
    let mut rows = Vec::new();
    for corpus in ["text", "mixed"] {
        let charts = ["sequential", "random", "stride"].map(|read| curve(record, corpus, read));
        if charts.iter().any(|c| !c.series.is_empty()) {
            rows.push(charts.into());
        }
    }
    rows.extend(start::charts(record));
    plot::line_charts(&rows)
}

fn curve(record: &Record, corpus: &str, read: &str) -> LineChart {
    let is_here = |s: &&Sample| {
        let has = |(name, value): (&str, &str)| s.cell.get(name).is_some_and(|v| v == value);
        has(READS) && has(("corpus", corpus)) && has(("read", read))
    };
    let samples: Vec<&Sample> = record.samples.iter().filter(is_here).collect();
    let mut names: Vec<&String> = samples.iter().map(|s| &s.cell["filesystem"]).collect();
    names.sort();
    names.dedup();
    let family = |name: &str| {
        let is_in = |f: &&(&str, &str, &str)| name.starts_with(f.1) && name.ends_with(f.2);
        FAMILIES.iter().find(is_in).map(|f| f.0)
    };
    let point = |name: &String| {
        let of = |figure: &Figure| {
            let of = samples.iter().filter(|s| s.cell["filesystem"] == **name);
            let values = of.filter_map(|s| s.values.get(figure.value).copied());
            median(&values.collect::<Vec<_>>())
        };
        Some((of(&SAVED_BY_IMAGE)?, of(&SPEED)?))
    };
    let mut series = Vec::new();
    for (name, ..) in FAMILIES {
        let of = names.iter().filter(|n| family(n) == Some(name));
        let mut points: Vec<(f64, f64)> = of.filter_map(|n| point(n)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        // A line along the axis stands for a filesystem with a single point.
        if let [(x, y)] = points[..] {
            points = vec![(x, y), (100.0, y)];
        }
        if !points.is_empty() {
            series.push((name.to_owned(), points));
        }
    }
    LineChart {
        title: format!("{corpus}, {read}"),
        x: "space saved, %".to_owned(),
        y: "MiB/s".to_owned(),
        series,
    }
}
