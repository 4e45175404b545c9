//! Tables and charts of a record.

use crate::Result;
use crate::record::{Record, Sample};
use crate::report::plot::{LineChart, line_charts};
use crate::report::table::{self, Columns, Figure, Table, distinct, number};
use std::fmt::Write as _;

const MIB: f64 = 1_048_576.0;
const WALL: Figure = Figure::new("wall_ms", "time, s", 1e3);
const CPU: Figure = Figure::new("cpu_ms", "CPU, s", 1e3);
const MEMORY: Figure = Figure::new("peak_bytes", "memory, MiB", MIB);
const LIMIT: Figure = Figure::new("limit_bytes", "memory limit, MiB", MIB);
const DISK: Figure = Figure::new("disk_bytes", "store, MiB", MIB);
const ADDED: Figure = Figure::new("added_bytes", "added, MiB", MIB);
const FREED: Figure = Figure::new("freed_bytes", "freed, MiB", MIB);
const FIRST_BYTE: Figure = Figure::new("first_byte_ms", "first byte, s", 1e3);
const FOUND: Figure = Figure::new("found_ms", "damage found, s", 1e3);
const REQUESTS: Figure = Figure::new("requests", "requests", 1.0);
const SENT: Figure = Figure::new("sent_bytes", "sent, MB", 1e6);
const RECEIVED: Figure = Figure::new("received_bytes", "received, MB", 1e6);
const TRAFFIC: Figure = Figure::new("traffic_bytes", "sent and received, MB", 1e6);
const OBJECTS: Figure = Figure::new("store_bytes", "store, MB", 1e6);
const LOST: Figure = Figure::new("lost_files", "files lost", 1.0);

type Only = &'static [(&'static str, &'static str)];

/// Titles of the tables, with the samples, the labels of rows and the figures of each.
const TABLES: [(&str, Only, &[&str], &[Figure]); 18] = [
    (
        "Levels: first backup",
        &[("task", "levels")],
        &["way", "level"],
        &[CPU, WALL, DISK],
    ),
    (
        "First backup",
        &[("task", "first backup"), DIRECTORY],
        WAY,
        COST,
    ),
    (
        "A day with changes, median of the days",
        &[("task", "day with changes"), DIRECTORY],
        WAY,
        COST,
    ),
    (
        "No changes, warm cache",
        &[("task", "no changes, warm")],
        WAY,
        UNCHANGED,
    ),
    (
        "No changes, cold cache",
        &[("task", "no changes, cold")],
        WAY,
        UNCHANGED,
    ),
    (
        "Restore of one file",
        &[("task", "restore one file"), DIRECTORY],
        WAY,
        COST,
    ),
    (
        "Restore of everything",
        &[("task", "restore everything")],
        WAY,
        COST,
    ),
    ("Mount by FUSE", &[("task", "mount")], WAY, MOUNT),
    (
        "Mount by the kernel",
        &[("task", "mount, kernel")],
        WAY,
        MOUNT,
    ),
    (
        "Check that reads all content",
        &[("task", "check")],
        WAY,
        COST,
    ),
    (
        "Damage and repair",
        &[("task", "repair")],
        WAY,
        &[FOUND, WALL, CPU, MEMORY, LOST],
    ),
    (
        "Prune",
        &[("task", "prune"), DIRECTORY],
        WAY,
        &[WALL, CPU, MEMORY, FREED, DISK],
    ),
    (
        "Store in a bucket: requests and bytes",
        &[BUCKET],
        TASK,
        &[REQUESTS, SENT, RECEIVED, OBJECTS],
    ),
    ("Store in a bucket: time and memory", &[BUCKET], TASK, COST),
    (
        "Many files: backup",
        &[("task", "files: backup")],
        SHAPE,
        FILES,
    ),
    (
        "Many files: check",
        &[("task", "files: check")],
        SHAPE,
        FILES,
    ),
    (
        "Many files: mount",
        &[("task", "files: mount")],
        SHAPE,
        FILES,
    ),
    (
        "Many files: prune",
        &[("task", "files: prune")],
        SHAPE,
        FILES,
    ),
];
const DIRECTORY: (&str, &str) = ("place", "directory");
const BUCKET: (&str, &str) = ("place", "bucket");
const WAY: &[&str] = &["way"];
const TASK: &[&str] = &["task", "way"];
const SHAPE: &[&str] = &["shape", "way"];
const COST: &[Figure] = &[WALL, CPU, MEMORY];
const UNCHANGED: &[Figure] = &[WALL, CPU, MEMORY, ADDED];
const MOUNT: &[Figure] = &[FIRST_BYTE, MEMORY];
const FILES: &[Figure] = &[WALL, CPU, FIRST_BYTE, MEMORY, LIMIT];
/// Numbers of days after which the size of the stores is shown.
const SIZES: [u32; 3] = [1, 10, 30];

/// Renders the sizes of the stores, and a table for each task.
pub(crate) fn render(record: &Record) -> String {
    let mut out = table::heading(record) + &sizes(record);
    for (title, only, rows, figures) in TABLES {
        let table = Table {
            only,
            rows,
            columns: Columns::Figures(figures),
            // A level of one program is not that of another.
            base: match rows.contains(&"level") {
                true => ("", &[]),
                false => ("way", &["tuff"]),
            },
            spread: true,
            ..table::PLAIN
        };
        let text = table.render(record);
        if !text.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\n**{title}**\n{text}");
        }
    }
    out + &table::bars(record, &[REQUESTS, TRAFFIC]) + &table::notes(record)
}

/// Returns the number of days after which a sample shows the store, if it is one of a backup of a day into a directory.
fn days(sample: &Sample) -> Option<u32> {
    let is_backup = matches!(label(sample, "task"), "first backup" | "day with changes");
    (is_backup && label(sample, "place") == DIRECTORY.1).then_some(sample.round)
}

fn label<'s>(sample: &'s Sample, name: &str) -> &'s str {
    sample.cell.get(name).map_or("", String::as_str)
}

/// Renders the space that each store takes after some days, and its ratio to that of Tuff.
fn sizes(record: &Record) -> String {
    let after = |place: &str, way: &str, count: u32| {
        let of = |s: &&Sample| {
            label(s, "place") == place && label(s, "way") == way && days(s) == Some(count)
        };
        record.samples.iter().find(of)?.values.get(DISK.value)
    };
    let backups = record.samples.iter().filter(|s| days(s).is_some());
    let rows = distinct(backups.map(|s| (label(s, "place"), label(s, "way"))));
    let mut out = String::new();
    for (place, way) in rows {
        let cell = |count| match (after(place, way, count), after(place, "tuff", count)) {
            (Some(size), Some(ours)) => format!("{} ({:.2})", number(size / MIB), size / ours),
            (Some(size), None) => number(size / MIB),
            (None, _) => "–".to_owned(),
        };
        let cells = SIZES.map(cell).join(" | ");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {place} | {way} | {cells} |");
    }
    if out.is_empty() {
        return out;
    }
    let heads = SIZES
        .map(|count| format!("after {count} days, MiB"))
        .join(" | ");
    let heads = heads.replace("after 1 days", "after 1 day");
    format!(
        "\n**Space of the store**\n\n| store in a | way | {heads} |\n|---|---|{}\n{out}",
        "--:|".repeat(SIZES.len())
    )
}

/// Draws the size of the stores, and time, processor time and memory of the backups, by day.
pub(crate) fn plot(record: &Record) -> Result<String> {
    let backups: Vec<&Sample> = record
        .samples
        .iter()
        .filter(|s| days(s).is_some())
        .collect();
    let ways = distinct(backups.iter().map(|s| label(s, "way").to_owned()));
    let chart = |title: &str, figure: Figure| {
        let points = |way: &String| {
            let of = backups.iter().filter(|s| label(s, "way") == way);
            let point = |s: &&Sample| {
                Some((
                    f64::from(s.round),
                    s.values.get(figure.value)? / figure.divisor,
                ))
            };
            of.filter_map(point).collect()
        };
        LineChart {
            title: title.to_owned(),
            x: "day".to_owned(),
            y: figure.title.to_owned(),
            series: ways.iter().map(|way| (way.clone(), points(way))).collect(),
        }
    };
    line_charts(&[
        vec![
            chart("Space of the store", DISK),
            chart("Time of a backup", WALL),
        ],
        vec![
            chart("Processor time of a backup", CPU),
            chart("Peak memory of a backup", MEMORY),
        ],
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, Line, labels};

    fn record() -> Record {
        let sample = |task, way, round, wall: f64, disk: f64| {
            let cell = labels([("task", task), ("way", way), ("place", "directory")]);
            Line::sample(cell, round, [("wall_ms", wall), ("disk_bytes", disk * MIB)])
        };
        let lines = [
            Line::Header(Header::here("store", []).unwrap()),
            sample("first backup", "tuff", 1, 9000.0, 100.0),
            sample("first backup", "restic", 1, 9000.0, 200.0),
            sample("day with changes", "tuff", 2, 1000.0, 101.0),
            sample("day with changes", "restic", 2, 3000.0, 202.0),
            sample("day with changes", "tuff", 10, 2000.0, 110.0),
            sample("day with changes", "restic", 10, 3000.0, 220.0),
        ];
        let traffic = |way, requests: f64, sent: f64| {
            let cell = labels([("task", "first backup"), ("way", way), ("place", "bucket")]);
            Line::sample(
                cell,
                1,
                [("requests", requests), ("sent_bytes", sent * 1e6)],
            )
        };
        let buckets = [traffic("tuff", 20.0, 100.0), traffic("restic", 30.0, 150.0)];
        Record::collect(lines.into_iter().chain(buckets)).unwrap()
    }

    #[test]
    fn sizes_are_those_after_some_days_and_a_day_is_the_median_of_all() {
        let text = render(&record());
        for row in [
            "| store in a | way | after 1 day, MiB | after 10 days, MiB | after 30 days, MiB |",
            "| directory | restic | 200 (2.00) | 220 (2.00) | – |",
            "| tuff | 1.50 [1..2] (1.00) |",
            "| restic | 3 (2.00) |",
            "| first backup | restic | 30 (1.50) | 150 (1.50) |",
        ] {
            assert!(text.contains(&format!("\n{row}\n")), "{row}: {text}");
        }
    }

    #[test]
    fn charts_have_a_line_for_each_way() {
        let svg = plot(&record()).unwrap();
        assert_eq!(svg.matches("restic").count(), 4, "{svg}");
    }
}
