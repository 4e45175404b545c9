//! Tables of the campaign: a row for each tool in each task, and the ratio to a common tool.

use crate::Result;
use crate::record::Record;
use crate::report::earlier;
use crate::report::table::{self, Columns, Figure, Table};
use std::fmt::Write as _;

/// Condition in the header: share of the CPU time of other processes above which a sample is loud.
pub(super) const NOISE_LIMIT: &str = "noise limit";
/// Value of a loud sample: share of the CPU time of other processes.
pub(super) const NOISE: &str = "foreign_share";

const WALL: Figure = Figure::new("wall_ns", "wall, s", 1e9);
const CPU: Figure = Figure::new("cpu_us", "CPU, s", 1e6);
const RATE: Figure = Figure::new("mb_per_s", "MB/s", 1.0);
const MEMORY: Figure = Figure::new("max_rss_bytes", "memory, MiB", 1_048_576.0);
const IMAGE: Figure = Figure::new("image_bytes", "image, MiB", 1_048_576.0);
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
/// The same for comparisons with DwarFS.
const DWARFS: (&str, &[&str]) = ("tool", &["mkdwarfs", "dwarfsextract"]);

const TABLE: Table = Table {
    rows: &["tree", "task", "tool"],
    columns: Columns::Figures(ALL),
    spread: true,
    ..table::PLAIN
};

type Only = &'static [(&'static str, &'static str)];

/// Values of the label `action`, with the titles and figures of their tables.
const ACTIONS: [(&str, Only, &[Figure]); 4] = [
    ("Build", &[("action", "build")], ALL),
    (
        "Copy of the whole tree by rsync, from a new mount",
        &[("action", "copy")],
        &[WALL, RATE, CPU],
    ),
    ("Extract", &[("action", "extract")], ALL),
    ("Check", &[("action", "check")], ALL),
];
const ALL: &[Figure] = &[WALL, RATE, CPU, MEMORY, IMAGE];

/// Renders the tables of a record as Markdown.
pub(crate) fn render(record: &Record) -> String {
    let mut tools = record.samples.iter().filter_map(|s| s.cell.get("tool"));
    let of_dwarfs = tools.any(|tool| DWARFS.1.contains(&&**tool));
    let base = match record.campaign() {
        "backup" => SQUASHFS,
        _ if of_dwarfs => DWARFS,
        _ => BASES,
    };
    let mut out = table::heading(record);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "\nMedians [smallest..largest], and in parentheses the ratio to the first of these tools in the task: {}.",
        base.1.join("; ")
    );
    for (title, only, figures) in ACTIONS {
        let text = Table {
            base,
            only,
            columns: Columns::Figures(figures),
            ..TABLE
        }
        .render(record);
        if !text.is_empty() {
            let _ = writeln!(out, "\n**{title}**\n{}", text.trim_end());
        }
    }
    out += &earlier::render(record, "tool", &[WALL, CPU]);
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
