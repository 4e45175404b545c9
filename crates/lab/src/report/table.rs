//! Tables of a record as Markdown: medians with spread and ratio, counts, and bars.

use super::plot;
pub use super::plot::number;
use crate::Result;
use crate::measure::stats::{Spread, median, quantile};
use crate::record::{Bar, Labels, Note, Record, Sample};
use std::fmt::Write as _;

/// Value of samples and its presentation.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Name of the value in samples.
    pub value: &'static str,
    /// Name and unit in tables.
    pub title: &'static str,
    /// Number by which values are divided.
    pub divisor: f64,
}

impl Figure {
    /// Returns the presentation of a value: its title with the unit, and the divisor that leads to that unit.
    pub const fn new(value: &'static str, title: &'static str, divisor: f64) -> Figure {
        Figure {
            value,
            title,
            divisor,
        }
    }
}

/// Content of the cells of a table.
#[derive(Clone, Copy, Debug)]
pub enum Columns {
    /// A column for each value of the label, with the figure's medians.
    Label(&'static str, Figure),
    /// A column for each figure.
    Figures(&'static [Figure]),
    /// A column for each figure, with sums.
    Sums(&'static [Figure]),
    /// A row for each figure, and a column for each value of the label.
    FigureRows(&'static str, &'static [Figure]),
    /// A column for each of these values of the label, with the number of samples.
    Count(&'static str, &'static [&'static str]),
    /// A column for each share, from 0 to 1, with the smallest value that is at least as large as that share of all.
    Quantiles(Figure, &'static [f64]),
}

/// Description of a table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Title in the first cell of the heading.
    pub title: &'static str,
    /// Labels that samples must have. Others are left out.
    pub only: &'static [(&'static str, &'static str)],
    /// Labels of a row.
    pub rows: &'static [&'static str],
    /// Content of the columns.
    pub columns: Columns,
    /// Label, and its values in order of preference, at the base of ratios. Empty shows no ratios.
    pub base: (&'static str, &'static [&'static str]),
    /// True to show the smallest and largest sample.
    pub spread: bool,
}

/// Table of all samples, without ratios and spread.
pub const PLAIN: Table = Table {
    title: "",
    only: &[],
    rows: &[],
    columns: Columns::Figures(&[]),
    base: ("", &[]),
    spread: false,
};

impl Table {
    /// Renders the table. Returns an empty text if no sample belongs to it.
    pub fn render(&self, record: &Record) -> String {
        let samples: Vec<&Sample> = record
            .samples
            .iter()
            .filter(|s| self.only.iter().all(|(l, v)| label(&s.cell, l) == *v))
            .filter(|s| self.rows.iter().all(|l| s.cell.contains_key(*l)))
            .filter(|s| self.has_figure(s))
            .collect();
        if samples.is_empty() {
            return String::new();
        }
        let heads = self.heads(&samples);
        let first = match self.title {
            "" => self.rows.first().copied().unwrap_or_default(),
            title => title,
        };
        let rest = self.rows.len().saturating_sub(1);
        let mut out = format!(
            "\n| {first} |{} {} |\n|---|{}{}\n",
            self.rows
                .iter()
                .skip(1)
                .map(|r| format!(" {r} |"))
                .collect::<String>(),
            heads.join(" | "),
            "---|".repeat(rest),
            "--:|".repeat(heads.len())
        );
        let key = |s: &&&Sample| -> Vec<String> {
            self.rows
                .iter()
                .map(|l| label(&s.cell, l).to_owned())
                .collect()
        };
        let mut line = |names: &[&str], cells: Vec<String>| {
            let cells = cells.iter().map(String::as_str);
            let all: Vec<&str> = names.iter().copied().chain(cells).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(out, "| {} |", all.join(" | "));
        };
        for row in distinct(samples.iter().map(|s| key(&s))) {
            let of: Vec<&Sample> = samples.iter().filter(|s| key(s) == row).copied().collect();
            let names: Vec<&str> = row.iter().map(String::as_str).collect();
            let by_label = |column: &str, figure: &Figure| -> Vec<String> {
                let cell = |head| self.cell(&samples, &with(&of, column, head), figure);
                heads.iter().map(|head| cell(head)).collect()
            };
            let is_shown = |f: &&Figure| heads.iter().any(|head| head == f.title);
            match self.columns {
                Columns::FigureRows(column, figures) => {
                    for figure in figures {
                        let cells = by_label(column, figure);
                        if cells.iter().any(|cell| cell != "–") {
                            line(&[&names[..], &[figure.title]].concat(), cells);
                        }
                    }
                }
                Columns::Label(column, figure) => line(&names, by_label(column, &figure)),
                Columns::Figures(figures) => {
                    let shown = figures.iter().filter(is_shown);
                    line(&names, shown.map(|f| self.cell(&samples, &of, f)).collect());
                }
                Columns::Sums(figures) => {
                    let shown = figures.iter().filter(is_shown);
                    let sum = |f: &Figure| number(values(&of, f).iter().sum());
                    line(&names, shown.map(sum).collect());
                }
                Columns::Quantiles(figure, shares) => {
                    let values = values(&of, &figure);
                    let cells = shares.iter().filter_map(|share| quantile(&values, *share));
                    line(&names, cells.map(number).collect());
                }
                Columns::Count(column, _) => {
                    let count = |head: &String| with(&of, column, head).len().to_string();
                    line(&names, heads.iter().map(count).collect());
                }
            }
        }
        out
    }

    fn has_figure(&self, sample: &Sample) -> bool {
        let has = |f: &Figure| sample.values.contains_key(f.value);
        match self.columns {
            Columns::Label(column, figure) => sample.cell.contains_key(column) && has(&figure),
            Columns::FigureRows(column, figures) => {
                sample.cell.contains_key(column) && figures.iter().any(has)
            }
            Columns::Figures(figures) | Columns::Sums(figures) => figures.iter().any(has),
            Columns::Count(column, values) => values.contains(&label(&sample.cell, column)),
            Columns::Quantiles(figure, _) => has(&figure),
        }
    }

    /// Returns the headings of the columns that have samples.
    fn heads(&self, samples: &[&Sample]) -> Vec<String> {
        match self.columns {
            Columns::Label(column, _) | Columns::FigureRows(column, _) => {
                distinct(samples.iter().map(|s| label(&s.cell, column).to_owned()))
            }
            Columns::Count(_, values) => values.iter().map(|v| (*v).to_owned()).collect(),
            Columns::Quantiles(_, shares) => {
                let percent = |share| format!("{} %", number(share * 100.0));
                shares.iter().map(percent).collect()
            }
            Columns::Figures(figures) | Columns::Sums(figures) => {
                let is_measured =
                    |f: &&Figure| samples.iter().any(|s| s.values.contains_key(f.value));
                figures
                    .iter()
                    .filter(is_measured)
                    .map(|f| f.title.to_owned())
                    .collect()
            }
        }
    }

    /// Formats the median of the samples `of`, with spread and ratio as requested.
    fn cell(&self, all: &[&Sample], of: &[&Sample], figure: &Figure) -> String {
        let Some(spread) = Spread::from_samples(&values(of, figure)) else {
            return "–".to_owned();
        };
        let mut out = number(spread.median);
        let (min, max) = (number(spread.min), number(spread.max));
        if self.spread && min != max {
            let _ = write!(out, " [{min}..{max}]");
        }
        let (base_label, bases) = self.base;
        let base = bases.iter().find_map(|base| {
            let mut cell = of[0].cell.clone();
            cell.insert(base_label.to_owned(), (*base).to_owned());
            let of: Vec<&Sample> = all.iter().filter(|s| s.cell == cell).copied().collect();
            median(&values(&of, figure))
        });
        if let Some(base) = base.filter(|base| *base != 0.0) {
            let _ = write!(out, " ({:.2})", spread.median / base);
        }
        out
    }
}

/// Renders the machine and conditions of a record as a paragraph for each header, without repetition.
pub fn heading(record: &Record) -> String {
    let text = record.headers.iter().map(|header| {
        let m = &header.machine;
        let mut text = format!(
            "{}, {} processors, {}, {}.",
            m.cpu, m.cpus_allowed, m.kernel, m.system
        );
        for (name, value) in &header.conditions {
            let _ = write!(text, " {name}: {value}.");
        }
        text
    });
    distinct(text).join("\n\n") + "\n"
}

/// Renders a list of the notes and failures of a record, without repetition, and the number of rejected samples.
pub fn notes(record: &Record) -> String {
    let mut out = failures(record) + &list("Notes", &record.notes);
    if !record.rejected.is_empty() {
        let (rejected, counted) = (record.rejected.len(), record.samples.len());
        let _ = writeln!(out, "\nSamples rejected: {rejected}, counted: {counted}.");
    }
    out
}

/// Renders a list of the failures of a record, without repetition.
pub fn failures(record: &Record) -> String {
    list("Without a result", &record.failures)
}

fn list(title: &str, notes: &[Note]) -> String {
    let lines = notes.iter().map(|note| {
        format!(
            "* {}: {}\n",
            name(&note.cell),
            note.text.replace('<', "\\<")
        )
    });
    let lines = distinct(lines);
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n{title}:\n\n{}", lines.concat()),
    }
}

/// Renders a row for each bar and cell: limit, measured value and whether the limit is met. `figures` are the titles of
/// the values.
pub fn bars(record: &Record, figures: &[Figure]) -> String {
    let mut out = String::new();
    for bar in &record.bars {
        let matches = |s: &&Sample| bar.cell.iter().all(|(l, v)| label(&s.cell, l) == v);
        let has_value = |s: &&Sample| s.values.contains_key(&bar.value);
        let samples = record.samples.iter().filter(matches).filter(has_value);
        for cell in distinct(samples.map(|s| s.cell.clone())) {
            bar_row(&mut out, record, bar, &cell, figures);
        }
    }
    if out.is_empty() {
        return out;
    }
    format!("\n| bar | figure | limit | measured | |\n|---|---|--:|--:|---|\n{out}")
}

fn bar_row(out: &mut String, record: &Record, bar: &Bar, cell: &Labels, figures: &[Figure]) {
    let figure = figures.iter().find(|f| f.value == bar.value);
    let title = figure.map_or(&*bar.value, |f| f.title);
    let (of, divisor) = match &bar.against {
        Some(against) => (format!(", of {}", name(against)), 1.0),
        None => (String::new(), figure.map_or(1.0, |f| f.divisor)),
    };
    let limit = limit(bar, divisor);
    let (measured, verdict) = match measured(record, bar, cell) {
        None => ("–".to_owned(), "not measured"),
        Some(measured) => (
            match bar.against {
                Some(_) => format!("{measured:.3}"),
                None => number(measured / divisor),
            },
            verdict(bar, measured),
        ),
    };
    let name = name(cell);
    let _ = writeln!(
        out,
        "| {name} | {title}{of} | {limit} | {measured} | {verdict} |"
    );
}

/// Returns the median, or ratio of medians, that a bar limits.
fn measured(record: &Record, bar: &Bar, cell: &Labels) -> Option<f64> {
    let median_of = |cell: &Labels| {
        let samples = record.samples.iter().filter(|s| s.cell == *cell);
        median(
            &samples
                .filter_map(|s| s.values.get(&bar.value).copied())
                .collect::<Vec<_>>(),
        )
    };
    let own = median_of(cell)?;
    let Some(against) = &bar.against else {
        return Some(own);
    };
    let mut base = cell.clone();
    base.extend(against.clone());
    Some(own / median_of(&base).filter(|base| *base != 0.0)?)
}

/// Formats the limits of a bar, divided by `divisor`.
pub(crate) fn limit(bar: &Bar, divisor: f64) -> String {
    let number = |limit: f64| number(limit / divisor);
    match (bar.at_least, bar.at_most) {
        (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
        (Some(least), None) => format!("≥ {}", number(least)),
        (None, Some(most)) => format!("≤ {}", number(most)),
        (None, None) => String::new(),
    }
}

/// Returns the word for a measured value that keeps the limits of a bar or not.
pub(crate) fn verdict(bar: &Bar, measured: f64) -> &'static str {
    let is_met = bar.at_most.is_none_or(|most| measured <= most)
        && bar.at_least.is_none_or(|least| measured >= least);
    if is_met { "reached" } else { "**missed**" }
}

/// Draws the medians of a figure, or without one the numbers of samples, as horizontal bars: a group for each combination
/// of the labels `groups`, a bar for each value of the label `series`.
pub fn bar_plot(
    record: &Record,
    groups: &[&str],
    series: &str,
    figure: Option<&Figure>,
    unit: &str,
) -> Result<String> {
    let samples: Vec<&Sample> = record
        .samples
        .iter()
        .filter(|s| s.cell.contains_key(series))
        .filter(|s| figure.is_none_or(|f| s.values.contains_key(f.value)))
        .collect();
    let names = distinct(samples.iter().map(|s| label(&s.cell, series).to_owned()));
    let key = |s: &Sample| {
        groups
            .iter()
            .map(|l| label(&s.cell, l))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let groups: Vec<plot::BarGroup> = distinct(samples.iter().map(|s| key(s)))
        .into_iter()
        .map(|group| {
            let value = |name: &String| {
                let mut of = with(&samples, series, name);
                of.retain(|s| key(s) == group);
                match figure {
                    Some(f) => median(&values(&of, f)),
                    None => Some(of.len() as f64).filter(|count| *count > 0.0),
                }
            };
            let bars = names.iter().enumerate();
            let bars = bars
                .filter_map(|(i, name)| Some((i, value(name)?)))
                .collect();
            plot::BarGroup { label: group, bars }
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    plot::bars(&names, &groups, unit)
}

/// Returns charts of the cumulative distribution of a figure for each value of the labels `row` and `column`, with a line for
/// each value of the label `series`.
pub fn distributions(
    record: &Record,
    row: &str,
    column: &str,
    series: &str,
    figure: &Figure,
    unit: &str,
) -> Vec<Vec<plot::LineChart>> {
    let has_figure = |s: &&Sample| s.values.contains_key(figure.value);
    let samples: Vec<&Sample> = record.samples.iter().filter(has_figure).collect();
    let values = |label_name: &str| {
        distinct(
            samples
                .iter()
                .map(|s| label(&s.cell, label_name).to_owned()),
        )
    };
    let (columns, names) = (values(column), values(series));
    let chart = |row_value: &str, column_value: &str| {
        let of = with(&with(&samples, row, row_value), column, column_value);
        let lines: Vec<(&String, Vec<f64>)> = names
            .iter()
            .map(|name| {
                let of = with(&of, series, name);
                (name, self::values(&of, figure))
            })
            .collect();
        // Cutting at 95 % keeps single outliers from compressing the other lines.
        let slowest = lines
            .iter()
            .filter_map(|(_, values)| quantile(values, 0.95));
        let end = slowest.map(|value| value * 1.1).reduce(f64::max)?;
        let lines = lines.into_iter();
        Some(plot::LineChart {
            title: format!("{row_value}, {column_value}"),
            x: format!("{unit}, up to {}", number(end)),
            y: "share".to_owned(),
            series: lines
                .map(|(name, values)| (name.clone(), shares(values, end)))
                .collect(),
        })
    };
    let charts = |row: &String| -> Vec<plot::LineChart> {
        columns.iter().filter_map(|c| chart(row, c)).collect()
    };
    values(row).iter().map(charts).collect()
}

/// Returns the points of the cumulative distribution up to `end`.
fn shares(mut values: Vec<f64>, end: f64) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let mut points = Vec::new();
    for (before, value) in values.iter().enumerate().filter(|(_, v)| **v <= end) {
        points.push((*value, before as f64 / count));
        points.push((*value, (before as f64 + 1.0) / count));
    }
    points
}

/// Returns the values of a figure in its unit.
fn values(samples: &[&Sample], figure: &Figure) -> Vec<f64> {
    let values = samples.iter().filter_map(|s| s.values.get(figure.value));
    values.map(|v| v / figure.divisor).collect()
}

/// Returns the samples whose label has a value.
fn with<'a>(samples: &[&'a Sample], name: &str, value: &str) -> Vec<&'a Sample> {
    samples
        .iter()
        .filter(|s| label(&s.cell, name) == value)
        .copied()
        .collect()
}

fn label<'a>(cell: &'a Labels, name: &str) -> &'a str {
    cell.get(name).map_or("", String::as_str)
}

/// Returns the values of labels as a text.
fn name(cell: &Labels) -> String {
    cell.values()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the values in the order of their first occurrence.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, Line, labels};

    const COLD: Figure = Figure::new("cold_ns", "cold, ms", 1e6);
    const TABLE: Table = Table {
        title: "",
        only: &[],
        rows: &["image"],
        columns: Columns::Label("server", COLD),
        base: ("server", &["kernel"]),
        spread: true,
    };

    fn record() -> Record {
        let sample = |image: &str, server: &str, round, cold: f64| {
            Line::Sample(Sample {
                cell: labels([("image", image), ("server", server)]),
                round,
                values: [("cold_ns".to_owned(), cold)].into(),
            })
        };
        let bar = |at_most| {
            Line::Bar(Bar {
                cell: labels([("server", "tuff")]),
                value: "cold_ns".to_owned(),
                against: Some(labels([("server", "kernel")])),
                at_most: Some(at_most),
                at_least: None,
            })
        };
        let failure = Note {
            cell: labels([("server", "squashfuse")]),
            text: "<E> not installed".to_owned(),
        };
        let header = Header::here("test", [("seed", "1".to_owned())]).unwrap();
        Record::collect([
            Line::Header(header),
            bar(0.9),
            bar(0.5),
            sample("a", "tuff", 1, 8e6),
            sample("a", "kernel", 1, 10e6),
            sample("a", "tuff", 2, 9e6),
            sample("a", "tuff", 3, 7e6),
            sample("b", "tuff", 1, 1e6),
            Line::Failure(failure),
        ])
        .unwrap()
    }

    #[test]
    fn a_table_has_medians_with_spread_and_ratio() {
        let expected = "\n| image | tuff | kernel |\n|---|--:|--:|\n\
                        | a | 8 [7..9] (0.80) | 10 (1.00) |\n| b | 1 | – |\n";
        assert_eq!(TABLE.render(&record()), expected);
    }

    #[test]
    fn figures_and_counts_can_be_columns_or_rows() {
        let render = |rows, columns| {
            let table = Table {
                title: "cost",
                rows,
                columns,
                base: ("", &[]),
                spread: false,
                ..TABLE
            };
            table.render(&record())
        };
        assert_eq!(
            render(&["image", "server"], Columns::Figures(&[COLD])),
            "\n| cost | server | cold, ms |\n|---|---|--:|\n| a | tuff | 8 |\n| a | kernel | 10 |\n| b | tuff | 1 |\n"
        );
        assert_eq!(
            render(&[], Columns::FigureRows("server", &[COLD])),
            "\n| cost | tuff | kernel |\n|---|--:|--:|\n| cold, ms | 7.50 | 10 |\n"
        );
        assert_eq!(
            render(
                &["image"],
                Columns::Count("server", &["kernel", "fuse", "tuff"])
            ),
            "\n| cost | kernel | fuse | tuff |\n|---|--:|--:|--:|\n| a | 1 | 0 | 3 |\n| b | 0 | 0 | 1 |\n"
        );
        assert_eq!(
            render(&["program"], Columns::Count("server", &["tuff"])),
            ""
        );
    }

    #[test]
    fn bars_are_judged_for_every_cell_and_failures_are_listed() {
        let expected = "\n| bar | figure | limit | measured | |\n|---|---|--:|--:|---|\n\
                        | a, tuff | cold, ms, of kernel | ≤ 0.900 | 0.800 | reached |\n\
                        | b, tuff | cold, ms, of kernel | ≤ 0.900 | – | not measured |\n\
                        | a, tuff | cold, ms, of kernel | ≤ 0.500 | 0.800 | **missed** |\n\
                        | b, tuff | cold, ms, of kernel | ≤ 0.500 | – | not measured |\n";
        assert_eq!(bars(&record(), &[COLD]), expected);
        assert_eq!(
            notes(&record()),
            "\nWithout a result:\n\n* squashfuse: \\<E> not installed\n"
        );
        assert!(
            heading(&record()).ends_with("seed: 1.\n"),
            "{}",
            heading(&record())
        );
    }

    #[test]
    fn quantiles_can_be_columns() {
        let table = Table {
            rows: &["server"],
            columns: Columns::Quantiles(COLD, &[0.5, 1.0]),
            ..TABLE
        };
        assert_eq!(
            table.render(&record()),
            "\n| server | 50 % | 100 % |\n|---|--:|--:|\n| tuff | 7 | 9 |\n| kernel | 10 | 10 |\n"
        );
    }

    #[test]
    fn a_distribution_ends_at_one() {
        let expected = vec![(1.0, 0.0), (1.0, 0.5), (3.0, 0.5), (3.0, 1.0)];
        assert_eq!(shares(vec![3.0, 1.0], 3.0), expected);
        assert_eq!(shares(vec![3.0, 1.0], 2.0), expected[..2]);
        let charts = distributions(&record(), "image", "", "server", &COLD, "ms");
        assert_eq!(charts.len(), 2, "a row for each image");
        let lines = &charts[0][0].series;
        assert_eq!(lines.iter().map(|l| l.1.len()).collect::<Vec<_>>(), [6, 2]);
    }

    #[test]
    fn a_plot_has_a_bar_for_each_cell() {
        let svg = bar_plot(&record(), &["image"], "server", Some(&COLD), "ms").unwrap();
        assert_eq!(svg.matches(" ms\n").count(), 3, "{svg}");
        let svg = bar_plot(&record(), &["image"], "server", None, "samples").unwrap();
        assert!(
            svg.contains("3 samples") && svg.contains("1 samples"),
            "{svg}"
        );
    }
}
