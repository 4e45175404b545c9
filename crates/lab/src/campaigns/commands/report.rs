//! Tables of the campaign: a row for each tool in each task, and the ratio to a common tool.

use super::definition::{self, Limit, Measure, Task};
use crate::Result;
use crate::record::{Bar, Record, labels};
use crate::report::table::{self, Columns, Figure, Table};
use std::fmt::Write as _;

/// Condition in the header: share of the CPU time of other processes above which a sample is loud.
pub(super) const NOISE_LIMIT: &str = "noise limit";
/// Value of a loud sample: share of the CPU time of other processes.
pub(super) const NOISE: &str = "foreign_share";

const WALL: Figure = Figure {
    value: "wall_ns",
    title: "wall, s",
    divisor: 1e9,
};
const CPU: Figure = Figure {
    value: "cpu_us",
    title: "CPU, s",
    divisor: 1e6,
};
const RATE: Figure = Figure {
    value: "mb_per_s",
    title: "MB/s",
    divisor: 1.0,
};
const MEMORY: Figure = Figure {
    value: "max_rss_bytes",
    title: "memory, MiB",
    divisor: 1048576.0,
};
const IMAGE: Figure = Figure {
    value: "image_bytes",
    title: "image, MiB",
    divisor: 1048576.0,
};

/// Tools at the base of ratios, in order of preference.
const BASES: (&str, &[&str]) = (
    "tool",
    &[
        "mkfs.erofs libdeflate",
        "mkfs.erofs",
        "fsck.erofs",
        "mksquashfs",
        "dedupe off",
    ],
);
/// The same for comparisons with SquashFS.
const SQUASHFS: (&str, &[&str]) = ("tool", &["mksquashfs", "mksquashfs, kernel"]);

const TABLE: Table = Table {
    title: "",
    only: &[],
    rows: &["tree", "task", "tool"],
    columns: Columns::Figures(&[WALL, RATE, CPU, MEMORY, IMAGE]),
    base: ("", &[]),
    spread: true,
};

/// Tables with the values of the label `action`.
const ACTIONS: [(&str, Table); 4] = [
    (
        "Build",
        Table {
            only: &[("action", "build")],
            ..TABLE
        },
    ),
    (
        "Copy of the whole tree by rsync, from a new mount",
        Table {
            only: &[("action", "copy")],
            columns: Columns::Figures(&[WALL, RATE, CPU]),
            ..TABLE
        },
    ),
    (
        "Extract",
        Table {
            only: &[("action", "extract")],
            ..TABLE
        },
    ),
    (
        "Check",
        Table {
            only: &[("action", "check")],
            ..TABLE
        },
    ),
];

/// Returns the bar of a task on a tree.
pub(super) fn bar(task: &Task, tree: &str, bar: &definition::Bar) -> Bar {
    let figure = match bar.measure {
        Measure::Wall => WALL,
        Measure::Cpu => CPU,
        Measure::Memory => MEMORY,
        Measure::Size => IMAGE,
    };
    let at_most = match bar.at_most {
        Limit::Ratio(ratio) => ratio,
        // Exact: sizes are far below 2^53.
        Limit::Bytes(size) => size.0 as f64,
    };
    let action = task.action.to_string();
    Bar {
        cell: labels([
            ("action", &action),
            ("tree", tree),
            ("task", &task.name),
            ("tool", &bar.run),
        ]),
        value: figure.value.to_owned(),
        against: bar.against.as_ref().map(|tool| labels([("tool", tool)])),
        at_most: Some(at_most),
        at_least: None,
    }
}

/// Renders the tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    let base = match record.campaign() {
        "backup" => SQUASHFS,
        _ => BASES,
    };
    let mut out = table::heading(record);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "\nMedians [smallest..largest], and in parentheses the ratio to the first of these tools in the task: {}.",
        base.1.join("; ")
    );
    for (title, table) in ACTIONS {
        let text = Table { base, ..table }.render(record);
        if !text.is_empty() {
            let _ = writeln!(out, "\n**{title}**\n{}", text.trim_end());
        }
    }
    out += &table::bars(record, &[WALL, CPU, MEMORY, IMAGE]);
    // Command lines stay in the record: a table of a whole definition has a hundred of them.
    let mut short = record.clone();
    short.notes.retain(|n| !n.cell.contains_key("action"));
    out += &table::notes(&short);
    let count = |value: &str| {
        let values = record.samples.iter().filter_map(|s| s.values.get(value));
        values.filter(|v| **v > 0.0).count()
    };
    let (loud, read, all) = (count(NOISE), count("read_bytes"), record.samples.len());
    let _ = writeln!(
        out,
        "\nOf {all} samples, {loud} ran beside more work of other processes than permitted, and {read} read data from a device. The records hold \
         the command lines."
    );
    out
}

/// Draws the time of each tool in each task as bars.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(
        record,
        &["action", "tree", "task"],
        "tool",
        Some(&WALL),
        "s",
    )
}
